"""What launch files say together: a scenario, and where each of its fields comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simulator.errors import InputError
from simulator.interop.dialects.settings import Place, Reading
from simulator.planner.prediction import Prediction, predict
from simulator.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Origin:
    """A field of the scenario, and where it comes from."""

    field: str
    value: Any
    source: str
    """Where it stands, or what it follows from."""


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What launch files say, as a scenario."""

    readings: tuple[Reading, ...]
    scenario: Scenario
    origins: tuple[Origin, ...]
    """Every field of the scenario that the files state."""
    notes: tuple[str, ...]

    @property
    def unknown(self) -> tuple[Place, ...]:
        """Keys of the files whose meaning is not known here."""
        return tuple(place for reading in self.readings for place in reading.unknown)

    def predicted(self) -> Prediction:
        """What the layout of the files costs.

        Raises
        ------
        InputError
            If it cannot run; the problem names the place in the files as well.
        """
        try:
            return predict(self.scenario)
        except InputError as error:
            places = {item.field: item.source for item in self.origins}
            named = [
                (text, next((p for f, p in places.items() if f": {f}: " in text), ""))
                for text in error.problems
            ]
            raise InputError(f"{text} ({at})" if at else text for text, at in named) from None

    def document(self) -> dict[str, Any]:
        """The record as plain tables."""
        files: dict[str, list[str]] = {}
        for reading in self.readings:
            files.setdefault(reading.path, []).append(reading.kind)
        return {
            "files": [{"path": path, "kinds": kinds} for path, kinds in files.items()],
            "fields": [
                {"field": item.field, "value": item.value, "from": item.source}
                for item in self.origins
            ],
            "unknown": [str(place) for place in self.unknown],
            "no_bearing": [str(place) for r in self.readings for place in r.idle],
            "notes": list(self.notes),
        }
