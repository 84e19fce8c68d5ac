"""Keywords of `plan`, `predict` and others: fields of a scenario, for editors and type checkers.

``python -m workshop.pages.keywords simulator`` writes this file from the records that read a
scenario; a test holds it to them. Do not edit it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

Batching = Literal[
    "packed",
    "padded",
    "dynamic",
    "sorted",
]
Precision = Literal[
    "fp32",
    "tf32",
    "fp16",
    "bf16",
    "fp8",
    "fp8_current",
    "fp8_blockwise",
    "mxfp8",
    "nvfp4",
]
Optimizer = Literal[
    "adamw",
    "adamw_8bit",
    "adafactor",
    "lion",
    "muon",
    "lamb",
    "lars",
    "sgd",
]
MomentDtype = Literal[
    "fp32",
    "fp16",
    "bf16",
]
GradientDtype = Literal[
    "fp32",
    "fp16",
    "bf16",
]
ReduceDtype = Literal[
    "fp32",
    "fp16",
    "bf16",
]
FakeQuantisedWeights = Literal[
    "none",
    "detached_scales",
    "differentiable_scales",
]
MoeRouting = Literal[
    "forced",
    "balanced",
    "adapting",
    "unbalanced",
    "random",
]
CpKind = Literal[
    "ring",
    "all_gather",
    "all_to_all",
    "hierarchical",
    "any",
]
Dispatcher = Literal[
    "alltoall",
    "allgather",
    "deepep",
    "any",
]
Sharding = Literal[
    "ddp",
    "zero1",
    "zero2",
    "zero3",
]
Recompute = Literal[
    "none",
    "selective",
    "full",
]
OptimizerOffload = Literal[
    "none",
    "cpu",
    "nvme",
]
ParameterOffload = Literal[
    "none",
    "cpu",
    "nvme",
]
Schedule = Literal[
    "1f1b",
    "interleaved",
    "gpipe",
    "looped_bfs",
    "zb_h1",
    "zb_h2",
    "zb_v",
    "interleaved_zb",
    "dualpipe",
    "dualpipe_v",
    "pipedream",
    "pipedream_2bw",
    "v_half",
    "v_min",
    "any",
]
Minimize = Literal[
    "time",
    "cost",
    "energy",
]


class RunKeywords(TypedDict, total=False):
    """Fields of [training], [layout], [goal] and [search] by name, other sections as mappings."""

    sequence_length: int | str | Sequence[int] | None
    """Tokens per sequence; plan takes a list or a range ("4096..16384") and chooses."""
    global_batch: int | str | Sequence[int] | None
    """Sequences per optimizer step; plan takes a list or a range ("256..4096") and chooses."""
    lengths: Sequence[int | str] | None
    """Tokens of sequences as they come, a sample or quantiles; none given: all have
    `sequence_length`, which no one may exceed."""
    length_shares: Sequence[float | str] | None
    """Share of the sequences that has each of `lengths`; they add up to 1. None given: each is
    equally likely."""
    batching: Batching | None
    """What is done with unequal `lengths`. packed: sequences fill up `sequence_length` and attend
    to themselves only. padded (fixed): every one is padded to `sequence_length`; dynamic: to the
    longest of its micro-batch; sorted (uniform dynamic): the same, with sequences of like length
    together."""
    tokens: float | str | None
    """Tokens that the whole run sees; none given: only one step is asked about."""
    critical_batch: float | str | None
    """Batch at which twice the tokens of a small one are needed to the same loss (McCandlish et al.
    2018): `tokens` are then those of a small batch, and the run takes 1 + global_batch /
    critical_batch times as many. None given: `tokens` are those of this batch."""
    precision: Precision | None
    """Type of the large matrix multiplications; all but fp32 and tf32 keep fp32 optimizer states.
    The 8- and 4-bit types cover the linear layers of the blocks, attention and head stay bf16. fp8
    scales tensors by their past (delayed scaling), fp8_current by their present maximum,
    fp8_blockwise, mxfp8 and nvfp4 block by block."""
    fp8_weights: bool | None
    """With 8-bit precision: weights of the blocks' linears are kept and gathered in 8 bit alone,
    made from the fp32 ones by the optimizer step (Megatron-Core's --fp8-param-gather, torchtitan's
    enable_fsdp_float8_all_gather); otherwise a 16-bit copy stays and is what ranks gather."""
    optimizer: Optimizer | None
    """adamw and lamb keep two moments per parameter (fp32 unless the software says otherwise),
    adamw_8bit two of 8 bit with a scale for every 256, lion, lars and sgd (with momentum) one,
    adafactor one number for every row and column of a matrix, muon one moment of the blocks'
    matrices and two of everything else, which AdamW updates."""
    adafactor_momentum: bool | None
    """adafactor: keep a first moment per parameter too."""
    moment_dtype: MomentDtype | None
    """Type of the optimizer's moments; none given: as the software keeps them."""
    master_weights: bool | None
    """Whether the optimizer updates fp32 weights (false: the 16-bit ones themselves); none given:
    as the software does. False with 16-bit gradients and moments is pure 16-bit training."""
    gradient_dtype: GradientDtype | None
    """Type in which gradients are accumulated; none given: as the software does."""
    reduce_dtype: ReduceDtype | None
    """Type in which gradients travel; none given: as the software does."""
    optimizer_in_backward: bool | None
    """The optimizer updates a block as soon as its gradients are there, and frees them; it cannot
    add up micro-batches."""
    optimizer_post_validation: bool | None
    """With a zero-bubble schedule, ranks begin their next step without waiting for the norm of all
    gradients and roll back an update that proves wrong (Qi et al. 2024, section 4); a step is then
    the time from one to the next."""
    optimizer_offload_fraction: float | str | None
    """Share of the optimizer states that a layout with optimizer_offload moves to the host
    (Megatron-Core's --optimizer-offload-fraction, DeepSpeed's ratio)."""
    stash_bytes: Mapping[str, Any] | None
    """Compressed stashes: bytes per element of what waits for the backward pass, by class, encoded
    and decoded by memory-bound kernels; none given: as the operators keep it."""
    loss_chunks: int | str | None
    """Pieces in which output head and loss are computed: logits are raised to fp32, and their
    gradient taken, one piece at a time."""
    lora_rank: int | str | None
    """Rank of low-rank adapters; above 0 they alone are trained and the model is frozen (LoRA)."""
    lora_targets: Sequence[str] | None
    """Matrices that get adapters, of those that the model has; routed experts get none."""
    quantised_base: bool | None
    """With adapters: the blocks' frozen matrices are kept in 4-bit NF4 with double quantisation and
    turned into 16 bit for every product (QLoRA); without, those of a frozen text."""
    fake_quantised_weights: FakeQuantisedWeights | None
    """Quantisation-aware training: every linear of the blocks rounds its weight to few bits and
    scales it back before the product, which stays in 16 bit, with kernels of torch; of how many
    bits costs the same. detached_scales: a group's scale is a constant to autograd (torchao's
    IntxFakeQuantizer); differentiable_scales: gradients flow through minimum and maximum of the
    group (its Int4WeightFakeQuantizer). With adapters: the adapted linears alone."""
    fake_quantised_inputs: bool | None
    """With fake_quantised_weights: every such linear rounds its input, too, with a scale for each
    token."""
    fake_quantised_head: bool | None
    """With fake_quantised_weights: the output head does so as well, in pieces for each of them."""
    frozen_layers: int | str | None
    """The first layers that are not trained, together with the embedding below them."""
    frozen_embedding: bool | None
    """The embedding, and a head tied to it, is not trained."""
    frozen_head: bool | None
    """The output head is not trained."""
    frozen_parts: Sequence[str] | None
    """Of a model with towers for images or sound: the parts that are not trained. The gradient of a
    projector or tower passes through a language model (text) that is frozen."""
    decoder_length: int | str | None
    """Tokens per sequence that the decoder of an encoder-decoder writes; 0 means as many as the
    encoder reads (sequence_length, which tokens and throughput count)."""
    moe_imbalance: float | str | None
    """Tokens that arrive at the fullest expert rank over the mean of all; 1 means all alike."""
    moe_load: Sequence[float | str] | None
    """Share of the routed tokens that each expert gets in every layer, first to last; or each of so
    many equal runs of neighbouring experts (one for every ep rank). They add up to 1. The fullest
    rank, which the others wait for, follows; given instead of `moe_imbalance`."""
    moe_routing: MoeRouting | None
    """What spreads tokens over experts, from which the fullest rank follows where neither
    `moe_imbalance` nor `moe_load` is given: forced (even, a benchmark's setting), balanced (by a
    loss or biases, some hundred steps on), adapting (the first hundred, or other data than it was
    balanced on), unbalanced (trained without either), random (new weights on made-up tokens). A
    scenario that gives none of the three is balanced."""
    moe_capacity_factor: float | str | None
    """Most tokens that an expert takes, over the mean; the others are dropped. None drops none."""
    moe_pads_to_capacity: bool | None
    """With a capacity factor: every expert is padded to its capacity and computes as if full."""
    tp: int | str | None
    """Tensor-parallel ranks, which cut every matrix."""
    pp: int | str | None
    """Pipeline stages."""
    vpp: int | str | None
    """Chunks of the model on each pipeline stage; above 1 the schedule is interleaved."""
    cp: int | str | None
    """Context-parallel ranks, which cut every sequence."""
    cp_kind: CpKind | None
    """How context-parallel ranks exchange keys and values; plan: "any" tries every way that the
    software has."""
    cp_a2a: int | str | None
    """Ranks of the all-to-all groups of hierarchical context parallelism (Megatron-Core's a2a+p2p);
    it divides cp, and rings join what is left."""
    dp: int | str | None
    """Data-parallel replicas; ranks = tp x cp x dp x pp."""
    ep: int | str | None
    """Expert-parallel ranks, which share the experts of a layer; they lie within cp x dp x tp."""
    etp: int | str | None
    """Tensor-parallel ranks of an expert."""
    dispatcher: Dispatcher | None
    """How tokens reach their experts; plan: "any" tries every way that the software has."""
    micro_batch: int | str | None
    """Sequences of one forward pass of a replica."""
    sharding: Sharding | None
    """What data-parallel ranks share. ddp: nothing; zero1: optimizer states; zero2: gradients too;
    zero3: parameters too (FSDP)."""
    shard_group: int | str | None
    """Ranks that share the states; fewer than dp x cp is hybrid sharding (HSDP)."""
    reshard_after_forward: bool | int | str | None
    """What zero3 does with a block's parameters after its forward pass. true: it shards them over
    shard_group again; a number: over so many of its ranks, usually those of one server; false: it
    keeps them whole, which is zero2."""
    sequence_parallel: bool | None
    """Cut what lies between tensor-parallel matrices along the sequence over tp."""
    recompute: Recompute | None
    """What the backward pass computes again: nothing, the modules of `recompute_modules`, or whole
    blocks."""
    recompute_layers: int | str | None
    """Blocks of a stage that full recomputation covers; none given: all of them."""
    recompute_modules: str | None
    """What selective recomputation drops and computes again, joined by +; none given: what the
    software usually names."""
    offload_layers: int | str | None
    """Blocks of a stage whose kept activations wait in host memory."""
    optimizer_offload: OptimizerOffload | None
    """Where the optimizer states wait, whose step the host takes: its memory, or local drives."""
    parameter_offload: ParameterOffload | None
    """Where the parameters that zero3 shards wait for their layer: host memory, or local drives."""
    schedule: Schedule | None
    """Pipeline schedule; plan: "any" tries every one that the software has."""
    rank_order: str | None
    """Which ranks are neighbours, fastest first: tp-cp-dp-pp and its like."""
    stages: Sequence[int | str] | str | None
    """Layers of each of the pp x vpp pieces of the pipeline, in the order of the model: a list, or
    Megatron's pipeline layout string ("Et*3|(tt|)*29,m|L"); none given: dealt evenly, with
    embedding and head as a layer each where that divides, and plan decides."""
    minimize: Minimize | None
    """What the best layout is best at."""
    ideal: bool | None
    """Steps x step time alone: neither failures nor the planning factor."""
    smallest_batch: int | str | None
    """plan may shrink the global batch to this; none given: training.global_batch is the smallest,
    unless largest_batch is below it."""
    largest_batch: int | str | None
    """plan may raise the global batch to this; none given: training.global_batch is the largest,
    unless smallest_batch is above it."""
    allow: Sequence[str] | None
    """Layout fields that may be decided; the others take the value that predict takes; none given:
    the usual ones (tp to stages), not schedule, dispatcher, cp_kind and offloads. What changes the
    result of the training is never decided: where precision, optimizer, moment_dtype,
    gradient_dtype or lora_rank is named, plan says what others of them would take."""
    allow_tight: bool | None
    """Rank layouts that are TIGHT (the P90 of their memory is more than is usable) as if they
    fitted; otherwise they stand behind all that FIT."""
    data: Mapping[str, Any] | None
    """What a run reads, and how; without the section samples are tokens, ready in time."""
    distillation: Mapping[str, Any] | None
    """A teacher in the step of the student of [model], which `foreshard distil` prices."""
    economics: Mapping[str, Any] | None
    """What the run costs: an hour's price, or what servers cost that are rented or bought."""
    parameter_server: Mapping[str, Any] | None
    """Servers hold the weights, which `foreshard parameter-server` compares with all-reduce."""
    rl: Mapping[str, Any] | None
    """A policy that learns from its own answers, which `foreshard rl` prices."""
    run: Mapping[str, Any] | None
    """What the run goes through: failures, checkpoints, spares, slow servers, planned stops."""
    sites: Mapping[str, Any] | None
    """Several sites in place of one, which `foreshard sites` compares with [cluster]."""
    sparse: Mapping[str, Any] | None
    """Embedding tables next to a dense model, for `foreshard recommender`; stands for [model]."""


class ScenarioKeywords(RunKeywords, total=False):
    """The same with what a run must hold, which comparisons and sizes ask for by themselves."""

    deadline_days: float | str | None
    """The run must finish within this many days."""
    budget_usd: float | str | None
    """The run must cost no more than this."""
