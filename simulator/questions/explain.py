"""`foreshard explain`: what a term of the answer means.

The command first, then its screen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from simulator.cli.option_groups import ScenarioOptions
from simulator.cli.options import ScenarioFile, completing
from simulator.cli.runner import Reply, question
from simulator.cli.screen import amount, gib, seconds_like
from simulator.units import show_percent, show_seconds

if TYPE_CHECKING:
    from simulator.report.explained import Explained, Value


@completing
def _terms() -> Iterable[str]:
    from simulator.glossary import glossary
    from simulator.report.explained import term_names

    return [*term_names(), *glossary()["words"], "layout"]


Name = Annotated[
    str,
    typer.Argument(
        metavar="[TERM]",
        help="Such as gemm, dp, activations, MFU, goodput, layout; all terms if none is given.",
        autocompletion=_terms,
    ),
]


@question(
    "explain",
    "explain gemm",
    "explain layout",
    "explain dp run.toml --set layout.tp=4",
)
def ask(
    *,
    term: Name = "",
    scenario: ScenarioFile = None,
    options: ScenarioOptions,
) -> Reply:
    """Explain a term of the step time or a kind of memory: formula, source, the figures it needs.

    Or a word of the answers: MFU, goodput, TIGHT; `layout` is how the name of a layout reads.

    With a scenario, also what it is there and which figures move it most.
    """
    from simulator.planner.prediction import predict
    from simulator.report.explained import explained, explained_document, term_names

    prediction = None
    if scenario or options.describes_something:
        described, _ = options.scenario(scenario)
        prediction = predict(described)
    terms = [explained(term, prediction)] if term else [explained(name) for name in term_names()]
    screen = term_screen if term else list_screen
    return Reply(terms, screen, explained_document)


_FIGURES = 8
"""Figures named on the screen; --json has them all."""


def list_screen(terms: Iterable[Explained]) -> Iterator[RenderableType]:
    """Give every term in a line or two."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("term", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    table.add_column("formula", overflow="fold")
    for term in terms:
        table.add_row(term.name, term.unit, term.formula)
    yield table


def term_screen(terms: Sequence[Explained]) -> Iterator[RenderableType]:
    """Give all that is known of a term."""
    (term,) = terms
    yield Text(term.name, style="bold").append(f"  {term.label}", style="not bold")
    for title, text in (
        ("formula" if term.unit else "means", term.formula),
        ("when", term.when),
        ("source", term.source),
        ("figures", term.figures),
    ):
        if text:
            grid = Table.grid(padding=(0, 2))
            grid.add_column(width=8)
            grid.add_column(overflow="fold")
            grid.add_row(title, text)
            yield Padding(grid, (0, 0, 0, 2))
    if term.value is not None:
        yield ""
        yield from _value(term, term.value)


def _value(term: Explained, value: Value) -> Iterator[RenderableType]:
    from simulator.planner.sensitivity import UNSTATED
    from simulator.questions.predict.screen import effects_table

    if term.unit == "s":
        shown = f"{show_seconds(value.amount)}, {show_percent(value.share)} of the step"
    else:
        shown = f"{gib(value.amount)} GiB, {show_percent(value.share)} of peak memory (worst rank)"
    yield Text(f"{value.layout}: {shown}", style="bold")
    if value.hidden_s:
        yield f"and {show_seconds(value.hidden_s)} hidden under compute"
    for name, number in value.inputs.items():
        yield f"  {name}: {number:,.6g}"
    if not value.effects:
        return
    unit, scale = seconds_like(value.amount)
    change = (f"term ({unit})", lambda effect: amount(scale * effect.change_s))
    yield effects_table(value.effects[:_FIGURES], "larger by", change)
    more = len(value.effects) - _FIGURES
    rest = f"{more} more figures move it, in --json. " if more > 0 else ""
    yield Text(f"{rest}* no spread stated: {show_percent(UNSTATED)} taken.")
