"""Fields of a recipe that contradict one another or the model."""

from __future__ import annotations

import math

from simulator.errors import problem
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Recipe, beyond_traces

__all__ = ["wrong_training"]


def wrong_training(
    recipe: Recipe, arch: Architecture | None, where: str, *, ep: int | None = None
) -> list[str]:
    """Fields of the recipe that contradict one another, the model, or its `ep` expert ranks."""
    problems, longest = [], max(recipe.lengths or (0,))
    if longest > recipe.sequence_length:
        rule = f"must be at most sequence_length = {recipe.sequence_length}"
        problems.append(problem(where, "training.lengths", rule, longest))
    problems += _wrong_shares(recipe, where)
    if arch is not None and arch.traced is not None:
        rule = f"not yet for a traced module ({arch.name})"
        problems += [f"{where}: training.{name}: {rule}" for name in beyond_traces(recipe)]
    if recipe.stash_bytes is not None and recipe.is_quantised:
        rule = "needs a precision of 16 or 32 bit: smaller ones keep quantised inputs already"
        for name in ("mask", "activation_output", "linear_input", "norm_input"):
            if getattr(recipe.stash_bytes, name) is not None:
                where_it_is = f"training.stash_bytes.{name}"
                problems.append(problem(where, where_it_is, rule, recipe.precision))
    if recipe.quantised_base and not recipe.lora_rank:
        rule = "needs lora_rank above 0: 4-bit weights are not trained"
        problems.append(problem(where, "training.quantised_base", rule, True))
    if recipe.moe_load is not None:
        problems += _wrong_load(recipe, arch, where)
    elif arch is not None:
        problems += _wrong_imbalance(recipe, arch, where, ep or 1)
    if arch is not None and arch.tasks is not None and recipe.lora_rank:
        rule = "must be 0: heads of tasks are trained, not only adapters"
        problems.append(problem(where, "training.lora_rank", rule, recipe.lora_rank))
    if arch is not None and recipe.frozen_layers > arch.layers:
        rule = f"must be at most the {arch.layers} layers of {arch.name}"
        problems.append(problem(where, "training.frozen_layers", rule, recipe.frozen_layers))
    return problems


def _wrong_shares(recipe: Recipe, where: str) -> list[str]:
    """Shares of lengths that are no distribution over them."""
    shares, lengths, field = recipe.length_shares, recipe.lengths, "training.length_shares"
    if shares is None:
        return []
    if lengths is None:
        return [f"{where}: {field}: needs training.lengths, whose shares they are"]
    problems = []
    if len(shares) != len(lengths):
        rule = f"must have one share for each of the {len(lengths)} lengths"
        problems.append(problem(where, field, rule, len(shares)))
    if not math.isclose(total := math.fsum(shares), 1.0, rel_tol=0.0, abs_tol=1e-3):
        problems.append(problem(where, field, "must add up to 1", round(total, 6)))
    return problems


def _wrong_load(recipe: Recipe, arch: Architecture | None, where: str) -> list[str]:
    """A load vector that adds up to something else than 1 or does not go with the experts."""
    load, field, problems = recipe.moe_load or (), "training.moe_load", list[str]()
    if not math.isclose(total := math.fsum(load), 1.0, rel_tol=0.0, abs_tol=1e-3):
        problems.append(problem(where, field, "must add up to 1", round(total, 6)))
    if recipe.moe_imbalance != 1.0:
        rule = "must be left out where moe_load is given"
        problems.append(problem(where, "training.moe_imbalance", rule, recipe.moe_imbalance))
    if arch is None:
        return problems
    moes = set(arch.moes)
    if not moes:
        return [*problems, f"{where}: {field}: {arch.name} has no experts"]
    for moe in moes:
        if moe.experts % len(load):
            rule = (
                f"must have one share for each of {moe.experts} experts, or for equal runs of them"
            )
            problems.append(problem(where, field, rule, f"{len(load)} shares"))
            continue
        most = min(moe.experts // len(load) / moe.top_k, 1.0)
        if max(load) > most * (1 + 1e-3):
            rule = (
                f"no share may be above {most:g}: a token has {moe.top_k} different experts, and"
                f" each share is for {moe.experts // len(load)}"
            )
            problems.append(problem(where, field, rule, max(load)))
    return problems


def _wrong_imbalance(recipe: Recipe, arch: Architecture, where: str, ep: int) -> list[str]:
    """An imbalance that no rank can have: of `ep` ranks, or of the most where `ep` is 1.

    With one rank there is nothing to be uneven: a search looks at such layouts, too.
    """
    for moe in set(arch.moes):
        ranks = ep if ep > 1 else moe.experts
        most = float(moe.largest_load(ranks))
        if recipe.moe_imbalance > most:
            whose = f"ep = {ranks} ranks" if ep > 1 else f"{ranks} ranks, one for each expert"
            rule = f"must be at most {most:g}: of {whose}, one then has all tokens that it can"
            text = problem(where, "training.moe_imbalance", rule, recipe.moe_imbalance)
            return [f"{text} (nearest: {most:g})"]
    return []
