"""`foreshard rent-or-buy`: screen, frozen keys of its document, bad input."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import simulator
from simulator.cli.main import app
from simulator.economics.ownership import load_page
from simulator.economics.price import load_price
from simulator.errors import InputError
from simulator.units import show_usd

RUNNER = CliRunner(env={"COLUMNS": "160"})
RUN = ["rent-or-buy", "--cluster", "dgx-h100", "--gpus", "64"]


def test_document_and_own_page(tmp_path: Path) -> None:
    page = tmp_path / "mine.toml"
    page.write_text('base = "h100"\n[own]\nserver_usd = 155000\n')
    shipped = json.loads(RUNNER.invoke(app, [*RUN, "--json"]).stdout)
    mine = json.loads(RUNNER.invoke(app, [*RUN, "--page", str(page), "--json"]).stdout)
    assert list(mine) == [
        *(
            "schema",
            "version",
            "command",
            "cluster",
            "gpus",
            "paid_gpus",
            "page",
            "use",
            "once_usd",
        ),
        *("per_month_usd", "price", "rents_usd_per_month", "pay_back_month"),
        *("pay_back_month_with_capital", "break_even_month", "break_even_month_with_capital"),
        *("resale_at_break_even_usd", "discounts"),
        *("usd_per_useful_gpu_hour", "usd_per_useful_gpu_hour_with_capital", "owned_cash_usd"),
        *("rented_cash_usd", "resale_usd", "owned_usd", "rented_usd", "caveats"),
    ]
    assert mine["once_usd"]["servers"] == shipped["once_usd"]["servers"] / 2 == 8 * 155_000
    assert mine["break_even_month"]["on demand"] < shipped["break_even_month"]["on demand"]


def test_python_says_the_same_and_refuses_the_same() -> None:
    options = ["--in-use", "0.5", "--months", "12", "--liquid", "--json"]
    said = json.loads(RUNNER.invoke(app, [*RUN, *options]).stdout)
    found = simulator.rent_or_buy("dgx-h100", 64, in_use=0.5, months=12, cooling="liquid")
    assert found.document() == said
    frame = found.to_frame()
    assert frame["month"].tolist() == list(range(1, 13))
    assert frame["owned_usd"].tolist() == said["owned_usd"]
    assert frame["on_demand_usd"].tolist() == said["rented_usd"]["on demand"]
    with pytest.raises(InputError, match="cooling: must be air or liquid") as error:
        simulator.rent_or_buy("dgx-h100", 64, months=0, cooling="water")
    assert "months: must be 1 to 240" in str(error.value)


def test_a_price_stands_for_that_of_the_page_and_the_discounts_stay() -> None:
    shipped = json.loads(RUNNER.invoke(app, [*RUN, "--json"]).stdout)
    half = float(load_price("neocloud-h100").usd_per_gpu_hour or 0.0) / 2
    mine = json.loads(RUNNER.invoke(app, [*RUN, "--price", str(half), "--json"]).stdout)
    for tier, usd in shipped["rents_usd_per_month"].items():
        assert mine["rents_usd_per_month"][tier] == pytest.approx(usd / 2), tier
    assert mine["once_usd"] == shipped["once_usd"]
    assert mine["owned_usd"] == shipped["owned_usd"]
    assert simulator.rent_or_buy("dgx-h100", 64, usd_per_gpu_hour=half).document() == mine


def test_screen() -> None:
    done = RUNNER.invoke(app, [*RUN, "--in-use", "0.8", "--liquid"])
    assert (done.exit_code, done.stderr) == (0, "")
    text = " ".join(done.stdout.split())
    for words in ("rented, on demand", "rented, spot", "bought", "pays back",
                  "if sold then, assumed", "sold, with capital",
                  "reserved 37.5 % less than on demand", "Discounts", "in use 80 %",
                  "No source was found for",
                  "support_fraction"):  # fmt: skip
        assert words in text, words


def test_total_over_hours_is_the_price_of_an_hour() -> None:
    """The total of bought servers was without what they sell for, its price of an hour with it."""
    done = RUNNER.invoke(app, [*RUN, "--months", "24"])
    row = next(x for x in done.stdout.splitlines() if x.startswith("bought, then sold"))
    total, unit, hour = re.search(r" ([\d.]+) ([kM]) +([\d.]+) \(", row).groups()
    usd = float(total) * {"k": 1e3, "M": 1e6}[unit]
    assert usd / (64 * 24 * 365.25 * 24 / 12) == pytest.approx(float(hour), rel=0.01)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--price", "0"], "usd_per_gpu_hour: must be above 0 and at most"),
        (["--in-use", "1.2"], "in_use: must be above 0 and at most 1"),
        (["--page", "h101"], "did you mean 'h100'"),
        (["--cluster", "dgx-1v"], "no page says what it costs"),
    ],
)
def test_bad_input(options: list[str], words: str) -> None:
    done = RUNNER.invoke(app, [*RUN, *options])
    assert done.exit_code == 2 and words in done.stderr


def test_the_screen_says_what_the_servers_are_sold_for() -> None:
    """Eight servers, two years of the loss of value that the page states."""
    page = load_page("h100")
    kept = float(page.own.remaining_value_fraction) ** 2 * 8 * float(page.own.server_usd)
    shown = RUNNER.invoke(app, [*RUN, "--months", "24"]).stdout
    assert f"servers {show_usd(kept)}, taken off the " in shown


def test_no_cell_is_cut_on_a_narrow_screen() -> None:
    narrow = CliRunner(env={"COLUMNS": "80"}).invoke(
        app, [*RUN[:2], "gb200-nvl72", "--gpus", "144"]
    )
    table = narrow.stdout.partition("Rent\n")[0]
    assert "~" not in table and "rented, reserved" in table
    assert "\nreserved    month 20" in table
