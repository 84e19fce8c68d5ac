"""The JSON documents of `foreshard profiles`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from simulator.answers import head
from simulator.profiles import Profile


def list_document(profiles: Iterable[Profile]) -> dict[str, Any]:
    """Every profile in one line: what it is and how many figures have which grade."""
    return head("profiles list") | {"profiles": [_summary(profile) for profile in profiles]}


def show_document(profiles: Iterable[Profile]) -> dict[str, Any]:
    """Profiles with all settings and figures, resolved through bases and lenders."""
    return head("profiles show") | {"profiles": [_whole(profile) for profile in profiles]}


def check_document(checked: int, problems: Iterable[str]) -> dict[str, Any]:
    """How many files were read and what is wrong with them."""
    return head("profiles check") | {"checked": checked, "problems": list(problems)}


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
