"""An optimizer on the host: its own stream, beside the device's part, and copies on their way."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.step import evaluate
from simulator.events.deviations.deviations import Deviation
from simulator.events.simulated_step import simulate, summarise
from simulator.events.step.play import Played
from simulator.events.step.streams import SPAN_KINDS, STREAMS
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

COMPUTE, COPY, HOST = (STREAMS.index(word) for word in ("compute", "copy", "host"))
Worked = Callable[..., Played]


def spans(step: Any, stream: int, rank: int = 0) -> list[tuple[str, float, float]]:
    line = step.timeline
    rows = np.flatnonzero((line.stream == stream) & (line.rank == rank))
    return [(SPAN_KINDS[line.kind[i]], float(line.start_s[i]), float(line.end_s[i])) for i in rows]


def test_the_host_steps_beside_the_device_and_the_later_one_ends_the_step(worked: Worked) -> None:
    """Two micro-batches of 1 + 2 s end at 6; the device steps 0.5 s, the host 3 s."""
    step = summarise(worked([1.0], [2.0], 2, optimizer_s=np.array([0.5]), host_s=np.array([3.0])))
    assert step.step_time_s == 9.0
    assert step.terms_s["optimizer"] == pytest.approx(3.0)
    assert spans(step, HOST) == [("optimizer", 6.0, 9.0)]
    assert spans(step, COMPUTE)[-1] == ("optimizer", 6.0, 6.5)
    assert step.busy_s[0, [COMPUTE, HOST]].tolist() == [6.5, 3.0]
    assert step.exposed_s[0, HOST] == 3.0
    assert step.critical_share["optimizer"] == pytest.approx(3 / 9)


def test_copies_end_with_the_backward_passes_that_hide_them(worked: Worked) -> None:
    """F 0-1, B 1-3, F 3-4, B 4-6: copies of 0.5 s in the last half second of B."""
    given = {"copied_s": np.array([0.5]), "host_s": np.array([1.0])}
    each = summarise(worked([1.0], [2.0], 2, copies_each=True, **given))
    assert spans(each, COPY) == [("offload", 2.5, 3.0), ("offload", 5.5, 6.0)]
    once = summarise(worked([1.0], [2.0], 2, copies_each=False, **given))
    assert spans(once, COPY) == [("offload", 5.5, 6.0)]
    assert each.step_time_s == once.step_time_s == 7.0
    assert each.busy_s[0, COPY] == 1.0
    assert each.exposed_s[0, COPY] == 0.0


CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    ("llama-3.1-70b", "dgx-h100", "megatron-core", {"tp": 8, "pp": 4, "dp": 2}),
    ("llama-3.1-70b", "dgx-h100", "megatron-core", {"tp": 8, "dp": 4}),
    ("llama-2-13b", "dgx-a100", "deepspeed", {"dp": 8, "sharding": "zero2"}),
    ("llama-2-13b", "dgx-a100", "deepspeed",
     {"dp": 8, "sharding": "zero3", "parameter_offload": "cpu"}),
]  # fmt: skip


def setting(model: str, cluster: str, software: str, layout: dict[str, Any]) -> tuple[Any, ...]:
    given = {"sharding": "zero1", "optimizer_offload": "cpu", **layout}
    table = Layouts.of(**given, global_batch=16 * given["dp"])
    recipe = Recipe(sequence_length=4096, global_batch=int(table.global_batch[0]))
    work = Workload(architecture=presets.load(model), recipe=recipe)
    return table, work, load_cluster(cluster, int(table.world[0])), load_software(software)


@pytest.mark.parametrize("case", CASES, ids=[str(case[3]) for case in CASES])
def test_steps_and_memos_are_those_of_the_closed_form(case: Any) -> None:
    given = setting(*case)
    closed, step = evaluate(*given), simulate(*given)
    assert step.step_time_s == pytest.approx(float(closed.step_time_s[0]), rel=2e-3)
    for name in ("optimizer", "offload"):
        assert step.terms_s[name] == pytest.approx(float(closed.terms_s[name][0]), abs=1e-9)
    assert step.hidden_s["offload"] == pytest.approx(float(closed.hidden_s["offload"][0]))
    pacing = step.busy_s[step.pacing_rank]
    assert pacing[HOST] == pytest.approx(step.terms_s["optimizer"], rel=0.03)
    assert pacing[COPY] == pytest.approx(step.hidden_s["offload"], rel=0.05)
    line = step.timeline
    same = (line.rank[1:] == line.rank[:-1]) & (line.stream[1:] == line.stream[:-1])
    assert (line.start_s[1:] >= line.end_s[:-1] - 1e-9)[same].all()


def test_a_share_on_the_device_runs_at_the_same_time() -> None:
    table, work, cluster, software = setting(*CASES[1])
    halved = replace(work.recipe, optimizer_offload_fraction=0.5)
    given = table, replace(work, architecture=work.architecture, recipe=halved), cluster, software
    whole, half = simulate(table, work, cluster, software), simulate(*given)
    at = half.pacing_rank
    assert half.busy_s[at, HOST] == pytest.approx(whole.busy_s[at, HOST] / 2)
    kinds = {name for name, _, _ in spans(half, COMPUTE, at)}
    assert "optimizer" in kinds


def test_a_slow_device_does_not_slow_the_host() -> None:
    given = setting(*CASES[0])
    slow = simulate(*given, deviations=[Deviation(replica=0, compute=1.5)])
    plain = simulate(*given)
    assert slow.busy_s[0, HOST] == pytest.approx(plain.busy_s[0, HOST])
    assert slow.terms_s["optimizer"] == pytest.approx(plain.terms_s["optimizer"])
