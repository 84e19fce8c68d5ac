"""A table of offers: what is read, put on which cluster, and refused; the one that is shipped."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import simulator
from simulator.cli.main import app
from simulator.economics.money_spread import usd_spread
from simulator.economics.price import load_price, load_site
from simulator.economics.quotes import COLUMNS, price_spread, read_quotes
from simulator.errors import InputError
from simulator.files import Figure
from simulator.hardware.cluster import load_cluster

RUNNER = CliRunner()
NAMES = ["--model", "llama-3.2-1b", "--set", "training.tokens=1e12", "--set", "layout.tp=1"]
NAMES += ["--set", "layout.pp=1", "--set", "layout.cp=1", "--jobs", "1", "--gpus", "16"]
ROWS = (
    "AWS,aws-p5,H100,8,reserved,4.10,0.09,0.02,2026-11-01,quote 17",
    "Core,,H100 SXM,8,on demand,2.20,,,2026-10-01,quote 18",
    "Core,,H100 SXM,8,spot,1.10,,,2026-10-01,quote 18",
)


def table(folder: Path, *rows: str, header: str = ",".join(COLUMNS)) -> Path:
    path = folder / "offers.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


@pytest.mark.parametrize(
    ("gpu", "cluster"),
    [("h100-sxm", "dgx-h100"), ("a100-sxm-80", "dgx-a100"), ("gb200-nvl72", "gb200-nvl72")],
)
def test_a_gpu_may_have_the_name_of_its_profile(tmp_path: Path, gpu: str, cluster: str) -> None:
    (quote,) = read_quotes(table(tmp_path, f"Core,,{gpu},8,spot,1.10,,,2026-10-01,q"))
    assert quote.cluster == cluster


def test_a_row_is_put_on_its_instance_or_the_usual_server_of_its_gpu(tmp_path: Path) -> None:
    aws, core, spot = read_quotes(table(tmp_path, *ROWS))
    assert [quote.cluster for quote in (aws, core, spot)] == ["aws-p5", "dgx-h100", "dgx-h100"]
    assert (aws.egress_usd_per_gb, core.egress_usd_per_gb) == (0.09, None)
    origin = core.price("default").origin
    assert origin == {
        "usd_per_gpu_hour": 2.2,
        "provider": "Core",
        "term": "on demand",
        "date": "2026-10-01",
        "source": "quote 18",
        "grade": "datasheet",
        "base": "offer",
    }


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("AWS,aws-p5,H100,8,resrved,4,,,2026-11-01,q", "line 2: term: must be on demand"),
        ("AWS,aws-p5,H100,x,spot,4,,,2026-11-01,q", "line 2: gpus: must be a whole number"),
        ("AWS,aws-p5,H100,8,spot,0,,,2026-11-01,q", "usd_per_gpu_hour: must be a number above 0"),
        ("AWS,aws-p5,H100,8,spot,4,-1,,2026-11-01,q", "egress_usd_per_gb: must be blank or"),
        ("AWS,aws-p5,H100,8,spot,4,,,1.11.2026,q", "date: must be a day, as 2026-11-26"),
        ("AWS,,H1000,8,spot,4,,,2026-11-01,q", "gpu: unknown GPU; name a cluster profile"),
        (",aws-p5,H100,8,spot,4,,,2026-11-01,q", "provider: must not be blank"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, row: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        read_quotes(table(tmp_path, row))
    assert any(said in line for line in error.value.problems)
    done = RUNNER.invoke(app, ["compare", *NAMES, "--offers", str(tmp_path / "offers.csv")])
    assert done.exit_code == 2 and "Traceback" not in done.stderr


def test_columns_and_an_empty_table_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="usd_per_gpu_hour: required column is missing"):
        read_quotes(table(tmp_path, "AWS", header="provider"))
    with pytest.raises(InputError, match="must have an offer at least"):
        read_quotes(table(tmp_path))


def test_the_shipped_table_has_a_date_and_a_source_for_each_price() -> None:
    quotes = read_quotes("published")
    assert len(quotes) > 20
    for quote in quotes:
        assert quote.source and quote.date.startswith("2026-")
        assert load_cluster(quote.cluster, quote.gpus)
        assert quote.grade == ("datasheet" if quote.provider == "AWS" else "assumed")
    spheron = next(q for q in quotes if q.provider == "Spheron" and q.gpu == "GB200")
    assert 2 * spheron.usd_per_gpu_hour == 9.08, "a superchip has two"


def test_each_offer_is_compared_at_its_own_price(tmp_path: Path) -> None:
    path = table(tmp_path, *ROWS)
    done = RUNNER.invoke(app, ["compare", *NAMES, "--offers", str(path), "--json"])
    assert done.exit_code == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["price"]["base"] for row in rows] == ["offer"] * 3
    assert [row["usd_per_gpu_hour"] for row in rows] == [4.10, 2.20, 1.10]
    for row in rows:
        hours = 24.0 * row["days"]["p50"] * 16
        assert row["usd"]["p50"] == pytest.approx(hours * row["usd_per_gpu_hour"])
    demand, spot = rows[1:]
    assert spot["goodput"] < demand["goodput"], "spot servers are interrupted"
    # a checkpoint of 1.24 B parameters, fp32 weights and two moments: 14.8 GB at 0.09 USD
    assert rows[0]["beside_usd"]["egress"] == pytest.approx(1.24e9 * 12 * 0.09e-9, rel=0.25)
    assert demand["beside_usd"] is None, "blank is not known"
    one = simulator.compare(
        model="llama-3.2-1b", offers=path, clusters=["aws-p5"], gpus=[16], tokens=1e12, tp=1,
        pp=1, cp=1, jobs=1,
    )  # fmt: skip
    assert [row.named for row in one.rows] == ["AWS aws-p5, reserved"]
    with pytest.raises(InputError, match="must be the cluster of a row"):
        simulator.compare(model="llama-3.2-1b", offers=path, clusters=["dgx-a100"], gpus=[16])


def test_an_assumed_offer_is_off_as_published_ones_are_apart(tmp_path: Path) -> None:
    """Seven of H100 on demand, 2.25 to 6.88 USD: P10 2.31, P90 5.15 by linear quantiles of logs."""
    spread = np.log(5.153 / 2.309) / (2 * 1.28155)
    assert price_spread("h100 sxm", "on demand") == pytest.approx(spread, rel=1e-3)
    other = price_spread("GB200", "on demand")
    assert other == price_spread("L40S", "spot") > 0.2, "hardly any offers: as all are apart"
    row = "Somebody,,H100,8,on demand,2.50,,,2026-05-01,second hand"
    plain, guessed = (
        read_quotes(table(tmp_path, f"{row},{grade}", header=f"{','.join(COLUMNS)},grade"))[0]
        for grade in ("datasheet", "assumed")
    )
    money = {
        quote.grade: usd_spread(
            quote.price("default"),
            load_site("default"),
            power_share=np.zeros(1),
            energy=np.full(1, 0.1),
        )[0]
        for quote in (plain, guessed)
    }
    assert money == {"datasheet": 0.0, "assumed": pytest.approx(spread, rel=1e-3)}


def test_an_assumed_price_that_states_no_spread_has_that_of_offers() -> None:
    vague = replace(load_price("neocloud-gb200"), usd_per_gpu_hour=Figure(6.0, "assumed"))
    said = replace(vague, usd_per_gpu_hour=Figure(6.0, "assumed", spread=0.05))
    money = {"power_share": np.zeros(1), "energy": np.zeros(1)}
    assert usd_spread(vague, load_site("default"), **money)[0] == price_spread("", "on demand")
    assert usd_spread(said, load_site("default"), **money)[0] == 0.05
