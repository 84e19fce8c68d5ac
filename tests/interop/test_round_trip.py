"""Export, import, the same layout: what a framework's words do not say, a comment names.

The contract goes over every field of [layout]: a new one fails here until ``SECTIONS`` has values
of it and every framework writes and reads it, or names it as one that it has no words for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cost.step import evaluate
from simulator.errors import InputError
from simulator.interop.dialects.megatron import layers_by_stage
from simulator.interop.exporting import FORMS, LAUNCHERS, export, launch_flags
from simulator.interop.launch_files.merging import import_launch
from simulator.layout.layout_section import LayoutSection
from simulator.layout.layouts import Layouts
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.scenario import Scenario, make_scenario
from simulator.search.candidates import candidates
from simulator.search.defaults import complete
from simulator.software.profile import load_software


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
    "megatron-lm small": Case("megatron-lm", "llama-3.1-8b", "dgx-h100", 64, "megatron-core"),
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
    "torchtitan command": Case("", "llama-3.1-8b", "dgx-h100", 32, "torchtitan"),
    "torchtitan experts": Case("", "qwen3-235b-a22b", "dgx-h100", 64, "torchtitan"),
    "deepspeed": Case("deepspeed", "llama-3.1-8b", "dgx-a100", 32, "deepspeed"),
    "fsdp2": Case("fsdp2", "llama-3.1-8b", "dgx-h100", 32, "torchtitan"),
    "fsdp2 lora": Case("fsdp2", "llama-3.1-8b", "dgx-h100", 8, "torchtitan", lora=True),
    "slurm": Case("slurm", "llama-3.1-70b", "dgx-h100", 64, "megatron-core"),
    "slurm torchtitan": Case("slurm", "llama-3.1-8b", "dgx-h100", 32, "torchtitan"),
    "torchrun": Case("torchrun", "gpt2-xl", "dgx-a100", 16, "plain-ddp", 1024),
    "script": Case("", "llama-3.1-8b", "dgx-h100", 32, "meta-llama3-2024"),
    "script experts": Case("", "mixtral-8x7b", "dgx-h100", 32, "deepseek-2024"),
    "primus": Case("", "llama-3.1-8b", "mi300x-8", 32, "primus"),
    "primus lora": Case("", "llama-3.1-8b", "mi300x-8", 32, "primus", lora=True),
    "mindspeed": Case("", "llama-3.1-8b", "atlas-800t-a2", 32, "mindspeed"),
    "mindspeed lora": Case("", "llama-3.1-8b", "atlas-800t-a2", 32, "mindspeed", lora=True),
    "maxtext": Case("", "llama-3.1-8b", "tpu-v5p", 32, "maxtext"),
    "maxtext experts": Case("", "mixtral-8x7b", "tpu-v5p", 32, "maxtext"),
    "maxtext gpu": Case("", "llama-3.1-8b", "dgx-h100", 32, "maxtext-gpu"),
    "maxtext slices": Case("", "llama-3.1-8b", "tpu-v5e", 512, "maxtext"),
    "maxtext two devices": Case("", "llama-3.1-8b", "tpu7x", 16, "maxtext"),
    "neuronx": Case("", "llama-3.1-8b", "trn1-32xlarge", 64, "neuronx-distributed"),
    "gaudi": Case("", "llama-3.1-8b", "hls-gaudi2", 32, "optimum-habana"),
}

OFTEN = (
    *("megatron-lm experts", "megatron-bridge lora", "torchtitan experts", "deepspeed", "fsdp2"),
    *("torchrun", "script", "primus lora", "mindspeed", "maxtext experts", "neuronx", "gaudi"),
)
"""Cases that every run of the tests takes; the others read and write the same words."""

SECTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "tp": ({"tp": 1}, {"tp": 2}, {"tp": 8}),
    "pp": ({"pp": 2}, {"pp": 4, "tp": 2}),
    "vpp": ({"pp": 4, "vpp": 2}, {"pp": 2, "vpp": 16}, {"pp": 2, "vpp": 8, "cp": 2}),
    "cp": ({"cp": 2}, {"cp": 8}, {"cp": 2, "tp": 2, "pp": 2}),
    "cp_kind": (
        {"cp": 4, "cp_kind": "ring"},
        {"cp": 4, "cp_kind": "all_gather"},
        {"cp": 4, "cp_kind": "all_to_all"},
    ),
    "cp_a2a": (
        {"cp": 8, "cp_kind": "hierarchical", "cp_a2a": 2},
        {"cp": 8, "cp_kind": "hierarchical", "cp_a2a": 4},
    ),
    "dp": ({"dp": 2, "tp": 8}, {"dp": 16, "tp": 2}),
    "ep": ({"ep": 2}, {"ep": 8}, {"ep": 4, "tp": 2}),
    "etp": ({"ep": 2, "tp": 2, "etp": 2}, {"tp": 2, "etp": 1}, {"ep": 8, "tp": 4, "etp": 1}),
    "dispatcher": (
        {"ep": 8, "dispatcher": "alltoall"},
        {"ep": 8, "dispatcher": "allgather"},
        {"ep": 8, "dispatcher": "deepep"},
    ),
    "micro_batch": ({"micro_batch": 2}, {"micro_batch": 4, "pp": 2}),
    "sharding": tuple(
        {"sharding": word, **more}
        for word in ("ddp", "zero1", "zero2", "zero3")
        for more in ({}, {"tp": 2}, {"pp": 2}, {"cp": 2})
    ),
    "shard_group": tuple(
        {"sharding": word, "shard_group": 8, **more}
        for word in ("zero1", "zero2", "zero3")
        for more in ({}, {"cp": 2})
    ),
    "reshard_after_forward": tuple(
        {"sharding": "zero3", "reshard_after_forward": value} for value in (True, 8, 4, False)
    ),
    "sequence_parallel": (
        {"tp": 2, "sequence_parallel": True},
        {"tp": 2, "sequence_parallel": False},
    ),
    "recompute": (
        {"recompute": "none"},
        {"recompute": "selective"},
        {"recompute": "full"},
        {"recompute": "selective", "tp": 2, "cp": 2},
        {"recompute": "full", "pp": 2},
    ),
    "recompute_layers": (
        {"recompute": "full", "recompute_layers": 12},
        {"recompute": "full", "recompute_layers": 5, "pp": 4, "vpp": 2},
        {"recompute": "full", "recompute_layers": 4, "pp": 4, "vpp": 2},
    ),
    "recompute_modules": tuple(
        {"recompute": "selective", "recompute_modules": words}
        for words in ("core_attn", "mlp", "norm", "core_attn+norm", "norm+mlp_act", "mlp_act")
    ),
    "offload_layers": ({"offload_layers": 4}, {"offload_layers": 31}, {"offload_layers": 32}),
    "optimizer_offload": tuple(
        {"optimizer_offload": place, "sharding": word}
        for place in ("cpu", "nvme")
        for word in ("zero1", "zero3")
    ),
    "parameter_offload": (
        {"parameter_offload": "cpu", "sharding": "zero3"},
        {"parameter_offload": "cpu", "optimizer_offload": "cpu", "sharding": "zero3"},
        {"parameter_offload": "nvme", "optimizer_offload": "nvme", "sharding": "zero3"},
    ),
    "schedule": (
        {"pp": 4, "schedule": "gpipe"},
        {"pp": 4, "vpp": 2, "schedule": "looped_bfs"},
        {"pp": 4, "vpp": 2, "schedule": "interleaved_zb"},
        {"pp": 4, "vpp": 2, "schedule": "zb_v"},
        {"pp": 4, "vpp": 2, "schedule": "dualpipe_v"},
    ),
    "rank_order": (
        {"tp": 2, "pp": 2, "rank_order": "tp-cp-dp-pp"},
        {"tp": 2, "pp": 2, "rank_order": "tp-cp-pp-dp"},
        {"tp": 2, "pp": 2, "cp": 2, "rank_order": "cp-tp-dp-pp"},
    ),
    "stages": (
        {"pp": 4, "stages": (6, 9, 9, 8)},
        {"pp": 4, "stages": (8, 8, 8, 8)},
        {"pp": 2, "vpp": 2, "stages": (7, 9, 9, 7)},
        {"pp": 4, "vpp": 2, "stages": (3, 4, 4, 5, 4, 4, 4, 4)},
        {"pp": 4, "vpp": 2, "schedule": "zb_v", "stages": (3, 4, 4, 5, 4, 4, 4, 4)},
    ),
}
"""Values of every field of [layout], with what they need; what the software lacks is left out."""


@cache
def scenario_of(name: str) -> Scenario:
    case = CASES[name]
    return make_scenario(
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


def setting_of(scenario: Scenario) -> tuple[Any, ...]:
    return scenario.workload, scenario.cluster, scenario.software


def meant(row: Mapping[str, Any], scenario: Scenario) -> dict[str, Any]:
    """A layout with what its fields stand for where they are not given."""
    usual = "+".join(scenario.software.kernels.selective_modules)
    modules = row["recompute_modules"] or usual
    return {
        **{key: row[key] for key in row if row["cp"] > 1 or not key.startswith("cp_")},
        "recompute_modules": modules if row["recompute"] == "selective" else "",
        "stages": layers_by_stage(dict(row), scenario.workload.architecture),
    }


@dataclass(frozen=True)
class Trip:
    """A layout, and what is read from its export."""

    text: str
    """What was exported, or why nothing was."""
    there: Layouts
    back: Layouts | None = None
    differs: tuple[str, ...] = ()
    """Fields that came back as something else."""
    read: Scenario | None = None
    """What the export says of model, software and layout."""

    def silent(self) -> list[str]:
        """Fields that were lost without a word."""
        if self.back is None:
            return []
        notes = [line for line in self.text.splitlines() if line.startswith("#")]
        return [x for x in self.differs if not any(f"layout.{x} = " in note for note in notes)]


def trip(name: str, layouts: Layouts, folder: Path) -> Trip:
    """Export a layout and read it again."""
    case, scenario = CASES[name], scenario_of(name)
    try:
        form = case.form
        text = export(layouts, scenario, form) if form else launch_flags(layouts, scenario)
    except InputError as error:
        assert "cannot say" in str(error)
        return Trip(str(error), layouts)
    path = folder / ("train.py" if case.form == "fsdp2" else "launch.sh")
    path.write_text(text)
    names = {
        "model": case.model, "cluster": case.cluster, "gpus": case.gpus, "software": case.software,
    }  # fmt: skip
    length = [f"training.sequence_length={case.length}"]  # DeepSpeed's file has none
    rank = ["training.lora_rank=16"] * ("peft: lora" in text)  # nor Primus a rank
    found = import_launch([path], names, [*(length if "deepspeed" in text else []), *rank])
    assert found.unknown == (), text
    assert found.scenario.workload.recipe.global_batch == 8 * case.gpus
    assert found.scenario.workload.recipe.lora_rank == (16 if case.lora else 0)
    back = Layouts.of(**complete(found.scenario, found.scenario.pinned)[0])
    before, after = meant(layouts.row(), scenario), meant(back.row(), scenario)
    differs = tuple(key for key in before if before[key] != after.get(key))
    return Trip(text, layouts, back, differs, found.scenario)


def steps(layouts: list[Layouts], scenario: Scenario) -> list[float]:
    """Time of a step of every layout, in seconds."""
    table = Layouts.concatenate(layouts)
    return [float(x) for x in evaluate(table, *setting_of(scenario)).step_time_s]


def test_every_field_of_a_layout_has_values_here() -> None:
    assert list(SECTIONS) == [field.name for field in fields(LayoutSection)]


def test_every_framework_that_is_written_is_here() -> None:
    assert {case.form for case in CASES.values()} == {*FORMS, "slurm", ""}
    written = {
        load_software(c.software).launcher for c in CASES.values() if c.form in ("", "slurm")
    }
    by_form = {"torchrun", "deepspeed"}  # forms that are their software's launch command
    assert written | by_form == {*LAUNCHERS}


SWITCHES: dict[str, tuple[tuple[dict[str, Any], str], ...]] = {
    "megatron-lm small": (
        ({"tp": 2, "sequence_parallel": True}, "--sequence-parallel"),
        ({"pp": 2, "vpp": 2}, "--num-layers-per-virtual-pipeline-stage"),
        ({"cp": 2}, "--cp-comm-type"),
        ({"recompute": "selective"}, "--recompute-modules"),
        ({"recompute": "full"}, "--recompute-num-layers"),
        ({"sharding": "zero3"}, "--use-megatron-fsdp"),
        ({"optimizer_offload": "cpu"}, "--optimizer-cpu-offload"),
    ),
    "megatron-bridge": (
        ({"tp": 2, "sequence_parallel": True}, "model.sequence_parallel=true"),
        ({"pp": 2, "vpp": 2}, "model.virtual_pipeline_model_parallel_size=2"),
        ({"cp": 2}, "model.cp_comm_type="),
        ({"recompute": "full"}, "model.recompute_num_layers="),
        ({"optimizer_offload": "cpu"}, "optimizer.optimizer_cpu_offload=true"),
    ),
    "torchtitan": (
        ({"pp": 2, "vpp": 2}, "pipeline_parallel_schedule"),
        ({"cp": 2}, "context_parallel_rotate_method"),
        ({"recompute": "selective"}, "selective_ac_option"),
    ),
    "deepspeed": (
        ({"cp": 2}, "sequence_parallel_size"),
        ({"recompute": "full"}, "--gradient_checkpointing"),
        ({"sharding": "zero3"}, "stage3_max_live_parameters"),
        ({"optimizer_offload": "cpu"}, "offload_optimizer"),
    ),
    "primus": (
        ({"pp": 2, "vpp": 2}, "num_layers_per_virtual_pipeline_stage:"),
        ({"cp": 2}, "cp_comm_type:"),
        ({"recompute": "full"}, "recompute_method:"),
    ),
    "mindspeed": (
        ({"tp": 2, "sequence_parallel": True}, "--sequence-parallel"),
        ({"cp": 2}, "--context-parallel-algo"),
        ({"pp": 2, "vpp": 2}, "--num-layers-per-virtual-pipeline-stage"),
        ({"recompute": "full"}, "--recompute-granularity"),
    ),
    "maxtext": (({"cp": 2}, "context_parallel_strategy"), ({"recompute": "full"}, "=full")),
    "neuronx": (
        ({"tp": 2, "sequence_parallel": True}, "sequence_parallel=True"),
        ({"cp": 2}, "fusions.ring_attention=True"),
        ({"recompute": "selective"}, "activations_checkpoint_recompute="),
    ),
    "gaudi": (({"recompute": "full"}, "--gradient_checkpointing"),),
}
"""What turns on, by the trainers' documentation, what a layout has."""


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_stands_where_its_layout_has_it_and_nowhere_else(name: str) -> None:
    form, scenario = CASES[name].form, scenario_of(name)
    plain: dict[str, Any] = {"tp": 1, "pp": 1, "cp": 1, "recompute": "none"}

    def text(more: dict[str, Any]) -> str:
        section = {**plain, **more}
        layout = Layouts.of(**complete(replace(scenario, pinned=section), section)[0])
        return export(layout, scenario, form) if form else launch_flags(layout, scenario)

    texts = [text({}), *(text(more) for more, _ in SWITCHES[name])]
    for place, (_, switch) in enumerate(SWITCHES[name], 1):
        there = [i for i, written in enumerate(texts) if switch in written]
        assert there == [place], (switch, texts[place])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=[pytest.mark.evidence] * (x not in OFTEN)) for x in CASES],
)
def test_every_field_comes_back_or_is_named(name: str, tmp_path: Path) -> None:
    scenario = scenario_of(name)
    sections = [section for values in SECTIONS.values() for section in values]
    rows = [complete(replace(scenario, pinned=section), section)[0] for section in sections]
    table = Layouts.concatenate(Layouts.of(**row) for row in rows)
    trips = []
    for i in np.flatnonzero(reasons(table, *setting_of(scenario)) == FEASIBLE).tolist():
        done = trip(name, table[i], tmp_path)
        assert done.silent() == [], (sections[i], done.text)
        trips.append(done)
    same = [done for done in trips if done.back is not None and not done.differs]
    assert same
    before = steps([done.there for done in same], scenario)
    after = steps([done.back for done in same if done.back is not None], scenario)
    assert before == after


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=[pytest.mark.evidence] * (x not in (*OFTEN, "slurm"))) for x in CASES],
)
def test_what_is_read_takes_the_same_time_and_memory(name: str, tmp_path: Path) -> None:
    """On the software that the command says, not only on the one that was planned with."""
    scenario = scenario_of(name)
    layout = Layouts.of(**complete(scenario, {})[0])
    done = trip(name, layout, tmp_path)
    assert done.back is not None and done.read is not None
    before, after = (
        evaluate(table, *setting_of(one))
        for table, one in ((layout, scenario), (done.back, done.read))
    )
    assert after.step_time_s[0] == before.step_time_s[0], done.text
    assert after.memory_total_bytes[0] == before.memory_total_bytes[0], done.text


@pytest.mark.evidence
@pytest.mark.parametrize("name", CASES)
def test_every_layout_comes_back(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    scenario = scenario_of(name)
    table = candidates(*setting_of(scenario))
    table = table[reasons(table, *setting_of(scenario)) == FEASIBLE]
    folder = tmp_path_factory.mktemp("trip")

    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, len(table) - 1))
    def check(i: int) -> None:
        done = trip(name, table[i], folder)
        assert done.silent() == [], done.text

    check()
