"""`foreshard rl`: a step of reinforcement learning, and how to split its accelerators.

The command first, then its screen.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from simulator.cli.option_groups import ScenarioOptions
from simulator.cli.options import Json, ScenarioFile, check_out, print_line, writing
from simulator.cli.runner import Reply, question
from simulator.cli.screen import Progress, heading, notes, plain_table, table_of
from simulator.errors import InputError
from simulator.glossary import CAVEATS
from simulator.units import show_bytes, show_kwh, show_percent, show_seconds, show_usd

if TYPE_CHECKING:
    from simulator.questions.rl.answer import Priced, PricedRL
    from simulator.scenario import Scenario


Script = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="FILE",
        help="Launch script or YAML of NeMo-RL, verl, OpenRLHF, TRL, slime or AReaL: what it says"
        " becomes \\[rl]; --cluster and --gpus say where, --set adds lengths of answers.",
    ),
]
By = Annotated[
    Literal["time", "usd", "throughput"],
    typer.Option(help="What the best split is best in: time or money of an update, or tokens."),
]
AsGiven = Annotated[
    bool, typer.Option("--as-given", help="Price the scenario's own split alone, try no other.")
]
Page = Annotated[
    Path | None,
    typer.Option(
        "--page", metavar="FILE.html", help="Write a page with every split and a drawing."
    ),
]
Picture = Annotated[
    Path | None,
    typer.Option("--picture", metavar="FILE", help="Draw both sides of two steps: .png or .svg."),
]


@question(
    "rl",
    "rl run.toml",
    "rl run.toml --by usd --page rl.html",
    "rl --from grpo.yaml --cluster dgx-h100 --gpus 64 --set rl.answer_tokens=1200",
)
def ask(
    *,
    scenario: ScenarioFile = None,
    script: Script = None,
    options: ScenarioOptions,
    by: By = "time",
    as_given: AsGiven = False,
    page: Page = None,
    picture: Picture = None,
    as_json: Json = False,
) -> Reply:
    """Find what a step of [rl] takes, who waits for whom, and the best split of accelerators.

    Generation, log-probabilities, training and the way of the weights to the engine are priced one
    by one; [layout] is the trainer's. Exit 0: done; 1: nothing fits; 2: bad input.
    """
    from simulator.questions.rl.answer import rl

    check_out("--page", page)
    check_out("--picture", picture)
    if picture is not None and picture.suffix not in (".png", ".svg"):
        raise InputError(f"--picture: must end in .png or .svg, got {picture.name!r}")
    if script is None:
        described = options.scenario(scenario)
    else:
        from simulator.interop.rl_scripts import scenario_from_script

        if scenario is not None:
            raise InputError("--from: must be left out beside a scenario file")
        described, said = scenario_from_script(script, options.named, options.overrides or ())
        for line in () if as_json else said:
            print_line(line)
    with Progress("trying splits") as progress:
        answer = rl(described, by=by, search=not as_given, progress=progress)
    write = partial(_write, page=page, picture=picture)
    return Reply(answer, screen, write=write, feasible=answer.feasible)


def _write(answer: PricedRL, page: Path | None, picture: Path | None) -> Iterator[str]:
    """Write page and picture, where there is a step to show."""
    if answer.shown is None:
        return
    if page is not None:
        from simulator.plain_files import write_files
        from simulator.questions.rl.page import rl_page

        with writing(page, "--page"):
            write_files({page: rl_page(answer).encode()})
        yield f"Page: {page}"
    if picture is not None:
        from simulator.plain_files import write_files
        from simulator.questions.rl.page import rl_picture
        from simulator.report.canvas import file_bytes

        with writing(picture, "--picture"):
            write_files({picture: file_bytes(rl_picture(answer), picture.suffix)})
        yield f"Picture: {picture}"


_SHOWN = 10
"""Splits on the screen, best first."""


def screen(answer: PricedRL) -> Iterator[RenderableType]:
    """Give the step by phase, both sides, their memory, other splits, and what would help."""
    yield heading(answer.scenario, priced="rl")
    yield ""
    if answer.asked is None:
        yield notes("This split cannot be", [answer.reason])
    if (shown := answer.shown) is not None:
        yield _step(shown)
        yield ""
        yield notes("Both sides", _sides(shown, answer.scenario))
        yield _memory(shown)
        yield ""
    if answer.tried:
        yield notes("Splits", _splits(answer))
        yield _table(answer)
        yield ""
    if answer.told:
        yield notes("Would help", [_remedy(answer, i) for i in range(len(answer.told))])
    yield notes(CAVEATS, answer.caveats)


def _step(shown: Priced) -> Table:
    step = shown.step
    table = plain_table("phase", "time", "of the step", left=("phase",))
    for word, seconds in shown.phases:
        table.add_row(word, show_seconds(seconds), show_percent(seconds / step.step_time_s))
    whole = show_seconds(step.step_time_s)
    table.add_row(Text("a step", style="bold"), Text(whole, style="bold"), "")
    return table


def _updates(number: float) -> str:
    return f"{number:.0f} update{'' if round(number) == 1 else 's'}"


def _sides(shown: Priced, scenario: Scenario) -> list[str]:
    step, rl, made = shown.step, shown.step.rl, shown.step.generated
    spread = f"P10 {show_seconds(shown.p10_s)}, P90 {show_seconds(shown.p90_s)}"
    lines = [
        f"{step.rl.answers:,} answers, {_updates(step.trainer.updates)} a step; {spread}",
        *shown.card.sentences(),
        f"trainer: {step.gpus['training']:,} accelerators, {step.trainer.described};"
        f" {step.trainer.bins:,} packed sequences an update,"
        f" {show_percent(step.trainer.fill)} full",
        f"generator: {made.replicas:,} replicas of {rl.generation.described} on"
        f" {made.gpus:,} accelerators, up to {made.replica.most_sequences:,} sequences each, cache"
        f" of {made.cache_tokens:,.0f} tokens, {show_seconds(made.iterations_s)} an iteration",
    ]
    if made.preempted:
        lines.append(f"{made.preempted:,} times a sequence left a full cache and began anew")
    if made.waited:
        lines.append(f"{made.waited:,} of {rl.written:,} answers found no place at once")
    slow = made.seconds / made.mean_s - 1.0
    lines.append(f"the slowest replica takes {show_percent(slow)} longer than the mean")
    if step.lent_s > 0.0:
        lines.append(
            f"{step.gpus['training']:,} accelerators that train write answers too,"
            f" {show_seconds(step.lent_s)} of a step; {step.alone_gpus:,} only write"
        )
    if step.alone_gpus:
        wait = step.waiting
        lines.append(
            f"the trainer waits {show_percent(wait['trainer'])} of a step, the generator"
            f" {show_percent(wait['generator'])}; weights are"
            f" {_updates(step.staleness['p50'])} old (P90 {step.staleness['p90']:.0f})"
        )
    moved = step.moved
    lines.append(
        f"refit: {moved.tensors:,} tensors, {show_bytes(moved.weight_bytes)} by {moved.link}"
    )
    if shown.usd_per_1000_updates is not None:
        usd, price = show_usd(shown.usd_per_1000_updates), shown.price.words()
        paid = scenario.cluster.rented(step.all_gpus)
        racks = f" for {paid:,} GPUs, racks are let whole," if paid > step.all_gpus else ""
        lines.append(
            f"{usd} at {price}{racks} and {show_kwh(shown.kwh_per_1000_updates)} for 1,000 updates,"
            f" goodput {show_percent(shown.goodput)}"
        )
    return lines


def _memory(shown: Priced) -> Table:
    table = plain_table("phase", "memory", "usable", "", "holds", left=("phase", "holds"))
    for name, side in shown.step.memory.items():
        holds = ", ".join(f"{kind} {show_bytes(size)}" for kind, size in side.largest[:4])
        verdict = Text(side.verdict, style=side.verdict)
        table.add_row(
            name, show_bytes(side.total_bytes), show_bytes(side.usable_bytes), verdict, holds
        )
    return table


def _splits(answer: PricedRL) -> list[str]:
    words = {"time": "time of an update", "usd": "money of an update", "throughput": "throughput"}
    fit = sum(split.fits for split in answer.tried)
    lines = [f"{len(answer.tried)} tried, {fit} fit; best by {words[answer.by]}:"]
    best, asked = answer.best, answer.asked
    if best is not None:
        step = best.step
        where = f"{step.gpus['training']:,} train, {step.gpus['generation']:,} generate"
        lines.append(
            f"{step.rl.mode}, {where}, {step.rl.generation.described}, trainer"
            f" {step.trainer.described}: {show_seconds(step.step_time_s)} a step"
        )
        if asked is not None:
            gain = asked.step.step_time_s / step.step_time_s
            fits = "yours does not fit, and" if asked.step.verdict == "OOM" else "yours"
            lines.append(f"{fits} takes {gain:.2f} times as long a step")
    for pair in answer.flips:
        lines.append(
            f"the generator binds with {pair['from']} generating accelerators, the trainer with"
            f" {pair['to']}"
        )
    return lines


def _table(answer: PricedRL) -> Table:
    rows = [row for row in answer.rows if row["step_time_s"] is not None]
    rows.sort(key=lambda row: (row["verdict"] == "OOM", row["update_s"]))
    mark = answer.scenario.tariff.price.mark
    return table_of(
        rows[:_SHOWN],
        ("mode", lambda row: f"{row['mode']}, {row['staleness']} off" if row["staleness"] else
            row["mode"]),
        ("train", lambda row: f"{row['training_gpus']:,}"),
        ("generate", lambda row: f"{row['generation_gpus']:,}"),
        ("engine", lambda row: row["generation_layout"]),
        ("step", lambda row: show_seconds(row["step_time_s"])),
        ("trainer waits", lambda row: show_percent(row["trainer_waits"])),
        ("generator waits", lambda row: show_percent(row["generator_waits"])),
        (f"1,000 updates{mark}", lambda row: show_usd(row["usd"])),
        ("", lambda row: Text(row["verdict"], style=row["verdict"])),
        ("trainer's layout", lambda row: row["layout"]),
        left=("mode", "engine", "trainer's layout"),
    )  # fmt: skip


def _remedy(answer: PricedRL, index: int) -> str:
    remedy = answer.told[index]
    text = f"{remedy.setting}: {show_seconds(remedy.step_time_s)} a step ({remedy.why})"
    if answer.asked is not None and answer.asked.step.verdict != "OOM":
        saved = 1.0 - remedy.step_time_s / answer.asked.step.step_time_s
        text += f", {show_percent(saved)} less"
    return text
