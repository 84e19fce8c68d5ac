"""The caching allocator: segments worked by hand from the rules of CUDACachingAllocator.cpp."""

import random

import pytest

from simulator.cost.memory.allocator import CachingAllocator

MIB = 1 << 20


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),  # rounded to 512 B, out of a 2 MiB segment
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),  # the largest of the small class
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),  # from here on a segment of its own
        (21 * MIB + 1, 22 * MIB, 22 * MIB),  # rounded to 2 MiB; less than 1 MiB more is not split
        (21 * MIB - MIB // 2, 22 * MIB - 3 * MIB // 2, 22 * MIB),  # 1.5 MiB remain: split
    ],
)
def test_one_request(size: int, allocated: int, reserved: int) -> None:
    memory = CachingAllocator()
    memory.allocate(size)
    assert (memory.allocated_bytes, memory.reserved_bytes) == (allocated, reserved)


def test_segments_serve_several_requests_and_are_kept() -> None:
    memory = CachingAllocator()
    blocks = [memory.allocate(4 * MIB) for _ in range(5)]
    assert memory.reserved_bytes == 20 * MIB  # five times 4 MiB fill one segment
    for block in blocks:
        memory.free(block)
    assert (memory.allocated_bytes, memory.reserved_bytes) == (0, 20 * MIB)
    memory.allocate(20 * MIB)  # neighbours have merged: the whole segment serves it
    assert memory.reserved_bytes == 20 * MIB


def test_a_hole_between_two_blocks_serves_no_larger_request() -> None:
    memory = CachingAllocator()
    first, hole, last = (memory.allocate(size * MIB) for size in (6, 8, 6))
    memory.free(hole)
    memory.allocate(9 * MIB)
    assert memory.reserved_bytes == 40 * MIB
    memory.free(first)
    memory.allocate(13 * MIB)  # 6 + 8 merged
    assert memory.reserved_bytes == 40 * MIB
    assert last.in_use


def test_the_smallest_block_that_is_large_enough_is_taken() -> None:
    memory = CachingAllocator()
    large, small = memory.allocate(64 * MIB), memory.allocate(32 * MIB)
    memory.free(large)
    memory.free(small)
    memory.allocate(30 * MIB)
    memory.allocate(64 * MIB)  # only free if the 32 MiB block served the first
    assert memory.reserved_bytes == 96 * MIB


def test_freed_logits_hold_no_tensor_of_twice_the_size() -> None:
    """Why torch's loss reserves 7 x and allocates 6 x the 16-bit logits."""
    memory = CachingAllocator()
    logits = memory.allocate(100 * MIB)
    wide = memory.allocate(200 * MIB)
    memory.free(logits)
    others = [memory.allocate(200 * MIB) for _ in range(2)]
    assert memory.reserved_bytes == 700 * MIB
    assert memory.peak_allocated_bytes == 600 * MIB
    assert wide.in_use and all(block.in_use for block in others)


def test_streams_and_size_classes_do_not_share() -> None:
    memory = CachingAllocator()
    memory.free(memory.allocate(32 * MIB, "gather"))
    memory.allocate(32 * MIB)
    assert memory.reserved_bytes == 64 * MIB
    memory.allocate(MIB)  # the small class does not split large blocks
    assert memory.reserved_bytes == 66 * MIB


def test_random_requests_keep_the_books() -> None:
    """Allocated is the sum of what is in use, reserved never falls, the same trace repeats."""

    def play() -> tuple[int, int]:
        draw, memory = random.Random(7), CachingAllocator()
        held, before = [], 0
        for _ in range(3000):
            if held and draw.random() < 0.48:
                memory.free(held.pop(draw.randrange(len(held))))
            else:
                held.append(memory.allocate(draw.choice([300, 3e5, 3e6, 3e7]) * draw.random()))
            assert memory.allocated_bytes == sum(block.size for block in held)
            assert before <= memory.reserved_bytes >= memory.allocated_bytes
            before = memory.reserved_bytes
        return memory.reserved_bytes, memory.peak_allocated_bytes

    assert play() == play()


def test_a_repeated_step_reserves_nothing_new() -> None:
    memory = CachingAllocator()
    reserved = []
    for _ in range(3):
        blocks = [memory.allocate(size * MIB) for size in (40, 3, 0.5, 17, 25, 8)]
        for block in reversed(blocks):
            memory.free(block)
        reserved.append(memory.reserved_bytes)
    assert reserved[0] == reserved[1] == reserved[2]
