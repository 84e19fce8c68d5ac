"""What a buyer reads: GPU-hours that add up, racks, parts of a server, prices with their base."""

import json
import math
import re

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app

pytestmark = pytest.mark.usefixtures("searched_once")
RUNNER = CliRunner(env={"COLUMNS": "160"})
SMALL = ["--model", "llama-3.2-1b", "--set", "training.tokens=1e12", "--set", "layout.tp=1"]
SMALL += ["--set", "layout.pp=1", "--set", "layout.cp=1", "--set", "layout.micro_batch=1"]
SLOWER = ["--change", "network.adapter=0.5"]


def layout(*arguments: str) -> dict[str, float]:
    done = RUNNER.invoke(app, ["predict", *SMALL, *arguments, "--json"])
    assert done.exit_code == 0, done.stderr
    (row,) = json.loads(done.stdout)["layouts"]
    return row  # type: ignore[no-any-return]


def shown(*arguments: str) -> str:
    done = RUNNER.invoke(app, ["predict", *SMALL, *arguments])
    assert done.exit_code == 0, done.stderr
    return " ".join(done.stdout.split())


def test_gpu_hours_are_gpus_times_hours_or_say_what_else_they_hold() -> None:
    machine = ["--cluster", "dgx-h100", "--gpus", "64", "--set", "run.spares.hot=0"]
    row = layout(*machine)
    assert row["gpu_hours"] == pytest.approx(64 * 24 * row["days"], rel=1e-9)
    assert "GPU-hours, " in shown(*machine)
    spared = [*machine[:-1], "run.spares.hot=2"]
    row = layout(*spared)
    assert row["gpu_hours"] == pytest.approx(80 * 24 * row["days"], rel=1e-9)
    assert "GPU-hours on 80 GPUs, 16 of hot spares" in shown(*spared)


def test_racks_are_rented_whole() -> None:
    """64 of the 72 of a rack are paid for as 72."""
    for gpus, paid in ((64, 72), (72, 72), (144, 144)):
        machine = ["--cluster", "gb200-nvl72", "--gpus", str(gpus), "--set", "run.spares.hot=0"]
        machine += ["--set", f"training.global_batch={8 * gpus}"]
        row = layout(*machine)
        hours = 24 * row["days"]
        assert row["gpu_hours"] == pytest.approx(paid * hours, rel=1e-9)
        assert row["usd"] == pytest.approx(row["usd_per_gpu_hour"] * paid * hours, rel=1e-9)
    few = ["--cluster", "gb200-nvl72", "--gpus", "64", "--set", "run.spares.hot=0"]
    assert "on 72 GPUs, 8 of racks that are let whole" in shown(*few)


def test_a_part_of_a_server_costs_and_burns_its_part() -> None:
    """The same tokens on 4 and on 8 GPUs of one server: as much energy for as many GPU-hours."""
    rows = [
        layout("--cluster", "dgx-h100", "--gpus", str(n), "--set", "run.spares.hot=0")
        for n in (4, 8)
    ]
    watts = [row["kwh"] / row["gpu_hours"] for row in rows]
    assert watts[0] == pytest.approx(watts[1], rel=0.02)
    usd = [row["usd"] / row["gpu_hours"] for row in rows]
    assert usd == pytest.approx([2.99, 2.99])


@pytest.mark.parametrize(
    ("cluster", "basis", "usd", "provider"),
    [
        ("oci-h100", "on demand", 10.0, "Oracle Cloud"),
        ("azure-ndv5", "on demand", 12.29, "Azure"),
        ("aws-p5", "on demand", 6.88, "AWS"),
        ("dgx-h100", "reserved", 2.99 * 0.625, "specialised clouds"),
    ],
)
def test_the_same_word_is_the_same_price(
    cluster: str, basis: str, usd: float, provider: str
) -> None:
    """On demand is the cluster's own price, which is one on demand; others are less of the same."""
    machine = ["--cluster", cluster, "--gpus", "64"]
    row = layout(*machine, "--set", f"economics.basis={basis}")
    price = row["price"]
    assert isinstance(price, dict)
    assert (price["provider"], price["term"], price["base"]) == (provider, basis, "cluster")
    assert price["usd_per_gpu_hour"] == pytest.approx(usd)
    if basis == "on demand":
        assert row["usd"] == pytest.approx(layout(*machine)["usd"])


@pytest.mark.parametrize("cluster", ["oci-h100", "azure-ndv5", "aws-p5", "gcp-a3-mega"])
def test_a_discount_that_nobody_knows_is_not_borrowed(cluster: str) -> None:
    machine = ["predict", *SMALL, "--cluster", cluster, "--gpus", "64"]
    done = RUNNER.invoke(app, [*machine, "--set", "economics.basis=reserved"])
    assert done.exit_code == 2
    assert "is known" in done.stderr and "give economics.rent." in done.stderr


def test_an_assumed_price_is_marked_wherever_its_product_is_shown() -> None:
    text = shown("--cluster", "oci-h100", "--gpus", "8")
    assert "USD per GPU-hour (on demand, Oracle Cloud, 2026-11-20, assumed)" in text
    named = ["--clusters", "oci-h100,aws-p5", "--gpus", "8", "--jobs", "1"]
    done = RUNNER.invoke(app, ["compare", *SMALL, *named])
    rows = [line for line in done.stdout.splitlines() if line.startswith(("oci-h100", "aws-p5"))]
    assert [("*" in line) for line in rows] == [True, False]
    assert "* at an assumed price" in done.stdout


@pytest.mark.parametrize("command", ["plan", "predict", "compare", "size"])
def test_ideal_leaves_all_that_goes_wrong_out(command: str) -> None:
    named = ["--cluster", "dgx-h100", "--gpus", "8", "--ideal", "--json"]
    if command == "compare":
        named = ["--clusters", *named[1:], "--jobs", "1"]
    elif command == "size":
        named += ["--deadline", "90d", "--jobs", "1"]
    done = RUNNER.invoke(app, [command, *SMALL, *named])
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    row = (document.get("layouts") or document.get("rows") or document.get("tried"))[0]
    assert row["goodput"] == 1.0 and row["planning_factor"] is row["planned_days"] is None
    days = row["days"] if isinstance(row["days"], float) else row["days"]["p50"]
    steps = math.ceil(1e12 / (1024 * 8192))
    assert days * 86_400 == pytest.approx(row["step_time_s"] * steps, rel=1e-4)


@pytest.mark.parametrize("command", ["plan --no-report", "predict", "compare", "size"])
def test_ideal_totals_say_what_they_leave_out(command: str) -> None:
    named = ["--cluster", "dgx-h100", "--gpus", "8"]
    if command == "compare":
        named = ["--clusters", *named[1:], "--jobs", "1"]
    for ideal in (True, False):
        sets = ["--set", f"goal.ideal={'true' if ideal else 'false'}"]
        done = RUNNER.invoke(app, [*command.split(), *SMALL, *named, *sets])
        text = " ".join(done.stdout.split())
        assert done.exit_code == 0, done.stderr
        assert ("goodput and the planning factor are left out" in text) == ideal
        assert (re.search(r"plan for \d", text) is None) == ideal


def test_what_goes_wrong_cannot_be_played_where_all_is_ideal() -> None:
    named = ["--cluster", "dgx-h100", "--gpus", "8", "--set", "goal.ideal=true", "--run"]
    done = RUNNER.invoke(app, ["simulate", *SMALL, *named])
    assert done.exit_code == 2 and "goal.ideal: must be false" in done.stderr


def test_two_layouts_and_a_change_have_money_and_say_whether_it_is_within_the_error() -> None:
    named = [*SMALL[:4], "--cluster", "dgx-h100", "--gpus", "8"]
    done = RUNNER.invoke(app, ["versus", "tp=1", "tp=2", *named, "--defaults"])
    text = " ".join(done.stdout.split())
    assert done.exit_code == 0, done.stderr
    assert "Whole run a: " in text and " USD* (" in text and "plan for" in text
    difference = re.search(r"b less a: (.*) USD\* \((.*) USD to (.*) USD, (\w+) the error\)", text)
    assert difference is not None and difference[4] in ("within", "beyond")
    assert "Assumed, and what the other choice would change" in text
    done = RUNNER.invoke(app, ["what-if", *named, "--change", "network.adapter=0.5"])
    text = " ".join(done.stdout.split())
    assert "step time unchanged" in text, "one server has no network"
    assert "after less before: " in text and " USD" in text and "plan for" in text


def test_size_says_what_is_left_of_the_budget_and_what_it_would_buy() -> None:
    limits = ["--deadline", "60d", "--budget", "1M", "--largest", "64", "--jobs", "1"]
    done = RUNNER.invoke(app, ["size", *SMALL, "--cluster", "dgx-h100", *limits])
    text = " ".join(done.stdout.split())
    assert done.exit_code == 0, done.stderr
    assert "of 1.00 M USD are left (" in text
    assert "the soonest end within it: dgx-h100 x 64" in text


def test_a_price_that_was_typed_is_nobodys_guess() -> None:
    for typed in (["economics.usd_per_gpu_hour=2.1"], [
        "economics.basis=on demand", "economics.rent.on_demand_usd_per_gpu_hour=2.1"
    ]):  # fmt: skip
        sets = [word for text in typed for word in ("--set", text)]
        price = layout("--cluster", "oci-h100", "--gpus", "8", *sets)["price"]
        assert isinstance(price, dict)
        assert (price["usd_per_gpu_hour"], price["base"]) == (2.1, "typed")
        assert price["grade"] != "assumed"
    named = ["--clusters", "oci-h100", "--gpus", "8", "--jobs", "1", "--price", "2.1"]
    done = RUNNER.invoke(app, ["compare", *SMALL, *named])
    assert done.exit_code == 0 and "*" not in done.stdout
    assert "oci-h100: 2.10 (yours)" in done.stdout


@pytest.mark.sampled(3)
@pytest.mark.parametrize("command", [["plan", "--no-report"], ["predict"], ["what-if", *SLOWER]])
def test_deadline_and_budget_are_options_of_every_search(command: list[str]) -> None:
    """12 weeks are 84 days, 5M 5,000,000 USD: the same answer as [goal] gives."""
    name, *more = command
    call = [name, *SMALL, "--cluster", "dgx-h100", "--gpus", "8", *more, "--json"]
    typed = RUNNER.invoke(app, [*call, "--deadline", "12 weeks", "--budget", "5M"])
    by_set = ["--set", "goal.deadline_days=84", "--set", "goal.budget_usd=5e6"]
    said = RUNNER.invoke(app, [*call, *by_set])
    assert typed.exit_code == said.exit_code and typed.stderr == said.stderr
    assert json.loads(typed.stdout) == json.loads(said.stdout)
    assert '"deadline_chance": 0.' in typed.stdout or '"deadline_chance": 1.0' in typed.stdout
    wrong = RUNNER.invoke(app, [*call, "--deadline", "soon"])
    assert wrong.exit_code == 2 and "--deadline: must be days" in wrong.stderr


@pytest.mark.sampled(2)
@pytest.mark.parametrize("typed", [False, pytest.param(True, marks=pytest.mark.evidence)])
@pytest.mark.parametrize("words", [["what-if", "--releases"], ["power", "--cap", "12"]])
def test_a_table_of_money_marks_an_assumed_price(words: list[str], typed: bool) -> None:
    named = [*SMALL[:4], "--cluster", "dgx-h100", "--gpus", "8"]
    price = ["--set", "economics.usd_per_gpu_hour=2.5"] if typed else []
    done = RUNNER.invoke(app, [*words, *named, *price, "--tokens", "1e10"])
    assert done.exit_code == 0, done.stderr
    assert ("USD*" in done.stdout) != typed and "USD" in done.stdout
