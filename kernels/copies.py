"""Time copies between host and GPU, and inside the host.

Kernel `copy`, `bytes` from 4 KiB to 1 GiB, directions "h2d", "d2h" and "both" (both at once, on two
streams; `bytes` is then each way's), the host's memory pinned or pageable (`library`). Direction
"host" is a copy inside the host's memory, the only one that is there without a GPU. Each process
uses the memory that the system gives it: on a machine with several sockets, bind it (numactl).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial

import _timing
from _timing import torch

SIZES = tuple(2**power for power in range(12, 31, 2))
"""Bytes of one copy."""
QUICK_MOST = 2**24


@dataclass(frozen=True)
class Case:
    """One size, direction and kind of host memory."""

    size: int
    direction: str
    memory: str
    kernel = "copy"
    dtype = "uint8"

    @property
    def name(self) -> str:
        """What the progress line shows."""
        return f"{self.direction} {self.memory} {self.size} bytes"

    @property
    def shape(self) -> dict[str, int]:
        """What the record says about the size."""
        return {"bytes": self.size}


def cases_for(run: _timing.Run) -> list[Case]:
    """Return the cases, spread."""
    sizes = [size for size in SIZES if not run.quick or size <= QUICK_MOST]
    directions = [("host", "pageable")]
    if run.device.kind == "cuda":
        ways = [(way, memory) for way in ("h2d", "d2h") for memory in ("pinned", "pageable")]
        directions += [*ways, ("both", "pinned"), ("host", "pinned")]
    cases = [Case(size, *way) for size in sizes for way in directions]
    return _timing.spread(cases, run.arguments.seed, lambda case: (case.direction, case.memory))


def host_bytes(size: int, pinned: bool) -> torch.Tensor:
    """Make random bytes in the host's memory."""
    block = random_block()[:size]
    whole = block.repeat(-(-size // len(block)))[:size]
    return whole.pin_memory() if pinned else whole.clone()


@lru_cache
def random_block() -> torch.Tensor:
    """Make a million random bytes, once."""
    return torch.randint(256, (2**20,), dtype=torch.uint8)


def pair(case: Case, run: _timing.Run) -> tuple[torch.Tensor, torch.Tensor]:
    """Make source and destination of one copy."""
    pinned = case.memory == "pinned"
    host = host_bytes(case.size, pinned)
    if case.direction == "host":
        return host, host_bytes(case.size, pinned)
    there = host.to(run.device.device)
    return (host, there) if case.direction == "h2d" else (there, host)


def two_pairs(case: Case, run: _timing.Run) -> tuple:
    """Make what a copy in both directions needs."""
    return *pair(Case(case.size, "h2d", case.memory), run), *pair(
        Case(case.size, "d2h", case.memory), run
    )


def copy(take: _timing.Rotation, wait: bool) -> None:
    """Copy the next pair; `wait`: until it is done, as a pageable copy does anyway."""
    source, destination = take()
    destination.copy_(source, non_blocking=not wait)


def copy_both(take: _timing.Rotation, streams: tuple) -> None:
    """Copy in both directions at once, and let the present stream wait for both."""
    given, present = take(), torch.cuda.current_stream()
    for stream, source, destination in zip(streams, given[::2], given[1::2], strict=True):
        stream.wait_stream(present)
        with torch.cuda.stream(stream):
            destination.copy_(source, non_blocking=True)
    for stream in streams:
        present.wait_stream(stream)


def measure(case: Case, run: _timing.Run) -> None:
    """Time one case."""
    if 4 * case.size > 0.5 * _timing.host_free_bytes():
        return run.skip("copy", case.shape, case.dtype, "memory: the host has too little free")
    if not run.fits("copy", case.shape, case.dtype, 4 * case.size):
        return None
    host, inside = _timing.Device("cpu"), case.direction == "host"
    make = partial(two_pairs if case.direction == "both" else pair, case, run)
    take = _timing.rotate(make, 2 * case.size, host)
    if case.direction == "both":
        function = partial(copy_both, take, (torch.cuda.Stream(), torch.cuda.Stream()))
    else:
        function = partial(copy, take, case.memory == "pageable" or inside)
    ahead = inside or case.memory == "pinned"
    device = host if inside else run.device
    times = _timing.time_call(function, device, budget_s=run.case_s, run_ahead=ahead)
    more = {"library": case.memory, "cold": take.cold}
    return run.record("copy", case.dtype, case.shape, case.direction, times, **more)


def main() -> int:
    """Run the program."""
    arguments = _timing.parser(__doc__, minutes=0.5).parse_args()
    with _timing.Run(arguments, __file__) as run:
        if run.device.kind == "cpu":
            for direction in ("h2d", "d2h", "both"):
                run.skip("copy", {}, "uint8", f"{direction}: there is no GPU to copy to")
        for case in run.each(cases_for(run)):
            with run.guard("copy", case.shape, case.dtype):
                measure(case, run)
    return run.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
