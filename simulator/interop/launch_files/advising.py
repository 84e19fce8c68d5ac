"""The first answer to a launch script: what it takes, the cheapest changes, the changed files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from simulator.answers import plain
from simulator.errors import InputError
from simulator.interop.launch_files.changed_files import rewritten, without
from simulator.interop.launch_files.imported import Imported
from simulator.interop.launch_files.merging import import_launch
from simulator.interop.launch_files.recognising import LAUNCH_FILE_LIMIT_BYTES
from simulator.plain_files import read_text
from simulator.planner.fewest_changes import COMPILE, FewChanges, cheapest_changes
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
    options = (names, tuple(overrides))
    written = [_written(change, texts, imported, now, options) for change in found]
    return Advice(
        imported=imported,
        prediction=now,
        memory=fitting(now),
        changes=found,
        texts=texts,
        changed=tuple(files for files, _ in written),
        unsaid=tuple(unsaid for _, unsaid in written),
    )


def _written(
    change: FewChanges,
    texts: Mapping[str, str],
    imported: Imported,
    now: Prediction,
    options: tuple[Mapping[str, Any] | None, Iterable[str]],
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The files with a change, and fields of it that they do not say.

    Where a word of the files still says what was, though the exporter has another word or none, it
    is taken out, if what is then read is the change.
    """
    after, readings = change.prediction, imported.readings
    rows = (now.layout, after.layout)
    files = rewritten(texts, readings, rows, imported.scenario, after.scenario)
    unsaid = _unsaid(change, {**texts, **files}, options)
    if unsaid:
        fewer = {**files, **without({**texts, **files}, readings, set(unsaid))}
        left = _unsaid(change, {**texts, **fewer}, options)
        if set(left) < set(unsaid):
            files, unsaid = fewer, left
    return files, unsaid if files else ()


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
            read = import_launch(paths, options[0], kept).predicted()
        except InputError:
            return tuple(change.fields)
    compiled = read.scenario.software.name == change.scenario.software.name
    said = {**read.layout, COMPILE: compiled}
    return tuple(name for name, (_, after) in change.fields.items() if said[name] != after)
