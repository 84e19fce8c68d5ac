"""Flags of Megatron-LM for experts: dispatch, groups, recomputed modules, overlapped exchange."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulator.api import predict
from simulator.interop.exporting import launch_flags
from simulator.interop.launch_files.merging import import_launch
from simulator.software.profile import Software, load_software
from simulator.workload.modules import MoE

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


DEEPSPEED_MOE = (
    "deepspeed pretrain_gpt.py --num-layers {layers} --hidden-size {hidden}"
    " --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048"
    " --vocab-size 50257 --micro-batch-size 8 --global-batch-size 512 --fp16 --deepspeed"
    " --zero-stage 0 --num-experts {experts} --moe-expert-parallel-size 8 {more}\n"
)


@pytest.mark.parametrize(
    ("layers", "hidden", "billions"),
    [(24, 1024, 13), (24, 2048, 52)],  # DeepSpeed-MoE (arXiv 2201.05596), table 2: MoE-128
)
def test_megatron_deepspeed_has_experts_in_every_second_layer(
    layers: int, hidden: int, billions: int, tmp_path: Path
) -> None:
    """--expert-interval 2, --topk 1 and tokens dropped at capacity 1 by default (arguments.py)."""
    text = DEEPSPEED_MOE.format(layers=layers, hidden=hidden, experts=128, more="")
    (tmp_path / "run.sh").write_text(text)
    found = import_launch([tmp_path / "run.sh"], {"cluster": "dgx-a100", "gpus": 64})
    arch, recipe = found.scenario.workload.architecture, found.scenario.workload.recipe
    assert round(arch.parameters / 1e9) == billions
    dense = 12 * layers * hidden**2 + (50257 + 2048) * hidden  # of a model with none
    assert arch.active_parameters == pytest.approx(dense, rel=0.01)
    assert (recipe.moe_capacity_factor, recipe.moe_pads_to_capacity) == (1.0, True)
    assert (found.scenario.pinned["ep"], found.scenario.pinned["etp"]) == (8, 1)
    assert not found.unknown


def test_one_expert_of_megatron_deepspeed_is_none_and_groups_are_read(tmp_path: Path) -> None:
    more = "--num-key-value-heads 4 --swiglu --ffn-hidden-size 5504"
    text = DEEPSPEED_MOE.format(layers=24, hidden=2048, experts=1, more=more)
    (tmp_path / "run.sh").write_text(text.replace("parallel-size 8", "parallel-size 1"))
    found = import_launch([tmp_path / "run.sh"], {"cluster": "dgx-a100", "gpus": 64})
    block = found.scenario.workload.architecture.blocks[0]
    assert not block.is_moe
    assert block.attention is not None and block.attention.kv_heads == 4


def test_a_residual_expert_is_a_shared_one(tmp_path: Path) -> None:
    more = "--mlp-type residual --expert-interval 4 --topk 2 --disable-moe-token-dropping"
    text = DEEPSPEED_MOE.format(layers=26, hidden=1024, experts=32, more=more)
    (tmp_path / "run.sh").write_text(text)
    found = import_launch([tmp_path / "run.sh"], {"cluster": "dgx-a100", "gpus": 64})
    arch = found.scenario.workload.architecture
    moe = next(mlp for mlp in arch.mlps if isinstance(mlp, MoE))
    assert (moe.top_k, moe.shared_ffn_hidden) == (2, 4096)
    assert sum(arch.blocks[kind].is_moe for kind in arch.layer_kinds) == 26 // 4
    assert found.scenario.workload.recipe.moe_capacity_factor is None
