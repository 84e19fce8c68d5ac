"""Which layouts a training framework can run at all."""

from __future__ import annotations

from dataclasses import field
from itertools import permutations
from typing import Annotated, Literal

from annotated_types import MinLen

from simulator.files import Word, record
from simulator.schedules.registry import WORDS
from simulator.software.kernels import Module

RANK_ORDERS = tuple("-".join(order) for order in permutations(("tp", "cp", "dp", "pp")))
"""Orders of the rank grid, innermost (adjacent ranks) first."""


GraphPart = Literal["full_iteration", "attn", "moe_router", "moe_preprocess"]
GRAPH_PARTS: tuple[GraphPart, ...] = ("full_iteration", "attn", "moe_router", "moe_preprocess")
"""What captured graphs may launch: the whole step, or these modules of it."""

Sharding = Literal["ddp", "zero1", "zero2", "zero3"]
Schedule = Annotated[str, Word(WORDS)]
RankOrder = Annotated[str, Word(RANK_ORDERS)]
CpKind = Literal["ring", "all_gather", "all_to_all", "hierarchical"]
Reshard = Literal["always", "group", "never"]
Dispatcher = Literal["alltoall", "allgather", "deepep"]
Exchange = Literal["alltoall", "allgather", "deepep", "hybridep"]
"""How tokens reach experts: a dispatcher, or the library that stands for deepep."""
Recompute = Literal["none", "selective", "full"]


@record
class Supports:
    """Which layouts the framework can run at all."""

    sharding: Annotated[tuple[Sharding, ...], MinLen(1)]
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
    accumulates: bool = True
    """Runs that do not say what a micro-batch is add up gradients over the shortest there are, a
    sequence each; otherwise a rank takes its share of the batch at once (MaxText)."""
    uneven_stages: bool = True
    """Pipeline stages with unequal numbers of layers; embedding and head may be alone on theirs."""
    empty_stages: bool = False
    """Pieces of a pipeline, other than the first and the last, without any layer."""
    cp_kinds: tuple[CpKind, ...] = ("ring",)
    """Kinds of context parallelism, the first is the default; none: no cp > 1."""
    repeats_keys_over_cp: bool = False
    """all_to_all repeats key/value heads that are fewer than cp, and cuts sequences into cp pieces
    (DeepSpeed's UlyssesSPAttentionHF); TransformerEngine does neither, and cuts twice as many."""
    expert: bool = True
    """Expert parallelism (ep > 1) folded into dp x cp x tp."""
    experts_follow_tensor: bool = False
    """Runs that do not say so cut experts over the tensor-parallel ranks: etp = tp (Megatron-LM's
    --expert-tensor-parallel-size); others leave them whole."""
    dispatchers: tuple[Dispatcher, ...] = ("alltoall",)
    """How tokens may reach their experts, the first is the default."""
    usual_dispatcher: dict[str, Exchange] = field(default_factory=dict)
    """By accelerator, how its recipes take tokens to experts, where a run does not say."""
    alltoall_families: tuple[str, ...] = ()
    """Families of models whose recipes use alltoall on every accelerator."""
    graphs: tuple[GraphPart, ...] = GRAPH_PARTS
    """What it can capture in graphs; none: it has no captured graphs."""
    linear_loss: bool = False
    """The head's product and the loss as one function (the switch loss_fusion = linear)."""
    recompute: tuple[Recompute, ...] = ("none", "selective", "full")
    """Activation recomputation."""
    recompute_modules: tuple[Module, ...] = ()
    """What a layout may name for selective recomputation; none: it is as `kernels` says."""
    recompute_sets: tuple[tuple[Module, ...], ...] = ()
    """Sets of them that a search tries beside the usual one, without what the model lacks."""
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
    fp8_weights_usual: tuple[str, ...] = ()
    """Those of them with which its published recipes keep weights so, where a run does not say."""
    rank_orders: Annotated[tuple[RankOrder, ...], MinLen(1)] = ("tp-cp-dp-pp",)
    """Orders of the rank grid, innermost dimension first; the first is the default."""
    precisions: tuple[str, ...] = ("fp32", "tf32", "fp16", "bf16")
    """Types of the large matrix multiplications."""
