"""A question as the explorer's page asks it: names of profiles, numbers, pins of the layout.

Names only: a page may not make the program open a file.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from simulator import catalogue
from simulator.errors import InputError, problem
from simulator.files import Number, Whole, build, json_of, record
from simulator.scenario import Scenario, make_scenario
from simulator.workload import presets

LONGEST = 4096
"""Characters of a question."""

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
    known = {
        "model": ("model", presets.names()),
        "cluster": ("cluster", catalogue.names("clusters")),
        "beside": ("cluster", catalogue.names("clusters")),
        "software": ("software", catalogue.names("software")),
    }
    wrong = [
        problem("question", field, f"unknown {kind}", value, names)
        for field, (kind, names) in known.items()
        if (value := getattr(question, field, None)) is not None and value not in names
    ]
    if wrong:
        raise InputError(wrong)
    return question


def scenario_document(question: Question) -> dict[str, dict[str, Any]]:
    """The question as the sections of a scenario file."""
    sections: dict[str, dict[str, Any]] = {
        "model": {"name": question.model},
        "training": {
            "sequence_length": question.sequence_length,
            "global_batch": question.global_batch,
            "tokens": question.tokens,
            "precision": question.precision,
        },
        "cluster": {
            "name": question.cluster,
            "gpus": question.gpus,
            "software": question.software,
        },
        "layout": question.pins.given(),
        "goal": {
            "minimize": question.minimize,
            "deadline_days": question.deadline_days,
            "budget_usd": question.budget_usd,
        },
        "economics": {"usd_per_gpu_hour": question.usd_per_gpu_hour},
        "search": {"allow_tight": True if question.tight == "allowed" else None},
    }
    tables = {
        name: {key: value for key, value in table.items() if value is not None}
        for name, table in sections.items()
    }
    return {name: table for name, table in tables.items() if table or name == "layout"}


def scenario_of_question(question: Question) -> Scenario:
    """The scenario that a question describes."""
    return make_scenario(scenario_document(question), where="question")


def key_of(question: Question) -> str:
    """What a question is remembered by."""
    return json.dumps(scenario_document(question), sort_keys=True)
