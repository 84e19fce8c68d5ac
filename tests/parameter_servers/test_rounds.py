"""Rounds of a parameter server by hand, with sizes and rates that all differ."""

import math
from statistics import NormalDist

import numpy as np
import pytest

from simulator.parameter_servers.rounds import (
    SyncRound,
    WorkerGroup,
    asynchronous_rounds,
    broadcast_s,
    expected_draws,
    in_pieces,
    ring_s,
    stale_period_s,
    stale_synchronous_s,
    synchronous_s,
)


def sync_round(**other: float) -> SyncRound:
    """3 GB in and 5 GB out at 8 GB/s of the servers, 2 GB/s of a worker."""
    return SyncRound(**{
        "push_bytes": 3e9, "pull_bytes": 5e9, "worker_bytes_per_s": 2e9,
        "servers_bytes_per_s": 8e9, "sum_s": 0.07, "update_s": 0.11, "latency_s": 0.013, **other,
    })  # fmt: skip


def crew(step_s: list[float], workers: list[int], spread: float = 0.0) -> WorkerGroup:
    return WorkerGroup(step_s=np.array(step_s), workers=np.array(workers), spread=spread)


def test_what_a_message_takes_of_servers_and_of_a_worker_s_own_link() -> None:
    assert sync_round().stations_s == pytest.approx((3 / 8, 0.07, 5 / 8))
    assert sync_round().own_s == pytest.approx((3 / 2 - 3 / 8, 5 / 2 - 5 / 8))
    assert sync_round(worker_bytes_per_s=16e9).own_s == (0.0, 0.0)  # the servers' link is slower


def test_a_synchronous_step_by_hand() -> None:
    """Ready after 1, 2 and 9 s: the last one alone is in 3/2 s, all pull for 3 x 5/8 or 5/2 s.

    From the first worker on: 1 + 3/2 (its own link, over 9/8 of the servers') + 3 sums and the
    update + 5/2, less than what the last one takes.
    """
    last = 9 + 3 / 2 + (0.07 + 0.11) + 5 / 2 + 2 * 0.013
    assert synchronous_s([1.0, 2.0, 9.0], sync_round()) == pytest.approx(last)
    first = 9 + 3 / 2 + (3 * 0.07 + 0.11) + 5 / 2 + 2 * 0.013
    assert synchronous_s([9.0, 9.0, 9.0], sync_round()) == pytest.approx(first)
    eight = 9 + 8 * 3 / 8 + (8 * 0.07 + 0.11) + 8 * 5 / 8 + 2 * 0.013
    assert synchronous_s([9.0] * 8, sync_round()) == pytest.approx(eight)
    in_four = 9 + (3 + 0.67 + 5) / 4 + 3 / 4 * 5 + 2 * 0.013
    assert synchronous_s([9.0] * 8, sync_round(pieces=4)) == pytest.approx(in_four)


def test_each_pulls_by_itself_and_the_slowest_are_not_waited_for() -> None:
    """Ready after 1, 2 and 9 s and apart: the last one pulls 5 GB at 2 GB/s, nobody beside it."""
    last = 9 + 3 / 2 + 0.18 + 5 / 2 + 0.026
    assert synchronous_s([1.0, 2.0, 9.0], sync_round(), together=False) == pytest.approx(last)
    spared = 2 + 3 / 2 + 0.18 + 5 / 2 + 0.026
    assert synchronous_s([1.0, 2.0, 9.0], sync_round(), backups=1) == pytest.approx(spared)


def test_columns_are_rounds_of_their_own() -> None:
    ready = np.array([[1.0, 3.0], [2.0, 3.0], [9.0, 3.5]])
    rounds = sync_round(update_s=np.array([0.11, 0.5]), pieces=np.array([1, 3]))
    both = synchronous_s(ready, rounds)
    for i, (update_s, pieces) in enumerate(((0.11, 1), (0.5, 3))):
        alone = synchronous_s(ready[:, i], sync_round(update_s=update_s, pieces=pieces))
        assert both[i] == pytest.approx(float(alone))


def test_pieces_of_stages_end_when_a_conveyor_does() -> None:
    """Every piece of 1.2, 0.3 and 0.6 s for the whole, five of them, played one by one."""
    stages, pieces = (1.2, 0.3, 0.6), 5
    free = [0.0] * len(stages)
    for _ in range(pieces):
        at = 0.0
        for k, seconds in enumerate(stages):
            at = free[k] = max(at, free[k]) + seconds / pieces
    assert in_pieces(stages, pieces) == pytest.approx(free[-1])


def test_workers_of_one_length_are_ready_at_once_and_of_two_by_class() -> None:
    assert crew([4.0], [3]).ready_s == pytest.approx([4.0] * 3)
    assert crew([4.0, 7.0], [2, 1]).ready_s == pytest.approx([4.0, 4.0, 7.0])


def test_two_workers_whose_steps_vary_are_ready_on_either_side_of_the_mean() -> None:
    """Blom's two draws are those of ranks (1 - 3/8) / 2.25 and 1 less that: a mean of 4 s."""
    draw = NormalDist().inv_cdf(1.0 - 0.625 / 2.25)
    first, last = (4.0 * math.exp(sign * 0.5 * draw - 0.125) for sign in (-1, 1))
    assert crew([4.0], [2], spread=0.5).ready_s == pytest.approx([first, last])
    # of one nobody is the later: it is ready after its mean
    assert crew([4.0], [1], spread=0.5).ready_s == pytest.approx([4.0])


def test_alike_workers_wait_for_servers_as_if_they_waited_for_nobody() -> None:
    """Without spread nobody is ahead, whatever he may be."""
    one, even = sync_round(pieces=3), crew([7.0], [9])
    free = 1 / float(asynchronous_rounds(even, one)[0])
    for staleness in (1, 2, 50):
        assert float(stale_synchronous_s(even, staleness, one)) == pytest.approx(free, rel=1e-9)


def test_draws_of_blom_and_their_mean() -> None:
    """Blom 1958: rank i of n at (i - 3/8) / (n + 1/4); the mean of all steps is the mean step."""
    draws = expected_draws(5)
    assert draws == pytest.approx(-draws[::-1])
    half = 0.5 * math.erfc(-draws[-1] / math.sqrt(2))
    assert half == pytest.approx((5 - 3 / 8) / (5 + 1 / 4), rel=1e-9)
    # largest of 5 standard normal draws is 1.16296 (Teichroew 1956), of 20 1.86748
    assert draws[-1] == pytest.approx(1.16296, abs=0.02)
    assert expected_draws(20)[-1] == pytest.approx(1.86748, abs=0.02)
    assert crew([2.0], [400], spread=0.3).ready_s.mean() == pytest.approx(2.0, rel=0.01)


def test_a_period_lies_between_the_mean_and_the_slowest() -> None:
    """Without spread it is the slowest class; each step of staleness brings it nearer the mean."""
    assert stale_period_s(crew([4.0, 6.0], [8, 2]), 0, 0.5) == pytest.approx(6.5)
    assert stale_period_s(crew([4.0, 6.0], [8, 2]), 3, 0.5) == pytest.approx(6.5)
    uneven = crew([4.0], [16], spread=0.2)
    waits = [float(stale_period_s(uneven, s, 0.5)) for s in (0, 1, 2, 4, 1000)]
    assert waits == sorted(waits, reverse=True) and waits[-1] == pytest.approx(4.5, rel=0.01)
    # none ahead: the largest of sixteen lognormal steps, mean 4 s
    largest = 4.0 * math.exp(0.2 * float(expected_draws(16)[-1]) - 0.02) + 0.5
    assert waits[0] == pytest.approx(largest)


def test_workers_that_wait_for_nobody() -> None:
    """One meets nobody. Of many the slowest station sets the rate; of few each takes its time."""
    one = sync_round()
    alone = 7.0 + 2 * 0.013 + 3 / 2 + 0.18 + 5 / 2
    assert asynchronous_rounds(crew([7.0], [1]), one) == pytest.approx([1 / alone])
    many = float(asynchronous_rounds(crew([7.0], [500]), one)[0]) * 500
    assert many == pytest.approx(1 / (5 / 8), rel=0.01)
    two = asynchronous_rounds(crew([7.0, 14.0], [1, 1]), one)
    assert 1 / alone * 0.9 < two[0] < 1 / alone and 1 / (alone + 7) * 0.9 < two[1] < 1 / (alone + 7)
    # exact mean value analysis of two alike (Reiser and Lavenberg 1980): each meets what the other
    # would have there alone; Schweitzer's takes half of what both have
    stations, outside = (3 / 8, 0.18, 5 / 8), 7.0 + 0.026 + 9 / 8 + 15 / 8
    met = [seconds / alone for seconds in stations]
    exact = outside + sum(s * (1 + m) for s, m in zip(stations, met, strict=True))
    assert asynchronous_rounds(crew([7.0], [2]), one) == pytest.approx([1 / exact] * 1, rel=0.005)


def test_stale_workers_of_one_step_are_synchronous_and_many_steps_asynchronous() -> None:
    one, even = sync_round(pieces=2), crew([7.0], [6])
    each = 7.0 + in_pieces([6 * 3 / 8, 6 * 0.18, 6 * 5 / 8], 2 * 6) + 0.026
    # six messages follow each other through stations: as twelve pieces of all that there is
    assert stale_synchronous_s(even, 0, one) == pytest.approx(float(each), rel=1e-9)
    free = 1 / float(asynchronous_rounds(even, one)[0])
    assert stale_synchronous_s(even, 1000, one) == pytest.approx(free, rel=1e-6)


def test_rings_and_broadcasts_of_gradients() -> None:
    """6 GB over 3 GB/s: 2 (n - 1) / n of it round a ring, n - 1 times all of it to everyone."""
    assert ring_s(6e9, 5, 3e9) == pytest.approx(2 * 4 / 5 * 2)
    assert broadcast_s(6e9, 5, 3e9) == pytest.approx(4 * 2)
