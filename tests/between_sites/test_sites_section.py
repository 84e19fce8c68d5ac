"""[sites]: both sides of every rule."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.between_sites.sites_section import read_sites
from simulator.errors import InputError


def site(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "cluster": "dgx-h100", "gpus": 8, "uplink_bytes_per_s": 1e9,
            "latency_s": 0.02, **more}  # fmt: skip


TWO = [site("a"), site("b")]


@pytest.mark.parametrize(
    ("fine", "wrong", "field"),
    [
        ({}, {"at": [site("a"), site("a")]}, "at"),
        ({"at": [site("a", batch=3), site("b", batch=5)]},
         {"at": [site("a", batch=3), site("b")]}, "at"),
        ({"outer_step": "synchronous"}, {"outer_step": "synchronous", "inner_steps": 2},
         "inner_steps"),
        ({"outer_step": "synchronous", "inner_steps": 1, "fragments": 1, "overlap_steps": 0},
         {"outer_step": "synchronous", "fragments": 2}, "fragments"),
        ({"outer_step": "diloco", "inner_steps": 2},
         {"outer_step": "synchronous", "overlap_steps": 1}, "overlap_steps"),
        ({"inner_steps": 7, "fragments": 7}, {"inner_steps": 7, "fragments": 8}, "fragments"),
        ({"inner_steps": 7, "fragments": 2, "overlap_steps": 3},
         {"inner_steps": 7, "fragments": 2, "overlap_steps": 4}, "overlap_steps"),
        ({"outer_step": "local-sgd"}, {"outer_step": "local"}, "outer_step"),
        ({"compression": "int8"}, {"compression": "int9"}, "compression"),
    ],
)  # fmt: skip
def test_sites_beside_those_that_are_refused(
    fine: dict[str, Any], wrong: dict[str, Any], field: str
) -> None:
    read_sites({"at": TWO, **fine}, where="run.toml")
    with pytest.raises(InputError) as caught:
        read_sites({"at": TWO, **wrong}, where="run.toml")
    (said,) = caught.value.problems
    assert f"run.toml: sites.{field}: " in said
