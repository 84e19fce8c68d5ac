"""The measuring programs: each runs for seconds here, writes what it promises, survives a cut."""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
PRETENDED_GPU = Path(__file__).with_name("pretended_gpu.py")
NEED_RANKS = ("collectives", "overlap")
ALONE = ("copies", "gemm", "attention", "memory_bound", "grouped_gemm", "launch")
PROGRAMS = (*ALONE, *NEED_RANKS, "train_step")
MINUTES = {"train_step": "0.15", "memory_bound": "0.15"}
EXPECTED = {
    "gemm": {"gemm"},
    "attention": {"attention"},
    "memory_bound": {"copy", "layer_norm", "rms_norm", "swiglu", "adamw", "cross_entropy"},
    "grouped_gemm": {"grouped_gemm", "moe_permute", "moe_router"},
    "launch": {"launch", "layer"},
    "copies": {"copy"},
    "collectives": {"all_reduce", "all_gather", "reduce_scatter"},
    "overlap": {"gemm"},
    "train_step": {"train_step"},
}


def one_fast(programs: Sequence[str]) -> list[Any]:
    """The first program in every run, the others as evidence: each starts torch anew."""
    first, *others = programs
    return [first, *(pytest.param(name, marks=pytest.mark.evidence) for name in others)]


KEYS = {"schema", "program", "command", "started", "complete", "device", "software", "records"}
RECORD_KEYS = {"kernel", "dtype", "shape", "direction", "times_s"}
MOST_FLOP_PER_S, LEAST_FLOP_PER_S = 5e13, 1e6
MOST_BYTES_PER_S = 1e12
LONGEST_S = 60.0
LONGEST_RUN_S = 600
"""So long a program may take before it is given up: no test hangs on the machine's speed."""
OUR_MISTAKES = re.compile(r"(Attribute|Name|Type|Key|Index|UnboundLocal|ZeroDivision)Error|^Value")

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="the programs need torch"
)


def environment() -> dict[str, str]:
    """One thread each: other tests run beside us. No path leads to the checkout."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return kept | {"OMP_NUM_THREADS": "1"}


def run(program: Path | str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(program), *arguments],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LONGEST_RUN_S,
    )


def start(program: str, out: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(KERNELS / f"{program}.py"), "--out", str(out), *arguments],
        cwd=out.parent,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_records(out: Path, child: subprocess.Popen[str], count: int = 1) -> None:
    for _ in range(10 * LONGEST_RUN_S):
        if out.is_file() and len(read(out)["records"]) >= count:
            return
        assert child.poll() is None, child.communicate()
        time.sleep(0.1)
    raise AssertionError(f"no record after {LONGEST_RUN_S} s: {out}")


def read(out: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(out.read_text())
    return document


# --- what a document must hold ------------------------------------------------------------------


def check_document(document: dict[str, Any]) -> None:
    assert document.keys() >= KEYS
    assert document["schema"] == 1
    assert document["device"]["kind"] == "cpu"
    assert document["device"]["name"]
    assert document["software"].keys() >= {"torch", "cuda", "nccl", "driver", "python"}
    for record in document["records"]:
        check_record(record)
    for skipped in document["skipped"]:
        assert skipped.keys() >= {"kernel", "shape", "dtype", "reason"}
        assert not OUR_MISTAKES.search(skipped["reason"]), skipped


def check_record(record: dict[str, Any]) -> None:
    assert record.keys() >= RECORD_KEYS
    assert isinstance(record["shape"], dict)
    assert record["times_s"], record
    assert all(0 < one < LONGEST_S for one in record["times_s"]), record
    best_s, middle_s = (
        min(record["times_s"]),
        sorted(record["times_s"])[len(record["times_s"]) // 2],
    )
    for flop in flops(record):
        assert flop / middle_s > LEAST_FLOP_PER_S, record
        assert flop / best_s < MOST_FLOP_PER_S, record
    if "bytes" in record:
        assert record["bytes"] / best_s < MOST_BYTES_PER_S, record


def kernels_in(document: dict[str, Any]) -> set[str]:
    """Name what was measured, and what a busy machine left no time for."""
    late = [one for one in document["skipped"] if one["reason"].startswith("time:")]
    return {one["kernel"] for one in document["records"] + late}


def flops(record: dict[str, Any]) -> Iterator[float]:
    """Work out the operations of a product from its shape; nothing for other kernels."""
    shape = record["shape"]
    if record["kernel"] == "gemm":
        yield 2.0 * shape["m"] * shape["n"] * shape["k"]
    if record["kernel"] == "grouped_gemm":
        yield 2.0 * shape["rows"] * shape["n"] * shape["k"]
    if record["kernel"] == "attention":
        pairs = shape["batch"] * shape["heads_q"] * shape["seq_q"] * shape["seq_kv"]
        both = shape["head_dim"] + shape["head_dim_v"]
        yield 2.0 * pairs * both * (0.5 if shape["causal"] else 1)


# --- each program ---------------------------------------------------------------------------------


@pytest.mark.parametrize("program", one_fast(PROGRAMS))
def test_a_quick_run(program: str, tmp_path: Path) -> None:
    minutes = MINUTES.get(program, "0.1")
    arguments = ["--quick", "--device", "cpu", "--minutes", minutes, "--out", "out.json"]
    done = run(KERNELS / f"{program}.py", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\r" not in done.stderr  # progress is for terminals
    document = read(tmp_path / "out.json")
    check_document(document)
    assert document["complete"] is True
    assert document["program"] == program
    assert document["records"]
    assert kernels_in(document) >= EXPECTED[program]
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


@pytest.mark.evidence
@pytest.mark.parametrize("program", one_fast(ALONE))
def test_what_only_a_gpu_reaches_runs(program: str, tmp_path: Path) -> None:
    # Not how it behaves on a GPU: only that no line of it is wrong in itself.
    script = str(KERNELS / f"{program}.py")
    arguments = [script, "--quick", "--minutes", "0.05", "--out", "out.json"]
    done = run(PRETENDED_GPU, *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = read(tmp_path / "out.json")
    assert document["device"]["name"] == "pretended GPU"
    assert document["complete"] is True
    assert document["records"]
    for skipped in document["skipped"]:
        assert not OUR_MISTAKES.search(skipped["reason"]), skipped


# --- cut runs -------------------------------------------------------------------------------------

UNTIL_CUT = ("--device", "cpu", "--minutes", "20")
"""More time than they are left: that they end by themselves must not race with the signal."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_what_it_has(number: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    child = start("gemm", out, *UNTIL_CUT)
    wait_for_records(out, child)
    child.send_signal(number)
    _, said = child.communicate(timeout=LONGEST_RUN_S)
    assert child.returncode == 128 + number
    assert "cut short" in said
    assert "Traceback" not in said
    document = read(out)
    check_document(document)
    assert document["complete"] is False
    assert document["records"]
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


@pytest.mark.evidence
def test_a_killed_run_leaves_a_readable_file(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    child = start("memory_bound", out, *UNTIL_CUT)
    wait_for_records(out, child, count=2)
    child.kill()
    child.communicate(timeout=LONGEST_RUN_S)
    document = read(out)
    check_document(document)
    assert document["complete"] is False


@pytest.mark.evidence
def test_run_all_keeps_what_its_programs_have(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    part = tmp_path / "out.parts" / "gemm.json"
    child = start("run_all", out, *UNTIL_CUT, "copies", "gemm")
    wait_for_records(part, child)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=LONGEST_RUN_S)
    assert child.returncode == 130
    assert "Traceback" not in said
    document = read(out)
    check_document(document)
    assert document["complete"] is False
    ended = [(entry["program"], entry["complete"]) for entry in document["programs"]]
    assert ended == [("gemm", False)]
    assert not part.parent.exists()


# --- everything, elsewhere ------------------------------------------------------------------------


@pytest.mark.evidence
def test_the_folder_runs_from_anywhere(tmp_path: Path) -> None:
    copied = shutil.copytree(
        KERNELS, tmp_path / "elsewhere", ignore=shutil.ignore_patterns("__pycache__")
    )
    away = tmp_path / "away"
    away.mkdir()
    arguments = ["--quick", "--device", "cpu", "--minutes", "0.3", "copies", "launch"]
    done = run(copied / "run_all.py", *arguments, cwd=away)
    assert done.returncode == 0, done.stderr
    document = read(away / "measurements.json")
    check_document(document)
    assert document["complete"] is True
    assert [entry["program"] for entry in document["programs"]] == ["launch", "copies"]
    assert {record["program"] for record in document["records"]} == {"launch", "copies"}
    assert [path.name for path in away.iterdir()] == ["measurements.json"]


def test_the_programs_stand_alone() -> None:
    for path in KERNELS.glob("*.py"):
        text = path.read_text()
        assert not re.search(r"^\s*(from|import) (simulator|numpy|scipy)\b", text, re.M), path
    assert not (KERNELS / "__init__.py").exists()


MEASURED = KERNELS.parent / "validation" / "measured" / "h100-2026-11-28"


def test_measured_kernels_stay_below_what_the_device_can() -> None:
    # an H100 moves 3.35 TB/s; bytes are the least traffic, so nothing may come out faster; what a
    # small kernel writes may wait in the cache of 50 MB
    document = json.loads((MEASURED / "memory_bound.json").read_text())
    large = [record for record in document["records"] if record["bytes"] > 100e6]
    rates = [record["bytes"] / sorted(record["times_s"])[0] for record in large]
    assert len(large) > 400
    assert max(rates) < 3.35e12


def test_transformers_trainer_says_its_runs_and_what_it_needs(tmp_path: Path) -> None:
    program = [sys.executable, str(KERNELS / "hf_trainer.py")]
    run = {"capture_output": True, "text": True, "env": environment(), "cwd": tmp_path}
    listed = subprocess.run([*program, "--list"], check=True, **run)
    runs = [json.loads(line) for line in listed.stdout.splitlines()]
    measured = json.loads((MEASURED / "trainer.json").read_text())["records"]
    assert [record["shape"] for record in measured] == runs
    if importlib.util.find_spec("transformers") is None:
        refused = subprocess.run(program, **run)
        assert refused.returncode == 2
        assert "pip install transformers peft accelerate" in refused.stderr


# --- wrong arguments ------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("program", "arguments", "message"),
    [
        ("gemm", ["--out", "no/such/out.json"], "gemm: --out: no folder 'no/such'"),
        ("gemm", ["--dtype", "fp31"], "gemm: --dtype: must be of fp32, tf32"),
        ("run_all", ["--out", "no/such/out.json"], "run_all: --out: no folder 'no/such'"),
        ("run_all", ["lunch"], "run_all: no program 'lunch' (known: train_step, gemm"),
    ],
)
def test_a_wrong_argument_is_code_2(
    program: str, arguments: list[str], message: str, tmp_path: Path
) -> None:
    done = run(KERNELS / f"{program}.py", "--device", "cpu", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(message)
    assert list(tmp_path.iterdir()) == []
