"""Numbers of more digits than Python turns into a whole number, in every place that has a number.

`mutator` puts one somewhere; here each number of a sound file is one in its turn, since a reader
that bounds most of its numbers may miss one.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutations.importers import IMPORTERS, Room

DIGITS = b"9" * 4_301
FEW, MANY = 6, 400


@pytest.mark.parametrize("name", IMPORTERS)
@pytest.mark.parametrize("places", [FEW, pytest.param(MANY, marks=pytest.mark.evidence)])
def test_each_number_of_a_file_may_be_too_long(name: str, places: int, tmp_path: Path) -> None:
    importer = replace(IMPORTERS[name], whole=False)
    seeds = importer.seeds[:1] if places == FEW else importer.seeds[:8]
    with Room(tmp_path, importer, warm=False) as room:
        for seed in seeds:
            numbers = list(re.finditer(rb"\d+", seed))
            for number in numbers[:: max(len(numbers) * len(seeds) // places, 1)]:
                room.give(seed[: number.start()] + DIGITS + seed[number.end() :], whole=False)
    assert room.tally.crashes == []
