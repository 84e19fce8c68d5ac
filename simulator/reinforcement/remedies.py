"""What would help a step of reinforcement learning: changes that were tried, and what they gain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from math import floor, gcd
from typing import Any

from simulator.errors import InfeasibleError, InputError
from simulator.records import dataclass
from simulator.reinforcement.rl_step import RLStep, generate, joined, rl_step
from simulator.rollouts.profiles import load_engine
from simulator.rollouts.rl_section import RL, Generation, split_gpus
from simulator.scenario import Scenario

_GAIN = 0.02
"""Share of a step that a change must save to be told."""
_TENTH = 0.1
_MOST_SHARE = 0.92


@dataclass(frozen=True, kw_only=True, slots=True)
class Remedy:
    """A change of a field, and the step with it."""

    field: str
    value: Any
    why: str
    step_time_s: float
    verdict: str

    @property
    def setting(self) -> str:
        """The field and its value as a scenario has them."""
        return f"{self.field} = {json.dumps(self.value)}"


def remedies(scenario: Scenario, step: RLStep | None) -> list[Remedy]:
    """Try changes one at a time: those that make it fit, or faster by a fiftieth; best first.

    Parameters
    ----------
    scenario : Scenario
    step : RLStep or None
        The step as it is; None where it cannot be.
    """
    rl = scenario.required(RL)
    fits = step is not None and step.verdict != "OOM"
    helping = []
    for field, value, why, changed in _changes(scenario, rl, step):
        try:
            new = _with(changed, step, same_trainer=not field.startswith("layout"))
        except (InputError, InfeasibleError):
            continue
        if new.verdict == "OOM":
            continue
        if not fits or (step and new.step_time_s < (1.0 - _GAIN) * step.step_time_s):
            helping.append(
                Remedy(field=field, value=value, why=why, step_time_s=new.step_time_s,
                       verdict=new.verdict)
            )  # fmt: skip
    return sorted(helping, key=lambda remedy: remedy.step_time_s)


def _with(scenario: Scenario, step: RLStep | None, *, same_trainer: bool) -> RLStep:
    """The step of a changed scenario; the trainer stays where only the engine changes."""
    if step is None or not same_trainer:
        return rl_step(scenario, playing=False)
    rl = scenario.required(RL)
    training, alone = split_gpus(rl, scenario.cluster.gpus)
    if alone % rl.generation.tp or (rl.mode != "apart" and training % rl.generation.tp):
        raise InputError(f"{scenario.where}: rl.generation.tp: must divide those that generate")
    answers = step.generated.answers
    return joined(scenario, rl, step.trainer, generate(scenario, rl, answers, playing=False))


def _changes(
    scenario: Scenario, rl: RL, step: RLStep | None
) -> Iterator[tuple[str, Any, str, Scenario]]:
    """Fields with another value, and why that might help."""
    engine = load_engine(rl.generation.engine)
    limit = rl.generation.max_sequences
    if limit is None and rl.asks_one_by_one:
        why = (
            f"{engine.name} runs {engine.streamed_sequences} sequences at once unless told, where"
            f" requests come one by one; {engine.listed_sequences:,} in a list"
        )
        more = engine.listed_sequences
        if more > engine.streamed_sequences:
            yield _engine(scenario, rl, "max_sequences", more, why)
    if not rl.asks_one_by_one:
        why = (
            "requests one by one: dealt evenly, text made while the next iteration runs; with"
            f" max_sequences = {limit or engine.listed_sequences:,}"
        )
        section = replace(
            rl.generation, asynchronous=True, max_sequences=limit or engine.listed_sequences
        )
        changed = with_rl(scenario, replace(rl, generation=section))
        yield "rl.generation.asynchronous", True, why, changed
    share = step.generated.memory_share if step else (rl.generation.memory_share or 0.5)
    smaller = share - _TENTH
    if step is not None and (over := _over_share(step)) > 0.0:
        smaller = floor(100.0 * (share - over)) / 100.0  # the largest that leaves the others room
    for value in (round(share + _TENTH, 2), round(smaller, 2)):
        if 0.1 <= value <= max(_MOST_SHARE, smaller):
            why = "room for more caches" if value > share else "room for the trainer beside it"
            yield _engine(scenario, rl, "memory_share", value, why)
    for tp in (rl.generation.tp * 2, rl.generation.tp // 2):
        if tp >= 1:
            why = "weights on more devices" if tp > rl.generation.tp else "more replicas"
            changed = with_rl(scenario, replace(rl, generation=_cut(rl, tp)))
            yield "rl.generation.tp", tp, why, changed
    eight_bit = "fp8" in scenario.cluster.accelerator.matrix_flop_per_s
    if rl.generation.precision == "bf16" and eight_bit:
        yield _engine(scenario, rl, "precision", "fp8", "half the weights to read")
    if scenario.pinned.get("recompute", "none") != "full" and (
        step is None or step.verdict == "OOM"
    ):
        pinned = {**scenario.pinned, "recompute": "full"}
        why = "activations are computed again"
        yield "layout.recompute", "full", why, replace(scenario, pinned=pinned)


def _over_share(step: RLStep) -> float:
    """Share of the memory by which a device that generates is too full; negative: it is not."""
    side = step.memory["generation"]
    return side.total_bytes / side.usable_bytes - 1.0


def _cut(rl: RL, tp: int) -> Generation:
    """The engine with another tp; groups within it follow where they were all of it."""
    engine = rl.generation

    def within(groups: int) -> int:
        return tp if groups == engine.tp > 1 else gcd(groups, tp)

    return replace(engine, tp=tp, ep=within(engine.ep), dp_attention=within(engine.dp_attention))


def _engine(
    scenario: Scenario, rl: RL, name: str, value: Any, why: str
) -> tuple[str, Any, str, Scenario]:
    changed = replace(rl, generation=replace(rl.generation, **{name: value}))
    return f"rl.generation.{name}", value, why, with_rl(scenario, changed)


def with_rl(scenario: Scenario, rl: RL) -> Scenario:
    """The scenario with another section [rl]."""
    return replace(scenario, sections={**scenario.sections, "rl": rl})
