"""The models of the zoo in a line each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from simulator import records
from simulator.answers import head, plain
from simulator.errors import InputError, did_you_mean
from simulator.workload import presets
from simulator.workload.architecture import Architecture


@records.dataclass(frozen=True, kw_only=True, slots=True)
class ZooModel:
    """One model of the zoo."""

    name: str
    parameters: int
    """All of them, tied tensors once."""
    active: int
    """Parameters that one token passes."""
    kind: str
    layers: int
    hidden: int
    """Width of the residual stream."""
    family: str
    """``model_type`` of its config."""
    source: str
    """Where its sizes are published."""


def zoo(part: str = "") -> list[ZooModel]:
    """List the models whose names hold `part`, in alphabetical order.

    Raises
    ------
    InputError
        If there is none, with the nearest name.
    """
    names, sources = presets.names(), presets.sources()
    found = [name for name in names if part.lower() in name]
    if not found:
        raise InputError(f"models: no name has {part!r} in it{did_you_mean(part, names)}")
    return [_model(name, presets.load(name), sources[name]) for name in found]


def models_document(models: Iterable[ZooModel]) -> dict[str, Any]:
    """Return the models as `--json` has them."""
    return head("models") | {"models": plain(list(models))}


def _model(name: str, arch: Architecture, source: str) -> ZooModel:
    return ZooModel(
        name=name,
        parameters=arch.parameters,
        active=arch.active_parameters,
        kind=_kind(arch),
        layers=arch.layers,
        hidden=arch.hidden,
        family=arch.family,
        source=source,
    )


def _kind(arch: Architecture) -> str:
    """What it reads and what it is made of."""
    if arch.patch_values:
        words = ["images"]
    elif arch.is_encoder_decoder:
        words = ["encoder-decoder"]
    else:
        last = [block.attention for block in arch.blocks if block.attention and not block.width]
        words = ["decoder" if all(attention.causal for attention in last) else "encoder"]
        words += ["tower of images or sound"] if any(block.width for block in arch.blocks) else []
    if arch.moes:
        words.append(f"{arch.moes[0].experts} experts, top {arch.moes[0].top_k}")
    else:
        words.append("dense")
    words += sorted({mixer.word for mixer in arch.mixers})
    return ", ".join(words)
