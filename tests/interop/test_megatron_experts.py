"""Flags of Megatron-LM for experts: dispatch, groups, recomputed modules, overlapped exchange."""

from dataclasses import replace
from typing import Any

import pytest

from simulator.api import predict
from simulator.interop.exporting import launch_flags
from simulator.software.profile import Software, load_software

CORE = load_software("megatron-core")


def command(software: Software | None = None, training: Any = None, **asked: Any) -> str:
    """The launch command of one layout of a model of experts on 64 GPUs."""
    asked = {"model": "mixtral-8x7b", "cluster": "dgx-h100", "gpus": 64, "ep": 8, **asked}
    found = predict(**asked)
    scenario = found.scenario
    if software is not None:
        scenario = replace(scenario, software=software)
    if training is not None:
        recipe = replace(scenario.workload.recipe, **training)
        scenario = replace(scenario, workload=replace(scenario.workload, recipe=recipe))
    return launch_flags(found.estimate.layouts, scenario)


@pytest.mark.parametrize(
    ("way", "flags"),
    [
        ("alltoall", "--moe-token-dispatcher-type alltoall"),
        ("allgather", "--moe-token-dispatcher-type allgather"),
        ("deepep", "--moe-token-dispatcher-type flex --moe-enable-deepep"),
    ],
)
def test_every_dispatcher_has_its_flag(way: str, flags: str) -> None:
    text = " ".join(command(dispatcher=way).replace("\\\n", " ").split())
    assert flags in text and text.count("--moe-token-dispatcher-type") == 1


def test_group_limited_routing_has_flags() -> None:
    text = command(model="deepseek-v3", gpus=1024, pp=8)
    assert "--moe-router-num-groups 8" in text and "--moe-router-group-topk 4" in text
    assert "--moe-router-num-groups" not in command()


def test_recomputed_experts_are_named() -> None:
    def modules(*names: Any, **asked: Any) -> str:
        software = replace(CORE, kernels=replace(CORE.kernels, selective_modules=names))
        text = command(software, recompute="selective", **asked)
        return text.split("--recompute-modules ")[1].split(" --")[0].split("\\")[0].strip()

    assert modules("moe") == "moe"
    assert modules("shared_experts", "moe_act") == "shared_experts moe_act"
    assert modules("mlp_act", "moe_act", "norm") == "moe_act layernorm", "one name for both"
    dense = {"model": "llama-3.1-8b", "ep": 1}
    assert modules("core_attn", "moe", "moe_act", **dense) == "core_attn"


@pytest.mark.parametrize(
    ("layout", "modules", "takes"),
    [
        ({}, ("core_attn",), True),
        ({"pp": 4, "vpp": 2}, ("core_attn",), True),
        ({"pp": 4}, ("core_attn",), False),
        ({"recompute": "full"}, ("core_attn",), False),
        ({"recompute": "selective"}, ("moe",), False),
        ({"recompute": "selective"}, ("moe_act",), True),
    ],
)
def test_overlapped_exchange_is_asked_for_where_megatron_has_it(
    layout: dict[str, Any], modules: Any, takes: bool
) -> None:
    kernels = replace(CORE.kernels, selective_modules=modules)
    software = replace(CORE, kernels=kernels, overlap=replace(CORE.overlap, expert=True))
    text = command(software, **layout)
    assert ("--overlap-moe-expert-parallel-comm" in text) == takes
    assert ("Megatron-LM hides no expert traffic with this" in text) == (not takes)


def test_a_load_vector_has_no_flag_and_is_named_briefly() -> None:
    text = command(training={"moe_load": (0.125,) * 8})
    line = next(line for line in text.splitlines() if "moe_load" in line)
    assert "counts on what no flag here says" in line and len(line) < 160
