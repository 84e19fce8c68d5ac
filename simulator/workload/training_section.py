"""The sections [model] and [training]: which model is trained, how, and what is not modelled."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulator.errors import InputError, did_you_mean, problem
from simulator.files import build, record
from simulator.section import Rule, Section, build_section
from simulator.workload import presets
from simulator.workload.architecture import Architecture
from simulator.workload.huggingface import from_hf
from simulator.workload.recipe import Recipe, beyond_traces
from simulator.workload.tasks import TaskHeads

_MOST_TRACED = 131_072

_QAT = (
    "by this name; quantisation-aware training stands in training.fake_quantised_weights,"
    " training.fake_quantised_inputs and training.fake_quantised_head"
)
_PRUNING = (
    "pruning: a model whose rows, heads or layers are cut is a smaller model, so give its sizes;"
    " masked weights take the time and memory of dense ones, and their masks a byte a parameter"
)
_SPARSE = (
    "2:4 sparsity: NVIDIA's parts since Ampere (A100, L4, L40S, H100, B200 and their kin) multiply"
    " it at twice the dense rate on their data sheets, all others not at all; in training only"
    " forward and input gradients can, after the weights were compressed again every step, and no"
    " timings of that are in the tables; the dense step is an upper bound"
)
_TEACHER = "here; a teacher stands in a section of its own, [distillation] teacher = NAME"
_SERVING = (
    "deployment is out of scope: serving, export and quantisation after training take no part in"
    " a training step"
)

_WORDS = {
    "qat": _QAT,
    "quantisation_aware": _QAT,
    "quantization_aware": _QAT,
    "fake_quantise": _QAT,
    "fake_quantize": _QAT,
    "pruning": _PRUNING,
    "prune": _PRUNING,
    "prune_fraction": _PRUNING,
    "sparsity": _SPARSE,
    "sparse": _SPARSE,
    "sparse_2_4": _SPARSE,
    "structured_sparsity": _SPARSE,
    "distillation": _TEACHER,
    "teacher": _TEACHER,
    "serving": _SERVING,
    "deployment": _SERVING,
    "inference": _SERVING,
}


@record
class ModelSection:
    """Which model is trained: one of the zoo, a config.json, or its fields here."""

    name: str | None = None
    """A model of the zoo (`foreshard models`), or the path of a Hugging Face config.json, from the
    scenario's folder; beside model_type: what the model is called."""
    model_type: str | None = None
    """A family of Hugging Face (llama, deepseek_v3, ...): the other fields of a config.json stand
    beside it, under their own names."""
    trace_tokens: int | None = None
    """Beside a name: a type that no row describes is built by transformers and traced at so many
    tokens a sample, which training.sequence_length has to be (needs torch and transformers)."""
    tasks: TaskHeads | None = None
    """Heads of several tasks behind the last block; none given: the model's own output."""


def read_model(raw: Any, folder: Path | None, *, where: str) -> Architecture:
    """A zoo name, a path to a Hugging Face config.json, or the fields of one inline."""
    if not isinstance(raw, Mapping) or not raw:
        raise InputError(
            f"{where}: model: required section is missing (name, or Hugging Face fields)"
        )
    if "tasks" in raw:
        alone = {field: value for field, value in raw.items() if field != "tasks"}
        return with_tasks(raw["tasks"], read_model(alone, folder, where=where), where)
    if "model_type" in raw:
        return from_hf(raw, name=str(raw.get("name", "custom")), where=f"{where}: model")
    if unknown := sorted(set(raw) - {"name", "trace_tokens"}):
        known = ("name", "model_type", "tasks", "trace_tokens")
        raise InputError(
            f"{where}: model.{unknown[0]}: unknown field{did_you_mean(unknown[0], known)}"
        )
    name = raw.get("name")
    if not isinstance(name, str):
        raise InputError(problem(where, "model.name", "must be a zoo name or a path", name))
    beside = folder / name if folder is not None else None
    if beside is not None and name and name not in presets.names() and os.path.exists(beside):
        name = str(beside)
    tokens = raw.get("trace_tokens", 0)
    if type(tokens) is not int or not 0 <= tokens <= _MOST_TRACED:
        rule = f"must be a whole number up to {_MOST_TRACED}"
        raise InputError(problem(where, "model.trace_tokens", rule, tokens))
    return presets.load(name, where=where, field="model.name", trace_tokens=tokens)


def with_tasks(raw: Any, arch: Architecture, where: str) -> Architecture:
    """Put the heads of several tasks behind a model, beside or instead of its own output."""
    if not isinstance(raw, Mapping):
        raise InputError(problem(where, "model.tasks", "must be a table", raw))
    tasks = build(TaskHeads, raw, where=where, prefix="model.tasks")
    problems = []
    if tasks.experts and not tasks.expert_hidden:
        rule = "required with experts: their inner width"
        problems.append(f"{where}: model.tasks.expert_hidden: {rule}")
    for name in ("expert_hidden", "expert_outputs"):
        if getattr(tasks, name) and not tasks.experts:
            rule = "needs experts above 0"
            problems.append(problem(where, f"model.tasks.{name}", rule, getattr(tasks, name)))
    if tasks.batch_fractions and len(tasks.batch_fractions) != len(tasks.outputs):
        rule = f"must have one of each of the {len(tasks.outputs)} tasks of outputs"
        fractions = list(tasks.batch_fractions)
        problems.append(problem(where, "model.tasks.batch_fractions", rule, fractions))
    if arch.is_encoder_decoder or arch.mtp_layers:
        kind = "an encoder-decoder" if arch.is_encoder_decoder else "a model that predicts ahead"
        problems.append(f"{where}: model.tasks: not yet for {kind} ({arch.name})")
    if problems:
        raise InputError(problems)
    return replace(arch, tasks=tasks, classes=arch.classes if tasks.keeps_output else 0)


_ROUNDED = frozenset(("q", "k", "v", "o", "gate", "up", "down"))
"""Matrices of linears that quantisation-aware training is priced for."""


def read_training(raw: Any, model: Architecture | None, *, where: str) -> Recipe:
    """Read [training]; what it names that is not modelled is refused with the reason.

    Nobody's run spreads tokens as evenly as a benchmark that forces it.
    """
    if isinstance(raw, Mapping) and (wrong := unsupported_fields(raw, where, "training")):
        raise InputError(wrong)
    recipe = build_section(Recipe, raw, where=where, name="training")
    if model is not None and model.stored_in_4_bit and recipe.lora_rank:
        recipe = replace(recipe, quantised_base=raw.get("quantised_base", True))
    stated = set(raw) & {"moe_routing", "moe_imbalance", "moe_load"}
    if model is None or not model.is_moe or stated:
        return recipe
    return replace(recipe, moe_routing="balanced")


def _wrong_length(training: Recipe, model: Architecture, *, where: str) -> list[str]:
    """A sequence that the model was not made for."""
    length, most = training.sequence_length, model.max_positions
    fixed, learned = model.has_fixed_length, model.position == "learned"
    if not (length != most if fixed else learned and length > most):
        return []
    traced = model.traced is not None and most > 1
    tokens = (
        "learned positions"
        if not fixed
        else "tokens in its trace"
        if traced
        else "tokens per image"
    )
    return [
        f"{where}: training.sequence_length: {model.name} has {most} {tokens},"
        f" got {length} (nearest: {most})"
    ]


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
        width = arch.traced.element_bytes
        if width != recipe.number_bytes:
            rule = f"must be a type of {width} bytes, with which {arch.name} was traced"
            problems.append(problem(where, "training.precision", rule, recipe.precision))
    if recipe.stash_bytes is not None and recipe.is_quantised:
        rule = "needs a precision of 16 or 32 bit: smaller ones keep quantised inputs already"
        for name in ("mask", "activation_output", "linear_input", "norm_input"):
            if getattr(recipe.stash_bytes, name) is not None:
                where_it_is = f"training.stash_bytes.{name}"
                problems.append(problem(where, where_it_is, rule, recipe.precision))
    if recipe.quantised_base and not recipe.lora_rank and "text" not in recipe.frozen_parts:
        rule = "needs lora_rank above 0 or frozen text: 4-bit weights are not trained"
        problems.append(problem(where, "training.quantised_base", rule, True))
    problems += _wrong_rounding(recipe, arch, where)
    if recipe.moe_routing and (recipe.moe_load is not None or recipe.moe_imbalance != 1.0):
        rule = "must be left out where moe_load or moe_imbalance is given"
        problems.append(problem(where, "training.moe_routing", rule, recipe.moe_routing))
    if recipe.moe_load is not None:
        problems += _wrong_load(recipe, arch, where)
    elif arch is not None:
        problems += _wrong_imbalance(recipe, arch, where, ep or 1)
    if arch is not None and recipe.frozen_parts:
        problems += _wrong_parts(recipe, arch, where)
    if arch is not None and recipe.frozen_layers > arch.layers:
        rule = f"must be at most the {arch.layers} layers of {arch.name}"
        problems.append(problem(where, "training.frozen_layers", rule, recipe.frozen_layers))
    return problems


def _wrong_rounding(recipe: Recipe, arch: Architecture | None, where: str) -> list[str]:
    """What quantisation-aware training is not modelled with."""
    field, kind = "training.fake_quantised_weights", recipe.fake_quantised_weights
    if kind == "none":
        beside = ("fake_quantised_inputs", "fake_quantised_head")
        rule = f"needs {field}"
        asked = [name for name in beside if getattr(recipe, name)]
        return [problem(where, f"training.{name}", rule, True) for name in asked]
    rules = []
    if recipe.precision not in ("bf16", "fp16"):
        rules.append(f"needs training.precision = bf16 or fp16, not {recipe.precision}")
    if recipe.quantised_base or recipe.stash_bytes is not None:
        rules.append("needs 16-bit weights and stashes: no quantised_base, no stash_bytes")
    if recipe.freezes and not recipe.lora_rank:
        rules.append("is not modelled with frozen parts, adapters apart")
    if recipe.lora_rank and kind != "detached_scales":
        rules.append("must be detached_scales with adapters")
    if recipe.lora_rank and recipe.fake_quantised_head:
        rules.append("leaves the head as it is under adapters: fake_quantised_head is false")
    if arch is not None:
        named = {w.name for b in arch.blocks for w in b.weights(arch.hidden) if w.per == "token"}
        if arch.traced is not None or arch.tower_layers or not named <= _ROUNDED:
            rules.append(
                f"is modelled for dense decoders of {', '.join(sorted(_ROUNDED))} alone:"
                f" {arch.name} has other parts"
            )
    return [problem(where, field, rule, kind) for rule in rules]


def _wrong_parts(recipe: Recipe, arch: Architecture, where: str) -> list[str]:
    """Frozen parts that the model does not have, or that leave nothing to train."""
    field, parts = "training.frozen_parts", recipe.frozen_parts
    if not arch.tower_layers:
        return [problem(where, field, f"must be left out: {arch.name} has no tower", list(parts))]
    beside = arch.projector and "projector" not in parts and not recipe.lora_rank
    if {"tower", "text"} <= {*parts} and not beside:
        return [problem(where, field, "leave nothing that is trained", list(parts))]
    return []


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


def _contradictions(
    training: Recipe, model: Architecture | None, layout: Any, *, where: str
) -> list[str]:
    ep = None if layout is None else layout.ep
    return wrong_training(training, model, where, ep=ep)


def _idle(
    training: Recipe, model: Architecture, layout: Any, search: Any, *, where: str
) -> dict[str, str]:
    """Fields on which nothing hangs beside what else is said."""
    routed = ("moe_imbalance", "moe_routing", "moe_capacity_factor", "moe_pads_to_capacity")
    alike = "training.lengths are not given, so that all sequences are alike"
    offload = layout is not None and layout.optimizer_offload not in (None, "none")
    offload |= search is not None and "optimizer_offload" in (search.allow or ())
    without = {
        f"{model.name} has no experts": (not model.is_moe, routed),
        "training.moe_capacity_factor is not given": (
            model.is_moe and training.moe_capacity_factor is None,
            ("moe_pads_to_capacity",),
        ),
        f"{model.name} has no decoder of its own": (
            not model.is_encoder_decoder,
            ("decoder_length",),
        ),
        alike: (training.lengths is None, ("batching",)),
        f"the optimizer is {training.optimizer}": (
            training.optimizer != "adafactor",
            ("adafactor_momentum",),
        ),
        "training.lora_rank is 0": (training.lora_rank == 0, ("lora_targets",)),
        "training.tokens are not given": (training.tokens is None, ("critical_batch",)),
        "layout.optimizer_offload is none": (not offload, ("optimizer_offload_fraction",)),
    }
    return {name: why for why, (idle, names) in without.items() if idle for name in names}


MODEL = Section(
    name="model",
    schemas=(ModelSection,),
    read=Rule(read_model, uses=("folder",)),
    required=True,
)

TRAINING = Section(
    name="training",
    schemas=(Recipe,),
    read=Rule(read_training, uses=("model",)),
    required=True,
    checks=(
        Rule(_wrong_length, needs=("training", "model")),
        Rule(_contradictions, needs=("training",), uses=("model", "layout")),
    ),
    idle=Rule(_idle, needs=("training", "model"), uses=("layout", "search")),
)


def unsupported_fields(raw: Iterable[str], where: str, section: str) -> list[str]:
    """Say of every field, or section, that names what is not modelled why it is not.

    Examples
    --------
    >>> unsupported_fields(["serving"], "run.toml", "training")[0][:46]
    'run.toml: training.serving: not modelled: depl'
    """
    place = f"{where}: {section}." if section else f"{where}: "
    return [f"{place}{word}: not modelled: {_WORDS[word]}" for word in raw if word in _WORDS]
