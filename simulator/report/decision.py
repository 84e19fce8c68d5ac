"""What is decided by: offers on other GPUs and sizes, three options, chances in words.

The page of a plan and that of a comparison read these; the first sentence of both is made here.
"""

# ruff: noqa: D102 - what an offer has is said by the record, questions/compare/offer.py

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from simulator.economics.planning_factor import Span
from simulator.economics.price import MARK
from simulator.evidence.card import Card
from simulator.goal import goal_word
from simulator.records import dataclass
from simulator.units import show_bytes, show_seconds

_TIE = 0.03
"""Relative difference of money below which two options cost the same."""


class Asked(Protocol):
    """Limits of a decision."""

    @property
    def deadline_days(self) -> float | None: ...
    @property
    def budget_usd(self) -> float | None: ...
    @property
    def confidence(self) -> float: ...


class Offer(Protocol):
    """A cluster and size with its best layout (``questions/compare/offer.py``)."""

    @property
    def accelerator(self) -> str: ...
    @property
    def named(self) -> str: ...
    @property
    def gpus(self) -> int: ...
    @property
    def feasible(self) -> bool: ...
    @property
    def reason(self) -> str: ...
    @property
    def described(self) -> str: ...
    @property
    def layout(self) -> dict[str, Any] | None: ...
    @property
    def days(self) -> Span | None: ...
    @property
    def usd(self) -> Span | None: ...
    @property
    def days_to_plan(self) -> Span | None: ...
    @property
    def usd_to_plan(self) -> Span | None: ...
    @property
    def deadline_chance(self) -> float | None: ...
    @property
    def budget_chance(self) -> float | None: ...
    @property
    def memory_verdict(self) -> str | None: ...
    @property
    def memory_total_bytes(self) -> float | None: ...
    @property
    def memory_p90_bytes(self) -> float | None: ...
    @property
    def usable_bytes(self) -> float | None: ...
    @property
    def price(self) -> dict[str, Any] | None: ...
    @property
    def assumed_price(self) -> bool: ...
    @property
    def evidence(self) -> Card | None: ...
    @property
    def step_time_s(self) -> float | None: ...
    @property
    def mfu(self) -> float | None: ...
    @property
    def tokens_per_s_per_gpu(self) -> float | None: ...
    @property
    def tokens_per_s(self) -> float | None: ...
    def meets(self, asked: Any) -> bool: ...
    def risky(self, asked: Any) -> bool: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """One of the three: what it is the best in, and what speaks for and against it."""

    roles: tuple[str, ...]
    offer: Offer
    recommended: bool
    facts: tuple[str, ...]

    @property
    def short(self) -> str:
        """Days and money, expected."""
        days, usd = self.offer.days, self.offer.usd
        words = totals_words(self.offer) if days is None else brief_days(days).partition(" (")[0]
        mark = MARK * self.offer.assumed_price
        return words if usd is None else f"{words} \u00b7 {_short(usd.p50)} USD{mark}"

    @property
    def name(self) -> str:
        """How many of which GPU."""
        return gpu_word(self.offer)

    @property
    def totals(self) -> str:
        """The same with intervals, and what to plan for."""
        return totals_words(self.offer)

    @property
    def role(self) -> str:
        """``Soonest, safest and cheapest``."""
        words = ", ".join(self.roles)
        words = " and ".join(words.rsplit(", ", 1))
        return words[:1].upper() + words[1:] + (", recommended" if self.recommended else "")


def gpu_word(offer: Offer) -> str:
    """How many of which GPU: ``1,024 H100``."""
    return f"{offer.gpus:,} {short_gpu(offer.accelerator)}"


def short_gpu(accelerator: str) -> str:
    """The name of a GPU as people say it.

    >>> short_gpu("h100-sxm"), short_gpu("gb200-nvl72"), short_gpu("a100-80gb-sxm")
    ('H100', 'GB200', 'A100 80GB')
    """
    name = accelerator.upper().replace("-SXM", "").replace("-NVL72", "")
    return name.replace("-", " ").strip()


def brief_days(span: Span) -> str:
    """Days with P10 and P90: whole from 10, hours below one day.

    >>> brief_days(Span(p50=166.0, log_spread=0.075)), brief_days(Span(p50=0.5, log_spread=0.1))
    ('166 days (151 to 183)', '12.0 hours (10.6 to 13.6)')
    """
    scale, unit = (24.0, "hours") if span.p50 < 1.0 else (1.0, "days")
    digits = 1 if span.p50 * scale < 10.0 or unit == "hours" else 0
    if span.p50 * scale >= 100.0:
        digits = 0
    p50, p10, p90 = (f"{scale * v:,.{digits}f}" for v in (span.p50, span.p10, span.p90))
    return f"{p50} {unit} ({p10} to {p90})"


def brief_usd(span: Span, mark: str = "") -> str:
    """Money with P10 and P90, to three digits; `mark` stands behind the unit.

    >>> brief_usd(Span(p50=12.3e6, log_spread=0.21))
    '12.3 M USD (9.4 to 16.1)'
    >>> brief_usd(Span(p50=929e3, log_spread=0.34))
    '929 k USD (601 k to 1.4 M)'
    """
    p50, p10, p90 = (_short(value) for value in (span.p50, span.p10, span.p90))
    units = {words.partition(" ")[2] for words in (p50, p10, p90)}
    if len(units) == 1 and (unit := units.pop()):
        p10, p90 = (end.removesuffix(f" {unit}") for end in (p10, p90))
    return f"{p50} USD{mark} ({p10} to {p90})"


def _short(usd: float) -> str:
    """An amount without its currency, to three digits, none behind 10: ``15 M``, ``9.4 M``."""
    for scale, unit in ((1e9, " bn"), (1e6, " M"), (1e3, " k"), (1.0, "")):
        if abs(usd) >= 0.9995 * scale or scale == 1.0:
            size = usd / scale
            digits = 0 if abs(size) >= 99.5 or size == round(size) else 1
            return f"{size:,.{digits}f}{unit}"
    raise AssertionError


def brief_chance(share: float) -> str:
    """A chance in whole percent; nothing is certain.

    >>> brief_chance(0.9996), brief_chance(0.555), brief_chance(0.001)
    ('> 99 %', '56 %', '< 1 %')
    """
    if share > 0.99:
        return "> 99 %"
    return "< 1 %" if share < 0.01 else f"{100.0 * share:.0f} %"


def chance_clause(chance: float, limit: float, value: float, *, money: bool = False) -> str:
    """Say how likely a limit is kept; `value` is what is to be planned for.

    >>> chance_clause(0.99, 240.0, 166.0)
    'very likely before your 240-day deadline'
    >>> chance_clause(0.3, 10e6, 12e6, money=True)
    'probably misses your 10 M USD by 2 M USD (30 % to keep it)'
    """
    goal = f"your {_short(limit)} USD" if money else f"your {limit:,.4g}-day deadline"
    before = "within" if money else "before"
    miss = max(value - limit, 0.0)
    by = f"{_short(miss)} USD" if money else f"{miss:,.{0 if miss >= 10 else 1}f} days"
    if chance >= 0.97:
        return f"very likely {before} {goal}"
    word = goal_word(chance)
    if word == "safe":
        return f"likely {before} {goal}"
    if word == "at risk":
        return f"at risk, {brief_chance(chance)} {before} {goal}"
    if chance >= 0.2:
        return f"probably misses {goal} by {by} ({brief_chance(chance)} to keep it)"
    return f"misses {goal} by {by}"


def totals_words(offer: Offer) -> str:
    """Days and money with their intervals, and what to plan for beside published runs."""
    days, usd = offer.days, offer.usd
    if days is None:
        step = show_seconds(offer.step_time_s or 0.0)
        speed = f"{offer.tokens_per_s_per_gpu or 0.0:,.0f} tokens/s per GPU"
        return f"{step} a step, {speed}"
    words = brief_days(days)
    mark = MARK * offer.assumed_price
    words += f", {brief_usd(usd, mark)}" if usd is not None else "; no price known for this cluster"
    late, dear = offer.days_to_plan, offer.usd_to_plan
    if late is not None and late != days:
        money = f" and {_short(dear.p50)} USD{mark}" if dear is not None else ""
        words += f"; plan for {brief_days(replace(late, log_spread=0.0)).partition(' (')[0]}{money}"
    return words


def verdict_sentence(offer: Offer, asked: Asked) -> str:
    """Days, money, whether deadline and budget are met: the first sentence of a page."""
    if not offer.feasible:
        return f"{offer.reason[:1].upper()}{offer.reason[1:]}."
    clauses = goal_clauses(offer, asked)
    said = totals_words(offer) + (f": {'; '.join(clauses)}." if clauses else ".")
    if offer.memory_verdict == "OOM":
        over = (offer.memory_total_bytes or 0.0) - (offer.usable_bytes or 0.0)
        return f"Does not fit: {show_bytes(over)} short per GPU (worst rank). If it did: {said}"
    if offer.memory_verdict == "TIGHT":
        return f"{said} Memory is tight: make a trial run first."
    if offer.evidence is not None and offer.evidence.low_confidence:
        return f"{said} {offer.evidence.low_confidence.capitalize()}."
    return said


def goal_clauses(offer: Offer, asked: Asked) -> list[str]:
    """How likely deadline and budget are met."""
    clauses, days, usd = [], offer.days_to_plan, offer.usd_to_plan
    late, dear = asked.deadline_days, asked.budget_usd
    if late is not None and days is not None and offer.deadline_chance is not None:
        clauses.append(chance_clause(offer.deadline_chance, late, days.p50))
    if dear is not None and usd is not None and offer.budget_chance is not None:
        clauses.append(chance_clause(offer.budget_chance, dear, usd.p50, money=True))
    return clauses


def three_options(
    offers: Sequence[Offer], asked: Asked, *, query: Offer | None = None
) -> list[Option]:
    """Soonest, safest and cheapest of the offers that keep deadline and budget.

    Of all if none does; of those that keep the deadline if some keep that. One that is the best in
    two is shown once; recommended is the cheapest, "in time" where a cheaper one is late. What was
    asked about (`query`) stands first where it is none of them; without others beside it there is
    nothing to choose.
    """
    able = [o for o in offers if o.feasible and o.days_to_plan is not None]
    if not able:
        return []
    if query is not None and len(offers) == 1:
        return [
            Option(roles=("as asked",), offer=query, recommended=False, facts=_facts(query, query))
        ]
    able = [o for o in able if not o.risky(asked)] or able
    kept = _keeping(able, asked) or able
    best = best_offers(kept)
    first = best.get("cheapest", best["safest"])
    sure = first.meets(asked)
    roles: dict[int, list[str]] = {}
    if query is not None:
        best = {"as asked": query, **best}
    for role, offer in best.items():
        late = role == "cheapest" and asked.deadline_days and offer is not best_offers(able)[role]
        roles.setdefault(id(offer), []).append(f"{role} in time" if late else role)
    chosen = {id(offer): offer for offer in best.values()}
    return [
        Option(
            roles=tuple(words),
            offer=chosen[key],
            recommended=sure and chosen[key] is first,
            facts=_facts(chosen[key], first),
        )
        for key, words in roles.items()
    ]


_O = TypeVar("_O", bound=Offer)


def best_offers(offers: Sequence[_O]) -> dict[str, _O]:
    """Return the soonest and the safest of some offers, and the cheapest where one has a price."""
    best = {"soonest": min(offers, key=_time), "safest": min(offers, key=_doubt)}
    if any(offer.usd for offer in offers):
        best["cheapest"] = min(offers, key=lambda o: (_at(o.usd, 0.5), _time(o)))
    return best


def _time(offer: Offer) -> float:
    """Days of the run, or what goes with them where nobody says how long it is."""
    return offer.days.p50 if offer.days else 1.0 / (offer.tokens_per_s or 1e-300)


def _doubt(offer: Offer) -> tuple[float, float, float]:
    """What the safest has least of: chance to miss, error to expect, share of memory in use.

    Chances above 99 % are not told apart: nothing is as certain (``brief_chance``).
    """
    error = offer.evidence.mean_error if offer.evidence else None
    used = (offer.memory_p90_bytes or 0.0) / (offer.usable_bytes or 1.0)
    error = float("inf") if error is None else round(error, 2)
    return -min(_least_chance(offer), 0.99), error, used


def _keeping(able: Sequence[Offer], asked: Asked) -> list[Offer]:
    """Offers that keep what is asked with its confidence; else those that keep the deadline."""
    if kept := [o for o in able if o.meets(asked)]:
        return kept
    return [o for o in able if (o.deadline_chance or 0.0) >= asked.confidence]


def options_words(offers: Sequence[Offer], options: Sequence[Option], asked: Asked) -> str:
    """What the options have in common: which limits they keep, and how surely."""
    limits = {"deadline": asked.deadline_days, "budget": asked.budget_usd}
    named = " and ".join(name for name, limit in limits.items() if limit is not None)
    sure = f"with {brief_chance(asked.confidence)} confidence"
    count = f"{sum(o.feasible for o in offers)} offers that can run"
    if not options or not named:
        return f"Of {count}."
    shown, options = options, [option for option in options if option.roles != ("as asked",)]
    these = "these" if len(options) == len(shown) else "those beside yours"
    if all(option.offer.meets(asked) for option in options):
        kept = sum(o.feasible and o.meets(asked) for o in offers)
        return f"Of {count}, {kept} keep {named} {sure}."
    if all((o.offer.deadline_chance or 0.0) >= asked.confidence for o in options):
        return f"None of {count} keeps {named} {sure}; {these} keep the deadline."
    return f"None of {count} keeps {named} {sure}; {these} come nearest."


def same_money(first: Offer, offers: Sequence[Offer], asked: Asked) -> Offer | None:
    """An offer on another GPU that keeps what is asked for the same money; the cheapest of them."""
    mine = _at(first.usd_to_plan, 0.5)
    near = [
        o
        for o in _keeping([o for o in offers if o.feasible and not o.risky(asked)], asked)
        if o.accelerator != first.accelerator and _at(o.usd_to_plan, 0.5) <= mine * (1.0 + _TIE)
    ]
    return min(near, key=lambda o: _at(o.usd_to_plan, 0.5), default=None)


def _at(span: Span | None, chance: float) -> float:
    return float("inf") if span is None else span.at(chance)


def _least_chance(offer: Offer) -> float:
    chances = [c for c in (offer.deadline_chance, offer.budget_chance) if c is not None]
    return min(chances, default=1.0)


def _facts(offer: Offer, cheapest: Offer) -> tuple[str, ...]:
    """What to know of an option beside its days and money."""
    facts, days, usd = [], offer.days, offer.usd
    if offer is not cheapest and days and usd and cheapest.days and cheapest.usd:
        sooner, more = cheapest.days.p50 - days.p50, usd.p50 / cheapest.usd.p50 - 1.0
        when = f"{abs(sooner):,.0f} days {'sooner' if sooner > 0 else 'later'}"
        same = "the same money within 3 %"
        facts.append(f"{when}, {same if abs(more) < _TIE else f'{100.0 * more:+.0f} % money'}")
    for what, chance in (("deadline", offer.deadline_chance), ("budget", offer.budget_chance)):
        if chance is not None:
            facts.append(f"{what} kept: {brief_chance(chance)}")
    facts += [memory_words(offer), evidence_words(offer.evidence), price_words(offer)]
    return tuple(filter(None, facts))


def badges(offer: Offer, asked: Asked) -> list[tuple[str, str]]:
    """Deadline, budget, memory, price and evidence in a few words each, and how good they are."""
    goals = (
        ("Deadline", offer.deadline_chance, asked.deadline_days),
        ("Budget", offer.budget_chance, asked.budget_usd),
    )
    made = [
        _goal_badge(what, chance)
        for what, chance, limit in goals
        if limit is not None and chance is not None
    ]
    kind, sign = ("fits", "\u2713") if offer.memory_verdict == "FITS" else ("tight", "\u25b2")
    made.append((kind, f"{sign} {memory_words(offer)}"))
    if offer.assumed_price:
        words = price_words(offer).replace(f" ({_ASSUMED}", " (")
        made.append(("tight", f"\u25b2 Price assumed: {words}"))
    return [*made, ("plain", evidence_words(offer.evidence))]


def _goal_badge(what: str, chance: float) -> tuple[str, str]:
    kind, sign, likely, words = {
        "safe": ("fits", "\u2713", 0.97, ("very likely kept", "likely kept")),
        "at risk": ("tight", "\u25b2", 0.0, ("at risk", "")),
        "missed": ("fails", "\u2715", 0.2, ("probably missed", "missed")),
    }[goal_word(chance)]
    return kind, f"{sign} {what} {words[chance < likely]}: {brief_chance(chance)}"


def memory_words(offer: Offer) -> str:
    """How full the worst rank is."""
    total, high, usable = offer.memory_total_bytes, offer.memory_p90_bytes, offer.usable_bytes
    if total is None or usable is None:
        return ""
    word = "Memory fits" if offer.memory_verdict == "FITS" else "Memory is tight"
    p90 = f", P90 {show_bytes(high)}" if high is not None else ""
    return f"{word}: {show_bytes(total)} of {show_bytes(usable)}{p90}"


GRADE_WORDS = {
    "measured here": ("●●●", "Benchmarked: this GPU and framework"),
    "measured like it": ("●●○", "Similar setups benchmarked"),
    "extrapolated": ("●○○", "Extrapolated from other setups"),
    "unmeasured": ("○○○", "Low confidence"),
}
"""A sign and words for each grade of evidence."""


def evidence_words(card: Card | None) -> str:
    """The grade of the evidence, and the error to expect."""
    if card is None:
        return ""
    sign, usual = GRADE_WORDS[card.grade]
    words = card.low_confidence.capitalize() or usual
    error = "" if card.mean_error is None else f", error to expect {card.mean_error:.0%}"
    return f"{sign} {words}{error}".replace("%", " %")


_ASSUMED = "\u25b2 assumed, no quote; "


def price_words(offer: Offer) -> str:
    """What an hour costs, of whom, when, and whether that is assumed."""
    price = offer.price or {}
    rate = price.get("usd_per_gpu_hour")
    if rate is None:
        return "No price known"
    if price.get("base") == "typed":
        return f"{rate:,.2f} USD per GPU-hour, yours"
    said = ", ".join(filter(None, (price.get("term"), price.get("provider"), price.get("date"))))
    assumed = _ASSUMED if price.get("grade") == "assumed" else ""
    return f"{rate:,.2f} USD per GPU-hour ({assumed}{said})"
