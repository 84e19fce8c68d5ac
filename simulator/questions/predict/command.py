"""`foreshard predict`: time, memory and cost of one layout, term by term."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.answers import plain
from simulator.cli.decision_options import IDEAL, Ideal, Trace, check_trace, title, write_trace
from simulator.cli.option_groups import Limits, ScenarioOptions
from simulator.cli.options import Json, print_line
from simulator.cli.runner import Reply, question
from simulator.errors import InputError
from simulator.questions.predict.from_files import FromFiles, ScenarioFiles, imported, sorted_files
from simulator.scenario import Scenario

if TYPE_CHECKING:
    from simulator.interop.launch_files.imported import Imported
    from simulator.planner.prediction import Prediction
    from simulator.scoring.anchor import Anchor, Correction


Memory = Annotated[
    bool,
    typer.Option(
        "--memory",
        help="Memory of every pipeline stage with formulas and inputs, and what would make it fit.",
    ),
]
Explain = Annotated[
    bool,
    typer.Option("--explain", help="Show the formula of each term and of each kind of memory."),
]
Figures = Annotated[
    bool,
    typer.Option(
        "--figures",
        help="Every figure behind the step time, sorted by how much the answer moves with it.",
    ),
]


@question(
    "predict",
    "predict run.toml --set layout.tp=8 --set layout.pp=4",
    "predict run.toml --explain",
    "predict run.toml --memory",
    "predict run.toml --anchored-by small-run.csv",
)
def ask(
    *,
    scenario: ScenarioFiles = None,
    from_files: FromFiles = None,
    options: ScenarioOptions,
    limits: Limits,
    ideal: Ideal = False,
    memory: Memory = False,
    figures: Figures = False,
    explain: Explain = False,
    anchored_by: AnchoredBy = None,
    anchor_scenario: AnchorScenario = None,
    as_json: Json = False,
    trace: Trace = None,
) -> Reply:
    """Predict step time, memory and cost of one layout.

    The layout is what the layout section of the scenario (or --set layout.tp=8) says; fields that
    are not given take stated defaults. One that does not fit in memory is an answer, not an error.
    """
    from simulator.planner.prediction import predict

    options = limits.put_on(options.with_set(IDEAL) if ideal else options)
    made, launch = _asked(scenario, from_files, options, as_json=as_json)
    check_trace(trace)
    if isinstance(made, Scenario) and made.cluster.kinds:
        of_one = {"--memory": memory, "--figures": figures, "--explain": explain,
                  "--anchored-by": anchored_by,
                  "--anchor-scenario": anchor_scenario}  # fmt: skip
        return _mixed(made, of_one, trace)
    prediction = predict(made) if isinstance(made, Scenario) else made
    correction, fit, effects = None, None, None
    if anchored_by or anchor_scenario:
        prediction, correction = anchor(prediction, anchored_by or (), anchor_scenario)
    if memory:
        from simulator.planner.fitting import fitting

        fit = fitting(prediction)
    if figures:
        from simulator.planner.sensitivity import figure_effects

        effects = figure_effects(prediction)
    if trace is not None:
        from simulator.events.simulated_step import simulate

        row, scenario_ = prediction.estimate.layouts, prediction.scenario
        step = simulate(row, scenario_.workload, scenario_.cluster, scenario_.software)
        write_trace(step, trace, title(scenario_, prediction.estimate))
        print_line(f"Trace: {trace}", err=True)

    def screen(prediction: Prediction) -> Iterator[Any]:
        if fit is not None:
            from simulator.questions.predict.screen import memory_screen

            return memory_screen(prediction, fit)
        from simulator.questions.predict.screen import screen

        return screen(prediction, correction, effects, formulas=explain)

    def document(prediction: Prediction) -> dict[str, Any]:
        parts = {"anchored_by": correction, "memory": fit, "figures": effects, "from": launch}
        parts = {name: part for name, part in parts.items() if part is not None}
        return {**prediction.document(), **plain(parts)}

    return Reply(prediction, screen, document)


def _asked(
    scenario: list[Path] | None,
    from_files: list[Path] | None,
    options: ScenarioOptions,
    *,
    as_json: bool,
) -> tuple[Scenario | Prediction, Imported | None]:
    """What a file, launch files (predicted already) or names describe."""
    file, launch_files = sorted_files(scenario, from_files)
    if launch_files:
        launch = imported(launch_files, options, as_json=as_json)
        return launch.predicted(), launch
    return options.scenario(file), None


def _mixed(scenario: Scenario, of_one: dict[str, Any], trace: Path | None) -> Reply:
    """Predict on servers of several kinds; `of_one`: options that only those of one kind have."""
    from simulator.planner.mixed_prediction import predict_mixed  # brings the events along
    from simulator.questions.simulate.mixed_screen import mixed_prediction_screen

    if wrong := [option for option, value in of_one.items() if value]:
        rule = "must be left out with servers of several kinds"
        raise InputError(f"arguments: {option}: {rule}" for option in wrong)
    answer = predict_mixed(scenario)
    if trace is not None:
        write_trace(answer.step, trace, answer.line)
        print_line(f"Trace: {trace}", err=True)
    return Reply(answer, mixed_prediction_screen)


AnchoredBy = Annotated[
    list[Path] | None,
    typer.Option(
        "--anchored-by",
        metavar="RUN",
        help="A measured run of this site: a table of runs (.csv, as validate reads), or a training"
        " log of Megatron-LM, torchtitan or MLPerf. It corrects the terms; may be repeated.",
    ),
]
AnchorScenario = Annotated[
    Path | None,
    typer.Option(
        "--anchor-scenario",
        metavar="SCENARIO",
        help="Scenario file (TOML) of the run of the logs given by --anchored-by.",
    ),
]


def anchor(
    prediction: Prediction, files: Sequence[Path], described: Path | None
) -> tuple[Prediction, Correction]:
    """Correct a prediction by the measured runs of some files.

    Raises
    ------
    InputError
        If a file cannot be used, or its runs are of another device, software or precision.
    """
    from simulator.scoring.anchor import anchored, anchors_of_table

    anchors: list[Anchor] = []
    logs = [path for path in files if path.suffix != ".csv"]
    for path in files:
        if path.suffix == ".csv":
            anchors += anchors_of_table(path)
    if logs and described is None:
        raise InputError(
            f"command line: --anchor-scenario: must be given with a log, which says too little of"
            f" its run, got --anchored-by {logs[0]} alone"
        )
    if described is not None and not logs:
        raise InputError(
            f"command line: --anchor-scenario: belongs to a log in --anchored-by, got {described}"
        )
    if described is not None:
        anchors += _of_logs(logs, _scenario(described))
    return anchored(prediction, anchors)


def _scenario(path: Path) -> Scenario:
    return ScenarioOptions().scenario(path)


def _of_logs(paths: Sequence[Path], scenario: Scenario) -> list[Anchor]:
    from simulator.interop.logs.readers import log_kind
    from simulator.questions.validate.log_command import compare_logs
    from simulator.scoring.anchor import anchor_of_log

    logs = []
    for path in paths:
        compared = compare_logs([(log_kind(path), path)], scenario)
        logs += [anchor_of_log(log) for log in compared]
    return logs
