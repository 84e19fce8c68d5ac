"""Tables of microbenchmarks, column by column: reading them, and which rows can be priced.

One row is one measured call. A table may have tens of thousands of rows, so that everything works
on whole columns. A row that cannot be priced is kept with the reason; the others go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator import catalogue
from simulator.arrays import Bools, Floats, Ints
from simulator.errors import InputError, brief, nearest
from simulator.files import build, check_header, read_lists, read_toml, record
from simulator.measured.table_kinds import HEADERS, Kind
from simulator.records import dataclass

Texts = NDArray[np.str_]

_ABOVE_LIMIT = 1.05
"""A call may pass the dense peak or the rate of a link by this: clocks boost, timers are coarse."""

_LEAST, _MOST = 1e-9, 1e15
"""No time in microseconds, no size and no count is outside."""

_LONGEST = 500
"""Characters of a cell: a column of text takes as much for every row as for its longest."""


@record
class Words:
    """How words of the tables map to profiles: validation/microbenchmarks/words.toml."""

    accelerators: dict[str, str]
    """Accelerator profile of the ``gpu`` of a kernel."""
    clusters: dict[str, str]
    """Cluster profile whose server carries the ``gpu`` of a collective inside one server."""
    systems: dict[str, str]
    """Cluster profile of a ``system``; a collective between servers needs it."""
    types: dict[str, str]
    """Type of the profiles for a ``dtype``."""
    families: dict[str, str]
    """Family of formulas (gemm, attention) of a source's own ``kernel``."""
    unmasked_rates: dict[str, str]
    """Pass of a ``kernel`` of attention that is stated as a rate of FLOPs without the mask."""
    gemm_libraries: dict[str, str]
    """Library of the accelerator's `gemm` table for an ``impl`` or, failing that, a framework."""
    attention_libraries: dict[str, str]
    """Library of the `attention` table for an ``impl``; any other is priced as ``flash``."""
    under_load: dict[str, str]
    """Frameworks whose calls of a family (``gemm``) were timed back to back, without a pause."""
    stream_classes: dict[str, str]
    """Class of the `stream` table for a memory-bound ``kernel``."""


def load_words() -> Words:
    """Read validation/microbenchmarks/words.toml."""
    path = catalogue.folder("validation") / "microbenchmarks" / "words.toml"
    return build(Words, read_toml(path), where=str(path))


# --- tables ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """One table of microbenchmarks as it was read."""

    path: str
    line: Ints
    """Line of each row in the file."""
    columns: Mapping[str, Texts]
    faults: Mapping[int, str]
    """What is wrong with whole rows, such as more cells than the header has, by line."""

    def __len__(self) -> int:
        return len(self.line)

    def text(self, column: str) -> Texts:
        """Text of a column, blank where the table has no such column."""
        found = self.columns.get(column)
        return np.full(len(self), "") if found is None else found

    def at(self, rows: Ints) -> Bools:
        """Return the mask that holds at these rows."""
        mask = np.zeros(len(self), dtype=bool)
        mask[rows] = True
        return mask

    def take(self, rows: Ints) -> Table:
        """Return the rows at these positions, in this order."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        return replace(self, line=self.line[rows], columns=columns)


def read_table(path: Path | str, kind: Kind) -> Table:
    """Read a table of a kind that is known, see ``tables.table_kind``.

    Raises
    ------
    InputError
        If the file cannot be read, has no rows, lacks a required column or has an unknown one.
    """
    faults: dict[int, str] = {}
    lines: list[int] = []
    rows: list[list[str]] = []
    header, read = read_lists(path, uneven=faults)
    for line, cells in read:
        lines.append(line)
        rows.append([*map(str.strip, cells)])
        if len("".join(cells)) > _LONGEST and max(map(len, rows[-1])) > _LONGEST:
            faults.setdefault(line, f"must have no cell of more than {_LONGEST} characters")
            rows[-1] = [cell[:_LONGEST] for cell in rows[-1]]
    if not rows:
        raise InputError(f"{path}: the table has a header and no rows")
    known = HEADERS[kind]
    check_header(path, header, required=known.required, known=known.columns)
    texts = (np.array(column, dtype=str) for column in zip(*rows, strict=True))
    columns = dict(zip(header, texts, strict=True))
    return Table(path=str(path), line=np.array(lines), columns=columns, faults=faults)


def groups(where: Bools, *columns: Texts) -> Iterator[tuple[tuple[str, ...], Ints]]:
    """Yield each combination of words that occurs where `where` holds, with its rows."""
    found: dict[tuple[str, ...], list[int]] = {}
    rows = np.flatnonzero(where)
    words = zip(*(column[rows].tolist() for column in columns), strict=True)
    for row, key in zip(rows.tolist(), words, strict=True):
        found.setdefault(key, []).append(int(row))
    for key, members in found.items():
        yield key, np.array(members)


# --- rows --------------------------------------------------------------------------------


class Sieve:
    """Which rows of a table can still be priced, and why the others cannot.

    A row is skipped once, with the first reason found. Rows that the table itself excludes are
    skipped from the start.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self.kept: Bools = np.ones(len(table), dtype=bool)
        self.problems: list[str] = []
        """What is wrong with the input, each as ``file: line N: column: rule, got value``."""
        self._reasons: Counter[str] = Counter()
        fault = np.array([table.faults.get(line, "") for line in table.line.tolist()], dtype=str)
        for (rule,), rows in list(groups(fault != "", fault)):
            self.refuse(table.at(rows), "", rule)
        self.skip_each("excluded: {}", self.kept & (table.text("excluded") != ""), "excluded")

    @property
    def skipped(self) -> dict[str, int]:
        """Rows skipped by reason, the most frequent first."""
        return dict(self._reasons.most_common())

    def skip(self, reason: str, rows: Bools) -> None:
        """Skip rows that nothing is wrong with but that cannot be priced."""
        out = rows & self.kept
        if out.any():
            self._reasons[reason] += int(out.sum())
            self.kept &= ~out

    def skip_each(self, reason: str, rows: Bools, *columns: str) -> None:
        """Skip rows with a reason that quotes these columns: ``no profile for {}``."""
        texts = [self.table.text(column) for column in columns]
        for words, members in list(groups(rows & self.kept, *texts)):
            self._reasons[reason.format(*words)] += len(members)
            self.kept[members] = False

    def refuse(
        self, rows: Bools, column: str, rule: str, *, hints: Sequence[str] | None = None
    ) -> None:
        """Skip rows in which a column breaks a rule, and say so for each line.

        Parameters
        ----------
        rows : ndarray of bool
            The rows that break it; those skipped before are left alone.
        column : str
            Its name; blank where the row as a whole is wrong.
        rule : str
            What the column must be; with the column, the reason under which the rows are counted.
        hints : sequence of str, optional
            One per row of the table, put behind the value in the line.
        """
        out = rows & self.kept
        reason = f"{column}: {rule}" if column else rule
        text = self.table.text(column)
        for row in np.flatnonzero(out).tolist():
            got = f", got {brief(str(text[row]))}" if text[row] else ""
            hint = hints[row] if hints is not None else ""
            line = self.table.line[row]
            self.problems.append(f"{self.table.path}: line {line}: {reason}{got}{hint}")
        self.skip(reason, out)

    def known(self, column: str, words: Collection[str]) -> None:
        """Refuse every row whose word in a column is blank or not one of `words`."""
        text = self.table.text(column)
        self.refuse(text == "", column, "required field is blank")
        wrong = self.kept & ~np.isin(text, list(words))
        near = {word: nearest(word, words) for word in np.unique(text[wrong]).tolist()}
        self.refuse(wrong, column, "unknown", hints=[near.get(word, "") for word in text.tolist()])

    def positive(self, column: str, rows: Bools, *, blank: float | None = None) -> Floats:
        """Read numbers where `rows` holds and rows are still kept; NaN elsewhere.

        One that is not positive is refused, and a blank field, unless it stands for `blank`.
        """
        rows = rows & self.kept
        text = self.table.text(column)
        values = np.full(len(text), np.nan)
        values[rows] = [_number(word) for word in text[rows].tolist()]
        empty = rows & (text == "")
        if blank is None:
            self.refuse(empty, column, "required field is blank")
        else:
            values[empty] = blank
        self.refuse(rows & ~(values > 0.0), column, "must be a positive number")
        good = (values >= _LEAST) & (values <= _MOST)
        self.refuse(rows & ~good, column, f"must be from {_LEAST:g} to {_MOST:g}")
        return np.where(good, values, np.nan)


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return float("nan")


def profiles(
    sieve: Sieve, kind: str, words: Mapping[str, str], where: Bools | None = None
) -> Texts:
    """Profile of the GPU of each row; rows without one are skipped.

    Parameters
    ----------
    kind : str
        Folder of the profiles: ``accelerators``, ``clusters``.
    words : mapping
        Profile by GPU; the name of a profile stands for itself.
    where : ndarray of bool, optional
        Rows that need one; all unless stated.
    """
    text = sieve.table.text("gpu")
    where = sieve.kept if where is None else where & sieve.kept
    sieve.refuse(where & (text == ""), "gpu", "required field is blank")
    names = set(catalogue.names(kind))
    named = (words.get(word, word) for word in text.tolist())
    profile = np.array([name if name in names else "" for name in named], dtype=str)
    sieve.skip_each(f"no {kind.removesuffix('s')} profile for {{}}", where & (profile == ""), "gpu")
    return profile


def refuse_impossible(
    sieve: Sieve, column: str, rows: Bools, *, measured_s: Floats, least_s: Floats, limit: str
) -> None:
    """Refuse calls that took less than the hardware needs, as times in a wrong unit do.

    Parameters
    ----------
    column : str
        Where the time was read from.
    measured_s, least_s : ndarray
        Seconds that a call took, and that it takes at the limit; NaN where unknown.
    limit : str
        Which rate that is.
    """
    beyond = rows & sieve.kept & (measured_s * _ABOVE_LIMIT < least_s)
    if beyond.any():
        hints = [f" (no less than {1e6 * least:.4g} us)" for least in least_s.tolist()]
        sieve.refuse(beyond, column, f"faster than the {limit} allows", hints=hints)
