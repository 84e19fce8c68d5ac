"""Collectives over tp beside products in pieces: hand-worked times, nothing lost, nothing twice."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.cost.blocks.tensor_overlap import (
    WHOLE,
    Cut,
    cuts,
    held_units,
    hidden_s,
    moved_bytes,
    usable,
)
from simulator.cost.operators.operations import Collective, Operators, Ranks
from simulator.cost.step import Estimate, evaluate
from simulator.errors import InputError
from simulator.files import Figure
from simulator.hardware.cluster import load_accelerator, load_cluster
from simulator.layout.layouts import Layouts
from simulator.layout.placement import Group, place
from simulator.software.mechanisms import UserBuffers
from simulator.software.overlap import Overlap
from simulator.software.profile import Software, load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload
from tests.flat_kernels import gemm_rates, gemm_s

CORE, TITAN = load_software("megatron-core"), load_software("torchtitan")
BUFFERS = UserBuffers(
    quantised_scatter="ring_exchange",
    pipeline_units=Figure(24.0),
    gather_units=Figure(2.0),
    scatter_units=Figure(8.0),
)
BUFFERED, ASYNC = Overlap(tensor="userbuffers", user_buffers=BUFFERS), Overlap(tensor="async")

FEEDS = Collective(
    operation="all_gather",
    group="tp",
    size_bytes=8.0,
    backward=False,
    window="fc1:forward",
    pipelined=True,
    buffered=True,
)
FOLLOWS = Collective(
    operation="reduce_scatter",
    group="tp",
    size_bytes=8.0,
    backward=False,
    window="fc2:forward",
    pipelined=True,
    buffered=True,
)
GATHER = replace(FEEDS, backward=True, window="fc1:dgrad", pipelined=False)
SCATTER = replace(FOLLOWS, backward=True, window="fc1:wgrad", pipelined=False)
HEAD = replace(FEEDS, window="head:forward", buffered=False)


def ranks_of(size: int, local: int | None = None) -> Group:
    return Group(size=np.array([size]), local=np.array([local or size]))


EIGHT = ranks_of(8)


def software(base: Software, tensor: str) -> Software:
    return replace(base, overlap=replace(base.overlap, tensor=tensor))


def run(
    base: Software, tensor: str, precision: Any = "bf16", start_s: float = 0.0, **layout: Any
) -> Estimate:
    """Four micro-batches of one sequence on DGX H100, whose products start so much later."""
    gpus, batch = layout["dp"] * layout.get("tp", 1), 4 * layout["dp"]
    recipe = Recipe(sequence_length=4096, global_batch=batch, precision=precision)
    work = Workload(architecture=presets.load("llama-3.1-8b"), recipe=recipe)
    cluster = load_cluster("dgx-h100", gpus)
    kernel = cluster.accelerator.gemm["cublas"]["bf16"]
    later = replace(kernel, launch_s=Figure(kernel.launch_s + start_s))
    device = replace(cluster.accelerator, gemm={"cublas": {"bf16": later, "fp16": later}})
    if start_s:
        cluster = replace(cluster, groups=(replace(cluster.groups[0], accelerator=device),))
    return evaluate(Layouts.of(global_batch=batch, **layout), work, cluster, software(base, tensor))


# --- how products are cut ----------------------------------------------------------------


def ranks(tp: list[int], sequence_parallel: list[bool]) -> Ranks:
    ones = np.ones(len(tp))
    layouts = Layouts.of(dp=8, tp=8, global_batch=8)
    return Ranks(
        tp=np.array(tp, float),
        sequence_parallel=np.array(sequence_parallel),
        cp=ones,
        ep=ones,
        etp=ones,
        micro_batch=ones,
        groups=place(layouts, 8),
    )


def test_a_ring_cuts_tokens_by_ranks_and_a_pipeline_features_by_splits() -> None:
    ops = Operators(collectives=[FEEDS, FOLLOWS, GATHER, SCATTER, HEAD])
    split = ranks([1, 2, 8, 8], [False, True, True, False])
    found = cuts(ops, BUFFERED, split, quantised=False)
    assert set(found) == {"fc1:forward", "fc2:forward"}  # neither what runs in bulk nor the head
    ring, pipe = found["fc1:forward"], found["fc2:forward"]
    assert ring.rows.tolist() == [1, 2, 8, 1] and np.all(ring.columns == 1)
    assert not np.any(ring.held_units)  # copy engines
    assert np.all(pipe.rows == 1) and pipe.columns.tolist() == [1, 4, 4, 1]
    assert pipe.held_units.tolist() == [0, 24, 24, 0]
    # 4096 x 28672 results of two ranks: two pieces of 2048 rows, or four of 7168 features
    rows, columns, batch = ring.shape(4096.0, 28672.0, 1.0)
    assert (rows[1], np.max(columns), batch[1]) == (2048, 28672, 2)
    rows, columns, batch = pipe.shape(4096.0, 28672.0, 1.0)
    assert (np.max(rows), columns[1], batch[1]) == (4096, 7168, 4)


def test_scatters_of_few_bits_and_those_of_torch_are_rings() -> None:
    ops, split = Operators(collectives=[FOLLOWS]), ranks([8], [True])
    for overlap, quantised in ((BUFFERED, True), (ASYNC, False), (ASYNC, True)):
        cut = cuts(ops, overlap, split, quantised=quantised)["fc2:forward"]
        assert (cut.rows, cut.columns, cut.held_units) == (8, 1, 0)
    for tensor in ("none", "backward"):
        assert not cuts(ops, Overlap(tensor=tensor), split, quantised=False)


# --- what pieces take --------------------------------------------------------------------

DEVICE: dict[str, Any] = {
    "operand_bytes": 2.0, "result_bytes": 2.0, "peak_flop_per_s": 1e15, "l2_bytes": 5e7,
    "bandwidth_bytes_per_s": 1e15, "compute_units": 128.0, "launch_s": 0.0, "peak_fraction": 1.0,
    "sustained_fraction": 1.0, "memory_fraction": 1.0, "prologue_k": 0.0, "wave_quantisation": 1.0,
    "small_tile_penalty": 10.0, "split_k_s": 1.0, "l2_refetch": 0.0,
}  # fmt: skip
"""No traffic, only tiles of 128 x 256, no splits of the reduction."""


def timed(cut: Cut, m: float, n: float, k: float, **other: Any) -> float:
    rows, columns, batch = cut.shape(m, n, 1.0)
    return float(gemm_s(m=rows, n=columns, k=k, batch=batch, **{**DEVICE, **other}))


def test_pieces_fill_one_another_s_last_wave() -> None:
    # 384 tiles on 128 units: 3 waves whole, and in two pieces of 1.5 waves each, not 2 + 2
    m, n, k = 24 * 128, 16 * 256, 8192
    wave_s = 2 * 128 * 256 * k / (1e15 / 128)
    assert timed(WHOLE, m, n, k) == pytest.approx(3 * wave_s, rel=1e-3)
    assert timed(Cut(rows=2), m, n, k) == pytest.approx(3 * wave_s, rel=1e-3)
    assert timed(WHOLE, m / 2, n, k) == pytest.approx(2 * wave_s, rel=1e-3)
    # pieces of 1.5 tiles round up to two
    assert timed(Cut(rows=16), m, n, k) == pytest.approx(4 * wave_s, rel=1e-3)


def test_every_piece_reads_the_weights_again() -> None:
    # 1024 tokens: 16.8 MB in, 16.8 MB out, 134.2 MB of weights, at 1e12 bytes/s
    slow = {"bandwidth_bytes_per_s": 1e12, "peak_flop_per_s": 1e18}
    tokens, hidden = 1024, 8192
    edge, weights = 2 * tokens * hidden, 2 * hidden**2
    for pieces in (1, 2, 4, 8):
        rows = timed(Cut(rows=pieces), tokens, hidden, hidden, **slow)
        assert rows == pytest.approx((2 * edge + pieces * weights) / 1e12, rel=1e-3)
        columns = timed(Cut(columns=pieces), tokens, hidden, hidden, **slow)
        assert columns == pytest.approx((edge + pieces * edge + weights) / 1e12, rel=1e-3)


def test_a_margin_takes_its_share_of_the_device() -> None:
    h100 = load_accelerator("h100-sxm")
    whole, left = gemm_rates(h100, "bf16"), gemm_rates(h100, "bf16", held_units=np.array([0, 24]))
    assert left["compute_units"].tolist() == [132, 108]
    share = left["peak_flop_per_s"] / whole["peak_flop_per_s"]
    assert share.tolist() == pytest.approx([1.0, 108 / 132])
    # 128 units at 7.8e12 FLOP/s each, of which 64 are gone: 3 waves become 6
    gone = {"compute_units": 64.0, "peak_flop_per_s": 0.5e15}
    args = (24 * 128, 16 * 256, 8192)
    assert timed(WHOLE, *args, **gone) == pytest.approx(2 * timed(WHOLE, *args), rel=1e-3)


# --- what they hide ----------------------------------------------------------------------


def gathered_first(pieces: int, piece_s: float, send_s: float) -> float:
    """End of the last piece: each waits for its rows and for the piece before."""
    end = arrived = 0.0
    for piece in range(pieces):
        arrived += send_s if piece else 0.0
        end = max(end, arrived) + piece_s
    return end


def scattered_after(pieces: int, piece_s: float, send_s: float, sent: int) -> float:
    """End of product and sends: the first `sent` pieces are sent as soon as they are there."""
    sending = 0.0
    for piece in range(sent):
        sending = max(sending, (piece + 1) * piece_s) + send_s
    return max(sending, pieces * piece_s)


@pytest.mark.parametrize(("piece_s", "send_s"), [*product((1.0, 3.0), (0.5, 1.0, 2.0, 9.0))])
def test_exposed_time_is_that_of_pieces_played_one_by_one(piece_s: float, send_s: float) -> None:
    size, group = 8, EIGHT
    whole, ring = np.array([size * piece_s]), np.array([(size - 1) * send_s])
    shown = ring - hidden_s(FEEDS, BUFFERED, ring, whole, group, quantised=False)
    assert whole + shown == pytest.approx(gathered_first(size, piece_s, send_s))
    shown = ring - hidden_s(FOLLOWS, ASYNC, ring, whole, group, quantised=False)
    assert whole + shown == pytest.approx(scattered_after(size, piece_s, send_s, size - 1))
    whole, four = np.array([4 * piece_s]), np.array([4 * send_s])
    shown = four - hidden_s(FOLLOWS, BUFFERED, four, whole, group, quantised=False)
    assert whole + shown == pytest.approx(scattered_after(4, piece_s, send_s, 4))


def test_what_does_not_feed_its_product_runs_in_bulk_or_waits() -> None:
    short, long = np.array([2.0]), np.array([5.0])
    for overlap, hidden in ((BUFFERED, 2.0), (Overlap(tensor="backward"), 2.0), (ASYNC, 0.0)):
        assert hidden_s(GATHER, overlap, short, long, EIGHT, quantised=False) == hidden
    assert hidden_s(GATHER, BUFFERED, long, short, EIGHT, quantised=False) == 2.0
    for overlap in (BUFFERED, ASYNC, Overlap(tensor="backward")):  # no buffers for the head
        assert hidden_s(HEAD, overlap, short, long, EIGHT, quantised=False) == 0.0


# --- what they cost ----------------------------------------------------------------------


def test_compute_units_are_those_of_the_way_that_runs() -> None:
    assert [held_units(c, BUFFERED, 38.0, EIGHT) for c in (FEEDS, FOLLOWS)] == [0, 0]
    assert [held_units(c, BUFFERED, 38.0, EIGHT) for c in (GATHER, SCATTER, HEAD)] == [2, 8, 38]
    assert [held_units(c, ASYNC, 38.0, EIGHT) for c in (FEEDS, FOLLOWS, HEAD)] == [0, 0, 38]
    assert held_units(FEEDS, Overlap(tensor="backward"), 38.0, EIGHT) == 38


def test_own_rows_are_copied_and_a_ring_s_parts_are_summed() -> None:
    """Eight ranks, 800 bytes: 100 copied (read, written); 8 parts of 100 read, 100 written."""
    whole = np.array([800.0])

    def moved(c: Collective, overlap: Overlap, quantised: bool = False) -> float:
        return float(moved_bytes(c, overlap, whole, EIGHT, quantised=quantised)[0])

    assert [moved(c, BUFFERED) for c in (FEEDS, GATHER)] == [200, 200]
    assert [moved(c, BUFFERED) for c in (FOLLOWS, SCATTER, HEAD)] == [0, 0, 0]
    assert moved(FOLLOWS, BUFFERED, quantised=True) == moved(FOLLOWS, ASYNC) == 900
    assert moved(FEEDS, Overlap(tensor="backward")) == 0
    assert moved_bytes(FEEDS, ASYNC, whole, ranks_of(1), quantised=False) == 0


def test_nothing_is_cut_for_ranks_of_two_domains() -> None:
    """Buffers of peers are in reach over NVLink: 16 ranks on servers of 8 run one after another."""
    far, ten = ranks_of(16, local=8), np.array([10.0])
    assert hidden_s(FEEDS, BUFFERED, ten, ten, far, quantised=False) == 0.0
    assert held_units(SCATTER, BUFFERED, 38.0, far) == 38
    assert hidden_s(FEEDS, BUFFERED, ten, ten, ranks_of(16), quantised=False) == 150 / 16
    assert moved_bytes(FEEDS, BUFFERED, ten, far, quantised=False) == 0.0
    layouts = Layouts.of(dp=1, tp=16, global_batch=8)
    for domain, pieces in ((8, 1.0), (16, 16.0)):
        placed = replace(ranks([16], [True]), groups=place(layouts, domain))
        cut = cuts(Operators(collectives=[FEEDS]), BUFFERED, placed, quantised=False)
        assert cut["fc1:forward"].rows == pieces


def test_types_without_buffers_run_as_without_them() -> None:
    for precision in ("nvfp4", "fp8_blockwise"):
        assert usable(BUFFERED, precision) == replace(BUFFERED, tensor="backward")
        assert usable(ASYNC, precision) == ASYNC
    assert usable(BUFFERED, "mxfp8") == usable(BUFFERED, "bf16") == BUFFERED
    steps = [
        run(CORE, tensor, "fp8_blockwise", dp=1, tp=8).step_time_s[0]
        for tensor in ("backward", "userbuffers")
    ]
    assert steps[0] == steps[1]


# --- whole steps -------------------------------------------------------------------------


@pytest.mark.parametrize("base", [CORE, TITAN])
def test_without_tensor_parallelism_nothing_changes(base: Software) -> None:
    sharding = base.supports.sharding[-1]
    steps = {
        float(run(base, tensor, dp=8, sharding=sharding).step_time_s[0])
        for tensor in ("none", "backward", "userbuffers", "async")
    }
    assert len(steps) == 1


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.parametrize("tp", [2, 8])
def test_hidden_and_exposed_are_the_same_calls(tp: int, precision: str) -> None:
    plain = run(CORE, "none", precision, dp=1, tp=tp)
    calls_s = float(plain.terms_s["tp"][0])
    for tensor in ("backward", "userbuffers", "async"):
        found = run(CORE, tensor, precision, dp=1, tp=tp)
        assert float(found.terms_s["tp"][0] + found.hidden_s["tp"][0]) == pytest.approx(calls_s)
        assert (found.terms_s["gemm"][0] > plain.terms_s["gemm"][0]) == (tensor != "backward")


def test_copy_engines_slow_nothing_down() -> None:
    """One replica on one server: torch hides collectives over tp alone."""
    found = run(TITAN, "async", dp=1, tp=8, sharding="zero3")
    assert found.hidden_s["tp"][0] > 0.0
    assert found.terms_s["slowdown"][0] == 0.0
    plain = run(TITAN, "none", dp=1, tp=8, sharding="zero3")
    assert found.terms_s["gemm"][0] > plain.terms_s["gemm"][0]  # pieces of 512 tokens
    assert found.step_time_s[0] < plain.step_time_s[0]


def test_every_piece_has_a_start_of_its_own() -> None:
    """A block has 21 products, of which asynchronous tensor parallelism cuts 9 into 8 pieces."""

    def products_s(tensor: str, start_s: float) -> float:
        found = run(TITAN, tensor, start_s=start_s, dp=1, tp=8, sharding="zero3")
        return float(found.terms_s["gemm"][0])

    later = [products_s(tensor, 1e-3) - products_s(tensor, 0.0) for tensor in ("none", "async")]
    blocks, micro_batches = 32, 4
    # q, k, v, o, gate, up, down: forward, dgrad, wgrad; the head as well
    assert later[0] == pytest.approx(micro_batches * (21 * blocks + 3) * 1e-3)
    # gathers into q, k, v, gate and up, scatters of o and down, gathers into dgrad of o and down
    assert later[1] - later[0] == pytest.approx(micro_batches * 9 * 7 * blocks * 1e-3)


def test_a_call_in_bulk_is_charged_for_its_own_units() -> None:
    """One replica: beside the head's, charges grow with the units of gathers and of scatters."""

    def charged(gather: float, scatter: float) -> float:
        own = UserBuffers(gather_units=Figure(gather), scatter_units=Figure(scatter))
        base = replace(CORE, overlap=replace(CORE.overlap, user_buffers=own))
        return float(run(base, "userbuffers", dp=1, tp=8).terms_s["slowdown"][0])

    head = charged(0, 0)
    gathers, scatters = charged(4, 0) - head, charged(0, 4) - head
    assert min(gathers, scatters) > 0.0
    assert charged(8, 12) - head == pytest.approx(2 * gathers + 3 * scatters)


def test_more_units_for_the_pipeline_make_its_products_longer() -> None:
    found = []
    for units in (0, 8, 16, 32):
        own = replace(BUFFERS, pipeline_units=Figure(units))
        base = replace(CORE, overlap=replace(CORE.overlap, user_buffers=own))
        found.append(float(run(base, "userbuffers", dp=1, tp=8).terms_s["gemm"][0]))
    assert found == sorted(found) and found[-1] > 1.02 * found[0]


# --- profiles ----------------------------------------------------------------------------


def test_wrong_buffers_are_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'base = "megatron-core"\nrelease = "mine"\n[overlap]\ntensor = "userbuffer"\n'
        '[overlap.user_buffers]\nsplits = 0\nscater = "pipeline"\nprecisions = ["bf16", "fp7"]\n'
    )
    with pytest.raises(InputError) as error:
        load_software(str(path))
    text = str(error.value)
    assert "overlap.tensor: must be 'none', 'backward', 'userbuffers' or 'async'" in text
    assert "overlap.user_buffers.splits" in text and "greater than 0" in text
    assert "did you mean 'scatter'?" in text
    assert "overlap.user_buffers.precisions.1" in text and "'fp7'" in text


def test_shipped_profiles_say_how_they_overlap() -> None:
    bridge, titan = load_software("megatron-bridge"), load_software("torchtitan-async")
    own = bridge.overlap.user_buffers
    assert own == CORE.overlap.user_buffers
    assert (own.scatter, own.quantised_scatter, own.splits) == ("pipeline", "ring_exchange", 4)
    assert titan.overlap == replace(TITAN.overlap, tensor="async")
