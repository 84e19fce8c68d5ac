"""A comparison as a page with its picture, and all of its files, written together or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.plain_files import write_files
from simulator.questions.compare.offer_sentences import missed, views
from simulator.report.canvas import png_bytes
from simulator.report.decision import (
    Offer,
    badges,
    brief_chance,
    gpu_word,
    options_words,
    price_words,
    same_money,
    verdict_sentence,
)
from simulator.report.decision_picture import decision_picture, drawn_offers
from simulator.report.inline_svg import inline
from simulator.report.page import environment
from simulator.report.wording import length_words
from simulator.units import show_days, show_usd

if TYPE_CHECKING:
    from simulator.questions.compare.answer import Comparison
    from simulator.questions.compare.offer import Offer as Row


def compare_picture(answer: Comparison) -> Callable[..., Any] | None:
    """What draws money against time; None where no offer has both."""
    if not drawn_offers(answer.rows, answer.options, answer.asked):
        return None
    title = f"{answer.scenario.workload.architecture.name}; {_limits(answer)}"
    return partial(decision_picture, answer.rows, answer.options, answer.asked, title, full=True)


def compare_page(answer: Comparison) -> str:
    """Write a comparison as one page that needs nothing else."""
    options, asked = answer.options, answer.asked
    last = options[-1].offer if options else None
    first = next((option.offer for option in options if option.recommended), last)
    kept, rest = _sorted(answer)
    return (
        environment()
        .get_template("compare_page.html.j2")
        .render(
            title=f"{answer.scenario.workload.architecture.name} compared",
            lead=f"{_job(answer)} \u00b7 {_limits(answer)}",
            sentence=_sentence(answer, first),
            badges=badges(first, asked) if first is not None else [],
            options=options,
            options_line=options_words(answer.rows, options, asked),
            missed=missed(asked, answer.rows, answer.scenario.workload.recipe.run_tokens),
            prices=_prices(answer),
            drawing=_drawing(answer),
            undrawn=_undrawn(answer),
            kept=kept,
            rest=rest,
            views=views(answer),
        )
    )


def _undrawn(answer: Comparison) -> str:
    """Say how many offers the picture leaves to the table, and why."""
    drawn = {id(offer) for offer in drawn_offers(answer.rows, answer.options, answer.asked)}
    missing = [row for row in answer.feasible if id(row) not in drawn]
    unpriced = sum(row.usd is None for row in missing)
    counts = {"far beyond the deadline": len(missing) - unpriced, "without a price": unpriced}
    words = [f"{count} offer{'s' * (count > 1)} {why}" for why, count in counts.items() if count]
    verb = "stand" if len(missing) > 1 else "stands"
    return f"{' and '.join(words)} {verb} in the table only." if words else ""


def _drawing(answer: Comparison) -> str:
    picture = compare_picture(answer)
    if picture is None:
        return ""
    shapes = (picture(svg=True), picture(narrow=True, svg=True))
    alt = "Money against time to finish of every offer, with P10 to P90"
    return inline(*(shape.svg(head=False) for shape in shapes), alt=alt)


def _sentence(answer: Comparison, first: Offer | None) -> str:
    """The answer: the offer to take, what it costs, and what costs the same."""
    if first is None:
        return "The run fits on none of these clusters and sizes."
    words = f"{gpu_word(first)}: {verdict_sentence(first, answer.asked)}"
    same = same_money(first, answer.rows, answer.asked)
    return words if same is None else f"{words} {gpu_word(same)} cost the same within 3 %."


def _sorted(answer: Comparison) -> tuple[list[Row], list[Row]]:
    """Offers that keep what is asked, cheapest first, and the others."""

    def order(row: Row) -> tuple[bool, float, float]:
        money, days = row.usd_to_plan, row.days_to_plan
        late = days.p50 if days else row.step_time_s or float("inf")
        return not row.feasible, money.p50 if money else float("inf"), late

    kept = [row for row in answer.rows if row.meets(answer.asked)]
    rest = [row for row in answer.rows if not row.meets(answer.asked)]
    return sorted(kept, key=order), sorted(rest, key=order)


def _prices(answer: Comparison) -> list[tuple[str, str]]:
    """What an hour costs on each cluster, of whom, when, and whether that is assumed."""
    rows = {row.named: row for row in answer.feasible}
    return [(name, price_words(row)) for name, row in rows.items()]


def _limits(answer: Comparison) -> str:
    """Deadline, budget and confidence as asked."""
    asked = answer.asked
    limits = list[str]()
    if asked.deadline_days is not None:
        limits.append(f"deadline {show_days(asked.deadline_days)}")
    if asked.budget_usd is not None:
        limits.append(f"budget {show_usd(asked.budget_usd)}")
    if not limits:
        return "no deadline and no budget given"
    return f"{', '.join(limits)}, to be kept with {brief_chance(asked.confidence)} confidence"


def _job(answer: Comparison) -> str:
    """The run in a line."""
    recipe = answer.scenario.workload.recipe
    words = [f"batch {recipe.global_batch:,} x {recipe.sequence_length:,}", recipe.precision]
    if recipe.tokens:
        words.insert(0, length_words(recipe))
    name = answer.scenario.workload.architecture.name
    return f"Compare: {name}, {', '.join(words)}, {recipe.optimizer}"


def write_comparison(answer: Comparison, out_dir: Path) -> list[Path]:
    """Write page, document, table (CSV) and picture (PNG, SVG); return their paths."""
    document = json.dumps(answer.document(), indent=2, allow_nan=False) + "\n"
    picture = compare_picture(answer)
    drawn = (
        {}
        if picture is None
        else {
            "compare.png": png_bytes(picture()),
            "compare.svg": picture(svg=True).svg().encode(),
        }
    )
    contents = {
        "compare.html": compare_page(answer).encode(),
        "compare.json": document.encode(),
        "compare.csv": answer.to_frame().to_csv(index=False).encode(),
        **drawn,
    }
    placed = {out_dir / name: content for name, content in contents.items()}
    write_files(placed)
    return list(placed)
