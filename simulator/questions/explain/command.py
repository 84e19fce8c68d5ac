"""`foreshard explain`: what a term of the answer means."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from simulator.cli.option_groups import ScenarioOptions
from simulator.cli.options import (
    ScenarioFile,
    completing,
)
from simulator.cli.runner import Reply, question


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
    from simulator.questions.explain.screen import list_screen, term_screen
    from simulator.report.explained import explained, explained_document, term_names

    prediction = None
    if scenario or options.describes_something:
        described, _ = options.scenario(scenario)
        prediction = predict(described)
    terms = [explained(term, prediction)] if term else [explained(name) for name in term_names()]
    screen = term_screen if term else list_screen
    return Reply(terms, screen, explained_document)
