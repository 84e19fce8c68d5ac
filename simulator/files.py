"""Reading TOML, JSON and CSV with limits, and all errors of a file at once.

The only module that imports pydantic, once a value is not plainly right. A file is read into frozen
dataclasses made with :func:`record`; figures in a profile are :class:`Figure`, floats that know
where they come from.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import pickle
import re
import sys
import typing
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from operator import attrgetter
from pathlib import Path
from types import GenericAlias
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    BinaryIO,
    ClassVar,
    TypeGuard,
    TypeVar,
    dataclass_transform,
)

import tomli
from annotated_types import Gt, Le

from simulator import catalogue, records
from simulator.errors import InputError, brief, brief_text, did_you_mean, nearest, visible
from simulator.inheritance import lent, merged, taken_over
from simulator.plain_files import (
    DEEPEST,
    LIMIT_BYTES,
    MOST_DIGITS,
    MOST_FIELDS,
    MOST_VALUES,
    TOML_LIMIT_BYTES,
    YAML_LIMIT_BYTES,
    YAML_VALUES,
    is_deeper,
    most_items,
    open_file,
    read_text,
    reading,
    refuse_long_numbers,
    text_within,
)
from simulator.plain_types import read_fields, read_record
from simulator.profile_cache import Base, ProfileCache

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import CoreSchema

T = TypeVar("T")


@records.dataclass(frozen=True, slots=True)
class Strict:
    """Marks a number that is taken as typed."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        made: Any = {**handler(source), "strict": True}
        return made


Number = Annotated[float, Strict()]
"""A number as typed: no word and no true/false that happens to convert."""

Whole = Annotated[int, Strict()]
"""A whole number as typed."""

Count = Annotated[int, Gt(0), Le(100_000_000)]
"""How many of something there are: one at least, and no more than any machine has."""


@records.dataclass(frozen=True, slots=True)
class Word:
    """Marks a string as one of words that are known elsewhere: ``Annotated[str, Word(words)]``.

    Wrong ones are reported as those of a Literal are.
    """

    known: tuple[str, ...]

    def read_value(self, value: Any) -> str:
        """Return it, if it is one of the words."""
        if not isinstance(value, str) or value not in self.known:
            raise ValueError(value)
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.literal_schema(list(self.known))


@records.dataclass(frozen=True, slots=True)
class Words:
    """Marks a string as words that are known elsewhere, joined by ``+``."""

    known: tuple[str, ...]

    def read_value(self, value: Any) -> str:
        """Return it, if each of its words is known."""
        if not isinstance(value, str):
            raise ValueError(value)
        for word in value.split("+"):
            if value and word not in self.known:
                allowed = f"must be among {', '.join(self.known)}, joined by +"
                raise ValueError(f"{allowed}{did_you_mean(word, self.known)}")
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        from pydantic_core import core_schema

        text = core_schema.str_schema()
        return core_schema.no_info_after_validator_function(self.read_value, text)


@records.dataclass(frozen=True, slots=True)
class Unit:
    """Says in what a number is counted whose name does not end in its unit."""

    text: str


@records.dataclass(frozen=True, slots=True)
class Items:
    """Says of a field that is read elsewhere that it is a list of tables, and of which record."""

    schema: type


@records.dataclass(frozen=True, slots=True)
class ReadBy:
    """Marks a field whose value a function reads; its ValueError says what is wrong."""

    read: Callable[[Any], Any]

    def read_value(self, value: Any) -> Any:
        """Read it."""
        return self.read(value)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(self.read)


GRADES = ("measured", "fitted", "datasheet", "assumed")
"""Grades of evidence, strongest first."""

_LONGEST_ROW = 2**20
"""Characters of a row of a CSV file."""

_MOST_COLUMNS = 1_000
_MOST_PROBLEMS = 100
"""Of a file that are said: each is compared with what is known, and nobody reads as many."""

_LONGEST_CHAIN = 16
"""Profiles that stand on one another."""

_CONFIG: dict[str, Any] = {"extra": "forbid", "allow_inf_nan": False, "strict": False}


_SMALLEST_FIGURE, _LARGEST_FIGURE = 1e-30, 1e30
"""What physical quantities in SI units lie between; profiles have 1e-16 to 1e16."""

DIVIDES = re.compile(
    r"(?:^|\.)(?:\w+_per_s|capacity_bytes|usable_bytes|power_usage_effectiveness|\w*oversubscription"
    r"|(?:peak|sustained|training|unaligned|untuned|backward|memory|pair|usable)_fraction"
    r"|(?:backward_)?tile_rows"
    r"|rows_per_unit|sharpness|wide_head_step|bucket_bytes)(?:\.|$)"
)
"""Dotted names of figures by which something is divided."""

_FIGURE_KEYS = ("value", "grade", "source", "date", "spread")
_FIGURE_WORDS = frozenset(_FIGURE_KEYS)
_READY, _STATED = "a figure", "the table of a figure"
"""How pydantic's errors name both forms of a figure, behind its field."""


class Figure(float):
    """A number from a profile that knows its grade, source, date and spread.

    Arithmetic gives plain floats. ``spread`` is the relative standard deviation of
    the fit (0.05 = 5 %), or None when no error of this figure was measured yet.
    """

    __slots__ = ("date", "grade", "source", "spread")
    read_value: ClassVar[Callable[[Any], Figure]]
    grade: str
    source: str
    date: str
    spread: float | None

    def __new__(
        cls,
        value: float,
        grade: str = "assumed",
        source: str = "user",
        date: str = "",
        spread: float | None = None,
    ) -> Figure:
        """Make a figure of `value` with its evidence."""
        self = super().__new__(cls, value)
        self.grade, self.source, self.date, self.spread = grade, source, date, spread
        return self

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        """Take a figure that is one already; else the value or table of one.

        Named as pydantic names a class, so that it asks once for all fields of a record.
        """
        from pydantic_core import core_schema

        return core_schema.union_schema(
            [
                (core_schema.is_instance_schema(cls), _READY),
                (core_schema.no_info_plain_validator_function(_figure), _STATED),
            ],
            mode="left_to_right",
            ref=f"{cls.__module__}.{cls.__qualname__}:{id(cls)}",
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (Figure, (float(self), self.grade, self.source, self.date, self.spread))


def _figure(raw: Any) -> Figure:
    """Take a figure, a bare number or a table ``{value, grade, source, date, spread}``."""
    if isinstance(raw, Figure):
        return raw
    table = raw if isinstance(raw, Mapping) else {"value": raw}
    unknown = set(table) - set(_FIGURE_KEYS)
    if unknown:
        word = sorted(map(str, unknown))[0]
        raise ValueError(f"unknown key {word!r}{did_you_mean(word, _FIGURE_KEYS)}")
    value = table.get("value")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("must be a number")
    if not is_number(value, 1e300):
        raise ValueError("must be a finite number")
    if value < 0:
        raise ValueError("must not be negative")
    if value and not _SMALLEST_FIGURE <= value <= _LARGEST_FIGURE:
        raise ValueError(f"must be 0 or from {_SMALLEST_FIGURE:g} to {_LARGEST_FIGURE:g}")
    grade = table.get("grade", "assumed")
    if grade not in GRADES:
        raise ValueError(f"grade must be one of {', '.join(GRADES)}, got {brief(grade)}")
    spread = table.get("spread")
    if spread is not None and not (is_number(spread) and spread > 0):
        raise ValueError(f"spread must be a positive number, got {brief(spread)}")
    return Figure(
        value, grade, str(table.get("source", "user")), str(table.get("date", "")), spread
    )


Figure.read_value = staticmethod(_figure)

_frozen = records.dataclass(frozen=True, kw_only=True, slots=True)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def record(cls: type[T]) -> type[T]:
    """Make a frozen, keyword-only, slotted dataclass that :func:`build` can fill from a file."""
    cls.__pydantic_config__ = _CONFIG  # type: ignore[attr-defined]
    return _frozen(cls)


def build(schema: type[T], raw: Any, *, where: str, prefix: str = "") -> T:
    """Validate `raw` (nested dicts) as `schema`, reporting every error at once.

    Raises
    ------
    InputError
        One problem per wrong field: ``where: field: rule, got value (did you mean ...?)``.
    """
    _check_items(raw, f"{where}: {prefix}" if prefix else where)
    return _validated(schema, raw, where, prefix)


def read_records(schema: type[T], path: Path | str, kind: str) -> dict[str, T]:
    """Read a TOML file of records of one `kind`, a table each, by the names of the tables.

    Raises
    ------
    InputError
        As :func:`build`.
    """
    tables = GenericAlias(dict, (str, schema))
    holder: Any = record(type("_Records", (), {"__annotations__": {kind: tables}}))
    built = build(holder, {kind: read_toml(path)}, where=str(path))
    records: dict[str, T] = getattr(built, kind)
    return records


def _check_items(raw: Any, place: str) -> None:
    """Refuse a document with a list so long that each of its items may be a mistake of its own."""
    if (most := most_items(raw, dict, list)) > MOST_FIELDS:
        raise InputError(f"{place}: must hold at most {MOST_FIELDS} items a list, got {most}")


def _validated(schema: type[T], raw: Any, where: str, prefix: str) -> T:
    """Fill a record; `raw` is of bounded size."""
    with suppress(ValueError):
        made: T = read_record(schema, raw)
        return made
    from pydantic import ValidationError

    try:
        return _adapter(schema).validate_python(raw)  # type: ignore[arg-type]
    except ValidationError as error:
        items = _one_per_field(error.errors(include_url=False))
        first = [_reword(item, schema, where, prefix) for item in items[:_MOST_PROBLEMS]]
        more = len(items) - len(first)
        left_out = [f"{where}: and {more} more problems"] if more else []
        raise InputError([*first, *left_out]) from None


def with_fields(of: T, changes: Any, *, where: str, prefix: str) -> T:
    """Put a table of changes in a record, read as :func:`build` reads them; InputError as there."""
    holder: Any = of
    if isinstance(changes, Mapping):
        try:
            made: T = dataclasses.replace(holder, **read_fields(type(of), changes))
            return made
        except ValueError:
            known = dataclasses.fields(holder)
            changes = {**{item.name: getattr(of, item.name) for item in known}, **changes}
    return build(type(of), changes, where=where, prefix=prefix)


@lru_cache(maxsize=256)
def _adapter(schema: Any) -> TypeAdapter[Any]:
    """Kept: it takes two milliseconds to make, and every row of a table of runs needs one."""
    from pydantic import TypeAdapter

    return TypeAdapter(schema)


_BRANCHES = ("bool", "constrained-int")
"""What pydantic puts behind a field's name that may be of several types."""


def _one_per_field(items: list[Any]) -> list[Any]:
    """Join what pydantic says of each type that a field may have into one rule."""
    by_path: dict[tuple[Any, ...], Any] = {}
    for item in items:
        path = item["loc"]
        if path and path[-1] == _READY:
            continue  # the other form says what is wrong
        path = path[:-1] if path and path[-1] == _STATED else path
        branched = len(path) > 1 and path[-1] in _BRANCHES
        path = path[:-1] if branched else path
        if branched and path in by_path:
            rule = item["msg"].removeprefix("Input should be ")
            by_path[path]["msg"] += f" or {rule}"
        else:
            by_path[path] = {**item, "loc": path}
    # a list is not too short for what is wrong in its items
    wrong_items = {path[:depth] for path in by_path for depth in range(len(path))}
    return [
        item
        for path, item in by_path.items()
        if item["type"] != "too_short" or path not in wrong_items
    ]


_IN_FILES = {
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a table",
    "string_type": "a text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
}
"""What files call the types of pydantic's errors."""


def _reword(item: Any, schema: type, where: str, prefix: str) -> str:
    path = [str(part) for part in item["loc"]]
    field = ".".join(([prefix] if prefix else []) + path)
    kind, got = item["type"], item["input"]
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        if there := table_of(path[-1], schema, prefix):
            return f"{where}: {field}: unknown field: it stands in [{there}]"
        known = _fields_at(schema, path[:-1])
        return f"{where}: {field}: unknown field{did_you_mean(path[-1], known)}"
    if kind == "dataclass_type":
        return f"{where}: {field}: must be a table of fields, got {brief(got)}"
    if kind in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return f"{where}: {field}: required field is missing"
    rule = item["msg"].replace(", unable to interpret input", "")
    rule = rule.removeprefix("Value error, ").removeprefix("Input should be ")
    rule = _IN_FILES.get(kind, rule)
    rule = f"must be {rule}" if item["msg"].startswith("Input should be") else rule
    named = {"dict": "a table", "list": "a list"}
    shown = named.get(type(got).__name__) or brief(got)
    return f"{where}: {field}: {rule}, got {shown}"


def table_of(name: str, schema: Any, table: str = "") -> str:
    """Dotted name of the first table below a record that has a field of this very name, or blank.

    Fields of the record itself do not count: what its tables hold is told apart from them.
    """
    for field in dataclasses.fields(schema):
        below = _dataclass_in(field.type, schema)
        if below is None:
            continue
        path = f"{table}.{field.name}" if table else field.name
        if name in {inner.name for inner in dataclasses.fields(below)}:
            return path
        if deeper := table_of(name, below, path):
            return deeper
    return ""


def _fields_at(schema: Any, path: list[str]) -> list[str]:
    """Names of the fields of the dataclass reached from `schema` by `path`."""
    for part in path:
        if not dataclasses.is_dataclass(schema):
            break
        types = {field.name: field.type for field in dataclasses.fields(schema)}
        schema = _dataclass_in(types.get(part), schema)
    if not dataclasses.is_dataclass(schema):
        return []
    return [field.name for field in dataclasses.fields(schema)]


def _dataclass_in(annotation: Any, owner: Any) -> Any:
    """Return the dataclass named in an annotation of `owner`, or None."""
    if isinstance(annotation, str):
        annotation = eval(annotation, vars(sys.modules[owner.__module__]))  # our own source text
    if dataclasses.is_dataclass(annotation):
        return annotation
    records = [arg for arg in typing.get_args(annotation) if dataclasses.is_dataclass(arg)]
    return records[0] if records else None


def read_toml(path: Path | str) -> dict[str, Any]:
    """Read a TOML file into nested dicts; InputError names line and column of a syntax error."""
    return toml_of(read_text(path, TOML_LIMIT_BYTES), str(path))


def toml_of(text: str, where: str) -> dict[str, Any]:
    """Read TOML that stands in a text of bounded size, as :func:`read_toml` does a file."""
    try:
        return dict(pickle.loads(_parsed(text)))
    except RecursionError:
        raise InputError(f"{where}: nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError, or a number with thousands of digits
        raise InputError(f"{where}: not valid TOML: {brief_text(str(error))}") from None


def read_document(path: Path | str) -> dict[str, Any]:
    """Read a file of sections and fields: YAML where its name says so, else TOML."""
    if Path(path).suffix not in (".yaml", ".yml"):
        return read_toml(path)
    document = yaml_of(read_text(path, TOML_LIMIT_BYTES), str(path))
    if not isinstance(document, dict) or not all(isinstance(name, str) for name in document):
        raise InputError(f"{path}: must be a table of sections and fields")
    return document


def toml_value(text: str) -> Any:
    """Read one value as TOML; what is none is a plain word."""
    try:
        return tomli.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text.strip()


_KEPT = 256
"""Files that stay read: those of all machines that one question compares."""

_LONG_KEY = re.compile(
    r"""(?<![\w"'-])(?:(?:[\w-]++|"[^"]*+"|'[^']*+')[ \t]*+\.[ \t]*+){"""
    f"{DEEPEST}}}"
)
"""More parts of a dotted key than any table has levels."""


@lru_cache(maxsize=_KEPT)
def _parsed(text: str) -> bytes:
    """Return what `text` says as a pickle, from which each reader gets dicts of its own.

    A session reads the same profiles again and again, and parsing one takes 20 times as long.
    """
    if any(_LONG_KEY.search(line) for line in text.split("\n") if line.count(".") >= DEEPEST):
        raise RecursionError  # before it is parsed: that takes the square
    document = tomli.loads(text)
    if is_deeper(document):
        raise RecursionError
    if (fields := most_items(document, dict)) > MOST_FIELDS:
        raise ValueError(f"a table of {fields} fields (at most {MOST_FIELDS})")
    return pickle.dumps(document)


def read_json(path: Path | str) -> Any:
    """Read a JSON file; InputError names line and column of a syntax error."""
    return json_of(read_text(path), str(path))


def json_of(text: str, where: str) -> Any:
    """Read JSON that stands in a text of bounded size, as :func:`read_json` does a file."""
    values = sum(map(text.count, ",[{"))  # before they are made; commas of its texts count as well
    if values > MOST_VALUES:
        raise InputError(f"{where}: must hold at most {MOST_VALUES} values, got {values}")
    try:
        document = json.loads(text)
    except ValueError as error:  # JSONDecodeError, or a number with thousands of digits
        raise InputError(f"{where}: not valid JSON: {brief_text(str(error))}") from None
    except RecursionError:
        raise InputError(f"{where}: nested too deeply") from None
    if is_deeper(document):
        raise InputError(f"{where}: nested too deeply")
    return document


def yaml_of(text: str, where: str) -> Any:
    """Read YAML of plain values that stands in a text; InputError names line and column.

    Tags are refused, which make objects; so are aliases that make a short text long, more than
    `YAML_VALUES` of all, or that stand in themselves.
    """
    import yaml  # a tenth of a second, which few commands need

    if len(text) > YAML_LIMIT_BYTES:
        raise InputError(f"{where}: larger than {YAML_LIMIT_BYTES // 2**10} KiB, got {len(text)}")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_values(yaml.parse(text, Loader=loader), where)
        document = yaml.load(text, Loader=loader)
    except InputError:
        raise
    except yaml.YAMLError as error:
        shown = brief_text(" ".join(str(error).split()), 200)
        raise InputError(f"{where}: not valid YAML: {shown}") from None
    except (ValueError, TypeError) as error:  # a date that is none, a key that is a table
        raise InputError(f"{where}: not valid YAML: {brief_text(str(error))}") from None
    except RecursionError:
        raise InputError(f"{where}: nested too deeply") from None
    return document


def _check_values(events: Iterator[Any], where: str) -> None:
    """Refuse tags, values nested too deeply, and more of them than are read, aliases written out.

    Raises
    ------
    InputError
        With the line of a tag or of an alias.
    RecursionError
        If they are nested too deeply.
    """
    import yaml

    open_ = [("", 0, 0)]  # anchor, values and depth of what is inside, of each collection
    held: dict[str, tuple[int, int]] = {}
    for event in events:
        line = event.start_mark.line + 1 if event.start_mark else 1
        if getattr(event, "tag", None):
            raise InputError(f"{where}: line {line}: tags of YAML are not read")
        name, values, inner = "", 0, 0
        if isinstance(event, yaml.CollectionStartEvent):
            open_.append((event.anchor or "", 0, 0))
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            name, values, inner = open_.pop()
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in held:
                raise InputError(
                    f"{where}: line {line}: *{brief_text(event.anchor or '')} is no anchor"
                )
            values, inner = held[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            name = event.anchor or ""
        else:
            continue
        if name:
            held[name] = (values + 1, inner + 1)
        above, before, deepest = open_[-1]
        open_[-1] = (above, before + values + 1, max(deepest, inner + 1))
        if open_[-1][1] > YAML_VALUES:
            raise InputError(f"{where}: line {line}: must have at most {YAML_VALUES} values")
        if len(open_) + inner > DEEPEST:
            raise RecursionError


def read_csv(
    path: Path | str, *, uneven: dict[int, str] | None = None
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line number, row as a dict of strings) for each row of a CSV file with a header.

    Of rows that are not as long as the header, see :func:`read_lists`.
    """
    header, rows = read_lists(path, uneven=uneven)
    for line, cells in rows:
        yield line, dict(zip(header, cells, strict=True))


def read_lists(
    path: Path | str, *, uneven: dict[int, str] | None = None
) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """Return the header of a CSV file, and (line number, cells) of each row, as many as it has.

    A row with more or fewer cells than the header is an error; where `uneven` is given, what is
    wrong with it is put there under its line number instead, and the row is yielded all the same:
    cut to the header, or filled up with blanks.
    """
    rows = read_rows(path)
    _, header = next(((line, cells) for line, cells in rows if cells), (1, []))
    if not header:
        raise InputError(f"{path}: the file is empty")
    if len(header) == 1 and {";", "\t"} & set(header[0]):
        raise InputError(
            f"{path}: line 1: cells must be separated by commas, got {header[0][:40]!r}"
        )
    if len(header) > _MOST_COLUMNS:
        raise InputError(
            f"{path}: line 1: must have {_MOST_COLUMNS} columns at most, got {len(header)}"
        )
    if twice := [name for name, times in Counter(header).items() if times > 1]:
        raise InputError(f"{path}: line 1: column {min(twice) or 'without a name'} stands twice")
    return header, _as_wide(path, len(header), rows, uneven)


def _as_wide(
    path: Path | str,
    width: int,
    rows: Iterator[tuple[int, list[str]]],
    uneven: dict[int, str] | None,
) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not blank, each with as many cells as the header has."""
    for line, cells in rows:
        if cells and len(cells) != width:
            rule = f"must have {width} cells as the header has, got {len(cells)}"
            if uneven is None:
                raise InputError(f"{path}: line {line}: {rule}")
            uneven[line] = rule
            cells = [*cells[:width], *[""] * (width - len(cells))]
        if cells:
            yield line, cells


def read_columns(path: Path | str) -> dict[str, tuple[str, ...]]:
    """Return the columns of a CSV file that ships, by the words of its header, read at once.

    InputError where a row has more or fewer cells than the header.
    """
    text = read_text(path, LIMIT_BYTES)
    header, *rows = [*filter(None, csv.reader(io.StringIO(text, newline="")))] or [[]]
    try:
        columns = list(zip(*rows, strict=True)) or [()] * len(header)
        return dict(zip(header, columns, strict=True))
    except ValueError:
        rule = f"every row must have {len(header)} cells as the header has"
        raise InputError(f"{path}: {rule}") from None


def read_rows(path: Path | str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) for each line of a CSV file; InputError where it is none.

    The file is never held whole.
    """
    with open_file(path) as file, reading(path):
        text_within(file, path, LIMIT_BYTES)
        lines = _Lines(file)
        reader = csv.reader(lines)
        line = 1
        try:
            for cells in reader:
                if lines.row > MOST_DIGITS:
                    refuse_long_numbers(",".join(cells).encode(), f"{path}: line {line}")
                yield line, cells
                line, lines.row = reader.line_num + 1, 0
        except csv.Error as error:
            raise InputError(f"{path}: line {reader.line_num}: not valid CSV: {error}") from None


class _Lines:
    """Lines of a file; those of one row, which may be several, are bounded together."""

    def __init__(self, file: BinaryIO) -> None:
        self._text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        self.row = 0
        """Characters of the row so far; set to 0 by who has read one."""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._text.readline(_LONGEST_ROW + 1)
        self.row += len(line)
        if self.row > _LONGEST_ROW:
            raise csv.Error(f"a row of more than {_LONGEST_ROW} characters")
        if not line:
            raise StopIteration
        return line


def says_number(text: str) -> bool:
    """Whether a text is a number, as ``float`` reads one."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_number(value: object, most: float = 1e18) -> TypeGuard[float]:
    """Whether what a document holds is a number of a size that means something.

    True and false are none, nor is NaN, nor what lies beyond `most` either way: JSON knows whole
    numbers that no float and no array holds.

    Examples
    --------
    >>> [is_number(value) for value in (1, -2.5, True, "1", float("nan"), 10**400)]
    [True, True, False, False, False, False]
    """
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= most


def check_header(
    path: Path | str, header: Collection[str], *, required: Collection[str], known: Collection[str]
) -> None:
    """Refuse a header that lacks a required column or has one that is not known, all at once."""
    problems = [
        f"{path}: {name}: required column is missing" for name in required if name not in header
    ]
    for name in header:
        if name not in known:
            near = nearest(name, [column for column in known if column not in header])
            problems.append(f"{path}: {name or 'a column without a name'}: unknown column{near}")
    if problems:
        raise InputError(problems)


def read_profile(schema: type[T], path: Path, *, kind: str = "") -> T:
    """Read a TOML profile; ``source = "key"`` is looked up in its ``[sources]`` table.

    The ``name`` of a profile is its file name; ``[sources]`` holds ``key = {text, date}``. A
    profile with ``base = "other"`` is the other profile of the same `kind` with what it states
    itself put over it; ``[borrowed]`` takes some tables of another one as assumed figures. An
    accelerator with a base is another part with the same chip (:func:`taken_over`).

    Raises
    ------
    InputError
        If the file, its base or a field of either is wrong.
    """
    if (kept := KEPT.get(schema, path, kind)) is not None:
        return kept
    read = dict[Path, Base | None]()
    raw = {**_over_base(path, kind, (), read), "name": visible(path.stem)}
    sources = raw.pop("sources", {})
    if not isinstance(sources, dict) or not {dict}.issuperset(map(type, sources.values())):
        raise InputError(f"{path}: sources: must be tables of text and date, got {brief(sources)}")
    profile: T = _profile(schema, str(path), pickle.dumps((raw, sources)))  # type: ignore[arg-type]
    KEPT.put(schema, path, kind, list(read), filter(None, read.values()), profile)
    return profile


KEPT = ProfileCache(Figure, catalogue.find)
"""Of commands; in Python nothing is kept unless its folder is set."""


@lru_cache(maxsize=_KEPT)
def _profile(schema: Any, where: str, tables: bytes) -> Any:
    """Build a profile; a session asks for the same ones again and again, and records are frozen."""
    raw, sources = pickle.loads(tables)
    _check_items(raw, where)
    _make_figures(raw, sources, where)
    profile = _validated(schema, raw, where, "")
    zero = [name for name, figure in figures(profile) if figure == 0.0 and DIVIDES.search(name)]
    if problems := [f"{where}: {name}: must be above 0, got 0" for name in zero]:
        raise InputError(problems)
    return profile


def _make_figures(raw: Any, sources: Mapping[str, Any], where: str) -> None:
    """Put figures in place of their tables, with text and date of the source that each names.

    A loop over all tables, depth first, since a profile has a thousand figures. A table that is no
    sound figure stays, with its source, for whoever fills the record to say what is wrong.
    """
    said = {key: (str(x.get("text", "")), str(x.get("date", ""))) for key, x in sources.items()}
    tables = [(raw, iter(raw.items()))]
    while tables:
        table, items = tables[-1]
        for key, item in items:
            if type(item) is list:
                tables.append((item, iter(enumerate(item))))
                break
            if type(item) is not dict:
                continue
            if not ("value" in item and "source" in item):
                tables.append((item, iter(item.items())))
                break
            source = item["source"]
            if not isinstance(source, str) or source not in said:
                hint = did_you_mean(source, sources) if isinstance(source, str) else ""
                raise InputError(f"{where}: [sources] has no {brief(source)}{hint}")
            text, date = said[source]
            value, spread, grade = item["value"], item.get("spread"), item.get("grade", "assumed")
            date = str(item.get("date", date))
            if (
                type(value) in (int, float)
                and (value == 0 or _SMALLEST_FIGURE <= value <= _LARGEST_FIGURE)
                and (spread is None or (type(spread) in (int, float) and 0 < spread <= 1e18))
                and grade in GRADES
                and item.keys() <= _FIGURE_WORDS
            ):
                table[key] = figure = float.__new__(Figure, value)
                figure.grade, figure.source, figure.date, figure.spread = grade, text, date, spread
            else:
                table[key] = {"date": date, **item, "source": text}
        else:
            tables.pop()


def _over_base(
    path: Path, kind: str, below: tuple[Path, ...], read: dict[Path, Base | None]
) -> dict[str, Any]:
    """Tables of a profile over what it borrows, over its base; `below` are those on it so far.

    Adds to `read` its files, each with the kind and name that another one calls it by.
    """
    read.setdefault(path, None)
    raw = read_toml(path)
    base, terms, chain = raw.pop("base", None), raw.pop("borrowed", None), (*below, path.resolve())
    if len(chain) > _LONGEST_CHAIN:
        rule = f"must not stand on more than {_LONGEST_CHAIN} others, one on the other"
        raise InputError(f"{path}: base: {rule}, got {brief(base)}")

    def other(name: Any, field: str) -> dict[str, Any]:
        if kind and isinstance(name, str):
            profile = catalogue.find(kind, name, where=str(path), field=field)
            if profile.resolve() not in chain:
                read[profile] = kind, name
                return _over_base(profile, kind, chain, read)
        raise InputError(f"{path}: {field}: must name another profile, got {brief(name)}")

    if terms is not None:
        borrowed = build(_Borrowed, terms, where=str(path), prefix="borrowed")
        relative = other(borrowed.of, "borrowed.of")
        raw = merged(lent(relative, **dataclasses.asdict(borrowed), where=str(path)), raw)
    if base is None:
        return raw
    under = other(base, "base")
    return merged(taken_over(under, base) if kind == "accelerators" else under, raw)


@record
class _Borrowed:
    """``[borrowed]``: a relative's figures stand for a device of which there are no timings."""

    of: str
    """The relative: a profile of the same kind."""
    tables: tuple[str, ...]
    """Dotted names of its tables that are taken over."""
    without: tuple[str, ...] = ()
    """Dotted names of what is left out of them."""
    spread: Number
    """What may lie between relatives, relative; added in quadrature where a figure has a spread."""
    source: str
    """Key under ``[sources]``: why this relative."""


def figures(value: Any, prefix: str = "") -> list[tuple[str, Figure]]:
    """List (dotted name, figure) for every Figure inside a record, depth first.

    A loop, since profiles have thousands of them and every answer lists them.
    """
    listed = list[tuple[str, Figure]]()
    waiting: list[tuple[str, Any]] = [(prefix, value)]
    while waiting:
        name, item = waiting.pop()
        if isinstance(item, Figure):
            listed.append((name, item))
            continue
        inside: Any = ()
        if dataclasses.is_dataclass(item) and not isinstance(item, type):
            names = _field_names(type(item))
            inside = zip(names, map(partial(getattr, item), names), strict=True)
        elif isinstance(item, Mapping):
            inside = item.items()
        elif isinstance(item, (list, tuple)):
            inside = enumerate(item)
        start = len(waiting)
        for key, below in inside:
            if type(below) not in _PLAIN:
                waiting.append((f"{name}.{key}" if name else str(key), below))
        waiting[start:] = reversed(waiting[start:])
    return listed


_PLAIN = frozenset((str, int, float, bool, type(None)))


@lru_cache(maxsize=_KEPT)
def _field_names(schema: type) -> tuple[str, ...]:
    return tuple(map(attrgetter("name"), dataclasses.fields(schema)))


def with_figure(value: Any, name: str, figure: Figure) -> Any:
    """Return a record with the figure of a dotted name (:func:`figures`) replaced.

    Raises
    ------
    KeyError, AttributeError
        If there is no such name.
    """
    if not name:
        return figure
    if isinstance(value, Mapping):  # keys may be numbers, or hold dots: releases do
        keys = [key for key in value if f"{name}.".startswith(f"{key}.")]
        if not keys:
            raise KeyError(name)
        key = max(keys, key=lambda some: len(str(some)))
        rest = name[len(str(key)) + 1 :]
        return {**value, key: with_figure(value[key], rest, figure)}
    first, _, rest = name.partition(".")
    if isinstance(value, (list, tuple)):
        place = int(first)
        return type(value)(
            with_figure(item, rest, figure) if i == place else item for i, item in enumerate(value)
        )
    return dataclasses.replace(value, **{first: with_figure(getattr(value, first), rest, figure)})
