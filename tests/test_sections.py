"""A section that joins the list is read, checked, refused, listed and described from its record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import simulator
from simulator import scenario, sections
from simulator.errors import InputError
from simulator.files import Whole, record
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.planner.prediction import predict
from simulator.report.scenario_fields import scenario_fields
from simulator.scenario import make_scenario
from simulator.section import Rule, Section, build_section

RUN: dict[str, Any] = {
    "model": {"name": "llama-3.2-1b"},
    "training": {"sequence_length": 1024, "global_batch": 8},
    "cluster": {"name": "dgx-h100", "gpus": 8},
}


@record
class Watchers:
    """Hosts that watch a run."""

    hosts: Whole
    """How many."""


def read_watchers(raw: Any, *, where: str) -> Watchers:
    return build_section(Watchers, raw, where=where, name="watchers")


def too_many(watchers: Watchers, cluster: Cluster, *, where: str) -> list[str]:
    few = watchers.hosts <= cluster.gpus
    return [] if few else [f"{where}: watchers.hosts: must be at most {cluster.gpus}"]


def joined(monkeypatch: pytest.MonkeyPatch, **says: str) -> None:
    """Put one more section into the list, as a line there would."""
    check = Rule(too_many, needs=("watchers", "cluster"))
    section = Section(
        name="watchers", schemas=(Watchers,), read=Rule(read_watchers), checks=(check,), **says
    )
    monkeypatch.setattr(scenario, "READ", (*sections.READ, section))
    monkeypatch.setitem(sections.SECTIONS, "watchers", section)


def test_its_record_is_read_checked_and_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    joined(monkeypatch, priced_by="foreshard watch")
    made = make_scenario({**RUN, "watchers": {"hosts": 3}})
    assert made.section(Watchers) == made.required(Watchers) == Watchers(hosts=3)
    assert made.elsewhere == {"watchers": "foreshard watch"}
    assert made.without(Watchers).section(Watchers) is None
    assert predict(made).scenario.elsewhere  # priced without it, and it is said
    (field,) = [f for f in scenario_fields() if f.name.startswith("watchers.")]
    assert (field.name, field.sentence, field.required) == ("watchers.hosts", "How many.", True)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (7, "watchers: must be a table, got 7"),
        ({}, "watchers.hosts: required field is missing"),
        ({"hosts": 9}, "watchers.hosts: must be at most 8"),
    ],
)
def test_what_is_wrong_with_it_is_said_with_all_else(
    monkeypatch: pytest.MonkeyPatch, section: Any, said: str
) -> None:
    joined(monkeypatch)
    with pytest.raises(InputError) as error:
        make_scenario({**RUN, "watchers": section, "goal": {"minimise": "time"}})
    assert len(error.value.problems) == 2
    assert f"scenario: {said}" in error.value.problems


def test_other_commands_refuse_it_where_its_record_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    joined(monkeypatch, refused="watched by `foreshard watch`")
    made = make_scenario({**RUN, "watchers": {"hosts": 3}})
    with pytest.raises(InputError, match="scenario: watchers: watched by `foreshard watch`"):
        predict(made)


def test_a_section_left_out_is_asked_for_by_its_name() -> None:
    with pytest.raises(
        InputError,
        match=r"scenario: sites: required section is missing; it says sites\.at at least",
    ):
        simulator.several_sites(make_scenario(RUN))


def test_the_price_is_that_of_the_cluster_a_scenario_was_given() -> None:
    """Asked when it is made, and again where its cluster is replaced."""
    made = make_scenario(RUN)
    other = load_cluster("dgx-a100", 8)
    moved = replace(made, cluster=other)
    assert moved.tariff == made.tariff_on(other) != made.tariff
    assert moved.tariff.price.name == other.price
