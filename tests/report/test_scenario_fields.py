"""`foreshard fields` and docs/scenario.md: what they list is what a scenario is read by."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app
from simulator.report.scenario_fields import Field, scenario_fields
from simulator.scenario import make_scenario
from simulator.sections import SECTIONS
from workshop.pages.scenario import page

RUN: dict[str, Any] = {
    "model": {"name": "llama-3.2-1b"},
    "training": {"sequence_length": 1024, "global_batch": 8},
    "cluster": {"name": "dgx-h100", "gpus": 8},
}


def test_the_page_of_every_field_is_what_the_code_writes() -> None:
    """Whoever changes a field, its default or its limits writes the page again."""
    again = "run: python -m workshop.pages.scenario docs"
    committed = Path(__file__).resolve().parents[2] / "docs" / "scenario.md"
    assert committed.read_text(encoding="utf-8") == page(), again


def test_every_field_has_a_sentence_and_says_what_it_takes() -> None:
    fields = scenario_fields()
    assert [f.name for f in fields if not f.sentence.endswith(".")] == []
    assert [f.name for f in fields if not f.kind] == []
    assert {f.name.partition(".")[0] for f in fields} == set(SECTIONS)


def stated(field: Field) -> Any:
    """A default as TOML reads it."""
    words = f"[{', '.join(map(repr, field.default.split(', ')))}]"
    text = words if field.kind.startswith("list") else field.default
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


@pytest.mark.parametrize("section", ["training", "goal", "run"])
def test_defaults_stated_are_defaults_left_out(section: str) -> None:
    given: dict[str, Any] = dict(RUN.get(section, {}))
    for field in scenario_fields():
        path = field.name.split(".")
        if path[0] == section and field.default and "NAME" not in path:
            table = given
            for part in path[1:-1]:
                table = table.setdefault(part, {})
            table[path[-1]] = stated(field)
    plain, full = make_scenario(RUN), make_scenario({**RUN, section: given})
    assert len(given) > len(RUN.get(section, {}))
    assert (full.workload, full.goal, full.run) == (plain.workload, plain.goal, plain.run)


NEEDED = [f.name for f in scenario_fields() if f.required and f.name.count(".") == 1]


@pytest.mark.parametrize("field", NEEDED)
def test_what_is_required_is_asked_for(field: str) -> None:
    section, _, name = field.partition(".")
    given = {key: value for key, value in RUN.get(section, {}).items() if key != name}
    with pytest.raises(ValueError, match=f"{field}: required field is missing"):
        make_scenario({**RUN, section: given})


def test_one_field_by_its_name_and_a_wrong_one() -> None:
    def shown(*words: str) -> Any:
        return CliRunner(env={"COLUMNS": "100"}).invoke(app, ["fields", *words])

    (field,) = json.loads(shown("deadline_days", "--json").stdout)["fields"]
    assert (field["name"], field["unit"]) == ("goal.deadline_days", "days")
    assert "Tokens per sequence" in shown("training").stdout
    assert max(map(len, shown().stdout.splitlines())) <= 100
    wrong = shown("trainin")
    assert (wrong.exit_code, wrong.stderr) == (
        2,
        "command line: trainin: no such section or field (did you mean 'training'?)\n",
    )
