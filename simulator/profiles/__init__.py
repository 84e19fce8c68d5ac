"""Profiles as a catalogue: what kinds there are, what each holds, how well it is known."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from simulator import catalogue, records
from simulator.between_sites.sites_section import Compression, OuterStep
from simulator.data_input.data_section import Store, Usual
from simulator.economics.energy import CarbonTable
from simulator.economics.money_spread import DrawError
from simulator.economics.ownership import RentOrBuyPage
from simulator.economics.planning_factor import PublishedRuns
from simulator.economics.price import Price, Site
from simulator.economics.scaling_law import ScalingLaw
from simulator.errors import InputError, did_you_mean
from simulator.files import GRADES, Figure, figures, read_profile, read_toml
from simulator.hardware.accelerator import Accelerator
from simulator.hardware.cluster import ClusterProfile
from simulator.hardware.fabric import CollectiveLibrary
from simulator.hardware.node import Node
from simulator.parameter_servers.server_section import ServerWork
from simulator.reliability.reliability_profile import Reliability
from simulator.rollouts.profiles import DecodeKernels, Engine, Framework
from simulator.software.profile import Software

__all__ = ["KINDS", "Profile", "find_named", "load", "load_all"]

KINDS: dict[str, type] = {
    "accelerators": Accelerator,
    "nodes": Node,
    "clusters": ClusterProfile,
    "collectives": CollectiveLibrary,
    "software": Software,
    "prices": Price,
    "sites": Site,
    "reliability": Reliability,
    "inputs": Usual,
    "stores": Store,
    "scaling_laws": ScalingLaw,
    "rent_or_buy": RentOrBuyPage,
    "carbon": CarbonTable,
    "draws": DrawError,
    "planning_factors": PublishedRuns,
    "compressions": Compression,
    "outer_steps": OuterStep,
    "parameter_servers": ServerWork,
    "engines": Engine,
    "rl_frameworks": Framework,
    "decode_kernels": DecodeKernels,
}
"""Folder of hardware_profiles -> what a file in it describes."""


@records.dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """One profile, resolved through its base and what it borrows."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("kind", "name", "title", "base"),
        *("borrowed", "grades", "weakest", "path"),
    )

    kind: str
    path: Path
    title: str
    """First comment of the file."""
    base: str | None
    """Profile that it is put over."""
    borrowed: str | None
    """Profile whose figures stand for its own in some tables."""
    value: Any
    """The record, of the type that KINDS names."""

    @property
    def name(self) -> str:
        """File name without the ending."""
        return self.path.stem

    @property
    def figures(self) -> dict[str, Figure]:
        """Every figure that the file, its base or its lender states, by dotted name."""
        return {name: figure for name, figure in figures(self.value) if figure.source != "user"}

    @property
    def grades(self) -> dict[str, int]:
        """How many figures have each grade, strongest first."""
        count = Counter(figure.grade for figure in self.figures.values())
        return {grade: count[grade] for grade in GRADES}

    @property
    def weakest(self) -> str | None:
        """Weakest grade of any figure; None where there are none."""
        return next((grade for grade in reversed(GRADES) if self.grades[grade]), None)

    @property
    def settings(self) -> dict[str, Any]:
        """What is stated beside figures: names, kinds, counts, switches, by dotted name."""
        return dict(_settings(self.value))


def load(kind: str, path: Path) -> Profile:
    """Read a profile of a kind.

    Raises
    ------
    InputError
        With everything that is wrong with the file.
    """
    raw = read_toml(path)
    lender = raw.get("borrowed")
    return Profile(
        kind=kind,
        path=path,
        title=_title(path),
        base=raw.get("base"),
        borrowed=lender.get("of") if isinstance(lender, Mapping) else None,
        value=read_profile(KINDS[kind], path, kind=kind),
    )


def load_all(kind: str = "") -> list[Profile]:
    """Read every profile, the user's before shipped ones of the same name; of one kind or of all.

    Raises
    ------
    InputError
        If there is no such kind, or a profile is wrong.
    """
    if kind and kind not in KINDS:
        if kind.removesuffix("s") == "model":
            raise InputError(f"profiles: {kind}: are no profiles; `foreshard models` lists them")
        raise InputError(f"profiles: unknown kind {kind!r}{did_you_mean(kind, KINDS)}")
    return [
        load(each, catalogue.find(each, name))
        for each in ([kind] if kind else KINDS)
        for name in catalogue.names(each)
    ]


def find_named(name: str) -> list[tuple[str, Path]]:
    """Return kind and path of every profile called `name`: a server and its cluster may share one.

    ``nodes/dgx-h100`` names one of a kind.

    Raises
    ------
    InputError
        If there is none; the message names the nearest.
    """
    folder, _, last = name.rpartition("/")
    kinds = [folder] if folder in KINDS else list(KINDS)
    found = [(kind, catalogue.find(kind, last)) for kind in kinds if last in catalogue.names(kind)]
    if not found:
        known = {each for kind in kinds for each in catalogue.names(kind)}
        raise InputError(f"profiles: unknown profile {name!r}{did_you_mean(last, known)}")
    return found


def _title(path: Path) -> str:
    first = path.read_text(encoding="utf-8-sig").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def _settings(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        name = f"{prefix}{field.name}"
        if dataclasses.is_dataclass(item):
            yield from _settings(item, f"{name}.")
        elif not isinstance(item, (Figure, Mapping)) and field.name != "name":
            records = isinstance(item, tuple) and any(map(dataclasses.is_dataclass, item))
            shown = f"{len(item)} edges" if records else item
            yield name, list(shown) if isinstance(shown, tuple) else shown
