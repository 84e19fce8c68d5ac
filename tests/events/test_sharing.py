"""Kinds of traffic on one link, worked by hand: who is slowed, until when, and what for."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.terms import HIDDEN
from simulator.events.engine.engine import longest_path
from simulator.events.engine.graph import task_graph
from simulator.events.network.link_loads import Loads
from simulator.events.sharing.byte_time import COMMUNICATION, ByteTime, call_seconds
from simulator.events.sharing.link_profiles import HIDING, Profiles, profiles
from simulator.events.sharing.phase_rows import destinations
from simulator.events.sharing.shared_step import charged_s, cut, held_share, shared, together
from simulator.events.step.charge import critical_shares, pacing_rank, terms, work
from simulator.events.step.pass_costs import CAUSE
from simulator.events.step.play import Played, after_every_pass
from simulator.events.step.spans import timeline
from simulator.events.step.streams import COMPUTING, PHASES, STREAMS, phase_of

Worked = Callable[..., Played]

SEND = phase_of("pp")
BACKWARD = 1
REDUCE, GATHER = 0, 1


def takes(played: Played, *given: tuple[str, Any, float]) -> Profiles:
    """One adapter for each rank, and what passes, sends and reductions take of all adapters.

    Each of `given` names a table of `Profiles`, a place in it and the share of the adapter.
    """
    ranks, chunks, kinds = played.passes.shown_s.shape[:3]
    tables = {
        "passes": np.zeros((ranks, chunks, kinds, len(PHASES), ranks)),
        "sends": np.zeros((ranks, chunks, kinds, ranks)),
        "step_end": np.zeros((ranks, 2, ranks)),
        "copies": np.zeros((ranks, 2, ranks)),
        "hiding": np.zeros((ranks, chunks, kinds, len(HIDING))),
    }
    for table, place, share in given:
        tables[table][place] = share
    link = np.broadcast_to(np.arange(ranks), (ranks, ranks)).copy()
    return Profiles(link=link, names=tuple(f"adapter {r}" for r in range(ranks)), **tables)


def passes_of(played: Played, rank: int) -> list[tuple[float, float]]:
    """Start and end of every pass of a rank."""
    action = np.flatnonzero(played.program.rank == rank)
    task = played.step.task_of_action[action]
    pairs = zip(played.times.start_s[task], played.times.end_s[task], strict=True)
    return [(float(a), float(b)) for a, b in pairs]


def reductions(played: Played, rank: int) -> list[tuple[float, float]]:
    """Start and end of every reduction of a rank that takes time."""
    step = played.step
    own = (step.rank == rank) & (step.stream == STREAMS.index("data"))
    task = np.flatnonzero(own & (step.graph.duration_s > 0.0))
    pairs = zip(played.times.start_s[task], played.times.end_s[task], strict=True)
    return [(float(a), float(b)) for a, b in pairs]


def charged(played: Played) -> dict[str, float]:
    """Terms of the pacing rank that are not nothing."""
    found = terms(played, work(played)[0], pacing_rank(played))
    assert found.sum() == pytest.approx(played.times.makespan_s, rel=1e-12)
    return {name: float(found[i]) for name, i in CAUSE.items() if found[i] > 1e-12}


@pytest.fixture
def two_stages(worked: Worked) -> Played:
    """One micro-batch; passes of 1 and 2 s, each with its send of 1 s; 4 s of reduction in two
    buckets, the first of which is ready when half of the backward pass has run.

    Rank 1: F 2-4, B 4-7 (its send 6-7), reduction 6-8 and 8-10. Rank 0: F 0-2, B 7-10, reduction
    9-11 and 11-13.
    """
    return worked(
        [1.0, 1.0],
        [2.0, 2.0],
        1,
        send=1.0,
        reduce_s=np.full((2, 1), 4.0),
        buckets=np.full(2, 2.0),
    )


def test_the_step_before_anything_is_shared(two_stages: Played) -> None:
    assert passes_of(two_stages, 1) == [(2.0, 4.0), (4.0, 7.0)]
    assert reductions(two_stages, 1) == [(6.0, 8.0), (8.0, 10.0)]
    assert two_stages.times.makespan_s == 13.0


def test_a_send_and_a_reduction_halve_one_adapter(two_stages: Played) -> None:
    """Both fill rank 1's adapter: from 6 on each has half. The send takes 2 s, to 8; the bucket
    has moved half of its 2 s by then and ends at 9, the next one at 11. Rank 0 waits a second."""
    _, found, uses = shared(
        two_stages,
        takes(
            two_stages, ("passes", (1, 0, BACKWARD, SEND, 1), 1.0), ("step_end", (1, REDUCE, 1), 1)
        ),
    )
    assert passes_of(found, 1) == [(2.0, 4.0), (4.0, 8.0)]
    assert reductions(found, 1) == [(6.0, 9.0), (9.0, 11.0)]
    assert passes_of(found, 0) == [(0.0, 2.0), (8.0, 11.0)]
    assert found.times.makespan_s == 14.0
    assert uses == {"adapter": ("adapter 1", 5.0)}  # 1 s of send, 4 s of reduction
    before, after = charged(two_stages), charged(found)
    assert pacing_rank(found) == 1
    assert after["pp"] == before["pp"] + 1.0
    assert sum(after.values()) == sum(before.values()) + 1.0


def test_who_asks_for_less_than_an_even_share_has_it(two_stages: Played) -> None:
    """The send takes a quarter of the adapter: the bucket has three quarters for 1 s, and moves
    the other 1.25 s alone. Only the reduction is later, by a quarter of a second."""
    _, found, _ = shared(
        two_stages,
        takes(
            two_stages,
            ("passes", (1, 0, BACKWARD, SEND, 1), 0.25),
            ("step_end", (1, REDUCE, 1), 1.0),
        ),
    )
    assert passes_of(found, 1) == passes_of(two_stages, 1)
    assert reductions(found, 1) == [(6.0, 8.25), (8.25, 10.25)]
    assert found.times.makespan_s == 13.0
    assert len(found.delays) == 0 and charged(found) == pytest.approx(charged(two_stages))


def test_what_hides_and_no_longer_keeps_up_delays_its_pass(two_stages: Played) -> None:
    """Behind rank 0's backward pass (7-9) hides traffic of three quarters of its adapter, and all
    the while its own reduction runs. Half of a link moves two thirds of what keeps up with the
    compute: that takes 3 s instead of 2 (and the send behind it 1), charged to what hides."""
    beside = replace(two_stages, passes=_hidden(two_stages, "cp", 1.5))
    early = _without_units(_reduced_from_the_start(beside))
    given = takes(
        early,
        ("passes", (0, 0, BACKWARD, COMPUTING, 0), 0.75),
        ("step_end", (0, REDUCE, 0), 1.0),
        ("hiding", (0, 0, BACKWARD, COMMUNICATION.index("cp")), 1.0),
    )
    _, found, _ = shared(early, given)
    assert passes_of(found, 0) == [(0.0, 2.0), (7.0, 11.0)]
    assert found.delays.tolist() == [[1, CAUSE["cp"]]]
    assert found.delays_s == pytest.approx([1.0])
    assert charged(found)["cp"] == pytest.approx(1.0)


def _without_units(played: Played) -> Played:
    """The same with reductions that hold no compute units."""
    (one,) = played.replicas
    return replace(
        played, replicas=(replace(one, step_end=replace(one.step_end, overlaps=(False,) * 2)),)
    )


def _hidden(played: Played, name: str, seconds: float) -> Any:
    hidden = played.passes.hidden_s.copy()
    hidden[:, :, BACKWARD, HIDDEN.index(name)] = seconds
    return replace(played.passes, hidden_s=hidden)


def _reduced_from_the_start(played: Played) -> Played:
    """The same where rank 0's first bucket of 40 s has no edge before it but the first pass."""
    step, graph = played.step, played.step.graph
    task = int(np.flatnonzero((step.rank == 0) & (step.stream == STREAMS.index("data")))[0])
    duration = graph.duration_s.copy()
    duration[task] = 40.0
    changed = replace(graph, duration_s=duration)
    forward = int(step.task_of_action[0])
    for k in range(graph.first[task], graph.first[task + 1]):
        changed.predecessor[k] = forward
    return replace(
        played, step=replace(step, graph=changed), times=longest_path(changed, step.name)
    )


@pytest.mark.parametrize("charged_s", [0.0, 0.5])
def test_a_reduction_holds_compute_units_while_it_runs(worked: Worked, charged_s: float) -> None:
    """F 0-2, B of 4 s from 2 on; the first of two buckets of 2 s each runs from the middle of B and
    leaves it a part of the units. What the closed form charged B gives way to what that costs."""
    slowed_s = np.array([[[0.0]], [[charged_s]]])
    played = worked(
        [2.0],
        [4.0],
        1,
        reduce_s=np.full((1, 1), 4.0),
        buckets=np.full(1, 2.0),
        overlap_slowdown_s=slowed_s,
    )
    share = float(held_share(played)[0])
    assert 0.1 < share < 0.5
    ready = 4.0 + charged_s  # 2 s before B ends as it was priced
    left = 4.0 - (ready - 2.0)
    end = ready + left / (1.0 - share) if left < 2.0 * (1.0 - share) else ready + left + 2.0 * share
    alone, found, _ = shared(played, takes(played))
    assert alone is found
    assert passes_of(found, 0) == [(0.0, 2.0), (2.0, pytest.approx(end, rel=1e-12))]
    assert reductions(found, 0)[0] == (ready, ready + 2.0)
    assert charged(found)["slowdown"] == pytest.approx(end - 6.0)
    assert charged(found)["gemm"] == 6.0


def test_only_the_last_of_several_reductions_is_a_task(worked: Worked) -> None:
    """Two micro-batches, F B F B: what one gather and the last reduction cost the passes beside
    them gives way to tasks; what the one before it costs lies in both backward passes and stays."""
    slowed_s = np.array([[[0.25]], [[0.5]]])
    given = {"overlap_slowdown_s": slowed_s, "reductions": 2.0, "reduce_s": np.full((1, 1), 4.0)}
    played = worked([2.0], [4.0], 2, **given)
    assert charged_s(played).tolist() == [0.25, 0.0, 0.0, 0.5]
    passes = after_every_pass(played.passes, np.full((1, 1), 0.125), "slowdown")
    longer = passes.shown_s[..., CAUSE["slowdown"]].sum(axis=(0, 1))
    assert longer[BACKWARD] == 0.125
    assert longer[0] == 0.0


def test_the_rest_of_a_gather_runs_beside_the_first_passes(worked: Worked) -> None:
    """4 s in four buckets, the last of which serves the last quarter of a pass of 2 s: that starts
    1.5 s before all is there, and loses units to the gather for as long."""
    played = worked([2.0], [4.0], 1, gather_s=np.array([[4.0]]), buckets=np.full(1, 4.0))
    assert reductions(played, 0) == [(0.0, 2.5), (2.5, 4.0)]
    assert passes_of(played, 0)[0] == (2.5, 4.5)
    share = float(held_share(played)[0])
    _, found, _ = shared(played, takes(played))
    assert passes_of(found, 0)[0] == (2.5, pytest.approx(4.5 + 1.5 * share))


def test_a_send_holds_units_of_its_sender(worked: Worked) -> None:
    """GPipe of two micro-batches: F0 0-2, F1 beside the send of F0 (2-3), which holds units."""
    played = worked([2.0, 2.0], [4.0, 4.0], 2, schedule="gpipe", lag=1.0)
    share = float(held_share(played)[0])
    _, found, _ = shared(played, takes(played))
    assert passes_of(found, 0)[:2] == [(0.0, 2.0), (2.0, pytest.approx(4.0 + share))]
    # rank 1: F0 3-5, F1 after its arrival at 5 + share
    assert passes_of(found, 1)[1] == pytest.approx((5.0 + share, 7.0 + share))


def test_a_send_takes_links_of_both_its_ranks(worked: Worked) -> None:
    """Rank 1 gathers its parameters for 4 s while rank 0's send of 1 s arrives, from 1 on: the send
    takes until 3, the gather until 5, the step 11 s instead of 10."""
    played = worked([1.0, 1.0], [2.0, 2.0], 1, lag=1.0, gather_s=np.array([[0.0], [4.0]]))
    assert passes_of(played, 1) == [(4.0, 5.0), (5.0, 7.0)] and played.times.makespan_s == 10.0
    assert destinations(played)[:, 0, :2].tolist() == [[1, -1], [-1, 0]]
    given = takes(played, ("sends", (0, 0, 0, slice(0, 2)), 1.0), ("step_end", (1, GATHER, 1), 1.0))
    _, found, uses = shared(played, given)
    sent = int(found.step.task_of_send[0])
    assert (found.times.start_s[sent], found.times.end_s[sent]) == (1.0, 3.0)
    assert passes_of(found, 1) == [(5.0, 6.0), (6.0, 8.0)] and found.times.makespan_s == 11.0
    assert uses == {"adapter": ("adapter 1", 5.0)}
    assert charged(found)["dp"] == charged(played)["dp"] + 1.0


def test_links_that_all_could_use_at_once_change_nothing(two_stages: Played) -> None:
    """A half each: nothing is played again, so that not a bit of the times is another."""
    half = takes(
        two_stages, ("passes", (1, 0, BACKWARD, SEND, 1), 0.5), ("step_end", (1, REDUCE, 1), 0.5)
    )
    assert shared(two_stages, half)[:2] == (two_stages, two_stages)


def test_traffic_that_never_meets_changes_nothing(two_stages: Played) -> None:
    """Rank 1's forward send is long over when its reduction starts; they share an adapter."""
    apart = takes(
        two_stages, ("passes", (1, 0, 0, SEND, 1), 1.0), ("step_end", (1, REDUCE, 1), 1.0)
    )
    assert shared(two_stages, apart)[1] is two_stages


def test_what_is_drawn_ends_with_the_step(two_stages: Played) -> None:
    both = takes(
        two_stages, ("passes", (1, 0, BACKWARD, SEND, 1), 1.0), ("step_end", (1, REDUCE, 1), 1.0)
    )
    _, found, _ = shared(two_stages, both)
    path, shares = critical_shares(found)
    line = timeline(found, path)
    assert line.end_s.max() == 14.0 and sum(shares.values()) == pytest.approx(1.0)
    send = (line.rank == 1) & (line.stream == STREAMS.index("pipeline"))
    assert line.start_s[send].tolist() == [3.0, 6.0] and line.end_s[send].tolist() == [4.0, 8.0]


def test_phases_of_tasks_come_together_again() -> None:
    """A task of three phases and one that waits for all of it, 0.5 s later."""
    graph = task_graph([6.0, 1.0, 2.0], [0, 1, 0], [(0, 1), (0, 2)], [0.5, 0.0])
    phases = cut(graph, np.array([0, 0, 0, 1, 2, 2]), np.array([1.0, 2.0, 3.0, 1.0, 0.5, 1.5]))
    whole, parts = longest_path(graph), longest_path(phases.graph)
    joined = together(phases, parts)
    assert joined.start_s.tolist() == whole.start_s.tolist() == [0.0, 6.5, 6.0]
    assert joined.end_s.tolist() == whole.end_s.tolist()
    assert joined.cause.tolist() == whole.cause.tolist()


def test_profiles_are_loads_times_the_time_of_bytes(worked: Worked) -> None:
    """Calls of a group take 0.8 of an adapter while bytes move, which is half of their time; a send
    all of the adapters at both ends for 0.9 of it."""
    played = worked([1.0, 1.0], [2.0, 2.0], 1, send=1.0, reduce_s=np.full((2, 1), 4.0))
    whole = call_seconds(played.replicas)
    loads = Loads(
        names=("adapter 0", "adapter 1"),
        of={
            ("dp", True, 1): (np.array([1]), np.array([0.8])),
            ("send", 1, 0): (np.array([0, 1]), np.array([1.0, 1.0])),
        },
    )
    none = {
        "passes_s": 0 * whole.passes_s,
        "sends_s": 0 * whole.sends_s,
        "reduce_s": 0 * whole.reduce_s,
        "gather_s": whole.gather_s,
    }
    calls = [
        ByteTime(group="dp", far=True, **none | {"reduce_s": 0.5 * whole.reduce_s}),
        ByteTime(group="pp", far=True, **none | {"passes_s": 0.9 * whole.passes_s}),
    ]
    found = profiles(loads, calls, whole, played.passes, destinations(played), 1)
    assert found.step_end[1, REDUCE, found.link[1] == 1] == pytest.approx(0.4)
    assert found.passes[1, 0, BACKWARD, SEND] == pytest.approx([0.9, 0.9])
    assert not found.passes[:, 0, 0].any() and not found.step_end[0].any()
