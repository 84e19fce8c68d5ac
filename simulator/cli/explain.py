"""`foreshard explain`: what a term of the answer means."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.options import (
    ClusterName,
    Gpus,
    Json,
    ModelName,
    ScenarioFile,
    Set,
    SoftwareName,
    print_json,
    scenario_of,
    speaking,
)

__all__ = ["command"]

Name = Annotated[
    str,
    typer.Argument(
        metavar="[TERM]", help="Such as gemm, dp, bubble_warmup, activations; all if none is given."
    ),
]


def command(
    term: Name = "",
    scenario: ScenarioFile = None,
    model: ModelName = None,
    cluster: ClusterName = None,
    gpus: Gpus = None,
    software: SoftwareName = None,
    overrides: Set = None,
    as_json: Json = False,
) -> None:
    """Explain a term of the step time or a kind of memory: formula, source, the figures it needs.

    With a scenario, also what it is there and which figures move it most.
    """
    with speaking():
        from simulator.planner.prediction import predict
        from simulator.report.explained import explained, explained_document, term_names

        prediction = None
        if any((scenario, model, cluster, gpus, overrides)):
            described, _ = scenario_of(
                scenario,
                model=model,
                cluster=cluster,
                gpus=gpus,
                software=software,
                overrides=overrides,
            )
            prediction = predict(described)
        if term:
            found = [explained(term, prediction)]
        else:
            found = [explained(name) for name in term_names()]
        if as_json:
            print_json(explained_document(found))
        else:
            from simulator.cli.screen_explain import show, show_list

            if term:
                show(found[0])
            else:
                show_list(found)
