"""The tables that pricing fills and that time, memory and pipelines read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, by_key
from simulator.cost.blocks.block_costs import BlockCosts
from simulator.cost.operators.operations import Ranks
from simulator.cost.states.state_costs import StateCosts
from simulator.cost.states.state_keys import as_wrapped
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import RECOMPUTE, Layouts
from simulator.layout.stages import Stages, StageTable
from simulator.records import dataclass
from simulator.software.profile import Software
from simulator.workload.recipe import Workload

_FULL = RECOMPUTE.index("full")


@dataclass(frozen=True, kw_only=True)
class Priced:
    """Everything that layouts share, priced once per distinct key."""

    workload: Workload
    cluster: Cluster
    software: Software
    table: StageTable
    stages: Stages
    """What `table` folds."""
    plan: NDArray[Any]
    blocks: BlockCosts
    ranks: Ranks
    """What a rank of each block key sees."""
    block_key: NDArray[Any]
    states: StateCosts
    state_key: NDArray[Any]
    send_s: Floats
    """One pipeline send, by how far the hop reaches and per block key: shape (2 or 3, keys)."""
    hop_crosses: NDArray[Any]
    """Per state key: 0 where stages are joined inside a domain, 1 by the network, 2 by its
    over-subscribed layer."""
    model_flop: float
    """Of one step, the convention behind MFU."""
    unpaired: Floats
    """Per plan: micro-batches whose passes have no other micro-batch beside them."""
    paths: Paths
    """The longest path through each layout's pipeline; none where they were not asked for."""

    def of(self, rows: Any, modules: Any = 0) -> Priced:
        """The same prices for some rows, without their paths.

        `modules` is which of the sets of recomputed modules that blocks were priced with
        (``cost/pricing.py``) each row names.
        """
        return replace(
            self,
            plan=self.plan[rows],
            block_key=self.block_key[rows] + modules * len(self.ranks.tp),
            state_key=self.state_key[rows],
            paths=Paths.none(),
        )

    def narrowed(self) -> Priced:
        """The same without the prices that no row names: of few rows of a large table.

        What states cost is found when it is asked for, of all keys that are there.
        """
        blocks, block_key = np.unique(self.block_key, return_inverse=True)
        states, state_key = np.unique(self.state_key, return_inverse=True)
        return replace(
            self,
            blocks=self.blocks.take(blocks),
            ranks=self.ranks.take(blocks % len(self.ranks.tp)),
            block_key=block_key,
            send_s=self.send_s[:, blocks],
            states=self.states.take(states),
            state_key=state_key,
            hop_crosses=self.hop_crosses[states],
        )


@dataclass(frozen=True, slots=True)
class PartPasses:
    """One micro-batch through each part: seconds of shape (layouts, parts)."""

    forward_s: Floats
    backward_s: Floats
    """Without recomputation."""
    forward_window_s: Floats
    """The forward pass less its context and expert traffic: while that lasts, no gradient or
    parameter travels on the same links. What data-parallel communication may hide behind."""
    backward_window_s: Floats
    fsdp_s: Floats
    """Exposed gathers and reductions of zero3, forward and backward: shape (2, layouts, parts)."""
    hidden_s: Floats
    """The part of them that runs beside compute, of the same shape."""
    slowdown_s: Floats
    """What that costs the compute, of the same shape."""
    selective_s: Floats
    """Recomputation of a part under selective recomputation, zero under the others."""
    full_s: Floats
    """Recomputation of a part that full recomputation covers."""
    traffic_s: Floats
    """Moving gradients and weights about; a share of `backward_s`."""
    host_s: Floats
    """What the host takes longer because parts are gathered, a share of either direction: shape
    (2, layouts, parts)."""
    input_s: Floats
    """Copies of the input to the first and to the last stage, shape (layouts, 2)."""
    prefetched: bool
    """Whether these run beside the passes of the micro-batch before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPasses:
    """One micro-batch through every distinct rank: seconds of shape (layouts, columns)."""

    forward_s: Floats
    backward_s: Floats
    """With recomputation."""
    input_s: Floats
    """What the forward pass waits for its input, a share of `forward_s`."""
    maxima_s: Floats
    """Shown reductions of the maxima behind fp8 scales, forward and backward, a share of the
    passes."""
    forward_window_s: Floats
    """As of ``PartPasses``."""
    backward_window_s: Floats


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowestRank:
    """The rank with the longest passes, which paces the step; arrays over layouts."""

    column: NDArray[np.intp]
    parts: Floats
    """What it holds, shape (layouts, parts)."""
    covered: Floats
    """Blocks of it that full recomputation covers, of the same shape."""
    forward_s: Floats
    """Its forward pass of one micro-batch."""
    backward_s: Floats
    micro_batches: Floats
    """That it takes in a step."""
    alone: Floats
    """Of them, those with no other micro-batch beside them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTerms:
    """Seconds of a step by term; arrays over layouts."""

    shown_s: dict[str, Floats]
    """On the critical path."""
    hidden_s: dict[str, Floats]
    """Communication beside compute."""

    def plus(self, other: StepTerms) -> StepTerms:
        """Both together; terms of the same name add up, in the order in which they came."""
        return StepTerms(
            shown_s=_added(self.shown_s, other.shown_s),
            hidden_s=_added(self.hidden_s, other.hidden_s),
        )


def _added(terms: dict[str, Floats], more: dict[str, Floats]) -> dict[str, Floats]:
    sums = {name: terms[name] + s if name in terms else s for name, s in more.items()}
    return {**terms, **sums}


@dataclass(frozen=True, kw_only=True, slots=True)
class Paths:
    """Of each route (plan, rounded costs, recomputed layers) what lies on its longest path."""

    route: NDArray[np.intp]
    """Route of each layout."""
    counts: Floats
    """Shape (routes, columns): blocks of every part in forward, in backward, in weight passes less
    those in input passes, recomputed in full, alone forward, alone backward; then forward passes,
    backward passes and hops."""
    pace: Floats
    """What a further micro-batch takes over the slowest rank's own passes of it, per route; more
    than 1 where chunks are slow on one rank after the other."""
    played: Floats
    """Micro-batches of `counts`, per route."""

    @classmethod
    def none(cls) -> Paths:
        """Of layouts whose costs are not known yet."""
        empty = np.zeros((0, 0))
        none = np.zeros(0)
        return cls(route=np.zeros(0, np.intp), counts=empty, pace=none, played=none)

    @classmethod
    def empty(cls, layouts: int, parts: int) -> Paths:
        """Of so many layouts nothing beyond the passes of their slowest ranks."""
        route, counts = np.zeros(layouts, np.intp), np.zeros((1, 6 * parts + 3))
        return cls(route=route, counts=counts, pace=np.ones(1), played=np.zeros(1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Some rows of a priced table: what their ranks hold; columns are distinct pipeline ranks."""

    layouts: Layouts
    block_key: NDArray[Any]
    """Block key of each layout."""
    state_key: NDArray[Any]
    """State key of each layout."""
    plan: NDArray[Any]
    """Pipeline plan of each layout."""
    route: NDArray[Any]
    """Route of each layout (``cost/pipeline/paths.py``)."""
    parts: Floats
    """Shape (layouts, columns, parts)."""
    in_flight: Floats
    covered: Floats
    """Blocks that full recomputation covers."""
    offloaded: Floats
    """Blocks whose activations wait in host memory."""
    ranks: Floats
    """Ranks that each column stands for, shape (layouts, columns)."""
    rank: NDArray[Any]
    """First rank of each column."""


def select(layouts: Layouts, priced: Priced, rows: slice) -> Selection:
    """Gather what the ranks of some rows hold."""
    table, plan = priced.table, priced.plan[rows]
    some, parts = as_wrapped(layouts[rows], priced.software), by_key(table.parts, plan)
    return Selection(
        layouts=some,
        block_key=priced.block_key[rows],
        state_key=priced.state_key[rows],
        plan=plan,
        route=priced.paths.route[rows] if len(priced.paths.route) else priced.plan[rows],
        parts=parts,
        in_flight=by_key(table.in_flight, plan),
        covered=recomputed_parts(some, parts),
        offloaded=offloaded_parts(some, parts),
        ranks=by_key(table.ranks, plan),
        rank=by_key(table.rank, plan),
    )


def recomputed_parts(layouts: Layouts, parts: Floats) -> Floats:
    """Blocks that full recomputation covers, by rank and part; the first ones of a rank first.

    `recompute_layers` of 0 means every block. Shape as `parts`: (layouts, columns, parts).
    """
    full = layouts.recompute == _FULL
    return _first_blocks(np.where(full, _limit(layouts.recompute_layers), 0.0), parts)


def covered_parts(layers: NDArray[Any], parts: Floats) -> Floats:
    """The same of layouts that all recompute in full, by their `recompute_layers`."""
    return _first_blocks(_limit(layers), parts)


def _limit(layers: NDArray[Any]) -> Floats:
    """Blocks of a rank that full recomputation may cover."""
    return np.where(layers == 0, np.inf, layers)


def offloaded_parts(layouts: Layouts, parts: Floats) -> Floats:
    """Blocks whose activations wait in host memory, by rank and part, as `recomputed_parts`."""
    return _first_blocks(layouts.offload_layers.astype(float), parts)


def _first_blocks(count: Floats, parts: Floats) -> Floats:
    """At most `count` blocks of each rank, by part; shape as `parts`."""
    first = np.zeros_like(parts)
    if not count.any():
        return first
    left = np.broadcast_to(count[:, None], parts.shape[:2])
    for kind in range(parts.shape[2] - 2):
        first[:, :, kind] = np.minimum(parts[:, :, kind], left)
        left = left - first[:, :, kind]
    return first
