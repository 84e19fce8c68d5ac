"""Every importer takes files that are nearly right: an answer, or a refusal that names them.

No traceback, no hang, no memory out of proportion. What 20,000 inputs of each came to is in
``validation/mutations.csv``, which ``count_mutations.py`` writes.
"""

import json
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.workload.huggingface import from_hf
from tests.mutations.importers import FLOOR_BYTES, IMPORTERS, MUTATORS, Room

Reader = Callable[[Path], object]
FEW, MANY = 6, 1_000


@pytest.mark.parametrize("name", IMPORTERS)
@pytest.mark.parametrize("mutator", MUTATORS)
@pytest.mark.parametrize("inputs", [FEW, pytest.param(MANY, marks=pytest.mark.evidence)])
def test_a_mutated_file_is_answered_or_refused(
    name: str, mutator: str, inputs: int, tmp_path: Path
) -> None:
    with Room(tmp_path, IMPORTERS[name], warm=inputs == MANY, mutator=mutator) as room:
        for number in range(1, inputs + 1):
            room.run(number)
    assert room.tally.crashes == []
    assert room.tally.inputs == inputs == room.tally.taken + room.tally.refused
    assert room.tally.taken or inputs == FEW


@pytest.mark.parametrize("name", IMPORTERS)
def test_sound_files_are_read(name: str, tmp_path: Path) -> None:
    importer = IMPORTERS[name]
    importer = replace(importer, seeds=importer.seeds[:3], whole=False)
    with Room(tmp_path, importer, warm=False) as room:
        for seed in importer.seeds:
            room.give(seed, whole=False)
    assert (room.tally.taken, room.tally.crashes) == (len(importer.seeds), [])


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], Room]]:
    folder = tmp_path_factory.mktemp("drawn")
    with ExitStack() as stack:
        yield {
            (name, mutator): stack.enter_context(
                Room(folder, replace(importer, whole=False), warm=False, mutator=mutator)
            )
            for name, importer in IMPORTERS.items()
            for mutator in MUTATORS
        }


@settings(max_examples=settings.default.max_examples, suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from([*IMPORTERS]),
    mutator=st.sampled_from(MUTATORS),
    chance=st.randoms(use_true_random=False),
)
def test_what_hypothesis_draws_is_read_or_refused(
    rooms: dict[tuple[str, str], Room], name: str, mutator: str, chance: random.Random
) -> None:
    room = rooms[name, mutator]
    room.give(room.draw(chance), whole=False)
    assert room.tally.crashes == []


def test_a_list_where_a_size_stands_is_not_repeated_by_another() -> None:
    """2^62 items: found by inputs that are drawn."""
    wrong = {"out_channels": ["x"], "patch_size": 2**31}
    with pytest.raises(InputError, match="num_layers: required field is missing"):
        from_hf({"model_type": "SanaTransformer2DModel", **wrong}, name="drawn", where="c")


@pytest.mark.parametrize(
    ("name", "sound", "other", "answered"),
    [
        ("node.toml", b'kind = "nvlink"', b'kind = "ualink"', False),  # NCCL has no figures for it
        ("fsdp2.py", b"param_dtype=torch.bfloat16", b"param_dtype=[1]", True),
        ("rl.yaml", b'"policy": {', b'"policy": {"train_global_batch_size": "x", ', False),
    ],
)
def test_what_was_found_by_inputs_that_are_drawn(
    name: str, sound: bytes, other: bytes, answered: bool, tmp_path: Path
) -> None:
    importer = IMPORTERS[name]
    with Room(tmp_path, importer, warm=False) as room:
        raw = next(seed for seed in importer.seeds if sound in seed)
        room.give(raw.replace(sound, other))
    assert (room.tally.crashes, room.tally.taken) == ([], answered)


@pytest.mark.parametrize("name", ["accelerate.yaml", "torchtune.yaml", "recipe.yaml"])
def test_what_is_read_in_yaml_is_read_in_json(name: str, tmp_path: Path) -> None:
    given = IMPORTERS[name]
    said = []
    for suffix, raw in ((".yaml", given.seeds[0]), (".json", _as_json(given.seeds[0]))):
        (path := tmp_path / f"own{suffix}").write_bytes(raw)
        said.append(given.read(path).scenario)  # type: ignore[attr-defined]
    assert said[0] == said[1]


def _as_json(raw: bytes) -> bytes:
    return json.dumps(yaml.safe_load(raw)).encode()


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
