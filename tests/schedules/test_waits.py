"""What passes wait for: small graphs by hand, and every schedule worked off level by level."""

import numpy as np
import pytest

from simulator.schedules.registry import SCHEDULES
from simulator.schedules.schedule import KINDS
from simulator.schedules.waits import waits

VPP = {word: schedule.fewest_chunks for word, schedule in SCHEDULES.items()}


def test_1f1b_of_two_ranks_by_hand() -> None:
    """Rank 0: F0 F1 B0 B1, rank 1: F0 B0 F1 B1, one level after the other:

    F0 | F1 and F0 | B0 | B0 and F1 | B1 | B1.
    """
    (graph,) = waits([("1f1b", 2, 2, 1)])
    runs = graph.operation[0] >= 0
    assert runs.tolist() == [
        *([True, False], [True, True], [False, True], [True, True], [False, True], [True, False])
    ]
    # what each rank waits for: level x 2 + rank
    first, second = graph.awaited[0, :, 0], graph.awaited[0, :, 1]
    assert first[runs[:, 0]].tolist() == [-1, -1, 2 * 2 + 1, 4 * 2 + 1]
    assert second[runs[:, 1]].tolist() == [0 * 2, 1 * 2 + 1, 1 * 2, 3 * 2 + 1]
    # of eight passes, two forward and two backward ones come from the other rank
    assert graph.hops.sum() == 4


def test_a_pair_sends_one_result_after_the_other() -> None:
    (graph,) = waits([("dualpipe_v", 4, 12, 2)])
    assert set(graph.hops.ravel().tolist()) == {0, 1, 2}


def test_graphs_drawn_together_are_those_drawn_alone() -> None:
    plans = [(word, 4, 8, VPP[word]) for word in SCHEDULES]
    together = waits(plans)
    for plan, graph in zip(plans, together, strict=True):
        (alone,) = waits([plan])
        assert alone.awaited.tolist() == graph.awaited.tolist()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_pass_is_above_all_that_it_waits_for(schedule: str) -> None:
    vpp = VPP[schedule]
    (graph,) = waits([(schedule, 4, 8, vpp)])
    _, levels, ranks = graph.operation.shape
    level = np.repeat(np.arange(levels), ranks)
    for awaited, operation in zip(graph.awaited, graph.operation, strict=True):
        waiting = awaited.ravel() >= 0
        earlier = awaited.ravel()[waiting]
        assert (level[earlier] < level[waiting]).all()
        assert (graph.operation[0].ravel()[earlier] >= 0).all()
        assert operation.max() < graph.operations
    assert graph.operations == 2 * len(KINDS) * 4 * SCHEDULES[schedule].chunks(vpp)
