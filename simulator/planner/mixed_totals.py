"""What a played step on servers of several kinds makes of the whole run: days, money, energy.

What goes wrong, what is drawn and what is paid belongs to a kind of servers, so each kind is priced
as if all servers were of it, with the step that was played, and counts by its share of them. Where
each kind has a layout of its own, it is priced on its own servers, and all add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulator.cost.step import Estimate, evaluate
from simulator.economics.price import Price
from simulator.evidence.card import GRADES, Card
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import Layouts
from simulator.planner.answer_evidence import scenario_evidence
from simulator.scenario import Scenario
from simulator.search.certainty import certainty
from simulator.search.outcome import Outcome
from simulator.search.with_failures import priced

PriceOf = Callable[[Scenario], Price]
"""The price of a scenario's cluster."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedTotals:
    """Of one layout on all servers that it uses."""

    interval_s: tuple[float, float]
    """P10 and P90 of the step: those of the kind that is least sure."""
    tokens_per_s: float
    mfu: float
    """Model FLOPs over the dense peaks of all servers."""
    memory_headroom: float
    """Share of usable memory that stays free on the fullest GPU."""
    goodput: float
    """Time that is lost for a useful second adds up over the servers; on servers of their own,
    what kinds lose at the same time counts once, as long as the slowest takes."""
    days: float | None
    """Of the real run; None without tokens, inf where it never ends."""
    usd: float | None
    """None without tokens or a price of some kind."""
    kwh: float | None
    run_spread: float
    """Relative standard deviation of the length of the run, beyond that of the step."""
    usd_spread: float
    kwh_spread: float
    evidence: Card
    """Of the kind that least is known of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """One kind as if all servers were of it, or on its own servers."""

    share: float
    """Of what it takes: of all GPUs, those of this kind; 1 on its own servers."""
    work: float
    """Of the batch."""
    estimate: Estimate
    outcome: Outcome
    interval: tuple[float, float]
    """P10 and P90 of its step over the step."""
    evidence: Card


def own_gpus(cluster: Cluster) -> tuple[int, ...]:
    """Accelerators of every kind."""
    counts = [0] * len(cluster.each)
    for group in cluster.groups:
        counts[group.kind] += group.gpus
    return tuple(counts)


def mixed_totals(
    scenario: Scenario,
    row: Layouts,
    step_s: float,
    *,
    price_of: PriceOf | None = None,
    memory_share: float | None = None,
) -> MixedTotals:
    """Work out what a run takes whose step was played.

    Parameters
    ----------
    row : Layouts
        The layout, a table with one row.
    step_s : float
        Its step on all servers.
    price_of : callable, optional
        Prices in place of the scenario's.
    memory_share : float, optional
        Of usable memory, on the fullest GPU; otherwise that of the fullest kind, as if all servers
        were of it.
    """
    cluster = scenario.cluster
    shares = [count / cluster.gpus for count in own_gpus(cluster)]
    parts = [
        _part(replace(scenario, cluster=kind), row, step_s, price_of, (share, share))
        for kind, share in zip(cluster.each, shares, strict=True)
        if share
    ]
    lost = sum(part.share * sum(_lost(part.outcome)) for part in parts)
    return _added(parts, scenario, step_s, lost, memory_share)


def own_totals(
    scenario: Scenario,
    cases: Iterable[tuple[Scenario, Layouts]],
    step_s: float,
    *,
    price_of: PriceOf | None = None,
) -> MixedTotals:
    """Work out what a run takes in which each kind of servers has a layout of its own.

    Parameters
    ----------
    scenario : Scenario
        The whole run.
    each : iterable of (Scenario, Layouts)
        What each kind trains on its own servers, and how.
    step_s, price_of
        As in :func:`mixed_totals`.
    """
    batch = scenario.workload.recipe.global_batch
    parts = [
        _part(own, row, step_s, price_of, (1.0, own.workload.recipe.global_batch / batch))
        for own, row in cases
    ]
    failures, others = zip(*(_lost(part.outcome) for part in parts), strict=True)
    return _added(parts, scenario, step_s, sum(failures) + max(others))


def _lost(outcome: Outcome) -> tuple[float, float]:
    """Time lost for a useful second: to failures, and to all else.

    Failures of all kinds add up; checkpoints and planned stops they have at the same time.
    """
    good = max(float(outcome.goodput[0]), 1e-9)
    failures = 0.0 if outcome.real is None else float(outcome.real.by_cause[0].sum()) / good
    return failures, 1.0 / good - 1.0 - failures


def _added(
    parts: Sequence[_Part],
    scenario: Scenario,
    step_s: float,
    lost: float,
    memory_share: float | None = None,
) -> MixedTotals:
    """Join what the kinds take; `lost`: time that is lost for a useful second."""
    goodput = 1.0 / (1.0 + lost)
    days = _days(parts, goodput)
    usd, usd_spread = _total(parts, days, "usd")
    kwh, kwh_spread = _total(parts, days, "kwh")
    return MixedTotals(
        interval_s=(
            step_s * min(one.interval[0] for one in parts),
            step_s * max(one.interval[1] for one in parts),
        ),
        tokens_per_s=scenario.workload.recipe.tokens_per_step / step_s,
        mfu=1.0 / sum(one.work / float(one.outcome.mfu[0]) for one in parts),
        memory_headroom=1.0 - (_fullest(parts) if memory_share is None else memory_share),
        goodput=goodput,
        days=days,
        usd=usd,
        kwh=kwh,
        run_spread=max(float(part.outcome.run_spread[0]) for part in parts),
        usd_spread=usd_spread,
        kwh_spread=kwh_spread,
        evidence=max((one.evidence for one in parts), key=lambda card: GRADES.index(card.grade)),
    )


def _part(
    scenario: Scenario,
    row: Layouts,
    step_s: float,
    price_of: PriceOf | None,
    counts: tuple[float, float],
) -> _Part:
    """One kind, whose terms are as much of the step as they are of its own.

    `counts`: what counts of what it takes, and its share of the batch.
    """
    given = scenario.workload, scenario.cluster, scenario.software
    found = evaluate(row, *given)
    own_s = float(found.step_time_s[0])
    sure = certainty(found, *given)
    ratio = step_s / own_s
    played = replace(
        found,
        step_time_s=np.array([step_s]),
        imbalance_s=found.imbalance_s * ratio,
        terms_s={name: seconds * ratio for name, seconds in found.terms_s.items()},
    )
    result = priced(played, scenario, price=None if price_of is None else price_of(scenario))
    return _Part(
        share=counts[0],
        work=counts[1],
        estimate=found,
        outcome=result,
        interval=(float(sure.p10_s[0]) / own_s, float(sure.p90_s[0]) / own_s),
        evidence=scenario_evidence(scenario, found, result),
    )


def _fullest(parts: Sequence[_Part]) -> float:
    return max(
        float(part.estimate.memory_total_bytes[0]) / float(part.estimate.usable_bytes)
        for part in parts
    )


def _days(parts: Sequence[_Part], goodput: float) -> float | None:
    """Days of the real run."""
    ideal = float(parts[0].outcome.days_ideal[0])
    if np.isnan(ideal):
        return None
    never = any(np.isinf(part.outcome.days[0]) for part in parts)
    return float("inf") if never else ideal / goodput


def _total(parts: Sequence[_Part], days: float | None, name: str) -> tuple[float | None, float]:
    """Money or energy of all kinds for as long as the run takes; its spread, as if all erred alike.

    The days of a kind are those of a run on that kind alone, what it takes is in proportion.
    """
    if days is None:
        return None, 0.0
    each = [
        one.share * float(getattr(one.outcome, name)[0]) * days / float(one.outcome.days[0])
        for one in parts
    ]
    total = sum(each)
    if not np.isfinite(total):
        return None, 0.0
    spread = [float(getattr(part.outcome, f"{name}_spread")[0]) for part in parts]
    return total, sum(x * s for x, s in zip(each, spread, strict=True)) / max(total, 1e-300)
