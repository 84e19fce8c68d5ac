"""Scenarios drawn from `foreshard schema`: fields that no sound file of ours has, at their limits.

The mutator beside this changes files that are sound; here the schema alone says what a document may
have: one to six fields of any section, on top of a model, a cluster and a batch, with values at
both ends of what each may be, now and then beyond, or of another type. Each is predicted, or
refused in words; none ends in a traceback or takes long.
"""

from __future__ import annotations

import copy
import math
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from simulator import catalogue
from simulator.errors import ForeshardError
from simulator.planner.plan import plan
from simulator.planner.prediction import predict
from simulator.report.scenario_fields import scenario_schema
from simulator.scenario import make_scenario
from simulator.workload import presets
from tests.mutations.mutator import VALUES

FEW, MANY = 75, 600
MOST_S = 5.0
"""Of the processor, for one document."""

PLANNED = 25
"""Of so many documents one is searched, too: the fields that a prediction does not read."""

Path = tuple[str, ...]
Schema = dict[str, Any]


def leaves(schema: Schema, path: Path = ()) -> Iterator[tuple[Path, Schema]]:
    """Fields of a schema that are no sections, with what they may be."""
    for name, field in schema.get("properties", {}).items():
        if "properties" in field:
            yield from leaves(field, (*path, name))
        else:
            yield (*path, name), field


def value(schema: Schema, name: str, chance: random.Random) -> Any:
    """A value of a field: sound as a rule, else the first that comes to hand."""
    if chance.random() < 0.04:
        return copy.deepcopy(chance.choice(VALUES))  # what is nested into it stays in this document
    if "enum" in schema:
        return chance.choice(schema["enum"])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return value(chance.choice(schema[key]), name, chance)
    kind = schema.get("type")
    kind = chance.choice(kind) if isinstance(kind, list) else kind
    if kind in ("integer", "number"):
        return _number(schema, chance, whole=kind == "integer")
    if kind == "array":
        fewest, most = schema.get("minItems", 0), schema.get("maxItems", 4)
        count = chance.choice([fewest, min(fewest + 2, most), min(most, 40)])
        return [value(schema.get("items", {}), name, chance) for _ in range(count)]
    if kind == "object":
        names = [*schema.get("properties", {})]
        some = chance.sample(names, min(len(names), 3)) + schema.get("required", [])
        made = {word: value(schema["properties"].get(word, {}), word, chance) for word in some}
        if isinstance(more := schema.get("additionalProperties"), dict):
            made[chance.choice(["x", "tp", "h100-sxm", "8"])] = value(more, name, chance)
        return made
    if kind == "boolean":
        return chance.random() < 0.5
    return chance.choice([*WORDS.get(name, ()), "x", "", "any", "1B", "8k", "none", "bf16"])


WORDS = {
    "name": (*presets.names()[::7], *catalogue.names("clusters")[::9]),
    "software": catalogue.names("software"),
    "stages": ("E|t*16|t*16L", "Et*32|L", "E||t*32|L"),
}
"""Words of fields whose schema says only that they are words."""


def _number(schema: Schema, chance: random.Random, *, whole: bool) -> float:
    low = schema.get("minimum", schema.get("exclusiveMinimum", -1e3))
    high = schema.get("maximum", schema.get("exclusiveMaximum", 1e12))
    between = low + (high - low) * chance.random()
    log = max(low, 0.0) + math.expm1(chance.random() * math.log1p(max(min(high, 1e9) - low, 0.0)))
    drawn = chance.choice([low, high, between, log, log, log, 1, 2, 4, 8])
    return int(drawn) if whole else drawn


LEAVES = [
    (path, field) for path, field in leaves(scenario_schema()) if path[0] not in ("sparse", "rl")
]
"""Those two sections are documents of their own."""


def document(chance: random.Random) -> dict[str, Any]:
    """A scenario with some fields of any section."""
    models = ["llama-3.2-1b", "mixtral-8x7b", "gpt2-small", "bert-large"]
    made: dict[str, Any] = {
        "model": {"name": chance.choice(models)},
        "training": {"sequence_length": 512, "global_batch": 64, "tokens": 1e9},
        "cluster": {"name": chance.choice(["dgx-h100", "dgx-a100", "mi300x-8"]), "gpus": 8},
    }
    for path, field in chance.sample(LEAVES, chance.randint(1, 6)):
        place = made
        for name in path[:-1]:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                break
        if isinstance(place, dict):
            place[path[-1]] = value(field, path[-1], chance)
    return made


def crash(number: int) -> tuple[str | None, bool]:
    """What went wrong with a document, if anything; whether it was answered."""
    chance = random.Random(f"schema {number}")
    made = document(chance)
    begun, answered = time.process_time(), False
    try:
        scenario = make_scenario(made)
        predict(scenario)
        if number % PLANNED == 0:
            plan(scenario)
        answered = True
    except ForeshardError as error:
        if not str(error).strip():
            return f"{number} {made}: refused without a word", False
    except Exception as error:
        return f"{number} {made}: {type(error).__name__}: {error}", False
    if (spent := time.process_time() - begun) > MOST_S:
        return f"{number} {made}: {spent:.1f} s", answered
    return None, answered


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.evidence)])
@pytest.mark.filterwarnings("error")
def test_what_the_schema_allows_is_predicted_or_refused_in_words(count: int) -> None:
    results = [crash(number) for number in range(count)]
    assert [problem for problem, _ in results if problem] == []
    assert sum(answered for _, answered in results) > 0.1 * count
