"""The screen of `foreshard sweep`: a row per point, and what was wrong with the bad ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from simulator.cli.screen import notes, plain_table
from simulator.economics.price import MARK
from simulator.questions.sweep.report import problem_lines
from simulator.report.wording import AT_ASSUMED
from simulator.units import show_percent, show_seconds, show_usd

if TYPE_CHECKING:
    from simulator.questions.sweep.answer import Sweep

_MOST = 40
"""Points and problems on the screen; the files have them all."""


def screen(sweep: Sweep) -> Iterator[RenderableType]:
    """Give a sweep."""
    fields = list(sweep.grid.fields)
    last = [name.rpartition(".")[2] for name in fields]
    names = [end if last.count(end) == 1 else name for end, name in zip(last, fields, strict=True)]
    table = plain_table(
        "point", *names, "step", "MFU", "days", "USD", "layout", left=(*names, "layout")
    )
    good = [row for row in sweep.rows if row["problem"] is None]
    for row in good[:_MOST]:
        table.add_row(str(row["point"]), *(str(row[name]) for name in fields), *_cells(row))
    yield table
    if any(row["price_grade"] == "assumed" for row in good):
        yield notes("", [AT_ASSUMED])
    if len(good) > _MOST:
        yield notes("", [f"and {len(good) - _MOST:,} more, in the files"])
    bad = problem_lines(sweep)
    if bad:
        more = [f"and {len(bad) - _MOST:,} more, in the files"] if len(bad) > _MOST else []
        yield notes("Points that could not be searched", [*bad[:_MOST], *more])
    searched = len(sweep.rows) - sweep.known
    yield notes("", [f"{searched:,} points searched, {sweep.known:,} known before"])


def _cells(row: dict[str, Any]) -> list[str]:
    """Step, MFU, days, money and layout of a point."""
    if not row["feasible"]:
        return ["-", "-", "-", "-", str(row["note"])]
    days, usd = row["days_p50"], row["usd_p50"]
    assumed = row["price_grade"] == "assumed"
    return [
        show_seconds(row["step_time_s"]),
        show_percent(row["mfu"]),
        "-" if days is None else f"{days:,.1f}",
        "-" if usd is None else show_usd(usd).removesuffix(" USD") + MARK * assumed,
        str(row["layout"]),
    ]
