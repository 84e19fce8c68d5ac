"""The screen of `foreshard simulate`: what was played beside what the closed form says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from simulator.cli.screen import (
    amount,
    best_of,
    fitting,
    gib,
    heading,
    notes,
    plain_table,
    seconds_like,
    term_table,
    took,
)
from simulator.cost.terms import LABELS
from simulator.events.played import SimulatedStep
from simulator.events.step.streams import STREAMS
from simulator.events.step.timeline import Jittered, Loading, Sharing
from simulator.glossary import CAVEATS
from simulator.planner.mixed_prediction import KindUse, kinds_used
from simulator.planner.prediction import Prediction, with_times
from simulator.questions.simulate.mixed_screen import kinds_table, mixed_lines, verdicts
from simulator.report.wording import goal_words
from simulator.units import show_percent, show_seconds

if TYPE_CHECKING:
    from simulator.events.sharing.contended import Contended

_LEAST = 0.0005
"""Share of a path or of a step that is worth a line."""
_ROWS = 16
"""Ranks shown at most; of more, the fullest."""
_HELD = 3
"""Kinds of memory named of a peak."""


def screen(
    prediction: Prediction, step: SimulatedStep, *, undisturbed_s: float | None = None
) -> Iterator[RenderableType]:
    """Give a simulated step, and beside it the same one played without its disturbances."""
    estimate = prediction.estimate
    took("simulated", step.build_seconds + step.run_seconds)
    kinds = kinds_used(prediction, step)
    yield heading(prediction.scenario)
    yield _verdict(prediction, step, kinds, undisturbed_s)
    played, closed = with_times(estimate, [step]), "analytical model"
    if kinds:
        closed += f", all {kinds[0].name}"
    yield term_table({"played": (played, 0), closed: (estimate, 0)})
    yield ""
    if step.mixed is not None:
        yield kinds_table(step, step.mixed, kinds)
        yield ""
        yield notes("Servers of several kinds", mixed_lines(step, step.mixed, kinds))
        yield ""
    yield _streams(step)
    yield ""
    yield notes("Critical path", [_path(step)])
    yield _memory(prediction, step)
    links = [
        f"{name} {show_percent(share)}" for name, share in step.links.items() if share > _LEAST
    ]
    if links:
        title = "Links, share of the step in which those of the busiest rank carry"
        yield notes(title, [", ".join(links)])
    if step.network is not None:
        yield notes("Groups on the links of the cluster", _network(step.network))
    if step.jitter is not None:
        yield notes("Durations that vary", [_jitter(step, step.jitter)])
    if step.loading is not None:
        yield notes("Loaders, simulated batch by batch", [_loading(step.loading)])
    if step.sharing is not None:
        yield notes("Traffic that meets on links", _sharing(step, step.sharing))
    yield notes(CAVEATS, prediction.caveats)


def _verdict(
    prediction: Prediction,
    step: SimulatedStep,
    kinds: list[KindUse],
    undisturbed_s: float | None,
) -> Text:
    """Layout, step times, which rank paces, how it was found, whether it fits."""
    estimate, closed_s = prediction.estimate, prediction.step_time_s
    text = Text(f"\n{estimate.layouts.describe()}\n", style="bold")
    if prediction.searched is not None:
        text.append(f"{best_of(prediction.searched)}\n", style="not bold")
    plain_s = step.step_time_s if undisturbed_s is None else undisturbed_s
    beside = "" if undisturbed_s is None else _slower(step.step_time_s, undisturbed_s)
    if not kinds:
        off = 100 * (plain_s / closed_s - 1.0)
        beside += f", {show_seconds(closed_s)} by the analytical model ({off:+.2f} %)"
    text.append(
        f"step {show_seconds(step.step_time_s)} played{beside};"
        f" rank {step.pacing_rank} of {len(step.ranks_of)} simulated has the most work\n",
        style="not bold",
    )
    text.append(f"{step.tasks:,} tasks\n", style="not bold")
    if kinds:
        text.append_text(verdicts(kinds))
        return text
    text.append_text(fitting(estimate))
    text.append(
        f": {gib(prediction.memory_bytes)} of {gib(estimate.usable_bytes)} GiB usable on the"
        " worst rank\n",
        style="not bold",
    )
    for words in goal_words(prediction.scenario.goal, prediction.goal_chances):
        text.append(f"{words}\n", style="not bold")
    return text


def _slower(step_s: float, undisturbed_s: float) -> str:
    """What the disturbances cost."""
    more = 100 * (step_s / undisturbed_s - 1.0)
    return f", {more:+.2f} % against {show_seconds(undisturbed_s)} undisturbed"


def _streams(step: SimulatedStep) -> Table:
    """Busy, exposed and idle time of the pacing rank's streams."""
    unit, scale = seconds_like(step.step_time_s)
    title, rank = f"streams of rank {step.pacing_rank}", step.pacing_rank
    columns = [f"{word} ({unit})" for word in ("busy", "exposed", "idle")]
    table = plain_table(title, *columns, "busy", left=(title,))
    for i, name in enumerate(STREAMS):
        cells = [float(x[rank, i]) for x in (step.busy_s, step.exposed_s, step.idle_s)]
        if cells[0] > 0.0:
            share = show_percent(cells[0] / step.step_time_s)
            table.add_row(name, *(amount(scale * seconds) for seconds in cells), share)
    return table


def _path(step: SimulatedStep) -> str:
    """Causes of the critical path, the largest first."""
    shares = sorted(step.critical_share.items(), key=lambda item: -item[1])
    return ", ".join(
        f"{LABELS[name]} {show_percent(share)}" for name, share in shares if share > _LEAST
    )


def _network(found: Contended) -> list[str]:
    """Kinds of groups that are slower than the closed form has them, and the fullest links."""
    lines = []
    if found.beside:
        left = ", ".join(f"{kind} {show_percent(share)}" for kind, share in found.beside.items())
        lines.append(f"other jobs leave at least: {left}")
    for where, slower in (("adapters", found.slowdown), ("links inside", found.slowdown_inside)):
        named = [f"{group} x {x:.3f}" for group, x in slower.items() if x > 1.0]
        even = ", ".join(group for group, x in slower.items() if x == 1.0)
        if named:
            lines.append(f"bytes over {where} take longer: {', '.join(named)}")
        if even:
            lines.append(f"bytes over {where} take as long as in the analytical model: {even}")
    fullest = [
        f"{use.link} {show_percent(use.utilisation)} ({use.group})" for use in found.links.values()
    ]
    if fullest:
        lines.append(f"fullest of each kind while bytes move: {', '.join(fullest)}")
    return lines or ["no group leaves a domain"]


def _sharing(step: SimulatedStep, sharing: Sharing) -> list[str]:
    """What it costs, and the fullest links over the whole step."""
    lines = [
        _compared("with links of its own for every kind", step, sharing.alone_s, sharing.lost_s)
    ]
    if sharing.alone_s != sharing.plain_s:
        off = 100.0 * (sharing.alone_s / sharing.plain_s - 1.0)
        lines.append(
            "calls slow compute when they run, not where the analytical model has them:"
            f" {off:+.2f} % of {show_seconds(sharing.plain_s)}"
        )
    fullest = [f"{link} {show_percent(share)}" for link, share in sharing.links.values()]
    if fullest:
        lines.append(f"fullest of each kind over the step: {', '.join(fullest)}")
    return lines


def _loading(loading: Loading) -> str:
    """What the ranks wait for, and when the first batch is there."""
    return (
        f"{show_seconds(loading.waiting_s)} of a step in the mean, in nine steps of ten below"
        f" {show_seconds(loading.waiting_p90_s)}; the first batch comes after"
        f" {show_seconds(loading.first_batch_s)}"
    )


def _jitter(step: SimulatedStep, found: Jittered) -> str:
    """What varies, and what it costs."""
    return _compared(
        f"if none varied by {show_percent(found.spread)} (seed {found.seed})",
        step,
        found.steady_s,
        found.lost_s,
    )


def _compared(words: str, step: SimulatedStep, before_s: float, lost_s: Mapping[str, float]) -> str:
    """The step without something that was played, and the terms that it makes longer."""
    more = sum(lost_s.values()) / before_s
    text = f"step {show_seconds(before_s)} {words} ({100 * more:+.2f} % simulated)"
    named = [
        f"{LABELS[name]} {show_seconds(lost)}"
        for name, lost in sorted(lost_s.items(), key=lambda item: -item[1])
        if lost > _LEAST * 0.1 * step.step_time_s
    ]
    return f"{text}; longer: {', '.join(named)}" if named else text


def _memory(prediction: Prediction, step: SimulatedStep) -> Table:
    """Fullest moment of every simulated rank, and what fills it."""
    peaks = step.memory_peaks
    fullest = np.argsort([-total for _, total, _ in peaks], kind="stable")[:_ROWS]
    usable = np.full(len(peaks), float(prediction.estimate.usable_bytes))
    if step.mixed is not None:
        usable = step.mixed.usable_bytes
    title = "memory of rank" if len(peaks) <= _ROWS else f"memory of the {_ROWS} fullest ranks"
    unit, scale = seconds_like(step.step_time_s)
    columns = ("GPUs", "peak GiB", "of usable", f"at ({unit})", "most of it")
    table = plain_table(title, *columns, left=(title, "most of it"))
    for rank in sorted(fullest.tolist()):
        when, total, held = peaks[rank]
        kinds = sorted(held.items(), key=lambda item: -item[1])[:_HELD]
        named = ", ".join(f"{name} {gib(size)}" for name, size in kinds if size > 0.0)
        cells = [f"{int(step.ranks_of[rank]):,}", gib(total), show_percent(total / usable[rank])]
        table.add_row(str(rank), *cells, amount(scale * when), named)
    return table
