"""What one device can do: matrix and memory rates, kernel-library parameters, power."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from annotated_types import Gt

from simulator.files import Figure, record

__all__ = [
    "Accelerator",
    "AttentionKernel",
    "DeviceMemory",
    "GemmKernel",
    "GroupedKernel",
    "Power",
    "StreamKernel",
]


@record
class DeviceMemory:
    """The device's own memory (HBM or GDDR)."""

    capacity_bytes: Figure
    """What the datasheet says."""
    usable_bytes: Figure
    """What the driver offers an empty process: capacity less ECC, firmware and page tables."""
    bandwidth_bytes_per_s: Figure
    """Datasheet rate; kernels reach a share of it, see `StreamKernel`."""
    l2_bytes: Figure
    """Last-level cache."""


@record
class GemmKernel:
    """Parameters of one matrix-multiplication library on this device and type (cost/kernels.py)."""

    launch_s: Figure
    """Shortest time of a call."""
    peak_fraction: Figure
    """Share of the dense peak inside full waves, at the clock of a short burst."""
    sustained_fraction: Figure
    """Clock of a long call over that of a short one in kernel timings; 1 where not capped."""
    training_fraction: Figure
    """Rate under training load over the rate of a short call: the device is hot all the time. A
    property of the machine, fitted on training runs where there are some."""
    memory_fraction: Figure
    """Share of the memory bandwidth that operands and result move at."""
    prologue_k: Figure
    """Cost of filling and draining the tile pipeline, in units of the reduction length K."""
    wave_quantisation: Figure
    """1: a partial last wave costs a whole wave; 0: it costs its share."""
    small_tile_penalty: Figure
    """Extra cost of tiles smaller than 128 x 128."""
    split_k_s: Figure
    """Cost of one reduction over split-K parts; above 40e-6: the library does not split."""
    l2_refetch: Figure
    """Extra memory traffic of operands that outgrow the last-level cache."""
    accumulate_fraction: Figure = Figure(1.0)
    """Rate of a product that adds to an fp32 result in memory (a weight gradient) over that of one
    that writes 16 bit, beyond its traffic."""
    quantise_bytes_per_element: Figure = Figure(0.0)
    """Memory traffic per element of the activation operand that the call casts to 8 or 4 bits."""
    quantise_refetch: Figure = Figure(0.0)
    """How much faster, as a share, the cast of an operand is that the last-level cache holds."""
    quantise_row_s: Figure = Figure(0.0)
    """Time of the cast per row of the operand, where one thread block casts one row."""
    host_floor_s: Figure = Figure(0.0)
    """Host time of one call in eager mode; the call takes the longer of host and device."""


@record
class GroupedKernel:
    """Grouped products of a rank's experts in one call, on this device and type (cost/grouped.py).

    The share of the peak and what it needs to get there replace those of `GemmKernel`; the rest
    is what a timed layer does beside its products.
    """

    peak_fraction: Figure
    """Share of the dense peak inside full waves, at the clock of a short burst."""
    memory_fraction: Figure
    """Share of the memory bandwidth that weights, tokens and results move at."""
    prologue_k: Figure
    """Cost of filling and draining the tile pipeline, in units of the reduction length K."""
    wave_quantisation: Figure
    """1: a partial last wave costs a whole wave; 0: it costs its share."""
    small_tile_penalty: Figure
    """Extra cost of tiles smaller than 128 x 128."""
    l2_refetch: Figure
    """Extra memory traffic of operands that outgrow the last-level cache."""
    launch_s: Figure
    """Shortest time of a whole layer: routing, sorting and both products."""
    per_expert_s: Figure
    """Time that each expert of the rank adds."""
    routed_s: Figure
    """Time of sorting one routed copy of a token, on any rank."""
    token_passes: Figure
    """How often all tokens pass the memory, before they are routed and after."""
    row_passes: Figure
    """How often the rank's routed copies pass it, between and around the products."""


@record
class AttentionKernel:
    """A fused (flash) attention library on this device."""

    peak_fraction: Figure
    """Share of the dense peak on causal FLOPs at long sequences, sustained."""
    half_length: Figure
    """Sequence length at which half of that is reached."""
    backward_fraction: Figure
    """Backward rate over forward rate, counting 2.5 times the forward FLOPs."""


@record
class StreamKernel:
    """A class of memory-bound kernels on this device."""

    memory_fraction: Figure
    """Share of the memory bandwidth reached on large tensors."""
    launch_s: Figure
    """Shortest time of a call."""


@record
class Power:
    """Electrical power of one device."""

    idle_watt: Figure
    busy_watt: Figure
    """Sustained draw under training compute."""


@record
class Accelerator:
    """One accelerator, as hardware_profiles/accelerators/NAME.toml describes it."""

    name: str
    vendor: str
    generation: str
    """Architecture family (ampere, hopper, blackwell, ada)."""
    compute_units: Annotated[int, Gt(0)]
    """Streaming multiprocessors."""
    memory: DeviceMemory
    matrix_flop_per_s: dict[str, Figure]
    """Dense peak by type: fp32, tf32, fp16, bf16, fp8 (one scale for a tensor), fp8_blockwise (one
    for 128 x 128 weights, Hopper), mxfp8 (one for 32 elements) and nvfp4 (one for 16), both
    Blackwell. A type that is missing cannot be used."""
    gemm: dict[str, dict[str, GemmKernel]]
    """By library, then by type."""
    grouped: dict[str, dict[str, GroupedKernel]] = field(default_factory=dict)
    """Grouped products of experts, by library, then by type; a type that is missing is priced as a
    batch of plain products."""
    attention: dict[str, AttentionKernel]
    """By library: flash (what Transformer Engine calls), sdpa (what torch calls), triton (of 2023),
    flash1 (flash-attention 1)."""
    stream: dict[str, StreamKernel]
    """By class: elementwise, norm, softmax, loss, optimizer, copy."""
    power: Power
