"""`foreshard distil`: a student with its teacher beside it, or ahead of time."""

from __future__ import annotations

from simulator.cli.option_groups import ScenarioOptions
from simulator.cli.options import ScenarioFile, Set
from simulator.cli.runner import Reply, question


@question("distil", "distil run.toml")
def ask(*, scenario: ScenarioFile = None, overrides: Set = None) -> Reply:
    """Find what a step takes with the teacher of [distillation] in it, and ahead of time.

    Exit 0: done; 1: both do not fit together; 2: bad input.
    """
    from simulator.questions.distillation.answer import distil
    from simulator.questions.distillation.screen import screen

    answer = distil(ScenarioOptions(overrides=overrides).scenario(scenario)[0])
    return Reply(answer, screen, feasible=answer.beside is not None)
