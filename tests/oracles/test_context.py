"""Context parallelism of torch itself: bytes that its ring attention hands to collectives."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist
from torch.distributed.tensor.experimental._context_parallel import _attention
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.cost.test_context import TITAN, one_block, sent

CP, S, HEADS, HEAD = 8, 4096, 32, 128
METHODS = {"ring": "ALL_TO_ALL", "all_gather": "ALL_GATHER"}


@pytest.fixture(scope="module")
def group() -> Iterator[Any]:
    dist.init_process_group("fake", rank=0, world_size=CP, store=FakeStore())
    yield dist.group.WORLD
    dist.destroy_process_group()


def counted(group: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> dict[bool, dict[str, float]]:
    """Bytes that one rank sends round or gathers in total, forward and backward."""
    moved: dict[bool, dict[str, float]] = {
        way: {"round": 0, "gathered": 0} for way in (False, True)
    }
    way = False

    def permute(x: Any, dsts: Any, pg: Any) -> Any:
        moved[way]["round"] += x.numel() * x.element_size()
        return torch.empty_like(x)

    def gather(x: Any, gather_dim: int, group: Any) -> Any:
        moved[way]["gathered"] += CP * x.numel() * x.element_size()
        return x.new_empty(CP * x.shape[0])

    monkeypatch.setattr(_attention.ft_c, "permute_tensor", permute)
    monkeypatch.setattr(_attention.ft_c, "all_gather_single", gather)
    method = getattr(_attention._RotateMethod, METHODS[kind])
    monkeypatch.setattr(_attention._cp_options, "rotate_method", method)
    x = torch.empty(1, HEADS, S // CP, HEAD, dtype=torch.bfloat16, device="meta")
    lse = torch.empty(1, HEADS, S // CP, device="meta")

    def attend(q: Any, k: Any, v: Any, is_causal: bool) -> tuple[Any, Any]:
        return torch.empty_like(q), lse[:, :, : q.shape[2]]

    def attend_backward(**given: Any) -> tuple[Any, Any, Any]:
        return tuple(torch.empty_like(given[name]) for name in ("query", "key", "value"))

    _attention._templated_ring_attention(group, 2, attend, x, x, x, is_causal=True)
    way = True
    _attention._templated_ring_attention_backward(
        group, 2, attend_backward, x, "grad_out", x, x, x, x, lse, True
    )
    return moved


@pytest.mark.parametrize("kind", list(METHODS))
def test_bytes_of_torch(group: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_bytes = counted(group, kind, monkeypatch)
    ops = one_block(kind, TITAN, CP)  # Llama 3.1 8B: keys repeated for 32 heads of 128
    for way, expected in torch_bytes.items():
        assert sent(ops, "all_gather", backward=way) == expected["gathered"]
        passed = sent(ops, "ring", backward=way) + sent(ops, "send", backward=way)
        assert passed == pytest.approx(expected["round"], rel=1e-12)
    assert np.sum([list(x.values()) for x in torch_bytes.values()]) > 0
