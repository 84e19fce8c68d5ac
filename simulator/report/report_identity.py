"""Which question a report answers, so that none is put over the report of another."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from simulator.answers import plain
from simulator.scenario import Scenario

MARK = "foreshard-question"
"""Name of the page's meta element that holds the word of its question."""

_READ = 4096
"""Characters of a page in which that element stands."""


def question(scenario: Scenario, *, played: int = 0) -> str:
    """Return a short word for all that a scenario asks, its model's sizes included.

    `played` is how many layouts were to be played on discrete events.
    """
    document = json.dumps(plain(scenario.document), sort_keys=True)
    asked = f"{document} {scenario.workload!r} {played}"
    return hashlib.sha256(asked.encode()).hexdigest()[:8]


def holds_another(folder: Path, asked: str) -> bool:
    """Whether a folder has the report of another question than `asked`."""
    try:
        with (folder / "plan.html").open(encoding="utf-8", errors="replace") as page:
            found = re.search(f'name="{MARK}" content="([0-9a-f]*)"', page.read(_READ))
    except OSError:
        return False
    return found is None or found.group(1) != asked
