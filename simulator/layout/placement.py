"""Rank grid -> process groups -> which links each group crosses and shares.

Ranks are numbered along the rank order, innermost dimension first. A group of a dimension takes
every stride-th rank; what matters for its speed is how many of its members sit in one scale-up
domain (NVLink), since the others are reached over the network adapters, which every group of
the domain shares.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Ints
from simulator.layout.keys import distinct_codes
from simulator.layout.layouts import RANK_ORDERS, Layouts
from simulator.records import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """The shape of one kind of process group, one entry per layout."""

    size: Ints
    """Members."""
    local: Ints
    """Members in one scale-up domain."""

    @property
    def domains(self) -> Ints:
        """Scale-up domains that a group touches: what NCCL calls nodes."""
        return np.asarray(-(-self.size // self.local))

    def take(self, rows: NDArray[Any]) -> Group:
        """Return the entries `rows`."""
        return Group(size=self.size[rows], local=self.local[rows])


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Every kind of process group of a table of layouts."""

    tp: Group
    cp: Group
    cp_a2a: Group
    """Adjacent context-parallel ranks that exchange sequence for heads; one rank where none do."""
    cp_ring: Group
    """Every cp_a2a-th context-parallel rank: the rings between those groups."""
    dp: Group
    """Data-parallel and context-parallel ranks together: who shares dense gradients."""
    shard: Group
    """Ranks over which optimizer states (zero1-3) are sharded."""
    reshard: Group
    """Ranks over which zero3 shards parameters between forward and backward pass."""
    ep: Group
    etp: Group
    edp: Group
    """Ranks that hold the same experts."""
    pp: Group
    """Pipeline neighbours: `local` is 1 where a hop between stages crosses domains."""

    @property
    def experts(self) -> Group:
        """Ranks of ep and etp together, which hold every expert once."""
        whole = self.etp.local == self.etp.size
        local = np.where(whole, self.etp.local * self.ep.local, self.etp.local)
        return Group(size=self.ep.size * self.etp.size, local=local)

    def take(self, rows: NDArray[Any]) -> Placement:
        """Return the entries `rows` of every group."""
        return Placement(**{f.name: getattr(self, f.name).take(rows) for f in fields(self)})

    def with_groups(self, cp_a2a: NDArray[Any]) -> Placement:
        """The same with context-parallel ranks in groups of `cp_a2a` adjacent ones."""
        local = np.gcd(self.cp.local, cp_a2a)
        between = np.where(local == cp_a2a, self.cp.local // local, 1)
        return replace(
            self,
            cp_a2a=Group(size=cp_a2a, local=local),
            cp_ring=Group(size=self.cp.size // cp_a2a, local=between),
        )

    def with_copies(self, copies: NDArray[Any]) -> Placement:
        """The same where so many pipeline ranks hold each stage: they are replicas, too.

        DualPipe's second copy of a stage is on the mirrored rank, taken to be in another domain.
        """
        if (copies == 1).all():
            return self
        wider = {
            name: Group(size=group.size * copies, local=group.local)
            for name in ("dp", "shard", "edp")
            for group in (getattr(self, name),)
        }
        return replace(self, **wider)


def place(layouts: Layouts, domain: int) -> Placement:
    """Place the process groups of `layouts` on scale-up domains of `domain` accelerators.

    The experts live on a grid of their own, etp innermost, then ep, over the same tp x cp x dp
    ranks (Megatron-Core's parallel folding).
    """
    dense = {name: getattr(layouts, name).astype(np.int64) for name in ("tp", "cp", "dp", "pp")}
    etp, ep = layouts.etp.astype(np.int64), layouts.ep.astype(np.int64)
    replica = dense["tp"] * dense["cp"] * dense["dp"]
    edp = np.maximum(replica // (etp * ep), 1)
    inside = _inside_domain(dense, layouts.rank_order, domain)
    outer = inside["pp"] // np.maximum(inside["pp"], 1)  # ones, of the right shape
    room = np.maximum(np.minimum(domain, inside["tp"] * inside["cp"] * inside["dp"]), outer)
    in_etp, in_ep, in_edp = (
        np.where(room % stride == 0, np.gcd(degree, np.maximum(room // stride, 1)), 1)
        for degree, stride in ((etp, 1), (ep, etp), (edp, etp * ep))
    )
    both = dense["dp"] * dense["cp"]
    both_inside = inside["dp"] * inside["cp"]
    shard = np.minimum(layouts.shard_group.astype(np.int64), both)
    part = layouts.reshard_after_forward.astype(np.int64)
    part = np.where(part > 0, np.minimum(part, shard), shard)
    hop_inside = (inside["pp"] == dense["pp"]).astype(np.int64) + 1
    context = Group(size=dense["cp"], local=inside["cp"])
    alone = Group(size=np.ones_like(dense["cp"]), local=np.ones_like(dense["cp"]))
    return Placement(
        tp=Group(size=dense["tp"], local=inside["tp"]),
        cp=context,
        cp_a2a=alone,
        cp_ring=context,
        dp=Group(size=both, local=both_inside),
        shard=Group(size=shard, local=np.gcd(both_inside, shard)),
        reshard=Group(size=part, local=np.gcd(both_inside, part)),
        ep=Group(size=ep, local=in_ep),
        etp=Group(size=etp, local=in_etp),
        edp=Group(size=edp, local=in_edp),
        pp=Group(size=dense["pp"], local=hop_inside),
    )


def _inside_domain(
    degrees: dict[str, Ints], rank_order: NDArray[Any], domain: int
) -> dict[str, Ints]:
    """For each dimension, how many of its positions fall into one domain."""
    inside = {name: np.ones_like(degree) for name, degree in degrees.items()}
    for code in distinct_codes(rank_order):
        rows = rank_order == code
        stride = np.ones(int(rows.sum()), dtype=np.int64)
        for name in RANK_ORDERS[code].split("-"):
            degree = degrees[name][rows]
            whole = np.gcd(degree, np.maximum(domain // stride, 1))
            inside[name][rows] = np.where(domain % stride == 0, whole, 1)
            stride = stride * degree
    return inside
