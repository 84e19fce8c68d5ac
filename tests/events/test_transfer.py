"""Flows over time, against hand-worked timelines."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.events.network.flows import Flows, couple, flows, fold, joined
from simulator.events.network.routes import Routes
from simulator.events.network.transfer import transfer


def ways(*links: list[int]) -> Routes:
    first = np.cumsum([0, *map(len, links)])
    link = np.array([at for row in links for at in row], dtype=np.int64)
    return Routes(first=first.astype(np.int64), link=link, share=np.ones(len(link)))


def table(links: list[list[int]], sizes: list[float], **more: object) -> Flows:
    return flows(ways(*links), np.array(sizes, dtype=float), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("folded", [True, False])
def test_a_flow_that_ends_frees_its_share(folded: bool) -> None:
    """10 and 20 bytes on a link of 10: both at 5 until 2 s, then the second alone: 10 left, 1 s."""
    found = transfer(table([[0], [0]], [10, 20]), np.array([10.0]), folded=folded)
    assert found.end_s.tolist() == [2.0, 3.0]
    assert found.solves == 2
    assert found.carried_bytes.tolist() == [30.0]


def test_a_flow_that_comes_later_slows_the_first() -> None:
    """30 bytes at 10 alone until 1 s; then 5 each until the newcomer's 10 are through at 3 s; 10
    bytes are left and take another second."""
    found = transfer(table([[0], [0]], [30, 10], start_s=np.array([0.0, 1.0])), np.array([10.0]))
    assert found.start_s.tolist() == [0.0, 1.0]
    assert found.end_s.tolist() == [4.0, 3.0]


def test_a_freed_share_moves_the_bottleneck() -> None:
    """Flows a (links 0 and 1), b (0), c (1), capacities 10 and 4, 6 bytes each.

    a and c run at 2, b at 8: b ends at 0.75 s, a and c together at 3 s.
    """
    sizes = [6.0, 6.0, 6.0]
    found = transfer(table([[0, 1], [0], [1]], sizes), np.array([10.0, 4.0]))
    assert found.end_s == pytest.approx([3.0, 0.75, 3.0])
    assert found.solves == 2


def test_flows_that_end_together_are_solved_once() -> None:
    """A hundred flows on links of their own: one solve, for all of them."""
    links = [[at] for at in range(100)]
    found = transfer(table(links, [5.0] * 100), np.full(100, 2.0), folded=False)
    assert (found.end_s == 2.5).all()
    assert found.solves == 1


def test_flows_that_end_nearly_together_keep_their_own_times() -> None:
    """10 and 10.5 bytes on links of their own; a millionth more is another moment, too."""
    sizes = [10.0, 10.5, 10.00001]
    found = transfer(table([[0], [1], [2]], sizes), np.full(3, 10.0))
    assert found.end_s == pytest.approx([1.0, 1.05, 1.000001], rel=1e-12)
    assert found.solves == 3


def test_steps_wait_for_one_another_and_for_their_latency() -> None:
    """0.5 s of latency, 10 bytes at 10; then 0.25 s and 20 bytes: 1.5 s and 3.75 s."""
    found = transfer(
        table([[0], [0]], [10, 20], before=np.array([-1, 0]), lag_s=np.array([0.5, 0.25])),
        np.array([10.0]),
    )
    assert found.step_end_s.tolist() == [1.5, 3.75]
    assert found.start_s.tolist() == [0.5, 1.75]


def test_a_step_ends_with_its_last_flow() -> None:
    """Two flows of one step, of 1 and 3 s; what waits for the step starts at 3 s."""
    steps = np.array([0, 0, 1])
    found = transfer(
        table([[0], [1], [0]], [10, 30, 10], step=steps, before=np.array([-1, 0])),
        np.array([10.0, 10.0]),
    )
    assert found.end_s.tolist() == [1.0, 3.0, 4.0]


def test_nothing_to_move_takes_no_time() -> None:
    found = transfer(table([[0], []], [0.0, 5.0]), np.array([1.0]))
    assert found.end_s.tolist() == [0.0, 0.0]


def test_jobs_share_a_fabric() -> None:
    """Two jobs of one flow each on one link: each takes twice as long as alone."""
    job = table([[0]], [10.0])
    assert transfer(job, np.array([10.0])).makespan_s == 1.0
    assert transfer(joined(job, job), np.array([10.0])).end_s.tolist() == [2.0, 2.0]


def test_coupled_hops_run_at_the_slowest() -> None:
    """A pipeline over links of 10, 5 and 10: all hops at 5, beside which a flow on the first link
    gets the other 5."""
    route, size = couple(ways([0], [1], [2]), np.full(3, 10.0), np.zeros(3, dtype=np.int64), 1)
    pair = joined(flows(route, size), table([[0]], [10.0]))
    found = transfer(pair, np.array([10.0, 5.0, 10.0]))
    assert found.end_s.tolist() == [2.0, 2.0]


def test_what_a_link_carries_twice_counts_twice() -> None:
    """Two hops of a pipeline over one link of 10: 5 each."""
    route, size = couple(ways([0], [0]), np.full(2, 10.0), np.zeros(2, dtype=np.int64), 1)
    assert transfer(flows(route, size), np.array([10.0])).makespan_s == 2.0


def test_folding_finds_the_symmetry_and_only_it() -> None:
    """Four links with two flows each are one class; a worn link leaves two."""
    links = [[at // 2] for at in range(8)]
    even = fold(table(links, [1.0] * 8), np.full(4, 1.0))
    assert (len(even.flows), even.flows.count.tolist()) == (1, [8.0])
    worn = fold(table(links, [1.0] * 8), np.array([1.0, 1.0, 1.0, 0.5]))
    assert sorted(worn.flows.count.tolist()) == [2.0, 6.0]
    assert sorted(worn.capacity_bytes_per_s.tolist()) == [0.5, 3.0]


def test_a_ring_of_links_folds_to_one() -> None:
    """Flow i over links i and i + 1 of 50: every link and flow is like every other one."""
    links = [[at, (at + 1) % 50] for at in range(50)]
    small = fold(table(links, [1.0] * 50), np.full(50, 1.0))
    assert len(small.flows) == 1
    assert transfer(table(links, [1.0] * 50), np.full(50, 1.0)).end_s.tolist() == [2.0] * 50


@st.composite
def tables(draw: st.DrawFn):  # type: ignore[no-untyped-def]
    links = draw(st.integers(1, 6))
    number = draw(st.integers(1, 12))
    crossed = st.lists(st.integers(0, links - 1), min_size=1, max_size=3, unique=True)
    rows = draw(st.lists(crossed, min_size=number, max_size=number))
    few = st.sampled_from([1.0, 2.0, 5.0])
    sizes = draw(st.lists(few, min_size=number, max_size=number))
    starts = draw(st.lists(st.sampled_from([0.0, 0.5]), min_size=number, max_size=number))
    before = [draw(st.sampled_from([-1, at - 1])) if at else -1 for at in range(number)]
    capacity = draw(st.lists(st.sampled_from([1.0, 4.0]), min_size=links, max_size=links))
    given = table(rows, sizes, start_s=np.array(starts), before=np.array(before))
    return given, np.array(capacity)


@given(tables())
def test_folding_changes_nothing(given_table) -> None:  # type: ignore[no-untyped-def]
    given_flows, capacity = given_table
    one = transfer(given_flows, capacity, folded=True)
    other = transfer(given_flows, capacity, folded=False)
    assert one.end_s == pytest.approx(other.end_s, rel=1e-6)
    assert one.carried_bytes == pytest.approx(other.carried_bytes)
    assert (one.end_s >= given_flows.size_bytes / capacity.max() * (1 - 1e-9)).all()


def test_the_same_flows_give_the_same_bytes() -> None:
    rng = np.random.default_rng(3)
    rows = [list(rng.choice(40, 4, replace=False)) for _ in range(200)]
    given_flows = table(rows, list(rng.uniform(1.0, 9.0, 200)))
    capacity = rng.uniform(1.0, 5.0, 40)
    ends = [transfer(given_flows, capacity).end_s.tobytes() for _ in range(2)]
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"limit_bytes_per_s": 0.0}, r"limit_bytes_per_s\[0\]: must be positive, got 0.0"),
        ({"start_s": -1.0}, r"start_s\[0\]: must not be negative, got -1.0 \(nearest: 0\)"),
        ({"lag_s": np.nan}, r"lag_s\[0\]: must not be negative, got nan"),
        ({"before": np.array([0])}, r"before\[0\]: must be an earlier step, got 0"),
    ],
)
def test_impossible_flows_are_refused(more: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        table([[0]], [1.0], **more)


def test_negative_sizes_are_refused() -> None:
    with pytest.raises(InputError, match=r"flows: size_bytes\[0\]: must not be negative, got -3.0"):
        table([[0]], [-3.0])


def test_a_lost_link_is_refused_not_waited_for() -> None:
    with pytest.raises(InputError, match=r"capacity\[0\]: must be positive where a class crosses"):
        transfer(table([[0]], [1.0]), np.array([0.0]))
