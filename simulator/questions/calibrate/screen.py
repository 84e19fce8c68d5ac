"""The screen of `foreshard calibrate`: errors by class before and after, figures, what was left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.table import Table

from simulator.calibration.calibrate_machine import Calibration, ClassFit, Errors
from simulator.cli.screen import notes, plain_table

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
