"""The screen of `foreshard size`: the answer, and what its limits buy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from simulator.cli.screen import NO_FIT, notes
from simulator.questions.compare.offer_sentences import in_words, missed
from simulator.units import show_count, show_days, show_percent, show_usd

if TYPE_CHECKING:
    from simulator.questions.size.answer import Compute, Sized

_QUESTIONS = {
    "fewest": "The fewest GPUs in time",
    "soonest": "The soonest end within the budget",
    "given": "With this many GPUs",
}


def screen(answer: Sized) -> Iterator[RenderableType]:
    """Give an answer; the sizes that were tried are on the screen already."""
    asked = answer.asked
    yield ""
    title = f"{_QUESTIONS[answer.question]}, with a chance of {show_percent(asked.confidence)}"
    if answer.answer is not None:
        yield notes(title, [*in_words([answer.answer]), answer.answer.described])
    else:
        tokens = answer.scenario.workload.recipe.tokens
        yield Text(missed(asked, answer.tried, tokens), style=NO_FIT)
        near = answer.nearest
        if near is not None:
            yield notes("Nearest to all that is asked", in_words([near]))
    if left := _left(answer):
        yield notes("The budget", left)
    if answer.compute is not None:
        yield notes("What the limits buy", _bought(answer, answer.compute))
    if answer.question != "given":
        tried = ", ".join(f"{row.gpus:,}" for row in answer.tried)
        yield notes("Tried", [f"{tried}: whole servers that the batch divides over"])


def _left(answer: Sized) -> list[str]:
    """How much of the budget is left, and how soon the run ends with all of it."""
    left, share, budget = answer.budget_left_usd, answer.budget_left_share, answer.asked.budget_usd
    if left is None or share is None:
        return []
    lines = [f"{show_usd(left)} of {show_usd(budget)} are left ({show_percent(share)})"]
    if answer.larger is not None:
        (words,) = in_words([answer.larger])
        lines.append(f"the soonest end within it: {words}")
    return lines


def _bought(answer: Sized, compute: Compute) -> list[str]:
    """Tokens, and the best model for the same compute with the law's coefficients."""
    arch, law, best = answer.scenario.workload.architecture, compute.law, compute.optimum
    named = "GPU" if compute.offer.gpus == 1 else "GPUs"
    usd, days = compute.offer.usd, compute.offer.days
    paid = ""
    if usd is not None and days is not None:
        paid = f", {show_usd(usd.p50 * compute.days / days.p50)}"
    return [
        f"{compute.offer.gpus:,} {named} for {show_days(compute.days)}{paid};"
        f" the {compute.binding} is used up",
        f"most tokens for {arch.name}: {show_count(compute.tokens)}"
        f" ({compute.tokens / arch.active_parameters:.3g} a parameter), loss {compute.loss:.3f}",
        f"best model for the same {compute.flop:.3g} FLOPs: {show_count(best.parameters)} dense"
        f" parameters on {show_count(best.tokens)} tokens, loss {best.loss:.3f}",
        f"by {law.name}: loss = {float(law.irreducible_loss):g}"
        f" + {float(law.parameter_coefficient):g} / N^{float(law.parameter_exponent):g}"
        f" + {float(law.token_coefficient):g} / D^{float(law.token_exponent):g}, 6 N D FLOPs;"
        " it holds for text like its own and says nothing of the cost of use",
    ]
