"""What crosses each kind of link, by hand: on links so slow that nothing else takes time."""

from dataclasses import replace
from typing import Any

import pytest

from simulator.cost.step import evaluate
from simulator.files import Figure
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.hardware.tuning import Dispatch
from simulator.layout.layouts import Layouts
from simulator.software.profile import Software, load_software
from simulator.workload import presets
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Recipe, Workload

RATE = 1e3  # bytes/s; a byte takes a millisecond, a whole step of compute counts for nothing
SLOW = Figure(RATE)
H, S, L = 4096, 4096, 32  # Llama-3.1-8B and Mixtral-8x7B
PARAMETERS = 8_030_261_248
MICRO_BATCHES = 4


def slow_inside() -> Cluster:
    """Eight GPUs in one server whose links carry 1 kB/s, with nothing fitted to them.

    Only rates count, so that the library's choice is left at the protocol that uses all of them;
    LL128 uses all of them here, too.
    """
    base = load_cluster("dgx-h100", 8)
    links = replace(
        base.node.scale_up,
        bus_bytes_per_s=SLOW,
        pair_fraction=Figure(1.0),
        all_to_all_bytes_per_s=SLOW,
        send_bytes_per_s=SLOW,
        nvls_bytes_per_s=None,
    )
    node = replace(base.node, scale_up=links)
    at_once = Dispatch(
        start_s=Figure(1e-6),
        network_start_s=Figure(0.0),
        link_fraction=Figure(1.0),
        sharpness=Figure(1.0),
    )
    library = replace(
        base.library,
        curves={},
        releases={"2.29": base.library.releases["2.29"]},
        tuning=replace(base.library.tuning, ll128_fraction=1.0),
        dispatch={"deepep": {"hopper": {"dispatch": at_once, "combine": at_once}}},
    )
    return replace(base, groups=(replace(base.groups[0], node=node),), library=library)


def seconds(
    layout: dict[str, Any],
    software: Software,
    model: str | Architecture = "llama-3.1-8b",
    precision: Any = "bf16",
) -> float:
    """Step time of four micro-batches of one sequence on every data-parallel rank."""
    batch = MICRO_BATCHES * layout.get("dp", 1)
    arch = presets.load(model) if isinstance(model, str) else model
    recipe = Recipe(sequence_length=S, global_batch=batch, precision=precision)
    work = Workload(architecture=arch, recipe=recipe)
    table = Layouts.of(global_batch=batch, **layout)
    return float(evaluate(table, work, slow_inside(), software).step_time_s[0])


def alike(found: float, sent_bytes: float) -> bool:
    return found == pytest.approx(sent_bytes / RATE, rel=3e-3)  # starts of calls beside


CORE = load_software("megatron-core")
WAITS = replace(CORE, overlap=replace(CORE.overlap, gradient_reduce=False, parameter_gather=False))
OLD = load_software("megatron-lm-2022")
TITAN = load_software("torchtitan")
WIDE = 2 * S * H  # one activation of the whole sequence, bf16
MLA = replace(presets.load("deepseek-v3"), layer_kinds=(0,) * 8)  # the dense kind of block
V3_H, LATENT = 7168, 1536 + 512


def test_sequence_parallelism_gathers_and_scatters_ten_times_a_layer() -> None:
    """Korthikanti 2022, section 4.2.2, and the input gathered once more for the weight gradient.

    Forward: two gathers, two scatters; backward: the same and two gathers of inputs. The embedding
    scatters its output and gathers the gradient; the head gathers its input twice and scatters.
    """
    for t in (2, 8):
        sent = MICRO_BATCHES * (10 * L + 5) * WIDE * (t - 1) / t
        assert alike(seconds({"tp": t}, CORE), sent)


def test_dtensor_gathers_once_as_it_keeps_the_gathered_inputs() -> None:
    sent = MICRO_BATCHES * (8 * L + 4) * WIDE * 7 / 8
    assert alike(seconds({"tp": 8, "sharding": "zero3"}, TITAN), sent)


@pytest.mark.parametrize(
    ("software", "precision", "ways", "share"),
    [
        (CORE, "fp8", (6, 4, 5), 1 / 2),
        (CORE, "fp8_blockwise", (8, 4, 5), (1 + 4 / 128) / 2),  # a scale of 4 B for 128 elements
        (TITAN, "fp8_current", (4, 4, 4), 1 / 2),
        (TITAN, "bf16", (4, 4, 4), 1.0),
    ],
)
def test_linears_gather_what_their_products_take(
    software: Software, precision: str, ways: tuple[int, int, int], share: float
) -> None:
    """Inputs (Transformer Engine: twice) and gradients of outputs; sums scatter in 16 bit.

    Gradients with scales for blocks go twice, too: along rows and along columns. Embedding and
    head, whose products are in 16 bit, gather and scatter 16 bit.
    """
    gathers, scatters, ends = ways
    sent = MICRO_BATCHES * (L * (gathers * share + scatters) + ends) * WIDE * 7 / 8
    layout = {"tp": 8} | ({"sharding": "zero3"} if software is TITAN else {})
    assert alike(seconds(layout, software, precision=precision), sent)


def test_latent_attention_gathers_its_compressed_inputs() -> None:
    """Megatron-Core: the down-projections of MLA run on the shard of the sequence.

    Gathered before the up-projections, again for their weight gradients, and scattered as
    gradients: q_lora_rank + kv_lora_rank instead of hidden. The 64 rotary keys, which no linear
    reads, are gathered once and scattered once.
    """
    sent = MICRO_BATCHES * 2 * S * (8 * (7 * V3_H + 3 * LATENT + 2 * 64) + 5 * V3_H) * 7 / 8
    assert alike(seconds({"tp": 8}, CORE, MLA), sent)


def recomputing(*modules: Any) -> Software:
    return replace(CORE, kernels=replace(CORE.kernels, selective_modules=modules))


@pytest.mark.parametrize("sequence_parallel", [1, 0])
def test_a_recomputed_mlp_repeats_its_forward_collectives(sequence_parallel: int) -> None:
    """tensor_parallel.checkpoint(self.mlp): the gather before fc1 and the scatter behind fc2 again.

    Without sequence parallelism the all-reduce behind fc2, which sends twice as much.
    """
    layout = {"tp": 8, "sequence_parallel": sequence_parallel}
    software = recomputing("mlp")
    again = seconds(layout | {"recompute": "selective"}, software) - seconds(layout, software)
    assert alike(again, MICRO_BATCHES * 2 * L * WIDE * 7 / 8)


def test_recomputed_up_projections_gather_their_inputs_again() -> None:
    """MLASelfAttention.qkv_up_proj_and_rope_apply: two column-parallel linears; no rotary keys."""
    layout, software = {"tp": 8}, recomputing("mla_up_proj")
    again = seconds(layout | {"recompute": "selective"}, software, MLA)
    again -= seconds(layout, software, MLA)
    assert alike(again, MICRO_BATCHES * 8 * 2 * S * LATENT * 7 / 8)


@pytest.mark.parametrize("module", ["core_attn", "norm", "mlp_act"])
def test_other_modules_repeat_no_collective(module: str) -> None:
    layout, software = {"tp": 8}, recomputing(module)
    again = seconds(layout | {"recompute": "selective"}, software) - seconds(layout, software)
    assert again < 1.0  # a single gather takes 29 s


def test_tensor_parallelism_alone_reduces_four_times_a_layer() -> None:
    """Shoeybi et al. 2019, section 3: two all-reduces forward, two backward; each counts twice."""
    # and once each way at the ends: the embedding's output, the gradient of the head's input
    sent = MICRO_BATCHES * (4 * L + 2) * 2 * WIDE * 7 / 8
    assert alike(seconds({"tp": 8, "sequence_parallel": 0}, OLD), sent)


def test_the_ring_of_context_parallelism_passes_keys_and_values() -> None:
    """Liu et al. 2023: forward cp - 1 times keys and values; backward these and their gradients."""
    tokens, kv = S / 8, 2 * 8 * 128
    exchanged = MICRO_BATCHES * L * 3 * 7 * tokens * kv * 2
    gradients = PARAMETERS * 2 * 2 * 7 / 8  # bf16, ring all-reduce over the eight
    assert alike(seconds({"cp": 8}, WAITS), exchanged + gradients)


@pytest.mark.parametrize(
    ("software", "per_parameter"),
    [
        (CORE, 2),
        (OLD, 4),
        (load_software("plain-ddp"), float(load_software("plain-ddp").states.reduce)),
    ],
)
def test_ddp_reduces_every_gradient_once_per_step(software: Software, per_parameter: float) -> None:
    sent = PARAMETERS * 2 * per_parameter * 7 / 8
    assert alike(seconds({"dp": 8}, software), sent)


def test_the_distributed_optimizer_scatters_gradients_and_gathers_weights() -> None:
    sent = PARAMETERS * (2 + 2) * 7 / 8
    assert alike(seconds({"dp": 8, "sharding": "zero1"}, CORE), sent)


def test_broadcast_parameters_leave_every_rank_in_turn() -> None:
    """Each share passes the whole ring, so a link carries all of them, not seven eighths."""
    in_turn = replace(CORE, states=replace(CORE.states, broadcasts_parameters=True))
    sent = PARAMETERS * (2 * 7 / 8 + 2)
    assert alike(seconds({"dp": 8, "sharding": "zero1"}, in_turn), sent)
    # nothing to broadcast where every rank updates all parameters, or keeps none of them whole
    for layout in ({"dp": 8}, {"dp": 8, "sharding": "zero3"}):
        assert seconds(layout, in_turn) == seconds(layout, CORE)


def test_deepep_sends_each_token_once_to_a_rank() -> None:
    """Two experts on eight ranks: 8 (1 - (7/8)^2) ranks of which seven eighths are others."""
    exchanged = MICRO_BATCHES * L * 4 * WIDE * 8 * (1 - (7 / 8) ** 2) * 7 / 8
    experts = L * 8 * 3 * H * 14336
    gradients = 2 * 2 * (46_702_792_704 - experts) * 7 / 8
    # two distinct experts reach two ranks, 7 % more than two draws that may repeat
    found = seconds({"dp": 8, "ep": 8, "dispatcher": "deepep"}, WAITS, model="mixtral-8x7b")
    most = MICRO_BATCHES * L * 4 * WIDE * 2 * 7 / 8
    assert (exchanged + gradients) / RATE * 0.998 <= found <= (most + gradients) / RATE * 1.002


def test_fsdp_gathers_weights_twice_and_scatters_gradients_for_every_micro_batch() -> None:
    """Zhao et al. 2023: bf16 weights before forward and backward, fp32 gradients after.

    FSDP2 keeps its root group, embedding, head and last norm, from one to the other
    (tests/oracles/test_fsdp_collectives.py); without resharding it keeps the blocks, too.
    """
    root = 2 * 128256 * H + H
    sent = MICRO_BATCHES * (PARAMETERS * (2 + 4) + (PARAMETERS - root) * 2) * 7 / 8
    assert alike(seconds({"dp": 8, "sharding": "zero3"}, TITAN), sent)
    kept = MICRO_BATCHES * PARAMETERS * (2 + 4) * 7 / 8
    assert alike(seconds({"dp": 8, "sharding": "zero2"}, TITAN), kept)


def test_fsdp_between_pipeline_stages_gathers_and_scatters_once_per_step() -> None:
    # parameters stay gathered and gradients unreduced until the last micro-batch; dp 4, pp 2
    boundary = 2 * (MICRO_BATCHES + 1) * WIDE
    found = seconds({"dp": 4, "pp": 2, "sharding": "zero3"}, TITAN)
    half = (PARAMETERS - 2 * 128256 * H) / 2 + 128256 * H
    # the gather and the scatter of a stage, and what the fill and drain of the other add
    least = half * (2 + 4) * 3 / 4 + boundary
    assert least / RATE <= found * 1.002
    assert found <= 1.3 * least / RATE


def test_pipeline_stages_pass_one_activation_each_way() -> None:
    # m micro-batches out and back, and p - 1 hops each way to fill and drain
    for p in (2, 8):
        sent = 2 * (MICRO_BATCHES + p - 1) * WIDE
        assert alike(seconds({"pp": p}, CORE), sent)


def test_interleaving_passes_as_many_activations_as_there_are_chunks() -> None:
    """Sends wait for one another on their rank; the last ones out may meet the first ones back."""
    p, v = 4, 2
    each_way = MICRO_BATCHES * v + p - 1
    found = seconds({"pp": p, "vpp": v}, CORE) * RATE / WIDE
    assert 2 * each_way - (p - 1) <= found * 1.003
    assert found <= 2 * each_way * 1.003


def test_experts_exchange_tokens_four_times_a_layer() -> None:
    """Dispatch and combine, forward and backward; two experts for each token, 7 of 8 elsewhere."""
    exchanged = MICRO_BATCHES * L * 4 * 2 * WIDE * 7 / 8
    experts = L * 8 * 3 * H * 14336
    dense = 46_702_792_704 - experts
    gradients = 2 * 2 * dense * 7 / 8  # the experts have no replicas
    found = seconds({"dp": 8, "ep": 8}, WAITS, model="mixtral-8x7b")
    assert alike(found, exchanged + gradients)


def test_gradients_of_experts_are_reduced_over_their_replicas_only() -> None:
    exchanged = MICRO_BATCHES * L * 4 * 2 * WIDE * 3 / 4
    experts = L * 8 * 3 * H * 14336
    dense = 46_702_792_704 - experts
    gradients = 2 * 2 * dense * 7 / 8 + 2 * 2 * (experts / 4) * 1 / 2
    found = seconds({"dp": 8, "ep": 4}, WAITS, model="mixtral-8x7b")
    assert alike(found, exchanged + gradients)


def test_a_link_carries_no_more_than_its_rate() -> None:
    layout = {"dp": 8, "ep": 8}
    serial = seconds(layout, WAITS, model="mixtral-8x7b")
    assert seconds(layout, CORE, model="mixtral-8x7b") >= 0.998 * serial
