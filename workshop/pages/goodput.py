"""docs/goodput.md: reported runs of months beside the closed form.

``python -m workshop.pages.goodput docs`` writes it; a test holds the committed page to it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.report.write import write_file
from workshop.cases.goodput import Case, Compared, compared, months_errors, read_cases
from workshop.cases.gpu_hours import (
    HourCase,
    Hours,
    Planned,
    hours_errors,
    hours_of,
    planned_by_others,
    read_hour_cases,
)
from workshop.fits.planning_factor import effects

_NAME = "goodput.md"

_INTRO = """\
# Months of training: predicted and reported

`python -m workshop.pages.goodput docs` writes this page from `validation/months.toml`; a
test fails when the committed page no longer holds. Do not edit it.

What is compared is the analytical model of goodput (`simulator/reliability/goodput.py`) with the
rates of a set of `hardware_profiles/reliability/`, changed as the case says. Nothing was fitted to
a case. *Rates of* is the log that the rates are from; where that is the log of the run itself the
line is a **consistency check** and no prediction. Ideal: without anything that fails. `>`: reported
as a bound. Detection, restarts and spares are those of the set, which few of the runs describe;
figures called *recalled* in the sources were not read again when the table was made. *Not counted*:
the run is compared below, too, and stands in the errors there alone."""

_HOURS = """\
Steps x step time x GPUs, with goodput, next to the hours that were reported
(`validation/gpu_hours.toml`): software of the day and the fabric it ran on, the published layout
where there is one (`p`), else the best that `plan` finds. *Steady* hours are tokens over a measured
rate; a *whole* run holds what it took beside: restarts, evaluation, attempts given up, slower
software and layouts. *(r)*: a figure that was recalled and not read again. Over: reported over
predicted. Planned: what the factor of all **other** runs of its kind gives, P10 to P90."""

_UNITS = {"goodput": "goodput", "days": "days", "gpu_hours": "GPU-hours",
          "hours_between": "hours between failures", "gpu_failures": "GPU failures"}  # fmt: skip


def page() -> str:
    """Write the page as Markdown."""
    cases = read_cases()
    rows = [row for case in cases for row in compared(case)]
    months = months_errors(rows)
    plans = planned_by_others([hours_of(case) for case in read_hour_cases()])
    errors = hours_errors([plan.hours for plan in plans])
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
        "| run | hours | software | GPUs | predicted | reported | over | planned | |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
        *(_hour_line(plan) for plan in plans),
        "",
        *_factors(errors, [plan.hours for plan in plans]),
        "",
        "## Sources",
        "",
        *_sources(cases),
        *_sources(read_hour_cases(compared=False)),
    ]
    return "\n".join(lines) + "\n"


def _line(row: Compared) -> str:
    check = " (consistency check)" if row.case.check else ""
    error = f"{100 * row.error:+.0f} %"
    if row.is_bound:
        error = "within" if row.error >= 0.0 else "below"
    ideal = "" if row.ideal is None else _shown(row.ideal)
    word = _UNITS.get(row.figure, row.figure)
    if row.case.not_counted:
        error += " (not counted)"
    bound = "> " if row.is_bound else ""
    cells = (row.case.name, row.case.rates_of + check, word, ideal, _shown(row.predicted),
             bound + _shown(row.reported), error)  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _hour_line(plan: Planned) -> str:
    case, predicted = plan.hours.case, plan.hours.real
    layout = "p" if case.layout_of == "published" else ""
    name = case.name + " (r)" * (case.reading == "recalled")
    gpus = f"{case.gpus:,}" + "?" * (case.gpus_of == "plan")
    cells = (name, case.kind, f"{case.software} {layout}".strip(), gpus, _shown(predicted),
             _shown(case.gpu_hours), f"{plan.hours.ratio:.2f}",
             f"{_shown(plan.p10)} to {_shown(plan.p90)}",
             "" if plan.inside else "outside")  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _factors(errors: Mapping[str, Any], hours: Sequence[Hours]) -> Iterator[str]:
    """What runs of each kind took over their prediction, and what it does not depend on."""
    for kind, figures in errors["kinds"].items():
        yield (
            f"- {kind}: {figures['n']} runs, x {figures['factor']:.2f} ({figures['p10']:.2f} to"
            f" {figures['p90']:.2f}); {100 * figures['inside']:.0f} % of them lie between the P10"
            " and P90 of the others"
        )
    yield ""
    said = ", ".join(
        f"{name} {value:+.3f} (standard error {error:.3f})"
        for name, (value, error) in effects(hours).items()
        if name != "whole"
    )
    yield (
        "Tried beside the kind, as the logarithm of the factor by doubling of parameters and"
        f" accelerators, and by year: {said}. None but the kind is told apart from nothing, so the"
        " factor depends on the kind alone."
    )
    yield ""
    yield (
        f"Median absolute error {100 * errors['ideal_median_ape']:.0f} % without goodput,"
        f" {100 * errors['median_ape']:.0f} % with, {100 * errors['planned_median_ape']:.0f} % as"
        " planned by the others. Not compared:"
    )
    yield ""
    for case in read_hour_cases(compared=False):
        if case.left_out:
            yield f"- {case.name}: {case.gpu_hours:,.0f} hours; {case.left_out}"


def _remarks(cases: Iterable[Case]) -> list[str]:
    """What of a report is compared where that is not all of it, and what is not counted."""
    words = {"What is compared, where that is not the whole report:": "remark",
             "Not counted:": "not_counted"}  # fmt: skip
    cases = list(cases)
    lines: list[str] = []
    for head, name in words.items():
        said = [f"- {case.name}: {getattr(case, name)}" for case in cases if getattr(case, name)]
        lines += [head, "", *said, ""]
    return lines


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _sources(cases: Iterable[Case | HourCase]) -> Iterator[str]:
    """Each source once, in the order of the cases, with the runs that it is of."""
    named: dict[str, list[str]] = {}
    for case in cases:
        if case.source != "the same":
            named.setdefault(case.source, []).append(case.name.partition(",")[0])
    for source, names in named.items():
        yield f"- {', '.join(dict.fromkeys(names))}: {source}"


def main() -> None:
    """Write the page into the folder that is named."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    write_file(folder / _NAME, page().encode())


if __name__ == "__main__":
    main()
