"""What transformers' modules issue, operator by operator, against the kernels that are priced.

A model of two layers is run with torch's dispatcher watched, and one of three: the difference is a
layer. torch.autocast on a CPU has no power among what it runs in fp32, which it has on a GPU
(``autocast_mode.h``, AT_FORALL_FP32): it is cast here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from simulator.cost.operators.block_operators import block
from simulator.cost.operators.operations import Operators
from simulator.cost.states.state_bytes import kernels_of
from simulator.software.profile import load_software
from simulator.workload.architecture import Architecture
from simulator.workload.huggingface import from_hf
from simulator.workload.recipe import Recipe
from tests.cost.test_operators import ranks

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SEQUENCES, LENGTH, HIDDEN, FFN, HEADS, HEAD = 2, 96, 128, 320, 4, 32
VIEWS = ("view", "t.", "transpose", "slice.", "unsqueeze", "squeeze", "expand", "permute", "detach")
VIEWS += ("alias", "select.", "split", "_unsafe_view", "as_strided", "empty")
PRODUCTS = ("mm", "addmm", "bmm", "_scaled_dot_product")
Bytes = dict[str, float]


class Watched(TorchDispatchMode):  # type: ignore[misc]
    """Bytes read and written by every operator that is no view, by pass."""

    def __init__(self) -> None:
        super().__init__()
        self.back, self.moved = False, Counter[tuple[Any, ...]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = str(func).removeprefix("aten.")
        if not name.startswith(VIEWS):
            tensors = [x for x in tree_leaves((args, kwargs, out)) if isinstance(x, torch.Tensor)]
            shapes = tuple(tuple(x.shape) for x in tensors)
            self.moved[(self.back, name.partition(".")[0], shapes, sum(map(held, tensors)))] += 1
        return out


def held(tensor: Any) -> int:
    """Bytes of what a tensor holds; what is broadcast once."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride else 1
    return int(count * tensor.element_size())


def run(config: Any, layers: int) -> Counter[tuple[Any, ...]]:
    setattr(config, "n_layer" if config.model_type == "gpt2" else "num_hidden_layers", layers)
    config.use_cache = False
    if getattr(config, "layer_types", None):
        config.layer_types = ["full_attention"] * layers
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    tokens, watched = torch.zeros(SEQUENCES, LENGTH, dtype=torch.long), Watched()
    with watched:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model.train()(input_ids=tokens, labels=tokens).loss
        watched.back = True
        loss.backward()
    return watched.moved


@pytest.fixture(autouse=True)
def _powers_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    power: Callable[..., Any] = torch.pow

    def in_fp32(x: Any, *rest: Any, **more: Any) -> Any:
        half = isinstance(x, torch.Tensor) and x.dtype == torch.bfloat16
        return power(x.float() if half else x, *rest, **more)

    monkeypatch.setattr(torch, "pow", in_fp32)


def of_a_layer(config: Any, least: int) -> tuple[list[float], list[int]]:
    """Bytes and kernels of a layer, forward and backward, beside products, weights and statistics.

    `least` is the smallest number of bytes that a kernel on activations moves.
    """
    two, three = run(config, 2), run(config, 3)
    bytes_of, kernels = [0.0, 0.0], [0, 0]
    for (back, name, shapes, moved), count in (three - two).items():
        weights = name == "_to_copy" and all(SEQUENCES * LENGTH not in s for s in shapes)
        weights = weights and all(len(s) < 3 for s in shapes)
        if name.startswith(PRODUCTS) or weights or moved < least or name == "clone":
            continue
        bytes_of[back] += moved * count
        kernels[back] += count
    return bytes_of, kernels


def priced(config: Any) -> Operators:
    arch: Architecture = from_hf(config.to_dict(), name="x", where="config.json")
    software, recipe = load_software("plain-ddp"), Recipe(sequence_length=LENGTH, global_batch=2)
    kernels = kernels_of(software, recipe)
    assert kernels.wide_stream, "fp32 weights under torch.autocast"
    kind, seen = arch.blocks[0], ranks(micro_batch=SEQUENCES)
    return block(kind, arch.hidden, seen, recipe, kernels, arch.position)


SIZES: dict[str, Any] = {
    "hidden_size": HIDDEN, "intermediate_size": FFN, "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS, "head_dim": HEAD, "vocab_size": 64,
    "max_position_embeddings": LENGTH, "num_hidden_layers": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "within"),
    # norms of heads hand fp32 to the rotation, which is left out
    [("llama", 0.05), ("mistral", 0.05), ("qwen3", 0.1)],
)
def test_a_block_moves_what_the_modules_move(family: str, within: float) -> None:
    config = transformers.AutoConfig.for_model(family, **SIZES)
    (forward, backward), kernels = of_a_layer(config, 2 * SEQUENCES * LENGTH * HIDDEN)
    ops = priced(config)
    streams = [s for s in ops.streams if s.name != "split and merge"]
    assert sum(np.max(s.forward_bytes) for s in streams) == pytest.approx(forward, rel=within)
    assert sum(np.max(s.backward_bytes) for s in streams) == pytest.approx(backward, rel=within)
    assert kernels[1] > kernels[0] > 20


def test_the_activation_of_gpt2_is_written_out() -> None:
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=LENGTH, n_embd=HIDDEN, n_inner=FFN, n_head=HEADS, n_layer=2
    )
    two, three = run(config, 2), run(config, 3)
    ours, inner = [0.0, 0.0], (SEQUENCES, LENGTH, FFN)
    for (back, name, shapes, moved), count in (three - two).items():
        flat = (SEQUENCES * LENGTH, FFN)
        touches = any(s in (inner, flat) for s in shapes) and not name.startswith(PRODUCTS)
        ours[back] += moved * count * (touches and name != "sum")
    (activation,) = (s for s in priced(config).streams if s.name == "fc activation")
    assert np.max(activation.forward_bytes) == pytest.approx(ours[0])
    assert np.max(activation.backward_bytes) == pytest.approx(ours[1])
