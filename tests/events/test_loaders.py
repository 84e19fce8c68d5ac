"""Loaders batch by batch: against the closed form, and against processes in simpy."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import simpy

from simulator.api import predict, simulate
from simulator.events.simulated_step import Loaders, play_loaders
from simulator.planner.input_verdict import input_verdict

VIT: dict[str, Any] = {
    "model": {"name": "vit-large-16"},
    "training": {"sequence_length": 197, "global_batch": 1024},
    "cluster": {"name": "dgx-a100", "gpus": 8, "software": "torchtitan"},
    "layout": {"micro_batch": 64, "sharding": "zero2"},
}


def write(path: Any, data: dict[str, Any]) -> str:
    lines = []
    for section, fields in {**VIT, "data": data}.items():
        lines += [f"[{section}]"]
        lines += [f"{k} = {str(v).lower() if isinstance(v, bool) else repr(v)}"
                  for k, v in fields.items()]  # fmt: skip
    path.write_text("\n".join(lines))
    return str(path)


def in_simpy(took: np.ndarray, workers: int, prefetch: int, compute_s: float) -> list[float]:
    """One rank: a process for every worker, a queue of what is asked for, batches in order."""
    env, count = simpy.Environment(), len(took)
    asked = [simpy.Store(env) for _ in range(workers)]
    ready = [env.event() for _ in range(count)]
    waits: list[float] = []

    def worker(own: simpy.Store) -> Any:
        while True:
            i = yield own.get()
            yield env.timeout(float(took[i]))
            ready[i].succeed()

    def rank() -> Any:
        for i in range(min(workers * prefetch, count)):
            asked[i % workers].put(i)
        for i in range(count):
            began = env.now
            yield ready[i]
            waits.append(env.now - began)
            if (later := i + workers * prefetch) < count:
                asked[later % workers].put(later)
            yield env.timeout(compute_s)

    for own in asked:
        env.process(worker(own))
    env.process(rank())
    env.run()
    return waits


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (1, 4), (3, 1), (4, 2)])
@pytest.mark.parametrize("spread", [0.0, 0.6])
def test_as_processes_in_simpy(workers: int, prefetch: int, spread: float) -> None:
    own = Loaders(workers=workers, prefetch=prefetch, batch_s=3.0, spread=spread, ranks=1)
    draw = np.random.default_rng(7).standard_normal((60, 1))
    took = 3.0 * np.exp(spread * draw - spread**2 / 2.0)
    found = play_loaders(own, 1.0, 60, seed=7)
    assert found.tolist() == pytest.approx(in_simpy(took[:, 0], workers, prefetch, 1.0), abs=1e-9)


def test_a_longer_queue_smooths_what_varies_and_more_ranks_wait_longer() -> None:
    def mean(**given: Any) -> float:
        made = {"workers": 4, "prefetch": 2, "batch_s": 3.6, "spread": 0.6, "ranks": 8, **given}
        return float(play_loaders(Loaders(**made), 1.0, 4000, seed=3)[400:].mean())

    queues = [mean(prefetch=ahead) for ahead in (1, 2, 8, 32)]
    assert all(later < sooner for sooner, later in pairwise(queues))
    assert mean(ranks=1) < mean(ranks=8) < mean(ranks=64)
    assert mean(spread=0.0) == 0.0


@pytest.mark.parametrize("workers", [0, 1, 8])
def test_a_played_step_is_that_of_the_closed_form(tmp_path: Any, workers: int) -> None:
    path = write(tmp_path / "a.toml", {"kind": "images", "workers": workers, "prepare_s": 2e-3})
    played, closed = simulate(path), predict(path)
    assert played.step_time_s == pytest.approx(closed.step_time_s, rel=2e-3)
    assert played.terms_s["input"] == pytest.approx(
        float(closed.estimate.terms_s["input"][0]), rel=2e-3, abs=1e-6
    )
    assert sum(played.terms_s.values()) == pytest.approx(played.step_time_s)
    assert sum(played.critical_share.values()) == pytest.approx(1.0)


def test_times_that_vary_let_ranks_wait_where_the_mean_would_not(tmp_path: Any) -> None:
    """Eight workers need 0.11 s for a step of 0.5 s; with three of them and a spread some wait."""
    given = {"kind": "images", "workers": 1, "prepare_s": 2.2e-3, "spread": 1.0}
    found = simulate(write(tmp_path / "a.toml", given))
    steady = simulate(write(tmp_path / "b.toml", {**given, "spread": 0.0}))
    assert found.loading is not None
    assert steady.loading is not None
    assert found.loading.waiting_s > steady.loading.waiting_s
    assert found.loading.waiting_p90_s > found.loading.waiting_s


def test_without_workers_all_wait_for_the_slowest_of_the_ranks() -> None:
    """The largest of 8 normal draws is 1.4236 in the mean (Teichroew 1956), of one it is 0."""
    for ranks, largest, varies in ((1, 0.0, 1.0), (8, 1.4236, 0.3729)):
        alone = Loaders(workers=0, prefetch=2, batch_s=2.0, spread=0.1, ranks=ranks)
        waits = play_loaders(alone, 1.0, 20_000)
        middle = np.log(2.0) - 0.1**2 / 2 + 0.1 * largest
        assert np.log(waits).mean() == pytest.approx(middle, abs=0.002)
        assert np.log(waits).var() == pytest.approx(0.1**2 * varies, rel=0.05)


# --- the verdict --------------------------------------------------------------------------------


def test_what_would_end_the_waiting_ends_it(tmp_path: Any) -> None:
    """Each need of the verdict, given, leaves nothing to wait for; one less does not."""
    data = {"kind": "images", "workers": 1, "prepare_s": 6e-3}
    found = predict(write(tmp_path / "a.toml", data))
    verdict = input_verdict(found.scenario, found.estimate)
    assert verdict is not None
    assert verdict.sentence().startswith("the GPUs wait ")
    (need,) = verdict.needs
    assert (need.what, need.now) == ("workers", 1.0)
    for workers, waits in ((int(need.needed), False), (int(need.needed) - 1, True)):
        again = predict(write(tmp_path / "b.toml", {**data, "workers": workers}))
        assert bool(again.estimate.waiting_s[0] > 0.0) == waits


def test_workers_are_counted_by_the_epoch_that_reads_from_the_store(tmp_path: Any) -> None:
    """128 images of a rank a step, of 114,660 B at 4 MB/s each, until the drives have them all."""
    data = {
        "kind": "images",
        "workers": 2,
        "prepare_s": 1e-4,
        "samples": 100_000,
        "local_copy": True,
    }
    path = tmp_path / "a.toml"
    base = write(path, data)
    store = "\n[data.store]\nread_bytes_per_s = 1e12\nstream_bytes_per_s = 4e6\n"
    twice = "global_batch = 1024\ntokens = 39_400_000"  # 200,000 images: every one twice
    path.write_text(path.read_text().replace("global_batch = 1024", twice) + store)
    found = predict(base)
    verdict = input_verdict(found.scenario, found.estimate)
    assert verdict is not None and verdict.first_epoch_share == pytest.approx(0.5, rel=0.02)
    step_s = found.step_time_s - verdict.waiting_s
    need = next(need for need in verdict.needs if need.what == "workers")
    assert need.needed == math.ceil(128 * (114_660 / 4e6 + 1e-4) / step_s)


def test_words_of_the_verdict(tmp_path: Any) -> None:
    """128 images of a rank a step: 8 x 128 x 114,660 B at 100 MB/s take 1.17 s."""
    path = tmp_path / "a.toml"
    base = write(path, {"kind": "images", "workers": 16})
    path.write_text(path.read_text() + "\n[data.store]\nread_bytes_per_s = 1e8\n")
    found = predict(base)
    verdict = input_verdict(found.scenario, found.estimate)
    assert verdict is not None
    step_s = found.step_time_s - verdict.waiting_s
    assert found.step_time_s == pytest.approx(8 * 128 * 114660 / 1e8)
    rate = 8 * 128 * 114660 / step_s
    share = 100 * (1.0 - step_s / found.step_time_s)
    assert verdict.sentence() == (
        f"the GPUs wait {share:.1f} % of the time: {rate / 1e6:.3g} MB/s from the store would end"
        " it"
    )
    assert verdict.document()["would_end_it"] == [
        {"what": "store", "needed": pytest.approx(rate), "now": 1e8}
    ]
    path.write_text(path.read_text().replace("= 1e8", f"= {rate / 0.9}"))
    kept = predict(base)
    spare = input_verdict(kept.scenario, kept.estimate)
    assert spare is not None
    assert spare.sentence() == (
        "input keeps up: nothing waits; its slowest stage (store) is busy 90.0 % of the time"
    )
