"""docs/goodput.md: reported runs of months beside the closed form.

``python -m workshop.pages.goodput docs`` writes it; a test holds the committed page to it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from simulator.report.write import write_file
from workshop.cases.goodput import Case, Compared, compared, months_errors, read_cases
from workshop.cases.gpu_hours import (
    HourCase,
    Hours,
    hours_errors,
    hours_of,
    read_hour_cases,
)

_NAME = "goodput.md"

_INTRO = """\
# Months of training: predicted and reported

`python -m workshop.pages.goodput docs` writes this page from `validation/months.toml`; a
test fails when the committed page no longer holds. Do not edit it.

What is compared is the closed form of goodput (`simulator/reliability/goodput.py`) with the rates
of a set of `hardware_profiles/reliability/`, changed as the case says. Nothing was fitted to a
case. *Rates of* is the log that the rates are from; where that is the log of the run itself the
line is a **consistency check** and no prediction. Ideal: without anything that fails. `>`: reported
as a bound. Detection, restarts and spares are those of the set, which few of the runs describe;
figures called *recalled* in the sources were not read again when the table was made."""

_HOURS = """\
Steps x step time x GPUs, without and with goodput, next to the hours that were reported
(`validation/gpu_hours.toml`). What a run spent on evaluation, longer contexts and attempts that
were given up is in some reports and in none of ours; where the layout was not published it is our
best. The step time errs more than goodput takes: [accuracy.md](accuracy.md) says by how much."""

_UNITS = {"goodput": "goodput", "days": "days", "gpu_hours": "GPU-hours",
          "hours_between": "hours between failures", "gpu_failures": "GPU failures"}  # fmt: skip


def page() -> str:
    """Write the page as Markdown."""
    cases = read_cases()
    rows = [row for case in cases for row in compared(case)]
    months = months_errors(rows)
    hours = [hours_of(case) for case in read_hour_cases()]
    errors = hours_errors(hours)
    lines = [
        _INTRO,
        "",
        "| run | rates of | figure | ideal | predicted | reported | error |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(_line(row) for row in rows),
        "",
        f"{months['n'] + months['bounds']} figures of other logs' runs, {months['n']} of them no"
        f" bounds: median absolute error {100 * months['median_ape']:.0f} %, largest"
        f" {100 * months['max_ape']:.0f} %.",
        "",
        *_remarks(cases),
        "## GPU-hours of published runs",
        "",
        _HOURS,
        "",
        "| run | layout of | GPUs | without goodput | with | reported | error without | with |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(_hour_line(hour) for hour in hours),
        "",
        f"Median absolute error {100 * errors['ideal_median_ape']:.0f} % without goodput,"
        f" {100 * errors['median_ape']:.0f} % with.",
        "",
        "## Sources",
        "",
        *_sources(cases),
        *_sources(read_hour_cases()),
    ]
    return "\n".join(lines) + "\n"


def _line(row: Compared) -> str:
    check = " (consistency check)" if row.case.check else ""
    error = f"{100 * row.error:+.0f} %"
    if row.is_bound:
        error = "within" if row.error >= 0.0 else "below"
    ideal = "" if row.ideal is None else _shown(row.ideal)
    word = _UNITS.get(row.figure, row.figure)
    bound = "> " if row.is_bound else ""
    cells = (row.case.name, row.case.rates_of + check, word, ideal, _shown(row.predicted),
             bound + _shown(row.reported), error)  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _hour_line(one: Hours) -> str:
    case, reported = one.case, one.case.gpu_hours
    hours = (f"{value:,.0f}" for value in (one.ideal, one.real, reported))
    errors = (f"{100 * (value / reported - 1.0):+.0f} %" for value in (one.ideal, one.real))
    return f"| {' | '.join((case.name, case.layout_of, f'{case.gpus:,}', *hours, *errors))} |"


def _remarks(cases: Iterable[Case]) -> list[str]:
    """What of a report is compared; nothing where all of it is."""
    found = [f"- {case.name}: {case.remark}" for case in cases if case.remark]
    return ["What is compared, where that is not the whole report:", "", *found, ""]


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _sources(cases: Iterable[Case | HourCase]) -> Iterator[str]:
    """Each source once, in the order of the cases."""
    for case in cases:
        if case.source != "the same":
            yield f"- {case.name.partition(',')[0]}: {case.source}"


def main() -> None:
    """Write the page into the folder that is named."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    write_file(folder / _NAME, page().encode())


if __name__ == "__main__":
    main()
