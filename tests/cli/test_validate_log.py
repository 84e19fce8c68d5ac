"""`foreshard validate` with a training log: screen, frozen document, exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app

RUNNER = CliRunner(env={"COLUMNS": "140"})
ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "tests" / "data" / "logs"
SCENARIO = """
[model]
model_type = "llama"
name = "llama-tiny"
hidden_size = 64
intermediate_size = 128
num_hidden_layers = 4
num_attention_heads = 4
num_key_value_heads = 2
vocab_size = 256
max_position_embeddings = 128
[training]
sequence_length = 64
global_batch = 8
[cluster]
name = "dgx-h100"
gpus = 2
"""
ALONE = "only with a log or a trace, e.g. --megatron-log LOG\n"
MEGATRON = ["--megatron-log", str(LOGS / "megatron_2025.log")]


@pytest.fixture
def scenario(tmp_path: Path) -> list[str]:
    (tmp_path / "run.toml").write_text(SCENARIO)
    return ["--scenario", str(tmp_path / "run.toml")]


def said(*arguments: str) -> str:
    result = RUNNER.invoke(app, ["validate", *arguments])
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def refused(*arguments: str) -> str:
    result = RUNNER.invoke(app, ["validate", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert isinstance(result.exception, SystemExit)
    return result.stderr


def test_the_screen_says_it_all(scenario: list[str]) -> None:
    text = " ".join(said(*MEGATRON, *scenario).split())
    for words in (
        "llama-tiny, 181k parameters on 2 x h100-sxm",
        "13 step lines, ranks seen: 0.",
        "Left out as warm-up: ",
        "predicted beside measured",
        "step time (ms)",
        "P10 to P90",
        "tokens/s/GPU",
        "MFU",
        "memory, allocated (GiB)",
        "memory, reserved (GiB)",
        "GEMMs",
        "sum = step time",
        "Layout fields taken from the log: dp = 2, cp = 1, tp = 1, pp = 1, micro_batch = 4, vpp",
        "Layout fields assumed, because neither log nor scenario has them: ep = 1",
    ):
        assert words in text, words
    assert "software profile" not in text


def test_every_kind_of_log_is_read(scenario: list[str]) -> None:
    torchtitan = [
        "--torchtitan-log",
        str(LOGS / "torchtitan_tp2.log"),
        "--set",
        "training.global_batch=4",
        "--software",
        "torchtitan",
    ]
    assert "ranks seen: 0, 1." in said(*torchtitan, *scenario)
    mlperf = ["--mlperf-log", str(LOGS / "mlperf_4.1.log"), "--set", "training.global_batch=4"]
    assert "Step times from block_start to block_stop" in said(*mlperf, *scenario)
    old = [
        "--megatron-log",
        str(LOGS / "megatron_2023.log"),
        "--set",
        "training.global_batch=4",
        "--gpus",
        "1",
        "--software",
        "torchtitan",
    ]
    assert "The log is of megatron, the software profile is torchtitan." in said(*old, *scenario)


def test_arguments_that_are_not_known_are_named(tmp_path: Path) -> None:
    text = (LOGS / "megatron_mi300x_2025.log").read_text()
    more = "".join(f"  switch_{n} {'.' * 30} {n}\n" for n in range(1, 13))
    path = tmp_path / "train.log"
    path.write_text(text.replace("  adam_beta1", f"{more}  adam_beta1", 1))
    described = """
        [model]
        model_type = "llama"
        name = "of-the-log"
        hidden_size = 6144
        intermediate_size = 21504
        num_hidden_layers = 56
        num_attention_heads = 96
        num_key_value_heads = 24
        vocab_size = 50257
        max_position_embeddings = 8192
        [training]
        sequence_length = 8192
        global_batch = 512
        [cluster]
        name = "mi300x-8"
        gpus = 8
        """
    (tmp_path / "run.toml").write_text(described)
    given = ["--megatron-log", str(path), "--scenario", str(tmp_path / "run.toml")]
    told = " ".join(said(*given).split())
    assert "Software profile after the log: primus." in told
    assert "Training fields taken from the log: " in told
    assert "not known here, so not counted: switch_1, switch_2, " in told
    assert re.search(r" and \d+ more \(--json lists them\)\.", told)
    (log,) = json.loads(said(*given, "--json"))["logs"]
    assert {f"switch_{n}" for n in range(1, 13)} < set(log["log"]["unknown_arguments"])
    assert (log["software_from_log"], log["layout_from_log"]["recompute"]) == (
        "primus",
        "selective",
    )


def test_names_alone_leave_the_rest_to_the_log(tmp_path: Path) -> None:
    """Batch and length that nobody gave are those of the log, not what is assumed otherwise."""
    sizes = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "vocab_size": 256,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 128,
    }  # fmt: skip
    (tmp_path / "tiny.json").write_text(json.dumps(sizes))
    names = ["--model", str(tmp_path / "tiny.json"), "--cluster", "dgx-h100", "--gpus", "2"]
    (log,) = json.loads(said(*MEGATRON, *names, "--json"))["logs"]
    assert log["training_from_log"] == {"global_batch": 8, "sequence_length": 64}
    tokens = {one["name"]: one for one in log["quantities"]}["tokens_per_s_per_gpu"]
    assert tokens["measured"] == pytest.approx(8 * 64 / 2 / log["log"]["step_time_s"])
    assert "must be 16 as training.global_batch" in refused(
        *MEGATRON, *names, "--set", "training.global_batch=16"
    )


def test_the_document(scenario: list[str]) -> None:
    document = json.loads(said(*MEGATRON, *scenario, "--json", "--warm-up", "5"))
    assert list(document) == ["schema", "version", "command", "logs"]
    (log,) = document["logs"]
    assert log["log"]["warm_up"] == {"dropped": 5, "rule": "as asked"}
    assert log["log"]["path"] == MEGATRON[1]
    assert [quantity["name"] for quantity in log["quantities"]] == [
        "step_time",
        "tokens_per_s_per_gpu",
        "mfu",
        "memory_allocated",
        "memory_reserved",
    ]


def test_problems_of_every_log_are_told_at_once(scenario: list[str], tmp_path: Path) -> None:
    (tmp_path / "empty.log").write_text("")
    both = [*MEGATRON, "--torchtitan-log", str(tmp_path / "empty.log")]
    lines = refused(*both, *scenario, "--set", "training.global_batch=16").splitlines()
    assert len(lines) == 2
    assert "global batch size: must be 16 as training.global_batch" in lines[0]
    assert lines[1] == f"{tmp_path / 'empty.log'}: the file is empty"


def test_a_log_is_asked_for_what_it_does_not_say() -> None:
    said = refused(*MEGATRON)
    assert "megatron_2025.log: cluster.name: not said by this log (which machines)" in said
    assert "--scenario FILE says all of a run" in said


def test_a_log_that_lists_its_arguments_needs_a_cluster_alone() -> None:
    path = LOGS / "megatron_mi300x_2025.log"
    document = json.loads(said("--log", str(path), "--cluster", "mi300x-8", "--json"))
    (log,) = document["logs"]
    assert log["log"]["framework"] == "megatron"
    assert log["run"]["num_gpus"] == 8


def test_the_software_is_that_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        '[model]\nname = "llama-3.1-8b"\n[training]\nsequence_length = 8192\nglobal_batch = 8\n'
        '[cluster]\nname = "dgx-h100"\ngpus = 8\n'
    )
    line = "[rank0]:[titan] 2025-10-02 20:23:13,470 - root - INFO - step: {0}  loss:  8.0  "
    line += "memory: 44.30GiB(56.01%)  tps: 6,120  tflops: 354.40  mfu: 35.83%\n"
    path = tmp_path / "titan.log"
    path.write_text("".join(line.format(10 * step) for step in range(1, 14)))
    scenario = str(tmp_path / "run.toml")
    document = json.loads(said("--log", str(path), "--scenario", scenario, "--json"))
    (log,) = document["logs"]
    assert log["software_from_log"] == "torchtitan"
    assert (log["run"]["software"], log["run"]["sharding"]) == ("torchtitan", "zero3")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--gpus", "8"], f"--gpus: {ALONE}"),
        (["--warm-up", "2"], f"--warm-up: {ALONE}"),
        (["--set", "layout.tp=2"], f"--set: {ALONE}"),
        (
            ["--scenario", "run.toml"],
            f"--scenario: {ALONE}",
        ),
        ([*MEGATRON, "runs.csv"], "RUNS.csv: cannot be given together with a log\n"),
        ([*MEGATRON, "--html", "o.html"], "--html: cannot be given together with a log\n"),
    ],
)
def test_options_that_do_not_go_together(options: list[str], words: str) -> None:
    assert refused(*options) == words


def test_warm_up_must_be_a_count(scenario: list[str]) -> None:
    assert RUNNER.invoke(app, ["validate", *MEGATRON, *scenario, "--warm-up", "-1"]).exit_code == 2
    assert "must leave at least one of the 13 step lines, got 13" in refused(
        *MEGATRON, *scenario, "--warm-up", "13"
    )


def test_nothing_heavy_is_imported(scenario: list[str]) -> None:
    heavy = ("llvmlite", "matplotlib", "networkx", "numba", "pandas", "scipy", "torch")
    code = (
        "import sys\nfrom simulator.cli.main import app\n"
        f"app({['validate', *MEGATRON, *scenario]!r}, standalone_mode=False)\n"
        f"print(*[name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert (done.returncode, done.stderr.split()) == (0, [])
