"""What a reading of memory shows by when and where it was taken, counted by hand."""

from __future__ import annotations

import pytest

from simulator import catalogue
from simulator.cost.step import evaluate
from simulator.files import read_csv
from simulator.measured.replay import NotReplayable, load_tables, replay
from simulator.measured.rows import with_sizes
from simulator.scoring.memory_reading import read_gib
from simulator.units import GIB

ROWS = {
    row["run_id"]: row
    for _, row in read_csv(catalogue.folder("validation") / "runs" / "second_memory.csv")
}


def read(name: str, **fields: str) -> float:
    row = with_sizes(ROWS[name]) | fields
    run = replay(row, load_tables())
    estimate = evaluate(run.layout, run.workload, run.cluster, run.software)
    return read_gib(row, run, estimate, 0, row["memory_kind"])


def test_a_reading_after_the_first_step_has_moments_without_activations() -> None:
    """Llama-2-7B, four layers and the head on the last of 8 stages: 18 bytes a parameter.

    MindSpeed's baseline reads 15.83 GiB after the step and 16.32 at most: the step makes an fp32
    tensor as large as the table. Activations of four layers, some 3 GiB, came before the moments.
    """
    layer = 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    parameters = 4 * layer + 32000 * 4096 + 4096
    last, table = {"memory_stage": "last"}, 32000 * 4096
    by_hand = (18 * parameters + 4 * table) / GIB
    assert read("mindspeed-ci-032", **last) == pytest.approx(by_hand, rel=1e-3)
    assert by_hand == pytest.approx(16.3229, rel=5e-3)
    assert read("mindspeed-ci-032", memory_read="", **last) > 18 * parameters / GIB + 2


def test_a_step_makes_no_more_of_a_tensor_than_the_rank_updates() -> None:
    """Readings of GLM-4 on 2 x 2 x 2 and of Phi-3.5 over 8 stages.

    The former updates half of the last stage, less than its table has (0.77 GiB beside what lasts);
    16 experts' gate and up of the latter are one tensor under one kernel (3.13 GiB).
    """
    assert read("mindspeed-ci-050") == pytest.approx(5.40, rel=5e-3)
    assert read("mindspeed-ci-035") == pytest.approx(27.19, rel=5e-3)


def test_a_first_step_whose_activations_outgrow_the_moments_is_read_at_its_loss() -> None:
    """32k tokens of a small model: moments take a tenth of a GiB, and come after the loss."""
    first, usual = (read("mindspeed-ci-020", memory_read=word) for word in ("first_step", ""))
    assert usual - 0.3 < first < usual


def test_optimizer_states_that_the_software_cannot_keep_away_are_refused() -> None:
    with pytest.raises(NotReplayable, match="offload"):
        read("mindspeed-ci-107")
