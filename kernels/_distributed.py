"""Ranks: started by torchrun, or by the program itself, or only pretended (the fake group).

A program calls `start_ranks` first, and goes on only where that returns None::

    code = _distributed.start_ranks(arguments.ranks, arguments.minutes)
    if code is not None:
        return code                                 # this process only looked after its ranks
    with _distributed.World(arguments.device) as world:
        ...
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist
from _timing import Stopped

STORE = "FORESHARD_STORE"
"""Environment variable: the file by which ranks that we start ourselves find each other."""
TIMEOUT_S = 120.0
"""A collective that waits longer than this for another rank is an error."""
GRACE_S = 15.0
"""Seconds a rank gets to write and leave before it is killed."""

# torch 2.13 renames *_tensor collectives; the old names are the ones that 2.6 has.
warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")


# --- starting -------------------------------------------------------------------------------


def start_ranks(ranks: int, minutes: float) -> int | None:
    """Run this same command `ranks` times and return the exit code; None: be a rank yourself.

    None where torchrun (or this function) has started this process, or one rank is enough. Ranks
    that are not done five minutes after `minutes` are ended.
    """
    if "RANK" in os.environ or ranks <= 1:
        return None
    with tempfile.TemporaryDirectory(prefix="foreshard-") as folder:
        children = [
            _start_rank(rank, ranks, os.path.join(folder, "store")) for rank in range(ranks)
        ]
        before = {
            number: signal.signal(number, _raise_stopped)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            return _wait(children, time.monotonic() + 60 * minutes + 300)
        except Stopped as stopped:
            return 128 + stopped.args[0]
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            _end(children)


def _raise_stopped(number: int, frame: object) -> None:
    raise Stopped(number)


def _start_rank(rank: int, ranks: int, store: str) -> subprocess.Popen:
    threads = str(max(1, (os.cpu_count() or 1) // ranks))
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    environment = {"OMP_NUM_THREADS": threads} | os.environ | {STORE: store}
    environment |= {key: str(value) for key, value in own.items()}
    return subprocess.Popen([sys.executable, *sys.argv], env=environment)


def _wait(children: list[subprocess.Popen], end: float) -> int:
    """Wait for all ranks; when one has failed the others get a short time. Return the code."""
    while any(child.poll() is None for child in children):
        if any(child.poll() for child in children):
            end = min(end, time.monotonic() + GRACE_S)
        if time.monotonic() > end:
            _end(children)
        time.sleep(0.05)
    return max((abs(child.returncode) for child in children), default=0)


def _end(children: list[subprocess.Popen]) -> None:
    """Ask what still runs to stop, and kill what has not after a while."""
    running = [child for child in children if child.poll() is None]
    for child in running:
        child.terminate()
    for child in running:
        try:
            child.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def leave(code: int) -> NoReturn:
    """End this process; of a group at once, for gloo's threads may abort a tidy end."""
    if World.joined:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


# --- the group ------------------------------------------------------------------------------


class World:
    """One process among the others: `rank` of `size`, the `device` name, the `backend`.

    As a context it joins the process group and leaves it. `device` is what ``--device`` says:
    "auto" and "cuda" become the GPU of the local rank.
    """

    pretended = False
    joined = False
    """Any group was joined in this process."""

    def __init__(self, device: str = "auto") -> None:
        self.rank, self.size = _number("RANK", 0), _number("WORLD_SIZE", 1)
        self.local_rank = _number("LOCAL_RANK", self.rank)
        self.local_size = _number("LOCAL_WORLD_SIZE", self.size)
        self.device = _own_device(device, self.local_rank)
        self.backend = "nccl" if self.device.startswith("cuda") else "gloo"

    @property
    def library(self) -> str:
        """Name and version of what communicates, such as "nccl 2.27.5"."""
        if self.backend != "nccl":
            return self.backend
        return "nccl " + ".".join(map(str, torch.cuda.nccl.version()))

    def nodes(self, ranks: list[int]) -> int:
        """Return how many nodes these ranks lie on (ranks are numbered node by node)."""
        return len({rank // self.local_size for rank in ranks})

    def __enter__(self) -> World:
        World.joined = True
        how: dict[str, object] = {"store": dist.HashStore()}
        if STORE in os.environ:
            how = {"init_method": f"file://{os.environ[STORE]}"}
        elif self.size > 1:
            how = {"init_method": "env://"}
        if self.backend == "nccl":
            torch.cuda.set_device(self.device)
            how["device_id"] = torch.device(self.device)
        limit = timedelta(seconds=TIMEOUT_S)
        dist.init_process_group(
            self.backend, rank=self.rank, world_size=self.size, timeout=limit, **how
        )
        return self

    def __exit__(self, kind, error, trace) -> None:
        if error is None:
            dist.barrier()
        with contextlib.suppress(Exception):
            dist.destroy_process_group()

    def agree(self, number: float, how: str = "min") -> float:
        """Return the smallest ("min"), largest ("max") or sum ("sum") over all ranks."""
        return self.agree_all([number], how)[0]

    def agree_all(self, numbers: list[float], how: str = "max") -> list[float]:
        """Combine a list of equal length of every rank, place by place: by min, max or sum."""
        if self.size == 1 or self.pretended:
            return list(numbers)
        found = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(found, getattr(dist.ReduceOp, how.upper()))
        return found.tolist()


class Pretended(World):
    """One rank of a larger world that is not there: torch's fake process group."""

    pretended = True

    def __init__(self, device: str, *, rank: int, size: int) -> None:
        super().__init__(device)
        self.rank, self.size, self.local_rank, self.local_size = rank, size, 0, size

    @property
    def library(self) -> str:
        """Say that nothing communicates."""
        return "fake"

    def __enter__(self) -> World:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=self.rank, world_size=self.size, store=FakeStore())
        return self

    def copies(self) -> dict[str, bool]:
        """Tell which fake collectives fill what they give back (it depends on torch's version)."""
        parts = torch.ones(self.size, device=self.device)
        gathered, scattered = torch.zeros_like(parts), torch.zeros(1, device=self.device)
        dist.all_gather_into_tensor(gathered, parts[:1])
        dist.reduce_scatter_tensor(scattered, parts)
        return {
            "all_gather": bool(gathered.all().item()),
            "reduce_scatter": bool(scattered.all().item()),
        }


def _number(name: str, otherwise: int) -> int:
    return int(os.environ.get(name, otherwise))


def _own_device(name: str, local_rank: int) -> str:
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return "cpu"
    if ":" in name:
        return name
    return f"cuda:{local_rank % max(1, torch.cuda.device_count())}"
