"""Orders and micro-batches in flight against the action tables of torch.distributed.pipelining.

torch 2.13 lists wrong micro-batches for the last rank of its 1F1B, so that rank is left out.
"""

from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("torch")

from torch.distributed.pipelining import schedules
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops
from torch.distributed.pipelining.schedules import _ComputationType

from simulator.layout.stages import Stages, stages
from simulator.schedules.action_tables import Actions, actions, in_flight
from simulator.schedules.schedule import KINDS

INTERLEAVED = [(2, 2, 2), (2, 2, 4), (4, 2, 4), (4, 2, 8), (4, 3, 16), (8, 2, 16), (8, 4, 32)]


def live(schedule: str, pp: int, vpp: int, m: int) -> list[list[list[int]]]:
    """Per rank, after each action, the micro-batches that every chunk holds."""
    if vpp > 1:
        table = get_schedule_ops(schedule, pp, m, num_stages_per_rank=vpp, with_comms=False)
    else:
        table = get_schedule_ops(schedule, pp, m)
    ranks = []
    for row in table:
        held, moments = [0] * vpp, []
        for action in row:
            if action is None:
                continue
            change = {
                _ComputationType.FORWARD: 1,
                _ComputationType.FULL_BACKWARD: -1,
            }.get(action.computation_type, 0)
            held[action.stage_index // pp] += change
            moments.append(list(held))
        ranks.append(moments)
    return ranks


def ours(pp: int, vpp: int, m: int, layers: int) -> Stages:
    return stages(pp=pp, vpp=vpp, micro_batches=m, layer_kinds=[0] * layers, kinds=1)


@pytest.mark.parametrize(("pp", "m"), [(2, 2), (4, 4), (4, 8), (8, 16)])
def test_1f1b_holds_as_many_micro_batches(pp: int, m: int) -> None:
    in_flight = ours(pp, 1, m, pp).in_flight.tolist()
    for rank, moments in enumerate(live("1F1B", pp, 1, m)[:-1]):
        assert max(sum(held) for held in moments) == in_flight[rank]
    assert in_flight[-1] == 1


@pytest.mark.parametrize(("pp", "m"), [(4, 4), (4, 16)])
def test_gpipe_would_hold_them_all(pp: int, m: int) -> None:
    # what 1F1B saves: GPipe keeps every micro-batch, ours never more than the stages behind
    held = [max(sum(x) for x in moments) for moments in live("GPipe", pp, 1, m)]
    assert held == [m] * pp
    assert all(ours(pp, 1, m, pp).in_flight <= held)


@pytest.mark.parametrize(("pp", "vpp", "m"), INTERLEAVED)
def test_interleaved_ranks_hold_as_many_chunks(pp: int, vpp: int, m: int) -> None:
    table = ours(pp, vpp, m, pp * vpp)
    for rank, moments in enumerate(live("Interleaved1F1B", pp, vpp, m)):
        own = table.in_flight[table.rank == rank].tolist()
        assert max(sum(held) for held in moments) == sum(own)
        assert own in moments, "the chunks hold this many at one moment"


@pytest.mark.parametrize(("pp", "vpp", "m"), INTERLEAVED)
@pytest.mark.parametrize("extra", [1, 3, 7])
def test_uneven_chunks_hold_as_many_layers_on_the_fullest_rank(
    pp: int, vpp: int, m: int, extra: int
) -> None:
    table = ours(pp, vpp, m, 2 * pp * vpp + extra)
    theirs, mine = [], []
    for rank, moments in enumerate(live("Interleaved1F1B", pp, vpp, m)):
        layers = table.blocks[table.rank == rank, 0]
        theirs.append(max(int((np.array(held) * layers).sum()) for held in moments))
        mine.append(int((table.in_flight[table.rank == rank] * layers).sum()))
    assert max(mine) == max(theirs)
    # the last rank's first chunk may hold one more once its last chunk has gone back
    assert all(0 <= full - got <= layers.max() for full, got in zip(theirs, mine, strict=True))


@pytest.mark.parametrize(("pp", "vpp", "m"), INTERLEAVED)
def test_every_micro_batch_passes_every_chunk_once_each_way(pp: int, vpp: int, m: int) -> None:
    for moments in live("Interleaved1F1B", pp, vpp, m):
        assert len(moments) == 2 * m * vpp
        assert moments[-1] == [0] * vpp


# --- every schedule that torch has: order and activations -----------------------------------------

LETTERS = {
    _ComputationType.FORWARD: "F",
    _ComputationType.FULL_BACKWARD: "B",
    _ComputationType.BACKWARD_INPUT: "I",
    _ComputationType.BACKWARD_WEIGHT: "W",
}

NAMES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "looped_bfs": "LoopedBFS",
    "interleaved": "Interleaved1F1B",
    "interleaved_zb": "InterleavedZeroBubble",
    "zb_v": "ZBVZeroBubble",
    "dualpipe_v": "DualPipeV",
}

Step = tuple[str, int, int, bool]
"""Letter, piece of the model, micro-batch, and whether it overlaps the next one."""


def cases() -> Iterator[tuple[str, int, int, int]]:
    """Schedules, ranks, chunks and micro-batches: few, odd, many, also fewer than ranks."""
    for schedule in NAMES:
        looped = schedule in ("looped_bfs", "interleaved", "interleaved_zb")
        chunks = (2, 3) if looped else (2,) if schedule in ("zb_v", "dualpipe_v") else (1,)
        for vpp in chunks:
            for pp, m in ((2, 4), (3, 6), (4, 10), (4, 16), (5, 10), (8, 24)):
                yield schedule, pp, vpp, m
    yield from (("zb_v", 4, 2, 3), ("looped_bfs", 4, 2, 3), ("interleaved", 4, 2, 3))
    yield from (("interleaved_zb", 4, 2, 3), ("interleaved_zb", 8, 3, 5))


def listed(schedule: str, pp: int, vpp: int, m: int) -> list[list[Step]]:
    """What torch lists for every rank, idle slots left out and overlapped pairs spelt out."""
    more = {"num_stages_per_rank": vpp} if vpp > 1 else {}
    ranks = []
    for row in get_schedule_ops(NAMES[schedule], pp, m, **more):
        steps: list[Step] = []
        for action in row:
            pair = [] if action is None else action.sub_actions or [action]
            for index, one in enumerate(pair):
                if letter := LETTERS.get(one.computation_type):
                    joined = index < len(pair) - 1
                    steps.append((letter, one.stage_index, one.microbatch_index, joined))
        ranks.append(steps)
    return ranks


def spelt(table: Actions, pp: int) -> list[list[Step]]:
    ranks: list[list[Step]] = [[] for _ in range(pp)]
    columns = (table.rank, table.kind, table.piece, table.micro_batch, table.with_next)
    for rank, kind, piece, batch, pair in zip(*(x.tolist() for x in columns), strict=True):
        ranks[rank].append((KINDS[kind], piece, batch, pair))
    return ranks


def test_every_schedule_of_torch_is_compared() -> None:
    """Schedules that torch could build by name, less the two base classes among them."""
    bases = (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti)
    classes = {
        name
        for name, kind in vars(schedules).items()
        if isinstance(kind, type) and issubclass(kind, bases) and not name.startswith("_")
    } - {base.__name__ for base in bases}
    assert classes == {f"Schedule{name}" for name in NAMES.values()}
    assert all(schedules.get_schedule_class(name) for name in NAMES.values())


@pytest.mark.parametrize(("pp", "m"), [(2, 4), (4, 6)])
def test_last_rank_of_1f1b_alternates(pp: int, m: int) -> None:
    """What torch's own listing gets wrong: it runs every micro-batch forward, then backward."""
    last = spelt(actions("1f1b", pp, m, 1), pp)[-1]
    expected = [(way, pp - 1, batch, False) for batch in range(m) for way in "FB"]
    assert last == expected
    assert listed("1f1b", pp, 1, m)[-1] != expected, "torch has mended its listing: compare it too"


@pytest.mark.parametrize(("schedule", "pp", "vpp", "m"), list(cases()))
def test_order_of_work_and_chunks_in_flight_are_torchs(
    schedule: str, pp: int, vpp: int, m: int
) -> None:
    ours, theirs = spelt(actions(schedule, pp, m, vpp), pp), listed(schedule, pp, vpp, m)
    right = pp - 1 if schedule == "1f1b" else pp
    assert ours[:right] == theirs[:right]
    counted = in_flight(schedule, pp, m, vpp).sum(axis=1).tolist()
    for steps, most in zip(theirs[:right], counted[:right], strict=True):
        change = [(letter == "F") - (letter in "BW") for letter, *_ in steps]
        assert most == max(np.cumsum(change))
