"""`foreshard diagnose`: from a log or a trace of a run to the cause of its step time.

The command first, then its screen.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from simulator.cli.option_groups import ScenarioOptions
from simulator.cli.runner import Reply, question
from simulator.cli.screen import heading, notes, plain_table, waiting
from simulator.errors import InputError
from simulator.glossary import CAVEATS
from simulator.units import show_percent, show_seconds, show_seconds_span, show_signed_percent

if TYPE_CHECKING:
    from simulator.questions.diagnose.answer import Diagnoses


LogFile = Annotated[
    Path | None,
    typer.Option(
        "--log",
        metavar="LOG",
        help="What the trainer printed, or the history of a run (validate --log).",
    ),
]
TraceFile = Annotated[
    Path | None,
    typer.Option("--trace", metavar="TRACE", help="A profiled step of one rank, or more of them."),
]
RunFile = Annotated[
    Path | None,
    typer.Option("--scenario", metavar="SCENARIO", help="Scenario file (TOML) of the run."),
]
StepTime = Annotated[
    float | None,
    typer.Option("--step-time", metavar="SECONDS", min=0.0, help="Where there is no log."),
]


@question(
    "diagnose",
    "diagnose --log train.log --scenario run.toml",
    "diagnose --trace rank0.json.gz --scenario run.toml",
    "diagnose --step-time 12.4 --scenario run.toml",
)
def ask(
    *,
    log: LogFile = None,
    trace: TraceFile = None,
    step_time: StepTime = None,
    scenario: RunFile = None,
    options: ScenarioOptions,
) -> Reply:
    """Find why a run is slower than predicted: which cause, how much of it, and how to tell.

    Each cause is solved for the amount that makes the prediction equal the measurement, and weighed
    by all that is seen: step time, its course, memory, the parts of a traced step, words of the
    log.

    Exit 0: done; 2: bad input.
    """
    from simulator.questions.diagnose.answer import diagnose, read_run

    if log is None and trace is None and step_time is None:
        raise InputError("command line: must be given --log LOG, --trace TRACE or --step-time S")
    if step_time is not None and (log or trace):
        raise InputError("command line: --step-time: only where there is no log and no trace")
    described = options.scenario(scenario)
    with waiting("pricing every cause"):
        prediction, seen = read_run(described, log, trace, step_time)
        answer = diagnose(prediction, seen)
    return Reply(answer, screen)


_ROWS = 8


def screen(answer: Diagnoses) -> Iterator[RenderableType]:
    """Give the gap, then the causes, then what decides between them."""
    yield heading(answer.prediction.scenario)
    yield Text(f"\n{answer.says}", style="bold")
    ratio = show_signed_percent(answer.measured_step_s / answer.predicted_step_s - 1.0)
    span = show_seconds_span(answer.p10_s, answer.p90_s)
    yield Text(
        f"Measured {show_seconds(answer.measured_step_s)} a step, predicted"
        f" {show_seconds(answer.predicted_step_s)} (P10 to P90: {span}): {ratio}.{_course(answer)}"
    )
    yield ""
    table = plain_table("cause", "explains", "probability", "step with it", left=("cause",))
    for cause in answer.causes[:_ROWS]:
        table.add_row(
            f"{cause.says}: {cause.amount_words}",
            show_percent(cause.explains),
            show_percent(cause.probability),
            show_seconds(cause.step_time_s),
        )
    nothing = show_percent(answer.nothing_wrong)
    table.add_row("nothing: the prediction is off", "", nothing, "")
    table.add_row("the scenario is not the run", "", show_percent(answer.not_the_run), "")
    yield table
    yield ""
    yield notes("What is given does not tell apart", _alike(answer))
    likely = [cause for cause in answer.causes[:3] if cause.probability >= 0.02]
    yield notes("What decides, in five minutes", [f"{c.says}: {c.test}" for c in likely])
    yield notes("Where else it would show", [f"{c.says}: {c.looks_like}" for c in likely])
    words = [f"{cause.says}: {line}" for cause in likely for line in cause.words]
    yield notes("Said in the log", words)
    if answer.not_possible:
        yield notes("Not of this run", [", ".join(answer.not_possible)])
    yield notes(CAVEATS, answer.caveats)


def _alike(answer: Diagnoses) -> list[str]:
    """One of which causes it is, and what of them a trace would tell apart."""
    if len(answer.alike) < 2 or answer.verdict != "cause":
        return []
    says = {cause.name: cause.says for cause in answer.causes}
    sets = ["; or ".join(says[name] for name in some) for some in answer.by_trace]
    said = [f"one of: {'; '.join(says[name] for name in answer.alike)}"]
    if len(sets) > 1:
        said.append(f"a trace of one step (--trace) decides between: {' | '.join(sets)}")
    return [*said, "the tests of five minutes below decide between what is left"]


def _course(answer: Diagnoses) -> str:
    course = answer.course
    words = {
        "": "",
        "steady": " Step times are steady.",
        "tails": f" {show_percent(course.tail_share)} of them take over 1.25 times the median.",
        "drift": f" Step times drift by {show_signed_percent(course.drift)} over the log.",
        "periodic": " Slow stretches "
        + (f"return every {course.period:,} steps." if course.period else "come and go."),
    }
    said = words[course.kind]
    if course.mean_s:
        said += f" Their mean is {show_seconds(course.mean_s)}"
        said += f" ({show_signed_percent(course.mean_s / answer.measured_step_s - 1.0)})"
        said += f", {course.aside} slow ones aside." if course.aside else "."
    return said
