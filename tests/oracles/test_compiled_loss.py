"""What a compiler makes of the cross-entropy of 16-bit logits, against torch's partitioner."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.software.profile import load_software

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.evidence

ROWS, COLUMNS = 64, 1000


def _compiled() -> tuple[list[Any], list[Any]]:
    """Outputs of the forward and of the backward graph of torchtitan's cross_entropy_loss."""
    from torch._functorch.aot_autograd import aot_function
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    graphs: list[Any] = []

    def keep(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    def loss(logits: Any, labels: Any) -> Any:
        return torch.nn.functional.cross_entropy(logits.float(), labels)

    function = aot_function(
        loss,
        fw_compiler=keep,
        bw_compiler=keep,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )
    logits = torch.randn(ROWS, COLUMNS, dtype=torch.bfloat16, requires_grad=True)
    function(logits, torch.randint(0, COLUMNS, (ROWS,))).backward()
    ends = [next(node for node in graph.graph.nodes if node.op == "output") for graph in graphs]
    return tuple([x for x in end.args[0] if x is not None] for end in ends)  # type: ignore[return-value]


def test_a_compiled_loss_keeps_16_bit_logits_and_makes_a_16_bit_gradient() -> None:
    kept, made = _compiled()
    large = [x for x in kept if x.meta["val"].numel() == ROWS * COLUMNS]
    assert [x.meta["val"].dtype for x in large] == [torch.bfloat16]
    assert large[0].op == "placeholder"  # the logits themselves
    assert [x.meta["val"].dtype for x in made] == [torch.bfloat16]
    kernels = load_software("torchtitan").kernels
    assert "loss" in kernels.fused
    assert kernels.loss_gradient_apart
    # forward a read for the maximum and one for the sum, backward a read and a write, 2 B each
    assert float(kernels.fused_loss_traffic) == 4 * 2
