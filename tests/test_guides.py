"""docs/guides: every block of code runs, in order, as it stands; links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.S | re.M)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def blocks(guide: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(guide.read_text(encoding="utf-8"))


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_links_lead_somewhere(guide: Path) -> None:
    targets = LINK.findall(guide.read_text(encoding="utf-8"))
    assert [t for t in targets if not (guide.parent / t).exists()] == []
    assert {kind for kind, _ in blocks(guide)} <= {"sh", "python"}, "nothing else is run"


def test_all_of_them_are_listed() -> None:
    listed = set(LINK.findall((GUIDES[0].parent / "README.md").read_text(encoding="utf-8")))
    assert listed == {guide.name for guide in GUIDES} - {"README.md"}


@pytest.mark.evidence
@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_every_block_of_a_guide_runs(guide: Path, tmp_path: Path) -> None:
    """Shell blocks in one shell, so that an export holds; Python blocks in one program."""
    program = tmp_path / "bin" / "foreshard"
    program.parent.mkdir()
    words = f'exec "{sys.executable}" -m simulator.cli.main "$@"'
    program.write_text(f"#!/bin/sh\n{words}\n")
    program.chmod(0o755)
    script, python = ["set -e"], 0
    for kind, text in blocks(guide):
        if kind == "sh":
            script.append(text)
        else:
            python += 1
            before = (tmp_path / "all.py").read_text() if python > 1 else ""
            (tmp_path / "all.py").write_text(before + text)
            script.append(f'"{sys.executable}" all.py\n')
    environment = {name: text for name, text in os.environ.items() if name != "FORESHARD_PROFILES"}
    environment |= {"PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
