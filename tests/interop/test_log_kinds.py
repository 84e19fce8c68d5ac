"""Logs of every kind and histories of runs: their step times, and what knows the kinds."""

import re
from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.interop.launch_files.merging import import_launch
from simulator.interop.launch_files.recognising import read_launch_file
from simulator.interop.logs.readers import log_kind, reader_of
from simulator.measured.log import MeasuredLog
from simulator.measured.log_lines import kind_of, log_kinds, looks_like
from simulator.software.profile import load_software
from simulator.workload.recipe import Recipe
from tests.interop import log_samples as samples

RECIPE = Recipe(sequence_length=samples.LENGTH, global_batch=samples.BATCH)


def read(path: Path) -> MeasuredLog:
    return reader_of(log_kind(path))(path, RECIPE, samples.GPUS)


@pytest.mark.parametrize("kind", samples.LOGS)
def test_steps_take_what_the_log_says(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text("starting\n" + samples.LOGS[kind])
    assert log_kind(path) == kind
    log = read(path)
    assert (log.framework, list(log.steps)) == (kind, list(samples.STEPS))
    assert log.median_step_s == pytest.approx(samples.SECONDS, rel=1e-3)
    assert log.step_times_s[0] == pytest.approx(5 * samples.SECONDS, rel=1e-3)
    tokens = samples.TOKENS / samples.SECONDS / samples.GPUS
    assert log.tokens_per_s_per_gpu == pytest.approx(tokens, rel=1e-3)
    assert log.software == log_kinds()[kind].software


def test_memory_and_rates_are_read_where_they_are_printed(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text(samples.DEEPSPEED)
    assert read(path).memory_bytes == {"allocated": 20.25 * 2**30}
    path.write_text(samples.MAXTEXT)
    assert read(path).model_tflops_per_gpu == 180.5


@pytest.mark.parametrize("kind", log_kinds())
def test_kinds_are_told_apart_and_name_profiles(kind: str) -> None:
    for name in log_kinds()[kind].software:
        load_software(name)
    if text := samples.LOGS.get(kind):
        others = [x for x in log_kinds().values() if x is not log_kinds()[kind]]
        assert not [x.title for x in others if re.search(x.mark, text)]


def test_a_log_of_another_kind_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text(samples.NANOTRON)
    assert (kind_of(path), looks_like(path)) == ("nanotron", "a Nanotron log")
    with pytest.raises(InputError, match="it looks like a Nanotron log"):
        reader_of("deepspeed")(path, RECIPE, samples.GPUS)
    path.write_text("hello\n")
    with pytest.raises(InputError, match=r"run\.log: log: must be a log of .*DeepSpeed"):
        log_kind(path)


def test_a_step_line_that_is_damaged_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text(samples.MAXTEXT + "completed step: 13, seconds: nan, TFLOP/s/device: 1.0\n")
    assert any("cannot be read: 1" in note for note in read(path).notes)


def test_from_knows_them(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text(samples.DEEPSPEED)
    (reading,) = read_launch_file(path)
    assert (reading.kind, reading.measured) == ("DeepSpeed log", True)
    assert reading.software == ("deepspeed",)


_SAID = {
    "deepspeed": {
        "training.global_batch": 16, "layout.micro_batch": 2, "layout.dp": 8,
        "layout.sharding": "zero3", "training.precision": "fp16",
    },
    "deepspeed_pipeline": {"training.global_batch": 16, "layout.micro_batch": 2},
    "maxtext": {
        "model.name": "llama-3-8b", "run.devices": 8, "training.sequence_length": 1024,
        "layout.recompute": "full",
    },
    "nanotron": {
        "layout.dp": 4, "layout.pp": 1, "layout.tp": 2, "training.sequence_length": 1024,
        "layout.micro_batch": 2, "run.accumulation": 2,
    },
    "litgpt": {
        "model.name": "llama-3-8b", "run.per_node": 8, "run.nodes": 1,
        "training.global_batch": 16, "layout.micro_batch": 2, "training.sequence_length": 1024,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", samples.LISTINGS)
def test_what_a_run_lists_of_itself_is_not_asked_for(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text(samples.LISTINGS[kind] + samples.LOGS[kind])
    (reading,) = read_launch_file(path)
    stated = {item.field: item.value for item in reading.stated}
    assert {name: stated.get(name) for name in _SAID[kind]} == _SAID[kind]
    names = {"model": "llama-3-8b", "cluster": "dgx-h100", "gpus": 8}
    length = ["training.sequence_length=1024"] if kind.startswith("deepspeed") else []
    scenario = import_launch([path], names, length).scenario
    recipe = scenario.workload.recipe
    assert (recipe.global_batch, recipe.sequence_length) == (16, 1024)


def test_listings_of_other_versions(tmp_path: Path) -> None:
    """litgpt/pretrain.py; deepspeed/runtime/config.py since `fp16_enabled` is no attribute."""
    path = tmp_path / "run.log"
    path.write_text(samples.LITGPT_PRETRAINING + samples.LOGS["litgpt"])
    (reading,) = read_launch_file(path)
    stated = {item.field: item.value for item in reading.stated}
    assert {name: stated.get(name) for name in _SAID["litgpt"]} == _SAID["litgpt"]
    for kind, precision in (("float16", "fp16"), ("bfloat16", "bf16")):
        line = f"{kind}_config ............... enabled=True auto_cast=False"
        listed = samples.DEEPSPEED_LISTING.replace("fp16_enabled ................. True", line)
        path.write_text(listed.replace("... 8", "... 8.0") + samples.LOGS["deepspeed"])
        names = {"model": "llama-3-8b", "cluster": "dgx-h100", "gpus": 8}
        scenario = import_launch([path], names, ["training.sequence_length=1024"]).scenario
        assert scenario.workload.recipe.precision == precision
        assert scenario.pinned["dp"] == 8


@pytest.mark.parametrize("form", ["comma", "mark", "semicolon", "tab"])
def test_tables_as_spreadsheets_write_them(form: str, tmp_path: Path) -> None:
    text = {
        "comma": samples.CSV,
        "mark": f"\ufeff{samples.CSV}",
        "semicolon": samples.CSV.replace(",", ";").replace(".", ","),
        "tab": samples.CSV.replace(",", "\t"),
    }[form]
    path = tmp_path / "export.csv"
    path.write_text(text, encoding="utf-8")
    assert log_kind(path) == "history"
    assert read(path).median_step_s == pytest.approx(samples.SECONDS)


def test_histories(tmp_path: Path) -> None:
    places = {
        "export.csv": samples.CSV, "timed.csv": samples.TIMED_CSV, "history.jsonl": samples.JSONL,
    }  # fmt: skip
    for name, text in places.items():
        (tmp_path / name).write_text(text)
    offline = tmp_path / "offline-run" / "files"
    offline.mkdir(parents=True)
    (offline / "wandb-history.jsonl").write_text(samples.JSONL)
    events = tmp_path / "events.out.tfevents.1700000000.host"
    events.write_bytes(samples.event_file())
    board = tmp_path / "board"
    board.mkdir()
    (board / "events.out.tfevents.1").write_bytes(samples.event_file("perf/step_time"))
    mlflow = samples.mlflow_run(tmp_path / "0" / "abc")
    run = tmp_path / "offline-run-2" / "run-abc.wandb"
    run.parent.mkdir()
    run.write_bytes(samples.wandb_file(padding=9_000))  # records that go on in the next block
    files = [*(tmp_path / name for name in places), offline.parent, events, board, mlflow]
    files += [run, run.parent]
    for path in files:
        assert log_kind(path) == "history"
        log = read(path)
        assert log.median_step_s == pytest.approx(samples.SECONDS, rel=1e-3), path
        assert log.notes[0].startswith("step times: ")


def test_the_mean_of_a_run_of_the_trainer(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text(samples.TRAINER_STATE)
    log = read(path)
    assert (log.median_step_s, len(log.steps)) == (200 / 100, 1)
    assert "the mean of the run" in log.notes[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("trainer_state.json", "{}"),
        ("trainer_state.json", "{"),
        ("trainer_state.json", '{"log_history": [{"step": 0, "train_runtime": 5}]}'),
        ("run.csv", "step,_timestamp\n1,5\n"),
        ("run.csv", "step,_timestamp\nx,y\n2,nan\n"),
        ("x.jsonl", '{"_step": 1}\n[]\n{'),
        ("events.out.tfevents.1", "\x00" * 40),
        ("run-1.wandb", ":W&B" + "\x01" * 40),
        ("run-1.wandb", "no run of theirs"),
    ],
)
def test_a_history_without_times_is_refused(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=re.escape(str(path))):
        read(path)


@pytest.mark.parametrize(
    ("name", "whole"),
    [("events.out.tfevents.1", samples.event_file()), ("run-1.wandb", samples.wandb_file())],
)
def test_a_file_that_is_cut_is_read_to_there(name: str, whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length] or b"\x00")
        try:
            assert read(path).median_step_s > 0
        except InputError as error:
            assert str(path) in str(error)
