"""What a training framework does: kernels, fusions, overlaps, states, and the layouts it can run.

Every number can be measured alone (microseconds, bytes, a yes or no). There is no factor on a
step, a stage or a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from simulator import catalogue
from simulator.errors import InputError, problem
from simulator.files import read_profile, read_records, record
from simulator.hardware.accelerator import Platform
from simulator.record_cache import for_same_records
from simulator.software.host_work import HostWork, InputFetch
from simulator.software.kernels import Kernels
from simulator.software.mechanisms import FSDP2, DeepSpeedZero
from simulator.software.overlap import Overlap
from simulator.software.releases import Nearest, stack_of
from simulator.software.states import Allocator, StateBytes
from simulator.software.supports import Dispatcher, Supports


@record
class Launcher:
    """What starts the runs of a software, as hardware_profiles/launchers.toml describes it."""

    unsaid: tuple[str, ...] = ()
    """Limits (``layout/rules/software_rules.py``): layouts that its command has no words for."""


@cache
def launchers() -> dict[str, Launcher]:
    """All launchers, by the word of a software profile."""
    path = catalogue.folder("hardware_profiles") / "launchers.toml"
    return read_records(Launcher, path, "launchers")


@record
class Software:
    """One framework and release, as hardware_profiles/software/NAME.toml describes it."""

    name: str
    release: str
    """The release or period the figures hold for."""
    launcher: str
    """Whose launch command a plan prints: a word of hardware_profiles/launchers.toml."""
    tuned_by: str = ""
    """The vendor of accelerators that makes it and tunes it for them; none: nobody does."""
    platforms: tuple[Platform, ...] = ("cuda",)
    """Accelerators it runs on, by what programs for them are built on."""
    supports: Supports
    kernels: Kernels
    overlap: Overlap
    host: HostWork
    input: InputFetch = InputFetch()
    states: StateBytes
    allocator: Allocator
    fsdp2: FSDP2 = FSDP2()
    """Sharding by torch's FSDP2."""
    deepspeed_zero: DeepSpeedZero = DeepSpeedZero()
    """Sharding by DeepSpeed's ZeRO."""
    stands_for: str = ""
    """An unknown release that this one stands for; none: it is what was asked for."""
    framework: str = ""
    """The framework that it is or stands in for, where its figures are those of another; none: that
    of its bases (``software/releases.py``: stack_of)."""

    def standing_for(self, nearest: Nearest) -> Software:
        """The same for a word of software that it was found for."""
        word = nearest.word if nearest.text else ""
        return replace(self, stands_for=word, framework=nearest.framework or self.framework)

    def is_tuned_by(self, vendor: str) -> bool:
        """Whether the vendor of a device tunes it; not what only works alike."""
        return self.tuned_by == vendor and not self.framework

    @property
    def stack(self) -> str:
        """Name of the framework, whatever its release."""
        return _stack(self)

    def recomputing(self, modules: Sequence[Any]) -> Software:
        """The same where selective recomputation names `modules`; none: the usual ones."""
        if not modules:
            return self
        return replace(self, kernels=replace(self.kernels, selective_modules=tuple(modules)))

    def as_recipes_on(self, accelerator: str, family: str) -> Software:
        """The same as its recipes take tokens to experts there, where they differ.

        `family` is the model's.
        """
        can = self.supports
        word = can.usual_dispatcher.get(accelerator)
        if word is None or family in can.alltoall_families:
            return self
        first: Dispatcher = "deepep" if word == "hybridep" else word
        order = (first, *(other for other in can.dispatchers if other != first))
        library = word if word == "hybridep" or word == "deepep" else self.kernels.expert_library
        return replace(
            self,
            supports=replace(can, dispatchers=order),
            kernels=replace(self.kernels, expert_library=library),
        )

    def on(self, generation: str) -> Software:
        """The same with the kernels that run on a generation of devices."""
        kernels = self.kernels.on(generation)
        return self if kernels is self.kernels else replace(self, kernels=kernels)


@for_same_records(64)
def _stack(software: Software) -> str:
    """Name of a framework; asked of the same software by every answer."""
    return software.framework or stack_of(software.name)


def load_software(name: str, *, where: str = "profiles", field: str = "software") -> Software:
    """Read a software profile by name or path."""
    path = catalogue.find("software", name, where=where, field=field)
    software = read_profile(Software, path, kind="software")
    if software.launcher not in (known := launchers()):
        rule = f"must be one of {', '.join(known)}"
        raise InputError(problem(str(path), "launcher", rule, software.launcher, known))
    if not float(software.states.weight) and "zero1" in software.supports.sharding:
        # there only shards of weights stay, and zero1 gathers none: a step would have no weights
        rule = "must be without zero1 where states.weight is 0 (weights stay as shards)"
        raise InputError(f"{path}: supports.sharding: {rule}, got zero1 (nearest: zero2)")
    return software
