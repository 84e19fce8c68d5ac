"""What routed experts and attention keep under Megatron-LM's switches, by torch and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from simulator import catalogue
from simulator.cost.memory.rank_tensors import operators_of
from simulator.cost.rank_memory import rank_memory
from simulator.files import read_csv
from simulator.measured.replay import Run, load_tables, replay

MIB = 2**20
ROWS = {
    row["run_id"][-4:]: row
    for _, row in read_csv(catalogue.folder("validation") / "runs" / "second_memory.csv")
}


def run_of(number: str, **fields: str) -> Run:
    """A run of Megatron-LM's own tests, by the end of its id."""
    return replay(ROWS[number] | fields, load_tables())


def saved_mib(run: Run) -> float:
    """MiB that one block keeps for its backward pass."""
    block = operators_of(run.layout, run.workload, run.cluster, run.software)[0]
    return sum(float(np.max(tensor.size_bytes)) for tensor in block.saved) / MIB


def test_adding_rows_up_in_a_fixed_order_keeps_them() -> None:
    """index_add_ saves its source (torch's derivatives.yaml: expand_as), scatter_add_ not."""
    torch = pytest.importorskip("torch")

    def kept(add: str) -> int:
        rows = torch.ones(8, 4, requires_grad=True) * 1.0
        index = torch.tensor([0, 1, 2, 3, 4, 5, 0, 1])
        if add == "scatter_add_":
            index = index.unsqueeze(1).expand(-1, 4)
        saved: list[int] = []

        def pack(tensor: object) -> object:
            saved.append(tensor.numel() * tensor.is_floating_point())  # type: ignore[attr-defined]
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            getattr(torch.zeros(6, 4), add)(0, index, rows)
        return sum(saved)

    assert (kept("index_add_"), kept("scatter_add_")) == (32, 0)


def test_experts_outputs_stay_where_they_are_added_in_a_fixed_order() -> None:
    """4,096 rows of 512 elements in 16 bit arrive: 2,048 tokens of a rank, cut in 2 over etp."""
    run = run_of("0495", moe_routing="forced")
    without = run_of("0495", moe_routing="forced", unpermute="scatter_add")
    assert saved_mib(run) - saved_mib(without) == pytest.approx(4096 * 512 * 2 / MIB)


def test_experts_without_a_gate_keep_their_activation_before_and_after_its_weights() -> None:
    """TEGroupedMLP fuses gated ones alone: fc1's output, its gelu, and that times the weights."""
    run = run_of("0495", moe_routing="forced")
    block = operators_of(run.layout, run.workload, run.cluster, run.software)[0]
    inner = [x for x in block.saved if x.name.startswith("expert fc")]
    each = 4096 * 1024 * 2 / MIB
    assert [float(np.max(x.size_bytes)) / MIB for x in inner] == pytest.approx([each] * 3)


def test_experts_one_by_one_need_no_workspaces_of_a_grouped_product() -> None:
    def workspace(run: Run) -> float:
        held = rank_memory(run.layout, run.workload, run.cluster, run.software)
        return float(held.kinds_bytes["workspace"][-1]) / MIB

    grouped, apart = workspace(run_of("0482", grouped_experts="true")), workspace(run_of("0482"))
    assert grouped - apart == pytest.approx(4 * 32)
    # blocks that are not Transformer Engine's: cuBLAS for two threads, scores, TE for the router,
    # and the gradient of the stage's input, 1,024 tokens of 512 elements
    scores, gradient = 4 * 2 * 1024**2 * 2 / MIB, 1024 * 512 * 2 / MIB
    assert workspace(run_of("0537")) == pytest.approx(2 * 32 + scores + 4 + gradient, abs=0.1)


def test_flash_attn_keeps_its_result_twice_where_a_micro_batch_has_several_sequences() -> None:
    """Batch first, and copied for the projection: 4 x 1,024 tokens of 512 elements in 16 bit."""
    both = [saved_mib(run_of("0021", attention_library=name, flash_attention="true"))
            for name in ("flash_attn", "cudnn")]  # fmt: skip
    assert both[0] - both[1] == pytest.approx(4 * 1024 * 512 * 2 / MIB)
    usual = [saved_mib(run_of("0021", attention_library="", gpu=gpu, flash_attention="true"))
             for gpu in ("A100-SXM4-80GB", "H100-SXM5-80GB")]  # fmt: skip
    assert usual == pytest.approx(both)
