"""Gradients that stay whole until a pipeline's last micro-batch: sums, and when they are reduced.

Bytes are those that torch moves (tests/oracles/test_fsdp_traffic.py).
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.collectives.calls import all_gather_s, reduce_scatter_s
from simulator.cost.step import Estimate, evaluate
from simulator.events.deviations.deviations import replicas_of
from simulator.events.simulated_step import summarise
from simulator.events.step.play import play_step
from simulator.files import Figure
from simulator.hardware.cluster import load_cluster, with_release
from simulator.layout.layouts import Layouts
from simulator.layout.placement import Group
from simulator.software.profile import Software, load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

TITAN = load_software("torchtitan")
H100 = load_cluster("dgx-h100", 8)
RATE = float(H100.accelerator.stream["optimizer"].memory_fraction) * 3.35e12
BLOCK = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096  # Llama-3.1-8B
TABLE = 128256 * 4096
LAST = 8 * BLOCK + TABLE + 4096
"""The last of four stages, with norm and head: it sets the pace."""
FIRST = 8 * BLOCK + TABLE


def states(software: Software = TITAN, **changed: Any) -> Software:
    figures = {k: Figure(v) if isinstance(v, float) else v for k, v in changed.items()}
    return replace(software, states=replace(software.states, **figures))


def fsdp2(**changed: bool) -> Software:
    return replace(TITAN, fsdp2=replace(TITAN.fsdp2, **changed))  # type: ignore[arg-type]


def given(m: int, recipe: dict[str, Any], **layout: Any) -> tuple[Layouts, Workload]:
    """`m` micro-batches of one sequence on every data-parallel rank, two to share the states."""
    layout = {"dp": 2, "pp": 4, "sharding": "zero3"} | layout
    batch = m * layout["dp"]
    how = Recipe(sequence_length=4096, global_batch=batch, **recipe)
    work = Workload(architecture=presets.load("llama-3.1-8b"), recipe=how)
    return Layouts.of(global_batch=batch, **layout), work


def run(software: Software, m: int = 4, recipe: Any = None, **layout: Any) -> Estimate:
    table, work = given(m, recipe or {}, **layout)
    return evaluate(table, work, H100, software)


def added(m: int = 4, recipe: Any = None, **layout: Any) -> float:
    """Seconds of the slowest stage's kernels that cast gradients and add them up."""
    found = [
        float(run(fsdp2(adds_unreduced=adds), m, recipe, **layout).terms_s["memory_bound"][0])
        for adds in (False, True)
    ]
    return found[1] - found[0]


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_the_first_gradients_are_cast_and_later_ones_added(sharding: str) -> None:
    assert added(1, sharding=sharding) == pytest.approx(6 * LAST / RATE, rel=1e-9)
    assert added(4, sharding=sharding) == pytest.approx((6 + 3 * 10) * LAST / RATE, rel=1e-9)


def test_gradients_of_the_type_of_the_reduction_are_added_by_autograd() -> None:
    recipe = {"reduce_dtype": "bf16"}
    assert added(1, recipe) == 0.0
    assert added(4, recipe) == pytest.approx(3 * 6 * LAST / RATE, rel=1e-9)


def test_without_a_pipeline_every_micro_batch_is_reduced() -> None:
    assert added(4, pp=1) == 0.0


def test_stages_that_wait_for_one_another_add_up_too() -> None:
    """The drain is a pass of every other stage: the mean of a micro-batch's sums."""
    found = [run(fsdp2(adds_unreduced=adds)).step_time_s[0] for adds in (False, True)]
    others = 24 * BLOCK + TABLE
    expected = (6 + 3 * 10) * (LAST + others / 4) / RATE
    assert found[1] - found[0] == pytest.approx(expected, rel=1e-9)


# --- when they are reduced ----------------------------------------------------------------------

TWO = Group(size=np.array([2]), local=np.array([2]))
LINKS = with_release(H100, TITAN.kernels.nccl)
PIECES = 9  # eight blocks, and embedding or head


def collective_s(function: Any, per_parameter: float) -> float:
    """All of the first stage's collectives, one for each block and one for the embedding."""
    return PIECES * float(function(LINKS, np.array([per_parameter * FIRST / PIECES]), TWO)[0])


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_a_stage_reduces_after_its_last_pass(sharding: str) -> None:
    """The first stage ends last: all of its fp32 reduction shows, and the first of its gathers."""
    reduced, gathered = collective_s(reduce_scatter_s, 4.0), collective_s(all_gather_s, 2.0)
    found = run(TITAN, sharding=sharding)
    assert found.terms_s["dp"][0] == pytest.approx(reduced + gathered / PIECES, rel=1e-9)
    assert found.terms_s["fsdp"][0] == 0.0
    assert found.hidden_s["dp"][0] == pytest.approx(gathered * (1 - 1 / PIECES), rel=1e-9)


def test_beside_the_pass_only_the_last_bucket_shows() -> None:
    reduced, gathered = collective_s(reduce_scatter_s, 4.0), collective_s(all_gather_s, 2.0)
    found = run(fsdp2(reduces_after_passes=False))
    assert found.terms_s["dp"][0] == pytest.approx((reduced + gathered) / PIECES, rel=1e-9)


@pytest.mark.parametrize("vpp", [1, 2])
def test_events_reduce_after_the_last_pass_too(vpp: int) -> None:
    table, work = given(4, {}, vpp=vpp)
    apart = replace(TITAN, overlap=replace(TITAN.overlap, parameter_gather=False))
    closed = evaluate(table, work, H100, apart)
    (one,) = replicas_of(table, work, H100, apart)
    assert one.step_end.overlaps == (False, False)
    played = summarise(play_step([one]))
    assert played.step_time_s == pytest.approx(float(closed.step_time_s[0]), rel=1e-3)
    assert played.terms_s["dp"] == pytest.approx(float(closed.terms_s["dp"][0]), rel=1e-3)


def test_frozen_weights_are_gathered_for_a_pipeline() -> None:
    """FSDP2 shards them too: adapters alone are reduced, everything is gathered."""
    found = run(TITAN, recipe={"lora_rank": 8})
    gathered = collective_s(all_gather_s, 2.0)
    whole = float(found.hidden_s["dp"][0] + found.terms_s["dp"][0])
    assert gathered < whole < gathered * 1.1


# --- reduced after every round of micro-batches -------------------------------------------------

ROUNDS = fsdp2(reduces_each_round=True, reduces_after_passes=False, adds_unreduced=False)
WAIT = fsdp2(reduces_after_passes=False, adds_unreduced=False)
LOOPED = {"pp": 4, "vpp": 4, "schedule": "interleaved", "sharding": "zero2"}


def dp_s(found: Estimate) -> float:
    """Reductions and gathers of a step, shown and hidden, less the gather of the parameters."""
    return float(found.terms_s["dp"][0] + found.hidden_s["dp"][0])


def test_a_looped_schedule_reduces_once_each_round() -> None:
    """12 micro-batches go through 4 chunks of 4 ranks in 3 rounds."""
    reduced = collective_s(reduce_scatter_s, 4.0)
    for m, rounds in ((4, 1), (12, 3)):
        more = dp_s(run(ROUNDS, m, **LOOPED)) - dp_s(run(WAIT, m, **LOOPED))
        assert more == pytest.approx((rounds - 1) * reduced, rel=0.02)


def test_without_rounds_all_gradients_wait() -> None:
    plain = {"pp": 4, "sharding": "zero2"}
    assert run(ROUNDS, 12, **plain).step_time_s == run(WAIT, 12, **plain).step_time_s
    assert run(ROUNDS, 12, **plain).memory_total_bytes == run(WAIT, 12, **plain).memory_total_bytes


def test_two_chunks_of_four_wait_where_rounds_are_reduced() -> None:
    """One fills up while the flat copy of another leaves: half of a stage's gradients in fp32."""
    wait, reduced = (run(how, 12, **LOOPED).memory_bytes["gathered"][0] for how in (WAIT, ROUNDS))
    less = float(wait - reduced)
    assert 0.5 * 4 * 8 * BLOCK <= less <= 0.5 * 4 * (8 * BLOCK + TABLE + 4096)


@pytest.mark.parametrize("m", [4, 8, 16])
def test_events_reduce_rounds_as_the_closed_form_does(m: int) -> None:
    table, work = given(m, {}, **LOOPED)
    apart = replace(ROUNDS, overlap=replace(ROUNDS.overlap, parameter_gather=False))
    closed = evaluate(table, work, H100, apart)
    (one,) = replicas_of(table, work, H100, apart)
    assert one.step_end.reductions == m // 4
    played = summarise(play_step([one]))
    assert played.step_time_s == pytest.approx(float(closed.step_time_s[0]), rel=0.01)
