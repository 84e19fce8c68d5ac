"""Zero-bubble steps without a barrier between them (Qi et al. 2024, section 4)."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.step import evaluate
from simulator.errors import InputError
from simulator.events.engine.engine import longest_path
from simulator.events.simulated_step import simulate
from simulator.events.step.programs import program, repeated, step_graph
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.planner.prediction import predict
from simulator.scenario import make_scenario
from simulator.schedules.registry import WORDS
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Recipe, Workload

CORE = load_software("megatron-core")
FORK = replace(CORE, supports=replace(CORE.supports, schedules=WORDS, post_validation=True))
LLAMA = presets.load("llama-3.1-8b")


def period(schedule: str, pp: int, m: int, passes: tuple[float, float, float]) -> float:
    """Seconds from the end of one step to that of the next, played three times over."""
    one = program(schedule, pp, m, 2 if schedule == "zb_v" else 1)
    f, i, w = (x / one.chunks for x in passes)
    step = step_graph(repeated(one, 3), np.broadcast_to([f, i + w, i, w], (pp, one.chunks, 4)))
    ends = longest_path(step.graph, step.name).end_s[step.task_of_action]
    of_step = step.program.micro_batch // m
    return float(ends[of_step == 2].max() - ends[of_step == 1].max())


def test_two_ranks_of_zb_h2_leave_no_gap_from_step_to_step() -> None:
    """Passes of 1 s, 2 ranks, 3 micro-batches, worked out by hand.

    Rank 0: F0 F1 F2 I0 . . is F 0-3, I0 3-4 (after rank 1: F0 1-2, I0 2-3) and so on without a
    gap: 9 s. Rank 1 begins 1 s later and works 9 s: with a barrier a step takes 10 s.
    """
    one = program("zb_h2", 2, 3)
    step = step_graph(one, np.broadcast_to([1.0, 2.0, 1.0, 1.0], (2, 1, 4)))
    times = longest_path(step.graph, step.name)
    assert times.makespan_s == 10.0
    at = times.end_s[step.task_of_action]
    assert [at[one.rank == rank].max() for rank in (0, 1)] == [9.0, 10.0]
    assert period("zb_h2", 2, 3, (1.0, 1.0, 1.0)) == 9.0


@pytest.mark.parametrize("pp", [2, 4, 8])
@pytest.mark.parametrize("passes", [(1.0, 1.0, 1.0), (1.0, 1.2, 0.9), (0.8, 0.8, 0.5)])
def test_bubbles_are_those_of_the_papers_table(pp: int, passes: tuple[float, float, float]) -> None:
    """Qi et al. 2023, table 2: (p - 1)(F + I - W) for H1, (p - 1)(F + I - 2 W) for H2."""
    m, (f, i, w) = 3 * pp, passes
    work = m * sum(passes)
    assert period("zb_h1", pp, m, passes) - work == pytest.approx((pp - 1) * (f + i - w))
    assert period("zb_h2", pp, m, passes) - work == pytest.approx((pp - 1) * (f + i - 2 * w))
    if f == i == w:  # the paper's case for ZB-V
        assert period("zb_v", pp, m, passes) == pytest.approx(work)


def setting(schedule: str, **layout: Any) -> tuple[Any, ...]:
    vpp = 2 if schedule in ("zb_v", "interleaved_zb") else 1
    given = {"pp": 4, "vpp": vpp, "global_batch": 16, **layout}
    table = Layouts.of(schedule=schedule, **given)
    recipe = Recipe(
        sequence_length=4096, global_batch=given["global_batch"], optimizer_post_validation=True
    )
    work = Workload(architecture=even_stages(given["pp"] * vpp), recipe=recipe)
    return table, work, load_cluster("dgx-h100", int(table.world[0])), FORK


def even_stages(pieces: int) -> Architecture:
    """Many blocks and a small vocabulary: stages equal to a thousandth."""
    return replace(LLAMA, vocabulary=128, layer_kinds=(0,) * (8 * pieces))


def with_barrier(given: tuple[Any, ...]) -> tuple[Any, ...]:
    recipe = replace(given[1].recipe, optimizer_post_validation=False)
    return given[0], replace(given[1], recipe=recipe), *given[2:]


@pytest.mark.parametrize("pp", [4, 8])
@pytest.mark.parametrize("schedule", ["zb_h1", "zb_h2", "zb_v", "interleaved_zb"])
def test_closed_form_and_events_agree(schedule: str, pp: int) -> None:
    given = setting(schedule, pp=pp, global_batch=4 * pp)
    closed, played = evaluate(*given), simulate(*given)
    assert played.step_time_s == pytest.approx(float(closed.step_time_s[0]), rel=0.01)
    assert sum(played.terms_s.values()) == pytest.approx(played.step_time_s)
    total = sum(float(seconds[0]) for seconds in closed.terms_s.values())
    assert total == pytest.approx(float(closed.step_time_s[0]))
    for term in ("gemm", "optimizer"):
        assert played.terms_s[term] == pytest.approx(float(closed.terms_s[term][0]))


@pytest.mark.parametrize("schedule", ["zb_h2", "zb_v"])
def test_unequal_stages_agree_within_two_percent(schedule: str) -> None:
    """The last stage has the head of 128,256 words: it paces the others."""
    table, work, cluster, software = setting(schedule)
    own = replace(work, architecture=LLAMA)
    closed, played = (f(table, own, cluster, software) for f in (evaluate, simulate))
    assert played.step_time_s == pytest.approx(float(closed.step_time_s[0]), rel=0.02)


@pytest.mark.parametrize("schedule", ["zb_h2", "zb_v"])
def test_what_lies_askew_gains_and_the_rest_does_not(schedule: str) -> None:
    given = setting(schedule)
    early, late = (simulate(*x).step_time_s for x in (given, with_barrier(given)))
    assert early < 0.995 * late
    early, late = (float(evaluate(*x).step_time_s[0]) for x in (given, with_barrier(given)))
    assert early < 0.995 * late
    given = setting("zb_h1")
    assert simulate(*given).step_time_s == pytest.approx(simulate(*with_barrier(given)).step_time_s)
    assert evaluate(*given).step_time_s == evaluate(*with_barrier(given)).step_time_s


def test_a_table_tells_no_period() -> None:
    given = setting("zb_h2")
    with pytest.raises(InputError, match="optimizer_post_validation"):
        simulate(*given, table=program("zb_h2", 4, 16))


@pytest.mark.parametrize(
    ("software", "schedule", "words"),
    [
        (FORK, "1f1b", "layout.schedule: must be one of zb_h1, zb_h2, zb_v, interleaved_zb"),
        (FORK, "dualpipe_v", "layout.schedule: must be one of zb_h1, zb_h2, zb_v, interleaved_zb"),
        (CORE, "1f1b", "training.optimizer_post_validation: must be false: megatron-core waits"),
    ],
)
def test_where_it_means_nothing_it_is_refused(software: Any, schedule: str, words: str) -> None:
    document = {
        "model": {"name": "llama-3.1-8b"},
        "training": {
            "sequence_length": 4096,
            "global_batch": 32,
            "optimizer_post_validation": True,
        },
        "cluster": {"name": "dgx-h100", "gpus": 8, "software": "megatron-core"},
        "layout": {"pp": 4, "dp": 2, "schedule": schedule, "vpp": 1 + (schedule != "1f1b")},
    }
    scenario = replace(make_scenario(document, where="plan.toml"), software=software)
    with pytest.raises(InputError) as error:
        predict(scenario)
    assert words in str(error.value)
