"""Published recipes: whether the search, told no layout, does as well as those who tuned one.

NVIDIA's performance recipes (Megatron-Bridge, NeMo on DGX Cloud) are layouts that people chose for
a model, devices, a batch and a precision, and timed. Of every model, device and precision the
latest with the most GPUs is searched: model, cluster, batch, precision, software and dispatcher are
given, the layout is not. The published layout should fit, and lie near our best.

Where a later release timed the same job with another layout, that timing judges what the search had
said to the first one: whether a faster layout was there, and by how much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator import catalogue
from simulator.cost.estimate import concatenate
from simulator.cost.step import Estimate, evaluate
from simulator.cost.uncertainty import bearing, belief, evidence_spread, same_kernels, shrunk
from simulator.measured.replay import NotReplayable, Run, load_tables, replay
from simulator.measured.rows import MeasuredRun, read_runs
from simulator.search.certainty import TIE
from simulator.search.explore import explore
from workshop.cases.published_layouts import NEAR
from workshop.facts import facts

_FILES = ("calibrate.csv", "test.csv", "second_calibrate.csv", "second_test.csv")

_SOURCES = tuple(facts(__file__)["recipes"])
"""Where recipes are, the latest last."""

_SAME = ("model", "gpu", "num_gpus", "precision", "global_batch", "seq_len")
"""What two timed recipes of one job have in common."""

_PLACES = ("tp", "pp", "cp", "ep", "etp", "micro_batch")
"""What makes layouts different: a later release may name chunks or recomputation that were not."""

_MOST = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A row of the shipped runs, and what it stands for."""

    row: MeasuredRun
    run: Run

    @property
    def name(self) -> str:
        """Model, GPUs and precision."""
        get = self.row.get
        return f"{get('model')}, {get('num_gpus')} x {get('gpu')}, {get('precision')}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """A predicted gain beside its error; errors that both layouts share cancel."""

    claimed: float
    """Step time of the published layout over that of our best, minus 1."""
    expected: float
    """What is left of it (``simulator/cost/uncertainty.py: shrunk``)."""
    tie: bool
    """Whether the published layout is the faster one with a chance of TIE or more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Searched:
    """A recipe beside our search."""

    recipe: Recipe
    published: Estimate
    """The published layout, a single row."""
    best: Estimate
    """Our best, a single row; the published one where nothing fits."""

    @property
    def slower(self) -> float:
        """Step time of the published layout over that of our best, minus 1."""
        return float(self.published.step_time_s[0] / self.best.step_time_s[0]) - 1.0

    @property
    def near(self) -> bool:
        """Whether the published layout fits and lies within NEAR of our best."""
        return bool(self.published.fits[0]) and self.slower <= NEAR

    @property
    def gain(self) -> Gain:
        """What our best is said to save over the published layout, and what is to be expected."""
        run = self.recipe.run
        both = concatenate([self.best, self.published])
        setting = run.cluster, run.software, run.workload
        family = str(self.recipe.row.get("source")).partition("-")[0]
        wide = evidence_spread(both, run.workload, run.cluster, run.software, family)
        known = belief(*setting, wide=float(wide.mean()))
        shares = bearing(both, experts=run.workload.architecture.is_moe)
        kernels, step_s = same_kernels(both.layouts), both.step_time_s
        variance = known.apart(shares, kernels)
        claimed = np.log(step_s[1:] / step_s[0])
        return Gain(
            claimed=float(np.expm1(claimed)[0]),
            expected=float(np.expm1(shrunk(claimed, variance[1:]))[0]),
            tie=bool(known.beats(step_s, shares, kernels)[1] >= TIE),
        )

    @property
    def why(self) -> str:
        """What our best takes less and more of than the published layout, where it is not near."""
        if self.near:
            return ""
        whole = float(self.published.step_time_s[0])
        change = {
            name: float(self.best.terms_s[name][0] - seconds[0]) / whole
            for name, seconds in self.published.terms_s.items()
        }
        order = sorted(change, key=lambda name: change[name])
        less = [f"{name} {change[name]:+.1%}" for name in order[:2] if change[name] < -0.005]
        more = [f"{name} {change[name]:+.1%}" for name in order[:-2:-1] if change[name] > 0.005]
        return ", ".join([*less, *more])

    def figures(self) -> dict[str, Any]:
        """Plain numbers and words, as docs/accuracy.json has them."""
        published = self.published
        return {
            "run_id": self.recipe.row.get("run_id"),
            "name": self.recipe.name,
            "published": published.layouts.describe(),
            "memory_verdict": published.verdict_word(),
            "published_step_s": float(published.step_time_s[0]),
            "measured_step_s": float(self.recipe.row.get("step_time_s")),
            "best": self.best.layouts.describe(),
            "best_step_s": float(self.best.step_time_s[0]),
            "slower": self.slower,
            "expected": self.gain.expected,
            "tie": self.gain.tie,
            "why": self.why,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Retimed:
    """A recipe whose layout a later release changed, and what our search had said to the first."""

    first: Searched
    later: Recipe
    """The fastest timed since, of another layout."""
    later_s: float
    """Its predicted step, under its own release."""

    def figures(self) -> dict[str, Any]:
        """Plain numbers and words, as docs/accuracy.json has them."""
        first, later = self.first.figures(), self.later
        names = ("name", "published", "published_step_s", "measured_step_s", "best", "slower")
        return {
            **{name: first[name] for name in names},
            "source": self.first.recipe.row.get("source"),
            "run_id": first["run_id"],
            "later_source": later.row.get("source"),
            "later": later.run.layout.describe(),
            "later_step_s": self.later_s,
            "later_measured_step_s": float(later.row.get("step_time_s")),
        }


def recipes() -> list[Recipe]:
    """Of every model, device and precision the latest recipe with the most GPUs, _MOST at most."""
    best: dict[tuple[str, ...], tuple[tuple[int, int], Recipe]] = {}
    for recipe in _timed():
        row = recipe.row
        key = tuple(row.get(name) for name in ("model", "gpu", "precision"))
        rank = _SOURCES.index(row.get("source")), int(row.get("num_gpus"))
        if key not in best or rank > best[key][0]:
            best[key] = rank, recipe
    return _spread([recipe for _, recipe in best.values()])


def retimed() -> list[Retimed]:
    """Jobs that a later release timed with another layout, each against its first recipe."""
    jobs: dict[tuple[str, ...], list[Recipe]] = {}
    for recipe in _timed():
        jobs.setdefault(tuple(recipe.row.get(name) for name in _SAME), []).append(recipe)
    found = []
    for every in jobs.values():
        order = sorted(every, key=lambda one: _SOURCES.index(one.row.get("source")))
        first = order[0]
        source, where = first.row.get("source"), _places(first)
        others = [x for x in order if x.row.get("source") != source and _places(x) != where]
        if others:
            later = min(others, key=lambda one: float(one.row.get("step_time_s")))
            run = later.run
            price = evaluate(run.layout, run.workload, run.cluster, run.software)
            seconds = float(price.step_time_s[0])
            found.append(Retimed(first=search_recipe(first), later=later, later_s=seconds))
    return found


def _places(recipe: Recipe) -> tuple[Any, ...]:
    row = recipe.run.layout.row()
    return tuple(row[name] for name in _PLACES)


def _timed() -> Iterator[Recipe]:
    """Every timed recipe that can be replayed."""
    folder, tables = catalogue.folder("validation") / "runs", load_tables()
    for row in read_runs([folder / name for name in _FILES]):
        if row.get("source") not in _SOURCES or row.fault:
            continue
        try:
            yield Recipe(row=row, run=replay(row.fields, tables, where=row.where))
        except NotReplayable:
            continue


def _spread(recipes: Sequence[Recipe]) -> list[Recipe]:
    """At most _MOST of them: a precision of every model and device first, then the next one."""
    turn: dict[tuple[str, str], int] = {}
    order = []
    for place, recipe in enumerate(recipes):
        key = recipe.row.get("model"), recipe.row.get("gpu")
        turn[key] = turn.get(key, -1) + 1
        order.append((turn[key], place))
    return [recipes[place] for _, place in sorted(order)[:_MOST]]


def search_recipe(recipe: Recipe) -> Searched:
    """Predict the published layout, and search for a better one without being told of it."""
    run = recipe.run
    parts = run.workload, run.cluster, run.software
    published, row = evaluate(run.layout, *parts), run.layout.row()
    given = {"dispatcher": row["dispatcher"]} if row["ep"] * row["etp"] > 1 else {}
    found = explore(*parts, given, keep=1, allow_tight=True)  # the published ones did run
    best = found.best if len(found.best) else published
    return Searched(recipe=recipe, published=published, best=best)
