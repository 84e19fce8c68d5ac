"""docs/goodput.md: reported runs of months beside the closed form.

``python -m simulator.report.goodput_page docs`` writes it; a test holds the committed page to it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from simulator.report.write import write_file
from simulator.scoring.goodput_cases import Compared, compared, read_cases

__all__ = ["main", "page"]

_NAME = "goodput.md"

_INTRO = """\
# Months of training: predicted beside reported

`python -m simulator.report.goodput_page docs` writes this page from `validation/months.toml`; a
test fails when the committed page no longer holds. Do not edit it.

What is compared is the closed form of goodput (`simulator/reliability/goodput.py`) with the rates
of a set of `hardware_profiles/reliability/`, changed as the case says. Nothing was fitted to a
case. *Rates of* is the log that the rates are from; where that is the log of the run itself the
line is a **consistency check** and no prediction. Ideal: without anything that fails. `>`: reported
as a bound. Detection, restarts and spares are those of the set, which few of the runs describe;
figures called *recalled* in the sources were not read again when the table was made."""

_UNITS = {"goodput": "goodput", "days": "days", "gpu_hours": "GPU-hours",
          "hours_between": "hours between failures", "gpu_failures": "GPU failures"}  # fmt: skip


def page() -> str:
    """Write the page as Markdown."""
    cases = read_cases()
    rows = [row for case in cases for row in compared(case)]
    found = [row for row in rows if not row.case.check]
    off = sorted(abs(row.predicted / row.reported - 1.0) for row in found if not _bound(row))
    lines = [
        _INTRO,
        "",
        "| run | rates of | figure | ideal | predicted | reported | error |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(_line(row) for row in rows),
        "",
        f"{len(found)} figures of other logs' runs, {len(off)} of them no bounds: median absolute"
        f" error {100 * off[len(off) // 2]:.0f} %, largest {100 * off[-1]:.0f} %.",
        "",
        "## Sources",
        "",
        *_sources(),
    ]
    return "\n".join(lines) + "\n"


def _bound(row: Compared) -> bool:
    return row.figure in row.case.at_least


def _line(row: Compared) -> str:
    check = " (consistency check)" if row.case.check else ""
    error = "" if _bound(row) else f"{100 * (row.predicted / row.reported - 1.0):+.0f} %"
    if _bound(row):
        error = "within" if row.predicted >= row.reported else "below"
    ideal = "" if row.ideal is None else _shown(row.ideal)
    word = _UNITS.get(row.figure, row.figure)
    bound = "> " if _bound(row) else ""
    cells = (row.case.name, row.case.rates_of + check, word, ideal, _shown(row.predicted),
             bound + _shown(row.reported), error)  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _sources() -> Iterator[str]:
    """Each source once, in the order of the cases."""
    for case in read_cases():
        if case.source != "the same":
            yield f"- {case.name.partition(',')[0]}: {case.source}"


def main() -> None:
    """Write the page into the folder that is named."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    write_file(folder / _NAME, page().encode())


if __name__ == "__main__":
    main()
