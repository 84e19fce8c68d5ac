"""What of a layout the launcher of a software has no words for: a search does not choose it.

A layout that is typed may have it all the same: the command then says so in a comment
(``interop/exporting.py``), and where both say something a test holds them to one another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from simulator.layout.layouts import RECOMPUTE, SHARDINGS, Layouts
from simulator.layout.rules.rule import Mask, Setting
from simulator.software.profile import launchers

_DDP, _ZERO1, _ZERO3 = (SHARDINGS.index(word) for word in ("ddp", "zero1", "zero3"))
_FULL, _SELECTIVE = RECOMPUTE.index("full"), RECOMPUTE.index("selective")

UNSAID = "the launch command of the software cannot say it"
"""Reason of layouts that a search leaves out."""


def _alone(x: Layouts, of: Any) -> Mask:
    """Replicas that share nothing, of ranks that do in a command's words."""
    return (x.sharding == _DDP) & (of > 1)


_Limit = Callable[[Layouts, Setting], Mask]

_LIMITS: Mapping[str, tuple[tuple[str, ...], _Limit]] = {
    "some recomputed layers": (("recompute_layers",), lambda x, at: x.recompute_layers > 0),
    "recomputed layers that virtual stages share unequally": (
        ("recompute_layers",),
        lambda x, at: (x.recompute == _FULL) & (x.recompute_layers % x.vpp != 0),
    ),
    "selective recomputation": (("recompute",), lambda x, at: x.recompute == _SELECTIVE),
    "zero1": (("sharding",), lambda x, at: x.sharding == _ZERO1),
    "zero1 in groups": (
        ("shard_group",),
        lambda x, at: (x.sharding == _ZERO1) & (x.shard_group < x.dp * x.cp),
    ),
    "ddp with cp": (("sharding", "shard_group"), lambda x, at: _alone(x, x.cp)),
    "ddp with ep": (("sharding", "shard_group"), lambda x, at: _alone(x, x.ep)),
    "groups that part context-parallel ranks": (
        ("shard_group",),
        lambda x, at: x.shard_group % x.cp != 0,
    ),
    "groups narrower than cp times ep": (
        ("shard_group",),
        lambda x, at: (x.sharding == _ZERO3) & (x.shard_group < x.cp * np.minimum(x.ep, x.dp)),
    ),
    "ep over dp": (("ep",), lambda x, at: x.ep > x.dp),
    "tp without sp": (
        ("sequence_parallel",),
        lambda x, at: (x.tp > 1) & (x.sequence_parallel == 0),
    ),
    "etp unlike tp": (
        ("etp",),
        lambda x, at: (x.etp != x.tp) & at.architecture.is_moe & (x.tp > 1),
    ),
}
"""By the word that hardware_profiles/launchers.toml has for it: fields, and of which layouts."""


def unsaid(layouts: Layouts, at: Setting) -> dict[str, Mask]:
    """Fields that the command of the software cannot say, and of which layouts."""
    masks: dict[str, Mask] = {}
    for word in launchers()[at.software.launcher].unsaid:
        fields, limit = _LIMITS[word]
        for field in fields:
            masks[field] = masks.get(field, False) | limit(layouts, at)
    return masks


def sayable(layouts: Layouts, at: Setting, pinned: Mapping[str, object]) -> Mask:
    """Layouts that the software's command says whole, but for what somebody pinned.

    States that groups of one rank share are shared by nobody, which ddp is the word for.
    """
    able = np.full(len(layouts), True)
    if "shard_group" not in pinned:
        alone = (layouts.shard_group == 1) & (layouts.dp * layouts.cp > 1)
        able &= ~(alone & (layouts.sharding != _DDP))
    for field, mask in unsaid(layouts, at).items():
        if field not in pinned:
            able &= ~mask
    return able
