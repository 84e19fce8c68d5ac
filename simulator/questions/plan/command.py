"""`foreshard plan`: the ranked layouts, why the best one wins, and a report."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.decision_options import IDEAL, Ideal, Trace, check_trace, title, write_trace
from simulator.cli.option_groups import Limits, SearchOptions
from simulator.cli.options import (
    Json,
    check_out,
    writing,
)
from simulator.cli.runner import Reply, question
from simulator.errors import InfeasibleError, InputError
from simulator.questions.predict.from_files import (
    FromFiles,
    ScenarioFiles,
    advice,
    refuse_of_search,
    sorted_files,
)

if TYPE_CHECKING:
    from simulator.planner.plan import Plan
    from simulator.planner.variants import Variant
    from simulator.scenario import Scenario

_MOST_LAYOUTS = 1000
"""A terminal shows more in minutes; `export --as csv` writes more."""
Top = Annotated[
    int | None,
    typer.Option(
        "--top",
        metavar="N",
        min=1,
        max=_MOST_LAYOUTS,
        help="Layouts to show: 8 with --more, which this implies, 20 with --json, unless given.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Where the report goes; reports/NAME unless given, or another folder beside it where"
        " that holds the report of another question. With --json none is written unless this is"
        " given.",
    ),
]
Refine = Annotated[
    int | None,
    typer.Option(
        "--refine",
        metavar="N",
        min=1,
        max=_MOST_LAYOUTS,
        help="Play the best N layouts on discrete events and rank them by what that says.",
    ),
]
Exhaustive = Annotated[
    bool,
    typer.Option("--exhaustive", help="Price every layout in full: slower, with the same answer."),
]
More = Annotated[
    bool,
    typer.Option(
        "--more", help="Show the ranking, terms, memory, what pays, defaults, launch command."
    ),
]
Pictures = Annotated[
    bool,
    typer.Option(
        "--pictures", help="Write each picture of the report beside its page, as PNG and SVG."
    ),
]
Curve = Annotated[
    bool,
    typer.Option(
        "--curve",
        help="Search other numbers of GPUs and another kind of GPU for the report: cost against"
        " time, the soonest, the safest and the cheapest. Up to nine more searches.",
    ),
]
NoReport = Annotated[bool, typer.Option("--no-report", help="Write no report.")]

_UNSEARCHED = "--curve: other numbers of GPUs and another kind of GPU in the report."
"""Of a report without them."""


@question(
    "plan",
    "plan run.toml --curve --out report --pictures",
    "plan run.toml --deadline 90d --budget 5M",
    "plan --from train.sh --cluster dgx-h100",
    "plan run.toml --more --set layout.schedule=any --set cluster.gpus=512",
    "plan --model llama-3.1-8b --cluster aws-p5 --gpus 64 --set training.tokens=1e12",
)
def ask(
    *,
    scenario: ScenarioFiles = None,
    from_files: FromFiles = None,
    options: SearchOptions,
    limits: Limits,
    ideal: Ideal = False,
    as_json: Json = False,
    more: More = False,
    top: Top = None,
    out: Out = None,
    no_report: NoReport = False,
    pictures: Pictures = False,
    curve: Curve = False,
    refine: Refine = None,
    trace: Trace = None,
    exhaustive: Exhaustive = False,
) -> Reply | int:
    """Find the best layouts for a model, a cluster and a goal.

    The layout section of the scenario (or --set layout.tp=8) pins what the search may not change.
    With --from the answer is about the launch at hand: what it takes, the cheapest changes that
    make it faster, and the changed files (written with --out).
    Exit 0: done; 1: nothing fits, or nothing meets deadline and budget; 2: bad input.
    """
    options = limits.put_on(options.with_set(IDEAL) if ideal else options)
    drawn = {"--pictures": pictures, "--curve": curve}
    _check_report(out, drawn, no_report=no_report, as_json=as_json)
    file, launch_files = sorted_files(scenario, from_files)
    if launch_files:
        of_search = {"--more": more, "--top": top, "--refine": refine, "--trace": trace}
        of_search |= {"--exhaustive": exhaustive, **drawn}
        refuse_of_search(of_search)
        return advice(launch_files, options, out=out)
    described = options.scenario(file, several=True)
    if described.cluster.kinds:
        of_one = {"--out": out, "--refine": refine, "--trace": trace, "--top": top}
        of_one |= {"--exhaustive": exhaustive, **drawn}
        return _mixed(described, of_one)
    check_trace(trace)
    folder = None
    if not no_report and (out is not None or not as_json):
        folder = out or _own_folder(file, described, refine or 0)
        check_out("--out", folder, folder=True)
    keep = max(top or 0, refine or 0, 64)
    how = {"exhaustive": exhaustive, "keep_near": folder is not None}
    answer = _search(described, keep=keep, **how)
    if refine is not None:
        answer = _refined(answer, refine)
    launch, upgrades = cache(partial(_launch, answer)), cache(partial(_upgrades, answer))

    def write(answer: Plan) -> Iterator[str]:
        if trace is not None:
            yield _write_trace(answer, trace)
        if folder is not None:
            tried = None if as_json else upgrades()
            parts = {"launch": launch(), "upgrades": tried, "pictures": pictures}
            if not (curve or as_json):
                yield _UNSEARCHED
            yield _write(answer, folder, parts, curve=curve)

    shown = top or (8 if more else None)
    return Reply(
        answer,
        partial(_screen, upgrades=upgrades, launch=launch, top=shown),
        partial(_document, top=top),
        write,
        feasible=answer.meets_deadline and answer.meets_budget,
    )


def _check_report(
    out: Path | None, drawn: Mapping[str, bool], *, no_report: bool, as_json: bool
) -> None:
    """Refuse options of a report beside those that write none: they would change nothing."""
    given = [option for option, value in drawn.items() if value]
    if no_report:
        if wrong := [*["--out"] * (out is not None), *given]:
            raise InputError(f"{', '.join(wrong)}: cannot be given together with --no-report")
    elif given and as_json and out is None:
        rule = "with --json only beside --out DIR, which writes the report"
        raise InputError(f"{', '.join(given)}: {rule}")


def _mixed(scenario: Scenario, of_one: dict[str, Any]) -> Reply:
    """Plan servers of several kinds; `of_one` are options that only servers of one kind have."""
    from simulator.cli.screen import waiting
    from simulator.planner.mixed_plan import plan_mixed
    from simulator.questions.simulate.mixed_screen import mixed_plan_screen

    if wrong := [option for option, value in of_one.items() if value]:
        rule = "must be left out with servers of several kinds"
        raise InputError(f"arguments: {option}: {rule}" for option in wrong)
    with waiting("placing layouts on servers of several kinds"):
        answer = plan_mixed(scenario)
    return Reply(answer, mixed_plan_screen, feasible=answer.meets_goal)


def _screen(
    answer: Plan,
    upgrades: Callable[[], list[Variant]],
    launch: Callable[[], str],
    top: int | None,
) -> Iterator[Any]:
    if top is None:
        from simulator.questions.plan.verdict_screen import verdict_screen

        return verdict_screen(answer, upgrades)
    from simulator.questions.plan.screen import screen

    return screen(answer, upgrades, launch(), top=top)


def _document(answer: Plan, top: int | None) -> dict[str, Any]:
    return answer.document(top=top)


def _launch(answer: Plan) -> str:
    from simulator.interop.exporting import launch_flags  # every framework's words

    return launch_flags(answer.estimate.layouts, answer.scenario)


def _upgrades(answer: Plan) -> list[Variant]:
    from simulator.cli.screen import waiting
    from simulator.planner.sensitivity import sensitivity

    with waiting("trying upgrades"):
        return sensitivity(answer)


def _search(scenario: Scenario, *, keep: int, **how: bool) -> Plan:
    from simulator.cli.screen import Progress
    from simulator.planner.batch_choices import plan_over

    try:
        with Progress("searching layouts") as progress:
            return plan_over(scenario, keep=keep, progress=progress, **how)
    except InfeasibleError as error:
        if wrong := [] if error.can_run else _pinned_wrong(scenario):
            raise InputError(wrong) from None
        raise


def _refined(answer: Plan, count: int) -> Plan:
    from simulator.cli.screen import Progress
    from simulator.planner.simulated import refine

    with Progress("playing layouts") as progress:
        return refine(answer, count, progress=progress)


def _pinned_wrong(scenario: Scenario) -> list[str]:
    """Name the pinned fields that no layout can have, with their nearest good value."""
    from simulator.planner.prediction import predict

    try:
        predict(scenario)
    except InputError as error:
        return [
            text
            for text in error.problems
            for name in scenario.pinned
            if f": layout.{name}: " in text
        ]
    return []


def _own_folder(file: Path | None, scenario: Scenario, played: int) -> Path:
    """The folder of this question: its name alone where no report of another one is there."""
    from simulator.report.report_identity import holds_another, question

    asked = question(scenario, played=played)
    folder = Path("reports") / _report_name(file, scenario)
    return folder.with_name(f"{folder.name}-{asked}") if holds_another(folder, asked) else folder


def _report_name(file: Path | None, scenario: Scenario) -> str:
    """Name the folder of the report: the scenario's file name, or what was typed instead of one."""
    if file is not None:
        return file.stem
    cluster = scenario.cluster
    name = f"{scenario.workload.architecture.name}-{cluster.name}-{cluster.gpus}"
    return re.sub(r"[^\w.-]+", "-", name)


def _write_trace(answer: Plan, path: Path) -> str:
    from simulator.planner.simulated import played

    write_trace(played(answer, 0), path, title(answer.scenario, answer.estimate))
    return f"Trace: {path}"


def _write(answer: Plan, folder: Path, parts: dict[str, Any], *, curve: bool) -> str:
    """Write the report and say where; `parts` are what was made for it already.

    Other GPUs and sizes are searched beside it for a `curve`, once the verdict is on the screen.
    """
    from simulator.cli.screen import waiting
    from simulator.questions.compare.offer import asked_of, offer_of_answer
    from simulator.questions.plan.options import offers_beside
    from simulator.report.write import write_plan_report

    asked = asked_of(answer)
    alone = nullcontext(lambda: [offer_of_answer(answer, asked)])
    searching = offers_beside(answer) if curve else alone
    with writing(folder, "--out"), waiting("writing the report"), searching as offers:
        written = write_plan_report(answer, folder, **parts, offers=offers, asked=asked)
    beside = f", with {len(written) - 1} pictures beside it" if parts["pictures"] else ""
    return f"Report: {written[0]}{beside}"
