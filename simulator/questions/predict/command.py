"""`foreshard predict`: time, memory and cost of one layout, term by term."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.option_groups import NAMES, Names, taking
from simulator.cli.options import (
    Json,
    print_json,
    say,
    speaking,
)
from simulator.errors import InputError
from simulator.questions.predict.anchoring import AnchoredBy, AnchorScenario, anchor
from simulator.questions.predict.from_files import FromFiles, ScenarioFiles, imported, sorted_files
from simulator.questions.simulate.trace_file import Trace, check_trace, title, write_trace
from simulator.scenario import Scenario

if TYPE_CHECKING:
    from simulator.planner.prediction import Prediction

Memory = Annotated[
    bool,
    typer.Option(
        "--memory",
        help="Memory of every pipeline stage with formulas and inputs, and what would make it fit.",
    ),
]
Figures = Annotated[
    bool,
    typer.Option(
        "--figures",
        help="Every figure behind the step time, sorted by how much the answer moves with it.",
    ),
]


@taking
def command(
    scenario: ScenarioFiles = None,
    from_files: FromFiles = None,
    names: Names = NAMES,
    memory: Memory = False,
    figures: Figures = False,
    anchored_by: AnchoredBy = None,
    anchor_scenario: AnchorScenario = None,
    as_json: Json = False,
    trace: Trace = None,
) -> None:
    """Predict step time, memory and cost of one layout.

    The layout is what the layout section of the scenario (or --set layout.tp=8) says; fields that
    are not given take stated defaults. One that does not fit in memory is an answer, not an error.
    """
    with speaking():
        from simulator.planner.prediction import predict

        made, assumed = _asked(scenario, from_files, names, as_json=as_json)
        check_trace(trace)
        if isinstance(made, Scenario) and made.cluster.kinds:
            of_one = {"--memory": memory, "--figures": figures, "--anchored-by": anchored_by,
                      "--anchor-scenario": anchor_scenario}  # fmt: skip
            _mixed(made, of_one, trace, as_json=as_json)
            return
        prediction = predict(made) if isinstance(made, Scenario) else made
        correction, found, effects = None, None, None
        if anchored_by or anchor_scenario:
            prediction, correction = anchor(prediction, anchored_by or (), anchor_scenario)
        if memory:
            from simulator.planner.fitting import fitting

            found = fitting(prediction)
        if figures:
            from simulator.planner.sensitivity import figure_effects

            effects = figure_effects(prediction)
        if trace is not None:
            from simulator.events.simulated_step import simulate

            row, scenario_ = prediction.estimate.layouts, prediction.scenario
            step = simulate(row, scenario_.workload, scenario_.cluster, scenario_.software)
            write_trace(step, trace, title(scenario_, prediction.estimate))
            say(f"Trace: {trace}", err=True)
        if as_json:
            from simulator.answers import plain

            parts = {"anchored_by": correction, "memory": found, "figures": effects}
            parts = {name: part for name, part in parts.items() if part is not None}
            print_json({**prediction.document(), **plain(parts)})
        elif found is not None:
            from simulator.questions.predict.memory_screen import show_memory

            show_memory(prediction, found)
        else:
            from simulator.questions.predict.screen import show

            show(prediction, assumed, correction)
            if effects is not None:
                from simulator.questions.predict.figures_screen import show_figures

                show_figures(effects, prediction.step_time_s)


def _asked(
    scenario: list[Path] | None,
    from_files: list[Path] | None,
    names: Names,
    *,
    as_json: bool,
) -> tuple[Scenario | Prediction, dict[str, Any]]:
    """What a file, launch files (predicted already) or names describe, and what they assumed."""
    file, launch_files = sorted_files(scenario, from_files)
    if launch_files:
        return imported(launch_files, names, as_json=as_json).predicted(), {}
    return names.scenario(file)


def _mixed(
    scenario: Scenario, of_one: dict[str, Any], trace: Path | None, *, as_json: bool
) -> None:
    """Predict on servers of several kinds; `of_one`: options that only those of one kind have."""
    from simulator.planner.mixed_prediction import predict_mixed  # brings the events along

    if wrong := [option for option, value in of_one.items() if value]:
        rule = "must be left out with servers of several kinds"
        raise InputError(f"arguments: {option}: {rule}" for option in wrong)
    answer = predict_mixed(scenario)
    if trace is not None:
        write_trace(answer.step, trace, answer.line)
        say(f"Trace: {trace}", err=True)
    if as_json:
        print_json(answer.document())
    else:
        from simulator.questions.simulate.mixed_screen import show_mixed_prediction

        show_mixed_prediction(answer)
