"""How Transformer Engine runs collectives over tp beside products: its user buffers."""

from __future__ import annotations

from typing import Literal

from simulator.files import Count, Figure, record

Buffered = Literal["fp16", "bf16", "fp8", "fp8_current", "fp8_blockwise", "mxfp8", "nvfp4"]

_TE = "NVIDIA/TransformerEngine pytorch/module/base.py, get_default_config"


@record
class UserBuffers:
    """What Transformer Engine's user buffers do beside products (``tensor = "userbuffers"``).

    Gathers that feed a product are exchanged in a ring of as many pieces as ranks, by copy engines.
    """

    precisions: tuple[Buffered, ...] = ("fp16", "bf16", "fp8", "fp8_current", "mxfp8")
    """Types of products for which there are buffers; others run as with ``tensor = "backward"``
    (fill_userbuffers_buffer_for_all_gather of the same file refuses other quantised tensors)."""
    scatter: Literal["pipeline", "ring_exchange"] = "pipeline"
    """How a 16-bit product's result is scattered. pipeline: `splits` pieces along the features, by
    kernels that the product leaves `pipeline_units`. ring_exchange: as many pieces as ranks, along
    the tokens, by copy engines, and a sum of all ranks' parts in the end."""
    quantised_scatter: Literal["pipeline", "ring_exchange"] = "pipeline"
    """The same of products that take fewer than 16 bit."""
    splits: Count = 4
    """Pieces of a pipeline (num_splits)."""
    pipeline_units: Figure = Figure(16.0, "datasheet", _TE)
    """Compute units that a pipeline's product goes without, from its first piece to its last
    (num_sm with set_sm_margin)."""
    gather_units: Figure = Figure(16.0, "datasheet", _TE)
    """Compute units that a gather beside dgrad takes while it runs (num_sm of qkv_dgrad and
    fc1_dgrad, without set_sm_margin)."""
    scatter_units: Figure = Figure(16.0, "datasheet", _TE)
    """Compute units that a scatter beside wgrad takes while it runs (num_sm of qkv_wgrad and
    fc1_wgrad, without set_sm_margin)."""
