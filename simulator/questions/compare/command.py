"""`foreshard compare`: one run on several clusters and sizes."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from simulator.cli.decision_options import (
    IDEAL,
    Clusters,
    Confidence,
    Counts,
    Ideal,
    Offers,
    OutFolder,
    clusters_of,
)
from simulator.cli.option_groups import AllowTight, Limits, Money, SearchOptions
from simulator.cli.options import (
    Batch,
    ModelName,
    ScenarioFile,
    Sequence,
    Set,
    SoftwareName,
    Tokens,
    check_out,
    writing,
)
from simulator.cli.runner import Reply, question
from simulator.cli.screen import NO_FIT, Progress, heading, notes, waiting
from simulator.goal import CONFIDENCE
from simulator.units import (
    show_days_span,
    show_kwh,
    show_number_of_days,
    show_percent,
    show_usd,
    show_usd_span,
)

if TYPE_CHECKING:
    from simulator.economics.planning_factor import Span
    from simulator.questions.compare.answer import Comparison
    from simulator.questions.compare.offer import Offer
    from simulator.scenario import Scenario


@question(
    "compare",
    "compare run.toml --clusters dgx-h100,gb200-nvl72 --gpus 64..4096 --deadline 90d",
    "compare run.toml --offers published --gpus 64,512",
)
def ask(
    *,
    scenario: ScenarioFile = None,
    model: ModelName = None,
    clusters: Clusters = None,
    gpus: Counts = None,
    software: SoftwareName = None,
    tokens: Tokens = None,
    seq: Sequence = None,
    batch: Batch = None,
    overrides: Set = None,
    limits: Limits,
    confidence: Confidence = CONFIDENCE,
    allow_tight: AllowTight = False,
    money: Money,
    offers: Offers = None,
    ideal: Ideal = False,
    out: OutFolder = None,
) -> Reply:
    """Compare clusters and sizes for one run: the best layout on each, days, money, energy.

    Exit 0: done; 1: nothing can run, or nothing meets deadline and budget; 2: bad input.
    """
    from simulator.assembly import left_open
    from simulator.economics.quotes import quotes_on
    from simulator.questions.compare.answer import (
        compare_clusters,
        first_that_holds,
        own_clusters,
    )
    from simulator.questions.compare.gpu_counts import parse_counts

    quotes, names = quotes_on(offers, clusters_of(clusters), where="command line")
    sizes, lacks = parse_counts(gpus) if gpus else [None], left_open(scenario)
    described = SearchOptions(
        model=model,
        cluster=first_that_holds(names, sizes[0]) if "cluster" in lacks else None,
        gpus=sizes[0] if "gpus" in lacks else None,
        software=software,
        tokens=tokens,
        seq=seq,
        batch=batch,
        allow_tight=allow_tight,
        overrides=[*(overrides or ()), *[IDEAL] * ideal],
    ).scenario(scenario)
    limited = {**limits.read, **money.read}
    if out is not None:
        check_out("--out", out, folder=True)
    with Progress("searching offers") as progress:
        answer = compare_clusters(
            described,
            names or own_clusters(described),
            gpus,
            confidence=confidence,
            quotes=quotes,
            progress=progress,
            **limited,
        )
    return Reply(
        answer,
        screen,
        write=None if out is None else partial(_write, folder=out),
        feasible=any(row.meets(answer.asked) for row in answer.rows),
    )


def _write(answer: Comparison, folder: Path) -> list[str]:
    from simulator.questions.compare.page import write_comparison

    with writing(folder, "--out"), waiting("writing"):
        return [f"Written: {', '.join(map(str, write_comparison(answer, folder)))}"]


_NAME = 14
"""Columns of a cluster's name beside its numbers; a longer one stands above them."""

_SHAPE = f"{{cluster:<{_NAME}}} {{gpus:>6}} {{days:>7}} {{days_span:>12}} {{chance:>6}}"
_SHAPE += " {usd:>8} {usd_span:>14} {mfu:>6}"
HEADER = _SHAPE.format(
    cluster="cluster", gpus="GPUs", days="days", days_span="P10 to P90", chance="chance",
    usd="USD", usd_span="P10 to P90", mfu="MFU",
) + "\n    layout; evidence; energy; what to plan for"  # fmt: skip
"""Names of what stands in the rows of :func:`line`."""

_WIDTH = 80
"""Of the screen."""


def head(scenario: Scenario) -> Iterator[RenderableType]:
    """Give what is asked about; on which clusters is in the table."""
    from simulator.report.wording import IDEAL

    first, *others = heading(scenario).plain.split("\n")
    yield Text(first.partition(" on ")[0], style="bold")
    yield from map(wrapped, others)
    if scenario.goal.ideal:
        yield wrapped(f"Totals have {IDEAL}")


def table(rows: Collection[Offer]) -> Iterator[Text]:
    """Give offers in rows, as wide as the screen."""
    yield Text(HEADER, style="bold")
    for row in rows:
        yield Text(line(row), style="" if row.feasible else NO_FIT, no_wrap=True)


def line(row: Offer) -> str:
    """One offer under HEADER: its numbers, below them its layout and how well that is known."""
    from simulator.economics.price import MARK
    from simulator.questions.compare.offer_sentences import step_words, tight_words

    ahead, name = ("", row.named) if len(row.named) <= _NAME else (f"{row.named}\n", "")
    if not row.feasible:
        return f"{ahead}{name:<{_NAME}} {row.gpus:>6,} {'-':>7}\n{_below(row.reason)}"
    days, usd = row.days, row.usd
    numbers = _SHAPE.format(
        cluster=name,
        gpus=f"{row.gpus:,}",
        days=show_number_of_days(days.p50) if days else "-",
        days_span=_ends(days) if days else "-",
        chance=_chance(row.chance),
        usd=show_usd(usd.p50).removesuffix(" USD") + MARK * row.assumed_price if usd else "-",
        usd_span=_usd_ends(usd) if usd else "no price" if days else "no tokens",
        mfu=show_percent(row.mfu or 0.0),
    )
    held = row.planned_days
    words = (
        row.described,
        "" if days else step_words(row),
        row.evidence.grade if row.evidence else "",
        show_kwh(row.kwh.p50) if row.kwh else "",
        "memory TIGHT" if row.memory_verdict == "TIGHT" else "",
        f"plan for {show_days_span(held.p50, held.p10, held.p90)}" if held else "",
        tight_words(row),
    )
    return f"{ahead}{numbers}\n{_below('; '.join(filter(None, words)))}"


def _below(text: str) -> str:
    """What stands below the numbers of an offer."""
    return textwrap.fill(text, _WIDTH, initial_indent="    ", subsequent_indent="    ")


def _chance(chance: float | None) -> str:
    """A chance in whole percent; nothing is certain."""
    if chance is None:
        return "-"
    near = round(100.0 * chance)
    return "<1 %" if near < 1 else ">99 %" if near > 99 else f"{near} %"


def _ends(days: Span) -> str:
    return f"{show_number_of_days(days.p10)}-{show_number_of_days(days.p90)}"


def _usd_ends(usd: Span) -> str:
    """P10 to P90 of the money."""
    return show_usd_span(usd.p10, usd.p90).removesuffix(" USD").replace(" to ", "-")


def screen(answer: Comparison) -> Iterator[RenderableType]:
    """Give which offer to take, all of them, and what to make of them."""
    from simulator.questions.compare.offer_sentences import missed, verdict, views

    yield from head(answer.scenario)
    yield ""
    if said := missed(answer.asked, answer.rows, answer.scenario.workload.recipe.run_tokens):
        yield wrapped(said, style=NO_FIT)
    above = verdict(answer)
    for title, lines in above:
        yield narrow_notes(title, lines)
    yield ""
    yield from table(answer.rows)
    yield ""
    for title, lines in views(answer)[len(above) :]:
        yield narrow_notes(title, lines)


def wrapped(text: str, style: str = "") -> Text:
    """Give a text as wide as the table."""
    return Text(textwrap.fill(text, _WIDTH), style=style)


def narrow_notes(title: str, lines: Collection[str]) -> Group:
    """Give a heading and lines that stay as narrow as the table."""
    filled = [textwrap.fill(line, _WIDTH - 2, subsequent_indent="  ") for line in lines]
    return notes(textwrap.fill(title, _WIDTH), filled)
