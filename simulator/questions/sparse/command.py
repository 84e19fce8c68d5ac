"""`foreshard recommender`: a step of embedding tables beside a dense model."""

from __future__ import annotations

from simulator.cli.option_groups import ScenarioOptions
from simulator.cli.options import ScenarioFile, Set
from simulator.cli.runner import Reply, question


@question("recommender", "recommender run.toml --set sparse.updates=asynchronous")
def ask(*, scenario: ScenarioFile = None, overrides: Set = None) -> Reply:
    """Find what a step of [sparse] takes: tables split over the GPUs, next to a dense model.

    Exit 0: done; 1: tables or model do not fit; 2: bad input.
    """
    from simulator.questions.sparse.answer import recommender
    from simulator.questions.sparse.screen import screen

    answer = recommender(ScenarioOptions(overrides=overrides).scenario(scenario)[0])
    return Reply(answer, screen, feasible=answer.fits)
