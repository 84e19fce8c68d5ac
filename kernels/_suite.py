"""The list of cases that train_step goes through, and the second process that measures them.

A case that crashes, hangs or leaves memory behind costs the next ones nothing: the process that
measures (the worker) is ended and started anew.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, replace

import _timing
from _cases import Case, Impossible

RECOMPUTE = ("none", "selective", "full")
LEFT_BEHIND_BYTES = 64 * 2**20
"""A worker that holds more than this after a case is not used again."""
START_S = 60.0
"""Seconds that a worker may need to start."""
LIMIT_S = {False: 120.0, True: 240.0}
"""Seconds that one case may take: eager, compiled."""
MOST_TIMING_S = 2.5
"""Seconds that the timed steps of one case take, unless three steps take longer."""
MARK = "RESULT "


@dataclass(frozen=True)
class Section:
    """Cases that belong together, and the part of the time that they may take."""

    name: str
    weight: float
    cases: list[Case]


SECTIONS = ("eager", "options", "compiled", "ranks")


# --- the list -------------------------------------------------------------------------------


def gpu_sections() -> list[Section]:
    """Return the cases for one GPU of 80 GB or more; what does not fit is skipped when tried."""
    return [
        Section("eager", 3.0, eager()),
        Section("options", 1.0, variants()),
        Section("compiled", 3.0, compiled()),
        Section("ranks", 4.0, single_ranks()),
    ]


def _each_recompute(*cases: Case, **more) -> list[Case]:
    return [replace(case, recompute=how, **more) for case in cases for how in RECOMPUTE]


LLAMA_8B = Case(model="llama-3.1-8b", sequence=8192, states="bf16")
LLAMA_1B = Case(model="llama-3.2-1b", sequence=4096, micro_batch=2, sharding="zero3")
GPT_XL = Case(model="gpt3-xl", sequence=2048, micro_batch=4)
OLMOE = Case(model="olmoe-1b-7b", sequence=4096, states="bf16")
GPT_SMALL = Case(model="gpt3-small", sequence=2048, micro_batch=8)


def eager() -> list[Case]:
    """From 125 million to 8 billion parameters, of each family; states in bf16 where large."""
    small = {"sequence": 2048, "micro_batch": 8}
    return _each_recompute(
        LLAMA_8B,
        GPT_XL,
        OLMOE,
        LLAMA_1B,
        GPT_SMALL,
        Case(model="gpt3-6.7b", sequence=2048, states="bf16"),
        Case(model="llama-3.2-3b", sequence=4096),
        Case(model="mixtral-8x7b", layers=4, sequence=4096, states="bf16"),
        Case(model="moe-small", **small),
        Case(model="llama-small", **small),
    )


def variants() -> list[Case]:
    """Each differs in one thing from a case of `eager`."""
    return [
        replace(LLAMA_1B, sharding="ddp"),
        replace(LLAMA_1B, sharding="ddp", states="bf16"),
        replace(LLAMA_1B, loss_chunks=8),
        replace(LLAMA_8B, loss_chunks=8, recompute="full"),
        replace(LLAMA_8B, frozen=24),
        replace(LLAMA_8B, layers=16, states="fp32", sharding="zero3"),
        replace(LLAMA_1B, accumulate=4),
        replace(LLAMA_1B, adamw="foreach"),
        replace(LLAMA_1B, micro_batch=1),
        replace(OLMOE, routing="learned"),
    ]


def compiled() -> list[Case]:
    """The blocks compiled."""
    few = _each_recompute(LLAMA_8B, GPT_XL, LLAMA_1B, compile=True)
    return [*few, replace(OLMOE, compile=True), *_each_recompute(GPT_SMALL, compile=True)]


def single_ranks() -> list[Case]:
    """Ranks of 70B on tp 8, pp 4 and of FSDP2 over 64, and of 8B on FSDP2 over 8."""
    rank = Case(
        model="llama-3.1-70b", sequence=8192, accumulate=8, fake_world=32, tp=8, pp=4,
        sequence_parallel=True, states="bf16",
    )  # fmt: skip
    sharded = Case(
        model="llama-3.1-70b", sequence=8192, fake_world=64, sharding="zero3", recompute="full"
    )
    few = replace(LLAMA_8B, fake_world=8, sharding="zero3", states="fp32")
    found = [replace(rank, rank=place) for place in ("first", "middle", "last")]
    found += [replace(sharded, layers=20), replace(sharded, layers=20, recompute="none")]
    found += [*_each_recompute(few), replace(few, compile=True), sharded]
    for place in ("first", "last", "middle"):
        found += [replace(rank, rank=place, recompute=how) for how in ("full", "selective")]
        found += [replace(rank, rank=place, states="fp32")]
    return found


def small_sections(quick: bool) -> list[Section]:
    """Return tiny cases of each kind, for a CPU and for trying the program."""
    models = [Case(model=f"{name}-tiny", micro_batch=2) for name in ("llama", "gpt", "moe")]
    rank = replace(models[0], accumulate=4, fake_world=8, tp=2, pp=4, sequence_parallel=True)
    cases = [
        *(models if quick else _each_recompute(*models)),
        replace(models[0], recompute="selective", frozen=2, loss_chunks=4),
        replace(models[0], fake_world=64, sharding="zero3", recompute="full"),
        *(replace(rank, rank=place) for place in ("first", "middle", "last")),
    ]
    if not quick:
        cases += [replace(models[0], sequence=512), replace(models[0], compile=True)]
    return [Section("small", 1.0, [replace(case, precision="fp32") for case in cases])]


# --- the worker -----------------------------------------------------------------------------


def work(arguments, measure) -> int:
    """Be the worker: a case is a line of JSON on standard input, its result one on output."""
    run = _timing.Run(arguments, __file__, writes=False)
    for line in sys.stdin:
        asked = json.loads(line)
        result = _try(Case(**asked["case"]), run, measure, asked["budget_s"])
        run.device.release()
        result["last"] = run.device.kind == "cuda" and _left_bytes() > LEFT_BEHIND_BYTES
        print(MARK + json.dumps(result, allow_nan=False), flush=True)
        if result["last"]:
            break
    return 0


def _try(case: Case, run: _timing.Run, measure, budget_s: float) -> dict:
    run.document["skipped"].clear()
    with run.guard(case.kernel, {}, case.dtype):
        try:
            found = measure(case, run, stay=True, budget_s=budget_s)
        except Impossible as impossible:
            return {"reason": str(impossible)}
        found["more"] |= run.device.sensors.last
        return found
    return {"reason": run.document["skipped"][-1]["reason"]}


def _left_bytes() -> int:
    torch = _timing.torch
    torch.compiler.reset()
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated()


class Lost(Exception):
    """The worker did not answer; the text says why."""


class Worker:
    """The other end: starts the worker when it is needed, asks it, ends it."""

    def __init__(self, device: str, seed: int) -> None:
        self.command = [sys.executable, os.path.join(os.path.dirname(__file__), "train_step.py")]
        self.command += ["--worker", "--device", device, "--seed", str(seed)]
        self.process: subprocess.Popen | None = None
        self.group: tuple | None = None
        self.lines: queue.Queue[str | None] = queue.Queue()

    def ask(self, case: Case, budget_s: float, limit_s: float) -> dict:
        """Return what the worker says of the case; `Lost` after `limit_s` or where it died."""
        if self.group != case.group:  # torch's caches keep what belongs to a group
            self.end()
        if self.process is None or self.process.poll() is not None:
            self._start()
            limit_s += START_S
        self.group = case.group
        question = json.dumps({"case": asdict(case), "budget_s": budget_s})
        try:
            self.process.stdin.write(question + "\n")
            self.process.stdin.flush()
            found = self._answer(time.monotonic() + limit_s, limit_s)
        except (Lost, OSError) as error:
            code = self.process.poll()
            self.end()
            raise Lost(f"{error}" + (f" (exit code {code})" if code else "")) from None
        if found.pop("last"):
            self.end()
        return found

    def _start(self) -> None:
        pipe = subprocess.PIPE
        self.lines = queue.Queue()
        self.process = subprocess.Popen(self.command, stdin=pipe, stdout=pipe, text=True)
        reader = threading.Thread(target=self._read, args=(self.process, self.lines), daemon=True)
        reader.start()

    @staticmethod
    def _read(process: subprocess.Popen, lines: queue.Queue) -> None:
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    def _answer(self, end: float, limit_s: float) -> dict:
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise Lost(f"time: no result after {limit_s:.0f} s") from None
            if line is None:
                self.process.wait(10)
                raise Lost("the process that measured it died")
            if line.startswith(MARK):
                return json.loads(line.removeprefix(MARK))

    def end(self) -> None:
        """End the worker at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


# --- going through the list -----------------------------------------------------------------


def run_suite(arguments, run: _timing.Run) -> None:
    """Measure section by section; what a section had no time for comes again at the end."""
    on_gpu = run.device.kind == "cuda"
    sections = gpu_sections() if on_gpu and not run.quick else small_sections(run.quick)
    chosen = [part for part in arguments.sections.split(",") if part]
    sections = [one for one in sections if one.name in chosen] or sections
    weight, late, end = sum(one.weight for one in sections), [], time.monotonic()
    total_s, last = run.budget.left_s, run.budget.end
    worker = Worker(arguments.device, arguments.seed)
    try:
        for section in sections:
            end += total_s * section.weight / weight
            cases = [replace(case, seed=arguments.seed) for case in section.cases]
            wanted = [case for case in cases if case.dtype in run.dtypes("bf16", "fp32")]
            late += _go(wanted, run, worker, end)
        _skip_each(_go(late, run, worker, last), run)
    finally:
        worker.end()


def _go(cases: list[Case], run: _timing.Run, worker: Worker, end: float) -> list[Case]:
    """Measure the cases until `end` and return those that are left."""
    for at, case in enumerate(cases):
        left_s = end - time.monotonic()
        if left_s <= 0:
            return cases[at:]
        run._show(at, len(cases), case)
        most_s = min(LIMIT_S[case.compile], max(10.0, run.budget.left_s))
        try:
            found = worker.ask(case, min(MOST_TIMING_S, left_s / 4), most_s)
        except Lost as lost:
            found = {"reason": str(lost)}
        _note(case, found, run)
    return []


def _note(case: Case, found: dict, run: _timing.Run) -> None:
    if "reason" in found:
        run.skip(case.kernel, case.shape(), case.dtype, found["reason"])
        return
    more = found.pop("more")
    run.record(case.kernel, case.dtype, **found, **more)
    run.flush()


def _skip_each(cases: list[Case], run: _timing.Run) -> None:
    for case in cases:
        reason = f"time: {run.budget.minutes:g} min spent before"
        run.skip(case.kernel, case.shape(), case.dtype, reason)
