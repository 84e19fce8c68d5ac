"""Which term of the table a measured collective belongs to: words, members, size of its group."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from simulator.scoring.trace import Collective

_CAUSES = {"tp": "tp", "cp": "cp", "dp": "data", "pp": "pipeline"}

# In this order: EXPERT_DATA_PARALLEL_GROUP is data-parallel, EXPERT_MODEL_PARALLEL_GROUP is not.
_WORDS = (
    ({"pp", "pipeline"}, "pipeline"),
    ({"dp", "edp", "data", "fsdp", "hsdp", "shard", "replicate"}, "data"),
    ({"etp", "tp", "tensor"}, "tp"),
    ({"ep", "expert"}, "ep"),
    ({"cp", "context"}, "cp"),
)
"""Words of Megatron-Core's group descriptions and of torch's mesh dimensions."""


def cause_of(collective: Collective, layout: Mapping[str, Any]) -> str:
    """Name the cause to which a collective of a run with this layout belongs.

    Parameters
    ----------
    collective : Collective
    layout : mapping
        Degrees and ``rank_order``, as ``Layouts.row`` gives them.

    Returns
    -------
    str
        ``tp``, ``cp``, ``ep``, ``data``, ``pipeline``, ``offload``, or ``collectives`` if nothing
        tells.

    Examples
    --------
    >>> layout = {"tp": 2, "cp": 1, "dp": 4, "pp": 1, "ep": 1, "rank_order": "tp-cp-dp-pp"}
    >>> cause_of(Collective(kind="all_gather", size=2, ranks=(0, 1)), layout)
    'tp'
    >>> cause_of(Collective(kind="all_reduce", size=4), layout)
    'data'
    """
    if collective.kind == "host_copy":
        return "offload"
    for found in (
        _by_words(collective),
        _by_kind(collective, layout),
        _by_members(collective, layout),
        _by_size(collective, layout),
    ):
        if found:
            return found
    return "collectives"


def _by_words(collective: Collective) -> str:
    words = set(re.findall(r"[a-z]+", f"{collective.description} {collective.group}".lower()))
    return next((cause for some, cause in _WORDS if some & words), "")


def _by_kind(collective: Collective, layout: Mapping[str, Any]) -> str:
    """Sends are the pipeline's, or a ring's; only experts, or heads of a context, are exchanged."""
    if collective.kind == "send_recv":
        return "pipeline" if layout["pp"] > 1 else "cp" if layout["cp"] > 1 else ""
    if collective.kind == "all_to_all":
        return "ep" if layout["ep"] > 1 else "cp" if layout["cp"] > 1 else ""
    return ""


def _by_members(collective: Collective, layout: Mapping[str, Any]) -> str:
    """Dimensions of the rank grid along which the members differ."""
    if len(collective.ranks) < 2:
        return ""
    stride, vary = 1, set()
    for name in str(layout["rank_order"]).split("-"):
        if len({rank // stride % layout[name] for rank in collective.ranks}) > 1:
            vary.add(name)
        stride *= layout[name]
    if vary == {"cp", "dp"}:
        return "data"
    return _CAUSES[vary.pop()] if len(vary) == 1 else ""


def _by_size(collective: Collective, layout: Mapping[str, Any]) -> str:
    """The only dimension of the group's size; without a size, the only one there is.

    Stages send to each other; whatever else their groups do, they do not in every step.
    """
    sizes = [(layout[name], _CAUSES[name]) for name in ("tp", "cp", "dp")]
    sizes.append((layout["dp"] * layout["cp"], "data"))
    wanted = collective.size
    fitting = {cause for size, cause in sizes if size > 1 and wanted in (None, size)}
    return fitting.pop() if len(fitting) == 1 else ""
