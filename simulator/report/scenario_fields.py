"""Every field of a scenario, as the records say it that read it: sentence, unit, default, grade.

What `foreshard fields` prints, `docs/scenario.md` holds and `foreshard schema` writes as a JSON
Schema. A section that joins ``sections.SECTIONS`` is listed without a line here.
"""

from __future__ import annotations

import ast
import dataclasses
import datetime
import inspect
import textwrap
import types
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen

from simulator import records
from simulator.answers import head, plain
from simulator.errors import InputError, did_you_mean
from simulator.files import Figure, Items, ReadBy, Unit, Word, Words
from simulator.scenario import MAY_BE_SEVERAL
from simulator.section import Section
from simulator.sections import SECTIONS

_UNITS = (
    ("bytes_per_s", "bytes per second"),
    ("per_s", "per second"),
    ("_bytes", "bytes"),
    ("_s", "seconds"),
    ("days", "days"),
    ("usd_per_hour", "USD per hour"),
    ("usd_per_kwh", "USD per kWh"),
    ("usd", "USD"),
    ("_watt", "watts"),
    ("kwh", "kWh"),
    ("_steps", "steps"),
    ("fraction", "share of 1"),
    ("factor", "ratio"),
    ("imbalance", "ratio"),
)
"""Units by how the name of a field ends; the first that fits."""


@records.dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One field of a scenario."""

    name: str
    """Dotted, its section first; CAPITALS: a name of your own; []: an item of a list."""
    sentence: str
    """What it means, in its record's words."""
    kind: str
    """What may be given."""
    unit: str
    """Blank for what is no number, and for a count or ratio of things that the sentence names."""
    default: str
    """What stands where it is not given; blank: nothing does, as the sentence says."""
    grade: str
    """On what the default rests: a grade of figures; assumed for a habit; blank without one."""
    required: bool


def scenario_fields() -> list[Field]:
    """List every field of every section, in the order in which they are declared."""
    return [field for name, section in SECTIONS.items() for field in _section(name, section)]


def about(section: str) -> str:
    """Say what a section is for, in one line."""
    return (inspect.getdoc(SECTIONS[section].schemas[0]) or "").partition("\n")[0]


def wanted_fields(words: str) -> list[Field]:
    """Return the fields of a section, of a table in it, or one of its fields; all for no word.

    Raises
    ------
    InputError
        If there is no such section or field, with the nearest.
    """
    every = scenario_fields()
    found = [f for f in every if not words or f.name == words or f.name.startswith(f"{words}.")]
    alone = [f for f in every if f.name.rpartition(".")[2] == words]
    if found or alone:
        return found or alone
    known = {*SECTIONS, *(field.name for field in every)}
    raise InputError(f"command line: {words}: no such section or field{did_you_mean(words, known)}")


def fields_document(fields: list[Field]) -> dict[str, Any]:
    """Return the fields as `--json` has them."""
    return head("fields") | {"fields": plain(fields)}


def _section(name: str, section: Section) -> Iterator[Field]:
    for word, (sentence, kind, default, grade) in section.words().items():
        yield Field(
            name=f"{name}.{word}",
            sentence=sentence,
            kind=kind,
            unit=_unit(word, [float] if kind == "number" else [], []),
            default=default,
            grade=grade,
            required=False,
        )
    below = None if section.base is None else section.base()
    seen: set[str] = set()
    for schema in section.schemas:
        for field in _fields(schema, name, below, dict(section.renamed)):
            if field.name not in seen:
                # Another record stands instead of the first: nothing of it is required beside it.
                needed = schema is section.schemas[0] or "[]" in field.name
                yield dataclasses.replace(field, required=field.required and needed)
                seen.add(field.name)


def _fields(
    schema: Any, prefix: str, below: Any = None, renamed: Mapping[str, str] | None = None
) -> Iterator[Field]:
    """Fields of a record and of the records in it; `below` holds the defaults."""
    hints = get_type_hints(schema, include_extras=True)
    sentences = _sentences(schema)
    for field in dataclasses.fields(schema):
        name = f"{prefix}.{(renamed or {}).get(field.name, field.name)}"
        kinds, marks = hint_parts(hints[field.name])
        value = getattr(below, field.name) if below is not None else _default(field)
        table = next((kind for kind in kinds if dataclasses.is_dataclass(kind)), None)
        named = next((get_args(kind)[1] for kind in kinds if get_origin(kind) is dict), None)
        items = next((mark.schema for mark in marks if isinstance(mark, Items)), None)
        yield Field(
            name=name,
            sentence=sentences.get(field.name, ""),
            kind=_kind(hints[field.name]),
            unit=_unit(field.name, kinds, marks),
            default=_shown(value),
            grade=_grade(value),
            required=value is dataclasses.MISSING,
        )
        if table is not None:
            yield from _fields(table, name, value if dataclasses.is_dataclass(value) else None)
        elif dataclasses.is_dataclass(named):
            for inner in _fields(named, f"{name}.NAME"):
                yield dataclasses.replace(inner, required=False)
        elif items is not None:
            yield from _fields(items, f"{name}[]")


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


@cache
def _sentences(schema: type) -> dict[str, str]:
    """What stands under each field of a record, those of the records it is made from included."""
    sentences: dict[str, str] = {}
    for owner in reversed([kind for kind in schema.__mro__ if dataclasses.is_dataclass(kind)]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        lines = tree.body if isinstance(tree, ast.ClassDef) else []
        for above, line in pairwise(lines):
            if isinstance(above, ast.AnnAssign) and isinstance(above.target, ast.Name):
                match line:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        sentences[above.target.id] = " ".join(text.split())
    return sentences


def hint_parts(hint: Any) -> tuple[list[Any], list[Any]]:
    """Types that a field may have, None left out, and what marks them."""
    if get_origin(hint) is Annotated:
        inner, *marks = get_args(hint)
        kinds, more = hint_parts(inner)
        return kinds, [*marks, *more]
    if get_origin(hint) in (Union, types.UnionType):
        both = [hint_parts(arg) for arg in get_args(hint) if arg is not type(None)]
        return [kind for kinds, _ in both for kind in kinds], [m for _, ms in both for m in ms]
    return [hint], []


def _kind(hint: Any) -> str:
    """What may be given, in words."""
    if get_origin(hint) is Annotated:
        inner, *marks = get_args(hint)
        if words := _words(marks):
            return words
        return _kind(inner) + _bounds(marks)
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_kind(arg) for arg in get_args(hint) if arg is not type(None))
    if get_origin(hint) is Literal:
        return ", ".join(map(str, get_args(hint)))
    if get_origin(hint) is tuple:
        return f"list: {_kind(get_args(hint)[0])}"
    if dataclasses.is_dataclass(hint) or get_origin(hint) is dict:
        return "table"
    simple = {bool: "true or false", int: "whole number", float: "number", Figure: "number"}
    return {**simple, str: "text", datetime.date: "date"}.get(hint, "")


def _words(marks: list[Any]) -> str:
    for mark in marks:
        if isinstance(mark, Word):
            return ", ".join(mark.known)
        if isinstance(mark, Words):
            return f"{', '.join(mark.known)}, joined by +"
        if isinstance(mark, Items):
            return "list of tables"
    return ""


_ANY = 1e6
"""A bound above this keeps out what cannot be meant, and is not worth a word."""


_RULES: tuple[tuple[type, str, str], ...] = (
    (Gt, "gt", "above {:g}"),
    (Ge, "ge", "{:g} or more"),
    (Lt, "lt", "below {:g}"),
    (Le, "le", "{:g} at most"),
)


def _bounds(marks: list[Any]) -> str:
    found = [
        text.format(bound)
        for mark in marks
        for kind, name, text in _RULES
        if isinstance(mark, kind) and abs(bound := getattr(mark, name)) <= _ANY
    ]
    return f" {', '.join(found)}" if found else ""


def _unit(name: str, kinds: list[Any], marks: list[Any]) -> str:
    """The unit that is marked, or that the name ends in; blank for a count and for no number."""
    items = [
        hint_parts(arg) for kind in kinds if get_origin(kind) is tuple for arg in get_args(kind)
    ]
    kinds, marks = [*kinds], [*marks]
    for more, their in items:
        kinds += more
        marks += their
    for mark in marks:
        if isinstance(mark, Unit):
            return mark.text
    if not any(kind in (int, float, Figure) for kind in kinds):
        return ""
    return next((unit for end, unit in _UNITS if name.endswith(end)), "")


def _shown(value: Any) -> str:
    """A default as a scenario would state it; blank where there is none."""
    if value is None or value is dataclasses.MISSING or dataclasses.is_dataclass(value):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, tuple):
        return ", ".join(map(_shown, value))
    return "" if isinstance(value, Mapping) else str(value)


def _grade(value: Any) -> str:
    if isinstance(value, Figure):
        return value.grade
    return "assumed" if _shown(value) else ""


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
