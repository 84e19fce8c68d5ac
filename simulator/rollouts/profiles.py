"""Profiles that a step of reinforcement learning needs: engines, frameworks, decode kernels."""

from __future__ import annotations

from functools import cache

from simulator import catalogue
from simulator.files import Count, Figure, read_profile, record
from simulator.hardware.cluster import load_accelerator


@record
class Engine:
    """What serves the policy, hardware_profiles/engines/NAME.toml."""

    name: str
    release: str
    library: str
    """Whose products it calls, by the name that accelerators know."""
    vendors: tuple[str, ...]
    """Whose accelerators it runs on."""
    listed_sequences: Count
    """Sequences that run at once where a list of requests is handed over and nothing else said."""
    streamed_sequences: Count
    """The same where requests come one by one."""
    chunk_tokens: Count
    """Most tokens of prompts and answers in an iteration."""
    block_tokens: Count
    """Tokens that a page of the cache holds."""
    host_s: Figure
    """Host time between two iterations: scheduling, inputs, sampled tokens back."""
    host_s_per_sequence: Figure
    """What each running sequence adds to it: its tables, its token, its stop conditions."""
    listed_host_s_per_sequence: Figure
    """What it adds besides where a list of requests is handed over: the words and probabilities of
    its token are made in the same process, which other callers do beside the iteration."""
    spread_host_s: Figure
    """What ranks of their own processes add in a replica of several where messages to them and back
    are not by shared memory: called as a list, or on several servers."""
    launch_s: Figure
    """Host time of a kernel without CUDA graphs."""
    kernel_s: Figure
    """Time of a small kernel in a captured graph: start and tail."""
    kernels_per_block: Figure
    """Small kernels of a dense block beside products, attention and all-reduces."""
    kernels_per_expert_block: Figure
    """The same of a block of experts, routing included."""
    sampler_bytes: Figure
    """Memory traffic of an output of the head: raise, scale, softmax, noise, rank."""
    sampler_s: Figure
    """Starts of the sampler's kernels."""
    reserve_bytes: Figure
    """Memory beside weights and cache: context, communicators, graphs."""
    reserve_cut_bytes: Figure
    """Workspace of the largest iteration, over tp."""
    asleep_bytes: Figure
    """What stays on the device while it sleeps."""


@record
class Framework:
    """What joins trainer and engine, hardware_profiles/rl_frameworks/NAME.toml."""

    name: str
    release: str
    software: str
    """Profile of the trainer where a scenario names none."""
    step_s: Figure
    """A step's own work on the driver: batches put together, advantages, metrics."""
    colocated_switch_s: Figure
    """Changing sides on the same devices once each way: calls to all ranks, sleep, wake."""
    refit_tensor_s: Figure
    """Host time of each tensor that is gathered from the trainer's ranks and handed over."""
    refit_bytes_per_s: Figure
    """Rate at which all weights pass one rank, where every rank gathers all of them."""
    offload_fraction: Figure
    """Share of the host link's rate that states reach on their way out and back."""
    colocated_memory_share: Figure
    """Engine's share of the memory where both are colocated."""
    apart_memory_share: Figure
    """The same where the engine is alone."""
    gathers_to_score: bool
    """Whether weights that are sharded over data-parallel ranks are gathered once before a batch is
    scored and kept whole until it is, not gathered for each micro-batch."""
    mixed: tuple[str, ...]
    """When devices that train also generate, beside others that only generate: "on policy",
    "stale"; none: never."""
    bin_host_s: Figure
    """Host time of a micro-batch of packed answers that nothing hides: it is put together, its loss
    is read back."""


_USUAL_DECODE = "h100-sxm"
"""Whose decode kernels stand for those of a generation of which no device was timed."""


@record
class DecodeKernels:
    """Kernels of an engine's iterations, hardware_profiles/decode_kernels/DEVICE.toml."""

    name: str
    attention_launch_s: Figure
    """Shortest call of decode attention."""
    attention_key_head_s: Figure
    """Work of a sequence for a key head: its page table, its split."""
    attention_head_s: Figure
    """The same for a query head."""
    attention_memory_fraction: Figure
    """Share of the memory bandwidth that keys and values are read at."""
    attention_sharpness: Figure
    """Exponent of the mean of both."""
    expert_launch_s: Figure
    """Shortest fused layer of experts."""
    expert_s: Figure
    """What each expert adds that any token reaches."""
    expert_memory_fraction: Figure
    """Share of the memory bandwidth that experts' weights are read at."""
    expert_peak_fraction: Figure
    """Share of the dense peak of its products, tiles of 16 rows counted whole."""
    expert_row_passes: Figure
    """How often copies of tokens pass the memory."""
    expert_sharpness: Figure
    """Exponent of the mean of weights and products."""
    one_shot_s: Figure
    """All-reduce in one step, each rank reading all others: start."""
    one_shot_bytes_per_s: Figure
    """Rate of a rank's reads in it."""
    two_shot_s: Figure
    """All-reduce in two steps, a share each: start."""
    two_shot_bytes_per_s: Figure
    """Rate of a rank's reads in it."""


@cache
def load_engine(name: str) -> Engine:
    """Read what an engine does."""
    return read_profile(Engine, catalogue.find("engines", name), kind="engines")


@cache
def load_framework(name: str, *, where: str = "scenario") -> Framework:
    """Read what a framework does; InputError with the nearest name where there is none."""
    path = catalogue.find("rl_frameworks", name, where=where, field="rl.framework")
    return read_profile(Framework, path, kind="rl_frameworks")


def frameworks_that_mix(age: str) -> list[str]:
    """Frameworks whose devices that train generate beside others: "on policy" or "stale"."""
    return [name for name in catalogue.names("rl_frameworks") if age in load_framework(name).mixed]


@cache
def load_decode_kernels(device: str, generation: str) -> tuple[DecodeKernels, str]:
    """Read a device's decode kernels, and whose stand in for them; blank: they are its own.

    A device that nobody timed takes those of the first timed one of its generation.
    """
    lender, timed = "", catalogue.names("decode_kernels")
    if device not in timed:
        alike = (name for name in timed if load_accelerator(name).generation == generation)
        lender = device = next(alike, _USUAL_DECODE)
    path = catalogue.find("decode_kernels", device)
    return read_profile(DecodeKernels, path, kind="decode_kernels"), lender
