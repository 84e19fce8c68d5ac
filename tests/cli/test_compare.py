"""`foreshard compare`: screen, frozen keys of its document, files, exit codes."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app
from simulator.economics.planning_factor import Span
from simulator.evidence.card import GRADES, Card
from simulator.glossary import CAVEATS
from simulator.hardware.cluster import clusters_meant
from simulator.questions.compare.answer import Comparison, first_that_holds
from simulator.questions.compare.command import line
from simulator.questions.compare.offer import Asked, Offer
from simulator.questions.compare.offer_sentences import verdict, views
from simulator.report.decision import verdict_sentence
from simulator.scenario import make_scenario

pytestmark = pytest.mark.usefixtures("searched_once")
RUNNER = CliRunner(env={"COLUMNS": "160"})
PINS = (
    "layout.tp=1",
    "layout.pp=1",
    "layout.cp=1",
    "layout.micro_batch=1",
    "layout.sharding=zero1",
)
SETS = [word for pin in PINS for word in ("--set", pin)]
NAMES = ["--model", "llama-3.2-1b", "--set", "training.tokens=1e11", *SETS, "--jobs", "1"]
RUN = ["compare", *NAMES, "--clusters", "dgx-h100,mi325x-8", "--gpus", "8..16"]

TOP = [
    *("schema", "version", "command", "scenario", "assumed_training", "idle_fields"),
    *("workload", "asked"),
    *("rows", "decision", "at_equal_gpus"),
    *("equal_budget_usd", "at_equal_budget", "equal_deadline_days", "at_deadline", "pareto"),
    *("curves", "nearest", "assumptions", "caveats"),
]
ROW = [
    *("cluster", "accelerator", "gpus", "feasible", "reason", "software", "global_batch"),
    *("layout", "step_time_s"),
    *("tokens_per_s_per_gpu", "mfu", "days", "usd", "kwh", "days_ideal", "co2_kg", "goodput"),
    "checkpoint",
    *("planning_factor", "planned_days", "planned_usd", "planned_kwh", "deadline_chance"),
    "budget_chance",
    *("deadline_chance_without_factor", "budget_chance_without_factor"),
    *("memory_headroom", "verdict", "memory_total_bytes", "memory_p90_bytes", "usable_bytes"),
    *("tight_alternative", "usd_per_gpu_hour", "price"),
    *("batch_divides", "next_good_gpus", "evidence", "offer", "beside_usd"),
]


def test_document_and_files(tmp_path: Path) -> None:
    done = RUNNER.invoke(app, [*RUN, "--json", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert list(document) == TOP
    assert [list(row) for row in document["rows"]] == [ROW] * 4
    for row in document["rows"]:
        free = row["usable_bytes"] - row["memory_total_bytes"]
        assert row["memory_headroom"] == pytest.approx(free / row["usable_bytes"])
    assert [(row["cluster"], row["gpus"]) for row in document["rows"]] == [
        ("dgx-h100", 8),
        ("dgx-h100", 16),
        ("mi325x-8", 8),
        ("mi325x-8", 16),
    ]
    for row in document["rows"]:
        assert row["days"]["p10"] < row["days"]["p50"] < row["days"]["p90"]
        # steps x step time, and what failures and checkpoints leave of it
        steps = 1e11 / (1024 * 8192)
        # weights in 16 bit, fp32 weights and two moments of 1.24 billion parameters: 14 bytes each
        saved = row["checkpoint"]
        assert saved["bytes"] == pytest.approx(14 * 1.24e9, rel=0.01) and saved["stall_s"] > 0.0
        assert row["days_ideal"] == pytest.approx(steps * row["step_time_s"] / 86_400)
        assert row["days"]["p50"] == pytest.approx(row["days_ideal"] / row["goodput"])
        factor = row["planning_factor"]["value"]
        for name in ("days", "kwh"):
            assert row[f"planned_{name}"]["p50"] == pytest.approx(factor * row[name]["p50"])
    cheapest = document["decision"]["cheapest"]["row"]
    for choice in document["assumptions"]:  # a longer run is dearer in proportion
        usd = document["rows"][cheapest]["usd"]["p50"]
        assert choice["usd_change"] == pytest.approx(choice["step_time_change"] * usd, rel=0.02)
    changes = [abs(choice["step_time_change"]) for choice in document["assumptions"]]
    assert changes and changes == sorted(changes, reverse=True)
    assert document["rows"][2]["usd"] == {"p10": None, "p50": None, "p90": None}
    assert json.loads((tmp_path / "compare.json").read_text()) == document
    assert (tmp_path / "compare.png").read_bytes().startswith(b"\x89PNG")
    drawn = (tmp_path / "compare.svg").read_text()
    assert any(f">{unit}</text>" in drawn for unit in ("thousand USD", "million USD", "USD"))
    assert "mathdefault" not in drawn  # plain numbers on the axes, no powers
    assert (tmp_path / "compare.html").read_text().startswith("<!doctype html>")
    assert len((tmp_path / "compare.csv").read_text().splitlines()) == 5


def test_screen() -> None:
    done = RUNNER.invoke(app, [*RUN, "--deadline", "400d", "--price", "mi325x-8=1.5"])
    assert (done.exit_code, done.stderr) == (0, "")
    text = " ".join(done.stdout.split())
    for words in (
        "Within 400.0 days, with a chance of 80.0 %",
        "cheapest",
        "cluster GPUs days P10 to P90 chance USD P10 to P90 MFU",
        "Fastest at equal GPUs",
        "Of each cluster the cheapest that meets what is asked",
        "Pareto-optimal",
        "diminishing returns",
        "Goodput and carbon",
        "of CO2",
        "mi325x-8: 1.50 (yours)",
        "measured like it",
    ):
        assert words in text, words


def test_an_impossible_deadline_names_the_nearest() -> None:
    options = ["--deadline", "1h", "--confidence", "0.5"]
    done = RUNNER.invoke(app, [*RUN, *options])
    assert done.exit_code == 1
    assert "MISSED: no offer meets what is asked; the soonest" in " ".join(done.stdout.split())
    document = json.loads(RUNNER.invoke(app, [*RUN, *options, "--json"]).stdout)
    assert document["decision"] == {
        "confidence": 0.5, "cheapest": None, "cheapest_quoted": None, "soonest": None,
        "safest": None,
    }  # fmt: skip
    near = document["nearest"]
    days = [row["planned_days"]["p50"] for row in document["rows"]]
    assert near["row"] == days.index(min(days)) and document["at_deadline"] == []
    # one hour is a 24th of a day: what the soonest takes over it
    text = " ".join(done.stdout.split())
    assert f"it would take {24.0 * min(days):,.3g} times the speed, or" in text
    words = re.search(r"or ([\d.]+)([kMBT]) tokens in place of ([\d.]+)([kMBT])\.", text)
    assert words is not None
    scale = {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
    fewer, whole = (float(words[i]) * scale[words[i + 1]] for i in (1, 3))
    assert whole / fewer == pytest.approx(24.0 * min(days), rel=0.01)


def test_an_impossible_budget_says_what_it_would_take() -> None:
    options = ["--budget", "100", "--confidence", "0.5"]
    done = RUNNER.invoke(app, [*RUN, *options])
    document = json.loads(RUNNER.invoke(app, [*RUN, *options, "--json"]).stdout)
    usd = min(row["planned_usd"]["p50"] for row in document["rows"] if row["planned_usd"])
    near = document["rows"][document["nearest"]["row"]]
    assert done.exit_code == 1 and near["planned_usd"]["p50"] == usd
    text = " ".join(done.stdout.split())
    assert f"prices {100.0 * (1.0 - 100.0 / usd):.3g} % lower" in text
    within = ["--budget", str(2.0 * usd), "--confidence", "0.5", "--json"]
    assert json.loads(RUNNER.invoke(app, [*RUN, *within]).stdout)["nearest"] is None


def test_both_missed_a_faster_run_is_cheaper_too() -> None:
    """A run of half the days costs half: only what is left is asked of prices."""
    options = ["--deadline", "1h", "--budget", "1", "--confidence", "0.5"]
    document = json.loads(RUNNER.invoke(app, [*RUN, *options, "--json"]).stdout)
    near = document["rows"][document["nearest"]["row"]]
    faster = 24.0 * near["planned_days"]["p50"]
    text = " ".join(RUNNER.invoke(app, [*RUN, *options]).stdout.split())
    lower = 100.0 * (1.0 - faster / near["planned_usd"]["p50"])
    assert 0.0 < lower < 100.0
    words = f"it would take {faster:,.3g} times the speed and prices {lower:.3g} % lower"
    assert words in text


def test_both_limits_met_name_the_cheapest() -> None:
    document = json.loads(RUNNER.invoke(app, [*RUN, "--json"]).stdout)
    rows = [row for row in document["rows"] if row["usd"] and row["usd"]["p50"]]
    limits = {"days": 1.01 * max(row["planned_days"]["p90"] for row in rows),
              "usd": 1.01 * max(row["planned_usd"]["p90"] for row in rows)}  # fmt: skip
    options = ["--deadline", f"{limits['days']}d", "--budget", str(limits["usd"])]
    done = RUNNER.invoke(app, [*RUN, *options])
    cheapest = min(rows, key=lambda row: row["usd"]["p50"])
    said = done.stdout.split("with a chance of 80.0 %\n", 1)[1]
    label, _, named = said.splitlines()[0].strip().partition(": ")
    assert done.exit_code == 0 and "cheapest" in label
    assert named.startswith(f"{cheapest['cluster']} x {cheapest['gpus']:,}:")


def test_pins_that_contradict_each_other_are_named() -> None:
    pins = ["--set", "layout.tp=4", "--set", "layout.pp=8"]
    done = RUNNER.invoke(app, [*RUN, *pins])
    assert done.exit_code == 1
    assert "layout.tp = 4, layout.pp = 8" in " ".join(done.stdout.split())


def test_no_line_is_wider_than_the_table_and_one_size_has_no_curve() -> None:
    many = "dgx-h100,dgx-a100,hgx-h200,dgx-b200,mi300x-8,mi325x-8,l40s-pcie"
    done = RUNNER.invoke(app, ["compare", *NAMES, "--clusters", many, "--gpus", "8"])
    assert done.exit_code == 0 and "Fastest at equal GPUs" in done.stdout
    assert max(len(line.rstrip()) for line in done.stdout.splitlines()) <= 80
    assert "Speed-up" not in done.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--clusters", "dgx-h101"], "did you mean 'dgx-h100'"),
        (["--gpus", "64..8"], "--gpus: a range goes from the smaller to the larger"),
        (["--deadline", "soon"], "--deadline: must be days"),
        (["--budget", "0"], "--budget: must be USD"),
        (["--price", "dgx-b200=2"], "price: must name a cluster"),
        (["--confidence", "1.5"], "confidence: must be between 0 and 1"),
    ],
)
def test_bad_input(options: list[str], words: str) -> None:
    done = RUNNER.invoke(app, [*RUN, *options])
    assert done.exit_code == 2
    assert words in done.stderr and "Traceback" not in done.stderr


def offers(*rows: tuple[str, int, float, float, str]) -> list[Offer]:
    """Offers of which days, USD and the grade of their price are given."""
    return [
        Offer(
            cluster=cluster,
            gpus=gpus,
            feasible=True,
            step_time_s=days,
            tokens_per_s=1.0 / days,
            days=Span(p50=days, log_spread=0.1),
            usd=Span(p50=usd, log_spread=0.2),
            deadline_chance=Span(p50=days, log_spread=0.1).chance_within(20.0),
            budget_chance=Span(p50=usd, log_spread=0.2).chance_within(100.0),
            memory_verdict="TIGHT" if cluster == "tight" else "FITS",
            price={"grade": grade},
        )
        for cluster, gpus, days, usd, grade in rows
    ]


def made(rows: list[Offer], **asked: float) -> Comparison:
    run = {
        "model": {"name": "gpt2-small"},
        "training": {"sequence_length": 1024, "global_batch": 64, "tokens": 1e9},
        "cluster": {"name": "dgx-h100", "gpus": 8},
    }
    return Comparison(scenario=make_scenario(run), asked=Asked(**asked), rows=tuple(rows))


def test_the_cheapest_the_soonest_and_the_safest_by_hand() -> None:
    """Within 20 days and 100 USD with a chance of 0.8: P80 is P50 x exp(0.842 x spread)."""
    rows = offers(
        ("late", 8, 19.0, 10.0, "datasheet"),  # P80 of 20.7 days
        ("guess", 8, 15.0, 40.0, "assumed"),
        ("quoted", 8, 16.0, 50.0, "datasheet"),
        ("quick", 8, 5.0, 80.0, "datasheet"),  # P80 of 94.7 USD
        ("dear", 8, 4.0, 90.0, "datasheet"),  # P80 of 106.5 USD
        ("tight", 8, 1.0, 1.0, "datasheet"),
    )
    found = made(rows, deadline_days=20.0, budget_usd=100.0)
    chosen = {name: row and row.cluster for name, row in found.decision.items()}
    # misses of guess: time log(20/15)/0.1 = 2.9 sigma; quoted: 2.2; quick: money 1.1
    assert chosen == {
        "cheapest": "guess", "cheapest_quoted": "quoted", "soonest": "quick", "safest": "guess",
    }  # fmt: skip
    assert found.document()["decision"]["soonest"]["row"] == 3
    (title, lines), *_ = verdict(found)
    assert title == "Within 20.0 days and 100 USD, with a chance of 80.0 %"
    assert [line.partition(" x ")[0] for line in lines] == [
        "cheapest at an assumed price, safest: guess",
        "cheapest at a quoted price: quoted",
        "soonest: quick",
    ]
    assert "40.0 USD*" in lines[0] and "50.0 USD (" in lines[1]
    bold = replace(found, asked=replace(found.asked, allow_tight=True)).decision
    assert bold["cheapest"] is rows[-1] and bold["soonest"] is rows[-1]


def test_without_tokens_there_is_a_step_and_nobody_misses_a_price() -> None:
    run = ["compare", "--model", "llama-3.2-1b", "--clusters", "dgx-h100", "--gpus", "8", *SETS]
    done = RUNNER.invoke(app, [*run, "--jobs", "1"])
    text = " ".join(done.stdout.split())
    assert done.exit_code == 0 and " s a step" in text and "no tokens" in text
    assert "no price" not in text and "give --tokens N" in text


def test_half_a_chance_is_not_enough_unless_it_is_asked_for() -> None:
    rows = offers(("even", 8, 20.0, 10.0, "datasheet"))
    assert made(rows, deadline_days=20.0).decision["cheapest"] is None
    assert made(rows, deadline_days=20.0, confidence=0.5).decision["cheapest"] is rows[0]


def test_a_size_without_a_benchmark_does_not_mark_its_cluster() -> None:
    near, far = offers(
        ("dgx-b200", 8, 1.0, 10.0, "datasheet"), ("dgx-b200", 512, 1.0, 10.0, "datasheet")
    )
    rows = [replace(row, evidence=card(runs)) for row, runs in ((near, 4), (far, 0))]
    (caveats,) = [lines for title, lines in views(made(rows)) if title == CAVEATS]
    (said,) = [line for line in caveats if line.startswith("No comparable benchmark")]
    assert said == "No comparable benchmark, low confidence: dgx-b200 x 512"


def card(runs: int) -> Card:
    """Evidence of so many runs."""
    return Card(
        grade=GRADES[1] if runs else GRADES[-1], runs=runs, mean_error=None, nearest_run=None,
        nearest_error=None, nearest_distance="", borrowed=(), assumed=0, widened_by={},
    )  # fmt: skip


def test_a_size_over_which_the_batch_divides_is_not_said_to_have_no_cp() -> None:
    (row,) = offers(("dgx-h100", 144, 1.0, 10.0, "datasheet"))
    note = replace(row, batch_divides=False, next_good=160).note
    assert note == (
        "the batch divides only with uneven stages or context parallelism;"
        " over 160 GPUs it divides without"
    )


def test_money_at_an_assumed_price_is_marked_in_the_first_sentence() -> None:
    guess, quoted = offers(
        ("guess", 8, 15.0, 40.0, "assumed"), ("quoted", 8, 15.0, 40.0, "datasheet")
    )
    asked = Asked(deadline_days=20.0, budget_usd=100.0)
    assert " 40 USD* (" in verdict_sentence(guess, asked)
    assert " 40 USD (" in verdict_sentence(quoted, asked)


def test_what_would_be_faster_if_it_fits_stands_in_the_table() -> None:
    (row,) = offers(("dgx-h100", 8, 1.0, 10.0, "datasheet"))
    tight = {"layout": "dp8 mb1", "step_time_s": 0.985, "faster": 0.015}
    text = " ".join(line(replace(row, tight_alternative=tight)).split())
    assert text.endswith("TIGHT dp8 mb1: 1.5 % faster, if a trial run shows that it fits")
    assert "trial run" not in line(row)


def test_a_gpu_means_its_clusters_and_the_training_has_options() -> None:
    short = ["--tokens", "1G", "--batch", "64", "--seq", "1k", *SETS, "--jobs", "1", "--json"]
    run = ["compare", "--model", "llama-3.2-1b", "--gpus", "4", *short]
    done = RUNNER.invoke(app, [*run, "--clusters", "l40s,dgx-h100"])
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    names = [row["cluster"] for row in document["rows"]]
    assert names == ["l40s-pcie", "l40s-pcie-host", "dgx-h100"]
    training = document["scenario"]["training"]
    assert (training["tokens"], training["global_batch"], training["sequence_length"]) == (
        1e9, 64, 1024,
    )  # fmt: skip


def test_all_means_every_cluster_and_one_that_holds_the_run_describes_it() -> None:
    every = clusters_meant("all")
    assert every == sorted(every) and {"dgx-h100", "gb200-nvl72"} <= set(every)
    assert clusters_meant("dgx-h100") == ["dgx-h100"]
    assert "aws-g4dn" in clusters_meant("T4") and "aws-g6" in clusters_meant("l4")  # two letters
    assert clusters_meant("x") == ["x"]
    assert first_that_holds(["trn1-32xlarge", "dgx-h100"], 8 * 5) == "dgx-h100"


def test_ideal_totals_say_what_they_leave_out() -> None:
    run = ["compare", *NAMES, "--clusters", "dgx-h100", "--gpus", "8", "--ideal"]
    text = " ".join(RUNNER.invoke(app, run).stdout.split())
    said = "nothing on top: goodput and the planning factor are left out (--ideal)"
    assert text.count(said) >= 2, "at the head and at the total"
    assert said not in " ".join(RUNNER.invoke(app, run[:-1]).stdout.split())
