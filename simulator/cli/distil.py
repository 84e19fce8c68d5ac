"""`foreshard distil`: a student with its teacher beside it, or ahead of time."""

from __future__ import annotations

import typer

from simulator.cli.options import (
    INFEASIBLE,
    Json,
    ScenarioFile,
    Set,
    print_json,
    scenario_of,
    speaking,
)

__all__ = ["command"]


def command(scenario: ScenarioFile = None, overrides: Set = None, as_json: Json = False) -> None:
    """Find what a step takes with the teacher of [distillation] beside it, and ahead of time.

    Exit 0: done; 1: both do not fit together; 2: bad input.
    """
    with speaking():
        from simulator.decisions.distilling import distil

        names = {"model": None, "cluster": None, "gpus": None, "software": None}
        described, _ = scenario_of(scenario, **names, overrides=overrides)
        answer = distil(described)
        if as_json:
            from simulator.report.technique_documents import distillation_document

            print_json(distillation_document(answer))
        else:
            from simulator.cli.screen_distil import show

            show(answer)
        if answer.beside is None:
            raise typer.Exit(INFEASIBLE)
