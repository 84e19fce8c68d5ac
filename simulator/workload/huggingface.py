"""Hugging Face ``config.json`` to :class:`Architecture`: one small function per family.

The sizes that make a model what it is are required; every other missing key means the default
of the transformers class (5.x) of that ``model_type``. Keys that no size depends on are ignored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from simulator.errors import InputError
from simulator.files import read_json
from simulator.workload.architecture import MLP, Architecture, Attention, Block, MoE
from simulator.workload.fields import Fields

__all__ = ["FAMILIES", "from_hf", "read_config"]


def _grouped(f: Fields, *, kv: int | None = None, head_dim: int = 0, **rest: Any) -> Attention:
    """Grouped-query attention; `kv` and `head_dim` are the defaults of the class."""
    heads = f.size("num_attention_heads")
    kv_heads = f.size("num_key_value_heads", kv or heads, heads)
    rule = f"must divide num_attention_heads ({heads})"
    f.require(heads % kv_heads == 0, "num_key_value_heads", rule, kv_heads, "num_attention_heads")
    if f.config.get("head_dim") is not None or head_dim:
        dim = f.size("head_dim", head_dim)
    else:
        dim = f.per_head("hidden_size", "num_attention_heads", " unless head_dim is given")
    dropout = f.drops("attention_dropout", 0.0)
    return Attention(heads=heads, kv_heads=kv_heads, head_dim=dim, dropout=dropout, **rest)


def _windowed(f: Fields, attention: Attention, start: int | None = None) -> list[Attention]:
    """Give the attention of every layer of a Qwen: a window only where one is switched on.

    `start` is the default of ``max_window_layers``, the first layer with a window; None means
    that the class has no such key and every layer has one.
    """
    layers = f.layers()
    if not f.flag("use_sliding_window", False):
        return [attention] * layers
    slid = dataclasses.replace(attention, window=f.size("sliding_window", 4096, 0))
    types = f.items("layer_types", str)
    if types:
        rule = f"must name the type of each of num_hidden_layers ({layers}) layers"
        f.require(len(types) == layers, "layer_types", rule, len(types), "num_hidden_layers")
        return [slid if kind == "sliding_attention" else attention for kind in types]
    first = 0 if start is None else f.size("max_window_layers", start, least=0)
    return [slid if layer >= first else attention for layer in range(layers)]


def _experts(f: Fields, count: str, experts: int, top_k: int | None, width: int) -> MoE:
    """Routed experts; `count` names their field, `experts` and `top_k` are defaults."""
    experts, top_k = f.size(count, experts), f.size("num_experts_per_tok", top_k)
    rule = f"must be at most {count} ({experts})"
    f.require(top_k <= experts, "num_experts_per_tok", rule, top_k, count)
    return MoE(experts=experts, top_k=top_k, ffn_hidden=width)


def _dense(f: Fields, **rest: Any) -> MLP:
    return MLP(ffn_hidden=f.size("intermediate_size"), **rest)


def _model(
    f: Fields,
    blocks: Iterable[Block],
    *,
    width: str = "hidden_size",
    limit: str = "max_position_embeddings",
    positions: int,
    tied: bool = False,
    **rest: Any,
) -> Architecture:
    """Put the blocks of all layers, first to last, between embedding and head."""
    kinds: dict[Block, int] = {}
    layer_kinds = tuple(kinds.setdefault(block, len(kinds)) for block in blocks)
    return Architecture(
        name=f.name,
        family=f.family,
        hidden=f.size(width),
        blocks=tuple(kinds),
        layer_kinds=layer_kinds,
        vocabulary=f.size("vocab_size"),
        tied_embeddings=f.flag("tie_word_embeddings", tied),
        max_positions=f.size(limit, positions),
        **rest,
    )


def _llama(f: Fields) -> Architecture:
    bias = f.flag("attention_bias", False)
    attention = _grouped(f, qkv_bias=bias, output_bias=bias)
    block = Block(attention=attention, mlp=_dense(f, bias=f.flag("mlp_bias", False)))
    return _model(f, [block] * f.layers(), positions=2048)


def _mistral(f: Fields) -> Architecture:
    attention = _grouped(f, kv=8, window=f.size("sliding_window", 4096, 0))
    block = Block(attention=attention, mlp=_dense(f))
    return _model(f, [block] * f.layers(), positions=131_072)


def _mixtral(f: Fields) -> Architecture:
    attention = _grouped(f, kv=8, window=f.size("sliding_window", 0, 0))
    experts = _experts(f, "num_local_experts", 8, 2, f.size("intermediate_size"))
    block = Block(attention=attention, mlp=experts)
    return _model(f, [block] * f.layers(), positions=131_072)


def _qwen2(f: Fields) -> Architecture:
    each = _windowed(f, _grouped(f, kv=32, qkv_bias=True), start=28)
    mlp = _dense(f)
    return _model(f, [Block(attention=one, mlp=mlp) for one in each], positions=32_768)


def _qwen3(f: Fields) -> Architecture:
    bias = f.flag("attention_bias", False)
    attention = _grouped(f, kv=32, head_dim=128, qkv_bias=bias, output_bias=bias, qk_norm=True)
    mlp = _dense(f)
    each = _windowed(f, attention, start=28)
    return _model(f, [Block(attention=one, mlp=mlp) for one in each], positions=32_768)


def _qwen3_moe(f: Fields) -> Architecture:
    bias = f.flag("attention_bias", False)
    each = _windowed(f, _grouped(f, kv=4, qkv_bias=bias, output_bias=bias, qk_norm=True))
    step, plain = f.size("decoder_sparse_step", 1), set(f.items("mlp_only_layers", int))
    sparse = [(at + 1) % step == 0 and at not in plain for at in range(len(each))]
    count = "num_local_experts" if "num_local_experts" in f.config else "num_experts"
    experts = _experts(f, count, 128, 8, f.size("moe_intermediate_size", 768))
    mlp = experts if all(sparse) else _dense(f)
    pairs = zip(each, sparse, strict=True)
    blocks = [Block(attention=one, mlp=experts if routes else mlp) for one, routes in pairs]
    return _model(f, blocks, positions=32_768)


def _latent(f: Fields) -> Attention:
    """Latent attention (MLA); the published ``num_key_value_heads`` has no meaning there."""
    f.refuse("attention_bias", "biases of latent attention are not counted")
    heads, rope = f.size("num_attention_heads"), f.size("qk_rope_head_dim", 64)
    return Attention(
        heads=heads,
        kv_heads=heads,
        head_dim=f.size("qk_nope_head_dim", 128) + rope,
        value_head_dim=f.size("v_head_dim", 128),
        q_lora_rank=f.size("q_lora_rank", 1536, 0),
        kv_lora_rank=f.size("kv_lora_rank", 512),
        rope_head_dim=rope,
        dropout=f.drops("attention_dropout", 0.0),
    )


def _deepseek(
    f: Fields, *, first: int, experts: int, shared: int, width: int, top_k: int | None, **rest: Any
) -> Architecture:
    """Dense layers first, experts from ``first_k_dense_replace`` on; keywords are defaults."""
    attention, layers = _latent(f), f.layers()
    start = f.size("first_k_dense_replace", first, least=0)
    step = f.size("moe_layer_freq", 1)
    sparse = [layer >= start and layer % step == 0 for layer in range(layers)]
    inner = f.size("moe_intermediate_size", width)
    routed = _experts(f, "n_routed_experts", experts, top_k, inner)
    together = inner * f.size("n_shared_experts", shared, 0, least=0)
    moe = dataclasses.replace(routed, shared_ffn_hidden=together)
    with_experts = Block(attention=attention, mlp=moe)
    plain = with_experts if all(sparse) else Block(attention=attention, mlp=_dense(f))
    return _model(f, [with_experts if routes else plain for routes in sparse], **rest)


def _deepseek_v2(f: Fields) -> Architecture:
    f.refuse("mlp_bias", "biases of experts are not counted")
    return _deepseek(f, first=0, experts=64, shared=2, width=1407, top_k=None, positions=2048)


def _deepseek_v3(f: Fields) -> Architecture:
    named = "num_mtp_layers" if "num_mtp_layers" in f.config else "num_nextn_predict_layers"
    mtp = f.size(named, 0, 0, least=0)
    defaults = {"first": 3, "experts": 256, "shared": 1, "width": 2048, "top_k": 8}
    return _deepseek(f, **defaults, positions=4096, mtp_layers=mtp)


def _plain(f: Fields, width: str, heads: str, *, dropout: bool, bias: bool = True) -> Attention:
    """Multi-head attention of the GPT families; `width` and `heads` name its fields."""
    count = f.size(heads)
    return Attention(
        heads=count,
        kv_heads=count,
        head_dim=f.per_head(width, heads),
        qkv_bias=bias,
        output_bias=bias,
        dropout=dropout,
    )


def _gpt2(f: Fields) -> Architecture:
    f.refuse("add_cross_attention", "only decoders without an encoder are known")
    wide = 4 * f.size("n_embd")
    block = Block(
        attention=_plain(f, "n_embd", "n_head", dropout=f.drops("attn_pdrop", 0.1)),
        mlp=MLP(ffn_hidden=f.size("n_inner", wide, wide), gated=False, bias=True),
        norm="layer",
        dropout=f.drops("resid_pdrop", 0.1),
    )
    return _model(
        f,
        [block] * f.layers("n_layer"),
        width="n_embd",
        limit="n_positions",
        positions=1024,
        tied=True,
        position="learned",
        final_norm="layer",
    )


def _gpt_neox(f: Fields) -> Architecture:
    drops, bias = f.drops("attention_dropout", 0.0), f.flag("attention_bias", True)
    block = Block(
        attention=_plain(f, "hidden_size", "num_attention_heads", dropout=drops, bias=bias),
        mlp=_dense(f, gated=False, bias=True),
        norm="layer",
        dropout=f.drops("hidden_dropout", 0.0),
        parallel_residual=f.flag("use_parallel_residual", True),
    )
    return _model(f, [block] * f.layers(), positions=2048, final_norm="layer")


FAMILIES: Mapping[str, Callable[[Fields], Architecture]] = {
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _deepseek_v3,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
}
"""The reader of each ``model_type``."""


def from_hf(config: Mapping[str, Any], *, name: str, where: str) -> Architecture:
    """Turn a Hugging Face config into an architecture.

    Parameters
    ----------
    config : mapping
        The document of a ``config.json``. Of a multimodal model only the part under
        ``text_config`` is described; its vision or audio tower is left out.
    name : str
        Name of the architecture.
    where : str
        What messages call the config, usually its path.

    Raises
    ------
    InputError
        With one problem per wrong field: ``where: field: rule, got value``.

    Examples
    --------
    >>> sizes = {"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257}
    >>> from_hf({"model_type": "gpt2", **sizes}, name="mine", where="config.json").parameters
    124439808
    """
    if not isinstance(config, Mapping):
        raise InputError(f"{where}: must be a table of fields, got {type(config).__name__}")
    prefix, inner = "", config.get("text_config")
    if isinstance(inner, Mapping):
        outer = {key: value for key, value in config.items() if key == "tie_word_embeddings"}
        config, prefix = {**outer, **inner}, "text_config."
    fields = Fields(config, name=name, where=where, prefix=prefix)
    architecture = FAMILIES[fields.choose_family(FAMILIES)](fields)
    fields.finish()
    return architecture


def read_config(path: Path | str) -> Architecture:
    """Read a ``config.json``, or the one in a folder, and name it after its file or folder.

    Raises
    ------
    InputError
        If the file cannot be read or describes no model; all its problems at once.
    """
    path = Path(path)
    path = path / "config.json" if path.is_dir() else path
    raw = read_json(path)
    name = path.absolute().parent.name if path.name == "config.json" else path.stem
    return from_hf(raw, name=name, where=str(path))
