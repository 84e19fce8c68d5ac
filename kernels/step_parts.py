"""Time small training steps over all ranks, and in turns with them everything they are made of.

    python step_parts.py --ranks 2 --minutes 5 --wait 600     # on a CPU, when nothing else runs

Steps: one process alone, DDP, FSDP2 (zero3), tensor parallel, pipeline. Parts: products, attention
and memory-bound operators at the sizes that the steps have, with all ranks at work; collectives of
their messages; the host's work for a block (plain, cut by DTensor, wrapped by FSDP2); a product
beside a collective. Steps and parts take turns in rounds, so that a machine that changes changes
for all of them. `cpu_times_s` is what the thread that trains was at work; the rest it waited. A
record's `times_s` has the readings of quiet rounds (`foreign_cores`: what other
processes took beside each), or the least fifth where there are none; `loaded` counts the others.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field, replace
from functools import partial

import _cases
import _distributed
import _host
import _quiet
import _step
import _step_parts
import _timing
import torch
import torch.distributed as dist
from _cases import Case
from _step_parts import Part
from _training import Trainer

MODEL, QUICK_MODEL = "gpt-mini", "gpt-tiny"
SEQUENCE, QUICK_SEQUENCE, BATCH = 256, 64, 4
MICRO_BATCHES = 4
"""Of the pipeline, each of one sequence."""
FEWEST = 3
"""Rounds at least, however long they take; with fewer quiet ones all count as loud."""
LEAST = 5
"""Where all rounds are loud, a fifth of the readings is kept: the least, which others disturbed
least."""
HOST_PASSES = 4


def step_cases(model: str, sequence: int, ranks: int) -> dict[str, Case]:
    """Return the steps by name; all see the same number of sequences per rank, or as one model."""
    whole = Case(model=model, sequence=sequence, precision="fp32", micro_batch=BATCH)
    cut = replace(whole, micro_batch=1, accumulate=MICRO_BATCHES, pp=ranks)
    cases = {
        "local": replace(whole, dp=1),
        "ddp": replace(whole, dp=ranks),
        "fsdp2": replace(whole, dp=ranks, sharding="zero3"),
        "tp": replace(whole, tp=ranks),
        "pp": cut,
    }
    return {name: _cases.resolved(case, ranks) for name, case in cases.items()}


@dataclass
class Readings:
    """All readings of one part or step, each with the round and the load that it was taken in."""

    record: dict
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    foreign: list[float] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)

    def add(
        self, seconds: list[float], number: int, *, cpu: list[float], foreign: float = -1.0
    ) -> None:
        """Keep the readings of one visit; without `foreign` the load is that of the round."""
        self.seconds += seconds
        self.cpu += cpu
        self.foreign += [foreign] * len(seconds)
        self.rounds += [number] * len(seconds)

    def kept(self, quiet: set[int]) -> dict:
        """Return the record with the readings of quiet rounds; of no such, the least readings."""
        which = [at for at, number in enumerate(self.rounds) if number in quiet]
        if not which:
            order = sorted(range(len(self.seconds)), key=lambda at: self.seconds[at])
            which = order[: max(1, len(order) // LEAST)]
        return self.record | {
            "times_s": [_rounded(self.seconds[at]) for at in which],
            "cpu_times_s": [_rounded(self.cpu[at]) for at in which],
            "foreign_cores": [round(self.foreign[at], 2) for at in which],
            "loaded": len(self.seconds) - len(which),
        }


def _rounded(seconds: float) -> float:
    return float(f"{max(seconds, 1e-9):.6g}")


class Program:
    """All that takes turns."""

    def __init__(self, arguments, run: _timing.Run, world: _distributed.World) -> None:
        self.run, self.world, self.wait_s = run, world, arguments.wait
        model = QUICK_MODEL if run.quick else MODEL
        sequence = QUICK_SEQUENCE if run.quick else SEQUENCE
        self.cases = step_cases(model, sequence, world.size)
        self.trainers = {
            name: Trainer(case, run.device.device) for name, case in self.cases.items()
        }
        shape = _cases.MODELS[model]
        self.parts = _step_parts.kernel_parts(shape, BATCH, sequence, world.size)
        product = _step_parts.product(shape, BATCH * sequence)
        self.parts += _step_parts.collective_parts(self._messages(shape, sequence), world, product)
        largest = 2**20 if run.quick else 2**24
        self.parts += _step_parts.overlap_parts(shape, BATCH * sequence, largest)
        self.hosts = self._hosts()
        self.found: dict[object, Readings] = {}
        self.loads: list[float] = []
        self.steps = dict.fromkeys(self.cases, 0)

    def _messages(self, shape, sequence: int) -> dict[str, list[int]]:
        """Message sizes of the steps, and smaller and larger ones for their slope."""
        wide = 4 * shape.hidden
        stream, block = BATCH * sequence * wide, 12 * shape.hidden * wide
        ends = (2 * shape.vocabulary + sequence) * wide
        whole = shape.layers * block + ends
        gathered = sorted({2**16, stream // 4, stream, block, ends, whole // 2})
        return {
            "all_reduce": sorted({2**16, stream // 4, stream, 2 * stream, block, whole}),
            "all_gather": gathered,
            "reduce_scatter": gathered,
            "send_recv": sorted({2**14, stream // 16, stream // 4, stream // 2, stream}),
        }

    def _hosts(self) -> dict[str, _host.Timer]:
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cpu", (self.world.size, 1), mesh_dim_names=("all", "own"))
        self.reductions = _host.reductions(mesh["all"])
        places = {"plain": "own", "tensor": "own", "sharded": "all"}
        return {name: _host.Timer(_host.tiny(name, mesh[at])) for name, at in places.items()}

    # --- rounds ---

    def go(self) -> None:
        """Take rounds until the minutes are spent, at least three."""
        longest_s, number = 0.0, 0
        while number < FEWEST or self._left() > longest_s:
            if self.wait_s > 0.0:
                waited_s = _quiet.wait_until_quiet(self.world, self.wait_s)
                self.wait_s -= waited_s
                self.run.budget.end += waited_s
            begin, load = time.monotonic(), _quiet.Foreign()
            self._round(number)
            self.loads.append(load.cores(self.world))
            longest_s = max(longest_s, time.monotonic() - begin)
            number += 1
            if self.run.quick:
                break

    def _left(self) -> float:
        return self.world.agree(self.run.budget.left_s, "min")

    def _round(self, number: int) -> None:
        """Take every step once or twice, with a share of the parts between any two of them."""
        names = list(self.cases)
        for at, name in enumerate(names):
            self._visit_step(name, number)
            for part in self.parts[at :: len(names)]:
                self._visit_part(part, number)
        self._visit_host(number)

    def _visit_step(self, name: str, number: int) -> None:
        trainer, times_s = self.trainers[name], []
        for turn in range(2 if self.steps[name] else 3):
            batch = trainer.batch(self.steps[name])
            self.steps[name] += 1
            dist.barrier()
            load, (took_s, cpu_s) = _quiet.Foreign(), _timed(partial(trainer.step, *batch))
            took_s, cpu_s = self.world.agree(took_s, "max"), self._mean([cpu_s])[0]
            foreign = load.cores(self.world)
            if turn or number:  # the very first step makes what later ones find
                times_s.append((took_s, cpu_s, foreign))
        key = self._readings(("step", name), self._step_record(name))
        for took_s, cpu_s, foreign in times_s:
            key.add([took_s], number, cpu=[cpu_s], foreign=foreign)

    def _mean(self, numbers: list[float]) -> list[float]:
        return [one / self.world.size for one in self.world.agree_all(numbers, "sum")]

    def _step_record(self, name: str) -> dict:
        case = self.cases[name]
        return {
            "kernel": "train_step",
            "dtype": case.dtype,
            "shape": case.shape(),
            "direction": "step",
            "mode": name,
            "model": case.model,
            "sharding": case.sharding,
            "library": self.world.library,
            "parameters": self.trainers[name].parameters,
        }

    def _visit_part(self, part: Part, number: int) -> None:
        """Time a part on all ranks at once."""
        if number == 0:
            part.run()
        dist.barrier()
        readings = []
        for _ in range(part.calls):
            if part.before is not None:
                part.before()
            readings.append(_timed(part.run))
        times_s, cpu_s = ([one[at] for one in readings] for at in range(2))
        if part.averaged:
            times_s, cpu_s = [statistics.fmean(times_s)], [statistics.fmean(cpu_s)]
        times_s = self.world.agree_all(times_s, "max") if part.together else self._mean(times_s)
        record = {
            "kernel": part.kernel,
            "dtype": "fp32",
            "shape": part.shape,
            "direction": part.direction,
            "cold": False,
            "in_step": True,
            **part.more,
        }
        self._readings(id(part), record).add(times_s, number, cpu=self._mean(cpu_s))

    def _visit_host(self, number: int) -> None:
        """Time the tiny blocks; ranks work at once, and a time is their mean."""
        for name, timer in self.hosts.items():
            dist.barrier()
            for _ in range(HOST_PASSES):
                seconds = {(_host.BLOCKS, way): took for way, took in timer.passes().items()}
                seconds |= {(1, way): took for way, took in timer.short().items()}
                means = self._mean(list(seconds.values()))
                for (blocks, way), took_s in zip(seconds, means, strict=True):
                    record = {
                        "kernel": "host",
                        "dtype": "fp32",
                        "direction": way,
                        "shape": {"blocks": blocks},
                        "wrapping": name,
                        "operators": self._operators(),
                    }
                    key = self._readings(("host", name, way, blocks), record)
                    key.add([took_s], number, cpu=[took_s])
        for name, call in self.reductions.items():
            seconds = self._mean([_timed(call)[1] for _ in range(2 * HOST_PASSES)])[1:]
            record = {
                "kernel": "host",
                "dtype": "fp32",
                "direction": "reduction",
                "shape": {"blocks": 0},
                "wrapping": name,
                "operators": self._operators(),
            }
            self._readings(("host", name), record).add(seconds, number, cpu=seconds)

    def _operators(self) -> int:
        self.counted = getattr(self, "counted", 0) or _host.operators_per_block()
        return self.counted

    def _readings(self, key: object, record: dict) -> Readings:
        return self.found.setdefault(key, Readings(record))

    # --- the document ---

    def finish(self) -> None:
        """Profile one step of each kind, then write what quiet rounds read."""
        for name in self.cases:
            self.found["step", name].record |= self._profile(name)
        quiet = self._quiet()
        document = self.run.document
        for one in self.found.values():
            one.foreign = [
                self.loads[number] if load < 0 else load
                for number, load in zip(one.rounds, one.foreign, strict=True)
            ]
            document["records"].append(one.kept(quiet))
        document["rounds"] = {
            "count": len(self.loads),
            "quiet": len(quiet),
            "foreign_cores": [round(load, 2) for load in self.loads],
            "median_foreign_cores": round(statistics.median(self.loads), 3),
        }

    def _quiet(self) -> set[int]:
        """Return the rounds in which others took little; none where these are few."""
        still = {at for at, load in enumerate(self.loads) if load < _quiet.QUIET_CORES}
        return still if len(still) >= FEWEST else set()

    def _profile(self, name: str) -> dict:
        """Return seconds of one step, slowed by the profiler itself, and of its operators."""
        trainer = self.trainers[name]
        batch = trainer.batch(self.steps[name])
        dist.barrier()
        kind = torch.profiler.ProfilerActivity.CPU
        with torch.profiler.profile(activities=[kind]) as profile:
            begin = time.perf_counter()
            trainer.step(*batch)
            took_s = time.perf_counter() - begin
        rows = [_step._operator(one) for one in profile.key_averages()]
        rows.sort(key=lambda row: -row["host_s"])
        few = [{key: row[key] for key in ("name", "calls", "host_s")} for row in rows[:80]]
        return {"profiled_s": took_s, "operators": few}


def _timed(call) -> tuple[float, float]:
    """Return the seconds of a call: by the clock, and at work in this thread."""
    begin, cpu = time.perf_counter(), time.thread_time()
    call()
    return time.perf_counter() - begin, time.thread_time() - cpu


def main() -> int:
    """Run the program; return its exit code."""
    made = _timing.parser(__doc__, minutes=4.0)
    made.add_argument("--ranks", type=int, default=2, help="ranks to start (%(default)s)")
    made.add_argument(
        "--wait",
        type=float,
        default=0.0,
        metavar="S",
        help="wait up to S seconds in all for other processes to rest (%(default)s)",
    )
    arguments = made.parse_args()
    minutes = arguments.minutes + arguments.wait / 60
    code = _distributed.start_ranks(arguments.ranks, minutes)
    if code is not None:
        return code
    arguments.device = "cpu"
    world = _distributed.World(arguments.device)
    torch.set_num_threads(1)
    with _timing.Run(arguments, __file__, writes=world.rank == 0) as run:
        if world.size == 1:
            run.skip("step_parts", {}, None, "one rank: steps over several ranks are the point")
            return run.exit_code
        with world:
            program = Program(arguments, run, world)
            program.go()
            program.finish()
    return run.exit_code


if __name__ == "__main__":
    _distributed.leave(main())
