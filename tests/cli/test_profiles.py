"""`foreshard profiles`: list, show and check, on a screen and as JSON with frozen keys."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simulator._version import __version__
from simulator.cli.main import app
from simulator.files import GRADES
from simulator.profiles import KINDS

RUNNER = CliRunner()
SUMMARY = ["kind", "name", "title", "base", "borrowed", "grades", "weakest", "path"]


def run(*arguments: str, code: int = 0) -> str:
    result = RUNNER.invoke(app, ["profiles", *arguments])
    assert result.exit_code == code, result.stderr
    return result.stdout


def document(*arguments: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, "--json", code=code))
    assert list(found)[:3] == ["schema", "version", "command"]
    assert (found["schema"], found["version"]) == (1, __version__)
    assert found["command"] == f"profiles {arguments[0]}"
    return found


def test_list_counts_the_figures_of_every_profile_by_grade() -> None:
    rows = document("list")["profiles"]
    assert {row["kind"] for row in rows} == set(KINDS)
    assert [row["kind"] for row in rows] == sorted(
        (row["kind"] for row in rows), key=list(KINDS).index
    )
    for row in rows:
        assert list(row) == SUMMARY
        assert list(row["grades"]) == list(GRADES)
        present = [grade for grade, count in row["grades"].items() if count]
        assert row["weakest"] == (present[-1] if present else None)
    # one figure stated: 6.88 USD from a price list
    (price,) = [row for row in rows if (row["kind"], row["name"]) == ("prices", "aws-p5")]
    assert price["grades"] == {"measured": 0, "fitted": 0, "datasheet": 1, "assumed": 0}


def test_list_takes_one_kind() -> None:
    screen = run("list", "sites")
    assert "aws" in screen and "default" in screen and "dgx-h100" not in screen
    result = RUNNER.invoke(app, ["profiles", "list", "acelerators"])
    assert result.exit_code == 2
    assert result.stderr == (
        "profiles: unknown kind 'acelerators' (did you mean 'accelerators'?)\n"
    )


def test_show_resolves_base_and_loan() -> None:
    (found,) = document("show", "nodes/azure-mi300x")["profiles"]
    assert list(found) == [*SUMMARY, "settings", "figures"]
    assert (found["base"], found["borrowed"]) == ("mi300x-8", None)
    assert found["settings"]["scale_up.kind"] == "xgmi"
    figures = {row["name"]: row for row in found["figures"]}
    adapter = figures["scale_out.adapter_bytes_per_s"]
    assert list(adapter) == ["name", "value", "grade", "spread", "date", "source"]
    assert (adapter["value"], adapter["grade"]) == (50e9, "datasheet")
    assert "azure-docs" in adapter["source"]
    assert figures["scale_up.bandwidth_bytes_per_s"]["value"] == 448e9  # from the base
    (card,) = document("show", "accelerators/mi300x")["profiles"]
    assert card["borrowed"] == "h200-sxm"
    rows = {row["name"]: row for row in card["figures"]}
    assert rows["gemm.cublas.bf16.launch_s"]["grade"] == "assumed"


def test_show_gives_server_and_cluster_of_one_name() -> None:
    kinds = [row["kind"] for row in document("show", "dgx-h100")["profiles"]]
    assert kinds == ["nodes", "clusters"]
    screen = run("show", "prices/aws-p5")
    assert "usd_per_gpu_hour" in screen and "6.88" in screen and "55.04 USD" in screen


def test_an_unknown_profile_brings_the_nearest() -> None:
    result = RUNNER.invoke(app, ["profiles", "show", "h200-smx"])
    assert result.exit_code == 2
    assert "unknown profile 'h200-smx' (did you mean 'h200-sxm'?)" in result.stderr


def test_check_of_what_is_shipped_finds_nothing() -> None:
    found = document("check")
    assert list(found) == ["schema", "version", "command", "checked", "problems"]
    assert found["problems"] == [] and found["checked"] > 150
    assert run("check").endswith("nothing wrong\n")


def test_check_of_ones_own_files_names_file_and_field(tmp_path: Path) -> None:
    folder = tmp_path / "accelerators"
    folder.mkdir()
    good, bad = folder / "good.toml", folder / "bad.toml"
    good.write_text('base = "h100-sxm"\n')
    bad.write_text('base = "h100-sxm"\n[memory]\nusable_bytes = 99e9\n')
    result = RUNNER.invoke(app, ["profiles", "check", str(good), str(bad)])
    assert result.exit_code == 2
    assert result.stdout == "2 profiles read, 1 problems\n"
    assert result.stderr.startswith(f"{bad}: memory.usable_bytes: must be at most the capacity")
    found = document("check", str(bad), code=2)
    assert (found["checked"], len(found["problems"])) == (1, 1)
    assert document("check", str(folder / "none.toml"), code=2)["problems"]


def test_ones_own_folder_is_in_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "accelerators").mkdir()
    (tmp_path / "accelerators" / "mine.toml").write_text('# Our own\nbase = "h100-sxm"\n')
    monkeypatch.setenv("FORESHARD_PROFILES", str(tmp_path))
    rows = {row["name"]: row for row in document("list", "accelerators")["profiles"]}
    assert (rows["mine"]["title"], rows["mine"]["base"]) == ("Our own", "h100-sxm")
