"""The first answer to a launch script: what it takes, the cheapest changes, the changed files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from simulator.answers import plain
from simulator.errors import InputError
from simulator.interop.dialects.deepspeed import deepspeed_config
from simulator.interop.dialects.megatron import Arguments, megatron_arguments
from simulator.interop.dialects.mlperf import mlperf_variables
from simulator.interop.dialects.settings import Reading
from simulator.interop.dialects.table import as_flags
from simulator.interop.dialects.torchtitan import torchtitan_tables
from simulator.interop.launch_files.imported import Imported
from simulator.interop.launch_files.merging import import_launch
from simulator.interop.launch_files.recognising import LAUNCH_FILE_LIMIT_BYTES
from simulator.plain_files import read_text
from simulator.planner.fewest_changes import COMPILE, FewChanges, cheapest_changes
from simulator.planner.fitting import Fitting, fitting
from simulator.planner.prediction import Prediction
from simulator.records import dataclass
from simulator.scenario import Scenario

# --- the files with another layout -------------------------------------------------------

_MOST_DOCUMENTS = 64

Changes = Mapping[str, Any]
"""Key -> its new value; None: it is taken out."""


def rewritten(
    texts: Mapping[str, str],
    readings: tuple[Reading, ...],
    rows: tuple[dict[str, Any], dict[str, Any]],
    scenario: Scenario,
    other: Scenario | None = None,
) -> dict[str, str]:
    """Put a layout into the files that state one.

    Parameters
    ----------
    texts : mapping
        The text of every file by its path.
    readings : tuple
        What was read in them.
    rows : tuple
        The layout at hand and the other one.
    scenario : Scenario
        The run.
    other : Scenario, optional
        The run with the other layout, where more than that changes: its software.

    Returns
    -------
    dict
        Those files whose text changes, by path.
    """
    found: dict[str, str] = {}
    for reading in readings:
        path = next(
            (p for p in texts if reading.path == p or reading.path.startswith(f"{p}: ")), ""
        )
        if not path:
            continue
        sourced = {name for other in readings if other.path == path for name in other.reads}
        for part in (path, *(other for other in texts if Path(other).name in sourced)):
            before = found.get(part, texts[part])
            after = _changed(before, reading, rows, (scenario, other or scenario))
            if after != before:
                found[part] = after
    return found


def without(
    texts: Mapping[str, str], readings: tuple[Reading, ...], fields: set[str]
) -> dict[str, str]:
    """Take out what states some fields of a layout, flags and keys of their own.

    Returns
    -------
    dict
        Those files whose text changes, by path.
    """
    left: dict[str, str] = {}
    for reading in readings:
        for said in reading.stated:
            place = said.place
            if said.field.removeprefix("layout.") in fields and place.path in texts:
                before = left.get(place.path, texts[place.path])
                is_flag = place.key.startswith("--")
                after = (_flags if is_flag else changed_text)(before, {place.key: None})
                if after != before:
                    left[place.path] = after
    return left


def _changed(
    text: str,
    reading: Reading,
    rows: tuple[dict[str, Any], dict[str, Any]],
    runs: tuple[Scenario, Scenario],
) -> str:
    """One reading's part of a text with the other layout."""
    scenario = runs[0]
    if reading.kind == "Megatron-LM command":
        return _flags(text, _difference(*(_arguments_of_layout(row, scenario) for row in rows)))
    if reading.kind in ("recipe", "Megatron-Bridge command"):
        return _assignments(text, _difference(*(_arguments(row, scenario) for row in rows)))
    if reading.kind == "torchtitan job":
        both = zip(rows, runs, strict=True)
        tables = [_flat(torchtitan_tables(row, run)) for row, run in both]
        return changed_text(text, _difference(*tables))
    if reading.kind == "DeepSpeed configuration":
        configs = [_flat(deepspeed_config(row, scenario)) for row in rows]
        return changed_text(text, _difference(*configs))
    if reading.kind == "Hugging Face TrainingArguments":
        arguments = _difference(*(_trainer(row) for row in rows))
        if text.lstrip().startswith("{"):
            return changed_text(text, arguments)
        return _flags(text, {f"--{key}": value for key, value in arguments.items()})
    if reading.kind == "MLPerf configuration":
        return _variables(text, _difference(*map(mlperf_variables, rows)))
    return text


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    changed = {key: value for key, value in after.items() if before.get(key) != value}
    return changed | {key: None for key in before if key not in after}


def _arguments(row: dict[str, Any], scenario: Scenario) -> Arguments:
    groups = megatron_arguments(row, scenario)
    return {key: value for group in groups for key, value in group.items()}


def _arguments_of_layout(row: dict[str, Any], scenario: Scenario) -> Arguments:
    """The same as flags: ``--a-b`` and its value in a command's words."""
    flags = (flag for group in as_flags([_arguments(row, scenario)]) for flag in group)
    parts = (flag.partition(" ") for flag in flags)
    return {name: value or True for name, _, value in parts}


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _trainer(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "per_device_train_batch_size": row["micro_batch"],
        "gradient_accumulation_steps": row["global_batch"] // (row["dp"] * row["micro_batch"]),
        "gradient_checkpointing": row["recompute"] == "full",
    }


def _flags(text: str, changes: Changes) -> str:
    """Flags of a command: replaced where they stand, taken out, or put behind one that stands."""
    added = []
    for flag, value in changes.items():
        at = _place_of(text, flag)
        if at is None and value is not None:
            added.append(flag if value is True else f"{flag} {value}")
        elif at is not None and value is None:
            start, end = at
            text = text[: start - (text[start - 1 : start] == " ")] + text[end:]
        elif at is not None:
            text = _with_value(text, flag, at, value)
    anchor = next((a for flag in _ANCHORS if (a := _place_of(text, flag))), None)
    if added and anchor is not None:
        return f"{text[: anchor[1]]} {' '.join(added)}{text[anchor[1] :]}"
    return text


_ANCHORS = (
    "--tensor-model-parallel-size",
    "--pipeline-model-parallel-size",
    "--micro-batch-size",
    "--global-batch-size",
    "--per_device_train_batch_size",
    "--use-distributed-optimizer",
)
_WORD = r"(?:'[^']*'|\"[^\"]*\"|[^\s'\"\\)-][^\s'\"\\)]*)"
_VALUE = rf"(?:[ =]+{_WORD}(?: {_WORD})*)?"


def _place_of(text: str, flag: str) -> tuple[int, int] | None:
    """Where the last occurrence of a flag begins, and where its value ends."""
    found = list(re.finditer(rf"(?<![\w-]){re.escape(flag)}(?![\w-]){_VALUE}", text))
    spans = [one.span() for one in found if not _in_comment(text, one.start())]
    return spans[-1] if spans else None


def _in_comment(text: str, at: int) -> bool:
    """Whether a place stands behind the ``#`` of its line."""
    return bool(re.search(r"(?:^|\s)#", text[text.rfind("\n", 0, at) + 1 : at]))


def _with_value(text: str, flag: str, at: tuple[int, int], value: Any) -> str:
    """The flag with another value; a variable that holds nothing else is set instead."""
    start, end = at
    old = text[start + len(flag) : end].lstrip(" =").strip("\"'")
    variable = re.fullmatch(r"\$\{?([A-Za-z_]\w*)\}?", old)
    if variable:
        line = re.compile(rf"^([ \t]*(?:export[ \t]+)?{variable[1]}=)(\S+)[ \t]*$", re.M)
        if len(line.findall(text)) == 1:
            return line.sub(lambda found: f"{found[1]}{value}", text)
    shown = flag if value is True else f"{flag} {value}"
    return text[:start] + shown + text[end:]


def _assignments(text: str, changes: Changes) -> str:
    """Fields of a recipe: ``key=value``, ``key: value`` and ``--key value``."""
    for key, value in changes.items():
        shown = "true" if value is True else "false" if value is None else str(value)
        shown = f"[{','.join(value)}]" if isinstance(value, list) else shown
        start = rf"(?:^|[\s.+'\"-]){re.escape(key)}(?:=|:[ ]*|[ ])"
        text = _replaced(text, rf"({start})(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s#'\"\\]+)", shown)
    return text


def _variables(text: str, changes: Changes) -> str:
    for name, value in changes.items():
        start = rf"^[ \t]*(?:export[ \t]+|: \"?\$\{{)?{name}:?="
        text = _replaced(text, rf"({start})[^\s;}}]+", str(value))
    return text


def _replaced(text: str, form: str, value: str) -> str:
    """Put a value behind the first group of every match."""
    return re.sub(form, lambda found: f"{found[1]}{value}", text, flags=re.M)


def changed_text(text: str, changes: Changes) -> str:
    """TOML or JSON, of its own or in a here-document, with dotted keys changed."""
    few = text.count("<<") <= _MOST_DOCUMENTS  # each is looked for to the end of the text
    here = few and re.search(
        r"(<<-?\s*['\"]?(\w+)['\"]?[^\n]*\n)(.*?)(\n\2\s*$)", text, re.S | re.M
    )
    if here:
        inner = changed_text(here[3], changes)
        return text[: here.start(3)] + inner.rstrip("\n") + text[here.end(3) :]
    if text.lstrip().startswith("{"):
        return _json(text, changes)
    try:
        document = tomlkit.parse(text)
    except (TOMLKitError, ValueError):
        return text
    _set(document, changes)
    return tomlkit.dumps(document)


def _json(text: str, changes: Changes) -> str:
    indent = re.search(r"\n([ \t]+)\"", text)
    document = json.loads(text)
    _set(document, changes)
    return json.dumps(document, indent=indent[1] if indent else None) + "\n"


def _set(document: Any, changes: Changes) -> None:
    """Set dotted keys; tables that are missing are made, keys without a value taken out."""
    for dotted, value in changes.items():
        *tables, key = dotted.split(".")
        table = document
        for name in tables:
            inner = table.get(name)
            if not isinstance(inner, Mapping):
                if value is None:
                    break
                table[name] = inner = {}
            table = table[name]
        else:
            if value is None:
                table.pop(key, None)
            elif not (isinstance(value, (list, dict)) and not value):
                table[key] = value


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
    imported = import_launch(files, names, overrides)
    now = imported.predicted()
    found = tuple(cheapest_changes(now, changes)) if changes else ()
    measured = {reading.path for reading in imported.readings if reading.measured}
    texts = {
        str(path): read_text(path, LAUNCH_FILE_LIMIT_BYTES)
        for path in imported.paths
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
    rows = now.estimate.layouts.row(), after.estimate.layouts.row()
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
    said = {**read.estimate.layouts.row(), COMPILE: compiled}
    return tuple(name for name, (_, after) in change.fields.items() if said[name] != after)
