"""`foreshard explain`: what a term of the answer means, and its value in a scenario.

The command first, then its screen, then the answer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from simulator.cli.option_groups import ScenarioOptions
from simulator.cli.options import ScenarioFile, completing
from simulator.cli.runner import Reply, question
from simulator.cli.screen import amount, gib, seconds_like
from simulator.errors import InputError, did_you_mean
from simulator.glossary import glossary, meaning
from simulator.records import dataclass
from simulator.units import show_percent, show_seconds

if TYPE_CHECKING:
    from simulator.planner.prediction import Prediction
    from simulator.planner.sensitivity import FigureEffect


@completing
def _terms() -> Iterable[str]:
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

    prediction = None
    if scenario or options.describes_something:
        described = options.scenario(scenario)
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


_MEMORY_SOURCE = "cost/memory/peak.py, cost/states/state_bytes.py; counted, with torch as the check"
_MEMORY_FIGURES = "software profile [states], [memory]; accelerator memory"


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """What a term is in one layout."""

    layout: str
    amount: float
    """Seconds of a step, or bytes on the worst rank."""
    share: float
    """Of the step time, or of all its memory."""
    hidden_s: float
    """Communication under compute, which is no part of `amount`."""
    inputs: dict[str, float]
    """Of a kind of memory: what its formula is fed with."""
    effects: list[FigureEffect]
    """Of a term of the step time: figures that move it, most telling first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """One term."""

    name: str
    label: str
    unit: str
    """``s`` or ``bytes``; blank for a word of the glossary."""
    when: str
    """Stream and phase of a step; blank for memory."""
    formula: str
    source: str
    figures: str
    """What it reads of profiles."""
    value: Value | None = None
    """In the scenario that was given."""


def term_names() -> list[str]:
    """Terms of the step time, then kinds of memory."""
    from simulator.cost.memory.peak import MEMORY_KINDS
    from simulator.cost.terms import TERMS

    return [*(term.name for term in TERMS), *MEMORY_KINDS]


def explained(name: str, prediction: Prediction | None = None) -> Explained:
    """Explain a term, and say what it is in a prediction.

    Raises
    ------
    InputError
        If there is no such term, with the nearest.
    """
    from simulator.cost.memory.peak import MEMORY_KINDS
    from simulator.cost.terms import MEMORY_MEANING, TERMS

    for term in TERMS:
        if name in (term.name, term.label):
            stated = Explained(
                name=term.name,
                label=term.label,
                unit="s",
                when=f"{term.stream}, {term.phase}",
                formula=term.formula,
                source=term.source,
                figures=term.figures,
            )
            value = None if prediction is None else _time(term.name, prediction)
            return dataclasses.replace(stated, value=value)
    if name not in MEMORY_KINDS:
        return _word(name)
    return Explained(
        name=name,
        label=f"memory: {name}",
        unit="bytes",
        when="",
        formula=MEMORY_MEANING[name],
        source=_MEMORY_SOURCE,
        figures=_MEMORY_FIGURES,
        value=None if prediction is None else _memory(name, prediction),
    )


def _word(name: str) -> Explained:
    """What a word of the glossary means; `layout` is how the name of a layout reads.

    Raises
    ------
    InputError
        If there is no such word or term, with the nearest.
    """
    if name == "layout":
        text = "\n".join(f"{sign:<18}{text}" for sign, text in glossary()["layout"].items())
        known: tuple[str, str] | None = ("layout", text)
    else:
        known = meaning(name)
    if known is None:
        hint = did_you_mean(name, [*term_names(), *glossary()["words"], "layout"])
        raise InputError(f"command line: {name}: no such term{hint}")
    label, formula = known
    return Explained(name=label, label="", unit="", when="", formula=formula, source="", figures="")


def _time(name: str, prediction: Prediction) -> Value:
    from simulator.planner.sensitivity import figure_effects

    estimate = prediction.estimate
    seconds = float(estimate.terms_s[name][0])
    hidden = estimate.hidden_s.get(name)
    return Value(
        layout=estimate.layouts.describe(),
        amount=seconds,
        share=seconds / prediction.step_time_s,
        hidden_s=0.0 if hidden is None else float(hidden[0]),
        inputs={},
        effects=[
            figure_effect
            for figure_effect in figure_effects(prediction, name)
            if figure_effect.change_s
        ],
    )


def _memory(name: str, prediction: Prediction) -> Value:
    from simulator.cost.rank_memory import rank_memory

    estimate, scenario = prediction.estimate, prediction.scenario
    ranks = rank_memory(estimate.layouts, scenario.workload, scenario.cluster, scenario.software)
    fullest = int(ranks.total_bytes.argmax())
    size = float(estimate.memory_bytes[name][0])
    return Value(
        layout=estimate.layouts.describe(),
        amount=size,
        share=size / prediction.memory_bytes,
        hidden_s=0.0,
        inputs=dict(ranks.inputs[fullest].get(name, {})),
        effects=[],
    )


def explained_document(explanations: list[Explained]) -> dict[str, Any]:
    """Return terms as `--json` has them."""
    from simulator.answers import head, plain

    return head("explain") | {"terms": plain(explanations)}
