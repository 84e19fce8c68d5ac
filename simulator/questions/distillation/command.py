"""`foreshard distil`: a student with its teacher beside it, or ahead of time."""

from __future__ import annotations

from simulator.cli.option_groups import Names
from simulator.cli.options import Json, ScenarioFile, Set, speaking, tell


def command(scenario: ScenarioFile = None, overrides: Set = None, as_json: Json = False) -> None:
    """Find what a step takes with the teacher of [distillation] in it, and ahead of time.

    Exit 0: done; 1: both do not fit together; 2: bad input.
    """
    with speaking():
        from simulator.questions.distillation.answer import distil
        from simulator.questions.distillation.screen import show

        answer = distil(Names(overrides=overrides).scenario(scenario)[0])
        tell(answer, show, as_json=as_json, feasible=answer.beside is not None)
