"""`foreshard rl`: a step of reinforcement learning, and how to split its accelerators."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from simulator.cli.option_groups import ScenarioOptions
from simulator.cli.options import Json, ScenarioFile, check_out, print_line, writing
from simulator.cli.runner import Reply, question

if TYPE_CHECKING:
    from simulator.questions.rl.answer import PricedRL

Script = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="FILE",
        help="Launch script or YAML of NeMo-RL, verl, OpenRLHF, TRL, slime or AReaL: what it says"
        " becomes \\[rl]; --cluster and --gpus say where, --set adds lengths of answers.",
    ),
]
By = Annotated[
    Literal["time", "usd", "throughput"],
    typer.Option(help="What the best split is best in: time or money of an update, or tokens."),
]
AsGiven = Annotated[
    bool, typer.Option("--as-given", help="Price the scenario's own split alone, try no other.")
]
Page = Annotated[
    Path | None,
    typer.Option(
        "--page", metavar="FILE.html", help="Write a page with every split and a drawing."
    ),
]
Picture = Annotated[
    Path | None,
    typer.Option("--picture", metavar="FILE", help="Draw both sides of two steps: .png or .svg."),
]


@question(
    "rl",
    "rl run.toml",
    "rl run.toml --by usd --page rl.html",
    "rl --from grpo.yaml --cluster dgx-h100 --gpus 64 --set rl.answer_tokens=1200",
)
def ask(
    *,
    scenario: ScenarioFile = None,
    script: Script = None,
    options: ScenarioOptions,
    by: By = "time",
    as_given: AsGiven = False,
    page: Page = None,
    picture: Picture = None,
    as_json: Json = False,
) -> Reply:
    """Find what a step of [rl] takes, who waits for whom, and the best split of accelerators.

    Generation, log-probabilities, training and the way of the weights to the engine are priced one
    by one; [layout] is the trainer's. Exit 0: done; 1: nothing fits; 2: bad input.
    """
    from simulator.cli.screen import Progress
    from simulator.errors import InputError
    from simulator.questions.rl.answer import rl
    from simulator.questions.rl.screen import screen

    check_out("--page", page)
    check_out("--picture", picture)
    if picture is not None and picture.suffix not in (".png", ".svg"):
        raise InputError(f"--picture: must end in .png or .svg, got {picture.name!r}")
    if script is None:
        described = options.scenario(scenario)[0]
    else:
        from simulator.interop.rl_scripts import scenario_from_script

        if scenario is not None:
            raise InputError("--from: must be left out beside a scenario file")
        described, said = scenario_from_script(script, options.named, options.overrides or ())
        for line in () if as_json else said:
            print_line(line)
    with Progress("trying splits") as progress:
        answer = rl(described, by=by, search=not as_given, progress=progress)
    write = partial(_write, page=page, picture=picture)
    return Reply(answer, screen, write=write, feasible=answer.feasible)


def _write(answer: PricedRL, page: Path | None, picture: Path | None) -> Iterator[str]:
    """Write page and picture, where there is a step to show."""
    if answer.shown is None:
        return
    if page is not None:
        from simulator.plain_files import write_files
        from simulator.questions.rl.page import rl_page

        with writing(page, "--page"):
            write_files({page: rl_page(answer).encode()})
        yield f"Page: {page}"
    if picture is not None:
        from simulator.plain_files import write_files
        from simulator.questions.rl.picture import rl_picture
        from simulator.report.canvas import file_bytes

        with writing(picture, "--picture"):
            write_files({picture: file_bytes(rl_picture(answer), picture.suffix)})
        yield f"Picture: {picture}"
