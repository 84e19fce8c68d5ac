"""How good predictions are: errors, and whether the right layout is called fastest.

One scored row, statistics over plain numbers, and the summary of many rows. What cannot be said is
None, never NaN.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np

from simulator.measured.rows import LAYOUT_COLUMNS, SWITCH_COLUMNS, MeasuredRun

__all__ = [
    *("BASELINE_EFFICIENCY", "FEWEST_LAYOUTS", "SCORED_MEMORY", "TIE", "ScoredRow"),
    *("error_statistics", "kendall_tau", "ranking", "regret", "summary"),
]

SCORED_MEMORY = ("allocated", "reserved")
"""Kinds of memory reading that a prediction of the same kind exists for."""

BASELINE_EFFICIENCY = 0.5
"""The baseline: every step runs its FLOPs, recomputation included, at this share of the peak."""

_ROW_KEYS = (
    *("status", "reason", "predicted_step_s", "measured_step_s", "step_error", "p10_s", "p90_s"),
    *("predicted_memory_gib", "measured_memory_gib", "memory_kind", "memory_error", "evidence"),
)
_COMPOSED = "COMPOSED"
_RELEASE = re.compile(r"-[0-9].*")
_SCALES = ((1, "1 GPU"), (8, "2-8 GPUs"), (64, "9-64 GPUs"), (512, "65-512 GPUs"))
_LARGEST = "more than 512 GPUs"
_GROUP = ("model", "gpu", "num_gpus", "seq_len", "global_batch", "precision", "software")

TIE = 0.03
"""Measured times that differ by no more than this cannot be told apart; nor can their order."""

FEWEST_LAYOUTS = 5
"""Layouts that a group needs before its ranking is worth a number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredRow:
    """One measured run beside its prediction; a value that does not exist is None."""

    run: MeasuredRun
    status: Literal["ok", "skipped"]
    """skipped: not predicted, see `reason`."""
    reason: str | None = None
    predicted_step_s: float | None = None
    measured_step_s: float | None = None
    p10_s: float | None = None
    p90_s: float | None = None
    """None: no interval yet."""
    predicted_memory_gib: float | None = None
    """Of the kind that was measured where it is in SCORED_MEMORY, else of everything."""
    measured_memory_gib: float | None = None
    memory_kind: str | None = None
    evidence: str | None = None
    """Weakest grade of any figure of the profiles behind the prediction."""
    baseline_step_s: float | None = None
    """What the baseline predicts (`BASELINE_EFFICIENCY`)."""
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
        return _COMPOSED in self.run.get("notes")

    def document(self) -> dict[str, Any]:
        """Return the row as plain numbers and words, with the keys that stay."""
        values = {name: getattr(self, name) for name in _ROW_KEYS}
        return {"run_id": self.run.get("run_id"), **values}


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


def kendall_tau(predicted: Sequence[float], measured: Sequence[float]) -> tuple[int, float | None]:
    """Count pairs whose order can be told, and how well they are ordered.

    Only pairs whose measured times differ by more than `TIE` count. Tau is right pairs less wrong
    pairs over all that count; a pair that is predicted equal is neither right nor wrong.

    Returns
    -------
    pairs : int
    tau : float or None
        1: every pair in the right order; -1: every pair reversed; None: no pair counts.

    Examples
    --------
    Two pairs of three are in the right order; then one of them is too close to count:

    >>> kendall_tau([1.0, 3.0, 2.0], [1.0, 2.0, 3.0])
    (3, 0.3333333333333333)
    >>> kendall_tau([1.0, 3.0, 2.0], [1.0, 2.0, 2.05])
    (2, 1.0)
    """
    pairs, score = 0, 0
    for i, j in combinations(range(len(measured)), 2):
        low, high = sorted((measured[i], measured[j]))
        if high <= low * (1.0 + TIE):
            continue
        pairs += 1
        right = (measured[i] - measured[j]) * (predicted[i] - predicted[j])
        score += (right > 0) - (right < 0)
    return pairs, (score / pairs if pairs else None)


def regret(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """What picking the predicted best costs: its measured time over the measured best, minus 1.

    Layouts that are predicted equally fast count with the mean of their measured times.

    Examples
    --------
    >>> round(regret([1.0, 1.2, 1.1], [2.2, 2.0, 3.0]), 3)
    0.1
    """
    best = min(predicted)
    chosen = [time for guess, time in zip(predicted, measured, strict=True) if guess <= best]
    return float(np.mean(chosen)) / min(measured) - 1.0


def ranking(
    group: str, layouts: Sequence[Hashable], predicted: Sequence[float], measured: Sequence[float]
) -> dict[str, Any] | None:
    """Score the ranking of one group of runs that differ in nothing but the layout.

    A layout that was measured more than once counts once, with the mean of its times. None if
    fewer than `FEWEST_LAYOUTS` are left.
    """
    times: dict[Hashable, list[tuple[float, float]]] = {}
    for layout, guess, time in zip(layouts, predicted, measured, strict=True):
        times.setdefault(layout, []).append((guess, time))
    if len(times) < FEWEST_LAYOUTS:
        return None
    means = np.array([np.mean(pairs, axis=0) for pairs in times.values()])
    guesses, actual = means[:, 0].tolist(), means[:, 1].tolist()
    pairs, tau = kendall_tau(guesses, actual)
    return {
        "group": group,
        "n": len(times),
        "pairs": pairs,
        "kendall_tau": tau,
        "regret": regret(guesses, actual),
    }


# --- many rows ---------------------------------------------------------------------------


def summary(rows: Sequence[ScoredRow]) -> dict[str, Any]:
    """Summarise errors: pooled, by source, split and GPU, and of rankings.

    ``by_source`` holds every source, the composed ones too; ``ranking`` names their groups
    composed. All else leaves them out.
    """
    pooled = [row for row in rows if not row.composed]
    predicted = [row for row in rows if row.status == "ok"]
    return {
        "step": _step_errors(pooled),
        "memory": {kind: _memory_errors(pooled, kind) for kind in SCORED_MEMORY},
        "ranking": _rankings(predicted),
        "kernels": None,
        "collectives": None,
        "by_source": _by(rows, "source", inside="split"),
        "by_gpu": _by(pooled, "gpu"),
        "by_split": _by(pooled, "split"),
        "baseline": _baseline(pooled),
        "skipped": _skipped_reasons(rows),
        "assumed_fields": _count(name for row in predicted for name in row.assumed),
    }


def _skipped_reasons(rows: Iterable[ScoredRow]) -> dict[str, int]:
    """Count the reasons why rows were skipped, most frequent first, without place and hints."""
    found = []
    for row in rows:
        if row.status == "skipped":
            line = (row.reason or "").partition("\n")[0].removeprefix(f"{row.run.where}: ")
            found.append(line.partition(" (known: ")[0])
    return _count(found)


def _step_errors(rows: Iterable[ScoredRow]) -> dict[str, Any]:
    return error_statistics([row.step_error for row in rows if row.step_error is not None])


def _memory_errors(rows: Iterable[ScoredRow], kind: str) -> dict[str, Any]:
    same = (row for row in rows if row.memory_kind == kind)
    return error_statistics([row.memory_error for row in same if row.memory_error is not None])


def _baseline(rows: Iterable[ScoredRow]) -> dict[str, Any]:
    errors = [row.baseline_error for row in rows if row.baseline_error is not None]
    return {"efficiency": BASELINE_EFFICIENCY, **error_statistics(errors)}


def _by(rows: Iterable[ScoredRow], field: str, *, inside: str = "") -> dict[str, Any]:
    """Step errors by the words of a column, and inside each by those of another."""
    parts: dict[str, list[ScoredRow]] = {}
    for row in rows:
        parts.setdefault(row.run.get(field) or "not stated", []).append(row)
    found: dict[str, Any] = {}
    for word, some in sorted(parts.items()):
        skipped = sum(row.status == "skipped" for row in some)
        found[word] = {**_step_errors(some), "rows": len(some), "skipped": skipped}
        found[word]["baseline"] = _baseline(some)
        if inside:
            found[word][f"by_{inside}"] = _by(some, inside)
    return found


def _rankings(rows: Iterable[ScoredRow]) -> list[dict[str, Any]]:
    groups: dict[str, list[ScoredRow]] = {}
    for row in rows:
        if row.measured_step_s is not None:
            groups.setdefault(_group(row), []).append(row)
    found = []
    for name, some in groups.items():
        layouts = [
            tuple(row.run.get(field) for field in (*LAYOUT_COLUMNS, *SWITCH_COLUMNS))
            for row in some
        ]
        guesses = [row.predicted_step_s or 0.0 for row in some]
        found.append(ranking(name, layouts, guesses, [row.measured_step_s or 0.0 for row in some]))
    return [group for group in found if group is not None]


def _group(row: ScoredRow) -> str:
    model, gpu, gpus, length, batch, precision, software = map(row.run.get, _GROUP)
    name = f"{model}, {gpus} x {gpu}, sequence {length}, batch {batch}, {precision}, {software}"
    return f"{name} (composed)" if row.composed else name


def _count(words: Iterable[str]) -> dict[str, int]:
    return dict(Counter(words).most_common())
