"""A figure of a profile that is zero is refused where it is read, or does no harm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.files import DIVIDES, Figure, figures, with_figure
from simulator.planner.prediction import predict
from simulator.scenario import Scenario, make_scenario

RUNS = [
    ("mixtral-8x7b", "megatron-core", "dgx-h100", "fp8", {"tp": 2, "pp": 2, "ep": 2}),
    ("llama-3.1-8b", "torchtitan", "l40s-pcie", "bf16", {"tp": 2}),
]


def with_zeros(scenario: Scenario) -> Iterator[tuple[str, Scenario]]:
    """Every figure of device, server, fabric and software zero in turn."""
    cluster, (group,) = scenario.cluster, scenario.cluster.groups
    for kind in ("accelerator", "node"):
        part = getattr(group, kind)
        for name, _ in figures(part):
            changed = replace(group, **{kind: with_figure(part, name, Figure(0.0))})
            yield name, replace(scenario, cluster=replace(cluster, groups=(changed,)))
    for name, _ in figures(cluster.fabric):
        fabric = with_figure(cluster.fabric, name, Figure(0.0))
        yield name, replace(scenario, cluster=replace(cluster, fabric=fabric))
    for name, _ in figures(scenario.software):
        software = with_figure(scenario.software, name, Figure(0.0))
        yield name, replace(scenario, software=software)


@pytest.mark.evidence
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("model", "software", "cluster", "precision", "layout"), RUNS)
def test_no_zero_reaches_an_answer_as_no_number(
    model: str, software: str, cluster: str, precision: str, layout: dict[str, Any]
) -> None:
    training = {"global_batch": 64, "sequence_length": 1024, "tokens": 1e12}
    scenario = make_scenario(
        {
            "model": {"name": model},
            "training": {**training, "precision": precision},
            "cluster": {"name": cluster, "gpus": 16, "software": software},
            "layout": layout,
        }
    )
    tried = 0
    with np.errstate(all="ignore"):
        for name, changed in with_zeros(scenario):
            if DIVIDES.search(name) is None:
                found = predict(changed)
                numbers = [found.step_time_s, *found.interval_s, found.memory_bytes, found.mfu]
                assert np.isfinite(numbers).all(), name
                tried += 1
    assert tried > 50
