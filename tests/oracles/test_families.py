"""Parameters and forward FLOPs of small models of every family against transformers and torch.

``tests/data/family_counts.json`` holds what ``count_models.py`` printed: exact, nothing rounded.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulator.cost.operators.block_operators import block
from simulator.cost.operators.ends import embedding, head
from simulator.cost.operators.matrices import expert_parameters, rank_parameters
from simulator.cost.operators.operations import Ranks
from simulator.layout.layouts import Layouts
from simulator.layout.placement import place
from simulator.software.profile import load_software
from simulator.workload.architecture import Architecture
from simulator.workload.huggingface import from_hf
from simulator.workload.recipe import Recipe

COUNTS = json.loads((Path(__file__).parents[1] / "data" / "family_counts.json").read_text())
CASES, SIZES = COUNTS["cases"], COUNTS["sizes"]
UNFUSED = replace(load_software("megatron-core").kernels, attention="unfused", pads_vocabulary_to=1)


def read(case: dict[str, Any]) -> Architecture:
    return from_hf(case["config"], name="small", where="config.json")


def name(case: dict[str, Any]) -> str:
    return str(case["config"]["architectures"][0])


def alone() -> Ranks:
    layout = Layouts.of(micro_batch=SIZES["batch"])
    degrees = {x: getattr(layout, x).astype(float) for x in ("tp", "cp", "ep", "etp")}
    return Ranks(
        **degrees,
        micro_batch=layout.micro_batch.astype(float),
        sequence_parallel=layout.sequence_parallel.astype(bool),
        groups=place(layout, 8),
    )


def test_every_new_family_is_there_more_than_once() -> None:
    families = [case["config"]["model_type"] for case in CASES]
    assert len(families) == 47
    assert all(families.count(family) > 1 for family in families)


@pytest.mark.parametrize("case", CASES, ids=name)
def test_parameters(case: dict[str, Any]) -> None:
    arch = read(case)
    assert arch.parameters == case["parameters"]
    # the same on one rank, part by part
    kinds = rank_parameters(arch, tp=1, pp=1, kernels=UNFUSED) + expert_parameters(
        arch, ep=1, etp=1
    )
    layers = sum(kinds[kind] for kind in arch.layer_kinds)
    assert layers + kinds[-2] + kinds[-1] == case["parameters"]


@pytest.mark.parametrize("case", [case for case in CASES if case["forward_flop"]], ids=name)
def test_forward_flop(case: dict[str, Any]) -> None:
    arch, ranks = read(case), alone()
    length = arch.max_positions if arch.patch_values else SIZES["length"]
    recipe = Recipe(
        sequence_length=length, global_batch=SIZES["batch"], decoder_length=SIZES["decoder_length"]
    )
    kinds = [
        block(kind, arch.hidden, ranks, recipe, UNFUSED, arch.position) for kind in arch.blocks
    ]
    parts = [kinds[kind] for kind in arch.layer_kinds]
    parts += [embedding(arch, ranks, recipe, UNFUSED), head(arch, ranks, recipe, UNFUSED)]
    bare = arch.family in ("bert", "deberta-v2") and name(case).endswith("Model")
    flop = sum(
        float((2 * g.batch * g.m * g.n * g.k).item())
        for part in parts
        for g in part.gemms
        if not (bare and g.name == "head")  # transformers' bare model has no output table
    )
    assert flop == case["forward_flop"]
