"""Multi-token prediction: one more block, a projection, and the head once more."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.collectives.calls import all_reduce_s
from simulator.cost.operators.block_operators import block, predict_ahead
from simulator.cost.operators.ends import head
from simulator.cost.operators.matrices import (
    expert_parameters,
    rank_parameters,
)
from simulator.cost.operators.model_flop import model_flop_per_step
from simulator.cost.operators.operations import Operators, Ranks
from simulator.cost.operators.roles import SavedRole
from simulator.cost.pricing import price
from simulator.cost.rank_memory import rank_memory
from simulator.cost.step import Estimate, evaluate
from simulator.hardware.cluster import load_cluster, with_release
from simulator.layout.layouts import Layouts
from simulator.layout.placement import Group, place
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Recipe, Workload

DEEPSEEK = presets.load("deepseek-v3")
LLAMA = presets.load("llama-3.1-8b")  # h 4096, f 14336, 32 heads of 128, 8 of keys and values
H, F, V, S = 4096, 14336, 128256, 8192
CORE = load_software("megatron-core")
EXACT = replace(CORE.kernels, pads_vocabulary_to=1)


def test_deepseek_with_its_module_is_what_its_checkpoint_holds() -> None:
    """Hugging Face counts 3,918,786,560 bf16 and 680,571,043,840 fp8 weights (scales apart).

    The module's shared embedding and head are stored once more; 671 B of it is the main model.
    """
    found = DEEPSEEK.predicting_ahead(1).parameters
    copies = 2 * 129280 * 7168
    assert found + copies == 3_918_786_560 + 680_571_043_840
    assert DEEPSEEK.parameters == 671_026_404_352


def test_the_module_by_hand() -> None:
    # experts, latent attention, router, two norms of the block; join of 2 h by h and three norms
    h = 7168
    experts = 257 * 3 * h * 2048 + h * 256
    query = h * 1536 + 1536 + 1536 * 128 * 192
    keys = h * (512 + 64) + 512 + 512 * 128 * (128 + 128)
    expected = experts + query + keys + 128 * 128 * h + 2 * h + 2 * h * h + 3 * h
    assert DEEPSEEK.predicting_ahead(1).parameters - DEEPSEEK.parameters == expected


def test_what_a_model_with_predictions_is() -> None:
    ahead = DEEPSEEK.predicting_ahead(2)
    assert DEEPSEEK.predicting_ahead(0) is DEEPSEEK
    assert (ahead.layers, len(ahead.layer_kinds), ahead.mtp_layers) == (61, 63, 2)
    assert ahead.layer_kinds[:61] == DEEPSEEK.layer_kinds
    assert [ahead.blocks[kind].predicts_ahead for kind in ahead.layer_kinds[-3:]] == [
        False,
        True,
        True,
    ]
    last = ahead.blocks[ahead.layer_kinds[-1]]
    assert (last.mlp, last.attention) == (DEEPSEEK.blocks[1].mlp, DEEPSEEK.blocks[1].attention)
    one, two = (DEEPSEEK.predicting_ahead(n).parameters for n in (1, 2))
    assert two - one == one - DEEPSEEK.parameters


@pytest.mark.parametrize("arch", [DEEPSEEK, LLAMA])
def test_one_rank_holds_every_parameter(arch: Architecture) -> None:
    ahead = arch.predicting_ahead(1)
    held = rank_parameters(ahead, tp=1, pp=1, kernels=EXACT) + expert_parameters(ahead, ep=1, etp=1)
    for part, kind in enumerate(ahead.blocks):
        assert held[part] == kind.parameters(arch.hidden)
    counts = np.bincount(ahead.layer_kinds)
    assert float((held[:-2] * counts).sum() + held[-2:].sum()) == ahead.parameters


def test_tensor_ranks_cut_the_projection() -> None:
    ahead = LLAMA.predicting_ahead(1)
    eight = rank_parameters(ahead, tp=8, pp=1, kernels=EXACT)
    # of 2 h by h an eighth, three norms whole
    assert eight[1] - eight[0] == 2 * H * H / 8 + 3 * H


def test_logits_of_its_loss_are_gone_before_the_model_s() -> None:
    # an eager loss in fp32: of 6 B a logit its log-softmax stays, as where a micro-batch waits
    work = Recipe(sequence_length=S, global_batch=1)
    eager = replace(load_software("torchtitan-eager").kernels, pads_vocabulary_to=1)
    for kernels, ahead, last in ((eager, 4.0, 6.0), (EXACT, 2.0, 2.0)):
        found = predict_ahead(LLAMA, ranks(), work, kernels), head(LLAMA, ranks(), work, kernels)
        sizes = [
            sum(float(np.max(x.size_bytes)) for x in ops.saved if x.role is SavedRole.LOGITS)
            for ops in found
        ]
        assert sizes == [ahead * S * V, last * S * V]
        assert found[0].passing_bytes == 0.0


def forward_flop(ops: Operators) -> float:
    flop = sum(np.sum(2 * g.batch * g.m * g.n * g.k) for g in ops.gemms)
    return float(flop + sum(np.sum(call.flop) for call in ops.flash))


def ranks(**degrees: Any) -> Ranks:
    layout = Layouts.of(**degrees)
    return Ranks(
        **{name: getattr(layout, name).astype(float) for name in ("tp", "cp", "ep", "etp")},
        micro_batch=layout.micro_batch.astype(float),
        sequence_parallel=layout.sequence_parallel.astype(bool),
        groups=place(layout, 8),
    )


def parts(arch: Architecture, **degrees: Any) -> tuple[Operators, Operators, Operators]:
    """A block, the same predicting ahead, and the head."""
    recipe, alone = Recipe(sequence_length=S, global_batch=1), ranks(**degrees)
    kind = arch.blocks[arch.layer_kinds[-1]]
    plain = block(kind, arch.hidden, alone, recipe, EXACT)
    ahead = block(kind, arch.hidden, alone, recipe, EXACT)
    ahead.add(predict_ahead(arch, alone, recipe, EXACT))
    return plain, ahead, head(arch, alone, recipe, EXACT)


@pytest.mark.parametrize("arch", [DEEPSEEK, LLAMA])
def test_a_block_a_projection_and_a_head_more(arch: Architecture) -> None:
    plain, ahead, last = parts(arch)
    join = 2 * S * 2 * arch.hidden * arch.hidden
    expected = forward_flop(plain) + forward_flop(last) + join
    assert forward_flop(ahead) == pytest.approx(expected, rel=1e-12)
    model = [
        model_flop_per_step(x, tokens=S, sequence_length=S)
        for x in (arch, arch.predicting_ahead(1))
    ]
    assert model[1] - model[0] == pytest.approx(3 * forward_flop(ahead), rel=1e-9)


def test_model_flop_by_hand() -> None:
    # 2 (qkv and out, three of the MLP, join, head) and causal attention, three times
    matrices = 2 * H * H + 2 * H * 1024 + 3 * H * F + 2 * H * H + V * H
    expected = 3 * S * (2 * matrices + 2 * S * H)
    found = [
        model_flop_per_step(x, tokens=S, sequence_length=S)
        for x in (LLAMA, LLAMA.predicting_ahead(1))
    ]
    assert found[1] - found[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("tp", [2, 8])
def test_tensor_ranks_share_the_work(tp: int) -> None:
    whole, cut = parts(LLAMA)[1], parts(LLAMA, tp=tp)[1]
    assert forward_flop(cut) == pytest.approx(forward_flop(whole) / tp, rel=1e-12)


# --- the step -----------------------------------------------------------------------------------


def run(arch: Architecture, layout: dict[str, Any], batch: int = 64, **settings: Any) -> Estimate:
    work = Workload(architecture=arch, recipe=Recipe(sequence_length=S, global_batch=batch))
    table = Layouts.of(global_batch=batch, **layout)
    cluster = load_cluster("dgx-h100", int(table.world[0]))
    assert reasons(table, work, cluster, CORE)[0] == FEASIBLE
    return evaluate(table, work, cluster, CORE, **settings)


def test_the_last_stage_does_it() -> None:
    """32 layers on four stages, and the 33rd with a second head on the last: it sets the pace."""
    plain, ahead = run(LLAMA, {"pp": 4}), run(LLAMA.predicting_ahead(1), {"pp": 4})
    assert ahead.slowest_stage[0] == 3
    assert ahead.step_time_s[0] > 1.1 * plain.step_time_s[0]
    more = ahead.model_flop - plain.model_flop
    work = Workload(architecture=LLAMA, recipe=Recipe(sequence_length=S, global_batch=64))
    tokens = work.recipe.tokens_per_step
    joined = model_flop_per_step(LLAMA.predicting_ahead(1), tokens=tokens, sequence_length=S)
    assert more == joined - model_flop_per_step(LLAMA, tokens=tokens, sequence_length=S)


def test_on_one_stage_the_compute_is_that_of_the_flop() -> None:
    """Of the products' time a share that the FLOPs would give, within the spread of rates."""
    one, two = LLAMA, LLAMA.predicting_ahead(1)
    plain, ahead = run(one, {"dp": 8}), run(two, {"dp": 8})
    flop = [float(x.model_flop) for x in (plain, ahead)]
    busy = [float(x.terms_s["gemm"][0] + x.terms_s["attention"][0]) for x in (plain, ahead)]
    assert busy[1] / busy[0] == pytest.approx(flop[1] / flop[0], rel=0.02)


def test_kept_tensors_by_hand() -> None:
    """Per token: the block's 12 h + 4 kv + 6 f + 4 a + 8 (see test_operators) and the module's.

    Inputs and statistics of three norms, the joined input of 2 h, the head's input, the logits.
    """
    block_bytes = 12 * H + 4 * 1024 + 6 * F + 4 * 32 + 8
    module = 3 * (2 * H + 4) + 2 * 2 * H + 2 * H + 2 * V
    kept = [
        float(run(arch, {"dp": 8}).memory_bytes["activations"][0])
        for arch in (LLAMA, LLAMA.predicting_ahead(1))
    ]
    assert kept[1] - kept[0] == pytest.approx(S * (block_bytes + module), rel=1e-9)


def test_only_the_last_rank_holds_more() -> None:
    layout = Layouts.of(pp=4, global_batch=64)
    held = []
    for arch in (LLAMA, LLAMA.predicting_ahead(1)):
        work = Workload(architecture=arch, recipe=Recipe(sequence_length=S, global_batch=64))
        held.append(rank_memory(layout, work, load_cluster("dgx-h100", 4), CORE))
    weights = [found.kinds_bytes["weights"] for found in held]
    assert weights[1][:-1].tolist() == weights[0][:-1].tolist()
    block_and_join = 2 * H * H + 2 * H * 1024 + 3 * H * F + 2 * H + 2 * H * H + 3 * H
    # a copy of the embedding on a stage that does not hold it may come on top
    more = weights[1][-1] - weights[0][-1] - 2 * block_and_join
    assert more == pytest.approx(0.0, abs=1.0) or more == pytest.approx(2 * V * H, rel=1e-9)


@pytest.mark.parametrize(
    "layout",
    [
        {"tp": 8, "pp": 8, "dp": 4, "ep": 32},
        {"pp": 16, "dp": 16, "ep": 16, "sharding": "zero1"},
        {"pp": 8, "vpp": 4, "dp": 32, "ep": 32, "sharding": "zero1"},
        {"pp": 4, "dp": 64, "ep": 64, "recompute": "full"},
        {"pp": 4, "dp": 64, "ep": 64, "recompute": "selective"},
    ],
)
def test_a_layout_with_predictions_adds_up(layout: dict[str, Any]) -> None:
    found = run(DEEPSEEK.predicting_ahead(1), layout, batch=1024)
    every = run(DEEPSEEK.predicting_ahead(1), layout, batch=1024, every_rank=True)
    assert sum(x[0] for x in found.terms_s.values()) == pytest.approx(found.step_time_s[0])
    assert all((x >= 0).all() for x in (*found.terms_s.values(), *found.hidden_s.values()))
    assert every.step_time_s[0] == pytest.approx(found.step_time_s[0], rel=1e-12)
    assert every.memory_total_bytes[0] == pytest.approx(found.memory_total_bytes[0], rel=1e-12)
    plain = run(DEEPSEEK, layout, batch=1024)
    assert found.step_time_s[0] > plain.step_time_s[0]
    assert found.memory_total_bytes[0] >= plain.memory_total_bytes[0]


def test_the_last_stage_has_an_embedding_of_its_own() -> None:
    """Megatron-Core, LanguageModule: predictions look words up where the head is."""
    table = 129280 * 7168
    for count in (1, 2):
        ahead = DEEPSEEK.predicting_ahead(count)
        part = ahead.layer_kinds[-1]
        alone, split = rank_parameters(ahead, tp=1, pp=[1, 4], kernels=EXACT)
        assert count * (split[part] - alone[part]) == table
        others = np.arange(len(alone)) != part
        assert (split[others] == alone[others]).all()


def test_both_tables_get_the_sum_of_their_gradients() -> None:
    """bf16 gradients of the table, all-reduced by two ranks, on the network or not."""
    found = {}
    for model in (LLAMA, LLAMA.predicting_ahead(1)):
        work = Workload(architecture=model, recipe=Recipe(sequence_length=S, global_batch=64))
        table = Layouts.of(pp=2, dp=[4, 32], global_batch=64)
        for i, gpus in enumerate((8, 64)):
            cluster = load_cluster("dgx-h100", gpus)
            found[model.mtp_layers, gpus] = price(table[i], work, cluster, CORE).states.tables_s
            pair = Group(size=np.array([2]), local=np.array([2 if gpus == 8 else 1]))
            each = all_reduce_s(with_release(cluster, CORE.kernels.nccl), 2.0 * V * H, pair)
            assert found[model.mtp_layers, gpus] == (each if model.mtp_layers else 0.0)
    assert found[1, 64] > found[1, 8] > 0
