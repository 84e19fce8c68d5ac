"""Reserved memory of one rank, from a trace of its tensors through a model of the allocator.

The same operators that the closed form adds up (``cost/memory.py``) are allocated and freed in the
order of a training step: states, forward and backward passes of 1F1B, loss, optimizer. Two steps
are played, since the optimizer's states take blocks that the first step's activations have left; a
third changes nothing. The search keeps the closed form; this is for one layout.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from simulator.cost.adapters import freeze
from simulator.cost.allocator import Block, CachingAllocator
from simulator.cost.memory import workspace
from simulator.cost.operations import Operators, Ranks
from simulator.cost.operators import block, embedding, head, predict_ahead
from simulator.cost.passes import Priced
from simulator.cost.state_bytes import part_states
from simulator.cost.step import Selection, price, select
from simulator.hardware.cluster import Cluster
from simulator.layout.layout import RECOMPUTE, SHARDINGS, Layouts
from simulator.layout.placement import place
from simulator.software import Software
from simulator.workload.recipe import Workload

__all__ = ["Replayed", "replay_memory"]

_FULL, _SELECTIVE = RECOMPUTE.index("full"), RECOMPUTE.index("selective")
_STEPS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """What the allocator of one pipeline rank came to."""

    allocated_bytes: float
    """Peak of the tensors, each rounded to 512 B."""
    reserved_bytes: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """One block, embedding or head on the rank: sizes of its tensors in bytes."""

    kept: list[float]
    """From the forward to the backward pass."""
    rebuilt: list[float]
    """Made by the forward pass, gone after it and made again in the backward pass."""
    passing: list[float]
    """Of the forward pass only."""
    transient: list[float]
    """Of the backward pass, all at once."""
    share: float
    """Of the rank's states."""
    gathered: float
    """Whole weights, where the rank keeps shards and gathers them for every pass."""
    reduced: float
    """Whole gradients in the type on the wire, where they are reduced block by block."""
    is_root: bool
    """Embedding or head."""


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
        One for every pipeline rank, first stage first; empty for schedules other than 1F1B, whose
        order of passes the trace does not know, for passes run in pairs to hide expert traffic, and
        for activations in host memory.
    """
    assert len(layouts_row) == 1, "one layout at a time"
    row = layouts_row.row()
    paired = software.overlap.expert and row["ep"] > 1
    if row["schedule"] != "1f1b" or row["offload_layers"] or paired:
        return []
    priced = price(layouts_row, workload, cluster, software, every_rank=True)
    rows = select(layouts_row, priced, slice(0, 1))
    operators = _operators(layouts_row, workload, cluster, software)
    level, pipelined = SHARDINGS[int(layouts_row.sharding[0])], bool(layouts_row.pp[0] > 1)
    whole = software.states.keeps_gathered_with_pipeline and level in ("zero2", "zero3")
    once = pipelined and whole
    found = []
    for column in np.argsort(rows.rank[0], kind="stable"):
        parts = _parts(rows, priced, operators, int(column))
        flying = rows.in_flight[0, column, :-2].sum()
        most = int(np.ceil(flying / max(rows.parts[0, column, :-2].sum(), 1.0)))
        states = [float(x) for x in priced.states.state_bytes[:, rows.grid[0], column]]
        most = max(most, 1)
        buffers = _pipeline_buffers(rows, priced, parts, most)
        player = _Player(
            software, parts, states,
            workspace=_workspace_bytes(rows, priced, int(column)), buffers=buffers,
            keeps_gathered=once or level == "zero2", reduces_once=once,
            reshard=int(layouts_row.reshard_after_forward[0]),
        )  # fmt: skip
        found.append(player.play(most, min(int(layouts_row.micro_batches[0]), most + 1)))
    return found


def _pipeline_buffers(
    rows: Selection, priced: Priced, parts: list[_Part], most: int
) -> list[float]:
    """Buffers of torch's pipelining that stay for the whole run; outputs join what is kept.

    An input that is in flight is the first block's own.
    """
    row = rows.layouts
    if not priced.software.allocator.pipeline_buffers or int(row.pp[0]) == 1:
        return []
    m, one = int(row.micro_batches[0]), float(priced.blocks.boundary_bytes[rows.key[0]])
    inputs = 0 if parts[0].is_root else max(m - most, 0)
    if parts[-1].is_root:
        return [one] * inputs
    parts[-1].kept.append(one)
    return [one] * (inputs + m)


def _workspace_bytes(rows: Selection, priced: Priced, column: int) -> list[float]:
    """What is there from the first step on, and each copy of the dummy gradients."""
    software = priced.software
    whole = workspace(
        software, rows.layouts, priced.blocks, rows.key, priced.states, rows.grid, rows.parts
    )  # fmt: skip
    one = 2.0 * float(priced.states.linear_shapes[rows.grid[0], column])
    dummies = [one] * round(float(software.allocator.dummy_gradient_copies))
    return [float(whole[0, column]) - sum(dummies), *dummies]


def _operators(
    row: Layouts, workload: Workload, cluster: Cluster, software: Software
) -> list[Operators]:
    """The operators of every part on one rank."""
    arch, recipe, kernels = workload.architecture, workload.recipe, software.kernels
    degrees = {name: getattr(row, name).astype(float) for name in ("tp", "cp", "ep", "etp")}
    ranks = Ranks(
        **degrees, sequence_parallel=row.sequence_parallel.astype(bool),
        micro_batch=row.micro_batch.astype(float), groups=place(row, cluster.domain),
        cp_kind=row.cp_kind, dispatcher=row.dispatcher,
    )  # fmt: skip
    rotary = arch.position == "rope"
    blocks = [block(k, arch.hidden, ranks, recipe, kernels, rotary=rotary) for k in arch.blocks]
    for kind, ops in zip(arch.blocks, blocks, strict=True):
        if kind.predicts_ahead:
            predict_ahead(ops, arch, ranks, recipe, kernels)
    last = (embedding(arch, ranks, recipe, kernels), head(arch, ranks, recipe, kernels))
    parts = [*blocks, *last]
    if recipe.freezes:
        freeze(parts, arch, ranks, recipe, kernels)
    return parts


def _parts(rows: Selection, priced: Priced, operators: list[Operators], column: int) -> list[_Part]:
    """What the rank holds, in the order of its forward pass."""
    row = rows.layouts
    each = part_states(priced.workload, priced.software, row)
    parameters = (each.parameters[0] + each.parameters[1])[0]
    counts = rows.parts[0, column]
    held = float((counts * parameters).sum())
    shards = each.shards_only and int(row.sharding[0]) > 0
    kinds = len(operators)
    order = [kinds - 2, *range(kinds - 2), kinds - 1]
    parts = []
    for kind in order:
        again = rows.covered[0, column, kind]
        for index in range(int(counts[kind])):
            mode = _FULL if index < again else int(row.recompute[0])
            kept, rebuilt = _kept(operators[kind], priced, rows.key[0], kind, mode, index < again)
            size = float(np.max(operators[kind].transient_bytes))
            passing: list[float] = []
            transient = [size / 3, size * 2 / 3]
            if kind == kinds - 2:
                transient = [float(priced.states.embedding_gradient[rows.grid[0], column])]
            if kind == kinds - 1 and priced.workload.architecture.traced is None:
                kept, passing, transient = _loss(kept, operators[kind], priced, row)
            parts.append(_Part(
                kept=kept, rebuilt=rebuilt, passing=passing, transient=transient,
                is_root=kind >= kinds - 2,
                share=float(parameters[kind]) / max(held, 1.0),
                gathered=float((each.gather[0] + each.gather[1])[0, kind]) if shards else 0.0,
                reduced=float((each.reduce[0] + each.reduce[1])[0, kind]) if shards else 0.0,
            ))  # fmt: skip
    return parts


def _kept(
    ops: Operators, priced: Priced, key: int, kind: int, mode: int, whole: bool
) -> tuple[list[float], list[float]]:
    """Tensors that a part keeps, and those that it rebuilds."""
    saved = [float(np.max(size)) for _, _, size in ops.saved if np.max(size) > 0]
    if not ops.is_block or (mode == _FULL and not whole) or mode not in (_FULL, _SELECTIVE):
        return saved, []
    if mode == _FULL:
        return [float(np.max(ops.checkpoint_bytes))], saved
    share = float(priced.blocks.saved_bytes[_SELECTIVE, key, kind]) / max(sum(saved), 1.0)
    rest = max(1.0 - share, 0.0)
    return [share * size for size in saved], [rest * size for size in saved if rest]


def _loss(
    kept: list[float], ops: Operators, priced: Priced, row: Layouts
) -> tuple[list[float], list[float], list[float]]:
    """Kept, passing and transient tensors of the head, by how the software computes the loss.

    torch: 16-bit logits, which are freed once their fp32 copy is there, the log-softmax, which
    stays, and fp32 gradients of the backward pass. Else logits and their gradient in place.
    """
    kernels, last = priced.software.kernels, float(np.max(ops.transient_bytes))
    each = kernels.loss_bytes_per_logit
    if each is None or "loss" in kernels.fused or priced.workload.recipe.loss_chunks > 1:
        return kept, [], [last]
    *others, logits = kept
    one = logits / 6.0
    if int(row.tp[0]) > 1 and kernels.split_loss_bytes_per_logit is not None:
        each = kernels.split_loss_bytes_per_logit
    return [*others, 4.0 * one], [2.0 * one, 4.0 * one], [4.0 * one] * (round(float(each) / 4) - 1)


class _Player:
    """One rank's steps, tensor by tensor."""

    def __init__(
        self, software: Software, parts: list[_Part], states: list[float], *,
        keeps_gathered: bool, reduces_once: bool, reshard: int, workspace: list[float],
        buffers: list[float],
    ) -> None:  # fmt: skip
        self.memory, self.parts, self.software = CachingAllocator(), parts, software
        self.weights, self.gradients, self.optimizer = states[:3]
        self.frees = software.states.frees_gradients
        self.keeps_gathered, self.reduces_once = keeps_gathered, reduces_once
        self.reshard = reshard
        """Ranks that share gathered weights until the backward pass; 0: they go."""
        self.pool = "reduce" if software.allocator.pools_by_stream else "compute"
        self.workspace, self.dummies = workspace[0], workspace[1:]
        self.buffers = buffers
        self.step_long: list[Block] = []
        """Blocks that live to the end of the step."""
        self.made_gradients = False

    def play(self, in_flight: int, micro_batches: int) -> Replayed:
        """Two steps of so many micro-batches, and so many of them in flight."""
        self._constant()
        for step in range(_STEPS):
            self._step(in_flight, micro_batches)
            if step == 0:
                self._all(self._moments())
            self._drop(self.step_long)
            self.step_long = []
        return Replayed(
            allocated_bytes=float(self.memory.peak_allocated_bytes),
            reserved_bytes=float(self.memory.reserved_bytes),
        )

    def _step(self, in_flight: int, micro_batches: int) -> None:
        for part in self.parts:
            if self._stays_gathered(part):
                self.step_long += self._gather(part)
        flying = [self._forward() for _ in range(in_flight - 1)]
        for _ in range(micro_batches - len(flying)):
            flying.append(self._forward())
            self._backward(flying.pop(0))
        while flying:
            self._backward(flying.pop(0))
        if self.reduces_once:
            for part in self.parts:
                self._reduce([part.reduced])
        self.made_gradients = False

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

    def _forward(self) -> list[list[Block]]:
        """One micro-batch's forward pass; returns what every part keeps."""
        kept = []
        for part in self.parts:
            window = [] if self._stays_gathered(part) else self._gather(part)
            made = self._all([*part.passing, *part.rebuilt])
            kept.append(self._all(part.kept))
            if self.reshard and not part.is_root:
                kept[-1] += self._all([part.gathered / self.reshard])
            self._drop(made)
            self._drop(window)
        return kept

    def _backward(self, kept: list[list[Block]]) -> None:
        """One micro-batch's backward pass, last part first."""
        first, root = not self.made_gradients, list[Block]()
        for part, tensors in zip(reversed(self.parts), reversed(kept), strict=True):
            stays = self._stays_gathered(part)
            window = [] if stays else self._gather(part)
            made = self._all(part.rebuilt)
            work = self._all(part.transient)
            self._drop(made)
            self._drop(tensors)
            self._drop(work)
            if self.dummies:
                self._all(self.dummies)
                self.dummies = []
            size = part.reduced if self.reduces_once else part.gathered
            gradient = self._all([size]) if first or not self.reduces_once else []
            if self.reduces_once:
                self.step_long += gradient
            elif part.is_root:
                root += gradient
            else:
                self._reduce([part.reduced])
                self._drop(gradient)
            self._drop(window)
            if first and self.frees:
                share = self.gradients * part.share
                self.step_long += self._all([share], self.pool)
        if not self.reduces_once:
            self._reduce([part.reduced for part in self.parts if part.is_root])
            self._drop(root)
        self.made_gradients = True

    def _stays_gathered(self, part: _Part) -> bool:
        """The root group (embedding and head), or all without resharding."""
        return part.gathered > 0 and (self.keeps_gathered or part.is_root)

    def _gather(self, part: _Part) -> list[Block]:
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
        for one in blocks:
            self.memory.free(one)


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
