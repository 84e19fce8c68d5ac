"""Money on both sides of every limit, and by hand where tests had a factor of one."""

from __future__ import annotations

from dataclasses import replace
from math import exp, hypot, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator import catalogue
from simulator.economics.energy import draw_watt, energy_joule, load_carbon, mean_activity
from simulator.economics.ownership import (
    Use,
    hourly_usd,
    load_page,
    renting_usd_per_month,
    spot_useful,
)
from simulator.economics.planning_factor import PlanningFactor, Span, interval, quantile
from simulator.economics.price import cost_usd, load_price, load_site
from simulator.economics.quotes import COLUMNS, price_spread, read_quotes
from simulator.economics.rent_or_buy_cluster import rent_of, rent_or_buy_cluster
from simulator.errors import InputError
from simulator.files import Figure
from simulator.hardware.cluster import load_cluster

ROW = {
    **{"provider": "Core", "instance": "", "gpu": "H100", "gpus": "8", "term": "spot"},
    **{"usd_per_gpu_hour": "1.1", "egress_usd_per_gb": "", "storage_usd_per_gb_month": ""},
    **{"date": "2026-10-01", "source": "q"},
}


def offers(folder: Path, *rows: dict[str, str]) -> Path:
    path = folder / "offers.csv"
    text = [",".join(COLUMNS), *(",".join({**ROW, **row}.values()) for row in rows)]
    path.write_text("\n".join(text) + "\n")
    return path


@pytest.mark.parametrize(
    ("column", "fine", "wrong"),
    [
        ("usd_per_gpu_hour", "0.001", "0"), ("usd_per_gpu_hour", "999999999", "1e9"),
        ("gpus", "1", "0"), ("gpus", "1", "1.5"), ("gpus", "72", "-72"),
        ("gpus", "1", ""), ("gpus", "1", "inf"), ("usd_per_gpu_hour", "1", "nan"),
        ("egress_usd_per_gb", "0", "-0.01"), ("egress_usd_per_gb", "", "free"),
        ("storage_usd_per_gb_month", "0", "-0.01"), ("storage_usd_per_gb_month", "2.5", "1e9"),
        ("date", "2026-10-01", "2026-10-32"), ("term", "reserved", "owned"),
        ("gpu", "h100", "h101"), ("instance", "aws-p5", "aws-p55"), ("source", "a", ""),
    ],
)  # fmt: skip
def test_a_cell_beside_a_wrong_one_is_read(
    tmp_path: Path, column: str, fine: str, wrong: str
) -> None:
    (quote,) = read_quotes(offers(tmp_path, {column: fine}))
    if column not in ("gpu", "instance", "date", "term", "source"):
        found = getattr(quote, column)
        assert found == (float(fine) if fine else None)
    if column == "instance":
        (other,) = read_quotes(offers(tmp_path, {column: wrong}))
        assert (quote.cluster, other.cluster) == ("aws-p5", "dgx-h100")
        return
    with pytest.raises(InputError) as caught:
        read_quotes(offers(tmp_path, {}, {column: wrong}))
    (said,) = caught.value.problems
    assert f"line 3: {column}: " in said


def test_prices_of_five_offers_tell_how_far_they_are_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five of one GPU and term are enough; four are taken with all others, each over its median."""
    (tmp_path / "offers").mkdir()
    for name in ("offer_servers.toml", "accelerators", "clusters", "nodes", "prices"):
        whole = catalogue.folder("hardware_profiles") / name
        (tmp_path / name).symlink_to(whole)
    monkeypatch.setattr(catalogue, "folder", lambda _: tmp_path)

    def spread(*rows: tuple[str, float]) -> float:
        given = [{"term": term, "usd_per_gpu_hour": str(usd)} for term, usd in rows]
        offers(tmp_path / "offers", *given).rename(tmp_path / "offers" / "published.csv")
        price_spread.cache_clear()
        return price_spread("H100", "spot")

    five, two = [("spot", usd) for usd in (1, 2, 4, 8, 32)], [("reserved", 1.0), ("reserved", 16.0)]
    try:
        # the 0.1 and 0.9 quantiles of five lie 0.4 steps from the ends: ln 2 x 0.4, ln 2 x 4.2
        assert spread(*five, *two) == pytest.approx(log(2) * 3.8 / (2 * 1.2815516))
        # medians of two and four lie between: -1.5, -0.5, 0.5, 1.5 and -2, 2 in powers of two
        assert spread(*five[:4], *two, ("on demand", 3.0)) == pytest.approx(
            log(2) * 3.5 / (2 * 1.2815516)
        )
    finally:
        price_spread.cache_clear()


@pytest.mark.parametrize(
    ("field", "fine", "wrong"),
    [
        ("in_use", 1.0, 1.01), ("in_use", 0.01, 0.0), ("goodput", 1.0, 1.01),
        ("goodput", 0.01, 0.0), ("months", 1, 0), ("months", 240, 241),
        ("cooling", "liquid", "ice"),
    ],
)  # fmt: skip
def test_uses_on_both_sides_of_what_makes_sense(field: str, fine: Any, wrong: Any) -> None:
    cluster = load_cluster("dgx-h100", 8)
    found = rent_or_buy_cluster(cluster, replace(Use(gpus=8), **{field: fine}))
    assert getattr(found.use, field) == fine
    with pytest.raises(InputError, match=rf"^arguments: {field}: must be"):
        rent_or_buy_cluster(cluster, replace(Use(gpus=8), **{field: wrong}))


@pytest.mark.parametrize(
    ("usd", "busy", "said"),
    [(1e6, 1.0, ""), (1.01e6, 1.0, "usd_per_gpu_hour: must be above 0 and at most 1,000,000"),
     (0.0, 1.0, "usd_per_gpu_hour"), (1.0, 0.0, "busy"), (1.0, 1.01, "busy")],
)  # fmt: skip
def test_prices_and_shares_that_are_typed(usd: float, busy: float, said: str) -> None:
    cluster, use = load_cluster("dgx-h100", 8), Use(gpus=8, in_use=0.3)
    if said:
        with pytest.raises(InputError, match=said):
            rent_or_buy_cluster(cluster, use, usd_per_gpu_hour=usd, busy=busy)
        return
    found = rent_or_buy_cluster(cluster, use, usd_per_gpu_hour=usd, busy=busy)
    assert found.rents_usd_per_month["on demand"] == pytest.approx(8 * 730.5 * 0.3 * usd)
    assert found.price is not None and found.price["base"] == "typed"


def test_an_hour_less_a_discount_is_as_sure_as_both() -> None:
    """4 USD to 10 %, 30 % less to 20 %: of 2.8 USD 10 %, and 0.3/0.7 of 20 %."""
    rent = replace(
        load_page("h100").rent,
        on_demand_usd_per_gpu_hour=Figure(4.0, "datasheet", "a list", "2026-01-02", 0.1),
        reserved_discount_fraction=Figure(0.3, "datasheet", "a page", "", 0.2),
        spot_discount_fraction=None, spot_interruptions_per_day=Figure(5.0),
        spot_lost_s=Figure(1728.0),
    )  # fmt: skip
    hour = hourly_usd(rent, "reserved")
    assert hour is not None and float(hour) == pytest.approx(2.8)
    assert hour.spread == pytest.approx(hypot(0.1, 0.3 / 0.7 * 0.2))
    assert hour.source == "a list; 30 % less: a page"
    assert hourly_usd(rent, "spot") is None
    assert hourly_usd(rent, "on demand") is rent.on_demand_usd_per_gpu_hour
    assert spot_useful(rent) == pytest.approx(1 / 1.1)  # 5 x 1,728 s of a day
    asked = renting_usd_per_month(rent, Use(gpus=8, paid_gpus=12, in_use=0.25))
    month = 12 * 8766 / 12
    assert asked == pytest.approx({"on demand": month * 0.25 * 4.0, "reserved": month * 2.8})


def test_who_rents_pays_the_price_and_who_owns_has_none() -> None:
    assert rent_of(load_cluster("aws-p5", 8)).on_demand_usd_per_gpu_hour == 6.88
    owned = replace(load_cluster("aws-p5", 8), price="owned-h100")
    assert rent_of(owned).on_demand_usd_per_gpu_hour is None
    assert rent_of(owned).spot_lost_s == load_page("h100").rent.spot_lost_s


@pytest.mark.parametrize(
    ("price", "usd"), [("aws-p5", 7 * 6.88 * 2.5), ("owned-h100", 7 * 1.41 * 2.5 + 11 * 0.3)]
)
def test_two_and_a_half_hours_of_seven_accelerators(price: str, usd: float) -> None:
    known = load_price(price)
    hour = 1.41 if price == "owned-h100" else known.usd_per_gpu_hour
    assert hour is not None
    paid = cost_usd(
        seconds=9000.0, gpus=7, energy_joule=11 * 3.6e6, usd_per_gpu_hour=hour,
        electricity_usd_per_kwh=0.3, included_power=known.included_power,
    )  # fmt: skip
    assert float(paid) == pytest.approx(usd)


def test_students_t_is_the_expansion_of_abramowitz_and_stegun() -> None:
    """26.7.5: x + (x^3 + x) / 4n + (5x^5 + 16x^3 + 3x) / 96n^2, at x = 1.2815516 and n = 2."""
    x = 1.2815516
    t = x + (x**3 + x) / 8 + (5 * x**5 + 16 * x**3 + 3 * x) / 384
    low, high = interval(3.0, 0.7, 3)
    assert (low, high) == pytest.approx((3.0 * exp(-0.7 * t), 3.0 * exp(0.7 * t)), rel=1e-6)


def test_quantiles_and_chances_at_the_ends() -> None:
    """Tables of the normal distribution; a sure total is kept by any limit from it on."""
    for chance, z in ((0.5, 0.0), (0.975, 1.959964), (0.001, -3.090232)):
        assert quantile(chance) == pytest.approx(z, abs=1e-6)
    assert (quantile(1.0), quantile(0.0)) == (np.inf, -np.inf)
    sure = Span(p50=7.0, log_spread=0.0)
    assert [sure.chance_within(limit) for limit in (6.99, 7.0, 7.01)] == [0.0, 1.0, 1.0]
    wide = Span(p50=7.0, log_spread=0.5)
    assert wide.chance_within(7.0 * exp(0.5)) == pytest.approx(0.841345, abs=1e-6)
    assert wide.at(0.841345) == pytest.approx(7.0 * exp(0.5), rel=1e-5)


@pytest.mark.parametrize(("hours", "short"), [(None, False), (99.9, True), (100.0, False)])
def test_a_run_a_tenth_as_long_as_the_shortest_is_remarked(
    hours: float | None, short: bool
) -> None:
    factor = PlanningFactor(
        value=1.33, p10=0.9, p90=1.9, runs=17, kind="whole run", step_spread=0.1,
        least_gpu_hours=1000.0,
    )  # fmt: skip
    said = factor.sentence(hours)
    assert said.startswith("x 1.33 (0.90 to 1.90), which 17 published runs took on top: ")
    assert said.endswith("; all of them were far longer than this one") is short


def test_power_of_three_servers_of_seven_by_hand() -> None:
    """Two and a half servers' worth: whole ones idle in part, parts are somebody else's."""
    rates: dict[str, Any] = {
        "gpus_per_server": 7,
        "host_watt": 1100.0,
        "idle_watt": 60.0,
        "busy_watt": 510.0,
    }
    whole = draw_watt(gpus=17.5, activity=0.4, **rates)
    part = draw_watt(gpus=17.5, activity=0.4, whole=False, **rates)
    assert float(whole) == pytest.approx(3 * (1100 + 7 * 60) + 17.5 * 450 * 0.4)
    assert float(part) == pytest.approx(2.5 * (1100 + 7 * 60) + 17.5 * 450 * 0.4)
    assert float(mean_activity(step_time_s=8.0, busy_s=3.0, waiting_activity=0.2)) == 0.5
    energy = energy_joule(
        seconds=50.0, servers_watt=300.0, network_watt_fraction=0.25, power_usage_effectiveness=1.3
    )
    assert float(energy) == pytest.approx(300 / 0.75 * 50 * 1.3)


def test_every_region_says_whose_figure_it_is() -> None:
    table = load_carbon().g_per_kwh
    assert len(table) > 20 and load_site("default").region in table
    for region, grams in table.items():
        assert 1.0 < float(grams) < 1100.0, region
        assert grams.source and grams.date, region
