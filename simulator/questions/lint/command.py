"""`foreshard lint`: what a launch leaves out or sets that costs, each with its price."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.option_groups import ScenarioOptions
from simulator.cli.runner import Reply, question

LaunchFiles = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...",
        help="The launch: script, sbatch, job of Kubernetes or SkyPilot, and what it reads.",
    ),
]


@question(
    "lint",
    "lint train.sh --cluster dgx-h100 --gpus 64",
    "lint job.sbatch config.toml --cluster dgx-h100 --set training.tokens=1T --json",
)
def ask(*, file: LaunchFiles, options: ScenarioOptions) -> Reply:
    """Say what a launch leaves out or sets that costs: seconds, memory and money of each.

    Exit 0: done, whatever it says; 2: bad input.
    """
    from simulator.cli.screen import waiting
    from simulator.interop.launch_files.merging import files_without_option
    from simulator.questions.lint.answer import lint
    from simulator.questions.lint.screen import screen

    with waiting("reading and pricing"), files_without_option(file[0]):
        answer = lint(file, options.named, options.overrides or ())
    return Reply(answer, screen)
