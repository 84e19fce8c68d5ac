"""Pipeline stages: small tables written out by hand, laws, and published in-flight counts."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.layout.layouts import Layouts
from simulator.layout.stages import Stages, fold, fullest_rank, read_stages, stages

DEGREES = st.integers(min_value=1, max_value=8)


def dealt(pp: int, vpp: int, micro_batches: int, layers: int) -> Stages:
    """Every layer a kind of its own, so that a row says which layers its chunk holds."""
    kinds = np.arange(layers)
    return stages(pp=pp, vpp=vpp, micro_batches=micro_batches, layer_kinds=kinds, kinds=layers)


def rows(table: Stages) -> list[tuple[int, ...]]:
    """Each row as (rank, chunk, first layer, layers, embedding, head, in flight)."""
    columns = (
        table.rank,
        table.chunk,
        table.blocks.argmax(axis=1),
        table.blocks.sum(axis=1),
        table.embedding,
        table.head,
        table.in_flight,
    )
    return [tuple(int(x) for x in row) for row in zip(*columns, strict=True)]


def test_1f1b_over_four_even_stages() -> None:
    assert rows(dealt(pp=4, vpp=1, micro_batches=8, layers=8)) == [
        (0, 0, 0, 2, 1, 0, 4),
        (1, 0, 2, 2, 0, 0, 3),
        (2, 0, 4, 2, 0, 0, 2),
        (3, 0, 6, 2, 0, 1, 1),
    ]


def test_1f1b_with_fewer_micro_batches_than_stages() -> None:
    assert rows(dealt(pp=4, vpp=1, micro_batches=2, layers=4)) == [
        (0, 0, 0, 1, 1, 0, 2),
        (1, 0, 1, 1, 0, 0, 2),
        (2, 0, 2, 1, 0, 0, 2),
        (3, 0, 3, 1, 0, 1, 1),
    ]


def test_uneven_layers_spare_the_first_and_the_last_stage() -> None:
    assert rows(dealt(pp=4, vpp=1, micro_batches=8, layers=10)) == [
        (0, 0, 0, 2, 1, 0, 4),
        (1, 0, 2, 3, 0, 0, 3),
        (2, 0, 5, 3, 0, 0, 2),
        (3, 0, 8, 2, 0, 1, 1),
    ]


def test_llama_405b_leaves_one_layer_out_of_the_first_and_the_last_of_16_stages() -> None:
    # Llama 3 (arXiv 2407.21783), section 3.3.2
    table = dealt(pp=16, vpp=1, micro_batches=16, layers=126)
    assert table.blocks.sum(axis=1).tolist() == [7, *[8] * 14, 7]


def pieces(layers: int, pp: int, vpp: int = 1, ahead: int = 0) -> tuple[list[int], list[int]]:
    """Layers of every piece in the order of the model, and those that predict ahead."""
    table = stages(
        pp=pp,
        vpp=vpp,
        micro_batches=pp,
        layer_kinds=[0] * layers + [1] * ahead,
        kinds=2,
        ahead=ahead,
    )
    own, later = table.blocks[(table.chunk * pp + table.rank).argsort()].T.tolist()
    return own, later


@pytest.mark.parametrize(
    ("layers", "pp", "vpp", "expected"),
    [
        # Megatron-Core, account_for_embedding_in_pipeline_split and account_for_loss_in_...:
        # Llama 3.1 405B as NVIDIA's recipes run it, pp 8 and vpp 8: 128 / 64 less the two ends
        (126, 8, 8, [1, *[2] * 62, 1]),
        # BLOOM (arXiv 2211.05100): 70 layers, 12 stages of six of 72 layers
        (70, 12, 1, [5, *[6] * 10, 5]),
        # Megatron-Bridge, map_pp_vp_to_layout of DeepSeek-V3: Et*3|(tt..|)..tL
        (61, 16, 1, [*[4] * 15, 1]),
        (61, 8, 1, [*[8] * 7, 5]),
        (61, 4, 1, [*[16] * 3, 13]),
        # DeepSpeed deals BigScience's 78 layers of 12 stages sevens first
        (78, 12, 1, [*[7] * 11, 1]),
        # nothing would be left for the last of these: one more on the last but one
        (5, 4, 1, [1, 1, 2, 1]),
        # as many layers as pieces, and as many as pieces less the two ends
        (16, 16, 1, [1] * 16),
        (14, 16, 1, [0, *[1] * 14, 0]),
    ],
)
def test_uneven_pipelines_as_they_are_run(
    layers: int, pp: int, vpp: int, expected: list[int]
) -> None:
    assert pieces(layers, pp, vpp) == (expected, [0] * (pp * vpp))


def test_layers_that_predict_ahead_stay_with_the_head() -> None:
    # Megatron-Bridge, DeepSeek-V3 on pp 8, vpp 4: Et|(tt|)*30mL, no piece above two layers, and
    # the last one has none but the layer that predicts ahead
    own, ahead = pieces(61, 8, 4, ahead=1)
    assert (sum(own), max(own), own[-1]) == (61, 2, 0)
    assert ahead == [0] * 31 + [1]
    # pp 16, 8 and 4: the same with m behind the last t
    for pp, last in ((16, 1), (8, 5), (4, 13)):
        own, ahead = pieces(61, pp, ahead=1)
        assert (own[-1], ahead) == (last, [0] * (pp - 1) + [1])
    assert pieces(61, 1, ahead=2) == ([61], [2])


LAYERS, PIECES = st.integers(1, 200), st.integers(1, 80)


@given(layers=LAYERS, count=PIECES, ahead=st.integers(0, 2))
def test_pieces_are_no_larger_than_they_must_be(layers: int, count: int, ahead: int) -> None:
    own, later = pieces(layers, count, ahead=ahead)
    ends = count > 1 and layers % count > 0 and (layers + 2) % count == 0
    assert sum(own) == layers and min(own) >= 0
    assert max(own) == (layers + 2) // count if ends else -(-layers // count)
    assert later == [0] * (count - 1) + [ahead]
    if layers >= count:
        assert all(own[:-1]), "only the last piece may do without"
        assert own[-1] or ahead


@given(layers=LAYERS, pp=st.integers(1, 16), vpp=st.integers(1, 5), ahead=st.integers(0, 2))
def test_pieces_follow_one_another(layers: int, pp: int, vpp: int, ahead: int) -> None:
    count = layers + ahead
    kinds = np.arange(count)
    table = stages(pp=pp, vpp=vpp, micro_batches=pp, layer_kinds=kinds, kinds=count, ahead=ahead)
    order = (table.chunk * pp + table.rank).argsort()
    assert np.nonzero(table.blocks[order])[1].tolist() == list(range(count))


def test_interleaved_deals_chunks_as_megatron_documents() -> None:
    # megatron/core/parallel_state.py: 16 layers, pp 4, vpp 2; its layers count from 1.
    # GPU 0: [1, 2] [9, 10], GPU 1: [3, 4] [11, 12], GPU 2: [5, 6] [13, 14], GPU 3: [7, 8] [15, 16]
    # Warm-up of rank r: 2 (3 - r) + 4 passes and one more, chunk 0 first, four micro-batches each.
    assert rows(dealt(pp=4, vpp=2, micro_batches=8, layers=16)) == [
        (0, 0, 0, 2, 1, 0, 7),
        (0, 1, 8, 2, 0, 0, 4),
        (1, 0, 2, 2, 0, 0, 5),
        (1, 1, 10, 2, 0, 0, 4),
        (2, 0, 4, 2, 0, 0, 4),
        (2, 1, 12, 2, 0, 0, 3),
        (3, 0, 6, 2, 0, 0, 4),
        (3, 1, 14, 2, 0, 1, 1),
    ]


def test_interleaved_with_uneven_chunks() -> None:
    # four pieces of 2, 3, 3, 2 layers; rank 0 holds the first and the third
    assert rows(dealt(pp=2, vpp=2, micro_batches=4, layers=10)) == [
        (0, 0, 0, 2, 1, 0, 3),
        (0, 1, 5, 3, 0, 0, 2),
        (1, 0, 2, 3, 0, 0, 2),
        (1, 1, 8, 2, 0, 1, 1),
    ]


def test_kinds_of_layers_are_counted_where_they_stand() -> None:
    # DeepSeek-V3 in small: three dense layers, then experts
    table = stages(pp=2, vpp=2, micro_batches=2, layer_kinds=[0, 0, 0, 1, 1, 1, 1, 1], kinds=2)
    assert table.blocks.tolist() == [[2, 0], [0, 2], [1, 1], [0, 2]]


def test_plans_of_different_sizes_stand_one_below_the_other() -> None:
    table = stages(pp=[1, 2], vpp=[1, 1], micro_batches=[4, 4], layer_kinds=[0] * 6, kinds=1)
    assert table.plan.tolist() == [0, 1, 1]
    assert table.blocks[:, 0].tolist() == [6, 3, 3]
    assert table.in_flight.tolist() == [1, 2, 1]


@given(
    pp=DEGREES,
    vpp=DEGREES,
    m=st.integers(1, 40),
    extra=st.integers(0, 40),
    kinds=st.data(),
)
def test_every_layer_stands_on_exactly_one_chunk(
    pp: int, vpp: int, m: int, extra: int, kinds: Any
) -> None:
    layers = pp * vpp + extra
    layer_kinds = kinds.draw(st.lists(st.integers(0, 2), min_size=layers, max_size=layers))
    table = stages(pp=pp, vpp=vpp, micro_batches=m, layer_kinds=layer_kinds, kinds=3)
    covered: list[int] = []
    for layer, blocks in zip(dealt(pp, vpp, m, layers).blocks, table.blocks.tolist(), strict=True):
        held = np.flatnonzero(layer).tolist()
        assert [sum(layer_kinds[i] == kind for i in held) for kind in range(3)] == blocks
        assert held == list(range(held[0], held[0] + len(held)))
        covered += held
    assert sorted(covered) == list(range(layers))
    assert (table.embedding.sum(), table.head.sum()) == (1, 1)


@given(p=st.integers(2, 16), v=st.integers(1, 6), per_chunk=st.integers(1, 4))
def test_stage_0_holds_what_korthikanti_2022_says(p: int, v: int, per_chunk: int) -> None:
    """Section 4.2.3: activations of L layers, interleaved of L (1 + (p - 1) / (p v))."""
    layers = p * v * per_chunk
    table = dealt(pp=p, vpp=v, micro_batches=4 * p, layers=layers)
    first = table.rank == 0
    held = (table.in_flight * table.blocks.sum(axis=1))[first].sum()
    assert held == pytest.approx(layers * (1 + (p - 1) / (p * v)) if v > 1 else layers)


@given(pp=DEGREES, vpp=DEGREES, rounds=st.integers(1, 6))
def test_no_chunk_holds_more_than_all_micro_batches(pp: int, vpp: int, rounds: int) -> None:
    m = pp * rounds
    table = dealt(pp=pp, vpp=vpp, micro_batches=m, layers=pp * vpp)
    assert table.in_flight.min() >= 1
    assert table.in_flight.max() <= m
    later = np.diff(table.in_flight.reshape(pp, vpp), axis=0)
    assert (later <= 0).all(), "a later rank never holds more"


@given(pp=DEGREES, vpp=DEGREES, m=st.integers(1, 40), extra=st.integers(0, 20))
def test_folding_loses_no_layer_and_no_rank(pp: int, vpp: int, m: int, extra: int) -> None:
    layers = pp * vpp + extra
    kinds = [int(i >= layers // 2) for i in range(layers)]
    table = stages(pp=pp, vpp=vpp, micro_batches=m, layer_kinds=kinds, kinds=2)
    every, folded = fold(table, by_content=False), fold(table)
    model = [kinds.count(0), kinds.count(1), 1, 1]
    for view in (every, folded):
        assert (view.ranks[:, :, None] * view.parts).sum(axis=(0, 1)).tolist() == model
        assert view.ranks.sum() == pp
    assert every.columns == pp
    assert folded.columns <= pp
    assert folded.in_flight.max(axis=(0, 1)).tolist() == every.in_flight.max(axis=(0, 1)).tolist()


def test_folding_by_hand() -> None:
    table = fold(stages(pp=[4, 1], vpp=[1, 1], micro_batches=[8, 8], layer_kinds=[0] * 8, kinds=1))
    found = [
        sorted(
            (int(rank), int(ranks), held.tolist(), flying.tolist())
            for rank, ranks, held, flying in zip(*columns, strict=True)
            if ranks
        )
        for columns in zip(table.rank, table.ranks, table.parts, table.in_flight, strict=True)
    ]
    # first rank, ranks like it, what each holds (layers, embedding, head), the same in flight;
    # ranks 1 and 2 are one column; the logits live for one micro-batch
    assert found == [
        [
            (0, 1, [2, 1, 0], [8, 4, 0]),
            (1, 2, [2, 0, 0], [6, 0, 0]),
            (3, 1, [2, 0, 1], [2, 0, 1]),
        ],
        [(0, 1, [8, 1, 1], [8, 1, 1])],
    ]
    assert table.columns == 3


@pytest.mark.parametrize(
    ("given", "layers"),
    [
        ([0, 3, 100_000], (0, 3, 100_000)),
        ([], None),
        ("Et|t|tL", (1, 1, 1)),
        ("E|(t|)*2tmL", (0, 1, 1, 1)),
        ("E t*3, t | L", (4, 0)),
        ("E" + "t" * 19_998 + "L", (19_998,)),
    ],
)
def test_layers_of_pieces_as_they_are_given(given: Any, layers: tuple[int, ...] | None) -> None:
    assert read_stages(given) == layers


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ([-1, 3], "whole numbers of layers"),
        ([1.5, 3], "whole numbers of layers"),
        ([True, 3], "whole numbers of layers"),
        (["3", 3], "whole numbers of layers"),
        ([100_001], "whole numbers of layers"),
        (7, "list of the layers"),
        ("Et|x|tL", "found 'x'"),
        ("t|tL", "E once"),
        ("EtE|tL", "E once"),
        ("Et|t", "L once"),
        ("EtL|tL", "L once"),
        ("Em|tL", "m after every t"),
        ("E" + "t" * 19_999 + "L*1", "at most 20000 letters"),
        ("Et*9999(t*9999)*9999L", "at most 20000 letters"),
    ],
)
def test_what_names_no_pieces_is_refused(given: Any, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        read_stages(given)


def test_the_fullest_rank_by_hand() -> None:
    """80 layers on four ranks: 20 each; 21 between ends of 19; 10 + 11 of pieces dealt twice."""
    given = [[], [19, 21, 21, 19], [9, 10, 10, 10, 9, 11, 11, 10]]
    table = Layouts.of(pp=[4, 4, 4], vpp=[1, 1, 2], stages=given, schedule=["1f1b", "1f1b", "1f1b"])
    assert fullest_rank(table, 80).tolist() == [20, 21, 21]
    assert fullest_rank(Layouts.of(pp=3), 80).tolist() == [27]
