"""Fitting how an expected error follows from those of runs near.

All from the table of runs alone (``hardware_profiles/uncertainty/runs.csv``): a run is compared
with the others, never with its own source; where a table is left out, with none of that table
either, and ``spread`` is fitted without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from simulator.arrays import Floats
from simulator.evidence.card import grade_of
from simulator.evidence.evidence_runs import AXES, NUMBERS, WORDS, EvidenceRuns, load_evidence_runs
from simulator.evidence.likeness import (
    P90_T4,
    STOOD_IN,
    TUNED,
    Likeness,
    Nearness,
    Traits,
    borrowed_tables,
    load_likeness,
    nearness,
)
from simulator.files import Figure
from simulator.scoring.first_sight import AS_WRITTEN
from workshop.cases.first_sight import written_tables

OUTSIDE = 0.2
"""Share of measurements that may lie outside P10 to P90."""

MOST_OFF = 1.2
"""Errors (logarithms) beyond this count as this where intervals are scored."""
_SPREADS = np.linspace(0.2, 0.8, 121)
_DEVICE = np.linspace(0.06, 0.3, 49)
_STAND_IN = np.linspace(0.0, 0.8, 161)


def first_tables() -> list[str]:
    """Tables that were kept at first sight, by name."""
    return [path.name.removesuffix(AS_WRITTEN) for path in written_tables()]


def traits_of(runs: EvidenceRuns, i: int) -> Traits:
    """What sets the time of a measured run."""
    return Traits(
        words={name: str(runs.words[name][i]) for name in WORDS},
        months=float(runs.months[i]),
        known=True,
        numbers={name: runs.numbers[name][i : i + 1] for name in NUMBERS},
        axes={name: runs.axes[name][i : i + 1].reshape(1, len(AXES)) for name in runs.axes},
    )


def near(rows: Sequence[int], neighbours: EvidenceRuns) -> list[Nearness]:
    """Some runs set against others, each without its own source."""
    runs = load_evidence_runs()
    return [nearness(traits_of(runs, i), runs.words["family"][i], neighbours) for i in rows]


def log_errors(rows: Sequence[int]) -> Floats:
    """Logarithm of measured over predicted step time."""
    return np.asarray(-np.log1p(load_evidence_runs().error[list(rows)]))


def fitted_spread(without: str = "") -> float:
    """Fit ``spread``: the least with which P10 to P90 holds four of five runs at first sight.

    The runs of the table `without` are left out, of the neighbours too.
    """
    runs = load_evidence_runs()
    tables = [name for name in first_tables() if name != without]
    rows = np.flatnonzero(np.isin(runs.words["table"], tables)).tolist()
    likened = near(rows, runs.some(runs.words["table"] != without))
    off = np.abs(log_errors(rows))

    def inside(spread: float) -> float:
        expected = np.concatenate([_by_runs_near(n, spread) for n in likened])
        return float(np.mean(off <= P90_T4 * expected))

    return next((x for x in _SPREADS.tolist() if inside(x) >= 1.0 - OUTSIDE), float(_SPREADS[-1]))


@cache
def trainers_left_out() -> dict[str, tuple[Floats, Floats]]:
    """Errors to expect by the runs of other trainers, and what came (logarithms); by trainer.

    Of those that no vendor tunes and that have runs at first sight, each without its framework and
    its table.
    """
    runs, errors = load_evidence_runs(), {}
    trainers, tables = runs.words["stack"], runs.words["table"]
    plain = np.isin(tables, first_tables()) & (runs.words["tuned"] != "vendor")
    for name in sorted(set(trainers[plain].tolist())):
        rows = np.flatnonzero(plain & (trainers == name)).tolist()
        usual = [
            _by_runs_near(near([i], runs.some((trainers != name) & (tables != tables[i])))[0])
            for i in rows
        ]
        errors[name] = (np.concatenate(usual), log_errors(rows))
    return errors


@cache
def fitted_stand_in(without: str = "") -> float:
    """Fit ``stand_in``: what a trainer that nobody ran is off in all its runs alike.

    Maximum likelihood of Student's t with four degrees of freedom, a trainer of n runs weighing as
    the root of n. The trainer `without` does not count.
    """
    return _common_error(trainers_left_out(), without)


@cache
def experts_left_out() -> dict[str, tuple[Floats, Floats]]:
    """Errors to expect by runs of other sources, and what came (logarithms); by source.

    Of runs with experts, at first sight, of trainers that no vendor tunes, each without its table.
    """
    runs, errors = load_evidence_runs(), {}
    words = runs.words
    some = np.isin(words["table"], first_tables()) & (words["kind"] == "experts")
    some = some & (words["tuned"] != TUNED)
    for name in sorted(set(words["source"][some].tolist())):
        rows = np.flatnonzero(some & (words["source"] == name)).tolist()
        others = runs.some(~np.isin(words["table"], words["table"][rows]))
        errors[name] = (
            np.concatenate([_by_runs_near(n) for n in near(rows, others)]),
            log_errors(rows),
        )
    return errors


@cache
def fitted_untuned_experts(without: str = "") -> float:
    """Fit ``untuned_experts`` like ``stand_in``, to sources but for the one `without`."""
    return _common_error(experts_left_out(), without)


def _common_error(groups: Mapping[str, tuple[Floats, Floats]], without: str) -> float:
    """What runs of a group are off alike, beyond what is expected: a group of n weighs its root."""
    errors = [some for name, some in groups.items() if name != without]
    most = float(load_likeness().most_off)
    expected, off = (np.concatenate(some) for some in zip(*errors, strict=True))
    off = np.clip(off, -most, most)
    weight = np.concatenate([np.full(len(some), len(some) ** -0.5) for some, _ in errors])

    def likelihood(size: float) -> float:
        scale = np.hypot(expected, size)
        return float((weight * (-2.5 * np.log1p((off / scale) ** 2 / 4.0) - np.log(scale))).sum())

    return float(max(_STAND_IN.tolist(), key=likelihood))


@cache
def devices_left_out() -> dict[str, tuple[Floats, Floats]]:
    """Errors to expect by the runs of other devices, and what came; by device.

    Of those that have the kernels of another one and runs at first sight; the least error of such
    a device is not in it.
    """
    runs = load_evidence_runs()
    devices, errors = runs.words["device"], {}
    first = np.isin(runs.words["table"], first_tables())
    for name in sorted(set(devices[first].tolist())):
        if borrowed_tables(name):
            rows = np.flatnonzero(first & (devices == name)).tolist()
            usual = [_by_runs_near(n) for n in near(rows, runs.some(devices != name))]
            errors[name] = (np.concatenate(usual), np.minimum(np.abs(log_errors(rows)), MOST_OFF))
    return errors


@cache
def fitted_device(without: str = "") -> float:
    """Fit ``untimed_device``: the least with which such runs are no further off than is said.

    Each device weighs the same, whatever its runs; the device `without` does not count.
    """
    errors = [some for name, some in devices_left_out().items() if name != without]
    true = np.mean([off.mean() for _, off in errors])

    def stated(least: float) -> float:
        return float(np.mean([np.fmax(usual, least).mean() for usual, _ in errors]))

    return next((x for x in _DEVICE.tolist() if stated(x) >= true), float(_DEVICE[-1]))


def expected_left_out(table: str) -> tuple[list[int], Floats]:
    """Rows of a table, and the error to expect of each with the whole table left out.

    What a trainer, a device or experts are off in all their runs alike is fitted without that
    trainer, that device and that source.
    """
    runs = load_evidence_runs()
    rows = np.flatnonzero(runs.words["table"] == table).tolist()
    spread = fitted_spread(without=table)
    expected = []
    sources = runs.words["source"][rows].tolist()
    likenesses = near(rows, runs.some(runs.words["table"] != table))
    for source, likened in zip(sources, likenesses, strict=True):
        usual = _by_runs_near(likened, spread)
        rules = _rules_without(likened.traits.words, source)
        widened = likened.unlike_any(usual, rules).values()
        expected.append(max(float(some[0]) for some in (usual, *widened)))
    return rows, np.array(expected)


def grades_left_out(rows: Sequence[int], table: str, expected: Floats) -> list[str]:
    """Grades of rows as an answer would say them, with the whole table left out."""
    runs = load_evidence_runs()
    likened = near(rows, runs.some(runs.words["table"] != table))
    parts = zip(likened, expected.tolist(), strict=True)
    return [grade_of(likened_to, error) for likened_to, error in parts]


def _rules_without(words: Mapping[str, str], source: str) -> Likeness:
    """The rules, fitted without a device, a trainer or a source that they would widen."""
    rules = load_likeness()
    if borrowed_tables(words["device"]):
        rules = replace(rules, untimed_device=_figure(fitted_device(words["device"])))
    if words["tuned"] == STOOD_IN:
        rules = replace(rules, stand_in=_figure(fitted_stand_in(words["stack"])))
    if words["tuned"] != TUNED and words["kind"] == "experts":
        rules = replace(rules, untuned_experts=_figure(fitted_untuned_experts(source)))
    return rules


def _by_runs_near(likened: Nearness, spread: float | None = None) -> Floats:
    """Error to expect by the runs near alone, with a spread in place of the shipped one."""
    rules = load_likeness()
    rules = rules if spread is None else replace(rules, spread=_figure(spread))
    return np.fmax(rules.expected(likened.error), likened.own / P90_T4)


def _figure(value: float) -> Figure:
    return Figure(value, "fitted", "fit")


def interval_scores(low: Floats, high: Floats) -> Floats:
    """Score P10 and P90 over the measured value, which is 1; smaller is better.

    The width, plus 2 / 0.2 times the distance by which 1 lies outside (Gneiting and Raftery 2007,
    equation 43).

    Examples
    --------
    >>> interval_scores(np.array([0.9, 1.01]), np.array([1.1, 1.2])).round(2).tolist()
    [0.2, 0.29]
    """
    outside = np.maximum(np.maximum(low - 1.0, 1.0 - high), 0.0)
    return np.asarray(high - low + 2.0 / OUTSIDE * outside)
