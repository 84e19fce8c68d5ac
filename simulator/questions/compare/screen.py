"""The screen of `foreshard compare`: a line per offer as it comes, then what to make of them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from simulator.cli.screen import NO_FIT, assumptions, console, heading, notes
from simulator.questions.compare.offer_sentences import missed, views
from simulator.report.wording import MARK
from simulator.units import show_days_span, show_kwh, show_percent, show_usd, show_usd_span

if TYPE_CHECKING:
    from simulator.economics.unsure_totals import Span
    from simulator.questions.compare.answer import Comparison
    from simulator.questions.compare.offers import Offer
    from simulator.scenario import Scenario

_SHAPE = (
    "{cluster:<16} {gpus:>6} {days:>8} {days_span:>15} {chance:>7} {usd:>8} {usd_span:>15}"
    " {energy:>8} {mfu:>6}"
)
HEADER = _SHAPE.format(
    cluster="cluster", gpus="GPUs", days="days", days_span="P10 to P90", chance="in time",
    usd="USD", usd_span="P10 to P90", energy="energy", mfu="MFU",
) + "\n    layout; evidence"  # fmt: skip
"""Names of what stands in the two rows of :func:`line`."""

_WIDTH, _NAME = 100, 16
"""Of the screen, and of a cluster's name beside its numbers; a longer one stands above them."""


def begin(scenario: Scenario, assumed: dict[str, Any]) -> Callable[[Offer], None]:
    """Return what prints an offer, and before the first what is compared: input may be refused."""
    screen = console()
    ahead = [scenario]

    def row(offer: Offer) -> None:
        while ahead:
            _head(screen, ahead.pop(), assumed)
        style = "" if offer.feasible else NO_FIT
        screen.print(Text(line(offer), style=style), soft_wrap=True)
        screen.file.flush()

    return row


def _head(screen: Console, scenario: Scenario, assumed: dict[str, Any]) -> None:
    """Print what is compared and the names of the columns."""
    first, second = heading(scenario).plain.split("\n", 1)
    screen.print(Text(first.partition(" on ")[0], style="bold"))
    screen.print(Text(second.split("\n")[-1]))
    for text in assumptions(assumed):
        screen.print(text)
    screen.print()
    screen.print(Text(HEADER, style="bold"), soft_wrap=True)


def line(row: Offer) -> str:
    """One offer under HEADER: its numbers, below them its layout and how well that is known."""
    ahead, name = ("", row.named) if len(row.named) <= _NAME else (f"{row.named}\n", "")
    if not row.feasible:
        return f"{ahead}{name:<{_NAME}} {row.gpus:>6,} {'-':>8}\n{_below(row.reason)}"
    days, usd, kwh = row.days, row.usd, row.kwh
    chance = row.deadline_chance
    numbers = _SHAPE.format(
        cluster=name,
        gpus=f"{row.gpus:,}",
        days=_days(days.p50, days) if days else "-",
        days_span=f"{_days(days.p10, days)}-{_days(days.p90, days)}" if days else "-",
        chance="-" if chance is None else f"{100.0 * chance:.0f} %",
        usd=show_usd(usd.p50).removesuffix(" USD") + MARK * row.assumed_price if usd else "-",
        usd_span=_usd_ends(usd) if usd else "no price",
        energy=show_kwh(kwh.p50) if kwh else "-",
        mfu=show_percent(row.mfu or 0.0),
    )
    known = f"; {row.evidence.grade}" if row.evidence else ""
    tight = "; memory TIGHT" if row.memory_verdict == "TIGHT" else ""
    held = row.planned_days
    plan = f"; plan for {show_days_span(held.p50, held.p10, held.p90)}" if held else ""
    return f"{ahead}{numbers}\n{_below(row.described + known + tight + plan)}"


def _below(text: str) -> str:
    """What stands below the numbers of an offer."""
    return textwrap.fill(text, _WIDTH, initial_indent="    ", subsequent_indent="    ")


def _days(value: float, span: Span) -> str:
    """A digit behind the point, two where the middle is below a day, of an hour and less three."""
    digits = 1 if span.p50 >= 1.0 else 2 if span.p50 >= 0.05 else 3
    return f"{value:,.{digits}f}"


def _usd_ends(usd: Span) -> str:
    """P10 to P90 of the money."""
    return show_usd_span(usd.p10, usd.p90).removesuffix(" USD").replace(" to ", "-")


def screen(answer: Comparison) -> Iterator[RenderableType]:
    """Give what to make of the offers, which are on the screen already."""
    yield ""
    if said := missed(answer.asked, answer.rows, answer.scenario.workload.recipe.run_tokens):
        yield Text(said, style=NO_FIT)
    for title, lines in views(answer):
        yield _notes(title, lines)


def _notes(title: str, lines: Sequence[str]) -> Group:
    """A heading and lines that stay as narrow as the table above."""
    return notes(title, [textwrap.fill(line, _WIDTH - 2, subsequent_indent="  ") for line in lines])
