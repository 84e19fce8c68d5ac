"""A step of reinforcement learning put together: phases, who waits for whom, memory of both sides.

On policy the phases follow one another. With staleness trainer and generator work at once: a step
is as long as the slower side, and what the other one waits is what it has left; mixed, devices that
train write answers in that time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.estimate import VERDICTS, verdict_word
from simulator.errors import InfeasibleError, InputError
from simulator.hardware.cluster import Cluster
from simulator.records import dataclass
from simulator.reinforcement.batching import (
    Work,
    Written,
    closed_form_s,
    deal,
    longest_context,
    play,
)
from simulator.reinforcement.decode import Replica
from simulator.reinforcement.refit import Refit, refit
from simulator.reinforcement.trainer import (
    Trainer,
    asleep_bytes,
    best_trainer,
    train,
    training_bytes,
    with_gpus,
)
from simulator.rollouts.lengths import answer_lengths, sequence_lengths
from simulator.rollouts.profiles import Framework, load_framework
from simulator.rollouts.rl_section import RL, generating_gpus, split_gpus
from simulator.scenario import Scenario
from simulator.units import show_bytes
from simulator.workload import presets

_OVERLAPPED = 8
"""Batches of which the mean is taken where answers of several are written at once."""


@dataclass(frozen=True, kw_only=True)
class Generated:
    """What the generator takes for one batch."""

    replica: Replica
    replicas: int
    gpus: int
    seconds: float
    """Until the slowest replica is done; of a queue of batches, from one to the next."""
    mean_s: float
    """Mean over replicas."""
    memory_share: float
    cache_tokens: float
    """Of a replica."""
    written: tuple[Written, ...]
    """Played replicas, where they were played."""
    answers: Floats
    iterations_s: float
    """Time of an iteration with the mean number of sequences, at their mean context."""

    @property
    def preempted(self) -> int:
        """Times that a sequence was thrown out of a full cache."""
        return sum(replica.preempted for replica in self.written)

    @property
    def waited(self) -> int:
        """Answers that found no place at once."""
        return sum(replica.waited for replica in self.written)


@dataclass(frozen=True, kw_only=True)
class Side:
    """Memory of one side at its fullest, bytes of a device."""

    kinds: Mapping[str, float]
    usable_bytes: float
    spread: float = 0.0

    @property
    def total_bytes(self) -> float:
        """All kinds together."""
        return sum(self.kinds.values())

    @property
    def largest(self) -> list[tuple[str, float]]:
        """Kinds that take any, the largest first."""
        kinds = (item for item in self.kinds.items() if item[1] > 0.0)
        return sorted(kinds, key=lambda item: -item[1])

    @property
    def verdict(self) -> str:
        """FITS, TIGHT or OOM."""
        return verdict_word(self.total_bytes, self.spread, self.usable_bytes)

    def document(self) -> dict[str, Any]:
        """As JSON says it."""
        return {
            **self.kinds, "total_bytes": self.total_bytes, "usable_bytes": self.usable_bytes,
            "verdict": self.verdict,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RLStep:
    """A step: from one version of the weights to the next batch's."""

    rl: RL
    framework: Framework
    gpus: dict[str, int]
    """Of training and of generation; where colocated the same ones, where mixed some of them."""
    generated: Generated
    trainer: Trainer
    moved: Refit
    reward_s: float
    judge: Replica | None
    """The model that judges answers."""
    memory: dict[str, Side]
    """By phase."""

    @property
    def alone_gpus(self) -> int:
        """Accelerators that only generate."""
        return self.all_gpus - self.gpus["training"] - self.rl.scoring_gpus

    @property
    def generation_s(self) -> float:
        """Writing one batch; what devices that are lent write, the generator need not."""
        if not self.rl.lends:
            return self.generated.seconds
        return self.generated.seconds - self.lent_s * self.gpus["training"] / self.alone_gpus

    @property
    def lent_s(self) -> float:
        """mixed: seconds of a step in which devices that train write answers too.

        On policy as long as all write. With staleness while they would wait. A batch takes devices
        that only generate A seconds; the others, r times as many, are busy B, their change of sides
        and a hand-over of weights to themselves included. They are lent A less B in full, and each
        second of it makes the step shorter by r: ``(A - B) / (1 + r)``, none where A is less.
        """
        if self.rl.mode != "mixed" or self.alone_gpus == 0:
            return 0.0
        if not self.rl.lends:
            return self.generated.seconds
        ratio = self.gpus["training"] / self.alone_gpus
        busy_s = self._learning_s + self._lending_s
        alone_s = self.generated.seconds + self.reward_s + self._stopped_s
        return max(alone_s - busy_s, 0.0) / (1.0 + ratio)

    @property
    def driver_s(self) -> float:
        """The framework's own work."""
        return float(self.framework.step_s)

    @property
    def switch_s(self) -> float:
        """Devices that change sides: in every step, or, with staleness, where they are lent."""
        if self.rl.lends:
            return self._lending_s if self.lent_s > 0.0 else 0.0
        return self.moved.switch_s

    @property
    def _lending_s(self) -> float:
        """What it takes to lend devices: they change sides, with weights of their own."""
        return self.moved.switch_s + self.moved.same_devices_s

    @property
    def _learning_s(self) -> float:
        """What the trainer does for a batch, however devices change sides."""
        trainer = self.trainer
        return trainer.score_s + trainer.training_s + self.driver_s + self.moved.seconds

    @property
    def _stopped_s(self) -> float:
        """What new weights keep an engine from writing."""
        stops = self.rl.staleness and not self.rl.in_flight_updates
        return self.moved.seconds if stops else 0.0

    @property
    def trainer_side_s(self) -> float:
        """What the trainer does for a batch."""
        return self._learning_s + self.switch_s

    @property
    def generator_side_s(self) -> float:
        """What the generator does for a batch, judging included."""
        return self.generation_s + self.reward_s + self._stopped_s

    @property
    def step_time_s(self) -> float:
        """Seconds from one step to the next."""
        if self.rl.staleness == 0:
            return self.trainer_side_s + self.generator_side_s
        return max(self.trainer_side_s, self.generator_side_s)

    @property
    def waiting(self) -> dict[str, float]:
        """Share of a step in which each side has nothing to do; colocated there is one side.

        Mixed, the trainer's devices are those that change sides, the generator's the others.
        """
        if self.alone_gpus == 0:
            return {"trainer": 0.0, "generator": 0.0}
        whole = self.step_time_s
        return {
            "trainer": max(1.0 - (self.trainer_side_s + self.lent_s) / whole, 0.0),
            "generator": 1.0 - self.generator_side_s / whole,
        }

    @property
    def staleness(self) -> dict[str, float]:
        """Updates between the weights that began an answer and those that learn from it.

        A generator that is faster runs ahead until the bound holds it; a slower one delivers each
        batch as it is done, which is then as old as its writing took.
        """
        bound = self.rl.staleness
        if bound == 0:
            return {"p50": 0.0, "p90": 0.0}
        if self.generator_side_s < self.trainer_side_s:
            return {"p50": float(bound), "p90": float(bound)}
        ages = self._answer_seconds() / self.step_time_s
        ages = np.minimum(np.ceil(ages), bound)
        p50, p90 = np.quantile(ages, [0.5, 0.9], method="higher")
        return {"p50": float(p50), "p90": float(p90)}

    def _answer_seconds(self) -> Floats:
        """Seconds that each answer runs."""
        spans = [replica.ends_s - replica.starts_s for replica in self.generated.written]
        return np.concatenate(spans) if spans else np.array([self.generation_s])

    @property
    def answer_tokens(self) -> float:
        """Tokens that a step learns from, prompts included."""
        return float(sequence_lengths(self.rl, self.generated.answers).mean() * self.rl.answers)

    @property
    def all_gpus(self) -> int:
        """Accelerators of the step."""
        both = self.rl.mode == "apart"
        others = self.gpus["training"] if both else 0
        return self.gpus["generation"] + others + self.rl.scoring_gpus

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens of prompts and answers by all accelerators."""
        return self.answer_tokens / self.step_time_s / self.all_gpus

    @property
    def verdict(self) -> str:
        """The worst of both sides."""
        return max((side.verdict for side in self.memory.values()), key=VERDICTS.index)

    @property
    def parts_s(self) -> dict[str, float]:
        """Seconds by phase, as they follow one another on their side."""
        return {
            "generation": self.generation_s,
            "reward": self.reward_s,
            "log_probabilities": self.trainer.score_s,
            "training": self.trainer.training_s,
            "refit": self.moved.seconds,
            "phase_change": self.switch_s,
            "driver": self.driver_s,
        }


def rl_step(scenario: Scenario, *, playing: bool = True) -> RLStep:
    """Price the step of a scenario with [rl], as its layouts are given.

    A trainer without any field of [layout] takes the fastest layout that fits.

    Parameters
    ----------
    scenario : Scenario
    playing : bool
        Play the replicas' events; without, the closed form where it holds (``replica_s``).

    Raises
    ------
    InputError
        If the trainer's layout cannot run, or the memory share that is given cannot hold weights
        and the longest answer.
    InfeasibleError
        If no layout of the trainer fits, or weights and the longest answer overfill the share that
        the framework leaves the engine.
    """
    rl = scenario.required(RL)
    framework = load_framework(rl.framework, where=scenario.where)
    training, _ = split_gpus(rl, scenario.cluster.gpus)
    longest = scenario.workload.recipe.sequence_length - rl.prompt_tokens
    answers = answer_lengths(rl, longest, where=scenario.where)
    sequences = sequence_lengths(rl, answers)
    cluster = with_gpus(scenario.cluster, training)
    if scenario.pinned:
        trainer = train(scenario, rl, sequences, cluster, framework, scenario.pinned)
    else:
        trainer = best_trainer(scenario, rl, sequences, cluster, framework)
    return joined(scenario, rl, trainer, generate(scenario, rl, answers, playing))


def joined(scenario: Scenario, rl: RL, trainer: Trainer, generated: Generated) -> RLStep:
    """Put both sides together."""
    framework = load_framework(rl.framework, where=scenario.where)
    training, alone = split_gpus(rl, scenario.cluster.gpus)
    moved = refit(
        scenario.workload.architecture,
        framework,
        generated.replica.engine,
        scenario.cluster,
        trainer.estimate,
        changes_sides=rl.mode != "apart",
        offloads=rl.offload_states,
        weight_bytes=1.0 if rl.generation.precision == "fp8" else 2.0,
        storage=scenario.run.storage if rl.refit == "storage" else None,
        alone_gpus=alone,
        lends=rl.lends,
    )
    judge = None
    if rl.reward == "model":
        model = presets.load(rl.reward_model or "", where=scenario.where, field="rl.reward_model")
        judge = Replica.of(rl, model, generated.replica.cluster)
    step = RLStep(
        rl=rl,
        framework=framework,
        gpus={
            "training": training,
            "generation": alone if rl.mode == "apart" else scenario.cluster.gpus,
        },
        generated=generated,
        trainer=trainer,
        moved=moved,
        reward_s=_reward_s(rl, generated, judge),
        judge=judge,
        memory={},
    )
    return replace(step, memory=_memory(step, scenario.cluster))


def generate(scenario: Scenario, rl: RL, answers: Floats, playing: bool = True) -> Generated:
    """Price one batch of answers on the accelerators that write it.

    With staleness those that only generate: others that are lent are put to it (``lent_s``).
    """
    gpus = generating_gpus(rl, scenario.cluster.gpus)
    cluster = with_gpus(scenario.cluster, gpus)
    replica = Replica.of(rl, scenario.workload.architecture, cluster)
    share = memory_share(rl)
    room = replica.cache_tokens(share)
    replicas = max(gpus // rl.generation.tp, 1)
    works = _works(rl, answers, replicas)
    _check_room(scenario, replica, room, longest_context(works), share)
    sharing = rl.generation.prefix_sharing
    if playing:
        written = tuple(play(replica, work, room, sharing=sharing) for work in works)
        replica_seconds = np.array([replica_work.seconds for replica_work in written])
    else:
        written = ()
        replica_seconds = np.array(
            [replica_s(replica, work, room, sharing=sharing) for work in works]
        )
    batches = _OVERLAPPED if rl.partial_rollouts else max(rl.staleness, 1)
    seconds = float(replica_seconds.max()) / batches
    running = min(replica.most_sequences, answers.size / replicas, room / max(answers.mean(), 1.0))
    mean = float(replica.iteration_s(running, running * (rl.prompt_tokens + answers.mean() / 2.0)))
    return Generated(
        replica=replica,
        replicas=replicas,
        gpus=gpus,
        seconds=seconds,
        mean_s=float(replica_seconds.mean()) / batches,
        memory_share=share,
        cache_tokens=room,
        written=written,
        answers=answers,
        iterations_s=mean,
    )


def replica_s(replica: Replica, work: Work, cache_tokens: float, *, sharing: bool) -> float:
    """Time of a replica's work: the closed form where its caches never fill, else its events.

    Which sequence is thrown out of a full cache, and what that costs, hangs on the order of events.
    """
    slots = min(replica.most_sequences, len(work.answers))
    largest = np.sort(work.answers)[::-1][:slots]
    peak = float(largest.sum()) + slots * (work.prompt + replica.idle_tokens)
    if work.turns == 1 and peak < cache_tokens:
        return closed_form_s(replica, work, cache_tokens, sharing=sharing)
    return play(replica, work, cache_tokens, sharing=sharing).seconds


def memory_share(rl: RL) -> float:
    """Share of the memory that the engine may fill."""
    framework = load_framework(rl.framework)
    apart, shared = framework.apart_memory_share, framework.colocated_memory_share
    return float(rl.generation.memory_share or (apart if rl.mode == "apart" else shared))


def _works(rl: RL, answers: Floats, replicas: int) -> list[Work]:
    """What each replica is asked: one batch, or as many as are written at once."""
    batches = _OVERLAPPED if rl.partial_rollouts else max(rl.staleness, 1)
    many = np.concatenate([answers] * batches) if batches > 1 else answers
    parts = deal(many, replicas, one_by_one=rl.asks_one_by_one)
    return [
        Work(
            answers=part,
            prompt=float(rl.prompt_tokens),
            group=1 if rl.asks_one_by_one and replicas > 1 else rl.samples,
            turns=rl.turns,
            tool_s=rl.tool_s,
            tool_tokens=rl.tool_tokens,
        )
        for part in parts
    ]


def _check_room(
    scenario: Scenario, replica: Replica, room: float, longest: float, share: float
) -> None:
    """Refuse caches that cannot hold the longest answer with its prompt."""
    if room >= longest:
        return
    weights = replica.weight_bytes + replica.reserve_bytes
    usable = float(replica.cluster.accelerator.memory.usable_bytes)
    need = weights + longest * replica.token_bytes / replica.section.dp_attention
    stated = replica.section.memory_share is not None  # a share that is given is wrong input
    raise (InputError if stated else InfeasibleError)(
        f"{scenario.where}: rl.generation.memory_share: weights of tp = {replica.section.tp} and"
        f" workspace take {show_bytes(weights)} of {show_bytes(usable * share)}"
        f" ({share:.0%} of {show_bytes(usable)}); the longest answer needs {show_bytes(need)}:"
        " a larger share, tp or an 8-bit engine would do"
    )


def _reward_s(rl: RL, generated: Generated, judge: Replica | None) -> float:
    """Judging a batch once it is written."""
    if judge is not None:
        lengths = sequence_lengths(rl, generated.answers)
        replicas = generated.replicas
        if rl.placed_models:
            replicas = max(rl.scoring_gpus // rl.placed_models // rl.generation.tp, 1)
        tokens = float(lengths.sum()) / replicas
        return float(judge.prefill_s(tokens, float(lengths.mean()) / 2.0))
    return rl.written * rl.reward_s / rl.reward_workers


def _memory(step: RLStep, cluster: Cluster) -> dict[str, Side]:
    """Memory of a device by phase, also while a model scores or judges, on its own devices or not.

    Colocated or mixed, the fullest device is one that changes sides: optimizer states and gradients
    wait on the host while weights move, the trainer's weights too while answers are written; of a
    sleeping engine its context stays.
    """
    estimate, replica = step.trainer.estimate, step.generated.replica
    usable = float(cluster.accelerator.memory.usable_bytes)
    training = training_bytes(step.trainer, step.rl)
    generation = {
        "engine weights": replica.weight_bytes,
        "cache": replica.cache_bytes(step.generated.memory_share),
        "engine workspace": replica.reserve_bytes,
    }
    phases = {"training": training, "generation": generation}
    shared = step.rl.mode != "apart"
    stays = training["context"] + training["communicators"]
    states = sum(training[name] for name in ("weights", "gradients", "optimizer"))
    trainer = {} if shared else {"trainer's states": states}
    if shared:
        trainer = {"trainer asleep": stays}
        if not step.rl.offload_states:
            trainer["trainer's states"] = states
        generation |= trainer
        phases["refit"] = {
            "weights": training["weights"],
            "trainer asleep": stays,
            "engine weights": replica.weight_bytes,
            "engine workspace": replica.reserve_bytes,
        }
    asleep = asleep_bytes(step.rl)
    for name, kinds in step.trainer.scoring_bytes.items():  # optimizer states wait on the host
        phases[name] = {**kinds, **(asleep if name == "scoring" else trainer)}
    phases |= {name: dict(kinds) for name, kinds in step.trainer.placed_bytes.items()}
    if step.judge is not None:
        held = {"reward model": step.judge.weight_bytes + step.judge.reserve_bytes}
        if step.rl.scoring_gpus:
            phases["reward"] = held
        elif shared and not step.rl.lends:
            phases["reward"] = held | asleep | trainer
        else:  # the engine does not sleep
            generation |= held
    spread = {"training": float(estimate.memory_spread[0])}
    return {
        name: Side(kinds=kinds, usable_bytes=usable, spread=spread.get(name, 0.0))
        for name, kinds in phases.items()
    }
