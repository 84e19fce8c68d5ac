"""Answers as pandas tables: columns of plain arrays in, one ``DataFrame`` out.

Only this module imports pandas, and only when a table is asked for: `predict` starts without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from simulator.errors import InputError, problem

if TYPE_CHECKING:
    from pandas import DataFrame
else:
    DataFrame = Any

__all__ = ["DataFrame", "Table", "choose", "frame", "frame_of_rows"]

Table = Literal["layouts", "terms", "memory"]
"""Tables of an answer about layouts, each with one row per layout: what it is and costs, seconds of
the step by term, bytes of the fullest rank by kind."""


def frame(
    values: Mapping[str, Any] | Sequence[tuple[Any, ...]],
    *,
    columns: Sequence[str] | None = None,
    index: Any = None,
    name: str | None = None,
) -> DataFrame:
    """Make a table of equal-length columns by name, or of rows with the names of their `columns`.

    Examples
    --------
    >>> frame({"tp": [1, 2], "step_time_s": [3.0, 2.5]}).loc[1, "step_time_s"]
    np.float64(2.5)
    """
    import pandas as pd

    made = pd.DataFrame(values, columns=columns, index=index)
    made.index.name = name
    return made


def frame_of_rows(rows: Iterable[Mapping[str, Any]], *, name: str | None = None) -> DataFrame:
    """Make a table of rows; a key that a row lacks is missing there, as None is."""
    import pandas as pd

    made = pd.DataFrame.from_records([dict(row) for row in rows])
    made.index.name = name
    return made


def choose(table: str, tables: Mapping[str, Any]) -> Any:
    """Return the table of that name.

    Raises
    ------
    InputError
        If there is none, with the nearest name.
    """
    if table not in tables:
        rule = f"must be one of {', '.join(tables)}"
        raise InputError(problem("to_frame", "table", rule, table, tables))
    return tables[table]
