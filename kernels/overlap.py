"""Time a GEMM and a collective alone and at the same time: how much each slows the other.

    python overlap.py --ranks 2
    torchrun --nproc-per-node 8 overlap.py

Four records for each pair: the GEMM alone and beside the collective, the collective alone and
beside the GEMM (`shape["beside"]`). The slowdown is the ratio of the medians. What is timed is one
GEMM or one collective; its neighbour runs all the while, on a stream of its own on a GPU and in a
thread on a CPU. Times are maxima over ranks, from a common start.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import _distributed
import _timing
import _together
import collectives
import torch
import torch.distributed as dist

GEMMS = {"cuda": (8192, 4096, 16384), "cpu": (1024, 1024, 1024)}
"""(m, n, k) where ``--gemm`` does not say."""
KERNELS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
QUICK_CPU_GEMM = (256, 256, 256)
BYTES = {"cuda": (16 * 2**20, 256 * 2**20), "cpu": (2**18, 2**22)}
AROUND = 6.0
"""The neighbour is given work for this many times as long as what is timed takes alone."""
REPEATS, QUICK_REPEATS = 15, 3


@dataclass(frozen=True)
class Case:
    """A collective of the whole world beside a GEMM of m x k by k x n."""

    kernel: str
    dtype: str
    message_bytes: int
    gemm: tuple[int, int, int]

    @property
    def name(self) -> str:
        """Text for the progress line."""
        return f"{self.kernel} {self.message_bytes} B beside a GEMM"

    def gemm_shape(self, beside: str) -> dict:
        """Return what the record of the GEMM calls its shape."""
        shape = dict(zip("mnk", self.gemm, strict=True))
        if beside != "none":
            shape["message_bytes"] = self.message_bytes
        return shape | {"beside": beside}

    def collective_shape(self, beside: str, world: _distributed.World) -> dict:
        """Return what the record of the collective calls its shape."""
        nodes = world.nodes(list(range(world.size)))
        shape = {"message_bytes": self.message_bytes, "ranks": world.size, "stride": 1}
        if beside != "none":
            shape |= dict(zip("mnk", self.gemm, strict=True))
        return shape | {"nodes": nodes, "groups": 1, "beside": beside}


def gemm_call(case: Case, run: _timing.Run):
    """Return a function that multiplies random matrices, out of the cache where memory allows."""
    m, n, k = case.gemm
    dtype = _timing.DTYPES[case.dtype]

    def make():
        return (
            _timing.values((m, k), dtype, run.device, scale=k**-0.5),
            _timing.values((k, n), dtype, run.device),
            _timing.values((m, n), dtype, run.device),
        )

    sets = _timing.rotate(make, dtype.itemsize * (m * k + k * n + m * n), run.device)

    def multiply() -> None:
        left, right, out = sets()
        torch.mm(left, right, out=out)

    return multiply


def traffic(case: Case, run: _timing.Run, world: _distributed.World) -> collectives.Traffic:
    """Return the collective among all ranks."""
    shape = collectives.sub_groups(world.size, world.size, 1)
    same = collectives.Case(case.kernel, case.dtype, case.message_bytes, shape)
    return collectives.Traffic(same, dist.group.WORLD, run, world)


# --- at the same time -----------------------------------------------------------------------


class OnStream:
    """A neighbour on a stream of its own (CUDA): `times` calls from `start` on."""

    def __init__(self, call, times: int) -> None:
        self.call, self.times, self.stream = call, times, torch.cuda.Stream()

    def start(self) -> None:
        """Queue the calls, to begin when this stream gets here."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(self.times):
                self.call()

    def end(self) -> None:
        """Let this stream wait for the calls."""
        torch.cuda.current_stream().wait_stream(self.stream)


class InThread:
    """A neighbour in a thread (CPU): `times` calls from `start` on."""

    def __init__(self, call, times: int) -> None:
        self.call, self.times = call, times

    def start(self) -> None:
        """Begin with the calls."""
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        for _ in range(self.times):
            self.call()

    def end(self) -> None:
        """Wait for the calls."""
        self.thread.join()


def times_beside(function, neighbour, settle, run, world) -> list[float]:
    """Time `function` while the neighbour works; return seconds, maxima over ranks."""
    repeat = _repeat_cuda if run.device.kind == "cuda" else _repeat_cpu
    times_s = []
    for _ in range(QUICK_REPEATS if run.quick else REPEATS):
        times_s.append(repeat(function, neighbour, run))
        settle()
    return world.agree_all(times_s)


def _repeat_cuda(function, neighbour, run) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in "ab")
    if hasattr(torch.cuda, "_sleep"):  # until the host has queued everything
        ahead_s = min(0.1, (neighbour.times + 2) * _together.QUEUEING_S)
        torch.cuda._sleep(int(ahead_s * _together.CYCLES_PER_S))
    dist.all_reduce(torch.ones(1, device=run.device.device))
    neighbour.start()
    function()
    begin.record()
    function()
    end.record()
    neighbour.end()
    run.device.synchronize()
    return begin.elapsed_time(end) / 1e3


def _repeat_cpu(function, neighbour, run) -> float:
    dist.barrier()
    neighbour.start()
    function()
    begin = time.perf_counter()
    function()
    spent_s = time.perf_counter() - begin
    neighbour.end()
    return spent_s


def measure(case: Case, run: _timing.Run, world: _distributed.World) -> None:
    """Time both alone and together, and record the four."""
    with _together.guard_together(run, world, case.kernel, {}, case.dtype):
        gemm, moved = gemm_call(case, run), traffic(case, run, world)
    shape, more = case.gemm_shape, {"library": world.library}
    budget = {"budget_s": run.case_s / 4, "min_repeats": QUICK_REPEATS}
    gemm_s = _together.time_together(gemm, run, world, **budget)
    run.record("gemm", case.dtype, shape("none"), "forward", gemm_s)
    moved_s = _together.time_together(
        moved, run, world, most_calls=moved.most_calls, after=moved.settle, **budget
    )
    shape_of = case.collective_shape
    run.record(case.kernel, case.dtype, shape_of("none", world), "forward", moved_s, **more)
    ratio = _median(gemm_s) / _median(moved_s)
    beside = OnStream if run.device.kind == "cuda" else InThread
    times = min(moved.most_calls, _together.MOST_QUEUED["cuda"], round(AROUND * ratio) + 2)
    found = times_beside(gemm, beside(moved, times), moved.settle, run, world)
    run.record("gemm", case.dtype, shape(case.kernel), "forward", found, **more)
    times = min(_together.MOST_QUEUED["cuda"], round(AROUND / ratio) + 2)
    found = times_beside(moved, beside(gemm, times), moved.settle, run, world)
    run.record(case.kernel, case.dtype, shape_of("gemm", world), "forward", found, **more)


def _median(times_s: list[float]) -> float:
    return sorted(times_s)[len(times_s) // 2]


# --- the program ----------------------------------------------------------------------------


def options():
    """Return the options of this program."""
    made = _timing.parser(__doc__, minutes=2.0)
    made.add_argument("--ranks", type=int, help="ranks to start (every GPU, or 2 on a CPU)")
    made.add_argument("--kernels", default=",".join(KERNELS), help="with commas (%(default)s)")
    made.add_argument("--bytes", help="message sizes, with commas (16 and 256 MiB; CPU: 1/4, 4)")
    made.add_argument("--gemm", help="m,n,k (8192,4096,16384; CPU: 1024,1024,1024)")
    return made


def cases(arguments, run: _timing.Run) -> list[Case]:
    """Return every collective at every size beside the one GEMM."""
    kind = run.device.kind
    sizes = [int(one) for one in (arguments.bytes or "").split(",") if one] or BYTES[kind]
    gemm = QUICK_CPU_GEMM if run.quick and kind == "cpu" else GEMMS[kind]
    if arguments.gemm:
        gemm = tuple(int(one) for one in arguments.gemm.split(","))
    kernels = [one for one in KERNELS if one in arguments.kernels.split(",")]
    if run.quick:
        sizes = sizes[:1]
    return [
        Case(kernel, dtype, size, gemm)
        for dtype in run.dtypes("bf16" if kind == "cuda" else "fp32")
        for size in sizes
        for kernel in kernels
    ]


def run_cases(arguments, run: _timing.Run, world: _distributed.World) -> None:
    """Measure every pair."""
    for case in _together.each_together(run, world, cases(arguments, run)):
        with _together.missing_is_skipped(run, world, case):
            measure(case, run, world)


def main() -> int:
    """Run the program; return its exit code."""
    arguments = options().parse_args()
    return _together.run_program(
        arguments, collectives.default_ranks(arguments), __file__, run_cases
    )


if __name__ == "__main__":
    _distributed.leave(main())
