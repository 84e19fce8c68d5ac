"""All-reduces of a few numbers, which cost their latency: gradient norm, maxima for fp8 scales.

Delayed scaling keeps one scale for a tensor on all ranks that see a share of it: Transformer Engine
reduces the maxima of all linears when a forward pass leaves its autocast region, and once more in
the backward pass (pytorch/fp8.py, `reduce_and_update_fp8_tensors`). Megatron-Core opens one region
for a chunk of a pipeline stage, over the ranks of tp x cp x dp (parallel_state.py,
`get_amax_reduction_group`). While the host is behind, the device would only wait for it instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.collectives.calls import all_reduce_s
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import Layouts
from simulator.layout.placement import Group, Placement
from simulator.software.profile import Software
from simulator.workload.recipe import Recipe

_MAXIMA_BYTES = 4.0 * 3.0 * 4.0
"""fp32; input, weight and result of a block's four linears."""


def maxima_s(
    cluster: Cluster, software: Software, recipe: Recipe, placement: Placement, blocks: Any
) -> Floats:
    """Seconds of one reduction of the maxima of a chunk; zero where there is none.

    Parameters
    ----------
    cluster, software, recipe
    placement : Placement
        Of the layouts.
    blocks : array_like
        Blocks of the largest chunk, one for each layout.
    """
    tp, dp = placement.tp, placement.dp
    if recipe.precision != "fp8" or not software.kernels.transformer_engine.reduces_maxima:
        return np.zeros(len(tp.size))
    group = Group(size=tp.size * dp.size, local=tp.local * dp.local)
    return all_reduce_s(cluster, _MAXIMA_BYTES * np.maximum(blocks, 1.0), group)


def norm_s(cluster: Cluster, recipe: Recipe, layouts: Layouts) -> Floats:
    """Seconds of reducing the gradient norm over all ranks, in fp16 whether all is finite, too.

    Where every rank has all gradients, there is nothing to reduce.
    """
    world = layouts.world.astype(np.int64)
    group = Group(size=world, local=np.gcd(world, cluster.domain))
    calls = 2.0 if recipe.precision == "fp16" else 1.0
    split = (layouts.sharding > 0) | (layouts.tp * layouts.pp > 1)
    return np.where(split, calls * all_reduce_s(cluster, 4.0, group), 0.0)
