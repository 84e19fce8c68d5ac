"""`foreshard distil`: a student with its teacher beside it, or ahead of time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulator.cli.option_groups import ScenarioOptions
from simulator.cli.options import Json
from simulator.cli.runner import Reply, question
from simulator.questions.predict.from_files import FromFiles, ScenarioFiles, imported, sorted_files

if TYPE_CHECKING:
    from simulator.questions.distillation.answer import Distilled


@question(
    "distil", "distil run.toml", "distil --from dpo.yaml --cluster dgx-h100 --gpus 8 --model FOLDER"
)
def ask(
    *,
    scenario: ScenarioFiles = None,
    from_files: FromFiles = None,
    options: ScenarioOptions,
    as_json: Json = False,
) -> Reply:
    """Find what a step takes with the teacher of [distillation] in it, and ahead of time.

    Without a teacher's name it is the model before training, the reference of DPO. Launch files
    that name a teacher or train on pairs are read with --from. Exit 0: done; 1: both do not fit
    together; 2: bad input.
    """
    from simulator.questions.distillation.answer import distil
    from simulator.questions.distillation.screen import screen

    file, launch = sorted_files(scenario, from_files)
    if launch:
        read = imported(launch, options, as_json=as_json)
        prediction = read.predicted()
        answer = distil(prediction.scenario, prediction.estimate)
    else:
        read, answer = None, distil(options.scenario(file)[0])

    def document(answer: Distilled) -> dict[str, Any]:
        from simulator.answers import plain

        return answer.document() | ({} if read is None else {"from": plain(read)})

    return Reply(answer, screen, document, feasible=answer.beside is not None)
