"""Expert traffic beside the compute of another micro-batch: never slower, nothing lost."""

from dataclasses import replace
from typing import Any

import pytest

from simulator.cost.step import Estimate, evaluate
from simulator.files import Figure
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.profile import Software, load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

CORE = load_software("megatron-core")
BESIDE = replace(CORE, overlap=replace(CORE.overlap, expert=True))
COMPUTE = ("gemm", "attention", "memory_bound")


def servers(domain: int, gpus: int = 64) -> Cluster:
    """DGX H100 of which `domain` accelerators share NVLink."""
    base = load_cluster("dgx-h100", gpus)
    links = replace(base.node.scale_up, domain=domain)
    node = replace(base.node, scale_up=links)
    return replace(base, groups=(replace(base.groups[0], node=node),))


def run(software: Software, model: str, cluster: Cluster, **layout: Any) -> Estimate:
    """Four micro-batches of one sequence on every data-parallel rank."""
    batch = 4 * layout["dp"]
    recipe = Recipe(sequence_length=4096, global_batch=batch)
    work = Workload(architecture=presets.load(model), recipe=recipe)
    return evaluate(Layouts.of(global_batch=batch, **layout), work, cluster, software)


CASES = [
    ("mixtral-8x7b", 8, {"dp": 64, "ep": 8}),
    ("mixtral-8x7b", 1, {"dp": 64, "ep": 8, "sharding": "zero3"}),
    ("mixtral-8x7b", 8, {"dp": 32, "tp": 2, "ep": 4, "etp": 2}),
    ("deepseek-v3", 8, {"dp": 64, "ep": 64, "sharding": "zero1"}),
    ("deepseek-v3", 1, {"dp": 64, "ep": 64, "sharding": "zero3"}),
    ("deepseek-v3", 1, {"dp": 64, "ep": 64, "sharding": "zero3", "recompute": "full"}),
    ("deepseek-v3", 8, {"dp": 8, "pp": 8, "ep": 8, "sharding": "zero1"}),
    ("deepseek-v3", 1, {"dp": 16, "pp": 2, "vpp": 2, "cp": 2, "ep": 32, "sharding": "zero1"}),
]


@pytest.mark.parametrize("way", ["alltoall", "deepep"])
@pytest.mark.parametrize(("model", "domain", "layout"), CASES)
def test_hiding_expert_traffic_is_never_slower_and_loses_nothing(
    model: str, domain: int, layout: dict[str, Any], way: str
) -> None:
    cluster = servers(domain)
    waits, hides = (
        run(software, model, cluster, dispatcher=way, **layout) for software in (CORE, BESIDE)
    )
    # a shorter pass leaves less for host and gradients to hide behind: three thousandths at most
    assert hides.step_time_s[0] <= waits.step_time_s[0] * (1 + 3e-3)
    assert waits.hidden_s["ep"][0] == 0.0
    shown, hidden = float(hides.terms_s["ep"][0]), float(hides.hidden_s["ep"][0])
    assert shown + hidden == pytest.approx(float(waits.terms_s["ep"][0]), rel=1e-9)
    assert 0 < hidden <= sum(float(hides.terms_s[name][0]) for name in COMPUTE)
    for found in (waits, hides):
        assert all((x >= 0).all() for x in (*found.terms_s.values(), *found.hidden_s.values()))


@pytest.mark.parametrize("sharding", ["ddp", "zero1", "zero2", "zero3"])
def test_other_communication_is_never_longer_than_it_lasts(sharding: str) -> None:
    """Traffic that outlasts its own pass leaves no window for gradients, and not less than none."""
    model, layout = "deepseek-v3", {"dp": 64, "ep": 64, "sharding": sharding}
    overlap = replace(
        CORE.overlap, gradient_reduce=False, parameter_gather=False, sharded_prefetch=False
    )
    for domain in (1, 8):
        cluster = servers(domain)
        alone = run(replace(CORE, overlap=overlap), model, cluster, **layout)
        beside = run(BESIDE, model, cluster, **layout)
        for name in ("fsdp", "dp"):
            both = float(beside.terms_s[name][0] + beside.hidden_s[name][0])
            assert both == pytest.approx(float(alone.terms_s[name][0]), rel=1e-9, abs=1e-9), name
            assert beside.hidden_s[name][0] >= -1e-12, name


def test_traffic_on_links_of_no_weight_hides_whole() -> None:
    base = servers(8)
    fast = replace(base.node.scale_up, all_to_all_bytes_per_s=Figure(1e15))
    node = replace(base.node, scale_up=fast)
    cluster = replace(base, groups=(replace(base.groups[0], node=node),))
    found = run(BESIDE, "mixtral-8x7b", cluster, dp=64, ep=8)
    # of four micro-batches the first goes forward and the last goes back alone
    assert found.terms_s["ep"][0] == pytest.approx(float(found.hidden_s["ep"][0]) / 3, rel=1e-9)
    assert found.terms_s["ep"][0] > 0


def test_traffic_that_outlasts_all_compute_shows_the_rest() -> None:
    base = servers(8)
    slow = replace(base.node.scale_up, all_to_all_bytes_per_s=Figure(1e6))
    node = replace(base.node, scale_up=slow)
    cluster = replace(base, groups=(replace(base.groups[0], node=node),))
    found = run(BESIDE, "mixtral-8x7b", cluster, dp=64, ep=8)
    alone = run(CORE, "mixtral-8x7b", cluster, dp=64, ep=8)
    # of the compute only the blocks' hides it: embedding and head have no other block beside them;
    # and of four micro-batches one has no other
    compute = 0.75 * sum(float(alone.terms_s[name][0]) for name in COMPUTE)
    hidden = float(found.hidden_s["ep"][0])
    assert 0.9 * compute < hidden < compute
    assert found.terms_s["ep"][0] == pytest.approx(float(alone.terms_s["ep"][0]) - hidden, rel=1e-9)


def test_a_dense_model_has_nothing_to_hide() -> None:
    one, other = (run(x, "llama-3.1-8b", servers(8), dp=64) for x in (CORE, BESIDE))
    assert one.step_time_s[0] == other.step_time_s[0]


def test_sending_tokens_once_is_never_slower() -> None:
    for model, domain, layout in CASES:
        cluster = servers(domain)
        all_copies, once = (
            run(CORE, model, cluster, dispatcher=way, **layout) for way in ("alltoall", "deepep")
        )
        # two experts a token on eight GPUs: hardly a copy is spared, and DeepEP starts later
        assert once.step_time_s[0] <= all_copies.step_time_s[0] * 1.02, (model, layout)


def test_a_single_micro_batch_has_none_to_hide_behind() -> None:
    """Nor has the first of several, on its way forward, or the last on its way back."""
    recipe = Recipe(sequence_length=4096, global_batch=8)
    work = Workload(architecture=presets.load("mixtral-8x7b"), recipe=recipe)
    cluster = load_cluster("dgx-h100", 8)
    table = Layouts.of(dp=8, ep=8, global_batch=8)
    one, other = (evaluate(table, work, cluster, x) for x in (CORE, BESIDE))
    assert other.hidden_s["ep"][0] == 0.0
    assert other.step_time_s[0] == pytest.approx(float(one.step_time_s[0]), rel=1e-12)


def batches(software: Software, micro_batches: int, **layout: Any) -> Estimate:
    batch = micro_batches * layout["dp"]
    recipe = Recipe(sequence_length=4096, global_batch=batch)
    work = Workload(architecture=presets.load("mixtral-8x7b"), recipe=recipe)
    return evaluate(Layouts.of(global_batch=batch, **layout), work, servers(8), software)


@pytest.mark.parametrize("m", [2, 4, 16])
def test_all_but_one_of_m_micro_batches_hide_their_traffic(m: int) -> None:
    found = batches(BESIDE, m, dp=64, ep=8)
    whole = float(batches(CORE, m, dp=64, ep=8).terms_s["ep"][0])
    assert found.hidden_s["ep"][0] == pytest.approx(whole * (m - 1) / m, rel=1e-9)


@pytest.mark.parametrize(
    ("layout", "alone"),
    [
        ({"pp": 4, "dp": 16, "ep": 8}, 1.0),
        # last rank: (v - 1) pp + 1 chunk passes forward before its first one back
        ({"pp": 4, "vpp": 2, "dp": 16, "ep": 8}, 5 / 2),
        ({"pp": 4, "vpp": 4, "dp": 16, "ep": 8}, 13 / 4),
        ({"pp": 4, "dp": 16, "ep": 8, "schedule": "gpipe"}, 16.0),
        ({"pp": 4, "dp": 16, "ep": 8, "schedule": "pipedream"}, 0.0),
    ],
)
def test_passes_without_another_beside_them(layout: dict[str, Any], alone: float) -> None:
    """Of sixteen micro-batches; what fills and drains the pipeline hides nothing either."""
    waits, hides = (batches(software, 16, **layout) for software in (CORE, BESIDE))
    whole = float(waits.terms_s["ep"][0])
    assert hides.hidden_s["ep"][0] == pytest.approx(whole * (16 - alone) / 16, rel=1e-9, abs=1e-12)
    assert hides.terms_s["ep"][0] == pytest.approx(whole * alone / 16, rel=1e-9, abs=1e-12)
    for name in ("bubble_warmup", "bubble_drain"):
        assert hides.terms_s[name][0] == pytest.approx(float(waits.terms_s[name][0]), rel=1e-9)


@pytest.mark.parametrize("m", [1, 4])
def test_a_block_of_the_next_micro_batch_is_there_beside_the_one_going_back(m: int) -> None:
    """Pairs go layer by layer: one whole set of activations, and one layer's of the other set."""
    layout = {"dp": 64, "ep": 8}
    small = replace(presets.load("mixtral-8x7b"), vocabulary=1024)  # the loss is not the peak
    recipe = Recipe(sequence_length=4096, global_batch=64 * m)
    work = Workload(architecture=small, recipe=recipe)
    table = Layouts.of(global_batch=64 * m, **layout)
    waits, hides = (evaluate(table, work, servers(8), x) for x in (CORE, BESIDE))
    more = float((hides.memory_total_bytes - waits.memory_total_bytes)[0])
    block = float(waits.memory_bytes["activations"][0]) / 32
    fragmentation = 1.05
    assert more == pytest.approx(block * fragmentation * (m > 1), rel=1e-6)


def test_recomputed_blocks_begin_with_their_input_only() -> None:
    layout = {"dp": 64, "ep": 8, "recompute": "full"}
    waits, hides = (batches(software, 4, **layout) for software in (CORE, BESIDE))
    more = float((hides.memory_total_bytes - waits.memory_total_bytes)[0])
    assert more == pytest.approx(1.05 * 2 * 4096 * 4096, rel=1e-6)
