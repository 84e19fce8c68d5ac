"""The part of `foreshard validate` that shows microbenchmarks: errors by kernel and by device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from simulator.cli.screen import notes, plain_table

_PARTS = {"by kernel": "by_kernel", "by device": "by_device"}
_ERRORS = ("mape", "median_ape", "p90_ape", "max_ape")
_REASONS = 5


def error_percent(value: float | None, sign: str = "") -> str:
    """Show a relative error, a dash where there is none; with ``+`` always with its sign."""
    return "-" if value is None else f"{100 * value:{sign}.1f} %"


def benchmark_tables(summary: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield a table for kernels and one for collectives, each with what it leaves out."""
    for what in ("kernels", "collectives"):
        found = summary[what]
        if found is not None:
            yield _table(what, found)
            yield notes(f"{what} skipped", _reasons(found["skipped"]))
            yield ""


def _table(what: str, found: Mapping[str, Any]) -> Table:
    table = plain_table(what, "calls", "mean", "median", "p90", "max", "bias", left=(what,))
    for title, key in _PARTS.items():
        table.add_row(title, style="bold")
        for name, errors in found[key].items():
            table.add_row(f"  {name}", *_cells(errors))
    table.add_row(f"all, {found['rows']:,} in the tables", *_cells(found), style="bold")
    return table


def _cells(errors: Mapping[str, Any]) -> list[str]:
    sizes = [error_percent(errors[name]) for name in _ERRORS]
    return [f"{errors['n']:,}", *sizes, error_percent(errors["bias"], "+")]


def _reasons(skipped: Mapping[str, int]) -> list[str]:
    """The most frequent reasons, and how many rows had another one."""
    lines = [f"{count:>5}  {reason}" for reason, count in list(skipped.items())[:_REASONS]]
    rest = list(skipped.values())[_REASONS:]
    return [*lines, f"{sum(rest):>5}  for {len(rest)} other reasons, see --json"] if rest else lines
