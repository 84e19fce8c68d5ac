"""What no prediction can beat: how far runs are apart that differ in nothing but a release."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

import numpy as np

from simulator.measured.rows import LABEL_COLUMNS, MeasuredRun, number
from simulator.records import dataclass

_RELEASE = re.compile(r"[0-9]+(\.[0-9]+)*[a-z]?")


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleasePair:
    """The same run under two neighbouring releases of one framework."""

    framework: str
    """Software without its release."""
    moe: bool
    older: str
    newer: str
    ratio: float
    """Step time of the newer release over that of the older one."""


def release_pairs(runs: Iterable[MeasuredRun]) -> tuple[ReleasePair, ...]:
    """Find runs that are alike in every column but the release of their software.

    How far such runs are apart is a floor under any error: what changes between releases is in
    no column. A run that a release measured more than once counts once, with its mean time.

    Raises
    ------
    InputError
        If a step time is no number.
    """
    groups: dict[tuple[tuple[str, str], ...], dict[str, list[float]]] = defaultdict(dict)
    for run in runs:
        software = run.get("software")
        release = _RELEASE.search(software)
        if release is not None and run.get("step_time_s"):
            framework = software.replace(release.group(), "").strip("-").replace("--", "-")
            times = groups[_alike(run, framework)].setdefault(release.group(), [])
            times.append(number(run.fields, "step_time_s"))
    return tuple(pair for alike, times in groups.items() for pair in _neighbours(alike, times))


def _alike(run: MeasuredRun, framework: str) -> tuple[tuple[str, str], ...]:
    """Every column that a prediction may read, with the framework in place of its release."""
    columns = {name: run.get(name) for name in run.fields if name not in LABEL_COLUMNS}
    return tuple(sorted({**columns, "software": framework}.items()))


def _neighbours(
    alike: tuple[tuple[str, str], ...], times: Mapping[str, list[float]]
) -> Iterator[ReleasePair]:
    columns = dict(alike)
    for older, newer in pairwise(sorted(times)):
        yield ReleasePair(
            framework=columns["software"],
            moe=columns.get("num_experts", "") not in ("", "0"),
            older=older,
            newer=newer,
            ratio=float(np.mean(times[newer]) / np.mean(times[older])),
        )
