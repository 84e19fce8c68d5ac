"""Every importer takes files that are nearly right: an answer, or a refusal that names them.

No traceback, no hang, no memory out of proportion. What 10,000 inputs of each came to is in
``validation/mutations.csv``, which ``count_mutations.py`` writes.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.mutations.importers import FLOOR_BYTES, IMPORTERS, Room

Reader = Callable[[Path], object]
FEW, MANY = 6, 1_000


@pytest.mark.parametrize("name", IMPORTERS)
@pytest.mark.parametrize("inputs", [FEW, pytest.param(MANY, marks=pytest.mark.evidence)])
def test_a_mutated_file_is_answered_or_refused(name: str, inputs: int, tmp_path: Path) -> None:
    with Room(tmp_path, IMPORTERS[name], warm=inputs == MANY) as room:
        for number in range(1, inputs + 1):
            room.run(number)
    assert room.tally.crashes == []
    assert room.tally.inputs == inputs == room.tally.taken + room.tally.refused


@pytest.mark.parametrize("name", IMPORTERS)
def test_sound_files_are_read(name: str, tmp_path: Path) -> None:
    importer = IMPORTERS[name]
    importer = replace(importer, seeds=importer.seeds[:3], whole=False)
    with Room(tmp_path, importer, warm=False) as room:
        for seed in importer.seeds:
            room.give(seed, whole=False)
    assert (room.tally.taken, room.tally.crashes) == (len(importer.seeds), [])


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Room]]:
    folder = tmp_path_factory.mktemp("drawn")
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(Room(folder, replace(importer, whole=False), warm=False))
            for name, importer in IMPORTERS.items()
        }


@settings(max_examples=settings.default.max_examples, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from([*IMPORTERS]), chance=st.randoms(use_true_random=False))
def test_what_hypothesis_draws_is_read_or_refused(
    rooms: dict[str, Room], name: str, chance: random.Random
) -> None:
    room = rooms[name]
    room.give(room.draw(chance), whole=False)
    assert room.tally.crashes == []


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (lambda path: len(b"x" * 2 * FLOOR_BYTES), "MiB for 0.000 MB"),
        (lambda path: {}["a bug"], "KeyError: 'a bug'"),
    ],
)
def test_what_is_looked_for_is_found(read: Reader, said: str, tmp_path: Path) -> None:
    importer = replace(IMPORTERS["actions.csv"], read=lambda path: None)
    with Room(tmp_path, importer, warm=False) as room:
        room.importer = replace(importer, read=read)
        room.give(importer.seeds[0], whole=False)
    (crash,) = room.tally.crashes
    assert said in crash
