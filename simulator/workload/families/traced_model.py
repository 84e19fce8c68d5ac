"""A traced module as a model of its own: what torch did in a step, kept, so that none is needed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from typing import Annotated, Any

from annotated_types import Ge, MaxLen, MinLen

from simulator.errors import InputError, problem
from simulator.files import Whole, build, record
from simulator.workload.architecture import MLP, Architecture, Attention, Block
from simulator.workload.fields import Fields
from simulator.workload.traced import TracedPart

_WIDTHS = (2, 4)


@record
class TracedModel:
    """Layers and what stands outside them, as ``workload/torch_module.py`` counts them."""

    layers: Annotated[tuple[TracedPart, ...], MinLen(1), MaxLen(10_000)]
    """Distinct layers."""
    layer_kinds: Annotated[tuple[Annotated[Whole, Ge(0)], ...], MinLen(1), MaxLen(10_000)]
    """For each layer, first to last, the index in `layers`."""
    rest: TracedPart
    traced: str = ""
    """Of what, by which torch."""


def traced_model(f: Fields) -> Architecture:
    """Read a trace that was kept (``model_type`` traced); a sample, an image, is one token."""
    raw = {name: value for name, value in f.config.items() if name not in ("model_type", "name")}
    trace: TracedModel = build(TracedModel, raw, where=f.where)
    if (most := max(trace.layer_kinds)) >= len(trace.layers):
        rule = f"must name one of the {len(trace.layers)} layers, counted from 0"
        raise InputError(problem(f.where, "layer_kinds", rule, most))
    widths = sorted({part.element_bytes for part in (*trace.layers, trace.rest)})
    if len(widths) > 1 or widths[0] not in _WIDTHS:
        rule = "must be 2 or 4 bytes of a number, the same in every part"
        raise InputError(problem(f.where, "element_bytes", rule, widths))
    made = traced_architecture(f.name, trace.layers, trace.layer_kinds, trace.rest)
    return replace(made, max_positions=1)


def traced_architecture(
    name: str, layers: Iterable[TracedPart], layer_kinds: tuple[int, ...], rest: TracedPart
) -> Architecture:
    """Make an architecture of a trace: blocks that hold nothing but their counts."""
    unused = {"attention": Attention(heads=1, kv_heads=1, head_dim=1), "mlp": MLP(ffn_hidden=1)}
    return Architecture(
        name=name,
        family="torch",
        hidden=1,
        vocabulary=0,
        position="none",
        final_norm="none",
        blocks=tuple(Block(**unused, norm="none", traced=part) for part in layers),  # type: ignore[arg-type]
        layer_kinds=layer_kinds,
        traced=rest,
    )


def as_document(arch: Architecture, traced: str) -> dict[str, Any]:
    """Write a traced architecture as the document that :func:`traced_model` reads."""
    return {
        "model_type": "traced",
        "traced": traced,
        "layer_kinds": list(arch.layer_kinds),
        "layers": [_plain(block.traced) for block in arch.blocks],
        "rest": _plain(arch.traced),
    }


def _plain(value: Any) -> Any:
    """Tables and lists of a record, defaults left out."""
    if is_dataclass(value):
        pairs = ((field.name, getattr(value, field.name), field.default) for field in fields(value))
        return {name: _plain(found) for name, found, default in pairs if found != default}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
