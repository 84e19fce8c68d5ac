"""Programs against pipelines that run: 2 and 4 processes, torch.distributed.pipelining over gloo.

Every rank does its passes in the order of the program, torch's 1F1B on the last rank among them
(only its listing is wrong); everything that a simulated task waits for has ended, on the clock of
the machine, before the real one starts; and no pass ends sooner than the simulated one.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.events.engine.engine import longest_path
from simulator.events.step.programs import StepGraph, program, step_graph
from simulator.events.step.unfold import SEND
from simulator.schedules.schedule import KINDS

pytest.importorskip("torch")

SECONDS = 0.004
"""Least time of a pass: a process that sleeps leaves the processor to the others."""

NAMES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "looped_bfs": "LoopedBFS",
    "interleaved": "Interleaved1F1B",
    "interleaved_zb": "InterleavedZeroBubble",
    "zb_v": "ZBVZeroBubble",
    "dualpipe_v": "DualPipeV",
}

CASES = {
    2: [(word, 4, 1 if word in ("gpipe", "1f1b") else 2) for word in NAMES],
    4: [("1f1b", 8, 1), ("interleaved", 8, 2), ("zb_v", 8, 2), ("dualpipe_v", 8, 2)],
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Per number of processes what every rank wrote down, by schedule."""
    folder = tmp_path_factory.mktemp("gloo")
    given = [
        "/".join([str(world), *(f"{NAMES[word]}:{m}:{vpp}" for word, m, vpp in cases)])
        for world, cases in CASES.items()
    ]
    script = Path(__file__).with_name("gloo_pipeline.py")
    done = subprocess.run(
        [sys.executable, script, folder, str(SECONDS), *given],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return {
        world: [json.loads((folder / f"{world}-{r}.json").read_text()) for r in range(world)]
        for world in CASES
    }


def simulated(schedule: str, world: int, m: int, vpp: int) -> tuple[StepGraph, list[Any]]:
    """The step with passes of equal length, and its actions written as the processes write them."""
    made = program(schedule, world, m, vpp)
    step = step_graph(made, np.full(len(made), SECONDS))
    columns = (made.kind, made.piece, made.micro_batch)
    words = [(KINDS[k], p, b) for k, p, b in zip(*(x.tolist() for x in columns), strict=True)]
    return step, words


@pytest.mark.parametrize("world", list(CASES))
def test_every_rank_does_what_its_program_lists(ran: Any, world: int) -> None:
    logs = ran[world]
    for schedule, m, vpp in CASES[world]:
        step, words = simulated(schedule, world, m, vpp)
        for rank in range(world):
            did = [tuple(entry[:3]) for entry in logs[rank][NAMES[schedule]]]
            assert did == [words[a] for a in np.flatnonzero(step.program.rank == rank)], schedule


@pytest.mark.parametrize("world", list(CASES))
def test_nothing_starts_before_what_it_waits_for_has_ended(ran: Any, world: int) -> None:
    logs = ran[world]
    for schedule, m, vpp in CASES[world]:
        step, words = simulated(schedule, world, m, vpp)
        clock = {tuple(e[:3]): e[3:] for log in logs for e in log[NAMES[schedule]]}
        start, end = np.array([clock[word] for word in words]).T
        # torch runs the two of an overlapped pair one by one: both have begun when the second has
        first = np.flatnonzero(step.program.with_next)
        start[first] = start[first + 1]
        graph, across = step.graph, 0
        for action, task in enumerate(step.task_of_action.tolist()):
            for before in graph.predecessor[graph.first[task] : graph.first[task + 1]].tolist():
                source = step.row[before]
                assert end[source] <= start[action], (schedule, words[source], words[action])
                across += step.kind[before] == SEND
        hops = 2 * m * (step.program.pieces - 1 - (schedule in ("zb_v", "dualpipe_v")))
        assert across == hops


@pytest.mark.parametrize("world", list(CASES))
def test_no_pass_ends_sooner_than_simulated(ran: Any, world: int) -> None:
    logs = ran[world]
    for schedule, m, vpp in CASES[world]:
        step, words = simulated(schedule, world, m, vpp)
        clock = {tuple(e[:3]): e[3:] for log in logs for e in log[NAMES[schedule]]}
        began = min(start for start, _ in clock.values())
        ends = longest_path(step.graph).end_s[step.task_of_action]
        for action, word in enumerate(words):
            if not step.program.with_next[action]:  # of a pair the second ends last
                assert clock[word][1] - began >= ends[action] - 1e-6, (schedule, word)
