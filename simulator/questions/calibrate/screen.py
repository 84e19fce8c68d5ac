"""Screens of `foreshard calibrate` (errors by class, figures) and of `measure --plan`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from simulator.calibration.calibrate_machine import Calibration, ClassFit, Errors
from simulator.cli.screen import heading, notes, plain_table
from simulator.glossary import CAVEATS
from simulator.questions.calibrate.next_measurement import MeasurementPlan
from simulator.units import show_percent, show_seconds, show_seconds_span, show_usd

_REASONS = 12


def screen(calibration: Calibration, written: Mapping[str, str]) -> Iterator[RenderableType]:
    """Give errors and figures of every class, and the files that were written."""
    for title, fits in (
        ("accelerator", calibration.accelerator),
        ("node", calibration.node),
        ("cluster", calibration.fabric),
    ):
        if fits:
            yield _error_table(title, fits)
            yield ""
    yield _figure_table([*calibration.accelerator, *calibration.node, *calibration.fabric])
    lines = [
        f"{count:>6}  {reason}" for reason, count in list(calibration.left_out.items())[:_REASONS]
    ]
    more = len(calibration.left_out) - _REASONS
    yield notes("calls left out", lines + ([f"and {more} more reasons"] * (more > 0)))
    for part, path in written.items():
        yield f"{'cluster' if part == 'fabric' else part}: {path}"


def _error_table(title: str, fits: Sequence[ClassFit]) -> Table:
    """Median and p90 of |predicted / measured - 1|: base profile, fit, shapes left out."""
    table = plain_table(title, "calls", "base", "fitted", "left out", "spread", left=(title,))
    for fit in fits:
        cells = [_both(errors) for errors in (fit.before, fit.after, fit.left_out)]
        table.add_row(fit.name, str(fit.calls), *cells, f"{100 * fit.spread:.1f} %")
        for name, (calls, before, after) in fit.parts.items():
            if len(fit.parts) > 1:
                table.add_row(f"  {name}", str(calls), _both(before), _both(after), "", "")
    return table


def _both(errors: Errors) -> str:
    return f"{100 * errors.median:.1f} / {100 * errors.p90:.0f} %"


def _figure_table(fits: Sequence[ClassFit]) -> Table:
    table = plain_table("figure", "base", "fitted", left=("figure",))
    for fit in fits:
        for name, (base, new) in fit.figures.items():
            table.add_row(f"{'.'.join(fit.path)}.{name}", f"{base:.4g}", f"{new:.4g}")
    return table


def planned_screen(answer: MeasurementPlan) -> Iterator[RenderableType]:
    """Give the step as it is known, and what would narrow it most."""
    yield heading(answer.prediction.scenario)
    low, high = answer.before_s
    said = answer.measured
    step_s = answer.prediction.step_time_s if said is None else said["step_time_s"]
    yield Text(
        f"\n{answer.prediction.estimate.layouts.describe()}\nstep {show_seconds(step_s)}"
        f" (P10 to P90: {show_seconds_span(low, high)})\n",
        style="bold",
    )
    if said is not None:
        lines = [f"{n}: x {e['factor']:.3f}, {e['calls']} calls" for n, e in said["errors"].items()]
        before = show_seconds(answer.prediction.step_time_s)
        yield notes("Measured here", [*lines, f"the step was {before} before it"])
    money = f"USD{answer.prediction.outcome.price.mark}"
    table = plain_table(
        "measure", "hears", "minutes", "GPUs", money, "P10 to P90 then", "narrower",
        left=("measure", "hears"),
    )  # fmt: skip
    for item in answer.measurements:
        table.add_row(
            item.program,
            item.hears,
            f"{item.minutes:.3g}",
            f"{item.gpus:,}",
            "" if item.usd is None else show_usd(item.usd),
            show_seconds_span(item.p10_s, item.p90_s),
            show_percent(item.narrower),
        )
    yield table
    yield ""
    together = show_percent(answer.kernels_together)
    yield notes("", [f"All programs of kernels but train_step together: {together} narrower."])
    yield notes("How", [item.command for item in answer.measurements])
    shapes = [f"{m.program}: {', '.join(m.shapes)}" for m in answer.measurements if m.shapes]
    yield notes("Shapes of this run", shapes)
    yield notes("Then", answer.then)
    yield notes(CAVEATS, answer.caveats)
