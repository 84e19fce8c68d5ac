"""How functions are compiled that are called once per event and allocate nothing."""

from __future__ import annotations

from typing import Any

from numba import njit

__all__ = ["bare"]

_OPTIONS: dict[str, Any] = {"cache": True, "_nrt": False}

bare: Any = njit(**_OPTIONS)
"""``njit`` without reference counts: numba raises and lowers an atomic count of every array that it
hands to a function, which took two thirds of the time of an event. A function that allocates does
not compile under it (numba's ``core/extending.py`` shows the option)."""
