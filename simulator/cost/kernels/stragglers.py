"""How much later than the mean the slowest of many is: accelerators of one kind differ, hosts too.

Sinha et al. 2022 (arXiv 2208.11035) ran the same work on over 90 % of the accelerators of five
clusters: 8 % between the fast and the slow ones of one kind, whatever the work and the cooling. A
training step ends when the slowest one is done, so that the same layout takes longer on more of
them (weak scaling that no collective explains).
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np

from simulator.arrays import Floats


def slowest_of(members: Any) -> Floats:
    """Expected largest of so many draws from a standard normal distribution.

    ``quantile((n - 0.375) / (n + 0.25))`` (Blom 1958, as Royston 1982 gives it); within 2 % of the
    exact value from 2 draws on, and 0 for one.

    Examples
    --------
    >>> slowest_of([1, 2, 8, 1024]).round(2).tolist()
    [0.0, 0.59, 1.43, 3.23]
    """
    n = np.asarray(members, dtype=float)
    found, where = np.unique(n, return_inverse=True)
    normal = NormalDist()
    deviates = [normal.inv_cdf((x - 0.375) / (x + 0.25)) for x in found.tolist()]
    return np.asarray(np.array(deviates)[where].reshape(n.shape))
