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

import sys
from pathlib import Path

import _cases
import _distributed
import _step
import _suite
import _timing
from _cases import Case


def options():
    """Return the options of this program."""
    made = _timing.parser(__doc__, minutes=2.0)
    made.add_argument("--ranks", type=int, default=1, help="ranks to start (%(default)s)")
    made.add_argument("--suite", action="store_true", help="a list of cases (without --model)")
    made.add_argument("--steps", type=int, default=0, help="to time (as the minutes allow)")
    made.add_argument("--profile", action="store_true", help="also record times by operator")
    made.add_argument("--trace", type=Path, help="write a Kineto trace (.json or .json.gz)")
    made.add_argument("--worker", action="store_true", help="(the suite starts itself with this)")
    _cases.add_options(made)
    return made


def world_of(case: Case, device: str) -> _distributed.World:
    """Return the world the case runs in: the real one, or the pretended one."""
    world = _distributed.World(device)
    if not case.fake_world:
        return world
    case = _cases.resolved(case, world.size)
    return _distributed.Pretended(world.device, rank=fake_rank(case), size=case.fake_world)


def fake_rank(case: Case) -> int:
    """Return the global rank: of the first, middle or last stage (without one: dp rank)."""
    count = case.pp if case.pp > 1 else case.dp
    at = {"first": 0, "middle": count // 2, "last": count - 1}[case.rank]
    return at * (case.dp * case.tp if case.pp > 1 else case.tp)


def measure(case: Case, run: _timing.Run, **wanted) -> dict:
    """Measure one case in its own process group; a reason why not is a ValueError."""
    world = world_of(case, str(run.device.device))
    case = _cases.resolved(case, world.size)
    reason = _cases.problem(case, world.size, run.device.kind)
    if reason:
        raise ValueError(reason)
    if world.size == 1 and not case.fsdp:
        return _step.measure(case, run, world, **wanted)
    with world:
        return _step.measure(case, run, world, **wanted)


def run_one(arguments, run: _timing.Run) -> None:
    """Measure the case that the options describe."""
    case = _cases.from_options(arguments)
    wanted = {name: getattr(arguments, name) for name in ("steps", "profile", "trace")}
    wanted["budget_s"] = run.budget.left_s / 3
    with run.guard(case.kernel, case.shape(), case.dtype):
        found = measure(case, run, **wanted)
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
    if arguments.worker:
        return _suite.work(arguments, measure)
    with _timing.Run(arguments, __file__, writes=world.rank == 0) as run:
        if arguments.suite or arguments.model is None:
            _suite.run_suite(arguments, run)
        else:
            run_one(arguments, run)
    return run.exit_code


if __name__ == "__main__":
    sys.exit(main())
