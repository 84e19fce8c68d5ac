"""`foreshard validate --megatron-log LOG`: a user's own training log beside its prediction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.runner import Reply

if TYPE_CHECKING:
    from simulator.cli.option_groups import ScenarioOptions
    from simulator.scenario import Scenario
    from simulator.scoring.logs import LogComparison

MegatronLog = Annotated[
    Path | None,
    typer.Option("--megatron-log", metavar="LOG", help="What Megatron-LM printed, or its kin."),
]
TorchtitanLog = Annotated[
    Path | None, typer.Option("--torchtitan-log", metavar="LOG", help="What torchtitan printed.")
]
MlperfLog = Annotated[
    Path | None, typer.Option("--mlperf-log", metavar="LOG", help="A log with :::MLLOG lines.")
]
AnyLog = Annotated[
    list[Path] | None,
    typer.Option(
        "--log",
        metavar="LOG",
        help="A training log of any kind that is read (NeMo, DeepSpeed, MaxText, LitGPT, ...), or"
        " the history of a run: CSV, JSON lines, TensorBoard, MLflow; may be repeated.",
    ),
]
LogScenario = Annotated[
    Path | None,
    typer.Option(
        "--scenario", metavar="SCENARIO", help="Scenario file (TOML) of the run of a log or trace."
    ),
]
WarmUp = Annotated[
    int | None,
    typer.Option(
        "--warm-up", metavar="N", min=0, help="Step lines to leave out at the start of a log."
    ),
]


def compare_logs(
    logs: Iterable[tuple[str, Path]],
    scenario: Scenario,
    *,
    assumed: Iterable[str] = (),
    warm_up: int | None = None,
) -> list[LogComparison]:
    """Read each log that is given and predict its run.

    Parameters
    ----------
    logs : pairs
        Kind (``megatron``, ``deepspeed``, ...) and path of each.
    scenario : Scenario
        The run, as the user describes it.
    assumed : iterable of str
        Fields of its training that nobody gave: the log decides them.
    warm_up : int, optional
        Step lines to leave out at the start.

    Raises
    ------
    InputError
        With the problems of every log.
    """
    from simulator.cli.screen import Progress
    from simulator.errors import InputError
    from simulator.interop.logs.readers import reader_of
    from simulator.scoring.logs import compare

    log_comparisons: list[LogComparison] = []
    problems: list[str] = []
    recipe, gpus = scenario.workload.recipe, scenario.cluster.gpus
    for kind, path in logs:
        try:
            with Progress(f"reading {path.name}") as progress:
                log = reader_of(kind)(path, recipe, gpus, warm_up=warm_up, progress=progress)
            log_comparisons.append(compare(log, scenario, assumed))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return log_comparisons


def validate_logs(
    logs: Mapping[str, Path | None],
    more: Iterable[Path],
    scenario: Path | None,
    options: ScenarioOptions,
    *,
    warm_up: int | None,
    others: Mapping[str, Any],
) -> Reply | None:
    """Answer `foreshard validate` where a log is given; None where none is.

    Parameters
    ----------
    logs : mapping
        Logs whose kind an option names, by that kind.
    more : iterable of path
        Logs of whatever kind they are.
    scenario, options
        What describes the run.
    warm_up : int, optional
        Step lines to leave out at the start.
    others : mapping
        What cannot be given together with a log, by its option.

    Raises
    ------
    InputError
        With the problems of logs and scenario, or if one is given without the other.
    """
    from simulator.errors import InputError
    from simulator.questions.validate.log_screen import logs_screen

    pairs = [(kind, path) for kind, path in logs.items() if path is not None]
    more = list(more)
    if not (pairs or more):
        of_table = ("software",)  # means something to a table of runs, too
        wrong = [
            f"--{name}"
            for name, value in options.named.items()
            if value is not None and name not in of_table
        ]
        wrong += ["--scenario"] * (scenario is not None) + ["--set"] * bool(options.overrides)
        wrong += ["--warm-up"] * (warm_up is not None)
        if wrong:
            raise InputError(
                f"{', '.join(wrong)}: only with a log or a trace, e.g. --megatron-log LOG"
            )
        return None
    if wrong := [name for name, value in others.items() if value]:
        raise InputError(f"{', '.join(wrong)}: cannot be given together with a log")
    from simulator.interop.logs.readers import log_kind

    pairs += [(log_kind(path), path) for path in more]
    logged = [path for kind, path in pairs if kind != "history"]
    if scenario is None and logged and not options.complete:
        described, assumed = _said_by(logged[0], options), dict[str, Any]()
    else:
        described, assumed = options.scenario(scenario)
    comparisons = compare_logs(pairs, described, assumed=assumed, warm_up=warm_up)
    return Reply(comparisons, logs_screen, _document)


def _said_by(log: Path, options: ScenarioOptions) -> Scenario:
    """The scenario that a log describes itself, where no file and no options do.

    Raises
    ------
    InputError
        With what it does not say, and the option that does.
    """
    from simulator.errors import InputError
    from simulator.interop.launch_files.merging import import_launch

    try:
        return import_launch([log], options.named, options.overrides or ()).scenario
    except InputError as error:
        said = (text.removeprefix("--from: ") for text in error.problems)
        rule = "; --scenario FILE says all of a run"
        raise InputError(
            f"{log}: {text.replace('these files', 'this log')}{rule}"
            if "not said by" in text
            else text
            for text in said
        ) from None


def _document(comparisons: Iterable[LogComparison]) -> dict[str, Any]:
    from simulator.answers import head
    from simulator.scoring.log_differences import differences

    logs = [{**log.document(), "differences": differences(log)} for log in comparisons]
    return {**head("validate"), "logs": logs}
