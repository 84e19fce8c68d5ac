"""`foreshard power`: a cap in kW for the hall, clock against accelerators that run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.option_groups import ScenarioOptions
from simulator.cli.options import ScenarioFile, check_out, writing
from simulator.cli.runner import Reply, question

if TYPE_CHECKING:
    from simulator.questions.power.answer import PowerChoices

Cap = Annotated[
    float, typer.Option("--cap", metavar="KW", help="Power of the hall at the meter, in kW.")
]
Picture = Annotated[
    Path | None,
    typer.Option("--picture", metavar="FILE", help="Draw the frontier over caps: .png or .svg."),
]


@question(
    "power",
    "power run.toml --cap 800",
    "power run.toml --cap 800 --picture frontier.svg",
)
def ask(
    *,
    scenario: ScenarioFile = None,
    cap: Cap,
    picture: Picture = None,
    options: ScenarioOptions,
) -> Reply:
    """Find how to run under a cap of power: how many accelerators, and at which clock.

    Exit 0: done; 1: nothing fits, or nothing stays under the cap; 2: bad input.
    """
    from simulator.cli.screen import waiting
    from simulator.errors import InputError
    from simulator.questions.power.answer import power_choices
    from simulator.questions.power.screen import screen

    check_out("--picture", picture)
    if picture is not None and picture.suffix not in (".png", ".svg"):
        raise InputError(f"--picture: must end in .png or .svg, got {picture.name!r}")
    described, _ = options.scenario(scenario)
    with waiting("searching every size"):
        answer = power_choices(described, cap)
    return Reply(answer, screen, write=None if picture is None else partial(_write, path=picture))


def _write(answer: PowerChoices, path: Path) -> list[str]:
    """Write the picture of the frontier."""
    from simulator.plain_files import write_files
    from simulator.questions.power.picture import power_picture
    from simulator.report.canvas import file_bytes

    with writing(path, "--picture"):
        write_files({path: file_bytes(power_picture(answer), path.suffix)})
    return [f"Picture: {path}"]
