"""A ``config.json`` as blocks, embedding and head, by the words of its family's row.

Words of the model: ``width layers vocab out tied table types rows maxpos position embnorm final``
``transform headwidth outbias pooler patch scales lin logitcap mtp parts``. Words of a layer, by its
number ``i``: ``norm norms parallel drop mix ffn cross plus blin ple``; of attention ``heads kv
dim vdim qb kb ob qkn gate sinks sharedkv keqv window chunked causal rotary softcap adrop``, latent
``nope rope qrank kvrank``; of an indexer ``indexer iheads idim itopk``; of feed-forward modules
``ff gated act mlpb experts topk eff shared sharedgate routerb expertb latent idle groups``; the
rest are sizes of mixers. What a word means is the field of the record that it fills, below.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from simulator.workload.architecture import MLP, Architecture, Attention, Block, MoE, Norm
from simulator.workload.families.table import FUNCTIONS, Row, every_name, has, kinds, row
from simulator.workload.fields import LARGEST, REQUIRED, Fields
from simulator.workload.mixers import (
    CompressedAttention,
    GatedDelta,
    GatedRecurrence,
    KimiDelta,
    LightningAttention,
    Mamba1,
    Mamba2,
    MatrixMemory,
    Mixer,
    ShortConvolution,
    TimeMixing,
)
from simulator.workload.modules import Activation, Indexer, Linear, beside
from simulator.workload.weights import parameters

_NORMS: Mapping[object, Norm] = {
    "rms": "rms",
    "layer": "layer",
    "one": "layer_without_bias",
    "none": "none",
    0: "none",
}

_MOST = 2**50
"""Largest value of a word: a count of parameters."""

_ONLY = {"__builtins__": {}, **FUNCTIONS}

_ENDINGS = (
    *("ForCausalLM", "LMHeadModel", "WithLMHead", "ForMaskedLM", "ForPreTraining"),
    "ForConditionalGeneration",
    *("ForSequenceClassification", "DoubleHeadsModel", "Model"),
)
"""Endings of ``architectures`` that say what stands behind the last block; none means the first."""

_ACTIVATIONS: Mapping[object, Activation] = {
    "gelu_new": "gelu_new",
    "relu": "relu",
    "relu2": "squared_relu",
    "squared_relu": "squared_relu",
}
"""Without a gate all others are smooth, which ``gelu`` stands for."""


class _Listed(list[Any]):
    """A list of a config, which no size repeats: what is no number is refused by its field."""

    __mul__ = __rmul__ = None  # type: ignore[assignment]


class _Text(str):
    """A word of a config, which no size repeats."""

    __slots__ = ()
    __mul__ = __rmul__ = None  # type: ignore[assignment]


_UNREPEATED: Mapping[type, Callable[[Any], Any]] = {list: _Listed, str: _Text}


class Words(dict[str, Any]):
    """Values of words and fields, computed when they are asked for.

    Parameters
    ----------
    family : Row
        The row whose words they are.
    fields : Fields
        The config.
    layer : int
        Number of the layer, from 0; -1 for what is the same in all of them.
    model : Words, optional
        What is the same in all layers.
    """

    def __init__(
        self, family: Row, fields: Fields, layer: int = -1, model: Words | None = None
    ) -> None:
        super().__init__(i=max(layer, 0))
        self.family, self.config, self.model = family, fields, model

    def __missing__(self, name: str) -> Any:
        family, text = self.family, self.family.words.get(name)
        if self.model is not None and name not in family.varying:
            return self.model[name]
        if text is None:
            value = self._field(name)
        elif text.isdigit():
            value = int(text)
        elif text.isidentifier() and text != name:
            value = self[text] if text in family.words or text in self else self._field(text)
        else:
            code = family.compiled.get(name) or family.expression(name)
            try:
                value = eval(code.code, _ONLY, self)
            except (TypeError, LookupError, ArithmeticError, ValueError):
                self.config.blame(family.fields(name))
                value = 1
        self[name] = value
        return value

    def _field(self, name: str) -> Any:
        """Read a field; in the words of its own name it stands behind a full stop."""
        if name in FUNCTIONS:
            raise KeyError(name)
        family, config, field = self.family, self.config, name.removeprefix(".")
        needed = field in REQUIRED and not config.prefix
        default = None if needed else family.defaults.get(field)
        if field not in config.config and family.also.get(field) in config.config:
            field = family.also[field]
        if field in REQUIRED and field not in config.config and default is not None:
            config.filled[field] = default
        kind, given = kinds().get(field, "size"), config.config.get(field, default)
        if given is None and kind != "flag":
            config.known.add(field)
            return None
        plain = type(given) is bool if kind == "flag" else type(given) is int and kind == "size"
        if plain and given <= LARGEST and (given > 0 or kind == "flag"):
            config.known.add(field)
            return given
        value = config.value(field, default, kind)
        unrepeated = _UNREPEATED.get(type(value))
        return value if unrepeated is None else unrepeated(value)

    def sizes(self, listed: Mapping[str, str]) -> dict[str, Any]:
        """Values of the words of `listed` that the row has and that are above zero, by field."""
        values = {}
        for field, word in listed.items():
            if word in self.family.words:
                value = self[word]
                if type(value) is not int or not 0 <= value <= _MOST:
                    value = self.whole(word)
                if value:
                    values[field] = value
        return values

    def flags(self, listed: Mapping[str, str]) -> dict[str, Any]:
        """Whether the words of `listed` that the row has hold, by field."""
        return {
            field: bool(self[word]) for field, word in listed.items() if word in self.family.words
        }

    def whole(self, word: str, least: int = 0) -> int:
        """Value of a word that is a number of things; 0 where the row has no such word."""
        if word not in self.family.words:
            return 0
        value = self[word]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is None or value is False or value == "":
            value = 0
        if isinstance(value, int) and least <= value <= _MOST:
            return int(value)
        self.config.blame(self.family.fields(word))
        return max(1, least)

    def refuse(self, word: str, rule: str, got: int, other: str, value: int) -> None:
        """Note that the field of a word breaks a rule about that of another."""
        field, beside = self.family.fields(word)[0], self.family.fields(other)[0]
        self.config.require(False, field, rule.format(f"{beside} ({value})"), got, beside)

    def size(self, word: str) -> int:
        """Value of a word that must be above zero."""
        value = self[word]
        return value if type(value) is int and 0 < value <= _MOST else self.whole(word, least=1)

    def flag(self, word: str) -> bool:
        """Whether a word holds; not where the row has no such word."""
        return word in self.family.words and bool(self[word])

    def text(self, word: str) -> str:
        """Value of a word that is text; empty where the row has no such word, or nothing."""
        value = self[word] if word in self.family.words else ""
        return value if isinstance(value, str) else ""


_ATTENTION_SIZES = {
    "value_head_dim": "vdim",
    "window": "window",
    "relative_buckets": "buckets",
}
_ATTENTION_FLAGS = {
    "qkv_bias": "qb",
    "output_bias": "ob",
    "shares_keys": "sharedkv",
    "keys_are_values": "keqv",
    "rotary": "rotary",
    "scaled_rotary": "scaledrotary",
    "dropout": "adrop",
    "chunked": "chunked",
    "causal": "causal",
    "sinks": "sinks",
    "gate_bias": "gateb",
    "softcap": "softcap",
    "filtered": "filtered",
}
_EXPERT_SIZES = {"latent": "latent", "idle_experts": "idle"}
_EXPERT_FLAGS = {
    "gated": "gated",
    "bias": "expertb",
    "router_bias": "routerb",
    "shared_gate": "sharedgate",
    "clamped": "clamped",
    "fp32_router": "fp32router",
}
_MODEL_SIZES = {
    word: word
    for word in ("vocab", "out", "heads_out", "rows", "table", "types", "classes", "mtp", "scales")
}
_MODEL_FLAGS = {
    "tied_embeddings": "tied",
    "logit_softcap": "logitcap",
    "head_transform": "transform",
    "pooler": "pooler",
    "head_bias": "outbias",
    "headless": "headless",
}
"""Fields of records, and the words that fill them."""

_LAYER_WORDS = frozenset(
    (
        "norm",
        "norms",
        "parallel",
        "drop",
        "mix",
        "ffn",
        "cross",
        "plus",
        "blin",
        "ple",
        "heads",
        "kv",
        "dim",
        "kb",
        "qkn",
        "gate",
        "nope",
        "rope",
        "qrank",
        "kvrank",
        "indexer",
        "iheads",
        "idim",
        "itopk",
        "iblock",
        "iplain",
        "ff",
        "gated",
        "act",
        "mlpb",
        "experts",
        "topk",
        "eff",
        "shared",
        "groups",
        "topgroups",
        "lkh",
        "lkd",
        "lvh",
        "lvd",
        "lconv",
        "ssmheads",
        "ssmdim",
        "groups2",
        "state",
        "conv",
        "chunk",
        "convbias",
        "ssmbias",
        "ssmoutbias",
        "ssmnorm",
        "lblock",
        "inner",
        "steprank",
        "ssmnorms",
        "lheads",
        "ldim",
        "kdarank",
        "lru",
        "mkeys",
        "mvalues",
        "ogroups",
        "orank",
        "rate",
        *_ATTENTION_SIZES.values(),
        *_ATTENTION_FLAGS.values(),
        *_EXPERT_SIZES.values(),
        *_EXPERT_FLAGS.values(),
    )
)
"""Words that a block is made of."""


def from_row(f: Fields) -> Architecture:
    """Read a config by the row of its family."""
    words = Words(row(f.family), f)
    if "parts" not in words.family.words:
        return _alone(words)
    parts = [_part(words, *named.split(":")) for named in words["parts"]]
    for named, arch in zip(words["parts"], parts, strict=True):
        words[named.split("_config")[0] + "_width"] = arch.hidden
    left_out = _left_out(words)
    joined = _alone(words) if words.whole("layers") else _beside(parts.pop(0), words)
    joined = replace(joined, notes=(*joined.notes, *left_out))
    for tower in reversed(parts):
        joined = behind(tower, joined)
    return joined


def _left_out(words: Words) -> list[str]:
    """Say of every tower of a config that no part of the row reads that it is left out."""
    read = {named.split(":")[0] for named in words["parts"]}
    towers = ("vision_config", "audio_config", "video_config", "speech_config")
    there = [key for key in towers if key in words.config.config and key not in read]
    return [f"{key} is left out, with its projector: no row describes it" for key in there]


def _alone(words: Words) -> Architecture:
    """Blocks between embedding and head."""
    words["ending"] = (
        words.config.ending("architectures", _endings(words)) if not words.config.prefix else ""
    )
    for field, why in words["refuse"] if "refuse" in words.family.words else ():
        words.config.refuse(field, why)
    layers = min(words.size("layers"), 10_000)
    words.config.depth = layers
    arch = _model(words, _blocks(words, layers))
    if words["ending"] in ("", "ForCausalLM") or not words.flag("encoder"):
        return arch
    encoder = _part(words, ".", words["encoder"])
    return _decoding(encoder, arch)


def _decoding(encoder: Architecture, arch: Architecture) -> Architecture:
    """Put an encoder in front of the decoder that reads it.

    The decoder's first layer has a norm that stands for the encoder's last, or the one of its
    embedding. Positions of unlike lengths are counted beside: the length is then the encoder's.
    """
    first, width = encoder.blocks[encoder.layer_kinds[0]], arch.hidden
    small = encoder.embedding_parameters - parameters(beside(encoder.linears, 0))
    small += encoder.head_parameters - 2 * width
    first = replace(first, linears=encoder.linears, scales=first.scales + max(0, small))
    rest = [encoder.blocks[kind] for kind in encoder.layer_kinds[1:]]
    layers = [arch.blocks[kind] for kind in arch.layer_kinds]
    layers[0] = replace(layers[0], starts_decoder=True)
    kinds: dict[Block, int] = {}
    order = tuple([kinds.setdefault(block, len(kinds)) for block in (first, *rest, *layers)])
    joined = replace(arch, blocks=tuple(kinds), layer_kinds=order)
    if encoder.max_positions == arch.max_positions:
        return joined
    rows = arch.position_rows * width
    longest = encoder.max_positions
    return replace(joined, position="none", max_positions=longest, scales=arch.scales + rows)


def _endings(words: Words) -> tuple[str, ...]:
    """Endings of ``architectures`` that a row knows, the one of a config without them first."""
    return tuple(words["endings"]) if "endings" in words.family.words else _ENDINGS


def _part(outer: Words, key: str, family: str) -> Architecture:
    """Read a part of a config by the row of its own family."""
    fields = outer.config.inner(key, family)
    named = str(fields.config.get("model_type", "")) if key != "." else ""
    if has(named) and named not in row(family).bases and "parts" not in row(named).words:
        family = fields.family = named
    if "outertie" in outer.family.words and key == "text_config":
        fields.config = {**fields.config, "tie_word_embeddings": bool(outer["outertie"])}
    return _alone(Words(row(family), fields))


def _beside(arch: Architecture, words: Words) -> Architecture:
    """Add what a model of parts has itself: projectors, tables."""
    linears, scales = _linears(words, "lin"), words.whole("scales")
    return replace(
        arch,
        name=words.config.name,
        family=words.config.family,
        linears=arch.linears + linears,
        scales=arch.scales + scales,
        projector=parameters(beside(linears, scales)) if len(words["parts"]) > 1 else 0,
    )


def behind(tower: Architecture, arch: Architecture) -> Architecture:
    """Put a tower in front: its blocks keep their width, and their tokens are those of an image."""
    width, tokens = tower.hidden, tower.max_positions
    layers = [replace(tower.blocks[kind], width=width, tokens=tokens) for kind in tower.layer_kinds]
    rest = tower.embedding_parameters - parameters(beside(tower.linears, 0))
    layers[0] = replace(
        layers[0],
        linears=layers[0].linears + tower.linears,
        scales=layers[0].scales + rest,
    )
    layers[-1] = replace(layers[-1], scales=layers[-1].scales + tower.head_parameters)
    layers += [arch.blocks[kind] for kind in arch.layer_kinds]
    kinds: dict[Block, int] = {}
    order = tuple([kinds.setdefault(block, len(kinds)) for block in layers])
    note = f"the tower of {tower.family} sees an image, or a clip, of {tokens} patches a sample"
    return replace(
        arch,
        blocks=tuple(kinds),
        layer_kinds=order,
        tower_layers=arch.tower_layers + tower.layers,
        notes=(*arch.notes, *tower.notes, note),
    )


def _blocks(model: Words, layers: int) -> list[Block]:
    """Blocks of all layers; layers whose words are equal share one."""
    family, fields = model.family, model.config
    differ = [word for word in family.words if word in _LAYER_WORDS and word in family.varying]
    if not differ:
        return [_block(model)] * layers
    made: dict[str, Block] = {}
    blocks = []
    for at in range(layers):
        layer = Words(family, fields, at, model)
        key = repr([layer[word] for word in differ])
        if key not in made:
            made[key] = _block(layer)
        blocks.append(made[key])
    return blocks


def _block(w: Words) -> Block:
    attention, mixer = None, None
    mlp: MLP | MoE | None = None
    mixing, feeding = (w.text(word) for word in ("mix", "ffn"))
    for mix in mixing.split("+"):
        if mix in _ATTENTIONS:
            attention = _ATTENTIONS[mix](w)
        elif mix:
            mixer = _MIXERS[mix](w)
    if "moe" in feeding:
        mlp = _experts(w, beside=w.size("ff") if "mlp" in feeding else 0)
    elif "mlp" in feeding:
        mlp = _dense(w)
    given = w.family.words
    return Block(
        attention=attention,
        mixer=mixer,
        mlp=mlp,
        norm=_NORMS[w["norm"]],
        norms=w.whole("norms"),
        dropout=bool(w["drop"]),
        parallel_residual=bool("parallel" in given and w["parallel"]),
        cross_attention=_cross(w) if "cross" in given and w["cross"] else None,
        linears=_linears(w, "blin") if "blin" in given else (),
        layer_input=w.whole("ple") if "ple" in given else 0,
        scales=w.whole("plus") if "plus" in given else 0,
    )


def _grouped(w: Words) -> Attention:
    """Attention whose heads have keys of their own or share them by groups."""
    heads, kv = w.size("heads"), w.size("kv")
    if heads % kv:
        w.refuse("kv", "must divide {}", kv, "heads", heads)
    if type(w["width"]) is int and w["width"] % heads:
        _undivided(w, heads)
    norm = w["qkn"] if "qkn" in w.family.words else ""
    gate = w["gate"] if "gate" in w.family.words else ""
    return Attention(
        heads=heads,
        kv_heads=kv,
        head_dim=w.size("dim"),
        key_bias=bool(w["kb"] or not w["qb"]),
        qk_norm=norm not in (0, "", "plain"),
        qk_norm_width="all" if norm in ("all", "each") else "head",
        qk_norm_bias=norm == "head_layer",
        plain_qk_norm=norm == "plain",
        output_gate=gate == "full",
        head_gate=gate == "head",
        indexer=_indexer(w) if "indexer" in w.family.words else None,
        **w.flags(_ATTENTION_FLAGS),
        **w.sizes(_ATTENTION_SIZES),
    )


def _undivided(w: Words, heads: int) -> None:
    """Refuse a width that is no multiple of the heads, where heads take equal parts of it."""
    text = w.family.words["dim"]
    given = text.removesuffix("width//heads").removesuffix(" or ")
    if given != text and not (given and w[given]):
        unless = f" unless {given} is given" if given else ""
        w.refuse("width", "must be a multiple of {}" + unless, w["width"], "heads", heads)


def _latent(w: Words) -> Attention:
    """Latent attention; the published number of key heads has no meaning there."""
    heads, rope = w.size("heads"), w.size("rope")
    return Attention(
        heads=heads,
        kv_heads=heads,
        head_dim=w.size("nope") + rope,
        value_head_dim=w.size("vdim"),
        q_lora_rank=w.whole("qrank"),
        kv_lora_rank=w.size("kvrank"),
        rope_head_dim=rope,
        qkv_bias=w.flag("qb"),
        output_bias=w.flag("ob"),
        output_gate=w.text("gate") == "full",
        head_gate=w.text("gate") == "head",
        indexer=_indexer(w) if "indexer" in w.family.words else None,
        dropout=w.flag("adrop"),
        window=w.whole("window"),
        sinks=w.flag("sinks"),
    )


def _indexer(w: Words) -> Indexer | None:
    if not w.flag("indexer"):
        return None
    return Indexer(
        heads=w.size("iheads"),
        head_dim=w.size("idim"),
        top_k=w.size("itopk"),
        block=max(1, w.whole("iblock")),
        weighted=not w.flag("iplain"),
    )


def _cross(w: Words) -> Attention:
    """Attention of a decoder to an encoder's output."""
    heads = w.size("heads")
    return Attention(
        heads=heads,
        kv_heads=w.size("kv"),
        head_dim=w.size("dim"),
        causal=False,
        qkv_bias=w.flag("qb"),
        key_bias=w.flag("kb") or not w.flag("qb"),
        output_bias=w.flag("ob"),
        dropout=w.flag("adrop"),
    )


def _dense(w: Words) -> MLP:
    return MLP(
        ffn_hidden=w.size("ff"),
        gated=w.flag("gated"),
        bias=w.flag("mlpb"),
        activation=_ACTIVATIONS.get(w["act"], "gelu"),
    )


def _experts(w: Words, *, beside: int) -> MoE:
    """Routed experts, and those that every token passes, an MLP beside them among these."""
    experts, top_k = w.size("experts"), w.size("topk")
    if top_k > experts:
        w.refuse("topk", "must be at most {}", top_k, "experts", experts)
    groups, top = max(1, w.whole("groups")), max(1, w.whole("topgroups"))
    even = experts % groups == 0
    return MoE(
        experts=experts,
        top_k=min(top_k, experts),
        ffn_hidden=w.size("eff"),
        shared_ffn_hidden=w.whole("shared") + beside,
        activation=_ACTIVATIONS.get(w["act"], "gelu"),
        groups=groups if even else 1,
        top_groups=min(top, groups) if even else 1,
        **w.flags(_EXPERT_FLAGS),
        **w.sizes(_EXPERT_SIZES),
    )


def _notes(w: Words) -> tuple[str, ...]:
    """What a reader is told: what the row says, and sizes that the config left to its class."""
    notes = [w["note"]] if "note" in w.family.words and w["note"] else []
    if w.config.filled:
        sizes = ", ".join(f"{field} {value}" for field, value in w.config.filled.items())
        notes.append(f"{w.config.prefix}{sizes}, not in the config: transformers' own of its type")
    if unread := _unread(w.config.config, w.family.defaults):
        rule = "by their names sizes, but no row of any type reads them: what they add is left out"
        notes.append(f"{w.config.prefix}{', '.join(unread)}: {rule}")
    return tuple(notes)


_SIZES = re.compile(
    r"^(?:num|n)_|_(?:size|dim|rank|heads|experts|layers|gate|bias|hidden_size)$|latent|mtp|_gate_"
)
"""What the name of a field of a config says that makes a model larger or smaller."""


def _unread(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """Fields that are on, whose names speak of sizes, and that no row knows.

    `defaults` are those of its own row, which spare a look into all others.
    """
    sizes = [
        key
        for key, value in config.items()
        if (value is True or (type(value) is int and value > 0))
        and isinstance(key, str)
        and key not in defaults
        and len(key) < 80
        and _SIZES.search(key)
    ]
    return [
        f"{key} {str(config[key]).lower()}"
        for key in sizes
        if key not in kinds() and key not in every_name()
    ][:8]


def _linears(w: Words, word: str) -> tuple[Linear, ...]:
    """Small linears of a word: lists of outputs, inputs, and how many there are."""
    made, listed = [], (w[word] if word in w.family.words else []) or []
    try:
        for sizes in listed:
            outputs, inputs, count = map(int, (*sizes, 1)[:3])
            if outputs and inputs and count:
                made.append(Linear(outputs=outputs, inputs=inputs, count=count))
    except (TypeError, ValueError, OverflowError):
        w.config.blame(w.family.fields(word))
    if word == "lin" and (values := w.whole("patch")):  # what takes in patches, or frames
        made.append(Linear(outputs=w.size("width"), inputs=values, bias=w.flag("patchbias")))
    return tuple(made)


def _gated_delta(w: Words) -> GatedDelta:
    keys, values = w.size("lkh"), w.size("lvh")
    if values % keys:
        w.refuse("lvh", "must be a multiple of {}", values, "lkh", keys)
    return GatedDelta(
        key_heads=keys,
        value_heads=values,
        key_head_dim=w.size("lkd"),
        value_head_dim=w.size("lvd"),
        convolution=w.size("lconv"),
    )


def _mamba2(w: Words) -> Mamba2:
    heads, groups = w.size("ssmheads"), w.size("groups2")
    if heads % groups:
        w.refuse("ssmheads", "must be a multiple of {}", heads, "groups2", groups)
    return Mamba2(
        heads=heads,
        head_dim=w.size("ssmdim"),
        state_size=w.size("state"),
        groups=groups,
        convolution=w.size("conv"),
        chunk=w.size("chunk"),
        convolution_bias=w.flag("convbias"),
        bias=w.flag("ssmbias"),
        output_bias=w.flag("ssmoutbias"),
        gated_norm=w.flag("ssmnorm"),
    )


_ATTENTIONS: Mapping[str, Callable[[Words], Attention]] = {"attn": _grouped, "mla": _latent}
_MIXERS: Mapping[str, Callable[[Words], Mixer]] = {
    "gdn": _gated_delta,
    "mamba2": _mamba2,
    "lightning": lambda w: LightningAttention(
        heads=w.size("heads"), head_dim=w.size("dim"), chunk=w.size("lblock")
    ),
    "mamba1": lambda w: Mamba1(
        inner=w.size("inner"),
        state_size=w.size("state"),
        step_rank=w.size("steprank"),
        convolution=w.size("conv"),
        convolution_bias=w.flag("convbias"),
        bias=w.flag("ssmbias"),
        output_bias=w.flag("ssmoutbias"),
        norms=w.flag("ssmnorms"),
    ),
    "kda": lambda w: KimiDelta(
        heads=w.size("lheads"),
        head_dim=w.size("ldim"),
        convolution=w.size("lconv"),
        rank=w.whole("kdarank"),
    ),
    "rglru": lambda w: GatedRecurrence(
        inner=w.size("lru"), heads=w.size("heads"), convolution=w.size("conv")
    ),
    "mlstm": lambda w: MatrixMemory(
        heads=w.size("heads"),
        key_head_dim=w.size("mkeys"),
        value_head_dim=w.size("mvalues"),
        chunk=w.size("chunk"),
        bias=w.flag("mlpb"),
    ),
    "rwkv4": lambda w: TimeMixing(inner=w.size("inner")),
    "shortconv": lambda w: ShortConvolution(
        inner=w.size("width"), convolution=w.size("conv"), bias=w.flag("convbias")
    ),
    "csa": lambda w: CompressedAttention(
        heads=w.size("heads"),
        head_dim=w.size("dim"),
        q_rank=w.size("qrank"),
        output_groups=w.size("ogroups"),
        output_rank=w.size("orank"),
        rate=w.whole("rate"),
        picked=w.whole("itopk") if w.flag("indexer") else 0,
        index_heads=w.whole("iheads") if w.flag("indexer") else 0,
        index_dim=w.whole("idim") if w.flag("indexer") else 0,
        window=w.size("window"),
        compressors=2 if w.flag("indexer") else 1,
    ),
}
"""How words become attention, or what stands in its place."""


def _model(w: Words, blocks: list[Block]) -> Architecture:
    size, given = w.sizes(_MODEL_SIZES), w.family.words
    vocab, out = size.get("vocab", 0), size.get("out", 0) * size.get("heads_out", 1)
    width, rows, table = w.size("width"), size.get("rows", 0), size.get("table", 0)
    position = w["position"] if "position" in given else "learned" if rows else "rope"
    longest, norm = w.size("maxpos"), w["embnorm"] if "embnorm" in given else ""
    beyond = max(0, rows - longest) if position == "learned" else 0
    if vocab == 0 and w["vocab"] is None:
        w.size("vocab")
    flags = w.flags(_MODEL_FLAGS)
    return Architecture.of_layers(
        blocks,
        name=w.config.name,
        family=w.config.family,
        hidden=width,
        vocabulary=out or vocab,
        table_width=table if table != width else 0,
        position=position,
        max_positions=longest,
        final_norm=_NORMS[w["final"]],
        extra_embeddings=size.get("types", 0) + beyond + max(0, vocab - out),
        embedding_norms=int(norm == "layer"),
        classes=size.get("classes", 0),
        class_bias=not flags.get("headless"),
        notes=_notes(w),
        mtp_layers=size.get("mtp", 0),
        linears=_linears(w, "lin") if "lin" in given or "patch" in given else (),
        scales=size.get("scales", 0) + (width if norm in ("one", "rms") else 0),
        **flags,
    )
