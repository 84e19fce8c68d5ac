"""The table of groups that no fit has seen: dense models and models with experts apart."""

from pathlib import Path

import pytest

from simulator import catalogue
from simulator.errors import InputError
from workshop.cases.holdout_groups import COLUMNS, TABLE, groups_left_out
from workshop.pages.accuracy.groups import groups_section


def test_dense_and_experts_make_up_every_group() -> None:
    lines = groups_left_out()
    assert {line["left_out"] for line in lines} == {
        *("source", "framework", "generation", "release", "device")
    }
    for line in lines:
        parts = [(line[f"{kind}_runs"], line[f"{kind}_mape"]) for kind in ("dense", "expert")]
        assert sum(runs for runs, _ in parts) == line["runs"]
        total = sum(runs * error for runs, error in parts if runs)
        assert total / line["runs"] == pytest.approx(line["mape"], abs=1.5e-4)


def test_the_groups_of_a_kind_make_up_all_of_it() -> None:
    lines = groups_left_out()
    for what in {line["left_out"] for line in lines}:
        own = [line for line in lines if line["left_out"] == what]
        *groups, total = own
        assert total["group"] == "all" and total["runs"] == sum(line["runs"] for line in groups)


def test_the_page_shows_both_kinds_and_blank_where_there_are_none() -> None:
    found: list[list[str]] = []

    def table(head: tuple[str, ...], rows: list[list[str]], **_: object) -> str:
        found.extend([list(head), *rows])
        return ""

    line = dict.fromkeys(COLUMNS, 0.5) | {"left_out": "source", "group": "a", "runs": 3}
    line |= {"dense_runs": 3, "dense_mape": 0.02, "expert_runs": 0, "expert_mape": None}
    list(groups_section([line], table, lambda value, sign="": f"{100 * value:{sign}.1f} %"))
    head, row = found
    cells = dict(zip(head, row, strict=True))
    assert (cells["dense"], cells["experts"]) == ("2.0 % (3)", "-")


def test_a_column_too_few_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / TABLE
    path.parent.mkdir()
    path.write_text("left_out,group,runs\nsource,a,1\n", encoding="utf-8")
    monkeypatch.setattr(catalogue, "folder", lambda _: tmp_path)
    with pytest.raises(InputError, match="dense_runs"):
        groups_left_out()
