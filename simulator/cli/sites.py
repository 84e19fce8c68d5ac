"""`foreshard sites`: one run over several sites, against one place and against waiting for it."""

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
    """Find what a run takes over the places of [sites], and against the one place of [cluster].

    Exit 0: done; 1: nothing fits at one of the sites; 2: bad input.
    """
    with speaking():
        from simulator.decisions.several_sites import several_sites

        names = {"model": None, "cluster": None, "gpus": None, "software": None}
        described, _ = scenario_of(scenario, **names, overrides=overrides)
        answer = several_sites(described)
        if as_json:
            from simulator.report.technique_documents import sites_document

            print_json(sites_document(answer))
        else:
            from simulator.cli.screen_sites import show

            show(answer)
        if answer.cycle is None:
            raise typer.Exit(INFEASIBLE)
