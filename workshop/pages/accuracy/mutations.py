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
    changed, drawn = (
        sum(line["inputs"] for line in lines if line["mutator"] == mutator)
        for mutator in ("changed", "drawn")
    )
    crashes = sum(line["crashes"] for line in lines)
    yield "## Files that are nearly right"
    yield (
        f"{changed:,} sound files were changed in bytes and in structure (values replaced by what"
        " no machine holds, pieces lost, repeated, nested, grown to some hundred kilobytes), and"
        f" {drawn:,} were drawn, sound in syntax, from keys and values that frameworks, readers and"
        " the schema know (*mutator*). All were handed"
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
            line["mutator"],
            *(f"{line[name]:,}" for name in _COUNTS),
            f"{line['slowest_s']:.2f}",
            f"{line['slowest_s_per_mb']:.2f}",
            f"{line['most_memory_mib']:.0f}",
            line["date"],
        ]
        for line in lines
    ]
    head = ("importer", "mutator", *_COUNTS, "slowest, s", "s a MB")
    yield table((*head, "memory, MiB", "date"), rows)
