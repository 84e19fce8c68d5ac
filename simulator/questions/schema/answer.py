"""A JSON Schema of the scenario file, from the records that read it: for editors and generators."""

from __future__ import annotations

import dataclasses
import datetime
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen

from simulator.files import Figure, Items, ReadBy, Word, Words
from simulator.report.scenario_fields import Field, about, scenario_fields
from simulator.scenario import MAY_BE_SEVERAL
from simulator.sections import SECTIONS

_SIMPLE: dict[Any, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    Figure: {"type": "number"},
    str: {"type": "string"},
    datetime.date: {"format": "date"},
}
_BOUNDS = (
    (Gt, "gt", "exclusiveMinimum"),
    (Ge, "ge", "minimum"),
    (Lt, "lt", "exclusiveMaximum"),
    (Le, "le", "maximum"),
    (MinLen, "min_length", "minItems"),
    (MaxLen, "max_length", "maxItems"),
)

_OPEN = ("model",)
"""Sections that take fields of others, too: those of a Hugging Face config."""
_NAMED = ("sparse",)
"""Sections that may be a name alone, of a set that ships, and what differs from it."""


def scenario_schema() -> dict[str, Any]:
    """Return the schema (JSON Schema, draft 2020-12): every section, each as a file may have it."""
    fields = {field.name: field for field in scenario_fields()}
    sections = {}
    for name, section in SECTIONS.items():
        tables = [_table(record, name, fields, dict(section.renamed)) for record in section.schemas]
        whole = tables[0] if len(tables) == 1 else {"anyOf": tables}
        sections[name] = {"description": about(name), **whole}
        for word, (sentence, *_) in section.words().items():
            sections[name]["properties"][word] = {"description": sentence}
        if name in _OPEN:
            sections[name]["additionalProperties"] = True
        if name in _NAMED:
            sections[name]["properties"]["name"] = {"type": "string"}
            del sections[name]["required"]
    for name in MAY_BE_SEVERAL:
        field = sections["training"]["properties"][name]
        number = {key: field.pop(key) for key in list(field) if key != "description"}
        field["anyOf"] = [number, {"type": "array", "items": number}, {"type": "string"}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Scenario of Foreshard",
        "type": "object",
        "properties": sections,
        "additionalProperties": False,
    }


def _table(
    record: Any, prefix: str, fields: dict[str, Field], renamed: dict[str, str]
) -> dict[str, Any]:
    """The fields of a record, with their sentences and units."""
    hints = get_type_hints(record, include_extras=True)
    properties, required = {}, []
    for field in dataclasses.fields(record):
        name = renamed.get(field.name, field.name)
        known = fields[f"{prefix}.{name}"]
        text = " ".join(filter(None, (known.sentence, known.unit and f"({known.unit})")))
        properties[name] = {"description": text, **_value(hints[field.name], known.name, fields)}
        if field.default is field.default_factory is dataclasses.MISSING and known.required:
            required.append(name)
    made = {"type": "object", "properties": properties, "additionalProperties": False}
    return made | ({"required": required} if required else {})


def _value(hint: Any, name: str, fields: dict[str, Field]) -> dict[str, Any]:
    """What one field may be."""
    kind = get_origin(hint)
    if kind is Annotated:
        inner, *marks = get_args(hint)
        return _marked(_value(inner, name, fields), marks, name, fields)
    if kind in (Union, types.UnionType):
        choices = [_value(arg, name, fields) for arg in get_args(hint) if arg is not type(None)]
        return choices[0] if len(choices) == 1 else {"anyOf": choices}
    if kind is Literal:
        return {"enum": list(get_args(hint))}
    if kind is tuple:
        return {"type": "array", "items": _value(get_args(hint)[0], f"{name}[]", fields)}
    if kind is dict:
        table = _value(get_args(hint)[1], f"{name}.NAME", fields)
        return {"type": "object", "additionalProperties": table}
    if dataclasses.is_dataclass(hint):
        table = _table(hint, name, fields, {})
        if "name" not in table["properties"]:
            return table
        table.pop("required", None)  # the profile that is named has the rest
        return {"anyOf": [{"type": "string"}, table]}
    return dict(_SIMPLE.get(hint, {}))


def _marked(
    value: dict[str, Any], marks: list[Any], name: str, fields: dict[str, Field]
) -> dict[str, Any]:
    """The same with what its marks say: words, bounds, records of a list."""
    for mark in marks:
        match mark:
            case Word():
                value = {"enum": list(mark.known)}
            case Words():
                words = "|".join(mark.known)
                value = {"type": "string", "pattern": rf"^(({words})(\+({words}))*)?$"}
            case Items():
                value = {"type": "array", "items": _table(mark.schema, f"{name}[]", fields, {})}
            case ReadBy():
                value = {"anyOf": [value, {"type": "string"}]}
        limits = {
            word: getattr(mark, bound) for kind, bound, word in _BOUNDS if isinstance(mark, kind)
        }
        for part in value.get("anyOf", [value]):
            part |= limits
    return value
