"""The section [run]: defaults with sources, and one message for each thing that is wrong."""

import pytest

from simulator import predict
from simulator.errors import InputError
from simulator.files import figures
from simulator.reliability.reliability_profile import load_reliability, read_run

NAMES = {"model": "llama-3.1-8b", "cluster": "dgx-h100", "gpus": 256}
PER_SERVER = {"gpu": 8, "adapter": 8, "node": 1, "leaf": 0, "spine": 0}


@pytest.mark.parametrize(
    ("name", "per_thousand"), [("mature", 2.5), ("new", 3.79), ("bad", 15.0), ("first-weeks", 8.0)]
)
def test_sets_have_the_rates_of_their_logs(name: str, per_thousand: float) -> None:
    """Failures per thousand server-days, of a server with eight GPUs."""
    run = load_reliability(name)
    rates = run.rates
    total = 1e3 * sum(rates[word] * PER_SERVER[run.causes[word].device] for word in rates)
    assert total == pytest.approx(per_thousand, rel=0.005)


def test_every_default_has_a_source_and_a_date() -> None:
    for name, figure in figures(load_reliability()):
        assert figure.source and (figure.source == "none" or figure.date), name


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"storage": {"write_bytes_per_s": 0}}, "run.storage.write_bytes_per_s: must be above 0"),
        ({"spares": {"hot": 4, "pool": 0}}, "run.spares.hot: must be at most run.spares.pool, 0"),
        ({"causes": {"gpu": {"per_device_day": -1}}}, "must not be negative, got -1"),
        ({"causes": {"gpu": {"per_device_day": float("nan")}}}, "must be a finite number, got nan"),
        ({"causes": {"gpus": {"per_device_day": 1}}}, "did you mean 'gpu'?"),
        ({"set": "matur"}, "unknown reliability 'matur' (did you mean 'mature'?)"),
        ({"checkpoints": {"mode": "asynch"}}, "must be 'sync', 'async' or 'memory'"),
        ({"checkpoints": {"interval_s": 0}}, "run.checkpoints.interval_s: must be greater than 0"),
        (
            {"checkpoints": {"every_steps": 0}},
            "run.checkpoints.every_steps: must be greater than or equal to 1",
        ),
        (
            {"checkpoints": {"every_steps": 50, "interval_s": 600}},
            "run.checkpoints.every_steps: cannot stand beside run.checkpoints.interval_s, 600 s",
        ),
        ({"restart": {"failing_fraction": 1.0}}, "must be below 1, got 1.0"),
        ({"lemons": 1}, "run.lemons: unknown field"),
    ],
)
def test_what_is_wrong_is_said(raw: dict[str, object], said: str) -> None:
    with pytest.raises(InputError) as error:
        read_run(raw, where="run.toml")
    (problem,) = error.value.problems
    assert problem.startswith("run.toml: run.") and said in problem


def test_an_interval_in_steps_is_that_many_predicted_step_times() -> None:
    """The same run as with as many seconds, of a long step and of one half as long."""

    def priced(batch: int, **checkpoints: float) -> tuple[float, float, float]:
        sizes = {"tp": 2, "sequence_length": 8192, "global_batch": batch, "tokens": 2e12}
        outcome = predict(**NAMES, **sizes, run={"checkpoints": checkpoints}).outcome
        assert outcome.real is not None
        step_s = float(outcome.real.terms.step_s[0, 0])
        return step_s, float(outcome.real.interval_s[0]), float(outcome.goodput[0])

    for batch in (512, 1024):
        step_s, interval_s, goodput = priced(batch, every_steps=200)
        assert interval_s == pytest.approx(200 * step_s, rel=1e-12)
        assert priced(batch, interval_s=interval_s) == (step_s, interval_s, goodput)
    with pytest.raises(InputError, match=r"every_steps: must be at most the steps of the run, 47"):
        priced(512, every_steps=1_000_000)
