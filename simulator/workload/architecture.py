"""What a model is: blocks of attention and MLP, embeddings, a head. Sizes only, no layout.

An :class:`Architecture` lists its distinct block kinds once and names, layer by layer, which
kind stands there; DeepSeek-V3 has two kinds and 61 layers. Counts of parameters
follow from the sizes; how a rank shards them is the business of
``cost/operators/block_operators.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, ClassVar, Literal

from simulator.files import record
from simulator.record_cache import for_same_records
from simulator.workload.mixers import Mixer
from simulator.workload.modules import (
    MLP,
    Attention,
    Count,
    Linear,
    MoE,
    Positive,
    beside,
)
from simulator.workload.tasks import TaskHeads
from simulator.workload.traced import TracedPart
from simulator.workload.weights import Weight, active_parameters, parameters, vector

__all__ = ["MLP", "Attention", "MoE"]

Norm = Literal["rms", "layer", "layer_without_bias", "none"]
"""Kind of a norm."""


def _norm(norm: Norm, width: int, count: int = 1) -> Weight:
    """Vectors of some norms: a weight, with layer norm also a bias."""
    vectors = {"rms": 1, "layer": 2, "layer_without_bias": 1, "none": 0}[norm]
    return vector("norm", count * vectors * width)


@record
class Block:
    """One layer: norms, attention or another mixer of tokens, and a dense MLP or experts.

    Of attention, mixer and MLP one may stand alone, behind one norm (Nemotron-H).
    """

    attention: Attention | None
    mlp: MLP | MoE | None
    mixer: Mixer | None = None
    """What mixes tokens in place of attention."""
    norm: Norm = "rms"
    """RMS norm has one weight vector, layer norm a weight and (except in MPT) a bias."""
    norms: Count = 2
    """Norms in the block: two; four where attention and MLP end in one too (Gemma 2), three with
    cross attention, one where a parallel residual reads a single norm (Falcon-7B)."""
    dropout: bool = False
    """Dropout after attention and MLP during training (GPT-2, GPT-3)."""
    parallel_residual: bool = False
    """Attention and MLP read the same input (GPT-NeoX, Falcon), through one norm or one each."""
    cross_attention: Attention | None = None
    """Attention to the encoder's output, between self attention and MLP (decoders of T5)."""
    starts_decoder: bool = False
    """The first layer behind an encoder: before it come the encoder's last norm and the decoder's
    input embedding, which on another pipeline stage than the first is a copy of its own."""
    convolution: Count = 0
    """Tokens that a convolution over the layer's input sees; it is added to the output, under a
    layer norm of its own (first layer of DeBERTa-v2); 0 means none."""
    convolution_groups: Positive = 1
    """Groups of channels that the convolution keeps apart."""
    merges_patches: bool = False
    """Joins 2 x 2 patches of half its width first, by a norm and a projection (Swin)."""
    width: Count = 0
    """Width of the residual stream in this layer; 0 means the model's (Swin doubles it)."""
    tokens: Count = 0
    """Tokens per sequence in this layer; 0 means the recipe's (Swin quarters them)."""
    frozen: bool = False
    """Not trained, like everything before it: no backward pass."""
    passes_gradients: bool = False
    """Not trained, but gradients pass through it to what is trained before it."""
    linears: tuple[Linear, ...] = ()
    """Small linears beside the modules, each on every token."""
    layer_input: Count = 0
    """Width of an input that the layer alone has, behind its MLP: two of its `linears` gate it and
    bring it to the model's width, a norm whose weights are `scales` follows (Gemma 3n and 4)."""
    scales: Count = 0
    """Other elements that nothing multiplies by a token: scalars, gates, biases of routers."""
    predicts_ahead: bool = False
    """A multi-token-prediction layer: it joins the hidden state with the embedding of the next
    token by a projection, and has a norm and a loss of its own over the model's output head
    (DeepSeek-V3 report, arXiv 2412.19437, section 2.2)."""
    traced: TracedPart | None = None
    """A layer of a traced module: what it does is counted here, all other fields mean nothing."""

    @property
    def mixes_tokens(self) -> bool:
        """Whether tokens meet in it, by attention or another mixer."""
        return self.attention is not None or self.mixer is not None

    @property
    def trained(self) -> bool:
        """Whether its weights are trained."""
        return not (self.frozen or self.passes_gradients)

    @property
    def is_moe(self) -> bool:
        """Whether the block holds experts."""
        return isinstance(self.mlp, MoE)

    @for_same_records(512)
    def weights(self, hidden: int) -> Sequence[Weight]:
        """List the weights of the block in a model of width `hidden`, routed experts last.

        Of a traced layer only the operands of its products.
        """
        if self.traced is not None:
            return self.traced.weights
        width = self.width or hidden
        mixing = (self.attention, self.mixer, self.cross_attention)
        mlp = self.mlp.weights(width) if self.mlp is not None else []
        joins = self.predicts_ahead or self.merges_patches
        return (
            _norm(self.norm, width, self.norm_vectors),
            *[weight for module in mixing if module for weight in module.weights(width)],
            *[weight for weight in mlp if not weight.active],
            *(self._joint_weights(width) if joins else []),
            *(self._convolution_weights(width) if self.convolution else []),
            *(beside(self.linears, self.scales) if self.linears or self.scales else []),
            *[weight for weight in mlp if weight.active],
        )

    def parameters(self, hidden: int) -> int:
        """Count all parameters of the block in a model of width `hidden`."""
        return parameters(self.weights(hidden)) if self.traced is None else self.traced.parameters

    def _joint_weights(self, width: int) -> list[Weight]:
        """Projection that joins two inputs, or four patches of half the width behind a norm."""
        join = Weight(name="join", rows=width, columns=2 * width, cut="rows")
        return [_norm("layer", 2 * width), join] if self.merges_patches else [join]

    def _convolution_weights(self, width: int) -> list[Weight]:
        seen = self.convolution * (width // self.convolution_groups)
        return [
            Weight(name="convolution", rows=width, columns=seen, bias=True),
            _norm("layer", width),
        ]

    @property
    def norm_vectors(self) -> int:
        """Norms of the block's width.

        A multi-token-prediction layer has one on each input and a last, the first layer of a
        decoder the encoder's last.
        """
        return self.norms + (3 if self.predicts_ahead else 0) + self.starts_decoder

    def active_parameters(self, hidden: int) -> int:
        """Count the parameters that one token passes."""
        if self.traced is not None:
            return self.traced.parameters
        return active_parameters(self.weights(hidden))


@record
class Architecture:
    """A whole model: block kinds, the kind of every layer, embeddings and head."""

    KEYS: ClassVar[tuple[str, ...]] = ("name", "parameters", "active_parameters", "assumed")

    name: str
    family: str
    """The ``model_type`` it came from, or ``custom``."""
    hidden: Positive
    """Width of the residual stream."""
    blocks: tuple[Block, ...]
    """The distinct block kinds."""
    layer_kinds: tuple[int, ...]
    """For each layer, first to last, the index of its kind in `blocks`."""
    vocabulary: Count
    """Rows of the token embedding, as published (a framework may pad it further); 0 for images."""
    tied_embeddings: bool = False
    """The output head shares the input embedding."""
    table_width: Count = 0
    """Width of token embedding and output table where projections without bias bring it to `hidden`
    and back (OPT-350m); 0 means `hidden`."""
    position: Literal["rope", "learned", "alibi", "relative", "none"] = "rope"
    """How positions enter; relative: biases or embeddings that the attention modules describe."""
    max_positions: Positive = 1_048_576
    """Longest sequence the model is defined for; rows of a learned position embedding."""
    final_norm: Norm = "rms"
    """The norm before the head; none where every block ends in one (BERT)."""
    extra_embeddings: Count = 0
    """Other rows of the embedding: token types (BERT), a class token (ViT), relative positions
    (DeBERTa), the two first positions of OPT."""
    embedding_norms: Count = 0
    """Layer norms of the embedding's tables (BERT has one; DeBERTa one more on its positions)."""
    linears: tuple[Linear, ...] = ()
    """Small linears between embedding and blocks, each on every token."""
    scales: Count = 0
    """Other elements there that nothing multiplies by a token, tables of further ids among them."""
    tower_layers: Count = 0
    """First layers that are those of towers, which see images or sound."""
    projector: Count = 0
    """Parameters beside the embedding that bring a tower's output to the model's width."""
    patch_values: Count = 0
    """Input values of one image patch, which a linear layer takes in; 0 for text."""
    logit_softcap: bool = False
    """Logits pass a tanh before the loss (Gemma 2)."""
    head_transform: bool = False
    """A square layer with a bias before last norm and output (BERT's masked-language head)."""
    pooler: bool = False
    """A square layer with a bias on one vector per sequence (BERT)."""
    head_bias: bool = False
    """The output over the vocabulary has a bias."""
    classes: Count = 0
    """Outputs of a classifier of one vector per sequence, beside the head over the vocabulary."""
    class_bias: bool = True
    """Whether the classifier has biases (reward models of decoders have none)."""
    headless: bool = False
    """No output over the vocabulary: reward and embedding models."""
    notes: tuple[str, ...] = ()
    """What a reader of its prediction is told: what was left out, or priced as something else."""
    stored_in_4_bit: bool = False
    """Its checkpoint is in 4 bit, and so is what adapters leave frozen."""
    tasks: TaskHeads | None = None
    """Heads of several tasks; without `keeps_output` they stand instead of the model's own."""
    mtp_layers: Count = 0
    """Multi-token-prediction layers (published beside the model, not in its parameter count)."""
    traced: TracedPart | None = None
    """What a traced module does outside its layers; then `blocks` are traced too."""

    @classmethod
    def of_layers(cls, layers: Iterable[Block], **rest: Any) -> Architecture:
        """Put the blocks of all layers, first to last, between embedding and head."""
        listed, kinds = list(layers), dict[Block, int]()
        several = dict(zip(map(id, listed), listed, strict=True))  # most stand there many times
        kind_of = {name: kinds.setdefault(block, len(kinds)) for name, block in several.items()}
        layer_kinds = tuple(map(kind_of.__getitem__, map(id, listed)))
        return cls(blocks=tuple(kinds), layer_kinds=layer_kinds, **rest)

    def predicting_ahead(self, count: int) -> Architecture:
        """Return the model with `count` multi-token-prediction layers behind its own.

        They are blocks of the last layer's kind with a projection, a norm and a loss more; the
        embedding and the head are the model's own. Their parameters are counted then.
        """
        if count == 0:
            return self
        ahead = replace(self.blocks[self.layer_kinds[-1]], predicts_ahead=True)
        kinds = self.layer_kinds + (len(self.blocks),) * count
        return replace(self, blocks=(*self.blocks, ahead), layer_kinds=kinds, mtp_layers=count)

    @property
    def layers(self) -> int:
        """Number of transformer layers, those that predict ahead not counted."""
        ahead = {kind for kind, block in enumerate(self.blocks) if block.predicts_ahead}
        return len(self.layer_kinds) - sum(map(self.layer_kinds.count, ahead))

    @property
    def assumed(self) -> tuple[str, ...]:
        """What its prediction takes for granted, of mixers and by `notes`."""
        return tuple(dict.fromkeys((*(mixer.assumption for mixer in self.mixers), *self.notes)))

    @property
    def attentions(self) -> list[Attention]:
        """Self attention of every block kind that has it."""
        return [kind.attention for kind in self.blocks if kind.attention is not None]

    @property
    def mixers(self) -> list[Mixer]:
        """What mixes tokens in the block kinds without attention."""
        return [kind.mixer for kind in self.blocks if kind.mixer is not None]

    @property
    def mlps(self) -> list[MLP | MoE]:
        """Feed-forward module of every block kind that has one."""
        return [kind.mlp for kind in self.blocks if kind.mlp is not None]

    @property
    def moes(self) -> list[MoE]:
        """Mixtures of experts among them."""
        return [mlp for mlp in self.mlps if isinstance(mlp, MoE)]

    @property
    def is_moe(self) -> bool:
        """Whether any layer holds experts."""
        return any(map(attrgetter("is_moe"), map(self.blocks.__getitem__, set(self.layer_kinds))))

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether a part of the layers reads the output of the others by cross attention."""
        return any(map(attrgetter("cross_attention"), self.blocks))

    @property
    def last_width(self) -> int:
        """Width of the residual stream behind the last layer."""
        return self.blocks[self.layer_kinds[-1]].width if self.layer_kinds else 0

    @property
    def has_fixed_length(self) -> bool:
        """Whether every sample has `max_positions` tokens, as images have."""
        traced = self.traced is not None and self.max_positions < 1_048_576
        return self.patch_values > 0 or traced

    @property
    def output_rows(self) -> int:
        """Rows of the output table: the vocabulary, or none where only tasks are answered."""
        answers = self.tasks is None or self.tasks.keeps_output
        return self.vocabulary if answers and not self.headless else 0

    @property
    def table_columns(self) -> int:
        """Width of token embedding and output table."""
        return self.table_width or self.hidden

    @property
    def position_rows(self) -> int:
        """Rows of a learned position embedding."""
        return self.max_positions if self.position == "learned" else 0

    @property
    @for_same_records(256)
    def embedding_weights(self) -> Sequence[Weight]:
        """Weights of the embedding beside the tokens' table: positions, types, norms, patches."""
        hidden, rows, norms = self.hidden, self.position_rows, self.embedding_norms
        weights = [
            Weight(name="positions", rows=rows, columns=hidden, per="none"),
            Weight(name="types", rows=self.extra_embeddings, columns=hidden, per="none"),
            _norm("layer", hidden, norms),
            Weight(name="projection", rows=hidden, columns=self.table_width),
            *(beside(self.linears, self.scales) if self.linears or self.scales else []),
        ]
        if self.patch_values:
            patches = Weight(name="patches", rows=hidden, columns=self.patch_values, bias=True)
            weights.append(patches)
        return tuple(weight for weight in weights if weight.rows * weight.columns)

    @property
    def embedding_parameters(self) -> int:
        """Parameters of all input embeddings."""
        return self.vocabulary * self.table_columns + parameters(self.embedding_weights)

    @property
    @for_same_records(256)
    def head_weights(self) -> Sequence[Weight]:
        """Weights of the head beside its table: norm, square layers, classifier, tasks."""
        if self.traced is not None:
            return self.traced.weights
        width = self.last_width or self.hidden
        columns = self.table_width if self.output_rows else 0
        square = Weight(name="transform", rows=width, columns=width, bias=True)
        once = replace(
            square, name="classes", rows=self.classes, per="sequence", bias=self.class_bias
        )
        weights = [
            _norm(self.final_norm, width),
            *([square] if self.head_transform else []),
            *([replace(square, name="pooler", per="sequence")] if self.pooler else []),
            *([once] if self.classes else []),
            Weight(name="projection", rows=columns, columns=self.hidden),
            *(self.tasks.weights(width) if self.tasks is not None else []),
        ]
        return tuple(weight for weight in weights if weight.rows * weight.columns)

    @property
    def small_head_parameters(self) -> int:
        """Parameters of the head beside its table."""
        return self.traced.parameters if self.traced is not None else parameters(self.head_weights)

    @property
    def head_parameters(self) -> int:
        """Parameters of final norm, output table (unless tied) and what else the head has."""
        table = 0 if self.tied_embeddings else self.output_rows * self.table_columns
        return self.small_head_parameters + table + self.head_bias * self.output_rows

    @property
    def parameters(self) -> int:
        """All parameters, tied tensors once, multi-token-prediction layers left out."""
        return _in_blocks(self, "parameters") + self.embedding_parameters + self.head_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token passes (an expert model's active size), embeddings included."""
        return (
            _in_blocks(self, "active_parameters") + self.embedding_parameters + self.head_parameters
        )


@for_same_records(256)
def _in_blocks(model: Architecture, count: str) -> int:
    """Parameters of all layers by one of their counts: every answer asks for them again."""
    total = 0
    for kind, layers in Counter(model.layer_kinds).items():
        total += layers * getattr(model.blocks[kind], count)(model.hidden)
    return total
