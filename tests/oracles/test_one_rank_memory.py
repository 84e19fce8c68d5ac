"""Peak memory of one rank under FSDP2, TP and checkpointing, against torch's own trackers.

Torch's numbers are frozen (``tests/data/one_rank_memory.json``, made by ``one_rank_memory.py``);
the cheap cases are measured again here.
"""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from simulator.cost.memory.moments import MOMENTS
from simulator.cost.rank_memory import RankMemory, rank_memory
from simulator.files import Figure
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Recipe, Workload

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from one_rank_memory import CASES, SHAPES, measure

FROZEN = json.loads((HERE.parent / "data" / "one_rank_memory.json").read_text())
ALL = {case["name"]: case for case in FROZEN["cases"]}
PAIRS = [name for name in ALL if name.endswith("2 layers")]

NONE, TWO = Figure(0.0), Figure(2.0)
TITAN = load_software("torchtitan-2025-march")  # its loss is eager, as that of the recorded ranks
BARE = replace(TITAN, allocator=replace(TITAN.allocator, workspace_bytes=NONE))
# without data parallelism the trackers see everything in bf16, AdamW's moments included
HALF = replace(BARE, states=replace(BARE.states, weight=TWO, gradient=TWO, master=NONE, moment=TWO))
ALLOCATED = ("weights", "gradients", "optimizer", "gathered", "activations", "loss", "temporaries")


def architecture(case: dict[str, Any]) -> Architecture:
    """The frozen shape: a block of Llama's kind, its MLP plain for the GPT."""
    shape, base = SHAPES[case["shape"]], presets.load("llama-3.1-8b")
    kind = base.blocks[0]
    width = shape.hidden // shape.heads
    att = replace(kind.attention, heads=shape.heads, kv_heads=shape.kv_heads, head_dim=width)
    mlp = replace(kind.mlp, ffn_hidden=shape.ffn, gated=shape.gated)
    return replace(
        base,
        hidden=shape.hidden,
        vocabulary=shape.vocabulary,
        layer_kinds=(0,) * case["layers"],
        blocks=(replace(kind, attention=att, mlp=mlp),),
    )


def ours(case: dict[str, Any], micro_batches: int = 1, all_there: bool = False) -> RankMemory:
    """The same rank by the formulas; `all_there`: gradients stay, so it never peaks at the end."""
    batch = case["dp"] * micro_batches * case["pieces"]
    length = SHAPES[case["shape"]].sequence // case["pieces"]
    recipe = Recipe(sequence_length=length, global_batch=batch)
    sharding = "ddp" if case["dp"] == 1 else "zero3"
    table = Layouts.of(
        dp=case["dp"],
        tp=case["tp"],
        sharding=sharding,
        global_batch=batch,
        micro_batch=case["pieces"],
        shard_group=case["hybrid"] or case["dp"],
        reshard_after_forward=case["reshard"],
        sequence_parallel=int(case["sequence_parallel"]),
        recompute="full" if case["checkpoint"] else "none",
    )
    cluster = load_cluster("dgx-h100", int(table.world[0]))
    work = Workload(architecture=architecture(case), recipe=recipe)
    software = HALF if case["dp"] == 1 else BARE
    if all_there:
        software = replace(software, states=replace(software.states, frees_gradients=False))
    return rank_memory(table, work, cluster, software)


def allocated(found: RankMemory) -> float:
    return sum(float(found.kinds_bytes[kind][0]) for kind in ALLOCATED)


def torch_bytes(case: dict[str, Any], moment: str, *words: str) -> int:
    """Bytes of the categories whose names hold one of the words."""
    found: dict[str, int] = case["bytes"][moment]
    return sum(size for name, size in found.items() if any(word in name for word in words))


def step_counters(case: dict[str, Any]) -> int:
    """AdamW's counter of steps, 4 bytes for every parameter tensor; they are no formula's business.

    A layer has q, k, v, o, two or three matrices of the MLP and two norms.
    """
    per_layer = 9 if SHAPES[case["shape"]].gated else 8
    return 4 * (per_layer * case["layers"] + 3)


@pytest.mark.parametrize("name", ALL)
def test_weights_and_optimizer_are_exact(name: str) -> None:
    case = ALL[name]
    found = ours(case).kinds_bytes
    states = torch_bytes(case, "rest", "Param", "state", "State") - step_counters(case)
    assert found["weights"][0] + found["optimizer"][0] == states


@pytest.mark.parametrize("name", [name for name in ALL if ALL[name]["dp"] > 1])
def test_sharded_gradients_are_exact(name: str) -> None:
    """With a second micro-batch they are there at the peak, as they are at rest."""
    found = ours(ALL[name], micro_batches=2).kinds_bytes
    assert found["gradients"][0] == torch_bytes(ALL[name], "rest", "Grad")


def test_the_embeddings_gradient_is_whole_under_tensor_parallelism() -> None:
    """torch makes it for the whole vocabulary and keeps a view of it; ours is a share."""
    for name, case in ALL.items():
        if case["dp"] == 1 and case["tp"] > 1:
            shape = SHAPES[case["shape"]]
            table = 2 * shape.vocabulary * shape.hidden
            share = torch_bytes(case, "rest", "Param")
            assert torch_bytes(case, "rest", "Grad") == share + table * 7 // 8, name


@pytest.mark.parametrize("name", PAIRS)
def test_every_layer_keeps_what_torch_keeps(name: str) -> None:
    few, more = ALL[name], ALL[name.replace("2 layers", "4 layers")]
    torch_slope = (torch_bytes(more, "forward", "Act") - torch_bytes(few, "forward", "Act")) / 2
    kept = [float(ours(case, all_there=True).kinds_bytes["activations"][0]) for case in (few, more)]
    slope = (kept[1] - kept[0]) / 2
    assert slope == pytest.approx(torch_slope - _kept_shards(few), rel=5e-4)


def _kept_shards(case: dict[str, Any]) -> float:
    """Weights of one layer that ``reshard_after_forward=n`` leaves, which torch counts as Act."""
    if case["reshard"] in (True, False):
        return 0.0
    shape = SHAPES[case["shape"]]
    kv = shape.hidden // shape.heads * shape.kv_heads
    matrices = 2 * shape.hidden + 2 * kv + (3 if shape.gated else 2) * shape.ffn
    return 2 * shape.hidden * (matrices + 2) / int(case["reshard"])


@pytest.mark.parametrize("name", ALL)
def test_peak(name: str) -> None:
    """At the loss to 0.1 %; in the backward pass to 0.5 % (a gradient of the residual stream)."""
    case = ALL[name]
    found = ours(case)
    at_loss = MOMENTS[int(found.moment[0])] == "loss and head"
    peak = case["bytes"]["peak"]["Total"]
    assert allocated(found) == pytest.approx(peak, rel=1e-3 if at_loss else 5e-3)


def test_every_moment_is_the_fullest_somewhere() -> None:
    """So that none of them goes unchecked."""
    fullest = {MOMENTS[int(ours(case).moment[0])] for case in ALL.values()}
    assert fullest >= set(MOMENTS) - {"backward of a block"}


CHEAP = [
    "llama-3.1-8b, FSDP2, 2 layers",
    "llama-3.1-8b, FSDP2, no reshard, checkpointed, 2 layers",
    "gpt-1.3b, HSDP, 2 layers",
    "gpt-1.3b, TP + SP, 2 layers",
    "gpt-1.3b, FSDP2 x TP + SP, 2 layers",
    "llama-3.1-70b, TP, checkpointed, 2 layers",
    "llama-3.1-70b, FSDP2 x TP + SP, 4 sequences, 2 layers",
    "llama-3.1-405b, FSDP2, 2 layers",
    "llama-3.1-405b, FSDP2, checkpointed, 4 layers",
    "llama-3.1-405b, FSDP2 x TP + SP, no reshard, 4 layers",
]


@pytest.mark.parametrize("name", CHEAP)
def test_torch_still_says_what_is_frozen(name: str) -> None:
    assert torch.__version__.startswith(FROZEN["torch"].split("+")[0].rpartition(".")[0])
    assert measure(CASES[name]) == ALL[name]["bytes"]


def test_frozen_cases_are_those_of_the_program() -> None:
    kept = {name: {k: v for k, v in case.items() if k != "bytes"} for name, case in ALL.items()}
    assert kept == {name: {"name": name, **asdict(case)} for name, case in CASES.items()}
    assert FROZEN["shapes"] == {name: asdict(shape) for name, shape in SHAPES.items()}
