"""`foreshard recommender`: a step of embedding tables beside a dense model."""

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
    """Find what a step of [sparse] takes: tables split over the GPUs beside a dense model.

    Exit 0: done; 1: tables or model do not fit; 2: bad input.
    """
    with speaking():
        from simulator.planner.sparse_step import recommender

        names = {"model": None, "cluster": None, "gpus": None, "software": None}
        described, _ = scenario_of(scenario, **names, overrides=overrides)
        answer = recommender(described)
        if as_json:
            from simulator.report.technique_documents import recommender_document

            print_json(recommender_document(answer))
        else:
            from simulator.cli.screen_recommender import show

            show(answer)
        if not answer.fits:
            raise typer.Exit(INFEASIBLE)
