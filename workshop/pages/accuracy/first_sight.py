"""First sight on both pages of accuracy: what new tables were off, and what was edited since."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Table = Callable[..., str]
Percent = Callable[..., str]

_STATES = {"as_written": "today, as first written", "standing": "today, as they stand"}


def new_runs(tables: Sequence[Mapping[str, Any]], table: Table, percent: Percent) -> Iterator[str]:
    """Word errors at first sight beside those of today; rows that ran later have none."""
    tables = [sight for sight in tables if sight["first"]["n"]]
    if not tables:
        return
    yield "## A run that is in none of the tables"
    yield (
        "New tables are predicted before anybody looks at them (`foreshard validate TABLE"
        " --first-seen OUT.csv`): what a new run may expect. Errors of today have"
        " these in sight: the simulator changed, so did rows ([every edit](accuracy_details.md))."
    )
    rows = []
    for sight in tables:
        name = f"{sight['table'].replace('_', '-')}: {sight['sources']} sources"
        first = sight["first"]
        cells = [percent(first[key]) for key in ("mape", "median_ape", "inside")]
        for state in _STATES:
            errors = sight[state]
            cells.append(f"{percent(errors['mape'])} ({errors['n']})" if errors else "-")
        rows.append([name, str(first["n"]), *cells])
    head = ("first sight", "runs", "mean", "median", "inside", *_STATES.values())
    yield table(head, rows)


def changes_section(
    tables: Sequence[Mapping[str, Any]], table: Table, percent: Percent
) -> Iterator[str]:
    """Word every later exclusion and edit, with its effect."""
    if not tables:
        return
    yield "## What was edited after first sight"
    yield (
        "Runs of tables of which the first predictions are kept (`validation/first_seen`): cells"
        " that were changed afterwards, exclusions, and runs that were added. *before* and *after*:"
        " mean error of today's predictions on the rows as first written and as they stand. Tables"
        " that are not named here were not changed."
    )
    for sight in tables:
        if sight["changes"]:
            rows = [
                [line["change"], str(line["runs"]), percent(line["before"]), percent(line["after"])]
                for line in sight["changes"]
            ]
            name, commit = sight["table"], sight["commit"]
            head = ("change", "runs", "before", "after")
            yield f"**{name}**, first predicted by {commit}\n\n{table(head, rows)}"
