"""Rates and shape of a log of incidents: tables of chi-squared, the equation of the likeliest."""

from dataclasses import replace
from math import log
from pathlib import Path

import numpy as np
import pytest

from simulator.reliability.incidents import (
    FittedRate,
    FittedShape,
    Incidents,
    read_incidents,
    with_rates,
)
from simulator.reliability.reliability_profile import load_reliability

DEVICES = {"gpu": 100.0, "node": 13.0, "adapter": 100.0, "leaf": 8.0, "spine": 0.0}


@pytest.mark.parametrize(
    ("cause", "count", "low", "high"),
    # Half of what chi-squared with 2 n + 1 degrees of freedom is at 0.1 and 0.9, in 1,000 days.
    [
        ("gpu", 10, 13.240, 29.615),
        ("adapter", 20, 29.907, 52.949),
        ("leaf_switch", 2, 1.610, 9.236),
    ],
)
def test_a_rate_is_a_count_over_device_days_with_the_interval_of_poisson(
    tmp_path: Path, cause: str, count: int, low: float, high: float
) -> None:
    """Days from the 1st to the 10th, in which each device is there for ten."""
    path = tmp_path / "incidents.csv"
    days = [1, 10, *range(2, count)]
    lines = [f"2026-11-{1 + (day - 1) % 10:02},{cause}" for day in days]
    path.write_text("\n".join(["date,cause", *lines]) + "\n")
    found = read_incidents(path, load_reliability(), DEVICES)
    rates = {rate.cause: rate for rate in found.rates}
    assert (found.days, rates[cause].count, len(lines)) == (10.0, count, count)
    device_days = 10.0 * DEVICES["leaf" if cause == "leaf_switch" else cause]
    assert rates[cause].per_device_day == pytest.approx((count + 0.5) / device_days)
    assert rates[cause].p10 == pytest.approx(low / 2.0 / device_days, rel=0.02)
    assert rates[cause].p90 == pytest.approx(high / 2.0 / device_days, rel=0.02)
    none = rates["software"]
    assert (none.count, none.per_device_day, none.p10 >= 0.0) == (0, 0.0, True)
    # chi-squared with one degree of freedom at 0.9 is 2.706
    assert none.p90 == pytest.approx(2.706 / 2.0 / 1000.0, rel=0.03)
    spine = rates["spine_switch"]
    assert (spine.per_device_day, spine.p10, spine.p90) == (0.0, 0.0, 0.0)


def test_the_shape_is_the_likeliest_at_the_age_of_the_fleet(tmp_path: Path) -> None:
    """A fleet of 20 days, then 40 days of log: n / b + sum ln t = n (ln of the ends, weighted).

    The first and the last failure say how long the log is; a day stands for its noon.
    """
    days = [1, 3, 5, 8, 10, 13, 15, 18, 20, 22, 25, 28, 30, 33, 35, 38, 39, 40]
    path = tmp_path / "incidents.csv"
    dates = [f"2026-{'10' if day <= 31 else '11'}-{(day - 1) % 31 + 1:02}" for day in days]
    path.write_text("\n".join(["date,cause", *(f"{date},gpu" for date in dates)]) + "\n")
    run = replace(load_reliability(), age_s=20.0 * 86_400)
    found = read_incidents(path, run, DEVICES)
    assert found.days == 40.0 and found.shape is not None
    b, ages = found.shape.shape, [20.0 + day - 0.5 for day in days[1:-1]]
    first, last = 20.0**b, 60.0**b
    ends = (last * log(60.0) - first * log(20.0)) / (last - first)
    n = len(ages)
    assert n / b + sum(map(log, ages)) == pytest.approx(n * ends, rel=1e-6)
    assert found.shape.low < b < found.shape.high


@pytest.mark.parametrize("shape", [0.6, 1.4])
def test_as_many_failures_are_expected_in_a_log_as_there_were(shape: float) -> None:
    """Rates of hardware follow t^(b - 1): their mean over a log is the one that it has."""
    run = load_reliability()
    rates = tuple(
        FittedRate(cause=cause, count=9, per_device_day=3e-3, p10=2e-3, p90=4e-3)
        for cause in ("gpu", "software")
    )
    known = FittedShape(shape=shape, low=shape - 0.1, high=shape + 0.1, kept=True)
    days, age = 50.0, 20.0
    said = Incidents(where="log", days=days, rates=rates, shape=known, age_s=age * 86_400)
    fitted = with_rates(run, said)
    assert float(fitted.early_shape) == shape
    assert fitted.reference_age_s == (age + days / 2) * 86_400
    moments = age + days * (np.arange(20_000) + 0.5) / 20_000
    factor = (moments / (age + days / 2)) ** (shape - 1.0)
    gpu, software = (float(fitted.causes[cause].per_device_day) for cause in ("gpu", "software"))
    assert gpu * factor.mean() == pytest.approx(3e-3, rel=1e-6)
    assert software == 3e-3  # what people write has no age
    assert fitted.causes["gpu"].per_device_day.spread == pytest.approx(1 / 9.5**0.5)
    doubtful = with_rates(run, replace(said, shape=replace(known, kept=False)))
    assert float(doubtful.causes["gpu"].per_device_day) == 3e-3
