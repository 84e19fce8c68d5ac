"""Workspaces and losses that stay or come and go, counted by hand from the frameworks' source."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator import catalogue
from simulator.cost.rank_memory import rank_memory
from simulator.files import read_csv
from simulator.measured.replay import Run, load_tables, replay
from simulator.measured.rows import with_sizes
from simulator.software.profile import load_software

MIB = 2**20
ROWS = {
    row["run_id"][-4:]: row
    for _, row in read_csv(catalogue.folder("validation") / "runs" / "second_memory.csv")
}


def run_of(number: str, **fields: str) -> Run:
    """A run of Megatron-LM's own tests, by the end of its id."""
    return replay(ROWS[number] | fields, load_tables())


def kinds(run: Run) -> dict[str, float]:
    """MiB by kind on the last stage."""
    held = rank_memory(run.layout, run.workload, run.cluster, run.software)
    return {kind: float(size[-1]) / MIB for kind, size in held.kinds_bytes.items()}


@pytest.mark.parametrize(
    ("number", "workspace"),
    [
        ("0019", 4 + 2 * 32),  # A100, deterministic: Transformer Engine 4, cuBLAS 4096:8 twice
        ("0021", 32 + 2 * 32),  # H100, deterministic
        ("0379", 2 * 32 + 4 * 8 * 1024**2 * 2 / MIB),  # local blocks: scores of 4 x 8 heads, 16 bit
    ],
)
def test_workspaces_of_a_device_and_mode(number: str, workspace: float) -> None:
    assert kinds(run_of(number))["workspace"] == pytest.approx(workspace, abs=0.1)


def test_hopper_keeps_32_mib_for_each_thread() -> None:
    """CublasHandlePool.cpp: 32 MiB on compute capability 9.0, 8.125 MiB elsewhere."""
    allocator = load_software("megatron-core").allocator
    assert allocator.on("hopper").head_workspace_bytes == 2 * 32 * MIB
    assert allocator.on("blackwell").head_workspace_bytes == 2 * 8.125 * MIB
    assert allocator.on("ampere").workspace_bytes == 4 * MIB


def test_a_loss_that_is_not_fused_holds_6_bytes_a_logit() -> None:
    """4 sequences of 1,024 tokens and 50,304 words: 16-bit logits and their fp32 copy."""
    logits = 4 * 1024 * 50304
    plain = kinds(run_of("0019", loss_fusion="none"))["loss"]
    assert plain == pytest.approx(6 * logits / MIB, rel=0.01)
    compiled = kinds(run_of("0019", loss_fusion="compiled"))["loss"]
    assert compiled == pytest.approx(10 * logits / MIB, rel=0.01)


def test_fp16_training_accumulates_in_fp16() -> None:
    """61 M parameters: 2 bytes each, where bf16 training has 4."""
    half, brain = (kinds(run_of(number)) for number in ("0379", "0019"))
    assert half["gradients"] == pytest.approx(half["weights"])
    assert brain["gradients"] == pytest.approx(2 * brain["weights"])


def test_dummy_gradients_serve_fused_accumulation_alone() -> None:
    run = run_of("0019")
    fused = (*run.software.kernels.fused, "gradient_accumulation")
    software = replace(run.software, kernels=replace(run.software.kernels, fused=fused))
    assert kinds(replace(run, software=software))["workspace"] > kinds(run)["workspace"] + 1.0


@pytest.mark.parametrize(
    "number", ["0019", "0021", "0026", "0027", "0047", "0062", "0085", "0140", "0379", "0423"]
)
def test_allocated_memory_of_megatron_lms_own_tests(number: str) -> None:
    """What torch read on the last stage, a few MiB of small tensors and send buffers apart."""
    found = kinds(run_of(number))
    outside = ("communicators", "context", "fragmentation")
    ours = sum(size for kind, size in found.items() if kind not in outside)
    assert ours == pytest.approx(1024 * float(ROWS[number]["peak_memory_gib"]), abs=55)


def test_adapters_and_split_masters_of_mindspeed() -> None:
    """LoRA on queries, keys and values: no state of the frozen model; masters of 2 bytes, not 4."""
    recipe = replay(with_sizes(ROWS["-071"]), load_tables()).workload.recipe
    assert recipe.lora_rank > 0 and recipe.lora_targets == ("q", "k", "v")
    split = ROWS["-023"]  # Llama-2 7B, tp 2 and cp 4
    assert "reuse-fp32-param=True" in split["notes"]
    assert replay(with_sizes(split), load_tables()).software.states.master == 2.0
