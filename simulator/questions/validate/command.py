"""`foreshard validate`: predictions beside measured runs, by source and split."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.option_groups import ScenarioOptions
from simulator.cli.options import (
    Json,
    check_out,
    print_json,
    print_line,
    writing,
)
from simulator.cli.runner import Reply, question
from simulator.questions.validate.log_command import (
    AnyLog,
    LogScenario,
    MegatronLog,
    MlperfLog,
    TorchtitanLog,
    WarmUp,
    validate_logs,
)
from simulator.questions.validate.trace_command import TraceFile, TraceSteps, validate_trace

if TYPE_CHECKING:
    from simulator.scoring.validation import Validation

_MOST_PROBLEMS = 20

RunFiles = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="RUNS.csv",
        help="Tables of measured runs, kernels or collectives; the shipped ones if none is given.",
    ),
]

Map = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="COLUMN=FIELD",
        help='A column of your own table and what it is: "GPU type=gpu", "t (ms)=step_time_ms"; may'
        " be repeated. Sizes of models of the zoo need no columns then.",
    ),
]
Page = Annotated[
    Path | None,
    typer.Option("--html", metavar="OUT", help="Write the page that shows every row to this file."),
]

FirstSeen = Annotated[
    Path | None,
    typer.Option(
        "--first-seen",
        metavar="OUT.csv",
        help="Keep the predictions of one new table before anybody looks at its rows, and the table"
        " beside them: written once, never again.",
    ),
]


@question(
    "validate",
    "validate",
    "validate my-runs.csv --html validation.html",
    "validate mine.csv --map 'GPU type=gpu' --map 't (ms)=step_time_ms'",
    "validate --megatron-log train.log --scenario run.toml",
    "validate --trace rank0.json.gz --scenario run.toml",
)
def ask(
    *,
    runs: RunFiles = None,
    as_json: Json = False,
    html: Page = None,
    first_seen: FirstSeen = None,
    mapped: Map = None,
    megatron_log: MegatronLog = None,
    torchtitan_log: TorchtitanLog = None,
    mlperf_log: MlperfLog = None,
    log: AnyLog = None,
    scenario: LogScenario = None,
    options: ScenarioOptions,
    warm_up: WarmUp = None,
    trace: TraceFile = None,
    trace_steps: TraceSteps = None,
) -> Reply:
    """Predict measured runs and show how far off the predictions are.

    Rows that cannot be predicted are counted with the reason. A table has the columns that
    validation/README.md describes; --software names the profile for rows whose software is of no
    family that is known. Exit code 2 only if no row at all could be predicted.

    With --log (or --megatron-log, --torchtitan-log, --mlperf-log), set what your own run measured
    beside its prediction instead, that of a scenario or of what the log says of itself; with
    --trace, its profiled step, cause by cause.
    """
    from simulator.errors import InputError
    from simulator.questions.validate.screen import screen

    logs = {"megatron": megatron_log, "torchtitan": torchtitan_log, "mlperf": mlperf_log}
    named = {f"--{name}-log": path for name, path in logs.items()}
    others = {**named, "--log": log, "--warm-up": warm_up}
    of_table = {"RUNS.csv": runs, "--html": html, "--first-seen": first_seen}
    if reply := validate_trace(
        trace, scenario, options, steps=trace_steps, others={**of_table, **others}
    ):
        return reply
    if reply := validate_logs(logs, log or (), scenario, options, warm_up=warm_up, others=of_table):
        return reply
    if html is not None and html.is_dir():
        raise InputError(f"--html: must be a file, got the folder {str(html)!r}")
    check_out("--html", html)
    if first_seen is not None:
        from simulator.scoring.first_sight import check_unwritten

        check_unwritten("--first-seen", first_seen, runs or ())
        check_out("--first-seen", first_seen)
    validation = _validate(runs, options.software or "", mapped, as_json)
    return Reply(
        validation, screen, write=partial(_write, runs=runs, html=html, first_seen=first_seen)
    )


def _validate(
    runs: list[Path] | None, software: str, mapped: list[str] | None, as_json: bool
) -> Validation:
    """Predict; where no table can be read, print an empty document before saying why."""
    from simulator.cli.screen import Progress
    from simulator.errors import InputError
    from simulator.measured.mapped_tables import parse_map
    from simulator.scoring.validation import Validation, validate

    if mapped and not runs:
        raise InputError("--map: needs a table of your own, RUNS.csv")
    columns = parse_map(mapped or ())
    try:
        with Progress("predicting measured runs") as progress:
            return validate(runs or (), software=software, columns=columns, progress=progress)
    except InputError as error:
        if as_json:
            print_json(Validation(rows=(), problems=error.problems).document())
        raise


def _write(
    validation: Validation, runs: list[Path] | None, html: Path | None, first_seen: Path | None
) -> Iterator[str]:
    """Write page and first sight, and say which rows could not be used."""
    from simulator.cli.screen import waiting
    from simulator.errors import InputError
    from simulator.report.validation_page import write_validation

    if html is not None:
        with writing(html, "--html"), waiting("writing the page"):
            write_validation(validation, html)
        aside = "; steps of reinforcement learning are on the screen and in --json alone"
        yield f"Page: {html}{aside if validation.rl else ''}"
    if first_seen is not None and runs:
        from simulator.scoring.first_sight import write_first_sight

        with writing(first_seen, "--first-seen"):
            for place in write_first_sight(validation.all_rows, first_seen, runs[0]):
                yield f"First sight: {place}"
    for problem in validation.problems[:_MOST_PROBLEMS]:
        print_line(problem, err=True)
    if len(validation.problems) > _MOST_PROBLEMS:
        more = len(validation.problems) - _MOST_PROBLEMS
        print_line(f"and {more} more problems, see --json", err=True)
    if not validation.used:
        named = ", ".join(map(str, runs or ())) or "shipped tables"
        rule = "no row could be predicted; the answer has the reason of each"
        raise InputError(f"{named}: {rule}")
