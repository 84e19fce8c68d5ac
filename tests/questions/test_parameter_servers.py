"""A run with a parameter server: made of a worker and its messages, refused where it cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.errors import InputError
from simulator.questions.parameter_server.answer import Served, parameter_server, with_play
from simulator.scenario import make_scenario


def document(**section: Any) -> dict[str, Any]:
    return {
        "model": {"name": "bert-large"},
        "training": {"sequence_length": 512, "global_batch": 256, "tokens": 1e9,
                     "precision": "fp16"},
        "cluster": {"name": "aws-p3", "gpus": 32},
        "layout": {"tp": 1, "pp": 1, "cp": 1, "micro_batch": 8},
        "parameter_server": {"servers": 4, "time_variation": 0.0, "push_dtype": "fp16",
                             "pull_dtype": "fp16", **section},
    }  # fmt: skip


def answer(**section: Any) -> Served:
    return parameter_server(make_scenario(document(**section)))


def test_a_step_by_hand() -> None:
    """Four hosts push 0.67 GB each to four servers at 1.875 GB/s each, then pull as much."""
    found = answer()
    parameters = found.scenario.workload.architecture.parameters
    one = found.round
    assert one is not None and found.workers == 4
    assert one.push_bytes == one.pull_bytes == 2 * parameters
    rate = float(one.worker_bytes_per_s)
    assert one.servers_bytes_per_s == 4 * rate
    move_s = 2 * parameters / rate  # each way, all four at once
    adam = float(found.scenario.cluster.node.host_adam_parameters_per_s or 0.0)
    sums_s = 4 * (12 / 28) * parameters / (4 * adam) + parameters / (4 * adam)
    stages = [move_s, sums_s, move_s]
    pieces = round(2 * parameters / 4 / 4_096_000)
    by_hand = sum(stages) / pieces + (1 - 1 / pieces) * max(stages) + 60e-6
    assert found.ways[0].round_s == pytest.approx(found.worker.step_s + by_hand)


def test_colocated_servers_take_what_a_ring_takes() -> None:
    """Jiang et al. 2020: as many servers as hosts, on them, send 2 (n - 1) / n each way."""
    found = answer(placement="workers", server_memory_bytes_per_s=1e14)
    one, crew = found.round, found.crew
    assert one is not None and crew is not None
    parameters = found.scenario.workload.architecture.parameters
    fabric = found.scenario.cluster
    out = fabric.node.scale_out
    port = float(out.adapters * out.adapter_bytes_per_s * fabric.fabric.usable_fraction)
    ring = 2 * (3 / 4) * 2 * parameters / port
    exchange = found.ways[0].round_s - found.worker.step_s
    assert exchange == pytest.approx(ring, rel=0.05)


def test_own_hosts_take_less_than_a_ring() -> None:
    """With as many of them as workers, n / (n - 1) times less at most (the bound of BytePS)."""
    found = answer(server_memory_bytes_per_s=1e14)
    named = {way.name: way for way in found.ways}
    at = next(one for one in found.networks if one.factor == 1.0)
    step = found.worker.step_s
    gain = (at.round_s["all-reduce"] - step) / (at.round_s["synchronous"] - step)
    assert gain == pytest.approx(2 * (4 - 1) / 4, rel=0.05)
    even, uneven = (x for x in found.networks if x.factor == 1.0 and x.spread in (0.0, 0.3))
    waits = {name: uneven.round_s[name] - even.round_s[name] for name in even.round_s}
    assert waits["all-reduce"] > waits["asynchronous"] == 0.0
    assert named["broadcast to all"].round_s > named["all-reduce"].round_s


def test_stale_updates_are_pointed_at_and_counted() -> None:
    plain, dear = (
        answer(consistency="asynchronous", **more) for more in ({}, {"more_updates_fraction": 0.3})
    )
    assert plain.ways[0].days_ideal is not None
    assert dear.ways[0].days_ideal == pytest.approx(1.3 * plain.ways[0].days_ideal)
    assert 0.0 < plain.ways[0].stale_updates <= 3.0
    bounded = answer(consistency="stale-synchronous", staleness=0)
    assert bounded.ways[0].stale_updates == 0.0


def test_a_cache_in_host_memory_frees_the_gpu_and_may_cost_time() -> None:
    plain, cached = document(), document(worker_cache="host")
    plain["layout"] |= {"sharding": "ddp"}
    cached["layout"] |= {"sharding": "ddp"}
    on_gpu, on_host = (parameter_server(make_scenario(one)) for one in (plain, cached))
    assert on_host.worker.memory_bytes < on_gpu.worker.memory_bytes
    assert on_host.worker.step_s >= on_gpu.worker.step_s
    assert on_host.worker.freed_bytes > on_gpu.worker.freed_bytes


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"consistency": "stale-synchronous", "staleness": -1},
         "parameter_server.staleness: must be greater than or equal to 0, got -1"),
        ({"staleness": 2}, "staleness: must be 0 with consistency = 'synchronous'"),
        ({"servers": 5, "placement": "workers"},
         "servers: must be at most the 4 hosts of the workers, got 5 (nearest: 4)"),
        ({"servers": 0}, "parameter_server.servers: must be greater than 0"),
        ({"worker_gpus": 5}, "parameter_server.worker_gpus: must divide the 32 accelerators"),
        ({"stragglers": [{"workers": 5, "factor": 2.0}]},
         "parameter_server.stragglers: must be at most the 4 workers in all, got 5"),
        ({"stragglers": [{"workers": 1, "factor": 0.5}]}, "stragglers.0.factor"),
        ({"time_variation": 50.0}, "parameter_server.time_variation: must be at most 1, got 50.0"),
        ({"server_memory_bytes_per_s": 1e-300}, "server_memory_bytes_per_s: must be greater than"),
        ({"consistency": "bsp"}, "parameter_server.consistency: must be 'synchronous'"),
        ({"backup_workers": 1, "consistency": "asynchronous"},
         "backup_workers: must be 0 with consistency = 'asynchronous', got 1"),
        ({"backup_workers": 4}, "backup_workers: must be fewer than the 4 workers, got 4"),
        ({"backup_workers": 1}, "global_batch: must divide over the 3 workers waited for, got 256"),
        ({"server": 3}, "parameter_server.server: unknown field (did you mean 'servers'?)"),
    ],
)  # fmt: skip
def test_bad_sections(section: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        answer(**section)
    assert any(words in line for line in caught.value.problems), caught.value.problems


def test_a_backup_worker_is_not_waited_for() -> None:
    """Of four workers, one of them 1.5 times as slow, three make up the batch."""
    plain, spared = (
        document(stragglers=[{"workers": 1, "factor": 1.5}]),
        document(stragglers=[{"workers": 1, "factor": 1.5}], backup_workers=1),
    )
    plain["training"]["global_batch"], spared["training"]["global_batch"] = 256, 192
    waits, goes = (parameter_server(make_scenario(one)) for one in (plain, spared))
    assert goes.worker.batch == waits.worker.batch == 64
    assert goes.ways[0].round_s < waits.ways[0].round_s
    assert goes.ways[0].tokens_per_s * goes.ways[0].round_s == pytest.approx(192 * 512)
    assert [one.workers for one in goes.backups] == [0, 1]
    assert goes.backups[1].round_s == pytest.approx(goes.ways[0].round_s)
    with pytest.raises(InputError, match="are not played; must be 0 with --play, got 1"):
        with_play(goes)


def test_what_only_the_whole_shows() -> None:
    many = document(worker_gpus=1)
    many["cluster"]["gpus"] = 8_000_000
    with pytest.raises(InputError, match="must leave at most 100,000 workers, got 1"):
        parameter_server(make_scenario(many))
    uneven = document()
    uneven["training"]["global_batch"] = 250
    with pytest.raises(
        InputError, match=r"must divide over the 4 workers, got 250 \(nearest: 248\)"
    ):
        parameter_server(make_scenario(uneven))
    huge = document(servers=1)
    huge["model"]["name"] = "llama-3.1-405b"
    huge["training"] |= {"precision": "bf16"}
    huge["cluster"] = {"name": "dgx-h100", "gpus": 64}
    with pytest.raises(InputError, match=r"a shard takes .* of a host that has .*nearest: 3"):
        parameter_server(make_scenario(huge))
