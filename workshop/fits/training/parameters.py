"""What a fit to whole training steps may move: parameters, their priors, the figures they set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import tomli

from simulator.calibration.least_squares import Prior


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """One number that is fitted, and the figures of profiles that follow it."""

    prior: Prior
    """What kernels alone show."""
    profiles: tuple[str, ...]
    """Accelerator, collective library or software profiles that hold the figures."""
    figures: Mapping[str, float]
    """Dotted name of each figure, and its ratio to the parameter."""
    digits: int = 3
    """Significant digits that the profile keeps."""
    start: float | None = None
    """Where the fit starts if not at the prior: where the prior is too low to be felt at all."""
    heirs: tuple[str, ...] = ()
    """Profiles that take the figures over from their base."""

    def reaches(self, profile: str) -> bool:
        """Whether a profile has the figures, its own or its base's."""
        return profile in self.profiles or profile in self.heirs


def _parameters() -> dict[str, Parameter]:
    tables = tomli.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {
        name: Parameter(
            **{
                **table,
                "prior": Prior(**table["prior"]),
                "profiles": tuple(table["profiles"]),
                "heirs": tuple(table.get("heirs", ())),
            }
        )
        for name, table in tables.items()
    }


PARAMETERS: dict[str, Parameter] = _parameters()
"""Those of parameters.toml, which says where their priors are from."""
