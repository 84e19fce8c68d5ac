"""Profiles kept between commands: the same records, read anew as soon as anything differs."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulator import catalogue, files
from simulator.files import Figure, figures, read_profile
from simulator.hardware.accelerator import Accelerator
from simulator.hardware.cluster import CollectiveLibrary
from simulator.hardware.node import Node
from simulator.profile_cache import ProfileCache, usual_folder
from simulator.software.profile import Software

KINDS = {
    "accelerators": Accelerator,
    "nodes": Node,
    "collectives": CollectiveLibrary,
    "software": Software,
}
ROOT = Path(__file__).parents[1]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProfileCache]:
    """A cache of its own, empty."""
    cache = ProfileCache(Figure, catalogue.find)
    cache.folder = tmp_path / "cache"
    monkeypatch.setattr(files, "KEPT", cache)
    yield cache


def fresh(cache: ProfileCache) -> ProfileCache:
    """The same folder as the next process sees it."""
    other = ProfileCache(Figure, catalogue.find)
    other.folder = cache.folder
    return other


@pytest.mark.parametrize("kind", KINDS)
def test_every_shipped_profile_comes_back_whole(kept: ProfileCache, kind: str) -> None:
    """Values, types, grades, sources, dates and spreads: whatever pickle sees."""
    for name in catalogue.names(kind):
        path = catalogue.find(kind, name)
        read = read_profile(KINDS[kind], path, kind=kind)
        again = fresh(kept).get(KINDS[kind], path, kind)
        assert again is not None, path
        assert again == read and type(again) is type(read)
        stated = [
            (name, float(x), x.grade, x.source, x.date, x.spread) for name, x in figures(read)
        ]
        assert stated == [
            (name, float(x), x.grade, x.source, x.date, x.spread) for name, x in figures(again)
        ]
        assert pickle.loads(pickle.dumps(again)) == read


def test_the_same_object_for_the_same_files(kept: ProfileCache) -> None:
    """What is kept for the same records (``record_cache.py``) goes by which objects they are."""
    path = catalogue.find("accelerators", "h100-sxm")
    read_profile(Accelerator, path, kind="accelerators")
    assert kept.get(Accelerator, path, "accelerators") is kept.get(
        Accelerator, path, "accelerators"
    )


def test_a_changed_base_is_read(
    kept: ProfileCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    (own / "accelerators").mkdir(parents=True)
    monkeypatch.setenv("FORESHARD_PROFILES", str(own))
    text = catalogue.find("accelerators", "h100-sxm").read_text()
    base, mine = own / "accelerators" / "like-h100.toml", own / "accelerators" / "mine.toml"
    base.write_text(text)
    mine.write_text('base = "like-h100"\nname = "mine"\n')
    before = read_profile(Accelerator, mine, kind="accelerators")
    assert fresh(kept).get(Accelerator, mine, "accelerators") == before
    had = float(before.memory.capacity_bytes)
    line = next(row for row in text.splitlines() if row.startswith("capacity_bytes"))
    base.write_text(text.replace(line, 'capacity_bytes = {value = 5e10, grade = "assumed"}'))
    assert fresh(kept).get(Accelerator, mine, "accelerators") is None
    after = read_profile(Accelerator, mine, kind="accelerators")
    assert float(after.memory.capacity_bytes) == 5e10 != had
    base.unlink()
    assert fresh(kept).get(Accelerator, mine, "accelerators") is None


@pytest.mark.parametrize("damage", ["cut", "foreign class", "no record", "fields"])
def test_what_is_damaged_is_read_anew(kept: ProfileCache, damage: str) -> None:
    path = catalogue.find("accelerators", "a100-sxm-80")
    read = read_profile(Accelerator, path, kind="accelerators")
    assert kept.folder is not None
    (place,) = kept.folder.glob("*.json")
    entry = json.loads(place.read_text())
    if damage == "foreign class":
        entry["classes"][0][:2] = ["subprocess", "Popen"]
    elif damage == "no record":
        entry["classes"][0][:2] = ["simulator.files", "read_profile"]
    elif damage == "fields":
        entry["classes"][0].append("another")
    text = json.dumps(entry)
    place.write_text(text[: len(text) // 2] if damage == "cut" else text)
    assert fresh(kept).get(Accelerator, path, "accelerators") is None
    assert read_profile(Accelerator, path, kind="accelerators") == read


def test_only_commands_keep_and_the_switch_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert files.KEPT.folder is None
    monkeypatch.setenv("FORESHARD_CACHE", "off")
    assert usual_folder() is None
    monkeypatch.delenv("FORESHARD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert usual_folder() == tmp_path / "foreshard"


def test_a_command_says_the_same_with_and_without(tmp_path: Path) -> None:
    """Off, then empty, then full; and where the folder cannot be made."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    answers = set()
    for place in ("off", str(tmp_path / "kept"), str(tmp_path / "kept"), str(blocked)):
        done = subprocess.run(
            [sys.executable, "-m", "simulator", "predict", "examples/llama-3.1-8b.toml", "--json"],
            env={**os.environ, "FORESHARD_CACHE": place, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        answers.add((done.stdout, done.stderr))
    assert len(answers) == 1
    assert len(list((tmp_path / "kept").glob("*.json"))) > 5
