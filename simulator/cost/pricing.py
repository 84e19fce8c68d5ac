"""Find the distinct keys of a table of layouts, price each once, and gather rows of it back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.blocks.block_costs import BlockCosts, KnownBlocks, mean_costs
from simulator.cost.blocks.block_prices import block_costs, block_costs_of_each
from simulator.cost.collectives.calls import all_gather_s, send_s
from simulator.cost.operators.model_flop import step_flop
from simulator.cost.operators.operations import Ranks
from simulator.cost.pipeline.paths import trace_paths
from simulator.cost.pipeline.rounded import rounded_costs
from simulator.cost.states.state_costs import state_costs
from simulator.cost.states.state_keys import as_wrapped
from simulator.cost.tables import Paths, Priced
from simulator.errors import InputError
from simulator.hardware.cluster import NO_CLOSED_FORM, Cluster, with_release
from simulator.layout.keys import distinct_codes
from simulator.layout.layout_keys import LayoutKeys, layout_keys
from simulator.layout.layouts import RANK_ORDERS, Layouts, modules_of
from simulator.layout.placement import Placement
from simulator.record_cache import for_same_records
from simulator.schedules.action_tables import unpaired
from simulator.schedules.registry import WORDS
from simulator.software.profile import Software
from simulator.workload.recipe import Workload


def price(
    layouts: Layouts,
    workload: Workload,
    cluster: Cluster,
    software: Software,
    *,
    every_rank: bool = False,
    coarse: bool = False,
) -> Priced:
    """Find the distinct keys of a table of layouts and price each once.

    With `coarse`, the longest paths of pipelines are those at coarsely rounded costs.

    Raises
    ------
    InputError
        If servers are of several kinds: one price per layout is that of one kind.
    """
    priced = price_keys(layouts, workload, cluster, software, every_rank=every_rank)
    return with_paths(priced, layouts, coarse=coarse)


def price_keys(
    layouts: Layouts,
    workload: Workload,
    cluster: Cluster,
    software: Software,
    *,
    every_rank: bool = False,
    modules: Sequence[int] = (0,),
    like: Priced | None = None,
) -> Priced:
    """Do the same but for the longest paths, which only the times of pipelines need.

    With `modules` (sets as bits of MODULES), blocks are priced with each of these sets recomputed,
    whatever the layouts say; ``Priced.of`` tells rows which of them they name. `like` are prices of
    the same layouts, row by row, with layers dealt otherwise: blocks are not priced again.
    """
    if cluster.kinds:
        raise InputError(f"cluster {cluster.name}: {NO_CLOSED_FORM}")
    of_blocks = workload, software, *_of_blocks(cluster)
    workload, layouts = workload.by_training(), as_wrapped(layouts, software)
    cluster = with_release(cluster, software.kernels.nccl, software.kernels.nccl_turned_off)
    keys = layout_keys(
        layouts,
        workload.architecture,
        cluster.domain,
        every_rank=every_rank,
        each_round=software.fsdp2.reduces_each_round,
    )
    grids, plan_of_grid = layouts[keys.grids.first], keys.plans.inverse[keys.grids.first]
    if like is not None:
        blocks, ranks, block_key, send_s = like.blocks, like.ranks, like.block_key, like.send_s
    else:
        known = _known_blocks(*of_blocks)
        ranks, block_key = Ranks.of(keys), keys.shapes.inverse
        with_each = partial(_with_each, (workload, cluster, software), ranks, known, keys)
        blocks = _blocks_of_each(with_each, modules) if any(modules) else _blocks(with_each, ranks)
        send_s = np.zeros((len(_reaches(cluster)), len(blocks.boundary_bytes)))
        if (layouts.pp > 1).any():
            send_s = _sends(cluster, blocks, ranks, len(modules))
    return Priced(
        workload=workload,
        cluster=cluster,
        software=software,
        table=keys.table,
        stages=keys.stages,
        plan=keys.plans.inverse,
        blocks=blocks,
        ranks=ranks,
        block_key=block_key,
        states=state_costs(
            workload,
            cluster,
            software,
            grids,
            keys.placement.with_copies(grids.copies),
            parts=keys.table.parts[plan_of_grid],
            versions=keys.table.versions[plan_of_grid],
        ),
        state_key=keys.grids.inverse,
        send_s=send_s,
        hop_crosses=_hops(cluster, grids, keys.placement),
        model_flop=step_flop(workload),
        unpaired=_unpaired(keys, workload, software),
        paths=Paths.none(),
    )


def with_paths(priced: Priced, layouts: Layouts, *, coarse: bool) -> Priced:
    """Add the longest path of each layout's pipeline; `layouts` are all that are priced."""
    costs = rounded_costs(priced, layouts, coarse=coarse)
    beside = priced.software.overlap.pipeline_send
    paths = trace_paths(layouts, priced.plan, priced.stages, costs, beside=beside)
    return replace(priced, paths=paths)


@for_same_records(1)
def _known_blocks(workload: Workload, software: Software, *machine: Any) -> KnownBlocks:
    """Prices that stay known: the tables of a search and of its walks share most shapes."""
    return KnownBlocks()


def _of_blocks(cluster: Cluster) -> tuple[Any, ...]:
    """What block prices take of a cluster, beside what names their shapes: not its size."""
    first, fabric = cluster.groups[0], cluster.fabric
    machine = first.node, first.accelerator, fabric, cluster.library, cluster.left, cluster.edges
    return *machine, cluster.domain, cluster.nodes > fabric.narrow[1]


_WithEach = Callable[[Sequence[int]], list[BlockCosts]]
"""Prices keys with each of some sets of recomputed modules."""


def _blocks(with_each: _WithEach, ranks: Ranks) -> BlockCosts:
    """Prices of the model's parts, of each key with the modules that it recomputes.

    All keys are priced with each of the sets: few of the costs hang on which it is.
    """
    named = np.asarray(ranks.recompute_modules)
    masks = distinct_codes(named)
    rows = [np.flatnonzero(named == mask) for mask in masks]
    costs = with_each(masks)
    if len(costs) == 1:
        return costs[0]
    return BlockCosts.joined([(x, y.take(x)) for x, y in zip(rows, costs, strict=True)])


def _blocks_padded(
    workload: Workload, cluster: Cluster, software: Software, ranks: Ranks
) -> BlockCosts:
    """Prices with one set of modules where lengths are unlike: the mean over them."""
    return mean_costs(
        lambda recipe: block_costs(replace(workload, recipe=recipe), cluster, software, ranks),
        workload.recipe,
        ranks,
        block_costs(workload, cluster, software, ranks),
    )


def _blocks_of_each(with_each: _WithEach, modules: Sequence[int]) -> BlockCosts:
    """The same of every one of some sets of modules, one set after the other."""
    costs = with_each(modules)
    keys = len(costs[0].boundary_bytes)
    return BlockCosts.joined([(np.arange(keys) + i * keys, x) for i, x in enumerate(costs)])


def _with_each(
    setting: tuple[Workload, Cluster, Software],
    ranks: Ranks,
    known: KnownBlocks,
    keys: LayoutKeys,
    modules: Sequence[int],
) -> list[BlockCosts]:
    workload, cluster, software = setting

    def priced(rows: NDArray[np.intp]) -> list[BlockCosts]:
        some = ranks.take(rows)
        naming = [software.recomputing(modules_of(mask)) for mask in modules]
        if workload.recipe.pads:
            return [_blocks_padded(workload, cluster, recomputing, some) for recomputing in naming]
        kernels = [recomputing.kernels for recomputing in naming]
        return block_costs_of_each(workload, cluster, software, some, kernels)

    return known.of(keys.shape_names, modules, priced)


def _unpaired(keys: LayoutKeys, workload: Workload, software: Software) -> Floats:
    """Micro-batches of each plan that pass a rank with no other beside them to hide behind."""
    plans = keys.layouts[keys.plans.first]
    if not (software.overlap.expert and workload.architecture.is_moe):
        return np.zeros(len(plans))
    columns = (plans.schedule, plans.pp, keys.micro_batches, plans.vpp)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return np.array([unpaired(WORDS[code], *numbers) for code, *numbers in rows])


def _sends(cluster: Cluster, blocks: BlockCosts, ranks: Ranks, times: int) -> Floats:
    """One send between stages, by how far apart they are, of each set of recomputed modules."""
    boundaries = np.split(blocks.boundary_bytes, times)
    sent = [[_send(cluster, x, ranks, reach) for x in boundaries] for reach in _reaches(cluster)]
    return np.stack([np.concatenate(sets) for sets in sent])


def _reaches(cluster: Cluster) -> tuple[int, ...]:
    """How far apart stages may be: a domain, the network, its over-subscribed layer if any."""
    over, leaf = cluster.links_of("pp").fabric.narrow
    return (0, 1, 2) if over > 1.0 and cluster.nodes > leaf else (0, 1)


def _hops(cluster: Cluster, grids: Layouts, placement: Placement) -> NDArray[np.int64]:
    """How far apart the stages of each rank grid are: 0, 1 or 2 as :func:`_reaches` counts.

    They meet below the over-subscribed layer where a whole pipeline does, and a whole number of
    pipelines fill what meets there.
    """
    crosses = (placement.pp.local == 1).astype(np.int64)
    if len(_reaches(cluster)) == 2:
        return np.asarray(crosses)
    below = cluster.links_of("pp").fabric.narrow[1] * cluster.node.accelerators
    spans = np.ones(len(grids), dtype=np.int64)
    for code in distinct_codes(grids.rank_order):
        order = RANK_ORDERS[code].split("-")
        inner = order[: order.index("pp") + 1]
        rows = grids.rank_order == code
        degrees = [getattr(grids, name)[rows].astype(np.int64) for name in inner]
        spans[rows] = np.prod(degrees, axis=0)
    return np.asarray(crosses * np.where(below % spans == 0, 1, 2))


def _send(cluster: Cluster, whole: Floats, ranks: Ranks, reach: int) -> Floats:
    """One send of `whole` bytes between stages.

    Without sequence parallelism every tensor-parallel rank sends its share and the receivers gather
    (Narayanan et al. 2021, section 4.1).
    """
    split = ~ranks.sequence_parallel & (ranks.tp > 1)
    share = np.where(split, whole / ranks.tp, whole)
    gather = all_gather_s(cluster.links_of("tp"), np.where(split, whole, 0.0), ranks.groups.tp)
    far = np.full(len(whole), reach > 0)
    sent = send_s(cluster.links_of("pp"), share, far, beyond=reach == 2)
    return sent + gather
