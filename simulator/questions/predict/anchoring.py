"""`foreshard predict --anchored-by`: a measured run of this site corrects the prediction."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from simulator.planner.prediction import Prediction
    from simulator.scenario import Scenario
    from simulator.scoring.anchor import Anchor, Correction

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
    from simulator.errors import InputError
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
    from simulator.cli.option_groups import ScenarioOptions

    return ScenarioOptions().scenario(path)[0]


def _of_logs(paths: Sequence[Path], scenario: Scenario) -> list[Anchor]:
    from simulator.interop.logs.readers import log_kind
    from simulator.questions.validate.log_command import compare_logs
    from simulator.scoring.anchor import anchor_of_log

    logs = []
    for path in paths:
        compared = compare_logs([(log_kind(path), path)], scenario)
        logs += [anchor_of_log(one) for one in compared]
    return logs
