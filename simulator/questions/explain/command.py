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
    from simulator.report.explained import term_names

    return term_names()


Name = Annotated[
    str,
    typer.Argument(
        metavar="[TERM]",
        help="Such as gemm, dp, bubble_warmup, activations; all if none is given.",
        autocompletion=_terms,
    ),
]


@question(
    "explain",
    "explain gemm",
    "explain dp run.toml --set layout.tp=4",
)
def ask(
    *,
    term: Name = "",
    scenario: ScenarioFile = None,
    options: ScenarioOptions,
) -> Reply:
    """Explain a term of the step time or a kind of memory: formula, source, the figures it needs.

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
