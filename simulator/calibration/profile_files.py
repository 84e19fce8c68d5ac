"""New profiles from a calibration: the text of the base with fitted figures, checked first."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

import tomlkit

from simulator import catalogue
from simulator.calibration.calibrate_machine import Calibration, ClassFit
from simulator.calibration.profile_text import with_sections
from simulator.errors import InputError
from simulator.files import read_profile
from simulator.profiles import KINDS
from simulator.profiles.check import check
from simulator.quoting import comment_line
from simulator.records import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A profile to write."""

    kind: str
    base: str
    """Profile that it starts from."""
    path: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    """What it states beside figures: the names of the other new profiles."""


def new_profiles(calibration: Calibration, targets: Mapping[str, Target]) -> dict[Path, str]:
    """Return the text of every target by its path.

    Parameters
    ----------
    found : Calibration
        What was fitted.
    targets : mapping
        ``accelerator``, ``node``, ``fabric``: whose figures -> where they go.

    Raises
    ------
    InputError
        If a new profile cannot be read or passes a physical limit.
    """
    texts = {}
    for part, target in targets.items():
        text = _text(calibration, getattr(calibration, part), target)
        _check(text, target)
        texts[target.path] = text
    return texts


def _text(calibration: Calibration, fits: tuple[ClassFit, ...], target: Target) -> str:
    source = catalogue.find(target.kind, target.base)
    text = with_sections(source.read_text(encoding="utf-8-sig"), calibration.sections(fits))
    document = tomlkit.parse(text)
    for key, value in target.settings.items():
        document[key] = value
    what = f"fitted to {calibration.source} ({calibration.date})" if fits else "not measured itself"
    head = comment_line(f"{target.path.stem}: {target.base}, {what}.")
    return f"{head}\n{tomlkit.dumps(document)}"


def _check(text: str, target: Target) -> None:
    """Read the new profile from a place of its own; names of other new profiles are not there."""
    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder) / target.kind / target.path.name
        trial.parent.mkdir()
        trial.write_text(text)
        try:
            if target.kind == "accelerators":
                problems = check(trial, target.kind)
            else:
                read_profile(KINDS[target.kind], trial, kind=target.kind)
                problems = []
        except InputError as error:
            problems = list(error.problems)
    if problems:
        raise InputError([problem.replace(str(trial), str(target.path)) for problem in problems])
