"""Offers beside a plan: the same run on other numbers of GPUs, and on another kind of GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import groupby
from operator import itemgetter

from simulator.planner.plan import Plan
from simulator.questions.compare.answer import default_counts, own_cluster
from simulator.questions.compare.gpu_counts import whole_servers
from simulator.questions.compare.offer import Offer, asked_of, offer_of_answer
from simulator.questions.compare.offers import offers_of
from simulator.search.in_threads import one_thread
from simulator.second_process import run_in_process
from simulator.software.releases import load_releases


def other_offers(plan: Plan, beside: str | None = None) -> list[tuple[str, int]]:
    """Clusters and numbers of GPUs to compare: two doublings either way, and another kind's.

    `beside` is the other cluster; the usual one of another kind unless given.
    """
    name, cluster = own_cluster(plan.scenario), plan.scenario.cluster
    server, gpus = cluster.node.accelerators, cluster.gpus
    sizes = sorted({whole_servers(size, server) for size in default_counts(gpus)} - {gpus})
    usual, mine = load_releases().beside, cluster.accelerator.name
    if cluster.accelerator.platform != "cuda":
        usual = {}
    other = beside or next((key for key, chip in usual.items() if chip != mine), None)
    if other in (None, name):
        return [(name, size) for size in sizes]
    return [*((name, size) for size in sizes), *((other, size) for size in sorted({*sizes, gpus}))]


_OF_ONE = ("usd_per_gpu_hour", "basis", "page", "own", "rent")
"""Fields of [economics] that say what the scenario's own machines cost."""


def searched_offers(plan: Plan, points: Sequence[tuple[str, int]]) -> list[Offer]:
    """Search clusters and sizes in turn; another cluster has the price of its own profile."""
    asked, mine = asked_of(plan), plan.scenario
    paid = mine.document.get("economics", {})
    listed = {name: value for name, value in paid.items() if name not in _OF_ONE}
    theirs = replace(mine, document={**mine.document, "economics": listed}) if paid else mine
    home = own_cluster(mine)
    return [
        offer
        for name, some in groupby(points, key=itemgetter(0))
        for offer in offers_of(
            mine if name == home else theirs, name, [n for _, n in some], asked, tight_too=False
        )
    ]


@contextmanager
def offers_beside(plan: Plan) -> Iterator[Callable[[], list[Offer]]]:
    """Begin to search them in two copies of this process; what is yielded waits for them.

    A copy for each cluster, whose sizes share prices. The plan's own answer is the first. For a
    process without threads of its own at work.
    """
    asked, points = asked_of(plan), other_offers(plan)
    here = sum(name == own_cluster(plan.scenario) for name, _ in points)

    def searched(some: list[tuple[str, int]]) -> list[Offer]:
        with one_thread():
            return searched_offers(plan, some)

    with (
        run_in_process(lambda: searched(points[:here])) as first,
        run_in_process(lambda: searched(points[here:])) as second,
    ):

        @cache
        def waited() -> list[Offer]:
            return [offer_of_answer(plan, asked), *first(), *second()]

        yield waited
