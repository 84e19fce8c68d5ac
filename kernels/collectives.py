"""Time collectives: NCCL on GPUs, gloo on CPUs, in sub-groups of any size and stride.

    python collectives.py --ranks 2                                   # starts 2 ranks itself
    torchrun --nproc-per-node 8 collectives.py --groups 8,4,2         # one node
    torchrun --nproc-per-node 8 collectives.py --groups 2 --stride 4  # ranks 0 4, 1 5, 2 6, 3 7

All sub-groups of a shape communicate at the same time, as in training. A time is the maximum over
all ranks, from a common start. `message_bytes` is what nccl-tests calls size: all_gather: what a
rank has afterwards; reduce_scatter: what it gives; all_to_all: what it gives to all; broadcast,
all_reduce, send_recv: the buffer. send_recv is a ring: each rank sends one message to the next and
receives one, at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import _distributed
import _timing
import _together
import torch
import torch.distributed as dist

KERNELS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
SMALLEST_BYTES, LARGEST_BYTES = 8, 8 * 2**30
LARGEST_CPU_BYTES, LARGEST_QUICK_BYTES = 64 * 2**20, 2**20
MOST_BUFFERS = 64


@dataclass(frozen=True)
class Shape:
    """Sub-groups of `size` ranks, `stride` apart; `groups` lists the ranks of each."""

    size: int
    stride: int
    groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Case:
    """One collective at one message size in the sub-groups of one shape."""

    kernel: str
    dtype: str
    message_bytes: int
    shape: Shape

    @property
    def name(self) -> str:
        """Text for the progress line."""
        return f"{self.kernel} {self.message_bytes} B x {self.shape.size}"


def sub_groups(world_size: int, size: int, stride: int) -> Shape | None:
    """Cut the world into groups of `size` ranks, `stride` apart; None where that cannot be.

    sub_groups(8, 2, 4) -> (0, 4) (1, 5) (2, 6) (3, 7)
    """
    if size < 2 or stride < 1 or world_size % (size * stride):
        return None
    groups = [
        tuple(range(block + first, block + size * stride, stride))
        for block in range(0, world_size, size * stride)
        for first in range(stride)
    ]
    return Shape(size, stride, tuple(groups))


def message_sizes(smallest: int, largest: int, factor: int) -> list[int]:
    """Return `smallest` times powers of `factor` up to `largest`, in bytes."""
    count = int(math.log(largest / smallest, factor) + 1e-9) + 1
    return [smallest * factor**power for power in range(count)]


# --- one case -------------------------------------------------------------------------------


def rounded_bytes(case: Case) -> int:
    """Return the message in whole elements, and whole parts for each rank, in bytes."""
    item = _timing.DTYPES[case.dtype].itemsize
    parts = case.shape.size if case.kernel in ("all_gather", "reduce_scatter", "all_to_all") else 1
    return max(1, case.message_bytes // (item * parts)) * item * parts


def maker(case: Case, run: _timing.Run):
    """Return a function that makes a buffer pair (what is given, what is got) of random values."""
    dtype = _timing.DTYPES[case.dtype]
    count = rounded_bytes(case) // dtype.itemsize
    part = count // case.shape.size
    give = part if case.kernel == "all_gather" else count
    get = part if case.kernel == "reduce_scatter" else count
    in_place = case.kernel in ("all_reduce", "broadcast")

    def make():
        given = _timing.values((give,), dtype, run.device)
        return given, given if in_place else _timing.values((get,), dtype, run.device)

    return make


def operation(kernel: str, group, ranks: tuple[int, ...]):
    """Return the function (given, got) that communicates once in this rank's group."""
    calls = {
        "all_reduce": lambda give, get: dist.all_reduce(give, group=group),
        "all_gather": lambda give, get: dist.all_gather_into_tensor(get, give, group=group),
        "reduce_scatter": lambda give, get: dist.reduce_scatter_tensor(get, give, group=group),
        "all_to_all": lambda give, get: dist.all_to_all_single(get, give, group=group),
        "broadcast": lambda give, get: dist.broadcast(give, src=ranks[0], group=group),
    }
    return calls.get(kernel) or _ring(group, ranks)


def _ring(group, ranks: tuple[int, ...]):
    at = ranks.index(dist.get_rank())
    after, before = ranks[(at + 1) % len(ranks)], ranks[at - 1]

    def pass_on(give, get):
        send = dist.P2POp(dist.isend, give, after, group)
        receive = dist.P2POp(dist.irecv, get, before, group)
        for work in dist.batch_isend_irecv([send, receive]):
            work.wait()

    return pass_on


class Traffic:
    """One collective, called again and again over buffers past the cache.

    An all-reduce multiplies what it sums: `settle` undoes that, and must be called after
    `most_calls` calls at the latest (64 powers of two: half of what fp32 and bf16 can hold).
    """

    def __init__(self, case: Case, group, run: _timing.Run, world: _distributed.World) -> None:
        self.buffers = make_buffers(case, run, world)
        self.operation = operation(case.kernel, group, own_ranks(case.shape, world))
        self.growth = case.shape.size if case.kernel == "all_reduce" else 1
        self.count, self.calls = len(self.buffers.buffers), 0
        self.most_calls = 1000
        if self.growth > 1:
            self.most_calls = max(1, int(self.count * 64 / math.log2(self.growth)))

    def __call__(self) -> None:
        """Communicate once, with the next buffers."""
        self.calls += 1
        self.operation(*self.buffers())

    def settle(self) -> None:
        """Scale what has grown back to about its first size."""
        if self.growth > 1:
            for give, _ in self.buffers.buffers:
                give.mul_(self.growth ** -(self.calls / self.count))
        self.calls = 0


def own_ranks(shape: Shape, world: _distributed.World) -> tuple[int, ...]:
    """Return the sub-group that this rank is in."""
    return next(ranks for ranks in shape.groups if world.rank in ranks)


def make_buffers(case: Case, run: _timing.Run, world: _distributed.World) -> _timing.Rotation:
    """Make buffers past the cache; ranks on one host without GPUs share its memory."""
    parts = 1 if case.kernel in ("all_reduce", "broadcast") else 2
    need = rounded_bytes(case) * parts
    sharing = 1 if run.device.kind == "cuda" else world.local_size
    free = run.device.free_bytes() / sharing
    if need > 0.8 * free:
        raise MemoryError(f"memory: needs {need / 1e9:.2f} GB, {free / 1e9:.2f} GB free")
    make = maker(case, run)
    wanted = math.ceil(2 * run.device.cache_bytes / need)
    count = max(1, min(wanted, MOST_BUFFERS, int(free / 2 / need)))
    return _timing.Rotation([make() for _ in range(count)], cold=count == wanted)


def measure(case: Case, group, run: _timing.Run, world: _distributed.World) -> None:
    """Time one case and record it. `Skipped` where memory is short."""
    shape = {
        "message_bytes": rounded_bytes(case),
        "ranks": case.shape.size,
        "stride": case.shape.stride,
        "nodes": world.nodes(list(own_ranks(case.shape, world))),
        "groups": len(case.shape.groups),
    }
    with _together.guard_together(run, world, case.kernel, shape, case.dtype):
        traffic = Traffic(case, group, run, world)
    times_s = _together.time_together(
        traffic, run, world, most_calls=traffic.most_calls, after=traffic.settle
    )
    more = {"library": world.library, "cold": traffic.buffers.cold}
    run.record(case.kernel, case.dtype, shape, "forward", times_s, **more)


# --- the program ----------------------------------------------------------------------------


def options():
    """Return the options of this program."""
    made = _timing.parser(__doc__, minutes=2.0)
    made.add_argument("--ranks", type=int, help="ranks to start (every GPU, or 2 on a CPU)")
    made.add_argument(
        "--groups", default="", help="sizes of sub-groups, with commas (all halvings)"
    )
    made.add_argument("--stride", default="1", help="distance of neighbours, with commas (1)")
    made.add_argument("--kernels", default=",".join(KERNELS), help="with commas (%(default)s)")
    made.add_argument("--min-bytes", type=int, default=SMALLEST_BYTES, help="%(default)s")
    made.add_argument("--max-bytes", type=int, help="8 GiB; 64 MiB on a CPU")
    made.add_argument("--factor", type=int, default=4, help="between sizes (%(default)s)")
    return made


def default_ranks(arguments) -> int:
    """Return how many ranks to start where nobody says."""
    if arguments.ranks is not None:
        return arguments.ranks
    gpus = torch.cuda.device_count() if arguments.device != "cpu" else 0
    return gpus or 2


def shapes(arguments, world_size: int, run: _timing.Run) -> list[Shape]:
    """Return the sub-group shapes asked for; those that do not divide the world are skipped."""
    halvings = [world_size >> power for power in range(world_size.bit_length())]
    sizes = [int(part) for part in arguments.groups.split(",") if part] or halvings
    found = []
    for size in sizes:
        for stride in (int(part) for part in arguments.stride.split(",")):
            shape = sub_groups(world_size, size, stride)
            if shape is not None:
                found.append(shape)
            elif size > 1 and arguments.groups:
                reason = f"{world_size} ranks cannot be cut into groups of {size}, {stride} apart"
                run.skip("collectives", {"ranks": size, "stride": stride}, None, reason)
    return found


def cases(arguments, run: _timing.Run, world: _distributed.World) -> list[Case]:
    """Return all cases, small messages of every collective first."""
    largest = arguments.max_bytes or (
        LARGEST_BYTES if run.device.kind == "cuda" else LARGEST_CPU_BYTES
    )
    factor = 64 if run.quick else arguments.factor
    if run.quick:
        largest = min(largest, LARGEST_QUICK_BYTES)
    kernels = [one for one in KERNELS if one in arguments.kernels.split(",")]
    dtypes = run.dtypes("bf16") if run.device.kind == "cuda" else run.dtypes("fp32")
    return [
        Case(kernel, dtype, size, shape)
        for shape in shapes(arguments, world.size, run)
        for dtype in dtypes
        for size in message_sizes(arguments.min_bytes, largest, factor)
        for kernel in kernels
    ]


def run_cases(arguments, run: _timing.Run, world: _distributed.World) -> None:
    """Measure every case; a collective that this library does not have is tried once."""
    todo, groups, missing = cases(arguments, run, world), {}, set()
    for shape in dict.fromkeys(case.shape for case in todo):
        groups[shape] = new_group(shape, world)
    for case in _together.each_together(run, world, todo):
        if (case.kernel, case.shape) in missing:
            continue
        with _together.missing_is_skipped(run, world, case) as problem:
            measure(case, groups[case.shape], run, world)
        if problem:
            missing.add((case.kernel, case.shape))


def new_group(shape: Shape, world: _distributed.World):
    """Make every sub-group of the shape (all ranks must) and return the one of this rank."""
    made = [dist.new_group(list(ranks)) for ranks in shape.groups]
    return made[shape.groups.index(own_ranks(shape, world))]


def main() -> int:
    """Run the program; return its exit code."""
    arguments = options().parse_args()
    return _together.run_program(arguments, default_ranks(arguments), __file__, run_cases)


if __name__ == "__main__":
    _distributed.leave(main())
