"""Nemotron-H: layers of one module each, most of them Mamba-2 (arXiv 2504.03624)."""

from __future__ import annotations

from dataclasses import replace

from simulator.workload.architecture import Architecture, Block
from simulator.workload.families.pieces import dense, grouped, model
from simulator.workload.fields import Fields
from simulator.workload.mixers import Mamba2

_WORDS = {
    "linear_attention": "M",
    "mamba": "M",
    "full_attention": "*",
    "attention": "*",
    "mlp": "-",
}
"""Words of ``layers_block_type``, and the letters of ``hybrid_override_pattern``."""


def nemotron_h(f: Fields) -> Architecture:
    """Mamba-2, attention without positions, or an MLP of squared rectifiers, by a pattern.

    transformers gives its attention no biases and ties no tables, whatever the config says.
    """
    kinds = {
        "M": Block(attention=None, mlp=None, mixer=_mamba2(f), norms=1),
        "*": Block(
            attention=grouped(f, kv=8, head_dim=128),
            mlp=None,
            norms=1,
        ),
        "-": Block(
            attention=None,
            mlp=dense(f, gated=False, bias=f.flag("mlp_bias", False), activation="squared_relu"),
            norms=1,
        ),
    }
    blocks = [kinds[letter] for letter in _pattern(f)]
    return replace(model(f, blocks, positions=4096, position="none"), tied_embeddings=False)


def _pattern(f: Fields) -> str:
    """Read the kind of every layer, as letters."""
    words = f.items("layers_block_type", str)
    letters = "".join(_WORDS.get(word, "?") for word in words)
    field = "layers_block_type" if words else "hybrid_override_pattern"
    pattern = letters or f.word("hybrid_override_pattern", "")
    known = {"M": "Mamba-2", "*": "attention", "-": "MLP"}
    rule = f"must name layers, {', '.join(f'{k} ({v})' for k, v in known.items())} (no experts)"
    f.require(bool(pattern) and set(pattern) <= set(known), field, rule, len(pattern))
    layers = f.size("num_hidden_layers", max(len(pattern), 1), max(len(pattern), 1))
    rule = f"must be the length of {field} ({len(pattern)})"
    f.require(layers == len(pattern), "num_hidden_layers", rule, layers, field)
    return "".join(letter for letter in pattern if letter in known) or "M"


def _mamba2(f: Fields) -> Mamba2:
    heads, groups = f.size("mamba_num_heads", 128), f.size("n_groups", 8)
    rule = f"must be a multiple of n_groups ({groups})"
    f.require(heads % groups == 0, "mamba_num_heads", rule, heads, "n_groups")
    return Mamba2(
        heads=heads,
        head_dim=f.size("mamba_head_dim", 64),
        state_size=f.size("ssm_state_size", 128),
        groups=groups,
        convolution=f.size("conv_kernel", 4),
        chunk=f.size("chunk_size", 128),
        convolution_bias=f.flag("use_conv_bias", True),
        bias=f.flag("use_bias", False),
    )
