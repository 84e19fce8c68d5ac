"""Random data, buffers past the cache, and the timing of one call.

Programs take it from `_timing`. Times are seconds, sizes bytes.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections import Counter
from functools import lru_cache

from _device import Device, torch

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8": getattr(torch, "float8_e4m3fn", None),
}
FP8_MAX = 448.0
"""Largest value of float8_e4m3fn."""
MOST_COPIES = 512
"""Buffers that `rotate` makes at most, however small they are."""
MOST_CALLS = {"cuda": 32, "cpu": 1000}
"""Calls inside one reading; a GPU's queue holds about a thousand."""
LONGEST_QUEUEING_S = 1e-3
LONGEST_SLEEP_S = 0.05
CYCLES_PER_S = 2e9
"""About a GPU's clock: only the length of the sleep before a batch hangs on it."""


def values(shape, dtype: torch.dtype, device: Device, *, scale: float = 1.0) -> torch.Tensor:
    """Make normal random values (never zeros: power and clocks depend on the data).

    An fp8 tensor is cast from values scaled to its range. On a CPU, where random numbers are slow
    to make, values are copied from a block of a million, from a random place in it.
    """
    if dtype == DTYPES["fp8"]:
        return to_fp8(values(shape, torch.bfloat16, device))[0]
    if device.kind == "cuda":
        return torch.randn(shape, dtype=dtype, device=device.device).mul_(scale)
    count, block = math.prod(shape), _random_block(dtype)
    begin = int(torch.randint(len(block) // 2, ()))
    if count <= len(block) - begin:
        made = block[begin : begin + count].clone()
    else:
        made = block.roll(begin).repeat(-(-count // len(block)))[:count]
    return made.mul_(scale).reshape(shape)


@lru_cache
def _random_block(dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(2**20).to(dtype)


def to_fp8(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cast to float8_e4m3fn; also return the scale (fp32) to multiply with to get back."""
    scale = tensor.abs().amax().float().clamp(min=1e-12) / FP8_MAX
    return (tensor.float() / scale).clamp(-FP8_MAX, FP8_MAX).to(DTYPES["fp8"]), scale


class Rotation:
    """Take the next of several equal buffers at each call; `cold`: none is left in the cache."""

    def __init__(self, buffers: list, cold: bool) -> None:
        self.buffers, self.cold, self.at = buffers, cold, 0

    def __call__(self):
        self.at = (self.at + 1) % len(self.buffers)
        return self.buffers[self.at]


def rotate(make, bytes_each: int, device: Device) -> Rotation:
    """Call `make` so often that its buffers are twice the last-level cache together.

    `make()` returns anything of about `bytes_each` bytes. At most 512 are made, and at most what
    fits in half of the free memory; `cold` of the result tells whether that was enough.
    """
    wanted = max(1, math.ceil(2 * device.cache_bytes / max(bytes_each, 1)))
    room = max(1, int(device.free_bytes() / 2 // max(bytes_each, 1)))
    count = min(wanted, MOST_COPIES, room)
    return Rotation([make() for _ in range(count)], cold=count == wanted)


def spread(cases: list, seed: int, kind=lambda case: (case.kernel, case.dtype)) -> list:
    """Put cases in a random, repeatable order in which every kind takes its turn.

    So a run that is cut short has measured something of each.
    """
    shuffled = list(cases)
    random.Random(seed).shuffle(shuffled)
    turns: Counter = Counter()
    placed = []
    for at, case in enumerate(shuffled):
        placed.append((turns[kind(case)], at, case))
        turns[kind(case)] += 1
    return [case for _, _, case in sorted(placed, key=lambda one: one[:2])]


def median_error(times_s: list[float]) -> float:
    """Return the relative standard error of the median (robust: from the absolute deviations)."""
    middle = statistics.median(times_s)
    spread = 1.4826 * statistics.median(abs(one - middle) for one in times_s)
    return 1.2533 * spread / math.sqrt(len(times_s)) / middle if middle > 0 else math.inf


def time_call(
    function,
    device: Device,
    *,
    budget_s: float = 0.5,
    min_repeats: int = 5,
    max_repeats: int = 50,
    error: float = 0.01,
    warm_up: int = 2,
    run_ahead: bool = True,
) -> list[float]:
    """Time `function()` and return the seconds of each repeat.

    It repeats until the standard error of the median is below `error` (relative) or `budget_s` is
    spent, and at least `min_repeats` times unless one call alone outlasts the budget (then three
    times, or once beyond ten budgets). A call too short for the clock is repeated inside
    one reading, which is then divided.

    `run_ahead` (CUDA): the device sleeps first, so that the host has queued the calls
    before they start and the reading is device time. Without it what the host takes counts
    too: right for whole steps.
    """
    deadline = time.monotonic() + budget_s
    batch = _batch_cuda if device.kind == "cuda" else _batch_cpu
    one_s, host_s = _first_calls(function, device, batch, warm_up, budget_s, run_ahead)
    if one_s > 10 * budget_s:
        return [one_s]
    calls = min(MOST_CALLS[device.kind], math.ceil(50e-6 / one_s)) if run_ahead else 1
    pace_s = calls * max(one_s, host_s)
    least = min_repeats if pace_s * min_repeats <= budget_s else 3
    times_s: list[float] = []
    while len(times_s) < max_repeats:
        fits = int(budget_s / 4 / pace_s)
        repeats = max(1, min(fits, 20, max_repeats - len(times_s)))
        times_s += batch(function, device, calls, repeats, host_s)
        if len(times_s) >= least and time.monotonic() > deadline:
            break
        if len(times_s) >= min_repeats and median_error(times_s) < error:
            break
    return times_s


def multiply_flop_per_s(dtype: str, side: int, device: Device) -> float:
    """Return the rate of one square product, to foresee what will take too long."""
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    first, second = (values((side, side), DTYPES[dtype], device) for _ in range(2))
    return 2 * side**3 / min(time_call(lambda: first @ second, device, budget_s=0.3))


def _first_calls(function, device, batch, warm_up, budget_s, run_ahead) -> tuple[float, float]:
    """Warm up; return about how long one call takes, and the host to queue it (0: do not wait)."""
    for _ in range(max(1, warm_up)):
        device.synchronize()
        begin = time.perf_counter()
        function()
        device.synchronize()
        one_s = max(1e-7, time.perf_counter() - begin)
        if one_s > budget_s:
            break
    host_s = min(one_s, LONGEST_QUEUEING_S) if run_ahead else 0.0
    if device.kind == "cuda" and run_ahead and one_s < 1e-3:  # without the cost of waiting
        one_s = max(1e-7, batch(function, device, 8, 1, host_s)[0])
    return one_s, host_s


def _batch_cuda(function, device, calls, repeats, host_s) -> list[float]:
    """Time on the device, by events; `host_s`: the host needs so long to queue a call."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in "ab"] for _ in range(repeats)]
    if host_s and hasattr(torch.cuda, "_sleep"):
        ahead_s = min(LONGEST_SLEEP_S, host_s * calls * repeats)
        torch.cuda._sleep(int(ahead_s * CYCLES_PER_S))
    for begin, end in events:
        begin.record()
        for _ in range(calls):
            function()
        end.record()
    device.sensors.read()  # while the device works
    device.synchronize()
    return [begin.elapsed_time(end) / 1e3 / calls for begin, end in events]


def _batch_cpu(function, device, calls, repeats, host_s) -> list[float]:
    times_s = []
    for _ in range(repeats):
        begin = time.perf_counter_ns()
        for _ in range(calls):
            function()
        times_s.append((time.perf_counter_ns() - begin) / 1e9 / calls)
    return times_s
