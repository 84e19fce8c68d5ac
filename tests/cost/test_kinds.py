"""Kinds of attention and MLP beyond a plain decoder's: FLOPs by hand, shards, uneven experts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.operators.block_operators import block
from simulator.cost.operators.ends import embedding, head
from simulator.cost.operators.matrices import expert_parameters, rank_parameters
from simulator.cost.operators.model_flop import model_flop_per_step, seen_keys
from simulator.cost.operators.operations import Operators, Ranks
from simulator.cost.step import evaluate
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.layout.placement import place
from simulator.layout.stages import stages
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.architecture import MLP, Architecture, Attention, Block
from simulator.workload.recipe import Recipe, Workload

KERNELS = replace(load_software("megatron-core").kernels, pads_vocabulary_to=1)
FLASHED = (
    *("gemma-2-9b", "gpt-oss-20b", "phi-3-mini", "falcon-7b", "opt-66b", "mpt-7b", "bert-large"),
    *("vit-large-16", "swin-base", "t5-11b", "t5-v1.1-xxl", "switch-base-128"),
)


def ranks(**degrees: Any) -> Ranks:
    layout = Layouts.of(**degrees)
    return Ranks(
        **{name: getattr(layout, name).astype(float) for name in ("tp", "cp", "ep", "etp")},
        micro_batch=layout.micro_batch.astype(float),
        sequence_parallel=layout.sequence_parallel.astype(bool),
        groups=place(layout, 8),
    )


def parts(arch: Architecture, recipe: Recipe, **degrees: Any) -> list[Operators]:
    """Operators of every layer, the embedding and the head on one rank."""
    some = ranks(**degrees)
    kinds = [block(kind, arch.hidden, some, recipe, KERNELS) for kind in arch.blocks]
    whole = [kinds[kind] for kind in arch.layer_kinds]
    return [*whole, embedding(arch, some, recipe, KERNELS), head(arch, some, recipe, KERNELS)]


def forward_flop(of: list[Operators]) -> float:
    flop = sum(float(np.sum(2 * g.batch * g.m * g.n * g.k)) for part in of for g in part.gemms)
    return flop + sum(float(np.sum(call.flop)) for part in of for call in part.flash)


@pytest.mark.parametrize("name", FLASHED)
def test_forward_flop_of_all_operators_are_a_third_of_the_model_flop(name: str) -> None:
    arch = presets.load(name)
    length = arch.max_positions if arch.patch_values else 512
    for written in (0, 128) if arch.is_encoder_decoder else (0,):
        recipe = Recipe(sequence_length=length, global_batch=1, decoder_length=written)
        expected = model_flop_per_step(
            arch, tokens=length, sequence_length=length, decoder_length=written
        )
        assert forward_flop(parts(arch, recipe)) == pytest.approx(expected / 3, rel=1e-12)


@pytest.mark.parametrize(
    ("attention", "keys"),
    [
        ({}, 500),  # half of 1000
        ({"window": 200}, 200 - 20),  # 200 keys for all but the first 200 queries, half for those
        ({"window": 4000}, 500),
        ({"causal": False}, 1000),
        ({"causal": False, "window": 49}, 49),
    ],
)
def test_keys_that_a_query_meets(attention: dict[str, Any], keys: float) -> None:
    att = Attention(heads=1, kv_heads=1, head_dim=64, **attention)
    assert seen_keys(att, 1000) == keys


def test_an_encoder_layer_by_hand() -> None:
    # BERT-large at 512 tokens: 12 h^2 weights of 2 FLOPs, 4 s h of scores for every token
    arch, s, h = presets.load("bert-large"), 512, 1024
    one = block(arch.blocks[0], h, ranks(), Recipe(sequence_length=s, global_batch=1), KERNELS)
    assert forward_flop([one]) == s * (24 * h * h + 4 * s * h)


def test_a_decoder_layer_reads_the_encoder_once_per_token_of_either_side() -> None:
    # T5-11B: 128 heads of 128 on a width of 1024; 300 tokens read, 100 written
    arch, read, written = presets.load("t5-11b"), 300, 100
    kind = next(k for k in arch.blocks if k.cross_attention and not k.starts_decoder)
    recipe = Recipe(sequence_length=read, global_batch=1, decoder_length=written)
    wide, h, f = 128 * 128, 1024, 65536
    own = 4 * h * wide + 2 * h * wide + 2 * h * f  # self attention, q and o of cross, MLP
    scores = 4 * wide * (written * written / 2 + written * read)
    expected = 2 * (written * own + read * 2 * h * wide) + scores
    assert forward_flop([block(kind, h, ranks(), recipe, KERNELS)]) == expected


def test_localized_filtering_by_hand() -> None:
    """Two convolutions over two tokens: h to h/2 and back, 2 h^2 weights; h norm, biases."""
    h, s, heads = 2048, 1024, 32
    plain = Block(
        attention=Attention(heads=heads, kv_heads=heads, head_dim=64), mlp=MLP(ffn_hidden=8192)
    )
    filtered = replace(plain, attention=replace(plain.attention, filtered=True))
    assert filtered.parameters(h) - plain.parameters(h) == 2 * h * h + h // 2 + h + h
    recipe = Recipe(sequence_length=s, global_batch=1)
    more, less = (forward_flop([block(k, h, ranks(), recipe, KERNELS)]) for k in (filtered, plain))
    assert more - less == 2 * s * 2 * h * h


def held(arch: Architecture, pp: int, tp: int = 1) -> list[float]:
    per_part = rank_parameters(arch, tp=tp, pp=pp, kernels=KERNELS)
    per_part = per_part + expert_parameters(arch, ep=1, etp=1)
    table = stages(
        pp=pp, vpp=1, micro_batches=pp, layer_kinds=arch.layer_kinds, kinds=len(arch.blocks)
    )
    count = np.column_stack([table.blocks, table.embedding, table.head])
    return (count * per_part).sum(axis=1).tolist()


@pytest.mark.parametrize(("pp", "copies"), [(1, 0), (2, 1), (4, 2), (8, 2)])
def test_tables_of_an_encoder_decoder_split_over_stages(pp: int, copies: int) -> None:
    """Input on the first stage, the decoder's input where it begins, the output on the last."""
    arch = presets.load("t5-11b")
    table = arch.vocabulary * arch.hidden
    assert sum(held(arch, pp)) == arch.parameters + copies * table


def test_tensor_ranks_share_sinks_biases_and_tables_of_distances() -> None:
    # attention of gpt-oss-20b: 64 heads, 8 of keys and values, of 64, all with biases, a sink each
    arch, t = presets.load("gpt-oss-20b"), 8
    att, h = arch.blocks[0].attention, arch.hidden
    q, kv = 64 * 64 // t, 8 * 64 // t
    shard = h * (2 * q + 2 * kv) + (q + 2 * kv) + h + att.heads // t
    router, norms = 32 * (h + 1), 2 * h
    assert rank_parameters(arch, tp=t, pp=1, kernels=KERNELS)[0] == shard + router + norms


def moe_estimate(**training: Any) -> Any:
    arch = presets.load("gpt-oss-20b")
    recipe = Recipe(sequence_length=4096, global_batch=64, **training)
    layout = Layouts.of(dp=8, ep=8, global_batch=64)
    work = Workload(architecture=arch, recipe=recipe)
    return evaluate(layout, work, load_cluster("dgx-h100", 8), load_software("megatron-core"))


def test_the_fullest_expert_rank_computes_and_keeps_its_load() -> None:
    even, full, fuller = (moe_estimate(moe_imbalance=x) for x in (1.0, 2.0, 3.0))
    for name in ("gemm", "ep"):
        times = [float(x.terms_s[name][0]) for x in (even, full, fuller)]
        assert times[0] < times[1] < times[2]
    kept = [float(x.memory_bytes["activations"][0]) for x in (even, full, fuller)]
    # per token and layer: top 4 x (input 2 h, both inner tensors 4 f, their product 2 f)
    per_layer = 4096 * 4 * (2 * 2880 + 6 * 2880)
    assert kept[1] - kept[0] == pytest.approx(24 * per_layer, rel=1e-12)
    assert kept[2] - kept[1] == pytest.approx(24 * per_layer, rel=1e-12)
    assert even.model_flop == full.model_flop, "nobody asked for the extra tokens of one rank"


def test_chunks_of_attention_see_less_than_windows() -> None:
    """Causal chunks of 8 in 20 tokens: 8, 8 and 4, whose halves make (64 + 64 + 16) / 40 keys."""
    full = Attention(heads=1, kv_heads=1, head_dim=8)
    cut = replace(full, window=8, chunked=True)
    assert seen_keys(full, 20) == 10.0
    assert seen_keys(cut, 20) == pytest.approx(144 / 40)
    assert seen_keys(replace(full, window=8), 20) == pytest.approx(8 - 64 / 40)
    assert seen_keys(cut, 8) == 4.0 and seen_keys(cut, 5) == 2.5


def test_layers_of_llama_4() -> None:
    """Three layers of four turn queries and keys, in chunks; Maverick: experts in every other."""
    scout, maverick = (presets.load(f"llama-4-{name}") for name in ("scout", "maverick"))
    each = [scout.blocks[kind] for kind in scout.layer_kinds]
    assert [kind.attention.rotary for kind in each[:8]] == [True, True, True, False] * 2
    assert all(kind.attention.chunked == kind.attention.rotary for kind in each)
    assert all(kind.is_moe and kind.mlp.shared_ffn_hidden == 8192 for kind in each)
    some = [maverick.blocks[kind] for kind in maverick.layer_kinds]
    assert [kind.is_moe for kind in some[:4]] == [False, True, False, True]
    assert some[0].mlp.ffn_hidden == 16_384 and some[1].mlp.experts == 128
    # a token passes one routed and the shared expert
    assert scout.active_parameters == scout.parameters - 48 * 15 * 3 * 5120 * 8192
    # attention of 16,384 tokens on chunks of 8,192 costs half, but for every fourth layer
    recipe = Recipe(sequence_length=16_384, global_batch=1)
    flash = [float(call.flop[0]) for ops in parts(scout, recipe)[:4] for call in ops.flash]
    assert flash[0] == flash[1] == flash[2] == pytest.approx(flash[3] / 2)
    rotary = [
        next(s for s in ops.streams if s.name == "rotary") for ops in parts(scout, recipe)[:4]
    ]
    assert [s.calls for s in rotary] == [2, 2, 2, 0]


def test_projected_embeddings_are_as_wide_as_their_table() -> None:
    """OPT-350m: tables of 512, blocks of 1024, a projection each way on every rank."""
    arch, t = presets.load("opt-350m"), 4
    recipe = Recipe(sequence_length=2048, global_batch=1)
    first, last = parts(arch, recipe)[-2:]
    shapes = {
        g.name: tuple(float(np.max(x)) for x in (g.m, g.n, g.k))
        for g in (*first.gemms, *last.gemms)
    }
    assert shapes["project in"] == (2048, 1024, 512)
    assert shapes["project out"] == (2048, 512, 1024)
    assert shapes["head"] == (2048, 50_272, 512)
    *_, embed, head_ = rank_parameters(arch, tp=t, pp=2, kernels=KERNELS)
    rows = 50_272 / t * 512
    assert embed == rows + 512 * 1024 + (2048 + 2) * 1024
    assert head_ == rows + 512 * 1024, "its own copy of the tied table, and no norm"


def test_the_convolution_of_deberta_stands_in_the_first_layer_alone() -> None:
    arch = presets.load("deberta-v2-xlarge")
    first, *rest = (arch.blocks[kind] for kind in arch.layer_kinds)
    assert first.convolution == 3 and not any(kind.convolution for kind in rest)
    h = 1536
    more = first.parameters(h) - rest[0].parameters(h)
    assert more == 3 * h * h + h + 2 * h  # weights, bias, norm
    assert (
        rank_parameters(arch, tp=4, pp=1, kernels=KERNELS)[0]
        - rank_parameters(arch, tp=4, pp=1, kernels=KERNELS)[1]
        == more
    ), "on every tensor-parallel rank"
