"""A question as the explorer's page asks it: names of profiles, numbers, pins of the layout.

What is one's own comes as text: the fields of a config.json, the sections of a scenario. No word of
it is a path: a page may not make the program open a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from simulator import catalogue
from simulator.errors import InputError, problem
from simulator.files import Number, Whole, build, json_of, record, toml_of
from simulator.scenario import Scenario, make_scenario
from simulator.workload import presets

LONGEST = 16_384
"""Characters of a question: most config.json have 1,000 to 3,000, a scenario 500 to 3,000."""

MORE = ("training", "layout", "goal", "run", "search", "data", "economics")
"""Sections of a scenario whose fields may stand beside those that the page has."""

OWN = "own"
"""Stands for the name of a model whose fields the question holds."""

Degree = Annotated[Whole, Ge(1), Le(100_000)]
Large = Annotated[Number, Gt(0), Le(1e18)]


@record
class Pins:
    """Layout fields that are decided; the others are searched."""

    tp: Degree | None = None
    pp: Degree | None = None
    vpp: Degree | None = None
    cp: Degree | None = None
    ep: Degree | None = None
    micro_batch: Degree | None = None
    sharding: Literal["ddp", "zero1", "zero2", "zero3"] | None = None
    recompute: Literal["none", "selective", "full"] | None = None

    def given(self) -> dict[str, Any]:
        """Those that are set."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value for name, value in values.items() if value is not None}


@record
class Question:
    """What is trained, on what, for what."""

    model: str
    cluster: str
    gpus: Annotated[Whole, Ge(1), Le(200_000)]
    software: str | None = None
    tokens: Large | None = None
    sequence_length: Annotated[Whole, Ge(1), Le(10_000_000)] = 8192
    global_batch: Annotated[Whole, Ge(1), Le(10_000_000)] = 1024
    precision: str = "bf16"
    minimize: Literal["time", "cost", "energy"] = "time"
    deadline_days: Large | None = None
    budget_usd: Large | None = None
    usd_per_gpu_hour: Annotated[Number, Gt(0), Le(1e6)] | None = None
    """What an accelerator's hour costs; that of the cluster's price profile unless given."""
    beside: str | None = None
    """Another cluster whose money and days stand beside those of the first."""
    tight: Literal["never", "allowed"] = "never"
    """Whether a layout may win whose P90 of memory is more than is usable."""
    pins: Pins = Pins()
    config: dict[str, Any] | None = None
    """The fields of a config.json that is trained, with `model` own."""
    more: dict[str, dict[str, Any]] | None = None
    """Further fields of a scenario, by section of MORE."""


def question_of(text: str) -> Question:
    """Read a question; errors as :func:`read_question`."""
    question: Question = read_question(Question, text)
    return question


def read_question(record: type[Any], text: str) -> Any:
    """Read a question of one of the pages.

    Raises
    ------
    InputError
        If it is too long, no JSON, or names what is not shipped.
    """
    if len(text) > LONGEST:
        raise InputError(f"question: longer than {LONGEST} characters")
    question = build(record, json_of(text, "question"), where="question")
    wrong = list(_wrong_texts(question)) if isinstance(question, Question) else []
    described = getattr(question, "config", None) is not None
    known = {
        "model": ("model", [OWN] if described else presets.names()),
        "cluster": ("cluster", catalogue.names("clusters")),
        "beside": ("cluster", catalogue.names("clusters")),
        "software": ("software", catalogue.names("software")),
    }
    wrong += [
        problem("question", field, f"unknown {kind}", value, names)
        for field, (kind, names) in known.items()
        if (value := getattr(question, field, None)) is not None and value not in names
    ]
    if wrong:
        raise InputError(wrong)
    return question


def _wrong_texts(question: Question) -> Iterator[str]:
    """What of one's own names a file, or a section that the page does not take."""
    for name, fields in (question.more or {}).items():
        if name not in MORE:
            yield problem("question", "more", "unknown section", name, MORE)
        for text in _texts(fields):
            if "/" in text or "\\" in text or text.endswith(".toml"):
                yield problem("question", f"more.{name}", "must name no file", text)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(inner)


def question_of_scenario(text: str) -> dict[str, Any]:
    """The question that the text of a scenario file asks, as the page holds it.

    Raises
    ------
    InputError
        If it is too long or wrong, names a file, or has a section that the page does not take.
    """
    if len(text) > LONGEST:
        raise InputError(f"scenario: longer than {LONGEST} characters")
    document = toml_of(text, "scenario")
    taken = ("model", "cluster", *MORE)
    for name, table in document.items():
        if name not in taken or not isinstance(table, dict):
            rule = f"this page takes the sections {', '.join(taken)}: ask foreshard plan"
            raise InputError(f"scenario: {name}: {rule}")
    model, allowed = document.pop("model", {}), document.get("search", {}).pop("allow_tight", False)
    asked: dict[str, Any] = {"model": model.get("name"), "tight": "allowed" if allowed else "never"}
    if "model_type" in model:
        asked |= {"model": OWN, "config": model}
    elif wrong := sorted(set(model) - {"name"}):
        rule = "this page takes a name of the zoo, or model_type with the fields of a config.json"
        raise InputError(f"scenario: model.{wrong[0]}: {rule}")
    for field, (section, name) in _PLACES.items():
        if (value := document.get(section, {}).pop(name, None)) is not None:
            asked[field] = value
    pins = document.get("layout", {})
    asked["pins"] = {name: pins.pop(name) for name in Pins.__dataclass_fields__ if name in pins}
    for name in document.pop("cluster", {}):
        rule = "this page takes name, gpus and software of one cluster: ask foreshard plan"
        raise InputError(f"scenario: cluster.{name}: {rule}")
    asked["more"] = {section: fields for section, fields in document.items() if fields}
    written = json.dumps({k: v for k, v in asked.items() if v}, default=str)
    scenario_of_question(question_of(written))
    read: dict[str, Any] = json.loads(written)
    return read


_PLACES = {
    "sequence_length": ("training", "sequence_length"),
    "global_batch": ("training", "global_batch"),
    "tokens": ("training", "tokens"),
    "precision": ("training", "precision"),
    "cluster": ("cluster", "name"),
    "gpus": ("cluster", "gpus"),
    "software": ("cluster", "software"),
    "minimize": ("goal", "minimize"),
    "deadline_days": ("goal", "deadline_days"),
    "budget_usd": ("goal", "budget_usd"),
    "usd_per_gpu_hour": ("economics", "usd_per_gpu_hour"),
}
"""Section and field of a scenario that a field of the question stands for."""


def scenario_document(question: Question) -> dict[str, dict[str, Any]]:
    """The question as the sections of a scenario file."""
    config = question.config
    model = {"name": question.model} if config is None else {"name": OWN, **config}
    document: dict[str, dict[str, Any]] = {"model": model}
    for field, (section, name) in _PLACES.items():
        if (value := getattr(question, field)) is not None:
            document.setdefault(section, {})[name] = value
    document["layout"] = question.pins.given()
    if question.tight == "allowed":
        document["search"] = {"allow_tight": True}
    for section, fields in (question.more or {}).items():
        document[section] = {**fields, **document.get(section, {})}
    return document


def scenario_of_question(question: Question) -> Scenario:
    """The scenario that a question describes."""
    return make_scenario(scenario_document(question), where="question")


def key_of(question: Question) -> str:
    """What a question is remembered by."""
    return sha256(json.dumps(scenario_document(question), sort_keys=True).encode()).hexdigest()
