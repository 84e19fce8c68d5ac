"""A user's own training log, reduced to what a prediction can be set beside.

The readers of the formats stand in ``simulator.interop``. They share what is here: step lines kept
as columns, ranks merged, warm-up left out.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.errors import InputError
from simulator.measured.log_lines import looks_like
from simulator.records import dataclass
from simulator.workload.recipe import Recipe

Whole = NDArray[np.int64]

SLOW = 1.5
"""A step line right after the warm-up that took over so many times the median of those after it
still belongs to the warm-up."""

_LARGEST = 1 << 62
"""Of whole numbers of a line; larger ones are no step, rank or batch."""

_SHARE = 10
"""One step line in so many, and at least one, counts as warm-up in any case."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stated:
    """One thing that a log says of its own run."""

    value: Any
    line: int
    words: str
    """How the log calls it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredLog:
    """What a log says; arrays over its step lines, in the order of steps, warm-up included."""

    framework: str
    """megatron, torchtitan or mlperf."""
    path: str
    steps: Whole
    """Training step at which each was printed (its place in the log for mlperf)."""
    step_times_s: Floats
    """Mean step time since the step line before, of the slowest rank seen."""
    lines: Whole
    """Line of the file."""
    dropped: int
    """How many at the start count as warm-up."""
    rule: str
    """Why these."""
    tokens_per_gpu: float
    """Tokens of one step over the GPUs of the run."""
    model_tflops_per_gpu: float | None = None
    """Median after warm-up, by the framework's own count of FLOPs; None where it prints none."""
    memory_bytes: Mapping[str, float] = field(default_factory=dict)
    """Peak of the fullest rank seen, by kind: allocated and reserved (torch's allocator), device
    (all that the driver counts), theoretical (the framework's arithmetic)."""
    memory_after_step: int | None = None
    """Steps that had been taken at the last reading of memory; None where that is not said."""
    ranks: tuple[int, ...] = ()
    """Ranks whose lines were seen; empty where the lines do not say."""
    stated: Mapping[str, Stated] = field(default_factory=dict)
    """What the log says of its run, by the name that a scenario or layout has for it."""
    unknown: tuple[str, ...] = ()
    """Arguments that the log lists and that are not known here."""
    software: tuple[str, ...] = ()
    """Software profiles that do what its arguments ask for, the most fitting first."""
    notes: tuple[str, ...] = ()
    """What a reader of the numbers should know."""

    @property
    def kept_s(self) -> Floats:
        """Step times after warm-up."""
        return self.step_times_s[self.dropped :]

    @property
    def median_step_s(self) -> float:
        """Median step time after warm-up; evaluation and checkpoints do not move it."""
        return float(np.median(self.kept_s))

    @property
    def spread_s(self) -> tuple[float, float]:
        """10th and 90th percentile of the step times after warm-up."""
        low, high = np.percentile(self.kept_s, (10, 90))
        return float(low), float(high)

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens per second and GPU at the median step time."""
        return self.tokens_per_gpu / self.median_step_s


class LogReading:
    """What a reader gathers on its way through a log.

    Step lines are kept in compact columns: a log may have millions.
    """

    def __init__(self, framework: str, kind: str, path: Path | str) -> None:
        self.framework, self.path, self._kind = framework, str(path), kind
        self.memory_bytes: dict[str, float] = {}
        self.memory_after_step: int | None = None
        self.stated: dict[str, Stated] = {}
        self.unknown: list[str] = []
        self.software: tuple[str, ...] = ()
        self.notes: list[str] = []
        self._ranks: set[int] = set()
        self._whole = {name: array("q") for name in ("step", "rank", "line", "batch")}
        self._seconds, self._tflops = array("d"), array("d")
        self._unreadable: list[int] = []

    def __len__(self) -> int:
        return len(self._seconds)

    def add(
        self,
        step: int,
        seconds: float,
        *,
        line: int,
        rank: int | None = None,
        batch: int = 0,
        tflops: float = np.nan,
    ) -> None:
        """Take one step line; `batch` is the global batch that it names, 0 where it names none."""
        if not 0.0 < seconds < np.inf or max(abs(step), abs(rank or 0), batch) >= _LARGEST:
            self.unreadable(line)
            return
        self.saw(rank)
        whole = {"step": step, "rank": -1 if rank is None else rank, "line": line, "batch": batch}
        for name, value in whole.items():
            self._whole[name].append(value)
        self._seconds.append(seconds)
        self._tflops.append(tflops if tflops > 0.0 else np.nan)

    def unreadable(self, line: int) -> None:
        """Count a line that looks like a step line and cannot be read."""
        self._unreadable.append(line)

    def saw(self, rank: int | None) -> None:
        """Note that a line of this rank was seen."""
        if rank is not None:
            self._ranks.add(rank)

    def state(self, name: str, value: Any, line: int, words: str) -> None:
        """Note what the log says of its run; what it says last holds."""
        self.stated[name] = Stated(value=value, line=line, words=words)

    def peak(self, kind: str, size_bytes: float) -> None:
        """Note a reading of memory; a device that has no counter prints zero or less."""
        if size_bytes > 0.0:
            self.memory_bytes[kind] = max(size_bytes, self.memory_bytes.get(kind, 0.0))

    def finish(self, recipe: Recipe, gpus: int, wanted: int | None) -> MeasuredLog:
        """Merge ranks and leave warm-up out: `wanted` step lines, or as :func:`warm_up` says.

        Raises
        ------
        InputError
            If no step line was read, with the kind of file that it looks like.
        """
        if not self._seconds:
            raise InputError(self._nothing())
        steps, seconds, lines, tflops = self._merged()
        dropped, rule = warm_up(seconds, wanted, self.path)
        known = tflops[dropped:][~np.isnan(tflops[dropped:])]
        if self._unreadable:
            count, first = len(self._unreadable), self._unreadable[0]
            self.notes.append(f"step lines that cannot be read: {count}, the first is line {first}")
        return MeasuredLog(
            framework=self.framework,
            path=self.path,
            steps=steps,
            step_times_s=seconds,
            lines=lines,
            dropped=dropped,
            rule=rule,
            tokens_per_gpu=recipe.tokens_per_step / gpus,
            model_tflops_per_gpu=float(np.median(known)) if len(known) else None,
            memory_bytes=self.memory_bytes,
            memory_after_step=self.memory_after_step,
            ranks=tuple(sorted(self._ranks)),
            stated=self.stated,
            unknown=tuple(self.unknown),
            software=self.software,
            notes=tuple(self.notes),
        )

    def _nothing(self) -> str:
        text = f"{self.path}: no step line of {self._kind} in it"
        if self._unreadable:
            count, first = len(self._unreadable), self._unreadable[0]
            return f"{text} that can be read; of {count} that cannot, the first is line {first}"
        kind = looks_like(self.path)
        return f"{text}; it looks like {kind}" if kind and kind != self._kind else text

    def _merged(self) -> tuple[Whole, Floats, Whole, Floats]:
        """Steps, seconds, lines and TFLOP/s, one entry for each step: that of the slowest rank.

        A step that a rank prints again, after a restart, counts as it was printed last. Where the
        global batch changes, steps with another than the last one are left out.
        """
        step, rank, line, batch = (np.asarray(column) for column in self._whole.values())
        seconds, tflops = np.asarray(self._seconds), np.asarray(self._tflops)
        size = max(batch[batch > 0][-1:], default=0)
        same = np.flatnonzero((batch == size) | (batch == 0))
        if other := len(batch) - len(same):
            self.notes.append(f"left out: {other} step lines with another global batch than {size}")
        order = same[np.lexsort((same, rank[same], step[same]))]
        again = (step[order][1:] == step[order][:-1]) & (rank[order][1:] == rank[order][:-1])
        order = order[~np.append(again, False)]
        order = order[np.lexsort((seconds[order], step[order]))]
        slowest = order[np.append(step[order][1:] != step[order][:-1], True)]
        return step[slowest], seconds[slowest], line[slowest], tflops[slowest]


def warm_up(times_s: Floats, wanted: int | None, where: str) -> tuple[int, str]:
    """Count the step lines at the start of a log that are left out, and say why.

    Where nothing is wanted: one in ten and at least one, then as long as a step takes over `SLOW`
    times the median of those after it.

    Raises
    ------
    InputError
        If the wanted number leaves no step line.

    Examples
    --------
    >>> warm_up(np.array([9.0, 2.0, 1.0, 1.0, 1.1]), None, "train.log")
    (2, 'one step line in ten, at least one, and those after it over 1.5 x the median of the rest')
    """
    count = len(times_s)
    if wanted is not None:
        if wanted >= count:
            rule = f"must leave at least one of the {count} step lines"
            raise InputError(f"{where}: warm-up: {rule}, got {wanted}")
        return wanted, "as asked"
    if count == 1:
        return 0, "the only step line is kept, with the warm-up that is in it"
    least = dropped = max(count // _SHARE, 1)
    while dropped < count - 1 and times_s[dropped] > SLOW * np.median(times_s[dropped + 1 :]):
        dropped += 1
    rule = "one step line in ten, at least one"
    more = f", and those after it over {SLOW:g} x the median of the rest"
    return dropped, rule + (more if dropped > least else "")
