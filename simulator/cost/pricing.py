"""Find the distinct keys of a table of layouts, price each once, and gather rows of it back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from simulator.arrays import Floats
from simulator.cost.blocks.block_costs import BlockCosts
from simulator.cost.blocks.block_keys import block_keys
from simulator.cost.blocks.block_prices import block_costs, block_costs_of_each
from simulator.cost.blocks.padding import mean_costs
from simulator.cost.collectives.calls import all_gather_s, send_s
from simulator.cost.operators.model_flop import step_flop
from simulator.cost.operators.operations import Ranks
from simulator.cost.passes import distinct_micro_batches
from simulator.cost.pipeline.paths import trace_paths
from simulator.cost.pipeline.rounded import rounded_costs
from simulator.cost.states.state_costs import state_costs
from simulator.cost.tables import Paths, Priced
from simulator.errors import InputError
from simulator.hardware.cluster import NO_CLOSED_FORM, Cluster, with_release
from simulator.layout.keys import UniqueRows, distinct_codes, unique_rows
from simulator.layout.layouts import Layouts, modules_of
from simulator.layout.placement import place
from simulator.layout.stages import Stages, StageTable, fold, stages
from simulator.schedules.action_tables import unpaired
from simulator.schedules.registry import WORDS
from simulator.software.profile import Software
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Workload

__all__ = ["price", "price_keys", "with_paths"]


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

    With several `modules` (bits of MODULES), blocks are priced with each of these sets recomputed,
    whatever the layouts say; ``Priced.of`` tells rows which of them they name. `like` are prices of
    the same layouts, row by row, with layers dealt otherwise: blocks are not priced again.
    """
    if cluster.kinds:
        raise InputError(f"cluster {cluster.name}: {NO_CLOSED_FORM}")
    workload = workload.by_training()
    cluster = with_release(cluster, software.kernels.nccl, software.kernels.nccl_turned_off)
    plans, held = _pipeline_plans(layouts, workload.architecture)
    table = fold(held, by_content=not every_rank)
    grids = _rank_grids(layouts, plans, table)
    placement = place(layouts[grids.first], cluster.domain)
    if like is not None:
        blocks, ranks, block_key, send_s = like.blocks, like.ranks, like.block_key, like.send_s
    else:
        keys, ranks = block_keys(layouts, grids, placement)
        price_blocks = _blocks if len(modules) == 1 else partial(_blocks_of_each, modules=modules)
        blocks, block_key = price_blocks(workload, cluster, software, ranks), keys.inverse
        send_s = _sends(cluster, blocks, ranks, len(modules))
    return Priced(
        workload=workload,
        cluster=cluster,
        software=software,
        table=table,
        held=held,
        plan=plans.inverse,
        blocks=blocks,
        ranks=ranks,
        block_key=block_key,
        states=state_costs(
            workload,
            cluster,
            software,
            layouts[grids.first],
            placement.with_copies(layouts.copies[grids.first]),
            parts=table.parts[plans.inverse[grids.first]],
            versions=table.versions[plans.inverse[grids.first]],
        ),
        state_key=grids.inverse,
        send_s=send_s,
        hop_crosses=(placement.pp.local == 1).astype(np.int64),
        model_flop=step_flop(workload),
        unpaired=_unpaired(layouts[plans.first], workload, software),
        paths=Paths.none(),
    )


def with_paths(priced: Priced, layouts: Layouts, *, coarse: bool) -> Priced:
    """Add the longest path of each layout's pipeline; `layouts` are all that are priced."""
    costs = rounded_costs(priced, layouts, coarse=coarse)
    beside = priced.software.overlap.pipeline_send
    paths = trace_paths(layouts, priced.plan, priced.held, costs, beside=beside)
    return replace(priced, paths=paths)


def _pipeline_plans(layouts: Layouts, arch: Architecture) -> tuple[UniqueRows, Stages]:
    """Distinct pipeline plans, and what their ranks and chunks hold."""
    micro_batches = distinct_micro_batches(layouts)
    plans = unique_rows(layouts.pp, layouts.vpp, micro_batches, layouts.schedule, layouts.stages)
    held = stages(
        pp=layouts.pp[plans.first],
        vpp=layouts.vpp[plans.first],
        micro_batches=micro_batches[plans.first],
        layer_kinds=arch.layer_kinds,
        kinds=len(arch.blocks),
        ahead=len(arch.layer_kinds) - arch.layers,
        schedule=layouts.schedule[plans.first],
        splits=[layouts.splits[code] for code in layouts.stages[plans.first].tolist()],
    )
    return plans, held


def _rank_grids(layouts: Layouts, plans: UniqueRows, table: StageTable) -> UniqueRows:
    """Distinct rank grids with what they share: layouts whose states cost the same.

    Of a pipeline plan the states know what its ranks hold, not how many micro-batches pass, but for
    whether they are more than the ranks (``cost/states/gathered.py: unreduced_bytes``).
    """
    sizes = zip(table.parts, table.versions, layouts.vpp[plans.first].tolist(), strict=True)
    names: dict[tuple[bytes, bytes, int], int] = {}
    held = [
        names.setdefault((parts.tobytes(), versions.tobytes(), vpp), len(names))
        for parts, versions, vpp in sizes
    ]
    return unique_rows(
        layouts.tp,
        layouts.cp,
        layouts.dp,
        layouts.pp,
        layouts.ep,
        layouts.etp,
        layouts.rank_order,
        layouts.sharding,
        layouts.shard_group,
        layouts.reshard_after_forward,
        layouts.copies,
        np.array(held)[plans.inverse],
        (layouts.micro_batches <= layouts.pp).astype(np.int64),
    )


def _blocks(workload: Workload, cluster: Cluster, software: Software, ranks: Ranks) -> BlockCosts:
    """Prices of the model's parts, of each key with the modules that it recomputes.

    All keys are priced with each of the sets: few of the costs hang on which it is.
    """
    named = np.asarray(ranks.recompute_modules)
    masks = distinct_codes(named)
    rows = [np.flatnonzero(named == mask) for mask in masks]
    found = _with_each(workload, cluster, software, ranks, masks)
    if len(found) == 1:
        return found[0]
    return BlockCosts.joined([(x, y.take(x)) for x, y in zip(rows, found, strict=True)])


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


def _blocks_of_each(
    workload: Workload,
    cluster: Cluster,
    software: Software,
    ranks: Ranks,
    modules: Sequence[int],
) -> BlockCosts:
    """The same of every one of some sets of modules, one set after the other."""
    keys = len(ranks.tp)
    found = _with_each(workload, cluster, software, ranks, modules)
    return BlockCosts.joined([(np.arange(keys) + i * keys, x) for i, x in enumerate(found)])


def _with_each(
    workload: Workload,
    cluster: Cluster,
    software: Software,
    ranks: Ranks,
    modules: Sequence[int],
) -> list[BlockCosts]:
    naming = [software.recomputing(modules_of(mask)) for mask in modules]
    if workload.recipe.pads:
        return [_blocks_padded(workload, cluster, one, ranks) for one in naming]
    kernels = [one.kernels for one in naming]
    return block_costs_of_each(workload, cluster, software, ranks, kernels)


def _unpaired(plans: Layouts, workload: Workload, software: Software) -> Floats:
    """Micro-batches of each plan that pass a rank with no other beside them to hide behind."""
    if not (software.overlap.expert and workload.architecture.is_moe):
        return np.zeros(len(plans))
    columns = (plans.schedule, plans.pp, distinct_micro_batches(plans), plans.vpp)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return np.array([unpaired(WORDS[code], *numbers) for code, *numbers in rows])


def _sends(cluster: Cluster, blocks: BlockCosts, ranks: Ranks, times: int) -> Floats:
    """One send between stages inside a domain and across, of each set of recomputed modules."""
    wide = ranks.take(np.tile(np.arange(len(ranks.tp)), times)) if times > 1 else ranks
    return np.stack([_send(cluster, blocks, wide, crosses) for crosses in (False, True)])


def _send(cluster: Cluster, blocks: BlockCosts, ranks: Ranks, crosses: bool) -> Floats:
    """One send between stages.

    Without sequence parallelism every tensor-parallel rank sends its share and the receivers gather
    (Narayanan et al. 2021, section 4.1).
    """
    whole = blocks.boundary_bytes
    split = ~ranks.sequence_parallel & (ranks.tp > 1)
    share = np.where(split, whole / ranks.tp, whole)
    gather = np.where(split, all_gather_s(cluster.links_of("tp"), whole, ranks.groups.tp), 0.0)
    sent = send_s(cluster.links_of("pp"), share, np.full(len(whole), crosses))
    return sent + gather
