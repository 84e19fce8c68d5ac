"""Few rows of a large table cost what they cost alone, whatever the table prices."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from simulator.cost.pricing import with_paths
from simulator.cost.step import Estimate, evaluate, priced_estimate
from simulator.scenario import make_scenario
from simulator.search import memory_filter
from simulator.search.candidates import families
from simulator.search.memory_filter import HEADROOM, Setting, Space, every_row, near_among

BY_SOFTWARE = pytest.mark.parametrize(
    ("model", "software"),
    [("qwen3-30b-a3b", "megatron-core"), ("llama-3.1-8b", "torchtitan")],
)


@cache
def opened(model: str, software: str) -> tuple[Space, Setting]:
    """Layouts of tp 2 that can run on 32 GPUs; some come near to fitting."""
    made = make_scenario(
        {
            "model": {"name": model},
            "training": {"sequence_length": 8192, "global_batch": 64},
            "cluster": {"name": "dgx-a100", "gpus": 32, "software": software},
            "layout": {"tp": 2, "cp": 1, "sequence_parallel": True, "rank_order": "tp-cp-dp-pp"},
        }
    )
    setting = made.workload, made.cluster, made.software
    (family,) = families(*setting, made.pinned)
    space, _ = memory_filter.open_space(family, setting, 0, made.pinned)
    assert space is not None
    return space, setting


def drawn(space: Space, count: int) -> memory_filter.Rows:
    """Some rows, of all kinds of recomputation."""
    rows = every_row(space)
    rows = rows.take(np.random.default_rng(3).permutation(len(rows))[:count])
    assert len(np.unique(rows.kind)) > 2
    return rows


@BY_SOFTWARE
def test_narrowed_prices_are_those_of_the_rows_alone(model: str, software: str) -> None:
    space, setting = opened(model, software)
    layouts, priced = space.mixed(drawn(space, 40))
    narrow = priced.narrowed()
    assert len(narrow.states.state_bytes[0]) < len(priced.states.state_bytes[0])
    paths = with_paths(narrow, layouts, coarse=False)
    together = priced_estimate(layouts, paths, slice(None))
    for i in (0, 13, 39):
        same(together.take([i]), evaluate(layouts[i], *setting))


def same(one: Estimate, other: Estimate) -> None:
    assert one.layouts.row() == other.layouts.row()
    for name, seconds in other.terms_s.items():
        np.testing.assert_allclose(one.terms_s[name], seconds, rtol=1e-12, atol=1e-15)
    for kind, size in other.memory_bytes.items():
        np.testing.assert_allclose(one.memory_bytes[kind], size, rtol=1e-12)


@BY_SOFTWARE
@pytest.mark.parametrize("together", [16, 8192], ids=["kinds apart", "one table"])
def test_what_comes_near_to_fitting(
    model: str, software: str, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the memory of every layout priced in full, in rows of several kinds out of order."""
    monkeypatch.setattr(memory_filter, "CHUNK", together)
    space, setting = opened(model, software)
    rows = drawn(space, 300)
    near = near_among(space, rows)
    whole = evaluate(space.mixed(rows)[0], *setting)
    able = np.flatnonzero(whole.memory_total_bytes <= HEADROOM * whole.usable_bytes)
    assert 0 < len(able) < len(rows)
    assert near.fitting == int(whole.fits.sum())
    expected = zip(rows.kind[able], rows.row[able], whole.fits[able], strict=True)
    found = near.rows
    assert set(zip(found.kind, found.row, found.fits, strict=True)) == set(expected)
    safe = rows.take(np.flatnonzero(whole.verdict == 0))
    assert int(found.safe.sum()) == len(safe)


def test_nothing_is_near_among_nothing() -> None:
    space, _ = opened("llama-3.1-8b", "torchtitan")
    near = near_among(space, every_row(space).take(slice(0, 0)))
    assert (len(near.rows), near.fitting) == (0, 0)
