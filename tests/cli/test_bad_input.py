"""What a user gets wrong: one message per problem, exit code 2, nothing written, no traceback."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app
from simulator.cli.options import writing
from simulator.errors import InputError

GOOD = """
[model]
name = "llama-3.1-8b"
[training]
tokens = 1e12
sequence_length = 8192
global_batch = 64
[cluster]
name = "dgx-h100"
gpus = 8
"""
RUNNER = CliRunner()

WRONG_FIELDS = {
    "training.sequense_length=4096": (
        "run.toml: training.sequense_length: unknown field (did you mean 'sequence_length'?)"
    ),
    "layout.tpp=8": "run.toml: layout.tpp: unknown field (did you mean 'tp'?)",
    "trainnig.tokens=1": "run.toml: trainnig: unknown section (did you mean 'training'?)",
    "model.name=llama-3.1-8c": (
        "run.toml: model.name: must be a model of the zoo or the path of a config.json, "
        "got 'llama-3.1-8c' (did you mean 'llama-3.1-8b'?)"
    ),
    "cluster.name=dgx-h10": (
        "run.toml: cluster.name: unknown cluster 'dgx-h10' (did you mean 'dgx-h100'?)"
    ),
    "cluster.software=megatron-cor": (
        "run.toml: cluster.software: unknown software 'megatron-cor' "
        "(did you mean 'megatron-core'?)"
    ),
    "training.global_batch=-64": (
        "run.toml: training.global_batch: must be greater than 0, got -64"
    ),
    "training.tokens=-5.0": (
        "run.toml: training.tokens: must be greater than or equal to 1, got -5.0"
    ),
    "training.tokens=nan": "run.toml: training.tokens: must be a finite number, got nan",
    "training.tokens=inf": "run.toml: training.tokens: must be a finite number, got inf",
    "goal.budget_usd=-inf": "run.toml: goal.budget_usd: must be a finite number, got -inf",
    "layout.tp=-1": "run.toml: layout.tp: must be greater than 0, got -1",
    "training.precision=bf17": (
        "run.toml: training.precision: must be 'fp32', 'tf32', 'fp16', 'bf16', 'fp8',"
        " 'fp8_current', 'fp8_blockwise', 'mxfp8' or 'nvfp4', got 'bf17'"
    ),
    "cluster.gpus=12": (
        "run.toml: cluster.gpus: must be at most 8 or a multiple of 8 (whole servers), got 12 "
        "(nearest: 8 or 16)"
    ),
    "cluster.gpus=100000000": (
        "run.toml: cluster.gpus: must be at most 10,000,000, got 100,000,000"
    ),
    "data.workers=-1": "run.toml: data.workers: must be greater than or equal to 0, got -1",
    "economics.usd_per_gpu_hour=-3": (
        "run.toml: economics.usd_per_gpu_hour: must not be negative, got -3"
    ),
    "run.slw=3": "run.toml: run.slw: unknown field (did you mean 'slow'?)",
    "run.start=soon": "run.toml: run.start: must be a date as year-month-day, got 'soon'",
    "cluster.groups=2": (
        "run.toml: cluster.groups: must stand without cluster.name and cluster.gpus: each group"
        " has its own"
    ),
    "layout": "--set: must be section.field=value, got 'layout'",
    "tp=8": "--set: must be section.field=value, got 'tp=8' (did you mean layout.tp=8?)",
}  # fmt: skip

WRONG_LAYOUTS = {
    "layout.tp=7": "run.toml: layout.tp: must divide 32 attention heads, got 7 (nearest: 8)",
    "training.global_batch=60": (
        "run.toml: training.global_batch: must divide by dp x micro_batch = 8, got 60 "
        "(nearest: 56 or 64)"
    ),
    "layout.dp=3": (
        "run.toml: layout.dp: dp x tp x pp x cp must be cluster.gpus = 8, got 3 x 1 x 1 x 1 = 3 "
        "(nearest: dp 8)"
    ),
    "layout.tp=1000000000000": (
        "run.toml: layout.tp: must be less than or equal to 100000000, got 1000000000000"
    ),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a sound scenario in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(GOOD)
    return tmp_path


def refused(command: str, *arguments: str) -> str:
    """Run a command that must fail with 2 and say so on standard error alone."""
    options = ["--out", "written"] if command == "plan" else []
    result = RUNNER.invoke(app, [command, *arguments, *options])
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit), "a traceback would be shown"
    assert result.stdout == ""
    assert not Path("written").exists()
    return result.stderr


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        (["--tp", "8"], "--tp: no such option; write --set layout.tp=8"),
        (["--micro-batch=2"], "--micro-batch: no such option; write --set layout.micro_batch=2"),
        (["--pp", "--json"], "--pp: no such option; write --set layout.pp=VALUE"),
    ],
)
def test_a_field_is_no_option(here: Path, arguments: list[str], written: str) -> None:
    assert refused("predict", "run.toml", *arguments) == f"command line: {written}\n"


@pytest.mark.parametrize("command", ["plan", "predict"])
@pytest.mark.parametrize("override", WRONG_FIELDS)
def test_wrong_field(here: Path, command: str, override: str) -> None:
    assert refused(command, "run.toml", "--set", override) == WRONG_FIELDS[override] + "\n"


@pytest.mark.parametrize("override", WRONG_LAYOUTS)
def test_layout_that_cannot_run(here: Path, override: str) -> None:
    assert refused("predict", "run.toml", "--set", override) == WRONG_LAYOUTS[override] + "\n"


@pytest.mark.parametrize("command", ["plan", "predict"])
def test_nan_in_the_file_itself(here: Path, command: str) -> None:
    (here / "run.toml").write_text(GOOD.replace("1e12", "nan"))
    message = "run.toml: training.tokens: must be a finite number, got nan\n"
    assert refused(command, "run.toml") == message


@pytest.mark.parametrize("command", ["plan", "predict"])
def test_precision_that_the_device_lacks(here: Path, command: str) -> None:
    flags = ["--cluster", "dgx-a100", "--set", "training.precision=fp8"]
    assert refused(command, "run.toml", *flags) == (
        "run.toml: training.precision: a100-sxm-80 has no fp8 "
        "(it has fp32, tf32, fp16, bf16), got 'fp8'\n"
    )


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        ("frozen_layers=2", "with frozen parts, unless training.lora_rank is above 0"),
        ("quantised_base=true", "with training.quantised_base, whose weights are in 4 bit"),
    ],
)
def test_weights_in_8_bit_that_nothing_keeps_so(here: Path, more: str, rule: str) -> None:
    adapters = ("training.lora_rank=16",) if "base" in more else ()
    given = ("training.precision=fp8", "training.fp8_weights=true", f"training.{more}", *adapters)
    message = f"run.toml: training.fp8_weights: must be false {rule}, got True\n"
    words = [word for one in given for word in ("--set", one)]
    assert refused("predict", "run.toml", *words) == message


@pytest.mark.parametrize("command", ["plan", "predict"])
def test_unknown_model_type(here: Path, command: str) -> None:
    (here / "run.toml").write_text(GOOD.replace('name = "llama-3.1-8b"', 'model_type = "lama"'))
    message = refused(command, "run.toml")
    assert message.startswith("run.toml: model: model_type: must be one of ")
    assert message.endswith(", got 'lama'\n")
    assert message.count("\n") == 1


@pytest.mark.parametrize("command", ["plan", "predict"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rum.toml", "rum.toml: no such file (did you mean 'run.toml'?)\n"),
        ("folder", "folder: is a folder, not a file\n"),
        ("binary.toml", "binary.toml: not a text file (bytes that are not UTF-8)\n"),
    ],
)
def test_file_that_cannot_be_read(here: Path, command: str, name: str, message: str) -> None:
    (here / "folder").mkdir()
    (here / "binary.toml").write_bytes(bytes(range(256)))
    assert refused(command, name) == message


@pytest.mark.parametrize("command", ["plan", "predict"])
def test_toml_that_cannot_be_parsed(here: Path, command: str) -> None:
    (here / "run.toml").write_text("[model\n")
    message = refused(command, "run.toml")
    assert message.startswith("run.toml: not valid TOML: ")
    assert "line 1" in message
    assert message.count("\n") == 1


@pytest.mark.parametrize("command", ["plan", "predict"])
def test_all_problems_at_once_one_line_each(here: Path, command: str) -> None:
    flags = ["--model", "lama", "--gpus", "-8", "--set", "training.tokens=nan"]
    lines = refused(command, "run.toml", *flags).splitlines()
    assert [line.split(": ")[1] for line in lines] == [
        "model.name",
        "training.tokens",
        "cluster.gpus",
    ]


@pytest.mark.parametrize("command", ["plan", "predict"])
def test_names_without_a_file_must_be_complete(here: Path, command: str) -> None:
    assert refused(command, "--model", "llama-3.1-8b") == (
        "command line: a scenario file, or model, cluster and gpus, must be given "
        "(missing: cluster, gpus)\n"
    )


@pytest.mark.parametrize(("path", "named"), [("b/c.svg", "b/c.svg"), (None, "a")])
def test_the_file_that_cannot_be_written_is_named_where_it_is_known(
    path: str | None, named: str
) -> None:
    said = f"^--out: {named}: cannot be written: no room$"
    with pytest.raises(InputError, match=said), writing("a", "--out"):
        raise OSError(28, "no room", path)


def test_report_that_cannot_be_written(here: Path) -> None:
    (here / "taken").write_text("a file")
    flags = ["--model", "gpt2-small", "--cluster", "dgx-a100", "--gpus", "1"]
    result = RUNNER.invoke(app, ["plan", *flags, "--json", "--out", "taken"])
    assert result.exit_code == 2
    assert result.stderr == "--out: taken: cannot be written: File exists\n"
    assert (here / "taken").read_text() == "a file"


@pytest.mark.parametrize("place", ["pipe", "taken/folder"])
def test_a_place_that_cannot_be_written_is_refused_before_the_search(
    here: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    os.mkfifo(here / "pipe")
    (here / "taken").touch()

    def searched(*arguments: object, **options: object) -> None:
        raise AssertionError("searched before it was known where to write")

    monkeypatch.setattr("simulator.planner.plan.plan", searched)
    result = RUNNER.invoke(app, ["plan", "run.toml", "--out", place])
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith(f"--out: {place}: cannot be written: ")


def test_degrees_whose_product_no_table_holds(here: Path) -> None:
    (here / "run.toml").write_text(GOOD.replace("gpus = 8", "gpus = 65536"))
    wrong = [word for x in ("tp", "pp") for word in ("--set", f"layout.{x}=65536")]
    assert refused("predict", "run.toml", *wrong) == (
        "run.toml: layout.pp: tp x pp must be at most the 65536 GPUs, got 4294967296\n"
    )


@pytest.mark.parametrize("count", ["1e9", "8.5", "many"])
def test_a_number_of_accelerators_is_whole(count: str) -> None:
    named = ["--model", "gpt2-small", "--cluster", "dgx-h100", f"--gpus={count}"]
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["predict", *named])
    assert result.exit_code == 2
    assert f"--gpus': must be a whole number of accelerators, as 1024, got '{count}'" in (
        " ".join(result.stderr.split())
    )
