"""Quantisation-aware training; kernels and kept tensors by tests/oracles/test_fake_quantised.py."""

from typing import Any

import pytest

from simulator import api
from simulator.cost.operators.block_operators import model_parts
from simulator.cost.operators.operations import Operators, Ranks
from simulator.cost.operators.roles import StreamRole
from simulator.errors import InputError
from simulator.layout.layouts import Layouts
from simulator.layout.placement import place
from simulator.software.overrides import with_overrides
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

FSDP = load_software("torch-fsdp")
H, V, S = 4096, 128256, 2048
WAY: dict[str, Any] = {"fake_quantised_weights": "detached_scales"}


def parts(software: Any = FSDP, **training: Any) -> list[Operators]:
    """A block, the embedding and the head of Llama 3.1 8B."""
    recipe = Recipe(sequence_length=S, global_batch=1, **{**WAY, **training})
    layout = Layouts.of(global_batch=1)
    work = Workload(architecture=presets.load("llama-3.1-8b"), recipe=recipe)
    return model_parts(work, Ranks.of_each(layout, place(layout, 1)), software.kernels)


def rounding(ops: Operators) -> list[Any]:
    return [s for s in ops.streams if s.role is StreamRole.FAKE_QUANTISATION]


def test_a_head_in_pieces_rounds_its_weight_for_each() -> None:
    """56 B of an element forward: two extremes, 2 B each, and 6 + 3 x 8 + 6 + 4 + 6 + 6."""
    for pieces in (1, 8):
        head = parts(fake_quantised_head=True, loss_chunks=pieces)[-1]
        assert sum(float(s.forward_bytes[0]) for s in rounding(head)) == pieces * 56 * H * V
        kept = sum(float(t.size_bytes[0]) for t in head.saved if t.name.startswith("fake"))
        assert kept == pieces * (4 + 2) * H * V


def test_a_head_is_left_alone_where_nothing_says_so_or_its_loss_is_fused_with_it() -> None:
    assert not rounding(parts()[-1])
    fused = with_overrides(load_software("plain-ddp"), {"loss_fusion": "linear"})
    assert rounding(parts(fused)[0])
    assert not rounding(parts(fused, fake_quantised_head=True)[-1])


def test_under_adapters_the_adapted_linears_round_and_their_inputs_stay() -> None:
    block = parts(lora_rank=8, lora_targets=("q", "v"), fake_quantised_inputs=True)[0]
    whats = {s.name for s in rounding(block) if not s.name.startswith("scales")}
    assert whats == {f"fake quantisation of {w}'s {x}" for w in "qv" for x in ("weight", "input")}
    assert any(t.linears == ("q", "k", "v") for t in block.saved)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"software": "torch-fsdp-compiled"}, "what a compiler or fused modules make of it"),
        ({"model": "mixtral-8x7b"}, "is modelled for dense decoders"),
        ({"precision": "fp8_current"}, "needs training.precision = bf16"),
        ({"frozen_layers": 2}, "is not modelled with frozen parts"),
        ({"lora_rank": 8, "fake_quantised_head": True}, "leaves the head as it is"),
        ({"lora_rank": 8, "fake_quantised_weights": "differentiable_scales"}, "must be detached"),
        ({"fake_quantised_weights": "none", "fake_quantised_inputs": True}, "needs training.fake"),
    ],
)
def test_what_is_not_known_of_it_is_refused(words: Any, told: str) -> None:
    given = {"model": "llama-3.1-8b", "software": "torch-fsdp", **WAY, **words}
    with pytest.raises(InputError) as caught:
        api.plan(cluster="dgx-h100", gpus=8, sequence_length=S, global_batch=8, **given)
    assert told in str(caught.value)
