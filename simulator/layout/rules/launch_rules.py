"""What of a layout the launcher of a software has no words for: a search does not choose it.

A layout that is typed may have it all the same: the command then says so in a comment
(``interop/launch.py``), and where both say something a test holds them to one another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from simulator.layout.layouts import RECOMPUTE, SHARDINGS, Layouts
from simulator.layout.rules.rule import Mask, Setting
from simulator.software.profile import Launcher

_DDP, _ZERO1, _ZERO3 = (SHARDINGS.index(word) for word in ("ddp", "zero1", "zero3"))

UNSAID = "the launch command of the software cannot say it"
"""Reason of layouts that a search leaves out."""


def _megatron(x: Layouts, at: Setting) -> dict[str, Mask]:
    """Layers to recompute are counted by virtual stage."""
    full = x.recompute == RECOMPUTE.index("full")
    return {"recompute_layers": full & (x.recompute_layers % x.vpp != 0)}


def _torchtitan(x: Layouts, at: Setting) -> dict[str, Mask]:
    """Full recomputation is of all layers; context-parallel ranks share states."""
    alone = (x.sharding == _DDP) & (x.cp > 1)
    return {
        "recompute_layers": x.recompute_layers > 0,
        "sharding": (x.sharding == _ZERO1) | alone,
        "shard_group": alone | (x.shard_group % x.cp != 0),
    }


def _deepspeed(x: Layouts, at: Setting) -> dict[str, Mask]:
    """The trainer's switch computes all layers again, or nothing."""
    return {
        "recompute_layers": x.recompute_layers > 0,
        "recompute": x.recompute == RECOMPUTE.index("selective"),
    }


def _maxtext(x: Layouts, at: Setting) -> dict[str, Mask]:
    """Weights are sharded over context and experts, which lie within the replicas."""
    experts = at.architecture.is_moe
    alone = (x.sharding == _DDP) & (np.maximum(x.cp, x.ep) > 1)
    narrow = (x.sharding == _ZERO3) & (x.shard_group < x.cp * np.minimum(x.ep, x.dp))
    return {
        "recompute_layers": x.recompute_layers > 0,
        "sharding": alone,
        "shard_group": alone | narrow,
        "ep": x.ep > x.dp,
        "etp": (x.etp != x.tp) & experts & (x.tp > 1),
    }


def _neuronx(x: Layouts, at: Setting) -> dict[str, Mask]:
    """All replicas share optimizer states."""
    some = (x.sharding == _ZERO1) & (x.shard_group < x.dp * x.cp)
    return {"recompute_layers": x.recompute_layers > 0, "shard_group": some}


LAUNCH_RULES: Mapping[Launcher, Callable[[Layouts, Setting], dict[str, Mask]]] = {
    "megatron": _megatron,
    "primus": _megatron,
    "mindspeed": _megatron,
    "torchtitan": _torchtitan,
    "deepspeed": _deepspeed,
    "gaudi": _deepspeed,
    "maxtext": _maxtext,
    "neuronx": _neuronx,
}
"""Fields that a launcher cannot say of which layouts; those that are left out say all."""


def sayable(layouts: Layouts, at: Setting, pinned: Mapping[str, object]) -> Mask:
    """Layouts that the software's command says whole, but for what somebody pinned.

    States that groups of one rank share are shared by nobody, which ddp is the word for.
    """
    rules = LAUNCH_RULES.get(at.software.launcher)
    lost = {} if rules is None else rules(layouts, at)
    able = np.full(len(layouts), True)
    if "shard_group" not in pinned:
        alone = (layouts.shard_group == 1) & (layouts.dp * layouts.cp > 1)
        able &= ~(alone & (layouts.sharding != _DDP))
    for field, mask in lost.items():
        if field not in pinned:
            able &= ~mask
    return able
