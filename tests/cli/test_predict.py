"""The screen of `foreshard predict`, and what it must not import."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app

RUNNER = CliRunner(env={"COLUMNS": "160"})
ROOT = Path(__file__).resolve().parents[2]
NAMES = ["--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--gpus", "8"]
HEAVY = ("llvmlite", "matplotlib", "networkx", "numba", "pandas", "scipy", "torch")


def screen(*arguments: str) -> str:
    result = RUNNER.invoke(app, ["predict", *NAMES, *arguments])
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def column(text: str, first: str, last: str) -> list[float]:
    """Numbers of the table between two row labels, each the first after two or more blanks."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(first))
    end = next(i for i, line in enumerate(lines) if i > start and line.startswith(last))
    cells = [re.match(r"\S.*?\s{2,}([\d,.]+)", line) for line in lines[start : end + 1]]
    return [float(cell.group(1).replace(",", "")) for cell in cells if cell]


@pytest.mark.parametrize("layout", [[], ["--set", "layout.tp=2", "--set", "layout.pp=2"]])
def test_time_and_memory_add_up_on_the_screen(layout: list[str]) -> None:
    text = screen(*layout)
    *terms, total = column(text, "GEMMs", "sum = step time")
    assert len(terms) >= 4 and sum(terms) == pytest.approx(total, abs=1e-3 * len(terms))
    *kinds, total = column(text, "weights", "sum  ")
    assert len(kinds) >= 5 and sum(kinds) == pytest.approx(total, abs=1e-2 * len(kinds))


def test_every_term_has_its_formula_when_asked() -> None:
    short, text = screen(), screen("--explain")
    assert "formula" in text and "forward + dgrad" not in short
    assert len(short) < len(text)
    assert "micro-batches x blocks of the slowest stage x (forward + dgrad + wgrad)" in text


def test_what_was_assumed_is_listed() -> None:
    text = " ".join(screen("--set", "layout.tp=2").split())
    assert "not given: training.sequence_length = 8192, training.global_batch = 1024" in text
    assert "layout: pp = 1, cp = 1, vpp = 1, dp = 4, ep = 1, etp = 1, micro_batch = 1" in text
    assert "sharding = zero1" in text and "sequence_parallel = true" in text


def test_verdict_convention_and_evidence() -> None:
    flags = ["--model", "llama-3.2-1b", "--set", "training.tokens=1e12"]
    text = " ".join(screen(*flags).split())
    for words in (
        "P10 to P90: ",
        "FITS: ",
        "GiB usable",
        "MFU",
        "HFU",
        "tokens/s/GPU",
        "days",
        "GPU-hours",
        "USD",
        "MWh",
        "causal attention counted half",
        "Evidence: measured here",  # runs of 1.7 B parameters with Megatron-Bridge on such GPUs
        "Not modelled: ",
    ):
        assert words in text, words
    assert "No training.tokens given" in " ".join(screen().split())


def test_the_verdict_comes_first_and_an_assumed_price_is_marked() -> None:
    run_of_days = ["--model", "llama-3.2-1b", "--set", "training.tokens=1e12"]
    _, verdict = screen(*run_of_days, "--deadline", "365d").split("\n\n")[:2]
    first, second, *_ = verdict.splitlines()
    assert re.match(
        r"[\d.]+ days \(\d+ to \d+\), \S+ k USD\* \(.*before your 365-day deadline\.$", first
    )
    assert second.startswith("dp8 ")
    whole = next(line for line in verdict.splitlines() if line.startswith("whole run: "))
    assert re.search(r"[kM] USD\* \(", whole)
    assert "USD*" not in screen(*run_of_days, "--set", "economics.usd_per_gpu_hour=2.5")


def test_a_layout_that_does_not_fit_says_so_first() -> None:
    text = screen("--model", "llama-3.1-70b")
    short = re.search(r"\n\nDoes not fit: ([\d.,]+) GiB short per GPU", text)
    need = re.search(r"OOM: ([\d.,]+) .*of ([\d.]+) GiB usable", text)
    assert short and need
    total, usable = (float(number.replace(",", "")) for number in need.groups())
    assert float(short[1].replace(",", "")) == pytest.approx(total - usable, abs=0.06)


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600
    )


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_predict_imports_nothing_heavy(form: list[str]) -> None:
    done = run(
        "import sys\nfrom simulator.cli.main import app\n"
        f"app({['predict', *NAMES, *form]!r}, standalone_mode=False)\n"
        f"print(*[name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    )
    assert done.returncode == 0
    assert done.stderr.split() == []


@pytest.mark.parametrize(
    ("words", "slow"),
    [
        (["-h"], ("numpy", "pydantic", "rich")),
        (["predict", *NAMES], ("numpy.char", "numpy.ma", "pydantic", "simulator.search.explore")),
    ],
)
def test_a_command_loads_nothing_that_takes_as_long_as_its_answer(
    words: list[str], slow: tuple[str, ...]
) -> None:
    done = run(
        "import sys\nfrom simulator.cli.main import app\n"
        f"app({words!r}, standalone_mode=False)\n"
        f"print(*[name for name in {slow} if name in sys.modules], file=sys.stderr)"
    )
    assert done.returncode == 0
    assert done.stderr.split() == []


# --- what the software does ---------------------------------------------------------------------

EXPERTS = ["--model", "mixtral-8x7b", "--gpus", "64", "--set", "layout.ep=8"]


def step_s(*arguments: str) -> float:
    (layout,) = json.loads(screen(*EXPERTS, "--json", *arguments))["layouts"]
    return float(layout["step_time_s"])


def test_switches_and_fields_of_the_software_are_set_like_any_other() -> None:
    usual = step_s()
    assert step_s("--set", "software.overlap.expert=true") < usual
    assert step_s("--set", "software.expert_overlap=true") < usual
    assert step_s("--set", "software.dispatcher=hybridep") < usual
    assert step_s("--set", "software.kernels.fused.loss=false") > usual
    assert step_s("--set", "software.reduce_dtype=fp32") > usual
    assert step_s("--set", "software.cuda_graph_scope=attn+moe_router") <= usual
    assert step_s("--set", "software.overlap.expert=false") == usual


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("software.overlap.exprt=true", "software.overlap.exprt: unknown field (did you mean"),
        ("software.dispatchr=deepep", "software.dispatchr: unknown field (did you mean"),
        ("software.dispatcher=nccl", "must be one of alltoall, allgather, deepep, hybridep"),
        ("software.cuda_graphs=maybe", "software.cuda_graphs: must be true or false, got 'maybe'"),
    ],
)
def test_what_software_cannot_be_set_to(said: str, problem: str) -> None:
    result = RUNNER.invoke(app, ["predict", *NAMES, "--set", said])
    assert (result.exit_code, result.stdout) == (2, "")
    assert problem in " ".join(result.stderr.split())


def test_switches_are_listed_with_what_they_do() -> None:
    result = RUNNER.invoke(app, ["fields", "software", "--json"])
    fields = {field["name"]: field for field in json.loads(result.stdout)["fields"]}
    assert next(iter(fields)) == "software.dispatcher", "switches first"
    assert {field["default"] for field in fields.values()} > {"alltoall", "transformer_engine"}
    bucket = fields["software.bucket_bytes"]
    assert (bucket["unit"], bucket["default"], bucket["grade"]) == ("bytes", "8e+07", "datasheet")
    expert = fields["software.overlap.expert"]
    assert (expert["kind"], expert["default"]) == ("true or false", "false")
    assert all(field["sentence"] for field in fields.values())
