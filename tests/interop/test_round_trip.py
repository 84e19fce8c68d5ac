"""Export, import, the same layout: a framework's words say all of what they are written from."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.interop.exporting import FORMS, export
from simulator.interop.launch import launch_flags
from simulator.interop.launch_files.merging import import_launch
from simulator.layout.layouts import Layouts
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.scenario import Scenario, make_scenario
from simulator.search.candidates import candidates


@dataclass(frozen=True)
class Case:
    form: str
    """A word of ``export``; blank: the launch command of the software."""
    model: str
    cluster: str
    gpus: int
    software: str
    length: int = 8192
    lora: bool = False


CASES = {
    "megatron-lm dense": Case("megatron-lm", "llama-3.1-70b", "dgx-h100", 64, "megatron-core"),
    "megatron-lm experts": Case("megatron-lm", "mixtral-8x7b", "dgx-h100", 32, "megatron-core"),
    "megatron-lm latent": Case("megatron-lm", "deepseek-v3", "dgx-h100", 256, "megatron-core"),
    "megatron-bridge": Case("megatron-bridge", "llama-3.1-8b", "dgx-h100", 32, "megatron-bridge"),
    "megatron-bridge experts": Case(
        "megatron-bridge", "qwen3-235b-a22b", "gb200-nvl72", 72, "megatron-bridge"
    ),
    "megatron-bridge lora": Case(
        "megatron-bridge", "llama-3.1-8b", "dgx-h100", 16, "megatron-bridge", lora=True
    ),
    "torchtitan": Case("torchtitan", "llama-3.1-8b", "dgx-h100", 32, "torchtitan"),
    "deepspeed": Case("deepspeed", "llama-3.1-8b", "dgx-a100", 32, "deepspeed"),
    "fsdp2": Case("fsdp2", "llama-3.1-8b", "dgx-h100", 32, "torchtitan"),
    "fsdp2 lora": Case("fsdp2", "llama-3.1-8b", "dgx-h100", 8, "torchtitan", lora=True),
    "slurm": Case("slurm", "llama-3.1-70b", "dgx-h100", 64, "megatron-core"),
    "slurm torchtitan": Case("slurm", "llama-3.1-8b", "dgx-h100", 32, "torchtitan"),
    "torchrun": Case("torchrun", "gpt2-xl", "dgx-a100", 16, "plain-ddp", 1024),
    "primus": Case("", "llama-3.1-8b", "mi300x-8", 32, "primus"),
    "mindspeed": Case("", "llama-3.1-8b", "atlas-800t-a2", 32, "mindspeed"),
    "maxtext": Case("", "llama-3.1-8b", "tpu-v5p", 32, "maxtext"),
    "maxtext gpu": Case("", "llama-3.1-8b", "dgx-h100", 32, "maxtext-gpu"),
    "maxtext slices": Case("", "llama-3.1-8b", "tpu-v5e", 512, "maxtext"),
    "maxtext two devices": Case("", "llama-3.1-8b", "tpu7x", 16, "maxtext"),
    "neuronx": Case("", "llama-3.1-8b", "trn1-32xlarge", 64, "neuronx-distributed"),
    "gaudi": Case("", "llama-3.1-8b", "hls-gaudi2", 32, "optimum-habana"),
}


@cache
def scenario_and_layouts(name: str) -> tuple[Scenario, Layouts]:
    case = CASES[name]
    scenario = make_scenario(
        {
            "model": {"name": case.model},
            "training": {
                "sequence_length": case.length,
                "global_batch": 8 * case.gpus,
                **({"lora_rank": 16} if case.lora else {}),
            },
            "cluster": {"name": case.cluster, "gpus": case.gpus, "software": case.software},
        }
    )
    setting = scenario.workload, scenario.cluster, scenario.software
    table = candidates(*setting)
    return scenario, table[reasons(table, *setting) == FEASIBLE]


def sayable(name: str, layouts: Layouts) -> bool:
    """Whether the form can say the layout; what it cannot, its notes or its refusal name."""
    form, row = CASES[name].form, layouts.row()
    if form in FORMS and FORMS[form].lacks(row):
        return False
    partial = row["recompute"] == "full" and row["recompute_layers"]
    if partial and row["recompute_layers"] % row["vpp"]:
        return False  # Megatron counts per chunk, as the command's note says
    if partial and CASES[name].software in ("maxtext", "maxtext-gpu", "neuronx-distributed"):
        return False  # these compute all layers anew, as the command's note says
    if (
        CASES[name].software in ("maxtext", "maxtext-gpu")
        and row["sharding"] == "ddp"
        and row["cp"] > 1
    ):
        return False  # its rules shard weights over that axis too, as the command's note says
    if CASES[name].software == "maxtext-gpu" and row["shard_group"] < row["cp"]:
        return False  # the same, as another note says
    if CASES[name].software == "torchtitan" and form == "slurm":
        return not FORMS["torchtitan"].lacks(row)
    if form == "torchrun" and row["recompute"] == "selective":
        return False
    shared = row["sharding"] == "zero1" and row["shard_group"] < row["dp"] * row["cp"]
    if shared and CASES[name].software == "neuronx-distributed":
        return False
    if CASES[name].software in ("deepspeed", "optimum-habana"):
        return row["recompute"] in ("none", "full") and not partial
    if CASES[name].software == "torchtitan" and row["shard_group"] % row["cp"]:
        return False
    if CASES[name].lora:
        return row["rank_order"] == "tp-cp-dp-pp" and row["sharding"] in ("ddp", "zero1", "zero3")
    return True


def again(name: str, layouts: Layouts, folder: Path) -> dict[str, tuple[object, object]]:
    """What differs between a layout and what is read from its export."""
    case, (scenario, _) = CASES[name], scenario_and_layouts(name)
    text = export(layouts, scenario, case.form) if case.form else launch_flags(layouts, scenario)
    path = folder / ("train.py" if case.form == "fsdp2" else "launch.sh")
    path.write_text(text)
    names = {
        "model": case.model, "cluster": case.cluster, "gpus": case.gpus, "software": case.software,
    }  # fmt: skip
    length = [f"training.sequence_length={case.length}"]  # DeepSpeed's file has none
    found = import_launch([path], names, length if "deepspeed" in text else [])
    assert found.unknown == (), text
    assert found.scenario.workload.recipe.global_batch == 8 * case.gpus
    assert found.scenario.workload.recipe.lora_rank == (16 if case.lora else 0)
    before, after = layouts.row(), found.predicted().layout
    return {
        key: (before[key], after[key])
        for key in before
        if before[key] != after[key] and not (before["cp"] == 1 and key.startswith("cp_"))
    }


QUICK = (
    "megatron-lm dense",
    "megatron-bridge",
    "torchtitan",
    "deepspeed",
    "fsdp2",
    "slurm",
    "maxtext",
    "maxtext gpu",
    "neuronx",
)


@pytest.mark.parametrize("name", QUICK)
def test_a_few_layouts_come_back(name: str, tmp_path: Path) -> None:
    _, table = scenario_and_layouts(name)
    tried = 0
    for i in range(0, len(table), max(len(table) // 40, 1)):
        if tried < 1 and sayable(name, table[i]):
            assert again(name, table[i], tmp_path) == {}, table[i].describe()
            tried += 1
    assert tried


@pytest.mark.evidence
@pytest.mark.parametrize("name", CASES)
def test_every_layout_comes_back(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    _, table = scenario_and_layouts(name)
    folder = tmp_path_factory.mktemp("trip")

    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, len(table) - 1))
    def check(i: int) -> None:
        if sayable(name, table[i]):
            assert again(name, table[i], folder) == {}, table[i].describe()

    check()
