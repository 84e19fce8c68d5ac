"""Changes of a machine: what they scale, by how much, and that nothing else moves."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from simulator.files import Figure
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.planner.changes import MACHINE_CHANGES, machine_with
from simulator.software.profile import Software, load_software

BEFORE = load_cluster("dgx-h100", 16), load_software("megatron-core")


def figures(part: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a machine by its dotted name."""
    if isinstance(part, (int, float, Figure)) and not isinstance(part, bool):
        yield name, float(part)
    elif isinstance(part, Mapping):
        for key, inner in part.items():
            yield from figures(inner, f"{name}.{key}")
    elif isinstance(part, (tuple, list)):
        for place, inner in enumerate(part):
            yield from figures(inner, f"{name}.{place}")
    elif is_dataclass(part):
        for field in fields(part):
            yield from figures(getattr(part, field.name), f"{name}.{field.name}")


def of_machine(cluster: Cluster, software: Software) -> dict[str, float]:
    parts = {"accelerator": cluster.accelerator, "node": cluster.node, "fabric": cluster.fabric,
             "library": cluster.library, "software": software}  # fmt: skip
    return {key: value for name, part in parts.items() for key, value in figures(part, name)}


@pytest.mark.parametrize("name", MACHINE_CHANGES)
def test_a_change_makes_its_figures_and_no_others(name: str) -> None:
    change, before, value = MACHINE_CHANGES[name], of_machine(*BEFORE), 4.0
    after = of_machine(*machine_with(BEFORE, (name, value)))
    moved = {key for key in before if after[key] != before[key]}
    assert moved
    for key in moved:
        assert any(key == of or key.startswith(f"{of}.") for of in change.figures), key
        if change.kind == "factor":
            ratio = 1.0 / value if change.inverse else value
            assert after[key] == pytest.approx(before[key] * ratio), key
        else:
            assert after[key] == value * change.unit, key
