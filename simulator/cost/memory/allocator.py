"""torch's caching allocator as a model: what a process reserves for the tensors that it allocates.

The rules are those of ``c10/cuda/CUDACachingAllocator.cpp`` with its default settings (expandable
segments off). Sizes are rounded to 512 B. Requests of up to 1 MiB come out of 2 MiB segments, those
below 10 MiB out of 20 MiB segments, larger ones get a segment of their own, rounded to 2 MiB. The
smallest free block that is large enough serves a request, and is split where enough remains; freed
neighbours merge. Streams and the two size classes have pools of their own. No segment is returned.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import field
from itertools import count

from simulator.records import dataclass

_ROUND = 512
_SMALL = 1 << 20
_SMALL_SEGMENT = 2 << 20
_MIN_OWN_SEGMENT = 10 << 20
_LARGE_SEGMENT = 20 << 20
_ROUND_SEGMENT = 2 << 20


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment, in use or free; neighbours in the same segment are linked."""

    size: int
    order: int
    """Segments are numbered as they are made: stands for the address among equal sizes."""
    start: int
    pool: tuple[str, bool]
    """Stream, and whether the block is of the small class."""
    before: Block | None = None
    after: Block | None = None
    in_use: bool = True

    @property
    def key(self) -> tuple[int, int, int]:
        """Order of the free blocks: by size, then by address."""
        return (self.size, self.order, self.start)


@dataclass(slots=True)
class CachingAllocator:
    """One device's allocator.

    Examples
    --------
    >>> memory = CachingAllocator()
    >>> block = memory.allocate(30 << 20)
    >>> memory.free(block)
    >>> half = memory.allocate(15 << 20)
    >>> memory.allocated_bytes >> 20, memory.reserved_bytes >> 20
    (15, 30)
    """

    allocated_bytes: int = 0
    reserved_bytes: int = 0
    peak_allocated_bytes: int = 0
    _free: dict[tuple[str, bool], list[tuple[int, int, int]]] = field(default_factory=dict)
    _blocks: dict[tuple[int, int, int], Block] = field(default_factory=dict)
    _numbers: count[int] = field(default_factory=count)

    def allocate(self, size_bytes: float, stream: str = "compute") -> Block:
        """Serve one request from the pool of a stream."""
        size = max(-(-int(size_bytes) // _ROUND), 1) * _ROUND
        pool = (stream, size <= _SMALL)
        block = self._best_fit(size, pool) or self._segment(size, pool)
        rest = block.size - size
        if rest >= _ROUND if pool[1] else rest > _SMALL:
            self._split(block, size)
        block.in_use = True
        self.allocated_bytes += block.size
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def free(self, block: Block) -> None:
        """Give a block back to its pool and merge it with free neighbours."""
        assert block.in_use, "freed twice"
        block.in_use = False
        self.allocated_bytes -= block.size
        for other in (block.before, block.after):
            if other is not None and not other.in_use:
                self._take(other)
                block = _merged(block, other)
        self._put(block)

    def _best_fit(self, size: int, pool: tuple[str, bool]) -> Block | None:
        """The smallest free block that holds `size`, taken out of its pool."""
        free = self._free.setdefault(pool, [])
        at = bisect_left(free, (size, -1, -1))
        if at == len(free):
            return None
        return self._blocks.pop(free.pop(at))

    def _segment(self, size: int, pool: tuple[str, bool]) -> Block:
        """Ask the device for a segment; it is one free block."""
        if pool[1]:
            whole = _SMALL_SEGMENT
        elif size < _MIN_OWN_SEGMENT:
            whole = _LARGE_SEGMENT
        else:
            whole = -(-size // _ROUND_SEGMENT) * _ROUND_SEGMENT
        self.reserved_bytes += whole
        return Block(size=whole, order=next(self._numbers), start=0, pool=pool)

    def _split(self, block: Block, size: int) -> None:
        """Cut a block; what remains is free."""
        rest = Block(
            size=block.size - size,
            order=block.order,
            start=block.start + size,
            pool=block.pool,
            before=block,
            after=block.after,
            in_use=False,
        )
        if block.after is not None:
            block.after.before = rest
        block.size, block.after = size, rest
        self._put(rest)

    def _put(self, block: Block) -> None:
        insort(self._free.setdefault(block.pool, []), block.key)
        self._blocks[block.key] = block

    def _take(self, block: Block) -> None:
        free = self._free[block.pool]
        free.pop(bisect_left(free, block.key))
        del self._blocks[block.key]


def _merged(block: Block, other: Block) -> Block:
    """Join two free neighbours into the first of them."""
    first, second = (block, other) if block.start < other.start else (other, block)
    first.size += second.size
    first.after = second.after
    if second.after is not None:
        second.after.before = first
    return first
