"""`foreshard size`: how many accelerators for a date or a budget, and what both buy.

The command first, then its screen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from simulator.cli.decision_options import IDEAL, Confidence, Ideal, Largest, Law
from simulator.cli.option_groups import AllowTight, Limits, Money, SearchOptions
from simulator.cli.options import (
    Batch,
    ClusterName,
    ModelName,
    ScenarioFile,
    Sequence,
    Set,
    SoftwareName,
    Tokens,
)
from simulator.cli.runner import Reply, question
from simulator.cli.screen import NO_FIT, waiting
from simulator.glossary import CAVEATS
from simulator.units import show_count, show_days, show_percent, show_usd

if TYPE_CHECKING:
    from simulator.questions.size.answer import Compute, Sized


Gpus = Annotated[
    int | None,
    typer.Option(
        "--gpus", metavar="N", min=1, help="The number, where it is known: what the limits buy."
    ),
]


@question(
    "size",
    "size run.toml --deadline 90d --confidence 0.9",
    "size run.toml --budget 2M",
)
def ask(
    *,
    scenario: ScenarioFile = None,
    model: ModelName = None,
    cluster: ClusterName = None,
    gpus: Gpus = None,
    software: SoftwareName = None,
    tokens: Tokens = None,
    seq: Sequence = None,
    batch: Batch = None,
    overrides: Set = None,
    limits: Limits,
    confidence: Confidence = 0.9,
    law: Law = "hoffmann-2022",
    largest: Largest = None,
    allow_tight: AllowTight = False,
    money: Money,
    ideal: Ideal = False,
) -> Reply:
    """Find the fewest GPUs for a deadline, or the soonest end for a budget.

    Says as well how many tokens both buy, and which model makes most of the same compute.
    Exit 0: done; 1: no size meets what is asked; 2: bad input.
    """
    from simulator.assembly import left_open
    from simulator.questions.size.answer import size_run

    described = SearchOptions(
        model=model,
        cluster=cluster if scenario is None else None,
        gpus=(gpus or 8) if "gpus" in left_open(scenario) else None,
        software=software,
        tokens=tokens,
        seq=seq,
        batch=batch,
        allow_tight=allow_tight,
        overrides=[
            *(overrides or ()),
            *([f"cluster.name={cluster}"] if cluster else []),
            *[IDEAL] * ideal,
        ],
    ).scenario(scenario)
    asked = {**limits.read, **money.read}
    with waiting("searching sizes"):
        answer = size_run(
            described,
            gpus=gpus,
            confidence=confidence,
            law=law,
            largest=largest,
            **asked,
        )
    return Reply(answer, screen, feasible=answer.answer is not None)


_QUESTIONS = {
    "fewest": "The fewest GPUs",
    "soonest": "The soonest end",
    "given": "With this many GPUs",
}


def screen(answer: Sized) -> Iterator[RenderableType]:
    """Give an answer, the sizes that were tried, and what the limits buy."""
    from simulator.planner.assumptions import ASSUMED
    from simulator.questions.compare.command import head, narrow_notes, table, wrapped
    from simulator.questions.compare.offer_sentences import (
        in_words,
        limit_words,
        missed,
        tight_words,
    )

    asked, tried = answer.asked, list(answer.tried)
    yield from head(answer.scenario)
    yield ""
    limits = limit_words(asked)
    within = f" within {limits}" if limits else ""
    chance = show_percent(asked.confidence)
    title = f"{_QUESTIONS[answer.question]}{within}, with a chance of {chance}"
    chosen = answer.answer
    if chosen is not None:
        tight = tight_words(chosen)
        words = [*in_words([chosen]), chosen.described, *([tight] if tight else [])]
        yield narrow_notes(title, words)
    else:
        tokens = answer.scenario.workload.recipe.tokens
        yield wrapped(missed(asked, answer.tried, tokens), style=NO_FIT)
        near = answer.nearest
        if near is not None:
            yield narrow_notes("Nearest to all that is asked", in_words([near]))
    assumed_words = [choice.words(brief=True) for choice in answer.assumptions]
    yield narrow_notes(ASSUMED, assumed_words)
    if left := _left(answer):
        yield narrow_notes("The budget", left)
    if answer.compute is not None:
        yield narrow_notes("What the limits buy", _bought(answer, answer.compute))
    yield narrow_notes(CAVEATS, answer.caveats)
    yield ""
    yield from table(tried)


def _left(answer: Sized) -> list[str]:
    """How much of the budget is left, and how soon the run ends with all of it."""
    from simulator.economics.price import MARK
    from simulator.questions.compare.offer_sentences import in_words

    left, share, budget = answer.budget_left_usd, answer.budget_left_share, answer.asked.budget_usd
    if left is None or share is None:
        return []
    chosen, chance = answer.answer, show_percent(answer.asked.confidence)
    assert chosen is not None and chosen.usd_to_plan is not None and budget is not None
    expected = budget - chosen.usd_to_plan.p50
    lines = [
        f"{show_usd(expected)}{MARK * chosen.assumed_price} of {show_usd(budget)} are left"
        f" ({show_usd(left)}, {show_percent(share)} of it, with a chance of {chance})"
    ]
    if answer.larger is not None:
        (words,) = in_words([answer.larger])
        lines.append(f"the soonest end within it: {words}")
    return lines


def _bought(answer: Sized, compute: Compute) -> list[str]:
    """Tokens, and the best model for the same compute with the law's coefficients."""
    from simulator.economics.price import MARK

    arch, law, best = answer.scenario.workload.architecture, compute.law, compute.optimum
    named = "GPU" if compute.offer.gpus == 1 else "GPUs"
    usd, days = compute.offer.usd_to_plan, compute.offer.days_to_plan
    paid, chance = "", answer.asked.confidence
    if usd is not None and days is not None:
        hours, sure = (compute.days * usd.at(p) / days.at(p) for p in (0.5, chance))
        mark = MARK * compute.offer.assumed_price
        paid = f", {show_usd(hours)}{mark}"
        paid += f" ({show_usd(sure)} with a chance of {show_percent(chance)})"
    per_parameter = show_count(compute.tokens / arch.active_parameters)
    return [
        f"{compute.offer.gpus:,} {named} for {show_days(compute.days)}{paid};"
        f" the {compute.binding} is used up",
        f"most tokens for {arch.name}: {show_count(compute.tokens)} ({per_parameter} a parameter),"
        f" loss {compute.loss:.3f}",
        f"best model for the same {compute.flop:.3g} FLOPs: {show_count(best.parameters)} dense"
        f" parameters on {show_count(best.tokens)} tokens, loss {best.loss:.3f}",
        f"by {law.name}: loss = {float(law.irreducible_loss):g}"
        f" + {float(law.parameter_coefficient):g} / N^{float(law.parameter_exponent):g}"
        f" + {float(law.token_coefficient):g} / D^{float(law.token_exponent):g}, 6 N D FLOPs;"
        " it holds for text like its own and says nothing of the cost of use",
    ]
