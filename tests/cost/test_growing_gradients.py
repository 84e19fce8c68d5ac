"""Gradients that are freed after every step, a loss in pieces, a step inside the backward pass.

Llama-3.2-3B as torchtune's README ladder trains it (validation/runs/test.csv, rows torchtune-002 to
-007: peak of the allocated memory, printed to 0.1 GiB or better); nothing is fitted.
"""

from dataclasses import replace
from typing import Any

import pytest

from simulator import catalogue
from simulator.cost.memory.moments import MOMENTS
from simulator.cost.step import Estimate, evaluate
from simulator.files import read_csv
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.measured.replay import load_tables, replay
from simulator.software.profile import Software, load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

TUNE, EAGER = load_software("torchtune-2024"), load_software("torchtune-2024-eager")
H, F, V, L, T = 3072, 8192, 128256, 28, 8192
PARAMETERS = 3_212_749_824
LAYER = 2 * (2 * H * H + 2 * H * 1024 + 3 * H * F + 2 * H)
GIB = 2**30
ALLOCATED = ("weights", "gradients", "optimizer", "activations", "loss", "temporaries", "workspace")


def run(software: Software = TUNE, batch: int = 2, layout: Any = None, **recipe: Any) -> Estimate:
    how = Recipe(sequence_length=4096, global_batch=batch, **recipe)
    work = Workload(architecture=presets.load("llama-3.2-3b"), recipe=how)
    table = Layouts.of(micro_batch=2, global_batch=batch, **(layout or {}))
    return evaluate(table, work, load_cluster("dgx-a100", 1), software)


def rows() -> dict[str, dict[str, str]]:
    table = read_csv(catalogue.folder("validation") / "runs" / "test.csv")
    return {row["run_id"]: row for _, row in table if row["source"] == "torchtune"}


@pytest.mark.parametrize("number", range(2, 8))
def test_measured_peaks(number: int) -> None:
    row = rows()[f"torchtune-{number:03d}"]
    made = replay(row, load_tables())
    found = evaluate(made.layout, made.workload, made.cluster, made.software).memory_bytes
    allocated = sum(float(found[kind][0]) for kind in ALLOCATED) / GIB
    assert allocated == pytest.approx(float(row["peak_memory_gib"]), rel=0.01)


def test_no_gradient_at_the_loss_of_a_single_micro_batch() -> None:
    found = run()
    assert MOMENTS[int(found.peak_moment[0])] == "loss and head"
    assert found.memory_bytes["gradients"][0] == 0.0


def test_several_micro_batches_keep_them() -> None:
    found = run(batch=4)
    assert found.memory_bytes["gradients"][0] == 2 * PARAMETERS


def test_the_end_of_the_backward_pass_has_all_but_a_block() -> None:
    found = run(layout={"recompute": "full"}, loss_chunks=8)
    assert MOMENTS[int(found.peak_moment[0])] == "end of the backward pass"
    assert found.memory_bytes["gradients"][0] == 2 * PARAMETERS - LAYER
    assert found.memory_bytes["activations"][0] == T * H * 2  # one block's input


def test_the_step_in_backward_leaves_no_more_than_head_or_block() -> None:
    found = run(layout={"recompute": "full"}, optimizer_in_backward=True)
    assert found.memory_bytes["gradients"][0] <= 2 * V * H
    core = replace(load_software("megatron-core"))
    kept, freed = (
        float(run(core, optimizer_in_backward=x).memory_bytes["gradients"][0])
        for x in (False, True)
    )
    assert (kept, freed) == (2 * PARAMETERS, 0.0)


@pytest.mark.parametrize("pieces", [2, 8, 64])
def test_a_compiled_loss_in_pieces(pieces: int) -> None:
    """16-bit logits, the gradient of a piece, the weight's gradient and its sum; norm and input."""
    logits = 2 * T * V
    norm = T * H * 2 + 4 * T
    expected = logits + logits / pieces + 2 * 2 * V * H + norm + T * H * 2 * (1 + 1 / pieces)
    assert run(loss_chunks=pieces).memory_bytes["loss"][0] == pytest.approx(expected, rel=1e-12)


def test_an_eager_loss_holds_three_fp32_logits() -> None:
    found = run().memory_bytes["loss"][0]
    assert found == pytest.approx(12 * T * V + 2 * T * H * 2 + 4 * T, rel=1e-12)


def test_pieces_of_a_fused_loss_change_its_weight_gradient_only() -> None:
    core = load_software("megatron-core")
    whole, pieces = (float(run(core, loss_chunks=n).memory_bytes["loss"][0]) for n in (1, 8))
    assert whole - pieces == T * H * 2 * (1 - 1 / 8) - 2 * V * H


def test_keys_and_values_repeated_for_every_head() -> None:
    once = replace(TUNE, kernels=replace(TUNE.kernels, repeats_keys=False))
    more = [float(run(x).memory_bytes["activations"][0]) for x in (once, TUNE)]
    assert more[1] - more[0] == L * T * 2 * (24 - 8) * 128 * 2


def test_an_eager_norm_keeps_fp32_copy_and_result() -> None:
    """2U and U, and the layer that follows its input U; four eager tensors of the MLP, not three.

    torchtune/modules/rms_norm.py as of 0.4: ``(x_fp32 * rsqrt(...)).type_as(x) * scale``.
    """
    found = float(run(EAGER).memory_bytes["activations"][0]) / L
    heads = 4 * T * H * 2 + 4 * T * 24  # queries, keys, values, result, log-sum-exp
    norms = 2 * (4 * T * H * 2 + 4 * T)
    assert found == pytest.approx(norms + heads + 4 * T * F * 2, rel=1e-9)
