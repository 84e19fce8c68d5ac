"""Mixers in place of attention: what ranks share, which layouts run, whole predictions."""

from typing import Any

import numpy as np
import pytest

from simulator.cost.operators.block_operators import block
from simulator.cost.operators.matrices import rank_parameters
from simulator.cost.operators.model_flop import model_flop_per_step
from simulator.cost.operators.operations import Operators, Ranks
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.layout.placement import place
from simulator.layout.rules.feasibility import REASONS, reasons
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.architecture import Architecture, Block
from simulator.workload.recipe import Recipe, Workload

CORE = load_software("megatron-core")
MODELS = ("nemotron-h-8b", "qwen3-next-80b-a3b")


def operators(kind: Block, arch: Architecture, recipe: Recipe, **degrees: int) -> Operators:
    layout = Layouts.of(**degrees)
    names = ("tp", "cp", "ep", "etp", "micro_batch")
    ranks = Ranks(
        **{name: getattr(layout, name).astype(float) for name in names},
        sequence_parallel=layout.sequence_parallel.astype(bool),
        groups=place(layout, 8),
    )
    return block(kind, arch.hidden, ranks, recipe, CORE.kernels, arch.position)


def reason(name: str, **degrees: Any) -> str:
    gpus = int(np.prod([degrees.get(word, 1) for word in ("dp", "tp", "cp", "pp")]))
    recipe = Recipe(sequence_length=8192, global_batch=64)
    workload = Workload(architecture=presets.load(name), recipe=recipe)
    layout = Layouts.of(global_batch=64, **degrees)
    code = reasons(layout, workload, load_cluster("dgx-h100", gpus=gpus), CORE)
    return REASONS[int(code[0])]


@pytest.mark.parametrize("name", MODELS)
def test_products_of_all_layers_are_a_third_of_the_model_flop(name: str) -> None:
    arch, length = presets.load(name), 4096
    recipe = Recipe(sequence_length=length, global_batch=1)
    kinds = [operators(kind, arch, recipe) for kind in arch.blocks]
    layers = [kinds[kind] for kind in arch.layer_kinds]
    flop = sum(float(np.sum(g.flop)) for ops in layers for g in ops.gemms)
    flop += sum(float(np.sum(call.flop)) for ops in layers for call in ops.flash)
    head = 2.0 * length * arch.vocabulary * arch.hidden
    expected = model_flop_per_step(arch, tokens=length, sequence_length=length)
    assert flop + head == pytest.approx(expected / 3, rel=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_ranks_share_heads(name: str) -> None:
    arch = presets.load(name)
    recipe = Recipe(sequence_length=4096, global_batch=1)
    kind = next(kind for kind in arch.blocks if kind.mixer is not None)
    whole, half = (operators(kind, arch, recipe, tp=tp) for tp in (1, 2))
    for one, two in zip(whole.gemms, half.gemms, strict=True):
        if one.name.startswith(("mixer", "chunk", "state")):
            assert two.flop * 2 == one.flop
    part = arch.blocks.index(kind)
    mixer = sum(w.parameters for w in kind.mixer.weights(arch.hidden))
    shared = sum(w.parameters for w in kind.mixer.weights(arch.hidden) if w.cut != "whole")
    one, two = (rank_parameters(arch, tp=tp, pp=1, kernels=CORE.kernels)[part] for tp in (1, 2))
    experts_too = kind.mlp is not None
    assert mixer >= shared > 0.99 * mixer
    assert experts_too or one - two == shared / 2


def test_state_space_groups_bound_tensor_parallelism() -> None:
    fine = {"tp": 8, "dp": 1, "sequence_parallel": True}
    assert reason("nemotron-h-8b", **fine) == "feasible"
    # 8 groups of B and C; 32 query heads and 21,504 inner values would divide by 16
    wrong = reason("nemotron-h-8b", **{**fine, "tp": 16})
    assert wrong == "tp does not divide the heads and groups of a mixer in place of attention"


@pytest.mark.parametrize("name", MODELS)
def test_context_parallelism_is_refused(name: str) -> None:
    assert reason(name, cp=2).startswith("context parallelism of mixers")
