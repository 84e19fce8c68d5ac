"""What a played step on servers of several kinds makes of the whole run: days, money, energy.

What goes wrong, what is drawn and what is paid belongs to a kind of servers, so each kind is priced
as if all servers were of it, with the step that was played, and counts by its share of them. Where
each kind has a layout of its own, it is priced on its own servers, and all add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.cost.estimate import P90, VERDICTS, memory_verdict
from simulator.cost.step import Estimate, evaluate
from simulator.economics.price import Price
from simulator.evidence.card import GRADES, Card
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import Layouts
from simulator.planner.answer_evidence import scenario_evidence
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.search.certainty import Certainty, certainty
from simulator.search.outcome import Outcome
from simulator.search.with_failures import priced

if TYPE_CHECKING:
    from simulator.events.step.timeline import Mixed

PriceOf = Callable[[Scenario], Price]
"""The price of a scenario's cluster."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FullestMemory:
    """Memory of the GPU that is fullest, as a share of what is usable of it."""

    memory_total_bytes: float
    usable_bytes: float
    spread: float = 0.0
    """Standard deviation of the logarithm of the bytes; NaN where none is given."""

    @staticmethod
    def of(mixed: Mixed) -> FullestMemory:
        """That of a step that was played on servers of several kinds; without a spread."""
        at = int(np.argmax(mixed.memory_bytes / mixed.usable_bytes))
        return FullestMemory(
            memory_total_bytes=float(mixed.memory_bytes[at]),
            usable_bytes=float(mixed.usable_bytes[at]),
        )

    @property
    def memory_p90_bytes(self) -> float:
        """What memory stays below with a probability of 90 %; NaN without a spread."""
        return self.memory_total_bytes * float(np.exp(P90 * self.spread))

    @property
    def share(self) -> float:
        """Of what is usable."""
        return self.memory_total_bytes / self.usable_bytes

    @property
    def verdict(self) -> str:
        """FITS, TIGHT or OOM."""
        need, spread = np.array([self.memory_total_bytes]), np.array([self.spread])
        return VERDICTS[int(memory_verdict(need, spread, self.usable_bytes)[0])]


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedOutcome:
    """Of one layout on all servers that it uses."""

    outcome: Outcome
    """One row. Time that is lost for a useful second adds up over the servers; on servers of their
    own, what kinds lose at the same time counts once, as long as the slowest takes. Price, site and
    what goes wrong are those of the kind whose run is least sure."""
    certainty: Certainty
    """One row: of the kind that is least sure."""
    memory: FullestMemory
    evidence: Card
    """Of the kind that least is known of."""

    @property
    def memory_headroom(self) -> float:
        """Share of usable memory that stays free on the worst rank."""
        return 1.0 - self.memory.share


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

    @property
    def memory(self) -> FullestMemory:
        """Of its worst rank."""
        return FullestMemory(
            memory_total_bytes=float(self.estimate.memory_total_bytes[0]),
            usable_bytes=float(self.estimate.usable_bytes),
            spread=float(self.estimate.memory_spread[0]),
        )

    @property
    def lost(self) -> tuple[float, float]:
        """Time lost for a useful second: to failures, and to all else.

        Failures of all kinds add up; checkpoints and planned stops they have at the same time.
        """
        good = max(float(self.outcome.goodput[0]), 1e-9)
        real = self.outcome.real
        failures = 0.0 if real is None else float(real.by_cause[0].sum()) / good
        return failures, 1.0 / good - 1.0 - failures


def gpus_by_kind(cluster: Cluster) -> tuple[int, ...]:
    """Accelerators of every kind."""
    counts = [0] * len(cluster.each)
    for group in cluster.groups:
        counts[group.kind] += group.gpus
    return tuple(counts)


def mixed_outcome(
    scenario: Scenario,
    row: Layouts,
    step_s: float,
    *,
    price_of: PriceOf | None = None,
    memory: FullestMemory | None = None,
) -> MixedOutcome:
    """Work out what a run takes whose step was played.

    Parameters
    ----------
    row : Layouts
        The layout, a table with one row.
    step_s : float
        Its step on all servers.
    price_of : callable, optional
        Prices in place of the scenario's.
    memory : FullestMemory, optional
        As it was played, its spread is that of the layout; otherwise that of the fullest kind, as
        if all servers were of it.
    """
    cluster = scenario.cluster
    shares = [count / cluster.gpus for count in gpus_by_kind(cluster)]
    parts = [
        _part(replace(scenario, cluster=kind), row, step_s, price_of, (share, share))
        for kind, share in zip(cluster.each, shares, strict=True)
        if share
    ]
    lost = sum(part.share * sum(part.lost) for part in parts)
    return _joined(parts, scenario, step_s, lost, memory)


def outcome_of_kinds(
    scenario: Scenario,
    cases: Iterable[tuple[Scenario, Layouts]],
    step_s: float,
    *,
    price_of: PriceOf | None = None,
) -> MixedOutcome:
    """Work out what a run takes in which each kind of servers has a layout of its own.

    Parameters
    ----------
    scenario : Scenario
        The whole run.
    cases : iterable of (Scenario, Layouts)
        What each kind trains on its own servers, and how.
    step_s, price_of
        As in :func:`mixed_outcome`.
    """
    batch = scenario.workload.recipe.global_batch
    parts = [
        _part(case, row, step_s, price_of, (1.0, case.workload.recipe.global_batch / batch))
        for case, row in cases
    ]
    failures, others = zip(*(part.lost for part in parts), strict=True)
    return _joined(parts, scenario, step_s, sum(failures) + max(others))


def _joined(
    parts: Sequence[_Part],
    scenario: Scenario,
    step_s: float,
    lost: float,
    memory: FullestMemory | None = None,
) -> MixedOutcome:
    """Join what the kinds take; `lost`: time that is lost for a useful second."""
    goodput = 1.0 / (1.0 + lost)
    ideal = float(parts[0].outcome.days_ideal[0])
    never = any(np.isinf(part.outcome.days[0]) for part in parts)
    days = np.inf if never else ideal / goodput
    usd, kwh, gpu_hours = (_by_kind(parts, days, name) for name in ("usd", "kwh", "gpu_hours"))
    least_sure = max(parts, key=lambda part: float(part.outcome.run_spread[0])).outcome
    tokens_per_s = scenario.workload.recipe.tokens_per_step / step_s
    columns: dict[str, float] = {
        "tokens_per_s": tokens_per_s,
        "tokens_per_s_per_gpu": tokens_per_s / scenario.cluster.gpus,
        "mfu": 1.0 / sum(part.work / float(part.outcome.mfu[0]) for part in parts),
        "hfu": 1.0 / sum(part.work / float(part.outcome.hfu[0]) for part in parts),
        "days": days,
        "days_ideal": ideal,
        "goodput": goodput,
        "gpu_hours": _total(gpu_hours),
        "usd": _total(usd),
        "kwh": _total(kwh),
        "usd_spread": _spread(usd, [float(part.outcome.usd_spread[0]) for part in parts]),
        "kwh_spread": _spread(kwh, [float(part.outcome.kwh_spread[0]) for part in parts]),
    }
    arrays: dict[str, Any] = {name: np.array([value]) for name, value in columns.items()}
    fullest = max((part.memory for part in parts), key=lambda memory: memory.share)
    if memory is not None:
        fullest = replace(memory, spread=fullest.spread)
    return MixedOutcome(
        outcome=replace(least_sure, **arrays),
        certainty=Certainty(
            p10_s=np.array([step_s * min(part.interval[0] for part in parts)]),
            p90_s=np.array([step_s * max(part.interval[1] for part in parts)]),
            fastest=np.array([np.nan]),
            beats_best=np.array([np.nan]),
        ),
        memory=fullest,
        evidence=max((part.evidence for part in parts), key=lambda card: GRADES.index(card.grade)),
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
    setting = scenario.workload, scenario.cluster, scenario.software
    estimate = evaluate(row, *setting)
    kind_s = float(estimate.step_time_s[0])
    sure = certainty(estimate, *setting)
    ratio = step_s / kind_s
    played = replace(
        estimate,
        step_time_s=np.array([step_s]),
        imbalance_s=estimate.imbalance_s * ratio,
        terms_s={name: seconds * ratio for name, seconds in estimate.terms_s.items()},
    )
    outcome = priced(played, scenario, price=None if price_of is None else price_of(scenario))
    return _Part(
        share=counts[0],
        work=counts[1],
        estimate=estimate,
        outcome=outcome,
        interval=(float(sure.p10_s[0]) / kind_s, float(sure.p90_s[0]) / kind_s),
        evidence=scenario_evidence(scenario, estimate, outcome),
    )


def _by_kind(parts: Sequence[_Part], days: float, name: str) -> list[float]:
    """Money or energy of every kind for as long as the run takes.

    The days of a kind are those of a run on that kind alone, what it takes is in proportion.
    """
    return [
        part.share * float(getattr(part.outcome, name)[0]) * days / float(part.outcome.days[0])
        for part in parts
    ]


def _total(amounts: Sequence[float]) -> float:
    total = sum(amounts)
    return total if np.isfinite(total) else np.nan


def _spread(amounts: Sequence[float], spreads: Sequence[float]) -> float:
    """Relative standard deviation of a sum, as if all erred alike."""
    total = sum(amounts)
    if not np.isfinite(total):
        return 0.0
    return sum(x * s for x, s in zip(amounts, spreads, strict=True)) / max(total, 1e-300)
