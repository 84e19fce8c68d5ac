"""What nobody states changes nothing: defaults of records are 0 or 1, or have a source."""

from __future__ import annotations

import dataclasses
import importlib
import math
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import simulator
from simulator.files import Figure

ROOMS = (
    *("software", "hardware", "economics", "reliability", "reinforcement", "cost", "events"),
    *("workload", "rollouts", "between_sites", "data_input", "sparse_tables", "parameter_servers"),
)

SOURCED = {
    # torch numbers tokens in int64, its losses copy logits to fp32 and keep their gradients
    **{"InputFetch.token_bytes": 8.0, "InputFetch.label_bytes": 8.0},
    "Kernels.chunk_bytes_per_logit": 4.0 + 4.0,
    # AdamW: weight and both moments read and written in fp32, the gradient read, and for the norm
    **{"StateBytes.moment": 4.0, "StateBytes.optimizer_traffic_fp32": 3 * 2 * 4.0 + 4.0 + 4.0},
    # get_default_config of Transformer Engine: num_splits 4, num_sm 16
    **{"UserBuffers.splits": 4, "UserBuffers.pipeline_units": 16.0},
    **{"UserBuffers.gather_units": 16.0, "UserBuffers.scatter_units": 16.0},
    "Dispatch.units": 20.0,  # Buffer.num_sms of DeepEP
    "AttentionKernel.backward_tile_rows": 128.0,  # kBlockN of FlashAttention
    "DeviceRates.operand_bytes": 2.0,  # 16 bits
    # a DGX: eight adapters of 400 Gbit/s, 32 servers below a leaf
    "Purchase.network_quoted_bits_per_s": 8 * 400e9,
    **{"Machine.node_adapters": 8, "Machine.leaf_nodes": 32},
    "Reliability.reference_age_s": 365 * 86_400.0,
    # attention and MLP; no sequence that a model is defined for is longer than a million tokens
    **{"Block.norms": 2, "Architecture.max_positions": 2**20},
    "DataInput.prefetch": 2,  # prefetch_factor of torch's DataLoader
    # DLRM on Criteo in MLPerf: 13 dense features, rows of 128 in fp32
    **{"Sparse.width": 128, "Sparse.dense_features": 13, "Sparse.element_bytes": 4.0},
}

ASSUMED = {
    **{"Kernels.fused_loss_traffic": 24.0, "Kernels.eager_loss_traffic": 44.0},
    **{"Economics.months": 4 * 12, "Use.months": 4 * 12},
    **{"Mamba2.convolution": 4, "Mamba2.chunk": 128, "Mamba1.convolution": 4},
    **{"GatedDelta.convolution": 4, "GatedDelta.chunk": 64, "MatrixMemory.chunk": 64},
    **{"KimiDelta.convolution": 4, "KimiDelta.chunk": 64, "GatedRecurrence.convolution": 4},
    **{"LightningAttention.chunk": 256, "ShortConvolution.convolution": 3, "TimeMixing.mixes": 3},
    **{"CompressedAttention.window": 128, "Store.request_bytes": 2.0**20},
    **{"Sites.compression_rank": 2, "Sites.compression_fraction": 0.01},
    **{"Sparse.exchange_element_bytes": 2.0, "Sparse.row_state_bytes": 4.0},
    **{"RL.prompt_tokens": 128, "RL.spread": 0.8, "RL.between_prompts": 0.5},
    **{"RL.reward_workers": 64, "Generation.acceptance": 0.7},
    **{"Slow.time_factor": 1.06, "Replica.routing": 1.2, "Node.host_time": 1.17},
}
"""Held so that nobody changes them without meaning to."""

PLACES = {"Endpoint.server": -1.0, "Endpoint.index": -1.0, "Timeline.micro_batches": 2.0**31}
"""None, and all."""


def records(room: str) -> Iterator[Any]:
    """Classes of a room's records."""
    (folder,) = simulator.__path__
    for found in pkgutil.walk_packages([str(Path(folder) / room)], f"simulator.{room}."):
        for thing in vars(importlib.import_module(found.name)).values():
            if dataclasses.is_dataclass(thing) and thing.__module__ == found.name:
                yield thing


def defaults(room: str) -> Iterator[tuple[str, Any]]:
    """Numbers that fields of a room's records have unless they are given."""
    for thing in records(room):
        for field in dataclasses.fields(thing):
            default: Any = field.default
            if type(default) in (int, float, Figure) and math.isfinite(default):
                yield f"{getattr(thing, '__name__', '')}.{field.name}", float(default)


def test_a_default_is_neutral_or_has_a_source() -> None:
    found = {name: value for room in ROOMS for name, value in defaults(room)}
    assert len(found) > 150
    other = {name: value for name, value in found.items() if value not in (0.0, 1.0)}
    assert other == SOURCED | ASSUMED | PLACES


def test_shares_and_factors_leave_all_unless_they_are_given() -> None:
    """A rate that loses nothing, a job that runs in all hours, links of which all is left."""
    whole = ("scale_up", "scale_out", "in_use", "goodput", "batch", "calls", "load", "turns")
    more = ("oversubscription", "rate_factor", "early_shape", "sharpness", "rows_per_unit")
    found = {name: value for room in ROOMS for name, value in defaults(room)}
    named = {name: value for name, value in found.items() if name.split(".")[1] in whole + more}
    assert len(named) > 15
    assert set(named.values()) == {1.0}


PASSES = {
    # counted operator by operator (docs/experiments.md): 10 and 15 passes; in fp32 assumed
    **{"TorchOperators.rotary_passes": (10, 15), "TorchOperators.wide_rotary_passes": (18, 28)},
    # 7 and 7 where only the factor is apart; 0: as other heads are rotated
    **{"Kernels.scaled_rotary_passes": (7, 7), "Kernels.latent_rotary_passes": (0, 0)},
}


def test_pairs_of_numbers_have_a_source() -> None:
    found = {
        f"{getattr(thing, '__name__', '')}.{field.name}": field.default
        for room in ROOMS
        for thing in records(room)
        for field in dataclasses.fields(thing)
        if isinstance(field.default, tuple) and any(type(x) in (int, float) for x in field.default)
    }
    assert found == PASSES
