"""What launch files say together: a scenario, and where each of its fields comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from simulator.answers import Encoded
from simulator.errors import InputError
from simulator.interop.dialects.settings import Place, Reading
from simulator.planner.prediction import Prediction, predict
from simulator.records import dataclass
from simulator.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Origin:
    """A field of the scenario, and where it comes from."""

    KEYS: ClassVar[tuple[str, ...]] = ("field", "value", "from=source")

    field: str
    value: Any
    source: str
    """Where it stands, or what it follows from."""


@dataclass(frozen=True, kw_only=True)
class Imported(Encoded):
    """What launch files say, as a scenario."""

    KEYS: ClassVar[tuple[str, ...]] = (
        "files",
        "fields=origins",
        "unknown=unknown_places",
        "no_bearing",
        "notes",
    )

    paths: tuple[Path, ...]
    """Files that were read: those given, and those of their folders that they name."""
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

    @property
    def files(self) -> list[dict[str, Any]]:
        """What each file was read as."""
        files: dict[str, list[str]] = {}
        for reading in self.readings:
            files.setdefault(reading.path, []).append(reading.kind)
        return [{"path": path, "kinds": kinds} for path, kinds in files.items()]

    @property
    def unknown_places(self) -> list[str]:
        """Where keys stand whose meaning is not known here."""
        return [str(place) for place in self.unknown]

    @property
    def no_bearing(self) -> list[str]:
        """Where keys stand that bear on neither time nor memory."""
        return [str(place) for reading in self.readings for place in reading.idle]
