"""Other trainings that software and device can run, and how to ask for each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from simulator.scenario import Scenario
from simulator.workload.training_section import wrong_training

SMALLER = ("moment_dtype", "optimizer", "lora_rank")
"""Fields whose other values save memory."""

_WIDE = ("fp32", "tf32", "fp16", "bf16")
"""Precisions that are no step down from another one."""

_LORA_RANK = 16
"""Adapters of a usual size; their memory hardly depends on it."""


def training_choices(scenario: Scenario, words: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What each of these fields of the training may be otherwise, by how to ask for it.

    Examples
    --------
    >>> from simulator.scenario import make_scenario
    >>> run = {"model": {"name": "llama-3.1-8b"}, "cluster": {"name": "dgx-h100", "gpus": 8},
    ...     "training": {"sequence_length": 8192, "global_batch": 64}}
    >>> list(training_choices(make_scenario(run), ["optimizer", "gradient_dtype"]))
    ['training.optimizer = adamw_8bit', 'training.gradient_dtype = fp32']
    """
    recipe, states = scenario.workload.recipe, scenario.software.states
    adapters = {"lora_rank": _LORA_RANK}
    every: dict[str, dict[str, dict[str, Any]]] = {
        "precision": {
            f"training.precision = {word}": {"precision": word}
            for word in scenario.software.supports.precisions
            if word not in _WIDE and word != recipe.precision
        },
        "optimizer": {"training.optimizer = adamw_8bit": {"optimizer": "adamw_8bit"}},
        "moment_dtype": {"training.moment_dtype = bf16": {"moment_dtype": "bf16"}},
        "gradient_dtype": {
            f"training.gradient_dtype = {word}": {"gradient_dtype": word, "reduce_dtype": word}
            for word in ("bf16", "fp32")
            if word != (recipe.gradient_dtype or ("fp32" if float(states.gradient) > 2 else "bf16"))
        },
        "lora_rank": {
            f"LoRA (training.lora_rank = {_LORA_RANK})": adapters,
            "QLoRA (and training.quantised_base)": {**adapters, "quantised_base": True},
        },
    }
    asked = [one for word in words for one in every[word].items()]
    return {change: fields for change, fields in asked if _sound(scenario, fields)}


def _sound(scenario: Scenario, fields: dict[str, Any]) -> bool:
    """Whether it is another training, and one that the device and the model can run."""
    own, arch = scenario.workload.recipe, scenario.workload.architecture
    recipe = replace(own, **fields)
    if recipe == own or (own.lora_rank and "lora_rank" in fields):
        return False
    if own.optimizer != "adamw" and {"optimizer", "moment_dtype"} & set(fields):
        return False
    if own.precision in ("fp16", "fp32", "tf32") and "gradient_dtype" in fields:
        return False
    able = all(recipe.matrix_type in x.accelerator.matrix_flop_per_s for x in scenario.cluster.each)
    return able and not wrong_training(recipe, arch, scenario.where)
