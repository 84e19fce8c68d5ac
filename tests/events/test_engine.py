"""Small graphs worked by hand, the causes of starts, and graphs that can never end."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.events.engine.demands import demands
from simulator.events.engine.engine import critical_path, longest_path, play
from simulator.events.engine.graph import DeadlockError, TaskGraph, task_graph


def test_a_stream_runs_its_tasks_in_the_order_of_their_numbers() -> None:
    # 2 waits for 3 on the other stream, so that 4 behind it in the stream waits too
    graph = task_graph([1.0, 2.0, 1.0, 5.0, 1.0], [0, 1, 0, 1, 0], [(3, 2)])
    times = longest_path(graph)
    assert times.start_s.tolist() == [0.0, 0.0, 7.0, 2.0, 8.0]
    assert times.end_s.tolist() == [1.0, 2.0, 8.0, 7.0, 9.0]
    assert times.cause.tolist() == [-1, -1, 3, 1, 2]
    assert critical_path(times).tolist() == [1, 3, 2, 4]


def test_a_lag_passes_between_end_and_start() -> None:
    graph = task_graph([1.0, 1.0, 1.0], [0, 1, 1], [(0, 2), (0, 1)], [0.25, 3.0])
    assert longest_path(graph).start_s.tolist() == [0.0, 4.0, 5.0]
    assert play(graph, demands([1.0] * 3, [1.0])).start_s.tolist() == [0.0, 4.0, 5.0]


def test_of_equally_late_causes_the_stream_comes_first_then_the_list() -> None:
    graph = task_graph([2.0, 2.0, 2.0, 1.0, 1.0], [0, 1, 2, 0, 3], [(1, 3), (2, 4), (1, 4)])
    assert longest_path(graph).cause.tolist() == [-1, -1, -1, 0, 2]


def test_no_tasks_take_no_time() -> None:
    times = longest_path(task_graph([], []))
    assert times.makespan_s == 0.0 and critical_path(times).tolist() == []
    assert play(task_graph([], []), demands([], [1.0])).makespan_s == 0.0


# --- sharing, worked by hand ---------------------------------------------------------------------


def test_a_product_runs_on_the_units_that_a_collective_leaves() -> None:
    # for 4 s the collective holds 16 of 132 units: the product does 4 * 116 / 132 of its 10 s
    graph = task_graph([10.0, 4.0], [0, 1])
    taken = demands([10.0, 4.0], [132.0], [(0, 0, 132.0), (1, 0, 16.0)], held=[False, True])
    times = play(graph, taken)
    assert times.end_s[1] == 4.0
    assert times.end_s[0] == pytest.approx(10.0 + 4.0 * 16 / 132, rel=1e-15)


def test_tasks_share_evenly_and_one_that_ends_frees_its_share() -> None:
    # two flows of 6 and 2 bytes on a link of 2 bytes/s: 1 each until 2 s, then the first has all
    graph = task_graph([0.0, 0.0], [0, 1])
    times = play(graph, demands([6.0, 2.0], [2.0], [(0, 0, 1.0), (1, 0, 1.0)], limit=np.inf))
    assert times.end_s.tolist() == [4.0, 2.0]


def test_weights_share_a_link_by_its_bytes() -> None:
    # of a link that the second fills, the first asks for 0.3: it has that, the second 0.7 for 10 s
    graph = task_graph([10.0, 10.0], [0, 1])
    both = [(0, 0, 0.3), (1, 0, 1.0)]
    times = play(graph, demands([10.0, 10.0], [1.0], both, weight=[0.3, 1.0]))
    assert times.end_s.tolist() == pytest.approx([10.0, 13.0], rel=1e-15)
    # shared by progress, both would be slowed alike: 1 / 1.3 until 13 s
    even = play(graph, demands([10.0, 10.0], [1.0], both))
    assert even.end_s.tolist() == pytest.approx([13.0, 13.0], rel=1e-15)
    # who asks for more than half has half: 0.5 / 0.8 of its rate
    most = demands([10.0, 10.0], [1.0], [(0, 0, 0.8), (1, 0, 1.0)], weight=[0.8, 1.0])
    assert play(graph, most).end_s.tolist() == pytest.approx([16.0, 18.0], rel=1e-15)


def test_a_task_waits_for_the_scarcest_of_what_it_takes() -> None:
    # task 0 on links 0 and 1, task 1 on link 0, task 2 on link 1 (10 and 4 bytes/s): 2, 8, 2
    links = [(0, 0, 1.0), (0, 1, 1.0), (1, 0, 1.0), (2, 1, 1.0)]
    times = play(
        task_graph([0.0] * 3, [0, 1, 2]), demands([4.0, 16.0, 8.0], [10.0, 4.0], links, limit=1e9)
    )
    # at 2 s tasks 0 and 1 end; task 2 has moved 4 and goes on with 4 bytes/s
    assert times.end_s.tolist() == [2.0, 2.0, 3.0]


def test_a_start_in_between_slows_what_runs() -> None:
    # alone for 1 s (lag), then half each until the second is through, then alone again
    graph = task_graph([0.0, 0.0, 0.0], [0, 1, 2], [(2, 1)], [1.0])
    share = demands([3.0, 1.0, 0.0], [1.0], [(0, 0, 1.0), (1, 0, 1.0)])
    times = play(graph, share)
    assert times.start_s.tolist() == [0.0, 1.0, 0.0]
    assert times.end_s.tolist() == [4.0, 3.0, 0.0]


def test_what_shares_nothing_keeps_its_own_limit() -> None:
    graph = task_graph([0.0, 0.0], [0, 1])
    assert play(graph, demands([3.0, 3.0], [1.0], limit=[1.0, 6.0])).end_s.tolist() == [3.0, 0.5]


@given(st.integers(0, 2**32 - 1))
def test_sharing_never_ends_a_task_sooner_and_does_no_more_than_there_is(seed: int) -> None:
    """A law: no rate above 1, so nothing ends before the longest path to it."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 60))
    pairs = np.sort(rng.integers(0, n, (n, 2)), axis=1)
    work = rng.random(n)
    graph = task_graph(work, rng.integers(0, 8, n), pairs[pairs[:, 0] < pairs[:, 1]])
    entries = [(i, int(r), rng.random() + 0.1) for i in range(n) for r in rng.permutation(3)[:2]]
    held = rng.random(len(entries)) < 0.2
    taken = demands(work, [1.5] * 3, entries, held=held, weight=rng.random(n) + 0.1)
    try:
        times = play(graph, taken)
    except InputError as error:  # holders that wait for whom they starve: refused, as documented
        assert "no running task goes on" in str(error)
        reject()
    assert (times.end_s >= longest_path(graph).end_s - 1e-12).all()
    amounts = np.array([amount * work[task] for task, _, amount in entries])
    for resource in range(3):
        moved = sum(
            amount
            for amount, entry, holds in zip(amounts, entries, held, strict=True)
            if entry[1] == resource and not holds
        )
        assert moved <= 1.5 * times.makespan_s + 1e-9


def test_the_same_input_gives_the_same_bytes() -> None:
    rng = np.random.default_rng(5)
    n = 400
    graph = task_graph(np.zeros(n), rng.integers(0, 40, n))
    entries = [(i, int(r), 1.0) for i in range(n) for r in rng.choice(12, 2, replace=False)]
    shared = demands(rng.integers(1, 9, n).astype(float), np.ones(12), entries, limit=np.inf)
    first, second = play(graph, shared), play(graph, shared)
    assert first.end_s.tobytes() == second.end_s.tobytes()
    assert first.cause.tobytes() == second.cause.tobytes()


# --- what can never end, or is no graph ----------------------------------------------------------


def both_ways(graph: TaskGraph) -> list[str]:
    """What longest_path and play say about a graph."""
    said = []
    for run in (longest_path, lambda g: play(g, demands(np.ones(len(g)), [1.0]))):
        with pytest.raises(DeadlockError) as error:
            run(graph)
        said.append(str(error.value))
    return said


def test_tasks_that_wait_for_each_other_are_named() -> None:
    graph = task_graph([1.0] * 3, [0, 1, 2], [(1, 0), (0, 1), (0, 2)])
    assert both_ways(graph) == ["deadlock: task 0 waits for task 1; task 1 waits for task 0"] * 2


def test_a_task_that_waits_for_itself() -> None:
    assert both_ways(task_graph([1.0], [0], [(0, 0)])) == ["deadlock: task 0 waits for task 0"] * 2


def test_a_task_that_waits_for_a_later_one_of_its_stream() -> None:
    graph = task_graph([1.0] * 3, [0, 0, 0], [(2, 1)])
    assert both_ways(graph) == ["deadlock: task 1 waits for task 2, which comes after task 1"] * 2


def test_streams_whose_orders_cross() -> None:
    # 0 then 1 on one stream, 2 then 3 on the other; 0 waits for 3, 2 for 1
    graph = task_graph([1.0] * 4, [0, 0, 1, 1], [(3, 0), (1, 2)])
    expected = (
        "deadlock: task 0 waits for task 3, which comes after task 2; "
        "task 2 waits for task 1, which comes after task 0"
    )
    assert both_ways(graph) == [expected] * 2
    with pytest.raises(DeadlockError) as error:
        longest_path(graph)
    assert error.value.tasks == (0, 2)


def test_tasks_that_hold_what_each_other_needs() -> None:
    graph = task_graph([1.0, 1.0], [0, 1])
    entries = [(0, 0, 1.0), (0, 1, 1.0), (1, 1, 1.0), (1, 0, 1.0)]
    taken = demands([1.0, 1.0], [1.0, 1.0], entries, held=[True, False, True, False])
    with pytest.raises(InputError, match="task 0 gets nothing of resource 1, which task 1 holds"):
        play(graph, taken)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"duration_s": [1.0, -2.0]}, "task 1: duration must be finite and not negative, got -2.0"),
        ({"duration_s": [1.0, np.nan]}, "task 1: duration must be finite"),
        ({"duration_s": [np.inf, 1.0]}, "task 0: duration must be finite"),
        ({"stream": [0, -1]}, "task 1: stream must be from 0 to 16777215, got -1"),
        ({"stream": [0, 2**24]}, "task 1: stream must be from 0"),
        ({"stream": [0]}, "2 durations need 2 streams and 3 row starts, got 1 and 3"),
        ({"first": [0, 1, 0]}, "row starts must rise from 0 to 1"),
        ({"first": [0, 2, 1]}, "row starts must rise from 0 to 1"),
        ({"predecessor": [2]}, "task 1: waits for task 2 of 2"),
        ({"predecessor": [-1]}, "task 1: waits for task -1 of 2"),
        ({"lag_s": [-1.0]}, "task 1: lag must be finite and not negative, got -1.0"),
        ({"lag_s": []}, "1 edges need as many lags, got 0"),
    ],
)
def test_arrays_that_are_no_graph(change: dict[str, list[float]], said: str) -> None:
    arrays = {"duration_s": [1.0, 1.0], "stream": [0, 0], "first": [0, 0, 1], "predecessor": [0]}
    graph = TaskGraph(**{name: np.array(x) for name, x in (arrays | change).items()})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=said):
        longest_path(graph)


def test_an_edge_to_a_task_that_is_not_there() -> None:
    with pytest.raises(InputError, match=r"edge \[0, 2\] names no task"):
        task_graph([1.0, 1.0], [0, 1], [(0, 2)])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"capacity": [0.0]}, r"capacity\[0\]: must be positive and finite, got 0.0"),
        ({"capacity": [-1.0]}, r"capacity\[0\]: must be positive and finite, got -1.0"),
        ({"capacity": [np.inf]}, r"capacity\[0\]: must be positive and finite, got inf"),
        ({"limit": 0.0}, r"limit\[0\]: must be positive, got 0.0"),
        ({"limit": -3.0}, r"limit\[0\]: must be positive"),
        ({"limit": np.inf}, r"limit of a task that shares nothing\[1\]: must be finite"),
        ({"entries": [(0, 0, -1.0)]}, r"amount\[0\]: must be positive and finite, got -1.0"),
        ({"entries": [(0, 3, 1.0)]}, r"resource\[0\]: must be from 0 to 0, got 3"),
        ({"entries": [(4, 0, 1.0)]}, "an entry names task 4 of 2"),
        ({"entries": [(0, 0, 1.0), (-1, 0, 1.0)]}, "an entry names task -1 of 2"),
        ({"work": [1.0, -1.0]}, r"work\[1\]: must be finite and not negative, got -1.0"),
        ({"weight": 0.0}, r"weight\[0\]: must be positive and finite, got 0.0"),
        ({"weight": np.inf}, r"weight\[0\]: must be positive and finite"),
    ],
)
def test_demands_with_which_nothing_could_run(change: dict[str, object], said: str) -> None:
    usual = {"work": [1.0, 1.0], "capacity": [1.0], "entries": [(0, 0, 1.0)]}
    with pytest.raises(InputError, match=said):
        demands(**(usual | change))  # type: ignore[arg-type]


@pytest.mark.parametrize("first", [[0, 1], [1, 1, 1], [0, 1, 0], [0, 2, 1]])
def test_demands_whose_rows_do_not_fit(first: list[int]) -> None:
    wrong = replace(demands([1.0, 1.0], [1.0], [(0, 0, 1.0)]), first=np.array(first))
    with pytest.raises(InputError, match="demands: first must rise from 0 to 1 in 3 rows"):
        play(task_graph([1.0, 1.0], [0, 1]), wrong)


def test_demands_changed_by_hand_are_checked_too() -> None:
    wrong = replace(demands([1.0], [1.0], [(0, 0, 1.0)]), capacity=np.array([0.0]))
    with pytest.raises(InputError, match=r"must be positive and finite, got 0\.0"):
        play(task_graph([1.0], [0]), wrong)


def test_demands_of_another_number_of_tasks() -> None:
    with pytest.raises(InputError, match="2 tasks need as many demands, got 1"):
        play(task_graph([1.0, 1.0], [0, 1]), demands([1.0], [1.0]))
