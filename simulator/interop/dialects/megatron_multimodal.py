"""Megatron-LM's multimodal programs: a tower for images, a projector, a language model.

The language model sees ``--decoder-seq-length`` tokens; ``--seq-length`` are those of an image,
which follow from its size (NVIDIA/Megatron-LM@d98e8a64, examples/multimodal: model.py, config.py;
megatron/core/models/vision/clip_vit_model.py). Towers and projectors stand in
``megatron_towers.toml``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from simulator.files import read_toml
from simulator.interop.dialects.settings import Setting, Settings, Unset
from simulator.workload.architecture import MLP, Architecture, Attention, Block
from simulator.workload.families.from_table import behind
from simulator.workload.modules import Linear, beside
from simulator.workload.weights import parameters

_TABLE = Path(__file__).resolve().parent / "megatron_towers.toml"
_FROZEN = {"freeze_LM": "text", "freeze_ViT": "tower"}
_MARKS = ("language_model_type", "vision_model_type", *_FROZEN)


@cache
def _facts() -> dict[str, Any]:
    return dict(read_toml(_TABLE))


def is_multimodal(settings: Settings, program: str) -> bool:
    """Whether a command trains a language model behind a tower for images."""
    on = (settings.found.get(key) for key in _MARKS)
    marked = any(x is not None and str(x.value).lower() != "false" for x in on)
    return marked or "multimodal/" in program


def say_lengths(settings: Settings, program: str) -> None:
    """Take the language model's length for the sequence's, and packing."""
    image = settings.found.pop("seq_length", None)
    settings.whole("training.sequence_length", "decoder_seq_length")
    if "decoder_seq_length" not in settings.found:
        at = image or Setting(program, None, settings.at(*_MARKS).place)
        why = "are tokens of an image: --decoder-seq-length, the language model's, is not said"
        settings.unset.append(Unset("training.sequence_length", str(at.value)[:60], at.place, why))
    packed = settings.whole("", "packing_seq_length", least=0)
    if packed:
        settings.say("training.batching", "packed", settings.found["packing_seq_length"])


def with_tower(text: Architecture, settings: Settings) -> Architecture | None:
    """Put the tower of a command before its language model, and say what is frozen; None: wrong."""
    tower = _tower(settings)
    if tower is None:
        return None
    kind = settings.take("language_model_type")
    inner = None if kind is None else _facts()["projector_ffn"].get(str(kind.value).strip("'\""))
    if inner is None:
        ffn = settings.found.get("ffn_hidden_size")
        inner = int(ffn.value) if ffn is not None else 4 * text.hidden
        settings.notes.append(
            f"{settings.path}: the projector's inner width is not known by --language-model-type:"
            f" {inner}, the model's own, is counted"
        )
    width = tower.hidden * (4 if settings.flag("pixel_shuffle") else 1)
    shape = settings.take("vision_projection_type")
    linears = [Linear(outputs=inner, inputs=width), Linear(outputs=text.hidden, inputs=inner)]
    if shape is not None and str(shape.value) == "affine":
        linears = [Linear(outputs=text.hidden, inputs=width)]
    frozen = [part for key, part in _FROZEN.items() if settings.flag(key)]
    if frozen:
        at = settings.at(*(key for key in _FROZEN if key in settings.found))
        settings.say("run.frozen_parts", frozen, at)
    tiles = settings.whole("", "max_num_tiles") or 1
    if tiles > 1:
        rule = f"a sample is counted with one tile of an image, not up to {tiles}"
        settings.notes.append(f"{settings.found['max_num_tiles'].place}: {rule}")
    _say_stages(settings, text.layers, tower.layers)
    joined = replace(
        text,
        name="of-the-command",
        linears=(*text.linears, *linears),
        projector=parameters(beside(linears, 0)),
    )
    return behind(tower, joined)


def _tower(settings: Settings) -> Architecture | None:
    named = settings.take("vision_model_type")
    word = "clip" if named is None else str(named.value).strip("'\"")
    towers = {name: sizes for name, sizes in _facts().items() if name != "projector_ffn"}
    if word not in towers:
        place = "" if named is None else f"{named.place}: "
        rule = f"must be one of {', '.join(towers)}"
        settings.problems.append(f"{place}{rule}, got {word[:60]!r}")
        return None
    sizes = towers[word]
    height, breadth = (settings.whole("", key) or 224 for key in ("img_h", "img_w"))
    patch = settings.whole("", "patch_dim") or 16
    settings.take("disable_vision_class_token")  # the tower sees it, the language model does not
    tokens = (height // patch) * (breadth // patch) + sizes.get("class_tokens", 0)
    if not 0 < tokens <= 10**6 or settings.problems:
        rule = "images of no patch, or of more than a million, are not read"
        settings.problems.append(f"{settings.path}: {rule}: {height} x {breadth} by {patch}")
        return None
    tp = settings.value_of("layout.tp") or 1
    heads = (sizes["pads_heads"] // tp + 1) * tp if "pads_heads" in sizes else sizes["heads"]
    attention = Attention(
        heads=heads,
        kv_heads=heads,
        head_dim=sizes["head_dim"],
        qkv_bias=sizes.get("qkv_bias", False),
        output_bias=True,
        qk_norm=sizes.get("qk_norm", False),
        rotary=False,
        causal=False,
    )
    mlp = MLP(ffn_hidden=sizes["ffn"], gated=sizes.get("gated", False), bias=True)
    norm = sizes.get("norm", "layer")
    return Architecture.of_layers(
        [Block(attention=attention, mlp=mlp, norm=norm)] * sizes["layers"],
        name=word,
        family=word,
        hidden=sizes["hidden"],
        vocabulary=0,
        position="learned",
        max_positions=tokens,
        final_norm=norm,
        extra_embeddings=sizes.get("class_tokens", 0),
        patch_values=3 * patch * patch,
        headless=True,
    )


def _say_stages(settings: Settings, text: int, tower: int) -> None:
    """State that the tower stands on the first stage, before its share of the language model."""
    pp = settings.value_of("layout.pp") or 1
    if pp > 1 and text % pp == 0 and settings.value_of("layout.stages") is None:
        at = settings.at("pipeline_model_parallel_size")
        share = text // pp
        settings.say("layout.stages", [tower + share, *[share] * (pp - 1)], at)
