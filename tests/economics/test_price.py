"""Prices: what is included, what is added, and how the shipped ones compare."""

from dataclasses import replace

import numpy as np
import pytest

from simulator.economics.price import cost_usd, load_price, load_site
from simulator.errors import InputError
from simulator.files import Figure


def bill(
    price_name: str, *, seconds: object = 3600.0, gpus: object = 8, joule: object = 0.0
) -> float:
    price = load_price(price_name)
    site = load_site(price.site)
    usd = cost_usd(
        seconds=seconds,
        gpus=gpus,
        energy_joule=joule,
        usd_per_gpu_hour=price.usd_per_gpu_hour,
        electricity_usd_per_kwh=site.electricity_usd_per_kwh,
        included_power=price.included_power,
    )
    return float(usd)


def test_an_hour_of_a_p5_costs_its_list_price() -> None:
    assert bill("aws-p5") == pytest.approx(55.04)
    assert bill("aws-p4d") == pytest.approx(21.957642, rel=1e-4)
    assert bill("aws-p4de") == pytest.approx(27.44705, rel=1e-4)


def test_rented_power_is_not_paid_twice() -> None:
    assert bill("neocloud-h100", joule=3.6e9) == bill("neocloud-h100")


def test_owned_power_is_paid_by_the_kilowatt_hour() -> None:
    # 10 kWh at 0.08 USD
    assert bill("owned-h100", joule=36e6) - bill("owned-h100") == pytest.approx(0.80)


def test_a_month_of_a_thousand_owned_accelerators() -> None:
    # 1,024 x 720 h x 1.41 USD = 1,039,565 USD, no electricity
    assert bill("owned-h100", seconds=720 * 3600.0, gpus=1024) == pytest.approx(1_039_564.8)


def test_cost_broadcasts_and_is_linear() -> None:
    seconds = np.array([[1.0], [2.0]]) * 3600
    usd = cost_usd(
        seconds=seconds,
        gpus=np.array([8, 16, 32]),
        energy_joule=0.0,
        usd_per_gpu_hour=2.0,
        electricity_usd_per_kwh=0.1,
        included_power=True,
    )
    assert usd.tolist() == [[16, 32, 64], [32, 64, 128]]


def test_a_larger_or_newer_part_is_never_cheaper() -> None:
    parts = ["a100-40", "a100", "h100", "h200", "b200", "gb200"]
    prices = [float(load_price(f"neocloud-{part}").usd_per_gpu_hour) for part in parts]
    assert prices == sorted(prices)
    assert load_price("aws-p4d").usd_per_gpu_hour < load_price("aws-p4de").usd_per_gpu_hour


def test_estimates_are_not_shown_as_quotes() -> None:
    # Only list prices that a provider publishes carry more than the weakest grade.
    for name in ("neocloud-h100", "neocloud-gb200", "owned-h100"):
        assert load_price(name).usd_per_gpu_hour.grade == "assumed"
    assert load_price("aws-p5").usd_per_gpu_hour.grade == "datasheet"


def test_an_unknown_price_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown price 'neocloud-h10' \(did you mean 'neocloud-"):
        load_price("neocloud-h10", where="x.toml", field="price")


@pytest.mark.parametrize(
    ("base", "date", "words"),
    [
        ("typed", "", "3.25 USD per GPU-hour, yours"),
        ("typed", "2026-11-01", "3.25 USD per GPU-hour (on demand, lender, 2026-11-01)"),
        ("list", "", "3.25 USD per GPU-hour (on demand, lender)"),
        ("list", "2026-11-01", "3.25 USD per GPU-hour (on demand, lender, 2026-11-01)"),
    ],
)
def test_a_price_is_mine_where_i_typed_it_and_nobody_dated_it(
    base: str, date: str, words: str
) -> None:
    figure = Figure(3.25, "datasheet", "a page", date)
    stated = {"base": base, "provider": "lender", "term": "on demand", "usd_per_gpu_hour": figure}
    assert replace(load_price("neocloud-h100"), **stated).words() == words
