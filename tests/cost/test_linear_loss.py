"""Head and loss as one function: no rank ever has all logits."""

import numpy as np
import pytest

from simulator.cost.operators.ends import head
from simulator.cost.operators.operations import Operators, Ranks
from simulator.errors import InputError
from simulator.layout.layouts import Layouts
from simulator.layout.placement import place
from simulator.scenario import make_scenario
from simulator.software.overrides import with_overrides
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe

LLAMA = presets.load("llama-3.1-8b")
LINEAR = with_overrides(load_software("plain-ddp"), {"loss_fusion": "linear"})
VOCABULARY, WIDTH, TOKENS = 128_256, 4_096, 131_072


def operators(tokens: int) -> Operators:
    layout = Layouts.of(global_batch=1)
    recipe = Recipe(sequence_length=tokens, global_batch=1)
    return head(LLAMA, Ranks.of_each(layout, place(layout, 8)), recipe, LINEAR.kernels)


def loss_bytes(ops: Operators) -> float:
    """What waits for the backward pass of head and loss, without the norm before them."""
    return sum(float(np.max(x.size_bytes)) for x in ops.saved if x.module == "loss")


def test_one_piece_of_logits_and_two_gradients_are_in_memory() -> None:
    """131,072 tokens in ceil(128,256 / 4,096) = 32 pieces of 4,096, in 16 bit, by hand."""
    ops = operators(TOKENS)
    assert float(np.max(ops.transient_bytes)) == 4_096 * VOCABULARY * 2
    assert loss_bytes(ops) == (TOKENS + VOCABULARY) * WIDTH * 2


def test_tokens_of_a_piece_are_a_power_of_two() -> None:
    """Liger: triton.next_power_of_2(ceil(tokens / 32)), so that 100,000 are 25 pieces of 4,096."""
    ops = operators(100_000)
    assert float(np.max(ops.transient_bytes)) == 4_096 * VOCABULARY * 2
    (loss,) = (stream for stream in ops.streams if stream.name == "loss")
    assert float(np.max(loss.calls)) == 25


def test_logits_move_three_times_and_the_weights_gradient_with_every_piece() -> None:
    (loss,) = (stream for stream in operators(TOKENS).streams if stream.name == "loss")
    moved = 3 * TOKENS * VOCABULARY * 2 + 31 * 2 * VOCABULARY * WIDTH * 2
    assert float(np.max(loss.forward_bytes)) == moved


def test_software_without_it_is_refused() -> None:
    with pytest.raises(InputError, match="loss_fusion: megatron-core has no linear"):
        with_overrides(load_software("megatron-core"), {"loss_fusion": "linear"})


def test_a_scenario_says_it() -> None:
    run = {
        "model": {"name": "llama-3.1-8b"},
        "cluster": {"name": "dgx-h100", "gpus": 8, "software": "deepspeed"},
        "training": {"sequence_length": 8192, "global_batch": 8},
        "software": {"loss_fusion": "linear"},
    }
    assert make_scenario(run).software.kernels.linear_loss
