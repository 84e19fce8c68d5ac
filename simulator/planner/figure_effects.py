"""How much an answer moves with every figure behind it: which ones are worth measuring."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from simulator.answers import Encoded
from simulator.cost.step import Estimate, evaluate
from simulator.files import Figure, with_figure
from simulator.hardware.cluster import Cluster
from simulator.planner.answer_evidence import UsedFigure, used_figures
from simulator.planner.prediction import Prediction
from simulator.software.profile import Software

UNSTATED = 0.1
"""By how much a figure is moved whose profile states no spread, relative."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FigureEffect(Encoded):
    """What one figure does to a step time, or to one term of it."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("profile=figure.profile", "figure=figure.name", "value=figure.value"),
        *("grade=figure.grade", "spread=figure.spread", "moved", "step_time_change_s=change_s"),
        "source=figure.source",
    )

    figure: UsedFigure
    moved: float
    """By how much it was made larger, relative: its spread, or UNSTATED."""
    change_s: float
    """Step time (or the term) then, less what it was."""


def figure_effects(prediction: Prediction, term: str | None = None) -> list[FigureEffect]:
    """Make every figure larger by its spread, one at a time, and price the layout again.

    Parameters
    ----------
    prediction : Prediction
        The layout.
    term : str, optional
        What is watched: a term of the step time; the whole of it unless given.

    Returns
    -------
    list of FigureEffect
        Those that move it most first; figures of price and site have no part in it.
    """
    scenario, layouts = prediction.scenario, prediction.estimate.layouts
    before_s = _watched(prediction.estimate, term)
    found = []
    for figure in used_figures(scenario.workload.recipe, scenario.cluster, scenario.software):
        moved = figure.spread or UNSTATED
        value = Figure(figure.value * (1.0 + moved), figure.grade, figure.source)
        cluster, software = _with(scenario.cluster, scenario.software, figure, value)
        estimate = evaluate(layouts, scenario.workload, cluster, software)
        change_s = _watched(estimate, term) - before_s
        found.append(FigureEffect(figure=figure, moved=moved, change_s=change_s))
    return sorted(found, key=lambda effect: -abs(effect.change_s))


def _watched(estimate: Estimate, term: str | None) -> float:
    return float((estimate.step_time_s if term is None else estimate.terms_s[term])[0])


def _with(
    cluster: Cluster, software: Software, figure: UsedFigure, value: Figure
) -> tuple[Cluster, Software]:
    """The machine and software with one figure replaced, in every group that has it."""
    kind, _, name = figure.profile.partition(" ")
    if kind == "software":
        return cluster, with_figure(software, figure.name, value)
    if kind in ("cluster", "collectives"):
        part = "fabric" if kind == "cluster" else "library"
        changed = with_figure(getattr(cluster, part), figure.name, value)
        return replace(cluster, **{part: changed}), software
    groups = [
        replace(group, **{kind: with_figure(getattr(group, kind), figure.name, value)})
        if getattr(group, kind).name == name
        else group
        for group in cluster.groups
    ]
    return replace(cluster, groups=tuple(groups)), software
