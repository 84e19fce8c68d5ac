"""`foreshard simulate --run`: whole runs of one layout, with all that fails."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.cli.options import print_json, say, writing

if TYPE_CHECKING:
    from simulator.scenario import Scenario

__all__ = ["RunOptions", "whole_runs"]

_SEEDS = 1000


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
    as_json: bool,
) -> bool:
    """Play whole runs where they are `asked` for; true where they were.

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
        return False
    if wrong := [option for option, value in of_step.items() if value]:
        rule = "is of one step and cannot come with --run"
        raise InputError(f"arguments: {option}: {rule}" for option in wrong)
    _simulate(scenario, options, picture, as_json)
    return True


def _simulate(scenario: Scenario, options: RunOptions, picture: Path | None, as_json: bool) -> None:
    """Play whole runs, and print or draw what became of them."""
    from simulator.cli.screen import waiting
    from simulator.errors import InputError
    from simulator.events.run.played_runs import STRETCHES, play_runs, strip_of
    from simulator.planner.prediction import predict
    from simulator.planner.real_run import devices_of
    from simulator.planner.run_curves import run_curves
    from simulator.reliability.incidents import read_incidents, with_rates

    if scenario.workload.recipe.tokens is None:
        raise InputError(f"{scenario.where}: training.tokens: required with --run")
    found = None
    if options.incidents is not None:
        found = read_incidents(options.incidents, scenario.run, devices_of(scenario))
        scenario = replace(scenario, run=with_rates(scenario.run, found))
    prediction = predict(scenario)
    real = prediction.outcome.real
    assert real is not None
    seeds, first = _SEEDS if options.seeds is None else options.seeds, options.seed or 0
    with waiting("playing runs"):
        played = play_runs(real, seeds=seeds, first_seed=first)
        curves, strip = run_curves(prediction), strip_of(real, seed=first)
    if picture is not None:
        from simulator.plain_files import write_files
        from simulator.report.run_picture import run_png

        name = scenario.workload.architecture.name
        title = f"{name} on {scenario.cluster.gpus:,} x {scenario.cluster.name}"
        with writing(picture):
            write_files({picture: run_png(played, strip, curves, title, STRETCHES)})
        say(f"Picture: {picture}", err=True)
    if as_json:
        from simulator.report.run_document import run_document

        print_json(run_document(prediction, played, curves, found))
    else:
        from simulator.cli.screen_run import show_run

        show_run(prediction, played, strip, curves, found)
