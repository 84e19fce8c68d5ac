"""The double binary tree over which NCCL reduces among servers (Sanders, Speck and Traeff 2009).

Every server is a leaf of one tree and inside the other, so that both halves of the bytes together
load all of them alike. The trees are NCCL's (src/graph/trees.cc): a binary tree over the binary
digits of ranks, and its mirror image, or its shift by one where the number of servers is odd.
"""

from __future__ import annotations

import numpy as np

from simulator.arrays import Ints


def double_tree(servers: int) -> tuple[Ints, Ints]:
    """Edges of both trees, those of the first first: (child, parent).

    Examples
    --------
    >>> [edge.tolist() for edge in double_tree(4)]
    [[1, 2, 3, 2, 1, 0], [2, 0, 2, 1, 3, 1]]
    """
    child = np.arange(1, servers)
    parent = np.array([_parent(int(rank), servers) for rank in child], dtype=np.int64)
    if servers % 2:
        other = tuple((edge + 1) % servers for edge in (child, parent))
    else:
        other = tuple(servers - 1 - edge for edge in (child, parent))
    return np.concatenate([child, other[0]]), np.concatenate([parent, other[1]])


def _parent(rank: int, servers: int) -> int:
    """Clear the lowest digit that is set and set the one above it, if there is such a rank."""
    lowest = rank & -rank
    up = (rank ^ lowest) | (lowest << 1)
    return up if up < servers else rank ^ lowest
