"""Where data lies: one resolver for profiles, measured runs and programs.

Nobody else builds a path to data. A user's own profile folder comes first (argument
or the environment variable ``FORESHARD_PROFILES``), then the folder shipped in
the wheel (``simulator/_data``), then the checkout that the package was imported from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from simulator.errors import InputError, brief, did_you_mean, nearest

_PACKAGE = Path(__file__).resolve().parent


@cache
def folder(name: str) -> Path:
    """Return the shipped data folder `name` (``hardware_profiles``, ``validation``, ``kernels``).

    Raises
    ------
    FileNotFoundError
        If neither the wheel nor the checkout has it; the message names both places.
    """
    places = (_PACKAGE / "_data" / name, _PACKAGE.parent / name)
    for place in places:
        if place.is_dir():
            return place
    raise FileNotFoundError(f"no folder {name!r}; looked in {places[0]} and {places[1]}")


def user_folders() -> tuple[Path, ...]:
    """Return the user's own profile folders, first one first (``FORESHARD_PROFILES``)."""
    text = os.environ.get("FORESHARD_PROFILES", "")
    folders = tuple(Path(part) for part in text.split(os.pathsep) if part)
    for place in folders:
        if not os.path.isdir(place):  # false, not an error, for a name of any length
            raise InputError(f"FORESHARD_PROFILES: no such folder, got {brief(str(place))}")
    return folders


def _places(kind: str) -> list[Path]:
    return [place / kind for place in (*user_folders(), folder("hardware_profiles"))]


def names(kind: str) -> list[str]:
    """List the profile names of a kind (``accelerators``, ``nodes``, ``clusters``, ...)."""
    places = [place for place in _places(kind) if os.path.isdir(place)]
    files = {file for place in places for file in os.listdir(place)}
    return sorted(file.removesuffix(".toml") for file in files if file.endswith(".toml"))


def has(kind: str, name: str) -> bool:
    """Whether there is a profile `name` of a kind: without a list of them all."""
    plain = os.path.basename(name) == name
    return plain and any(os.path.isfile(place / f"{name}.toml") for place in _places(kind))


def find(kind: str, name: str, *, where: str = "profiles", field: str = "") -> Path:
    """Return the path of the profile `name` of `kind`; a path to a TOML file is taken as it is.

    Raises
    ------
    InputError
        If there is no such profile; the message names the nearest one.
    """
    if name.endswith(".toml"):
        if os.path.isfile(name):
            return Path(name)
        raise InputError(f"{where}: {field or kind}: no such file, got {brief(name)}")
    for place in _places(kind):
        path = place / f"{name}.toml"
        if os.path.isfile(path):
            return path
    known = names(kind)
    if kind == "software":  # a trainer that is spelled like another is another
        alike = [other for other in known if other[:4] == name[:4].lower()]
        hint = nearest(name, alike) or f" (known: {', '.join(known)})"
    else:
        hint = _of_the_same_device(name, known)
    raise InputError(
        f"{where}: {field or kind}: unknown {kind.removesuffix('s')} {brief(name)}{hint}"
    )


_NUMBERED = re.compile(r"[a-z]*[0-9]+")
"""A device or a size in a name: h200, gb300, 4090."""


def _of_the_same_device(name: str, known: Sequence[str]) -> str:
    """Say which names have the same device in them, else which is spelled alike: h200, not gh200.

    Of a number without letters, as 4090, all names count that have it.
    """
    numbers = set(_NUMBERED.findall(name.lower()))
    devices = {number for number in numbers if number[0].isalpha()}
    same = [other for other in known if devices & set(_NUMBERED.findall(other))]
    if not same and not devices:
        same = [other for other in known if numbers & set(re.findall("[0-9]+", other))]
    if not same:
        return did_you_mean(name, known)
    return f" (did you mean {' or '.join(map(repr, same))}?)"
