"""The sections [model] and [training]: which model is trained, and how."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulator.errors import InputError, did_you_mean, problem
from simulator.files import build, record
from simulator.section import Rule, Section, build_section
from simulator.workload import presets
from simulator.workload.architecture import Architecture
from simulator.workload.contradictions import wrong_training
from simulator.workload.huggingface import from_hf
from simulator.workload.not_modelled import unsupported_fields
from simulator.workload.recipe import Recipe
from simulator.workload.tasks import TaskHeads


@record
class ModelSection:
    """Which model is trained: one of the zoo, a config.json, or its fields here."""

    name: str | None = None
    """A model of the zoo (`foreshard models`), or the path of a Hugging Face config.json, from the
    scenario's folder; beside model_type: what the model is called."""
    model_type: str | None = None
    """A family of Hugging Face (llama, deepseek_v3, ...): the other fields of a config.json stand
    beside it, under their own names."""
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
        return _with_tasks(raw["tasks"], read_model(alone, folder, where=where), where)
    if "model_type" in raw:
        return from_hf(raw, name=str(raw.get("name", "custom")), where=f"{where}: model")
    if unknown := sorted(set(raw) - {"name"}):
        known = ("name", "model_type", "tasks")
        raise InputError(
            f"{where}: model.{unknown[0]}: unknown field{did_you_mean(unknown[0], known)}"
        )
    name = raw["name"]
    if not isinstance(name, str):
        raise InputError(problem(where, "model.name", "must be a zoo name or a path", name))
    beside = folder / name if folder is not None else None
    if beside is not None and name and name not in presets.names() and os.path.exists(beside):
        name = str(beside)
    return presets.load(name, where=where, field="model.name")


def _with_tasks(raw: Any, arch: Architecture, where: str) -> Architecture:
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


def read_training(raw: Any, *, where: str) -> Recipe:
    """Read [training]; what it names that is not modelled is refused with the reason."""
    if isinstance(raw, Mapping) and (wrong := unsupported_fields(raw, where, "training")):
        raise InputError(wrong)
    return build_section(Recipe, raw, where=where, name="training")


def _wrong_length(training: Recipe, model: Architecture, *, where: str) -> list[str]:
    """A sequence that the model was not made for."""
    length, most = training.sequence_length, model.max_positions
    fixed, learned = model.has_fixed_length, model.position == "learned"
    if not (length != most if fixed else learned and length > most):
        return []
    tokens = "tokens per image" if fixed else "learned positions"
    return [
        f"{where}: training.sequence_length: {model.name} has {most} {tokens},"
        f" got {length} (nearest: {most})"
    ]


def _contradictions(
    training: Recipe, model: Architecture | None, layout: Any, *, where: str
) -> list[str]:
    ep = None if layout is None else layout.ep
    return wrong_training(training, model, where, ep=ep)


MODEL = Section(
    name="model",
    schemas=(ModelSection,),
    read=Rule(read_model, uses=("folder",)),
    required=True,
)

TRAINING = Section(
    name="training",
    schemas=(Recipe,),
    read=Rule(read_training),
    required=True,
    checks=(
        Rule(_wrong_length, needs=("training", "model")),
        Rule(_contradictions, needs=("training",), uses=("model", "layout")),
    ),
)
