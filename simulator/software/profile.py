"""What a training framework does: kernels, fusions, overlaps, states, and the layouts it can run.

Every number can be measured alone (microseconds, bytes, a yes or no). There is no factor on a
step, a stage or a model.
"""

from __future__ import annotations

from typing import Annotated, Literal

from simulator import catalogue
from simulator.files import Figure, Word, read_profile, record
from simulator.schedules.registry import WORDS
from simulator.software.host_work import HostWork
from simulator.software.input_fetch import InputFetch
from simulator.software.user_buffers import UserBuffers

__all__ = [
    "Allocator",
    "Kernels",
    "Overlap",
    "Software",
    "StateBytes",
    "Supports",
    "load_software",
]

Sharding = Literal["ddp", "zero1", "zero2", "zero3"]
Schedule = Annotated[str, Word(WORDS)]
CpKind = Literal["ring", "all_gather", "all_to_all", "hierarchical"]
Reshard = Literal["always", "group", "never"]
Dispatcher = Literal["alltoall", "allgather", "deepep"]
Recompute = Literal["none", "selective", "full"]
Fusion = Literal[
    "norm",
    "norm_gradients",
    "linear_bias",
    "bias_gradients",
    "bias_activation",
    "attention_scale",
    "bias_dropout_add",
    "softmax",
    "causal_softmax",
    "rope",
    "loss",
    "gradient_accumulation",
]
Module = Literal[
    "core_attn",
    "norm",
    "mlp",
    "mlp_act",
    "moe",
    "moe_act",
    "shared_experts",
    "mla_up_proj",
    "half_matmul",
]


NcclRelease = Literal[
    "",
    "2.7",
    "2.8",
    "2.9",
    "2.10",
    "2.11",
    "2.12",
    "2.13",
    "2.14",
    "2.15",
    "2.16",
    "2.17",
    "2.18",
    "2.19",
    "2.20",
    "2.21",
    "2.22",
    "2.23",
    "2.24",
    "2.25",
    "2.26",
    "2.27",
    "2.28",
    "2.29",
    "2.30",
]


@record
class Supports:
    """Which layouts the framework can run at all."""

    sharding: tuple[Sharding, ...]
    """How data-parallel ranks may share states."""
    sharding_with_pipeline: tuple[Sharding, ...]
    """The subset that works with pp > 1."""
    sharding_with_tensor: tuple[Sharding, ...]
    """The subset that works with tp > 1."""
    hybrid_sharding: tuple[Sharding, ...] = ("zero1", "zero2", "zero3")
    """Shardings that fewer ranks than all replicas may share (shard_group below dp x cp)."""
    reshard: tuple[Reshard, ...] = ("always",)
    """What zero3 may do with a block's parameters after its forward pass: shard them again over all
    ranks that share them, over a group of these, or not at all (FSDP2's reshard_after_forward)."""
    tensor: bool = True
    """Tensor parallelism (tp > 1)."""
    sequence_parallel: tuple[bool, ...] = (True,)
    """Values that make sense with tp > 1."""
    pipeline: bool = True
    """Pipeline parallelism (pp > 1)."""
    schedules: tuple[Schedule, ...] = ("1f1b", "interleaved")
    """Pipeline schedules."""
    rounds: Literal["pp", "longer", "any"] = "pp"
    """Micro-batches that interleaved schedules take through a chunk before the next, in rounds
    alike: pp, that or more, or any number (torch: a single round where there are fewer)."""
    post_validation: bool = False
    """Zero-bubble schedules without a barrier at the end of a step (optimizer_post_validation)."""
    uneven_stages: bool = True
    """Pipeline stages with unequal numbers of layers."""
    cp_kinds: tuple[CpKind, ...] = ("ring",)
    """Kinds of context parallelism, the first is the default; none: no cp > 1."""
    expert: bool = True
    """Expert parallelism (ep > 1) folded into dp x cp x tp."""
    dispatchers: tuple[Dispatcher, ...] = ("alltoall",)
    """How tokens may reach their experts, the first is the default."""
    recompute: tuple[Recompute, ...] = ("none", "selective", "full")
    """Activation recomputation."""
    recompute_layers: bool = True
    """Full recomputation of only some layers of each rank."""
    offload: bool = False
    """Activations of some layers in host memory until their backward pass, without pipeline."""
    offload_excludes: tuple[Literal["recompute", "graphs", "all_layers"], ...] = ()
    """What activations in host memory do not go with: recomputation, kernels that a captured graph
    launches, an offload of all layers of the model (one must stay)."""
    optimizer_offload: bool = False
    """Optimizer states and step on the host (ZeRO-Offload; Megatron-Core's optimizer offload)."""
    parameter_offload: bool = False
    """zero3: parameters in host memory until a layer needs them (ZeRO-Infinity)."""
    nvme_offload: bool = False
    """What can be offloaded may wait on local NVMe drives instead of in host memory."""
    optimizer_offload_sharding: tuple[Sharding, ...] = ("ddp", "zero1", "zero2", "zero3")
    """Shardings with which the optimizer can be offloaded."""
    fp8_weights: tuple[str, ...] = ()
    """Types whose weights can be kept and gathered in 8 bit alone, with shared optimizer states."""
    fp8_weights_offload: tuple[str, ...] = ()
    """Those of them with which the optimizer can be offloaded, too."""
    rank_orders: tuple[str, ...] = ("tp-cp-dp-pp",)
    """Orders of the rank grid, innermost dimension first; the first is the default."""
    precisions: tuple[str, ...] = ("fp32", "tf32", "fp16", "bf16")
    """Types of the large matrix multiplications."""


@record
class Kernels:
    """Which kernels run."""

    gemm_library: str
    """Key of the accelerator's `gemm` table."""
    attention: Literal["flash", "unfused"]
    """flash: no sequence x sequence matrix in memory."""
    attention_library: str = "flash"
    """Key of the accelerator's `attention` table."""
    fused: tuple[Fusion, ...] = ()
    """Memory-bound operators that run as one kernel, not operator by operator. linear_bias: added
    by products. norm_gradients, bias_gradients: sums over tokens take no kernel. causal_softmax:
    what a causal mask hides is not read. attention_scale: takes no kernel. gradient_accumulation:
    products of weight gradients add to what is there, else adding is other traffic
    (`micro_batch_traffic`, `accumulation_traffic`)."""
    selective_modules: tuple[Module, ...] = ("core_attn",)
    """What selective recomputation drops and computes again. mlp: the dense MLP, mlp_act: its
    activation or that of the experts, moe: the whole mixture with dispatch and combine, moe_act:
    the routed experts' activation, shared_experts: those that every token passes, mla_up_proj:
    latent attention's up-projections. half_matmul: all but attention and every second product."""
    recompute_stops_early: Literal["never", "16bit", "always"] = "never"
    """Recomputation ends with the last tensor that a block's backward pass reads, before its last
    linear. 16bit: torch's checkpoint without re-entry, which runs fp8 linears; always: compiled."""
    norm_inputs_fp32: bool = False
    """Fused norms read a copy of their input in fp32 and write its gradient so, with a cast of
    either (InternLM's models)."""
    reruns_norms: bool = False
    """Every block runs its norms, and the residual sum that the second one reads, again in its
    backward pass instead of keeping what they read (InternLM's dropout_selective_checkpoint)."""
    keeps_gathered_inputs: bool = False
    """Sequence-parallel linears keep their gathered input for the backward pass (torch DTensor);
    otherwise they keep the shard and gather again (Megatron)."""
    expert_products: Literal["one_kernel", "streams"] = "one_kernel"
    """How a rank's experts are multiplied. one_kernel: a grouped product takes all of them.
    streams: a plain product for every expert, dealt to a few streams that hide their starts but
    share the device (Transformer Engine's multi-stream cuBLAS)."""
    expert_library: Literal["deepep", "hybridep"] = "deepep"
    """Who moves tokens where the layout's dispatcher is deepep: DeepEP's own kernels, or NVIDIA's
    HybridEP (Megatron-Core's --moe-flex-dispatcher-backend)."""
    nccl: NcclRelease = ""
    """Release of NCCL that it brings along; what the collective library has no figures for is taken
    as the next newer one that was measured. Blank: the newest."""
    context_attention: Literal["transformer_engine", "torch"] = "transformer_engine"
    """Who runs attention under context parallelism. transformer_engine: after a gather on all keys
    at once; 16-bit gradients. torch: block by block in any case, the first one beside the gather,
    on keys repeated for every query head; fp32 gradients go round."""
    repeats_keys: bool = False
    """Keys and values are copied for every query head before attention (torchtune 0.4)."""
    loss_bytes_per_logit: Figure | None = None
    """Bytes for every logit at the fullest moment of a loss that is not fused: 12 in eager torch
    (fp32 logits, their log-softmax, its gradient), which are gone before the head's weight gradient
    is there. None given: 16-bit logits, an fp32 copy and its gradient beside the weight gradient.
    """
    split_loss_bytes_per_logit: Figure | None = None
    """The same where the vocabulary is split over tp; None: as without."""
    chunk_bytes_per_logit: Figure = Figure(8.0, "assumed", "fp32 copy and gradient of one piece")
    """Bytes for every logit of the piece in work where the loss is computed in pieces, beside the
    16-bit logits of all; 2 where the loss is compiled (its 16-bit gradient)."""
    fused_loss_traffic: Figure = Figure(
        24.0, "assumed", "compiled pieces over 16-bit and fp32 logits"
    )
    """Memory traffic for every logit, both passes, of a fused loss: 10 for Transformer Engine's
    (forward two reads and the gradient in place of the logits, backward its product)."""
    clears_inputs: bool = False
    """A linear frees its kept input as soon as the weight gradient is there (TE's
    clear_tensor_data, autograd's own order), before the backward pass of the activation in front
    of it."""
    gradients_by_block: bool = False
    """A block's weight gradients are whole until its backward pass has ended and are reduced
    together (FSDP2): the feed-forward module's stand beside its activations."""
    whole_embedding_gradient: bool = False
    """Tensor-parallel ranks make the embedding's gradient for the whole vocabulary and then take
    their share of it (torch DTensor)."""
    pads_experts: bool = False
    """Where products take fewer than 16 bit, every expert's tokens are copied into rows that end at
    a multiple of 16 or 32, and the outputs back (Transformer Engine's Fp8Padding), unless experts
    are padded to a capacity or the dispatch leaves room itself (HybridEP)."""
    gathers_quantised: bool = False
    """Where products take fewer than 16 bit, tensor parallelism gathers what they take (Transformer
    Engine, torchao's float8 linears); otherwise the 16-bit activations."""
    saves_quantised_inputs: bool = False
    """Where products take fewer than 16 bit, linears keep their input in that type, for the weight
    gradient (Transformer Engine); otherwise in 16 bit and cast it again (torchao's float8)."""
    casts_weights_each_pass: bool = False
    """Where products take fewer than 16 bit, weights are cast in every forward pass, unless ranks
    gather them so, and put along columns in every backward pass (torchao's Float8Linear); otherwise
    once per step."""
    norm_casts: tuple[str, ...] = ()
    """Types in which norms write their result themselves, for the linear in the same module
    (Transformer Engine's LayerNormLinear: fp8 with delayed scaling; mxfp8 with cuDNN's norms)."""
    norm_maxima: tuple[str, ...] = ()
    """Types for whose scale these norms take the maximum of their result, so that the cast does not
    read it once more (fp8_current in Transformer Engine since August 2025)."""
    swizzled_scales: Literal["none", "weights", "all"] = "none"
    """Operands whose scales (mxfp8, nvfp4) a kernel of its own puts into the tiles that products
    read, before each product: all (Transformer Engine 2.0 to 2.11), or weights alone where casts
    write tiles."""
    reduces_maxima: bool = False
    """fp8 with delayed scaling: the maxima behind the scales are reduced over all ranks that share
    a tensor, in every pass (Transformer Engine's reduce_amax)."""
    separate_linears: bool = False
    """Queries, keys and values, and gate and up, are linears and products of their own (models of
    torch); otherwise one product each, of all their features."""
    reduces_each_projection: bool = False
    """Tensor parallelism without sequence parallelism: each of several linears that share an input
    (queries, keys and values; gate and up) reduces its gradient by itself (torch's
    ColwiseParallel), instead of once for their sum."""
    reduction_copies: Figure = Figure(0.0)
    """Memory traffic per byte of a reduction over tp, in the way of the compute: functional
    collectives copy what they reduce (torch DTensor)."""
    sequence_copies: Figure = Figure(0.0)
    """Memory traffic per byte that tensor parallelism gathers or scatters along the sequence, in
    the way of the compute: functional collectives gather and scatter along the first dimension,
    which is the batch, and put pieces in order by a copy (torch DTensor)."""
    pads_vocabulary_to: int = 1
    """The vocabulary is padded to a multiple of this times tp."""


@record
class Overlap:
    """Which communication has compute to hide behind; the window is that compute's time."""

    tensor: Literal["none", "backward", "userbuffers", "async"] = "none"
    """backward: the column-parallel linears' collectives of the backward pass run beside dgrad and
    wgrad. userbuffers: these, and all others of a block's linears beside pieces of the product that
    they feed or follow (Transformer Engine's tp_comm_overlap). async: these others alone, gathers
    and scatters in a ring of as many pieces as ranks (torch's asynchronous tensor parallelism)."""
    user_buffers: UserBuffers = UserBuffers()
    """How userbuffers does it."""
    gradient_reduce: bool = False
    """Bucketed gradient reduction runs beside the backward pass of the last micro-batch."""
    parameter_gather: bool = False
    """The sharded optimizer's gather of parameters runs beside the next forward pass."""
    sharded_prefetch: bool = False
    """zero3: the next layer's parameters are gathered beside the current layer's compute."""
    pipeline_send: bool = False
    """Interleaved schedule: sends run beside the next chunk's compute."""
    expert: bool = False
    """Dispatch and combine of one micro-batch run beside the compute of another (Megatron-Core's
    combined 1F1B). Passes that have no other beside them show theirs: the first ones forward, as
    many at the end, and those that fill and drain the pipeline. One more block's activations are
    there."""
    context_ring: bool = True
    """Exchange of keys and values runs beside attention that does not wait for it: all but the last
    block of a ring, the first block of torch's gather."""


@record
class StateBytes:
    """Bytes per parameter in mixed precision (16-bit compute)."""

    weight: Figure
    """The 16-bit copy that stays; 0 when only the sharded fp32 weights stay (FSDP2)."""
    gradient: Figure
    """The gradient accumulator."""
    master: Figure
    """fp32 weights of the optimizer; 0 where it updates the 16-bit weights themselves."""
    moment: Figure = Figure(4.0, "datasheet", "AdamW keeps its moments in fp32")
    """One of the optimizer's moments."""
    reduce: Figure
    """Gradients on the wire."""
    gather: Figure
    """Weights on the wire."""
    optimizer_traffic: Figure
    """Memory traffic of one AdamW step, with gradient norm, clipping and zeroing."""
    optimizer_traffic_fp32: Figure = Figure(32.0, "datasheet", "AdamW moves 28 B, the norm 4 B")
    """The same where weights, gradients and moments are fp32 and there is no other copy."""
    step: Figure = Figure(0.0)
    """Bytes per parameter of the rank's share that the optimizer step allocates in single pieces:
    no free block of an activation holds them, so that they are reserved on top."""
    step_buffer_bytes: Figure = Figure(0.0)
    """A buffer of fixed size that the reduction before the step allocates likewise."""
    largest_copy: Figure = Figure(0.0)
    """Bytes per parameter of the rank's largest weight tensor, whose gradient is copied in one
    piece before it is added to its accumulator; reserved on top likewise."""
    quantised_weight_copies: Figure = Figure(0.0)
    """Copies of the blocks' weights in the type of the products, where that has fewer than 16 bit,
    that stay beside `weight`: 2 where rows and columns each have one (Transformer Engine)."""
    micro_batch_traffic: Figure = Figure(0.0)
    """Memory traffic of every micro-batch per whole parameter beside the matrix products: casts,
    copies in and out of flat buffers, accumulation where the product does not fuse it."""
    accumulation_traffic: Figure = Figure(0.0)
    """Memory traffic per whole parameter of adding a micro-batch's gradient to that of the ones
    before it, from the second micro-batch on, where the product does not fuse it (eager torch: the
    sum and the gradient read, the sum written)."""
    gather_copies: Figure = Figure(0.0)
    """Memory traffic per byte of weights gathered block by block: copies into and out of the flat
    buffer (FSDP2), in the way of the compute."""
    reduce_copies: Figure = Figure(0.0)
    """Memory traffic per byte of gradients reduced over data-parallel ranks: copies into the flat
    buffer or bucket and out of it, division, in the way of the compute."""
    live_parameters: Figure = Figure(0.0)
    """zero3: parameters that stay whole on the device from their forward to their backward pass,
    which is near (half of DeepSpeed's stage3_max_reuse_distance); 0: none but the next block's."""
    reduces_everywhere: bool = False
    """zero1 and zero2: gradients are all-reduced, although every rank keeps its share only
    (DeepSpeed's use_multi_rank_bucket_allreduce)."""
    broadcasts_parameters: bool = False
    """zero1: every rank broadcasts its share of the updated parameters in turn (InternEvo, early
    DeepSpeed), where others gather all shares at once."""
    offloads_gradients: bool = False
    """Where the optimizer is offloaded, gradients go to the host after every micro-batch and are
    added up there (DeepSpeed); otherwise they stay and go once per step (Megatron-Core)."""
    frees_gradients: bool = False
    """Gradients are freed after every step (torch's zero_grad): with a single micro-batch none is
    there before its backward pass, and they grow while activations shrink."""
    bucket_bytes: Figure
    """Size of one bucket of the gradient reduction."""
    bucket_bytes_per_rank: Figure = Figure(0.0)
    """The bucket is at least this times the data-parallel ranks, so that ring latency stays small
    (Megatron-Core)."""
    reduces_by_block: bool = False
    """One reduction per transformer block instead of buckets (FSDP2)."""
    keeps_gathered_with_pipeline: bool = False
    """zero3 with pp > 1: parameters stay gathered and gradients unreduced until the last
    micro-batch (FSDP2 without reshard, torchtitan's default policy)."""
    adds_unreduced: bool = False
    """Where gradients stay whole until the last micro-batch, those of the first are cast to the
    type of the reduction and later ones added to them, by kernels of their own (FSDP2)."""
    reduces_after_passes: bool = False
    """Where gradients stay whole until the last micro-batch, a stage's are reduced once its last
    backward pass has ended, not beside it (torch.distributed.pipelining calls FSDP2's hooks
    then)."""
    reduces_every_micro_batch: bool = False
    """zero2 and zero3: gradients are reduced after every micro-batch, not once per step."""


@record
class Allocator:
    """Memory beyond tensors."""

    workspace_bytes: Figure
    """Workspaces that stay allocated: matrix-multiplication library, fused kernels."""
    dummy_gradient_copies: Figure = Figure(0.0)
    """Copies of the rank's linears, one of every shape, kept for gradient-accumulation fusion."""
    grouped_workspace_bytes: Figure = Figure(0.0)
    """Further workspaces on ranks that hold experts: one for every stream of a grouped product."""
    head_workspace_bytes: Figure = Figure(0.0)
    """Further workspaces on the rank with the output head, whose product is torch's own."""
    context_bytes: Figure = Figure(0.0)
    """What the process takes of the device before its first tensor: CUDA context and kernels."""
    communicators: Figure = Figure(0.0)
    """Communicators of a rank beside one for every degree above 1."""
    pipeline_communicators: Figure = Figure(0.0)
    """The same that come with pp > 1: to neighbours, for tied tables and split sends."""
    keeps_input_gradient: bool = False
    """Stages other than the first hold the gradient of their input until the next one replaces it
    (a variable of Megatron's schedules outlives the next backward pass)."""
    pipeline_buffers: bool = False
    """Stages receive into a buffer for every micro-batch and direction, and keep their outputs
    until the backward pass (torch.distributed.pipelining)."""
    fragmentation_fraction: Figure = Figure(0.0)
    """Reserved over allocated memory, less one."""
    reserved_spread: Figure | None = None
    """Standard deviation of the logarithm of measured over predicted reserved memory, the error
    that all layouts share; none given: memory has no P10 and P90."""
    split_reserved_spread: Figure | None = None
    """The same with tp or pp above 1, where no such layout was read; none given: no other."""
    pools_by_stream: bool = False
    """Gathered weights and reduced gradients come from the pools of streams of their own (FSDP2):
    what is idle there at the peak cannot serve the rest, so it is reserved on top."""


@record
class Software:
    """One framework and release, as hardware_profiles/software/NAME.toml describes it."""

    name: str
    release: str
    """The release or period the figures hold for."""
    launcher: Literal["megatron", "torchtitan", "torchrun", "deepspeed", "script"]
    """Whose launch flags a plan prints; script: nobody's, the run has a script of its own."""
    supports: Supports
    kernels: Kernels
    overlap: Overlap
    host: HostWork
    input: InputFetch = InputFetch()
    states: StateBytes
    allocator: Allocator


def load_software(name: str, *, where: str = "profiles", field: str = "software") -> Software:
    """Read a software profile by name or path."""
    path = catalogue.find("software", name, where=where, field=field)
    return read_profile(Software, path, kind="software")
