"""Ways to share states that are worth trying once tp, pp, cp and dp are fixed.

Every sharding of the software over all replicas; over those of one scale-up domain (hybrid
sharding), whose gathers and reductions keep to fast links while the replicas of a shard only
reduce it; and zero3 over all with its backward gathers inside a domain.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.layout.layouts import SHARDINGS
from simulator.software.profile import Software

_ZERO3 = SHARDINGS.index("zero3")


def shared_states(
    software: Software, pinned: Mapping[str, Any], tp: int, pp: int, replicas: int, domain: int
) -> dict[str, NDArray[Any]]:
    """List the choices as columns: sharding, shard_group, reshard_after_forward.

    Parameters
    ----------
    pinned : mapping
        Layout fields with a fixed value.
    replicas, domain : int
        Ranks that may share states (dp x cp), and accelerators of a scale-up domain.
    """
    near = gcd(replicas, domain // tp) if domain % tp == 0 else 1
    rows = []
    for word in shardings(software, pinned, tp, pp, replicas):
        groups = [replicas]
        if word in software.supports.hybrid_sharding and 1 < near < replicas:
            groups.append(near)
        if "shard_group" in pinned:
            groups = [int(pinned["shard_group"])]
        for group in groups:
            rows += [
                (SHARDINGS.index(word), group, n)
                for n in _regroups(software, pinned, word, pp, group, near)
            ]
    names = ("sharding", "shard_group", "reshard_after_forward")
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return dict(zip(names, columns, strict=True))


def shardings(
    software: Software, pinned: Mapping[str, Any], tp: int, pp: int, replicas: int
) -> list[str]:
    """Shardings that go with tp and pp.

    A single replica has nothing to share, so one of them: the least, but for FSDP2. It copies
    weights to 16 bit for one rank as for many (torch ``_fsdp_param_group.py``, wait_for_unshard);
    zero2 keeps all copies until the backward pass, of which zero3 holds a block's at a time.
    """
    resharded = pinned.get("reshard_after_forward")
    if resharded is not None:
        return ["zero2" if resharded is not True and resharded in (False, 1) else "zero3"]
    if "sharding" in pinned:
        return [str(pinned["sharding"])]
    can = software.supports
    words: list[str] = [
        word
        for word in can.sharding
        if (pp == 1 or word in can.sharding_with_pipeline)
        and (tp == 1 or word in can.sharding_with_tensor)
    ]
    if replicas > 1 or not words:
        return words
    least = min(words, key=SHARDINGS.index)
    lighter = least == "zero2" and "zero3" in words and not _keeps_gathered(software, pp)
    return ["zero3" if lighter else least]


def _keeps_gathered(software: Software, pp: int) -> bool:
    """Whether gathered parameters stay for all micro-batches: zero3 is zero2 then."""
    return pp > 1 and software.fsdp2.keeps_gathered_with_pipeline


def _regroups(
    software: Software, pinned: Mapping[str, Any], word: str, pp: int, group: int, near: int
) -> list[int]:
    """Numbers of ranks to reshard to after the forward pass; 0 is all that share."""
    kept = _keeps_gathered(software, pp)
    resharded = pinned.get("reshard_after_forward")
    if resharded is not None:
        number = int(resharded) if not isinstance(resharded, bool) and resharded > 1 else 0
        return [] if word == "zero3" and kept else [number]
    can = word == "zero3" and "group" in software.supports.reshard and not kept
    return [0, near] if can and 1 < near < group and group % near == 0 else [0]
