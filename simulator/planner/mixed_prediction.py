"""One layout on servers of several kinds: its step played on discrete events, and the whole run.

Stages on unlike servers have no closed form. What nobody gave of the layout takes the defaults that
it has on servers of the first kind, and the closed form that is shown beside the step is theirs.

What goes wrong, what is drawn and what is paid belongs to a kind of servers, so each kind is priced
as if all servers were of it, with the step that was played, and counts by its share of them. Where
each kind has a layout of its own, it is priced on its own servers, and all add up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from simulator.answers import encoded
from simulator.cost.estimate import P90, VERDICTS, Estimate, memory_verdict
from simulator.cost.step import evaluate
from simulator.economics.energy import cluster_energy_joule
from simulator.economics.price import Price, cost_usd
from simulator.errors import InputError
from simulator.events.played import SimulatedStep
from simulator.events.simulated_step import simulate
from simulator.events.step.streams import STREAMS
from simulator.events.step.timeline import Mixed
from simulator.evidence.card import GRADES, Card
from simulator.frames import DataFrame, Table, frame_of_rows
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import Layouts
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.planner.answer_evidence import scenario_evidence
from simulator.planner.prediction import Prediction, predict, with_times
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.search.certainty import Certainty, certainty
from simulator.search.defaults import complete, layout_fields
from simulator.search.outcome import Outcome
from simulator.search.refusal import limits, refusal
from simulator.search.with_failures import priced
from simulator.units import HOUR_S


@dataclass(frozen=True, kw_only=True)
class KindUse:
    """What the servers of one kind do in a played step."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("name", "gpus", "alone_s=uniform_cluster_step_s"),
        *("without_others_s=these_servers_only_step_s", "busy_s", "idle_s"),
        *("memory_total_bytes=memory_bytes", "usable_bytes", "verdict"),
        "usd_per_hour",
    )

    name: str
    gpus: int
    busy_s: Mapping[str, float]
    """By stream, the mean of their GPUs."""
    idle_s: Mapping[str, float]
    memory_bytes: float
    """Of the fullest of their GPUs."""
    usable_bytes: float
    verdict: str
    """FITS, TIGHT or OOM of that GPU, and OOM where the host lacks room for what is offloaded."""
    uniform_cluster_step_s: float
    """The step if all servers were of this kind."""
    these_servers_only_step_s: float
    """Closed form of the step on the servers of this kind that are there and no others: the same
    layout with fewer replicas and the same batch; NaN where it does not divide so, or not fit."""
    usd_per_hour: float
    """Of all of them, electricity included; NaN where the price is not known."""


@dataclass(frozen=True, kw_only=True)
class ServerGroups:
    """Which ranks lie on which servers, and what each kind of servers does."""

    KEYS: ClassVar[tuple[str, ...]] = (
        "steady_s=step.mixed.steady_s",
        *("usd_per_step", "kinds", "ranks=step.mixed.places"),
    )

    step: SimulatedStep
    kinds: tuple[KindUse, ...]

    @property
    def usd_per_step(self) -> float:
        """What a step costs, each kind at its own price; NaN where one is not known."""
        return usd_per_step(list(self.kinds), self.step)


def asked_of(scenario: Scenario) -> dict[str, Any]:
    """What was asked, by the kinds of servers: the head of its document."""
    cluster = scenario.cluster
    groups = [{"name": cluster.kinds[g.kind].name, "gpus": g.gpus} for g in cluster.groups]
    return {
        "model": scenario.workload.architecture.name,
        "cluster": {"groups": groups, "gpus": cluster.gpus},
        "software": scenario.software.name,
        "assumed_training": scenario.assumed,
        "idle_fields": scenario.idle,
    }


@dataclass(frozen=True, kw_only=True, repr=False)
class MixedPrediction(Prediction):
    """What one layout costs on servers of several kinds; its estimate is the played step's."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("*asked", "scenario=scenario.document", "layouts=rows", "groups", "caveats"),
    )

    step: SimulatedStep
    kinds: tuple[KindUse, ...]
    """What each kind of servers does in the step."""
    run: MixedOutcome
    """What `outcome` and `certainty` are of."""

    @property
    def asked(self) -> dict[str, Any]:
        """What was asked: the head of its document."""
        return asked_of(self.scenario)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Its one layout, as JSON says it."""
        keys = (
            *("step_time_s", "p10_s=interval_s.0", "p90_s=interval_s.1", "terms_s=step.terms_s"),
            *("hidden_s=step.hidden_s", "fits", "verdict=memory_verdict"),
            *("memory_p90_bytes=estimate.memory_p90_bytes.0", "usable_bytes=estimate.usable_bytes"),
            *("tokens_per_s_per_gpu=outcome.tokens_per_s_per_gpu.0", "mfu"),
            *("memory_headroom=run.memory_headroom", "goodput=outcome.goodput.0"),
            *("days", "usd", "kwh", "planning_factor", "planned_days", "planned_usd"),
            *("planned_kwh", "deadline_chance", "budget_chance", "evidence"),
        )
        layout = layout_fields(self.scenario, self.estimate.layouts)
        return [{"layout": layout, **encoded(self, keys)}]

    @property
    def groups(self) -> ServerGroups:
        """Which ranks lie on which servers, and what each kind of servers does."""
        return ServerGroups(step=self.step, kinds=self.kinds)

    @property
    def evidence(self) -> Card:
        """Of the kind that least is known of."""
        return self.run.evidence

    def to_frame(self, table: Table = "layouts") -> DataFrame:
        """One row per kind of servers; or the layout's seconds by term, or bytes by kind."""
        if table != "layouts":
            return super().to_frame(table)
        rows = [
            {
                "name": kind.name,
                "gpus": kind.gpus,
                "memory_bytes": kind.memory_bytes,
                "usable_bytes": kind.usable_bytes,
                "verdict": kind.verdict,
                "alone_s": kind.uniform_cluster_step_s,
                "without_others_s": kind.these_servers_only_step_s,
                "usd_per_hour": kind.usd_per_hour,
                "computing_s": kind.busy_s["compute"],
            }
            for kind in self.kinds
        ]
        return frame_of_rows(rows)


def predict_first(scenario: Scenario) -> Prediction:
    """Complete the layout that is to be played, and estimate it on the first kind of servers.

    On servers of one kind this is :func:`simulator.planner.prediction.predict`.

    Raises
    ------
    InputError
        If the layout cannot run on the servers of some kind, with the nearest value that can.
    """
    kinds = [replace(scenario, cluster=kind) for kind in scenario.cluster.each]
    prediction = predict(kinds[0])
    pinned = prediction.scenario.pinned
    layouts, wrong = prediction.estimate.layouts, []
    for kind in kinds[1:]:
        code = int(reasons(layouts, kind.workload, kind.cluster, kind.software)[0])
        problems = limits(kind, pinned)
        if code != FEASIBLE:
            row, _ = complete(kinds[0], pinned)
            problems.append(refusal(kind, pinned, row, code))
        wrong += [f"{text} (on {kind.cluster.name})" for text in problems]
    if wrong:
        raise InputError(wrong)
    described = replace(prediction.scenario, cluster=scenario.cluster)
    return replace(prediction, scenario=described)


def predict_mixed(scenario: Scenario) -> MixedPrediction:
    """Play a scenario's layout on its servers of several kinds.

    Raises
    ------
    InputError
        If the layout cannot run on the servers of some kind, with the nearest value that can.
    """
    first = predict_first(scenario)
    made, row = first.scenario, first.estimate.layouts
    step = simulate(row, made.workload, made.cluster, made.software)
    mixed = step.mixed
    assert mixed is not None
    kinds = kinds_used(first, step)
    run = mixed_outcome(made, row, step.step_time_s, memory=FullestMemory.of(mixed))
    return MixedPrediction(
        scenario=made,
        estimate=_played(made, row, step, kinds),
        outcome=run.outcome,
        certainty=run.certainty,
        defaults=first.defaults,
        step=step,
        kinds=tuple(kinds),
        run=run,
    )


def _played(
    scenario: Scenario, row: Layouts, step: SimulatedStep, kinds: list[KindUse]
) -> Estimate:
    """The played step, with the memory of the kind that is worst off."""
    worst = max(
        range(len(kinds)),
        key=lambda i: (
            VERDICTS.index(kinds[i].verdict),
            kinds[i].memory_bytes / kinds[i].usable_bytes,
        ),
    )
    cluster = scenario.cluster.kinds[worst]
    estimate = evaluate(row, scenario.workload, cluster, scenario.software)
    return replace(
        with_times(estimate, [step]), memory_total_bytes=np.array([kinds[worst].memory_bytes])
    )


def kinds_used(prediction: Prediction, step: SimulatedStep) -> list[KindUse]:
    """Say what each kind of servers does in a step that was played on several.

    Parameters
    ----------
    prediction : Prediction
        Of :func:`predict_first`.
    step : SimulatedStep
        The same layout, played; there are none where its servers are of one kind.
    """
    scenario, mixed = prediction.scenario, step.mixed
    if mixed is None:
        return []
    layouts = prediction.estimate.layouts
    return [_use(scenario, step, layouts, mixed, i) for i in range(len(scenario.cluster.kinds))]


def _these_servers_only_step_s(
    scenario: Scenario, kind: Cluster, layouts: Layouts, gpus: int
) -> float:
    """Step on so many GPUs of one kind alone, with as many replicas as they hold."""
    row = layouts.row()
    replica = row["tp"] * row["pp"] * row["cp"]
    if gpus % replica:
        return math.nan
    cluster = kind.with_gpus(gpus)
    row |= {"dp": gpus // replica}
    row["shard_group"] = min(row["shard_group"], row["dp"] * row["cp"])
    fewer = Layouts.of(**row)
    if int(reasons(fewer, scenario.workload, cluster, scenario.software)[0]) != FEASIBLE:
        return math.nan
    estimate = evaluate(fewer, scenario.workload, cluster, scenario.software)
    return float(estimate.step_time_s[0]) if estimate.fits[0] else math.nan


def _use(
    scenario: Scenario, step: SimulatedStep, layouts: Layouts, mixed: Mixed, i: int
) -> KindUse:
    kind, gpus = scenario.cluster.kinds[i], mixed.gpus[:, i]
    estimate = evaluate(layouts, scenario.workload, kind, scenario.software)
    ranks = np.flatnonzero(gpus)
    weight = (gpus / gpus.sum())[:, None]
    busy, idle = ((weight * seconds).sum(axis=0) for seconds in (step.busy_s, step.idle_s))
    fullest = ranks[np.argmax(mixed.memory_bytes[ranks])]
    usable = estimate.usable_bytes
    code = int(memory_verdict(mixed.memory_bytes[fullest], estimate.memory_spread, usable)[0])
    short = any(
        estimate.offloaded_bytes[tier][0] > room for tier, room in estimate.room_bytes.items()
    )
    computes = float(busy[STREAMS.index("compute")])
    return KindUse(
        name=kind.name,
        gpus=int(gpus.sum()),
        busy_s=dict(zip(STREAMS, busy.tolist(), strict=True)),
        idle_s=dict(zip(STREAMS, idle.tolist(), strict=True)),
        memory_bytes=float(mixed.memory_bytes[fullest]),
        usable_bytes=usable,
        verdict="OOM" if short else VERDICTS[code],
        uniform_cluster_step_s=mixed.alone_s[i],
        these_servers_only_step_s=_these_servers_only_step_s(
            scenario, kind, estimate.layouts, int(gpus.sum())
        ),
        usd_per_hour=_usd_per_hour(scenario, kind, int(gpus.sum()), (step.step_time_s, computes)),
    )


def _usd_per_hour(
    scenario: Scenario, kind: Cluster, gpus: int, times_s: tuple[float, float]
) -> float:
    """Price of the servers of one kind at their own price, power as busy as they are.

    `times_s`: of a step, and in which they compute.
    """
    tariff = scenario.tariff_on(kind)
    price, site = tariff.price, tariff.site
    if price.usd_per_gpu_hour is None:
        return float("nan")
    (step_s, busy_s), servers = times_s, kind.with_gpus(gpus)
    joule = cluster_energy_joule(servers, site, step_time_s=step_s, busy_s=busy_s)
    usd = cost_usd(
        seconds=step_s,
        gpus=gpus,
        energy_joule=joule,
        usd_per_gpu_hour=price.usd_per_gpu_hour,
        electricity_usd_per_kwh=float(site.electricity_usd_per_kwh),
        included_power=price.included_power,
    )
    return float(usd) * HOUR_S / step_s


def usd_per_step(kinds: list[KindUse], step: SimulatedStep) -> float:
    """What a step costs on all servers, each kind at its own price; NaN where one is not known."""
    return sum(kind.usd_per_hour for kind in kinds) * step.step_time_s / HOUR_S


def worst_verdict(prediction: Prediction, kinds: list[KindUse]) -> str:
    """The verdict on memory: of the kind that is worst off, or of the only one."""
    verdicts = [kind.verdict for kind in kinds] or [prediction.memory_verdict]
    return max(verdicts, key=VERDICTS.index)


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
    shares = [count / cluster.gpus for count in cluster.gpus_by_kind]
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
