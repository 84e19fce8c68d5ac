"""Collectives, overlap and training steps: what several ranks, or one step, must get right.

That each program runs quickly and writes a sound document is tested in test_programs.
"""

import contextlib
import doctest
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
KERNELS = Path(__file__).resolve().parents[2] / "kernels"
sys.path.insert(0, str(KERNELS))
import _worker  # noqa: E402
import collectives  # noqa: E402
import grouped_gemm  # noqa: E402
from _cases import Case  # noqa: E402

sys.path.remove(str(KERNELS))

TINY = Case(model="llama-tiny", micro_batch=4, precision="fp32")
LONGEST_S = 600


def start(program: str, *arguments: str, cwd: Path) -> subprocess.Popen[str]:
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.Popen(
        [sys.executable, str(KERNELS / program), *arguments, "--device", "cpu", "--out", "o.json"],
        cwd=cwd,
        env=kept | {"OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(child: subprocess.Popen[str]) -> str:
    """Wait; kill the program and its ranks when it takes too long."""
    try:
        return child.communicate(timeout=LONGEST_S)[1]
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        raise


def run(program: str, *arguments: str, cwd: Path) -> dict[str, Any]:
    child = start(program, *arguments, cwd=cwd)
    said = finish(child)
    assert child.returncode == 0, said
    document: dict[str, Any] = json.loads((cwd / "o.json").read_text())
    assert document["complete"] is True
    return document


def interrupt(child: subprocess.Popen[str], out: Path, records: int, number: int) -> dict[str, Any]:
    """Send the signal after so many records; no process of the program may be left."""
    try:
        for _ in range(10 * LONGEST_S):
            if out.is_file() and len(json.loads(out.read_text())["records"]) >= records:
                break
            assert child.poll() is None, finish(child)
            time.sleep(0.1)
        child.send_signal(number)
        said = finish(child)
        assert child.returncode == 128 + number, said
        with pytest.raises(ProcessLookupError):
            os.killpg(child.pid, 0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    document: dict[str, Any] = json.loads(out.read_text())
    assert document["complete"] is False
    return document


def test_a_skewed_load_keeps_its_sum() -> None:
    done = doctest.testmod(grouped_gemm)
    assert done.attempted > done.failed == 0


# --- collectives and overlap ----------------------------------------------------------------------


def test_sub_groups_by_hand() -> None:
    shape = collectives.sub_groups(8, 2, 4)
    assert shape.groups == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert collectives.sub_groups(8, 4, 1).groups == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert collectives.sub_groups(8, 3, 1) is None
    assert collectives.sub_groups(8, 1, 1) is None


def test_message_sizes_reach_the_largest() -> None:
    assert collectives.message_sizes(8, 128, 4) == [8, 32, 128]
    sizes = collectives.message_sizes(8, collectives.LARGEST_BYTES, 4)
    assert (sizes[0], sizes[-1]) == (8, 8 * 2**30)


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [("all_reduce", 36), ("all_gather", 32), ("reduce_scatter", 32), ("send_recv", 36)],
)
def test_a_message_is_whole_elements_and_whole_parts(kernel: str, expected: int) -> None:
    shape = collectives.sub_groups(4, 4, 1)
    assert collectives.rounded_bytes(collectives.Case(kernel, "fp32", 38, shape)) == expected


@pytest.mark.evidence
def test_strided_sub_groups_survive_an_interrupt(tmp_path: Path) -> None:
    arguments = ["--ranks", "4", "--groups", "2,3", "--stride", "2", "--minutes", "20"]
    sizes = ["--min-bytes", "1024", "--factor", "2", "--kernels", "all_reduce,all_gather"]
    child = start("collectives.py", *arguments, *sizes, cwd=tmp_path)
    document = interrupt(child, tmp_path / "o.json", records=4, number=signal.SIGINT)
    shapes = {(one["kernel"], *one["shape"].values()) for one in document["records"]}
    for kernel in ("all_reduce", "all_gather"):
        # message_bytes, ranks, stride, nodes, groups at a time
        assert {(kernel, 1024, 2, 2, 1, 2), (kernel, 2048, 2, 2, 1, 2)} <= shapes
    assert all(one["library"] == "gloo" for one in document["records"])
    assert "4 ranks cannot be cut into groups of 3" in document["skipped"][0]["reason"]


@pytest.mark.evidence
def test_overlap_gives_the_ratio(tmp_path: Path) -> None:
    arguments = ["--quick", "--minutes", "0.1", "--kernels", "all_gather"]
    document = run("overlap.py", *arguments, cwd=tmp_path)
    found = [(one["kernel"], one["shape"]["beside"]) for one in document["records"]]
    assert found == [
        ("gemm", "none"),
        ("all_gather", "none"),
        ("gemm", "all_gather"),
        ("all_gather", "gemm"),
    ]
    for one in document["records"]:
        work = 2 * 256**3 if one["kernel"] == "gemm" else one["shape"]["message_bytes"]
        assert work / min(one["times_s"]) < 1e13, one  # FLOP/s or bytes/s of one core
        assert work / max(one["times_s"]) > 1e4, one


# --- a step, split --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    arguments = ["--model", "llama-tiny", "--micro-batch", "4", "--steps", "3"]
    (record,) = run("train_step.py", *arguments, cwd=tmp_path_factory.mktemp("alone"))["records"]
    return dict(record)


@pytest.mark.evidence
@pytest.mark.parametrize(
    "split",
    [
        "--micro-batch 2 --profile --trace trace.json.gz",
        "--micro-batch 1 --accumulate 2 --sharding zero3 --recompute selective",
        "--micro-batch 4 --tp 2 --sequence-parallel",
        "--micro-batch 1 --accumulate 4 --pp 2",
    ],
    ids=["ddp", "fsdp2", "tp", "pp"],
)
def test_split_steps_have_the_losses_of_one_process(
    split: str, alone: dict[str, Any], tmp_path: Path
) -> None:
    arguments = ["--ranks", "2", "--model", "llama-tiny", "--steps", "3", "--minutes", "0.5"]
    document = run("train_step.py", *arguments, *split.split(), cwd=tmp_path)
    assert document["skipped"] == []
    (record,) = document["records"]
    assert record["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    assert record["grad_norm"] == pytest.approx(alone["grad_norm"], rel=1e-4)
    assert len(record["times_s"]) == 3
    assert record["tokens"] == 4 * 64
    whole = 180_800  # parameters; each rank holds about half unless it is DDP
    held = record["parameters"] / whole
    assert held == 1 if record["shape"]["dp"] == 2 and "zero3" not in split else 0.49 < held < 0.51
    assert record["memory"]["peak_allocated_bytes"] is None
    assert record["memory"]["rss_peak_bytes"] > 1e7
    if "--profile" in split:
        assert (tmp_path / "trace.json.gz").stat().st_size > 1000
        operators = {one["name"]: one for one in record["operators"]}
        assert 0 < operators["aten::mm"]["host_s"] < LONGEST_S
        assert operators["aten::mm"]["calls"] > 0


# --- one rank alone -------------------------------------------------------------------------------


@pytest.mark.evidence
@pytest.mark.parametrize(
    ("layout", "parameters"),
    [
        # A layer has 36992 parameters, of which 128 (norms) are not cut; the tables 16384 each.
        ("--tp 2 --pp 4 --sequence-parallel --rank first --accumulate 4", 36864 // 2 + 128 + 8192),
        ("--sharding zero3 --recompute full", 180_800 // 8),
    ],
    ids=["tp pp", "fsdp2"],
)
def test_a_rank_of_a_larger_layout(layout: str, parameters: int, tmp_path: Path) -> None:
    arguments = ["--model", "llama-tiny", "--fake-world", "8", "--steps", "2"]
    document = run("train_step.py", *arguments, *layout.split(), cwd=tmp_path)
    (record,) = document["records"]
    assert record["parameters"] == parameters
    assert record["losses"] is None
    assert record["finite"] is True
    assert record["library"] == "fake"
    assert "no communication time" in record["note"]
    assert record["fake_copies"] == {"all_gather": True, "reduce_scatter": True}


# --- the suite ------------------------------------------------------------------------------------


def test_a_worker_that_dies_or_hangs_costs_only_its_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_worker, "START_S", 0.5)
    worker = _worker.Worker("cpu", 0)
    worker.command = [sys.executable, "-c", "raise SystemExit(9)"]
    with pytest.raises(_worker.Lost, match=r"died.*exit code 9|Broken pipe"):
        worker.ask(TINY, 1.0, LONGEST_S)
    worker.command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(_worker.Lost, match="no result after"):
        worker.ask(TINY, 1.0, 0.5)
    answer = 'input(); print(\'RESULT {"reason": "so", "last": false}\'); input()'
    worker.command = [sys.executable, "-c", answer]
    assert worker.ask(TINY, 1.0, LONGEST_S) == {"reason": "so"}
    worker.end()


@pytest.mark.evidence
def test_a_suite_that_is_cut_keeps_what_it_has(tmp_path: Path) -> None:
    child = start("train_step.py", "--minutes", "20", cwd=tmp_path)
    document = interrupt(child, tmp_path / "o.json", records=1, number=signal.SIGTERM)
    assert {one["kernel"] for one in document["records"]} == {"train_step"}


def test_the_session_script_names_programs_that_exist() -> None:
    text = (KERNELS / "h200_session.sh").read_text()
    named = re.findall(r"measure \w+ [\d.]+ (\w+)", text)
    assert set(named) >= {"train_step", "gemm", "attention", "memory_bound", "launch", "copies"}
    assert all((KERNELS / f"{name}.py").is_file() for name in named)
