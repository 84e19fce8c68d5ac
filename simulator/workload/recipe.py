"""How a model is trained: tokens, batch, sequence length, precision, optimizer."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, MaxLen, MinLen

from simulator.data_input.data_section import DataInput
from simulator.errors import InputError
from simulator.files import Number, Unit, Whole, build, record
from simulator.workload.architecture import Architecture
from simulator.workload.expert_routing import Routing, load_expert_routing
from simulator.workload.families.traced_model import traced_architecture

PRECISIONS = (
    *("fp32", "tf32", "fp16", "bf16"),
    *("fp8", "fp8_current", "fp8_blockwise", "mxfp8", "nvfp4"),
)
OPTIMIZERS = ("adamw", "adamw_8bit", "adafactor", "lion", "muon", "lamb", "lars", "sgd")

HOST_OPTIMIZERS = ("adamw", "lion", "sgd")
"""Those that have a step on host processors (DeepSpeed's CPU-Adam and CPU-Lion; torch's own)."""

Stored = Literal["fp32", "fp16", "bf16"]
TowerPart = Literal["tower", "projector", "text"]

Adapted = Literal["q", "k", "v", "o", "q_down", "q_up", "kv_down", "kv_up", "gate", "up", "down"]

LARGEST = 100_000_000
"""Largest sequence length and global batch that are taken for meant."""


Element = Annotated[Number, Gt(0), Le(4), Unit("bytes per element")]
Share = Annotated[Number, Ge(0), Unit("share of 1")]
Length = Annotated[Whole, Gt(0), Le(LARGEST), Unit("tokens")]


@record
class StashBytes:
    """Bytes per element in which tensors wait for the backward pass, by class (Gist, 2018).

    A class that is not given, or that would take no fewer bytes, keeps the type that it has.
    """

    attention: Element | None = None
    """Queries, keys, values, and the output of attention (and its weights where it is unfused)."""
    activation_input: Element | None = None
    """What the activation function of an MLP reads (1: Megatron-Core's activation_func_fp8_
    input_store)."""
    activation_output: Element | None = None
    """What it writes, the second linear's input; of a rectifier sparse storage takes the share of
    positive elements times value and index bytes (half of them in bf16, 1-byte indices: 1.5)."""
    linear_input: Element | None = None
    """Inputs of the first linears of attention, MLP and experts."""
    norm_input: Element | None = None
    """Inputs of norms: the residual stream."""
    mask: Element | None = None
    """Dropout masks, which take 1 byte in torch; one bit is 0.125."""


@record
class Recipe:
    """The training recipe, the same for every layout."""

    sequence_length: Annotated[Whole, Gt(0), Le(LARGEST), Unit("tokens")]
    """Tokens per sequence; plan takes a list or a range ("4096..16384") and chooses."""
    global_batch: Annotated[Whole, Gt(0), Le(LARGEST), Unit("sequences")]
    """Sequences per optimizer step; plan takes a list or a range ("256..4096") and chooses."""
    lengths: Annotated[tuple[Length, ...], MinLen(1), MaxLen(64)] | None = None
    """Tokens of sequences as they come, a sample or quantiles; none given: all have
    `sequence_length`, which no one may exceed."""
    length_shares: Annotated[tuple[Share, ...], MinLen(1), MaxLen(64)] | None = None
    """Share of the sequences that has each of `lengths`; they add up to 1. None given: each is
    equally likely."""
    batching: Literal["packed", "padded", "dynamic", "sorted"] = "packed"
    """What is done with unequal `lengths`. packed: sequences fill up `sequence_length` and attend
    to themselves only. padded (fixed): every one is padded to `sequence_length`; dynamic: to the
    longest of its micro-batch; sorted (uniform dynamic): the same, with sequences of like length
    together."""
    tokens: Annotated[Number, Ge(1), Unit("tokens")] | None = None
    """Tokens that the whole run sees; none given: only one step is asked about."""
    critical_batch: Annotated[Number, Gt(0), Unit("sequences")] | None = None
    """Batch at which twice the tokens of a small one are needed to the same loss (McCandlish et al.
    2018): `tokens` are then those of a small batch, and the run takes 1 + global_batch /
    critical_batch times as many. None given: `tokens` are those of this batch."""
    precision: Literal[
        "fp32", "tf32", "fp16", "bf16", "fp8", "fp8_current", "fp8_blockwise", "mxfp8", "nvfp4"
    ] = "bf16"
    """Type of the large matrix multiplications; all but fp32 and tf32 keep fp32 optimizer states.
    The 8- and 4-bit types cover the linear layers of the blocks, attention and head stay bf16.
    fp8 scales tensors by their past (delayed scaling), fp8_current by their present maximum,
    fp8_blockwise, mxfp8 and nvfp4 block by block."""
    fp8_weights: bool = False
    """With 8-bit precision: weights of the blocks' linears are kept and gathered in 8 bit alone,
    made from the fp32 ones by the optimizer step (Megatron-Core's --fp8-param-gather, torchtitan's
    enable_fsdp_float8_all_gather); otherwise a 16-bit copy stays and is what ranks gather."""
    optimizer: Literal[
        "adamw", "adamw_8bit", "adafactor", "lion", "muon", "lamb", "lars", "sgd"
    ] = "adamw"
    """adamw and lamb keep two moments per parameter (fp32 unless the software says otherwise),
    adamw_8bit two of 8 bit with a scale for every 256, lion, lars and sgd (with momentum) one,
    adafactor one number for every row and column of a matrix, muon one moment of the blocks'
    matrices and two of everything else, which AdamW updates."""
    adafactor_momentum: bool = False
    """adafactor: keep a first moment per parameter too."""
    moment_dtype: Stored | None = None
    """Type of the optimizer's moments; none given: as the software keeps them."""
    master_weights: bool | None = None
    """Whether the optimizer updates fp32 weights (false: the 16-bit ones themselves); none given:
    as the software does. False with 16-bit gradients and moments is pure 16-bit training."""
    gradient_dtype: Stored | None = None
    """Type in which gradients are accumulated; none given: as the software does."""
    reduce_dtype: Stored | None = None
    """Type in which gradients travel; none given: as the software does."""
    optimizer_in_backward: bool = False
    """The optimizer updates a block as soon as its gradients are there, and frees them; it cannot
    add up micro-batches."""
    optimizer_post_validation: bool = False
    """With a zero-bubble schedule, ranks begin their next step without waiting for the norm of all
    gradients and roll back an update that proves wrong (Qi et al. 2024, section 4); a step is then
    the time from one to the next."""
    optimizer_offload_fraction: Annotated[Number, Gt(0), Le(1)] = 1.0
    """Share of the optimizer states that a layout with optimizer_offload moves to the host
    (Megatron-Core's --optimizer-offload-fraction, DeepSpeed's ratio)."""
    stash_bytes: StashBytes | None = None
    """Compressed stashes: bytes per element of what waits for the backward pass, by class, encoded
    and decoded by memory-bound kernels; none given: as the operators keep it."""
    loss_chunks: Annotated[Whole, Ge(1), Le(LARGEST)] = 1
    """Pieces in which output head and loss are computed: logits are raised to fp32, and their
    gradient taken, one piece at a time."""
    lora_rank: Annotated[Whole, Ge(0), Le(LARGEST)] = 0
    """Rank of low-rank adapters; above 0 they alone are trained and the model is frozen (LoRA)."""
    lora_targets: Annotated[tuple[Adapted, ...], MinLen(1)] = (
        *("q", "k", "v", "o"),
        *("q_down", "q_up", "kv_down", "kv_up"),
        *("gate", "up", "down"),
    )
    """Matrices that get adapters, of those that the model has; routed experts get none."""
    quantised_base: bool = False
    """With adapters: the blocks' frozen matrices are kept in 4-bit NF4 with double quantisation and
    turned into 16 bit for every product (QLoRA); without, those of a frozen text."""
    fake_quantised_weights: Literal["none", "detached_scales", "differentiable_scales"] = "none"
    """Quantisation-aware training: every linear of the blocks rounds its weight to few bits and
    scales it back before the product, which stays in 16 bit, with kernels of torch; of how many
    bits costs the same. detached_scales: a group's scale is a constant to autograd (torchao's
    IntxFakeQuantizer); differentiable_scales: gradients flow through minimum and maximum of the
    group (its Int4WeightFakeQuantizer). With adapters: the adapted linears alone."""
    fake_quantised_inputs: bool = False
    """With fake_quantised_weights: every such linear rounds its input, too, with a scale for each
    token."""
    fake_quantised_head: bool = False
    """With fake_quantised_weights: the output head does so as well, in pieces for each of them."""
    frozen_layers: Annotated[Whole, Ge(0), Le(LARGEST)] = 0
    """The first layers that are not trained, together with the embedding below them."""
    frozen_embedding: bool = False
    """The embedding, and a head tied to it, is not trained."""
    frozen_head: bool = False
    """The output head is not trained."""
    frozen_parts: tuple[TowerPart, ...] = ()
    """Of a model with towers for images or sound: the parts that are not trained. The gradient of a
    projector or tower passes through a language model (text) that is frozen."""

    decoder_length: Annotated[Whole, Ge(0), Le(LARGEST), Unit("tokens")] = 0
    """Tokens per sequence that the decoder of an encoder-decoder writes; 0 means as many as the
    encoder reads (sequence_length, which tokens and throughput count)."""
    moe_imbalance: Annotated[Number, Ge(1)] = 1.0
    """Tokens that arrive at the fullest expert rank over the mean of all; 1 means all alike."""
    moe_load: Annotated[tuple[Share, ...], MinLen(1), MaxLen(4096)] | None = None
    """Share of the routed tokens that each expert gets in every layer, first to last; or each of so
    many equal runs of neighbouring experts (one for every ep rank). They add up to 1. The fullest
    rank, which the others wait for, follows; given instead of `moe_imbalance`."""
    moe_routing: Routing | None = None
    """What spreads tokens over experts, from which the fullest rank follows where neither
    `moe_imbalance` nor `moe_load` is given: forced (even, a benchmark's setting), balanced (by a
    loss or biases, some hundred steps on), adapting (the first hundred, or other data than it was
    balanced on), unbalanced (trained without either), random (new weights on made-up tokens). A
    scenario that gives none of the three is balanced."""
    moe_capacity_factor: Annotated[Number, Gt(0)] | None = None
    """Most tokens that an expert takes, over the mean; the others are dropped. None drops none."""
    moe_pads_to_capacity: bool = False
    """With a capacity factor: every expert is padded to its capacity and computes as if full."""

    @property
    def hot_share(self) -> float:
        """Share of a layer's picks that goes to the same experts whatever the token."""
        if self.moe_routing is None:
            return 0.0
        return float(load_expert_routing().hot_share[self.moe_routing])

    @property
    def expert_load(self) -> float:
        """Tokens that the fullest expert rank computes, over the mean of all."""
        if self.moe_capacity_factor is None:
            return self.moe_imbalance
        if self.moe_pads_to_capacity:
            return self.moe_capacity_factor
        return min(self.moe_imbalance, self.moe_capacity_factor)

    @property
    def is_quantised(self) -> bool:
        """Whether the linear layers multiply numbers of fewer than 16 bit."""
        return self.precision not in ("fp32", "tf32", "fp16", "bf16")

    @property
    def number_bytes(self) -> int:
        """Bytes of one number of an activation; those of fewer than 16 bit are made of 16."""
        return 4 if self.precision in ("fp32", "tf32") else 2

    @property
    def matrix_type(self) -> str:
        """The accelerator's name for the type: scaling by the present is the same product."""
        return "fp8" if self.precision == "fp8_current" else self.precision

    @property
    def freezes(self) -> bool:
        """Whether any part of the model is not trained."""
        return not self.trains_embedding or self.frozen_head or bool(self.frozen_parts)

    @property
    def trains_embedding(self) -> bool:
        """Whether the embedding is trained."""
        frozen = self.frozen_layers > 0 or self.frozen_embedding or "text" in self.frozen_parts
        return self.lora_rank == 0 and not frozen

    def trains_head(self, *, tied: bool) -> bool:
        """Whether the output table, which may be `tied` to the embedding, is trained."""
        trained = self.trains_embedding if tied else self.lora_rank == 0
        return trained and not self.frozen_head and "text" not in self.frozen_parts

    @property
    def pads(self) -> bool:
        """Whether micro-batches hold padding beside tokens."""
        return self.lengths is not None and self.batching != "packed"

    @property
    def sequences(self) -> tuple[tuple[int, float], ...]:
        """Lengths of sequences, and the share of all tokens that stands in each."""
        if self.lengths is None:
            return ((self.sequence_length, 1.0),)
        shares = self.length_shares or (1,) * len(self.lengths)
        weighed = [length * share for length, share in zip(self.lengths, shares, strict=True)]
        whole = sum(weighed)
        return tuple((length, x / whole) for length, x in zip(self.lengths, weighed, strict=True))

    @property
    def mean_length(self) -> float:
        """Mean tokens of a sequence as it comes, padding left out."""
        if self.lengths is None:
            return float(self.sequence_length)
        shares = self.length_shares or (1,) * len(self.lengths)
        tokens = sum(length * share for length, share in zip(self.lengths, shares, strict=True))
        return tokens / sum(shares)

    @property
    def tokens_per_step(self) -> int:
        """Tokens in one optimizer step, padding left out."""
        if self.lengths is not None and self.pads:
            return round(self.mean_length * self.global_batch)
        return self.sequence_length * self.global_batch

    @property
    def run_tokens(self) -> float | None:
        """Tokens of the whole run with this batch, or None when `tokens` is not given."""
        if self.tokens is None:
            return None
        more = 0.0 if self.critical_batch is None else self.global_batch / self.critical_batch
        return (1.0 + more) * self.tokens

    @property
    def steps(self) -> float | None:
        """Optimizer steps of the whole run, or None when `tokens` is not given."""
        return None if self.run_tokens is None else self.run_tokens / self.tokens_per_step


@record
class Workload:
    """An architecture, the recipe that trains it, and where its input comes from."""

    architecture: Architecture
    recipe: Recipe
    data: DataInput | None = None
    """How samples are stored, read and prepared; None: they are there in time."""

    @property
    def kind(self) -> str:
        """What kind of work it is to measure: ``dense``, ``experts``, ``vision`` or ``adapter``."""
        if self.recipe.lora_rank:
            return "adapter"
        if self.architecture.patch_values > 0:
            return "vision"
        return "experts" if self.architecture.is_moe else "dense"

    @classmethod
    def from_torch(
        cls,
        module: Any,
        example_inputs: Any,
        *,
        global_batch: int,
        sequence_length: int | None = None,
        **training: Any,
    ) -> Workload:
        """Trace a ``torch.nn.Module`` of your own; data parallelism only (ddp, zero1 to zero3).

        Parameters
        ----------
        module : torch.nn.Module
            One training step of it is counted on the meta device, in bf16 unless `precision` says
            fp32 or tf32; the module is left as it is. Entries of its outermost ``ModuleList`` and
            ``Sequential`` containers are its layers.
        example_inputs : tensor, tuple of tensors, or dict
            Arguments of its forward method; samples are along the first dimension.
        global_batch : int
            Samples per optimizer step.
        sequence_length : int, optional
            Tokens per sample, for tokens per second; the length of the example where its first
            input is a table of token numbers, else 1. Sizes are those of the example.
        **training
            Other fields of the recipe, as in the section [training].

        Raises
        ------
        InputError
            If torch is missing, the module cannot be traced, or a field is wrong.

        Notes
        -----
        The loss is counted only where the forward method computes it.
        """
        return traced_workload(
            module,
            example_inputs,
            {
                "global_batch": global_batch,
                "sequence_length": sequence_length,
                **training,
            },
        )

    def by_training(self) -> Workload:
        """Return the workload with its frozen layers as block kinds of their own."""
        arch, parts = self.architecture, self.recipe.frozen_parts
        first = max(self.recipe.frozen_layers, arch.tower_layers * ("tower" in parts))
        behind = arch.tower_layers if "text" in parts else len(arch.layer_kinds)
        none = first == 0 and behind == len(arch.layer_kinds)
        if none or not all(kind.trained for kind in arch.blocks):
            return self
        kinds = len(arch.blocks)
        frozen = tuple(replace(kind, frozen=True) for kind in arch.blocks)
        passing = tuple(replace(kind, passes_gradients=True) for kind in arch.blocks)
        layers = tuple(
            k + kinds * (1 if i < first else 2 if i >= behind else 0)
            for i, k in enumerate(arch.layer_kinds)
        )
        blocks = (*arch.blocks, *frozen, *(passing if "text" in parts else ()))
        return replace(self, architecture=replace(arch, blocks=blocks, layer_kinds=layers))


def traced_workload(module: Any, example_inputs: Any, training: dict[str, Any]) -> Workload:
    """Trace a module and make a workload of it (see :meth:`Workload.from_torch`)."""
    from simulator.workload.torch_module import trace

    where = type(module).__name__
    stated = {name: value for name, value in training.items() if value is not None}
    recipe = build(Recipe, {"sequence_length": 1, **stated}, where=where, prefix="training")
    if wrong := beyond_traces(recipe):
        raise InputError(f"{where}: training.{name}: not yet for a traced module" for name in wrong)
    model = trace(module, example_inputs, element_bytes=recipe.number_bytes)
    architecture = traced_architecture(where, model.layers, model.layer_kinds, model.rest)
    length = recipe.sequence_length if "sequence_length" in stated else model.tokens
    return Workload(architecture=architecture, recipe=replace(recipe, sequence_length=length))


def beyond_traces(recipe: Recipe) -> list[str]:
    """Fields of the recipe that need more of a model than a trace knows."""
    return [
        name
        for name, wrong in (
            ("precision", recipe.is_quantised),
            ("optimizer", recipe.optimizer in ("adafactor", "muon")),
            ("lora_rank", recipe.lora_rank > 0),
            ("frozen_layers", recipe.frozen_layers > 0),
            ("frozen_embedding", recipe.frozen_embedding),
            ("frozen_head", recipe.frozen_head),
            ("frozen_parts", bool(recipe.frozen_parts)),
            ("lengths", recipe.lengths is not None),
            ("loss_chunks", recipe.loss_chunks > 1),
            ("stash_bytes", recipe.stash_bytes is not None),
        )
        if wrong
    ]
