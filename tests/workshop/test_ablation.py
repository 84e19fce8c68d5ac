"""The ablation: altered records against arithmetic, laws from step to step, figures by hand."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from simulator import catalogue
from simulator.cost.collectives.calls import all_gather_s, all_reduce_s, all_to_all_s, send_s
from simulator.files import read_csv
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.layout.placement import Group
from simulator.measured.rows import MeasuredRun
from simulator.scoring.baselines import shipped_baseline
from simulator.scoring.scores import ScoredRow
from tests.flat_kernels import gemm_s
from workshop.cases.ablation import (
    STEPS,
    ablation,
    neutral_software,
    step_figures,
    without_network,
    without_tiles,
)

RUNS = catalogue.folder("validation") / "runs"
ROWS = {row["run_id"]: row for _, row in read_csv(RUNS / "test.csv")}
GPT = ROWS["korthikanti22-t5-003"] | {"vpp": "1"}  # 175B: tp 8, pp 8, 64 GPUs


def scored(predicted_s: float = 1.0, measured_s: float = 1.0, **words: str) -> ScoredRow:
    run = MeasuredRun(where="runs.csv: line 2", fields={**GPT, **words})
    return ScoredRow(run=run, status="ok", predicted_step_s=predicted_s, measured_step_s=measured_s)


def steps_s(**words: str) -> dict[str, float]:
    found = ablation([scored(**words)], shipped_baseline())
    return {name: rows[0].predicted_step_s or 0.0 for name, rows in found.items()}


# --- altered records ---------------------------------------------------------------------


def product_s(cluster: Cluster, m: int, n: int, k: int) -> float:
    """Seconds of one bf16 product on the cluster's device."""
    device = cluster.accelerator
    kernel = device.gemm["cublas"]["bf16"]
    seconds = gemm_s(
        m=m,
        n=n,
        k=k,
        operand_bytes=2.0,
        result_bytes=2.0,
        compute_units=device.compute_units,
        peak_flop_per_s=float(device.matrix_flop_per_s["bf16"]),
        bandwidth_bytes_per_s=float(device.memory.bandwidth_bytes_per_s),
        l2_bytes=float(device.memory.l2_bytes),
        **{field.name: float(getattr(kernel, field.name)) for field in fields(kernel)},
    )
    return float(seconds)


def test_a_device_without_tiles_is_a_roofline() -> None:
    real = load_cluster("dgx-a100", 8)
    plain = without_tiles(real)
    kernel = real.accelerator.gemm["cublas"]["bf16"]
    rate = 312e12 * kernel.peak_fraction * kernel.training_fraction
    # 4096^3: compute takes 13 times as long as its 100 MB, which the fourth-power mean hides
    assert product_s(plain, 4096, 4096, 4096) == pytest.approx(2 * 4096**3 / rate, rel=1e-3)
    # 129 tiles of 128 x 128 on 108 units do not fill two waves, whatever tile is taken instead
    assert product_s(real, 128 * 129, 128, 8192) > product_s(plain, 128 * 129, 128, 8192)
    # one row: the weights' traffic, at the burst clock, since the units wait for it
    traffic = 2 * (4096 * 4096 + 2 * 4096) / (2.039e12 * kernel.memory_fraction)
    assert product_s(plain, 1, 4096, 4096) == pytest.approx(traffic, rel=0.05)


def test_a_cluster_without_a_network_communicates_in_no_time() -> None:
    free = without_network(load_cluster("dgx-a100", 64))
    group = Group(size=np.array([2, 8, 64]), local=np.array([2, 8, 8]))
    for seconds in (all_gather_s, all_reduce_s, all_to_all_s):
        assert seconds(free, 1e9, group).max() < 1e-12
    assert send_s(free, 1e9, np.array([False, True])).max() < 1e-12
    assert free.gpus == 64
    assert free.domain == 8


def test_the_neutral_software_neither_overlaps_nor_waits_for_its_host() -> None:
    software = neutral_software()
    overlap = {
        field.name: getattr(software.overlap, field.name) for field in fields(software.overlap)
    }
    assert overlap.pop("tensor") == "none"
    assert {value for value in overlap.values() if isinstance(value, bool)} == {False}
    assert software.host.seconds_per_kernel == 0.0


# --- from step to step -------------------------------------------------------------------


def test_the_first_and_the_last_step_are_the_baseline_and_the_whole_model() -> None:
    row = scored(predicted_s=21.5)
    found = ablation([row], shipped_baseline())
    assert list(found) == list(STEPS)
    assert found["constant efficiency"][0].predicted_step_s == shipped_baseline().predict_s(row.run)
    assert found["+ software"][0] == row


def test_one_gpu_has_neither_network_nor_schedule() -> None:
    one = {"num_gpus": "1", "dp": "1", "tp": "1", "pp": "1", "layers": "2", "global_batch": "4"}
    found = steps_s(**one, sequence_parallel="false", sharding="ddp")
    assert found["roofline"] < found["+ tiles and waves"]
    waiting = [found[name] for name in ("+ collectives", "+ schedule", "+ overlap")]
    assert waiting == pytest.approx([found["+ tiles and waves"]] * 3, rel=1e-9)


def test_collectives_and_schedule_add_time() -> None:
    found = steps_s()
    assert found["+ tiles and waves"] < found["+ collectives"] < found["+ schedule"]


def test_the_schedule_adds_the_bubble_of_gpipe() -> None:
    # Eight equal stages and 64 micro-batches wait (8 - 1) / 64 of the work. Embedding and head are
    # next to nothing with a vocabulary of 1024, the optimizer next to nothing beside 64 batches.
    found = steps_s(vocab="1024", tp="1", num_gpus="8", sequence_parallel="false")
    assert found["+ schedule"] / found["+ collectives"] == pytest.approx(1 + 7 / 64, abs=0.006)


def test_overlap_is_the_runs_own() -> None:
    # without a pipeline, where a slowed backward pass makes no other rank wait
    many = {"dp": "64", "pp": "1", "num_gpus": "512", "global_batch": "64"}
    shown = steps_s(**many, overlap_grad_reduce="false")
    hidden = steps_s(**many, overlap_grad_reduce="true")
    assert hidden["+ schedule"] == shown["+ schedule"]
    assert hidden["+ overlap"] < shown["+ overlap"] <= shown["+ schedule"]


def test_rows_are_worth_the_same_alone_and_together() -> None:
    rows = [scored(), scored(recompute="none"), scored(dp="2", num_gpus="128", global_batch="128")]
    together = ablation(rows, shipped_baseline())
    for i, row in enumerate(rows):
        alone = ablation([row], shipped_baseline())
        for name in STEPS:
            expected = alone[name][0].predicted_step_s
            assert together[name][i].predicted_step_s == pytest.approx(expected, rel=1e-12)


# --- figures -----------------------------------------------------------------------------


def test_figures_by_hand() -> None:
    experts = {"num_experts": "8", "model": "moe"}
    rows = [
        scored(1.1),
        scored(0.7),
        scored(0.9, **experts),
        scored(1.5, split="calibrate"),
        scored(5.0, composed="true"),
    ]
    found = step_figures(rows)
    test, calibrate = found["test"], found["calibrate"]
    assert test["n"] == 3
    assert test["mape"] == pytest.approx(0.5 / 3)
    assert test["bias"] == pytest.approx(-0.1)
    assert (test["dense"], test["moe"]) == (pytest.approx(0.2), pytest.approx(0.1))
    assert (calibrate["mape"], calibrate["moe"]) == (0.5, None)
    assert test["median_tau"] is None


def test_rankings_by_hand() -> None:
    # Five layouts, measured 1.0 to 1.4; the two fastest are called the wrong way round.
    guesses = (1.1, 1.0, 1.2, 1.3, 1.4)
    rows = [scored(guess, 1.0 + i / 10, micro_batch=str(2**i)) for i, guess in enumerate(guesses)]
    test = step_figures(rows)["test"]
    assert (test["groups"], test["median_tau"]) == (1, pytest.approx(0.8))
    assert test["median_regret"] == pytest.approx(0.1)
