"""`foreshard lint`: what a launch leaves out or sets that costs, each with its price.

The command first, then its screen.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from simulator.cli.option_groups import ScenarioOptions
from simulator.cli.runner import Reply, question
from simulator.cli.screen import gib, heading, notes, plain_table, waiting
from simulator.errors import visible
from simulator.glossary import CAVEATS
from simulator.quoting import option_word
from simulator.units import show_seconds, show_signed_percent, show_usd

if TYPE_CHECKING:
    from simulator.questions.lint.answer import Lint, Lints


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
    from simulator.interop.launch_files.merging import files_without_option
    from simulator.questions.lint.answer import lint

    with waiting("reading and pricing"), files_without_option(file[0]):
        answer = lint(file, options.named, options.overrides or ())
    return Reply(answer, screen)


def screen(answer: Lints) -> Iterator[RenderableType]:
    """Give the run, then what costs most first, then what to write."""
    from simulator.questions.predict.from_files_screen import reading_lines
    from simulator.questions.predict.screen import verdict

    for line in reading_lines(answer.imported):
        yield Text(visible(line))
    yield ""
    yield heading(answer.prediction.scenario)
    yield verdict(answer.prediction)
    if not answer.lints:
        yield notes("", ["Nothing in these files costs anything that is known here."])
    else:
        yield _table(answer)
        yield ""
        yield notes("Instead", [f"{lint.name}: {lint.advice}" for lint in answer.lints])
    yield notes("No price", [f"{x.name}: {x.unpriced}" for x in answer.lints if x.unpriced])
    yield notes("As they should be", list(answer.as_they_should_be))
    yield notes(CAVEATS, answer.caveats)


def _table(answer: Lints) -> RenderableType:
    money = f"USD{answer.prediction.outcome.price.mark}"
    table = plain_table(
        "", "costs", "a step", "of it", "GiB", money, "then", left=("", "costs", "then")
    )
    for lint in answer.lints:
        table.add_row(lint.name, visible(_says(lint)), *_price(lint, answer.prediction.step_time_s))
    return table


def _says(lint: Lint) -> str:
    change = ", ".join(f"{name} = {option_word(value)}" for name, value in lint.change.items())
    stands = f" (it says {lint.stands})" if lint.stands else ""
    return f"{lint.says}{stands}{f' -> {change}' if change else ''}"


def _price(lint: Lint, step_s: float) -> tuple[str, str, str, str, str]:
    """Seconds, their share, GiB, money and whether it then fits."""
    if lint.step_s is None or lint.memory_bytes is None:
        return "no price", "", "", "", ""
    bound = f"{lint.bound} " if lint.bound else ""
    sign = "-" if lint.step_s < 0.0 else ""
    return (
        f"{bound}{sign}{show_seconds(abs(lint.step_s))}" if lint.step_s else "0",
        show_signed_percent(lint.step_s / step_s) if lint.step_s else "",
        gib(lint.memory_bytes) if lint.memory_bytes else "",
        "" if lint.usd is None else f"{'-' if lint.usd < 0 else ''}{show_usd(abs(lint.usd))}",
        lint.verdict or "",
    )
