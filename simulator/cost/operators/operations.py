"""What one rank does for one micro-batch, as plain records, and the pieces that blocks share.

Sizes are arrays over the distinct layout keys. Nothing here knows seconds.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.operators.roles import GemmRole, SavedRole, StreamRole
from simulator.layout.layout_keys import LayoutKeys, recomputed_modules
from simulator.layout.layouts import CP_KINDS, Layouts
from simulator.layout.placement import Placement
from simulator.records import dataclass
from simulator.software.kernels import Kernels
from simulator.workload.architecture import MoE
from simulator.workload.recipe import Recipe

OPERATOR = "copy"
"""Class of a kernel that does one operation on each element: torch's sums, casts and GELU move 0.86
to 0.91 of an H100's memory rate, as its copies do; on an A100 sums move 0.89."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """What one rank sees, as arrays over distinct layout keys."""

    tp: Floats
    sequence_parallel: NDArray[np.bool_]
    cp: Floats
    ep: Floats
    etp: Floats
    micro_batch: Floats
    groups: Placement
    cp_kind: Any = 0
    """Index into CP_KINDS."""
    dispatcher: Any = 0
    """Index into DISPATCHERS."""
    cp_a2a: Any = 1.0
    """Context-parallel ranks in one all-to-all, where the kind is hierarchical."""
    world: Any = 1.0
    """Accelerators of the run, the slowest of which all others wait for."""
    recompute_modules: Any = 0
    """Bits of MODULES that selective recomputation names; 0: what the software usually does."""

    @classmethod
    def of(cls, keys: LayoutKeys) -> Ranks:
        """What a rank of each distinct shape of some layouts sees."""
        first = keys.shapes.first
        return cls.of_each(keys.layouts[first], keys.placement.take(keys.grids.inverse[first]))

    @classmethod
    def of_each(cls, layouts: Layouts, placement: Placement) -> Ranks:
        """What a rank of each layout sees; `placement` is theirs."""
        return cls(
            tp=layouts.tp.astype(float),
            sequence_parallel=layouts.sequence_parallel.astype(bool),
            cp=layouts.cp.astype(float),
            cp_kind=layouts.cp_kind,
            dispatcher=layouts.dispatcher,
            cp_a2a=layouts.cp_a2a.astype(float),
            ep=layouts.ep.astype(float),
            etp=layouts.etp.astype(float),
            micro_batch=layouts.micro_batch.astype(float),
            world=layouts.world.astype(float),
            recompute_modules=recomputed_modules(layouts),
            groups=placement.with_groups(layouts.cp_a2a.astype(np.int64)),
        )

    def take(self, rows: NDArray[Any]) -> Ranks:
        """Return the entries `rows`."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        groups = columns.pop("groups").take(rows)
        taken = {name: x[rows] if np.ndim(x) else x for name, x in columns.items()}
        return Ranks(groups=groups, **taken)

    def tokens(self, recipe: Recipe) -> Floats:
        """Tokens of one micro-batch on one rank (the sequence is split over cp)."""
        return self.micro_batch * recipe.sequence_length / self.cp

    def own_tokens(self, recipe: Recipe) -> Floats:
        """The same between tensor-parallel regions, where sequence parallelism splits over tp."""
        return self.tokens(recipe) / np.where(self.sequence_parallel, self.tp, 1.0)

    def query_parts(self) -> Floats:
        """Ranks that share the queries of a sequence: all-to-all shares heads instead."""
        return np.where(self.cp_kind == CP_KINDS.index("all_to_all"), 1.0, self.cp)

    def repeated_keys(self, heads: Any) -> Floats:
        """Times that all-to-all repeats key/value `heads` of a rank that are fewer than cp."""
        swapped = self.cp_kind == CP_KINDS.index("all_to_all")
        return np.where(swapped, np.maximum(self.cp / heads, 1.0), 1.0)

    def key_blocks(self, kernels: Kernels) -> Floats:
        """Blocks in which attention takes the keys of all context-parallel ranks."""
        blockwise = self.cp_kind == CP_KINDS.index("ring")
        if kernels.context_attention == "torch":
            blockwise = blockwise | (self.cp_kind == CP_KINDS.index("all_gather"))
        grouped = self.cp_kind == CP_KINDS.index("hierarchical")
        return np.where(blockwise, self.cp, np.where(grouped, self.cp / self.cp_a2a, 1.0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Gemm:
    """`batch` products of (m, k) by (k, n) on one rank; backward adds dgrad and wgrad."""

    name: str
    """Label, unique within its part; rules read `role`."""
    m: Any
    n: Any
    k: Any
    role: GemmRole = GemmRole.OTHER
    batch: Any = 1.0
    kind: str = "linear"
    """linear (weights, takes fp8), attention (no weights), head (weights, stays 16 bit)."""
    causal: bool = False
    """Scores under a causal mask: all are computed, half of their FLOPs count."""
    module: str = ""
    """What recomputation has to name to run it again; one of several names joined by ``+``."""
    trained: bool = True
    """Whether its weights are: a frozen matrix needs no product for its gradient."""
    grouped: bool = False
    """One call for a rank's experts, each with tokens and weights of its own."""
    linears: tuple[Any, ...] = ()
    """Output features of several linears, each a product of its own; none: one for all of `n`."""

    @property
    def aligned(self) -> Any:
        """Whether rows of a head's queries, keys and values are multiples of 16 bytes, in 16 bit.

        Linears reach tensor cores in any case (cuBLAS 11 and newer).
        """
        return (self.kind != "attention") | (
            (np.ceil(self.n) % 8 == 0) & (np.ceil(self.k) % 8 == 0)
        )

    @property
    def flop(self) -> Any:
        """FLOPs of the forward product; scores under a causal mask count half, as in MFU."""
        share = 0.5 if self.causal else 1.0
        return share * 2.0 * self.batch * self.m * self.n * self.k


@dataclass(frozen=True, kw_only=True, slots=True)
class Flash:
    """`calls` fused attention calls of one size.

    A ring of context-parallel ranks brings keys and values s / cp at a time, to a call each.
    """

    heads: Any
    """Heads times sequences."""
    queries: Any
    """Of one sequence on one rank."""
    keys: Any
    """Keys that a query sees in one call, on average: half of them under a causal mask."""
    span: Any
    """Most keys that a query sees in one call."""
    score_size: Any
    """Elements of a head of queries and keys."""
    value_size: Any
    query_bytes: Any
    """Queries and result of one call."""
    key_bytes: Any
    """Keys and values of one call."""
    calls: Any = 1.0

    @property
    def flop(self) -> Any:
        """FLOPs of the forward pass, masked ones left out."""
        pairs = self.calls * self.heads * self.queries * self.keys
        return 2.0 * pairs * (self.score_size + self.value_size)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """Memory-bound kernels: bytes moved and number of calls in each direction."""

    name: str
    """Label; rules read `role`."""
    kind: str
    """Class of the accelerator's `stream` table; elementwise where it has no such class."""
    forward_bytes: Any
    backward_bytes: Any
    role: StreamRole = StreamRole.OTHER
    product: GemmRole | None = None
    """The product that it serves, where it serves one alone."""
    stashes: SavedRole | None = None
    """The kept tensor that it encodes and decodes: spared where that is recomputed instead."""
    calls: Any = 1.0
    module: str = ""
    backward_calls: Any = None
    """Calls of the backward pass, where it has another number."""
    rerun: bool = False
    """Forward work that the backward pass repeats in any case."""
    for_weights: bool = False
    """The backward pass is for gradients of weights: spared where these are frozen."""

    @property
    def calls_back(self) -> Any:
        """Number of calls in the backward pass."""
        return self.calls if self.backward_calls is None else self.backward_calls


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """One collective of a micro-batch, and the GEMM that may hide it."""

    operation: str
    """all_gather, reduce_scatter, all_reduce, all_to_all, dispatch, combine, ring or send."""
    group: str
    """tp, cp, cp_a2a, cp_ring, ep, etp or experts (ep x etp together): a field of ``Placement``."""
    size_bytes: Any
    backward: bool
    window: str = ""
    """Compute that may hide it: ``NAME:forward``, ``NAME:dgrad``, ``NAME:wgrad``, ``attention``
    or its ``first block``."""
    moe: MoE | None = None
    """dispatch: the experts that want each byte."""
    row_bytes: float = 0.0
    """dispatch: bytes of one token."""
    load: Any = 1.0
    """dispatch: what the fullest expert rank takes over the mean."""
    pipelined: bool = False
    """Feeds or follows its product, so that only pieces of both can run at once."""
    buffered: bool = False
    """Belongs to a linear of a block for which frameworks have buffers that peers read and write;
    what is pipelined is hidden only there."""
    module: str = ""
    """What recomputation has to name to run it again, in the forward pass only."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A tensor that waits from the forward to the backward pass."""

    name: str
    """Label; rules read `role`."""
    size_bytes: Any
    role: SavedRole = SavedRole.OTHER
    module: str = ""
    """What recomputation has to name to make it again; one of several names joined by ``+``."""
    linears: tuple[str, ...] = ()
    """Weights for whose gradients alone it waits, by ``Weight.name`` (those of routed experts as
    ``routed up`` and ``routed down``); none: others read it too."""


@dataclass(kw_only=True, slots=True)
class ModuleOperators:
    """What one module of a part does on one rank for one micro-batch."""

    gemms: list[Gemm] = field(default_factory=list)
    flash: list[Flash] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    gathered: set[str] = field(default_factory=set)
    """Linears whose input sequence parallelism gathers cast to fewer than 16 bit."""
    gathered_back: set[str] = field(default_factory=set)
    """Linears whose output's gradient it gathers so."""
    saved: list[Saved] = field(default_factory=list)
    transient_bytes: Any = 0.0
    """Largest temporaries of the backward pass beside what was saved."""
    checkpoint_bytes: Any = 0.0
    """The part's input, all that full recomputation keeps."""
    passing_bytes: Any = 0.0
    """What of `saved` is gone again where the micro-batch waits for its backward pass: the 16-bit
    logits under a loss in fp32."""
    mixer_kernels: Any = 0.0
    """Kernels of what mixes tokens in place of attention, in the forward pass."""
    biased_experts: Any = 0.0
    """Experts of the rank whose linears have biases."""

    def keep(
        self,
        name: str,
        size_bytes: Any,
        role: SavedRole = SavedRole.OTHER,
        *,
        module: str = "",
        linears: tuple[str, ...] = (),
    ) -> None:
        """Add a tensor that waits for the backward pass."""
        self.saved.append(Saved(name, size_bytes, role, module, linears))

    def add(self, module: ModuleOperators) -> None:
        """Add what a module does; of temporaries the larger count, all else adds up."""
        self.gemms += module.gemms
        self.flash += module.flash
        self.streams += module.streams
        self.collectives += module.collectives
        self.gathered |= module.gathered
        self.gathered_back |= module.gathered_back
        self.saved += module.saved
        if not _is_zero(module.transient_bytes):
            before, more = self.transient_bytes, module.transient_bytes
            self.transient_bytes = more if _is_zero(before) else np.maximum(before, more)
        for name in _SUMS:
            if not _is_zero(more := getattr(module, name)):
                setattr(self, name, getattr(self, name) + more)


_SUMS = ("checkpoint_bytes", "passing_bytes", "mixer_kernels", "biased_experts")


def _is_zero(quantity: Any) -> bool:
    """Whether a module has nothing of a quantity: the number that it starts from."""
    return isinstance(quantity, float) and quantity == 0.0


@dataclass(kw_only=True, slots=True)
class Operators(ModuleOperators):
    """Everything that one part of the model does, and what of the part decides about it."""

    is_moe: bool = False
    has_attention: bool = True
    has_mlp: bool = True
    """Whether every token passes an MLP: a dense one or shared experts."""
    padded_experts: bool = False
    """Whether every expert takes a fixed number of tokens, padded to its capacity."""
    last_linear: GemmRole | None = None
    """The linear that a block ends in, if the backward pass reads nothing that comes after it."""
    is_latent: bool = False
    """Whether its attention is latent (MLA)."""
    rotates: bool = False
    """Whether it rotates queries and keys by their position."""
    scales_rotary: bool = False
    """Whether a factor is on that rotation."""
    norms_heads: bool = False
    """Whether it norms them."""
    biased_linears: int = 0
    """Linears of all tokens that have biases."""
    is_block: bool = True
    has_backward: bool = True
    """Whether it has a backward pass: not where it is frozen with all before it."""
    counts_kernels: bool = False
    """A block whose kernels are all listed here; others take the software's count per block."""


def recomputes(module: str, modules: Collection[str]) -> bool:
    """Whether selective recomputation of `modules` runs an operator of `module` again."""
    return not set(modules).isdisjoint(module.split("+"))


def element_bytes(recipe: Recipe) -> float:
    """Bytes of one activation element."""
    return float(recipe.number_bytes)


def stream_bytes(size: float, kernels: Kernels) -> float:
    """Bytes of one element of the stream between blocks, whose products take `size`."""
    return 4.0 if kernels.wide_stream else size


def stream_casts(
    name: str, elements: Any, readers: int, writers: int, kernels: Kernels
) -> list[Stream]:
    """Casts of an fp32 stream's `elements` to 16 bit for every linear that reads them, and back.

    Backward, what a linear hands to the stream is cast up, what it takes from it down
    (torch.autocast, ``cached_cast``: weights alone are cached).
    """
    if not kernels.wide_stream:
        return []
    return [
        Stream(
            name=f"casts for {name}",
            kind=OPERATOR,
            forward_bytes=6.0 * readers * elements,
            backward_bytes=6.0 * (readers + writers) * elements,
            calls=readers,
            backward_calls=readers + writers,
        )
    ]


def separate_linears(
    name: str, widths: tuple[Any, ...], inputs: Any, size: float, kernels: Kernels
) -> tuple[tuple[Any, ...], list[Stream]]:
    """Widths of linears that share `inputs` elements, if each is a product of its own; its sums.

    Gradients of what they share are summed: a compiler reads one more of them for each linear where
    the sum is needed, eager autograd adds them in kernels of their own.
    """
    if not kernels.separate_linears or len(widths) == 1:
        return (), []
    wide = stream_bytes(size, kernels) * inputs
    return widths, [_sum_gradients(name, len(widths) - 1, wide, kernels)]


def summed_gradients(name: str, readers: int, wide: Any, kernels: Kernels) -> list[Stream]:
    """Add up the gradients that so many `readers` of `wide` bytes hand back: two read, one written.

    Autograd does it in kernels of its own, a compiler on the way.
    """
    if not kernels.sums_gradients_apart or readers < 2:
        return []
    apart = replace(kernels, fused=())
    return [_sum_gradients(name, readers - 1, wide, apart)]


def _sum_gradients(name: str, more: int, wide: Any, kernels: Kernels) -> Stream:
    """Add so many `more` gradients of `wide` bytes to a first one."""
    compiled = "norm" in kernels.fused and not kernels.torch.alone
    return Stream(
        name=f"sum of gradients for {name}",
        kind=OPERATOR if kernels.torch.alone else "elementwise",
        forward_bytes=0.0,
        backward_bytes=more * (1.0 if compiled else 3.0) * wide,
        calls=0.0,
        backward_calls=0.0 if compiled else more,
    )


def padded_vocabulary(vocabulary: int, tp: Any, kernels: Kernels) -> Floats:
    """Vocabulary rounded up so that tp shards are equal (Megatron: a multiple of 128 tp)."""
    step = kernels.pads_vocabulary_to * np.asarray(tp, dtype=float)
    return np.ceil(vocabulary / step) * step


def norm(
    name: str,
    elements: Floats,
    width: int,
    size: float,
    kernels: Kernels,
    *,
    kind: str,
    keeps_input: bool = True,
    role: StreamRole = StreamRole.OTHER,
) -> ModuleOperators:
    """A norm of elements of `size` bytes: one kernel each way if fused, else one for each operator.

    Layer norm is one kernel in torch, too. Sums over tokens give the gradients of its weights;
    Apex's older layer norm, torch and its compiler before pytorch/pytorch#165370 read gradient and
    input once more for them. `keeps_input` is false where another norm keeps the same input; a norm
    without weights is of kind ``plain``.
    """
    alone = kernels.runs_alone("norm") and not kind.startswith("layer")
    if alone:
        ops = _norm_operators(name, elements, size, weighted=kind != "plain", role=role)
    elif "norm" in kernels.fused or kernels.torch.alone:
        ops = _fused_norm(name, elements, size, kernels, weighted=kind != "plain", role=role)
    else:
        ops = _unfused_norm(name, elements, size, role=role)
    if keeps_input:
        readers = ("norm",) if alone else ()
        ops.keep(f"{name} input", elements * size, SavedRole.NORM_INPUT, linears=readers)
    ops.keep(
        f"{name} statistics", (4.0 if kind == "rms" else 8.0) * elements / width, module="norm"
    )
    return ops


def _fused_norm(
    name: str, elements: Floats, size: float, kernels: Kernels, *, weighted: bool, role: StreamRole
) -> ModuleOperators:
    """One kernel each way, and what is not part of it: a cast, sums for gradients of weights."""
    ops = ModuleOperators()
    forward, backward, read = 2 * size, 3 * size, size
    if kernels.norm_inputs_fp32:
        forward, backward, cast, read = 4 + size, 8 + size, (4 + size) * elements, 4.0
        ops.streams.append(
            Stream(
                name=f"{name} input cast",
                kind="elementwise",
                forward_bytes=cast,
                backward_bytes=cast,
                module="norm",
            )
        )
    ops.streams.append(
        Stream(
            name=name,
            role=role,
            kind="norm",
            forward_bytes=forward * elements,
            backward_bytes=backward * elements,
            module="norm",
        )
    )
    if weighted and "norm_gradients" not in kernels.fused:
        ops.streams.append(_norm_weights(name, (size + read) * elements, "norm"))
    return ops


def _norm_operators(
    name: str, elements: Floats, size: float, *, weighted: bool, role: StreamRole
) -> ModuleOperators:
    """An RMS norm in operators, which work in fp32, as torch's before 2.9 and transformers' are.

    Forward: cast, square, mean, product with its inverse root, cast, product with the weights.
    Backward: gradients of the two factors of the inner product, of the mean and the square, their
    sum; gradients of weights are a product and a sum over tokens. Counted op by op with
    transformers 5.24 and torch 2.13 (tests/oracles/test_eager_modules.py).
    """
    ops = ModuleOperators()
    cast = 2 * (size + 4) * (size < 4)
    casts, weights = 2 * (size < 4), 2 * size * weighted
    ops.streams.append(
        Stream(
            name=name,
            role=role,
            kind=OPERATOR,
            forward_bytes=(20 + cast + weights) * elements,
            backward_bytes=(68 + cast + weights) * elements,
            calls=5 + casts + weighted,
            backward_calls=11 + casts + weighted,
            module="norm",
        )
    )
    if weighted:
        ops.streams.append(_norm_weights(name, 4 * size * elements, OPERATOR, calls=2.0))
    # the input in fp32; what the caller keeps beside it is as large as the normalised result, which
    # the gradient of the weights reads, and recomputation of the norm starts from it
    ops.keep(f"{name} in fp32", elements * 4, module="norm")
    return ops


def _unfused_norm(name: str, elements: Floats, size: float, *, role: StreamRole) -> ModuleOperators:
    """A norm of six kernels (cast, square, mean, scale, cast, weight)."""
    ops = ModuleOperators()
    ops.streams.append(
        Stream(
            name=name,
            role=role,
            kind="elementwise",
            forward_bytes=(6 * size + 16) * elements,
            backward_bytes=(10 * size + 24) * elements,
            calls=6,
            module="norm",
        )
    )
    # the fp32 copy and the normalised result; the input itself is not kept once it is cast, but
    # recomputation of the norm starts from it
    ops.keep(f"{name} in fp32", elements * 4, module="norm")
    return ops


def _norm_weights(name: str, moved: Any, kind: str, calls: float = 1.0) -> Stream:
    """Gradients of a norm's weights."""
    return Stream(
        name=f"{name} weight gradients",
        kind=kind,
        forward_bytes=0.0,
        backward_bytes=moved,
        calls=0.0,
        backward_calls=calls,
        module="norm",
        for_weights=True,
    )


def residual(
    name: str,
    elements: Floats,
    size: float,
    dropout: bool,
    kernels: Kernels,
    *,
    role: StreamRole = StreamRole.OTHER,
) -> ModuleOperators:
    """Dropout and residual addition; the backward pass also adds the two gradients.

    What is added to the stream is of `size` bytes an element.
    """
    ops = ModuleOperators()
    fused, wide = "bias_dropout_add" in kernels.fused, stream_bytes(size, kernels)
    mask = 1.0 if dropout else 0.0
    forward = 2 * wide + size + mask
    if not fused and dropout:
        forward += 2 * size
    backward = 3 * wide + (2 * size + mask if dropout else 0.0)
    ops.streams.append(
        Stream(
            name=name,
            role=role,
            kind=OPERATOR if kernels.runs_alone("bias_dropout_add") else "elementwise",
            forward_bytes=forward * elements,
            backward_bytes=backward * elements,
            calls=1 if fused or not dropout else 2,
        )
    )
    if dropout:
        ops.keep(f"{name} dropout mask", elements, SavedRole.MASK)
    return ops
