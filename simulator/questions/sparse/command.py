"""`foreshard recommender`: a step of embedding tables beside a dense model."""

from __future__ import annotations

from simulator.cli.option_groups import Names
from simulator.cli.options import Json, ScenarioFile, Set, speaking, tell


def command(scenario: ScenarioFile = None, overrides: Set = None, as_json: Json = False) -> None:
    """Find what a step of [sparse] takes: tables split over the GPUs, next to a dense model.

    Exit 0: done; 1: tables or model do not fit; 2: bad input.
    """
    with speaking():
        from simulator.questions.sparse.answer import recommender
        from simulator.questions.sparse.screen import show

        answer = recommender(Names(overrides=overrides).scenario(scenario)[0])
        tell(answer, show, as_json=as_json, feasible=answer.fits)
