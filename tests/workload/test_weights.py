"""Weights by hand: names, sizes, cuts, and the sums that follow from them."""

from simulator.cost.operators.matrices import columns_on_rank, rows_on_rank
from simulator.workload.modules import MLP, Attention, MoE
from simulator.workload.weights import Weight, active_parameters, parameters, vector


def sizes(weights: list[Weight]) -> dict[str, tuple[int, int]]:
    return {w.name: (w.rows, w.columns) for w in weights}


def test_a_matrix_with_a_bias() -> None:
    weight = Weight(name="up", rows=12, columns=4, cut="rows", bias=True)
    assert (weight.parameters, weight.flop) == (12 * 4 + 12, 2 * 12 * 4)
    assert (rows_on_rank(weight, 3), columns_on_rank(weight, 3)) == (4, 4)


def test_inputs_are_cut_and_the_bias_stays_whole() -> None:
    weight = Weight(name="down", rows=4, columns=12, cut="columns", bias=True)
    assert (rows_on_rank(weight, 3), columns_on_rank(weight, 3)) == (4, 4)


def test_more_ranks_than_key_heads_repeat_them() -> None:
    weight = Weight(name="k", rows=2 * 8, columns=32, cut="rows", pieces=2)
    assert [rows_on_rank(weight, ranks) for ranks in (1, 2, 4)] == [16, 8, 8]


def test_vectors_take_no_product() -> None:
    assert (vector("norm", 7).parameters, vector("norm", 7).flop) == (7, 0.0)


def test_grouped_queries() -> None:
    attention = Attention(heads=4, kv_heads=2, head_dim=8, qkv_bias=True, sinks=True)
    weights = attention.weights(16)
    assert sizes(weights) == {
        "q": (32, 16), "k": (16, 16), "v": (16, 16), "sink": (4, 1), "o": (16, 32),
    }  # fmt: skip
    assert [w.name for w in weights if w.bias] == ["q", "k", "v"]


def test_latent_attention() -> None:
    """DeepSeek-V3 (arXiv 2412.19437, section 4.2): 128 heads of 128 + 64, ranks 1536 and 512."""
    attention = Attention(
        heads=128, kv_heads=128, head_dim=192, value_head_dim=128, q_lora_rank=1536,
        kv_lora_rank=512, rope_head_dim=64,
    )  # fmt: skip
    assert sizes([w for w in attention.weights(7168) if w.per == "token"]) == {
        "q_down": (1536, 7168), "q_up": (24_576, 1536), "kv_down": (576, 7168),
        "kv_up": (32_768, 512), "o": (7168, 16_384),
    }  # fmt: skip
    # 187,107,328: what the published checkpoint holds for self_attn of one layer
    assert attention.parameters(7168) == 187_107_328


def test_experts_and_those_that_a_token_passes() -> None:
    moe = MoE(experts=8, top_k=2, ffn_hidden=3, shared_ffn_hidden=5)
    weights = moe.weights(4)
    assert parameters(weights) == 8 * 4 + 3 * 4 * 5 + 8 * 3 * 4 * 3
    assert active_parameters(weights) == 8 * 4 + 3 * 4 * 5 + 2 * 3 * 4 * 3
    assert sum(w.flop for w in weights) == 2 * active_parameters(weights)


def test_a_plain_mlp_has_two_matrices() -> None:
    assert sizes(MLP(ffn_hidden=6, gated=False).weights(4)) == {"up": (6, 4), "down": (4, 6)}
