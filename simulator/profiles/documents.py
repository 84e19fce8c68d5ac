"""The JSON documents of `foreshard profiles`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from simulator._version import __version__
from simulator.profiles import Profile

SCHEMA = 1


def list_document(profiles: Iterable[Profile]) -> dict[str, Any]:
    """Every profile in one line: what it is and how many figures have which grade."""
    return _head("list") | {"profiles": [_summary(profile) for profile in profiles]}


def show_document(profiles: Iterable[Profile]) -> dict[str, Any]:
    """Profiles with all settings and figures, resolved through bases and lenders."""
    return _head("show") | {"profiles": [_whole(profile) for profile in profiles]}


def check_document(checked: int, problems: Iterable[str]) -> dict[str, Any]:
    """How many files were read and what is wrong with them."""
    return _head("check") | {"checked": checked, "problems": list(problems)}


def _head(verb: str) -> dict[str, Any]:
    return {"schema": SCHEMA, "version": __version__, "command": f"profiles {verb}"}


def _summary(profile: Profile) -> dict[str, Any]:
    return {
        "kind": profile.kind,
        "name": profile.name,
        "title": profile.title,
        "base": profile.base,
        "borrowed": profile.borrowed,
        "grades": profile.grades,
        "weakest": profile.weakest,
        "path": str(profile.path),
    }


def _whole(profile: Profile) -> dict[str, Any]:
    rows = [
        {
            "name": name,
            "value": float(figure),
            "grade": figure.grade,
            "spread": figure.spread,
            "date": figure.date or None,
            "source": figure.source,
        }
        for name, figure in profile.figures.items()
    ]
    return _summary(profile) | {"settings": profile.settings, "figures": rows}
