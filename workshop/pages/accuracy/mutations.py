"""The section of docs/accuracy_details.md on files that are nearly right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Table = Callable[..., str]

_COUNTS = ("inputs", "commands", "answered", "refused", "crashes")


def mutations_section(lines: Sequence[Mapping[str, Any]], table: Table) -> Iterator[str]:
    """Word the counts of a document; `table` is that of the whole page."""
    if not lines:
        return
    inputs, crashes = (sum(line[name] for line in lines) for name in ("inputs", "crashes"))
    yield "## Files that are nearly right"
    yield (
        f"{inputs:,} sound files were changed in bytes and in structure (values replaced by what no"
        " machine holds, pieces lost, repeated, nested, grown to some hundred kilobytes) and handed"
        " to the importers, some of them through the command that goes on with what was read"
        f" (*commands*): {crashes} ended in anything but an answer or a refusal with exit code"
        " 2 that names the file. Crashes count tracebacks, answers that are no JSON, over 2 s and 2"
        " s a MB of processor time, and memory of over 4 times the file and 96 MiB. The slowest"
        " second a MB is that of files above 256 KiB."
        " `python -m tests.mutations.count_mutations` writes the table."
    )
    rows = [
        [
            line["importer"],
            *(f"{line[name]:,}" for name in _COUNTS),
            f"{line['slowest_s']:.2f}",
            f"{line['slowest_s_per_mb']:.2f}",
            f"{line['most_memory_mib']:.0f}",
            line["date"],
        ]
        for line in lines
    ]
    head = ("importer", *_COUNTS, "slowest, s", "s a MB")
    yield table((*head, "memory, MiB", "date"), rows)
