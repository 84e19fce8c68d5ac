"""The answer of `foreshard rl`: a step by phase and over time, what fits, the best split, money."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from simulator.answers import SCENARIO, Answer
from simulator.economics.energy import cluster_energy_joule
from simulator.economics.price import Price, cost_usd
from simulator.errors import InfeasibleError
from simulator.evidence.card import Card
from simulator.frames import DataFrame, frame_of_rows
from simulator.planner.prediction import refuse_mixed
from simulator.records import dataclass
from simulator.reinforcement.evidence import interval_s, step_evidence
from simulator.reinforcement.remedies import Remedy, remedies
from simulator.reinforcement.rl_step import RLStep, Side, rl_step
from simulator.reinforcement.split_search import By, Tried, best_of, flips, try_splits, update_s
from simulator.reinforcement.trainer import with_gpus
from simulator.reliability.run_terms import RunTerms
from simulator.rollouts.profiles import frameworks_that_mix
from simulator.rollouts.rl_section import RL, split_gpus
from simulator.scenario import Scenario
from simulator.search.with_failures import real_run, terms_of
from simulator.units import KWH_J, show_bytes, show_percent, show_seconds

THOUSAND = 1000.0
"""Updates whose money is told."""


@dataclass(frozen=True, kw_only=True)
class Priced:
    """A step with its interval, evidence and money."""

    step: RLStep
    card: Card
    p10_s: float
    p90_s: float
    usd_per_1000_updates: float | None
    """Of the real run, with failures; None where no price is known."""
    kwh_per_1000_updates: float
    """At the meter, of the real run."""
    goodput: float
    """Ideal time over real time: what failures of both sides, restarts and checkpoints leave."""
    price: Price

    @property
    def phases(self) -> list[tuple[str, float]]:
        """Phases that take any time, and their seconds."""
        parts_s = self.step.parts_s
        return [(WORDS[name], seconds) for name, seconds in parts_s.items() if seconds > 0.0]

    def document(self) -> dict[str, Any]:
        """As JSON says it."""
        step, trainer = self.step, self.step.trainer
        engine = step.rl.generation
        generation = {
            "engine": engine.engine,
            "tp": engine.tp,
            "ep": engine.ep,
            "dp_attention": engine.dp_attention,
            "replicas": step.generated.replicas,
            "max_sequences": step.generated.replica.most_sequences,
            "memory_share": step.generated.memory_share,
            "cache_tokens": step.generated.cache_tokens,
        }
        return {
            "mode": step.rl.mode,
            "step_time_s": step.step_time_s,
            "p10_s": self.p10_s,
            "p90_s": self.p90_s,
            "updates": trainer.updates,
            "generation_s": step.generation_s,
            "reward_s": step.reward_s,
            "log_probabilities_s": trainer.score_s,
            "training_s": trainer.training_s,
            "refit_s": step.moved.seconds,
            "phase_change_s": step.switch_s,
            "lent_s": step.lent_s,
            "driver_s": step.driver_s,
            "waiting": step.waiting,
            "staleness": step.staleness,
            "gpus": step.gpus | ({"scoring": placed} if (placed := step.rl.scoring_gpus) else {}),
            "tokens_per_s_per_gpu": step.tokens_per_s_per_gpu,
            "preempted": step.generated.preempted,
            "layouts": {"training": trainer.layout, "generation": generation},
            "memory": {name: side.document() for name, side in step.memory.items()},
            "verdict": step.verdict,
            "usd_per_1000_updates": self.usd_per_1000_updates,
            "kwh_per_1000_updates": self.kwh_per_1000_updates,
            "goodput": self.goodput,
            "price": self.price.origin,
            "evidence": self.card.document(),
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class PricedRL(Answer):
    """The answer."""

    COMMAND: ClassVar[str] = "rl"
    KEYS: ClassVar[tuple[str, ...]] = (
        *(*SCENARIO, "feasible", "reason?", "rl=chosen", "asked=given"),
        *("tried=tried_rows", "flips", "remedies=told_remedies", "caveats"),
    )

    scenario: Scenario
    asked: Priced | None
    """The scenario's own split; None where it cannot be."""
    best: Priced | None
    """The best that was tried; None where nothing was searched, or nothing fits."""
    tried: tuple[Tried, ...]
    by: By
    told: tuple[Remedy, ...]
    """Changes of the scenario's own split that would help."""
    reason: str = ""
    """Why the scenario's own split cannot be."""

    @property
    def shown(self) -> Priced | None:
        """What the answer is about: the scenario's own split, else the best."""
        return self.asked or self.best

    @property
    def feasible(self) -> bool:
        """Whether anything fits."""
        shown = (self.asked, self.best)
        return any(step is not None and step.step.verdict != "OOM" for step in shown)

    @property
    def line(self) -> str:
        """All of it in a few words."""
        shown = self.shown
        if shown is None:
            return self.reason
        step = shown.step
        waits = ", ".join(f"{side} waits {show_percent(x)}" for side, x in step.waiting.items())
        return f"{show_seconds(step.step_time_s)} a step, {step.rl.mode}; {waits}"

    @property
    def chosen(self) -> dict[str, Any] | None:
        """The step that the answer is about."""
        return None if self.shown is None else self.shown.document()

    @property
    def given(self) -> bool:
        """Whether that is the scenario's own split."""
        return self.asked is not None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Every split that was tried, as a row each."""
        return [_row(self.scenario, tried) for tried in self.tried]

    @property
    def tried_rows(self) -> list[dict[str, Any]]:
        """The same, as JSON says them."""
        return self.rows

    @property
    def flips(self) -> list[dict[str, int]]:
        """Numbers of generating accelerators between which the side that binds changes."""
        return [{"from": a, "to": b} for a, b in flips(list(self.tried), self.by)]

    @property
    def told_remedies(self) -> list[dict[str, Any]]:
        """Changes that would help, as JSON says them."""
        return [
            {"field": remedy.field, "value": remedy.value, "why": remedy.why,
             "step_time_s": remedy.step_time_s, "verdict": remedy.verdict}
            for remedy in self.told
        ]  # fmt: skip

    def to_frame(self) -> DataFrame:
        """A row for each split that was tried; the scenario's own alone where none was."""
        if self.tried:
            return frame_of_rows(self.rows)
        return frame_of_rows([] if self.shown is None else [_plain(self.shown.document())])

    @property
    def caveats(self) -> tuple[str, ...]:
        """What is taken for granted, and what is not in the numbers."""
        said = [
            "Steps are those of a run without failures; money and energy are divided by goodput. A"
            " generator that fails restarts its own replica alone and writes its answers anew.",
            "Lengths of answers stay what they are; they drift while a policy learns.",
        ]
        if self.tried:
            said.append(
                "Other splits keep prompts, samples and answers of an update: what learns is yours."
            )
        shown = self.shown
        if shown is None:
            return tuple(said)
        rl, replica, framework = shown.step.rl, shown.step.generated.replica, shown.step.framework
        said[:0] = _over(shown.step.memory)
        if rl.answer_tokens is not None:
            said.append(
                "Answers are lognormal, cut at the longest: the cap matters more than the shape."
            )
        if replica.borrowed:
            device = replica.cluster.accelerator.name
            said.append(f"Decode kernels of {replica.borrowed} stand in for those of {device}.")
        if rl.mode == "mixed" and rl.policy_age not in framework.mixed:
            able = ", ".join(frameworks_that_mix(rl.policy_age))
            whose = f"{framework.name} {framework.release}"
            said.append(f"{whose} has no mixed mode {rl.policy_age}; {able} has.")
        if rl.algorithm == "dapo":
            said.append(
                "DAPO's further rounds are one longer batch: prompts / kept_groups."
                if rl.kept_groups < 1.0
                else "DAPO's kept_groups is 1: no group is dropped, no further round is priced."
            )
        if rl.turns > 1 and not (rl.tool_s or rl.tool_tokens):
            said.append(f"Tools between {rl.turns} turns take no time: tool_s, tool_tokens are 0.")
        if rl.algorithm == "ppo":
            said.append("The critic is a second model of the policy's size and layout.")
        return tuple(said)


def rl(
    scenario: Scenario,
    *,
    by: By = "time",
    search: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> PricedRL:
    """Price the step of [rl], and every split of its accelerators.

    Parameters
    ----------
    scenario : Scenario
    by : time, usd or throughput
        What the best split is best in: seconds or money of an update, or tokens per accelerator.
    search : bool
        Whether other splits are tried.
    progress : callable, optional
        Told how many splits are done, of how many.

    Raises
    ------
    InputError
        If there is no section [rl], or something of it is wrong.
    """
    scenario.required(RL)
    refuse_mixed(scenario.without(RL))
    asked, reason = None, ""
    try:
        asked = priced(scenario, rl_step(scenario))
    except InfeasibleError as error:
        reason = str(error)
    tried = tuple(try_splits(scenario, progress=progress)) if search else ()
    best = best_of(list(tried), by)
    best_step = None if best is None or best.step is None else priced(scenario, best.step)
    return PricedRL(
        scenario=scenario,
        asked=asked,
        best=best_step,
        tried=tried,
        by=by,
        told=tuple(remedies(scenario, asked.step if asked else None)),
        reason=reason,
    )


def priced(scenario: Scenario, step: RLStep) -> Priced:
    """Put interval, evidence, failures and money to a step."""
    card = step_evidence(scenario, step)
    p10_s, p90_s = interval_s(card, step.step_time_s)
    goodput = rl_goodput(scenario, step)
    usd = usd_per_1000_updates(scenario, step)
    return Priced(
        step=step,
        card=card,
        p10_s=p10_s,
        p90_s=p90_s,
        usd_per_1000_updates=None if usd is None else usd / goodput,
        kwh_per_1000_updates=_joule_per_1000_updates(scenario, step) / KWH_J / goodput,
        goodput=goodput,
        price=scenario.tariff.price,
    )


def rl_goodput(scenario: Scenario, step: RLStep) -> float:
    """Ideal time over real time, of the trainer whose ranks stop together and of other generators.

    The trainer's as of any training ([run]); a step counts as long as it takes with its generation,
    since that is what an interruption loses.
    """
    recipe = replace(scenario.workload.recipe, tokens=None)
    alone = replace(
        scenario,
        cluster=with_gpus(scenario.cluster, step.gpus["training"]),
        workload=replace(scenario.workload, recipe=recipe),
    )
    estimate = replace(step.trainer.estimate, step_time_s=np.array([update_s(step)]))
    trainer = float(real_run(estimate, alone).goodput[0])
    return trainer * generator_goodput(terms_of(estimate, alone), step)


def _over(memory: Mapping[str, Side]) -> list[str]:
    """Phases whose memory does not fit, or may not."""
    words = {"OOM": "does not fit", "TIGHT": "may not fit: its P90 is over the limit"}
    return [
        f"{name.capitalize()} {words[side.verdict]}; {show_bytes(side.total_bytes)} of"
        f" {show_bytes(side.usable_bytes)}."
        for name, side in memory.items()
        if side.verdict in words
    ]


def generator_goodput(terms: RunTerms, step: RLStep) -> float:
    """Share of the time that failures of generators leave: failures of so many devices.

    A failure costs a replica the time until it is known and replaced, its start, and half of a
    batch that it writes anew; the step waits for what the slack of its side does not hide, or,
    where a queue goes on without it, for its share of that.

    Parameters
    ----------
    terms : RunTerms
        Of the trainer's run, whose rates per device hold for generators too.
    """
    rate = float(terms.rate.sum()) * step.alone_gpus / step.gpus["training"]
    if rate == 0.0:
        return 1.0
    run, weight = terms.run, terms.rate[0] / terms.rate.sum()
    found_s = terms.detection_s + terms.diagnosis_s + terms.replaced * float(run.spares.hot_s)
    weights_s = step.moved.weight_bytes / float(run.storage.node_read_bytes_per_s)
    start_s = float(run.restart.schedule_s) + float(run.restart.communicators_s) + weights_s
    lost_s = float((weight * found_s).sum()) + start_s + step.generation_s / 2.0
    queued = step.rl.partial_rollouts or step.rl.staleness > 1
    late_s = step.generator_side_s + lost_s / (step.generated.replicas if queued else 1)
    longer_s = rate * step.step_time_s * max(late_s - step.step_time_s, 0.0)
    return step.step_time_s / (step.step_time_s + longer_s)


def usd_per_1000_updates(scenario: Scenario, step: RLStep) -> float | None:
    """Money of a thousand updates without failures; None where no price is known."""
    price, site = scenario.tariff.price, scenario.tariff.site
    if price.usd_per_gpu_hour is None:
        return None
    usd = cost_usd(
        seconds=update_s(step) * THOUSAND,
        gpus=scenario.cluster.rented(step.all_gpus),
        energy_joule=_joule_per_1000_updates(scenario, step),
        usd_per_gpu_hour=float(price.usd_per_gpu_hour),
        electricity_usd_per_kwh=float(site.electricity_usd_per_kwh),
        included_power=price.included_power,
    )
    return float(usd)


def _joule_per_1000_updates(scenario: Scenario, step: RLStep) -> float:
    """Energy of a thousand updates at the meter: devices are busy but while their side waits."""
    sides = {"trainer": step.gpus["training"], "generator": step.alone_gpus}
    busy = {side: 1.0 - step.waiting[side] for side in sides}
    sides["scorers"], busy["scorers"] = (
        step.rl.scoring_gpus,
        step.trainer.score_s / step.step_time_s,
    )
    whole = sum(
        float(
            cluster_energy_joule(
                with_gpus(scenario.cluster, gpus),
                scenario.tariff.site,
                step_time_s=step.step_time_s,
                busy_s=busy[side] * step.step_time_s,
            )
        )
        for side, gpus in sides.items()
        if gpus
    )
    return whole * THOUSAND / step.trainer.updates


def _row(scenario: Scenario, tried: Tried) -> dict[str, Any]:
    step, rl = tried.step, tried.rl
    training, alone = split_gpus(rl, scenario.cluster.gpus)
    row: dict[str, Any] = {
        "mode": rl.mode,
        "staleness": rl.staleness,
        "training_gpus": training,
        "generation_gpus": alone if rl.mode == "apart" else scenario.cluster.gpus,
        "generation_tp": rl.generation.tp,
        "generation_ep": rl.generation.ep,
        "generation_dp_attention": rl.generation.dp_attention,
        "generation_max_sequences": rl.generation.max_sequences,
        "generation_layout": rl.generation.described,
        "reason": tried.reason or None,
    }
    if step is None:
        names = ("layout", "step_time_s", "update_s", "trainer_waits", "generator_waits")
        return row | dict.fromkeys((*names, "tokens_per_s_per_gpu", "verdict", "usd"))
    usd = usd_per_1000_updates(scenario, step)
    return row | {
        "layout": step.trainer.described,
        "step_time_s": step.step_time_s,
        "update_s": update_s(step),
        "trainer_waits": step.waiting["trainer"],
        "generator_waits": step.waiting["generator"],
        "tokens_per_s_per_gpu": step.tokens_per_s_per_gpu,
        "verdict": step.verdict,
        "usd": None if usd is None else usd / rl_goodput(scenario, step),
    }


def _plain(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if not isinstance(value, (dict, list))}


LANES = ("generator", "trainer")

WORDS = {
    "generation": "generation",
    "reward": "reward",
    "log_probabilities": "log-probabilities",
    "training": "training",
    "refit": "refit",
    "phase_change": "change of sides",
    "driver": "driver",
    "waiting": "waiting",
}
"""What each phase is called."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A phase on a lane."""

    lane: str
    phase: str
    """A key of ``RLStep.parts_s``, or ``waiting``."""
    batch: int
    start_s: float
    end_s: float


_GENERATOR = ("generation", "reward")
_TRAINER = ("driver", "log_probabilities", "training", "refit", "phase_change")


def timeline(step: RLStep) -> list[Span]:
    """Phases of two batches, waiting put between, from the moment at which the first is written.

    On policy a batch is written, then learned from. With staleness the generator writes the next
    batch while the trainer learns from the one before. Mixed, the trainer's devices write as well.
    """
    whole, parts = step.step_time_s, step.parts_s
    spans = []
    for batch in (0, 1):
        begin = batch * whole
        if step.lent_s > 0.0:
            spans += _phases({"generation": step.lent_s}, ("generation",), "trainer", batch, begin)
        after = begin + (step.lent_s if step.rl.staleness else step.generator_side_s)
        spans += _phases(parts, _GENERATOR, "generator", batch + (step.rl.staleness > 0), begin)
        spans += _phases(parts, _TRAINER, "trainer", batch, after)
    return sorted([*spans, *_gaps(spans, 2.0 * whole)], key=lambda span: (span.lane, span.start_s))


def _phases(
    parts: dict[str, float], phases: tuple[str, ...], lane: str, batch: int, start_s: float
) -> list[Span]:
    spans = []
    for phase in phases:
        if parts[phase] > 0.0:
            end_s = start_s + parts[phase]
            spans.append(Span(lane=lane, phase=phase, batch=batch, start_s=start_s, end_s=end_s))
            start_s = end_s
    return spans


def _gaps(spans: list[Span], end_s: float) -> list[Span]:
    """Where a lane has nothing to do."""
    gaps = []
    for lane in LANES:
        at = 0.0
        for span in [span for span in spans if span.lane == lane] + [None]:
            until = end_s if span is None else span.start_s
            if until > at + 1e-9 * end_s:
                gaps.append(Span(lane=lane, phase="waiting", batch=-1, start_s=at, end_s=until))
            at = until if span is None else span.end_s
    return gaps
