"""Rounds of a parameter server: played by hand, and the closed form beside the events."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.cost.blocks.block_costs import slowest_of
from simulator.errors import InputError
from simulator.events.ps_simulation import _graph, play_rounds, play_servers
from simulator.parameter_servers.rounds import (
    SyncRound,
    WorkerGroup,
    asynchronous_rounds,
    expected_draws,
    stale_period_s,
    stale_synchronous_s,
    synchronous_s,
)

ROUND = {"push_bytes": 1e9, "pull_bytes": 0.5e9, "worker_bytes_per_s": 2e9, "sum_s": 0.02,
         "servers_bytes_per_s": 4e9, "update_s": 0.05, "latency_s": 0.0}  # fmt: skip


def a_round(**changed: float) -> SyncRound:
    return SyncRound(**{**ROUND, "pieces": 1, **changed})


def a_crew(workers: int, spread: float = 0.0, slow: float | None = None) -> WorkerGroup:
    steps, count = ([4.0], [workers]) if slow is None else ([4.0, slow * 4.0], [workers - 1, 1])
    return WorkerGroup(step_s=np.array(steps), workers=np.array(count), spread=spread)


def test_one_step_by_hand() -> None:
    """4 s, four pushes of 1 GB at 4 GB/s, four sums, an update, four pulls: 5.63 s a round."""
    by_hand = 4.0 + 4 * 0.25 + 4 * 0.02 + 0.05 + 4 * 0.125
    found = play_rounds([4.0] * 4, a_round(), staleness=0, sums_first=True)
    assert found == pytest.approx(by_hand)
    assert synchronous_s(a_crew(4).ready_s, a_round()) == pytest.approx(by_hand)


def test_two_workers_are_bound_by_their_own_links() -> None:
    """One pushes 1 GB at 2 GB/s of its own while the server has 4: 0.5 s, not 0.25 each."""
    found = play_rounds([4.0] * 2, a_round(), staleness=0, sums_first=True)
    assert found == pytest.approx(4.0 + 0.5 + 0.04 + 0.05 + 0.25)


@pytest.mark.parametrize("workers", [1, 3, 12])
@pytest.mark.parametrize("pieces", [1, 2, 5])
def test_in_step_without_spread_both_say_the_same(workers: int, pieces: int) -> None:
    one = a_round(pieces=pieces)
    played = play_rounds([4.0] * workers, one, staleness=0, sums_first=True, rounds=8)
    assert synchronous_s(a_crew(workers).ready_s, one) == pytest.approx(played)


CASES = [
    (kind, workers, staleness, spread, slow)
    for kind, bounds in (("synchronous", (0,)), ("asynchronous", (0,)),
                         ("stale-synchronous", (0, 1, 4)))
    for staleness in bounds
    for workers in (4, 16)
    for spread in (0.05, 0.2)
    for slow in (None, 2.0)
]  # fmt: skip


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("kind", "workers", "staleness", "spread", "slow"), CASES)
def test_closed_form_beside_events(
    kind: str, workers: int, staleness: int, spread: float, slow: float | None
) -> None:
    """Links carry up to nine tenths of what they can; within a tenth."""
    crew, one = a_crew(workers, spread, slow), a_round(pieces=4)
    found = play_servers(crew, one, kind, staleness=staleness)  # type: ignore[arg-type]
    assert found.closed_form_s == pytest.approx(found.played_s, rel=0.1)


def test_waiting_for_nobody_is_not_slower_than_waiting_for_all() -> None:
    crew, one = a_crew(8, 0.2), a_round()
    free = 1.0 / float(asynchronous_rounds(crew, one)[0])
    bounded = [float(stale_synchronous_s(crew, s, one)) for s in (1, 2, 8)]
    assert free <= bounded[2] <= bounded[1] <= bounded[0]
    assert bounded[0] <= synchronous_s(crew.ready_s, one)


def test_without_staleness_each_push_is_applied_by_itself() -> None:
    """Four pushes in two pieces each: 4 s, then 1 s in, 0.28 s of sums and updates, 0.5 s out."""
    stages = [4 * 0.25, 4 * (0.02 + 0.05), 4 * 0.125]
    by_hand = 4.0 + sum(stages) / 8 + 7 / 8 * max(stages)
    found = stale_synchronous_s(a_crew(4), 0, a_round(pieces=2))
    assert found == pytest.approx(by_hand)


def test_a_slow_worker_sets_the_pace_of_all_but_the_asynchronous() -> None:
    crew, one = a_crew(8, 0.0, slow=3.0), a_round()
    rates = asynchronous_rounds(crew, one)
    assert rates[0] > 2.5 * rates[1]
    assert stale_period_s(crew, 5) == 12.0


def test_draws_are_those_that_stragglers_have() -> None:
    for count in (2, 8, 100):
        assert expected_draws(count)[-1] == pytest.approx(float(slowest_of(count)))
        assert expected_draws(count).sum() == pytest.approx(0.0, abs=1e-9)


def test_too_many_messages_are_refused() -> None:
    with pytest.raises(InputError, match="too many to play"):
        play_rounds([1.0] * 5_000, a_round(pieces=8), staleness=0)


@pytest.mark.parametrize(
    ("workers", "backups", "spread", "within"),
    [(100, 4, 0.05, 0.004), (100, 4, 0.2, 0.02), (50, 4, 0.2, 0.03), (100, 8, 0.4, 0.06)],
)
def test_backup_workers_played_one_by_one(
    workers: int, backups: int, spread: float, within: float
) -> None:
    """Chen et al. 2016, section 3: who comes late is dropped and begins late with new weights."""
    random, begin, rounds = np.random.default_rng(3), np.zeros(workers), 1000
    for _ in range(rounds):
        done = begin + random.lognormal(-0.5 * spread**2, spread, workers)
        end = np.sort(done)[workers - backups - 1]
        begin = np.maximum(done, end)
    alone = a_round(push_bytes=0.0, pull_bytes=0.0, sum_s=0.0, update_s=0.0)
    crew = WorkerGroup(step_s=np.array([1.0]), workers=np.array([workers]), spread=spread)
    closed = float(synchronous_s(crew.ready_s, alone, backups=backups))
    assert closed == pytest.approx(end / rounds, rel=within)


def test_a_backup_takes_the_place_of_a_worker_that_is_always_late() -> None:
    crew, one = a_crew(16, 0.0, slow=2.0), a_round()
    waits, drops = (float(synchronous_s(crew.ready_s, one, backups=b)) for b in (0, 1))
    assert waits > 8.0
    assert drops == pytest.approx(4.0 + 15 * 0.25 + 15 * 0.02 + 0.05 + 15 * 0.125)


def test_workers_with_fewer_rounds_stop_earlier() -> None:
    """One of two works on alone after the first of its three rounds."""
    _, computed = _graph(
        [4.0, 4.0], a_round(), [3, 1], staleness=None, sums_first=True, spread=0.1, seed=1
    )
    assert [len(tasks) for tasks in computed] == [3, 1]
