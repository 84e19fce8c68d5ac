"""Operators of one rank: FLOPs and kept bytes against the formulas of published papers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.operators.block_operators import block
from simulator.cost.operators.ends import embedding, head
from simulator.cost.operators.model_flop import model_flop_per_step
from simulator.cost.operators.operations import Operators, Ranks
from simulator.cost.step import evaluate
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.layout.placement import place
from simulator.software.kernels import Kernels
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Recipe, Workload

GPT = presets.load("megatron-175b")  # h 12288, a 96, l 96, V 51200, s 2048
LLAMA = presets.load("llama-3.1-70b")
OLD = load_software("megatron-lm-2022").kernels
NEW = load_software("megatron-core").kernels


def ranks(**degrees: Any) -> Ranks:
    """What one rank sees, for a single layout."""
    layout = Layouts.of(**degrees)
    return Ranks(
        **{name: getattr(layout, name).astype(float) for name in ("tp", "cp", "ep", "etp")},
        micro_batch=layout.micro_batch.astype(float),
        sequence_parallel=layout.sequence_parallel.astype(bool),
        groups=place(layout, 8),
    )


def saved(ops: Operators, *, without: tuple[str, ...] = ()) -> float:
    """Bytes kept from forward to backward, tensors with a name that holds a given word left out."""
    chosen = [x for x in ops.saved if not any(word in x.name for word in without)]
    return float(sum(np.sum(x.size_bytes) for x in chosen))


def one_block(arch: Architecture, kernels: Kernels, length: int, **degrees: Any) -> Operators:
    recipe = Recipe(sequence_length=length, global_batch=1024)
    return block(arch.blocks[0], arch.hidden, ranks(**degrees), recipe, kernels)


@pytest.mark.parametrize("t", [1, 2, 4, 8])
@pytest.mark.parametrize("b", [1, 3])
def test_gpt_block_keeps_what_korthikanti_2022_counts(t: int, b: int) -> None:
    """Sections 4.1 and 4.2.2: without and with sequence parallelism; norm statistics on top."""
    s, h, a = 2048, 12288, 96
    for sharded in (0, 1) if t > 1 else (0,):
        ops = one_block(GPT, OLD, s, tp=t, micro_batch=b, sequence_parallel=sharded)
        whole = s * b * h / t * (34 + 5 * a * s / h)
        split = s * b * h * (10 + 24 / t + 5 * a * s / (h * t))
        expected = whole if sharded else split
        assert saved(ops, without=("statistics",)) == pytest.approx(expected, rel=1e-12)
        # mean and reciprocal deviation in fp32 for each token of each of the two norms
        statistics = 2 * 8 * s * b / (t if sharded else 1)
        assert saved(ops) - saved(ops, without=("statistics",)) == pytest.approx(statistics)


@pytest.mark.parametrize("t", [1, 8])
def test_selective_recomputation_drops_the_attention_matrices(t: int) -> None:
    """Korthikanti 2022, section 5: 34 s b h / t are left, with sequence parallelism."""
    s, h = 2048, 12288
    ops = one_block(GPT, OLD, s, tp=t)
    core = sum(float(np.sum(x.size_bytes)) for x in ops.saved if x.module in OLD.selective_modules)
    left = saved(ops, without=("statistics",)) - core
    assert left == pytest.approx(34 * s * h / t, rel=1e-12)


@pytest.mark.parametrize(("t", "sharded"), [(1, 0), (8, 0), (8, 1)])
def test_full_recomputation_keeps_the_input_of_the_block(t: int, sharded: int) -> None:
    ops = one_block(GPT, OLD, 2048, tp=t, sequence_parallel=sharded)
    assert ops.checkpoint_bytes == pytest.approx(2 * 2048 * 12288 / (t if sharded else 1))


@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "mistral-7b"])
@pytest.mark.parametrize("b", [1, 2])
def test_llama_block_keeps_what_transformer_engine_keeps(model: str, b: int) -> None:
    """s b (12 h + 4 kv d + 6 f + 4 a + 8): fused SwiGLU, flash attention, RMS norms (tp 1)."""
    arch, s = presets.load(model), 8192
    att, f = arch.blocks[0].attention, arch.blocks[0].mlp.ffn_hidden
    per_token = 12 * arch.hidden + 4 * att.kv_heads * att.head_dim + 6 * f + 4 * att.heads + 8
    ops = one_block(arch, NEW, s, micro_batch=b)
    assert saved(ops) == pytest.approx(s * b * per_token, rel=1e-12)


@pytest.mark.parametrize("cp", [2, 8])
def test_context_parallelism_divides_what_a_block_keeps(cp: int) -> None:
    whole = saved(one_block(LLAMA, NEW, 8192))
    assert saved(one_block(LLAMA, NEW, 8192, cp=cp)) == pytest.approx(whole / cp)


def test_tensor_parallelism_with_dtensor_keeps_gathered_inputs() -> None:
    # counted with torch 2.13 on DTensor: (12h + 4 kv d + 8f + 4a) / t + 4h (1 - 1/t) per
    # token, 0.13480 GiB for Llama-3-8B at s = 8192; the fused SwiGLU here keeps 6f instead of 8f
    arch, s, t = presets.load("llama-3.1-8b"), 8192, 8
    ops = one_block(arch, load_software("torchtitan").kernels, s, tp=t)
    per_token = (12 * 4096 + 4 * 1024 + 6 * 14336 + 4 * 32) / t + 4 * 4096 * (1 - 1 / t)
    assert saved(ops, without=("statistics",)) == pytest.approx(s * per_token, rel=1e-12)


def narayanan(
    batch: float, s: int, layers: int, h: int, vocabulary: int, attention: float
) -> float:
    """Narayanan et al. 2021, FLOPs of an iteration, with `attention` times its attention term."""
    terms = 1 + attention * s / (6 * h) + vocabulary / (16 * layers * h)
    return 96 * batch * s * layers * h**2 * terms


@pytest.mark.parametrize("model", ["megatron-175b", "megatron-530b", "megatron-1t"])
@pytest.mark.parametrize("software", ["megatron-core", "megatron-lm-2022"])
def test_executed_flop_with_full_recompute_are_narayanans(model: str, software: str) -> None:
    """The attention term halved: both forward passes count the causal half of the scores."""
    arch = presets.load(model)
    recipe = Recipe(sequence_length=2048, global_batch=96)
    layout = Layouts.of(tp=8, pp=len(arch.layer_kinds) // 3, global_batch=96, recompute="full")
    gpus = int(layout.world[0])
    cluster = load_cluster("dgx-a100", gpus)
    work = Workload(architecture=arch, recipe=recipe)
    found = evaluate(layout, work, cluster, load_software(software))
    expected = narayanan(96, 2048, arch.layers, arch.hidden, arch.vocabulary, attention=0.5)
    assert found.executed_flop[0] == pytest.approx(expected, rel=1e-9)


def test_model_flop_are_three_quarters_of_that_but_for_the_head() -> None:
    # without recomputation: 72 B s l h^2 (1 + s / 6h + V / 12 l h), attention halved
    b, s, layers, h, v = 1536, 2048, 96, 12288, 51200
    expected = 72 * b * s * layers * h**2 * (1 + s / (12 * h) + v / (12 * layers * h))
    found = model_flop_per_step(GPT, tokens=b * s, sequence_length=s)
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "model", ["llama-3.1-70b", "mixtral-8x7b", "deepseek-v3", "qwen3-235b-a22b"]
)
def test_forward_flop_of_all_operators_are_a_third_of_the_model_flop(model: str) -> None:
    arch = presets.load(model)
    s = 4096
    recipe, alone = Recipe(sequence_length=s, global_batch=1), ranks()
    kernels = replace(NEW, pads_vocabulary_to=1)
    kinds = [block(kind, arch.hidden, alone, recipe, kernels) for kind in arch.blocks]
    parts = [kinds[i] for i in arch.layer_kinds]
    parts += [embedding(arch, alone, recipe, kernels), head(arch, alone, recipe, kernels)]
    flop = sum(2 * g.batch * g.m * g.n * g.k for part in parts for g in part.gemms)
    flop = flop + sum(call.flop for part in parts for call in part.flash)
    expected = model_flop_per_step(arch, tokens=s, sequence_length=s) / 3
    assert float(np.sum(flop)) == pytest.approx(expected, rel=1e-12)


def linears(ops: Operators) -> float:
    return float(
        sum(np.sum(2 * g.batch * g.m * g.n * g.k) for g in ops.gemms if g.kind == "linear")
    )


@pytest.mark.parametrize("degree", ["tp", "cp"])
def test_doubling_a_degree_halves_the_linears_and_the_attention(degree: str) -> None:
    for n in (1, 2, 4):
        small, large = (one_block(LLAMA, NEW, 8192, **{degree: x}) for x in (2 * n, n))
        assert linears(small) == pytest.approx(linears(large) / 2)
        assert small.flash[0].flop == pytest.approx(large.flash[0].flop / 2)


def test_experts_compute_the_same_however_they_are_spread() -> None:
    moe = presets.load("mixtral-8x7b")
    whole = linears(one_block(moe, NEW, 4096, dp=8))
    for ep, etp in ((8, 1), (4, 1), (4, 2), (2, 4)):
        assert linears(one_block(moe, NEW, 4096, dp=8, ep=ep, etp=etp)) == pytest.approx(whole)


def test_layers_with_a_sliding_window_attend_to_fewer_keys() -> None:
    # mistral: window 4096; of s^2 / 2 pairs the window leaves s w - w^2 / 2
    arch, s, w = presets.load("mistral-7b"), 32768, 4096
    att = replace(arch.blocks[0].attention, window=w)
    arch = replace(arch, blocks=(replace(arch.blocks[0], attention=att),))
    flop = float(np.sum(one_block(arch, NEW, s).flash[0].flop))
    assert flop == pytest.approx(4 * 32 * 128 * (s * w - w * w / 2), rel=1e-12)


def test_learned_positions_cost_no_rotary_kernels() -> None:
    """GPT-2 and GPT-3 add positions once, at the embedding; Llama rotates in every block."""
    cluster = load_cluster("dgx-a100", 8)
    software = load_software("megatron-lm-2022")
    recipe = Recipe(sequence_length=2048, global_batch=8)
    small = presets.load("gpt3-2.7b")
    busy = []
    for position in ("learned", "rope"):
        work = Workload(architecture=replace(small, position=position), recipe=recipe)
        found = evaluate(Layouts.of(dp=8), work, cluster, software)
        busy.append(float(found.terms_s["memory_bound"][0]))
    assert busy[0] < busy[1]


def test_what_a_fused_loss_reads_and_writes_of_every_logit() -> None:
    """Compiled pieces 24 bytes; Transformer Engine's kernel 2 + 4 forward and 4 backward."""
    recipe = Recipe(sequence_length=2048, global_batch=8)
    for software, each in (("megatron-core", 24), ("megatron-bridge", 10)):
        kernels = load_software(software).kernels
        (loss,) = (s for s in head(LLAMA, ranks(tp=2), recipe, kernels).streams if s.name == "loss")
        logits = 2048 * 128256 / 2
        assert np.all(loss.forward_bytes + loss.backward_bytes == each * logits)


@pytest.mark.parametrize(("tp", "traffic", "beside"), [(1, 8.0, 2.0), (2, 44.0, 10.0)])
def test_a_compiled_loss_of_torchtitan(tp: int, traffic: float, beside: float) -> None:
    """16-bit logits and their gradient; over a split vocabulary 16 B less the 6 that are kept."""
    model, kernels = presets.load("llama-3.1-8b"), load_software("torchtitan").kernels
    recipe = Recipe(sequence_length=8192, global_batch=8)
    ops = head(model, ranks(tp=tp), recipe, kernels)
    logits = 8192 * model.vocabulary / tp
    moved = [s.forward_bytes + s.backward_bytes for s in ops.streams if s.kind == "loss"]
    assert np.sum(moved) == pytest.approx(traffic * logits)
    weight, dgrad = model.vocabulary / tp * model.hidden * 2, 8192 * model.hidden * 2
    assert np.max(ops.transient_bytes) == pytest.approx(max(beside * logits, weight + dgrad))
