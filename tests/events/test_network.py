"""Max-min fair rates: textbook cases, an independent linear program, and the laws of fairness."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from simulator.errors import InputError
from simulator.events.engine.fair_shares import fair_rates, link_load


def test_two_flows_halve_a_link() -> None:
    assert fair_rates([10.0], [0, 1, 2], [0, 0]).tolist() == [5.0, 5.0]


def test_three_flows_on_two_links() -> None:
    """Bertsekas and Gallager's kind of example: capacities 10 and 4, the long flow over both.

    The link of 4 fills first at 2 each; what the long flow leaves of the other goes to its rival.
    """
    assert fair_rates([10.0, 4.0], [0, 2, 3, 4], [0, 1, 0, 1]).tolist() == [2.0, 8.0, 2.0]


def test_a_chain_of_four_links() -> None:
    """Five flows over links of 1: a long one over all four, a pair on the third, one on two others.

    Link 3 carries three flows (1/3 each); links 1 and 2 leave 2/3 to their own; link 4 is idle but
    for the long one, which stays at 1/3.
    """
    flows = [[0, 1, 2, 3], [2], [2], [0], [1]]
    first = np.cumsum([0, *map(len, flows)])
    rates = fair_rates(np.ones(4), first, np.concatenate(flows))
    assert rates == pytest.approx([1 / 3, 1 / 3, 1 / 3, 2 / 3, 2 / 3])


def test_a_class_of_many_flows_counts_each() -> None:
    """Three equal flows beside one: four share 8."""
    assert fair_rates([8.0], [0, 1, 2], [0, 0], flows=[3, 1]).tolist() == [2.0, 2.0]


def test_a_limit_leaves_the_rest_to_others() -> None:
    assert fair_rates([10.0], [0, 1, 2], [0, 0], limit=[3.0, np.inf]).tolist() == [3.0, 7.0]


def test_a_flow_without_links_has_its_limit() -> None:
    assert fair_rates([1.0], [0, 0, 1], [0], limit=[7.0, 9.0]).tolist() == [7.0, 1.0]


def test_shares_spread_a_flow_over_links() -> None:
    """A flow half on each of two links of 1 runs at 2; beside a whole flow on one of them the two
    rates r and r / 2 + r <= 1 meet at 2 / 3."""
    assert fair_rates([1.0, 1.0], [0, 2], [0, 1], share=[0.5, 0.5]).tolist() == [2.0]
    rates = fair_rates([1.0, 1.0], [0, 2, 3], [0, 1, 0], share=[0.5, 0.5, 1.0])
    assert rates == pytest.approx([2 / 3, 2 / 3])


@st.composite
def networks(draw: st.DrawFn):  # type: ignore[no-untyped-def]
    links = draw(st.integers(1, 5))
    flows = draw(st.integers(1, 6))
    level = st.sampled_from([1.0, 2.0, 3.0, 5.0, 7.5, 10.0])
    capacity = draw(st.lists(level, min_size=links, max_size=links))
    crossed = st.lists(st.integers(0, links - 1), min_size=1, max_size=links, unique=True)
    ways = draw(st.lists(crossed, min_size=flows, max_size=flows))
    count = draw(st.lists(st.integers(1, 3), min_size=flows, max_size=flows))
    limit = draw(st.lists(st.sampled_from([0.4, 1.5, np.inf]), min_size=flows, max_size=flows))
    weight = st.lists(st.sampled_from([0.25, 0.5, 1.0]), min_size=links, max_size=links)
    share = np.concatenate([draw(weight)[: len(way)] for way in ways])
    return np.array(capacity), ways, np.array(count, float), np.array(limit), share


def by_linear_programs(capacity, ways, count, limit, share):  # type: ignore[no-untyped-def]
    """Raise the smallest rate as far as possible, fix those that cannot have more, and again."""
    flows, start = len(ways), np.cumsum([0, *map(len, ways)])
    load = np.zeros((len(capacity), flows))
    for f, way in enumerate(ways):
        for k, link in enumerate(way):
            load[link, f] += count[f] * share[start[f] + k]
    most = [None if np.isinf(x) else x for x in limit]
    fixed: dict[int, float] = {}

    def solve(goal, floor):  # type: ignore[no-untyped-def]
        """Maximise a rate (or, for -1, the level below all others) over (rates, level)."""
        cost = np.zeros(flows + 1)
        cost[goal] = -1.0
        above = [f for f in range(flows) if f not in fixed]
        rows = np.zeros((len(above), flows + 1))
        for row, f in zip(rows, above, strict=True):
            row[f], row[-1] = -1.0, 1.0
        bounds = [(fixed[f],) * 2 if f in fixed else (0, most[f]) for f in range(flows)]
        result = linprog(
            cost,
            A_ub=np.vstack([np.hstack([load, np.zeros((len(capacity), 1))]), rows]),
            b_ub=np.concatenate([capacity * (1 + 1e-12), np.zeros(len(above))]),
            bounds=[*bounds, (floor, None)],
        )
        assert result.status == 0
        return -result.fun

    while len(fixed) < flows:
        level = solve(-1, 0.0)
        stuck = [
            f
            for f in range(flows)
            if f not in fixed and solve(f, level * (1 - 1e-9)) <= level * (1 + 1e-6)
        ]
        assert stuck
        fixed |= dict.fromkeys(stuck, level)
    return np.array([fixed[f] for f in range(flows)])


@given(networks())
def test_rates_are_those_of_linear_programs(network) -> None:  # type: ignore[no-untyped-def]
    capacity, ways, count, limit, share = network
    first = np.cumsum([0, *map(len, ways)])
    rates = fair_rates(capacity, first, np.concatenate(ways), count, share=share, limit=limit)
    assert rates == pytest.approx(by_linear_programs(*network), rel=1e-5)


@given(networks())
def test_no_link_is_overfull_and_every_flow_has_a_bottleneck(network) -> None:  # type: ignore[no-untyped-def]
    """A flow below its limit crosses a full link on which no other flow is faster."""
    capacity, ways, count, limit, share = network
    first, link = np.cumsum([0, *map(len, ways)]), np.concatenate(ways)
    rates = fair_rates(capacity, first, link, count, share=share, limit=limit)
    load = link_load(rates, first, link, share, count, len(capacity))
    assert (load <= capacity * (1 + 1e-9)).all()
    full = load >= capacity * (1 - 1e-9)
    for f, way in enumerate(ways):
        if rates[f] >= limit[f] * (1 - 1e-12):
            continue
        fastest = {at: max(rates[g] for g, other in enumerate(ways) if at in other) for at in way}
        assert any(full[at] and rates[f] >= fastest[at] * (1 - 1e-9) for at in way)


def test_rates_grow_with_all_capacities() -> None:
    rng = np.random.default_rng(7)
    ways = [rng.choice(20, 4, replace=False) for _ in range(30)]
    first, link = np.arange(31) * 4, np.concatenate(ways)
    capacity = rng.uniform(1.0, 9.0, 20)
    assert fair_rates(3.0 * capacity, first, link) == pytest.approx(
        3.0 * fair_rates(capacity, first, link)
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([-1.0], [0, 1], [0]), r"network: capacity\[0\]: must not be negative, got -1.0"),
        (([0.0], [0, 1], [0]), r"capacity\[0\]: must be positive where a class crosses it, got 0"),
        (([1.0], [0, 1], [3]), r"link\[0\]: must be one of the links 0 to 0, got 3"),
        (([1.0], [0, 2], [0]), r"first: must rise from 0 to 1, got \[0, 2\]"),
        (([1.0], [0, 1], [0], [0.0]), r"flows\[0\]: must be positive, got 0.0"),
        (([1.0], [0, 0], []), r"first\[0\]: a class without a link must have a limit"),
        (([np.nan], [0, 1], [0]), r"capacity\[0\]: must not be negative, got nan"),
    ],
)
def test_what_is_no_network_is_refused(arguments, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=message):
        fair_rates(*arguments)


@pytest.mark.parametrize("name", ["share", "limit"])
def test_shares_and_limits_must_be_positive(name: str) -> None:
    with pytest.raises(InputError, match=rf"{name}\[0\]: must be positive, got -2.0"):
        fair_rates([1.0], [0, 1], [0], **{name: [-2.0]})


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(InputError) as caught:
        fair_rates([-1.0], [0, 1], [5], [-3.0])
    assert len(caught.value.problems) == 3
