"""Several ranks at one list of cases: the same case at once, and times that are maxima over ranks.

Whatever decides how often something communicates must come out alike on every rank: the time
left, what fits in memory, how precise a time is. The functions here agree on each of these.
"""

from __future__ import annotations

import contextlib
import math
import time
from pathlib import Path

import torch
import torch.distributed as dist
from _distributed import World, start_ranks
from _timing import Run, median_error


def run_program(arguments, ranks: int, path: str, run_cases) -> int:
    """Run the program at `path` over `ranks` ranks, rank 0 writing; return its exit code.

    `run_cases(arguments, run, world)` measures, on every rank.
    """
    code = start_ranks(ranks, arguments.minutes)
    if code is not None:
        return code
    world = World(arguments.device)
    arguments.device = world.device
    with Run(arguments, path, writes=world.rank == 0) as run:
        if world.size == 1:
            run.skip(Path(path).stem, {}, None, "one rank: nobody to communicate with")
            return run.exit_code
        with world:
            run_cases(arguments, run, world)
    return run.exit_code


def each_together(run, world: World, cases: list):
    """Yield each case on every rank at once until the time is spent, like `Run.each`.

    The ranks agree before each case, for each looks at its own clock; the last one to find its
    time spent stops all.
    """
    cases = list(cases)
    for at, case in enumerate(cases):
        left_s, spent = world.agree(run.budget.left_s), world.agree(float(run.spent), "max")
        if spent:
            run._skip_rest(cases[at:])
            return
        run.case_s = min(2.0, max(0.005, 0.5 * left_s / (len(cases) - at)))
        run._show(at, len(cases), case)
        yield case


@contextlib.contextmanager
def guard_together(run, world: World, kernel: str, shape: dict, dtype: str | None):
    """Prepare something that may fail on one rank only: then all skip it, for the same reason.

    Inside there must be no communication. Raises `Skipped` on every rank if any failed.
    """
    problem = None
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        problem = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    if world.agree(0.0 if problem else 1.0) < 1.0:
        run.skip(kernel, shape, dtype, problem or "another rank could not prepare it")
        run.device.release()
        raise Skipped


class Skipped(Exception):
    """A case was left out, and the document says so already."""


@contextlib.contextmanager
def missing_is_skipped(run, world: World, case):
    """Record a skip where the library has no such collective: every rank gets the same error.

    Gives a list that then holds the reason. An error of a connection, or of the GPU, goes on.
    """
    problem: list[str] = []
    try:
        yield problem
    except Skipped:
        pass
    except (RuntimeError, NotImplementedError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0][:150]
        if not any(word in first.lower() for word in ("support", "implement", "invalid")):
            raise
        problem.append(f"{world.library}: {first}")
        run.skip(case.kernel, {"ranks": world.size}, case.dtype, problem[0])
    run.device.release()


# --- timing together ------------------------------------------------------------------------

MOST_REPEATS = 50
PRECISE = 0.01
"""Relative standard error of the median at which repeating ends."""
MOST_QUEUED = {"cuda": 256, "cpu": 1000}
"""Calls between two looks at the clock; a GPU's queue holds about a thousand kernels."""
QUEUEING_S = 40e-6
"""About what the host needs to queue one collective: only a sleep's length hangs on it."""
CYCLES_PER_S = 2e9
"""About a GPU's clock: only a sleep's length hangs on it."""


def time_together(function, run, world: World, *, most_calls: int = 1000, after=None, **options):
    """Time `function()` on all ranks from a common start; return seconds, maxima over ranks.

    It is called at most `most_calls` times before `after()` runs, untimed. Other options:
    `budget_s`, `min_repeats`. Every rank comes to the same number of repeats because each decides
    by the maxima alone.
    """
    budget_s, least = options.get("budget_s", run.case_s), options.get("min_repeats", 5)
    batch = _batch_cuda if run.device.kind == "cuda" else _batch_cpu
    one_s = _warm(function, run, world)
    most_calls = min(most_calls, MOST_QUEUED[run.device.kind])
    calls = max(1, min(most_calls // 8, math.ceil(100e-6 / one_s)))
    begin, times_s = time.monotonic(), []
    while len(times_s) < MOST_REPEATS:
        fits = int(budget_s / 3 / (one_s * calls))
        repeats = max(1, min(fits, 20, most_calls // calls, MOST_REPEATS - len(times_s)))
        found = batch(function, run, calls, repeats)
        if after is not None:
            after()
        *found, spent_s = world.agree_all([*found, time.monotonic() - begin])
        times_s += found
        enough = len(times_s) >= least
        if enough and (spent_s > budget_s or median_error(times_s) < PRECISE):
            break
        if spent_s > 10 * budget_s:
            break
    return times_s


def _warm(function, run, world: World) -> float:
    """Call twice and return the longest time of the second call on any rank, in seconds."""
    for _ in range(2):
        dist.barrier()
        begin = time.perf_counter()
        function()
        run.device.synchronize()
        one_s = time.perf_counter() - begin
    return max(1e-7, world.agree(one_s, "max"))


def _batch_cpu(function, run, calls: int, repeats: int) -> list[float]:
    times_s = []
    for _ in range(repeats):
        dist.barrier()
        begin = time.perf_counter_ns()
        for _ in range(calls):
            function()
        times_s.append((time.perf_counter_ns() - begin) / 1e9 / calls)
    return times_s


def _batch_cuda(function, run, calls: int, repeats: int) -> list[float]:
    """Like the one of _timing, with an all-reduce of one number in front of each reading."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in "ab"] for _ in range(repeats)]
    one = torch.ones(1, device=run.device.device)
    if hasattr(torch.cuda, "_sleep"):  # so that the host is ahead of the device
        ahead_s = min(0.05, repeats * (calls + 1) * QUEUEING_S)
        torch.cuda._sleep(int(ahead_s * CYCLES_PER_S))
    for begin, end in events:
        dist.all_reduce(one, dist.ReduceOp.MAX)
        begin.record()
        for _ in range(calls):
            function()
        end.record()
    run.device.sensors.read()
    run.device.synchronize()
    return [begin.elapsed_time(end) / 1e3 / calls for begin, end in events]
