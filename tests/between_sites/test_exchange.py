"""Exchanges and cycles by hand, by a player of cycles of its own, and what must hold of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.between_sites.exchange import (
    cycle_s,
    exchange_s,
    exposed_s,
    sent_bytes,
    slowest_uplink,
)
from simulator.between_sites.sites_section import load_compression, low_rank_values, message_bytes


def test_a_ring_of_three_by_hand() -> None:
    """12 GB: 2 x 2/3 of it is 16 GB at 2 GB/s, and four hops of 30 ms."""
    ring = {"uplink_bytes_per_s": 2e9, "latency_s": 0.03}
    assert exchange_s(12e9, 3, sums=True, **ring) == pytest.approx(8.0 + 0.12)
    assert exchange_s(12e9, 3, sums=False, **ring) == pytest.approx(12.0 + 0.06)


@pytest.mark.parametrize(
    ("name", "bytes_"),
    [
        ("none", 4e9),  # 32 bits of each
        ("bf16", 2e9),
        ("int8", 1e9),
        ("fp4", 0.5e9),
        ("one-bit", 0.125e9),
        ("top-k", 0.08e9),  # one in a hundred, value and place
    ],
)
def test_messages_of_a_billion_values(name: str, bytes_: float) -> None:
    assert message_bytes(1e9, load_compression(name), fraction=0.01) == pytest.approx(bytes_)


RESNET18 = (
    *((64, 27, 1), (64, 576, 4), (128, 576, 1), (128, 1152, 3), (256, 1152, 1), (256, 2304, 3)),
    *((512, 2304, 1), (512, 4608, 3), (128, 64, 1), (256, 128, 1), (512, 256, 1), (10, 512, 1)),
)
"""Matrices of ResNet-18 for images of 32 x 32: outputs, inputs x window, how many."""
VECTORS = 2 * 5 * (64 + 128 + 256 + 512) + 10
"""Its norms and bias, which are sent whole."""


def test_low_rank_of_resnet_18_is_that_of_its_authors() -> None:
    """PowerSGD, appendix: 43 MB of gradients, compressed by 243 / r (Vogels et al. 2019)."""
    rows, columns, count = np.array(RESNET18, float).T
    whole = (rows * columns * count).sum()
    assert 4 * (whole + VECTORS) / 2**20 == pytest.approx(43, rel=0.02)
    factors = low_rank_values(rows, columns, count, 1).sum()
    assert (whole + VECTORS) / (factors + VECTORS) == pytest.approx(243, rel=0.005)


def test_a_factor_is_never_larger_than_its_matrix() -> None:
    assert low_rank_values(10, 10, 3, 100) == 300


def played(steps: list[float], inner: int, parts: int, beside: int, call_s: float) -> float:
    """Play two cycles step by step and return the second, which waits for what the first left."""
    clock, ends = 0.0, list[tuple[int, float]]()  # (step by which it must be there, when it is)
    marks = [inner * (k + 1) // parts for k in range(parts)]
    begin = 0.0
    for step in range(1, 2 * inner + 1):
        clock = max([clock, *(end for due, end in ends if due < step)])
        ends = [(due, end) for due, end in ends if due >= step]
        if step == inner + 1:
            begin = clock
        clock += max(steps)
        if (step - 1) % inner + 1 in marks:
            ends.append((step + beside, clock + call_s))
    return max([clock, *(end for due, end in ends if due <= 2 * inner)]) - begin


@given(
    steps=st.lists(st.floats(0.1, 3.0), min_size=2, max_size=4),
    parts=st.sampled_from([1, 2, 4]),
    between=st.integers(1, 6),
    beside=st.integers(0, 6),
    call_s=st.floats(0.0, 20.0),
)
def test_a_cycle_is_what_a_step_by_step_player_takes(
    steps: list[float], parts: int, between: int, beside: int, call_s: float
) -> None:
    beside, inner = min(beside, between - 1), parts * between
    formula = cycle_s(
        max(steps),
        inner_steps=inner,
        fragments=parts,
        overlap_steps=beside,
        exchange_s=call_s,
        own_s=0.0,
    )
    waits = float(exposed_s(call_s, max(steps), beside))
    assert formula == pytest.approx(played(steps, inner, parts, beside, call_s))
    assert formula == pytest.approx(inner * max(steps) + parts * waits)


@given(
    share=st.floats(0.3, 0.99),
    between=st.integers(2, 100),
    parts=st.sampled_from([1, 3, 4]),
    beside=st.integers(0, 2),
    sites=st.integers(2, 16),
    own_s=st.sampled_from([0.0, 0.7]),
)
def test_the_rate_for_a_utilisation_gives_it(
    share: float, between: int, parts: int, beside: int, sites: int, own_s: float
) -> None:
    message, latency, step = 1e9, 0.01, 0.5
    hops, inner = 2 * (sites - 1) * latency, between * parts
    rate = slowest_uplink(
        share, step, inner_steps=inner, fragments=parts, overlap_steps=beside,
        sent_bytes=sent_bytes(message, sites, sums=True), hops_s=hops, own_s=own_s,
    )  # fmt: skip
    spare_s = (inner * step * (1 / share - 1) - own_s) / parts
    if not np.isfinite(rate):
        assert spare_s < 0.0 or spare_s + beside * step <= hops
        return
    assert spare_s >= 0.0
    ring = exchange_s(message, sites, uplink_bytes_per_s=rate, latency_s=latency, sums=True)
    total = cycle_s(
        step, inner_steps=inner, fragments=parts, overlap_steps=beside, exchange_s=ring, own_s=own_s
    )
    assert inner * step / total == pytest.approx(share)


def test_no_rate_is_enough_where_no_time_is_left_to_send() -> None:
    """Half of the time of 10 steps of 1 s is 10 s: all of it the sites' own, or latency's."""
    given = {"inner_steps": 10, "fragments": 5, "sent_bytes": 3e9}
    for own_s, hops_s, beside, rate in (
        (10.0, 0.0, 0, np.inf),
        (10.0, 1.0, 1, np.inf),
        (10.0, 1.0, 2, 3e9),  # a second beside the steps is left
        (0.0, 2.0, 0, np.inf),
        (0.0, 0.5, 0, 2e9),
        (10.1, 0.0, 9, np.inf),  # what the sites compute takes longer than all that may be lost
    ):
        found = slowest_uplink(0.5, 1.0, overlap_steps=beside, hops_s=hops_s, own_s=own_s, **given)
        assert found == pytest.approx(rate)


def test_a_cycle_has_the_sites_own_work_in_it() -> None:
    """12 steps of 0.5 s; of three exchanges of 2 s each two steps hide 1 s; 0.3 s of their own."""
    three = {"inner_steps": 12, "fragments": 3, "overlap_steps": 2}
    assert cycle_s(0.5, exchange_s=2.0, own_s=0.3, **three) == pytest.approx(6 + 3 * 1 + 0.3)
    assert exposed_s(2.0, 0.5, [0, 1, 4, 5]).tolist() == [2.0, 1.5, 0.0, 0.0]


@pytest.mark.parametrize("name", ["none", "bf16", "int8", "fp4", "one-bit", "powersgd"])
def test_a_share_is_sent_of_sparse_messages_alone(name: str) -> None:
    way = load_compression(name)
    assert message_bytes(8e6, way, fraction=0.25) == message_bytes(8e6, way)
    sparse = load_compression("top-k")
    assert message_bytes(8e6, sparse) == 4 * message_bytes(8e6, sparse, fraction=0.25) == 64e6
