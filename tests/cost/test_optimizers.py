"""What each optimizer keeps and computes, by hand and as bitsandbytes 0.50.2 and torch 2.13 do.

Sizes of bitsandbytes' states were read off a (512, 1024) matrix: ``state1`` and ``state2`` of one
byte an element with an fp32 ``absmax`` for every 256 (AdamW8bit), two fp32 (LAMB), one (Lion, SGD).
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.operators.matrices import expert_parameters, rank_parameters, weight_matrices
from simulator.cost.states.optimizers import newton_schulz_s
from simulator.cost.states.state_bytes import part_states
from simulator.cost.step import Estimate, evaluate
from simulator.errors import InputError
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.scenario import make_scenario
from simulator.software.profile import Software, load_software
from simulator.workload import presets
from simulator.workload.recipe import OPTIMIZERS, Recipe, Workload

CORE, TITAN, TUNE = (load_software(x) for x in ("megatron-core", "torchtitan", "torchtune-2024"))
H100 = load_cluster("dgx-h100", 8)
H, F, KV, V, L = 4096, 14336, 1024, 128256, 32  # Llama-3.1-8B
PARAMETERS = 8_030_261_248
BLOCK = [(H, H), (KV, H), (KV, H), (H, H), (F, H), (F, H), (H, F)]
NORMS = (2 * L + 1) * H


def workload(model: str = "llama-3.1-8b", **recipe: Any) -> Workload:
    how = Recipe(sequence_length=4096, global_batch=8, **recipe)
    return Workload(architecture=presets.load(model), recipe=how)


def run(software: Software, layout: dict[str, Any] | None = None, **recipe: Any) -> Estimate:
    table = Layouts.of(**{"dp": 8, "global_batch": 8, **(layout or {})})
    return evaluate(table, workload(**recipe), H100, software)


def moments(software: Software = CORE, layout: Any = None, **recipe: Any) -> float:
    """Optimizer bytes beside the fp32 weights."""
    found = run(software, layout, **recipe).memory_bytes["optimizer"][0]
    return float(found) - float(software.states.master) * PARAMETERS


# --- bytes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "per_parameter"),
    [
        ("adamw", 8),
        ("lamb", 8),
        ("lion", 4),
        ("sgd", 4),
        ("lars", 4),
        ("adamw_8bit", 2 + 2 * 4 / 256),
    ],
)
def test_element_wise_optimizers(optimizer: str, per_parameter: float) -> None:
    assert moments(optimizer=optimizer) == pytest.approx(per_parameter * PARAMETERS, rel=1e-12)


def test_adafactor_keeps_rows_and_columns() -> None:
    """Shazeer and Stern 2018: vectors whole; torch's Adafactor makes the same tensors."""
    sums = L * sum(r + c for r, c in BLOCK) + 2 * (V + H)
    assert moments(optimizer="adafactor") == pytest.approx(4 * (sums + NORMS), rel=1e-9)


def test_adafactor_with_a_first_moment() -> None:
    more = moments(optimizer="adafactor", adafactor_momentum=True) - moments(optimizer="adafactor")
    assert more == pytest.approx(4 * PARAMETERS, rel=1e-9)


def test_muon_keeps_one_moment_of_the_blocks_matrices() -> None:
    matrices = L * sum(r * c for r, c in BLOCK)
    expected = 4 * matrices + 8 * (PARAMETERS - matrices)
    assert moments(optimizer="muon") == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor", "muon", "lion"])
def test_moments_of_16_bit_are_half(optimizer: str) -> None:
    whole = moments(optimizer=optimizer)
    half = moments(optimizer=optimizer, moment_dtype="bf16")
    assert half == pytest.approx(whole / 2, rel=1e-12)


@pytest.mark.parametrize(("optimizer", "like", "more"), [("lamb", "adamw", 20), ("lars", "sgd", 8)])
def test_layer_wise_rates_read_their_norms(optimizer: str, like: str, more: float) -> None:
    """LAMB: 48 bytes an fp32 parameter in place of Adam's 28; LARS: 28 in place of sgd's 20."""
    ours, plain = (
        part_states(workload(optimizer=name, precision="fp32"), CORE, Layouts.of())
        for name in (optimizer, like)
    )
    assert ours.traffic - plain.traffic == pytest.approx(more * ours.parameters)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_sharding_divides_every_optimizer(optimizer: str) -> None:
    whole = run(CORE, optimizer=optimizer).memory_bytes["optimizer"][0]
    shared = run(CORE, {"sharding": "zero1"}, optimizer=optimizer).memory_bytes["optimizer"][0]
    assert shared == pytest.approx(whole / 8, rel=1e-12)


@pytest.mark.parametrize(
    ("software", "stated", "kinds"),
    [
        # weights, gradients, optimizer states per parameter
        (CORE, {"gradient_dtype": "fp32"}, (2, 4, 12)),
        (CORE, {"master_weights": False}, (2, 2, 8)),
        (
            CORE,
            {"master_weights": False, "gradient_dtype": "bf16", "moment_dtype": "bf16"},
            (2, 2, 4),
        ),
        (TUNE, {"master_weights": True, "moment_dtype": "fp32"}, (2, 2, 12)),
        # FSDP2 keeps one kind of weights, its shards
        (TITAN, {"master_weights": False}, (0, 4, 10)),
        (TITAN, {"master_weights": True}, (0, 4, 12)),
    ],
)
def test_stated_types(
    software: Software, stated: dict[str, Any], kinds: tuple[int, int, int]
) -> None:
    found = part_states(workload(**stated), software, Layouts.of())
    for bytes_, per in zip((found.weights, found.gradients, found.optimizer), kinds, strict=True):
        assert bytes_ == pytest.approx(per * found.parameters, rel=1e-12)


def test_the_type_of_the_reduction() -> None:
    usual, stated = (
        part_states(workload(reduce_dtype=x), CORE, Layouts.of()) for x in (None, "fp32")
    )
    assert stated.reduce == pytest.approx(2 * usual.reduce)
    slow, fast = (float(run(CORE, reduce_dtype=x).hidden_s["dp"][0]) for x in ("fp32", "bf16"))
    assert slow == pytest.approx(2 * fast, rel=0.02)  # bandwidth, and a little latency


# --- matrices -----------------------------------------------------------------------------------


def listed(name: str, tp: float) -> tuple[np.ndarray, np.ndarray]:
    """Parameters of the listed matrices, and all: shape (2, parts), dense and routed."""
    arch, degrees = presets.load(name), {"tp": tp, "pp": 1.0}
    matrices = weight_matrices(arch, **degrees, ep=1.0, etp=1.0, kernels=CORE.kernels)
    dense = rank_parameters(arch, **degrees, kernels=CORE.kernels)
    every = np.stack([dense, expert_parameters(arch, ep=1.0, etp=1.0)])
    found = np.zeros_like(every)
    for w in matrices:
        found[int(w.routed), w.part] += w.parameters
    return found, every


def test_matrices_of_a_llama() -> None:
    """What is left over are two norms of a block and the last one."""
    for tp in (1.0, 4.0):
        found, every = listed("llama-3.1-8b", tp)
        assert (every - found).tolist() == [[2 * H, 0, H], [0, 0, 0]]


@pytest.mark.parametrize("name", presets.names())
def test_no_matrix_is_counted_twice(name: str) -> None:
    found, every = listed(name, 1.0)
    assert found[1] == pytest.approx(every[1], rel=1e-3)  # gpt-oss: the experts' biases
    assert (found[0] <= every[0]).all()
    text = [i for i, kind in enumerate(presets.load(name).blocks) if not kind.tokens]
    least = 0.97 * every[0, :-2]
    # the rest: norms, biases; of towers position tables and projectors, too
    assert (found[0, :-2] >= least)[text].all()


# --- time ---------------------------------------------------------------------------------------


def test_newton_schulz_is_five_times_three_products() -> None:
    """Jordan et al. 2024: X Xᵀ, its square, and their product with X; on a device of peak rate."""
    work = workload(optimizer="muon")
    states = part_states(work, CORE, Layouts.of())
    found = newton_schulz_s(states.matrices, states.trained, H100, CORE)
    flop = sum(5 * (2 * min(s) ** 2 * max(s) * 2 + 2 * min(s) ** 3) for s in BLOCK)
    seconds = float(found[0, 0, 0])
    assert found[1].sum() == found[0, 0, -1] == found[0, 0, -2] == 0.0
    assert 0.45 * 989e12 < flop / seconds < 0.85 * 989e12  # square and tall bf16 products


def test_muon_is_shared_by_the_ranks_that_share_its_states() -> None:
    def products(layout: dict[str, Any]) -> float:
        muon = float(run(CORE, layout, optimizer="muon").terms_s["optimizer"][0])
        work = workload(optimizer="muon")
        traffic = part_states(work, CORE, Layouts.of()).traffic[0, 0] @ np.array([L, 1.0, 1.0])
        kernel = H100.accelerator.stream["optimizer"]
        rate = float(kernel.memory_fraction) * 3.35e12
        shards = 8 if layout else 1
        return muon - float(kernel.launch_s) - traffic / shards / rate

    assert products({"sharding": "zero1"}) == pytest.approx(products({}) / 8, rel=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "bytes_"),
    [
        ("lion", -2 * 4.0),  # one moment less, read and written
        ("sgd", -2 * 4.0),
        ("lamb", 20.0),  # update written; weight and update read for norms, and again
    ],
)
def test_traffic_beside_adamw(optimizer: str, bytes_: float) -> None:
    seconds = [run(CORE, optimizer=x).terms_s["optimizer"][0] for x in ("adamw", optimizer)]
    rate = float(H100.accelerator.stream["optimizer"].memory_fraction) * 3.35e12
    assert seconds[1] - seconds[0] == pytest.approx(bytes_ * PARAMETERS / rate, rel=1e-9)


# --- from the scenario --------------------------------------------------------------------------


def scenario(**training: Any) -> Workload:
    training = {"sequence_length": 4096, "global_batch": 8, **training}
    return make_scenario(
        {
            "model": {"name": "llama-3.1-8b"},
            "training": training,
            "cluster": {"name": "dgx-h100", "gpus": 8},
        }
    ).workload


def test_every_field_is_read() -> None:
    given = {
        "optimizer": "adafactor",
        "adafactor_momentum": True,
        "moment_dtype": "bf16",
        "master_weights": False,
        "gradient_dtype": "fp32",
        "reduce_dtype": "bf16",
    }
    assert scenario(**given).recipe == replace(scenario().recipe, **given)


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("optimizer", "adam", "'adamw', 'adamw_8bit', 'adafactor'"),
        ("moment_dtype", "fp8", "'fp32', 'fp16' or 'bf16'"),
        ("master_weights", "some", "true or false"),
        ("loss_chunks", 0, "greater than or equal to 1"),
        ("optimizer_offload_fraction", 1.5, "less than or equal to 1"),
        ("lora_rank", -1, "greater than or equal to 0"),
        ("lora_targets", ["qq"], "'q', 'k', 'v'"),
        ("lora_targets", [], "at least 1 item"),
        ("quantised_base", True, "needs lora_rank above 0"),
        ("frozen_layers", 33, "must be at most the 32 layers of llama-3.1-8b, got 33"),
    ],
)
def test_wrong_values(field: str, value: Any, rule: str) -> None:
    with pytest.raises(InputError) as caught:
        scenario(**{field: value})
    assert f"training.{field}" in str(caught.value)
    assert rule in str(caught.value)
