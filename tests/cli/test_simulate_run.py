"""`foreshard simulate --run`: whole runs on screen, as JSON, as a picture; what is refused."""

import datetime
import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2, gamma
from typer.testing import CliRunner

from simulator.api import simulate_run
from simulator.cli.main import app
from simulator.errors import InputError
from simulator.reliability.incidents import read_incidents, with_rates
from simulator.reliability.reliability_profile import load_reliability
from simulator.units import show_chance

RUN = [
    *("simulate", "--run", "--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--gpus", "256"),
    *("--set", "training.global_batch=512", "--set", "training.tokens=2e12"),
    *("--set", "layout.tp=2"),
]


def run(*more: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [*RUN, *more])
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="module")
def document() -> dict[str, object]:
    code, out, _ = run("--json", "--seeds", "50", "--set", "goal.deadline_days=40")
    assert code == 0
    found: dict[str, object] = json.loads(out)
    return found


def test_the_document_adds_up(document: dict[str, dict[str, object]]) -> None:
    made = document["run"]
    assert set(made) >= {"goodput", "lost", "days", "interruptions", "checkpoint_interval_s",
                         "spares", "seeds", "seconds"}  # fmt: skip
    good, lost, days = made["goodput"], made["lost"], made["days"]
    assert isinstance(good, dict) and isinstance(lost, dict) and isinstance(days, dict)
    assert good["mean"] + sum(lost.values()) == pytest.approx(1.0, rel=1e-9)
    assert good["mean"] == pytest.approx(made["closed_form_goodput"], abs=0.005)
    assert days["ideal"] < days["p10"] < days["p50"] < days["p90"]
    assert made["seconds"] is None
    assert 0.0 <= float(str(made["in_time"])) <= 1.0


def test_the_deadline_is_judged_in_json_as_on_the_screen_and_by_predict(
    document: dict[str, dict[str, object]],
) -> None:
    """`in_time` knows no error of a step and no planning factor: it is no chance to plan by."""
    _, out, _ = run("--seeds", "2", "--set", "goal.deadline_days=40")
    whole = document["closed_form"]
    assert f"within 40 days: {show_chance(float(str(whole['deadline_chance'])))} chance" in out
    assert {"usd", "kwh", "planned_usd", "planned_days", "budget_chance"} < set(whole)
    assert document["caveats"]
    by_size = document["curves"]["gpus"]
    assert isinstance(by_size, dict)
    assert by_size["gpus"][0] == 64 and by_size["gpus"][-1] == 131_072
    assert sorted(by_size["goodput"], reverse=True)[0] < 1.0


def test_the_same_seed_gives_the_same_document(document: dict[str, object]) -> None:
    code, out, _ = run("--json", "--seeds", "50", "--set", "goal.deadline_days=40")
    assert code == 0 and json.loads(out) == document
    _, other, _ = run("--json", "--seeds", "50", "--seed", "100", "--set", "goal.deadline_days=40")
    assert json.loads(other)["run"]["days"] != document["run"]["days"]  # type: ignore[index]


def test_screen_and_picture(tmp_path: Path) -> None:
    place = tmp_path / "run.png"
    code, out, _ = run("--seeds", "20", "--picture", str(place), "--set", "run.start=2027-01-15")
    assert code == 0
    for words in ("goodput", "interruption", "One of the runs", "When runs end", "2027-"):
        assert words in out or words == "interruption"
    assert place.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--jitter", "0.1"], "arguments: --jitter: is of one step and cannot come with --run"),
        (["--seeds", "0"], "run: seeds: must be 1 to 1,000,000 runs, got 0"),
        (["--set", "run.storage.write_bytes_per_s=0"], "run.storage.write_bytes_per_s: must be"),
        (["--set", "run.checkpoints.interval_s=1e9"], "must be at most the length of the run"),
        (["--set", "run.spares.hot=3", "--set", "run.spares.pool=1"], "run.spares.hot: must be at"),
    ],
)
def test_what_is_wrong_is_said(more: list[str], said: str) -> None:
    code, out, error = run(*more)
    assert code == 2 and out == "" and said in error and "Traceback" not in error


@pytest.mark.evidence
def test_a_run_that_never_ends_says_what_would_let_it() -> None:
    code, out, error = run("--set", "run.rate_factor=30000")
    assert code == 1 and out == ""
    assert "never finishes" in error and "run.rate_factor = " in error
    enough = error.partition("run.rate_factor = ")[2].partition(")")[0]
    assert run("--seeds", "1", "--json", "--set", f"run.rate_factor={0.98 * float(enough)}")[0] == 0


def test_incidents_are_counted_with_their_interval(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("date,cause\n2026-01-01,gpu\n2026-01-10T08:00,gpu\n2026-01-20,link\n")
    run_of = load_reliability()
    devices = {"gpu": 256.0, "node": 32.0, "adapter": 256.0, "leaf": 1.0, "spine": 0.0}
    found = read_incidents(log, run_of, devices)
    assert found.days == 20.0
    rates = {rate.cause: rate for rate in found.rates}
    assert rates["gpu"].per_device_day == pytest.approx(2.5 / (20 * 256))
    for end, share in (("p10", 0.1), ("p90", 0.9)):
        exact = gamma.ppf(share, 2.5) / (20 * 256)
        assert getattr(rates["gpu"], end) == pytest.approx(exact, rel=0.02)
    fitted = with_rates(run_of, found)
    assert fitted.rates["gpu"] == rates["gpu"].per_device_day
    assert fitted.rates["software"] == 0.0 and rates["software"].p90 > 0.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("date,cause\n,gpu\n", "line 2: date: must be a date"),
        ("date,cause\n2026-01-01,gpus\n", "(did you mean 'gpu'?)"),
        ("date,cause\n", "must have a line for each incident"),
        ("day,cause\n2026-01-01,gpu\n", "date: required column is missing"),
    ],
)
def test_incidents_without_what_they_need_are_refused(text: str, said: str, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text(text)
    with pytest.raises(InputError) as error:
        read_incidents(log, load_reliability(), dict.fromkeys(PER_KIND, 1.0))
    assert any(said in line and str(log) in line for line in error.value.problems)


def written(path: Path, ages: np.ndarray) -> Path:
    """A log of 200 days of failures of servers at these ages, in days, between two of software."""
    begun = datetime.datetime(2026, 1, 1)
    rows = [f"{begun + datetime.timedelta(days=float(age))},node\n" for age in ages]
    ends = "2026-01-01T00:00,software\n2026-07-19T23:59,software\n"
    path.write_text("date,cause\n" + ends + "".join(rows))
    return path


def power_law(shape: float, count: int, days: float, seed: int = 0) -> np.ndarray:
    """Ages of failures whose expected number grows with age^shape: T u^(1/s), u uniform."""
    draws = np.random.default_rng(seed).uniform(size=count)
    return np.sort(days * draws ** (1.0 / shape))


def test_failures_that_become_rarer_are_fitted_by_a_power_law(tmp_path: Path) -> None:
    """Crow 1974: s = n / sum(ln(T / t)), and 2 n s0 / s is chi-squared with 2 n degrees."""
    ages = power_law(0.5, 60, 200.0)
    run_of = load_reliability()
    found = read_incidents(written(tmp_path / "log.csv", ages), run_of, dict.fromkeys(PER_KIND, 64))
    shape = found.shape
    assert shape is not None and shape.kept and found.days == 200.0
    best = len(ages) / np.log(200.0 / ages).sum()
    assert shape.shape == pytest.approx(best, rel=1e-5)
    for end, share in ((shape.low, 0.025), (shape.high, 0.975)):
        assert end == pytest.approx(best * chi2.ppf(share, 2 * len(ages)) / 120.0, rel=0.03)
    fitted = with_rates(run_of, found)
    assert fitted.early_shape == shape.shape
    # expected failures in the days of the log: the integral of rate x (age / reference)^(s - 1)
    reference = fitted.reference_age_s / 86_400.0
    whole = 200.0**best / best / reference ** (best - 1.0)
    assert 64 * fitted.rates["node"] * whole == pytest.approx(60.5, rel=1e-4)


def test_failures_without_memory_keep_a_constant_rate(tmp_path: Path) -> None:
    """The interval of the shape holds 1, in all but a few of a hundred logs."""
    kept = 0
    for seed in range(100):
        log = written(tmp_path / "log.csv", power_law(1.0, 40, 200.0, seed))
        found = read_incidents(log, load_reliability(), dict.fromkeys(PER_KIND, 64))
        assert found.shape is not None
        kept += found.shape.kept
        if not found.shape.kept:
            assert with_rates(load_reliability(), found).early_shape == 1.0
    assert kept <= 8


def test_few_failures_have_no_shape(tmp_path: Path) -> None:
    log = written(tmp_path / "log.csv", np.array([0.5, 20.0, 30.0, 44.0]))
    assert read_incidents(log, load_reliability(), dict.fromkeys(PER_KIND, 64)).shape is None


NAMES = {"model": "llama-3.1-8b", "cluster": "dgx-h100", "gpus": 256, "tp": 2, "tokens": 2e12}


def test_the_python_face_says_what_the_command_says(document: dict[str, object]) -> None:
    found = simulate_run(**NAMES, global_batch=512, seeds=50, deadline_days=40)  # type: ignore[arg-type]
    made = document["run"]
    assert isinstance(made, dict)
    assert found.goodput == made["goodput"]["mean"]
    days = found.days(0.1), found.days(0.9)
    assert days == pytest.approx((made["days"]["p10"], made["days"]["p90"]), rel=1e-12)
    assert repr(found).startswith("SimulatedRun(goodput ") and len(repr(found)) < 90
    table = found.to_frame()
    assert found.goodput + table["lost_share"].sum() == pytest.approx(1.0, rel=1e-9)
    assert found.to_frame("runs")["seed"].tolist() == [*range(50)]
    assert len(found.to_frame("gpus")) == 12
    with pytest.raises(InputError, match="must be one of causes, runs"):
        found.to_frame("cause")  # type: ignore[arg-type]


@pytest.mark.parametrize("keeps", [True, False])
def test_a_server_less_makes_longer_steps_or_fewer_tokens(keeps: bool) -> None:
    """128 replicas with 4 micro-batches each lose 4: 512 over 124 are 5 each."""
    spares = {"pool": 0, "hot": 0, "when_none": "shrink", "keep_batch": keeps}
    found = simulate_run(**NAMES, global_batch=512, seeds=1, run={"spares": spares})  # type: ignore[arg-type]
    less, step_s = found.without_a_server, float(found.prediction.estimate.step_time_s[0])
    assert less is not None
    tokens = 512 * 8192
    if keeps:
        assert less.tokens == tokens and 1.2 < less.step_time_s / step_s <= 1.25
    else:
        assert less.tokens == pytest.approx(tokens * 124 / 128) and less.step_time_s == step_s


def test_a_single_server_cannot_be_missed() -> None:
    spares = {"pool": 0, "hot": 0, "when_none": "shrink"}
    found = simulate_run(**{**NAMES, "gpus": 8}, global_batch=64, seeds=1, run={"spares": spares})  # type: ignore[arg-type]
    assert found.without_a_server is None


PER_KIND = ("gpu", "node", "adapter", "leaf", "spine")


def test_a_layout_that_does_not_fit_is_called_so() -> None:
    """70.6 billion parameters in 16 bit are 141 GB: no device of 80 GB holds them whole."""
    large = ("--seeds", "5", "--set", "layout.tp=1", "--model", "llama-3.1-70b")
    code, out, _ = run(*large)
    assert code == 0 and "\nOOM  " in out and "and does not start" in out
    code, out, _ = run(*large, "--json")
    assert code == 0 and json.loads(out)["verdict"] == "OOM"
