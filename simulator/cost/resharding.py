"""What becomes of zero3's gathered parameters after a forward pass: who shares them, and how much.

``torch.distributed.fsdp.fully_shard``, `reshard_after_forward` as a number: every rank keeps its
share of a block among so many adjacent ranks until the backward pass gathers it from these. hpZ of
ZeRO++ (Wang et al. 2023) does the same with a secondary copy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.layout.layout import Layouts
from simulator.layout.placement import Group, Placement

__all__ = ["after_forward", "waiting_shards"]

Floats = NDArray[np.float64]


def after_forward(
    layouts: Layouts, placement: Placement, groups: tuple[Group, Group]
) -> tuple[Group, Group]:
    """Ranks that share parameters between a forward and its backward pass.

    `groups` are those that share them otherwise, of dense and of expert parameters.
    """
    fewer = layouts.reshard_after_forward > 0
    found = []
    for whole in groups:
        size = np.where(fewer, np.minimum(placement.reshard.size, whole.size), whole.size)
        found.append(Group(size=size, local=np.gcd(whole.local, size)))
    return found[0], found[1]


def waiting_shards(blocks: Floats, largest: Any, layouts: Layouts) -> tuple[Floats, Floats]:
    """Bytes of shards that wait for a backward pass in a smaller group, of whole `blocks`.

    In the first backward pass of a block, whose own shard is free once it is gathered, and at the
    loss. Embedding and head, the root group, are not resharded. Shapes (keys, columns).
    """
    group = layouts.reshard_after_forward[:, None]
    per_rank = np.where(group > 0, 1.0 / np.maximum(group, 1), 0.0)
    at_loss = blocks * per_rank
    return np.maximum(at_loss - largest * per_rank, 0.0), at_loss
