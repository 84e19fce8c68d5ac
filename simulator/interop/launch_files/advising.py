"""The first answer to a launch script: what it takes, the cheapest changes, the changed files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from simulator.answers import plain
from simulator.errors import InputError
from simulator.interop.launch_files.changed_files import rewritten
from simulator.interop.launch_files.imported import Imported
from simulator.interop.launch_files.merging import import_launch
from simulator.interop.launch_files.recognising import LAUNCH_FILE_LIMIT_BYTES
from simulator.plain_files import read_text
from simulator.planner.fewest_changes import FewChanges, cheapest_changes
from simulator.planner.fitting import Fitting, fitting
from simulator.planner.prediction import Prediction
from simulator.records import dataclass


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What launch files will take and what would make them faster."""

    imported: Imported
    prediction: Prediction
    """Of the layout that the files have."""
    memory: Fitting
    """Memory of every pipeline stage."""
    changes: tuple[FewChanges, ...]
    """Fewest changed choices first."""
    texts: dict[str, str]
    """The files as they are."""
    changed: tuple[dict[str, str], ...]
    """For every change, the files with it, by path; a change that no file says has none."""
    unsaid: tuple[tuple[str, ...], ...]
    """For every change, layout fields that its files, read again, do not say."""

    def document(self) -> dict[str, Any]:
        """Return what ``plan --from --json`` prints."""
        changes = [
            {**change.document(), "files": files, "by_hand": list(unsaid)}
            for change, files, unsaid in zip(self.changes, self.changed, self.unsaid, strict=True)
        ]
        parts = {"memory": self.memory, "command": "plan", "from": self.imported}
        return {**self.prediction.document(), **plain({**parts, "changes": changes})}


def advise(
    files: Iterable[Path | str],
    names: Mapping[str, Any] | None = None,
    overrides: Iterable[str] = (),
    *,
    changes: int = 3,
) -> Advice:
    """Read launch files, predict what they ask for, and look for the cheapest changes.

    Raises
    ------
    InputError
        As :func:`~simulator.interop.launch_files.merging.import_launch`; or if the layout that the
        files have cannot run, by the field that is wrong.
    """
    files = list(files)
    imported = import_launch(files, names, overrides)
    now = imported.predicted()
    found = tuple(cheapest_changes(now, changes)) if changes else ()
    measured = {reading.path for reading in imported.readings if reading.measured}
    texts = {
        str(path): read_text(path, LAUNCH_FILE_LIMIT_BYTES)
        for path in files
        if str(path) not in measured
    }
    written = tuple(
        rewritten(
            texts, imported.readings, (now.layout, change.prediction.layout), imported.scenario
        )
        for change in found
    )
    return Advice(
        imported=imported,
        prediction=now,
        memory=fitting(now),
        changes=found,
        texts=texts,
        changed=written,
        unsaid=tuple(
            _unsaid(change, {**texts, **changed}, (names, overrides)) if changed else ()
            for change, changed in zip(found, written, strict=True)
        ),
    )


def _unsaid(
    change: FewChanges,
    texts: Mapping[str, str],
    options: tuple[Mapping[str, Any] | None, Iterable[str]],
) -> tuple[str, ...]:
    """Read changed files again: fields of the change that they do not say as it does."""
    kept = [text for text in options[1] if not text.startswith("layout.")]
    with TemporaryDirectory() as folder:
        paths = []
        for path, text in texts.items():
            place = Path(folder) / Path(path).name
            place.write_text(text)
            paths.append(place)
        try:
            again = import_launch(paths, options[0], kept).predicted().layout
        except InputError:
            return tuple(change.fields)
    return tuple(name for name, (_, after) in change.fields.items() if again[name] != after)
