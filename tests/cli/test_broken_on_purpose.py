"""Questions that once ended in a traceback, never ended, or were half understood in silence.

Each is sound, or wrong in one place, and stands for its kind; a whole kind is drawn from where one
line would not show it.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from simulator import catalogue
from simulator.cli.main import app
from simulator.errors import InputError
from simulator.measured.mapped_tables import read_mapped
from simulator.planner.prediction import predict
from simulator.planner.remedies import remedies
from simulator.scenario import make_scenario
from simulator.search.explore import explore
from simulator.search.outcome import spans

RUNNER = CliRunner()
ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--gpus", "8"]


def asked(*words: str) -> tuple[int, str, str]:
    result = RUNNER.invoke(app, words)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


# --- half understood in silence -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["predict", *SMALL, "--set", "training.tokens=1e9\n[cluster]\ngpus=9"],
            "--set: training.tokens: must be a single line",
        ),
        (["predict", *SMALL, "--set", "model.name=a\rb"], "must be a single line"),
        (["plan", *SMALL, "--out", ""], "command line: --out: must not be blank, got ''"),
        (["plan", *SMALL, "--out="], "command line: --out: must not be blank"),
        (["plan", *SMALL, "--out", " "], "command line: --out: must not be blank"),
        (["compare", *SMALL[:2], "--clusters", ","], "--clusters: must be names of clusters"),
        (["compare", *SMALL[:2], "--clusters", " , "], "--clusters: must be names of clusters"),
        (
            ["compare", *SMALL[:2], "--clusters", "dgx-h100", "--gpus", "8", "--price", "=3"],
            "--price: must be USD or CLUSTER=USD, got '=3'",
        ),
        (
            ["compare", *SMALL[:2], "--clusters", "dgx-h100", "--gpus", "8", "--price", "1e308"],
            "--price: must be USD or CLUSTER=USD, above 0 and at most",
        ),
        (
            ["rent-or-buy", "--cluster", "dgx-h100", "--gpus", "8", "--price", "1e308", "--json"],
            "usd_per_gpu_hour: must be above 0 and at most 1,000,000",
        ),
        (["profiles", "links", "dgx-h100", "--gpus", "65536"], "gpus: must be at most 16384"),
        (["predict", *SMALL, "--set", "training.tokens=5e-324"], "greater than or equal to 1"),
    ],
)
def test_it_is_refused_in_a_line(words: list[str], said: str) -> None:
    code, out, err = asked(*words)
    assert (code, out) == (2, "")
    assert said in err


def test_a_table_takes_no_million_rows() -> None:
    code, out, _ = asked("export", *SMALL, "--as", "csv", "--top", "1000000000")
    assert (code, out) == (2, "")


def test_a_header_that_swallows_the_rows_is_said(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text('run_id,"model,gpu\nx,y,z\nx,y,z\n')
    assert read_mapped([path], {}) == ([], [f"{path}: the table has a header and no rows"])


# --- tracebacks -----------------------------------------------------------------------------------


def remedied(model: str, cluster: str, gpus: int, precision: str) -> bool:
    """Ask what would help where the model is too large, as `plan` does; whether it is."""
    training = {"sequence_length": 2048, "global_batch": 64, "precision": precision}
    scenario = make_scenario(
        {
            "model": {"name": model},
            "cluster": {"name": cluster, "gpus": gpus},
            "training": training,
            "layout": {"recompute": "none", "micro_batch": 64 // gpus},
        }
    )
    found = explore(scenario.workload, scenario.cluster, scenario.software, scenario.pinned)
    if len(found.best) or found.nearest_miss is None:
        return False
    for remedy in remedies(scenario, found.nearest_miss):
        recipe, device = remedy.scenario.workload.recipe, remedy.scenario.cluster.accelerator
        assert recipe.matrix_type in device.matrix_flop_per_s
        assert remedy.scenario.software.kernels.gemm_library in device.gemm
    return True


def test_no_remedy_asks_a_device_for_what_it_lacks() -> None:
    assert remedied("llama-3.2-3b", "aws-g6", 2, "bf16")  # the V100 has more memory and no bf16


@pytest.mark.evidence
@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp8_current", "mxfp8"])
def test_no_remedy_on_any_cluster_does(precision: str) -> None:
    tried = 0
    for cluster in {*catalogue.names("clusters")[::6], "dgx-h100", "dgx-b200"}:
        with suppress(InputError):  # no such precision, or no such size
            tried += remedied("llama-3.1-70b", cluster, 4, precision)
    assert tried


def test_plain_data_parallelism_is_stage_0_of_deepspeed() -> None:
    code, out, _ = asked(
        *("export", "--model", "gpt3-xl", "--cluster", "dgx-h100", "--gpus", "1"),
        *("--software", "plain-ddp", "--set", "training.global_batch=8", "--as", "deepspeed"),
        *("--set", "training.sequence_length=1024"),
    )
    config = json.loads(out[out.index("{") : out.rindex("}") + 1])
    assert code == 0 and config["zero_optimization"]["stage"] == 0


def test_fewer_micro_batches_than_stages_are_one_group() -> None:
    """Megatron-Core deals micro-batches to groups; one that holds all of them is the only one."""
    code, out, _ = asked(
        *("export", "--model", "gpt3-6.7b", "--cluster", "dgx-a100", "--gpus", "40"),
        *("--software", "torchtitan-2024", "--set", "training.global_batch=8"),
        *("--set", "training.sequence_length=2048", "--set", "layout.pp=5"),
        *("--set", "layout.vpp=2", "--set", "layout.micro_batch=1", "--as", "megatron-lm"),
    )
    assert code == 0  # 8 replicas of one sequence each
    assert "--microbatch-group-size-per-virtual-pipeline-stage 1" in " ".join(out.split())


def test_a_profile_with_lists_for_names_hurts_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind, text in (("nodes", 'base = ["dgx-h100"]\n'), ("clusters", "node = [1]\n")):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "odd.toml").write_text(text)
    monkeypatch.setenv("FORESHARD_PROFILES", str(tmp_path))
    code, _, err = asked("cluster", "init", "lab", "--gpu", "h100-sxm", "--out", str(tmp_path))
    assert code == 0 or (code == 2 and "odd.toml" in err)


# --- without bound --------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1.0, 1e6, 1e8, 1e10, 1e12, 1e15])
def test_intervals_of_runs_of_any_length_mean_something(tokens: float) -> None:
    """Where nine runs in ten see no failure, P90 of the length is that of the step alone."""
    scenario = make_scenario(
        {
            "model": {"name": "llama-3.1-8b"},
            "cluster": {"name": "dgx-h100", "gpus": 64},
            "training": {"sequence_length": 4096, "global_batch": 256, "tokens": tokens},
        }
    )
    answer = predict(scenario)
    low, high = (float(x[0]) for x in spans(answer.estimate, answer.outcome, answer.certainty).days)
    days, (p10_s, p90_s) = float(answer.outcome.days[0]), answer.interval_s
    assert p10_s / answer.step_time_s * 0.5 < low / days <= 1.0
    assert 1.0 <= high / days < p90_s / answer.step_time_s * 2.0
    real = answer.outcome.real
    assert real is not None
    rare = np.exp(-float(real.terms.rate.sum()) * float(real.wall_s[0])) >= 0.9
    assert (high / days == pytest.approx(p90_s / answer.step_time_s, rel=1e-9)) == rare


def test_as_many_experts_as_a_number_holds_are_refused(tmp_path: Path) -> None:
    table = ROOT / "validation/microbenchmarks/moe_a2a.csv"
    header, row = table.read_text().splitlines()[:2]
    cells = dict(zip(header.split(","), row.split(","), strict=False))
    cells |= {"topk": "2147483648", "experts": "2147483648"}
    path = tmp_path / "a2a.csv"
    path.write_text(f"{header}\n{','.join(cells.values())}\n")
    begun = time.process_time()
    code, _, err = asked("validate", str(path))
    assert code == 2 and "topk: must be at most 4096" in err
    assert time.process_time() - begun < 20.0


# --- interrupted, killed, damaged -----------------------------------------------------------------

GRID = """
[model]
name = "llama-3.2-1b"
[training]
sequence_length = 1024
global_batch = 64
[cluster]
name = "dgx-h100"
[grid]
"cluster.gpus" = [8, 16]
"training.sequence_length" = [512, 1024]
"""


@pytest.mark.evidence
def test_a_damaged_line_of_a_sweep_is_done_again(tmp_path: Path) -> None:
    grid, out = tmp_path / "grid.toml", tmp_path / "out"
    grid.write_text(GRID)
    assert asked("sweep", str(grid), "--out", str(out), "--jobs", "1")[0] == 0
    whole, store = (out / "sweep.json").read_bytes(), out / "points.jsonl"
    chance = random.Random(38)
    for damage in (b"\xff", b"\x00", b"{", b"9" * 5_000, b"\n"):
        raw = bytearray(store.read_bytes())
        at = chance.randrange(len(raw))
        store.write_bytes(bytes(raw[:at]) + damage + bytes(raw[at + 1 :]))
        assert asked("sweep", str(grid), "--out", str(out), "--jobs", "1")[0] == 0
        rows = json.loads((out / "sweep.json").read_bytes())["rows"]
        assert rows == json.loads(whole)["rows"]


def started(*words: str, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "simulator", *words],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


@pytest.mark.parametrize("after_s", [0.2, pytest.param(0.4, marks=pytest.mark.evidence)])
def test_an_interrupt_while_it_loads_is_one_line_at_most(after_s: float) -> None:
    with started("plan", *SMALL) as process:
        time.sleep(after_s)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT)  # the latter before Python runs anything
    assert err in (b"", b"interrupted\n")


@pytest.mark.evidence
@pytest.mark.parametrize("after_s", [2.0, 3.0, 5.0])
def test_an_interrupt_of_many_searches_is_one_line(after_s: float) -> None:
    words = ("--model", "llama-3.1-70b", "--gpus", "64..1024", "--clusters", "dgx-h100,dgx-a100")
    with started("compare", *words) as process:
        time.sleep(after_s)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) in ((130, b"interrupted\n"), (0, b""))


KILLED = """
import os, signal, sys
from pathlib import Path

if any("popen_loky" in word for word in sys.orig_argv):
    from simulator.search import explore

    searched = explore.explore

    def killed_the_first_time(*arguments, **how):
        try:
            Path(os.environ["KILLED"]).open("x").close()
        except FileExistsError:
            return searched(*arguments, **how)
        os.kill(os.getpid(), signal.SIGKILL)

    explore.explore = killed_the_first_time
"""
"""What every Python of the command runs first: of its workers, the first that begins a search is
killed in it, once."""


def test_what_a_killed_worker_had_is_done_again(tmp_path: Path) -> None:
    grid, killed = tmp_path / "grid.toml", tmp_path / "killed"
    grid.write_text(GRID.replace("[8, 16]", "[8, 16, 32]"))
    (tmp_path / "sitecustomize.py").write_text(KILLED)
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    words = ("sweep", str(grid), "--jobs", "2", "--json", "--out", str(tmp_path))
    with started(*words, PYTHONPATH=path, KILLED=str(killed)) as process:
        out, err = process.communicate(timeout=300)
    assert killed.exists(), "no worker began a search"
    assert process.returncode == 0 and b"Traceback" not in err
    rows = json.loads(out)["rows"]
    assert len(rows) == 6 and all(row["problem"] is None for row in rows)
