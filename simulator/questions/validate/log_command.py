"""`foreshard validate --megatron-log LOG`: a user's own training log beside its prediction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from simulator.cli.option_groups import Names
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
    logs: Mapping[str, Path | None],
    scenario: Scenario,
    *,
    assumed: Iterable[str] = (),
    warm_up: int | None = None,
) -> list[LogComparison]:
    """Read each log that is given and predict its run.

    Parameters
    ----------
    logs : mapping
        ``megatron``, ``torchtitan``, ``mlperf`` -> path, or None.
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
    from simulator.interop.logs.megatron_log import read_megatron_log
    from simulator.interop.logs.mlperf_log import read_mlperf_log
    from simulator.interop.logs.torchtitan_log import read_torchtitan_log
    from simulator.scoring.logs import compare

    readers = {
        "megatron": read_megatron_log,
        "torchtitan": read_torchtitan_log,
        "mlperf": read_mlperf_log,
    }
    log_comparisons: list[LogComparison] = []
    problems: list[str] = []
    recipe, gpus = scenario.workload.recipe, scenario.cluster.gpus
    for kind, path in logs.items():
        if path is None:
            continue
        try:
            with Progress(f"reading {path.name}") as progress:
                log = readers[kind](path, recipe, gpus, warm_up=warm_up, progress=progress)
            log_comparisons.append(compare(log, scenario, assumed))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return log_comparisons


def validate_logs(
    logs: Mapping[str, Path | None],
    scenario: Path | None,
    *,
    names: Names,
    warm_up: int | None,
    others: Mapping[str, Any],
    as_json: bool,
) -> bool:
    """Answer `foreshard validate` where a log is given; False where none is.

    Parameters
    ----------
    logs : mapping
        As in :func:`compare_logs`.
    scenario, names
        What describes the run.
    warm_up : int, optional
        Step lines to leave out at the start.
    others : mapping
        What cannot be given together with a log, by its option.
    as_json : bool
        Print the document.

    Raises
    ------
    InputError
        With the problems of logs and scenario, or if one is given without the other.
    """
    from simulator.answers import head
    from simulator.cli.options import print_json
    from simulator.errors import InputError

    if not any(logs.values()):
        rows = ("software",)  # means something to a table of runs, too
        options = [f"--{name}" for name, value in names.named.items() if value is not None]
        options = [option for option in options if option.removeprefix("--") not in rows]
        options += ["--scenario"] * (scenario is not None) + ["--set"] * bool(names.overrides)
        options += ["--warm-up"] * (warm_up is not None)
        if options:
            raise InputError(
                f"{', '.join(options)}: only with a log or a trace, e.g. --megatron-log LOG"
            )
        return False
    if wrong := [name for name, value in others.items() if value]:
        raise InputError(f"{', '.join(wrong)}: cannot be given together with a log")
    described, assumed = names.scenario(scenario)
    found = compare_logs(logs, described, assumed=assumed, warm_up=warm_up)
    if as_json:
        from simulator.scoring.log_differences import differences

        logs_ = [{**one.document(), "differences": differences(one)} for one in found]
        print_json({**head("validate"), "logs": logs_})
    else:
        from simulator.questions.validate.log_screen import show

        show(found)
    return True
