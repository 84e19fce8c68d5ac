"""How a model is trained: tokens, batch, sequence length, precision, optimizer."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Gt, Le

from simulator.files import Number, Whole, record
from simulator.workload.architecture import Architecture

__all__ = ["OPTIMIZERS", "PRECISIONS", "Recipe", "Workload"]

PRECISIONS = (
    *("fp32", "tf32", "fp16", "bf16"),
    *("fp8", "fp8_current", "fp8_blockwise", "mxfp8", "nvfp4"),
)
OPTIMIZERS = ("adamw", "adamw_8bit", "sgd")

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
    precision: Literal[
        "fp32", "tf32", "fp16", "bf16", "fp8", "fp8_current", "fp8_blockwise", "mxfp8", "nvfp4"
    ] = "bf16"
    """Type of the large matrix multiplications; all but fp32 and tf32 keep fp32 optimizer states.
    The 8- and 4-bit types cover the linear layers of the blocks, attention and head stay bf16.
    fp8 scales tensors by their past (delayed scaling), fp8_current by their present maximum,
    fp8_blockwise, mxfp8 and nvfp4 block by block."""
    optimizer: Literal["adamw", "adamw_8bit", "sgd"] = "adamw"
    """adamw keeps two moments per parameter (fp32 unless the software says otherwise), adamw_8bit
    two of 8 bit with a scale for every 256, sgd (with momentum) one."""

    @property
    def is_quantised(self) -> bool:
        """Whether the linear layers multiply numbers of fewer than 16 bit."""
        return self.precision not in ("fp32", "tf32", "fp16", "bf16")

    @property
    def matrix_type(self) -> str:
        """The accelerator's name for the type: scaling by the present is the same product."""
        return "fp8" if self.precision == "fp8_current" else self.precision

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
