"""What documents name exists: links, files of the sources, functions in them, programs."""

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
