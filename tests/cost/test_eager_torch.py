"""What eager torch adds to a step: gradients added up, copies around gathers, work of the host."""

from dataclasses import replace
from typing import Any

import pytest

from simulator.cost.collectives.calls import all_reduce_s
from simulator.cost.step import Estimate, evaluate
from simulator.files import Figure
from simulator.hardware.cluster import load_cluster, with_release
from simulator.layout.layouts import Layouts
from simulator.layout.placement import Group
from simulator.software.profile import Software, load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

TITAN = load_software("torchtitan")
TITAN = replace(
    TITAN,
    host=replace(TITAN.host, time_variation=Figure(0.0)),
    states=replace(TITAN.states, reduce_copies=Figure(0.0)),
    fsdp2=replace(TITAN.fsdp2, gather_copies=Figure(0.0), lone_replica="wrapped"),
    kernels=replace(
        TITAN.kernels, dtensor=replace(TITAN.kernels.dtensor, sequence_copies=Figure(0.0))
    ),
)
H100 = load_cluster("dgx-h100", 8)
STREAMS = H100.accelerator.stream
PARAMETERS = 8_030_261_248  # Llama-3.1-8B
ENDS = 2 * 128256 * 4096 + 4096
BLOCKS = 32
M = 4


def with_(software: Software = TITAN, **tables: dict[str, Any]) -> Software:
    """Software with fields of its tables changed; `kernels__dtensor` is a table of a table."""
    for name, changed in tables.items():
        outer, _, inner = name.partition("__")
        table = getattr(software, outer)
        figures = {k: Figure(v) if isinstance(v, float) else v for k, v in changed.items()}
        if inner:
            figures = {inner: replace(getattr(table, inner), **figures)}
        software = replace(software, **{outer: replace(table, **figures)})
    return software


def run(software: Software, *, m: int = M, **layout: Any) -> Estimate:
    """`m` micro-batches of one sequence on every data-parallel rank."""
    batch = m * layout.get("dp", 1)
    work = Workload(
        architecture=presets.load("llama-3.1-8b"),
        recipe=Recipe(sequence_length=4096, global_batch=batch),
    )
    return evaluate(Layouts.of(global_batch=batch, **layout), work, H100, software)


def longer(name: str, software: Software, *, than: Software = TITAN, **layout: Any) -> float:
    """Seconds that one term of a step takes longer `than` with another software."""
    found = [float(run(one, **layout).terms_s[name][0]) for one in (than, software)]
    return found[1] - found[0]


def rate(kind: str) -> float:
    return float(STREAMS[kind].memory_fraction) * 3.35e12


# --- gradients added up ---------------------------------------------------------------------


def test_one_micro_batch_adds_nothing_up() -> None:
    adds = with_(states={"accumulation_traffic": 12.0})
    assert longer("memory_bound", adds, m=1) == 0.0


def test_every_further_micro_batch_adds_its_gradients() -> None:
    adds = with_(states={"accumulation_traffic": 12.0})
    expected = (M - 1) * 12 * PARAMETERS / rate("optimizer")
    assert longer("memory_bound", adds) == pytest.approx(expected, rel=1e-9)


# --- flat buffers ---------------------------------------------------------------------------


def test_zero3_copies_blocks_twice_and_ends_once() -> None:
    # bf16 gathers; embedding, head and last norm stay whole for the backward pass
    copies = with_(fsdp2={"gather_copies": 3.0})
    gathered = 2.0 * (2 * (PARAMETERS - ENDS) + ENDS)
    found = longer("memory_bound", copies, dp=8, sharding="zero3")
    assert found == pytest.approx(M * 3 * gathered / rate("copy"), rel=1e-9)


def test_fsdp2_copies_gradients_in_every_micro_batch_ddp_once_a_step() -> None:
    copies = with_(states={"reduce_copies": 2.0})  # fp32 on the wire
    once = 2 * 4.0 * PARAMETERS / rate("copy")
    found = longer("memory_bound", copies, dp=8, sharding="zero3")
    assert found == pytest.approx(M * once, rel=1e-9)
    assert longer("memory_bound", copies, dp=8, sharding="ddp") == pytest.approx(once, rel=1e-9)
    assert longer("memory_bound", copies, dp=1, sharding="ddp") == 0.0


# --- host -----------------------------------------------------------------------------------


def test_a_gathered_block_costs_the_host_where_it_waits() -> None:
    host = {"gathered_block_forward_s": 1e-3, "gathered_block_backward_s": 2e-3}
    ahead = with_(host__distributed=host)
    waits = with_(host={"waits_for_kernels": True}, host__distributed=host)
    plain = with_(host={"waits_for_kernels": True})
    assert longer("launch", ahead, dp=8, sharding="zero3") == 0.0
    shared = {"dp": 8, "sharding": "zero3"}
    found = [float(run(one, **shared).terms_s["launch"][0]) for one in (plain, waits)]
    assert found[1] - found[0] == pytest.approx(M * 3e-3 * (BLOCKS + 1), rel=1e-9)
    whole = [run(one, dp=8, sharding="ddp").step_time_s[0] for one in (plain, waits)]
    assert whole[0] == whole[1]


def test_a_split_block_costs_the_host_where_it_waits_or_is_behind() -> None:
    host = {
        "split_block_forward_s": 1e-3,
        "split_block_backward_s": 2e-3,
        "split_ends_forward_s": 4e-3,
        "split_ends_backward_s": 8e-3,
    }
    plain = with_(host={"waits_for_kernels": True})
    waits = with_(host={"waits_for_kernels": True}, host__distributed=host)
    found = [float(run(one, tp=8).terms_s["launch"][0]) for one in (plain, waits)]
    slower = float(H100.node.host_time)
    assert found[1] - found[0] == pytest.approx(M * slower * (3e-3 * BLOCKS + 12e-3), rel=1e-9)
    assert run(plain).step_time_s[0] == run(waits).step_time_s[0]
    # a host that is ahead hides it: a block of 8 ranks takes far less than a second
    slow = with_(host__distributed={"split_block_forward_s": 1.0})
    assert longer("launch", slow, tp=8) == pytest.approx(M * BLOCKS * slower, rel=0.05)
    assert longer("launch", with_(host__distributed={"split_block_forward_s": 1e-6}), tp=8) == 0.0


def test_each_reduction_costs_the_host() -> None:
    """Two forward and two backward in a block, one for the embedding, one for the head."""
    plain = with_(host={"waits_for_kernels": True})
    waits = with_(host={"waits_for_kernels": True}, host__distributed={"split_reduction_s": 1e-3})
    split = {"tp": 8, "sequence_parallel": False}
    found = [float(run(one, **split).terms_s["launch"][0]) for one in (plain, waits)]
    each_s = 1e-3 * float(H100.node.host_time)
    assert found[1] - found[0] == pytest.approx(M * (4 * BLOCKS + 2) * each_s, rel=1e-9)


def test_a_functional_reduction_copies_what_it_sums() -> None:
    copies = with_(kernels__dtensor={"reduction_copies": 2.0})
    summed = (4 * BLOCKS + 2) * 2.0 * 4096 * 4096
    found = longer("memory_bound", copies, tp=8, sequence_parallel=False)
    assert found == pytest.approx(M * 2 * summed / rate("copy"), rel=1e-9)
    assert longer("memory_bound", copies, tp=8, sequence_parallel=True) == 0.0


def test_gathers_and_scatters_along_the_sequence_copy_all_of_it() -> None:
    """Two of either in a block each way, one each way of the embedding and of the head."""
    copies = with_(kernels__dtensor={"sequence_copies": 3.0})
    moved = (8 * BLOCKS + 4) * 2.0 * 4096 * 4096
    found = longer("memory_bound", copies, tp=8, sequence_parallel=True)
    assert found == pytest.approx(M * 3 * moved / rate("copy"), rel=1e-9)
    assert longer("memory_bound", copies, tp=8, sequence_parallel=False) == 0.0
    assert longer("memory_bound", copies, dp=8, sharding="zero3") == 0.0


def test_what_runs_as_pieces_of_a_product_is_copied_as_well() -> None:
    pieces = with_(overlap={"tensor": "async"})
    copies = with_(pieces, kernels__dtensor={"sequence_copies": 3.0})
    moved = (8 * BLOCKS + 4) * 2.0 * 4096 * 4096
    found = longer("memory_bound", copies, than=pieces, tp=8, sequence_parallel=True)
    assert found == pytest.approx(M * 3 * moved / rate("copy"), rel=1e-9)


def test_distributed_tensors_cost_the_host_a_step() -> None:
    """Once a step, for 32 blocks and both ends as one; a stage has its own blocks and one end."""
    figures = {"split_block_step_s": 1e-3, "gathered_block_step_s": 2e-3}
    plain = with_(host={"waits_for_kernels": True})
    waits = with_(host={"waits_for_kernels": True}, host__distributed=figures)

    def more(**layout: Any) -> float:
        found = [float(run(one, **layout).terms_s["optimizer"][0]) for one in (plain, waits)]
        return found[1] - found[0]

    assert more(tp=8) == pytest.approx(33e-3, rel=1e-9)
    assert more(dp=8, sharding="zero3") == pytest.approx(66e-3, rel=1e-9)
    assert more(dp=4, tp=2, sharding="zero3") == pytest.approx(66e-3, rel=1e-9)
    assert more(tp=2, pp=4) == pytest.approx(8.5e-3, rel=1e-9)
    assert more(dp=8, sharding="ddp") == 0.0
    assert longer("optimizer", with_(host__distributed=figures), tp=8) == 0.0


# --- projections ----------------------------------------------------------------------------


def test_each_projection_reduces_its_own_gradient() -> None:
    """Queries, keys, values are three linears, gate and up two: three reductions more a block."""
    apart = with_(kernels__dtensor={"reduces_each_projection": True})
    pair = Group(size=8, local=8)
    release = with_release(H100, TITAN.kernels.nccl)
    one = float(all_reduce_s(release, 2.0 * 4096 * 4096, pair))
    split = {"tp": 8, "sequence_parallel": False}
    assert longer("tp", apart, **split) == pytest.approx(M * BLOCKS * 3 * one, rel=1e-9)
    assert longer("tp", apart, tp=8, sequence_parallel=True) == 0.0
