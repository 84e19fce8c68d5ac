"""How far predictions of one table of microbenchmarks are off, and where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from simulator.arrays import Floats, Ints
from simulator.measured.microbenchmarks import Sieve, Texts
from simulator.records import dataclass
from simulator.scoring.scores import error_statistics

BenchmarkKind = Literal["kernels", "collectives", "a2a"]

_BY = {
    "device": "device",
    "library": "library",
    "dtype": "dtype",
    "kernel": "kernel",
    "size": "decade",
}
"""Key of the summary without ``by_``: label."""

_NOT_STATED = "not stated"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BenchmarkScore:
    """One table: predicted beside measured for every row that could be priced.

    Arrays have one entry per predicted row, in the order of the table.
    """

    kind: BenchmarkKind
    path: str
    rows: int
    """Rows of the table; of expert all-to-all, dispatches and combines."""
    skipped: Mapping[str, int]
    """Rows that were not predicted by reason, the most frequent first."""
    problems: tuple[str, ...]
    """What is wrong with the input, each as ``file: line N: column: rule, got value``."""
    line: Ints
    """Line in the file."""
    predicted_s: Floats
    measured_s: Floats
    device: Texts
    """Accelerator of a kernel, cluster of a collective, as the profiles call it."""
    library: Texts
    """Framework and kernel, or the collective library with its release."""
    dtype: Texts
    kernel: Texts
    """Kernel or operation."""
    decade: Texts
    """Power of ten at or below the FLOPs of a product or attention, else the bytes."""
    source: Texts

    @property
    def error(self) -> Floats:
        """``predicted / measured - 1``."""
        return self.predicted_s / self.measured_s - 1.0

    def summary(self) -> dict[str, Any]:
        """Error statistics of all rows and by label, and how many rows were skipped why.

        Returns
        -------
        dict
            The keys of ``scores.error_statistics``; ``rows`` and ``skipped``; ``by_device``,
            ``by_library``, ``by_dtype``, ``by_kernel`` and ``by_size``, statistics by word.
        """
        return _summary([self])

    def worst(self, count: int) -> list[dict[str, Any]]:
        """Rows that are furthest off, the worst first, as plain numbers and words."""
        size = np.abs(self.error)
        order = np.argsort(-size, kind="stable")[:count]
        labels = ("device", "library", "dtype", "kernel", "decade", "source")
        return [
            {
                "path": self.path,
                "line": int(self.line[row]),
                **{name: str(getattr(self, name)[row]) for name in labels},
                "predicted_s": float(self.predicted_s[row]),
                "measured_s": float(self.measured_s[row]),
                "error": float(self.error[row]),
            }
            for row in order
        ]


def score(
    kind: BenchmarkKind,
    sieve: Sieve,
    *,
    predicted_s: Floats,
    measured_s: Floats,
    device: Texts,
    library: Texts,
    dtype: Texts,
    kernel: Texts,
    decade: Texts,
) -> BenchmarkScore:
    """Keep the predicted rows of a table; arguments have one entry per row of it."""
    kept = np.flatnonzero(sieve.kept)
    labels = {
        "device": device,
        "library": library,
        "dtype": dtype,
        "kernel": kernel,
        "decade": decade,
        "source": sieve.table.text("source"),
    }
    stated = {name: np.where(text == "", _NOT_STATED, text)[kept] for name, text in labels.items()}
    sources = [word.partition(":")[0] for word in stated["source"].tolist()]
    stated["source"] = np.array(sources, dtype=str)
    return BenchmarkScore(
        kind=kind,
        path=sieve.table.path,
        rows=len(sieve.table),
        skipped=sieve.skipped,
        problems=tuple(sieve.problems),
        line=sieve.table.line[kept],
        predicted_s=predicted_s[kept],
        measured_s=measured_s[kept],
        **stated,
    )


def size_decade(size: Floats, unit: str) -> Texts:
    """Label of a size: ``1e09 FLOP`` for 1e9 to 1e10, so that labels sort as sizes do."""
    power = np.floor(np.log10(np.where(size >= 1.0, size, 1.0))).astype(int)
    return np.array([f"1e{p:02d} {unit}" for p in power.tolist()], dtype=str)


def summaries(scores: Iterable[BenchmarkScore]) -> dict[str, dict[str, Any] | None]:
    """Pool tables: ``kernels``, and ``collectives`` with expert all-to-all; None without any."""
    found = list(scores)
    pools = {
        "kernels": [one for one in found if one.kind == "kernels"],
        "collectives": [one for one in found if one.kind != "kernels"],
    }
    return {name: _summary(some) if some else None for name, some in pools.items()}


def _summary(scores: Sequence[BenchmarkScore]) -> dict[str, Any]:
    errors = np.concatenate([score.error for score in scores])
    skipped: Counter[str] = Counter()
    for one in scores:
        skipped.update(one.skipped)
    summary = {
        **error_statistics(errors.tolist()),
        "rows": sum(one.rows for one in scores),
        "skipped": dict(skipped.most_common()),
    }
    for name, label in _BY.items():
        words = np.concatenate([getattr(one, label) for one in scores])
        summary[f"by_{name}"] = {
            word: error_statistics(errors[words == word].tolist())
            for word in np.unique(words).tolist()
        }
    return summary
