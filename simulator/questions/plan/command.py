"""`foreshard plan`: the ranked layouts, why the best one wins, and a report."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.option_groups import NAMES, Names, taking
from simulator.cli.options import (
    Json,
    check_out,
    print_json,
    say,
    speaking,
    writing,
)
from simulator.questions.predict.from_files import (
    FromFiles,
    ScenarioFiles,
    advice,
    refuse_of_search,
    sorted_files,
)
from simulator.questions.simulate.trace_file import Trace, check_trace, title, write_trace

if TYPE_CHECKING:
    from simulator.planner.plan import Plan
    from simulator.planner.scaling import Scaling
    from simulator.planner.variants import Variant
    from simulator.scenario import Scenario

Top = Annotated[
    int | None,
    typer.Option(
        "--top",
        metavar="N",
        min=1,
        show_default=False,
        help="Layouts to show: 8 with --more, which this implies, 20 with --json, unless given.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        show_default=False,
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
        show_default=False,
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
NoReport = Annotated[bool, typer.Option("--no-report", help="Write no report.")]


@taking
def command(
    scenario: ScenarioFiles = None,
    from_files: FromFiles = None,
    names: Names = NAMES,
    as_json: Json = False,
    more: More = False,
    top: Top = None,
    out: Out = None,
    no_report: NoReport = False,
    pictures: Pictures = False,
    refine: Refine = None,
    trace: Trace = None,
    exhaustive: Exhaustive = False,
) -> None:
    """Find the best layouts for a model, a cluster and a goal.

    The layout section of the scenario (or --set layout.tp=8) pins what the search may not change.
    With --from the answer is about the launch at hand: what it takes, the cheapest changes that
    make it faster, and the changed files (written with --out).
    Exit 0: done; 1: nothing fits, or nothing meets deadline and budget; 2: bad input.
    """
    with speaking():
        from simulator.interop.launch import launch_flags

        _check_report(out, pictures=pictures, no_report=no_report, as_json=as_json)
        file, launch_files = sorted_files(scenario, from_files)
        if launch_files:
            of_search = {"--more": more, "--top": top, "--refine": refine, "--trace": trace}
            of_search |= {"--exhaustive": exhaustive, "--pictures": pictures}
            refuse_of_search(of_search)
            advice(launch_files, names, as_json=as_json, out=out)
            return
        described, assumed = names.scenario(file, several=True)
        if described.cluster.kinds:
            of_one = {"--out": out, "--refine": refine, "--trace": trace, "--top": top}
            of_one |= {"--exhaustive": exhaustive, "--pictures": pictures}
            _mixed(described, of_one, as_json=as_json)
            return
        check_trace(trace)
        folder = None
        if not no_report and (out is not None or not as_json):
            folder = out or _own_folder(file, described, refine or 0)
            check_out("--out", folder, folder=True)
        keep = max(top or 0, refine or 0, 64)
        answer = _search(described, keep=keep, exhaustive=exhaustive)
        if refine is not None:
            answer = _refined(answer, refine)
        described = answer.scenario
        launch = launch_flags(answer.estimate.layouts, described)
        with _curve(answer, wanted=folder is not None) as curve:
            upgrades = None
            if as_json:
                print_json(answer.document(top=top))
            else:
                upgrades = _show(answer, assumed, launch, top=top or (8 if more else None))
            if trace is not None:
                from simulator.planner.simulated import played

                write_trace(played(answer, 0), trace, title(answer.scenario, answer.estimate))
                say(f"Trace: {trace}", err=as_json)
            if folder is not None:
                parts = {"launch": launch, "upgrades": upgrades, "curve": curve}
                _write(answer, folder, parts, pictures=pictures, as_json=as_json)
        if not (answer.meets_deadline and answer.meets_budget):
            raise typer.Exit(1)


def _check_report(out: Path | None, *, pictures: bool, no_report: bool, as_json: bool) -> None:
    """Refuse options of a report beside those that write none: they would change nothing."""
    from simulator.errors import InputError

    if no_report:
        wrong = [
            option for option, value in {"--out": out, "--pictures": pictures}.items() if value
        ]
        if wrong:
            raise InputError(f"{', '.join(wrong)}: cannot be given together with --no-report")
    elif pictures and as_json and out is None:
        raise InputError("--pictures: with --json only beside --out DIR, which writes the report")


def _mixed(scenario: Scenario, of_one: dict[str, Any], *, as_json: bool) -> None:
    """Plan servers of several kinds; `of_one` are options that only servers of one kind have."""
    from simulator.cli.screen import waiting
    from simulator.errors import InputError
    from simulator.planner.mixed_plan import plan_mixed

    if wrong := [option for option, value in of_one.items() if value]:
        rule = "must be left out with servers of several kinds"
        raise InputError(f"arguments: {option}: {rule}" for option in wrong)
    with waiting("placing layouts on servers of several kinds"):
        answer = plan_mixed(scenario)
    if as_json:
        print_json(answer.document())
    else:
        from simulator.questions.simulate.mixed_screen import show_mixed_plan

        show_mixed_plan(answer)
    if not answer.meets_goal:
        raise typer.Exit(1)


def _show(answer: Plan, assumed: dict[str, Any], launch: str, *, top: int | None) -> list[Variant]:
    if top is None:
        from simulator.questions.plan.verdict_screen import show_verdict

        return show_verdict(answer, assumed)
    from simulator.questions.plan.screen import show

    return show(answer, assumed, launch, top=top)


def _search(scenario: Scenario, *, keep: int, exhaustive: bool) -> Plan:
    from simulator.cli.screen import Progress
    from simulator.errors import InfeasibleError, InputError
    from simulator.planner.batch_choices import plan_over

    try:
        with Progress("searching layouts") as progress:
            return plan_over(scenario, keep=keep, exhaustive=exhaustive, progress=progress)
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
    from simulator.errors import InputError
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


@contextmanager
def _curve(answer: Plan, *, wanted: bool) -> Iterator[Callable[[], Scaling] | None]:
    """Search the other numbers of GPUs beside all that follows, where a report is wanted."""
    if not wanted:
        yield None
        return
    from simulator.planner.scaling import scaling_beside

    with scaling_beside(answer.scenario, found=answer.found) as curve:
        yield curve


def _write(
    answer: Plan, folder: Path, parts: dict[str, Any], *, pictures: bool, as_json: bool
) -> None:
    """Write the report and say where; `parts` are what was made for it already."""
    from simulator.cli.screen import waiting
    from simulator.report.write import write_plan_report

    with writing(folder, "--out"), waiting("writing the report"):
        written = write_plan_report(answer, folder, **parts, pictures=pictures, processes=2)
    beside = f", with {len(written) - 1} pictures beside it" if pictures else ""
    say(f"Report: {written[0]}{beside}", err=as_json)
