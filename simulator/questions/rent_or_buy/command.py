"""`foreshard rent-or-buy`: a cluster rented or bought, month by month."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.runner import Reply, question

ClusterNeeded = Annotated[
    str, typer.Option("--cluster", metavar="NAME", help="Cluster profile, or path of one.")
]
GpusNeeded = Annotated[int, typer.Option("--gpus", metavar="N", min=1, help="Accelerators.")]
Page = Annotated[
    str | None,
    typer.Option(
        "--page",
        metavar="NAME",
        help="Page of prices (hardware_profiles/rent_or_buy), or path of one; unless given the"
        " accelerator's for servers, and the cluster's own price for rent.",
    ),
]
InUse = Annotated[
    float, typer.Option("--in-use", metavar="SHARE", help="Share of the hours in which a job runs.")
]
Goodput = Annotated[
    float, typer.Option("--goodput", metavar="SHARE", help="Share of a job's time that is useful.")
]
Months = Annotated[int, typer.Option("--months", metavar="N", help="How long, 1 to 240.")]
Busy = Annotated[
    float | None,
    typer.Option("--busy", metavar="SHARE", help="Share of a job's time that GPUs compute."),
]
Price = Annotated[
    float | None,
    typer.Option(
        "--price",
        metavar="USD",
        help="USD of an accelerator's hour on demand; reserved and spot are less by the discounts"
        " of page or provider.",
    ),
]
Liquid = Annotated[bool, typer.Option("--liquid", help="Liquid cooling instead of air.")]


@question("rent-or-buy", "rent-or-buy --cluster dgx-h100 --gpus 1024 --months 36")
def ask(
    *,
    cluster: ClusterNeeded,
    gpus: GpusNeeded,
    page: Page = None,
    in_use: InUse = 1.0,
    goodput: Goodput = 1.0,
    months: Months = 48,
    busy: Busy = None,
    price: Price = None,
    liquid: Liquid = False,
) -> Reply:
    """Compare renting a cluster with buying it: costs by cause, and when buying pays back."""
    from simulator.economics.ownership import Use, load_page
    from simulator.economics.rent_or_buy_cluster import rent_or_buy_cluster
    from simulator.hardware.cluster import load_cluster
    from simulator.questions.rent_or_buy.screen import screen

    where = "command line"
    machines = load_cluster(cluster, gpus, where=where)
    use = Use(
        gpus=gpus,
        in_use=in_use,
        goodput=goodput,
        months=months,
        cooling="liquid" if liquid else "air",
    )
    chosen = load_page(page, where=where, field="--page") if page else None
    answer = rent_or_buy_cluster(
        machines, use, page=chosen, busy=busy, usd_per_gpu_hour=price, where=where
    )
    return Reply(answer, screen)
