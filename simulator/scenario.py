"""The scenario: a file, flags or both -> workload, cluster, software, pinned layout, goal.

Problems of all sections are collected and reported together. A section is what its record in
``simulator/sections.py`` says; none is known here by name but those that every scenario has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from simulator.dotted_fields import given, put
from simulator.economics.economics_section import (
    Economics,
    Tariff,
    tariff_of,
)
from simulator.errors import InputError, did_you_mean, problem
from simulator.files import (
    read_document,
    toml_value,
)
from simulator.goal import Goal
from simulator.hardware.cluster import Cluster
from simulator.ranges import Choice, is_several, read_choice
from simulator.records import dataclass
from simulator.reliability.reliability_profile import Reliability
from simulator.sections import READ, SECTIONS, fields_named
from simulator.software.profile import Software
from simulator.software.releases import Nearest
from simulator.spellings import numbers_written_out
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Workload
from simulator.workload.training_section import unsupported_fields

T = TypeVar("T")

_MOST_SECTIONS = 20
"""Unknown sections that are said: each is compared with what is known."""

AFTER_SEARCH = ("economics", "goal", "run")
"""Sections that no search of layouts takes."""

MAY_BE_SEVERAL = ("global_batch", "sequence_length")
"""Fields of [training] that may be a list or a range, of which a plan chooses."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """Everything a command needs to know."""

    where: str
    """The file it came from, or "command line"."""
    workload: Workload
    cluster: Cluster
    software: Software
    pinned: dict[str, Any]
    goal: Goal
    run: Reliability
    """What the run goes through, [run] over the set that it names."""
    document: dict[str, Any]
    """The sections as given, with overrides applied."""
    release: Nearest | None = None
    """Which profile stands for the software that was named."""
    allow: tuple[str, ...] | None = None
    """Layout fields that a search may decide ([search]); None: DECIDED."""
    allow_tight: bool = False
    """Whether a layout may win whose P90 of memory is more than is usable ([search])."""
    assumed: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Required fields of [training] that nobody gave, and what they were taken to be."""
    idle: dict[str, str] = dataclasses.field(default_factory=dict)
    """Fields that were given and on which nothing hangs here, each with the reason."""
    choices: dict[str, Choice] = dataclasses.field(default_factory=dict)
    """Fields of [training] that a plan chooses, of MAY_BE_SEVERAL."""
    sections: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Records of the sections that may be left out, by name, of those that are there."""
    tariff: Tariff = dataclasses.field(init=False)
    """What an hour costs and where: asked once, when the scenario is made or its cluster
    replaced."""

    def __post_init__(self) -> None:
        """Find the price of the cluster."""
        object.__setattr__(self, "tariff", self.tariff_on(self.cluster))

    def tariff_on(self, cluster: Cluster) -> Tariff:
        """Return what an hour costs on another cluster, or on one kind of servers of this one."""
        return tariff_of(self.section(Economics), cluster)

    @property
    def assumed_software(self) -> str | None:
        """The known release that stands for the one that was named; None where that is known."""
        return self.release.text if self.release is not None else None

    def section(self, schema: type[T]) -> T | None:
        """Return the record of a section that may be left out; None where it is."""
        return next((x for x in self.sections.values() if isinstance(x, schema)), None)

    def required(self, schema: type[T]) -> T:
        """Return the record of a section; InputError where it was left out."""
        if (record := self.section(schema)) is not None:
            return record
        name = next(name for name, section in SECTIONS.items() if schema in section.schemas)
        needs = [
            f"{name}.{field.name}"
            for field in fields(schema)  # type: ignore[arg-type]
            if field.default is field.default_factory is dataclasses.MISSING
        ]
        states = f"; it says {', '.join(needs)} at least, in a file or by --set" if needs else ""
        raise InputError(f"{self.where}: {name}: required section is missing{states}")

    def without(self, schema: type) -> Scenario:
        """Return the same without a section."""
        kept = {name: x for name, x in self.sections.items() if not isinstance(x, schema)}
        return replace(self, sections=kept)

    @property
    def elsewhere(self) -> dict[str, str]:
        """Sections that a step on [cluster] leaves out, and the command that prices each."""
        commands = {name: section.priced_by for name, section in SECTIONS.items()}
        return {name: text for name, text in commands.items() if text and name in self.sections}

    @property
    def refused(self) -> list[str]:
        """Why commands that know nothing of its sections refuse it, where they do."""
        return [
            f"{self.where}: {name}: {SECTIONS[name].refused}"
            for name in self.sections
            if SECTIONS[name].refused
        ]


def load_scenario(path: Path | str, overrides: Iterable[str] = ()) -> Scenario:
    """Read a scenario file and apply ``section.field=value`` overrides.

    Raises
    ------
    InputError
        With every problem of the file, each naming its field.
    """
    return make_scenario(
        read_document(path), where=str(path), overrides=overrides, base=Path(path).parent
    )


def make_scenario(
    document: Mapping[str, Any],
    *,
    where: str = "scenario",
    overrides: Iterable[str] = (),
    base: Path | None = None,
    architecture: Architecture | None = None,
    several: bool = False,
    searched: Scenario | None = None,
) -> Scenario:
    """Build a scenario from nested tables, as a TOML file gives them.

    `architecture` stands for the section [model], where no file describes it (a traced module).
    With `several`, batch and sequence may be lists or ranges (``Scenario.choices``). `searched` is
    one that differs in sections of AFTER_SEARCH alone: what the others describe is its own.
    """
    document = numbers_written_out(overridden(document, overrides))
    if not document and architecture is None:
        raise InputError(
            f"{where}: must have [model] with a name, [training] with sequence_length and"
            " global_batch, [cluster] with name and gpus; it is empty"
        )
    problems = _wrong_sections(document, where)
    choices, single = _choices(document, where, problems, several=several)
    records: dict[str, Any] = {"document": single, "folder": base, "model": architecture}
    if searched is not None:
        work = searched.workload
        records |= {"model": work.architecture, "training": work.recipe, "data": work.data}
        records |= {"cluster": searched.cluster, "software": searched.software}
        records["release"] = searched.release
    problems += _read(records, where)
    for section in READ:
        for rule in section.checks:
            problems += rule.applied(records, where=where) or []
    if problems:
        raise InputError(dict.fromkeys(problems))
    return Scenario(
        where=where,
        workload=searched.workload
        if searched is not None
        else Workload(
            architecture=records["model"], recipe=records["training"], data=records["data"]
        ),
        cluster=records["cluster"],
        software=records["software"],
        pinned=records["layout"].pinned(),
        goal=records["goal"],
        run=records["run"],
        document=document,
        release=records["release"],
        allow=records["search"].allow,
        allow_tight=records["search"].allow_tight,
        idle=_idle(records, where),
        choices=choices,
        sections={
            section.name: records[section.name]
            for section in READ
            if not section.required and records[section.name] is not None
        },
    )


def _read(records: dict[str, Any], where: str) -> list[str]:
    """Put the record of every section beside its document, and return what is wrong."""
    document, problems = records["document"], list[str]()
    described = {section.instead_of: name for name, section in SECTIONS.items() if name in document}
    for section in READ:
        name = section.name
        if records.setdefault(name, None) is not None:
            continue
        if name in described:
            if name in document:
                rule = f"must be left out with [{described[name]}], which describes it"
                problems.append(f"{where}: {name}: {rule}")
        elif section.required or name in document:
            try:
                raw = document.get(name, {})
                records[name] = section.read.applied(records, raw, where=where)
            except InputError as error:
                problems += error.problems
    for section in READ:
        for name, maker in section.makes:
            if (made := maker.applied(records, where=where)) is not None:
                records[name] = made
    return problems


def _idle(records: Mapping[str, Any], where: str) -> dict[str, str]:
    """Fields that were given, not as they are anyway, and on which nothing hangs; why of each."""
    idle = dict[str, str]()
    for section in READ:
        reasons = section.idle.applied(records, where=where) if section.idle is not None else {}
        usual = {field.name: field.default for kind in section.schemas for field in fields(kind)}
        for name, reason in (reasons or {}).items():
            value = given(records["document"], f"{section.name}.{name}")
            if value is not None and value != usual.get(name):
                idle[f"{section.name}.{name}"] = reason
    return idle


def _choices(
    document: Mapping[str, Any], where: str, problems: list[str], *, several: bool
) -> tuple[dict[str, Choice], dict[str, Any]]:
    """What batch and sequence may be where they are several, and the sections with one of each.

    That one is the largest: what is wrong with a sequence that is too long is wrong with it.
    """
    choices, training = dict[str, Choice](), document.get("training")
    if not isinstance(training, Mapping):
        return choices, dict(document)
    single = dict(training)
    for name in MAY_BE_SEVERAL:
        if not is_several(training.get(name)):
            continue
        try:
            choices[name] = read_choice(training[name])
        except ValueError as error:
            problems.append(f"{where}: training.{name}: {error}")
            single[name] = 1
            continue
        single[name] = choices[name].values[-1]
        if not several:
            rule = "must be one number here; plan takes a list or a range"
            problems.append(problem(where, f"training.{name}", rule, training[name]))
    return choices, {**document, "training": single}


def _wrong_sections(document: Mapping[str, Any], where: str) -> list[str]:
    problems = []
    for name in document:
        if name not in SECTIONS:
            unknown = f"{where}: {name}: unknown section{did_you_mean(name, SECTIONS)}"
            problems += unsupported_fields([name], where, "") or [unknown]
        if len(problems) > _MOST_SECTIONS:
            return [*problems, f"{where}: more than {_MOST_SECTIONS} sections are unknown"]
    return problems


def cluster_options(names: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return options with what overrides say of cluster, gpus and software above them.

    What is read of other files hangs on them before overrides are applied.
    """
    options = {
        "cluster.name": ("cluster", str),
        "cluster.gpus": ("gpus", int),
        "cluster.software": ("software", str),
    }
    every = dict(names)
    for text in overrides:
        field, _, words = text.partition("=")
        option, kind = options.get(field.strip(), ("", object))
        if option and type(value := toml_value(words)) is kind:
            every[option] = value
    return every


def overridden(document: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return nested tables with ``section.field=value`` overrides applied to them."""
    changed = {name: dict(v) if isinstance(v, Mapping) else v for name, v in document.items()}
    for override in overrides:
        _override(changed, override)
    return changed


def _override(document: dict[str, Any], text: str) -> None:
    """Apply one ``section.field=value``; the value is read as TOML, else as a plain word."""
    key, equals, value = text.partition("=")
    if not (equals and "." in key and all(key.strip().split("."))):
        fields = [f"{field}={value or 'VALUE'}" for field in fields_named(key.strip())]
        hint = f" (did you mean {' or '.join(fields)}?)" if fields else ""
        raise InputError(problem("--set", "", "must be section.field=value", text) + hint)
    if value.strip() and len(value.strip().splitlines()) > 1:
        raise InputError(problem("--set", key.strip(), "must be a single line", value))
    put(document, key.strip(), toml_value(value), where="--set")
