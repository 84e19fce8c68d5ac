"""What one run says of its software, put over the profile: fields by their dotted names, switches.

``[software]`` of a scenario, ``--set software.overlap.expert=true``, the keyword ``software={...}``
and columns of a table of measured runs come through here. A switch is what a launch command says in
a word, and stands for the fields that follow from it (hardware_profiles/switches.toml).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from functools import lru_cache
from typing import Any, cast

from simulator import catalogue
from simulator.errors import InputError, brief, did_you_mean, nearest, problem
from simulator.files import (
    DIVIDES,
    Figure,
    build,
    figures,
    is_number,
    read_records,
    record,
    table_of,
    with_fields,
)
from simulator.inheritance import merged
from simulator.software.host_work import HostWork, InputFetch
from simulator.software.kernels import Kernels
from simulator.software.mechanisms import FSDP2, DeepSpeedZero
from simulator.software.overlap import Overlap
from simulator.software.profile import Software, load_software
from simulator.software.releases import load_releases
from simulator.software.states import Allocator, StateBytes
from simulator.software.supports import Supports

_STATED = ("datasheet", "stated for the run")
"""Grade and source of a number that a run states."""


@record
class SoftwareSection:
    """What the software does where it is not as its profile says: switches first, then any field.

    Defaults are those of what usually runs on CUDA devices.
    """

    supports: Supports
    """Which layouts it can run."""
    kernels: Kernels
    """Which kernels run."""
    overlap: Overlap
    """Which communication has compute to hide behind."""
    host: HostWork
    """What the host does for every kernel, block and step."""
    input: InputFetch
    """How a micro-batch reaches the device."""
    states: StateBytes
    """Bytes and traffic of weights, gradients and optimizer states."""
    allocator: Allocator
    """Memory beyond tensors."""
    fsdp2: FSDP2
    """Sharding by torch's FSDP2."""
    deepspeed_zero: DeepSpeedZero
    """Sharding by DeepSpeed's ZeRO."""


@record
class Switch:
    """What a launch command says in a word."""

    about: str
    """What it does."""
    takes: str = ""
    """Dotted name of the field that takes what is said; without words a number."""
    also: dict[str, Any] = field(default_factory=dict)
    """What else is put over the profile, whatever is said, by dotted name."""
    words: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What may be said, and what it puts over the profile; none: whatever `takes` may be."""
    joined: bool = False
    """Several words may be joined by +."""
    refines: str = ""
    """The switch that is left aside where this one says more of the same."""

    @property
    def kind(self) -> str:
        """What may be said, in words."""
        if self.is_flag:
            return "true or false"
        end = ", joined by +" if self.joined else ""
        return (", ".join(self.words) or "number") + end

    @property
    def is_flag(self) -> bool:
        """Whether it is said by true or false."""
        return set(self.words) == {"true", "false"}


@lru_cache(maxsize=1)
def switches() -> dict[str, Switch]:
    """Read hardware_profiles/switches.toml: every switch by its name."""
    path = catalogue.folder("hardware_profiles") / "switches.toml"
    return read_records(Switch, path, "switches")


def listed() -> dict[str, tuple[str, str, str, str]]:
    """Every switch by its name: sentence, what may be said, what the usual software has, grade."""
    usual = usual_software()
    return {
        name: (switch.about, switch.kind, *_default(switch, usual))
        for name, switch in switches().items()
    }


def said_flag(software: Software, name: str) -> bool:
    """Whether a switch of yes and no is on in a profile."""
    return _default(switches()[name], software)[0] == "true"


def _default(switch: Switch, usual: Software) -> tuple[str, str]:
    """The word that says what a profile has, and on what that rests; blank where no word does."""
    if not switch.words:
        figure = _of(usual, switch.takes)
        return f"{figure:g}", figure.grade
    if switch.takes:
        return "+".join(_of(usual, switch.takes)), "assumed"
    for word, puts in switch.words.items():
        if puts and all(_holds(usual, n, _of_profile(over, usual)) for n, over in puts.items()):
            values = [_of(usual, name) for name in puts if not name.startswith("kernels.fused.")]
            return word, next((v.grade for v in values if isinstance(v, Figure)), "assumed")
    word = next((word for word, puts in switch.words.items() if not puts), "")
    return ("", "") if switch.joined else (word, word and "assumed")


def _holds(software: Software, name: str, over: Any) -> bool:
    """Whether a profile has at a dotted name what would be put there."""
    table, _, last = name.rpartition(".")
    inside = _of(software, table)
    if isinstance(inside, tuple):
        return bool((last in inside) == over)
    value = getattr(inside, last)
    if isinstance(over, list):
        return bool(value[: len(over)] == tuple(over)) and bool(over)
    return bool(value == (over.get("value") if isinstance(over, Mapping) else over))


def _of(software: Software, name: str) -> Any:
    """What a profile has at a dotted name."""
    value: Any = software
    for part in name.split("."):
        value = getattr(value, part)
    return value


def is_switch(name: str) -> bool:
    """Whether a switch has this name."""
    return name in switches()


def unknown_field(name: str) -> str:
    """Say what is near where no switch and no field of a profile has a dotted name; else blank."""
    if is_switch(name):
        return ""
    inside: Any = {table: getattr(usual_software(), table) for table in _TABLES}
    for part in name.split("."):
        if dataclasses.is_dataclass(inside):
            known = [inner.name for inner in dataclasses.fields(inside)]
            inside = getattr(inside, part, None) if part in known else _NOTHING
        elif isinstance(inside, Mapping):
            known = [*switches(), *inside]
            inside = inside.get(part, _NOTHING)
        if inside is _NOTHING:
            return did_you_mean(part, known)
    return ""


def usual_software() -> Software:
    """The profile of what a scenario for CUDA devices takes where it names none."""
    return load_software(load_releases().usual["cuda"])


def with_overrides(software: Software, stated: Mapping[str, Any], *, where: str = "") -> Software:
    """Put what a run states over a profile, and read the result as a profile is read.

    Parameters
    ----------
    software : Software
    stated : mapping
        Switches by name, fields by dotted name or in tables as a profile has them. A number takes
        the place of a figure; a list of words may be a table that says of some of them true or
        false.
    where : str
        File, for messages; blank: a row of a table, whose columns are switches.

    Raises
    ------
    InputError
        With every name that is neither, every value that cannot be, and what the software cannot.
    """
    if not isinstance(cast(object, stated), Mapping):
        rule = "must be a table (the profile is named by cluster.software)"
        raise InputError(problem(where, "software", rule, stated))
    place = f"{where}: software." if where else ""
    changed = _changed(software, stated, where, place) if stated else software
    if problems := [f"{place}{line}" for line in _cannot(software, changed, stated)]:
        raise InputError(problems)
    return changed


def _changed(software: Software, stated: Mapping[str, Any], where: str, place: str) -> Software:
    """The same, whatever the software cannot."""
    fields = {name: value for name, value in stated.items() if name not in switches()}
    problems = [f"{place}{line}" for line in _unknown(fields)]
    document: dict[str, Any] = {}
    refined = {switch.refines for name, switch in switches().items() if name in stated}
    for name, switch in switches().items():
        if name in stated and name not in refined:
            try:
                document = merged(document, _tables(_puts(switch, name, stated[name], software)))
            except InputError as error:
                problems += [f"{place}{line}" for line in error.problems]
    if problems:
        raise InputError(problems)
    tables = _built(software, merged(document, _tables(fields)), where)
    every = (row for name, table in tables.items() for row in figures(table, name))
    zero = (name for name, figure in every if figure == 0.0 and DIVIDES.search(name))
    if problems := [f"{place}{name}: must be above 0, got 0" for name in zero]:
        raise InputError(problems)
    return replace(software, **tables)


def _built(software: Software, document: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The tables of a profile that a document changes, with what it says in their place.

    The schema of all is asked only for what is near a wrong field: it takes a while to make.
    """
    tables = {name: _over(getattr(software, name), over) for name, over in document.items()}
    try:
        return {
            name: with_fields(
                getattr(software, name), _changes(table, document[name]), where=where, prefix=name
            )
            for name, table in tables.items()
        }
    except InputError:
        whole = {name: getattr(software, name) for name in _TABLES} | tables
    try:
        section = build(SoftwareSection, whole, where=where, prefix="software")
    except InputError as error:
        raise InputError(line.removeprefix(": ") for line in error.problems) from None
    return {name: getattr(section, name) for name in tables}


def _tables(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields by dotted name as tables in tables."""
    document: dict[str, Any] = {}
    for name, value in fields.items():
        table: Any = value
        for part in reversed(name.split(".")):
            table = {part: table}
        document = merged(document, table)
    return document


_NOTHING = object()
_TABLES = tuple(table.name for table in dataclasses.fields(SoftwareSection))


def _unknown(fields: Mapping[str, Any]) -> Iterator[str]:
    """Names that are neither a switch nor a table of a profile."""
    for name in fields:
        if name == "name":
            yield "name: unknown field: the profile is named by cluster.software"
        elif name.partition(".")[0] not in _TABLES:
            tables = [table for table in _TABLES if name in _names(table)]
            tables = tables or [table_of(name, SoftwareSection)]
            place = " or ".join(f"[software.{table}]" for table in tables if table)
            hint = did_you_mean(name, (*switches(), *_TABLES))
            yield f"{name}: unknown field{f': it stands in {place}' if place else hint}"


def _names(table: str) -> set[str]:
    return {inner.name for inner in dataclasses.fields(getattr(usual_software(), table))}


def _puts(switch: Switch, name: str, value: Any, software: Software) -> dict[str, Any]:
    """What a switch puts over a profile, by dotted name."""
    if not switch.words:
        return {switch.takes: value, **switch.also}
    said = [_word(switch, name, word) for word in _words(switch, value)]
    fields = dict(switch.also)
    for word in said:
        fields |= switch.words[word]
    if switch.takes:  # a list of words, which may have other names here
        fields[switch.takes] = list(
            dict.fromkeys(switch.words[word].get(switch.takes, word) for word in said)
        )
    return {name: _of_profile(over, software) for name, over in fields.items()}


def _words(switch: Switch, value: Any) -> list[Any]:
    """The words of a value; of one that joins them, all."""
    if isinstance(value, bool):
        return [str(value).lower()]
    if switch.joined and isinstance(value, (list, tuple)):
        return list(value)
    return value.split("+") if switch.joined and isinstance(value, str) else [value]


def _word(switch: Switch, name: str, word: Any) -> str:
    """A word that the switch knows.

    Raises
    ------
    InputError
        If it does not, with what it knows.
    """
    text = word.lower() if switch.is_flag and isinstance(word, str) else word
    if isinstance(text, str) and text in switch.words:
        return text
    if switch.is_flag:
        rule = "must be true or false"
    else:
        rule = f"must be {'among' if switch.joined else 'one of'} {switch.kind}"
    hint = "" if switch.is_flag or switch.joined else nearest(str(word), switch.words)
    raise InputError(f"{name}: {rule}, got {brief(word)}{hint}")


def _of_profile(over: Any, software: Software) -> Any:
    """The profile's own value of another field, where that is asked for."""
    if not (isinstance(over, Mapping) and set(over) == {"as"}):
        return over
    value = _of(software, over["as"])
    return list(value) if isinstance(value, tuple) else value


def _changes(table: Any, over: Any) -> Any:
    """Of a table the fields that a document changes; the table itself where it is none."""
    return {name: table[name] for name in over} if isinstance(table, Mapping) else table


def _over(value: Any, document: Any) -> Any:
    """A value of a profile with what a document says in its place."""
    if isinstance(document, Mapping) and "value" not in document:
        flags = all(isinstance(on, bool) for on in document.values())
        if isinstance(value, tuple) and flags:  # of its words, some
            kept = [word for word in value if document.get(word) is not False]
            return [*kept, *(word for word, on in document.items() if on and word not in kept)]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = {inner.name: getattr(value, inner.name) for inner in dataclasses.fields(value)}
        if isinstance(value, Mapping):
            inner = {key: _over(value.get(key), over) for key, over in document.items()}
            return {**value, **inner}
    if isinstance(value, tuple) and isinstance(document, str):
        return document.split("+")
    if isinstance(value, Figure) and is_number(document):
        return Figure(document, *_STATED) if document >= 0 else document
    return document


def _cannot(software: Software, changed: Software, stated: Mapping[str, Any]) -> Iterator[str]:
    """What is stated that the software has no such thing of."""
    can, must = software.supports, changed.supports
    lost = [word for word in must.dispatchers if word not in can.dispatchers]
    if lost and "dispatcher" in stated:
        has = ", ".join(can.dispatchers) or "none"
        yield f"dispatcher: {software.name} has no {lost[0]} (it has {has})"
    if changed.kernels.linear_loss and not can.linear_loss:
        yield f"loss_fusion: {software.name} has no linear (its head and loss are two)"
    graphs, scope = str(stated.get("cuda_graphs", "")).lower(), stated.get("cuda_graph_scope")
    whole = ["full_iteration"] if graphs == "true" else []
    parts = _words(switches()["cuda_graph_scope"], whole if scope is None else scope)
    if beyond := [part for part in parts if part not in must.graphs]:
        has = ", ".join(must.graphs) or "nothing"
        name = "cuda_graphs" if scope is None else "cuda_graph_scope"
        yield f"{name}: {software.name} captures no {beyond[0]} in graphs (it captures {has})"
    if graphs == "false" and scope is not None:
        yield "cuda_graph_scope: must be left out where cuda_graphs is false"
