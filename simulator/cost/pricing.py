"""Find the distinct keys of a table of layouts, price each once, and gather rows of it back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulator.arrays import Floats
from simulator.cost.blocks.block_costs import BlockCosts
from simulator.cost.blocks.block_keys import block_keys
from simulator.cost.blocks.block_prices import block_costs
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
from simulator.layout.keys import UniqueRows, unique_rows
from simulator.layout.layouts import Layouts, modules_of
from simulator.layout.placement import place
from simulator.layout.stages import Stages, fold, stages
from simulator.schedules.action_tables import unpaired
from simulator.schedules.registry import WORDS
from simulator.software.profile import Software
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Workload

__all__ = ["price"]


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
    if cluster.kinds:
        raise InputError(f"cluster {cluster.name}: {NO_CLOSED_FORM}")
    workload = workload.by_training()
    cluster = with_release(cluster, software.kernels.nccl)
    plans, held = _pipeline_plans(layouts, workload.architecture)
    table = fold(held, by_content=not every_rank)
    grids = _rank_grids(layouts, plans)
    placement = place(layouts[grids.first], cluster.domain)
    keys, ranks = block_keys(layouts, grids, placement)
    blocks = _blocks(workload, cluster, software, ranks)
    priced = Priced(
        workload=workload,
        cluster=cluster,
        software=software,
        table=table,
        plan=plans.inverse,
        blocks=blocks,
        block_key=keys.inverse,
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
        send_s=np.stack([_send(cluster, blocks, ranks, crosses) for crosses in (False, True)]),
        hop_crosses=(placement.pp.local == 1).astype(np.int64),
        model_flop=step_flop(workload),
        unpaired=_unpaired(layouts[plans.first], workload, software),
        paths=Paths.none(),
    )
    costs = rounded_costs(priced, layouts, coarse=coarse)
    beside = software.overlap.pipeline_send
    return replace(priced, paths=trace_paths(layouts, plans.inverse, held, costs, beside=beside))


def _pipeline_plans(layouts: Layouts, arch: Architecture) -> tuple[UniqueRows, Stages]:
    """Distinct pipeline plans, and what their ranks and chunks hold."""
    micro_batches = distinct_micro_batches(layouts)
    plans = unique_rows(layouts.pp, layouts.vpp, micro_batches, layouts.schedule)
    held = stages(
        pp=layouts.pp[plans.first],
        vpp=layouts.vpp[plans.first],
        micro_batches=micro_batches[plans.first],
        layer_kinds=arch.layer_kinds,
        kinds=len(arch.blocks),
        ahead=len(arch.layer_kinds) - arch.layers,
        schedule=layouts.schedule[plans.first],
    )
    return plans, held


def _rank_grids(layouts: Layouts, plans: UniqueRows) -> UniqueRows:
    """Distinct rank grids with what they share: layouts whose states cost the same."""
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
        plans.inverse,
    )


def _blocks(workload: Workload, cluster: Cluster, software: Software, ranks: Ranks) -> BlockCosts:
    """Prices of the model's parts, those with other modules to recompute apart."""
    named = np.asarray(ranks.recompute_modules)
    if not named.any():
        return _blocks_alike(workload, cluster, software, ranks)
    pieces = []
    for mask in np.unique(named).tolist():
        rows = np.flatnonzero(named == mask)
        naming = software.recomputing(modules_of(mask))
        pieces.append((rows, _blocks_alike(workload, cluster, naming, ranks.take(rows))))
    return BlockCosts.joined(pieces)


def _blocks_alike(
    workload: Workload, cluster: Cluster, software: Software, ranks: Ranks
) -> BlockCosts:
    """The same of one set of modules; of sequences of unlike lengths, their mean."""
    blocks = block_costs(workload, cluster, software, ranks)
    if not workload.recipe.pads:
        return blocks
    return mean_costs(
        lambda recipe: block_costs(replace(workload, recipe=recipe), cluster, software, ranks),
        workload.recipe,
        ranks,
        blocks,
    )


def _unpaired(plans: Layouts, workload: Workload, software: Software) -> Floats:
    """Micro-batches of each plan that pass a rank with no other beside them to hide behind."""
    if not (software.overlap.expert and workload.architecture.is_moe):
        return np.zeros(len(plans))
    columns = (plans.schedule, plans.pp, distinct_micro_batches(plans), plans.vpp)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return np.array([unpaired(WORDS[code], *numbers) for code, *numbers in rows])


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
