"""How to split accelerators between trainer and generator, and how to cut both sides.

Every split, generator's tp, ep and mode that the staleness allows is priced; trainers take the
fastest layout that fits on so many accelerators, found once for each number. The best are tried
with attention in groups and with more sequences at once. What learns stays as asked: prompts,
samples, answers of an update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise, product
from typing import Literal

from simulator.arrays import Floats
from simulator.errors import InfeasibleError, InputError
from simulator.layout.layouts import divisors
from simulator.records import dataclass
from simulator.reinforcement.rl_step import RLStep, generate, joined
from simulator.reinforcement.trainer import Trainer, best_trainer, over_bytes, train, with_gpus
from simulator.rollouts.lengths import answer_lengths, sequence_lengths
from simulator.rollouts.profiles import load_framework
from simulator.rollouts.rl_section import RL, Mode, split_gpus
from simulator.scenario import Scenario

By = Literal["time", "usd", "throughput"]

_EIGHTHS = (1, 2, 3, 4, 5, 6, 7)
_MOST_TP = 64
_REFINED = 3
"""Splits of each mode, the fastest ones, that are tried with other groups and limits."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A split that was priced."""

    rl: RL
    step: RLStep | None
    reason: str = ""
    """Why it cannot be; blank where it can."""

    @property
    def fits(self) -> bool:
        """Whether both sides fit."""
        return self.step is not None and self.step.verdict != "OOM"


def update_s(step: RLStep) -> float:
    """Seconds of an update."""
    return step.step_time_s / step.trainer.updates


def score(step: RLStep, by: By) -> float:
    """What is to be small: seconds or accelerator-seconds of an update, or of a token."""
    if by == "time":
        return update_s(step)
    if by == "usd":
        return update_s(step) * step.all_gpus
    return 1.0 / step.tokens_per_s_per_gpu


def try_splits(
    scenario: Scenario, *, progress: Callable[[int, int], None] | None = None
) -> list[Tried]:
    """Price every split of a scenario with [rl], in the order in which they are listed.

    Raises
    ------
    InputError
        If there is no section [rl].
    """
    rl = scenario.required(RL)
    longest = scenario.workload.recipe.sequence_length - rl.prompt_tokens
    answers = answer_lengths(rl, longest, where=scenario.where)
    trainers: dict[tuple[bool, int], Trainer | str] = {}

    def priced(asked: RL) -> Tried:
        try:
            generated = generate(scenario, asked, answers, playing=False)
        except (InfeasibleError, InputError) as error:  # weights fill the engine: search no trainer
            return Tried(rl=asked, step=None, reason=_reason(error, scenario))
        training, _ = split_gpus(asked, scenario.cluster.gpus)
        key = (asked.mode == "apart", training)
        if key not in trainers:
            trainers[key] = _trainer(scenario, asked, answers, training)
        trainer = trainers[key]
        if isinstance(trainer, str):
            return Tried(rl=asked, step=None, reason=trainer)
        return Tried(rl=asked, step=joined(scenario, asked, trainer, generated))

    tried: list[Tried] = []
    listed = list(_candidates(scenario, rl))
    for asked in listed:
        if progress is not None:
            progress(len(tried), len(listed))
        tried.append(priced(asked))
    tried += [priced(asked) for asked in _refined(scenario, tried)]
    if progress is not None:
        progress(len(listed), len(listed))
    return tried


def _refined(scenario: Scenario, tried: list[Tried]) -> Iterator[RL]:
    """The fastest splits of each mode with attention in groups and more sequences at once.

    Engines have groups for models of experts (vLLM's data-parallel attention, SGLang's
    --enable-dp-attention, TensorRT-LLM's enable_attention_dp). More sequences than the engine's own
    limit where it binds: a replica has more answers, and room for them in its cache. What was
    asked for stays.
    """
    for mode in sorted({split.rl.mode for split in tried}):
        fitting = [split for split in tried if split.fits and split.rl.mode == mode]
        for split in sorted(fitting, key=lambda split: update_s(_step(split)))[:_REFINED]:
            made, engine = _step(split).generated, split.rl.generation
            limit, most = made.replica.most_sequences, made.replica.engine.listed_sequences
            mean = float(sequence_lengths(split.rl, made.answers).mean())
            room = min(made.answers.size / made.replicas, made.cache_tokens / mean)
            groups, sequences = [engine.dp_attention], [engine.max_sequences]
            if scenario.workload.architecture.moes and 1 == engine.dp_attention < engine.tp:
                groups.append(engine.tp)
            if engine.max_sequences is None and limit < min(most, room):
                sequences.append(most)
            for dp_attention, at_once in list(product(groups, sequences))[1:]:
                cut = replace(engine, dp_attention=dp_attention, max_sequences=at_once)
                yield replace(split.rl, generation=cut)


def _candidates(scenario: Scenario, rl: RL) -> Iterator[RL]:
    """Sections with each split.

    Mixed ones on policy, or with staleness where answers go on elsewhere, if the framework can.
    """
    gpus, server = scenario.cluster.gpus, scenario.cluster.node.accelerators
    others = gpus - rl.scoring_gpus
    able = rl.policy_age in load_framework(rl.framework, where=scenario.where).mixed
    modes: list[Mode] = ["apart"] if rl.staleness else []
    if rl.mode == "mixed" or (
        able and not rl.scoring_gpus and (rl.partial_rollouts or not rl.staleness)
    ):
        modes.append("mixed")
    heads = min(attention.heads for attention in scenario.workload.architecture.attentions)
    for tp in divisors(heads):
        if tp > min(_MOST_TP, gpus) or (tp > server and tp % server):
            continue
        if gpus % tp == 0:
            for ep in _expert_ranks(scenario, rl, tp):
                yield _section(rl, "colocated", None, tp, ep)
        parts = (others * eighth // 8 for eighth in _EIGHTHS)
        for generating in sorted({x // server * server if x > server else x for x in parts}):
            enough = 0 < generating < others and generating % tp == 0
            if enough and _whole(others - generating, server):
                for mode in modes:
                    if mode == "mixed" and (others - generating) % tp:
                        continue
                    for ep in _expert_ranks(scenario, rl, tp):
                        yield _section(rl, mode, generating, tp, ep)


def _expert_ranks(scenario: Scenario, rl: RL, tp: int) -> list[int]:
    """Expert-parallel ranks that are tried with a tp: experts cut over all of it, or whole."""
    counts = [moe.experts for moe in scenario.workload.architecture.moes]
    if not counts or tp == 1:
        return [1]
    if rl.generation.ep > 1:  # asked for: experts stay whole
        return [tp] if all(count % tp == 0 for count in counts) else []
    return [1, *([tp] if all(count % tp == 0 for count in counts) else [])]


def _whole(gpus: int, server: int) -> bool:
    """Whether so many accelerators are a part of a server or whole ones."""
    return gpus <= server or gpus % server == 0


def _section(rl: RL, mode: Mode, generating: int | None, tp: int, ep: int) -> RL:
    """The section with another split: colocated without accelerators of the generator's own."""
    engine = replace(
        rl.generation,
        tp=tp,
        ep=ep,
        gpus=generating,
        dp_attention=min(rl.generation.dp_attention, tp),
    )
    if mode == "colocated":
        return replace(
            rl, mode=mode, staleness=0, partial_rollouts=False, scoring_gpus=0, generation=engine
        )
    return replace(rl, mode=mode, generation=engine)


def _trainer(scenario: Scenario, rl: RL, answers: Floats, gpus: int) -> Trainer | str:
    """The trainer on so many accelerators: as [layout] says, else the fastest that fits."""
    sequences, cluster = sequence_lengths(rl, answers), with_gpus(scenario.cluster, gpus)
    framework = load_framework(rl.framework, where=scenario.where)
    pinned = None
    if scenario.pinned:
        with suppress(InputError):  # made for another number of accelerators
            pinned = train(scenario, rl, sequences, cluster, framework, scenario.pinned)
    if pinned is not None and over_bytes(pinned, rl)[0] <= 0.0:
        return pinned
    try:
        return best_trainer(scenario, rl, sequences, cluster, framework)
    except InfeasibleError as error:
        return pinned or _reason(error, scenario)


def _reason(error: InfeasibleError | InputError, scenario: Scenario) -> str:
    return str(error).removeprefix(f"{scenario.where}: ")


def best_of(tried: list[Tried], by: By) -> Tried | None:
    """The best split that fits, a tight one only where no other does; None where none does."""
    fitting = [split for split in tried if split.fits]
    safe = [split for split in fitting if _step(split).verdict == "FITS"]
    return min(safe or fitting, key=lambda split: score(_step(split), by), default=None)


def _step(tried: Tried) -> RLStep:
    assert tried.step is not None
    return tried.step


def by_generating(tried: list[Tried], by: By) -> list[Tried]:
    """The best of each number of accelerators that only generate, fewest first."""
    best: dict[int, Tried] = {}
    for split in tried:
        if split.fits and split.rl.staleness > 0:
            gpus = split.rl.generation.gpus or 0
            if gpus not in best or score(_step(split), by) < score(_step(best[gpus]), by):
                best[gpus] = split
    return [best[gpus] for gpus in sorted(best)]


def flips(tried: list[Tried], by: By) -> list[tuple[int, int]]:
    """Numbers of generating accelerators between which the side that binds changes."""
    line = by_generating(tried, by)
    return [
        (a.rl.generation.gpus or 0, b.rl.generation.gpus or 0)
        for a, b in pairwise(line)
        if _generator_binds(a) != _generator_binds(b)
    ]


def _generator_binds(tried: Tried) -> bool:
    step = _step(tried)
    return step.generator_side_s > step.trainer_side_s
