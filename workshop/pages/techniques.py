"""docs/technique_claims.md: published figures of techniques beside what the code says.

``python -m workshop.pages.techniques docs`` writes it, a test holds the page to it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from simulator.report.write import write_file
from workshop.cases.technique_claims import Held, held_claims

_NAME = "technique_claims.md"

_INTRO = """\
# Techniques: predicted and published

`python -m workshop.pages.techniques docs` writes this page from
`validation/techniques.toml`; a test fails when the committed page no longer holds. Do not edit
it. What the techniques are and
how they are modelled stands in [techniques.md](techniques.md).

Every prediction is made by the code from the inputs of its line; nothing was fitted to any.
*Simulated*: the figure is of its authors' simulator. *Bound*: the input is the best or the worst
that they report, so that the figure can only lie on one side. Figures called *recalled* in the
sources were not read again when the table was made."""


def page() -> str:
    """Write the page as Markdown."""
    held = held_claims()
    lines = [_INTRO]
    for technique in dict.fromkeys(row.claim.technique for row in held):
        lines += ["", f"## {technique.capitalize()}", ""]
        lines += ["| figure | predicted | published | error |", "| --- | --- | --- | --- |"]
        lines += [_line(row) for row in held if row.claim.technique == technique]
    return "\n".join([*lines, "", "## Sources", "", *_sources(held)]) + "\n"


def _line(row: Held) -> str:
    claim, error = row.claim, f"{100 * row.error:+.0f} %"
    if row.keeps_bound is not None:
        error = f"bound, {'kept' if row.keeps_bound else 'broken'}"
    published = _shown(claim.published) + (" (simulated)" if claim.simulated else "")
    return f"| {claim.what} | {_shown(row.predicted)} | {published} | {error} |"


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _sources(held: Sequence[Held]) -> Iterator[str]:
    for text in dict.fromkeys(row.source for row in held):
        first = next(row.claim.what for row in held if row.source == text)
        yield f"- {first.partition(':')[0]}: {text}"


def main(arguments: list[str]) -> None:
    """Write the page into a folder, docs unless another is named."""
    write_file(Path(arguments[0] if arguments else "docs") / _NAME, page().encode())


if __name__ == "__main__":
    main(sys.argv[1:])
