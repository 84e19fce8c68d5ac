"""The one list of a pass's phases: complete, and read alike by timelines, links and slow GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.terms import HIDDEN, TERMS
from simulator.events.deviations.deviations import replicas_of
from simulator.events.network.link_loads import Loads
from simulator.events.sharing.byte_time import call_seconds
from simulator.events.sharing.link_profiles import HIDING, profiles
from simulator.events.sharing.phase_rows import destinations
from simulator.events.step.pass_costs import CAUSE
from simulator.events.step.play import Played
from simulator.events.step.streams import (
    BESIDE,
    COMPUTE_TERMS,
    LINKS,
    OUTSIDE,
    PHASE_TERMS,
    PHASES,
    SPAN_KINDS,
    STREAMS,
    phase_of,
)
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload


def test_every_term_lies_in_one_phase_or_outside_of_passes() -> None:
    placed = Counter(name for names in (*PHASE_TERMS, OUTSIDE) for name in names)
    assert placed == {term.name: 1 for term in TERMS}


def test_a_span_is_of_one_stream_and_one_known_kind() -> None:
    stream = {term.name: term.stream for term in TERMS}
    for phase in PHASES:
        shares: Counter[str] = Counter()
        for span in phase:
            assert {stream[name] for name in span.terms} == {span.stream} <= {*STREAMS}
            assert span.kind in (*SPAN_KINDS, "pass")
            shares.update(dict.fromkeys(span.terms, span.share))
        assert set(shares.values()) == {1.0}


def test_whatever_moves_bytes_takes_links() -> None:
    """All but the small all-reduces (norms, amax); and all that hides behind compute."""
    stream = {term.name: term.stream for term in TERMS}
    moves = {x for names in PHASE_TERMS for x in names if stream[x] in LINKS} | {"recompute"}
    assert {*HIDING} == moves - {"small_reductions"}
    assert {*BESIDE} <= {*HIDING} and {*HIDDEN} - {*BESIDE} == {"pp"}


def test_a_slow_gpu_takes_longer_for_what_it_computes() -> None:
    assert sorted(COMPUTE_TERMS) == [
        "attention",
        "gemm",
        "memory_bound",
        "recompute",
        "slowdown",
        "stragglers",
    ]


def priced(software: str, recipe: dict[str, Any], **layout: Any) -> Any:
    """Passes of a layout of a model with experts, and what must be in them."""
    table = Layouts.of(**layout, global_batch=8 * layout.get("dp", 1))
    recipe = {"sequence_length": 4096, "global_batch": int(table.global_batch[0]), **recipe}
    work = Workload(architecture=presets.load("mixtral-8x22b"), recipe=Recipe(**recipe))
    cluster = load_cluster("dgx-h100", int(table.world[0]))
    (one,) = replicas_of(table, work, cluster, load_software(software))
    return one.passes


@pytest.mark.parametrize(
    ("software", "recipe", "layout", "held"),
    [
        ("megatron-core", {"precision": "fp8"},
         {"tp": 2, "pp": 2, "vpp": 2, "dp": 4, "ep": 4, "micro_batch": 4, "recompute": "full",
          "recompute_layers": 99},
         {"tp", "ep", "recompute", "stragglers", "input", "small_reductions", "slowdown"}),
        ("torchtitan", {}, {"dp": 16, "sharding": "zero3", "offload_layers": 56},
         {"stragglers", "input", "offload"}),
        ("xla-tpu-2020", {}, {"tp": 4, "cp": 2, "cp_kind": "ring", "pp": 2}, {"tp", "cp", "pp"}),
    ],
)  # fmt: skip
def test_phases_are_all_of_a_pass(
    software: str, recipe: dict[str, Any], layout: dict[str, Any], held: set[str]
) -> None:
    shown = priced(software, recipe, **layout).shown_s
    assert held <= {name for name, i in CAUSE.items() if shown[..., i].any()}
    cut = sum(shown[..., CAUSE[name]] for names in PHASE_TERMS for name in names)
    np.testing.assert_allclose(cut, shown.sum(axis=3), rtol=1e-12)
    assert (shown >= 0.0).all()


def test_input_takes_the_link_from_the_host(worked: Callable[..., Played]) -> None:
    """A fetch that shows has the link to itself; 0.5 s of one behind a pass that computes for 2 s
    take a quarter of it."""
    played = worked([2.0], [4.0], 1)
    shown, hidden = played.passes.shown_s.copy(), played.passes.hidden_s.copy()
    shown[:, :, 0, CAUSE["input"]] = 1.0
    hidden[:, :, 0, HIDDEN.index("input")] = 0.5
    passes = replace(played.passes, shown_s=shown, hidden_s=hidden)
    loads = Loads(
        names=("host-up 0", "host-down 0"),
        of={
            ("copy", True, 0): (np.array([0]), np.ones(1)),
            ("copy", False, 0): (np.array([1]), np.ones(1)),
        },
    )
    found = profiles(loads, [], call_seconds(played.replicas), passes, destinations(played), 1)
    assert found.passes[0, 0, 0, phase_of("input")].tolist() == [0.0, 1.0]
    assert found.passes[0, 0, 0, phase_of("gemm")].tolist() == [0.0, 0.25]
    assert found.hiding[0, 0, 0, HIDING.index("input")] == 1.0
    assert not found.passes[0, 0, 1, phase_of("gemm")].any()
