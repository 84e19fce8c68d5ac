"""The best layouts of a plan as a table for other programs: CSV, Markdown, Parquet."""

from __future__ import annotations

import io
import math
from typing import Any

from simulator.errors import InputError
from simulator.planner.plan import Plan
from simulator.quoting import markdown_cell

TABLES = ("csv", "markdown", "parquet")

_BRIEF = (
    *("tp", "pp", "vpp", "cp", "dp", "ep", "micro_batch", "sharding", "recompute"),
    *("step_time_s", "p10_s", "p90_s", "mfu", "tokens_per_s_per_gpu", "days", "usd"),
)
"""Columns of the Markdown table; the others have all."""


def layout_table(plan: Plan, form: str, top: int) -> bytes:
    """Write the first layouts as a table, one row each.

    Raises
    ------
    InputError
        If Parquet is asked for and pyarrow is not there.
    """
    table = plan.to_frame().head(top)
    if form == "csv":
        return str(table.to_csv(lineterminator="\n")).encode()
    if form == "parquet":
        file = io.BytesIO()
        try:
            table.to_parquet(file)
        except ImportError:
            rule = 'needs pyarrow: pip install "foreshard[parquet]"'
            raise InputError(f"--as parquet: {rule}") from None
        return file.getvalue()
    names = [name for name in _BRIEF if name in table.columns]
    rows = [[_cell(value) for value in row] for row in table[names].itertuples(index=False)]
    lines = [names, ["---"] * len(names), *rows]
    return ("\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n").encode()


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else ""
    return markdown_cell(str(value))
