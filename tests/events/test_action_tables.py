"""A user's own tables: the three file formats, sends that are listed, and everything wrong."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.events.engine.engine import longest_path
from simulator.events.engine.graph import DeadlockError
from simulator.events.step.programs import Program, program, step_graph
from simulator.events.step.streams import STREAMS
from simulator.events.step.unfold import SEND
from simulator.events.step.user_actions import parse_actions, read_actions, write_actions
from simulator.schedules.registry import SCHEDULES

OWN = ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]

SENT = [
    "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
    "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1",
]


def same(one: Program, other: Program) -> bool:
    columns = ("rank", "kind", "micro_batch", "piece", "with_next")
    return all((getattr(one, name) == getattr(other, name)).all() for name in columns)


def seconds(made: Program) -> Any:
    return np.broadcast_to([1.0, 2.0, 1.0, 1.0], (made.ranks, made.chunks, 4))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("own.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"),
        ("own.csv", "0F0,0F1,,,0B0, 0B1\n,1F0,1B0,1F1,1B1,\n"),  # torch leaves idle slots blank
        ("own.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n\n\n"),
        ("own.csv", "0F0,0F1,0B0,0B1\r1F0,1B0,1F1,1B1\r"),  # a lone CR ends a line, as CR LF does
        ("own.csv", "0F0,0F1,0B0,0B1\r\n1F0,1B0,1F1,1B1\r\n"),
        ("own.json", json.dumps({"actions": [row.split() for row in OWN]})),
        ("own.json", json.dumps(OWN)),
        ("own.toml", f"actions = {OWN}"),
    ],
)
def test_three_formats_say_the_same(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    made = read_actions(tmp_path / name)
    assert same(made, program("1f1b", 2, 2))
    assert (made.ranks, made.pieces, made.chunks) == (2, 2, 1)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_that_is_written_is_read_back(schedule: str, tmp_path: Path) -> None:
    made = program(schedule, 4, 8, SCHEDULES[schedule].fewest_chunks)
    (tmp_path / "own.csv").write_text(write_actions(made))
    back = read_actions(tmp_path / "own.csv")
    assert same(made, back)
    takes = [longest_path(step_graph(x, seconds(x), 0.25).graph).makespan_s for x in (made, back)]
    assert takes[0] == takes[1]


def test_chunks_are_the_pieces_of_a_rank_in_their_order() -> None:
    made = parse_actions(["0F0 3F0 3B0 0B0", "1F0 2F0 2B0 1B0"])
    assert made.chunk.tolist() == [0, 1, 1, 0, 0, 1, 1, 0]


def test_a_table_of_forward_passes_alone_is_one() -> None:
    made = parse_actions(["0F0 0F1", "1F0 1F1"])
    assert longest_path(step_graph(made, seconds(made)).graph).makespan_s == 3.0


# --- listed sends and receives -------------------------------------------------------------------


def test_listed_sends_take_as_long_as_those_that_follow() -> None:
    """Where no receive stands in the way: rank 1 receives both before it sends."""
    ahead = [SENT[0], "1RECV_F0 1RECV_F1 1F0 1B0 1SEND_B0 1F1 1B1 1SEND_B1"]
    listed, own = parse_actions(ahead), parse_actions(OWN)
    steps = [step_graph(x, seconds(x), [[0.5], [0.25]]) for x in (listed, own)]
    times = [longest_path(step.graph, step.name) for step in steps]
    ends = [t.end_s[step.task_of_action].tolist() for t, step in zip(times, steps, strict=True)]
    assert ends[0] == ends[1] == [1.0, 2.0, 6.75, 9.75, 2.5, 4.5, 5.5, 7.5]
    sent = [np.flatnonzero(step.kind == SEND) for step in steps]
    pairs = zip(times, sent, strict=True)
    spans = [(t.start_s[at].tolist(), t.end_s[at].tolist()) for t, at in pairs]
    assert spans[0] == spans[1] == ([1.0, 2.0, 4.5, 7.5], [1.5, 2.5, 4.75, 7.75])


def test_a_receive_waits_for_the_send_before_it() -> None:
    # F1 is there at 2.5, but rank 1 takes it only when it has sent B0, from 4.5 to 4.75
    made = parse_actions(SENT)
    step = step_graph(made, seconds(made), [[0.5], [0.25]])
    ends = longest_path(step.graph, step.name).end_s[step.task_of_action].tolist()
    assert ends == [1.0, 2.0, 6.75, 10.0, 2.5, 4.5, 5.75, 7.75]


def test_a_receive_that_is_listed_early_holds_up_the_sends_behind_it() -> None:
    # rank 0 waits for B0 before it sends F1; B0 is there at 4.75
    early = [SENT[0].replace("0F1 0SEND_F1 0RECV_B0", "0RECV_B0 0F1 0SEND_F1"), SENT[1]]
    made = parse_actions(early)
    step = step_graph(made, seconds(made), [[0.5], [0.25]])
    times = longest_path(step.graph, step.name)
    f1 = step.task_of_send[1]
    assert (times.start_s[f1], times.end_s[f1]) == (4.75, 5.25)
    assert step.name(int(times.cause[f1])) == "rank 0: 0RECV_B0"


def test_sharding_words_run_on_the_data_stream() -> None:
    made = parse_actions(["0UNSHARD 0F0 0B0 0RESHARD 0REDUCE_GRAD"])
    step = step_graph(made, seconds(made))
    times = longest_path(step.graph, step.name)
    names = [step.name(i) for i in range(5)]
    data = [i for i in range(5) if step.stream[i] == STREAMS.index("data")]
    assert [names[i] for i in data] == [
        "rank 0: 0UNSHARD",
        "rank 0: 0RESHARD",
        "rank 0: 0REDUCE_GRAD",
    ]
    assert times.end_s[data].tolist() == [0.0, 3.0, 3.0]
    assert times.end_s[step.task_of_action].tolist() == [1.0, 3.0]


def test_both_ends_that_receive_first_are_a_deadlock() -> None:
    """The classic one: each waits for what the other sends only afterwards."""
    made = parse_actions(
        [
            "0F0 0SEND_F0 0F1 0RECV_B0 0SEND_F1 0B0 0RECV_B1 0B1",
            "1RECV_F0 1F0 1B0 1RECV_F1 1SEND_B0 1F1 1B1 1SEND_B1",
        ]
    )
    step = step_graph(made, seconds(made))
    said = (
        "deadlock: rank 0: 0RECV_B0 waits for rank 1: B0 of piece 1, sent, which comes after "
        "rank 1: 1RECV_F1; rank 1: 1RECV_F1 waits for rank 0: F1 of piece 0, sent, which comes "
        "after rank 0: 0RECV_B0"
    )
    with pytest.raises(DeadlockError) as error:
        longest_path(step.graph, step.name)
    assert str(error.value) == said


@pytest.mark.parametrize(
    ("rank", "old", "new", "said"),
    [
        (
            0,
            "0SEND_F1 ",
            "",
            "rank 1: 1RECV_F1 waits for a send: 0SEND_F1 is missing on rank 0",
        ),
        (
            1,
            "1RECV_F1 ",
            "",
            "rank 0: 0SEND_F1 is never received: 1RECV_F1 is missing on rank 1",
        ),
        (
            1,
            "1RECV_F1 ",
            "",
            "rank 1: 1F1 has no 1RECV_F1, what rank 0 makes never reaches it",
        ),
        (0, "0SEND_F1", "0SEND_F1 0SEND_F1", "rank 0: 0SEND_F1 is listed twice"),
        (0, "0SEND_F1", "0SEND_F1 0SEND_F7", "rank 0: 0SEND_F7: the rank has no such pass 0F7"),
        (1, "1RECV_F0 1F0", "1F0 1RECV_F0", "rank 1: 1RECV_F0 comes after the pass that needs it"),
        (0, "0SEND_F0", "0SEND_F0 1SEND_F0", "rank 0: 1SEND_F0: the rank has no such pass 1F0"),
    ],
)
def test_sends_and_receives_that_do_not_match(rank: int, old: str, new: str, said: str) -> None:
    rows = list(SENT)
    rows[rank] = rows[rank].replace(old, new, 1)
    with pytest.raises(InputError) as error:
        parse_actions(rows)
    assert f"actions: {said}" in error.value.problems


# --- what is wrong with a table ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            ["0F0 0X0"],
            "rank 0, action 1: must be written like 2F0 or (0F1;3B0)OVERLAP_F_B, got '0X0'",
        ),
        (["0F0 F"], "rank 0, action 1: must be written like 2F0"),
        (["0F0 0F0x"], "rank 0, action 1: must be written like 2F0"),
        (["0F0 0F"], "rank 0, action 1: F takes a micro-batch, got '0F'"),
        (["0F0 0RESHARD1"], "rank 0, action 1: RESHARD takes no micro-batch, got '0RESHARD1'"),
        (["(0F0;0RESHARD)OVERLAP_F_B"], "rank 0, action 0: only passes overlap"),
        (["(0F0;0B0;0F1)OVERLAP_F_B"], "rank 0, action 0: must be written like"),
        ([""], "must list a pass at least"),
        ([], "must list a pass at least"),
        (["0F0 0F0 0B0"], "rank 0: 0F0 is listed twice, also on rank 0"),
        (["0F0 0B0", "0F0"], "rank 1: 0F0 is listed twice, also on rank 0"),
        (["0F0 0B0 0F1"], "rank 0: 0F1 has no backward pass"),
        (["0F0 0I0"], "rank 0: 0I0 has no weight pass"),
        (["0F0 0B0 0W0"], "rank 0: 0W0 waits for 0I0, which no rank lists"),
        (["0F0 0B0 0W0"], "rank 0: 0B0 has no place: its halves are listed too"),
        (["0F0 0B0", "1F0"], "rank 0: 0B0 waits for 1B0 or 1I0, which no rank lists"),
        (["0B0"], "rank 0: 0B0 waits for 0F0, which no rank lists"),
        (
            ["0F0", "0B0"],
            "rank 1: 0B0 must be on rank 0, where 0F0 is: what a pass keeps stays there",
        ),
        (["0F0", "1F0 1B0", "0B0"], "rank 2: 0B0 must be on rank 0, where 0F0 is"),
        (["0F0 0I0", "0W0"], "rank 1: 0W0 must be on rank 0, where 0F0 is"),
        (["0F0", "2F0"], "rank 1: 2F0 waits for 1F0, which no rank lists"),
        (["0F9999999 0B9999999"], "micro-batches must be counted from 0 on: 0 has no pass"),
        (["0F0 0F2"], "micro-batches must be counted from 0 on: 1 has no pass"),
        (["0F0"] * 10_001, "must be at most 10000 ranks, got 10001"),
    ],
)
def test_tables_that_are_not_complete(rows: list[str], said: str) -> None:
    with pytest.raises(InputError) as error:
        parse_actions(rows)
    assert any(text.startswith(f"actions: {said}") for text in error.value.problems)


def test_every_mistake_is_named_at_once() -> None:
    with pytest.raises(InputError) as error:
        parse_actions(["0F0 x 0B0", "y 1F0"], where="own.toml")
    assert [text.split(":")[1].strip() for text in error.value.problems] == [
        "rank 0, action 1",
        "rank 1, action 0",
    ]


def test_an_order_in_which_ranks_wait_for_each_other() -> None:
    """Rank 1 wants micro-batch 1 first, rank 0 wants B0 before it makes it."""
    made = parse_actions(["0F0 0B0 0F1 0B1", "1F1 1F0 1B0 1B1"])
    step = step_graph(made, seconds(made))
    said = (
        "deadlock: rank 0: B0 of piece 0 waits for rank 1: B0 of piece 1, sent; "
        "rank 1: B0 of piece 1, sent waits for rank 1: B0 of piece 1, which comes after "
        "rank 1: F1 of piece 1; rank 1: F1 of piece 1 waits for rank 0: F1 of piece 0, sent; "
        "rank 0: F1 of piece 0, sent waits for rank 0: F1 of piece 0, which comes after "
        "rank 0: B0 of piece 0"
    )
    with pytest.raises(DeadlockError) as error:
        longest_path(step.graph, step.name)
    assert str(error.value) == said


def test_a_file_whose_ranks_wait_for_each_other_is_refused_by_its_reader(tmp_path: Path) -> None:
    """1B0 before 1F0 on a rank; both ends that receive first."""
    receiving = (
        "0F0,0SEND_F0,0F1,0RECV_B0,0SEND_F1,0B0,0RECV_B1,0B1\n"
        "1RECV_F0,1F0,1B0,1RECV_F1,1SEND_B0,1F1,1B1,1SEND_B1\n"
    )
    path = tmp_path / "own.csv"
    for text, said in (
        ("0F0,0B0\n1B0,1F0\n", "rank 1: B0 of piece 1 waits for rank 1: F0 of piece 1"),
        (receiving, "rank 0: 0RECV_B0 waits for rank 1: B0 of piece 1, sent"),
    ):
        path.write_text(text)
        with pytest.raises(InputError) as error:
            read_actions(path)
        assert str(error.value).startswith(f"{path}: deadlock: {said}")


def test_many_mistakes_are_counted() -> None:
    with pytest.raises(InputError) as error:
        parse_actions(["x " * 1000], where="own.csv")
    assert len(error.value.problems) == 21
    assert error.value.problems[-1] == "own.csv: and 980 more problems"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("own.csv", "0F0,0\rB0", "rank 0, action 1: must be written like 2F0 .*, got '0'"),
        ("own.csv", "0F0," + "0" * 131_073, "line 1: not valid CSV: field larger than"),
        ("own.txt", "0F0", "must end in .csv, .toml or .json"),
        ("own.toml", "rows = 1", "actions: must be a list with one list or text per rank"),
        ("own.json", '{"actions": [1]}', "actions: must be a list with one list or text per rank"),
        ("own.json", "{", "not valid JSON"),
        ("own.csv", "", "must list a pass at least"),
        ("own.csv", "0F0\n" * 10_001, "must be at most 10000 ranks"),
        ("own.csv", ("," * 1_000_000 + "\n") * 2, "must be at most 1200000 cells"),
        ("own.csv", "0F0," * 200_000 + "\n" + "1F0," * 200_000, "must be at most 300000 actions"),
    ],
)
def test_files_that_are_no_tables(name: str, text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=said):
        read_actions(tmp_path / name)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_actions(tmp_path / "own.csv")
