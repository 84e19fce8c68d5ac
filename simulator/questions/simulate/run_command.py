"""`foreshard simulate --run`: whole runs of one layout, with their failures.

The command first, then its screen.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from simulator.cli.options import print_line, writing
from simulator.cli.runner import Reply
from simulator.cli.screen import (
    NO_FIT,
    best_of,
    fitting,
    heading,
    notes,
    plain_table,
    table_of,
    took,
    waiting,
)
from simulator.errors import InputError
from simulator.glossary import CAVEATS
from simulator.records import dataclass
from simulator.units import DAY_S, show_bytes, show_percent, show_seconds, show_usd

if TYPE_CHECKING:
    import numpy as np

    from simulator.events.run.played_runs import PlayedRuns
    from simulator.planner.prediction import Prediction
    from simulator.planner.simulated_run import SimulatedRun
    from simulator.reliability.incidents import Incidents
    from simulator.scenario import Scenario


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """Options of whole runs; None: not given."""

    seeds: int | None
    seed: int | None
    incidents: Path | None


def whole_runs(
    scenario: Scenario,
    asked: bool,
    options: RunOptions,
    of_step: dict[str, Any],
    picture: Path | None,
) -> Reply | None:
    """Play whole runs where they are `asked` for; None where they are not.

    Raises
    ------
    InputError
        Where options of one step stand beside --run, or those of runs without it.
    """
    if not asked:
        given = {"--seeds": options.seeds, "--incidents": options.incidents}
        if wrong := [option for option, value in given.items() if value is not None]:
            raise InputError(f"arguments: {option}: must come with --run" for option in wrong)
        return None
    if wrong := [option for option, value in of_step.items() if value]:
        rule = "is of one step and cannot come with --run"
        raise InputError(f"arguments: {option}: {rule}" for option in wrong)
    return _simulate(scenario, options, picture)


def _simulate(scenario: Scenario, options: RunOptions, picture: Path | None) -> Reply:
    """Play whole runs, and draw what became of them."""
    from simulator.planner.simulated_run import simulate_run

    with waiting("playing runs"):
        runs = simulate_run(
            scenario,
            seeds=options.seeds,
            first_seed=options.seed or 0,
            incidents=options.incidents,
        )
    if picture is not None:
        from simulator.events.run.played_runs import STRETCHES
        from simulator.plain_files import write_files
        from simulator.report.canvas import file_bytes
        from simulator.report.pipeline_picture import run_picture

        name = scenario.workload.architecture.name
        title = f"{name} on {scenario.cluster.gpus:,} x {scenario.cluster.name}"
        with writing(picture):
            drawn = run_picture(runs.played, runs.strip, runs.curves, title, STRETCHES)
            content = file_bytes(drawn, picture.suffix)
            write_files({picture: content})
        print_line(f"Picture: {picture}", err=True)
    return Reply(runs, run_screen)


_LEAST = 5e-5
_SIGNS = ("█", "▓", "x", "░", "-")
_BARS = " ▁▂▃▄▅▆▇█"
_WIDTH = 72
_SIZES = (64, 1024, 16384, 131072)


def run_screen(simulated_run: SimulatedRun) -> Iterator[RenderableType]:
    """Give runs that were played."""
    from simulator.events.run.played_runs import STRETCHES

    prediction, played, incidents = (
        simulated_run.prediction,
        simulated_run.played,
        simulated_run.incidents,
    )
    took("played", played.seconds)
    yield heading(prediction.scenario)
    yield _verdict(prediction, played)
    if incidents is not None:
        yield notes("Rates fitted to incidents", _fitted(incidents))
    yield _causes(played)
    yield ""
    words = ", ".join(f"{sign} {name}" for sign, name in zip(_SIGNS, STRETCHES, strict=True))
    yield notes(f"One of the runs ({words})", [_strip(simulated_run.strip)])
    yield notes("When runs end", [_ends(played)])
    yield notes("Goodput against what one can choose", _choices(simulated_run))
    yield ""
    yield table_of(
        prediction.checkpoint.files,
        ("what may be written", lambda file: file.holds),
        ("format", lambda file: file.format),
        ("size", lambda file: show_bytes(file.bytes)),
        ("servers", lambda file: f"{file.servers:,}"),
        ("written in", lambda file: show_seconds(file.write_s)),
        ("read in", lambda file: show_seconds(file.read_s)),
        left=("what may be written", "format"),
    )
    yield notes(CAVEATS, simulated_run.caveats)


def _verdict(prediction: Prediction, played: PlayedRuns) -> Text:
    """Goodput, days, chances."""
    import numpy as np

    from simulator.report.wording import (
        end_words,
        goal_words,
        out_of_memory_words,
        planned_words,
    )

    real = prediction.outcome.real
    assert real is not None
    good, days = played.goodput, played.wall_s / DAY_S
    low, middle, high = (float(np.percentile(days, mark)) for mark in (10, 50, 90))
    mean = float(played.ideal_s / played.wall_s.mean())
    lines = [
        *([] if prediction.searched is None else [best_of(prediction.searched)]),
        f"goodput {show_percent(mean)} (P10 to P90: {show_percent(float(np.percentile(good, 10)))}"
        f" to {show_percent(float(np.percentile(good, 90)))}; analytical model"
        f" {show_percent(float(real.goodput[0]))}), {len(good):,} runs simulated",
        f"days {middle:,.1f} ({low:,.1f} to {high:,.1f}) of {played.ideal_s / DAY_S:,.1f} ideal",
        f"{prediction.checkpoint.sentence()}; Daly's interval is"
        f" {show_seconds(float(real.daly_s[0]))}",
        f"{int(real.hot_spares[0])} hot spares of {int(real.terms.pool[0, 0])}",
    ]
    if planned := planned_words(prediction):
        lines.append(planned)
    goal = prediction.scenario.goal.deadline_days
    if goal is not None:
        chance = show_percent(float(np.mean(days <= goal)))
        lines.append(f"deadline of {goal:,.1f} days: {chance} of the runs meet it, steps as given")
    lines += goal_words(prediction.scenario.goal, prediction.goal_chances)
    ends = (np.array([low]), np.array([high]))
    lines.append(end_words(prediction.outcome, prediction.scenario, ends))
    estimate = prediction.estimate
    text = Text("\n").append(fitting(estimate)).append(f"  {estimate.layouts.describe()}\n", "bold")
    if estimate.verdict_word() == "OOM":
        text.append(f"{out_of_memory_words(estimate)}\n", NO_FIT)
    return text.append("".join(f"{line}\n" for line in lines if line))


def _causes(played: PlayedRuns) -> Table:
    """What each cause takes of wall time, by phase."""
    from simulator.events.run.run_state import CAUSE_PHASES

    shown = ("lost work", "detection", "diagnosis", "replacement")
    heads = ("times\na run", "of time", *(name.replace(" ", "\n") for name in shown), "restart")
    table = plain_table("lost to", *heads, left=("lost to",))
    wall, times = float(played.wall_s.mean()), played.interruptions()
    rows = sorted(played.by_cause().items(), key=lambda item: -sum(item[1].values()))
    for name, spent in rows:
        total = sum(spent.values()) / wall
        if total <= _LEAST:
            continue
        others = [phase for phase in CAUSE_PHASES if phase not in shown]
        rest = sum(spent[phase] for phase in others) / wall
        cells = [show_percent(spent[phase] / wall) for phase in shown]
        count = f"{times[name]:,.1f}" if name in times else ""
        table.add_row(_words(name), count, show_percent(total), *cells, show_percent(rest))
    for name, seconds in played.extras_s.items():
        if seconds / wall > _LEAST:
            table.add_row(name, "", show_percent(seconds / wall), "", "", "", "", "")
    return table


def _words(name: str) -> str:
    return name.replace("_", " ")


def _strip(strip: np.ndarray) -> str:
    """What takes most of every 72nd of the run but training, where it takes a tenth."""
    import numpy as np

    end = float(strip[-1, 1])
    held = np.zeros((_WIDTH, len(_SIGNS)))
    for start, stop, kind in strip:
        first, last = int(start / end * _WIDTH), min(int(stop / end * _WIDTH), _WIDTH - 1)
        for cell in range(first, last + 1):
            left, right = cell * end / _WIDTH, (cell + 1) * end / _WIDTH
            held[cell, int(kind)] += max(min(stop, right) - max(start, left), 0.0)
    found = []
    for row in held:
        other = int(np.argmax(row[1:])) + 1
        found.append(_SIGNS[other] if row[other] > 0.1 * row.sum() else _SIGNS[0])
    return "".join(found)


def _ends(played: PlayedRuns) -> str:
    """A line of bars."""
    import numpy as np

    days = played.wall_s / DAY_S
    counts, edges = np.histogram(days, bins=min(_WIDTH, 40))
    most = max(int(counts.max()), 1)
    bars = "".join(_BARS[int(np.ceil(8 * count / most))] for count in counts)
    return f"{edges[0]:,.1f} {bars} {edges[-1]:,.1f} days"


def _choices(simulated_run: SimulatedRun) -> list[str]:
    """Points of the curves."""
    import numpy as np

    outcome, curves = simulated_run.prediction.outcome, simulated_run.curves
    at = [int(np.argmin(np.abs(curves.gpus - size))) for size in _SIZES]
    sizes = ", ".join(f"{curves.gpus[i]:,.0f}: {show_percent(curves.by_gpus[i])}" for i in at)
    places = np.linspace(0, len(curves.interval_s) - 1, 7).astype(int)
    spaced = ", ".join(
        f"{show_seconds(float(curves.interval_s[i]))}: {show_percent(curves.by_interval[i])}"
        for i in places
    )
    some = curves.spares[:: max(len(curves.spares) // 6, 1)]
    spares = ", ".join(f"{choice.hot}: {show_percent(choice.goodput)}" for choice in some)
    cheapest = curves.cheapest
    lines = [
        f"accelerators, the same layout replicated: {sizes}",
        f"between checkpoints: {spaced}",
        f"hot spares: {spares}; {cheapest.hot} take fewest paid GPU-hours",
    ]
    if (less := simulated_run.without_a_server) is not None:
        step_s = show_seconds(less.step_time_s)
        lines.append(f"a server missing: {step_s} a step of {less.tokens:,.0f} tokens")
    point = float(outcome.usd[0]) * 0.01 / float(outcome.goodput[0])
    if np.isfinite(point):
        price = outcome.price.words()
        lines.append(f"a point of goodput is worth {show_usd(point)} of this run, at {price}")
    return lines


def _fitted(incidents: Incidents) -> list[str]:
    lines = [
        f"{_words(rate.cause)}: {rate.count} in {incidents.days:g} days, {rate.per_device_day:.3g}"
        f" per device and day ({rate.p10:.3g} to {rate.p90:.3g})"
        for rate in incidents.rates
        if rate.count
    ]
    if incidents.shape is None:
        return [*lines, "too few failures of hardware for a Weibull shape: rates are constant"]
    shape = incidents.shape
    kept = "rates fall with age" if shape.kept else "rates are taken as constant"
    spread = f"{shape.low:.2f} to {shape.high:.2f}"
    return [*lines, f"Weibull shape of hardware {shape.shape:.2f} ({spread}): {kept}"]
