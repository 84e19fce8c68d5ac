"""States on local NVMe drives: bytes, rates, room; ZeRO-Infinity (Rajbhandari et al. 2021).

Rates are set by hand so that every time can be worked out on paper.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.step import Estimate, evaluate
from simulator.files import Figure
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.hardware.node import Drives
from simulator.layout.layouts import Layouts
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

PARAMETERS = 8_030_261_248  # Llama-3.1-8B
M = 2
DEEP = load_software("deepspeed")


def machine(
    read: float = 1e15,
    write: float = 1e15,
    host: float = 1e15,
    room: float = 1e15,
    link: float = 1e15,
) -> Cluster:
    base = load_cluster("dgx-h100", 8)
    group = base.groups[0]
    drives = Drives(
        capacity_bytes=Figure(room), read_bytes_per_s=Figure(read), write_bytes_per_s=Figure(write)
    )
    node = replace(
        group.node,
        host_bytes_per_s=Figure(link),
        host_adam_parameters_per_s=Figure(1e15),
        host_memory_bytes=Figure(host),
        nvme=drives,
    )
    return replace(base, groups=(replace(group, node=node),))


def run(cluster: Cluster, recipe: Any = None, **lay: Any) -> Estimate:
    lay = {"dp": 8, "sharding": "zero3", "recompute": "full", **lay}
    batch = M * 8
    how = Recipe(sequence_length=4096, global_batch=batch, **(recipe or {}))
    work = Workload(architecture=presets.load("llama-3.1-8b"), recipe=how)
    return evaluate(Layouts.of(global_batch=batch, **lay), work, cluster, DEEP)


def test_the_step_reads_and_writes_sixteen_bytes_a_parameter() -> None:
    """fp32 weight, two moments and the fp32 gradient: 16 B each way, all drives for all ranks."""
    found = run(machine(read=20e9, write=10e9), optimizer_offload="nvme").terms_s["optimizer"][0]
    assert found == pytest.approx(16 * PARAMETERS * (1 / 20e9 + 1 / 10e9), rel=1e-9)


def test_parameters_on_drives_are_written_once_and_read_for_both_passes() -> None:
    cluster = machine(read=20e9, write=10e9)
    found = run(cluster, optimizer_offload="nvme", parameter_offload="nvme")
    step = 16 * PARAMETERS * (1 / 20e9 + 1 / 10e9) + 2 * PARAMETERS / 10e9
    assert found.terms_s["optimizer"][0] == pytest.approx(step, rel=1e-9)
    copies = found.terms_s["offload"][0] + found.hidden_s["offload"][0]
    gradients = M * 2 * PARAMETERS / 8 / 1e15  # over the link, to the host
    assert copies - gradients == pytest.approx(M * 2 * 2 * PARAMETERS / 20e9, rel=1e-9)


def test_the_slower_of_link_and_drives_counts() -> None:
    """Bytes go through both; in memory there is the link alone."""
    lay = {"optimizer_offload": "cpu", "parameter_offload": "nvme"}
    per_rank = M * 2 * 2 * PARAMETERS / 8
    for read, link, rate in ((8e9, 2e9, 1e9), (80e9, 2e9, 2e9)):
        found = run(machine(read=read, link=link), **lay)
        both = found.terms_s["offload"][0] + found.hidden_s["offload"][0]
        gradients = M * 2 * PARAMETERS / 8 / link
        assert both == pytest.approx(per_rank / rate + gradients, rel=1e-9)


def test_a_share_of_the_optimizer() -> None:
    cluster = machine(read=20e9, write=10e9)
    whole = run(cluster, optimizer_offload="nvme")
    half = run(cluster, {"optimizer_offload_fraction": 0.5}, optimizer_offload="nvme")
    assert half.terms_s["optimizer"][0] == pytest.approx(whole.terms_s["optimizer"][0] / 2)
    assert half.offloaded_bytes["nvme"][0] == pytest.approx(whole.offloaded_bytes["nvme"][0] / 2)


@pytest.mark.parametrize(
    ("optimizer", "parameter", "host", "nvme"),
    [("none", "none", 0, 0), ("cpu", "none", 16, 0), ("cpu", "cpu", 18, 0), ("nvme", "none", 0, 16),
     ("nvme", "cpu", 2, 16), ("nvme", "nvme", 0, 18)],
)  # fmt: skip
def test_bytes_a_server_keeps(optimizer: str, parameter: str, host: int, nvme: int) -> None:
    """DeepSpeed's own estimate (runtime/zero/stage3.py): 16 B a parameter, 18 with the weights."""
    found = run(machine(), optimizer_offload=optimizer, parameter_offload=parameter).offloaded_bytes
    assert found["host"][0] == pytest.approx(host * PARAMETERS, rel=1e-12)
    assert found["nvme"][0] == pytest.approx(nvme * PARAMETERS, rel=1e-12)


def test_what_has_no_room_does_not_fit() -> None:
    need = 16 * PARAMETERS
    for tier, short in (("cpu", {"host": need - 1}), ("nvme", {"room": need - 1})):
        enough = {name: value + 2 for name, value in short.items()}
        assert run(machine(**enough), optimizer_offload=tier).fits[0]
        assert not run(machine(**short), optimizer_offload=tier).fits[0]


def test_alone_and_beside_others_cost_the_same() -> None:
    cluster, words = machine(read=20e9, write=10e9), ["none", "nvme", "cpu"]
    table = run(cluster, optimizer_offload=words)
    for i, word in enumerate(words):
        alone = run(cluster, optimizer_offload=word)
        assert table.step_time_s[i] == alone.step_time_s[0]
        assert table.offloaded_bytes["nvme"][i] == alone.offloaded_bytes["nvme"][0]
    total = sum(np.asarray(x) for x in table.terms_s.values())
    assert total == pytest.approx(table.step_time_s, rel=1e-12)
