"""How good predictions and their intervals are: a scored row, errors, the summary of many rows.

What cannot be said is None, never NaN.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from simulator.answers import Encoded
from simulator.arrays import Floats
from simulator.evidence.card import Card
from simulator.measured.rows import LAYOUT_COLUMNS, SWITCH_COLUMNS, MeasuredRun
from simulator.records import dataclass
from simulator.scoring.rankings import ranking, ranking_statistics

SCORED_MEMORY = ("allocated", "reserved", "nvidia_smi")
"""Kinds of memory reading that a prediction of the same kind exists for."""

_FITTED = "calibrate"
_RELEASE = re.compile(r"-[0-9].*")
_SCALES = ((1, "1 GPU"), (8, "2-8 GPUs"), (64, "9-64 GPUs"), (512, "65-512 GPUs"))
_LARGEST = "more than 512 GPUs"
_GROUP = ("model", "gpu", "num_gpus", "seq_len", "global_batch", "precision", "software")

ALPHA = 0.2
"""Share of measurements that may lie outside a P10-P90 interval."""

_KEYS = ("coverage_80", "interval_width", "interval_score")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredRow(Encoded):
    """One measured run beside its prediction; a value that does not exist is None."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("run_id", "status", "reason", "predicted_step_s", "measured_step_s", "step_error"),
        *("p10_s", "p90_s", "predicted_memory_gib", "measured_memory_gib", "memory_kind"),
        *("memory_error", "evidence", "measured_mfu", "measured_mfu_own", "replayable"),
        "assumed_software",
    )

    run: MeasuredRun
    status: Literal["ok", "skipped"]
    """skipped: not predicted, see `reason`. An `ok` row with a reason has a step time that cannot
    be right, and is compared by its memory alone."""
    reason: str | None = None
    replayable: bool = True
    """False: the row contradicts itself, or its table excludes it. Every other row should be
    predicted, and one that is not is a gap of ours."""
    predicted_step_s: float | None = None
    measured_step_s: float | None = None
    p10_s: float | None = None
    p90_s: float | None = None
    """None: no interval yet."""
    predicted_memory_gib: float | None = None
    """Of the kind that was measured where it is in SCORED_MEMORY, else of everything."""
    measured_memory_gib: float | None = None
    memory_kind: str | None = None
    evidence: Card | None = None
    """What stands behind the prediction."""
    assumed_software: str | None = None
    """The known release that stands for the row's own; None where that is known."""
    baseline_step_s: float | None = None
    """What constant efficiency predicts, see `scoring/baselines.py`."""
    assumed: tuple[str, ...] = ()
    """Fields that the row's source does not state."""
    terms_s: Mapping[str, float] | None = None
    """The predicted step by term (cost/terms.py); adds up to `predicted_step_s`."""
    hidden_s: Mapping[str, float] | None = None
    """Communication that the prediction hides under compute."""
    memory_bytes: Mapping[str, float] | None = None
    """The predicted peak by kind of memory."""
    measured_mfu: float | None = None
    """Model FLOPs of the measured step over the dense bf16 peak; above 1 is possible in fp4."""
    measured_mfu_own: float | None = None
    """The same over the dense peak of the precision that the run trained in."""

    @property
    def run_id(self) -> str:
        """Of its table."""
        return self.run.get("run_id")

    @property
    def kind(self) -> Literal["dense", "MoE"]:
        """Whether the model has experts."""
        return "MoE" if self.run.get("num_experts") not in ("", "0") else "dense"

    @property
    def framework(self) -> str:
        """The software without its release: ``megatron-bridge-25.09`` is ``megatron-bridge``."""
        return _RELEASE.sub("", self.run.get("software")) or "not stated"

    @property
    def scale(self) -> str:
        """How many GPUs, in steps of eight."""
        try:
            gpus = float(self.run.get("num_gpus"))
        except ValueError:
            return "not stated"
        return next((word for most, word in _SCALES if gpus <= most), _LARGEST)

    @property
    def step_error(self) -> float | None:
        """``predicted / measured - 1``."""
        return _error(self.predicted_step_s, self.measured_step_s)

    @property
    def interval(self) -> tuple[float, float] | None:
        """P10 and P90 over the measured value."""
        if self.p10_s is None or self.p90_s is None or self.measured_step_s is None:
            return None
        return self.p10_s / self.measured_step_s, self.p90_s / self.measured_step_s

    @property
    def baseline_error(self) -> float | None:
        """The same for the baseline."""
        return _error(self.baseline_step_s, self.measured_step_s)

    @property
    def memory_error(self) -> float | None:
        """``predicted / measured - 1``, only where both are of one kind."""
        if self.memory_kind not in SCORED_MEMORY:
            return None
        return _error(self.predicted_memory_gib, self.measured_memory_gib)

    @property
    def composed(self) -> bool:
        """Whether the time was put together from parts and stays out of pooled figures."""
        return self.run.get("composed").lower() == "true"


def _error(predicted: float | None, measured: float | None) -> float | None:
    return None if predicted is None or measured is None else predicted / measured - 1.0


# --- statistics --------------------------------------------------------------------------


def error_statistics(errors: Sequence[float]) -> dict[str, Any]:
    """Summarise relative errors ``predicted / measured - 1``.

    Returns
    -------
    dict
        ``n``; ``mape`` and ``median_ape``, ``p90_ape``, ``max_ape``: mean, median, 90th percentile
        and largest of the absolute errors; ``bias``: their mean with sign; ``coverage_80``: share
        of measurements inside the P10-P90 interval, None while predictions have no interval.

    Examples
    --------
    >>> found = error_statistics([0.10, -0.02])
    >>> found["n"], round(found["mape"], 3), round(found["bias"], 3), found["coverage_80"]
    (2, 0.06, 0.04, None)
    """
    if not errors:
        names = ("mape", "median_ape", "bias", "p90_ape", "max_ape", "coverage_80")
        return {"n": 0, **dict.fromkeys(names)}
    signed = np.asarray(errors, dtype=float)
    size = np.abs(signed)
    return {
        "n": len(size),
        "mape": float(size.mean()),
        "median_ape": float(np.median(size)),
        "bias": float(signed.mean()),
        "p90_ape": float(np.percentile(size, 90)),
        "max_ape": float(size.max()),
        "coverage_80": None,
    }


# --- many rows ---------------------------------------------------------------------------


def summary(rows: Sequence[ScoredRow]) -> dict[str, Any]:
    """Summarise errors, pooled and by what the rows say, intervals and rankings.

    ``by_source`` holds every source, the composed ones too; ``ranking`` names their groups
    composed, and ``ranking_by_split`` puts them apart. All else leaves them out. Step errors carry
    interval statistics (:func:`simulator.scoring.scores.interval_statistics`); the interval of
    constant width is fitted to all rows of the split ``calibrate``.
    """
    pooled = [row for row in rows if not row.composed]
    predicted = [row for row in rows if row.status == "ok"]
    groups = _rankings(predicted)
    half_width = constant_half_width(_errors(row for row in pooled if _split(row) == _FITTED))
    parts: dict[str, dict[str, Any]] = {
        name: _by(pooled, half_width, word, by_split=True) for name, word in _PARTS.items()
    }
    return {
        "step": _step_errors(pooled, half_width),
        "memory": {kind: _memory_errors(pooled, kind) for kind in SCORED_MEMORY},
        "ranking": groups,
        "by_source": _by(rows, half_width, _column("source"), by_split=True),
        "by_gpu": parts.pop("by_gpu"),
        "by_split": _by(pooled, half_width, _split),
        "baseline": _baseline(pooled),
        "skipped": _skipped_reasons(rows),
        "assumed_fields": _count(name for row in predicted for name in row.assumed),
        **parts,
        "ranking_by_split": _ranking_by_split(groups),
    }


def _column(name: str) -> Callable[[ScoredRow], str]:
    return lambda row: row.run.get(name) or "not stated"


_split = _column("split")

_PARTS: dict[str, Callable[[ScoredRow], str]] = {
    "by_gpu": _column("gpu"),
    "by_kind": lambda row: row.kind,
    "by_framework": lambda row: row.framework,
    "by_precision": _column("precision"),
    "by_scale": lambda row: row.scale,
}


def _skipped_reasons(rows: Iterable[ScoredRow]) -> dict[str, int]:
    """Count the reasons why rows were skipped, most frequent first."""
    return _count(skipped_reason(row) for row in rows if row.status == "skipped")


def skipped_reason(row: ScoredRow) -> str:
    """Return why a row was skipped: the first line, without place and hints."""
    line = (row.reason or "").partition("\n")[0].removeprefix(f"{row.run.where}: ")
    return line.partition(" (known: ")[0]


def _errors(rows: Iterable[ScoredRow]) -> list[float]:
    return [row.step_error for row in rows if row.step_error is not None]


def step_errors(rows: Sequence[ScoredRow]) -> dict[str, Any]:
    """Errors of step times, and how good their intervals are, of rows that stand alone."""
    return _step_errors(rows, constant_half_width(_errors(rows)))


def _step_errors(rows: Sequence[ScoredRow], half_width: float | None) -> dict[str, Any]:
    """Errors of the step time, and how good their intervals are."""
    known = [row for row in rows if row.step_error is not None and row.interval is not None]
    intervals = [row.interval for row in known if row.interval is not None]
    found = interval_statistics(intervals, _errors(known), half_width)
    return {**error_statistics(_errors(rows)), **found}


def _memory_errors(rows: Iterable[ScoredRow], kind: str) -> dict[str, Any]:
    same = (row for row in rows if row.memory_kind == kind)
    return error_statistics([row.memory_error for row in same if row.memory_error is not None])


def _baseline(rows: Iterable[ScoredRow]) -> dict[str, Any]:
    errors = [row.baseline_error for row in rows if row.baseline_error is not None]
    return error_statistics(errors)


def _by(
    rows: Iterable[ScoredRow],
    half_width: float | None,
    word: Callable[[ScoredRow], str],
    *,
    by_split: bool = False,
) -> dict[str, Any]:
    """Step errors by a word of each row, and inside each by split."""
    parts: dict[str, list[ScoredRow]] = {}
    for row in rows:
        parts.setdefault(word(row), []).append(row)
    found: dict[str, Any] = {}
    for name in sorted(parts, key=_order):
        some = parts[name]
        skipped = sum(row.status == "skipped" for row in some)
        found[name] = {**_step_errors(some, half_width), "rows": len(some), "skipped": skipped}
        found[name] |= {"baseline": _baseline(some), **_coverage(some)}
        if by_split:
            found[name]["by_split"] = _by(some, half_width, _split)
    return found


def _order(word: str) -> tuple[int, str]:
    """Scales by size, all else by the alphabet."""
    sizes = [scale for _, scale in _SCALES]
    return (sizes.index(word) if word in sizes else len(sizes), word.casefold())


def _coverage(rows: Iterable[ScoredRow]) -> dict[str, Any]:
    """How many rows could be predicted, and the share of them that was."""
    sound = [row for row in rows if row.replayable]
    predicted = sum(row.status == "ok" for row in sound)
    return {"replayable": len(sound), "coverage": predicted / len(sound) if sound else None}


def _rankings(rows: Iterable[ScoredRow]) -> list[dict[str, Any]]:
    groups: dict[str, list[ScoredRow]] = {}
    for row in rows:
        if row.measured_step_s is not None:
            groups.setdefault(ranking_group(row), []).append(row)
    rankings = []
    for name, some in groups.items():
        layouts = [layout_of(row) for row in some]
        guesses = [row.predicted_step_s or 0.0 for row in some]
        group = ranking(name, layouts, guesses, [row.measured_step_s or 0.0 for row in some])
        if group is not None:
            splits = " + ".join(sorted({_split(row) for row in some}))
            rankings.append({**group, "split": splits, "composed": some[0].composed})
    return rankings


def _ranking_by_split(groups: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    parts: dict[str, list[Mapping[str, Any]]] = {}
    for group in groups:
        parts.setdefault("composed" if group["composed"] else group["split"], []).append(group)
    return {name: ranking_statistics(some) for name, some in sorted(parts.items())}


def ranking_group(row: ScoredRow) -> str:
    """Name the group of runs that differ from a row in nothing but the layout."""
    model, gpu, gpus, length, batch, precision, software = map(row.run.get, _GROUP)
    name = f"{model}, {gpus} x {gpu}, sequence {length}, batch {batch}, {precision}, {software}"
    return f"{name} (composed)" if row.composed else name


def layout_of(row: ScoredRow) -> tuple[Hashable, ...]:
    """Everything that tells a row from the others of its ranking group."""
    switches = (row.run.get(field) for field in (*LAYOUT_COLUMNS, *SWITCH_COLUMNS))
    return (row.run.software_fields, *switches)


def _count(words: Iterable[str]) -> dict[str, int]:
    return dict(Counter(words).most_common())


def constant_half_width(errors: Sequence[float]) -> float | None:
    """Find the ``h`` for which ``predicted x (1 - h)`` to ``predicted x (1 + h)`` holds 80 %.

    Parameters
    ----------
    errors : sequence of float
        Relative errors ``predicted / measured - 1`` of the rows that it is fitted to.

    Returns
    -------
    float or None
        The smallest such number; None without a row.

    Examples
    --------
    Measured values are 1/1.25 = 0.8, 1.0, 1.0, 1.0 and 1/0.5 = 2 times the prediction; four of
    five lie within 20 %:

    >>> round(constant_half_width([0.25, 0.0, 0.0, 0.0, -0.5]), 3)
    0.2
    """
    distances = sorted(_distances(errors))
    inside = -(-4 * len(distances) // 5)  # 80 %, rounded up, in whole numbers
    return float(distances[inside - 1]) if distances else None


def interval_statistics(
    intervals: Sequence[tuple[float, float]],
    errors: Sequence[float],
    half_width: float | None,
) -> dict[str, Any]:
    """Score intervals, and beside them those of constant width.

    The interval score (Gneiting and Raftery 2007, equation 43) is the width, plus 2/alpha times
    the distance by which the measured value lies outside; smaller is better.

    Parameters
    ----------
    intervals : sequence of (float, float)
        P10 and P90 over the measured value, of the rows that have an interval.
    errors : sequence of float
        Relative errors ``predicted / measured - 1`` of the same rows.
    half_width : float or None
        Of the constant interval, see :func:`constant_half_width`.

    Returns
    -------
    dict
        ``coverage_80``: share of measured values inside; ``interval_width``: median width;
        ``interval_score``: mean score; ``constant_interval``: `half_width` and the same three.
        None without an interval.
    """
    constant: dict[str, Any] = {"half_width": half_width, **dict.fromkeys(_KEYS)}
    if not intervals:
        return {**dict.fromkeys(_KEYS), "constant_interval": constant}
    low, high = np.asarray(intervals, dtype=float).T
    outside = np.maximum(np.maximum(low - 1.0, 1.0 - high), 0.0)
    if half_width is not None:
        predicted = 1.0 + np.asarray(errors, dtype=float)
        beyond = predicted * np.maximum(_distances(errors) - half_width, 0.0)
        constant |= _scores(2.0 * half_width * predicted, beyond)
    return {**_scores(high - low, outside), "constant_interval": constant}


def _distances(errors: Sequence[float]) -> Floats:
    """How far measured values lie from their predictions, relative to the predictions."""
    return np.asarray(np.abs(1.0 / (1.0 + np.asarray(errors, dtype=float)) - 1.0))


def _scores(width: Floats, outside: Floats) -> dict[str, float]:
    values = (np.mean(outside == 0.0), np.median(width), np.mean(width + 2.0 / ALPHA * outside))
    return dict(zip(_KEYS, map(float, values), strict=True))
