"""A user's own pipeline schedule: a file that lists the actions of every rank.

An action is written as ``torch.distributed.pipelining`` writes it: piece of the model, kind,
micro-batch. ``2F0`` is the forward pass of micro-batch 0 through piece 2; B is a whole backward
pass, I its input half, W its weight half; ``(0F1;3B0)OVERLAP_F_B`` runs two passes overlapped.

A ``.csv`` file has a row per rank and an action per cell, as that module's ``_load_csv`` reads and
its ``_dump_csv`` writes; empty cells are skipped. A ``.toml`` or ``.json`` file has a list
``actions`` with one entry per rank: a list of actions, or one text with blanks between them.

Sends and receives follow from the passes. A table may list them itself (``0SEND_F0``,
``1RECV_F0``, ``1SEND_B0``, ``0RECV_B0``): then all of them must be there, and those of a rank run
in the order in which they are listed. ``0UNSHARD``, ``0RESHARD`` and ``0REDUCE_GRAD`` may stand
anywhere; what they cost is in the passes and at the end of a step, as the layout shards.

The schedule of a layout is written the same way, to begin with.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simulator.errors import ForeshardError, InputError, brief, first_of
from simulator.events.engine.engine import longest_path
from simulator.events.step.listed_actions import Word, listed_tasks
from simulator.events.step.programs import Program, program, step_graph
from simulator.files import read_json, read_rows, read_toml
from simulator.layout.layouts import Layouts
from simulator.schedules.schedule import KINDS

_ACTION = re.compile(
    r"(\d{1,7})(F|B|I|W|SEND_F|SEND_B|RECV_F|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)(\d{0,7})"
)
_PAIR = re.compile(r"\(([^;()]*);([^;()]*)\)OVERLAP_F_B")
_WHOLE_STAGE = ("UNSHARD", "RESHARD", "REDUCE_GRAD")

MOST_ACTIONS, MOST_RANKS = 300_000, 10_000
"""Actions and ranks that are read: 64 ranks with 1,024 micro-batches have 200,000 actions."""

_MOST_CELLS = 4 * MOST_ACTIONS
"""Cells of a CSV file; torch leaves idle slots blank."""


class _Pass(NamedTuple):
    """A pass as it is listed."""

    rank: int
    kind: str
    micro_batch: int
    piece: int
    with_next: bool


def read_actions(path: Path | str) -> Program:
    """Read a table of actions from a ``.csv``, ``.toml`` or ``.json`` file.

    Raises
    ------
    InputError
        Everything that is wrong with it, each with rank and action; else what keeps its ranks
        waiting for one another for ever.
    """
    path = Path(path)
    if path.suffix == ".csv":
        rows: Any = _rows(path)
    elif path.suffix in (".toml", ".json"):
        raw = read_toml(path) if path.suffix == ".toml" else read_json(path)
        rows = raw.get("actions") if isinstance(raw, dict) else raw
    else:
        raise InputError(f"{path}: must end in .csv, .toml or .json")
    if not isinstance(rows, list) or not all(isinstance(row, (str, list)) for row in rows):
        raise InputError(f"{path}: actions: must be a list with one list or text per rank")
    made = parse_actions(rows, where=str(path))
    try:
        step = step_graph(made, np.zeros(len(made)))
        longest_path(step.graph, step.name)
    except ForeshardError as error:
        raise InputError(f"{path}: {error}") from None
    return made


def _rows(path: Path) -> list[list[str]]:
    """Cells of every rank of a CSV file, blank lines at its end left out."""
    rows: list[list[str]] = []
    cells = 0
    for _, row in read_rows(path):
        rows.append(row)
        cells += len(row)
        if len(rows) > MOST_RANKS:
            raise InputError(f"{path}: must be at most {MOST_RANKS} ranks")
        if cells > _MOST_CELLS:
            raise InputError(f"{path}: must be at most {_MOST_CELLS} cells")
    while rows and not rows[-1]:
        rows.pop()
    return rows


def parse_actions(rows: Sequence[str | Sequence[str]], where: str = "actions") -> Program:
    """Make a program of the written actions of every rank.

    Parameters
    ----------
    rows : sequence
        Per rank a list of actions, or one text with blanks between them.
    where : str
        What error messages name.

    Examples
    --------
    >>> made = parse_actions(["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"])
    >>> made.ranks, made.pieces, made.name(5)
    (2, 2, 'rank 1: B0 of piece 1')
    """
    if len(rows) > MOST_RANKS:
        raise InputError(f"{where}: must be at most {MOST_RANKS} ranks, got {len(rows)}")
    passes: list[_Pass] = []
    words: list[Word] = []
    problems: list[str] = []
    for rank, row in enumerate(rows):
        for position, cell in enumerate(row.split() if isinstance(row, str) else row):
            if text := str(cell).strip():
                try:
                    _add(text, rank, passes, words)
                except ValueError as error:
                    problems.append(f"{where}: rank {rank}, action {position}: {error}")
        if len(passes) + len(words) + len(problems) > MOST_ACTIONS:
            raise InputError(f"{where}: must be at most {MOST_ACTIONS} actions")
    if not problems and not passes:
        problems.append(f"{where}: must list a pass at least")
    if problems:
        raise InputError(first_of(problems, where))
    return _program(passes, words, len(rows), where)


def _add(text: str, rank: int, passes: list[_Pass], words: list[Word]) -> None:
    """Add what one cell says."""
    if pair := _PAIR.fullmatch(text):
        for part, joined in zip(pair.groups(), (True, False), strict=True):
            piece, kind, batch = _parsed(part.strip(), text)
            if kind not in KINDS:
                raise ValueError(f"only passes overlap, got {text[:60]!r}")
            passes.append(_Pass(rank, kind, batch, piece, joined))
        return
    piece, kind, batch = _parsed(text, text)
    if kind in KINDS:
        passes.append(_Pass(rank, kind, batch, piece, False))
    else:
        words.append(Word(rank, kind, batch, piece, len(passes)))


def _parsed(text: str, whole: str) -> tuple[int, str, int]:
    """Piece, kind and micro-batch of an action; -1 where it is of no micro-batch."""
    match = _ACTION.fullmatch(text)
    if not match:
        raise ValueError(f"must be written like 2F0 or (0F1;3B0)OVERLAP_F_B, got {whole[:60]!r}")
    piece, kind, batch = match.groups()
    if (kind in _WHOLE_STAGE) == bool(batch):
        need = "no micro-batch" if batch else "a micro-batch"
        raise ValueError(f"{kind} takes {need}, got {brief(whole)}")
    return int(piece), kind, int(batch) if batch else -1


def _program(passes: list[_Pass], words: list[Word], ranks: int, where: str) -> Program:
    """Number the chunks of every rank and check that the passes are complete."""
    pieces = max(action.piece for action in passes) + 1
    chunk: dict[tuple[int, int], int] = {}
    held = Counter[int]()
    for rank, piece in sorted({(action.rank, action.piece) for action in passes}):
        chunk[rank, piece] = held[rank]
        held[rank] += 1
    if problems := [f"{where}: {text}" for text in _incomplete(passes, pieces)]:
        raise InputError(first_of(problems, where))
    made = Program(
        ranks=ranks,
        chunks=max(chunk.values()) + 1,
        pieces=pieces,
        rank=np.array([action.rank for action in passes]),
        kind=np.array([KINDS.index(action.kind) for action in passes]),
        micro_batch=np.array([action.micro_batch for action in passes]),
        chunk=np.array([chunk[action.rank, action.piece] for action in passes]),
        piece=np.array([action.piece for action in passes]),
        with_next=np.array([action.with_next for action in passes]),
        where=where,
    )
    return replace(made, listed=listed_tasks(words, made, where)) if words else made


def _incomplete(passes: Sequence[_Pass], pieces: int) -> list[str]:
    """Name passes that are listed twice, or whose counterpart or neighbour is not listed."""
    on: dict[str, dict[int, int]] = {kind: {} for kind in KINDS}  # rank of a pass, by its number
    problems: list[str] = []
    for action in passes:
        alike, number = on[action.kind], action.micro_batch * pieces + action.piece
        if number in alike:
            name = _written(action.kind, action.micro_batch, action.piece)
            problems.append(
                f"rank {action.rank}: {name} is listed twice, also on rank {alike[number]}"
            )
        alike[number] = action.rank
    batches = {action.micro_batch for action in passes}
    if max(batches) >= len(batches):
        missing = next(n for n in range(len(batches)) if n not in batches)
        problems.append(f"micro-batches must be counted from 0 on: {missing} has no pass")
    trained = any(on[kind] for kind in "BIW")
    for rank, kind, batch, piece, _ in passes:
        number = batch * pieces + piece
        home = on["F"].get(number, rank)
        if home != rank:
            problems.append(
                f"rank {rank}: {_written(kind, batch, piece)} must be on rank {home}, where"
                f" {_written('F', batch, piece)} is: what a pass keeps stays there"
            )
        whole, half, weight = (number in on[way] for way in "BIW")
        lacks = {
            "F": trained and not whole and not half and "backward pass",
            "I": not weight and "weight pass",
            "B": (half or weight) and "place: its halves are listed too",
        }.get(kind)
        if lacks:
            problems.append(f"rank {rank}: {_written(kind, batch, piece)} has no {lacks}")
        needs = [("F", piece - 1)] if kind == "F" and piece else []
        if kind in "BI":
            needs = [("BI", piece + 1)] if piece < pieces - 1 else [("F", piece)]
        elif kind == "W":
            needs = [("I", piece)]
        for ways, other in needs:
            if not any(number + other - piece in on[way] for way in ways):
                wanted = " or ".join(_written(way, batch, other) for way in ways)
                problems.append(
                    f"rank {rank}: {_written(kind, batch, piece)} waits for {wanted}, "
                    "which no rank lists"
                )
    return problems


def _written(kind: str, batch: int, piece: int) -> str:
    return f"{piece}{kind}{batch if batch >= 0 else ''}"


def layout_actions(layouts_row: Layouts) -> str:
    """Write what the schedule of one layout does, one step of it.

    Examples
    --------
    >>> print(layout_actions(Layouts.of(pp=2, schedule="gpipe", global_batch=2)), end="")
    0F0,0F1,0B0,0B1
    1F0,1F1,1B0,1B1
    """
    row, micro_batches = layouts_row.row(), int(layouts_row.micro_batches[0])
    return write_actions(program(row["schedule"], row["pp"], micro_batches, row["vpp"]))


def write_actions(listed: Program) -> str:
    """Write the passes of a program as torch's CSV: a row per rank, overlapped pairs in brackets.

    Examples
    --------
    >>> print(write_actions(program("1f1b", 2, 2)), end="")
    0F0,0F1,0B0,0B1
    1F0,1B0,1F1,1B1
    """
    rows: list[list[str]] = [[] for _ in range(listed.ranks)]
    columns = (listed.rank, listed.kind, listed.micro_batch, listed.piece, listed.with_next)
    opened = ""
    for rank, kind, batch, piece, pair in zip(*(x.tolist() for x in columns), strict=True):
        text = _written(KINDS[kind], batch, piece)
        if pair:
            opened = text
        else:
            rows[rank].append(f"({opened};{text})OVERLAP_F_B" if opened else text)
            opened = ""
    return "".join(",".join(row) + "\n" for row in rows)
