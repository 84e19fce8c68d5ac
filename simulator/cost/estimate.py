"""What each layout of a table costs: step time and memory, term by term."""

from __future__ import annotations

from functools import cached_property
from math import erf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, Ints
from simulator.frames import DataFrame, Table, choose, frame
from simulator.layout.layouts import Layouts
from simulator.records import dataclass

VERDICTS = ("FITS", "TIGHT", "OOM")
"""FITS: the P90 of memory is within the usable bytes; TIGHT: only the P50 is; OOM: neither."""

P90 = 1.2816
"""Standard deviations from P50 to P90 of a normal distribution."""


def memory_verdict(p50_bytes: Floats, spread: Floats, usable_bytes: float) -> NDArray[Any]:
    """Index into VERDICTS; where `spread` is NaN (no interval) the P50 alone decides.

    Examples
    --------
    With a spread of 10 % the P90 is exp(0.128) = 1.137 times the P50.

    >>> codes = memory_verdict(np.array([80.0, 90.0, 101.0]), np.full(3, 0.1), 100.0)
    >>> [VERDICTS[code] for code in codes]
    ['FITS', 'TIGHT', 'OOM']
    """
    p90_bytes = p50_bytes * np.exp(P90 * np.nan_to_num(spread))
    return np.where(p50_bytes > usable_bytes, 2, np.where(p90_bytes > usable_bytes, 1, 0))


def verdict_word(p50_bytes: float, spread: float, usable_bytes: float) -> str:
    """FITS, TIGHT or OOM of one device.

    >>> verdict_word(90.0, 0.1, 100.0)
    'TIGHT'
    """
    code = memory_verdict(np.array([p50_bytes]), np.array([spread]), usable_bytes)[0]
    return VERDICTS[int(code)]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What each layout of a table costs; arrays over layouts."""

    layouts: Layouts
    step_time_s: Floats
    terms_s: dict[str, Floats]
    """Critical-path terms by name (TERMS); they add up to `step_time_s`."""
    hidden_s: dict[str, Floats]
    """Communication hidden under compute."""
    memory_bytes: dict[str, Floats]
    """Memory of the fullest rank by kind (MEMORY_KINDS)."""
    memory_total_bytes: Floats
    peak_stage: NDArray[Any]
    """Pipeline rank that is fullest."""
    peak_moment: NDArray[Any]
    """Index into MOMENTS."""
    slowest_stage: NDArray[Any]
    """Pipeline rank that paces the step."""
    waiting_s: Floats
    """Seconds of the term `input` in which all ranks wait for samples that are not ready."""
    imbalance_s: Floats
    """Time that the slowest stage spends above the mean stage (inside the terms, a memo)."""
    model_flop: float
    """Model FLOPs of one step over all accelerators."""
    executed_flop: Floats
    """The same with what recomputation repeats."""
    usable_bytes: float
    offloaded_bytes: dict[str, Floats]
    """Bytes that a server keeps in host memory ("host") and on local drives ("nvme")."""
    room_bytes: dict[str, float]
    """What host memory and drives of a server hold; infinite where not known."""

    memory_spread: Floats
    """Standard deviation of the logarithm of memory, shared by the layouts of a framework; NaN
    where its software profile gives none."""

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Whether the fullest rank is expected (P50) to fit, and the server holds what is away."""
        fit = self.memory_total_bytes <= self.usable_bytes
        for tier, room in self.room_bytes.items():
            fit = fit & (self.offloaded_bytes[tier] <= room)
        return fit

    @property
    def memory_p10_bytes(self) -> Floats:
        """What memory stays below with a probability of 10 %; NaN without a spread."""
        return np.asarray(self.memory_total_bytes * np.exp(-P90 * self.memory_spread))

    @property
    def memory_p90_bytes(self) -> Floats:
        """What memory stays below with a probability of 90 %; NaN without a spread."""
        return np.asarray(self.memory_total_bytes * np.exp(P90 * self.memory_spread))

    @property
    def verdict(self) -> NDArray[Any]:
        """Index into VERDICTS; OOM too where the server does not hold what is away."""
        codes = memory_verdict(self.memory_total_bytes, self.memory_spread, self.usable_bytes)
        return np.where(self.fits, codes, VERDICTS.index("OOM"))

    @property
    def fit_chance(self) -> Floats:
        """Probability that the fullest rank stays within usable memory; NaN without a spread."""
        away = np.log(self.usable_bytes / self.memory_total_bytes) / self.memory_spread
        return np.array([0.5 * (1.0 + erf(score / sqrt(2.0))) for score in away.tolist()])

    def able(self, *, allow_tight: bool) -> NDArray[np.bool_]:
        """Rows that may win: what FITS; what fits at all where that is allowed, or none FITS."""
        safe = self.verdict == VERDICTS.index("FITS")
        return safe if safe.any() and not allow_tight else self.fits

    def verdict_word(self, i: int = 0) -> str:
        """FITS, TIGHT or OOM of one layout."""
        return VERDICTS[int(self.verdict[i])]

    def __len__(self) -> int:
        return len(self.step_time_s)

    def to_frame(self, table: Table = "layouts") -> DataFrame:
        """One row per layout: its fields, time and memory; or seconds by term; or bytes by kind.

        Raises
        ------
        InputError
            If there is no such table.

        Examples
        --------
        >>> from simulator import predict
        >>> estimate = predict(model="llama-3.1-8b", cluster="dgx-h100", gpus=8, tp=2).estimate
        >>> terms_s = estimate.to_frame("terms")
        >>> bool(np.isclose(terms_s.sum(axis=1), estimate.step_time_s).all())
        True
        """
        tables = {"layouts": self.costs, "terms": self.terms_s, "memory": self.memory_bytes}
        columns = choose(table, tables)
        layouts = self.layouts.to_frame()
        if table == "layouts":
            return layouts.assign(**columns())
        return frame(columns, index=layouts.index, name=layouts.index.name)

    def costs(self) -> dict[str, Any]:
        """Columns beside those of a layout, one value each."""
        return {
            "step_time_s": self.step_time_s,
            "memory_total_bytes": self.memory_total_bytes,
            "memory_p10_bytes": self.memory_p10_bytes,
            "memory_p90_bytes": self.memory_p90_bytes,
            "memory_verdict": np.array(VERDICTS, dtype=object)[self.verdict],
            "fits": self.fits,
            "peak_stage": self.peak_stage,
            "slowest_stage": self.slowest_stage,
        }

    @cached_property
    def _parts(self) -> dict[bytes, Estimate]:
        return {}

    def part(self, rows: Ints) -> Estimate:
        """The same as `take`; the very same estimate where the same rows are asked for again."""
        key = rows.astype(np.int64).tobytes()
        if key not in self._parts:
            self._parts[key] = self.take(rows)
        return self._parts[key]

    def take(self, rows: Any) -> Estimate:
        """Return the estimate of some of the layouts."""

        def pick(columns: dict[str, Floats]) -> dict[str, Floats]:
            return {name: column[rows] for name, column in columns.items()}

        return Estimate(
            layouts=self.layouts[rows],
            step_time_s=self.step_time_s[rows],
            terms_s=pick(self.terms_s),
            hidden_s=pick(self.hidden_s),
            memory_bytes=pick(self.memory_bytes),
            memory_total_bytes=self.memory_total_bytes[rows],
            peak_stage=self.peak_stage[rows],
            peak_moment=self.peak_moment[rows],
            slowest_stage=self.slowest_stage[rows],
            waiting_s=self.waiting_s[rows],
            imbalance_s=self.imbalance_s[rows],
            model_flop=self.model_flop,
            executed_flop=self.executed_flop[rows],
            usable_bytes=self.usable_bytes,
            offloaded_bytes=pick(self.offloaded_bytes),
            room_bytes=self.room_bytes,
            memory_spread=self.memory_spread[rows],
        )


def concatenate(pieces: list[Estimate]) -> Estimate:
    """Join the estimates of consecutive chunks."""

    def join(name: str) -> Any:
        return np.concatenate([getattr(piece, name) for piece in pieces])

    def join_columns(name: str) -> dict[str, Floats]:
        columns = getattr(pieces[0], name)
        return {k: np.concatenate([getattr(piece, name)[k] for piece in pieces]) for k in columns}

    arrays = (
        "step_time_s",
        "memory_total_bytes",
        "peak_stage",
        "peak_moment",
        "slowest_stage",
        "waiting_s",
        "imbalance_s",
        "executed_flop",
        "memory_spread",
    )
    return Estimate(
        layouts=Layouts.concatenate([piece.layouts for piece in pieces]),
        terms_s=join_columns("terms_s"),
        hidden_s=join_columns("hidden_s"),
        memory_bytes=join_columns("memory_bytes"),
        model_flop=pieces[0].model_flop,
        usable_bytes=pieces[0].usable_bytes,
        offloaded_bytes=join_columns("offloaded_bytes"),
        room_bytes=pieces[0].room_bytes,
        **{name: join(name) for name in arrays},
    )
