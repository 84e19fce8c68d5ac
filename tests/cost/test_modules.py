"""Selective recomputation by module: bytes that are dropped, FLOPs that are repeated, by hand."""

from dataclasses import replace
from typing import Any

import pytest

from simulator.cost.operators.operations import recomputes
from simulator.cost.rank_memory import rank_memory
from simulator.cost.step import Estimate, evaluate
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.profile import Software, load_software
from simulator.workload import presets
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Recipe, Workload
from tests.cost.test_volumes import RATE, slow_inside

S, M = 4096, 4
CORE = load_software("megatron-core")
LLAMA = presets.load("llama-3.1-8b")  # h 4096, f 14336, 32 layers
MIXTRAL = presets.load("mixtral-8x7b")
DEEPSEEK = presets.load("deepseek-v3")
DENSE_MLA = replace(DEEPSEEK, layer_kinds=(0,) * 8)  # latent attention, dense MLP of 18432
SPARSE_MLA = replace(DEEPSEEK, layer_kinds=(1,) * 8)  # 8 of 256 experts of 2048, one shared


def recomputing(*modules: Any, fused: bool = True) -> Software:
    kernels = replace(CORE.kernels, selective_modules=modules)
    if not fused:
        kernels = replace(kernels, fused=())
    return replace(CORE, kernels=kernels)


def run(software: Software, arch: Architecture, recompute: str, **layout: Any) -> Estimate:
    """Four micro-batches of one sequence."""
    work = Workload(architecture=arch, recipe=Recipe(sequence_length=S, global_batch=M))
    table = Layouts.of(global_batch=M, recompute=recompute, **layout)
    return evaluate(table, work, load_cluster("dgx-h100", 8), software)


def dropped(software: Software, arch: Architecture, **layout: Any) -> float:
    """Bytes of one block and token that selective recomputation does not keep."""
    none, some = (
        float(run(software, arch, mode, **layout).memory_bytes["activations"][0])
        for mode in ("none", "selective")
    )
    return (none - some) / (arch.layers * S)


def repeated(software: Software, arch: Architecture, **layout: Any) -> float:
    """FLOPs that one block and token repeats."""
    found = run(software, arch, "selective", **layout)
    return float(found.executed_flop[0] - found.model_flop) / (arch.layers * S * M)


def recompute_s(software: Software, arch: Architecture = LLAMA, mode: str = "selective") -> float:
    return float(run(software, arch, mode).terms_s["recompute"][0])


def test_an_operator_may_belong_to_several_modules() -> None:
    assert recomputes("mlp+mlp_act", ["mlp"]) and recomputes("mlp+mlp_act", ("mlp_act", "norm"))
    assert not recomputes("mlp+mlp_act", ["norm"])
    assert not recomputes("mlp", ["mlp_act"])  # a name is a whole word
    assert not recomputes("", ["norm"])
    assert not recomputes("norm", [])


def test_the_dense_mlp_keeps_its_input_only() -> None:
    """Both halves of fc1's output and the product of gate and up: 6 f bytes; 6 h f FLOPs."""
    f, h = 14336, 4096
    assert dropped(recomputing("mlp"), LLAMA) == pytest.approx(6 * f, rel=1e-9)
    assert repeated(recomputing("mlp"), LLAMA) == pytest.approx(6 * h * f, rel=1e-6)


def test_the_activation_of_a_dense_mlp_costs_no_product() -> None:
    assert dropped(recomputing("mlp_act"), LLAMA) == pytest.approx(2 * 14336, rel=1e-9)
    assert repeated(recomputing("mlp_act"), LLAMA) == 0.0


def test_an_unfused_activation_keeps_its_gate_too() -> None:
    found = dropped(recomputing("mlp_act", fused=False), LLAMA)
    assert found == pytest.approx(2 * 2 * 14336, rel=1e-9)
    whole = dropped(recomputing("mlp", fused=False), LLAMA)
    assert whole == pytest.approx(4 * 2 * 14336, rel=1e-9)


def test_a_module_and_its_part_are_recomputed_once() -> None:
    both, one = recomputing("mlp", "mlp_act"), recomputing("mlp")
    assert dropped(both, LLAMA) == dropped(one, LLAMA)
    assert repeated(both, LLAMA) == repeated(one, LLAMA)
    assert recompute_s(both) == recompute_s(one)


def test_the_dense_mlp_of_a_model_of_experts_is_no_expert() -> None:
    assert dropped(recomputing("mlp"), MIXTRAL) == 0.0
    assert repeated(recomputing("mlp"), MIXTRAL) == 0.0
    assert recompute_s(recomputing("mlp"), MIXTRAL) == 0.0


def test_the_activation_of_the_experts_is_that_of_every_copy() -> None:
    # two experts for each token; DeepSeek eight and the shared one
    assert dropped(recomputing("mlp_act"), MIXTRAL) == pytest.approx(2 * 2 * 14336, rel=1e-9)
    found = dropped(recomputing("mlp_act"), SPARSE_MLA)
    assert found == pytest.approx(2 * (8 + 1) * 2048, rel=1e-9)
    assert repeated(recomputing("mlp_act"), SPARSE_MLA) == 0.0


def test_experts_keep_the_input_of_their_layer_only() -> None:
    """Router, sorted tokens, both inner tensors and their product go; all products are repeated."""
    h, f, k, count = 4096, 14336, 2, 8
    found = dropped(recomputing("moe"), MIXTRAL)
    assert found == pytest.approx(24 * count + k * (2 * h + 6 * f), rel=1e-9)
    again = repeated(recomputing("moe"), MIXTRAL)
    assert again == pytest.approx(2 * h * count + k * 6 * h * f, rel=1e-6)
    # DeepSeek-V3: 8 of 256 experts of 2048, and the shared one, which is part of the module
    h, f = 7168, 2048
    found = dropped(recomputing("moe"), SPARSE_MLA)
    assert found == pytest.approx(24 * 256 + 8 * (2 * h + 6 * f) + 6 * f, rel=1e-9)
    again = repeated(recomputing("moe"), SPARSE_MLA)
    assert again == pytest.approx(2 * h * 256 + 9 * 6 * h * f, rel=1e-6)


def test_shared_experts_and_the_activation_of_routed_ones() -> None:
    h, f = 7168, 2048
    shared, act = recomputing("shared_experts"), recomputing("moe_act")
    assert dropped(shared, SPARSE_MLA) == pytest.approx(6 * f, rel=1e-9)
    assert repeated(shared, SPARSE_MLA) == pytest.approx(6 * h * f, rel=1e-6)
    assert dropped(act, SPARSE_MLA) == pytest.approx(8 * 2 * f, rel=1e-9)
    assert repeated(act, SPARSE_MLA) == 0.0
    # no such module, nothing to drop
    assert dropped(shared, MIXTRAL) == 0.0 == recompute_s(shared, MIXTRAL)
    assert dropped(act, LLAMA) == 0.0 == dropped(recomputing("moe"), LLAMA)
    # a part of the whole is recomputed once
    both = recomputing("moe", "moe_act", "shared_experts")
    assert dropped(both, SPARSE_MLA) == dropped(recomputing("moe"), SPARSE_MLA)
    assert recompute_s(both, SPARSE_MLA) == recompute_s(recomputing("moe"), SPARSE_MLA)


def slow_s(software: Software, arch: Architecture, term: str, **layout: Any) -> float:
    """One term on links of 1 kB/s, where nothing else takes time."""
    recipe = Recipe(sequence_length=S, global_batch=M * layout.get("dp", 1))
    table = Layouts.of(global_batch=recipe.global_batch, recompute="selective", **layout)
    work = Workload(architecture=arch, recipe=recipe)
    return float(evaluate(table, work, slow_inside(), software).terms_s[term][0])


@pytest.mark.parametrize("way", ["alltoall", "allgather", "deepep"])
def test_recomputed_experts_are_sent_their_tokens_again(way: str) -> None:
    """Dispatch and combine of the forward pass, two of the four exchanges of a step."""
    layout = {"dp": 8, "ep": 8, "dispatcher": way}
    usual = slow_s(recomputing("moe_act"), MIXTRAL, "ep", **layout)
    again = slow_s(recomputing("moe"), MIXTRAL, "recompute", **layout)
    assert again == pytest.approx(usual / 2, rel=1e-3)
    # another micro-batch may hide the exchanges of a pass, not those of its repetition
    software = recomputing("moe")
    beside = replace(software, overlap=replace(software.overlap, expert=True))
    assert slow_s(beside, MIXTRAL, "recompute", **layout) == pytest.approx(again, rel=1e-9)


@pytest.mark.parametrize(
    ("module", "arch", "width"),
    [
        ("mlp", DENSE_MLA, 2 * 7168),  # gathered before, scattered behind
        ("shared_experts", SPARSE_MLA, 2 * 7168),
        ("mla_up_proj", DENSE_MLA, 1536 + 512),  # the compressed inputs; rotary keys came before
    ],
)
def test_recomputed_modules_gather_and_scatter_again(
    module: str, arch: Architecture, width: int
) -> None:
    found = slow_s(recomputing(module), arch, "recompute", tp=8, etp=1)
    assert found == pytest.approx(8 * M * 2 * S * width * 7 / 8 / RATE, rel=2e-3)


@pytest.mark.parametrize("arch", [DENSE_MLA, SPARSE_MLA])
def test_up_projections_of_latent_attention(arch: Architecture) -> None:
    """128 heads: queries and keys of 192, values of 128; from ranks of 1536 and 512."""
    software = recomputing("mla_up_proj")
    assert dropped(software, arch) == pytest.approx(2 * 128 * (192 + 192 + 128), rel=1e-9)
    products = 2 * (1536 * 128 * 192 + 512 * 128 * (128 + 128))
    assert repeated(software, arch) == pytest.approx(products, rel=1e-6)


def test_up_projections_without_a_latent_query() -> None:
    """DeepSeek-V2-Lite projects queries at once, in the same checkpoint: 7168 x 128 x 192."""
    lite = replace(DENSE_MLA.blocks[0].attention, q_lora_rank=0)
    arch = replace(DENSE_MLA, blocks=(replace(DENSE_MLA.blocks[0], attention=lite),))
    products = 2 * (7168 * 128 * 192 + 512 * 128 * (128 + 128))
    assert repeated(recomputing("mla_up_proj"), arch) == pytest.approx(products, rel=1e-6)


def test_models_without_latent_attention_have_no_up_projections() -> None:
    for arch in (LLAMA, MIXTRAL):
        assert dropped(recomputing("mla_up_proj"), arch) == 0.0
        assert recompute_s(recomputing("mla_up_proj"), arch) == 0.0


def test_tensor_ranks_drop_and_repeat_their_share() -> None:
    for modules, arch in ((("mlp",), LLAMA), (("mla_up_proj",), DENSE_MLA)):
        software = recomputing(*modules)
        whole = dropped(software, arch)
        assert dropped(software, arch, tp=8) == pytest.approx(whole / 8, rel=1e-9)
        # executed FLOPs are those of all ranks together
        assert repeated(software, arch, tp=8) == pytest.approx(repeated(software, arch), rel=1e-6)


def test_modules_add_up() -> None:
    """As DeepSeek-V3 runs on H100: up-projections and dense MLPs."""
    one, two = recomputing("mla_up_proj"), recomputing("mlp")
    both = recomputing("mla_up_proj", "mlp")
    for count in (dropped, repeated):
        expected = count(one, DENSE_MLA) + count(two, DENSE_MLA)
        assert count(both, DENSE_MLA) == pytest.approx(expected, rel=1e-9)
    seconds = recompute_s(one, DENSE_MLA) + recompute_s(two, DENSE_MLA)
    assert recompute_s(both, DENSE_MLA) == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize("arch", [LLAMA, MIXTRAL, DENSE_MLA, SPARSE_MLA])
def test_recomputing_modules_costs_less_than_recomputing_everything(arch: Architecture) -> None:
    every = recomputing("core_attn", "norm", "mlp", "mlp_act", "moe_act", "mla_up_proj")
    assert 0 < recompute_s(every, arch) < recompute_s(every, arch, mode="full")
    held = [
        float(run(every, arch, mode).memory_bytes["activations"][0])
        for mode in ("full", "selective", "none")
    ]
    assert held[0] < held[1] < held[2]


def test_a_product_takes_as_long_again() -> None:
    """The forward pass of gate, up and down: a third of what the products of an MLP take."""
    software = recomputing("mlp")
    without = replace(LLAMA.blocks[0], mlp=replace(LLAMA.blocks[0].mlp, ffn_hidden=128))
    small = replace(LLAMA, blocks=(without,))
    products = [float(run(software, x, "none").terms_s["gemm"][0]) for x in (LLAMA, small)]
    found = recompute_s(software)
    # and the activation, memory-bound
    assert (products[0] - products[1]) / 3 == pytest.approx(found, rel=0.12)
    assert found > 0.95 * (products[0] - products[1]) / 3


@pytest.mark.parametrize(
    ("module", "arch"),
    [
        ("mlp", DENSE_MLA),
        ("mlp_act", DENSE_MLA),
        ("mlp_act", SPARSE_MLA),
        ("mla_up_proj", DENSE_MLA),
        ("mla_up_proj", SPARSE_MLA),
        ("norm", SPARSE_MLA),
        ("moe", SPARSE_MLA),
        ("shared_experts", SPARSE_MLA),
    ],
)
def test_a_block_rebuilds_what_it_dropped(module: str, arch: Architecture) -> None:
    """On the first of two stages, whose four blocks have two micro-batches in flight."""
    work = Workload(architecture=arch, recipe=Recipe(sequence_length=S, global_batch=M))
    none, some = (
        rank_memory(
            Layouts.of(global_batch=M, pp=2, recompute=mode),
            work,
            load_cluster("dgx-h100", 2),
            recomputing(module),
        )
        for mode in ("none", "selective")
    )
    gone = none.kinds_bytes["activations"][0] - some.kinds_bytes["activations"][0]
    more = some.kinds_bytes["temporaries"][0] - none.kinds_bytes["temporaries"][0]
    assert gone > 0 and more == pytest.approx(gone / (4 * 2), rel=1e-9)
