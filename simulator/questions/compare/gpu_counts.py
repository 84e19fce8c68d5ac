"""Numbers of accelerators that are worth a search: whole servers that a batch can be split over."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from simulator.errors import InputError, problem
from simulator.layout.layouts import divisors
from simulator.workload.recipe import Workload

MOST = 1 << 24
"""Accelerators above this are refused."""

_MOST_COUNTS = 256
_RANGE = re.compile(r"(\d+)\.\.(\d+)(?::(\d+))?")
_RULE = "must be counts and ranges: 512, 64..4096 (doubling) or 128..256:32 (in steps of 32)"


def parse_counts(text: str, *, where: str = "command line", field: str = "--gpus") -> list[int]:
    """Read counts, ranges that double and ranges in steps, joined by commas; sorted, each once.

    Raises
    ------
    InputError
        If the text is none, or asks for no count, for over 256 of them or for one above 2^24.

    Examples
    --------
    >>> parse_counts("64..512,136"), parse_counts("128..256:64")
    ([64, 128, 136, 256, 512], [128, 192, 256])
    """
    found: set[int] = set()
    for part in str(text).split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None and not re.fullmatch(r"\d{1,9}", part.strip()):
            raise InputError(problem(where, field, _RULE, text))
        first, last, step = match.groups() if match else (part, part, None)
        low, high = _bounded(first, where, field), _bounded(last, where, field)
        if low > high or (step is not None and _bounded(step, where, field) < 1):
            rule = "a range goes from the smaller to the larger, in steps of at least 1"
            raise InputError(problem(where, field, rule, part))
        found |= set(_between(low, high, int(step) if step else 0, where, field))
    return sorted(found)


def _bounded(text: str, where: str, field: str) -> int:
    value = int(text[:20])
    if not 1 <= value <= MOST:
        nearest = min(max(value, 1), MOST)
        rule = f"must be 1 to {MOST:,} accelerators"
        raise InputError(f"{problem(where, field, rule, value)} (nearest: {nearest})")
    return value


def _between(low: int, high: int, step: int, where: str, field: str) -> Iterable[int]:
    """Counts of a range; without a step they double, and the end is among them."""
    if step:
        count = (high - low) // step + 1
        if count > _MOST_COUNTS:
            rule = f"must be at most {_MOST_COUNTS} counts"
            raise InputError(problem(where, field, rule, count))
        return range(low, high + 1, step)
    sizes = []
    while low < high:
        sizes.append(low)
        low *= 2
    return [*sizes, high]


def whole_servers(count: int, per_server: int) -> int:
    """Return the largest count of whole servers that is not above `count`, or part of one server.

    Examples
    --------
    >>> whole_servers(100, 8), whole_servers(4, 8)
    (96, 4)
    """
    return count if count <= per_server else count // per_server * per_server


def ladder(low: int, high: int, per_server: int, *, per_octave: int = 2) -> list[int]:
    """Counts of whole servers between two, so many to a doubling, evenly spaced within it.

    Examples
    --------
    >>> ladder(64, 256, 8)
    [64, 96, 128, 192, 256]
    """
    sizes, base = set(), 1
    while base <= high:
        sizes |= {base + base * k // per_octave for k in range(per_octave)}
        base *= 2
    fine = {whole_servers(size, per_server) for size in sizes}
    return sorted(size for size in fine if low <= size <= high)


def batch_divides(workload: Workload, gpus: int, largest_tp: int) -> bool:
    """Whether some degrees leave data-parallel ranks that all get equally many sequences.

    Tensor parallelism takes a divisor of the heads up to `largest_tp`, pipelines one of the layers;
    what is left must divide the global batch. Where none does, only uneven stages or context
    parallelism can take the odd factor, which costs speed.
    """
    arch = workload.architecture
    heads = tuple(att.heads for att in arch.attentions)
    return _divides(workload.recipe.global_batch, arch.layers, heads, gpus, largest_tp)


@lru_cache(maxsize=4096)
def _divides(batch: int, layers: int, heads: tuple[int, ...], gpus: int, largest_tp: int) -> bool:
    fewest = min(heads, default=1)
    tps = [tp for tp in divisors(fewest) if tp <= largest_tp and gpus % tp == 0]
    return any(
        batch % (gpus // (tp * pp)) == 0
        for tp in tps
        for pp in divisors(layers)
        if gpus % (tp * pp) == 0
    )


def next_good(workload: Workload, gpus: int, *, per_server: int, largest_tp: int) -> int | None:
    """Return the next larger count of whole servers that the batch divides; None up to 4 times."""
    step = per_server if gpus >= per_server else 1
    return next(
        (
            size
            for size in range(gpus + step, 4 * gpus + step, step)
            if batch_divides(workload, size, largest_tp)
        ),
        None,
    )
