"""What sites do with what they have sent each other: nothing, an average, an outer optimizer."""

from __future__ import annotations

from functools import cache

from simulator import catalogue
from simulator.files import Figure, read_profile, record

__all__ = ["OuterStep", "load_outer_step"]


@record
class OuterStep:
    """One way, as hardware_profiles/outer_steps/NAME.toml describes it."""

    name: str
    local_steps: bool
    """Sites take steps of their own between exchanges; else they exchange gradients every step."""
    state_bytes: Figure
    """Kept of every parameter beside what the inner optimizer keeps."""
    traffic_bytes: Figure
    """Memory traffic of one outer step, of every parameter."""
    more_steps_fraction: Figure
    """Steps to the same loss beyond those of training in one place, as a share of them."""


@cache
def load_outer_step(name: str, *, where: str = "profiles", field: str = "outer_step") -> OuterStep:
    """Read a way by name or path.

    Raises
    ------
    InputError
        If there is none of the name, or a field of it is wrong.
    """
    path = catalogue.find("outer_steps", name, where=where, field=field)
    return read_profile(OuterStep, path, kind="outer_steps")
