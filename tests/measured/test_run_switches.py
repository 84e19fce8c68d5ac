"""Columns of what few measured runs state: what each one changes, and the words it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from simulator import catalogue
from simulator.errors import InputError
from simulator.files import Figure
from simulator.measured import run_switches
from simulator.measured.rows import read_runs
from simulator.software.profile import load_software
from simulator.workload import presets

CORE = load_software("megatron-core")
RUNS = catalogue.folder("validation") / "runs"
COPIES = Figure(2.0)
SWITCHES: dict[str, Callable[[dict[str, str]], Any]] = {
    "model": lambda row: run_switches.windowed(row, presets.load("llama-3.1-8b")),
    "kernels": lambda row: run_switches.kernels(row, CORE.kernels),
    "overlap": lambda row: run_switches.overlap(row, CORE.overlap),
    "states": lambda row: run_switches.states(row, CORE.states, COPIES),
    "captured": lambda row: run_switches.captured(row, CORE.host, 0.4),
    "dispatcher": lambda row: run_switches.dispatcher(row, "alltoall"),
    "recipe": run_switches.recipe,
    "offloaded": lambda row: run_switches.offloaded({"cpu_offload": "true"} | row, 32),
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_notes_change_nothing(switch: str) -> None:
    """Whatever a run's notes say: only the reader of tables puts phrases into columns."""
    notes = (
        "gradients accumulated and reduced in fp32; optimizer moments in bf16; gradient"
        " accumulation not fused; FSDP mixed precision PURE; activations of 3 layers offloaded;"
        " every second layer uses a 128-token sliding window; moe dispatcher=deepep; moe a2a"
        " overlap on; chunked cross entropy; optimizer step in backward; cuda graph moe_router"
    )
    row = {"notes": notes, "software": "llm-foundry-2023", "sharding": "zero3"}
    assert SWITCHES[switch](row) == SWITCHES[switch]({"sharding": "zero3"})


def test_gradients_and_moments() -> None:
    row = {"reduce_dtype": "fp32", "gradient_dtype": "bf16", "moment_dtype": "fp16"}
    stated = run_switches.states(row, CORE.states, COPIES)
    assert (float(stated.reduce), float(stated.gradient)) == (4, 2)
    same = {"reduce": CORE.states.reduce, "gradient": CORE.states.gradient}
    assert replace(stated, **same) == CORE.states
    assert run_switches.recipe(row) == {"moment_dtype": "fp16"}


def test_a_stated_bucket_does_not_grow_with_the_ranks() -> None:
    stated = run_switches.states({"bucket_bytes": "1536e6"}, CORE.states, COPIES)
    assert (float(stated.bucket_bytes), float(stated.bucket_bytes_per_rank)) == (1.536e9, 0.0)
    with pytest.raises(InputError, match="bucket_bytes: must be a positive number"):
        run_switches.states({"bucket_bytes": "0"}, CORE.states, COPIES)


def test_exchange_of_context_and_mask_are_as_stated() -> None:
    assert run_switches.cp_kind({}, "ring") == "ring"
    assert run_switches.cp_kind({"cp_kind": "all_to_all"}, "ring") == "all_to_all"
    with pytest.raises(InputError, match="cp_kind"):
        run_switches.cp_kind({"cp_kind": "ulysses"}, "ring")
    loaded = load_software("megatron-core-defaults").input
    assert float(loaded.mask_bytes) == 1.0
    assert run_switches.fetch({"mask_in_dataloader": "true"}, loaded) == loaded
    assert float(run_switches.fetch({"mask_in_dataloader": "false"}, loaded).mask_bytes) == 0.0


def test_layers_of_pieces_are_as_stated() -> None:
    assert run_switches.stages({}) == []
    assert run_switches.stages({"stages": "2+4+4+2"}) == [2, 4, 4, 2]
    for wrong in ("2+", "a", "2,4", "-1+3"):
        with pytest.raises(InputError, match="stages: must be layers of every piece"):
            run_switches.stages({"stages": wrong})


def test_samples_of_a_packed_sequence_are_as_stated() -> None:
    assert run_switches.lengths({}) == []
    assert run_switches.recipe({"lengths": "120+240+480"})["lengths"] == [120, 240, 480]
    for wrong in ("120+", "0+4", "12.5", "120,240"):
        with pytest.raises(InputError, match="lengths: must be tokens of samples"):
            run_switches.lengths({"lengths": wrong})


def test_published_rates_of_packed_samples_agree_with_their_lengths() -> None:
    """Megatron-Bridge prints FLOP/s of LoRA on SQuAD by the squares of the samples it packed.

    Two thirds of the linears' FLOPs and three times the attention's, unmasked (v0.5.0,
    training/utils/flop_utils.py). One sample of 4,096 tokens would be a tenth more.
    """
    runs = [r.fields for r in read_runs([RUNS / "fresh_test.csv"])]
    found = [r for r in runs if r["source"] == "mbridge-26.06-finetune" and r["lora_rank"]]
    assert len(found) == 5
    hidden, layers, vocabulary = 8192, 80, 128256
    per_layer = hidden**2 * (12 + 12 * 8 / 64 + 18 * 28672 / hidden)
    linears = 2 / 3 * (layers * per_layer + 6 * vocabulary * hidden)
    for run in found:
        printed = float(run["model_tflops_per_gpu"]) * 1e12 / float(run["tokens_per_s_per_gpu"])
        samples = run_switches.lengths(run)
        span = sum(x * x for x in samples) / sum(samples)
        assert 0.99 < printed / (linears + 12 * layers * hidden * span) < 1.0
        assert printed / (linears + 12 * layers * hidden * 4096) < 0.91


def test_accumulation_is_as_stated() -> None:
    column = "fused_gradient_accumulation"
    alone = replace(CORE.kernels, fused=("norm",))
    assert run_switches.kernels({column: "true"}, alone).fused == ("norm", "gradient_accumulation")
    assert run_switches.kernels({column: "false"}, alone).fused == ("norm",)
    assert run_switches.kernels({column: ""}, CORE.kernels) == CORE.kernels


@pytest.mark.parametrize("word", ["alltoall", "allgather", "deepep"])
def test_a_dispatcher_that_is_stated_is_taken(word: str) -> None:
    assert run_switches.dispatcher({"dispatcher": word}, "allgather") == word
    assert run_switches.dispatcher({}, word) == word


def test_hybridep_is_deepep_with_another_library() -> None:
    row = {"dispatcher": "hybridep"}
    assert run_switches.dispatcher(row, "alltoall") == "deepep"
    assert run_switches.kernels(row, CORE.kernels).expert_library == "hybridep"


@pytest.mark.parametrize("column", ["fp8_attention", "fp8_head"])
def test_attention_and_head_take_eight_bit_where_that_is_stated(column: str) -> None:
    usual = CORE.kernels.transformer_engine
    assert run_switches.kernels({column: "false"}, CORE.kernels) == CORE.kernels
    found = run_switches.kernels({column: "true"}, CORE.kernels).transformer_engine
    changed = {"fp8_attention": "quantised_attention", "fp8_head": "quantised_head"}[column]
    assert getattr(found, changed) == ("mxfp8",)
    assert replace(found, **{changed: ()}) == usual


def test_expert_overlap_both_ways() -> None:
    on = replace(CORE.overlap, expert=True)
    assert run_switches.overlap({"expert_overlap": "true"}, CORE.overlap) == on
    assert run_switches.overlap({"expert_overlap": "false"}, on) == CORE.overlap
    assert run_switches.overlap({}, on) == on


def test_the_loss_the_optimizer_and_the_layers_on_the_host() -> None:
    row = {"loss_chunks": "16", "optimizer_in_backward": "true", "offload_layers": "20"}
    assert run_switches.recipe(row) == {"loss_chunks": 16, "optimizer_in_backward": True}
    assert run_switches.offloaded(row, 32) == 0
    assert run_switches.offloaded(row | {"cpu_offload": "true"}, 32) == 20
    assert run_switches.offloaded(row | {"cpu_offload": "true"}, 12) == 12
    assert run_switches.offloaded({"cpu_offload": "true"}, 12) == 12


@pytest.mark.parametrize(
    ("scope", "dense", "experts"),
    [
        ("", 1.0, 1.0),
        ("full_iteration", 1.0, 1.0),
        ("moe_router+moe_preprocess", 0.0, 0.4),
        ("attn+moe_router", 1.0, 0.4),
    ],
)
def test_parts_that_graphs_capture(scope: str, dense: float, experts: float) -> None:
    host = run_switches.captured({"cuda_graph_scope": scope}, CORE.host, 0.4)
    assert (float(host.captured_fraction), float(host.captured_moe_fraction)) == (dense, experts)


@pytest.mark.parametrize(
    ("switch", "column", "word", "rule"),
    [
        ("states", "reduce_dtype", "fp8", "must be one of fp16, bf16, fp32, got 'fp8'"),
        ("states", "gradient_dtype", "16", "must be one of fp16, bf16, fp32, got '16'"),
        ("recipe", "moment_dtype", "bf61", "got 'bf61' (did you mean 'bf16'?)"),
        ("recipe", "loss_chunks", "some", "must be a whole number, got 'some'"),
        ("recipe", "optimizer_in_backward", "si", "must be true or false, got 'si'"),
        ("kernels", "fused_gradient_accumulation", "si", "must be true or false, got 'si'"),
        ("kernels", "recompute_stops_early", "early", "must be one of never, 16bit, always"),
        ("dispatcher", "dispatcher", "deepepp", "got 'deepepp' (did you mean 'deepep'?)"),
        ("overlap", "expert_overlap", "on", "must be true or false, got 'on'"),
        ("captured", "cuda_graph_scope", "attn+rest", "joined by +, got 'rest'"),
        ("model", "sliding_window_every_second", "1.5", "must be a whole number, got '1.5'"),
        ("offloaded", "offload_layers", "-1", "must be at least 0, got '-1'"),
    ],
)
def test_words_that_are_refused(switch: str, column: str, word: str, rule: str) -> None:
    with pytest.raises(InputError) as error:
        SWITCHES[switch]({column: word})
    (line,) = error.value.problems
    assert line.startswith(f"{column}: ")
    assert line.endswith(rule) or rule in line
