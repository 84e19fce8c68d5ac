"""How good the predictions are, as one document of plain numbers, and what moved since the last.

The document is what docs/accuracy.json holds and what docs/accuracy.md is made of. Numbers have
six significant digits, so that the same predictions give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulator import catalogue
from simulator.files import read_csv, read_toml
from simulator.frames import frame
from simulator.measured.table_kinds import LEFT_OUT
from simulator.scoring.baselines import (
    ConstantEfficiency,
    shipped_baseline,
)
from simulator.scoring.rankings import ranking_statistics
from simulator.scoring.score_tables import score_microbenchmarks, summaries
from simulator.scoring.scores import SCORED_MEMORY, ScoredRow, error_statistics, summary
from simulator.scoring.series import Series, series
from simulator.scoring.validation import Validation, validate
from workshop.cases.ablation import NEUTRAL, STEPS, ablation, step_figures
from workshop.cases.certainty_scores import certainty_scores
from workshop.cases.effects import effects
from workshop.cases.first_sight import first_sight
from workshop.cases.goodput import compared, months_errors, read_cases
from workshop.cases.gpu_hours import hours_errors, hours_of, read_hour_cases
from workshop.cases.holdout_groups import groups_left_out
from workshop.cases.holdout_shapes import pooled_errors
from workshop.cases.intervals_left_out import intervals_left_out
from workshop.cases.mutated_inputs import mutated_inputs
from workshop.cases.noise_floor import ReleasePair, release_pairs
from workshop.cases.published_layouts import decide, load_decisions, load_rl_memory
from workshop.cases.recipes import recipes, retimed, search_recipe
from workshop.cases.switch_pairs import switch_figures
from workshop.cases.without_terms import without_terms
from workshop.facts import facts

FILES = tuple(facts(__file__)["tables"])
"""Shipped tables that the document covers; `vtrain_single` is composed and stays on its own lines.
"""

_FIRST = ("calibrate", "test")
"""Splits in which the pieces of the physics are taken apart."""

TOLERANCE = 0.01
"""What the mean absolute error of a source may grow by: one point."""

_ERRORS = ("n", "mape", "median_ape", "p90_ape", "max_ape", "bias")
_BY = ("by_kernel", "by_device")
_DIGITS = 6


# --- the document ------------------------------------------------------------------------


def accuracy() -> dict[str, Any]:
    """Predict the shipped runs and microbenchmarks, and return the whole document.

    Returns
    -------
    dict
        That of :func:`document`; ``ablation``: every step with its figures by split, and every
        term taken out alone; ``microbenchmarks``: errors of the shipped tables by kernel and by
        device; ``left_out``: errors of fits on shapes that they have not seen; ``effects``:
        published effect sizes and their predictions; ``switches``: pairs of runs that differ in
        one switch; ``first_sight``: tables as predicted before anybody looked at them, and what was
        edited since; ``intervals``: what P10 to P90 hold on tables left out; ``goodput``: errors of
        whole runs; and ``rl``: those of steps of reinforcement learning.
    """
    found = validated()
    measured = [row for row in found.rows if row.step_error is not None and not row.composed]
    known = [row for row in measured if row.run.get("split") in _FIRST]
    steps = {name: step_figures(rows) for name, rows in ablation(known, shipped_baseline()).items()}
    listed = [{"name": name, "what": STEPS[name], **figures} for name, figures in steps.items()]
    ablated = {"neutral": NEUTRAL, "steps": listed, "without": without_terms(known)}
    extra: dict[str, Any] = {"ablation": ablated, "microbenchmarks": _microbenchmarks()}
    extra |= {"left_out": pooled_errors(), "groups_left_out": groups_left_out()}
    extra |= {"mutations": mutated_inputs(), "first_sight": first_sight()}
    extra |= {"intervals": intervals_left_out()}
    extra |= {"effects": [effect.figures() for effect in effects()]}
    extra |= {"switches": switch_figures(found.rows)}
    months = [row for case in read_cases() for row in compared(case)]
    hours = [hours_of(case) for case in read_hour_cases()]
    extra |= {"goodput": {"months": months_errors(months), "gpu_hours": hours_errors(hours)}}
    extra |= {"rl": rl_errors()}
    extra |= {"decisions": [decide(decision).figures() for decision in load_decisions()]}
    extra |= {"recipes": [search_recipe(recipe).figures() for recipe in recipes()]}
    extra |= {"retimed": [one.figures() for one in retimed()]}
    return {**document(found), **_rounded(extra)}


def rl_errors() -> dict[str, Any]:
    """Errors of measured steps of reinforcement learning: today by kind, and at first sight."""
    folder = catalogue.folder("validation")
    scored = validate(folder / "runs" / "rl_runs.csv").summary()["rl"]
    names = ("n", "mape", "median_ape", "bias", "coverage_80")
    memory = load_rl_memory()
    kinds = {"all": scored, **scored["by_use"], **scored["by_policy"]}
    rows = read_csv(folder / "runs" / "rl_runs.csv")
    measured = {row["run_id"]: row["step_time_s"] for _, row in rows}
    seen = read_csv(folder / "first_seen" / "rl_runs.csv")
    first = [
        abs(float(row["predicted_step_s"]) / float(measured[row["run_id"]]) - 1.0)
        for _, row in seen
        if row["predicted_step_s"] and measured.get(row["run_id"])
    ]
    return {
        "kinds": {kind: {name: errors[name] for name in names} for kind, errors in kinds.items()},
        "first_sight": {"n": len(first), "mape": float(np.mean(first))},
        "memory": {"n": len(memory), "right": sum(case.fits() == case.ran for case in memory)},
    }


def validated() -> Validation:
    """Predict the shipped runs."""
    return validate([catalogue.folder("validation") / "runs" / name for name in FILES])


def document(validation: Validation) -> dict[str, Any]:
    """Write what follows from the rows and their predictions.

    Returns
    -------
    dict
        ``sources``: errors by source and split, beside the baselines; ``kinds``: pooled by kind and
        split; ``baselines``; ``memory``; ``ranking``; ``series``; ``certainty``; ``peers``;
        ``skipped``: reasons and counts; ``predicted_step_s`` and ``measured_step_s`` by run.
        Errors are ``predicted / measured - 1``; what does not exist is None.
    """
    rows = validation.rows
    baseline = shipped_baseline()
    pairs = release_pairs(row.run for row in rows if not row.composed and row.replayable)
    same = _as_predicted_by(baseline, [row for row in rows if row.status == "ok"])
    ours, constant = summary(rows), summary(same)
    every = summary(_as_predicted_by(baseline, rows))
    return _rounded(
        {
            "schema": 1,
            "files": list(FILES),
            "sources": _sources(rows, ours, constant, every, pairs),
            "kinds": _kinds(rows, ours, constant),
            "baselines": {
                "constant_efficiency": _constant(baseline, every),
                "noise_floor": _noise(pairs),
            },
            "memory": _memory(rows),
            "ranking": {"groups": ours["ranking"], "by_split": ours["ranking_by_split"]},
            "series": [_series(curve) for curve in series(rows) if not curve.rows[0].composed],
            "certainty": certainty_scores(rows, ours),
            "peers": {**_peers(), "ours": _ranking_on_a100(ours["ranking"])},
            "skipped": ours["skipped"],
            "predicted_step_s": {
                row.run.get("run_id"): row.predicted_step_s for row in rows if row.status == "ok"
            },
            "measured_step_s": {row.run.get("run_id"): row.measured_step_s for row in rows},
        }
    )


def _as_predicted_by(baseline: ConstantEfficiency, rows: Iterable[ScoredRow]) -> list[ScoredRow]:
    """Give rows what the baseline predicts in place of the simulator's own prediction."""
    return [
        replace(row, status="ok", predicted_step_s=baseline.predict_s(row.run))
        for row in rows
        if row.replayable
    ]


def _sources(
    rows: Sequence[ScoredRow],
    ours: Mapping[str, Any],
    constant: Mapping[str, Any],
    every: Mapping[str, Any],
    pairs: Sequence[ReleasePair],
) -> dict[str, Any]:
    composed = {row.run.get("source") for row in rows if row.composed}
    frameworks: dict[str, set[str]] = {}
    for row in rows:
        frameworks.setdefault(row.run.get("source"), set()).add(row.framework)
    sources: dict[str, Any] = {}
    for source, parts in ours["by_source"].items():
        near = [pair for pair in pairs if pair.framework in frameworks.get(source, ())]
        for split, errors in parts["by_split"].items():
            sources.setdefault(source, {})[split] = {
                "composed": source in composed,
                **{key: errors[key] for key in ("rows", "replayable", "coverage")},
                "predicted": errors["rows"] - errors["skipped"],
                **_some(errors),
                "constant_efficiency": _some(_part(constant, "by_source", source, split)),
                "constant_efficiency_all_rows": _some(_part(every, "by_source", source, split)),
                "next_release": _spread(near)["median"],
            }
    return sources


def _kinds(
    rows: Iterable[ScoredRow], ours: Mapping[str, Any], constant: Mapping[str, Any]
) -> dict[str, Any]:
    """Errors by split and kind, `all` first; `mape_over_sources` weighs every source the same."""
    errors = frame(
        [
            (row.run.get("split"), row.run.get("source"), kind, abs(row.step_error))
            for row in rows
            if row.step_error is not None and not row.composed
            for kind in ("all", row.kind)
        ],
        columns=("split", "source", "kind", "error"),
    )

    def over_sources(split: str, kind: str) -> float | None:
        some = errors[(errors["split"] == split) & (errors["kind"] == kind)]
        means = some.groupby("source", sort=False)["error"].agg(_mean)
        return float(np.mean(means)) if len(means) else None

    return {
        split: {
            kind: {
                **_some(_of_kind(ours, kind, split)),
                "mape_over_sources": over_sources(split, kind),
                "constant_efficiency": _some(_of_kind(constant, kind, split)),
            }
            for kind in ("all", *ours["by_kind"])
        }
        for split in ours["by_split"]
    }


def _mean(errors: Any) -> float:
    """Mean in the order of rows, as NumPy adds it up."""
    return float(np.mean(errors.to_numpy()))


def _of_kind(found: Mapping[str, Any], kind: str, split: str) -> Mapping[str, Any] | None:
    return found["by_split"].get(split) if kind == "all" else _part(found, "by_kind", kind, split)


def _part(found: Mapping[str, Any], by: str, word: str, split: str) -> Mapping[str, Any] | None:
    part: Mapping[str, Any] | None = found[by].get(word, {}).get("by_split", {}).get(split)
    return part


def _some(errors: Mapping[str, Any] | None) -> dict[str, Any]:
    known = error_statistics([]) if errors is None else errors
    return {key: known[key] for key in _ERRORS}


def _constant(baseline: ConstantEfficiency, every: Mapping[str, Any]) -> dict[str, Any]:
    rates: dict[str, dict[str, float]] = {}
    for (gpu, bits), rate in baseline.flop_per_s.items():
        rates.setdefault(bits, {})[gpu] = rate
    return {
        "flop_per_s": rates,
        "peak_share": dict(baseline.peak_share),
        "all_rows": {split: _some(errors) for split, errors in every["by_split"].items()},
    }


def _noise(pairs: Sequence[ReleasePair]) -> dict[str, Any]:
    """How far neighbouring releases are apart: pooled, and by framework."""
    kinds = {"dense": False, "MoE": True}
    pooled = {k: _spread([p for p in pairs if p.moe == moe]) for k, moe in kinds.items()}
    frameworks = {
        f"{name}, {kind}": _spread([p for p in pairs if (p.framework, p.moe) == (name, moe)])
        for name in sorted({pair.framework for pair in pairs})
        for kind, moe in kinds.items()
    }
    return {
        **pooled,
        "by_framework": {k: framework for k, framework in frameworks.items() if framework["n"]},
    }


def _spread(pairs: Sequence[ReleasePair]) -> dict[str, Any]:
    """Statistics of ``|newer / older - 1|``."""
    found = error_statistics([pair.ratio - 1.0 for pair in pairs])
    keys = {"n": "n", "median": "median_ape", "p90": "p90_ape", "max": "max_ape"}
    return {name: found[key] for name, key in keys.items()}


def _memory(rows: Iterable[ScoredRow]) -> dict[str, Any]:
    """Memory errors by kind of reading, source and split; readings of other kinds are counted."""
    readings = frame(
        [
            (row.memory_kind, row.run.get("source"), row.run.get("split"), row.memory_error)
            for row in rows
            if row.memory_kind is not None
        ],
        columns=("kind", "source", "split", "error"),
    )
    known = readings["error"].notna()
    scored: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in SCORED_MEMORY}
    by_split = readings[known].groupby(["kind", "source", "split"], sort=False)["error"]
    for (kind, source, split), some in by_split:
        scored[kind].setdefault(source, {})[split] = _some(error_statistics(some.tolist()))
    return {
        "scored": scored,
        "not_scored": readings[~known].groupby("kind", sort=False).size().to_dict(),
    }


def _peers() -> dict[str, Any]:
    """What two other simulators reach on `test`, and their rankings on A100."""
    return read_toml(catalogue.folder("validation") / "peers.toml")


def _ranking_on_a100(groups: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What stands beside the peers' rankings: all measured groups on A100, of both splits."""
    return ranking_statistics(
        g for g in groups if not g["composed"] and facts(__file__)["peers_on"] in g["group"]
    )


def _series(series: Series) -> dict[str, Any]:
    """Name a series, and say how its prediction stands at its ends and over all sizes."""
    last = series.rows[-1].run
    names = ("source", "split", "model", "gpu", "software", "precision", "sharding", "shard_group")
    errors = series.predicted_s / series.measured_s - 1.0
    points = {
        name: getattr(series, name).tolist() for name in ("gpus", "measured_s", "predicted_s")
    }
    return {
        "kind": series.kind,
        "sequences": series.sequences,
        **{name: last.get(name) for name in names},
        **{name: int(last.get(name) or 1) for name in ("tp", "pp", "micro_batch")},
        **points,
        "mape": float(np.abs(errors).mean()),
        "drift": float((1.0 + errors[-1]) / (1.0 + errors[0]) - 1.0),
    }


def _microbenchmarks() -> dict[str, Any]:
    """Errors of every kind of shipped table, as a whole and by kernel and device."""
    folder = catalogue.folder("validation") / "microbenchmarks"
    tables = sorted(path for path in folder.glob("*.csv") if path.name != LEFT_OUT)
    return {
        name: {
            **_some(summary),
            "rows": summary["rows"],
            "skipped": summary["skipped"],
            **{by: {word: _some(some) for word, some in summary[by].items()} for by in _BY},
        }
        for name, summary in summaries(score_microbenchmarks(tables)).items()
        if summary is not None
    }


def _rounded(value: Any) -> Any:
    """Cut every float to six significant digits."""
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


# --- what moved --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    """A prediction that changed between two documents; None where there was or is none."""

    run_id: str
    old_s: float | None
    new_s: float | None
    measured_s: float | None

    @property
    def factor(self) -> float | None:
        """New over old."""
        return None if self.old_s is None or self.new_s is None else self.new_s / self.old_s

    def __str__(self) -> str:
        times = (f"{s:.6g} s" if s is not None else "none" for s in (self.old_s, self.new_s))
        change = "" if self.factor is None else f" ({100 * (self.factor - 1.0):+.1f} %)"
        measured = "not" if self.measured_s is None else f"{self.measured_s:.6g} s"
        return f"{self.run_id}: {' -> '.join(times)}{change}, measured {measured}"


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Moved]:
    """List the predictions that differ between two documents, those that moved most first.

    Predictions that only one of the documents has come last.
    """
    before, after = old["predicted_step_s"], new["predicted_step_s"]
    measured = {**old["measured_step_s"], **new["measured_step_s"]}
    moved = [
        Moved(
            run_id=name,
            old_s=before.get(name),
            new_s=after.get(name),
            measured_s=measured.get(name),
        )
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    ]
    return sorted(moved, key=lambda one: -abs(np.log(one.factor)) if one.factor else 1.0)


def regressions(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Say for which source and split predictions became worse than the old document allows.

    The mean absolute error may grow by `TOLERANCE`; the share of replayable rows that are
    predicted must not fall.
    """
    found = []
    for source, splits in old["sources"].items():
        for split, before in splits.items():
            after = new["sources"].get(source, {}).get(split)
            if after is None:
                found.append(f"{source}, {split}: no row of it is left")
                continue
            was, now = before["mape"], after["mape"]
            if was is not None and now is not None and now > was + TOLERANCE:
                found.append(
                    f"{source}, {split}: mean error grew from {100 * was:.2f} to {100 * now:.2f} %"
                )
            if (after["coverage"] or 0.0) < (before["coverage"] or 0.0):
                found.append(
                    f"{source}, {split}: share of rows predicted fell from"
                    f" {100 * before['coverage']:.1f} to {100 * (after['coverage'] or 0.0):.1f} %"
                )
    return found
