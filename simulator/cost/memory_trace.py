"""Reserved memory of one rank, from a trace of its tensors through a model of the allocator.

The same operators that the closed form adds up (``cost/memory/peak.py``) are allocated and freed in
the order of a training step: states, the passes of the schedule's table of actions
(``schedules/action_tables.py``), loss, optimizer. Two steps are played, since the
optimizer's states take blocks that the first step's activations have left; a third changes nothing.
The search keeps the closed form; this is for one layout.

Where the backward pass comes in two halves, what a block keeps waits in full for the second one,
which makes the weight gradients, as in the closed form.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from simulator.cost.memory.allocator import Block, CachingAllocator
from simulator.cost.memory.peak import IN_TRANSIT, on_device
from simulator.cost.memory.rank_tensors import (
    Part,
    chunk_parts,
    operators_of,
    pipeline_buffers,
    stages_of,
    workspace_parts,
)
from simulator.cost.pricing import price
from simulator.cost.tables import Priced, Selection, select
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import SHARDINGS, Layouts
from simulator.records import dataclass
from simulator.schedules.action_tables import actions, in_flight
from simulator.schedules.registry import SCHEDULES
from simulator.schedules.schedule import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD
from simulator.software.profile import Software
from simulator.workload.recipe import Workload

_STEPS = 2

_ROUNDS = (2, 3, 4)
"""Micro-batches tried, in multiples of pp, for a trace that is as full as the whole step."""

_ENOUGH_ROUNDS = 16
"""After so many, in multiples of pp, ranks hold what they ever will, or ever more."""

_MOST_PLAYED = 2**14
"""Micro-batches that a rank may hold at once for its memory to be worth a trace."""

Action = tuple[int, int, int]
"""Kind, chunk and micro-batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """What the allocator of one pipeline rank came to."""

    allocated_bytes: float
    """Peak of the tensors, each rounded to 512 B."""
    reserved_bytes: float


def replay_memory(
    layouts_row: Layouts, workload: Workload, cluster: Cluster, software: Software
) -> list[Replayed]:
    """Play two training steps of every pipeline rank of one layout.

    Parameters
    ----------
    layouts_row : Layouts
        A feasible layout, a table with one row.
    workload, cluster, software
        What is trained, on what, with what.

    Returns
    -------
    list of Replayed
        One for every pipeline rank, first stage first; empty for passes run in pairs to hide
        expert traffic, whose order the tables of schedules do not have, and for more micro-batches
        held at once than any memory has room for.
    """
    assert len(layouts_row) == 1, "one layout at a time"
    row = layouts_row.row()
    if software.overlap.expert and row["ep"] > 1:
        return []
    priced = price(layouts_row, workload, cluster, software, every_rank=True)
    rows = select(layouts_row, priced, slice(0, 1))
    whole = _micro_batches(rows)
    count = played_micro_batches(row["schedule"], row["pp"], whole, row["vpp"])
    received = whole if software.allocator.pipeline_buffers else 0  # a buffer for each
    if max(count, received) > _MOST_PLAYED:
        return []
    operators = operators_of(layouts_row, priced.workload, cluster, software)
    held = stages_of(layouts_row, priced.workload)
    table = actions(row["schedule"], row["pp"], count, row["vpp"])
    traced = []
    for column in np.argsort(rows.rank[0], kind="stable"):
        player = _Player(
            priced, rows, int(column), chunk_parts(rows, priced, operators, int(column), held)
        )
        of_rank = table.rank == rows.rank[0, column]
        columns = (table.kind[of_rank], table.chunk[of_rank], table.micro_batch[of_rank])
        traced.append(player.play(list(zip(*(x.tolist() for x in columns), strict=True))))
    return traced


def _micro_batches(rows: Selection) -> int:
    """Micro-batches of a step; an asynchronous pipeline is never less than full."""
    count = int(rows.layouts.micro_batches[0])
    asynchronous = not SCHEDULES[rows.layouts.row()["schedule"]].flushes
    return max(count, int(rows.layouts.pp[0])) if asynchronous else count


def played_micro_batches(schedule: str, pp: int, micro_batches: int, vpp: int) -> int:
    """As few micro-batches as fill the ranks like all of them, and go round once more.

    Examples
    --------
    1F1B on four ranks is full after four, and steady after eight; GPipe holds them all.

    >>> played_micro_batches("1f1b", 4, 64, 1), played_micro_batches("gpipe", 4, 64, 1)
    (8, 64)
    """
    whole = in_flight(schedule, pp, min(micro_batches, _ENOUGH_ROUNDS * pp), vpp)
    for count in (rounds * pp for rounds in _ROUNDS):
        if count >= micro_batches:
            break
        if np.array_equal(in_flight(schedule, pp, count, vpp), whole):
            return count
    return micro_batches


class _Player:
    """One rank's steps, tensor by tensor."""

    def __init__(
        self, priced: Priced, rows: Selection, column: int, chunks: list[list[Part]]
    ) -> None:
        software, row = priced.software, rows.layouts
        self.memory, self.chunks, self.software = CachingAllocator(), chunks, software
        states = [x[None, None] for x in priced.states.state_bytes[:, rows.state_key[0], column]]
        kept = on_device(states, row, priced.workload.recipe, software)
        self.weights, self.gradients, self.optimizer = (float(x[0, 0]) for x in kept[:3])
        self.frees = software.states.frees_gradients
        self.steps_early = priced.workload.recipe.optimizer_in_backward
        level = SHARDINGS[int(row.sharding[0])]
        whole = software.fsdp2.keeps_gathered_with_pipeline and level in ("zero2", "zero3")
        self.reduces_once = whole and bool(row.pp[0] > 1)
        self.reduces_each_round = self.reduces_once and software.fsdp2.reduces_each_round
        self.keeps_gathered = self.reduces_once or level == "zero2"
        self.reshard = int(row.reshard_after_forward[0])
        """Ranks that share gathered weights until the backward pass; 0: they go."""
        self.pool = "reduce" if software.fsdp2.pools_by_stream else "compute"
        self.workspace, *self.dummies = workspace_parts(rows, priced, column)
        self.buffers = pipeline_buffers(rows, priced, column)
        self.step_long: list[Block] = []
        """Blocks that live to the end of the step."""
        self.with_gradients: set[int] = set()
        """Chunks whose gradients are there."""
        self.filling: dict[int, list[Block]] = {}
        """Whole gradients of chunks that wait for the end of a round."""
        self.in_transit: deque[list[Block]] = deque()
        """What offloaded parts keep, as far as it is on the device."""

    @property
    def parts(self) -> list[Part]:
        """Everything that the rank holds."""
        return [part for chunk in self.chunks for part in chunk]

    def play(self, order: list[Action]) -> Replayed:
        """Two steps of these actions."""
        self._constant()
        for step in range(_STEPS):
            self._step(order)
            if step == 0:
                self._all(self._moments())
            self._drop(self.step_long)
            self.step_long = []
        return Replayed(
            allocated_bytes=float(self.memory.peak_allocated_bytes),
            reserved_bytes=float(self.memory.reserved_bytes),
        )

    def _step(self, order: list[Action]) -> None:
        for part in self.parts:
            if self._stays_gathered(part):
                self.step_long += self._gather(part)
        kept: dict[tuple[int, int], list[list[Block]]] = {}
        ends = _round_ends(order) if self.reduces_each_round else set()
        for number, (kind, chunk, micro_batch) in enumerate(order):
            at = chunk, micro_batch
            if kind == FORWARD:
                kept[at] = self._forward(chunk)
            elif kind == BACKWARD_INPUT:
                self._backward(chunk, kept[at], weights=False)
            elif kind == BACKWARD_WEIGHT:
                self._weights(chunk, kept.pop(at))
            else:
                self._backward(chunk, kept.pop(at), weights=True)
            if number in ends:
                self._end_round(chunk)
        assert not kept, "every micro-batch goes back"
        if self.reduces_once and not self.reduces_each_round:
            for part in self.parts:
                self._reduce([part.reduced])
        self.with_gradients = set()

    def _constant(self) -> None:
        """Weights, gradient buffers and workspaces that are there before the first step.

        Where one buffer holds all weights, they are copied into it and freed.
        """
        self._all([self.workspace, *self.buffers])
        masters = self.optimizer * _master_share(self.software)
        weights = [_matrices((self.weights + masters) * part.share) for part in self.parts]
        single = self._all(size for part in weights for size in part)
        if not self.frees:
            self._all([self.weights, self.gradients])
            self._drop(single)

    def _moments(self) -> Iterable[float]:
        """Optimizer states, which the first step makes."""
        left = self.optimizer * (1.0 - _master_share(self.software))
        for part in self.parts:
            for _ in range(2):
                yield from _matrices(left * part.share / 2)

    def _forward(self, chunk: int) -> list[list[Block]]:
        """One micro-batch's forward pass; returns what every part keeps."""
        kept = []
        for part in self.chunks[chunk]:
            window = [] if self._stays_gathered(part) else self._gather(part)
            made = self._all([*part.passing, *part.rebuilt])
            tensors = self._all(part.kept)
            if self.reshard and not part.is_root:
                tensors += self._all([part.gathered / self.reshard])
            if part.away:
                self._take_in(tensors)
            kept.append(tensors)
            self._drop(made)
            self._drop(window)
        return kept

    def _take_in(self, tensors: list[Block]) -> None:
        """Hold one more offloaded part; the oldest of too many has reached the host by now."""
        self.in_transit.append(tensors)
        if len(self.in_transit) > IN_TRANSIT:
            gone = self.in_transit.popleft()
            self._drop(gone)
            gone.clear()

    def _fetch(self, parts: list[Part], kept: list[list[Block]], index: int) -> None:
        """Bring back what an offloaded part kept, and the next one's beside it."""
        wanted = [i for i in range(index, -1, -1) if parts[i].away][:IN_TRANSIT]
        for i in wanted if parts[index].away else ():
            if not kept[i]:
                kept[i] += self._all(parts[i].kept)

    def _backward(self, chunk: int, kept: list[list[Block]], *, weights: bool) -> None:
        """One micro-batch's backward pass, last part first; with the weight gradients or not."""
        parts = self.chunks[chunk]
        root = list[Block]()
        for index in range(len(parts) - 1, -1, -1):
            part = parts[index]
            self._fetch(parts, kept, index)
            window = [] if self._stays_gathered(part) else self._gather(part)
            made = self._all(part.rebuilt)
            work = self._all(part.transient)
            self._drop(made)
            if weights:
                self._release(kept[index])
            self._drop(work)
            if weights:
                root += self._gradients(chunk, part)
            self._drop(window)
        if weights:
            self._end(chunk, root)

    def _weights(self, chunk: int, kept: list[list[Block]]) -> None:
        """The second half of a backward pass: weight gradients, and nothing is kept any more."""
        root = list[Block]()
        for part, tensors in zip(reversed(self.chunks[chunk]), reversed(kept), strict=True):
            root += self._gradients(chunk, part)
            self._release(tensors)
        self._end(chunk, root)

    def _release(self, tensors: list[Block]) -> None:
        self._drop(tensors)
        if any(tensors is held for held in self.in_transit):
            self.in_transit = deque(x for x in self.in_transit if x is not tensors)

    def _gradients(self, chunk: int, part: Part) -> list[Block]:
        """Weight gradients of one part; returns those that wait for the end of the pass."""
        first, root = chunk not in self.with_gradients, list[Block]()
        if self.dummies:
            self._all(self.dummies)
            self.dummies = []
        size = part.reduced if self.reduces_once else part.gathered
        opens = first if not self.reduces_each_round else chunk not in self.filling
        gradient = self._all([size]) if opens or not self.reduces_once else []
        if self.reduces_each_round:
            root = gradient
        elif self.reduces_once:
            self.step_long += gradient
        elif part.is_root:
            root = gradient
        else:
            self._reduce([part.reduced])
            self._drop(gradient)
        if self.steps_early:
            self._drop(self._all([self.gradients * part.share], self.pool))
        elif first and self.frees:
            self.step_long += self._all([self.gradients * part.share], self.pool)
        return root

    def _end(self, chunk: int, root: list[Block]) -> None:
        """Reduce the gradients of embedding and head, where they are reduced every time."""
        if self.reduces_each_round:
            self.filling.setdefault(chunk, []).extend(root)
        elif not self.reduces_once:
            self._reduce([part.reduced for part in self.chunks[chunk] if part.is_root])
            self._drop(root)
        self.with_gradients.add(chunk)

    def _end_round(self, chunk: int) -> None:
        """Reduce what a chunk's gradients have added up to over a round of micro-batches."""
        for part in self.chunks[chunk]:
            self._reduce([part.reduced])
        self._drop(self.filling.pop(chunk))

    def _stays_gathered(self, part: Part) -> bool:
        """The root group (embedding and head), or all without resharding."""
        return part.gathered > 0 and (self.keeps_gathered or part.is_root)

    def _gather(self, part: Part) -> list[Block]:
        """Whole weights of a part that keeps shards, and the flat buffer in which they arrive."""
        flat = self._all([part.gathered], "gather")
        whole = self._all(_matrices(part.gathered))
        self._drop(flat)
        return whole

    def _reduce(self, sizes: list[float]) -> None:
        """The flat buffer out of which gradients are reduced."""
        self._drop(self._all([sum(sizes)]))

    def _all(self, sizes: Iterable[float], stream: str = "compute") -> list[Block]:
        return [self.memory.allocate(size, stream) for size in sizes if size > 0]

    def _drop(self, blocks: list[Block]) -> None:
        for block in blocks:
            self.memory.free(block)


def _round_ends(order: list[Action]) -> set[int]:
    """Places in the order at which a chunk's weight gradients make way for another chunk's."""
    last: dict[int, int] = {}
    ends: set[int] = set()
    previous: int | None = None
    for number, (kind, chunk, _) in enumerate(order):
        if kind in (FORWARD, BACKWARD_INPUT):
            continue
        if previous is not None and previous != chunk:
            ends.add(last[previous])
        last[chunk], previous = number, chunk
    return ends | ({last[previous]} if previous is not None else set())


def _matrices(size_bytes: float) -> list[float]:
    """A block's weights as the tensors that they are, about: two of attention, two of the MLP."""
    return [size_bytes * share for share in (0.15, 0.1, 0.45, 0.3)]


def _master_share(software: Software) -> float:
    """fp32 weights among the optimizer's states, where they are the weights (FSDP2's shards)."""
    states = software.states
    if float(states.weight):
        return 0.0
    whole = float(states.master) + 2.0 * float(states.moment)
    return float(states.master) / whole if whole else 0.0
