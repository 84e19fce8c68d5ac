"""What is named exists: links, files and functions in documents; files and names in sources."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "validation").rglob("README.md")),
    ROOT / "kernels" / "README.md",
]
FOLDERS = ("", "simulator", "workshop", "hardware_profiles", "validation", "tests")
"""Where a path in a document may begin, beside the document's own folder."""

LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)]*)?\)")
PATH = re.compile(r"`([\w.*/-]+/[\w.*-]+\.(?:py|toml|csv|md|ipynb))(?::\s?(\w+))?`")
PROGRAM = re.compile(r"python -m ([\w.]+)")

SOURCES = [
    path
    for folder in ("simulator", "workshop", "tests", "kernels", "hardware_profiles", "validation")
    for end in ("*.py", "*.toml")
    for path in sorted((ROOT / folder).rglob(end))
] + [ROOT / "pyproject.toml", ROOT / "Makefile"]
OWN = {path.name for path in (ROOT / "simulator").iterdir() if (path / "__init__.py").exists()}
"""Rooms: a path that begins with one, or with a package of this repository, is one of ours."""
OWN |= {"simulator", "workshop"}
FILE = re.compile(r"(?<![\w./-])((?:\w+/)+\w+\.py)\b")
DOTTED = re.compile(r"``((?:\w+\.){2,}\w+)``")
DEFINED = re.compile(r"^[ \t]*(?:(?:async )?(?:def|class) (\w+)|(\w+)[ \t]*(?::|=(?!=)))", re.M)
ROLE = re.compile(r":(?:func|class|data|meth|mod):`~?\.?([\w.]+)`")


def places(document: Path, path: str) -> list[Path]:
    """Files that a path of a document names; `*` stands for any letters."""
    begins = (document.parent, *(ROOT / folder for folder in FOLDERS))
    return [place for begin in begins if begin.is_dir() for place in begin.glob(path)]


def missing(document: Path, text: str) -> Iterator[str]:
    for target in LINK.findall(text):
        if "://" not in target and not (document.parent / target).exists():
            yield f"link {target}"
    for path, name in PATH.findall(text):
        files = places(document, path)
        if not files:
            yield path
        elif name and not re.search(
            rf"\b(def|class) {name}\b|^{name}\b", files[0].read_text(), re.M
        ):
            yield f"{path}: {name}"
    for program in PROGRAM.findall(text):
        if program.split(".")[0] in ("simulator", "workshop", "tests", "kernels"):
            module = ROOT / program.replace(".", "/")
            if not (module.with_suffix(".py").exists() or (module / "__main__.py").exists()):
                yield f"python -m {program}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_document_names_exists(document: Path) -> None:
    assert list(missing(document, document.read_text(encoding="utf-8"))) == []


def test_what_is_missing_is_seen() -> None:
    text = (
        "[a](docs/nowhere.md) [b](docs/design.md#x) [c](https://a.b/c) `cost/step.py: evaluate`"
        " `tests/*/test_names.py` `cost/no_step.py` `cost/step.py: no_function`"
        " `python -m simulator.nothing` `python -m simulator`"
    )
    assert list(missing(ROOT / "README.md", text)) == [
        "link docs/nowhere.md",
        "cost/no_step.py",
        "cost/step.py: no_function",
        "python -m simulator.nothing",
    ]


def defined(path: Path) -> set[str]:
    """Names of a module that a docstring may refer to, and its own; no tree, which takes long."""
    found = DEFINED.findall(path.read_text(encoding="utf-8"))
    return {path.stem, *(name for pair in found for name in pair)}


def is_known(names: list[str]) -> bool:
    """Whether a dotted name that begins with a room leads to a module and a name in it."""
    place = ROOT / "simulator"
    if names[0] not in OWN or not (place / names[0]).is_dir():
        return True
    for i, name in enumerate(names):
        module = (place / name).with_suffix(".py")
        if module.exists():
            rest = names[i + 1 : i + 2]
            return not rest or re.search(rf"\b{rest[0]}\b", module.read_text()) is not None
        place = place / name
        if not place.is_dir():
            return False
    return True


def unknown(text: str, names: set[str]) -> list[str]:
    """Files of ours that a source names and that are not there, and names that nothing has."""
    files = [path for path in FILE.findall(text) if path.split("/")[0] in OWN]
    gone = [
        path for path in files if not any((ROOT / top / path).exists() for top in ("", "simulator"))
    ]
    gone += [name for name in DOTTED.findall(text) if not is_known(name.split("."))]
    return gone + [role for role in ROLE.findall(text) if role.split(".")[-1] not in names]


def test_what_sources_name_exists() -> None:
    names = {name for path in SOURCES if path.suffix == ".py" for name in defined(path)}
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in SOURCES
        if path.parent != Path(__file__).parent
        for name in unknown(path.read_text(encoding="utf-8"), names)
    ]
    assert wrong == []


def test_a_moved_file_is_seen_in_a_source() -> None:
    text = (
        "As cost/step.py and ``cost/no_step.py`` say, :func:`evaluate` and :func:`~a.evaluated`;"
        " megatron/core/timers.py is another's, simulator/gone.py was ours; ``cost.step.evaluate``,"
        " ``cost.step.no_function``, ``cost.no_step.evaluate``, ``torch.nn.functional``."
    )
    assert unknown(text, {"evaluate"}) == [
        *("cost/no_step.py", "simulator/gone.py"),
        *("cost.step.no_function", "cost.no_step.evaluate", "a.evaluated"),
    ]
