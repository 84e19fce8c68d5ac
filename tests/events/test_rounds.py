"""Interleaved schedules whose micro-batches are no multiple of the ranks: rounds as torch's."""

from dataclasses import replace

import numpy as np
import pytest

from simulator.api import predict
from simulator.cost.step import evaluate
from simulator.events.engine.engine import longest_path
from simulator.events.simulated_step import simulate
from simulator.events.step.programs import program, step_graph
from simulator.hardware.cluster import load_cluster
from simulator.interop.exporting import launch_flags
from simulator.layout.layouts import Layouts
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

LLAMA = presets.load("llama-3.1-8b")


@pytest.mark.parametrize(("pp", "v", "m"), [(2, 2, 1), (4, 2, 1), (4, 2, 2), (4, 3, 2), (8, 4, 5)])
def test_fewer_micro_batches_than_ranks_pass_all_pieces_one_behind_the_other(
    pp: int, v: int, m: int
) -> None:
    """Worked by hand: the first takes v p pieces of 1 s there and 2 s back, the others follow."""
    step = step_graph(program("interleaved", pp, m, v), np.broadcast_to([1.0, 2, 0, 0], (pp, v, 4)))
    assert longest_path(step.graph).makespan_s == (v * pp - 1 + m) * 3.0


@pytest.mark.parametrize(("pp", "v", "m"), [(4, 2, 6), (4, 2, 7), (4, 3, 10), (8, 2, 36)])
def test_longer_rounds_leave_the_bubble_of_short_ones(pp: int, v: int, m: int) -> None:
    """Narayanan et al. 2021: (p - 1)(F + B) / v."""
    step = step_graph(program("interleaved", pp, m, v), np.broadcast_to([1.0, 2, 0, 0], (pp, v, 4)))
    assert longest_path(step.graph).makespan_s == (m * v + pp - 1) * 3.0


@pytest.mark.parametrize(
    ("pp", "v", "m"),
    [(4, 2, 1), (4, 2, 2), (4, 3, 2), (8, 2, 6), (4, 2, 6), (4, 3, 10), (8, 2, 36)],
)
@pytest.mark.parametrize("even", [True, False])
def test_closed_form_and_events_agree(pp: int, v: int, m: int, even: bool) -> None:
    """Stages alike, and Llama 70B with its embedding and head on the ends."""
    tp, arch = (1, LLAMA) if even else (4, presets.load("llama-3.1-70b"))
    if even:
        arch = replace(arch, vocabulary=128, layer_kinds=(0,) * (8 * pp * v))
    table = Layouts.of(
        pp=pp, vpp=v, tp=tp, schedule="interleaved", global_batch=m, sharding="zero2"
    )
    work = Workload(architecture=arch, recipe=Recipe(sequence_length=4096, global_batch=m))
    setting = table, work, load_cluster("dgx-h100", pp * tp), load_software("torchtitan")
    assert reasons(*setting)[0] == FEASIBLE
    closed, played = evaluate(*setting), simulate(*setting)
    within = 0.004 if even else 0.03
    assert played.step_time_s == pytest.approx(float(closed.step_time_s[0]), rel=within)


def test_megatron_is_told_the_length_of_its_rounds() -> None:
    names = {"model": "llama-3.1-8b", "cluster": "dgx-h100", "gpus": 8, "pp": 4, "vpp": 2}
    for batch, said in ((12, True), (16, False)):
        found = predict(**names, schedule="interleaved", global_batch=batch)
        text = launch_flags(found.estimate.layouts, found.scenario)
        assert ("--microbatch-group-size-per-virtual-pipeline-stage 6" in text) == said
