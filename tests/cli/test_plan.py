"""The screen of `foreshard plan --more` and the report it writes."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app
from simulator.questions.plan.command import _own_folder, _report_name
from simulator.report.report_identity import MARK, question
from simulator.scenario import make_scenario

pytestmark = pytest.mark.usefixtures("searched_once")
RUNNER = CliRunner(env={"COLUMNS": "160"})
ROOT = Path(__file__).resolve().parents[2]
NAMES = ["--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--gpus", "8"]
FEW = [*NAMES, "--set", "layout.tp=2", "--set", "layout.recompute=none"]
"""Leaves some hundred layouts to search."""


def screen(*arguments: str) -> str:
    result = RUNNER.invoke(app, ["plan", *arguments, "--more", "--no-report"])
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def test_every_number_that_follows_from_the_step_has_its_interval(verdict: str) -> None:
    """Step time, memory, days, USD, energy of the first layout: its P10 to P90 below each."""
    table = verdict.split("peak memory (")[0]
    spans = [re.findall(r"([\d.,]+)M?-([\d.,]+\d)( s| M|M)?", line) for line in table.splitlines()]
    below = next(found for found in spans if len(found) == 5)
    first = [(float(low), float(high), unit.strip()) for low, high, unit in below]
    assert [unit for *_, unit in first] == ["s", "", "", "M", "M"]
    step, memory, days, usd, kwh = [high / low for low, high, _ in first]
    assert days == pytest.approx(step, rel=0.02)
    assert usd > 1.1 * step and kwh > 1.01 * step, "prices and draws are not known exactly either"
    assert 1.0 < memory < step


def test_layouts_that_cannot_be_told_apart_are_a_tie() -> None:
    near = screen(*NAMES, "--set", "layout.tp=2", "--set", "layout.sharding=zero1")
    assert re.search(r"(The first \d+|Both|All \d+) are a tie", near)


@pytest.fixture(scope="module")
def verdict() -> str:
    return screen(str(ROOT / "examples" / "llama-3.1-70b.toml"))


def test_the_verdict_says_everything_a_person_decides_on(verdict: str) -> None:
    flat = " ".join(verdict.split())
    for words in (
        "llama-3.1-70b, 70.6B parameters on 1,024 x h100-sxm (dgx-h100), megatron-core",
        "15T tokens, 2,048 sequences of 8,192 per step, bf16, adamw",
        "cheapest first",
        "P10 to P90",
        "per GPU",
        "MFU",
        "HFU",
        "FITS",
        "days",
        "USD",
        "kWh",
        "peak memory (worst rank",
        "usable HBM",
        "runner-up",
        "data parallel only",
        "sum = step time",
        "Bottlenecks",
        " % chance with the planning factor; ",
        "Most sensitive to",
        "Searched",
        "dropped: ",
        "Evidence: measured here",
        "causal attention counted half",
        "Not modelled: ",
        "Launch the best layout",
        "pretrain_gpt.py",
    ):
        assert words in flat, words


def test_eight_layouts_unless_asked_for_more(verdict: str) -> None:
    assert ranked_lines(verdict) == 8
    assert ranked_lines(screen(*FEW, "--top", "3")) == 3


def ranked_lines(text: str) -> int:
    """Lines of the table of layouts that fit, whether for sure or not."""
    table = text[: text.index("Below a")]
    return table.count(" FITS ") + table.count(" TIGHT ")


def test_what_was_assumed_without_a_file() -> None:
    text = screen(*NAMES)
    assert "assumed, because not given: training.sequence_length = 8192, " in text
    assert "No training.tokens given" in text


def test_a_goal_that_no_layout_meets_is_said() -> None:
    flags = ["--set", "training.tokens=1e13", "--set", "goal.deadline_days=1"]
    result = CliRunner().invoke(app, ["plan", *FEW, "--no-report", *flags])
    assert result.exit_code == 1
    assert "No layout meets the deadline of 1.0 days." in result.stdout


def test_a_narrow_screen_keeps_the_verdict() -> None:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["plan", *FEW, "--more", "--no-report"])
    table = result.stdout.split("Bottlenecks")[0].splitlines()
    assert max(map(len, table)) <= 80
    assert "…" not in "".join(table)
    flat = " ".join(" ".join(table).split())
    assert "Not shown for want of 116 columns: tokens/s per GPU, MFU, HFU, GPU-hours, kWh;" in flat


def test_software_that_cannot_run_the_plain_layout_is_no_error() -> None:
    assert "train.py" in screen(*NAMES, "--model", "gpt2-small", "--software", "plain-ddp")


def test_the_report_is_written_where_asked(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "folder"
    result = RUNNER.invoke(app, ["plan", *FEW, "--out", str(out)])
    assert result.exit_code == 0
    assert [path.name for path in out.iterdir()] == ["plan.html"]
    assert result.stdout.endswith(f"in the report.\nReport: {out / 'plan.html'}\n")


def test_other_sizes_are_searched_where_asked(tmp_path: Path) -> None:
    """One page says how to have them, the other has them, and which GPUs they are."""
    words = ["plan", *FEW, "--set", "training.tokens=1e11", "--out", str(tmp_path)]
    pages = []
    for more in ([], ["--curve"]):
        result = RUNNER.invoke(app, [*words, *more])
        assert result.exit_code == 0
        assert ("--curve: other numbers of GPUs" in result.stdout) == (not more)
        pages.append((tmp_path / "plan.html").read_text(encoding="utf-8"))
    alone, several = pages
    assert "<code>--curve</code>" in alone and "Cost against time to finish" not in alone
    assert "<code>--curve</code>" not in several and "Cost against time to finish" in several
    cards = [re.findall(r"<span>([\d,]+ B200)</span>", page) for page in pages]
    assert not cards[0] and cards[1]


def test_pictures_lie_beside_the_page_where_asked(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["plan", *FEW, "--out", str(tmp_path), "--pictures"])
    assert result.exit_code == 0
    written = {path.suffix for path in tmp_path.iterdir()}
    assert written == {".html", ".png", ".svg"}
    count = len(list(tmp_path.iterdir())) - 1
    said = f"Report: {tmp_path / 'plan.html'}, with {count} pictures beside it\n"
    assert result.stdout.endswith(said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--pictures", "--no-report"], "--pictures: cannot be given together with --no-report"),
        (["--out", "x", "--no-report"], "--out: cannot be given together with --no-report"),
        (["--pictures", "--json"], "--pictures: with --json only beside --out DIR"),
        (["--curve", "--json"], "--curve: with --json only beside --out DIR"),
        (["--curve", "--no-report"], "--curve: cannot be given together with --no-report"),
    ],
)
def test_options_of_a_report_that_is_not_written_are_refused(words: list[str], said: str) -> None:
    result = RUNNER.invoke(app, ["plan", *FEW, *words])
    assert result.exit_code == 2
    assert said in result.stderr
    assert not result.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["--pictures"],
        ["--curve"],
        ["--refine", "2"],
        ["--top", "3"],
        ["--exhaustive"],
        ["--more"],
        ["--trace", "x.json"],
    ],
    ids=" ".join,
)
def test_options_of_a_ranking_are_refused_beside_launch_files(
    words: list[str], tmp_path: Path
) -> None:
    script = tmp_path / "train.sh"
    script.write_text("torchrun pretrain_gpt.py --micro-batch-size 1\n")
    result = RUNNER.invoke(app, ["plan", "--from", str(script), *words])
    assert result.exit_code == 2
    assert f"{words[0]}: cannot be given together with --from" in result.stderr
    assert ("predict --from" in result.stderr) == (words[0] == "--trace")


def test_the_report_is_named_after_the_scenario() -> None:
    scenario = make_scenario(
        {
            "model": {"name": "llama-3.1-8b"},
            "training": {"sequence_length": 8192, "global_batch": 64},
            "cluster": {"name": "dgx-h100", "gpus": 8},
        }
    )
    assert _report_name(Path("examples/big.toml"), scenario) == "big"
    assert _report_name(None, scenario) == "llama-3.1-8b-dgx-h100-8"


@pytest.mark.evidence
def test_json_with_a_report_keeps_stdout_clean(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["plan", *FEW, "--json", "--out", str(tmp_path)])
    assert result.exit_code == 0
    assert result.stdout.startswith("{") and result.stdout.endswith("}\n")
    assert result.stderr.startswith("Report: ")


def test_a_report_is_never_put_over_that_of_another_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = make_scenario(
        {
            "model": {"name": "llama-3.1-8b"},
            "training": {"sequence_length": 8192, "global_batch": 64},
            "cluster": {"name": "dgx-h100", "gpus": 8},
        }
    )
    other = make_scenario({**made.document, "cluster": {"name": "dgx-h100", "gpus": 16}})
    first = _own_folder(Path("run.toml"), made, 0)
    assert first == Path("reports/run")
    first.mkdir(parents=True)
    (first / "plan.html").write_text(f'<meta name="{MARK}" content="{question(made)}">')
    assert _own_folder(Path("run.toml"), made, 0) == first
    assert _own_folder(Path("run.toml"), other, 0) == Path(f"reports/run-{question(other)}")
    assert question(made) != question(made, played=4), "its layouts are played: another report"
    assert question(make_scenario(made.document)) == question(made)


def test_sound_pins_are_not_called_wrong_where_nothing_fits(tmp_path: Path) -> None:
    """405B's states are more than a server's memory: offloading them is no mistake of a default."""
    path = tmp_path / "offloaded.toml"
    path.write_text(
        '[model]\nname = "llama-3.1-405b"\n'
        "[training]\nsequence_length = 4096\nglobal_batch = 64\n"
        '[cluster]\nname = "dgx-h100"\ngpus = 8\nsoftware = "deepspeed"\n'
        '[layout]\noptimizer_offload = "cpu"\nparameter_offload = "cpu"\n',
        encoding="utf-8",
    )
    result = RUNNER.invoke(app, ["plan", str(path), "--no-report"])
    assert result.exit_code == 1
    assert "of host memory" in result.stderr
    assert "would fit: 32 GPUs" in result.stderr
    assert "needs sharding" not in result.stderr


@pytest.mark.parametrize(
    "command", [["plan", "--no-report"], ["what-if", "--change", "matrix=0.9"]]
)
def test_tokens_sequence_and_batch_are_those_of_the_options(command: list[str]) -> None:
    """They are fields of [training] by other names, for what searches as for what predicts."""
    names = ["--model", "gpt2-small", "--cluster", "dgx-a100", "--gpus", "8"]
    wrong = RUNNER.invoke(app, [*command, *names, "--tokens", "banana"])
    assert wrong.exit_code == 2 and "training.tokens: must be a number" in wrong.stderr
    options = ["--tokens", "1e10", "--seq", "512", "--batch", "64"]
    result = RUNNER.invoke(app, [*command, *names, *options])
    assert result.exit_code == 0
    assert "10B tokens, 64 sequences of 512 per step" in " ".join(result.output.split())
