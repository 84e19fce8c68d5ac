"""Measure one training step: its time, its memory by phase, its operators.

What comes out of `measure` is a plain dictionary, so that another process can hand it on.
"""

from __future__ import annotations

import contextlib
import math
import resource
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import _distributed
import _timing
from _cases import Case
from _training import Trainer, gradient_square

WARM_UP, WARM_UP_COMPILED = 2, 3
FEWEST, MOST = 3, 30
"""Timed steps."""
MOST_OPERATORS = 150


class Memory:
    """Bytes that torch's allocator holds on a GPU, by phase; on a CPU nothing is known."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.on_gpu = device, device.type == "cuda"
        self.phases: dict[str, dict[str, int]] = {}
        self.start_bytes = torch.cuda.memory_allocated(device) if self.on_gpu else None

    def restart(self) -> None:
        """Forget the peaks so far."""
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)

    def mark(self, phase: str) -> None:
        """Note what is held now, and the peak since the last mark."""
        if not self.on_gpu:
            return
        torch.cuda.synchronize(self.device)
        self.phases[phase] = {
            "allocated_bytes": torch.cuda.memory_allocated(self.device),
            "reserved_bytes": torch.cuda.memory_reserved(self.device),
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(self.device),
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

    def step(self, mark=lambda phase: None) -> None:
        """Take the next step; under the fake group give the weights new values first."""
        case = self.trainer.case
        if case.fake_world and self.at:
            self.trainer.refill()
        tokens, labels = self.trainer.batch(self.at)
        self.losses.append(self.trainer.step(tokens, labels, mark))
        self.at += 1

    def mean_losses(self) -> list[float | None]:
        """Return the loss of each step over all ranks; None where it is not finite."""
        case = self.trainer.case
        own = torch.stack([torch.as_tensor(one).float().cpu() for one in self.losses])
        if self.world.size > 1 and not self.world.pretended:
            own = own.to(self.world.device)
            dist.all_reduce(own)
            own = own / (case.dp * case.tp)
        return [float(f"{one:.7g}") if math.isfinite(one) else None for one in own.tolist()]


def measure(case: Case, run: _timing.Run, world: _distributed.World, **wanted) -> dict:
    """Build, warm up, look at memory, time; return what `Run.record` takes.

    `wanted`: `steps` (a fixed number), `budget_s`, `profile`, `trace` (a file to write).
    """
    memory = Memory(run.device.device)
    memory.restart()
    trainer = Trainer(case, run.device.device, free_bytes=run.device.free_bytes())
    memory.mark("build")
    loop = Loop(trainer, world)
    norm = warm_up(loop, memory, run)
    memory.restart()
    times_s = time_steps(loop, run, wanted.get("steps") or 0, wanted.get("budget_s") or run.case_s)
    more = {
        "memory": memory.found(),
        "parameters": trainer.parameters,
        "tokens": case.dp * case.accumulate * case.micro_batch * case.sequence,
        "losses": loop.mean_losses(),
        "grad_norm": norm,
        "mixed": "autocast" if case.autocast else "fsdp" if case.fsdp else "none",
        "library": world.library if world.size > 1 or case.fake_world else None,
    }
    if case.fake_world:
        more["note"] = FAKE
    if wanted.get("profile") or wanted.get("trace"):
        more["operators"] = profile(loop, run, wanted.get("trace"))
    return {"shape": case.shape(), "direction": "step", "times_s": times_s, "more": more}


FAKE = (
    "one rank under the fake process group: no communication time; collectives copy what is here, "
    "where this torch does, and their copies are in the time; weights are filled again before each "
    "step; a middle or last pipeline rank gets random inputs"
)


def warm_up(loop: Loop, memory: Memory, run: _timing.Run) -> float | None:
    """Take the first steps, note memory by phase in the last, and return the gradient norm."""
    compiled = loop.trainer.case.compile
    count = WARM_UP_COMPILED if compiled else WARM_UP
    square = math.nan

    def note(phase: str) -> None:
        nonlocal square
        memory.mark(phase)
        if phase == "backward":
            square = gradient_square(loop.trainer)

    for at in range(count):
        loop.step(note if at == count - 1 else lambda phase: None)
    run.device.synchronize()
    memory.mark("rest")
    if not loop.world.pretended:
        square = loop.world.total(square)
    return float(f"{math.sqrt(square):.7g}") if math.isfinite(square) else None


def time_steps(loop: Loop, run: _timing.Run, steps: int, budget_s: float) -> list[float]:
    """Time single steps: `steps` of them, or as many as `budget_s` and precision ask for.

    Steps follow each other without waiting, as in training; under the fake group the filling of
    weights is between the readings.
    """
    stamp = _stamp_cuda if run.device.kind == "cuda" else time.perf_counter
    begin, times_s = time.perf_counter(), []
    while len(times_s) < (steps or MOST):
        times_s += _one(loop, run, stamp)
        spent_s = loop.world.agree(time.perf_counter() - begin, "max")
        times_s[-1] = loop.world.agree(times_s[-1], "max")
        if steps or len(times_s) < FEWEST:
            continue
        if spent_s > budget_s or _timing.median_error(times_s) < 0.003:
            break
    return times_s


