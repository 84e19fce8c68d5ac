"""Sends, receives and sharding words that a table of actions lists itself.

They become tasks of their own: a send runs on the sender's pipeline stream where it is listed, once
its pass has ended; a receive stands in the receiver's pipeline stream until the send has ended, and
its pass waits for it. So a stream that lists a receive before a send, while the other end does the
same, is a deadlock, as it is on one communicator of NCCL. UNSHARD, RESHARD and REDUCE_GRAD run on
the data stream: a piece's next pass waits for its UNSHARD; the other two wait for its last pass.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.errors import InputError, first_of
from simulator.records import dataclass
from simulator.schedules.schedule import BACKWARD_WEIGHT, FORWARD


class Word(NamedTuple):
    """What is listed beside the passes."""

    rank: int
    kind: str
    micro_batch: int
    piece: int
    place: int
    """Passes that are listed before it, of all ranks."""


@dataclass(frozen=True, kw_only=True)
class Listed:
    """The words of a table in their order, and which passes and words each one binds."""

    words: tuple[Word, ...]
    producer: NDArray[Any]
    """Pass whose end each one waits for; -1 none."""
    consumer: NDArray[Any]
    """Pass that waits for it; -1 none."""
    sent: NDArray[Any]
    """Of a receive the word that sends; else -1."""
    sends: bool
    """Whether there are sends among them: then none follow from the passes."""

    def __len__(self) -> int:
        return len(self.words)

    def name(self, row: int) -> str:
        """Word one of them."""
        word = self.words[row]
        return f"rank {word.rank}: {_text(word)}"

    def seconds(self, hop_s: NDArray[Any]) -> NDArray[Any]:
        """How long each one takes: a send by its hop, a receive no longer than its send.

        Sharding takes no time here: what it costs is in the passes and at the end of a step.
        """
        return np.array(
            [
                hop_s[0, word.piece]
                if word.kind == "SEND_F"
                else hop_s[1, word.piece - 1]
                if word.kind == "SEND_B"
                else 0.0
                for word in self.words
            ],
            dtype=np.float64,
        )


def _text(word: Word) -> str:
    return f"{word.piece}{word.kind}{word.micro_batch if word.micro_batch >= 0 else ''}"


def listed_tasks(words: list[Word], program: Any, where: str) -> Listed:
    """Bind the words of a table to its passes and to one another.

    Raises
    ------
    InputError
        A receive without its send or a send without its receive, both ends named; a pass that
        needs a receive that is not listed.
    """
    columns = (program.rank, program.kind, program.micro_batch, program.piece)
    passes: dict[tuple[str, int, int], int] = {}
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    for action, (_, kind, batch, piece) in enumerate(rows):
        if kind != BACKWARD_WEIGHT:
            passes["F" if kind == FORWARD else "B", batch, piece] = action
    held: dict[tuple[int, int], list[int]] = {}
    for action, (rank, _, _, piece) in enumerate(rows):
        held.setdefault((rank, piece), []).append(action)
    at = {(word.kind, word.micro_batch, word.piece): row for row, word in enumerate(words)}
    producer, consumer, sent = (np.full(len(words), -1) for _ in range(3))
    problems: list[str] = []
    for row, word in enumerate(words):
        if word.micro_batch >= 0 and at[word.kind, word.micro_batch, word.piece] != row:
            problems.append(f"rank {word.rank}: {_text(word)} is listed twice")
        if word.kind[:4] in ("SEND", "RECV"):
            problems += _bind(row, word, at, passes, rows, (producer, consumer, sent))
        else:
            producer[row], consumer[row] = _around(word, held)
    sends = any(word.micro_batch >= 0 for word in words)
    if sends:
        problems += _unreceived(passes, rows, at)
    if problems:
        raise InputError(first_of([f"{where}: {text}" for text in problems], where))
    return Listed(words=tuple(words), producer=producer, consumer=consumer, sent=sent, sends=sends)


def _bind(
    row: int,
    word: Word,
    at: Mapping[tuple[str, int, int], int],
    passes: Mapping[tuple[str, int, int], int],
    rows: list[Any],
    columns: tuple[NDArray[Any], NDArray[Any], NDArray[Any]],
) -> list[str]:
    """Find the pass of a send or receive and its other end; say what is not there."""
    producer, consumer, sent = columns
    action, way = word.kind.split("_")
    own = passes.get((way, word.micro_batch, word.piece))
    name = f"rank {word.rank}: {_text(word)}"
    if own is None or rows[own][0] != word.rank:
        return [f"{name}: the rank has no such pass {word.piece}{way}{word.micro_batch}"]
    step = (1 if way == "F" else -1) * (1 if action == "SEND" else -1)
    twin = ("RECV" if action == "SEND" else "SEND", way)
    other = word.piece + step
    twin_row = at.get(("_".join(twin), word.micro_batch, other))
    if twin_row is None:
        holder = passes.get((way, word.micro_batch, other))
        end = "no rank" if holder is None else f"rank {rows[holder][0]}"
        verb = "is never received" if action == "SEND" else "waits for a send"
        return [f"{name} {verb}: {other}{twin[0]}_{way}{word.micro_batch} is missing on {end}"]
    if action == "SEND":
        producer[row] = own
    else:
        consumer[row], sent[row] = own, twin_row
        if own < word.place:
            return [f"{name} comes after the pass that needs it"]
    return []


def _around(word: Word, held: Mapping[tuple[int, int], list[int]]) -> tuple[int, int]:
    """Of a sharding word: the pass that it waits for and the pass that waits for it."""
    actions = held.get((word.rank, word.piece), [])
    at = bisect_left(actions, word.place)
    if word.kind == "UNSHARD":
        return -1, actions[at] if at < len(actions) else -1
    return actions[at - 1] if at else -1, -1


def _unreceived(
    passes: Mapping[tuple[str, int, int], int],
    rows: list[Any],
    at: Mapping[tuple[str, int, int], int],
) -> list[str]:
    """Passes whose input comes from another rank, but for which no receive is listed."""
    problems = []
    for (way, batch, piece), action in passes.items():
        other = piece - 1 if way == "F" else piece + 1
        source = passes.get((way, batch, other))
        if source is None or rows[source][0] == rows[action][0]:
            continue
        if (f"RECV_{way}", batch, piece) not in at:
            problems.append(
                f"rank {rows[action][0]}: {piece}{way}{batch} has no {piece}RECV_{way}{batch}, "
                f"what rank {rows[source][0]} makes never reaches it"
            )
    return problems
