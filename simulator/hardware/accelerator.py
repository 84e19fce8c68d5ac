"""What one device can do: matrix and memory rates, kernel-library parameters, power."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from annotated_types import Le

from simulator.files import Count, Figure, record

Platform = Literal["cuda", "rocm", "xla", "neuron", "synapseai", "cann", "cpu"]
"""What programs of an accelerator are built on, and with it which training frameworks run there:
NVIDIA's CUDA, AMD's ROCm, XLA (TPU), AWS Neuron, Intel's SynapseAI (Gaudi), Huawei's CANN."""

BACKWARD_FLOP = 2.5
"""FLOPs of the backward pass of fused attention over those of the forward pass: five products
(one of them done again) against two."""


STREAMS = ("elementwise", "norm", "softmax", "loss", "optimizer", "copy")
"""Classes of memory-bound kernels of every training step."""


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
    """Parameters of one matrix-multiplication library on this device and type (kernels/gemm.py)."""

    launch_s: Figure
    """Shortest time of a call."""
    peak_fraction: Figure
    """Share of the dense peak inside full waves, at the clock of a short burst."""
    sustained_fraction: Figure
    """Clock of a long call that keeps all units busy over that of a short one in kernel timings; 1
    where not capped."""
    training_fraction: Figure
    """Clock of a call that keeps all units busy under training load, where the device is hot all
    the time, over that of a short one. A property of the machine, fitted on training runs where
    there are some."""
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
    clock_exponent: Annotated[Figure, Le(1)] = Figure(0.0)
    """How the clock under a power cap rises where a call leaves units idle: by the share of the
    rate of full waves that it reaches, to the power of minus this, up to that of a short call. The
    cap holds that share times the clock to the power of b, and this is 1/b: 1 where the voltage is
    at its floor, 1/3 where it goes with the clock; 0: one clock for all calls."""
    accumulate_exposed: Figure = Figure(0.0)
    """Where a product adds to an fp32 result in memory (a weight gradient): share of the time that
    this moves beyond a 16-bit result, at the memory bandwidth, which its sums do not hide."""
    unaligned_fraction: Figure = Figure(1.0)
    """Rate of batched products with an operand whose rows are no multiples of 16 bytes over that of
    others: no tensor cores."""
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
    """Grouped products of a rank's experts in one call, as ``expert_layer.py`` prices them.

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
    launch_s: Figure
    """Shortest time of a whole layer: routing, sorting and both products."""
    per_expert_s: Figure
    """Time that each expert of the rank adds."""
    routed_s: Figure
    """Time of sorting one routed copy of a token, on any rank."""
    choice_s: Figure
    """Shortest time of choosing experts where the fused kernel cannot: more than 16 a token."""
    score_s: Figure
    """Time that such a choice takes for one token's score of one expert."""
    token_passes: Figure
    """How often all tokens pass the memory, before they are routed and after."""
    hidden_passes: Figure
    """How often the rank's routed copies are read and written in the width of the layer."""
    ffn_passes: Figure
    """How often the activation's traffic, in the width of the experts, passes the memory."""
    cached_gain: Figure
    """How much faster than from memory a layer runs whose weights and copies the call before has
    left in the last-level cache; of timing loops alone."""


@record
class AttentionKernel:
    """A fused (flash) attention library on this device (cost/kernels/flash_attention.py)."""

    launch_s: Figure
    """Shortest time of a call."""
    peak_fraction: Figure
    """Share of the dense peak inside tiles at head size 128, at the clock of a short burst; a call
    reaches less for the masked half of diagonal tiles, the prologue, the tail and memory."""
    sustained_fraction: Figure
    """Clock of a long call over that of a short one in kernel timings; 1 where not capped."""
    training_fraction: Figure
    """Rate under training load over the rate of a short call: the device is hot all the time."""
    backward_fraction: Figure
    """Backward rate over forward rate inside tiles, counting 2.5 times the forward FLOPs."""
    tile_rows: Figure
    """Queries of a tile; half as many (64 at least) where values are wider than 128."""
    softmax_width: Figure
    """Work of the softmax for one score, in elements of a head (4 FLOPs each)."""
    prologue_keys: Figure
    """Cost of filling and draining the pipeline of a tile, in keys."""
    tail_fraction: Figure
    """Share of the longest tile that the device waits for at the end of a forward pass."""
    backward_tail_fraction: Figure
    """The same in the backward pass."""
    narrow_head_factor: Figure
    """Slowdown of tiles for every halving of the head size below 128."""
    wide_head_factor: Figure
    """Slowdown of tiles for every doubling of the head size above 128."""
    wide_head_step: Figure
    """Heads wider than 128 are padded to a multiple of this, narrower ones to one of 32."""
    query_traffic: Figure
    """Times that queries and result pass the memory."""
    key_traffic: Figure
    """Times that keys and values do, writing them to a serving cache included."""
    backward_tile_rows: Figure = Figure(128.0)
    """Keys of a tile in the backward pass."""
    window_block: Figure = Figure(0.0)
    """Keys of a block that is worked on whole where a sliding window leaves any of it; 0: what the
    window hides is cut off."""
    backward_ignores_window: Figure = Figure(0.0)
    """1: the backward pass works on all keys that a causal mask leaves, whatever the window."""


@record
class StreamKernel:
    """A class of memory-bound kernels on this device (cost/kernels/memory_bound.py)."""

    memory_fraction: Figure
    """Share of the memory bandwidth reached on large tensors."""
    launch_s: Figure
    """Shortest time of a call."""
    sharpness: Figure = Figure(1.0)
    """Exponent of the mean of start-up and traffic: 1 adds them up, more hides the shorter one."""
    row_s_per_byte: Figure = Figure(0.0)
    """Time that a block of threads takes for a byte of its row; 0: rows do not matter."""
    rows_per_unit: Figure = Figure(1.0)
    """Rows that one compute unit works on at a time."""
    cached_gain: Figure = Figure(0.0)
    """How much faster than from memory tensors move that fit into the last-level cache."""


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
    """Architecture family: volta, turing, ampere (GA100), ampere-ga10x, ada, hopper, blackwell,
    blackwell-gb20x, rubin; cdna2 to cdna5; gaudi2, gaudi3; tpu-v4 to tpu-v8; da-vinci; cpu."""
    platform: Platform = "cuda"
    """What programs for it are built on."""
    compute_units: Count
    """Streaming multiprocessors, compute units (AMD), matrix units (Gaudi, TPU), cores (Ascend)."""
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
    """By library. In training: flash (what Transformer Engine calls), sdpa (what torch calls),
    triton (of July 2023), triton_2022 (flash-attention's own), flash1 (flash-attention 1). In
    serving: trtllm, fa2 and fa3 (flash-attention of vLLM), flashinfer; with `_fp8_cache` (keys and
    values kept in fp8), `_fp8` (products in fp8 as well) or `_varlen` (no cache, no mask)."""
    stream: dict[str, StreamKernel]
    """By class. In training: elementwise, norm, softmax, loss, optimizer, copy. In serving:
    vllm_add, vllm_activation, vllm_rotary, vllm_norm; trtllm_amax (the maximum that an fp8 scale
    needs)."""
    power: Power
    program_devices: Count = 1
    """Devices that a program sees in it: two on a chip of TPU7x."""
    fp8_either_layout: bool = False
    """Products in fp8 with one scale for a tensor take operands along rows or columns; otherwise
    along the sum alone, so that a transposed copy is needed for the products of the backward pass.
    """
    untuned_fraction: Figure = Figure(1.0)
    """Rates of products and attention that software reaches which the vendor does not tune, over
    those of its own stack."""
    time_variation: Figure = Figure(0.0)
    """Standard deviation of the time of the same work from one accelerator of the kind to another,
    a share of it; 0: not known."""

    @property
    def sixteen_bit(self) -> str:
        """Type whose figures 16-bit products take: bf16, or fp16 on devices without it."""
        return "bf16" if "bf16" in self.matrix_flop_per_s else "fp16"
