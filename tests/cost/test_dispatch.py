"""Ways to reach the experts: bytes by hand on slow links, memory, load, groups, the search."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.collectives.dispatch import Traffic, dispatch_figures, dispatch_s, exchange_s
from simulator.cost.operators.routing import reached_places
from simulator.cost.step import Estimate, evaluate
from simulator.files import Figure
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.hardware.tuning import Dispatch
from simulator.layout.layouts import Layouts
from simulator.layout.placement import Group, place
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.search.candidates import candidates
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload
from tests.cost.test_volumes import MICRO_BATCHES, RATE, WAITS, WIDE, S, slow_inside

CORE = load_software("megatron-core")
MIXTRAL = presets.load("mixtral-8x7b")  # 8 experts, 2 for a token; 32 layers
LAYERS, K = 32, 2


def run(
    cluster: Cluster,
    *,
    arch: Any = MIXTRAL,
    recipe: dict[str, Any] | None = None,
    software: Any = WAITS,
    **layout: Any,
) -> Estimate:
    batch = MICRO_BATCHES * layout.get("dp", 1)
    work = Workload(
        architecture=arch,
        recipe=Recipe(sequence_length=S, global_batch=batch, **(recipe or {})),
    )
    return evaluate(Layouts.of(global_batch=batch, **layout), work, cluster, software)


def expert_s(**layout: Any) -> float:
    """Seconds of expert traffic on links of 1 kB/s."""
    return float(run(slow_inside(), **layout).terms_s["ep"][0])


@pytest.mark.parametrize("ep", [2, 4, 8])
def test_an_all_gather_brings_all_tokens_and_scatters_all_outputs(ep: int) -> None:
    """Four times a layer the tokens of ep ranks, of which each has its own already."""
    sent = MICRO_BATCHES * LAYERS * 4 * WIDE * (ep - 1)
    assert expert_s(dp=8, ep=ep, dispatcher="allgather") == pytest.approx(sent / RATE, rel=2e-3)
    copies = MICRO_BATCHES * LAYERS * 4 * WIDE * K * (ep - 1) / ep
    assert expert_s(dp=8, ep=ep) == pytest.approx(copies / RATE, rel=2e-3)


def test_with_as_many_experts_as_ranks_a_gather_is_no_more_than_copies() -> None:
    """Two ranks and two experts for each token: both send every token once to the other."""
    gathers, sends = (expert_s(dp=8, ep=2, dispatcher=way) for way in ("allgather", "alltoall"))
    assert gathers == pytest.approx(sends, rel=2e-3)


def test_expert_tensor_ranks_are_gathered_with_the_others() -> None:
    """ep 4 x etp 2: one gather over eight ranks, none over etp alone."""
    layout = {"tp": 2, "dp": 4, "ep": 4, "etp": 2}
    found = run(slow_inside(), dispatcher="allgather", **layout)
    own = WIDE / 2  # sequence parallelism: a rank has half of the sequence
    sent = MICRO_BATCHES * LAYERS * 4 * own * 7
    assert float(found.terms_s["ep"][0]) == pytest.approx(sent / RATE, rel=2e-3)
    # tensor-parallel traffic is attention's only: as of a model with ep 8, which has no etp
    alone = run(slow_inside(), tp=2, dp=4, ep=8, etp=1)
    assert found.terms_s["tp"][0] == pytest.approx(float(alone.terms_s["tp"][0]), rel=1e-6)


def test_ranks_of_ep_and_etp_together_sit_where_their_parts_do() -> None:
    table = Layouts.of(tp=[2, 1, 4], dp=[8, 16, 4], ep=[8, 16, 2], etp=[2, 1, 4])
    group = place(table, 8).experts
    assert group.size.tolist() == [16, 16, 8] and group.local.tolist() == [8, 8, 8]


def test_gathered_tokens_and_their_routing_are_held() -> None:
    """The gradient of all tokens instead of one copy's; 5 B per gathered token and local expert."""
    cluster, ep = load_cluster("dgx-h100", 8), 8
    gathers, sends = (
        run(cluster, dp=8, ep=ep, dispatcher=way) for way in ("allgather", "alltoall")
    )
    kept = float((gathers.memory_bytes["activations"] - sends.memory_bytes["activations"])[0])
    assert kept == pytest.approx(LAYERS * 5 * S * ep * (8 / ep), rel=1e-9)
    # the loss is not the fullest moment where the vocabulary is small
    small = replace(MIXTRAL, vocabulary=1024)
    more = [
        float(run(cluster, arch=small, dp=8, ep=ep, dispatcher=way).memory_bytes["temporaries"][0])
        for way in ("allgather", "alltoall")
    ]
    assert more[0] - more[1] == pytest.approx((ep - K) * WIDE, rel=1e-9)


def test_a_rank_without_expert_ranks_dispatches_nothing() -> None:
    for way in ("alltoall", "allgather", "deepep"):
        assert expert_s(dp=8, dispatcher=way) == 0.0
    one, other = (run(slow_inside(), dp=8, dispatcher=way) for way in ("alltoall", "deepep"))
    assert one.step_time_s[0] == other.step_time_s[0]


def test_a_load_vector_lengthens_dispatch_products_and_memory() -> None:
    """The fullest of four ranks has 0.30 of the tokens, 1.2 times the mean; of eight 2 times."""
    vector = (0.25, 0.05, 0.10, 0.10, 0.20, 0.10, 0.10, 0.10)
    cluster = slow_inside()
    for ep, load in ((4, 1.2), (8, 2.0)):
        even = run(cluster, dp=8, ep=ep)
        given = run(cluster, dp=8, ep=ep, recipe={"moe_load": vector})
        said = run(cluster, dp=8, ep=ep, recipe={"moe_imbalance": load})
        assert given.terms_s["ep"][0] == pytest.approx(
            load * float(even.terms_s["ep"][0]), rel=2e-3
        )
        for name in ("gemm", "ep"):
            assert given.terms_s[name][0] == pytest.approx(float(said.terms_s[name][0]), rel=1e-9)
        kept = float((given.memory_bytes["activations"] - even.memory_bytes["activations"])[0])
        per_layer = (load - 1) * S * K * (2 * 4096 + 6 * 14336)
        assert kept == pytest.approx(LAYERS * per_layer, rel=1e-9)


def test_groups_bound_the_domains_that_a_dispatch_reaches() -> None:
    """On a slow network 64 ranks of 8 domains: 3.98 of 7/8 against 5.29 domains (V3)."""
    base = load_cluster("dgx-h100", 64)
    out = replace(base.node.scale_out, adapter_bytes_per_s=Figure(1e3))
    cluster = replace(
        base, groups=(replace(base.groups[0], node=replace(base.node, scale_out=out)),)
    )
    group = Group(size=np.array([64]), local=np.array([8]))
    free = dispatch_s(cluster, 1e6, 8, group, experts=256, row_bytes=1e4)
    limited = dispatch_s(cluster, 1e6, 8, group, experts=256, row_bytes=1e4, groups=8, top_groups=4)
    assert limited[0] / free[0] == pytest.approx(3.983 / 5.295, rel=1e-3)
    # and no rank takes a token more than once, however full it is
    full = dispatch_s(cluster, 1e6, 8, group, experts=256, row_bytes=1e4, load=50.0)
    assert full[0] / free[0] == pytest.approx(8 / 5.295, rel=1e-3)


def test_dispatches_are_searched_where_asked() -> None:
    work = Workload(architecture=MIXTRAL, recipe=Recipe(sequence_length=S, global_batch=64))
    cluster = load_cluster("dgx-h100", 8)
    usual, every = (
        candidates(work, cluster, CORE, {"recompute": "none", "tp": 1, "pp": 1, "cp": 1, **more})
        for more in ({}, {"dispatcher": "any"})
    )
    assert set(usual.dispatcher.tolist()) == {0} and set(every.dispatcher.tolist()) == {0, 1, 2}
    alone = usual.ep * usual.etp == 1
    assert len(every) == 3 * len(usual) - 2 * int(alone.sum())
    assert not every.dispatcher[every.ep * every.etp == 1].any()
    beside = replace(CORE, overlap=replace(CORE.overlap, expert=True))
    possible = reasons(every, work, cluster, beside) == FEASIBLE
    assert set(every.dispatcher[possible].tolist()) == {0, 2}


def test_a_call_starts_with_one_token_and_a_message_to_every_expert() -> None:
    """10 us, 1 kB at 1 GB/s, 10 ns for each of 256 experts and 40 more for the half beyond."""
    figures = dispatch_figures(
        Dispatch(
            start_s=Figure(10e-6),
            token_bytes_per_s=Figure(1e9),
            expert_s=Figure(10e-9),
            network_expert_s=Figure(40e-9),
            link_fraction=Figure(1.0),
            sharpness=Figure(1.0),
        )
    )
    nothing = Traffic(
        token_bytes=0.0,
        row_bytes=1e3,
        near=1.0,
        far=1.0,
        experts=256,
        share_beyond=0.5,
        link_bytes_per_s=1e9,
        far_bytes_per_s=1e9,
    )
    expected = 10e-6 + 1e-6 + 256 * 10e-9 + 128 * 40e-9
    assert exchange_s(figures, nothing) == pytest.approx(expected)


def test_units_pay_for_copies_and_for_their_bytes() -> None:
    """A thousand tokens of 1 kB, twice each: ten units of 1 GB/s that take 1 us more for each."""
    figures = dispatch_figures(
        Dispatch(
            start_s=Figure(1e-12),
            unit_bytes_per_s=Figure(1e9),
            unit_copy_s=Figure(1e-6),
            link_fraction=Figure(1.0),
            sharpness=Figure(1.0),
        )
    )
    tokens = Traffic(
        token_bytes=1e6,
        row_bytes=1e3,
        near=2.0,
        far=0.0,
        experts=8,
        share_beyond=0.0,
        link_bytes_per_s=1e15,
        far_bytes_per_s=1.0,
    )
    assert exchange_s(figures, tokens, units=10) == pytest.approx(2000 * (1e-6 + 1e-6) / 10)


@pytest.mark.parametrize(
    ("machine", "ranks", "units", "row_bytes", "dispatch", "combine"),
    [
        ("gb200-nvl72", 8, 16, 14336, 750.15, 684.27),
        ("gb200-nvl72", 8, 32, 14336, 764.03, 737.13),
        ("gb200-nvl72", 16, 16, 14336, 661.93, 600.75),
        ("gb200-nvl72", 36, 16, 14336, 612.85, 543.27),
        ("gb200-nvl72", 36, 32, 14336, 632.31, 596.99),
        ("gb200-nvl72", 8, 16, 7392, 620.98, None),  # fp8: 7168 bytes and 56 scales in fp32
        ("gb200-nvl72", 16, 16, 7392, 577.17, None),
        ("dgx-b200", 8, 16, 14336, 734.95, 673.84),
        ("dgx-b200", 8, 16, 7392, 599.27, None),
    ],
)
def test_kernels_of_hybridep_move_what_their_authors_measured(
    machine: str,
    ranks: int,
    units: int,
    row_bytes: int,
    dispatch: float,
    combine: float | None,
) -> None:
    """GB/s of what arrives (deepseek-ai/DeepEP docs/README_Hybrid-EP.md): 4,096 tokens, 8 of 8 n.

    Kernels alone, without what a call has around them, its start.
    """
    cluster = load_cluster(machine, 72 if ranks > 8 else 8)
    group = Group(size=np.array([ranks]), local=np.array([ranks]))
    tokens, experts = 4096 * row_bytes, 8 * ranks
    arriving = tokens * float(reached_places(ranks, picks=8, experts=experts))
    for way, published in (("dispatch", dispatch), ("combine", combine)):
        if published is None:
            continue
        known = cluster.library.dispatch["hybridep"][cluster.board][way]
        call = {"experts": experts, "row_bytes": row_bytes, "way": way, "library": "hybridep"}
        seconds = float(dispatch_s(cluster, tokens, 8, group, units=units, **call)[0])
        rate = arriving / (seconds - float(known.start_s)) / 1e9
        assert rate == pytest.approx(published, rel=0.09)


def test_small_tokens_keep_hybridep_from_filling_links() -> None:
    """A unit takes as long for a token of 4 kB as for one of 14 kB: half the bytes a second."""
    cluster = load_cluster("dgx-b200", 8)
    group = Group(size=np.array([8]), local=np.array([8]))
    start = float(cluster.library.dispatch["hybridep"][cluster.board]["dispatch"].start_s)

    def rate(row_bytes: int) -> float:
        call = {"experts": 128, "row_bytes": row_bytes, "library": "hybridep"}
        seconds = dispatch_s(cluster, 1e6 * row_bytes, 8, group, **call)
        return 1e6 * row_bytes / (float(seconds[0]) - start)

    assert 0.4 < rate(4096) / rate(14336) < 0.65


@pytest.mark.parametrize(("ranks", "way", "tokens"), [(16, "dispatch", 20), (32, "combine", 8)])
def test_messages_that_a_thread_of_the_host_posts_wait_for_each_other(
    ranks: int, way: str, tokens: int
) -> None:
    """DeepEP's chunks (deep_ep/buffers/legacy.py) over EFA: each waits 0.4 of the hop's 23.3 us.

    16 ranks have 2 servers of 8, 32 have 4. As many experts as ranks and as many picks as experts:
    every token goes to every server, and rate and start are nothing beside the waits.
    """
    efa, ib = load_cluster("aws-p5", 64), load_cluster("dgx-h100", 64)
    group = Group(size=np.array([ranks]), local=np.array([8]))
    sent = 1e6
    call = {"experts": ranks, "row_bytes": 1.0, "way": way}
    waits = sent * (ranks // 8 - 1) / tokens * 0.4 * 23.3e-6
    assert dispatch_s(efa, sent, ranks, group, **call)[0] == pytest.approx(waits, rel=0.02)
    assert dispatch_s(ib, sent, ranks, group, **call)[0] < 0.2 * waits  # kernels ring adapters
    hybrid = dispatch_s(efa, sent, ranks, group, library="hybridep", **call)
    assert hybrid[0] < 0.5 * waits  # not DeepEP's chunks
    alone = Group(size=np.array([8]), local=np.array([8]))
    inside = [dispatch_s(c, sent, 8, alone, **(call | {"experts": 8})) for c in (efa, ib)]
    assert inside[0] == pytest.approx(inside[1], rel=1e-6)


def test_a_host_that_posts_messages_does_not_run_ahead_of_them() -> None:
    """Of a host that binds: beside what it launches the step has all of the messages' waits.

    Where kernels ring the adapters, the same step hides its exchange behind the host.
    """
    work = Workload(architecture=MIXTRAL, recipe=Recipe(sequence_length=S, global_batch=16))
    layout = Layouts.of(global_batch=16, dp=16, ep=8, etp=2, tp=2, dispatcher="deepep")
    host = replace(CORE.host, seconds_per_kernel=Figure(1.0))
    efa = load_cluster("aws-p5", 32)
    rung = replace(efa.node, scale_out=replace(efa.node.scale_out, kind="infiniband"))
    posted, hidden = (
        evaluate(layout, work, cluster, replace(CORE, host=host))
        for cluster in (efa, replace(efa, groups=(replace(efa.groups[0], node=rung),)))
    )
    waits = float(posted.terms_s["ep"][0])
    assert waits > 0.01
    more = float(posted.step_time_s[0] - hidden.step_time_s[0])
    assert more == pytest.approx(waits, rel=1e-3)


def test_what_no_vendor_tunes_is_slower_on_its_devices() -> None:
    """Products and attention of Megatron-LM over those of AMD's Primus on MI325X: 1 / 0.76."""
    work = Workload(architecture=MIXTRAL, recipe=Recipe(sequence_length=S, global_batch=8))
    layout, cluster = Layouts.of(global_batch=8, dp=8), load_cluster("mi325x-8", 8)
    primus = load_software("primus")
    tuned = evaluate(layout, work, cluster, primus).terms_s
    for other in (replace(primus, tuned_by="NVIDIA"), replace(primus, framework="lumen")):
        plain = evaluate(layout, work, cluster, other).terms_s
        for term, ratio in {"gemm": 1 / 0.76, "attention": 1 / 0.76, "memory_bound": 1.0}.items():
            assert plain[term][0] / tuned[term][0] == pytest.approx(ratio, rel=1e-6)
