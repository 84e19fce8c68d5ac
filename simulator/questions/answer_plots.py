"""What ``.plot()`` of an answer draws: one frame each, with matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.cost.terms import LABELS
from simulator.economics.ownership import RentOrBuy
from simulator.events.played import SimulatedStep
from simulator.planner.mixed_plan import MixedPlan
from simulator.planner.mixed_prediction import MixedPrediction
from simulator.planner.plan import Plan, pinned_words
from simulator.planner.prediction import Prediction
from simulator.planner.simulated_run import SimulatedRun
from simulator.questions.compare.answer import Comparison
from simulator.questions.diagnose.answer import Diagnoses
from simulator.questions.distillation.answer import Distilled
from simulator.questions.job_schedule.answer import JobSchedule
from simulator.questions.parameter_server.answer import Served
from simulator.questions.power.answer import PowerChoices
from simulator.questions.power.picture import draw_power
from simulator.questions.rl.answer import PricedRL
from simulator.questions.rl.page import draw_lanes
from simulator.questions.run_options import Way
from simulator.questions.sites.answer import SeveralSites
from simulator.questions.size.answer import Sized
from simulator.questions.sparse.answer import Recommended
from simulator.questions.sweep.answer import Sweep
from simulator.questions.versus.answer import Versus
from simulator.questions.versus.fabrics import FabricChoices
from simulator.questions.versus.what_if import WhatIf
from simulator.report.canvas import plain_axes
from simulator.report.comparison import time_bars
from simulator.report.decision_picture import draw_decision
from simulator.report.palette import CATEGORIES, PALETTE, category, colour
from simulator.report.pipeline_picture import draw_timeline
from simulator.units import DAY_S

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEAST = 0.002
"""Share of the longest bar below which a term gets no word in the legend."""

_TITLE = 110
"""Most characters in a line of a title."""


def draw(answer: Any, axes: Axes | None = None) -> Axes:
    """Draw an answer into axes, new ones unless they are given, and return them."""
    if axes is None:
        from matplotlib import pyplot

        _, axes = pyplot.subplots(figsize=(9.0, 3.6), layout="constrained")
    plain_axes(axes)
    _DRAWERS[type(answer)](answer, axes)
    if not axes.get_title(loc="left"):
        axes.set_title(fill(answer.line, _TITLE), fontsize=9, loc="left")
    return axes


def _plan(answer: Plan, axes: Axes) -> None:
    bars = time_bars(answer)
    named = {f"{_lines(bar.named)}\n{bar.layout}": bar.terms_s for bar in bars}
    _bars(axes, named, [(bar.p10_s, bar.p90_s) for bar in bars])
    pinned = pinned_words(answer.scenario)
    title = f"{answer.line}{f'; pinned: {pinned}' if pinned else ''}"
    axes.set_title(fill(title, _TITLE), fontsize=9, loc="left")


def _lines(name: str) -> str:
    """A role over what it is in brackets."""
    return name.replace(" (", "\n(")


def _prediction(answer: Prediction, axes: Axes) -> None:
    name = answer.estimate.layouts.describe()
    terms_s = {term: float(s[0]) for term, s in answer.estimate.terms_s.items()}
    _bars(axes, {name: terms_s}, [answer.interval_s])


def _versus(answer: Versus, axes: Axes) -> None:
    columns = answer.estimate.terms_s
    sides = {"a": 0, "b": 1}
    sure = answer.certainty
    ends = [(float(sure.p10_s[i]), float(sure.p90_s[i])) for i in sides.values()]
    terms_s = {
        f"{name}\n{answer.estimate.layouts.describe(i)}": {
            term: float(s[i]) for term, s in columns.items()
        }
        for name, i in sides.items()
    }
    _bars(axes, terms_s, ends)


def _what_if(answer: WhatIf, axes: Axes) -> None:
    both = {"before": answer.before, "after": answer.after}
    _bars(
        axes,
        {
            name: {term: float(s[0]) for term, s in plan.estimate.terms_s.items()}
            for name, plan in both.items()
        },
        [plan.interval_s for plan in both.values()],
    )


def _diagnosed(answer: Diagnoses, axes: Axes) -> None:
    """The probability of every cause."""
    accounts = ["the prediction is off", "another run"]
    names = [*accounts, *(cause.name for cause in answer.causes)]
    chances = [
        answer.nothing_wrong,
        answer.not_the_run,
        *(cause.probability for cause in answer.causes),
    ]
    axes.barh(names, [100.0 * p for p in chances], color=colour("speed").light)
    axes.invert_yaxis()
    axes.set_xlabel("probability, %")


def _sized(answer: Sized, axes: Axes) -> None:
    """Days over accelerators, with what is asked."""
    rows = [row for row in answer.tried if row.feasible and row.days is not None]
    gpus = [row.gpus for row in rows]
    spans = [row.days for row in rows if row.days is not None]
    ink = colour("speed").light
    axes.fill_between(gpus, [s.p10 for s in spans], [s.p90 for s in spans], color=ink, alpha=0.18)
    axes.plot(gpus, [s.p50 for s in spans], "o-", color=ink, label="days, P10 to P90")
    if answer.asked.deadline_days is not None:
        limit = colour("does not fit").light
        axes.axhline(answer.asked.deadline_days, color=limit, ls="--", label="deadline")
    if answer.answer is not None:
        axes.axvline(answer.answer.gpus, color=colour("fits").light, ls=":", label="answer")
    axes.set_xlabel("accelerators")
    axes.set_ylabel("days")
    axes.legend(frameon=False, fontsize=8.5)


def _comparison(answer: Comparison, axes: Axes) -> None:
    """Money against days where both are known, else speed over accelerators."""
    if any(row.days is not None and row.usd is not None for row in answer.feasible):
        draw_decision(axes, answer.rows, answer.options, answer.asked)
        axes.legend(frameon=False, fontsize=8.5)
        return
    for cluster in dict.fromkeys(row.cluster for row in answer.feasible):
        rows = [row for row in answer.feasible if row.cluster == cluster]
        axes.plot(
            [r.gpus for r in rows], [r.tokens_per_s or 0.0 for r in rows], "o-", label=cluster
        )
    axes.set_xlabel("accelerators")
    axes.set_ylabel("tokens/s")
    axes.legend(frameon=False, fontsize=8.5)


def _sweep(answer: Sweep, axes: Axes) -> None:
    """Step time over the points, named by the first field that varies."""
    table = answer.to_frame()
    field = next((name for name in table.columns if "." in name), table.columns[0])
    places = np.arange(len(table))
    axes.plot(places, table["step_time_s"].astype(float), "o", color=colour("speed").light)
    axes.set_xticks(places, [str(value) for value in table[field]], rotation=40.0, fontsize=8)
    axes.set_xlabel(field)
    axes.set_ylabel("seconds per step")


def _played(answer: SimulatedStep, axes: Axes) -> None:
    draw_timeline(axes, answer)


def _distilled(answer: Distilled, axes: Axes) -> None:
    rows = answer.to_frame().set_index("way")
    parts = {"student_s": "student", "teacher_s": "teacher", "loss_s": "divergence"}
    _bars(axes, {w: {name: float(rows.at[w, key]) for key, name in parts.items()}
                 for w in rows.index})  # fmt: skip


def _rl(answer: PricedRL, axes: Axes) -> None:
    if answer.shown is not None:
        draw_lanes(axes, answer.shown)
        axes.legend(fontsize=8, ncols=4, frameon=False, loc="upper center")


def _recommended(answer: Recommended, axes: Axes) -> None:
    _bars(axes, {"shown": answer.terms_s, "hidden": answer.hidden_s})


def _ways(answer: Served | SeveralSites, axes: Axes) -> None:
    """Tokens a second of every way to run it."""
    rows: Sequence[Way] = answer.ways if isinstance(answer, Served) else answer.alternatives
    axes.barh([w.name for w in rows], [w.tokens_per_s for w in rows], color=colour("speed").light)
    axes.invert_yaxis()
    axes.set_xlabel("tokens/s")


def _scheduled(answer: JobSchedule, axes: Axes) -> None:
    """When every job runs, coloured by its part."""
    for job, row in zip(answer.schedule.jobs, answer.schedule.rows, strict=True):
        ink = CATEGORIES[category(row.option.part)].light
        axes.barh(job.name, row.end - row.start, left=row.start, color=ink)
    axes.invert_yaxis()
    axes.set_xlabel("days")


def _run(answer: SimulatedRun, axes: Axes) -> None:
    """How many of the played runs have ended after so many days, and the day of the goal."""
    days = np.sort(answer.played.wall_s) / DAY_S
    share = np.arange(1, len(days) + 1) / len(days)
    axes.plot(days, 100.0 * share, color=colour("speed").light, label="simulated runs")
    goal = answer.prediction.scenario.goal.deadline_days
    if goal is not None:
        axes.axvline(goal, color=colour("does not fit").light, ls="--", label="deadline")
        axes.legend(frameon=False, fontsize=8.5)
    axes.set_xlabel("days")
    axes.set_ylabel("% of runs that have ended")


def _options(answer: MixedPlan, axes: Axes) -> None:
    """A step of the best of each way to use the servers, P10 to P90."""
    best = {option.way: option for option in reversed(answer.options)}
    options = sorted(best.values(), key=lambda option: option.step_s)
    steps = np.array([option.step_s for option in options])
    sure = [option.run.certainty for option in options]
    ends = np.array([[float(x.p10_s[0]) for x in sure], [float(x.p90_s[0]) for x in sure]])
    names = [f"{option.way}\n{option.gpus:,} GPUs" for option in options]
    axes.barh(names, steps, xerr=np.abs(ends - steps), color=colour("speed").light, lw=0)
    axes.invert_yaxis()
    axes.set_xlabel("seconds per step")


def _mixed(answer: MixedPrediction, axes: Axes) -> None:
    _bars(axes, {answer.estimate.layouts.describe(): answer.step.terms_s})


def _fabrics(answer: FabricChoices, axes: Axes) -> None:
    """Price of the network against the step, and those that none beats; by bits without prices."""
    known = [row for row in answer.rows if row.network_usd is not None or not answer.priced]
    front = answer.front()
    for rows, style in ((known, "."), (front, "o-")):
        bits = [row.adapters * row.gbps / 1e3 for row in rows]
        usd = [(row.network_usd or 0.0) / 1e6 for row in rows]
        where = usd if answer.priced else bits
        word = "none is better" if rows is front else "tried"
        ink = colour("fits" if rows is front else "speed").light
        axes.plot(where, [row.step_time_s for row in rows], style, color=ink, label=word)
    axes.set_xlabel("network, million USD" if answer.priced else "adapters of a server, Tbit/s")
    axes.set_ylabel("seconds per step")
    axes.legend(frameon=False, fontsize=8.5)


def _rent_or_buy(answer: RentOrBuy, axes: Axes) -> None:
    """Cash spent until the end of each month; less what owned servers are assumed to sell for."""
    month, ink = np.arange(1, answer.use.months + 1), colour("text").light
    spent = answer.owned_cash_usd / 1e6
    axes.plot(month, spent, color=ink, lw=2.0, label="bought")
    left = spent - answer.resale_usd / 1e6
    axes.plot(month, left, color=ink, ls="--", label="bought, sold then (assumed)")
    for i, (tier, usd) in enumerate(answer.rented_cash_usd.items()):
        ink = CATEGORIES[category(i)].light
        axes.plot(month, usd / 1e6, color=ink, label=f"rented, {tier}")
        ahead = answer.pay_back_month[tier]
        if ahead is not None:
            axes.plot(ahead, usd[ahead - 1] / 1e6, "o", color=ink, mfc="none", ms=10.0)
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("months; rings: buying has paid back")
    axes.set_ylabel("million USD spent")
    axes.legend(frameon=False, fontsize=8.5)


def _bars(
    axes: Axes,
    bars: Mapping[str, Mapping[str, float]],
    spans_s: Sequence[tuple[float, float]] = (),
) -> None:
    """Stacked horizontal bars of time terms, the first bar on top, with P10 and P90 of its end."""
    longest = max(sum(terms.values()) for terms in bars.values())
    names, left = list(bars), np.zeros(len(bars))
    for term in next(iter(bars.values())):
        values = np.array([terms.get(term, 0.0) for terms in bars.values()])
        if not values.any():
            continue
        told = LABELS.get(term, term) if values.max() > _LEAST * longest else "_"
        axes.barh(names, values, left=left, color=_ink(term), lw=0, label=told)
        left = left + values
    if spans_s:
        low, high = np.transpose(spans_s)
        whiskers = np.abs(np.array([left - low, high - left]))
        axes.errorbar(left, names, xerr=whiskers, fmt="none", color=colour("text").light, lw=1.2,
                      capsize=4.0)  # fmt: skip
    axes.invert_yaxis()
    axes.set_xlabel(f"seconds per step{', P10 to P90' if spans_s else ''}")
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper left", bbox_to_anchor=(0.0, -0.18))


def _ink(term: str) -> str:
    """The colour of a term that has one of its own, else one that stays with its name."""
    if term in PALETTE:
        return colour(term).light
    return CATEGORIES[category(sum(map(ord, term)))].light


_DRAWERS: dict[type, Callable[..., None]] = {
    PowerChoices: lambda answer, axes: draw_power(axes, answer),
    Plan: _plan,
    Prediction: _prediction,
    Versus: _versus,
    WhatIf: _what_if,
    Diagnoses: _diagnosed,
    Sized: _sized,
    Comparison: _comparison,
    PricedRL: _rl,
    Sweep: _sweep,
    SimulatedStep: _played,
    Distilled: _distilled,
    Recommended: _recommended,
    Served: _ways,
    SeveralSites: _ways,
    JobSchedule: _scheduled,
    SimulatedRun: _run,
    MixedPlan: _options,
    MixedPrediction: _mixed,
    FabricChoices: _fabrics,
    RentOrBuy: _rent_or_buy,
}
