"""The committed counts are of every importer, and the accuracy page words them."""

from __future__ import annotations

from tests.mutations.importers import IMPORTERS, MUTATORS, SECONDS_PER_MB
from workshop.cases.mutated_inputs import mutated_inputs
from workshop.pages.accuracy.mutations import mutations_section

LEAST_INPUTS = 10_000


def test_every_importer_that_is_counted_was_given_ten_thousand_files_and_none_broke_it() -> None:
    rows = {(row["mutator"], row["importer"]): row for row in mutated_inputs()}
    assert list(rows) == [
        (mutator, name) for mutator in MUTATORS for name in IMPORTERS if (mutator, name) in rows
    ]
    assert {name for mutator, name in rows if mutator == "drawn"}
    for row in rows.values():
        assert row["inputs"] >= LEAST_INPUTS, row
        assert row["crashes"] == 0, row
        assert row["answered"] + row["refused"] == row["inputs"]
        assert row["slowest_s_per_mb"] <= SECONDS_PER_MB, row


def test_the_section_sums_inputs_and_crashes() -> None:
    row = {
        **{"importer": "a.csv", "mutator": "changed", "inputs": 10_000, "commands": 5},
        **{"answered": 1, "refused": 9_998, "crashes": 1, "slowest_s": 0.25},
        **{"slowest_s_per_mb": 1.0, "most_memory_mib": 3.0, "date": "2026-11-23"},
    }
    drawn = row | {"mutator": "drawn", "inputs": 7_000}
    lines = list(mutations_section([row, row, drawn], lambda head, rows: [head, *rows]))
    assert lines[1].startswith("20,000 sound files")
    assert "7,000 were drawn" in lines[1]
    assert "3 ended in anything but an answer or a refusal" in lines[1]
    head, first, *_ = lines[2]
    assert dict(zip(head, first, strict=True))["refused"] == "9,998"
    assert list(mutations_section([], lambda *_: "")) == []
