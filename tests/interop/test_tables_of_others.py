"""Words and numbers of other programs: bytes of types, kinds of copies, letters of releases."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from simulator.explorer.replying import RLQuestion
from simulator.interop.dialects.fsdp2 import _sharded
from simulator.interop.rl_scripts import _assume
from simulator.interop.traces.kineto_events import _DTYPE_BYTES
from simulator.interop.traces.nsys import _COPY_KINDS
from simulator.software.releases import parsed

OF_C = {
    "float": "float32", "int": "int32", "double": "float64", "long": "int64", "long int": "int64",
    "half": "float16", "bfloat16": "float16", "short": "int16", "byte": "uint8", "char": "int8",
    "unsigned char": "uint8", "signed char": "int8",
}  # fmt: skip
"""Types by their names in C++ and torch, where NumPy has none of the name."""


def test_bytes_of_types_are_those_of_numpy() -> None:
    assert len(_DTYPE_BYTES) >= 18
    for name, size in _DTYPE_BYTES.items():
        assert size == np.dtype(OF_C.get(name, name)).itemsize, name


def test_kinds_of_copies_are_those_of_cupti() -> None:
    """CUpti_ActivityMemcpyKind: HtoD 1, DtoH 2, DtoD 8, PtoP 10; from 11 on managed memory."""
    numbers = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP", 11: "HtoD", 12: "DtoH", 13: "DtoD"}
    assert numbers == _COPY_KINDS


@pytest.mark.parametrize(
    ("word", "number"),
    [
        ("megatron-deepspeed-2022.02a-async", (2022, 2, 1)), ("nemo-24.05c", (24, 5, 3)),
        ("megatron-bridge-26.04.01", (26, 4, 1)), ("megatron-bridge-26.04", (26, 4)),
    ],
)  # fmt: skip
def test_a_letter_behind_a_release_counts_as_one_more_number(
    word: str, number: tuple[int, ...]
) -> None:
    release = parsed(word)
    assert release is not None and release.number == number


def test_the_first_question_of_the_page_about_rl_can_be_answered() -> None:
    """Updates of a whole step: answers divide by the batch that learns from them."""
    asked = RLQuestion(model="llama-3.1-8b", cluster="dgx-h100", gpus=16)
    assert asked.prompts * asked.samples % asked.global_batch == 0


@pytest.mark.parametrize(
    ("sharding", "again", "word"),
    [
        ("zero2", True, "False"), ("zero2", 4, "False"), ("zero3", True, "True"),
        ("zero3", 4, "4"), ("zero3", False, "False"), ("zero1", True, "True"),
    ],
)  # fmt: skip
def test_whether_a_script_gathers_weights_again(sharding: str, again: Any, word: str) -> None:
    """fully_shard's reshard_after_forward: false keeps them (ZeRO-2), a number says among whom."""
    row = {"shard_group": 4, "dp": 12, "sharding": sharding, "reshard_after_forward": again,
           "parameter_offload": "none", "optimizer_offload": "none"}  # fmt: skip
    recipe = SimpleNamespace(precision="bf16", reduce_dtype=None)
    lines = _sharded(row, recipe, [])
    calls = [line for line in lines if "fully_shard(" in line]
    assert len(calls) == 2 and all(f"reshard_after_forward={word})" in line for line in calls)
    assert 'mesh = init_device_mesh("cuda", (3, 4), mesh_dim_names=("replicate", "shard"))' in lines
    alone = _sharded({**row, "dp": 4}, recipe, [])
    assert 'mesh = init_device_mesh("cuda", (4,), mesh_dim_names=("shard",))' in alone


@pytest.mark.parametrize(
    ("rl", "training", "prompts", "batch"),
    [
        ({"answers": 7, "samples": 1}, {}, 7, 7), ({"answers": 21, "samples": 3}, {}, 7, 21),
        ({"answers": 2, "samples": 3}, {}, 1, 3), ({"answers": 9, "samples": 0}, {}, 9, 0),
        ({"samples": 1}, {"global_batch": 5}, 5, 5), ({"samples": 3}, {"global_batch": 7}, 2, 7),
        ({"samples": 3}, {"global_batch": 2}, 1, 2),
        ({"answers": 21, "samples": 3, "prompts": 4}, {}, 4, 12),
    ],
)  # fmt: skip
def test_prompts_of_a_script_that_says_its_answers(
    rl: dict[str, Any], training: dict[str, Any], prompts: int, batch: int
) -> None:
    """Answers, or else the sequences of an update, over samples a prompt; one prompt at least."""
    document = {"rl": {**rl, "answer_tokens": 9}, "training": {**training}, "model": {"name": "x"}}
    said = _assume(document, ["rl.answer_tokens=9"])
    assert document["rl"]["prompts"] == prompts and "answers" not in document["rl"]
    assert document["training"]["global_batch"] == batch
    assert ("assumed: one update a step" in said) is (not training)
