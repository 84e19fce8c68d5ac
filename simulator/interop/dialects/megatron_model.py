"""The shape of a model as Megatron's arguments, written and read.

Names and defaults as in NVIDIA/Megatron-LM@000c4ac2, megatron/training/arguments.py.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from itertools import groupby
from typing import Any

from simulator.interop.dialects.model_names import zoo_model
from simulator.interop.dialects.settings import Settings, as_whole
from simulator.interop.dialects.table import Word, field_values, write_words
from simulator.records import dataclass
from simulator.software.kernels import Kernels
from simulator.software.profile import Software
from simulator.workload import presets
from simulator.workload.architecture import MLP, Architecture, Attention, Block, MoE
from simulator.workload.mixers import Mamba2
from simulator.workload.recipe import Recipe

_POSITIONS = {
    "rope": "rope", "learned": "learned_absolute", "none": "none", "alibi": "none",
    "relative": "none",
}  # fmt: skip
_READ_POSITIONS = {
    "rope": "rope", "learned_absolute": "learned", "none": "none", "yarn": "rope", "mrope": "rope",
}  # fmt: skip
_LATENT = {
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "nope_head_dim": "qk_head_dim",
    "rope_head_dim": "qk_pos_emb_head_dim",
    "value_head_dim": "v_head_dim",
}
"""Sizes of latent attention -> arguments."""
_USUAL_LATENT: dict[str, Any] = {
    "q_lora_rank": 0, "kv_lora_rank": 512, "nope_head_dim": 128, "rope_head_dim": 64,
    "value_head_dim": 128,
}  # fmt: skip
"""What they are where no argument says."""
_ROUTED = {
    "experts": "num_experts",
    "top_k": "moe_router_topk",
    "ffn_hidden": "moe_ffn_hidden_size",
    "shared_ffn_hidden": "moe_shared_expert_intermediate_size",
    "groups": "moe_router_num_groups",
    "top_groups": "moe_router_group_topk",
}
"""Sizes of experts -> arguments."""
CAPACITY = (
    Word("training.moe_capacity_factor", "moe_expert_capacity_factor", real=True),
    Word("training.moe_pads_to_capacity", "moe_pad_expert_input_to_capacity", on=True),
)
"""How many tokens an expert takes."""
_KINDS = "M*-E"
"""Letters of layers that are read: Mamba-2, attention, MLP, experts."""
_VOCABULARIES = {"gpt2bpetokenizer": 50257, "bertwordpiecelowercase": 30522}
"""Tokenizers whose size is fixed."""

# --- written --------------------------------------------------------------------------------------


def model_arguments(arch: Architecture, software: Software, recipe: Recipe) -> list[dict[str, Any]]:
    """Arguments of the model's shape in groups: sizes, attention, experts, switches."""
    attention, first = arch.attentions[0], arch.mlps[0]
    dense = next((mlp for mlp in arch.mlps if isinstance(mlp, MLP)), first)
    sizes = {
        "num_layers": arch.layers,
        "hidden_size": arch.hidden,
        "ffn_hidden_size": dense.ffn_hidden,
        "num_attention_heads": attention.heads,
        "max_position_embeddings": max(arch.max_positions, recipe.sequence_length),
    }
    vocabulary = {"make_vocab_size_divisible_by": software.kernels.pads_vocabulary_to}
    untied = {} if arch.tied_embeddings else {"untie_embeddings_and_output_weights": True}
    switches = _switches(arch.blocks[0], attention, first, arch)
    experts = _experts(arch, recipe, software.kernels)
    return [sizes, _attention(attention, arch), experts, switches | vocabulary | untied]


def unsaid(arch: Architecture) -> list[str]:
    """Name what the model has and the flags above do not say."""
    blocks, attentions = arch.blocks, arch.attentions
    features = {
        "mixers in place of attention": bool(arch.mixers),
        "layers of one module": any(
            kind.mlp is None or not (kind.attention or kind.mixer) for kind in blocks
        ),
        "an encoder and a decoder": arch.is_encoder_decoder,
        "images for input": arch.patch_values > 0,
        "attention to both sides": not all(att.causal for att in attentions),
        "disentangled attention": any(att.disentangled for att in attentions),
        "localized filtering": any(att.filtered for att in attentions),
        "attention in chunks": any(att.chunked for att in attentions),
        "layers without positions": arch.position == "rope"
        and not all(att.rotary for att in attentions),
        "norms of queries and keys without weights": any(att.plain_qk_norm for att in attentions),
        "a convolution beside attention": any(kind.convolution for kind in blocks),
        "heads of several tasks": arch.tasks is not None,
        "projected embeddings": arch.table_width > 0,
        "attention sinks": any(att.sinks for att in attentions),
        "capped scores": any(att.softcap for att in attentions),
        "norms behind attention and MLP": any(kind.norms > 3 for kind in blocks),
        "biases of experts": any(moe.bias for moe in arch.moes),
        "rectified MLPs": any(mlp.activation == "relu" for mlp in arch.mlps),
    }
    return [name for name, there in features.items() if there]


def _attention(attention: Attention, arch: Architecture) -> dict[str, Any]:
    normed = {"qk_layernorm": True} if attention.qk_norm or attention.is_mla else {}
    if attention.is_mla:
        sizes = {
            "q_lora_rank": attention.q_lora_rank,
            "kv_lora_rank": attention.kv_lora_rank,
            "nope_head_dim": attention.head_dim - attention.rope_head_dim,
            "rope_head_dim": attention.rope_head_dim,
            "value_head_dim": attention.value_dim,
        }
        written = {_LATENT[name]: size for name, size in sizes.items() if size}
        return {"multi_latent_attention": True} | written | normed
    grouped = {"group_query_attention": True, "num_query_groups": attention.kv_heads}
    few = grouped if attention.kv_heads != attention.heads else {}
    return {"kv_channels": attention.head_dim} | few | normed | _window(arch)


def _window(arch: Architecture) -> dict[str, Any]:
    """Sliding windows: W tokens with the current one are W - 1 to its left."""
    layers = [arch.blocks[kind].attention for kind in arch.layer_kinds]
    windows = [0 if att is None or att.chunked else att.window for att in layers]
    if not any(windows):
        return {}
    every = {"window_size": f"{max(windows) - 1},0"}
    if all(windows):
        return every
    return every | {"window_attn_skip_freq": _pattern([int(w > 0) for w in windows])}


def _experts(arch: Architecture, recipe: Recipe, kernels: Kernels) -> dict[str, Any]:
    moe = next(iter(arch.moes), None)
    if moe is None:
        return {}
    grouped = moe.top_groups < moe.groups
    arguments: dict[str, Any] = {
        key: getattr(moe, name)
        for name, key in _ROUTED.items()
        if getattr(moe, name) and (grouped or "group" not in name)
    }
    if recipe.is_quantised or recipe.precision == "bf16":
        arguments["moe_grouped_gemm"] = True
    if kernels.permutation == "fused":
        arguments["moe_permute_fusion"] = True
    sparse = [int(arch.blocks[kind].is_moe) for kind in arch.layer_kinds]
    mixed = {} if all(sparse) else {"moe_layer_freq": _pattern(sparse)}
    return arguments | write_words(CAPACITY, field_values({}, recipe)) | mixed


def _pattern(flags: list[int]) -> str:
    """Write a 0/1 pattern over layers as Megatron reads it: ``([0]*3+[1]*58)``."""
    runs = [f"[{value}]*{len(list(same))}" for value, same in groupby(flags)]
    return f"({'+'.join(runs)})"


def _switches(
    block: Block, attention: Attention, mlp: MLP | MoE, arch: Architecture
) -> dict[str, Any]:
    biased = isinstance(mlp, MLP) and mlp.bias
    on = {
        "swiglu": mlp.gated,
        "squared_relu": not mlp.gated and mlp.activation == "squared_relu",
        "disable_bias_linear": not biased,
        "add_qkv_bias": not biased and attention.qkv_bias,
    }
    dropped = {"attention_dropout": attention.dropout, "hidden_dropout": block.dropout}
    return {
        "normalization": "RMSNorm" if block.norm == "rms" else "LayerNorm",
        "position_embedding_type": _POSITIONS[arch.position],
        **{key: True for key, wanted in on.items() if wanted},
        **{key: "0.0" for key, there in dropped.items() if not there},
    }


# --- read -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What the arguments say of the model."""

    layers: int | None = None
    architecture: Architecture | None = None
    """Its vocabulary is 0 where nothing says how many tokens there are."""
    notes: tuple[str, ...] = ()


def shape_of(settings: Settings, *, flags: bool = False) -> Shape:
    """Take the model's sizes and switches; no architecture where the first sizes are missing.

    `flags` says that a switch which is not there is off (``read_megatron``).
    """
    layers = settings.whole("size.layers", "num_layers")
    hidden = settings.whole("size.hidden", "hidden_size")
    heads = settings.whole("size.heads", "num_attention_heads")
    if _experts_differ(settings):
        return Shape(layers=layers)
    sizes = {name: settings.whole("", name) for name in _SIZES}
    words = {name: settings.take(name) for name in _WORDS}
    switches = {name: settings.flag(name) for name in _FLAGS}
    if flags and switches["group_query_attention"] is None:
        switches["group_query_attention"] = False  # argument_utils.py leaves the groups out then
        if (sizes["num_query_groups"] or 1) > 1:
            rule = "left out without --group-query-attention: every head has its own keys"
            settings.notes.append(f"{settings.found['num_query_groups'].place}: {rule}")
    vocabulary, notes = _vocabulary(settings)
    pattern = _pattern_of_kinds(settings)
    if pattern is None or _in_latent_width(settings):
        return Shape(layers=layers)
    layers = len(pattern) or layers
    if layers is None or hidden is None or heads is None or settings.problems:
        return Shape(layers=layers)
    if layers > 10_000:
        settings.problems.append(f"{settings.found['num_layers'].place}: at most 10000 layers")
        return Shape()
    Given = _Given(settings, layers, hidden, heads, sizes, words, switches, pattern)
    architecture = Given.architecture(vocabulary or 1)
    said = {*settings.found, *(_USUALLY_OFF if flags else ())}
    if vocabulary is not None:
        return Shape(layers=layers, architecture=_named(architecture, said)[0], notes=notes)
    architecture, alike = _named(architecture, said, any_vocabulary=True)
    if alike and not _names_another(settings, architecture.name):
        note = f"vocabulary: that of {architecture.name}, whose other sizes are the same;"
        note += " --set model.vocab_size=N says another"
        return Shape(layers=layers, architecture=architecture, notes=(note,))
    what = f"{layers} layers of {hidden}, vocabulary (--vocab-size) not said"
    settings.say("run.model", what, settings.found["hidden_size"])
    return Shape(layers=layers, architecture=replace(architecture, vocabulary=0))


_FAMILY = re.compile(
    r"llama|mistral|mixtral|qwen|gemma|deepseek|phi|falcon|nemotron|glm|opt|gpt|yi-"
)


def _names_another(settings: Settings, name: str) -> bool:
    """Whether the tokenizer is named after another family than the model of these sizes."""
    setting = settings.found.get("tokenizer_model") or settings.found.get("tokenizer_name_or_path")
    said = set() if setting is None else set(_FAMILY.findall(str(setting.value).lower()))
    return bool(said) and not said & set(_FAMILY.findall(name))


def _experts_differ(settings: Settings) -> bool:
    """Megatron-DeepSpeed's ``--num-experts 64 64 128 128``: numbers that differ by layer."""
    setting = settings.found.get("num_experts")
    numbers = set(re.findall(r"\d{1,9}", str(setting.value))) if setting is not None else set()
    if setting is None or len(numbers) < 2:
        return False
    settings.take("num_experts")
    settings.say("run.model", "layers with different numbers of experts, not read", setting)
    return True


def _in_latent_width(settings: Settings) -> bool:
    """Whether experts work in another width than the model's, which is not modelled."""
    setting = settings.take("moe_latent_size")
    if setting is None:
        return False
    settings.say("run.model", "experts in a latent width (moe_latent_size), not modelled", setting)
    return True


def _pattern_of_kinds(settings: Settings) -> str | None:
    """Letters of layers of one module each, blank where all are alike; None: not known here.

    ``M-M*|M-E``: Mamba, MLP, attention, experts; bars part the pieces of the pipeline
    (megatron/core/models/hybrid/hybrid_layer_allocation.py).
    """
    setting = settings.take("hybrid_layer_pattern", "hybrid_override_pattern")
    shares = [settings.take(f"hybrid_{part}_ratio") for part in ("attention", "mlp")]
    settings.take("is_hybrid_model")
    if setting is None:
        drawn = next((s for s in shares if s and str(s.value) not in ("0", "0.0")), None)
        if drawn is not None:
            said = "layers of several kinds, dealt by shares, which are not read"
            settings.say("run.model", said, drawn)
            return None
        return ""
    text = re.sub(r"[\s'\"\\]", "", str(setting.value))
    if unknown := sorted(set(text) - {*_KINDS, "|"}):
        said = f"layers of kinds that are not read ({' '.join(unknown)[:20]})"
        settings.say("run.model", said, setting)
        return None
    pieces = text.split("|")
    pattern = "".join(pieces)
    stated = settings.value_of("size.layers")
    if stated is not None and stated != len(pattern):  # the pattern decides, Megatron says
        settings.stated = [item for item in settings.stated if item.field != "size.layers"]
    pp = settings.value_of("layout.pp") or 1
    if len(pieces) > 1 and (len(pieces) % pp or not all(pieces)):
        rule = f"must part layers into pieces that pp {pp} divides, got {len(pieces)}"
        settings.problems.append(f"{setting.place}: {rule}")
    elif len(pieces) > 1:
        settings.say("layout.stages", [len(piece) for piece in pieces], setting)
        if len(pieces) > pp:
            settings.say("layout.vpp", len(pieces) // pp, setting)
    return pattern


_SIZES = (
    *("ffn_hidden_size", "num_query_groups", "kv_channels", "max_position_embeddings"),
    *("num_moe_experts", *_ROUTED.values(), *_LATENT.values()),
    *("mamba_num_heads", "mamba_head_dim", "mamba_num_groups", "mamba_state_dim"),
)
_WORDS = (
    *("position_embedding_type", "normalization", "window_size", "window_attn_skip_freq"),
    *("moe_layer_freq", "attention_dropout", "hidden_dropout", "activation", "activation_func"),
)
_FLAGS = (
    *("group_query_attention", "swiglu", "squared_relu", "disable_bias_linear", "add_qkv_bias"),
    *("add_bias_linear", "qk_layernorm", "untie_embeddings_and_output_weights"),
    *("use_rotary_position_embeddings",),
    *("multi_latent_attention", "share_embeddings_and_output_weights", "gated_linear_unit"),
)


def _vocabulary(settings: Settings) -> tuple[int | None, tuple[str, ...]]:
    """Rows of the embedding and where they come from: stated, or of a tokenizer that is known."""
    stated = settings.whole("", "padded_vocab_size")
    size = settings.whole("", "vocab_size")
    tokenizer = settings.found.get("tokenizer_type")
    kind = str(tokenizer.value).lower() if tokenizer else ""
    if not kind and "merge_file" in settings.found:
        kind = "gpt2bpetokenizer"  # what pretrain_gpt.py takes where none is named
    if stated is not None:
        return stated, ()
    if size is not None:
        return size + (kind == "nulltokenizer"), ()
    if kind in _VOCABULARIES:
        return _VOCABULARIES[kind], _words_of_ones_own(settings, kind)
    setting = settings.found.get("tokenizer_model") or settings.found.get("tokenizer_name_or_path")
    said = str(setting.value).strip("'\"") if setting else ""
    for place in (said, said.rpartition("/")[0]):  # a repository or folder, or a file in one
        if place and "$" not in place and (name := zoo_model(place)) is not None:
            return presets.load(name).vocabulary, (f"vocabulary: that of the tokenizer of {name}",)
    return None, ()


def _words_of_ones_own(settings: Settings, kind: str) -> tuple[str, ...]:
    """That a list of words which is not named after its tokenizer's maker may be another one."""
    words = settings.found.get("vocab_file")
    name = "" if words is None else str(words.value).strip("'\"")
    if words is None or "$" in name or re.search("gpt-?2|bert", name, re.I):
        return ()
    tokens = f"{_VOCABULARIES[kind]:,} tokens"
    note = f"{words.place}: {name[:99]!r} is taken to have the {tokens} of its tokenizer's maker"
    return (f"{note}: --set model.vocab_size=N says how many it has",)


@dataclass(frozen=True)
class _Given:
    """Sizes and switches as they were given."""

    settings: Settings
    layers: int
    hidden: int
    heads: int
    sizes: dict[str, int | None]
    words: dict[str, Any]
    flags: dict[str, bool | None]
    kinds: str
    """Letters of layers of one module each; blank where every layer has attention and an MLP."""

    def architecture(self, vocabulary: int) -> Architecture:
        dense, sparse = self._block(None), self._block(self._experts())
        if self.kinds:
            return self._of_layers(vocabulary, self._single(dense, sparse))
        pattern = self._pattern("moe_layer_freq") if self._experts() else [0] * self.layers
        windows = self._windows()
        layers = []
        for layer in range(self.layers):
            block = sparse if pattern[layer] else dense
            if windows[layer] and block.attention is not None:
                block = replace(block, attention=replace(block.attention, window=windows[layer]))
            layers.append(block)
        return self._of_layers(vocabulary, layers)

    def _single(self, dense: Block, sparse: Block) -> list[Block]:
        """Layers of one module each, behind one norm."""
        sizes = self.sizes
        each = sizes["mamba_head_dim"] or 64
        mixer = Mamba2(
            heads=sizes["mamba_num_heads"] or max(2 * self.hidden // each, 1),  # twice as wide
            head_dim=each,
            state_size=sizes["mamba_state_dim"] or 128,
            groups=sizes["mamba_num_groups"] or 8,
            bias=dense.mlp is not None and bool(getattr(dense.mlp, "bias", False)),
        )
        found = {
            "M": replace(dense, attention=None, mlp=None, mixer=mixer, norms=1),
            "*": replace(dense, mlp=None, norms=1),
            "-": replace(dense, attention=None, norms=1),
            "E": replace(sparse, attention=None, norms=1),
        }
        return [found[letter] for letter in self.kinds]

    def _of_layers(self, vocabulary: int, layers: list[Block]) -> Architecture:
        usual = "rope" if self.flags["use_rotary_position_embeddings"] else "learned_absolute"
        position: Any = _READ_POSITIONS.get(self._word("position_embedding_type", usual), "rope")
        untied = self.flags["untie_embeddings_and_output_weights"]
        shared = self.flags["share_embeddings_and_output_weights"]
        return Architecture.of_layers(
            layers,
            name="of-the-command",
            family="custom",
            hidden=self.hidden,
            vocabulary=vocabulary,
            tied_embeddings=not untied if shared is None else shared,
            position=position,
            max_positions=self.sizes["max_position_embeddings"] or self._positions(position),
            final_norm=layers[0].norm,
        )

    def _positions(self, position: str) -> int:
        """Rows of learned positions where none are said: of the sequence, and it is noted.

        Megatron's arguments learn positions unless told otherwise, and refuse a table shorter than
        the sequence (megatron/training/arguments.py: position_embedding_type, validate_args).
        """
        length = self.settings.value_of("training.sequence_length")
        if position != "learned" or length is None:
            return 1_048_576
        self.settings.notes.append(
            "positions: --max-position-embeddings is not said, and positions are learned"
            f" (--position-embedding-type): a table of {length:,} rows, the sequence's, is taken"
        )
        return int(length)

    def _word(self, name: str, default: str) -> str:
        setting = self.words[name]
        return default if setting is None else str(setting.value).strip("'\"")

    def _dropped(self, name: str) -> bool:
        try:
            return float(self._word(name, "0.1")) > 0
        except ValueError:
            return False

    def _block(self, experts: MoE | None) -> Block:
        biased = (
            not self.flags["disable_bias_linear"] and self.flags["add_bias_linear"] is not False
        )
        gated = bool(self.flags["swiglu"] or self.flags["gated_linear_unit"])
        activation: Any = "squared_relu" if self.flags["squared_relu"] else "gelu"
        dense = MLP(ffn_hidden=self._width(gated), gated=gated, activation=activation, bias=biased)
        rms = self._word("normalization", "LayerNorm").lower().startswith("rms")
        return Block(
            attention=self._attention(biased),
            mlp=dense if experts is None else experts,
            norm="rms" if rms else "layer",
            dropout=self._dropped("hidden_dropout"),
        )

    def _width(self, gated: bool) -> int:
        """Of an MLP; two thirds of four times the model's where it is gated and nothing says it."""
        usual = int(4 * self.hidden * 2 / 3 / 64) * 64 if gated else 4 * self.hidden
        return self.sizes["ffn_hidden_size"] or usual

    def _attention(self, biased: bool) -> Attention:
        sizes = self.sizes
        dropped = self._dropped("attention_dropout")
        if self.flags["multi_latent_attention"]:
            stated: dict[str, Any] = {
                name: sizes[key] or _USUAL_LATENT[name] for name, key in _LATENT.items()
            }
            nope = stated.pop("nope_head_dim")
            return Attention(
                heads=self.heads,
                kv_heads=self.heads,
                head_dim=nope + stated["rope_head_dim"],
                dropout=dropped,
                **stated,
            )
        groups = (
            sizes["num_query_groups"] if self.flags["group_query_attention"] is not False else None
        )
        if self.flags["group_query_attention"] and groups is None:
            groups = 1
        return Attention(
            heads=self.heads,
            kv_heads=groups or self.heads,
            head_dim=sizes["kv_channels"] or max(self.hidden // self.heads, 1),
            qkv_bias=biased or bool(self.flags["add_qkv_bias"]),
            output_bias=biased,
            qk_norm=bool(self.flags["qk_layernorm"]),
            dropout=dropped,
        )

    def _experts(self) -> MoE | None:
        sizes = self.sizes
        count = sizes["num_experts"] or sizes["num_moe_experts"]
        if not count:
            return None
        gated = bool(self.flags["swiglu"] or self.flags["gated_linear_unit"])
        stated: dict[str, Any] = {name: sizes[key] for name, key in _ROUTED.items() if sizes[key]}
        usual = {
            "top_k": 2,
            "ffn_hidden": self._width(gated),
            "top_groups": stated.get("groups", 1),
        }
        routed = {**usual, **stated, "experts": count}
        return MoE(**{**routed, "top_k": min(routed["top_k"], count)}, gated=gated)

    def _pattern(self, name: str) -> list[int]:
        """``([0]*3+[1]*58)``, ``[0,1,1]``, or every n-th layer."""
        setting = self.words[name]
        text = "1" if setting is None else re.sub(r"[\s()'\"]", "", str(setting.value))
        every = as_whole(text)
        if every:
            return [int(layer % every == 0) for layer in range(self.layers)]
        pattern: list[int] = []
        if re.fullmatch(r"\[[01](,[01])*\](\*\d{1,4})?(\+\[[01](,[01])*\](\*\d{1,4})?)*", text):
            for part in text.split("+"):
                items, _, times = part.partition("*")
                pattern += [int(x) for x in items.strip("[]").split(",")] * int(times or 1)
                if len(pattern) > self.layers:
                    break
        if len(pattern) != self.layers:
            place = setting.place if setting is not None else name
            self.settings.problems.append(
                f"{place}: must say 0 or 1 for {self.layers} layers, got {text[:80]!r}"
            )
            return [1] * self.layers
        return pattern

    def _windows(self) -> list[int]:
        """Tokens that each layer sees: one more than are to its left."""
        numbers = re.findall(r"-?\d{1,9}", self._word("window_size", ""))
        if not numbers or int(numbers[0]) <= 0:
            return [0] * self.layers
        window = int(numbers[0]) + 1
        if self.words["window_attn_skip_freq"] is None:
            return [window] * self.layers
        return [window * on for on in self._pattern("window_attn_skip_freq")]


@cache
def _zoo() -> list[Architecture]:
    return [presets.load(name) for name in presets.names()]


def _named(
    architecture: Architecture, said: set[str], *, any_vocabulary: bool = False
) -> tuple[Architecture, bool]:
    """The model of the zoo that is the same but for what costs nothing, or the one found."""
    alike, sizes = [], _sizes(architecture, said)
    for known in _zoo():
        if known.layers == architecture.layers and known.hidden == architecture.hidden:
            near = any_vocabulary or abs(known.vocabulary - architecture.vocabulary) <= 1024
            short = (
                architecture.position == "learned"
                and known.max_positions != architecture.max_positions
            )
            if near and not short and _sizes(known, said) == sizes:
                alike.append(known)
    longest = [known for known in alike if known.max_positions == architecture.max_positions]
    return next(iter(longest or alike), architecture), bool(alike)


_SAID_OF_ATTENTION = {
    "window_size": "window", "window_attn_skip_freq": "window", "attention_dropout": "dropout",
    "q_lora_rank": "q_lora_rank", "qk_pos_emb_head_dim": "rope_head_dim",
    "v_head_dim": "value_head_dim",
}  # fmt: skip
_SAID_OF_EXPERTS = {
    "moe_shared_expert_intermediate_size": "shared_ffn_hidden",
    "moe_router_num_groups": "groups", "moe_router_group_topk": "top_groups",
}  # fmt: skip
_SAID_OF_MODEL = {
    "untie_embeddings_and_output_weights": "tied_embeddings",
    "share_embeddings_and_output_weights": "tied_embeddings",
    "position_embedding_type": "position",
    "use_rotary_position_embeddings": "position",
}
"""Arguments -> fields in which a model that a command states must be the zoo's where it is said."""


_USUALLY_OFF = ("untie_embeddings_and_output_weights", "position_embedding_type")
"""Arguments that say something of a command's model where they are not there: that embeddings are
tied, that positions are learned."""


def _sizes(arch: Architecture, said: set[str]) -> tuple[Any, ...]:
    """Sizes by which models are told apart, and whatever else of a model the command says."""
    attention, experts, model = (
        sorted({name for key, name in table.items() if key in said})
        for table in (_SAID_OF_ATTENTION, _SAID_OF_EXPERTS, _SAID_OF_MODEL)
    )
    drops = "hidden_dropout" in said
    each = [arch.blocks[kind] for kind in arch.layer_kinds]
    layers = tuple(
        (
            block.attention and (
                block.attention.heads, block.attention.kv_heads, block.attention.head_dim,
                block.attention.kv_lora_rank, block.attention.qk_norm, block.attention.qkv_bias,
                *(getattr(block.attention, name) for name in attention),
            ),
            block.norm,
            isinstance(block.mlp, MoE) and (
                block.mlp.experts, block.mlp.top_k,
                *(getattr(block.mlp, name) for name in experts),
            ),
            block.mlp and (block.mlp.ffn_hidden, block.mlp.gated),
            block.mixer,
            drops and block.dropout,
        )
        for block in each
    )  # fmt: skip
    return (*(getattr(arch, name) for name in model), layers)
