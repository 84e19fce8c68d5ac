"""Measure one training step: its time, its memory by phase, its operators.

What comes out of `measure` is a plain dictionary, so that another process can hand it on.
"""

from __future__ import annotations

import math
import resource
import sys
import time
from pathlib import Path

import _distributed
import _timing
import torch
from _cases import Case
from _training import Trainer, gradient_square

WARM_UP, WARM_UP_COMPILED = 2, 3
FEWEST, MOST = 3, 30
"""Timed steps."""
BLOCK = 8
"""Steps between two looks at the clock."""
PRECISE = 0.003
"""Relative standard error of the median at which timing ends."""
MOST_OPERATORS = 150


class Memory:
    """Bytes that torch's allocator holds on a GPU, by phase; on a CPU nothing is known."""

    def __init__(self, device: _timing.Device) -> None:
        self.device, self.on_gpu = device.device, device.kind == "cuda"
        self.phases: dict[str, dict[str, int]] = {}
        self.start_bytes = torch.cuda.memory_allocated(self.device) if self.on_gpu else None

    def restart(self) -> None:
        """Forget the peaks so far."""
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)

    def mark(self, phase: str) -> None:
        """Note what is held now, and the peak since the last mark (the highest of this phase)."""
        if not self.on_gpu:
            return
        torch.cuda.synchronize(self.device)
        before = self.phases.get(phase, {}).get("peak_allocated_bytes", 0)
        self.phases[phase] = {
            "allocated_bytes": torch.cuda.memory_allocated(self.device),
            "reserved_bytes": torch.cuda.memory_reserved(self.device),
            "peak_allocated_bytes": max(before, torch.cuda.max_memory_allocated(self.device)),
        }
        self.restart()

    def found(self) -> dict[str, object]:
        """Return the peaks since `restart`, the phases, and what the process holds in all."""
        rss_unit = 1 if sys.platform == "darwin" else 1024
        host = {"rss_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * rss_unit}
        if not self.on_gpu:
            note = "torch counts no allocations on a CPU; rss is the peak of the process so far"
            return {"peak_allocated_bytes": None, "peak_reserved_bytes": None, "note": note} | host
        free, total = torch.cuda.mem_get_info(self.device)
        return {
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(self.device),
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(self.device),
            "start_allocated_bytes": self.start_bytes,
            "device_used_bytes": total - free,
            "retries": torch.cuda.memory_stats(self.device).get("num_alloc_retries", 0),
            "phases": self.phases,
        } | host


class Loop:
    """A trainer, its data, and the losses so far."""

    def __init__(self, trainer: Trainer, world: _distributed.World) -> None:
        self.trainer, self.world, self.at = trainer, world, 0
        self.losses: list[torch.Tensor] = []

    def prepare(self, batch=None):
        """Return the next batch; under the fake group give the weights new values."""
        if self.trainer.case.fake_world and self.at:
            self.trainer.refill()
        return batch or self.trainer.batch(self.at)

    def step(self, batch, mark=lambda phase: None) -> None:
        """Take a step with tokens and labels; `mark` hears when a phase has ended."""
        self.losses.append(self.trainer.step(*batch, mark))
        self.at += 1

    def mean_losses(self) -> list[float | None]:
        """Return the loss of each step over all ranks; None where it is not finite."""
        case = self.trainer.case
        own = [float(one) for one in self.losses]
        if not self.world.pretended:
            own = [one / (case.dp * case.tp) for one in self.world.agree_all(own, "sum")]
        return [float(f"{one:.7g}") if math.isfinite(one) else None for one in own]


def measure(case: Case, run: _timing.Run, world: _distributed.World, **wanted) -> dict:
    """Build, warm up, look at memory, time; return what `Run.record` takes.

    `wanted`: `steps` (a fixed number), `budget_s`, `profile`, `trace` (a file to write).
    """
    memory = Memory(run.device)
    memory.restart()
    free_bytes = world.agree(run.device.free_bytes())
    trainer = Trainer(case, run.device.device, free_bytes=free_bytes)
    run.device.release()  # what only building needed must not count as reserved
    memory.mark("build")
    loop = Loop(trainer, world)
    norm = warm_up(loop, memory, run)
    memory.restart()
    times_s = time_steps(loop, run, wanted.get("steps") or 0, wanted.get("budget_s") or run.case_s)
    found, losses = memory.found(), loop.mean_losses()
    more = {
        "memory": found,
        "parameters": trainer.parameters,
        "tokens": case.dp * case.accumulate * case.micro_batch * case.sequence,
        "losses": None if case.fake_world else losses,
        "finite": None not in losses,
        "grad_norm": norm,
        "mixed": "autocast" if case.autocast else "fsdp" if case.fsdp else "none",
        "library": world.library if world.size > 1 or case.fake_world else None,
    }
    if case.fake_world:
        more |= {"note": FAKE, "fake_copies": world.copies()}
    if wanted.get("profile") or wanted.get("trace"):
        more["operators"] = profile(loop, run, wanted.get("trace"))
    return {"shape": case.shape(), "direction": "step", "times_s": times_s, "more": more}


FAKE = (
    "one rank under the fake process group: no communication time; the collectives in fake_copies "
    "copy what is here, which is in the time, the others leave what was in memory; weights are "
    "filled again before each step; a middle or last pipeline rank gets random inputs"
)


def warm_up(loop: Loop, memory: Memory, run: _timing.Run) -> float | None:
    """Take the first steps; return the gradient norm of the first, note memory in the last."""
    count = WARM_UP_COMPILED if loop.trainer.case.compile else WARM_UP
    square = 0.0

    def norm(phase: str) -> None:
        nonlocal square
        if phase == "backward":
            square = gradient_square(loop.trainer)

    for at in range(count):
        marks = {0: norm, count - 1: memory.mark}
        loop.step(loop.prepare(), marks.get(at, lambda phase: None))
    run.device.synchronize()
    memory.mark("rest")
    square = loop.world.agree(square, "sum")
    if loop.world.pretended or not math.isfinite(square):
        return None
    return float(f"{math.sqrt(square):.7g}")


def time_steps(loop: Loop, run: _timing.Run, steps: int, budget_s: float) -> list[float]:
    """Time single steps: `steps` of them, or as many as `budget_s` and precision ask for.

    A step is timed from its start to the end of what it has given the device, and the next is
    given to the device without waiting for that, as in training.
    """
    block = _block_cuda if run.device.kind == "cuda" else _block_cpu
    begin, times_s, most = time.perf_counter(), [], steps or MOST
    count = min(FEWEST, most)
    while len(times_s) < most:
        found = block(loop, run, count)
        *found, spent_s = loop.world.agree_all([*found, time.perf_counter() - begin])
        times_s += found
        enough = spent_s > budget_s or _timing.median_error(times_s) < PRECISE
        if not steps and enough:
            break
        fits = int((budget_s - spent_s) / max(times_s[-1], 1e-9))
        count = max(1, min(BLOCK, fits, most - len(times_s)))
    return times_s


def _block_cpu(loop: Loop, run: _timing.Run, count: int) -> list[float]:
    times_s = []
    for _ in range(count):
        ready = loop.prepare()
        begin = time.perf_counter()
        loop.step(ready)
        times_s.append(time.perf_counter() - begin)
    return times_s


def _block_cuda(loop: Loop, run: _timing.Run, count: int) -> list[float]:
    batches = [loop.trainer.batch(loop.at + ahead) for ahead in range(count)]
    events = [[torch.cuda.Event(enable_timing=True) for _ in "ab"] for _ in range(count)]
    run.device.synchronize()
    for batch, (begin, end) in zip(batches, events, strict=True):
        loop.prepare(batch)
        begin.record()
        loop.step(batch)
        end.record()
    run.device.sensors.read()
    run.device.synchronize()
    return [begin.elapsed_time(end) / 1e3 for begin, end in events]


# --- operators ------------------------------------------------------------------------------


def profile(loop: Loop, run: _timing.Run, trace: Path | None) -> list[dict[str, object]]:
    """Profile one more step: write a Kineto trace and return the time of each operator."""
    from torch.profiler import ProfilerActivity

    kinds = [ProfilerActivity.CPU]
    if run.device.kind == "cuda":
        kinds.append(ProfilerActivity.CUDA)
    ready = loop.prepare()
    with torch.profiler.profile(activities=kinds, record_shapes=True) as found:
        loop.step(ready)
        run.device.synchronize()
    if trace is not None and run.writes:
        found.export_chrome_trace(str(trace))
    rows = [_operator(one) for one in found.key_averages(group_by_input_shape=True)]
    rows.sort(key=lambda row: -max(row["device_s"], row["host_s"]))
    return rows[:MOST_OPERATORS]


def _operator(one) -> dict[str, object]:
    """Return an operator's own times (without those it calls) in seconds, of all its calls."""
    return {
        "name": one.key[:120],
        "calls": one.count,
        "host_s": one.self_cpu_time_total / 1e6,
        "device_s": getattr(one, "self_device_time_total", 0.0) / 1e6,
        "shapes": str(one.input_shapes)[:200],
    }
