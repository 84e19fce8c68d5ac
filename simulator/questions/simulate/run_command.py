"""`foreshard simulate --run`: whole runs of one layout, with their failures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.cli.options import print_line, writing
from simulator.cli.runner import Reply
from simulator.records import dataclass

if TYPE_CHECKING:
    from simulator.scenario import Scenario


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """Options of whole runs; None: not given."""

    seeds: int | None
    seed: int | None
    incidents: Path | None


def whole_runs(
    scenario: Scenario,
    asked: bool,
    options: RunOptions,
    of_step: dict[str, Any],
    picture: Path | None,
) -> Reply | None:
    """Play whole runs where they are `asked` for; None where they are not.

    Raises
    ------
    InputError
        Where options of one step stand beside --run, or those of runs without it.
    """
    from simulator.errors import InputError

    if not asked:
        given = {"--seeds": options.seeds, "--incidents": options.incidents}
        if wrong := [option for option, value in given.items() if value is not None]:
            raise InputError(f"arguments: {option}: must come with --run" for option in wrong)
        return None
    if wrong := [option for option, value in of_step.items() if value]:
        rule = "is of one step and cannot come with --run"
        raise InputError(f"arguments: {option}: {rule}" for option in wrong)
    return _simulate(scenario, options, picture)


def _simulate(scenario: Scenario, options: RunOptions, picture: Path | None) -> Reply:
    """Play whole runs, and draw what became of them."""
    from simulator.cli.screen import waiting
    from simulator.planner.simulated_run import simulate_run
    from simulator.questions.simulate.run_screen import run_screen

    with waiting("playing runs"):
        runs = simulate_run(
            scenario,
            seeds=options.seeds,
            first_seed=options.seed or 0,
            incidents=options.incidents,
        )
    if picture is not None:
        from simulator.events.run.played_runs import STRETCHES
        from simulator.plain_files import write_files
        from simulator.report.canvas import file_bytes
        from simulator.report.run_picture import run_picture

        name = scenario.workload.architecture.name
        title = f"{name} on {scenario.cluster.gpus:,} x {scenario.cluster.name}"
        with writing(picture):
            drawn = run_picture(runs.played, runs.strip, runs.curves, title, STRETCHES)
            content = file_bytes(drawn, picture.suffix)
            write_files({picture: content})
        print_line(f"Picture: {picture}", err=True)
    return Reply(runs, run_screen)
