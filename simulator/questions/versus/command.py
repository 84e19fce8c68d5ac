"""`foreshard versus`: two layouts of one run against each other."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.option_groups import ScenarioOptions
from simulator.cli.runner import Reply, question
from simulator.errors import InputError, problem

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="[SCENARIO] A B",
        help="A scenario file, unless --model, --cluster and --gpus make one; and two sides, each"
        " layout fields such as tp=4 or tp=4,pp=8.",
        show_default=False,
    ),
]
Defaults = Annotated[
    bool,
    typer.Option(
        "--defaults",
        help="Give what a side does not say its stated default, as predict does; it is searched"
        " otherwise.",
    ),
]


@question("versus", "versus run.toml tp=4,pp=4 tp=8,pp=2")
def ask(
    *,
    words: Words,
    options: ScenarioOptions,
    defaults: Defaults = False,
) -> Reply:
    """Compare two layouts term by term, with the chance that each is the faster one.

    Exit 0: done; 1: nothing of a side fits; 2: bad input.
    """
    from simulator.cli.screen import waiting
    from simulator.questions.versus.answer import parse_side, versus
    from simulator.questions.versus.screen import versus_screen

    sides = [word for word in words if "=" in word]
    files = [word for word in words if "=" not in word]
    if len(sides) != 2 or len(files) > 1:
        rule = "must be two sides such as tp=4 tp=8, after a scenario file if there is one"
        raise InputError(problem("command line", "arguments", rule, " ".join(words)))
    a, b = (parse_side(text) for text in sides)
    described, assumed = options.scenario(Path(files[0]) if files else None)
    with waiting("searching both"):
        answer = versus(described, a, b, search=not defaults)
    return Reply(answer, partial(versus_screen, assumed=assumed))
