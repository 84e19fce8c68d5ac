"""How a model is trained: tokens, batch, sequence length, precision, optimizer."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Gt, Le

from simulator.files import Number, Whole, record
from simulator.workload.architecture import Architecture

__all__ = ["OPTIMIZERS", "PRECISIONS", "Recipe", "Workload"]

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8")
OPTIMIZERS = ("adamw", "sgd")

LARGEST = 100_000_000
"""Largest sequence length and global batch that are taken for meant."""


@record
class Recipe:
    """The training recipe, the same for every layout."""

    sequence_length: Annotated[Whole, Gt(0), Le(LARGEST)]
    """Tokens per sequence."""
    global_batch: Annotated[Whole, Gt(0), Le(LARGEST)]
    """Sequences per optimizer step."""
    tokens: Annotated[Number, Gt(0)] | None = None
    """Tokens that the whole run sees; None: only one step is asked about."""
    precision: Literal["fp32", "tf32", "fp16", "bf16", "fp8"] = "bf16"
    """Type of the large matrix multiplications. fp16, bf16 and fp8 keep fp32 optimizer states;
    fp8 (delayed scaling) covers the linear layers of the blocks, attention and head stay bf16."""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """adamw keeps two fp32 moments per parameter, sgd (with momentum) one."""

    @property
    def tokens_per_step(self) -> int:
        """Tokens in one optimizer step."""
        return self.sequence_length * self.global_batch

    @property
    def steps(self) -> float | None:
        """Optimizer steps of the whole run, or None when `tokens` is not given."""
        return None if self.tokens is None else self.tokens / self.tokens_per_step


@record
class Workload:
    """An architecture and the recipe that trains it."""

    architecture: Architecture
    recipe: Recipe
