"""Which kernels a training framework runs."""

from __future__ import annotations

import re
from dataclasses import field, replace
from typing import Annotated, Literal

from simulator.files import Figure, ReadBy, record
from simulator.software.mechanisms import (
    FUSED_HEAD,
    DTensor,
    TorchOperators,
    TransformerEngine,
    WideHeads,
)

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
    "latent_rope",
    "loss",
    "gradient_accumulation",
    "adapters",
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


def _release(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(r"(2\.[0-9]{1,2})?", value):
        return value
    raise ValueError('must be a release as "2.19", or blank')


@record
class Kernels:
    """Which kernels run."""

    gemm_library: str
    """Key of the accelerator's `gemm` table."""
    attention: Literal["flash", "unfused"]
    """flash: no sequence x sequence matrix in memory."""
    attention_library: str = "flash"
    """Key of the accelerator's `attention` table."""
    attention_library_of: dict[str, str] = field(default_factory=dict)
    """The same by generation of devices, where one differs."""
    fused: tuple[Fusion, ...] = ()
    """Memory-bound operators that run as one kernel, not operator by operator. linear_bias: added
    by products. norm_gradients, bias_gradients: sums over tokens take no kernel. causal_softmax:
    what a causal mask hides is not read. attention_scale: takes no kernel. latent_rope: latent
    attention's rotation goes with the split and the merge of its parts. gradient_accumulation:
    products of weight gradients add to what is there, else adding is other traffic
    (`micro_batch_traffic`, `accumulation_traffic`). adapters: their products scale
    and add what they compute."""
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
    expert_products: Literal["one_kernel", "streams"] = "one_kernel"
    """How a rank's experts are multiplied. one_kernel: a grouped product takes all of them.
    streams: a plain product for every expert, dealt to a few streams that hide their starts but
    share the device (Transformer Engine's multi-stream cuBLAS)."""
    forces_in_turn: bool = False
    """Routing that is forced even gives each token the experts that follow the last token's, which
    stand on few ranks; otherwise experts are drawn at random (Megatron-Core's random logits)."""
    group_tile_rows: Figure = Figure(0.0)
    """Tokens of a tile of a grouped product whose experts start within tiles: a tile that two share
    is worked on for each of them (megablox). 0: every expert starts a tile of its own."""
    group_lanes: Figure = Figure(0.0)
    """Elements that width and depth of a grouped product's weights have to be multiples of; others
    run at the device's `unaligned_fraction`. 0: any."""
    expert_library: Literal["deepep", "hybridep"] = "deepep"
    """Who moves tokens where the layout's dispatcher is deepep: DeepEP's own kernels, or NVIDIA's
    HybridEP (Megatron-Core's --moe-flex-dispatcher-backend)."""
    sweeps_gate_halves: bool = False
    """The gradient of a fused gated activation is one sweep over gate and up, which reads what both
    halves need twice (torch's compiler joins the two parts of a concatenation; Megatron-Core's
    swiglu_back)."""
    weighs_activations: bool = False
    """The weights of routing are applied by the kernels of the experts' activation, not where their
    outputs are added up (Megatron-Core 0.13 and newer)."""
    permutation: Literal["fused", "torch"] = "fused"
    """How tokens are copied for their experts and added up again. fused: kernels that read and
    write a row once. torch: a gather and a scatter-add, which adds element by element with atomics:
    the experts' outputs forward, the gradients of the gather backward (Megatron-Core without its
    fused permutation, models of torch); routing weights are multiplied in by a kernel apart."""
    keeps_expert_outputs: bool = False
    """Adding up the experts' outputs keeps them for the backward pass (torch's index_add_ saves its
    source: derivatives.yaml; Megatron-Core in deterministic mode without its fused permutation)."""
    copies_attention_output: bool = False
    """Fused attention takes the batch first and its result is copied for the linear behind it, so
    that both are kept where a micro-batch has several sequences (flash-attn under Transformer
    Engine; cuDNN takes the sequence first)."""
    nccl: Annotated[str, ReadBy(_release)] = ""
    """Release of NCCL that it brings along; what the collective library has no figures for is taken
    as the next newer one that was measured. Blank: the newest."""
    nccl_turned_off: tuple[Literal["nvls", "nvls_tree", "collnet"], ...] = ()
    """Algorithms of NCCL that it turns off: nvls and nvls_tree by NCCL_NVLS_ENABLE=0."""
    context_attention: Literal["transformer_engine", "one_call", "torch"] = "transformer_engine"
    """Who runs attention under context parallelism. transformer_engine: after a gather on all keys
    at once, a call for each of a rank's two chunks of queries; 16-bit gradients. one_call: the same
    in one call, whose output is kept once. torch: block by block in any case, the first one beside
    the gather, on keys repeated for every query head; fp32 gradients go round."""
    repeats_keys: bool = False
    """Keys and values are copied for every query head before attention (torchtune 0.4)."""
    loss_bytes_per_logit: Figure | None = None
    """Bytes for every logit at the fullest moment of a loss that is not fused: 12 in eager torch
    (fp32 logits, their log-softmax, its gradient), which are gone before the head's weight gradient
    is there. None given, or 0: 16-bit logits, an fp32 copy and its gradient beside the weight
    gradient."""
    split_loss_bytes_per_logit: Figure | None = None
    """The same where the vocabulary is split over tp; no loss is fused there if it is given (a
    compiler leaves distributed tensors as they are). None: as without."""
    loss_gradient_apart: bool = False
    """A fused loss writes its gradient beside the 16-bit logits (what a compiler makes of it), not
    over them (Transformer Engine)."""
    chunk_bytes_per_logit: Figure = Figure(8.0, "assumed", "fp32 copy and gradient of one piece")
    """Bytes for every logit of the piece in work where the loss is computed in pieces, beside the
    16-bit logits of all; 2 where the loss is compiled (its 16-bit gradient)."""
    fused_loss_traffic: Figure = Figure(
        24.0, "assumed", "compiled pieces over 16-bit and fp32 logits"
    )
    """Memory traffic for every logit, both passes, of a fused loss: 10 for Transformer Engine's
    (forward two reads and the gradient in place of the logits, backward its product)."""
    eager_loss_traffic: Figure = Figure(44.0, "assumed", "eager kernels over fp32 logits")
    """The same of a loss of several kernels."""
    linear_loss: bool = False
    """The head's product and the loss are one function, which takes the logits piece by piece and
    has the gradients of its input and weights in the forward pass (Liger Kernel's
    fused_linear_cross_entropy.py)."""
    clears_inputs: bool = False
    """A linear frees its kept input as soon as the weight gradient is there (TE's
    clear_tensor_data, autograd's own order), before the backward pass of the activation in front
    of it."""
    gradients_by_block: bool = False
    """A block's weight gradients are whole until its backward pass has ended and are reduced
    together (FSDP2): the feed-forward module's stand beside its activations."""
    gathers_quantised: bool = False
    """Where products take fewer than 16 bit, tensor parallelism gathers what they take (Transformer
    Engine, torchao's float8 linears); otherwise the 16-bit activations."""
    casts_weights_each_pass: bool = False
    """Where products take fewer than 16 bit, weights are cast in every forward pass, unless ranks
    gather them so, and put along columns in every backward pass (torchao's Float8Linear); otherwise
    once per step."""
    wide_stream: bool = False
    """The stream between blocks is fp32 (fp32 weights under torch.autocast): so are norms, sums and
    gradients along it, and every linear casts what it reads of it and its own gradients. Follows
    from `states.autocasts` and the weights (``cost/states/state_bytes.py``)."""
    separate_linears: bool = False
    """Queries, keys and values, and gate and up, are linears and products of their own (models of
    torch); otherwise one product each, of all their features."""
    copies_grouped_queries: bool = False
    """Queries that share keys are copied out of what was projected together, unless one head of
    keys is all that a rank has (Megatron-Core: ``query.reshape`` of a slice, one group apart from
    the next)."""
    pads_vocabulary_to: int = 1
    """The vocabulary is padded to a multiple of this times tp."""
    sums_gradients_apart: bool = False
    """Gradients of what several modules read, a router, the dispatch and shared experts or both
    down-projections of latent attention, are added up by kernels of their own, and so is what
    shared experts make to what routed ones do (eager autograd); otherwise a compiler does it on the
    way."""
    scaled_rotary_passes: tuple[int, int] = (7, 7)
    """Times that a rotation with a factor on it reads or writes queries and keys, forward and
    backward: fused kernels have no factor."""
    latent_rotary_passes: tuple[int, int] = (0, 0)
    """Times that operators rotating the rotary part of latent attention's heads read or write it,
    forward and backward, where no kernel does (latent_rope); 0: as other heads are rotated."""
    pads_to_busiest: bool = False
    """Every expert of a rank works on as many rows as the busiest expert has tokens: one batched
    product of equal shapes, which eager torch fills and empties a slice at a time."""
    fp32_router: bool = False
    """A router that its model has in fp32 (``MoE.fp32_router``) is run so (Megatron-Core's
    --moe-router-dtype fp32)."""
    routing_kernels: Figure = Figure(0.0)
    """Kernels of a routed layer's forward pass that move next to nothing, scores of tokens and
    counts of experts: each takes its start. The backward pass has half of them."""
    dtensor: DTensor = DTensor()
    """Tensor parallelism by torch's distributed tensors."""
    torch: TorchOperators = TorchOperators()
    """Operators of torch, where nothing fuses them."""
    transformer_engine: TransformerEngine = TransformerEngine()
    """Linears of fewer than 16 bit by Transformer Engine."""
    wide_heads: WideHeads = WideHeads()
    """Attention of heads wider than 128."""
    wide_heads_of: dict[str, WideHeads] = field(default_factory=dict)
    """The same by generation of devices, where one differs."""

    def runs_alone(self, *fusions: Fusion) -> bool:
        """Whether operators that one of `fusions` would join are kernels of torch, one by one."""
        return self.torch.alone and not set(fusions) & set(self.fused)

    def in_turn(self, routing: str | None) -> bool:
        """Whether every token gets the experts that follow the last one's."""
        return self.forces_in_turn and routing == "forced"

    def attention_library_for(self, head_dim: float, value_dim: float) -> str:
        """Key of the accelerator's `attention` table for heads of a size."""
        wide = head_dim > FUSED_HEAD and value_dim == head_dim
        return (self.wide_heads.library if wide else "") or self.attention_library

    def on(self, generation: str) -> Kernels:
        """The same with what attention runs on a generation of devices."""
        engine = self.transformer_engine
        copies = generation in engine.flash_attn_on
        library = self.attention_library_of.get(generation, self.attention_library)
        if copies:
            library = engine.flash_attn_library.get(generation, library)
        own = self.wide_heads_of.get(generation)
        if own is None and not copies and library == self.attention_library:
            return self
        return replace(
            self,
            attention_library=library,
            wide_heads=own or self.wide_heads,
            copies_attention_output=copies or self.copies_attention_output,
        )
