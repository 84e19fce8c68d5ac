"""The trainer's part of a step: scoring a batch and learning from it, by the model of a step.

Sequences are packed into bins as long as [training] allows; a bin is what the model of a step takes
for a sequence, with the lengths inside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from math import ceil, lcm
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.step import Estimate, evaluate
from simulator.errors import InfeasibleError, InputError, problem
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import Layouts
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.planner.changes import LEAST_STEP, SEARCHES, with_less_memory
from simulator.planner.prediction import forward_pass_s, frozen, only_forward
from simulator.records import dataclass
from simulator.rollouts.lengths import packed_bins
from simulator.rollouts.profiles import Framework, load_engine
from simulator.rollouts.rl_section import RL, split_gpus
from simulator.scenario import Scenario
from simulator.search.defaults import complete
from simulator.search.fastest import fastest
from simulator.search.refusal import contradictions, limits, refusal
from simulator.software.profile import Software
from simulator.units import P90
from simulator.workload import presets
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Workload

_QUANTILES = 10
_GRAIN = 64
"""Tokens of which a bin's length is a multiple, for each rank that cuts it."""


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """What a layout of the trainer takes for one batch of answers."""

    estimate: Estimate
    """One row: an update."""
    updates: int
    """Updates that a batch gives."""
    bins: int
    """Packed sequences of an update."""
    fill: float
    """Share of a bin that tokens take."""
    update_s: float
    pass_s: float
    """One scoring of the whole batch."""
    training_s: float
    """All updates, the critic's too."""
    score_s: float
    """All scorings."""
    scoring_bytes: Mapping[str, Mapping[str, float]]
    """Memory of the trainer's devices while they only score: "scoring" with weights gathered
    whole, "teacher"."""
    placed_bytes: Mapping[str, Mapping[str, float]]
    """The same on accelerators that only score, a place each: "reference", "critic"."""

    @property
    def layout(self) -> dict[str, Any]:
        """The layout, as fields of [layout]."""
        row = self.estimate.layouts.row(0)
        return {name: row[name] for name in _FIELDS if name in row}

    @property
    def described(self) -> str:
        """The layout in a few words."""
        return self.estimate.layouts.describe(0)

    @property
    def micro_batches(self) -> float:
        """Micro-batches of a data-parallel rank in an update."""
        layouts = self.estimate.layouts
        return self.bins / float(layouts.dp[0] * layouts.micro_batch[0])


def with_gpus(cluster: Cluster, gpus: int) -> Cluster:
    """The same machines, so many of their accelerators."""
    return replace(cluster, groups=(replace(cluster.groups[0], gpus=gpus),), edges=())


def packed_workload(
    workload: Workload, rl: RL, sequences: Floats, row: dict[str, Any]
) -> tuple[Workload, int, float]:
    """The workload of an update whose sequences are packed, its bins, and how full they are.

    A pipeline's stages exchange tensors of one size, so that with it every bin is padded; alone,
    a bin keeps its own length.
    """
    recipe = workload.recipe
    size = float(recipe.sequence_length)
    lengths = np.minimum(sequences.ravel(), size)
    share = recipe.global_batch / lengths.size
    tokens = float(lengths.sum()) * share
    whole = packed_bins(lengths, size) * share
    shards = max(int(row["dp"]) * int(row["micro_batch"]), 1)
    bins = max(int(np.ceil(max(whole, 1.0) / shards - 1e-9)), 1) * shards
    fill = tokens / (bins * size)
    length = size
    if row["pp"] == 1:
        grain = _GRAIN * row["cp"] * max(row["tp"], 1)
        length = min(float(np.ceil(fill * size / grain) * grain), size)
    middle = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    quantiles = np.quantile(lengths, middle)
    recipe = replace(
        recipe,
        sequence_length=int(length),
        global_batch=bins,
        lengths=tuple(int(min(max(x, 1.0), length)) for x in quantiles),
        length_shares=None,
        batching="packed",
        tokens=None,
    )
    return replace(workload, recipe=recipe), bins, fill


def train(
    scenario: Scenario,
    rl: RL,
    sequences: Floats,
    cluster: Cluster,
    framework: Framework,
    pinned: dict[str, Any],
) -> Trainer:
    """Price the trainer on its own accelerators, with a layout of which fields are pinned.

    Raises
    ------
    InputError
        If the layout cannot run at all.
    """
    if wrong := _wrong_remainder(scenario, rl, cluster.gpus, pinned):
        raise InputError(wrong)
    alone = replace(scenario, cluster=cluster, pinned=pinned)
    row, _ = complete(alone, pinned)
    workload, bins, fill = packed_workload(scenario.workload, rl, sequences, row)
    alone = replace(alone, workload=workload)
    if problems := limits(alone, pinned) or contradictions(alone, pinned):
        raise InputError(problems)
    row, _ = complete(alone, pinned)
    layouts = Layouts.of(**row)
    code = int(reasons(layouts, workload, cluster, scenario.software)[0])
    if code != FEASIBLE or int(layouts.world[0]) != cluster.gpus:
        raise InputError(refusal(alone, pinned, row, code))
    return priced_trainer(scenario, rl, framework, workload, layouts, (cluster, bins, fill))


def _wrong_remainder(scenario: Scenario, rl: RL, gpus: int, pinned: Mapping[str, Any]) -> list[str]:
    """Accelerators that generate or score, and leave a number that the layout does not divide."""
    ranks, whole = replica_ranks(pinned), scenario.cluster.gpus
    if gpus == whole or gpus % ranks == 0:
        return []
    others, alone = whole - rl.scoring_gpus, split_gpus(rl, whole)[1]
    possible = range(others % ranks, others, ranks)
    near = sorted(sorted(possible, key=lambda count: abs(count - alone))[:2])
    rule = (
        f"must leave a multiple of {ranks} accelerators to train on, which [layout] asks for;"
        f" {whole:,} less these{' and rl.scoring_gpus' if rl.scoring_gpus else ''} are {gpus:,}"
    )
    nearest = " or ".join(f"{count:,}" for count in near if count)
    text = problem(scenario.where, "rl.generation.gpus", rule, alone)
    return [f"{text} (nearest: {nearest})" if nearest else text]


def priced_trainer(
    scenario: Scenario,
    rl: RL,
    framework: Framework,
    workload: Workload,
    layouts: Layouts,
    on: tuple[Cluster, int, float],
) -> Trainer:
    """Price the update and the scorings of one layout."""
    cluster, bins, fill = on
    software = scenario.software
    estimate = evaluate(layouts, workload, cluster, software)
    updates = rl.answers * rl.epochs // scenario.workload.recipe.global_batch
    rounds, batches = bins / float(layouts.dp[0]), updates / rl.epochs
    scoring, scored = _scoring(rl, framework, layouts, workload, rounds * batches)
    share = bins * batches / scored.recipe.global_batch
    can, passes = forward_pass_s(workload.architecture, scoring, scored, cluster, software)
    third_s = float(estimate.step_time_s[0]) / 3.0 * batches
    pass_s = float(passes[0]) * share if len(can) else third_s
    bin_s = float(framework.bin_host_s)
    update_s = float(estimate.step_time_s[0]) + bin_s * rounds / float(layouts.micro_batch[0])
    scored_s = bin_s * rounds * batches / float(scoring.micro_batch[0])
    whole_pass_s = pass_s + scored_s
    score_s, training_s = whole_pass_s * rl.forward_passes, update_s * updates
    if rl.placed_models:  # beside the policy, as fast for each of their accelerators
        slower = cluster.gpus * rl.placed_models / rl.scoring_gpus
        others_s = slower * whole_pass_s * (rl.forward_passes > rl.old_probabilities)
        score_s = max(whole_pass_s * rl.old_probabilities, others_s)
        training_s *= max(slower, 1.0) if rl.algorithm == "ppo" else 1.0
    elif rl.algorithm == "ppo":
        training_s *= 2.0
    scoring_bytes = {}
    larger = scoring.micro_batch[0] > layouts.micro_batch[0]
    if rl.forward_passes and (larger or scoring.sharding[0] != layouts.sharding[0]):
        architecture = workload.architecture
        scoring_bytes["scoring"] = _forward_bytes(architecture, scoring, scored, cluster, software)
    teacher_s, teacher_bytes = _teacher(scenario, rl, scored, scoring, cluster)
    if teacher_bytes:
        scoring_bytes["teacher"] = teacher_bytes
        score_s += teacher_s * share + scored_s
    return Trainer(
        estimate=estimate,
        updates=updates,
        bins=bins,
        fill=fill,
        update_s=update_s,
        pass_s=whole_pass_s,
        training_s=training_s,
        score_s=score_s,
        scoring_bytes=scoring_bytes,
        placed_bytes=_placed(scenario, rl, framework, workload, layouts, cluster),
    )


def _scoring(
    rl: RL, framework: Framework, layouts: Layouts, workload: Workload, rounds: float
) -> tuple[Layouts, Workload]:
    """The layout in which a step's batch is scored, and the batch in whole micro-batches.

    A rank has ``rounds`` packed sequences, one after the other: updates do not part them. Some
    frameworks gather sharded weights once before they score, not for each micro-batch.
    """
    if framework.gathers_to_score and layouts.row(0)["sharding"] == "zero3":
        layouts = layouts.replace(sharding="zero2")
    size = min(rl.scoring_micro_batch or int(layouts.micro_batch[0]), max(int(rounds), 1))
    bins = max(ceil(rounds / size), 1) * size * int(layouts.dp[0])
    recipe = replace(workload.recipe, global_batch=bins)
    return layouts.replace(micro_batch=size, global_batch=bins), replace(workload, recipe=recipe)


def replica_ranks(layout: Mapping[str, Any]) -> int:
    """Ranks of which a trainer's accelerators are a multiple, dense blocks and experts alike.

    Examples
    --------
    >>> replica_ranks({"tp": 2, "pp": 2, "ep": 8})
    16
    """
    tp, pp, cp, ep = (int(layout.get(name, 1)) for name in ("tp", "pp", "cp", "ep"))
    etp = int(layout.get("etp", tp if ep == 1 else 1))
    return lcm(tp * pp * cp, etp * ep * pp)


def _placed(
    scenario: Scenario,
    rl: RL,
    framework: Framework,
    workload: Workload,
    layouts: Layouts,
    cluster: Cluster,
) -> dict[str, dict[str, float]]:
    """Memory of a device on which a model of the policy's size scores, and a critic learns.

    Such a model has the trainer's layout on as many data-parallel ranks as its place allows.

    Raises
    ------
    InputError
        If a place is no multiple of the ranks of that layout.
    """
    models, software = rl.placed_models - (rl.reward == "model"), scenario.software
    if not rl.placed_models or models <= 0:
        return {}
    row = layouts.row(0)
    ranks, size = replica_ranks(row), int(row["tp"]) * int(row["pp"]) * int(row["cp"])
    if rl.scoring_gpus % (ranks * rl.placed_models):
        rule = (
            f"must be a multiple of {ranks * rl.placed_models}: {rl.placed_models} models with the"
            f" trainer's {layouts.describe(0)} on {ranks} accelerators and multiples of them"
        )
        raise InputError(problem(scenario.where, "rl.scoring_gpus", rule, rl.scoring_gpus))
    fields = {name: row[name] for name in _FIELDS if name in row}
    dp = rl.scoring_gpus // rl.placed_models // size
    rounds = -(-workload.recipe.global_batch // (dp * int(row["micro_batch"])))
    bins = rounds * dp * int(row["micro_batch"])
    placed = Layouts.of(**fields, dp=dp, global_batch=bins)
    alone = replace(workload, recipe=replace(workload.recipe, global_batch=bins))
    place = with_gpus(cluster, dp * size)
    held = {}
    if models > (rl.algorithm == "ppo"):
        scoring, scored = _scoring(rl, framework, placed, alone, rounds)
        held["reference"] = _forward_bytes(workload.architecture, scoring, scored, place, software)
    if rl.algorithm == "ppo":
        kinds = evaluate(placed, alone, place, software).memory_bytes
        held["critic"] = {name: float(kind[0]) for name, kind in kinds.items()}
    return held


def _forward_bytes(
    model: Architecture, layouts: Layouts, workload: Workload, cluster: Cluster, software: Software
) -> dict[str, float]:
    """Memory of a device during forward passes of a model of which nothing is trained."""
    whole = frozen(model, workload, head=True)
    kinds = evaluate(only_forward(layouts), whole, cluster, software).memory_bytes
    return {
        name: float(kind[0])
        for name, kind in kinds.items()
        if name not in ("gradients", "optimizer")  # of a table of its own, which is not trained
    }


def _teacher(
    scenario: Scenario, rl: RL, workload: Workload, layouts: Layouts, cluster: Cluster
) -> tuple[float, dict[str, float]]:
    """Seconds of a teacher's pass over an update's sequences, and what it holds meanwhile."""
    if rl.teacher is None:
        return 0.0, {}
    teacher = presets.load(rl.teacher, where=scenario.where, field="rl.teacher")
    software = scenario.software
    can, passes = forward_pass_s(teacher, layouts, workload, cluster, software)
    if not len(can):
        layout = layouts.describe(0)
        raise InputError(
            f"{scenario.where}: rl.teacher: {teacher.name} cannot have the trainer's {layout}"
        )
    return float(passes[0]), _forward_bytes(teacher, layouts, workload, cluster, software)


def best_trainer(
    scenario: Scenario, rl: RL, sequences: Floats, cluster: Cluster, framework: Framework
) -> Trainer:
    """The fastest layout that fits for an update on so many accelerators, beside a sleeping engine.

    A search with as many sequences as there would be bins, in the memory that the engine leaves,
    lists layouts; the first of them are priced with the bins that each really has. Where none fits,
    a critic's states too, it is searched in less memory by what they lack. A tight one is taken
    only where no other fits, or the scenario allows it.

    Raises
    ------
    InfeasibleError
        If none fits.
    """
    alone = replace(scenario, cluster=cluster, pinned={})
    row, _ = complete(alone, {})
    whole = {**row, "dp": 1, "pp": 2, "micro_batch": 1}
    workload, bins, _ = packed_workload(scenario.workload, rl, sequences, whole)
    rounded = int(2 ** np.ceil(np.log2(max(bins, 1))))
    recipe = replace(workload.recipe, global_batch=rounded)
    alone = replace(alone, workload=replace(workload, recipe=recipe))
    usable = float(cluster.accelerator.memory.usable_bytes)
    less, tight = sum(asleep_bytes(rl).values()), list[Trainer]()
    why = "no layout fits that has bins of packed sequences in equal rounds"
    if rl.critic_beside:
        why += ", a critic's states beside the policy's"
    if rl.placed_models:
        why += f", and on rl.scoring_gpus = {rl.scoring_gpus} for {rl.placed_models} models"
    for turn in range(SEARCHES):
        searched = fastest(with_less_memory(alone, less))
        if searched.reason:
            why = why if turn else searched.reason
            break
        safe, lack = [], usable
        for trainer in _listed(
            searched.best.layouts, scenario, rl, (sequences, cluster, framework)
        ):
            over, over_p90 = over_bytes(trainer, rl)
            lack = min(lack, over if scenario.allow_tight else over_p90)
            if over_p90 <= 0.0 or (over <= 0.0 and scenario.allow_tight):
                safe.append(trainer)
            elif over <= 0.0:
                tight.append(trainer)
            if len(safe) == _PRICED:
                break
        if safe:
            return min(safe, key=lambda trainer: trainer.update_s)
        less += max(lack, LEAST_STEP * usable)
        if less >= usable:
            break
    if tight:
        return min(tight, key=lambda trainer: trainer.update_s)
    raise InfeasibleError(f"{scenario.where}: {cluster.gpus} accelerators: {why}")


def _listed(
    layouts: Layouts, scenario: Scenario, rl: RL, on: tuple[Floats, Cluster, Framework]
) -> Iterator[Trainer]:
    """Trainers of the layouts of a search that can run with the bins that each has."""
    for index in range(min(len(layouts), _LISTED)):
        fields = layouts.row(index)
        with suppress(InputError):
            yield train(
                scenario, rl, *on, {name: fields[name] for name in _FIELDS if name in fields}
            )


def asleep_bytes(rl: RL) -> dict[str, float]:
    """What an engine that sleeps keeps of a device that the trainer shares with it."""
    if rl.mode == "apart":
        return {}
    return {"engine asleep": float(load_engine(rl.generation.engine).asleep_bytes)}


def training_bytes(trainer: Trainer, rl: RL) -> dict[str, float]:
    """Memory of a device that trains, by kind; a critic beside the policy is of its size."""
    kinds = {name: float(kind[0]) for name, kind in trainer.estimate.memory_bytes.items()}
    if rl.critic_beside:
        for name in ("weights", "gradients", "optimizer"):
            kinds[name] *= 2.0
    return kinds | asleep_bytes(rl)


def over_bytes(trainer: Trainer, rl: RL) -> tuple[float, float]:
    """By how much a device of the trainer is over its memory at its fullest, P50 and P90."""
    estimate = trainer.estimate
    asleep = sum(asleep_bytes(rl).values())
    scoring = max((sum(kinds.values()) for kinds in trainer.scoring_bytes.values()), default=0.0)
    placed = max((sum(kinds.values()) for kinds in trainer.placed_bytes.values()), default=0.0)
    training = sum(training_bytes(trainer, rl).values())
    p90 = training * float(np.exp(P90 * np.nan_to_num(estimate.memory_spread[0])))
    others = max(scoring + asleep, placed)
    return max(training, others) - estimate.usable_bytes, max(p90, others) - estimate.usable_bytes


_LISTED, _PRICED = 64, 6
"""Layouts of a search that are looked at, and those of them that fit before the best is taken."""

_FIELDS = (
    *("tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch", "sharding", "sequence_parallel"),
    *("recompute", "recompute_layers", "recompute_modules", "schedule"),
)
