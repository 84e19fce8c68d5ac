"""`foreshard versus`, `foreshard what-if`: two layouts, or two machines, against each other."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.option_groups import Limits, SearchOptions
from simulator.cli.options import ScenarioFile
from simulator.cli.runner import Reply, question
from simulator.errors import InputError, problem

if TYPE_CHECKING:
    from simulator.scenario import Scenario

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="[SCENARIO] A B",
        help="A scenario file, unless --model, --cluster and --gpus make one; and two sides, each"
        " layout fields such as tp=4 or tp=4,pp=8.",
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


Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--change",
        metavar="NAME=VALUE",
        help="network.adapter=0.5, memory=+20%, network.adapters=4, training.global_batch=4096;"
        " may be repeated, all are made together.",
    ),
]
Fabrics = Annotated[
    bool,
    typer.Option(
        "--fabrics",
        help="Try fabrics in place of changes: 1 to 8 adapters a server of 100 to 800 Gbit/s, rails"
        " or not, over-subscription 1 to 8, fast domain 8 or 72; time and dollars of each.",
    ),
]


Releases = Annotated[
    bool,
    typer.Option(
        "--releases",
        help="Try every release of the software's framework that is known in place of changes: what"
        " an upgrade gains, its memory, and the measured runs behind it.",
    ),
]


@question("versus", "versus run.toml tp=4,pp=4 tp=8,pp=2")
def ask_versus(
    *,
    words: Words,
    options: SearchOptions,
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


@question(
    "what-if",
    "what-if run.toml --change network.adapter=0.5 --change memory=+20%",
    "what-if run.toml --releases",
)
def ask_what_if(
    *,
    scenario: ScenarioFile = None,
    options: SearchOptions,
    limits: Limits,
    change: Changes = None,
    fabrics: Fabrics = False,
    releases: Releases = False,
) -> Reply:
    """Say what a change would do: the best layout before and after, both searched.

    Exit 0: done; 1: nothing fits, before or after; 2: bad input.
    """
    from simulator.cli.screen import waiting
    from simulator.questions.versus.screen import what_if_screen
    from simulator.questions.versus.what_if import what_if

    if fabrics and releases:
        raise InputError("command line: --releases: must be left out with --fabrics")
    described, assumed = limits.put_on(options).scenario(scenario)
    if fabrics:
        return _fabrics(described, change)
    if releases:
        return _releases(described, change)
    with waiting("searching twice"):
        answer = what_if(described, change or ())
    return Reply(answer, partial(what_if_screen, assumed=assumed))


def _releases(scenario: Scenario, changes: list[str] | None) -> Reply:
    """Price the scenario on every release of its framework."""
    from simulator.cli.screen import waiting
    from simulator.questions.versus.releases import release_choices
    from simulator.questions.versus.screen import releases_screen

    if changes:
        raise InputError("arguments: --change: must be left out with --releases")
    with waiting("pricing releases"):
        answer = release_choices(scenario)
    return Reply(answer, releases_screen)


def _fabrics(scenario: Scenario, changes: list[str] | None) -> Reply:
    """Price the scenario on every candidate fabric."""
    from simulator.cli.screen import waiting
    from simulator.questions.versus.fabrics import fabric_choices
    from simulator.questions.versus.screen import fabrics_screen

    if changes:
        raise InputError("arguments: --change: must be left out with --fabrics")
    with waiting("pricing fabrics"):
        answer = fabric_choices(scenario)
    return Reply(answer, fabrics_screen)
