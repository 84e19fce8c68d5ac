"""Laws of every operator: each weight once, twice the samples, numbers of twice the bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.cost.operators.block_operators import model_parts
from simulator.cost.operators.operations import ModuleOperators, Ranks
from simulator.layout.layouts import Layouts
from simulator.layout.placement import place
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.architecture import Architecture
from simulator.workload.families import table
from simulator.workload.huggingface import from_hf
from simulator.workload.recipe import Recipe, Workload

NAMES = [name for name in presets.names() if presets.load(name).traced is None]
FEW = [
    *("bert-large", "deberta-v2-xlarge", "deepseek-v4-flash", "gemma-3-4b", "gpt2-small"),
    *("granite-4.0-h-tiny", "kimi-linear-48b-a3b", "nemotron-h-8b", "opt-350m", "qwen3-30b-a3b"),
    *("qwen3-next-80b-a3b", "swin-base", "switch-base-128", "t5-11b", "vit-large-16"),
]
"""Of every kind of block, mixer, embedding and head one."""

POSITIONS = ("position keys", "position queries", "position indices", "dropped positions")
"""Products and tensors of a table of relative positions, which samples share."""


WITHOUT_WEIGHTS = ("chunk", "state", "scores", "index ", "context", "content", "position")
"""Beginnings of products of tokens with tokens, or with positions."""

CASES = json.loads((Path(__file__).parents[1] / "data" / "families.json").read_text())["cases"]


def length_of(arch: Architecture) -> int:
    return arch.max_positions if arch.has_fixed_length else min(arch.max_positions, 1024)


def parts(
    arch: Architecture, software: str, samples: tuple[float, ...], **fields: Any
) -> list[Any]:
    one = np.ones(len(samples))
    recipe = Recipe(**{"sequence_length": length_of(arch), "global_batch": 8, **fields})
    ranks = Ranks(
        tp=one, cp=one, ep=one, etp=one, micro_batch=np.array(samples),
        sequence_parallel=np.zeros(len(samples), bool),
        groups=place(Layouts.of(global_batch=1), 1),
    )  # fmt: skip
    work = Workload(architecture=arch, recipe=recipe)
    return list(model_parts(work, ranks, load_software(software).kernels))


def amounts(part: ModuleOperators, rows: int) -> Iterator[tuple[str, str, Any]]:
    """Kind, name and amount of what a part does and keeps, a value for each row."""
    for kind, name, amount in (
        *(("product", one.name, one.flop) for one in part.gemms),
        *(("product", "attention", one.flop) for one in part.flash),
        *(("moved", one.name, one.forward_bytes) for one in part.streams),
        *(("moved", one.name, one.backward_bytes) for one in part.streams),
        *(("sent", one.operation, one.size_bytes) for one in part.collectives),
        *(("kept", one.name, one.size_bytes) for one in part.saved),
        ("kept", "input", part.checkpoint_bytes),
        ("kept", "passing", part.passing_bytes),
    ):
        yield kind, name, np.broadcast_to(np.asarray(amount, float), (rows,))


@pytest.mark.parametrize("software", ["torchtitan", "deepspeed"])
def test_twice_the_samples_are_twice_of_everything(software: str, extent: str) -> None:
    """FLOPs, bytes moved, sent and kept: all but tables of positions grow with the samples."""
    told, seen = [], 0
    for name in {"sample": FEW, "whole": NAMES}[extent]:
        for part in parts(presets.load(name), software, (1.0, 2.0)):
            for kind, word, (one, two) in amounts(part, 2):
                seen += 1
                more = 1.0 if word in POSITIONS else 2.0
                if not np.isclose(two, more * one, rtol=1e-9, atol=0.0):
                    told.append((name, kind, word, two / one))
    assert not told and seen > 600


@pytest.mark.parametrize("software", ["megatron-core", "deepspeed"])
def test_numbers_of_twice_the_bytes_move_and_keep_at_most_twice_as_many(
    software: str, extent: str
) -> None:
    """fp32 beside bf16: products do as much; masks, statistics and what is fp32 anyway stay."""
    told, same, twice = [], 0, 0
    for name in {"sample": FEW, "whole": NAMES}[extent]:
        arch, types = presets.load(name), ("bf16", "fp32")
        narrow, wide = (parts(arch, software, (1.0,), precision=x) for x in types)
        for one, other in zip(narrow, wide, strict=True):
            pairs = zip(amounts(one, 1), amounts(other, 1), strict=False)
            for (kind, word, (less,)), (_, again, (more,)) in pairs:
                if word != again or not less:
                    continue  # kernels that one of both has alone
                ratio = more / less
                fixed = word.endswith(("mask", "statistics", "in fp32", "log-sum-exp"))
                low, high = (1.0, 1.0) if kind == "product" or fixed else (1.0, 2.0)
                if not low - 1e-9 <= ratio <= high + 1e-9:
                    told.append((name, kind, word, ratio))
                same, twice = same + (ratio == 1.0), twice + (ratio == 2.0)
    assert not told and same > 200 and twice > 200


def family(config: dict[str, Any]) -> Architecture:
    """A small model of a family, all that its configuration leaves out as its class has it."""
    whole = "parts" in table.row(config["model_type"]).words or "architectures" in config
    nested = config if whole else {"text_config": config}
    return from_hf(nested, name=config["model_type"], where="config.json")


def test_every_token_is_multiplied_once_by_each_weight_that_it_passes() -> None:
    """Of 215 families two FLOPs a token and element in the products as in the list of weights."""
    told, seen = [], 0
    for case in CASES:
        arch = family(case["config"])
        if arch.traced is not None:
            continue
        for kind, part in zip(arch.blocks, parts(arch, "megatron-core", (1.0,)), strict=False):
            seen, tokens = seen + 1, kind.tokens or length_of(arch)
            listed = sum(
                one.flop * (tokens if one.per == "token" else 1.0)
                for one in kind.weights(arch.hidden)
            )
            multiplied = sum(
                float(np.sum(one.flop))
                for one in part.gemms
                if not one.name.startswith(WITHOUT_WEIGHTS)
            )
            if not np.isclose(multiplied, listed, rtol=1e-9, atol=0.0):
                told.append((arch.name, multiplied / listed))
    assert not told and seen > 300
