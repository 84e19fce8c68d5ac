"""[economics]: each basis by hand, what is put over a page, what is wrong with it."""

import math
from typing import Any

import pytest

import simulator
from simulator.economics.economics_section import read_economics, tariff_of
from simulator.economics.energy import co2_kg
from simulator.economics.ownership import load_page
from simulator.economics.price import load_price
from simulator.errors import InputError
from simulator.hardware.cluster import load_cluster

NAMES: dict[str, Any] = {"model": "llama-3.1-8b", "cluster": "dgx-h100", "gpus": 64, "tp": 2}
RUN = {**NAMES, "global_batch": 128, "tokens": 1e12}
RENT = {
    "on_demand_usd_per_gpu_hour": 3.0,
    "reserved_discount_fraction": 0.4,
    "spot_discount_fraction": 0.5,
    "spot_interruptions_per_day": 4.0,
}
NOTHING = dict.fromkeys(
    (
        *("network_one_tier_fraction", "network_two_tiers_fraction", "storage_fraction"),
        *("network_three_tiers_fraction", "installation_fraction", "space_usd_per_kw_month"),
        *("staff_usd_per_server_year", "support_fraction", "remaining_value_fraction"),
    ),
    0.0,
)


def hourly(**section: Any) -> float:
    cluster = load_cluster("dgx-h100", 64)
    price = tariff_of(read_economics(section, cluster, where="test"), cluster).price
    assert price.usd_per_gpu_hour is not None
    return float(price.usd_per_gpu_hour)


@pytest.mark.parametrize(
    ("section", "usd"),
    [
        ({"basis": "on demand", "in_use": 0.5}, 3.0),  # paid for the hours in use
        ({"basis": "reserved", "in_use": 0.5}, 3.0 * 0.6 / 0.5),  # and for idle ones
        ({"basis": "spot", "in_use": 0.5}, 1.5),
        ({"usd_per_gpu_hour": 2.1, "basis": "spot"}, 2.1),
    ],
)
def test_rent_is_paid_as_its_terms_say(section: dict[str, Any], usd: float) -> None:
    assert hourly(**section, rent=RENT) == pytest.approx(usd, rel=1e-12)


@pytest.mark.parametrize(
    ("cluster", "basis", "usd"),
    [
        ("oci-h100", "on demand", 10.00),
        ("azure-ndv5", "on demand", 12.29),
        ("aws-p5", "on demand", 6.88),
        ("dgx-h100", "on demand", 2.99),
        ("dgx-h100", "reserved", 2.99 * 0.625),
        ("dgx-h100", "spot", 2.99 * 0.425),
        ("aws-p5en", "spot", 26.57 / 8),  # per instance of eight, dstackai/dstack#4110
    ],
)
def test_a_basis_starts_from_the_price_of_the_cluster(cluster: str, basis: str, usd: float) -> None:
    made = load_cluster(cluster, 64)
    own = load_price(made.price)
    price = tariff_of(read_economics({"basis": basis}, made, where="test"), made).price
    origin = price.origin
    assert origin["usd_per_gpu_hour"] == pytest.approx(usd, rel=2e-3)
    assert (origin["provider"], origin["term"]) == (own.provider, basis)
    assert origin["base"] == "cluster" and own.usd_per_gpu_hour is not None
    assert str(origin["source"]).startswith(own.usd_per_gpu_hour.source)
    if basis != "on demand":
        assert " % less: " in str(origin["source"]), "the discount has its source"


@pytest.mark.parametrize(
    ("cluster", "basis", "said"),
    [
        ("oci-h100", "reserved", "no discount of Oracle Cloud on 10.00 USD an hour (oci-h100)"),
        ("azure-ndv5", "reserved", "no discount of Azure on 12.29 USD an hour (azure-ndv5)"),
        ("aws-p5", "spot", "no discount of AWS on 6.88 USD an hour (aws-p5) is known: give"),
        ("gcp-a3-mega", "spot", "no price on demand of gcp-a3-mega is known"),
    ],
)
def test_no_discount_is_borrowed(cluster: str, basis: str, said: str) -> None:
    made = load_cluster(cluster, 64)
    with pytest.raises(InputError) as error:
        read_economics({"basis": basis}, made, where="run.toml")
    (line,) = error.value.problems
    assert line.startswith("run.toml: economics.basis: ") and said in line
    field = "reserved" if basis == "reserved" else "spot"
    rent = {"on_demand_usd_per_gpu_hour": 8.0, f"{field}_discount_fraction": 0.25}
    told = read_economics({"basis": basis, "rent": rent}, made, where="run.toml")
    assert tariff_of(told, made).price.origin["usd_per_gpu_hour"] == pytest.approx(6.0)
    assert tariff_of(told, made).price.origin["base"] == "typed"


def test_servers_that_are_bought_are_paid_in_the_hours_in_use() -> None:
    """8 servers of 240,000 USD over 24 months, half in use: 64 x 8,766 x 2 x 0.5 hours."""
    section = {"basis": "own", "months": 24, "in_use": 0.5, "site": {"electricity_usd_per_kwh": 0}}
    usd = hourly(**section, own={**NOTHING, "server_usd": 240_000})
    assert usd == pytest.approx(8 * 240_000 / (64 * 8766 * 2 * 0.5), rel=1e-12)
    half = {**NOTHING, "server_usd": 240_000, "remaining_value_fraction": math.sqrt(0.5)}
    assert hourly(**section, own=half) == pytest.approx(usd / 2.0, rel=1e-12)


def test_an_hour_of_owned_servers_is_as_sure_as_their_price() -> None:
    """The page of H200 has the price of a server, assumed, to 20 % (`hardware_profiles`)."""
    cluster = load_cluster("hgx-h200", 64)
    price = tariff_of(read_economics({"basis": "own"}, cluster, where="test"), cluster).price
    assert price.usd_per_gpu_hour is not None and price.usd_per_gpu_hour.spread == 0.2


def test_electricity_of_owned_servers_is_dearer_by_the_tariff_and_cooling() -> None:
    def with_power(usd_per_kwh: float, cooling: str) -> float:
        return hourly(
            basis="own", cooling=cooling, site={"electricity_usd_per_kwh": usd_per_kwh}, own=NOTHING
        )

    page, without = load_page("h100").own, with_power(0.0, "air")
    air, liquid = (with_power(0.1, cooling) - without for cooling in ("air", "liquid"))
    assert with_power(0.2, "air") - without == pytest.approx(2.0 * air, rel=1e-9)
    ratio = float(page.air_power_usage_effectiveness / page.liquid_power_usage_effectiveness)
    assert air / liquid == pytest.approx(ratio, rel=1e-9)
    assert 0.05 < air < 0.2  # 10 kW a server, 1.28 kW a GPU with cooling


def test_without_a_section_the_price_is_that_of_the_cluster() -> None:
    cluster = load_cluster("dgx-h100", 64)
    assert tariff_of(None, cluster).price == load_price(cluster.price)
    assert hourly() == float(load_price(cluster.price).usd_per_gpu_hour or 0.0)


def test_a_run_on_spot_servers_is_interrupted_as_often_as_they_are() -> None:
    spot = simulator.predict(**RUN, economics={"basis": "spot", "rent": RENT})
    whole = simulator.predict(**RUN, economics={"basis": "on demand", "rent": RENT})
    run = spot.scenario.run
    assert run.rates["preemption"] * spot.scenario.cluster.nodes == pytest.approx(4.0)
    assert spot.outcome.goodput[0] < whole.outcome.goodput[0]
    hours = spot.outcome.gpu_hours[0] / whole.outcome.gpu_hours[0]
    assert spot.outcome.usd[0] / whole.outcome.usd[0] == pytest.approx(hours / 2.0, rel=1e-9)
    own = {"causes": {"preemption": {"per_device_day": 0.0}}}
    calm = simulator.predict(**RUN, economics={"basis": "spot", "rent": RENT}, run=own)
    assert calm.outcome.goodput[0] == whole.outcome.goodput[0]


def test_compare_pays_by_it_and_counts_carbon_of_its_region() -> None:
    found = simulator.compare(
        model="llama-3.1-8b",
        clusters=["dgx-h100"],
        gpus=[64],
        jobs=1,
        economics={"usd_per_gpu_hour": 1.7, "region": "france"},
        **{"global_batch": 128, "tokens": 1e12, "tp": 2, "pp": 1, "cp": 1, "micro_batch": 1},
    )
    (row,) = found.rows
    assert (row.usd_per_gpu_hour, row.price_name) == (1.7, "given")
    assert row.price is not None and row.price["base"] == "typed"
    assert row.kwh is not None and row.co2_kg == pytest.approx(co2_kg(row.kwh.p50, "france"))


@pytest.mark.parametrize(
    ("cluster", "section", "said"),
    [
        ("dgx-h100", 3, "economics: must be a table, got 3"),
        ("dgx-h100", {"basis": "rented"}, "economics.basis: must be 'profile'"),
        ("dgx-h100", {"own": {"server_used": 3}}, "(did you mean 'server_usd'?)"),
        ("dgx-h100", {"own": {"server_usd": -3}}, "economics.own.server_usd: must not be negative"),
        ("dgx-h100", {"own": 3}, "economics.own: must be a table"),
        ("dgx-h100", {"rent": {"spot_discount_fraction": 1.2}}, "must be below 1, got 1.2"),
        ("dgx-h100", {"rent": {"spot_discount_fraction": 1}}, "must be below 1, got 1"),
        ("dgx-h100", {"usd_per_gpu_hour": 0}, "usd_per_gpu_hour: must be above 0"),
        ("dgx-h100", {"rent": {"on_demand_usd_per_gpu_hour": 0}}, "must be above 0"),
        ("dgx-h100", {"region": "frace"}, "(did you mean 'france'?)"),
        ("dgx-h100", {"page": "h10"}, "economics.page: unknown rent_or_buy 'h10'"),
        ("dgx-h100", {"in_use": 0}, "economics.in_use: must be greater than 0"),
        ("tpu-v4", {"basis": "own"}, "economics.basis: needs [economics.own], or economics.page"),
        ("tpu-v4", {"basis": "own", "own": NOTHING}, "economics.own.server_usd: required"),
    ],
)
def test_what_is_wrong_is_said(cluster: str, section: Any, said: str) -> None:
    with pytest.raises(InputError) as error:
        read_economics(section, load_cluster(cluster, 64), where="run.toml")
    assert any(line.startswith("run.toml: econ") and said in line for line in error.value.problems)


@pytest.mark.parametrize(
    ("word", "basis"), [("owned", "own"), ("on_demand", "on demand"), ("On-Demand", "on demand")]
)
def test_a_basis_may_be_spelled_as_terms_and_fields_are(word: str, basis: str) -> None:
    made = load_cluster("dgx-h100", 8)
    read = [read_economics({"basis": name}, made, where="test") for name in (word, basis)]
    assert read[0] == read[1] and read[0].basis == basis
