"""The JSON documents of `foreshard profiles`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from simulator.answers import encoded, head, plain
from simulator.profiles import Profile


def list_document(profiles: Iterable[Profile]) -> dict[str, Any]:
    """Every profile in one line: what it is and how many figures have which grade."""
    return head("profiles list") | {"profiles": plain(list(profiles))}


def show_document(profiles: Iterable[Profile]) -> dict[str, Any]:
    """Profiles with all settings and figures, resolved through bases and lenders."""
    return head("profiles show") | {"profiles": [_whole(profile) for profile in profiles]}


def check_document(checked: int, problems: Iterable[str]) -> dict[str, Any]:
    """How many files were read and what is wrong with them."""
    return head("profiles check") | {"checked": checked, "problems": list(problems)}


def _whole(profile: Profile) -> dict[str, Any]:
    rows = [
        {"name": name, "value": float(figure)}
        | encoded(figure, ("grade", "spread", "date?", "source"))
        for name, figure in profile.figures.items()
    ]
    return encoded(profile) | {"settings": profile.settings, "figures": rows}
