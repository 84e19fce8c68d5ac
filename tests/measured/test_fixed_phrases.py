"""Fixed phrases of a run's notes: what each one changes, and what looks like one and is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator import catalogue
from simulator.files import Figure, read_csv
from simulator.measured import run_switches as switches
from simulator.measured.fixed_phrases import with_columns
from simulator.measured.rows import COLUMNS, read_runs
from simulator.software.profile import load_software
from simulator.workload import presets

CORE = load_software("megatron-core")
COPIES = Figure(2.0)
HOST = replace(CORE.host, kernels_per_block=Figure(40), kernels_per_moe_block=Figure(30))


def row(notes: str = "", **columns: str) -> dict[str, str]:
    """A row of a table that has no columns but these."""
    return with_columns({"notes": notes, **columns}, ["notes", *columns])


SILENT = ["", "one logged step", "COMPOSED: layer timings", "no p2p overlap; one logged step"]
"""Remarks that state nothing that a model, a software or a layout has."""


@pytest.mark.parametrize("notes", SILENT)
def test_other_remarks_change_nothing(notes: str) -> None:
    model = presets.load("llama-3.1-8b")
    assert switches.windowed(row(notes), model) is model
    assert switches.kernels(row(notes), CORE.kernels) == CORE.kernels
    assert switches.overlap(row(notes), CORE.overlap) == CORE.overlap
    assert switches.states(row(notes), CORE.states, COPIES) == CORE.states
    assert switches.offloaded(row(notes), 32) == 0
    assert switches.recipe(row(notes)) == {}


@pytest.mark.parametrize(
    ("notes", "fields"),
    [
        ("ladder step: packed; chunked cross entropy; peak active bytes", {"loss_chunks": 8}),
        ("chunked cross entropy in 16 pieces", {"loss_chunks": 16}),
        ("one step; optimizer step in backward", {"optimizer_in_backward": True}),
        (
            "chunked cross entropy; optimizer step in backward; A100",
            {"loss_chunks": 8, "optimizer_in_backward": True},
        ),
        ("uneven stages; optimizer moments in bf16 (that recipe)", {"moment_dtype": "bf16"}),
        # the name of a step of torchtune's ladder is no remark on the run
        ("ladder step: chunked cross entropy", {}),
        ("no chunked cross entropy", {}),
    ],
)
def test_the_loss_and_the_optimizers_place(notes: str, fields: dict[str, Any]) -> None:
    assert switches.recipe(row(notes)) == fields


def test_a_table_without_remarks() -> None:
    assert switches.kernels({}, CORE.kernels) == CORE.kernels
    assert switches.overlap({}, CORE.overlap) == CORE.overlap
    assert switches.states({}, CORE.states, COPIES) == CORE.states


def test_a_column_holds_whatever_the_notes_say() -> None:
    phrases = {
        "dispatcher": "moe dispatcher=deepep",
        "expert_overlap": "moe a2a overlap on",
        "composed": "COMPOSED",
        "excluded": "EXCLUDED: throttled",
        "reduce_dtype": "gradients reduced in fp32",
    }
    notes = "; ".join(phrases.values())
    blank = with_columns({"notes": notes} | dict.fromkeys(phrases, ""), ["notes", *phrases])
    assert not any(blank[column] for column in phrases)
    filled = row(notes)
    assert [filled[column] for column in phrases] == ["deepep", "true", "true", "throttled", "fp32"]
    assert set(filled) - {"notes"} == set(phrases)


def test_every_phrase_stands_for_a_column_of_the_table() -> None:
    notes = (
        "gradients accumulated and reduced in bf16; optimizer moments in bf16; gradient"
        " accumulation not fused; FSDP mixed precision PURE; activations of 3 layers offloaded;"
        " every second layer uses a 128-token sliding window; moe dispatcher=deepep; moe a2a"
        " overlap on; chunked cross entropy; optimizer step in backward; cuda graph attn; reserved"
        " 60.5 GiB; COMPOSED; EXCLUDED: x"
    )
    filled = set(row(notes)) - {"notes"}
    assert len(filled) == 15
    assert filled <= set(COLUMNS)


@pytest.mark.parametrize(
    ("notes", "reason"),
    [
        ("", None),
        ("excluded from figure 3", None),
        ("EXCLUDED: throttled", "throttled"),
        ("first run; EXCLUDED:  two jobs shared the node ; seen twice", "two jobs shared the node"),
        ("EXCLUDED:", "no reason given"),
    ],
)
def test_notes_may_exclude_a_row(notes: str, reason: str | None) -> None:
    assert row(notes).get("excluded") == reason


# --- gradients ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("word", "size"), [("fp16", 2), ("bf16", 2), ("fp32", 4)])
def test_the_type_of_the_reduction(word: str, size: int) -> None:
    usual = replace(CORE.states, reduce=Figure(8))
    notes = f"FSDP mixed precision PURE (gradients reduced in {word}); mean of 10 steps"
    found = switches.states(row(notes), usual, COPIES)
    assert float(found.reduce) == size
    assert replace(found, reduce=usual.reduce) == usual


def test_an_unknown_type_of_the_reduction_changes_nothing() -> None:
    assert switches.states(row("gradients reduced in fp8"), CORE.states, COPIES) == CORE.states


def test_one_buffer_for_accumulation_and_reduction() -> None:
    found = switches.states(
        row("gradients accumulated and reduced in fp32: x"), CORE.states, COPIES
    )
    assert (float(CORE.states.gradient), float(CORE.states.reduce)) == (2, 2)
    assert (float(found.gradient), float(found.reduce)) == (4, 4)
    usual = {"gradient": CORE.states.gradient, "reduce": CORE.states.reduce}
    assert replace(found, **usual) == CORE.states


@pytest.mark.parametrize(
    ("sharding", "copies"), [("ddp", 0), ("zero1", 0), ("zero2", 2), ("zero3", 2)]
)
def test_gradients_that_products_do_not_accumulate(sharding: str, copies: float) -> None:
    """Those that ranks share are copied into the reduction's buffer; a whole one takes the sum."""
    found = row("x; gradient accumulation not fused with that; y", sharding=sharding)
    assert float(CORE.states.reduce_copies) == 0
    assert float(switches.states(found, CORE.states, COPIES).reduce_copies) == copies
    fused = switches.kernels(found, CORE.kernels).fused
    assert set(CORE.kernels.fused) - set(fused) == {"gradient_accumulation"}
    assert set(fused) < set(CORE.kernels.fused)


# --- experts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["deepep", "hybridep"])
def test_the_dispatcher(word: str) -> None:
    assert switches.dispatcher(row(f"moe dispatcher={word}; mean of steps"), "alltoall") == "deepep"


@pytest.mark.parametrize("notes", ["moe dispatcher=alltoall", "dispatcher deepep", "deepep"])
def test_no_other_dispatcher(notes: str) -> None:
    assert switches.dispatcher(row(notes), "alltoall") == "alltoall"


def test_expert_traffic_beside_compute() -> None:
    on = "moe a2a overlap on (both from that recipe: no token drop)"
    assert switches.overlap(row(on), CORE.overlap).expert
    assert not switches.overlap(row("moe a2a overlap off"), CORE.overlap).expert
    always = replace(CORE.overlap, expert=True)
    assert switches.overlap(row("moe a2a overlap off"), always).expert  # the software's own habit


# --- captured graphs ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("notes", "dense", "experts"),
    [
        ("", 1.0, 1.0),  # the column alone: everything
        ("cuda graph none/full_iteration", 1.0, 1.0),
        ("cuda graph local/full_iteration; one", 1.0, 1.0),
        ("cuda graph moe_router+moe_preprocess", 0.0, 0.4),
        ("cuda graph attn+moe_router+moe_preprocess", 1.0, 0.4),
        ("cuda graph transformer_engine/['attn', 'moe_router', 'moe_preprocess']", 1.0, 0.4),
        ("cuda graph transformer_engine/['moe_router', 'moe_preprocess']; x", 0.0, 0.4),
        ("x; cuda graph moe_router; attn elsewhere", 0.0, 0.4),  # ends with the remark
    ],
)
def test_scopes_of_captured_graphs(notes: str, dense: float, experts: float) -> None:
    found = switches.captured(row(notes), HOST, 0.4)
    assert (float(found.captured_fraction), float(found.captured_moe_fraction)) == (dense, experts)
    same = {
        "captured_fraction": HOST.captured_fraction,
        "captured_moe_fraction": HOST.captured_moe_fraction,
    }
    assert replace(found, **same) == HOST


# --- activations and windows --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "notes", "layers"),
    [
        ({"cpu_offload": "true"}, "activations of 20 layers offloaded to the CPU", 20),
        ({"cpu_offload": "TRUE"}, "x; activations of 95 layers offloaded to the CPU; y", 80),
        ({"cpu_offload": "true"}, "ladder step: activation offloading", 80),
        ({"cpu_offload": "false"}, "activations of 20 layers offloaded to the CPU", 0),
        ({}, "activations of 20 layers offloaded to the CPU", 0),
    ],
)
def test_offloaded_layers(columns: dict[str, str], notes: str, layers: int) -> None:
    assert switches.offloaded(row(notes, **columns), 80) == layers


def test_every_second_layer_has_a_window() -> None:
    """gpt-oss: sliding windows of 128 tokens on the first layer and every second one after it."""
    model = presets.load("mixtral-8x7b")
    notes = "every second layer uses a 128-token sliding window; mean of steps"
    found = switches.windowed(row(notes), model)
    windows = [found.blocks[kind].attention.window for kind in found.layer_kinds]
    assert windows == [128, 0] * 16
    assert found.parameters == model.parameters
    assert [found.blocks[kind].mlp for kind in found.layer_kinds] == [model.blocks[0].mlp] * 32


def test_a_window_and_predictions_are_both_put_in() -> None:
    model = presets.load("mixtral-8x7b")
    notes = row("every second layer uses a 128-token sliding window")
    found = switches.windowed(notes, model).predicting_ahead(1)
    assert found.layers == 32
    assert found.blocks[found.layer_kinds[-1]].predicts_ahead


# --- the shipped tables -------------------------------------------------------------------------


def shipped() -> list[dict[str, Any]]:
    folder = catalogue.folder("validation") / "runs"
    return [row for name in ("calibrate", "test") for _, row in read_csv(folder / f"{name}.csv")]


def test_composed_rows_of_the_shipped_tables() -> None:
    folder = catalogue.folder("validation") / "runs"
    names = ("calibrate", "test", "vtrain_single")
    runs = [run for name in names for run in read_runs([folder / f"{name}.csv"])]
    noted = [run for run in runs if "COMPOSED" in run.get("notes")]
    assert [run for run in runs if run.get("composed") == "true"] == noted
    assert len(noted) == 603


def test_phrases_of_the_shipped_tables_are_all_read() -> None:
    """A phrase that is spelled another way would pass unseen: counted by other words."""
    rows = shipped()

    def count(word: str) -> int:
        return sum(word in found["notes"] for found in rows)

    eight = replace(CORE.states, reduce=Figure(8), gradient=Figure(8))
    reduced = [switches.states(found, eight, COPIES) for found in rows]
    assert sum(float(x.reduce) < 8 for x in reduced) == count("reduced in") == 216
    assert sum(float(x.gradient) < 8 for x in reduced) == count("accumulated and") == 0
    assert sum(float(x.reduce_copies) > 0 for x in reduced) == count("not fused") == 7
    moments = ["moment_dtype" in switches.recipe(found) for found in rows]
    assert sum(moments) == count("moments in") == 10
    sent = [switches.dispatcher(found, "alltoall") for found in rows]
    assert sent.count("deepep") == count("dispatcher=") - count("dispatcher=alltoall") == 13
    beside = [switches.overlap(found, CORE.overlap).expert for found in rows]
    assert sum(beside) == count("a2a overlap") - count("a2a overlap off") == 5
    model = presets.load("mixtral-8x7b")
    windows = [switches.windowed(found, model) is not model for found in rows]
    assert sum(windows) == count("sliding window") == 5
    partial = [switches.captured(found, HOST, 0.4).captured_moe_fraction < 1 for found in rows]
    assert sum(partial) == count("moe_router") == 12


def test_offload_and_its_remark_agree_in_the_shipped_tables() -> None:
    for found in shipped():
        said = "layers offloaded" in found["notes"] or "activation offloading" in found["notes"]
        if found["cpu_offload"] == "true" and not found["run_id"].startswith("torchtune"):
            assert said, found["run_id"]
        if "layers offloaded" in found["notes"]:
            assert found["cpu_offload"] == "true", found["run_id"]
            assert switches.offloaded(found, 10_000) < 10_000, found["run_id"]
