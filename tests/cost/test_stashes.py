"""Compressed stashes by hand: bytes that are saved, kernels that encode and decode them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cost.memory_trace import replay_memory
from simulator.cost.operators.block_operators import block
from simulator.cost.operators.ends import embedding, head
from simulator.cost.operators.operations import Ranks
from simulator.cost.operators.roles import SavedRole
from simulator.cost.operators.stashes import stash_class
from simulator.cost.rank_memory import rank_memory
from simulator.cost.step import Estimate, evaluate
from simulator.errors import InputError
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.layout.placement import place
from simulator.scenario import make_scenario
from simulator.software.profile import Software, load_software
from simulator.workload import presets
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Recipe, StashBytes, Workload

S, M = 4096, 4
CORE = load_software("megatron-core")
APART = replace(CORE.kernels, fused=())  # norms, gates and products by kernels of their own
LLAMA = presets.load("llama-3.1-8b")  # h 4096, f 14336, 32 layers, 32 heads of 128, 8 for keys


def run(
    stash: dict[str, float] | None,
    software: Software = CORE,
    arch: Architecture = LLAMA,
    **layout: Any,
) -> Estimate:
    """Four micro-batches of one sequence."""
    stashes = None if stash is None else StashBytes(**stash)
    recipe = Recipe(sequence_length=S, global_batch=M, stash_bytes=stashes)
    table = Layouts.of(global_batch=M, **layout)
    work = Workload(architecture=arch, recipe=recipe)
    return evaluate(table, work, load_cluster("dgx-h100", 8), software)


def saved(stash: dict[str, float], software: Software = CORE, **layout: Any) -> float:
    """Bytes of one block and token that compression saves."""
    whole, less = (
        float(run(x, software, **layout).memory_bytes["activations"][0]) for x in (None, stash)
    )
    return (whole - less) / (LLAMA.layers * S)


def added_s(stash: dict[str, float], **layout: Any) -> float:
    """Seconds that compression adds to a block and micro-batch."""
    less, more = (float(run(x, **layout).step_time_s[0]) for x in (None, stash))
    return (more - less) / (LLAMA.layers * M)


@pytest.mark.parametrize(
    ("stash", "elements"),
    [
        ({"activation_input": 1.0}, 2 * 14336),  # gate and up
        ({"activation_output": 1.0}, 14336),
        ({"attention": 1.0}, 4096 + 2 * 1024 + 4096),  # queries, keys, values, output
        ({"linear_input": 1.0}, 2 * 4096),  # of attention and MLP
        ({"norm_input": 1.0}, 2 * 4096),
    ],
)
def test_one_byte_instead_of_two(stash: dict[str, float], elements: int) -> None:
    assert saved(stash) == pytest.approx(elements, rel=1e-9)


def test_four_bits_and_sparse_outputs() -> None:
    assert saved({"activation_input": 0.5}) == pytest.approx(1.5 * 2 * 14336, rel=1e-9)
    assert saved({"activation_output": 1.5}) == pytest.approx(0.5 * 14336, rel=1e-9)


def test_classes_add_up_and_tensor_ranks_save_their_share() -> None:
    both = {"activation_input": 1.0, "attention": 1.0}
    assert saved(both) == pytest.approx(2 * 14336 + 10240, rel=1e-9)
    assert saved(both, tp=8) == pytest.approx((2 * 14336 + 10240) / 8, rel=1e-9)


def test_masks_of_one_bit() -> None:
    """Masks of h behind attention and MLP, 1 byte each, and one behind the embedding."""
    arch = replace(LLAMA, blocks=tuple(replace(kind, dropout=True) for kind in LLAMA.blocks))
    whole, less = (
        float(run(x, CORE, arch).memory_bytes["activations"][0]) for x in (None, {"mask": 0.125})
    )
    assert (whole - less) / (32 * S) == pytest.approx(0.875 * (2 + 1 / 32) * 4096, rel=1e-9)


def test_a_type_that_is_smaller_already_stays() -> None:
    assert saved({"attention": 2.0, "mask": 1.0, "norm_input": 4.0}) == 0.0
    assert added_s({"attention": 2.0}) == 0.0


def test_encoding_reads_one_form_and_writes_the_other() -> None:
    """Gate and up: 4096 tokens x 28672 elements; 2 + 1 bytes each way at 3.35 TB/s x the share."""
    memory = load_cluster("dgx-h100", 8).accelerator
    kernel = memory.stream["elementwise"]
    rate = float(memory.memory.bandwidth_bytes_per_s) * float(kernel.memory_fraction)
    moved = 4096 * 28672 * 3
    expected = 2 * (moved / rate + float(kernel.launch_s))
    assert added_s({"activation_input": 1.0}) == pytest.approx(expected, rel=1e-2)


def test_the_largest_decoded_tensor_stands_beside_the_temporaries() -> None:
    """Attention's four tensors at once: 10240 elements a token; of an MLP one at a time."""

    def temporaries(stash: dict[str, float] | None) -> float:
        layout: dict[str, Any] = {"tp": 1, "pp": 2}  # the first stage peaks in a block
        return float(run(stash, **layout).memory_bytes["temporaries"][0])

    usual = temporaries(None)
    assert temporaries({"attention": 1.0}) - usual == pytest.approx(2 * 10240 * S, rel=1e-9)
    both = {"attention": 1.0, "activation_input": 1.0, "activation_output": 1.0}
    assert temporaries(both) - usual == pytest.approx(2 * 28672 * S, rel=1e-9)


def recompute_saves(software: Software, mode: str, stash: dict[str, float]) -> float:
    """What the stash costs in seconds where a mode of recomputation is on."""
    less, more = (float(run(x, software, recompute=mode).step_time_s[0]) for x in (None, stash))
    return (more - less) / (LLAMA.layers * M)


def test_what_is_recomputed_is_neither_encoded_nor_decoded() -> None:
    software = replace(CORE, kernels=replace(CORE.kernels, selective_modules=("mlp",)))
    activation = {"activation_input": 1.0, "activation_output": 1.0}
    assert recompute_saves(software, "selective", activation) == pytest.approx(0.0, abs=1e-12)
    attention = {"attention": 1.0}
    assert recompute_saves(software, "selective", attention) == pytest.approx(
        added_s(attention), rel=1e-6
    )
    assert recompute_saves(CORE, "full", activation) == pytest.approx(0.0, abs=1e-12)


def test_selective_recomputation_drops_compressed_tensors_whole() -> None:
    software = replace(CORE, kernels=replace(CORE.kernels, selective_modules=("mlp",)))
    plain = run(None, software, recompute="selective").memory_bytes["activations"]
    less = run({"activation_input": 1.0}, software, recompute="selective")
    assert less.memory_bytes["activations"] == pytest.approx(plain, rel=1e-12)


def listed(arch: Architecture, **training: Any) -> dict[str, SavedRole]:
    """Roles of what every part of a model keeps, by label."""
    placed = Ranks(
        **dict.fromkeys(("tp", "cp", "ep", "etp", "micro_batch"), np.ones(1)),
        sequence_parallel=np.zeros(1, dtype=bool),
        groups=place(Layouts.of(global_batch=M), 8),
    )
    recipe = Recipe(sequence_length=S, global_batch=M, **training)
    blocks = [block(kind, arch.hidden, placed, recipe, APART) for kind in arch.blocks]
    parts = [*blocks, embedding(arch, placed, recipe, APART), head(arch, placed, recipe, APART)]
    return {tensor.name: tensor.role for part in parts for tensor in part.saved}


def test_statistics_logits_and_the_router_are_never_compressed() -> None:
    roles = listed(presets.load("mixtral-8x7b")) | listed(presets.load("vit-large-16"))
    for name in ("log-sum-exp", "router", "logits", "head input", "patches"):
        assert stash_class(roles[name]) == ""
    for name in ("norm1 statistics", "norm1 in fp32"):
        assert stash_class(roles[name]) == ""


@pytest.mark.parametrize(
    ("model", "name", "found"),
    [
        ("deepseek-v3", "shared fc1 output", "activation_input"),
        ("deepseek-v3", "expert fc1 output", "activation_input"),
        ("llama-3.1-8b", "fc gate", "activation_input"),
        ("mixtral-8x7b", "expert fc activation output", "activation_output"),
        ("llama-3.1-8b", "norm2 input", "norm_input"),
        ("qwen3-8b", "norm of queries input", "norm_input"),
        ("llama-3.1-8b", "final norm input", "norm_input"),
        ("mixtral-8x7b", "permuted tokens", "linear_input"),
        ("mixtral-8x7b", "moe input", "linear_input"),
        ("deepseek-v3", "compressed keys, normed", "linear_input"),
        ("t5-11b", "cross keys and values", "attention"),
        ("t5-11b", "mlp residual dropout mask", "mask"),
    ],
)  # fmt: skip
def test_every_class_knows_its_tensors(model: str, name: str, found: str) -> None:
    training = {"decoder_length": S} if model.startswith("t5") else {}
    assert stash_class(listed(presets.load(model), **training)[name]) == found


def test_the_trace_plays_with_the_compressed_sizes() -> None:
    recipe = Recipe(sequence_length=S, global_batch=8, stash_bytes=StashBytes(attention=1.0))
    work = Workload(architecture=LLAMA, recipe=recipe)
    table = Layouts.of(pp=2, global_batch=8)
    setting = (table, work, load_cluster("dgx-h100", 2), CORE)
    ranks, played = rank_memory(*setting), replay_memory(*setting)
    kinds = ("communicators", "fragmentation", "context")
    outside = np.sum([ranks.kinds_bytes[kind] for kind in kinds], axis=0)
    assert [x.allocated_bytes for x in played] == pytest.approx(
        list(ranks.total_bytes - outside), rel=0.001
    )


classes = st.fixed_dictionaries(
    {},
    optional={
        name: st.floats(0.0625, 4.0)
        for name in ("attention", "activation_input", "activation_output", "linear_input",
                     "norm_input", "mask")
    },
)  # fmt: skip


@settings(max_examples=settings.default.max_examples // 20)
@given(classes, st.sampled_from(["none", "selective", "full"]))
def test_fewer_bytes_never_keep_more_and_never_run_faster(
    stash: dict[str, float], mode: str
) -> None:
    tp = [1, 2, 4]
    plain = run(None, tp=tp, recompute=mode)
    less = run(stash, tp=tp, recompute=mode)
    halved = run({name: size / 2 for name, size in stash.items()}, tp=tp, recompute=mode)
    kept = [x.memory_bytes["activations"] for x in (halved, less, plain)]
    assert (np.diff(np.stack(kept), axis=0) >= -1e-6).all()
    assert (less.step_time_s >= plain.step_time_s - 1e-12).all()


@settings(max_examples=settings.default.max_examples // 20)
@given(classes)
def test_terms_add_up_and_a_layout_costs_the_same_alone(stash: dict[str, float]) -> None:
    found = run(stash, tp=[1, 2, 4, 8], recompute=["none", "selective", "full", "none"])
    parts = np.sum(list(found.memory_bytes.values()), axis=0)
    assert parts == pytest.approx(found.memory_total_bytes, rel=1e-12)
    steps = np.sum(list(found.terms_s.values()), axis=0)
    assert steps == pytest.approx(found.step_time_s, rel=1e-12)
    alone = run(stash, tp=2, recompute="selective")
    assert alone.memory_total_bytes[0] == pytest.approx(found.memory_total_bytes[1], rel=1e-12)
    assert alone.step_time_s[0] == pytest.approx(found.step_time_s[1], rel=1e-12)


def document(**training: Any) -> dict[str, Any]:
    return {
        "model": {"name": "llama-3.1-8b"},
        "training": {"sequence_length": S, "global_batch": 64, **training},
        "cluster": {"name": "dgx-h100", "gpus": 8},
    }


def test_a_scenario_states_them_and_set_reaches_into_the_table() -> None:
    made = make_scenario(
        document(stash_bytes={"mask": 0.125}), overrides=["training.stash_bytes.attention=1"]
    )
    assert made.workload.recipe.stash_bytes == StashBytes(mask=0.125, attention=1)


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"stash_bytes": {"masks": 1.0}}, "training.stash_bytes.masks: unknown field"),
        ({"stash_bytes": {"mask": 0.0}}, "training.stash_bytes.mask: must be greater than 0"),
        ({"stash_bytes": {"mask": 8.0}}, "must be less than or equal to 4, got 8.0"),
        ({"stash_bytes": 1.0}, "training.stash_bytes: must be a table of fields, got 1.0"),
        ({"stash_bytes": {"mask": 0.125}, "precision": "fp8"}, "needs a precision of 16 or 32"),
    ],
)
def test_what_makes_no_sense_is_refused(training: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        make_scenario(document(**training))
