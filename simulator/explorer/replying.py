"""Replies of the explorer by path, and the process that works them out beside the server's own.

Searches hold the interpreter; a server that shares it with them lets its pages wait.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from itertools import count
from multiprocessing.connection import Connection
from typing import Annotated, Any, Literal

import anyio
import anyio.to_thread
from annotated_types import Ge, Gt, Le

from simulator.answers import plain
from simulator.errors import ForeshardError, InputError, visible
from simulator.explorer.answering import Answers
from simulator.explorer.asked import (
    LONGEST,
    Degree,
    Pins,
    question_of,
    question_of_scenario,
    read_question,
)
from simulator.files import Number, Whole, json_of, record
from simulator.questions.rl.answer import rl, timeline
from simulator.questions.rl.page import INKS
from simulator.records import dataclass
from simulator.report.palette import colour
from simulator.rollouts.rl_section import Generation, Mode, Serving
from simulator.scenario import Scenario, make_scenario
from simulator.search.in_threads import Stopped, may_go_on, stoppable

# --- reinforcement learning --------------------------------------------------------------

_SECTION = (
    "algorithm",
    "prompts",
    "samples",
    "prompt_tokens",
    "answer_tokens",
    "mode",
    "staleness",
    "partial_rollouts",
    "framework",
)
_ENGINE = {
    "engine": "engine",
    "generator_tp": "tp",
    "generator_gpus": "gpus",
    "generator_precision": "precision",
}
_MOST_ROWS = 10


@record
class RLQuestion:
    """What learns from what, on what."""

    model: str
    cluster: str
    gpus: Annotated[Whole, Ge(1), Le(20_000)]
    sequence_length: Annotated[Whole, Ge(2), Le(1_000_000)] = 4096
    global_batch: Degree = 512
    algorithm: Literal["grpo", "dapo", "rloo", "ppo", "distillation"] = "grpo"
    prompts: Annotated[Whole, Ge(1), Le(4096)] = 64
    samples: Annotated[Whole, Ge(1), Le(256)] = 32
    prompt_tokens: Annotated[Whole, Ge(1), Le(1_000_000)] = 256
    answer_tokens: Annotated[Number, Gt(0), Le(1_000_000)] = 1000.0
    mode: Mode = "colocated"
    staleness: Annotated[Whole, Ge(0), Le(64)] = 0
    partial_rollouts: bool = False
    framework: str = "nemo-rl"
    engine: Serving = Generation().engine
    generator_tp: Degree = 1
    generator_gpus: Degree | None = None
    generator_precision: Literal["bf16", "fp8"] = "bf16"
    by: Literal["time", "usd", "throughput"] = "time"
    pins: Pins = Pins()


def rl_question(text: str) -> RLQuestion:
    """Read a question; errors as :func:`simulator.explorer.asked.read_question`."""
    asked: RLQuestion = read_question(RLQuestion, text)
    return asked


def _scenario(asked: RLQuestion) -> Scenario:
    engine = {name: getattr(asked, field) for field, name in _ENGINE.items()}
    section = {name: getattr(asked, name) for name in _SECTION}
    document = {
        "model": {"name": asked.model},
        "training": {"sequence_length": asked.sequence_length, "global_batch": asked.global_batch},
        "cluster": {"name": asked.cluster, "gpus": asked.gpus},
        "layout": asked.pins.given(),
        "rl": section | {"generation": {k: v for k, v in engine.items() if v is not None}},
    }
    return make_scenario(document, where="question")


def rl_answer(asked: RLQuestion, *, search: bool) -> dict[str, Any]:
    """What the page shows: the step by phase on two lanes, who waits, splits, what would help."""
    answer = rl(_scenario(asked), by=asked.by, search=search, progress=lambda done, of: may_go_on())
    document = answer.document()
    rows = [row for row in document["tried"] if row["step_time_s"] is not None]
    rows.sort(key=lambda row: (row["verdict"] == "OOM", row["update_s"]))
    shown = answer.shown
    return {
        **document,
        "line": answer.line,
        "trainer_layout": "" if shown is None else shown.step.trainer.described,
        "spans": [] if shown is None else plain(timeline(shown.step)),
        "inks": {
            phase: (word, colour(ink).light, colour(ink).dark)
            for phase, (ink, word) in INKS.items()
        },
        "tried": rows[:_MOST_ROWS],
        "tried_splits": len(answer.tried),
    }


AT_ONCE = ("/api/now", "/api/scenario", "/scenario.toml")
"""Paths that need no search."""

QUICK = 4
"""Replies without a search that are worked out at a time."""

_HAND_OVER_S = 5e-4
"""After so long a thread that works hands the interpreter over to one that waits for it, a tenth of
Python's 5 ms: what needs no search is not to wait for one."""

_NICER = 5
"""So much less the processor is the searches' than the pages'."""

_Query = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Reply:
    """A status and what is sent."""

    status: int
    body: bytes


def refusal(status: int, *problems: str) -> Reply:
    """A reply that says what is wrong."""
    return Reply(status, json.dumps({"problems": [visible(text) for text in problems]}).encode())


def _near(query: _Query) -> dict[str, Any]:
    """The layout on the page: fields of plain values."""
    layout = json_of(query.get("near", "{}")[:LONGEST], "near")
    if not isinstance(layout, dict):
        return {}
    return {k: v for k, v in layout.items() if isinstance(v, (int, str)) and k in _NEAR}


_NEAR = (
    *("tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch", "sharding", "sequence_parallel"),
    *("recompute", "recompute_layers", "rank_order"),
)

_MAKERS: dict[str, tuple[Callable[[str], Any], Callable[[Answers, Any, _Query], Any]]] = {
    "/api/now": (question_of, lambda known, q, r: known.now(q, _near(r), r.get("last", ""))),
    "/api/scenario": (question_of_scenario, lambda _, asked, __: asked),
    "/api/search": (question_of, lambda known, q, _: known.searched(q)),
    "/api/sizes": (question_of, lambda known, q, _: known.sizes(q)),
    "/api/otherwise": (question_of, lambda known, q, _: known.otherwise(q)),
    "/api/rl": (rl_question, lambda _, q, r: rl_answer(q, search=r.get("splits") == "1")),
    "/scenario.toml": (question_of, lambda known, q, _: known.scenario_file(q)),
    "/launch.sh": (question_of, lambda known, q, _: known.launch(q)),
    "/report.html": (question_of, lambda known, q, _: known.report(q)),
}
"""By path, what reads the question in ``q`` and what answers it."""

PATHS = tuple(_MAKERS)


def reply_of(known: Answers, path: str, query: _Query) -> Reply:
    """Work out a reply; Stopped where nobody waits for it any more."""
    read, make = _MAKERS[path]
    try:
        content = make(known, read(query.get("q", "")), query)
    except ForeshardError as error:
        problems = error.problems if isinstance(error, InputError) else (str(error),)
        return refusal(422, *problems)
    if isinstance(content, dict):
        content = json.dumps(content, allow_nan=False)  # JSON has no NaN
    return Reply(200, content.encode() if isinstance(content, str) else content)


Begun = tuple[Awaitable[Reply | None], Callable[[], None]]
"""What waits for a reply, None for one that was stopped, and what stops the work for it."""


class Threads:
    """Works replies out in threads of this process."""

    def __init__(self, known: Answers) -> None:
        self._known = known

    def begin(self, path: str, query: _Query) -> Begun:
        """Begin to work a reply out, once it is waited for."""
        stop = threading.Event()
        limit = _limit() if path in AT_ONCE else None
        work = partial(_worked, self._known, path, query, stop)
        return anyio.to_thread.run_sync(work, limiter=limit), stop.set


@cache
def _limit() -> anyio.CapacityLimiter:
    return anyio.CapacityLimiter(QUICK)


def _worked(known: Answers, path: str, query: _Query, stop: threading.Event) -> Reply | None:
    try:
        with stoppable(stop):
            return reply_of(known, path, query)
    except Stopped:
        return None


class Worker:
    """Works replies out in a process of its own, which is started again where it ends."""

    def __init__(self) -> None:
        self._numbers = count()
        self._waiting: dict[int, Future[Reply | None]] = {}
        self._start()
        threading.Thread(target=self._receive, daemon=True).start()

    def begin(self, path: str, query: _Query) -> Begun:
        """Begin to work a reply out."""
        number, reply = next(self._numbers), Future[Reply | None]()
        self._waiting[number] = reply
        self._send(number, path, dict(query))
        return asyncio.wrap_future(reply), partial(self._send, number, "", {})

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=work_for, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def _send(self, *message: Any) -> None:
        with suppress(OSError):  # it has just ended: whoever waits is told by _receive
            self._pipe.send(message)

    def _receive(self) -> None:
        """Hand replies over; where the process ended, begin another that knows nothing yet."""
        while True:
            try:
                number, reply = self._pipe.recv()
                futures = [self._waiting.pop(number, None)]
            except (EOFError, OSError):
                time.sleep(_PAUSE_S)
                self._start()
                futures, self._waiting = [*self._waiting.values()], {}
                reply = refusal(503, "the search was ended: ask again in a second")
            for future in filter(None, futures):
                with suppress(InvalidStateError):  # nobody waits for it
                    future.set_result(reply)


_PAUSE_S = 0.2
"""Before a process that ended is started again."""


def work_for(pipe: Connection) -> None:
    """In the process: answer what comes through the pipe, until that is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the server ends first
    sys.setswitchinterval(_HAND_OVER_S)
    os.nice(_NICER)
    known, stops, sending = Answers(), dict[int, threading.Event](), threading.Lock()

    def work(number: int, path: str, query: _Query) -> None:
        try:
            reply = _worked(known, path, query, stops[number])
        except Exception:
            traceback.print_exc()
            reply = refusal(500, "an error of the program, which its terminal shows")
        del stops[number]
        with sending, suppress(OSError):
            pipe.send((number, reply))

    quick, searches = ThreadPoolExecutor(QUICK), ThreadPoolExecutor(1)
    with suppress(EOFError, OSError):
        while True:
            number, path, query = pipe.recv()
            if path:
                stops[number] = threading.Event()
                (quick if path in AT_ONCE else searches).submit(work, number, path, query)
            elif (stop := stops.get(number)) is not None:
                stop.set()
    os._exit(0)  # whatever is still searched
