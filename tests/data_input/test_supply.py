"""Input by hand: what each stage takes for the samples of a step, and what is left to wait for."""

from typing import Any

import numpy as np
import pytest

from simulator import catalogue
from simulator.cost.loading import supply_of
from simulator.cost.step import evaluate
from simulator.data_input.data_section import DataInput, Store, load_usual, read_data
from simulator.data_input.supply import (
    Readers,
    copy_s,
    cores_of,
    read_s,
    sample_of,
    stage_times,
    waiting_s,
    workers_of,
)
from simulator.errors import InputError
from simulator.files import Figure
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.scenario import make_scenario
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

IMAGES: dict[str, Any] = {"kind": "images", "sample_bytes": 1e5, "prepare_s": 4e-3}
STORE: dict[str, Any] = {
    "read_bytes_per_s": 2e9, "server_bytes_per_s": 1e9, "stream_bytes_per_s": 1e8,
    "requests_per_s": 5e3, "request_bytes": 6e4, "first_byte_s": 1e-3,
    "opens_per_s": 1e4, "open_s": 2e-3,
}  # fmt: skip
SCENARIO: dict[str, Any] = {
    "model": {"name": "vit-large-16"},
    "training": {"sequence_length": 197, "global_batch": 256},
    "cluster": {"name": "dgx-a100", "gpus": 8, "software": "torchtitan"},
}


def data(**given: Any) -> DataInput:
    return read_data(given, where="scenario")


def refused(section: dict[str, Any], **more: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        make_scenario({**SCENARIO, **more, "data": section})
    return list(caught.value.problems)


# --- by hand ------------------------------------------------------------------------------------


def test_every_stage_of_a_step() -> None:
    """16 ranks on two servers, 200 images each a step, 5 workers a rank, 32 cores a server.

    One image: open 2 ms, two reads (100 kB of 60 kB each) of 1 ms, 100 kB at 100 MB/s 1 ms, 4 ms
    of a core: 9 ms of its worker. 3,200 images a step, 1,600 of a server.
    """
    given = data(**IMAGES, workers=5, cores=32, device_bytes=6e5, store=STORE)
    readers = Readers(
        samples=np.array([200.0]), ranks=16, server_ranks=8, fetches=16, server_fetches=8
    )
    found = stage_times(given, sample_of(given, 197), readers, host_bytes_per_s=1e10)
    assert {name: float(x[0]) for name, x in found.items()} == pytest.approx({
        "workers": 200 * 9e-3 / 5,
        "cores": 1600 * 4e-3 / 32,
        "store": 3200 * 1e5 / 2e9,
        "server": 1600 * 1e5 / 1e9,
        "requests": 2 * 3200 / 5e3,
        "opens": 3200 / 1e4,
        "drives": 0.0,
        "host link": 200 * 6e5 / 1e10,
    })  # fmt: skip
    assert waiting_s(given, found, np.array([1.0])) == pytest.approx(1.28 - 1.0)


def test_every_stage_of_a_step_of_files_with_samples_behind_one_another() -> None:
    """24 ranks on three servers, half of which fetch; 7 images each, 4 to a file, read by 60 kB.

    One image: a quarter of 2 ms to open, 5/3 reads of 1 ms each, 100 kB at 80 MB/s, 4 ms of a core.
    """
    store = STORE | {"stream_bytes_per_s": 8e7}
    given = data(**IMAGES, samples_per_file=4, workers=3, cores=30, device_bytes=7e5, store=store)
    readers = Readers(
        samples=np.array([7.0]), ranks=24, server_ranks=8, fetches=12, server_fetches=4
    )
    sample = sample_of(given, 197)
    found = stage_times(given, sample, readers, host_bytes_per_s=2e9)
    one_s = 0.25 * 2e-3 + 5 / 3 * 1e-3 + 1e5 / 8e7 + 4e-3
    assert {name: float(x[0]) for name, x in found.items()} == pytest.approx({
        "workers": 7 * one_s / 3,
        "cores": 7 * 8 * 4e-3 / 30,
        "store": 7 * 12 * 1e5 / 2e9,
        "server": 7 * 4 * 1e5 / 1e9,
        "requests": 7 * 12 * 5 / 3 / 5e3,
        "opens": 7 * 12 * 0.25 / 1e4,
        "drives": 0.0,
        "host link": 7 * 7e5 / 2e9,
    })  # fmt: skip
    pageable = data(**IMAGES, device_bytes=7e5, pinned=False)
    fraction = float(load_usual().defaults.pageable_fraction)
    assert copy_s(pageable, readers, 2e9) == pytest.approx(7 * 7e5 / (2e9 * fraction))
    assert copy_s(given, readers, 2e9) == [0.0]
    assert stage_times(pageable, sample, readers, 2e9)["host link"] == [0.0]


@pytest.mark.parametrize("slowest", ["read", "server", "stream"])
def test_one_reader_takes_the_lowest_of_a_store_s_rates(slowest: str) -> None:
    rates = {f"{name}_bytes_per_s": 5e8 for name in ("read", "server", "stream")}
    rates[f"{slowest}_bytes_per_s"] = 2e8
    sample = sample_of(data(**IMAGES), 197)
    latency = {"first_byte_s": 3e-3, "request_bytes": 2e5, "open_s": 5e-3}
    store = data(store={**rates, **latency}).store
    assert isinstance(store, Store)
    assert read_s(sample, store) == pytest.approx(5e-3 + 3e-3 + 1e5 / 2e8)
    assert read_s(sample, None) == 0.0


def test_what_nobody_says_is_the_usual() -> None:
    """Sizes and rates of the profile, where a scenario has none."""
    usual = load_usual()
    images, text = sample_of(data(kind="images"), 197), sample_of(data(kind="tokens"), 100)
    assert images.stored_bytes == float(usual.sample_bytes["images"])
    decoder = data(kind="images").decoder
    assert images.core_s == images.worker_s == 1 / float(usual.decoders_per_s[decoder])
    assert text.stored_bytes == 100 * float(usual.bytes_per_token["tokens"])
    assert workers_of(data()) == float(usual.defaults.workers) and workers_of(data(workers=3)) == 3
    assert cores_of(data()) == float(usual.defaults.cores) and cores_of(data(cores=3)) == 3


def test_without_workers_what_others_take_longer_than_both_comes_on_top() -> None:
    """3 s between steps of 2 s; a store that needs 6 s has 1 s more to do."""
    stages = {"workers": np.array([3.0]), "store": np.array([6.0])}
    assert waiting_s(data(workers=0), stages, np.array([2.0])) == pytest.approx(3.0 + 1.0)
    assert waiting_s(data(workers=4), stages, np.array([2.0])) == pytest.approx(4.0)


def test_drives_of_every_server_are_its_own() -> None:
    given = data(**IMAGES, store={"read_bytes_per_s": 2e9, "per_server": True})
    readers = Readers(samples=np.array([200.0]), ranks=64, server_ranks=8, fetches=64,
                      server_fetches=8)  # fmt: skip
    found = stage_times(given, sample_of(given, 197), readers, host_bytes_per_s=1e10)
    assert found["store"] == pytest.approx(200 * 8 * 1e5 / 2e9)


def test_tokenizers_by_kind_and_threads() -> None:
    """8,192 tokens x 4.4 B at 2.7 MiB/s = 2.83e6 B/s; a quarter of it where written in Python."""
    fast, slow = (sample_of(data(kind="text", tokenizer=x), 8192) for x in ("fast", "slow"))
    four = sample_of(data(kind="text", tokenizer_threads=4), 8192)
    assert fast.core_s == pytest.approx(8192 * 4.4 / 2.83e6)
    assert slow.core_s / fast.core_s == pytest.approx(2.83e6 / 7.1e5)
    assert (four.worker_s, four.core_s) == pytest.approx((fast.core_s / 4, fast.core_s))
    assert sample_of(data(), 8192).core_s == 0.0


def test_small_files_are_opened_and_records_are_not() -> None:
    assert sample_of(data(**IMAGES), 197).opens == 1.0
    assert sample_of(data(**IMAGES, samples_per_file=1000), 197).opens == 1e-3
    assert sample_of(data(), 8192).opens == 0.0


# --- who reads ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("software", "ranks", "server_ranks"), [("megatron-lm-2022", 4, 2), ("torchtitan", 16, 8)]
)
def test_who_loads(software: str, ranks: float, server_ranks: float) -> None:
    """tp4 dp4 on two servers: in Megatron one rank of each group of four loads, else all do.

    Either way two replicas of a server fetch: the others find files in the page cache.
    """
    table = Layouts.of(tp=4, dp=4, global_batch=64)
    recipe = Recipe(sequence_length=4096, global_batch=64)
    work = Workload(architecture=presets.load("llama-3.1-8b"), recipe=recipe, data=data())
    found = supply_of(table, work, load_cluster("dgx-h100", 16), load_software(software))
    assert found is not None
    readers = found.readers
    assert (readers.ranks[0], readers.server_ranks[0]) == (ranks, server_ranks)
    assert (readers.fetches[0], readers.server_fetches[0], readers.samples[0]) == (4, 2, 16)


# --- in a step ----------------------------------------------------------------------------------


def step(given: DataInput | None, **training: Any) -> tuple[float, float, float]:
    """Step time, its term `input` and what of it is waiting."""
    recipe = Recipe(**{"sequence_length": 197, "global_batch": 2048, "tokens": 197e6, **training})
    work = Workload(architecture=presets.load("vit-large-16"), recipe=recipe, data=given)
    table = Layouts.of(dp=8, micro_batch=64, global_batch=2048)
    found = evaluate(table, work, load_cluster("dgx-a100", 8), load_software("torchtitan"))
    total = sum(float(x[0]) for x in found.terms_s.values())
    assert total == pytest.approx(float(found.step_time_s[0]), rel=1e-12)
    return float(found.step_time_s[0]), float(found.terms_s["input"][0]), float(found.waiting_s[0])


def test_a_step_is_as_long_as_its_slowest_stage() -> None:
    free_s, copies_s, none = step(None)
    assert none == 0.0
    needs = 256 * 9e-3 / 1  # images of a rank x 9 ms, one worker
    slow = data(**IMAGES, workers=1, store=STORE | {"requests_per_s": 1e9})
    whole_s, input_s, waits_s = step(slow)
    assert whole_s == pytest.approx(max(needs, free_s)) == pytest.approx(needs)
    assert (input_s, waits_s) == pytest.approx((copies_s + needs - free_s, needs - free_s))
    assert step(data(**IMAGES, workers=16)) == pytest.approx((free_s, copies_s, 0.0))


def test_pageable_copies_are_waited_for() -> None:
    """256 images x 602,112 B at half of the 24 GB/s... of the node's host link."""
    rate = float(load_cluster("dgx-a100", 8).node.host_bytes_per_s or 0.0)
    given = data(**IMAGES, workers=16, device_bytes=602112.0)
    pageable = data(**IMAGES, workers=16, device_bytes=602112.0, pinned=False)
    assert step(pageable)[2] - step(given)[2] == pytest.approx(256 * 602112 / (rate / 2))


def test_only_the_first_epoch_reads_from_the_store() -> None:
    """488.28 steps of 2,048 images; an epoch of 204,800 images is 100 of them."""
    store = {"read_bytes_per_s": 1e8}  # 2.048 s a step
    cold_s = step(data(**IMAGES, workers=16, store=store))[2]
    kept = data(**IMAGES, workers=16, store=store, samples=204800, local_copy=True)
    steps = 197e6 / (197 * 2048)
    assert step(kept)[2] == pytest.approx(cold_s * 100 / steps)
    assert step(kept, tokens=None)[2] == 0.0  # how many epochs nobody said: the later ones


def test_what_does_not_fit_on_the_drives_is_read_again() -> None:
    """Twice what the server's drives hold: a half of every later epoch comes from the store."""
    drives = load_cluster("dgx-a100", 8).node.nvme
    assert drives is not None
    twice = 2 * float(drives.capacity_bytes) / 1e5
    store = {"read_bytes_per_s": 1e8}
    free_s = step(None)[0]
    kept = data(**IMAGES, workers=16, store=store, samples=twice, local_copy=True)
    assert step(kept, tokens=None)[2] == pytest.approx(2.048 / 2 - free_s)


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"store": {"server_bytes_per_s": 1e9}}, "data.store.read_bytes_per_s: required: a store"),
        ({"store": {"read_bytes_per_s": 0}}, "data.store.read_bytes_per_s: must be above 0"),
        ({"store": "lustr"}, "data.store: unknown store 'lustr' (did you mean 'lustre'?)"),
        ({"store": 3}, "data.store: must be the name of a store or a table"),
        ({"store": {"name": "lustre", "opens_per_s": 0}}, "data.store.opens_per_s: must be above"),
        ({"kind": "records"}, "data.sample_bytes: required with kind = 'records'"),
        ({"local_copy": True}, "data.samples: required with local_copy"),
        ({"tokenizer": "slow", "tokenizer_threads": 4}, "data.tokenizer_threads: must be 1"),
        ({"workers": -1}, "data.workers: must be greater than or equal to 0, got -1"),
        ({"worker": 2}, "data.worker: unknown field (did you mean 'workers'?)"),
    ],
)  # fmt: skip
def test_bad_input_is_said_by_field(section: dict[str, Any], said: str) -> None:
    assert any(said in line for line in refused(section))


def test_every_problem_at_once() -> None:
    assert len(refused({"workers": -1, "store": {"read_bytes_per_s": 0}, "cores": 0})) == 3


def test_no_drives_keep_no_copies() -> None:
    name = next(
        name
        for name in catalogue.names("clusters")
        if load_cluster(name, 1).node.nvme is None
        and load_cluster(name, 1).accelerator.platform == "cuda"
    )
    found = refused({"local_copy": True, "samples": 10}, cluster={"name": name, "gpus": 1})
    assert any("has no local drives in its profile" in line for line in found)


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({"lengths": [10, 20], "length_shares": [0.5, 0.6]}, "must add up to 1, got 1.1"),
        ({"lengths": [10, 20], "length_shares": [1.0]}, "must have one share for each of the 2"),
        ({"length_shares": [1.0]}, "needs training.lengths"),
    ],
)
def test_a_distribution_of_lengths_adds_up_to_one(training: dict[str, Any], said: str) -> None:
    recipe = {"sequence_length": 4096, "global_batch": 256, **training}
    found = refused({}, training=recipe, model={"name": "llama-3.1-8b"})
    assert any(f"training.length_shares: {said}" in line for line in found)


def test_a_store_by_name_takes_rates_of_ones_own() -> None:
    found = data(store={"name": "lustre", "read_bytes_per_s": 7e9}).store
    assert isinstance(found, Store)
    assert (found.read_bytes_per_s, found.open_s) == (7e9, 2.3e-3)
    assert isinstance(found.open_s, Figure)
    assert found.open_s.grade == "measured"
