"""Time real training steps, and look at their memory: GPT, Llama, MoE, split and recomputed.

    python train_step.py --model gpt3-small --sequence 2048 --micro-batch 4 --recompute full
    python train_step.py --ranks 2 --model llama-tiny --sharding zero3        # starts 2 ranks
    torchrun --nproc-per-node 8 train_step.py --model llama-3.1-8b --tp 8 --sequence-parallel
    python train_step.py --model llama-3.1-70b --fake-world 32 --tp 8 --pp 4 --rank middle
    python train_step.py --minutes 15                             # no --model: the whole suite

A record holds the time of each step, peak memory, memory by phase, losses, and how the step was
split. Under `--fake-world` one process does what one rank of many would do, without the others.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import _cases
import _distributed
import _step
import _suite
import _timing
import _worker
import torch.distributed as dist
from _cases import Case


def options():
    """Return the options of this program."""
    made = _timing.parser(__doc__, minutes=2.0)
    made.add_argument("--ranks", type=int, default=1, help="ranks to start (%(default)s)")
    made.add_argument("--suite", action="store_true", help="the list of cases (as without --model)")
    known = ",".join(_suite.SECTIONS)
    made.add_argument("--sections", default="", help=f"of the suite on a GPU, of {known} (all)")
    made.add_argument("--steps", type=int, default=0, help="to time (as the minutes allow)")
    made.add_argument("--profile", action="store_true", help="also record times by operator")
    made.add_argument("--trace", type=Path, help="write a Kineto trace (.json or .json.gz)")
    made.add_argument("--worker", action="store_true", help="(the suite starts itself with this)")
    _cases.add_options(made)
    return made


def world_of(case: Case, device: str) -> _distributed.World:
    """Return the world that the (resolved) case runs in: the real one, or the pretended one."""
    if not case.fake_world:
        return _distributed.World(device)
    return _distributed.Pretended(device, rank=case.fake_rank, size=case.fake_world)


def measure(case: Case, run: _timing.Run, *, stay: bool = False, **wanted) -> dict:
    """Measure one case in its process group; `Impossible` says why not.

    `stay`: leave the group open for the next case, which must ask for the same.
    """
    real = _distributed.World(str(run.device.device))
    case = _cases.resolved(case, real.size)
    reason = _cases.problem(case, real.size, run.device.kind)
    if reason:
        raise _cases.Impossible(reason)
    world = world_of(case, real.device)
    with contextlib.ExitStack() as stack:
        if case.grouped and not dist.is_initialized():
            stack.enter_context(world)
        joined = dist.get_rank() if dist.is_initialized() else None
        if joined != (world.rank if case.grouped else None):
            raise RuntimeError("this process is in another process group already")
        found = _step.measure(case, run, world, **wanted)
        if stay:
            stack.pop_all()
    return found


def run_one(arguments, run: _timing.Run) -> None:
    """Measure the case that the options describe."""
    case = _cases.from_options(arguments)
    wanted = {name: getattr(arguments, name) for name in ("steps", "profile", "trace")}
    wanted["budget_s"] = run.budget.left_s / 3
    with run.guard(case.kernel, case.shape(), case.dtype):
        try:
            found = measure(case, run, **wanted)
        except _cases.Impossible as impossible:
            run.skip(case.kernel, case.shape(), case.dtype, str(impossible))
            return
        more = found.pop("more")
        run.record(case.kernel, case.dtype, **found, **more)


def main() -> int:
    """Run the program; return its exit code."""
    made = options()
    made.set_defaults(precision=None, model=None)
    arguments = made.parse_args()
    code = _distributed.start_ranks(arguments.ranks, arguments.minutes)
    if code is not None:
        return code
    world = _distributed.World(arguments.device)
    arguments.device = world.device
    arguments.precision = arguments.precision or ("fp32" if world.device == "cpu" else "bf16")
    unknown = set(arguments.sections.split(",")) - {"", *_suite.SECTIONS}
    if unknown:
        made.error(f"--sections: no section {', '.join(unknown)}")
    if arguments.worker:
        return _worker.work(arguments, measure)
    if arguments.model is None and (world.size > 1 or _cases.differs(arguments)):
        made.error("--model: name one (without it the suite runs, alone, with its own options)")
    with _timing.Run(arguments, __file__, writes=world.rank == 0) as run:
        if arguments.model is None:
            _suite.run_suite(arguments, run)
        else:
            run_one(arguments, run)
    return run.exit_code


if __name__ == "__main__":
    _distributed.leave(main())
