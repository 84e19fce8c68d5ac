"""Kinds of context parallelism: what each moves, keeps and hides, by hand from papers and code."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.operators.block_operators import block
from simulator.cost.operators.operations import Operators
from simulator.cost.step import evaluate
from simulator.files import Figure
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import CP_KINDS, Layouts
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload
from tests.cost.test_operators import ranks, saved
from tests.cost.test_volumes import (
    CORE,
    MICRO_BATCHES,
    PARAMETERS,
    TITAN,
    WAITS,
    H,
    L,
    S,
    alike,
    seconds,
)

LLAMA = presets.load("llama-3.1-8b")  # 32 heads and 8 key/value heads of 128
Q, KV = 4096, 1024
GRADIENTS = PARAMETERS * 2 * 7 / 8  # a ring all-reduce over eight, per byte of a gradient


def one_block(kind: str, software: Any = CORE, cp: int = 8, model: Any = LLAMA) -> Operators:
    recipe = Recipe(sequence_length=S, global_batch=8)
    row = replace(ranks(cp=cp), cp_kind=np.array([CP_KINDS.index(kind)]))
    return block(model.blocks[0], model.hidden, row, recipe, software.kernels)


def sent(ops: Operators, operation: str, *, backward: bool) -> float:
    chosen = [c for c in ops.collectives if (c.operation, c.group) == (operation, "cp")]
    return float(sum(np.sum(c.size_bytes) for c in chosen if c.backward == backward))


def test_ulysses_exchanges_four_times_the_tokens_of_a_rank() -> None:
    """Jacobs et al. 2023, section 3.2: 3 N h / P for queries, keys, values, N h / P for results."""
    gpt = presets.load("megatron-175b")
    assert gpt.blocks[0].attention.kv_heads == 96
    for cp in (2, 8):
        ops = one_block("all_to_all", cp=cp, model=gpt)
        assert sent(ops, "all_to_all", backward=False) == 4 * S * 12288 / cp * 2
        # TransformerEngine: the gradients of the four, and the result that was kept
        assert sent(ops, "all_to_all", backward=True) == 5 * S * 12288 / cp * 2


def test_keys_fewer_than_ranks_are_sent_to_each() -> None:
    """DeepSpeed runtime/sequence_parallel/ulysses_sp.py: kv_replication_factor = 32 / 8 repeats
    keys and values on their way, so that a rank has a head of each, of all tokens."""
    many, eight = one_block("all_to_all", cp=32), one_block("all_to_all", cp=8)
    assert sent(many, "all_to_all", backward=False) == S / 32 * 2 * (2 * Q + 2 * 32 * 128)
    assert sent(eight, "all_to_all", backward=False) == S / 8 * 2 * (2 * Q + 2 * KV)
    kept = {x.name: float(np.sum(x.size_bytes)) for x in many.saved}
    assert kept["keys"] == S * 128 * 2 == kept["values"]
    once = {x.name: float(np.sum(x.size_bytes)) for x in eight.saved}
    assert once["keys"] == S * 128 * 2  # 8 ranks have one of 8 heads already


def test_a_kept_result_is_not_exchanged_again() -> None:
    """TransformerEngine 2.8: out_part is saved as attention made it, dout alone is exchanged."""
    newer = load_software("megatron-core-defaults")
    assert newer.kernels.transformer_engine.keeps_exchanged_output
    old, new = (one_block("all_to_all", software) for software in (CORE, newer))
    one = S * Q / 8 * 2  # a rank's result in 16 bit
    assert sent(old, "all_to_all", backward=True) - sent(new, "all_to_all", backward=True) == one
    plain = one_block("ring", newer)
    assert saved(new) == saved(plain) + one
    assert saved(one_block("all_to_all", newer, cp=1)) == saved(one_block("ring", newer, cp=1))


def test_all_to_all_on_links_by_hand() -> None:
    forward, backward = 2 * Q + 2 * KV, 3 * Q + 2 * KV
    exchanged = MICRO_BATCHES * L * S / 8 * 2 * (forward + backward) * 7 / 8
    found = seconds({"cp": 8, "cp_kind": "all_to_all"}, WAITS)
    assert alike(found, exchanged + 2 * GRADIENTS)


def test_transformer_engine_merges_by_a_kernel_a_block() -> None:
    """AttnFuncWithCPAndKVP2P on the last of four ranks: a sum reads two, writes one.

    Back, keys and values are copied to be sent, and those of the diagonal block come last.
    """
    ops = one_block("ring", cp=4)
    (merge,) = [s for s in ops.streams if s.name == "context merge"]
    tokens, pairs, copied, added = S / 4, 2 * KV, 2 * 2, 3 * 2
    result = (copied + 3 * added) * Q
    assert float(np.sum(merge.forward_bytes)) == tokens * (result + copied * pairs)
    keys = copied + copied / 2 + 2 * added / 2 + added
    assert float(np.sum(merge.backward_bytes)) == tokens * (result + keys * pairs)


def test_all_gather_on_links_by_hand() -> None:
    """Llama 3, section 3.3.2: keys and values gathered in both passes, gradients scattered."""
    exchanged = MICRO_BATCHES * L * 3 * S * 2 * KV * 2 * 7 / 8
    found = seconds({"cp": 8, "cp_kind": "all_gather"}, WAITS)
    assert alike(found, exchanged + 2 * GRADIENTS)


@pytest.mark.parametrize("kind", ["ring", "all_gather"])
def test_torch_sends_fp32_gradients_of_repeated_keys_round(kind: str) -> None:
    """Eight sends of fp32 gradients: seven beside attention, one to bring them home."""
    waits = replace(TITAN, overlap=replace(TITAN.overlap, gradient_reduce=False))
    whole = S * 2 * Q  # keys and values for each of the 32 query heads
    exchanged = MICRO_BATCHES * L * whole * (2 * 2 * 7 / 8 + 4)
    found = seconds({"cp": 8, "cp_kind": kind, "sharding": "ddp"}, waits)
    assert alike(found, exchanged + 4 * GRADIENTS)


@pytest.mark.parametrize("cp", [2, 4, 8])
def test_a_ring_passes_what_a_gather_brings(cp: int) -> None:
    for software in (CORE, TITAN):
        ring, gather = (one_block(kind, software, cp) for kind in ("ring", "all_gather"))
        for backward in (False, True):
            whole = sent(gather, "all_gather", backward=backward)
            scattered = sent(gather, "reduce_scatter", backward=backward)
            round_trip = sent(gather, "ring", backward=backward)
            brought = (whole + scattered) * (cp - 1) / cp + round_trip
            assert sent(ring, "ring", backward=backward) == pytest.approx(brought, rel=1e-12)


@pytest.mark.parametrize("cp", [2, 8])
def test_all_kinds_compute_the_same(cp: int) -> None:
    flop = {kind: float(one_block(kind, cp=cp).flash[0].flop[0]) for kind in CP_KINDS}
    assert len(set(flop.values())) == 1


def test_only_a_gather_in_chunks_keeps_more() -> None:
    """TransformerEngine's AttnFuncWithCPAndKVAllGather saves the results of its two chunks."""
    ring = saved(one_block("ring"))
    assert saved(one_block("all_to_all")) == ring
    assert saved(one_block("all_gather")) == ring + S / 8 * H * 2
    assert saved(one_block("all_gather", TITAN)) == saved(one_block("ring", TITAN))


def test_one_rank_exchanges_nothing() -> None:
    for kind in CP_KINDS:
        ops = one_block(kind, cp=1)
        assert sum(np.sum(c.size_bytes) for c in ops.collectives if c.group == "cp") == 0
        assert saved(ops) == saved(one_block("ring", cp=1))
        assert seconds({"dp": 8, "cp_kind": kind}, CORE) == seconds({"dp": 8}, CORE)


def test_attention_hides_a_ring_and_nothing_hides_the_rest() -> None:
    table = Layouts.of(cp=8, cp_kind=list(CP_KINDS[:3]), global_batch=4)
    work = Workload(architecture=LLAMA, recipe=Recipe(sequence_length=65536, global_batch=4))
    cluster = load_cluster("dgx-h100", 8)
    found = evaluate(table, work, cluster, CORE)
    assert found.hidden_s["cp"][0] > 0
    assert found.hidden_s["cp"][1:].tolist() == [0, 0]
    assert found.terms_s["cp"][1] > found.terms_s["cp"][2] > found.terms_s["cp"][0]
    # torch: the first block's attention runs beside the gather
    titan = evaluate(table[:2], work, cluster, TITAN)
    assert titan.hidden_s["cp"][1] > 0 and titan.terms_s["cp"][1] > 0


def test_a_ring_over_adapters_takes_the_units_of_sends() -> None:
    """NCCL: two channels each way for a peer on another server; links of a domain take all."""
    work = Workload(architecture=LLAMA, recipe=Recipe(sequence_length=131072, global_batch=4))
    cluster = load_cluster("dgx-h100", 64)
    none = replace(cluster, library=replace(cluster.library, network_send_units=Figure(0.0)))
    rings = Layouts.of(cp=8, tp=[8, 1], dp=[1, 8], sequence_parallel=[True, False], global_batch=8)
    with_units, without = (evaluate(rings, work, each, CORE) for each in (cluster, none))
    slower = with_units.terms_s["slowdown"] - without.terms_s["slowdown"]
    assert slower == pytest.approx([with_units.hidden_s["cp"][0] * 4 / 132, 0.0], rel=1e-6)


def test_a_layout_costs_the_same_among_other_kinds() -> None:
    table = Layouts.of(
        cp=[1, 2, 4, 8] * 3, dp=[8, 4, 2, 1] * 3, cp_kind=np.repeat([0, 1, 2], 4), global_batch=64
    )
    work = Workload(architecture=LLAMA, recipe=Recipe(sequence_length=16384, global_batch=64))
    cluster = load_cluster("dgx-h100", 8)
    for software in (CORE, TITAN):
        stacked = evaluate(table, work, cluster, software)
        for i in range(len(table)):
            alone = evaluate(table[i], work, cluster, software)
            assert alone.step_time_s[0] == stacked.step_time_s[i]
            assert alone.memory_total_bytes[0] == stacked.memory_total_bytes[i]


def test_exchanges_shrink_or_stay_as_ranks_grow() -> None:
    """Ulysses, section 3.2: N h / P for each rank; a gather brings the same keys to all."""
    work = Workload(architecture=LLAMA, recipe=Recipe(sequence_length=65536, global_batch=1))
    base = load_cluster("dgx-h100", 8)
    cp = [2, 4, 8]
    times = {}
    for kind in ("all_gather", "all_to_all"):
        table = Layouts.of(cp=cp, cp_kind=kind, global_batch=1)
        times[kind] = evaluate(table, work, base, CORE).terms_s["cp"]
    assert (np.diff(times["all_to_all"]) < 0).all()
    assert times["all_to_all"][-1] < times["all_gather"][-1]


def test_old_software_has_no_kinds() -> None:
    assert load_software("megatron-lm-2022").supports.cp_kinds == ()
    assert load_software("torchtitan-eager").supports.cp_kinds[0] == "all_gather"


def test_torch_merges_results_and_adds_gradients_operator_by_operator() -> None:
    """`_SDPAMerger` and the backward ring of torch 2.6 to 2.9, bytes of an element in fp32 and 16
    bit: eight ranks take seven further blocks, half of them with half the queries."""
    ops = one_block("all_gather", software=TITAN)
    (merge,) = [s for s in ops.streams if s.name == "context merge"]
    whole = (2 + 4) + 2 * (2 * 4 + 4) + (4 + 4)  # cast, two differences, product
    half = whole / 2 + (4 + 4)  # and a concatenation
    sent = 2 + 2
    tokens, pairs = S / 8, 2 * Q  # keys and values for every query head
    expected = 7 * tokens * ((whole + half) / 2 * Q + sent * pairs)
    assert float(np.sum(merge.forward_bytes)) == pytest.approx(expected)
    cast, added, joined = 2 + 4, 2 * 4 + 4, 4 + 4
    query = cast + (added + added / 2 + joined) / 2
    pair = cast + (added + added / 2 + joined) / 2 + joined + sent
    expected = 7 * tokens * (query * Q + pair * pairs)
    assert float(np.sum(merge.backward_bytes)) == pytest.approx(expected, rel=0.02)
