"""A scenario of a file, of keywords, or of both: the one door for Python and the command line.

A flag and a keyword mean the same, since both come through :func:`assemble`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from simulator.errors import InputError, did_you_mean, problem
from simulator.files import build, read_document
from simulator.goal import Goal, SearchSection
from simulator.inheritance import merged
from simulator.layout.layout_section import LayoutSection
from simulator.scenario import Scenario, make_scenario, overridden
from simulator.sections import SECTIONS
from simulator.spellings import numbers_written_out
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

Source = Scenario | str | os.PathLike[str] | None

SaidSoftware = str | Mapping[str, Any] | None
"""The profile's name, or a mapping of what is put over it ([software]), which may have a "name"."""

DEFAULT_LENGTH = 8192
"""Tokens per sequence without a scenario file; less where the model is defined for less."""

DEFAULT_BATCH = 1024
"""Sequences per step without a scenario file, rounded up to a multiple of the GPUs; with [rl] all
answers of a step."""

KEYWORD_SECTIONS = {
    name: section
    for section, schema in (
        ("training", Recipe),
        ("layout", LayoutSection),
        ("goal", Goal),
        ("search", SearchSection),
    )
    for name in map(attrgetter("name"), fields(schema))
}
"""Section of every field that `plan` and `predict` take as a keyword."""

WHOLE_SECTIONS = sorted(SECTIONS.keys() - {"model", "cluster", "training", "layout", "goal"})
"""Sections that are taken whole, as a mapping of their fields."""


def assemble(
    source: Source,
    names: Mapping[str, Any],
    settings: Mapping[str, Any] | None = None,
    overrides: Iterable[str] = (),
    *,
    where: str = "arguments",
    several: bool = False,
) -> Scenario:
    """Make a scenario of a file, of names and fields, or of a file with some things replaced.

    Parameters
    ----------
    source : path, Scenario or None
        Where to start from.
    names : mapping
        ``model``, ``cluster``, ``gpus``, ``software``; None means not given. ``software`` may be a
        mapping of what is put over its profile, which "name" names.
    given : mapping, optional
        Fields of [training], [layout], [goal] and [search] by their own name.
    overrides : iterable of str
        ``section.field=value``, as ``--set`` takes them.
    where : str
        What messages call the input when there is no file.
    several : bool
        Batch and sequence may be lists or ranges, of which a plan chooses.

    """
    settings, overrides = dict(settings or {}), list(overrides)
    names, stated = _software(names)
    place = str(source) if isinstance(source, (str, os.PathLike)) else where
    ready = names.get("model")
    if isinstance(ready, Workload):
        names = {**names, "model": ready.architecture.name}
        settings = {**_stated(ready.recipe), **settings}
    sections = _sections(settings, place, names)
    if stated:
        sections["software"] = stated
    if isinstance(source, Scenario):
        return _changed(source, names, sections, overrides)
    document = {} if source is None else read_document(Path(source))
    _put_names(document, names)
    for section, values in sections.items():
        _merge(document, section, values)
    assumed: dict[str, Any] = {}
    if source is None:
        _complain_of_missing(names, overrides, place)
        assumed = _assumed(numbers_written_out(overridden(document, overrides)))
        _merge(document, "training", assumed)
    base = None if source is None else Path(source).parent
    architecture = ready.architecture if isinstance(ready, Workload) else None
    scenario = make_scenario(
        document,
        where=place,
        overrides=overrides,
        base=base,
        architecture=architecture,
        several=several,
    )
    return replace(scenario, assumed=assumed)


def left_open(source: Source) -> set[str]:
    """Which of ``cluster`` and ``gpus`` a scenario does not say, and a question brings itself."""
    if isinstance(source, Scenario):
        return set()
    said = {} if source is None else read_document(Path(source)).get("cluster", {})
    if not isinstance(said, Mapping):  # refused when the scenario is made
        return set()
    fields = {"cluster": ("name", "groups"), "gpus": ("gpus", "groups")}
    return {name for name, words in fields.items() if said.keys().isdisjoint(words)}


def _software(names: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """The names, and what is put over the profile where `software` is a mapping of its fields.

    A "name" among them is the profile's.
    """
    software = names.get("software")
    if not isinstance(software, Mapping):
        return names, {}
    fields = {name: value for name, value in software.items() if name != "name"}
    return {**names, "software": software.get("name")}, fields


def _stated(recipe: Recipe) -> dict[str, Any]:
    """Fields of a recipe that differ from their defaults."""
    values = {field.name: (getattr(recipe, field.name), field.default) for field in fields(recipe)}
    return {name: value for name, (value, default) in values.items() if value != default}


def _sections(
    settings: Mapping[str, Any], where: str, others: Iterable[str]
) -> dict[str, dict[str, Any]]:
    """Sort keywords into the sections that have a field of that name; `others` are known, too."""
    known = (*KEYWORD_SECTIONS, *WHOLE_SECTIONS)
    unknown = [name for name in settings if name not in known]
    if unknown:
        near = (*known, *others)
        raise InputError(
            f"{where}: {name}: unknown argument{did_you_mean(name, near)}" for name in unknown
        )
    sections: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        if value is None:
            continue
        if name not in WHOLE_SECTIONS:
            sections.setdefault(KEYWORD_SECTIONS[name], {})[name] = value
        elif isinstance(value, Mapping):
            sections.setdefault(name, {}).update(value)
        else:
            raise InputError(problem(where, name, f"must be a mapping of [{name}]", value))
    return sections


def _changed(
    scenario: Scenario,
    names: Mapping[str, Any],
    sections: Mapping[str, dict[str, Any]],
    overrides: list[str],
) -> Scenario:
    """A ready scenario with other layout fields; the rest is changed with dataclasses.replace."""
    wrong = [name for name, value in names.items() if value is not None]
    wrong += [
        name for section, values in sections.items() if section != "layout" for name in values
    ]
    if wrong or overrides:
        raise InputError(
            f"{scenario.where}: {', '.join([*wrong, *overrides])}: cannot be given beside a ready"
            " Scenario; use dataclasses.replace on it"
        )
    pinned = {**scenario.pinned, **sections.get("layout", {})}
    layout = build(LayoutSection, pinned, where=scenario.where, prefix="layout").pinned()
    return replace(scenario, pinned=layout, document={**scenario.document, "layout": dict(layout)})


def _put_names(document: dict[str, Any], names: Mapping[str, Any]) -> None:
    """Put model, cluster, gpus and software where a scenario file has them."""
    if names.get("model") is not None:
        document["model"] = {"name": os.fspath(names["model"])}
    fields = {"cluster": "name", "gpus": "gpus", "software": "software"}
    values = {field: names.get(name) for name, field in fields.items()}
    _merge(document, "cluster", {k: v for k, v in values.items() if v is not None})


def _merge(document: dict[str, Any], section: str, values: Mapping[str, Any]) -> None:
    table = document.get(section, {})
    if values and isinstance(table, Mapping):
        document[section] = merged(table, values)


def _complain_of_missing(names: Mapping[str, Any], overrides: list[str], where: str) -> None:
    """Without a file, three names are needed; say so once, not field by field."""
    needed = {"model": "model.", "cluster": "cluster.name", "gpus": "cluster.gpus"}
    missing = [
        name
        for name, field in needed.items()
        if names.get(name) is None and not any(text.startswith(field) for text in overrides)
    ]
    if missing:
        raise InputError(
            f"{where}: a scenario file, or model, cluster and gpus, must be given"
            f" (missing: {', '.join(missing)})"
        )


def _assumed(document: Mapping[str, Any]) -> dict[str, Any]:
    """Training fields that are required and were not given."""
    training = document.get("training", {})
    defaults = {"sequence_length": _length, "global_batch": _batch}
    return {name: value(document) for name, value in defaults.items() if name not in training}


def _length(document: Mapping[str, Any]) -> int:
    try:
        architecture = presets.load(document.get("model", {}).get("name", ""))
    except InputError:  # reported with all other problems when the scenario is made
        return DEFAULT_LENGTH
    return min(DEFAULT_LENGTH, architecture.max_positions)


def _batch(document: Mapping[str, Any]) -> int:
    answers = document.get("rl")
    if isinstance(answers, Mapping):  # one update for all answers of a step
        prompts, samples = answers.get("prompts"), answers.get("samples", 1)
        if isinstance(prompts, int) and isinstance(samples, int):
            return max(1, prompts * samples)
    gpus = document.get("cluster", {}).get("gpus")
    if not isinstance(gpus, int) or gpus < 1:
        return DEFAULT_BATCH
    return -(-DEFAULT_BATCH // gpus) * gpus
