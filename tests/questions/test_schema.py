"""The schema of the scenario file: it takes every example, and refuses what the reader refuses."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app
from simulator.report.scenario_fields import scenario_fields, scenario_schema

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = sorted(
    path
    for path in (ROOT / "examples").glob("*.toml")
    if "jobs" not in tomllib.loads(path.read_text())
)
SCHEMA = scenario_schema()


def holds(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value is as a schema says; the words of JSON Schema that ours uses."""
    if "anyOf" in schema and not any(holds(value, part) for part in schema["anyOf"]):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        return False
    number = isinstance(value, int | float) and not isinstance(value, bool)
    kinds = {
        "boolean": isinstance(value, bool),
        "integer": number and value == int(value),
        "number": number,
        "string": isinstance(value, str),
        "array": isinstance(value, list),
        "object": isinstance(value, dict),
    }
    if not kinds[schema["type"]] if "type" in schema else False:
        return False
    if number and not (
        schema.get("minimum", value) <= value <= schema.get("maximum", value)
        and schema.get("exclusiveMinimum", value - 1) < value
        and value < schema.get("exclusiveMaximum", value + 1)
    ):
        return False
    if isinstance(value, list):
        return all(holds(item, schema.get("items", {})) for item in value)
    if isinstance(value, dict):
        named, rest = schema.get("properties", {}), schema.get("additionalProperties", {})
        return set(schema.get("required", ())) <= set(value) and all(
            (name in named or rest is not False)
            and holds(item, named.get(name, rest if isinstance(rest, dict) else {}))
            for name, item in value.items()
        )
    return True


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_it_takes_every_example(path: Path) -> None:
    assert holds(tomllib.loads(path.read_text(encoding="utf-8")), SCHEMA)


@pytest.mark.parametrize(
    "text",
    [
        "layouts = {}",
        "training = { tokenz = 1e12 }",
        "training = { tokens = 0 }",
        "training = { global_batch = true }",
        'training = { precision = "bf17" }',
        'layout = { recompute_modules = "core_attn+" }',
        "cluster = { gpus = 8 }",
        "sites = { at = [{ name = 'a' }] }",
    ],
)
def test_it_refuses_what_the_reader_refuses(text: str) -> None:
    assert not holds(tomllib.loads(text), SCHEMA)


def test_every_field_is_in_it_with_its_sentence() -> None:
    shown = json.dumps(SCHEMA)
    missing = [f.name for f in scenario_fields() if json.dumps(f.sentence)[1:-1] not in shown]
    assert missing == []


def test_the_command_prints_it() -> None:
    result = CliRunner().invoke(app, ["schema"])
    assert (result.exit_code, json.loads(result.stdout)) == (0, SCHEMA)
    wrong = CliRunner().invoke(app, ["schema", "answers"])
    assert (wrong.exit_code, wrong.stderr) == (
        2,
        "command line: WHAT: must be scenario, got 'answers'\n",
    )


def bounds(schema: Any) -> Iterator[float]:
    """Every least and most of a schema, of numbers and of lists."""
    if isinstance(schema, dict):
        for word, value in schema.items():
            if word in ("minimum", "maximum", "maxItems") and isinstance(value, int | float):
                yield value
            yield from bounds(value)
    elif isinstance(schema, list):
        for part in schema:
            yield from bounds(part)


def test_bounds_of_a_thousand_and_more_are_powers_of_ten_or_two() -> None:
    large = [bound for bound in bounds(SCHEMA) if bound >= 1000]
    assert len(large) > 60
    for bound in large:
        assert math.log10(bound).is_integer() or math.log2(bound).is_integer(), bound
