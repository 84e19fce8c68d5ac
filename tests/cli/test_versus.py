"""`foreshard versus` and `foreshard what-if`: screens, frozen keys, bad input."""

import json
import re
from typing import Any

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app
from simulator.planner.plan import plan
from simulator.questions.versus.what_if import what_if
from simulator.scenario import make_scenario
from simulator.units import show_usd_change

pytestmark = pytest.mark.usefixtures("searched_once")
RUNNER = CliRunner(env={"COLUMNS": "160"})
NAMES = ["--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--gpus", "16"]
PINS = ["--set", "layout.pp=1", "--set", "layout.cp=1", "--set", "layout.sharding=zero1"]
TWO = ["versus", "tp=4", "tp=8", *NAMES, *PINS, "--defaults"]
IF = ["what-if", *NAMES, *PINS, "--set", "layout.micro_batch=1"]
HEAD = ["schema", "version", "command", "scenario", "assumed_training", "idle_fields", "workload"]
SIDE = [
    *("asked", "layout", "step_time_s", "p10_s", "p90_s", "mfu", "days", "usd", "price"),
    *("memory_total_bytes", "fits", "verdict", "memory_p90_bytes", "usable_bytes", "goodput"),
    *(
        "checkpoint",
        "days_ideal",
        "planning_factor",
        "planned_days",
        "planned_usd",
        "planned_kwh",
        "deadline_chance",
    ),
    *("budget_chance", "deadline_chance_without_factor", "budget_chance_without_factor"),
]


def test_document_of_two() -> None:
    done = RUNNER.invoke(app, [*TWO, "--json"])
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    ratio = ["step_time_ratio", "step_time_ratio_p10", "step_time_ratio_p90"]
    keys = ["searched", "a", "b", "chance_a_faster", "tie", "terms", "within_error", *ratio]
    rest = ["days_change", "usd_change", "summary", "assumptions", "caveats"]
    assert list(found) == [*HEAD, *keys, *rest]
    assert list(found["a"]) == SIDE
    assert (found["a"]["layout"]["tp"], found["b"]["layout"]["tp"]) == (4, 8)
    assert found["within_error"] == found["tie"]
    assert found["step_time_ratio"] == found["b"]["step_time_s"] / found["a"]["step_time_s"]
    assert found["step_time_ratio_p10"] < found["step_time_ratio"] < found["step_time_ratio_p90"]
    for i, side in enumerate("ab"):
        total = sum(pair[i] for pair in found["terms"].values())
        assert total == pytest.approx(found[side]["step_time_s"])


def test_the_difference_of_two_runs_is_as_wide_as_that_of_their_steps() -> None:
    """Days and money grow with the step: what price and factor are unsure of both sides share."""
    found = json.loads(RUNNER.invoke(app, [*TWO, "--tokens", "1e11", "--json"]).stdout)
    for name in ("days", "usd"):
        a, b = (found[side][name]["p50"] for side in "ab")
        change = found[f"{name}_change"]
        assert change["p50"] == pytest.approx(b - a)
        for end in ("p10", "p90"):
            share = found[f"step_time_ratio_{end}"] / found["step_time_ratio"]
            assert change[end] == pytest.approx(share * b - a)
    side = found["a"]
    saved = side["checkpoint"]
    assert saved["bytes"] > 8.03e9 * 2 and saved["write_s"] > 0.0
    assert saved["every_s"] == pytest.approx(saved["every_steps"] * side["step_time_s"])
    assert side["planned_days"]["p50"] == pytest.approx(
        side["planning_factor"]["value"] * side["days"]["p50"]
    )
    assert side["days"]["p50"] * side["goodput"] == pytest.approx(side["days_ideal"])
    surely = side["memory_p90_bytes"] <= side["usable_bytes"]
    assert side["verdict"] == ("FITS" if surely else "TIGHT" if side["fits"] else "OOM")


def test_screen_of_two() -> None:
    done = RUNNER.invoke(app, TWO)
    assert (done.exit_code, done.stderr) == (0, "")
    text = " ".join(done.stdout.split())
    for words in ("tp = 4 is faster by x", "with a chance of", "a: tp = 4", "b: tp = 8",
                  "sum = step time", "stated defaults"):  # fmt: skip
        assert words in text, words


def test_what_if() -> None:
    change = ["--change", "network.adapter=0.25", "--change", "memory=+20%"]
    done = RUNNER.invoke(app, [*IF, *change, "--json"])
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    keys = ["change", "before", "after", "same_layout", "same_layout_reason", "step_time_ratio"]
    keys += ["step_time_ratio_p10", "step_time_ratio_p90", "within_error"]
    keys += ["run_within_error"]
    keys += [f"{name}_change" for name in ("days", "usd")]
    keys += [f"{name}_change_{end}" for name in ("days", "usd") for end in ("p10", "p90")]
    assert list(found) == [*HEAD, *keys, "summary", "assumptions", "caveats"]
    assert "within the error" in found["summary"][0] or "beyond the error" in found["summary"][0]
    assert found["assumptions"][0]["step_time_change"] != 0.0
    low, high = found["step_time_ratio_p10"], found["step_time_ratio_p90"]
    assert low < found["step_time_ratio"] < high
    assert found["within_error"] == (low <= 1.0 <= high)
    for name in ("days", "usd"):
        before, after = found["before"][name], found["after"][name]
        changed = None if before is None else pytest.approx(after - before)
        assert found[f"{name}_change"] == changed
    assert found["change"] == {"network.adapter": "0.25", "memory": "+20%"}
    assert found["step_time_ratio"] == pytest.approx(
        found["after"]["step_time_s"] / found["before"]["step_time_s"]
    )
    done = RUNNER.invoke(app, [*IF, *change])
    assert (done.exit_code, done.stderr) == (0, "")
    text = " ".join(done.stdout.split())
    assert "with network.adapter x 0.25, memory +20%: step time x" in text
    assert "with the layout of before" in text
    done = RUNNER.invoke(app, [*IF, *change, "--tokens", "1e11"])
    (line,) = re.findall("after less before: .*", done.stdout)
    assert " USD* (" in line  # at an assumed price
    assert "Assumed, and what the other choice would change" in text


def test_what_no_step_feels_changes_none() -> None:
    """Twice the tokens are twice the steps, of one length: no error is left in the ratio."""
    run = ["--tokens", "1e11", "--change", "training.tokens=2e11"]
    found = json.loads(RUNNER.invoke(app, [*IF, *run, "--json"]).stdout)
    ends = [found[f"step_time_ratio{end}"] for end in ("_p10", "", "_p90")]
    assert ends == [1.0, 1.0, 1.0] and found["within_error"]
    for name in ("days", "usd"):
        before = found["before"][name]
        spans = [found[f"{name}_change{end}"] for end in ("_p10", "", "_p90")]
        assert spans == pytest.approx([before, before, before], rel=1e-4)


def test_notes_of_fabrics_are_in_every_form() -> None:
    run = [*IF, "--fabrics"]
    found = json.loads(RUNNER.invoke(app, [*run, "--json"]).stdout)
    screen = " ".join(RUNNER.invoke(app, run).stdout.split())
    assert any(note.startswith("rails are tried where") for note in found["caveats"])
    assert all(" ".join(note.split()) in screen for note in found["caveats"])


def test_a_larger_batch_has_longer_steps_and_fewer_of_them() -> None:
    """Twice the batch: the step is twice as long for sure, of the days that is not said."""
    run = ["--batch", "64", "--tokens", "1e11", "--change", "training.global_batch=128"]
    found = json.loads(RUNNER.invoke(app, [*IF, *run, "--json"]).stdout)
    assert 1.8 < found["step_time_ratio"] < 2.0 and not found["within_error"]
    low, high = found["days_change_p10"], found["days_change_p90"]
    assert found["run_within_error"] == (low <= 0.0 <= high)
    assert abs(found["days_change"]) < 0.1 * found["before"]["days"]
    text = " ".join(RUNNER.invoke(app, [*IF, *run]).stdout.split())
    which = "within" if found["run_within_error"] else "beyond"
    assert re.search(rf"after less before: [^:]*, {which} the error\)", text)


def test_another_price_changes_the_money_alone_and_no_error_bears_on_that() -> None:
    """A discount of 228 k USD was said to be within the error, that of a step of ratio 1."""
    run = [*IF, "--tokens", "1e11", "--change", "economics.usd_per_gpu_hour=1"]
    text = " ".join(RUNNER.invoke(app, run).stdout.split())
    found = json.loads(RUNNER.invoke(app, [*run, "--json"]).stdout)
    saved = show_usd_change(found["usd_change"])
    assert found["usd_change"] < 0.0 and found["days_change"] == 0.0
    assert "step time unchanged, the best layout of each" in text
    assert f"after less before: time unchanged, {saved}" in text
    assert "within the error" not in text.partition("Assumed")[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["versus", "tp=4", *NAMES], "must be two sides such as tp=4 tp=8"),
        (["versus", "tp=4", "tpp=8", *NAMES], "did you mean 'tp'"),
        ([*IF, "--change", "netwrk.adapter=2"], "did you mean 'network.adapter'"),
        (IF, "--change: at least one must be given"),
        ([*IF, "--releases", "--fabrics"], "--releases: must be left out with --fabrics"),
        ([*IF, "--change", "training.global_bach=2"], "did you mean 'global_batch'"),
    ],
)
def test_bad_input(arguments: list[str], words: str) -> None:
    done = RUNNER.invoke(app, arguments)
    assert done.exit_code == 2 and words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("change", "stated"),
    [
        ("software.overlap.tensor=userbuffers", {"overlap": {"tensor": "userbuffers"}}),
        ("software.tp_comm_overlap=true", {"tp_comm_overlap": True}),
        ("software.cuda_graphs=true", {"cuda_graphs": True}),
    ],
)
def test_a_change_of_the_software_is_what_asking_for_it_gives(change: str, stated: Any) -> None:
    pins = {"tp": 2, "pp": 1, "cp": 1, "sharding": "zero1", "micro_batch": 1}
    document = {
        "model": {"name": "llama-3.1-8b"},
        "training": {"sequence_length": 4096, "global_batch": 64},
        "cluster": {"name": "dgx-h100", "gpus": 16},
        "layout": pins,
    }
    before, after = (plan(make_scenario({**document, "software": s})) for s in ({}, stated))
    found = what_if(make_scenario(document), [change])
    assert found.before.step_time_s == pytest.approx(before.step_time_s, rel=1e-12)
    assert found.after.step_time_s == pytest.approx(after.step_time_s, rel=1e-12)
    assert found.after.step_time_s < found.before.step_time_s
    assert found.same is not None and found.verdict.startswith(f"with {change.replace('=', ' = ')}")


def test_a_change_of_the_software_that_it_has_not_is_refused_with_the_name_near_it() -> None:
    for change, words in (
        ("software.overlap.tensr=x", "software.overlap.tensr: unknown field (did you mean"),
        ("software.cuda_graps=true", "did you mean 'cuda_graphs'?"),
    ):
        done = RUNNER.invoke(app, [*IF, "--change", change])
        assert done.exit_code == 2 and words in done.stderr
