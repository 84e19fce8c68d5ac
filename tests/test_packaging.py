"""What is shipped: the wheel holds the package and its data, and works from wherever it lies."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from simulator import catalogue
from simulator._version import __version__

ROOT = Path(__file__).resolve().parent.parent
DATA_FOLDERS = ("hardware_profiles", "kernels", "validation")
TOP_LEVEL = {"simulator", "foreshard", f"foreshard-{__version__}.dist-info"}

# The wheel is built once: --dist loadfile runs every test of this file in the same worker.
pytestmark = [
    pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="needs a checkout"),
]


def build(source: Path, target: str, out: Path) -> Path:
    """Build `source` as a wheel or an sdist, without the network, and return the one file made."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "-d", str(out)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = out.iterdir()
    return made


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def unzipped(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("unzipped")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    return place


def run_unzipped(unzipped: Path, code: str) -> str:
    """Run `code` with the unzipped wheel in front of any installed copy, away from the checkout."""
    environment = {key: value for key, value in os.environ.items() if key != "FORESHARD_PROFILES"}
    environment["PYTHONPATH"] = str(unzipped)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=unzipped.parent,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_wheel_holds_the_packages_and_their_metadata(wheel: Path) -> None:
    assert {name.split("/")[0] for name in names_in(wheel)} == TOP_LEVEL


def test_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    shipped = ("*.py", "*.json", "*.j2", "py.typed")
    expected = {
        path.relative_to(ROOT).as_posix()
        for pattern in shipped
        for path in (ROOT / "simulator").rglob(pattern)
    }
    assert "simulator/py.typed" in expected
    assert expected <= names_in(wheel)


@pytest.mark.parametrize("folder", DATA_FOLDERS)
def test_wheel_holds_the_data_folder(wheel: Path, folder: str) -> None:
    prefix = f"simulator/_data/{folder}/"
    expected = {
        path.relative_to(ROOT / folder).as_posix()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected
    found = {name.removeprefix(prefix) for name in names_in(wheel) if name.startswith(prefix)}
    assert found == expected


def test_wheel_plays_steps_without_compiling(unzipped: Path) -> None:
    code = (
        "from simulator.compiled import machine_code\n"
        "from simulator.events.engine.fair_shares import fair_rates, fill\n"
        "import sys\n"
        "print(fill.name in machine_code(), *fair_rates([10.0], [0, 1, 2], [0, 0]))\n"
        "print('numba' in sys.modules)"
    )
    assert run_unzipped(unzipped, code).split() == ["True", "5.0", "5.0", "False"]


def test_wheel_installs_the_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"foreshard-{__version__}.dist-info/entry_points.txt").decode()
    assert "foreshard = simulator.__main__:main" in text.splitlines()


@pytest.mark.evidence
def test_the_source_archive_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    archive = build(ROOT, "sdist", tmp_path / "sdist")
    with tarfile.open(archive) as opened:
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from 3.11.4 on
        opened.extractall(tmp_path, **safe)  # type: ignore[arg-type]
    again = build(tmp_path / f"foreshard-{__version__}", "wheel", tmp_path / "wheel")
    assert names_in(again) == names_in(wheel)


def test_data_folders_are_found_in_the_wheel(unzipped: Path) -> None:
    code = f"from simulator.catalogue import folder\nfor n in {DATA_FOLDERS}: print(folder(n))"
    expected = [str(unzipped / "simulator" / "_data" / name) for name in DATA_FOLDERS]
    assert run_unzipped(unzipped, code).splitlines() == expected


def test_the_wheel_lists_the_same_profiles(unzipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORESHARD_PROFILES", raising=False)
    kinds = sorted(path.name for path in (ROOT / "hardware_profiles").iterdir() if path.is_dir())
    code = (
        "import json; from simulator.catalogue import names\n"
        f"print(json.dumps({{kind: names(kind) for kind in {kinds}}}))"
    )
    assert json.loads(run_unzipped(unzipped, code)) == {k: catalogue.names(k) for k in kinds}


@pytest.mark.parametrize("folder", [*DATA_FOLDERS, "reports", "examples", "docs"])
def test_data_folders_are_not_packages(folder: str) -> None:
    # A package named `kernels` would hide the distribution of that name (Hugging Face).
    assert list((ROOT / folder).rglob("__init__.py")) == []
