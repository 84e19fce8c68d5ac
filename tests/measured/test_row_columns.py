"""Columns of what few measured runs state: models, recipes, layers on the host; blanks, notes."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from simulator import catalogue
from simulator.errors import InputError
from simulator.files import read_csv
from simulator.measured.replay import Run, load_tables, replay
from simulator.measured.rows import assumed_fields, read_row, read_runs
from simulator.scoring.validation import Validation, validate
from simulator.software.overrides import switches

RUNS = catalogue.folder("validation") / "runs"
TABLES = load_tables()
ROWS = {row["run_id"]: row for _, row in read_csv(RUNS / "test.csv")}
DENSE = ROWS["korthikanti22-t5-003"] | {"software": "megatron-core"}
EXPERTS = DENSE | {
    "family": "moe", "num_experts": "8", "top_k": "2", "moe_ffn_hidden": "1024", "ep": "8",
    "position": "rope", "sequence_parallel": "true",
}  # fmt: skip


def made(row: dict[str, str] = DENSE, /, **changed: str) -> Run:
    return replay({**row, **changed}, TABLES)


def test_notes_change_nothing() -> None:
    notes = (
        "gradients accumulated and reduced in fp32; optimizer moments in bf16; gradient"
        " accumulation not fused; FSDP mixed precision PURE; activations of 3 layers offloaded;"
        " every second layer uses a 128-token sliding window; moe dispatcher=deepep; moe a2a"
        " overlap on; chunked cross entropy; optimizer step in backward; cuda graph moe_router;"
        " COMPOSED; EXCLUDED: throttled"
    )
    assert made(EXPERTS, notes=notes) == made(EXPERTS, notes="")


def test_layers_of_pieces_are_as_stated() -> None:
    assert read_row({"stages": "2+4+4+2"}).get("stages") == [2, 4, 4, 2]
    assert read_row({"stages": ""}).get("stages") is None
    for wrong in ("2+", "a", "2,4", "-1+3"):
        with pytest.raises(InputError, match="stages: must be layers of every piece"):
            read_row({"stages": wrong}).get("stages")


def test_samples_of_a_packed_sequence_are_as_stated() -> None:
    assert made(lengths="120+240+480").workload.recipe.lengths == (120, 240, 480)
    for wrong in ("120+", "0+4", "12.5", "120,240"):
        with pytest.raises(InputError, match="lengths: must be tokens of samples"):
            made(lengths=wrong)


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
        samples = read_row(run).need("lengths")
        span = sum(x * x for x in samples) / sum(samples)
        assert 0.99 < printed / (linears + 12 * layers * hidden * span) < 1.0
        assert printed / (linears + 12 * layers * hidden * 4096) < 0.91


def test_the_loss_the_optimizer_and_the_moments() -> None:
    once = {"pp": "1", "vpp": "1", "dp": "8", "global_batch": "8"}
    run = made(**once, loss_chunks="16", optimizer_in_backward="true", moment_dtype="bf16")
    recipe = run.workload.recipe
    assert (recipe.loss_chunks, recipe.optimizer_in_backward) == (16, True)
    assert recipe.moment_dtype == "bf16"
    usual = made().workload.recipe
    assert (usual.loss_chunks, usual.optimizer_in_backward) == (1, False)


@pytest.mark.parametrize(
    ("column", "word", "rule"),
    [
        ("moment_dtype", "bf61", "got 'bf61' (did you mean 'bf16'?)"),
        ("loss_chunks", "some", "must be a whole number, got 'some'"),
        ("optimizer_in_backward", "si", "must be true or false, got 'si'"),
        ("sliding_window_every_second", "1.5", "must be a whole number, got '1.5'"),
        ("cp_kind", "ulysses", "must be one of ring, all_gather"),
        ("bucket_bytes", "0", "must be a positive number, got '0'"),
        ("dispatcher", "deepepp", "got 'deepepp' (did you mean 'deepep'?)"),
    ],
)
def test_words_that_are_refused(column: str, word: str, rule: str) -> None:
    with pytest.raises(InputError) as error:
        made(**{column: word})
    (line,) = error.value.problems
    assert line.startswith(f"row: {column}: ")
    assert rule in line


def test_layers_on_the_host_that_cannot_be_read() -> None:
    with pytest.raises(InputError, match="offload_layers: must be at least 0, got '-1'"):
        made(cpu_offload="true", offload_layers="-1")


@pytest.mark.parametrize("word", ["alltoall", "allgather", "deepep", "hybridep"])
def test_the_dispatcher(word: str) -> None:
    run = made(EXPERTS, dispatcher=word)
    assert run.layout.row()["dispatcher"] == ("deepep" if word == "hybridep" else word)
    assert (run.software.kernels.expert_library == "hybridep") == (word == "hybridep")
    assert made(EXPERTS, dispatcher="").layout.row()["dispatcher"] == "alltoall"


def test_exchange_of_context_is_as_stated() -> None:
    assert made(cp_kind="all_to_all").layout.row()["cp_kind"] == "all_to_all"
    assert made(cp_kind="").layout.row()["cp_kind"] == "ring"


def test_every_second_layer_has_a_window() -> None:
    """gpt-oss: sliding windows of 128 tokens on the first layer and every second one after it."""
    plain = made(EXPERTS).workload.architecture
    model = made(EXPERTS, sliding_window_every_second="128").workload.architecture
    windows = [model.blocks[kind].attention.window for kind in model.layer_kinds]  # type: ignore[union-attr]
    assert windows == [128, 0] * (model.layers // 2)
    assert model.parameters == plain.parameters
    both = made(EXPERTS, sliding_window_every_second="128", mtp_layers="1").workload.architecture
    assert both.layers == model.layers
    assert both.blocks[both.layer_kinds[-1]].predicts_ahead


# --- blank columns ------------------------------------------------------------------------------


def scored(path: Path, rows: list[dict[str, str]]) -> Validation:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return validate(path)


def test_a_blank_column_means_what_a_missing_one_means(tmp_path: Path) -> None:
    """A blank dispatcher once took a table from 10 to 32 %: notes were then not read for it."""
    rows = [row for _, row in read_csv(RUNS / "second_test.csv") if row["ep"] not in ("", "1")][:12]
    names = [name for name in switches() if name in rows[0]]
    assert {"dispatcher", "expert_overlap", "cuda_graph_scope"} <= set(names)
    blank = scored(tmp_path / "blank.csv", [row | dict.fromkeys(names, "") for row in rows])
    absent = scored(
        tmp_path / "absent.csv",
        [{name: value for name, value in row.items() if name not in names} for row in rows],
    )
    assert blank.document() == absent.document()
    assumed = blank.summary()["assumed_fields"]
    assert assumed["dispatcher"] == assumed["expert_overlap"] == len(rows)


def test_what_is_assumed_for_a_blank_switch_is_counted() -> None:
    def assumed(**changed: str) -> set[str]:
        return set(assumed_fields(EXPERTS | {"dispatcher": "", "expert_overlap": ""} | changed))

    assert {"dispatcher", "expert_overlap"} <= assumed()
    assert "dispatcher" not in assumed(dispatcher="deepep")
    assert not {"dispatcher", "expert_overlap"} & assumed(ep="1")
    assert "cuda_graph_scope" in assumed(cuda_graphs="true", cuda_graph_scope="")
    assert "cuda_graph_scope" not in assumed(cuda_graphs="false")
    assert "cp_kind" in assumed(cp="2") and "cp_kind" not in assumed(cp="1")


# --- the shipped tables -------------------------------------------------------------------------


def shipped() -> list[dict[str, Any]]:
    return [row for name in ("calibrate", "test") for _, row in read_csv(RUNS / f"{name}.csv")]


def test_composed_rows_of_the_shipped_tables() -> None:
    names = ("calibrate", "test", "vtrain_single")
    runs = [run for name in names for run in read_runs([RUNS / f"{name}.csv"])]
    noted = [run for run in runs if "COMPOSED" in run.get("notes")]
    assert [run for run in runs if run.get("composed") == "true"] == noted
    assert len(noted) == 603


def test_what_notes_of_the_shipped_tables_say_stands_in_their_columns() -> None:
    """A phrase that is spelled another way would pass unseen: counted by other words."""
    rows = shipped()

    def count(word: str) -> int:
        return sum(word in row["notes"] for row in rows)

    def filled(column: str, *words: str) -> int:
        return sum(row[column] in words if words else bool(row[column]) for row in rows)

    assert filled("reduce_dtype") == count("reduced in") == 216
    assert filled("gradient_dtype") == count("accumulated and") == 0
    assert filled("fused_gradient_accumulation", "false") == count("not fused") == 7
    assert filled("moment_dtype") == count("moments in") == 10
    sent = count("dispatcher=") - count("dispatcher=alltoall")
    assert filled("dispatcher", "deepep", "hybridep") == sent == 13
    beside = count("a2a overlap") - count("a2a overlap off")
    assert filled("expert_overlap", "true") == beside == 5
    assert filled("sliding_window_every_second") == count("sliding window") == 5
    partial = sum("moe_router" in row["cuda_graph_scope"] for row in rows)
    assert partial == count("moe_router") == 12


SAID = {
    "second_memory": {
        "moe-token-dispatcher-type=": "dispatcher",
        "no gradient accumulation fusion": "fused_gradient_accumulation",
        "cross-entropy-loss-fusion=True": "loss_fusion",
        "transformer-impl=": "transformer_impl",
        "; deterministic mode;": "deterministic",
        "last rank = last pipeline stage": "memory_stage",
        "lora-r=": "lora_rank",
        "reuse-fp32-param=True": "split_master_weights",
        "EXCLUDED": "excluded",
        "overlap-moe-expert-parallel-comm=True": "expert_overlap",
    },
    "second_calibrate": {
        "moe dispatcher=": "dispatcher",
        "moe a2a overlap on": "expert_overlap",
        "cuda graph ": "cuda_graph_scope",
        "layers offloaded": "offload_layers",
        "sliding window": "sliding_window_every_second",
    },
    "second_test": {
        "moe dispatcher=": "dispatcher",
        "moe a2a overlap on": "expert_overlap",
        "cuda graph ": "cuda_graph_scope",
        "; reserved ": "peak_reserved_gib",
        "every second layer uses": "sliding_window_every_second",
    },
}


UNSAID = dict.fromkeys(
    [("second_calibrate", "dispatcher"), ("second_test", "dispatcher")], "alltoall"
)
"""What notes leave out, for their recipes say it by default."""


@pytest.mark.parametrize("table", SAID)
def test_notes_of_later_tables_stand_in_their_columns(table: str) -> None:
    rows = [row for _, row in read_csv(RUNS / f"{table}.csv")]
    for words, column in SAID[table].items():
        noted = [row["run_id"] for row in rows if words in row["notes"]]
        silent = ("", UNSAID.get((table, column)))
        said = [row["run_id"] for row in rows if row[column] not in silent]
        assert noted == said, column


def test_offload_and_its_remark_agree_in_the_shipped_tables() -> None:
    for row in shipped():
        said = "layers offloaded" in row["notes"] or "activation offloading" in row["notes"]
        if row["cpu_offload"] == "true" and not row["run_id"].startswith("torchtune"):
            assert said, row["run_id"]
        if "layers offloaded" in row["notes"]:
            assert row["cpu_offload"] == "true", row["run_id"]
            assert 0 < int(row["offload_layers"]) < 10_000, row["run_id"]
