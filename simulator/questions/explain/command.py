"""`foreshard explain`: what a term of the answer means."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from simulator.cli.option_groups import NAMES, Names, taking
from simulator.cli.options import (
    Json,
    ScenarioFile,
    completing,
    print_json,
    speaking,
)


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


@taking
def command(
    term: Name = "",
    scenario: ScenarioFile = None,
    names: Names = NAMES,
    as_json: Json = False,
) -> None:
    """Explain a term of the step time or a kind of memory: formula, source, the figures it needs.

    With a scenario, also what it is there and which figures move it most.
    """
    with speaking():
        from simulator.planner.prediction import predict
        from simulator.report.explained import explained, explained_document, term_names

        prediction = None
        if scenario or names.says_what:
            described, _ = names.scenario(scenario)
            prediction = predict(described)
        if term:
            found = [explained(term, prediction)]
        else:
            found = [explained(name) for name in term_names()]
        if as_json:
            print_json(explained_document(found))
        else:
            from simulator.questions.explain.screen import show, show_list

            if term:
                show(found[0])
            else:
                show_list(found)
