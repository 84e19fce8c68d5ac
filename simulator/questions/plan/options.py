"""Offers beside a plan: the same run on other numbers of GPUs, and on another kind of GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

from simulator.planner.plan import Plan
from simulator.questions.compare.answer import default_counts, own_cluster
from simulator.questions.compare.gpu_counts import whole_servers
from simulator.questions.compare.offers import Asked, Offer, offer_of, offer_of_plan
from simulator.report.decision import CONFIDENCE
from simulator.search.in_threads import one_thread
from simulator.second_process import run_in_process
from simulator.software.releases import load_releases


def asked_of(plan: Plan) -> Asked:
    """Deadline and budget of a plan, to be met with the usual confidence."""
    goal, tight = plan.scenario.goal, plan.scenario.allow_tight
    return Asked(
        deadline_days=goal.deadline_days,
        budget_usd=goal.budget_usd,
        confidence=CONFIDENCE,
        allow_tight=tight,
    )


def other_offers(plan: Plan) -> list[tuple[str, int]]:
    """Clusters and numbers of GPUs to compare: two doublings either way, and another kind's."""
    name, cluster = own_cluster(plan.scenario), plan.scenario.cluster
    server, gpus = cluster.node.accelerators, cluster.gpus
    sizes = sorted({whole_servers(size, server) for size in default_counts(gpus)} - {gpus})
    beside, mine = load_releases().beside, cluster.accelerator.name
    other = next((key for key, chip in beside.items() if chip != mine), None)
    if other is None or cluster.accelerator.platform != "cuda":
        return [(name, size) for size in sizes]
    return [*((name, size) for size in sizes), *((other, size) for size in sorted({*sizes, gpus}))]


@contextmanager
def offers_beside(plan: Plan) -> Iterator[Callable[[], list[Offer]]]:
    """Begin to search them in two copies of this process; what is yielded waits for them.

    The plan's own answer is the first. For a process without threads of its own at work.
    """
    asked, scenario = asked_of(plan), plan.scenario
    points = other_offers(plan)

    def searched(some: list[tuple[str, int]]) -> list[Offer]:
        with one_thread():
            return [offer_of(scenario, name, gpus, asked) for name, gpus in some]

    with (
        run_in_process(lambda: searched(points[::2])) as first,
        run_in_process(lambda: searched(points[1::2])) as second,
    ):

        @cache
        def waited() -> list[Offer]:
            offers = [*first(), *second()]
            order = {point: i for i, point in enumerate(points)}
            offers.sort(key=lambda offer: order[offer.cluster, offer.gpus])
            return [offer_of_plan(plan, asked), *offers]

        yield waited
