"""Steps worked by hand, action by action; published bubbles; extra tasks; what cannot be run."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.events.engine.demands import demands
from simulator.events.engine.engine import longest_path, play
from simulator.events.engine.graph import DeadlockError
from simulator.events.step.auxiliary_tasks import AuxiliaryTasks
from simulator.events.step.programs import Program, StepGraph, period_s, program, step_graph
from simulator.events.step.streams import STREAMS
from simulator.events.step.unfold import EXTRA, SEND
from simulator.schedules.registry import SCHEDULES
from simulator.schedules.schedule import KINDS, there_and_back

FLUSHED = [word for word in SCHEDULES if "pipedream" not in word]

Span = tuple[str, float, float]


def passes(program: Program, forward: float, backward: float, share: float = 0.5) -> Any:
    """Equal passes of every chunk; of the backward pass `share` is its weight half."""
    table = np.empty((program.ranks, program.chunks, 4))
    table[...] = (forward, backward, backward * (1 - share), backward * share)
    return table


def spans(step: StepGraph) -> list[list[Span]]:
    """What every rank does, in the order of start: words as ``F0@1`` (piece 1), ``F0@1>`` sent."""
    times = longest_path(step.graph, step.name)
    ranks: list[list[Span]] = [[] for _ in range(step.program.ranks)]
    for task in np.lexsort((np.arange(len(step.graph)), times.start_s)).tolist():
        row, kind = step.row[task], step.kind[task]
        if kind == EXTRA:
            word = f"X{row}"
        else:
            of = step.program
            word = f"{KINDS[of.kind[row]]}{of.micro_batch[row]}@{of.piece[row]}"
            word += ">" if kind == SEND else ""
        ranks[step.rank[task]].append((word, float(times.start_s[task]), float(times.end_s[task])))
    return ranks


def written(text: str) -> list[Span]:
    """``F0@0 0 1, ...`` as spans."""
    cells = [cell.split() for cell in text.split(",")]
    return [(word, float(start), float(end)) for word, start, end in cells]


# --- worked by hand ------------------------------------------------------------------------------


def test_gpipe_with_sends_beside_the_compute() -> None:
    made = program("gpipe", 2, 2)
    assert spans(step_graph(made, passes(made, 1.0, 2.0), 0.5)) == [
        written(
            "F0@0 0 1, F0@0> 1 1.5, F1@0 1 2, F1@0> 2 2.5, B0@0 6 8, B1@0 8 10",
        ),
        written(
            "F0@1 1.5 2.5, F1@1 2.5 3.5, B0@1 3.5 5.5, B0@1> 5.5 6, B1@1 5.5 7.5, B1@1> 7.5 8",
        ),
    ]


def test_1f1b_with_sends() -> None:
    made = program("1f1b", 2, 3)
    assert spans(step_graph(made, passes(made, 1.0, 2.0), 0.25)) == [
        written(
            "F0@0 0 1, F0@0> 1 1.25, F1@0 1 2, F1@0> 2 2.25, B0@0 4.5 6.5, F2@0 6.5 7.5,"
            "F2@0> 7.5 7.75, B1@0 7.5 9.5, B2@0 11 13"
        ),
        written(
            "F0@1 1.25 2.25, B0@1 2.25 4.25, B0@1> 4.25 4.5, F1@1 4.25 5.25, B1@1 5.25 7.25,"
            "B1@1> 7.25 7.5, F2@1 7.75 8.75, B2@1 8.75 10.75, B2@1> 10.75 11"
        ),
    ]


def test_forward_and_backward_sends_and_hops_have_times_of_their_own() -> None:
    # one micro-batch through three pieces: 1 + 0.5 + 1 + 0.25 + 1 + 2 + 4 + 2 + 3 + 2
    made = program("1f1b", 3, 1)
    step = step_graph(made, passes(made, 1.0, 2.0), [[0.5, 0.25], [3.0, 4.0]])
    assert longest_path(step.graph).makespan_s == 16.75


def test_interleaved_stages() -> None:
    made = program("interleaved", 2, 2, 2)
    found = spans(step_graph(made, passes(made, 1.0, 1.0)))
    assert [[span for span in rank if not span[0].endswith(">")] for rank in found] == [
        written("F0@0 0 1, F1@0 1 2, F0@2 2 3, F1@2 3 4, B0@2 5 6, B1@2 7 8, B0@0 8 9, B1@0 9 10"),
        written("F0@1 1 2, F1@1 2 3, F0@3 3 4, B0@3 4 5, F1@3 5 6, B1@3 6 7, B0@1 7 8, B1@1 8 9"),
    ]


def test_zero_bubble_h1() -> None:
    made = program("zb_h1", 2, 4)
    found = spans(step_graph(made, passes(made, 1.0, 2.0)))
    assert [[span for span in rank if not span[0].endswith(">")] for rank in found] == [
        written(
            "F0@0 0 1, F1@0 1 2, I0@0 3 4, W0@0 4 5, F2@0 5 6, I1@0 6 7, W1@0 7 8, F3@0 8 9,"
            "I2@0 9 10, W2@0 10 11, I3@0 11 12, W3@0 12 13"
        ),
        written(
            "F0@1 1 2, I0@1 2 3, F1@1 3 4, I1@1 4 5, W0@1 5 6, F2@1 6 7, I2@1 7 8, W1@1 8 9,"
            "F3@1 9 10, I3@1 10 11, W2@1 11 12, W3@1 12 13"
        ),
    ]


def test_dualpipe_overlaps_a_pair_from_the_start_of_both_to_the_end_of_both() -> None:
    # rank 1 does the same with the other micro-batches (0 and 2, 1 and 3 exchanged)
    made = program("dualpipe", 2, 4)
    step = step_graph(made, passes(made, 1.0, 2.0))
    times = longest_path(step.graph)
    order = written(
        "F0@0 0 1, F2@1 1 2, F1@0 2 3, B2@1 3 5, F3@1 5 8, B0@0 8 8, B3@1 8 10, I1@0 10 11,"
        "W1@0 11 12"
    )
    for rank, other in ((0, 0), (1, 2)):
        own = np.flatnonzero(made.rank == rank)
        tasks = step.task_of_action[own]
        names = [
            f"{KINDS[made.kind[a]]}{(made.micro_batch[a] + other) % 4}@{made.piece[a]}" for a in own
        ]
        at = (times.start_s[tasks].tolist(), times.end_s[tasks].tolist())
        assert list(zip(names, *at, strict=True)) == order


def test_pairs_may_be_given_a_time_of_their_own() -> None:
    made = program("dualpipe", 2, 4)
    pair = int(np.flatnonzero(made.with_next & (made.rank == 0))[0])
    each = np.array([1.0, 2.0, 1.0, 1.0])[made.kind]
    each[made.with_next] = 0.5  # of the pair's forward pass all but half a second is hidden
    step = step_graph(made, each)
    times = longest_path(step.graph)
    task = step.task_of_action[pair]
    assert (times.start_s[task], times.end_s[task]) == (5.0, 7.5)
    assert times.makespan_s == 11.5


# --- every schedule against the player of the other tests, and published bubbles ----------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(max_examples=settings.default.max_examples // 3)
@given(half=st.integers(1, 3), rounds=st.integers(2, 4), seed=st.integers(0, 2**32 - 1))
def test_uneven_stages_run_as_an_independent_player_runs_them(
    schedule: str, half: int, rounds: int, seed: int, play: Any
) -> None:
    pp, m, vpp = 2 * half, 2 * half * rounds, SCHEDULES[schedule].fewest_chunks
    made = program(schedule, pp, m, vpp)
    rng, count = np.random.default_rng(seed), pp * vpp
    forward, back, weight = (rng.integers(1, 99, count) / 32 for _ in range(3))
    start, end = play(made, forward.tolist(), back.tolist(), weight.tolist())
    by_kind = np.stack([forward, back + weight, back, weight], axis=1)
    step = step_graph(made, by_kind[made.piece, made.kind])
    times = longest_path(step.graph, step.name)
    first = np.roll(made.with_next, 1)  # of a pair the first task has the time of both
    assert times.start_s[step.task_of_action][~first].tolist() == start[~first].tolist()
    assert times.end_s[step.task_of_action].tolist() == end.tolist()


def bubble(schedule: str, pp: int, m: int, f: float, i: float, w: float, vpp: int) -> float:
    """Step time of equal stages less the work of one; f, i, w of a whole rank and micro-batch."""
    made = program(schedule, pp, m, vpp)
    parts = made.pieces // pp if schedule != "dualpipe" else 1
    table = np.empty((made.ranks, made.chunks, 4))
    table[...] = np.array((f, i + w, i, w)) / parts
    step = step_graph(made, table)
    copies = 2 if schedule == "dualpipe" else 1
    return longest_path(step.graph).makespan_s - m / copies * (f + i + w) * copies


@pytest.mark.parametrize(("p", "m"), [(2, 8), (4, 16), (8, 64)])
@pytest.mark.parametrize("fiw", [(1.0, 1.0, 1.0), (1.0, 1.25, 0.75), (2.0, 2.5, 1.0)])
def test_published_bubbles_of_equal_stages(p: int, m: int, fiw: tuple[float, ...]) -> None:
    """Narayanan et al. 2021, sections 2.2.1 and 2.2.2; Qi et al. 2023, table 2 (H2 flushed).

    Seconds are sums of powers of two, so that equality is exact.
    """
    f, i, w = fiw
    for schedule in ("gpipe", "1f1b"):
        assert bubble(schedule, p, m, f, i, w, 1) == (p - 1) * (f + i + w)
    for schedule in ("interleaved", "looped_bfs"):
        for v in (2, 4):
            assert bubble(schedule, p, m, f, i, w, v) == (p - 1) * (f + i + w) / v
    assert bubble("zb_h1", p, m, f, i, w, 1) == (p - 1) * (f + i - w)
    assert bubble("interleaved_zb", p, m, f, i, w, 2) == (p - 1) * (f + i - w) / 2
    assert bubble("zb_h2", p, m, f, i, w, 1) == (p - 1) * max(f + i - 2 * w, f)


def test_one_micro_batch_goes_round_an_interleaved_pipeline_alone() -> None:
    """Through all four chunks of two ranks and back, 1 s each; the weight pass of the last one
    follows, those before it fill the waiting time."""
    step = step_graph(program("interleaved_zb", 2, 1, 2), [[[1.0, 0.0, 1.0, 0.5]] * 2] * 2)
    assert longest_path(step.graph).makespan_s == 4 + 4 + 0.5


@pytest.mark.parametrize(("p", "m"), [(2, 8), (4, 16), (8, 64)])
def test_bubbles_of_v_shapes_with_equal_passes(p: int, m: int) -> None:
    """Qi et al. 2023, section 6: none but the fill; DeepSeek-V3, table 2, on both its halves.

    DualPipe's p ranks are two copies of p / 2 stages: each works on all of m micro-batches.
    """
    assert bubble("zb_v", p, m, 1.0, 1.0, 1.0, 2) == (p - 1) / 2
    assert bubble("dualpipe_v", p, m * 2, 1.0, 1.0, 0.5, 2) == (p - 1) * (2 + 1 - 0.5) / 2
    assert bubble("dualpipe", p, m * 2, 1.0, 1.0, 0.5, 1) == (p / 2 - 1) * (2 + 1 - 0.5)


@pytest.mark.parametrize("schedule", ["pipedream", "pipedream_2bw"])
def test_pipedream_in_steady_state_is_paced_by_its_slowest_stage(schedule: str) -> None:
    # Narayanan et al. 2019, section 3.1: no bubble between steps; stages of 3, 5 and 4 seconds
    made = program(schedule, 3, 4, steps=6)
    table = np.array([[[1.0, 2.0, 0, 0]], [[2.0, 3.0, 0, 0]], [[1.5, 2.5, 0, 0]]])
    step = step_graph(made, table)
    assert period_s(step, longest_path(step.graph).end_s, 6) == 4 * 5.0


def test_a_period_needs_two_steps() -> None:
    made = program("pipedream", 2, 4)
    step = step_graph(made, passes(made, 1.0, 2.0))
    with pytest.raises(InputError, match="a period needs 2 steps or more, got 1"):
        period_s(step, longest_path(step.graph).end_s, 1)


# --- the columns, and extra tasks ----------------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_action_and_every_result_for_another_rank_is_one_task(schedule: str) -> None:
    pp, m, vpp = 4, 8, SCHEDULES[schedule].fewest_chunks
    made = program(schedule, pp, m, vpp)
    step = step_graph(made, passes(made, 1.0, 2.0), 0.5)
    assert made.chunks == SCHEDULES[schedule].chunks(vpp)
    # V-shaped: the last piece of the first chunk and the first of the second are on one rank
    hops = pp * vpp - 1 - (SCHEDULES[schedule].piece is there_and_back)
    assert (step.kind == SEND).sum() == 2 * m * hops
    each = m * pp * vpp * (3 if SCHEDULES[schedule].splits_backward else 2)
    whole = (made.kind == KINDS.index("B")).sum() if SCHEDULES[schedule].splits_backward else 0
    assert (step.kind < SEND).sum() == len(made) == each - whole
    assert len(step.graph) == len(made) + 2 * m * hops
    back = step.task_of_action
    assert (step.row[back] == np.arange(len(made))).all()
    assert (step.rank[back] == made.rank).all() and (step.chunk[back] == made.chunk).all()
    assert (step.graph.stream == step.rank * len(STREAMS) + step.stream).all()


def extras(**columns: Any) -> AuxiliaryTasks:
    usual = {"rank": [0], "stream": [5], "duration_s": [1.0], "after": [-1], "waits": [True]}
    usual |= {"before": [-1], "edges": []}
    arrays = {name: np.array(value) for name, value in (usual | columns).items()}
    return AuxiliaryTasks(**{**arrays, "edges": arrays["edges"].reshape(-1, 2).astype(np.int64)})


def test_reductions_gathers_and_an_optimizer() -> None:
    """1F1B of two ranks, two micro-batches; actions 0-3 are rank 0's F0 F1 B0 B1, 4-7 F0 B0 F1 B1.

    Each rank gathers for 0.5 s before its first pass, reduces for 1 s behind its last one, both on
    "data"; both optimizers (2 s, compute) wait for both reductions.
    """
    made = program("1f1b", 2, 2)
    more = extras(
        rank=[0, 1, 0, 1, 0, 1],
        stream=[5, 5, 5, 5, 0, 0],
        duration_s=[0.5, 0.5, 1, 1, 2, 2],
        after=[-1, -1, 3, 7, 3, 7],
        waits=[False] * 2 + [True] * 4,
        before=[0, 4] + [-1] * 4,
        edges=[(8 + 2, 8 + 4), (8 + 3, 8 + 4), (8 + 2, 8 + 5), (8 + 3, 8 + 5)],
    )
    found = spans(step_graph(made, passes(made, 1.0, 2.0), extras=more))
    assert [[span for span in rank if not span[0].endswith(">")] for rank in found] == [
        written(
            "X0 0 0.5, F0@0 0.5 1.5, F1@0 1.5 2.5, B0@0 4.5 6.5, B1@0 7.5 9.5, X2 9.5 10.5,"
            "X4 10.5 12.5"
        ),
        written(
            "X1 0 0.5, F0@1 1.5 2.5, B0@1 2.5 4.5, F1@1 4.5 5.5, B1@1 5.5 7.5, X3 7.5 8.5,"
            "X5 10.5 12.5"
        ),
    ]


def test_several_behind_one_action_keep_their_order_and_wait_only_if_told() -> None:
    made = program("gpipe", 1, 1)
    more = extras(
        rank=[0, 0, 0],
        stream=[5, 5, 5],
        duration_s=[3.0, 1.0, 1.0],
        after=[0, 0, -1],
        waits=[False, True, False],
        before=[-1] * 3,
    )
    # the gather before the first action, then one that does not wait for it, then one that does
    assert spans(step_graph(made, passes(made, 8.0, 1.0), extras=more)) == [
        written("X2 0 1, F0@0 0 8, X0 1 4, X1 8 9, B0@0 8 9")
    ]


def test_a_reduction_slows_the_pass_beside_it_by_the_units_that_it_holds() -> None:
    """One rank: F0 F1 B0 B1 of 1 and 2 s; 2 s of reduction from 2 s on hold 16 of 132 units.

    In these 2 s the backward pass gets 116 / 132 through, the rest of it takes as long as alone.
    """
    made = program("gpipe", 1, 2)
    more = extras(duration_s=[2.0], after=[1])
    step = step_graph(made, passes(made, 1.0, 2.0), extras=more)
    n, reduces = len(step.graph), step.kind == EXTRA
    entries = np.column_stack([np.arange(n), np.zeros(n), np.where(reduces, 16.0, 132.0)])
    times = play(step.graph, demands(step.graph.duration_s, [132.0], entries, held=reduces))
    late = 2.0 * 16 / 132
    assert times.end_s[step.task_of_extra].tolist() == [4.0]
    ends = times.end_s[step.task_of_action].tolist()
    assert ends == pytest.approx([1.0, 2.0, 4.0 + late, 6.0 + late], rel=1e-15)


def test_an_extra_that_an_overlapped_pair_waits_for_holds_back_both() -> None:
    made = program("dualpipe_v", 2, 4, 2)
    second = int(np.flatnonzero(made.with_next)[0]) + 1
    more = extras(rank=[int(made.rank[second])], duration_s=[50.0], before=[second], after=[-1])
    step = step_graph(made, passes(made, 1.0, 2.0), extras=more)
    times = longest_path(step.graph)
    assert times.start_s[step.task_of_action[second - 1]] == 50.0


# --- what cannot be run --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"rank": [2]}, "rank: must be from 0 to 1, got 2 in row 0"),
        ({"stream": [9]}, "stream: must be from 0 to 7, got 9 in row 0"),
        ({"after": [8]}, "after: must be from -1 to 7, got 8"),
        ({"before": [-2]}, "before: must be from -1 to 7, got -2"),
        ({"edges": [(0, 9)]}, "edges: must be from 0 to 8, got 9"),
        (
            {"after": [4]},
            r"extra task 0 on rank 0 stands behind an action of another rank \(rank 1: F0 of",
        ),
    ],
)
def test_extras_that_name_what_is_not_there(columns: dict[str, Any], said: str) -> None:
    made = program("1f1b", 2, 2)
    with pytest.raises(InputError, match=said):
        step_graph(made, passes(made, 1.0, 2.0), extras=extras(**columns))


def test_an_extra_in_a_circle_is_named() -> None:
    made = program("1f1b", 2, 2)
    more = extras(after=[3], before=[0])  # behind rank 0's last action, before its first
    step = step_graph(made, passes(made, 1.0, 2.0), extras=more)
    said = (
        "deadlock: rank 0: F0 of piece 0 waits for rank 0: extra task 0 on data; rank 0: extra "
        "task 0 on data waits for rank 0: B1 of piece 0, which comes after rank 0: F0 of piece 0"
    )
    with pytest.raises(DeadlockError, match=said):
        longest_path(step.graph, step.name)


def test_seconds_of_the_wrong_shape() -> None:
    made = program("1f1b", 2, 2)
    with pytest.raises(InputError, match=r"pass_s must have shape \(2, 1, 4\), got \(3, 1, 4\)"):
        step_graph(made, np.ones((3, 1, 4)))
    with pytest.raises(InputError, match="8 actions need as many seconds, got 7"):
        step_graph(made, np.ones(7))


def test_negative_seconds_name_rank_and_action() -> None:
    made = program("1f1b", 2, 2)
    seconds = np.ones(8)
    seconds[6] = -1.0
    step = step_graph(made, seconds)
    with pytest.raises(InputError, match="rank 1: F1 of piece 1: duration must be finite and not"):
        longest_path(step.graph, step.name)
    sent = step_graph(made, np.ones(8), [[1.0], [-1.0]])
    with pytest.raises(InputError, match="rank 1: B0 of piece 1, sent: duration must be finite"):
        longest_path(sent.graph, sent.name)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rank": [0, 0, 0, 0, 1, 1, 1, 0]}, "action 7 .* is out of place: there are 2 ranks one"),
        ({"rank": [0, 0, 0, 0, 1, 1, 1, 2]}, "action 7 .* is out of place"),
        ({"kind": [0, 0, 1, 1, 0, 1, 0, 7]}, r"action 7 \(kind 7\) is out of place"),
        ({"piece": [0, 0, 0, 0, 1, 1, 1, 5]}, "action 7 .* is out of place"),
        ({"chunk": [0, 0, 0, 0, 0, 0, 0, 1]}, "action 7 .* is out of place"),
        ({"micro_batch": [0, 1, 0, 1, 0, 0, 1, -1]}, "action 7 .* is out of place"),
        ({"with_next": [False] * 7 + [True]}, "action 7 .* and pairs of one rank"),
        ({"with_next": [False] * 3 + [True] + [False] * 4}, "action 3 .* is out of place"),
        ({"micro_batch": [0, 1, 0, 1, 0, 0, 1, 0]}, "rank 1: B0 of piece 1 is listed twice"),
        ({"kind": [0, 0, 1, 1, 0, 1, 0, 3]}, "rank 0: B1 of piece 0 waits for the backward pass"),
    ],
)
def test_programs_that_contradict_themselves(change: dict[str, Any], said: str) -> None:
    made = program("1f1b", 2, 2)
    wrong = replace(made, **{name: np.array(value) for name, value in change.items()})
    with pytest.raises(InputError, match=said):
        step_graph(wrong, np.ones(8))


def test_schedules_that_do_not_exist() -> None:
    with pytest.raises(InputError, match=r"schedule must be one of 1f1b, .*, got 'zb'"):
        program("zb", 2, 4)
    with pytest.raises(InputError, match="1f1b flushes after each step: steps must be 1, got 2"):
        program("1f1b", 2, 4, steps=2)
