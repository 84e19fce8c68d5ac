"""What torch itself moves around unfused attention, norms and biases, by operator.

An attention module as Megatron-LM wrote it in 2022 runs on the CPU in bf16: heads split from one
product, batched products on transposed views, the factor on the scores inside the first of them.
"""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from simulator.cost.operators.adapters import freeze
from simulator.cost.operators.block_operators import block
from simulator.cost.operators.ends import embedding, head
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe
from tests.cost.test_low_precision import ranks
from tests.oracles.traffic import Traffic

LENGTH, HEADS, WIDTH = 64, 4, 16
HIDDEN = HEADS * WIDTH
MEGATRON = load_software("megatron-lm-2022").kernels
GPT, LLAMA = presets.load("gpt3-175b"), presets.load("llama-3.1-8b")


def module(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """From the input of the first linear to the input of the last."""
    mixed = (torch.matmul(x, weight.t()) + bias).view(LENGTH, 1, HEADS, 3 * WIDTH)
    query, key, value = (
        part.reshape(LENGTH, HEADS, WIDTH).transpose(0, 1) for part in mixed.split(WIDTH, dim=-1)
    )
    empty = torch.empty(HEADS, LENGTH, LENGTH, dtype=x.dtype)
    scores = torch.baddbmm(empty, query, key.transpose(1, 2), beta=0.0, alpha=WIDTH**-0.5)
    context = torch.bmm(torch.softmax(scores, dim=-1), value)
    return context.view(1, HEADS, LENGTH, WIDTH).permute(2, 0, 1, 3).contiguous()


def listed(*names: str, backward: bool) -> float:
    """Bytes that the list of one block has under these names."""
    kind = GPT.blocks[0]
    attention = replace(kind.attention, heads=HEADS, kv_heads=HEADS, head_dim=WIDTH, dropout=False)
    kind = replace(kind, attention=attention)
    recipe = Recipe(sequence_length=LENGTH, global_batch=1)
    ops = block(kind, HIDDEN, ranks(), recipe, MEGATRON, "learned")
    some = [s for s in ops.streams if s.name in names]
    return sum(float(np.sum(s.backward_bytes if backward else s.forward_bytes)) for s in some)


@pytest.fixture(scope="module")
def passes() -> tuple[Traffic, Traffic]:
    sizes = (LENGTH, 1, HIDDEN), (3 * HIDDEN, HIDDEN), (3 * HIDDEN,)
    inputs = [torch.randn(size, dtype=torch.bfloat16, requires_grad=True) for size in sizes]
    with Traffic() as forward:
        result = module(*inputs)
    with Traffic() as backward:
        result.backward(torch.ones_like(result))
    return forward, backward


def test_heads_are_views_and_only_the_context_is_copied(passes: tuple[Traffic, Traffic]) -> None:
    copied = passes[0].moved("aten.clone", "aten.copy_", "aten._to_copy", "aten.cat")
    expected = listed("split and merge", "context transpose", backward=False)
    assert copied == expected == 2 * 2 * LENGTH * HIDDEN


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_queries_that_share_keys_are_copied_out_of_several_groups(groups: int) -> None:
    """As Megatron-Core's get_query_key_value_tensors splits them; flash attention copies values."""
    heads, tokens = 4, LENGTH
    shared = heads // groups * WIDTH
    mixed = torch.randn(tokens, 1, groups, shared + 2 * WIDTH, dtype=torch.bfloat16)
    with Traffic() as forward:
        query, _, value = torch.split(mixed, [shared, WIDTH, WIDTH], dim=3)
        query.reshape(tokens, 1, -1, WIDTH)
        value.clone(memory_format=torch.contiguous_format)
    kind = LLAMA.blocks[0]
    attention = replace(kind.attention, heads=heads, kv_heads=groups, head_dim=WIDTH)
    recipe = Recipe(sequence_length=tokens, global_batch=1)
    kernels = load_software("megatron-core").kernels
    ops = block(replace(kind, attention=attention), HIDDEN, ranks(), recipe, kernels, "rope")
    (copies,) = (s for s in ops.streams if s.name == "split and merge")
    assert forward.moved("aten.clone", "aten.copy_") == float(np.sum(copies.forward_bytes))


def test_gradients_are_scaled_and_joined_but_not_transposed(
    passes: tuple[Traffic, Traffic],
) -> None:
    moved = passes[1].moved("aten.mul", "aten.clone", "aten.copy_", "aten._to_copy", "aten.cat")
    names = ("scaled gradients", "split and merge", "context transpose")
    assert moved == listed(*names, backward=True) > 0


def test_a_bias_is_added_by_a_kernel_and_its_gradient_summed(
    passes: tuple[Traffic, Traffic],
) -> None:
    """The vector itself is small: not listed."""
    vector = 2 * 3 * HIDDEN
    assert passes[0].moved("aten.add") - vector == listed("qkv bias", backward=False)
    assert passes[1].moved("aten.sum") - vector == listed("qkv bias", backward=True)


def test_what_products_and_casts_do_anyway_is_no_kernel() -> None:
    kernels = load_software("megatron-core").kernels
    recipe = Recipe(sequence_length=LENGTH, global_batch=1)
    ops = block(GPT.blocks[0], HIDDEN, ranks(), recipe, kernels, "learned")
    biases = [s for s in ops.streams if s.name.endswith(" bias")]
    assert len(biases) == 4
    assert all(s.forward_bytes == s.backward_bytes == s.calls == s.calls_back == 0 for s in biases)
    assert not [s for s in ops.streams if "weight gradients" in s.name]


def test_torch_reads_a_norm_twice_for_its_gradients() -> None:
    """aten/src/ATen/native/cuda/layer_norm_kernel.cu: two kernels, each reads both tensors."""
    recipe = Recipe(sequence_length=LENGTH, global_batch=1)
    kernels = load_software("llm-foundry-2023").kernels
    ops = block(GPT.blocks[0], HIDDEN, ranks(), recipe, kernels, "learned")
    norms = [s for s in ops.streams if s.module == "norm"]
    read_twice_and_written = 5 * 2 * LENGTH * HIDDEN
    assert sum(float(np.sum(s.backward_bytes)) for s in norms) == 2 * read_twice_and_written


def test_a_causal_softmax_reads_half_and_writes_all() -> None:
    """A score: 1 B read and 2 B written, 1 + 1 B read and 2 B written."""
    scores = HEADS * LENGTH**2
    assert listed("softmax", backward=False) == 3 * scores
    assert listed("softmax", backward=True) == 4 * scores


@pytest.mark.parametrize("software", ["nemo-25.04", "megatron-bridge"])
def test_transformer_engine_makes_a_mask_out_of_positions(software: str) -> None:
    """As its get_full_mask writes it, in release 2.2 with numbers for flags; heads share it."""
    with Traffic() as forward:
        position = torch.arange(LENGTH, dtype=torch.int32)
        apart = position.view(-1, 1) - position.view(1, -1)
        left, right = apart - LENGTH, apart + 0
        if software == "nemo-25.04":
            torch.logical_not(torch.where(left <= 0, 1, 0) - torch.where(right < 0, 1, 0))
        else:
            torch.logical_not((left <= 0) & ~(right < 0))
    names = ["sub", "add", "le", "lt", "where", "logical_not", "bitwise_not", "bitwise_and"]
    kernels = replace(load_software(software).kernels, attention="unfused")
    recipe = Recipe(sequence_length=LENGTH, global_batch=1)
    ops = block(GPT.blocks[0], HIDDEN, ranks(), recipe, kernels, "learned")
    (mask,) = (s for s in ops.streams if s.name == "mask")
    moved = forward.moved(*(f"aten.{name}" for name in names))
    vectors = 2 * 4 * LENGTH  # numbers for flags are tensors of one element, too
    assert moved - vectors == pytest.approx(float(np.sum(mask.forward_bytes)), rel=1e-3)


def test_alibi_is_copied_to_every_score_and_read_by_the_product() -> None:
    """The copy writes 2 B, the product reads them; one row for each head is next to nothing."""
    mpt = presets.load("mpt-7b")
    assert mpt.position == "alibi"
    recipe = Recipe(sequence_length=LENGTH, global_batch=1)
    kind = mpt.blocks[0]
    kernels = load_software("megatron-deepspeed-2022").kernels
    ops = block(kind, mpt.hidden, ranks(), recipe, kernels, mpt.position)
    found = next(s for s in ops.streams if s.name == "distances")
    assert found.forward_bytes == (2 + 2) * kind.attention.heads * LENGTH**2
    assert found.backward_bytes == 0


def feed_forward(x: torch.Tensor, parameters: list[torch.Tensor]) -> torch.Tensor:
    """Two linears with biases and the residual sum, as eager torch runs them."""
    wide, first, narrow, second = parameters
    inner = torch.nn.functional.gelu(torch.nn.functional.linear(x, wide, first))
    return x + torch.nn.functional.linear(inner, narrow, second)


def test_eager_torch_has_no_kernel_for_a_bias_but_one_for_its_gradient() -> None:
    """GELU reads and writes, back it reads two and writes; sums over tokens read the gradients."""
    x = torch.randn(LENGTH, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    shapes = (4 * HIDDEN, HIDDEN), (4 * HIDDEN,), (HIDDEN, 4 * HIDDEN), (HIDDEN,)
    parameters = [torch.randn(s, dtype=torch.bfloat16, requires_grad=True) for s in shapes]
    with Traffic() as forward:
        result = feed_forward(x, parameters)
    with Traffic() as backward:
        result.backward(torch.ones_like(result))
    gpt = presets.load("gpt2-small")
    kind = replace(
        gpt.blocks[0],
        mlp=replace(gpt.blocks[0].mlp, ffn_hidden=4 * HIDDEN, activation="gelu"),
        dropout=False,
    )
    recipe = Recipe(sequence_length=LENGTH, global_batch=1)
    ops = block(kind, HIDDEN, ranks(), recipe, load_software("plain-ddp").kernels, "learned")
    some = {s.name: s for s in ops.streams}
    assert some["fc activation"].forward_bytes == forward.moved("aten.gelu")
    assert some["fc activation"].backward_bytes == backward.moved("aten.gelu_backward")
    assert some["mlp residual"].forward_bytes == forward.moved("aten.add")
    biases = some["fc1 bias"], some["fc2 bias"]
    assert [bias.calls for bias in biases] == [0.0, 0.0]
    vectors = 2 * (4 * HIDDEN + HIDDEN)
    summed = sum(float(np.sum(bias.backward_bytes)) for bias in biases)
    assert summed == backward.moved("aten.sum") - vectors


def test_frozen_weights_have_no_kernels_for_gradients() -> None:
    """Adapters alone are trained: no sums over tokens for norms and biases."""
    arch = presets.load("qwen2-7b")
    kernels = load_software("torchtune-2024").kernels
    for rank, expected in ((0, 3), (8, 0)):
        recipe = Recipe(sequence_length=LENGTH, global_batch=1, lora_rank=rank)
        ops = block(arch.blocks[0], arch.hidden, ranks(), recipe, kernels)
        others = [f(arch, ranks(), recipe, kernels) for f in (embedding, head)]
        if rank:
            ops, *_ = freeze([ops, *others], arch, ranks(), recipe, kernels)
        summed = [s for s in ops.streams if s.for_weights and np.any(s.backward_bytes)]
        assert len(summed) == expected  # two norms and the biases of queries, keys and values


def test_a_rotation_with_a_factor_runs_operator_by_operator() -> None:
    """As Megatron-Core writes it: the rotated part is cut off and joined to an empty rest."""
    angles, factor = torch.randn(LENGTH, 1, 1, WIDTH), 0.1 * np.log(32.0) + 1.0

    def rotated(heads: torch.Tensor) -> torch.Tensor:
        turned, rest = heads[..., :WIDTH], heads[..., WIDTH:]
        cosine, sine = (way(angles).mul(factor).to(heads.dtype) for way in (torch.cos, torch.sin))
        first, second = turned.chunk(2, dim=-1)
        crossed = torch.cat((-second, first), dim=-1)
        return torch.cat((turned * cosine + crossed * sine, rest), dim=-1)

    # many sequences, beside which the angles weigh nothing
    heads = torch.randn(LENGTH, 64, HEADS, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    with Traffic() as forward:
        result = rotated(heads)
    with Traffic() as backward:
        torch.autograd.grad(result, heads, torch.randn_like(result))
    moving = [f"aten.{name}" for name in ("mul", "neg", "cat", "add", "slice_backward")]
    passes = [way.moved(*moving) / heads.nbytes for way in (forward, backward)]
    told = load_software("megatron-bridge").kernels.scaled_rotary_passes
    assert passes == pytest.approx(told, rel=0.02)


def test_latent_attention_rotates_and_joins_heads_by_operators() -> None:
    """As Megatron-Core's multi_latent_attention.py and rope_utils.py do without a kernel of theirs.

    Gradients of what was split are listed apart, one gradient more than the product's.
    """
    heads, rotary, rest = 64, 16, 32
    angles = torch.randn(LENGTH, 1, 1, rotary)

    def rotated(part: torch.Tensor) -> torch.Tensor:
        turned, none = part[..., :rotary], part[..., rotary:]
        turned = torch.cat((turned[..., 0::2], turned[..., 1::2]), dim=-1)
        cosine, sine = (way(angles).to(part.dtype) for way in (torch.cos, torch.sin))
        first, second = turned.chunk(2, dim=-1)
        turned = turned * cosine + torch.cat((-second, first), dim=-1) * sine
        return torch.cat((turned, none), dim=-1)

    sizes = (heads, rest + rotary), (heads, 2 * rest), (1, rotary)
    parts = [torch.randn(LENGTH, 1, *s, dtype=torch.bfloat16, requires_grad=True) for s in sizes]
    with Traffic() as forward:
        plain, turning = parts[0].split([rest, rotary], dim=-1)
        keys, values = parts[1].split([rest, rest], dim=-1)
        shared = rotated(parts[2]).expand(-1, -1, heads, -1)
        query = torch.cat([plain, rotated(turning)], dim=-1)
        result = [query, torch.cat([keys, shared], dim=-1), values]
    with Traffic() as backward:
        torch.autograd.grad(result, parts, [torch.randn_like(x) for x in result])
    arch = presets.load("deepseek-v3")
    attention = replace(
        arch.blocks[0].attention, heads=heads, kv_heads=heads, head_dim=rest + rotary,
        rope_head_dim=rotary, value_head_dim=rest,
    )  # fmt: skip
    kernels = load_software("megatron-core").kernels
    recipe = Recipe(sequence_length=LENGTH, global_batch=1)
    kind = replace(arch.blocks[0], attention=attention)
    ops = block(kind, HIDDEN, ranks(), recipe, kernels, "rope")
    some = {s.name: s for s in ops.streams}
    moving = [f"aten.{name}" for name in ("mul", "neg", "cat", "add", "slice_backward", "sum")]
    moved = forward.moved(*moving) - 2 * LENGTH * heads * rotary  # one part of a key read for all
    assert moved == pytest.approx(float(some["rotary"].forward_bytes[0]), rel=0.02)
    apart = float((some["rotary"].backward_bytes + some["split and merge"].backward_bytes)[0])
    assert backward.moved(*moving) == pytest.approx(apart, rel=0.05)
