"""Parameters of a rank: they add up to the published model, and shards halve as degrees double."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from simulator.cost.operators.matrices import (
    expert_parameters,
    rank_parameters,
)
from simulator.cost.operators.model_flop import model_flop_per_step
from simulator.layout.stages import stages
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.architecture import Architecture

EXACT = replace(load_software("megatron-core").kernels, pads_vocabulary_to=1)
PADDED = load_software("megatron-core").kernels  # a multiple of 128 tp
MODELS = presets.names()
DENSE = [name for name in MODELS if not presets.load(name).is_moe]
MOE = [name for name in MODELS if presets.load(name).is_moe]


def held(arch: Architecture, *, tp: int = 1, pp: int = 1, ep: int = 1, etp: int = 1) -> list[float]:
    """Parameters of each pipeline rank, by the stages that it holds."""
    per_part = rank_parameters(arch, tp=tp, pp=pp, kernels=EXACT)
    per_part = per_part + expert_parameters(arch, ep=ep, etp=etp)
    table = stages(
        pp=pp, vpp=1, micro_batches=pp, layer_kinds=arch.layer_kinds, kinds=len(arch.blocks)
    )
    parts = np.column_stack([table.blocks, table.embedding, table.head])
    return (parts * per_part).sum(axis=1).tolist()


@pytest.mark.parametrize("name", MODELS)
def test_one_rank_holds_the_published_model(name: str) -> None:
    arch = presets.load(name)
    assert held(arch) == [arch.parameters]


@pytest.mark.parametrize("name", ["llama-3.1-405b", "deepseek-v3", "mixtral-8x22b", "llama-2-7b"])
@pytest.mark.parametrize("pp", [2, 3, 16])
def test_pipeline_ranks_together_hold_the_model_once(name: str, pp: int) -> None:
    arch = presets.load(name)
    assert not arch.tied_embeddings
    assert sum(held(arch, pp=pp)) == pytest.approx(arch.parameters, rel=1e-15)


@pytest.mark.parametrize("name", ["gpt3-175b", "llama-3.2-1b"])
def test_a_tied_head_on_another_stage_is_a_second_copy(name: str) -> None:
    arch = presets.load(name)
    assert arch.tied_embeddings
    twice = arch.parameters + arch.vocabulary * arch.hidden
    assert sum(held(arch, pp=4)) == pytest.approx(twice, rel=1e-15)


@pytest.mark.parametrize("name", ["llama-3.1-70b", "qwen3-32b", "mistral-7b"])
def test_tensor_ranks_together_hold_the_model_and_more_copies_of_the_vectors(name: str) -> None:
    # norms of hidden elements and Qwen's norms of head_dim are on every rank; all else is cut
    arch, t = presets.load(name), 8
    vectors = arch.layers * 2 * arch.hidden + arch.hidden
    vectors += (
        arch.layers * 2 * arch.blocks[0].attention.head_dim * arch.blocks[0].attention.qk_norm
    )
    assert arch.blocks[0].attention.kv_heads == t
    assert t * held(arch, tp=t)[0] == pytest.approx(arch.parameters + (t - 1) * vectors, rel=1e-14)


def test_llama_70b_over_eight_tensor_ranks_by_hand() -> None:
    block = rank_parameters(presets.load("llama-3.1-70b"), tp=8, pp=1, kernels=EXACT)[0]
    # q and out 8192 x 1024, k and v 8192 x 128, three matrices 8192 x 3584, two norms
    assert block == 2 * 8192 * 1024 + 2 * 8192 * 128 + 3 * 8192 * 3584 + 2 * 8192


def test_biases_of_row_parallel_linears_are_not_cut() -> None:
    # GPT-3 XL at tp 4: per block qkv (3 h^2 + 3 h) / t, out h^2 / t + h, fc1 (4 h^2 + 4 h) / t,
    # fc2 4 h^2 / t + h, two layer norms of 2 h
    h, t = presets.load("gpt3-xl").hidden, 4
    block = rank_parameters(presets.load("gpt3-xl"), tp=t, pp=1, kernels=EXACT)[0]
    assert block == 12 * h**2 / t + 7 * h / t + 2 * h + 4 * h


def test_key_value_heads_are_repeated_where_tp_exceeds_their_number() -> None:
    arch = presets.load("llama-3.1-8b")  # 32 heads, 8 key/value heads of 128
    eight, sixteen = (rank_parameters(arch, tp=t, pp=1, kernels=EXACT)[0] for t in (8, 16))
    kv, norms = 4096 * 2 * 128, 2 * 4096
    assert sixteen - norms - kv == (eight - norms - kv) / 2


@pytest.mark.parametrize(
    ("tp", "rows"), [(1, 128384), (2, 128512), (4, 128512), (8, 129024)]
)  # Llama's 128256 rows and one of a NullTokenizer
def test_megatron_pads_the_vocabulary_to_a_multiple_of_128_tp(tp: int, rows: int) -> None:
    arch = replace(presets.load("llama-3.1-8b"), vocabulary=128257)
    embedding = rank_parameters(arch, tp=tp, pp=1, kernels=PADDED)[-2]
    assert embedding * tp == rows * 4096


@pytest.mark.parametrize("name", MOE)
def test_experts_halve_with_every_doubling_of_ep_and_etp(name: str) -> None:
    arch = presets.load(name)
    moe = next(kind.mlp for kind in arch.blocks if kind.is_moe)
    matrices = 3 if moe.gated else 2
    assert moe.bias == name.startswith("gpt-oss")
    fc1 = (matrices - 1) * (arch.hidden + moe.bias) * moe.ffn_hidden
    cut, kept = fc1 + arch.hidden * moe.ffn_hidden, moe.bias * arch.hidden
    for ep, etp in ((1, 1), (2, 1), (8, 1), (4, 2), (1, 8)):
        found = expert_parameters(arch, ep=ep, etp=etp).tolist()
        assert found[-2:] == [0, 0], "no experts in embedding and head"
        for kind, count in zip(arch.blocks, found, strict=False):
            one = cut / etp + kept  # the last bias is on every rank of etp
            assert count == (moe.experts / ep * one if kind.is_moe else 0)


@pytest.mark.parametrize("name", DENSE)
def test_dense_models_have_no_experts(name: str) -> None:
    assert not expert_parameters(presets.load(name), ep=1, etp=1).any()


def test_mixtral_experts_by_hand() -> None:
    # 8 experts of three 4096 x 14336 matrices in each of 32 layers; 46.7 B in all
    arch = presets.load("mixtral-8x7b")
    experts = expert_parameters(arch, ep=1, etp=1)[0] * Counter(arch.layer_kinds)[0]
    assert experts == 32 * 8 * 3 * 4096 * 14336 == 45_097_156_608


@pytest.mark.parametrize("name", ["llama-2-7b", "gpt3-13b", "llama-3.1-405b"])
def test_model_flop_are_six_per_weight_and_the_causal_attention(name: str) -> None:
    """Chowdhery et al. 2022, appendix B: 6 N + 12 l h s per token; its attention term halved."""
    arch, s = presets.load(name), 2048
    block = arch.blocks[0]
    h, att, mlp = arch.hidden, block.attention, block.mlp
    wide = 3 if mlp.gated else 2
    weights = h * att.head_dim * (2 * att.heads + 2 * att.kv_heads) + wide * h * mlp.ffn_hidden
    per_token = 6 * (arch.layers * weights + arch.vocabulary * h)
    per_token += 6 * arch.layers * att.heads * att.head_dim * s
    assert model_flop_per_step(arch, tokens=1e6, sequence_length=s) == pytest.approx(
        1e6 * per_token
    )
