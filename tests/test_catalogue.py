"""Where data is found: the user's folder first, and said so when it is not there."""

from pathlib import Path

import pytest

from simulator import catalogue
from simulator.economics.price import load_price
from simulator.errors import InputError


def test_a_users_profile_comes_before_the_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prices").mkdir()
    text = "included_power = true\nusd_per_gpu_hour = 1.25\n"
    (tmp_path / "prices" / "neocloud-h100.toml").write_text(text)
    monkeypatch.setenv("FORESHARD_PROFILES", str(tmp_path))
    assert load_price("neocloud-h100").usd_per_gpu_hour == 1.25
    assert catalogue.find("clusters", "dgx-h100").parent.name == "clusters"


def test_a_users_folder_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESHARD_PROFILES", "/no/such/folder")
    with pytest.raises(InputError, match="FORESHARD_PROFILES: no such folder"):
        load_price("neocloud-h100")


def test_an_unknown_profile_names_the_nearest() -> None:
    with pytest.raises(
        InputError, match=r"unknown cluster 'dgx-h10' \(did you mean 'dgx-h100'\?\)"
    ):
        catalogue.find("clusters", "dgx-h10")
