"""What calls put on links while their bytes move, as shares of what the links carry.

A user of links is what one stage does of one kind: the calls of its groups, a send to another
stage, copies to host memory. All replicas do the same at the same time, so that the load of a link
is that of everything which a stage does on it, whoever's GPUs it belongs to. Links that carry the
same shares of the same users are one: a machine of thousands comes down to a few links a stage.
"""

from __future__ import annotations

from dataclasses import field
from itertools import pairwise

import numpy as np

from simulator.arrays import Floats, Ints
from simulator.events.engine.fair_shares import link_load
from simulator.events.network.flows import Flows
from simulator.events.network.group_calls import group_members
from simulator.events.network.links import Topology, link_name
from simulator.events.network.routes import Routes, host_routes, routes
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import Layouts
from simulator.records import dataclass

Users = tuple[str, bool | int, int]
"""("dp", True, 3): calls of stage 3's dp groups over adapters, inside domains where False;
("send", 3, 4): from stage 3 to 4; ("copy", True, 3): of stage 3 to its host, from it where
False."""

_LEAST = 1e-6
"""Share of a link that is worth a row; loads nearer to one another are equal."""


@dataclass(frozen=True, kw_only=True)
class Loads:
    """Links and who loads them."""

    names: tuple[str, ...]
    """One link of each class of equally loaded ones."""
    of: dict[Users, tuple[Ints, Floats]]
    """Links of each user, and the share of each that it takes while its bytes move."""


@dataclass
class LoadTable:
    """Loads as they are found."""

    cluster: Cluster
    links: Topology
    """With what is left of worn links."""
    stages: Ints
    """GPUs by pipeline and stage."""
    users: dict[Users, tuple[Ints, Floats]] = field(default_factory=dict)
    """Links of each user and their loads, bytes per second over bytes per second."""

    @classmethod
    def of(cls, layout: Layouts, cluster: Cluster, links: Topology, seats: Ints) -> LoadTable:
        """An empty one; `seats`: GPUs of the network that the ranks of the layout are."""
        return cls(cluster=cluster, links=links, stages=seats[group_members(layout, "pp")])

    @property
    def kinds(self) -> list[tuple[str, bool]]:
        """Kinds of groups, and whether over adapters."""
        own = {user[:2] for user in self.users if user[0] not in ("send", "copy")}
        return sorted((group, bool(far)) for group, far in own)

    def calls(self, group: str, far: bool, stage: Ints, table: Flows, slower: Floats) -> None:
        """Add what the groups of a kind do, a flow each, of these stages; how far slowed."""
        rate = table.limit_bytes_per_s / slower
        for s in range(self.stages.shape[1]):
            ways = Routes(first=table.first, link=table.link, share=table.share)
            self._add((group, far, s), ways, np.where(stage == s, rate, 0.0))

    def sends(self, pairs: set[tuple[int, int]], rate: Floats) -> None:
        """Add sends between stages at the rate (bytes per second) of the sender, by stage."""
        for one, other in sorted(pairs):
            ways = routes(self.links, self.stages[:, one], self.stages[:, other])
            self._add(("send", one, other), ways, np.full(len(ways), rate[one]))

    def copies(self) -> None:
        """Add copies of every stage to its host and back, where the profile knows such links."""
        if not self.links.has("host-up"):
            return
        for up, kind in ((True, "host-up"), (False, "host-down")):
            for s, gpus in enumerate(self.stages.T):
                rate = self.links.capacity_bytes_per_s[self.links.at(kind, gpus)]
                self._add(("copy", up, s), host_routes(self.links, gpus, up=up), rate)

    def _add(self, user: Users, ways: Routes, rate: Floats) -> None:
        load = link_load(
            rate, ways.first, ways.link, ways.share, np.ones(len(ways)), self.links.links
        )
        capacity = self.links.capacity_bytes_per_s
        share = np.minimum(load / np.where(capacity > 0.0, capacity, np.inf), 1.0)
        assert user not in self.users
        used = np.flatnonzero(share > _LEAST)
        self.users[user] = used, share[used]

    def folded(self) -> Loads:
        """Fold links that carry the same shares of the same users."""
        users = list(self.users)
        used = list(self.users.values())
        link = np.concatenate([np.empty(0, np.int64), *(at for at, _ in used)])
        who = np.repeat(np.arange(len(users)), [len(at) for at, _ in used])
        share = np.concatenate([np.empty(0), *(share for _, share in used)])
        order = np.argsort(link, kind="stable")
        link, who, share = link[order], who[order], share[order]
        coded = np.column_stack([who, np.round(share / _LEAST).astype(np.int64)])
        number: dict[bytes, int] = {}
        kept: list[Ints] = []
        names: list[str] = []
        bounds = np.flatnonzero(np.diff(link, prepend=-1, append=-1))
        for low, high in pairwise(bounds.tolist()):
            if number.setdefault(coded[low:high].tobytes(), len(number)) == len(names):
                names.append(link_name(self.links, int(link[low])))
                kept.append(np.arange(low, high))
        return Loads(names=tuple(names), of=_by_user(users, kept, who, share))


def _by_user(
    users: list[Users], kept: list[Ints], who: Ints, share: Floats
) -> dict[Users, tuple[Ints, Floats]]:
    """Rows of the links that are kept, user by user."""
    if not kept:
        return {}
    rows = np.concatenate(kept)
    link = np.repeat(np.arange(len(kept)), [len(x) for x in kept])
    order = np.argsort(who[rows], kind="stable")
    ends = np.searchsorted(who[rows][order], np.arange(len(users) + 1))
    return {
        user: (link[order][ends[i] : ends[i + 1]], share[rows][order][ends[i] : ends[i + 1]])
        for i, user in enumerate(users)
    }
