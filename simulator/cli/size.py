"""`foreshard size`: how many accelerators for a date or a budget, and what both buy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.decision_options import (
    Budget,
    Confidence,
    Deadline,
    Jobs,
    Largest,
    Law,
    Price,
    Region,
    days_of,
    prices_of,
    scenario_for,
    usd_of,
)
from simulator.cli.options import (
    INFEASIBLE,
    ClusterName,
    Json,
    ModelName,
    ScenarioFile,
    Set,
    SoftwareName,
    print_json,
    speaking,
)

__all__ = ["command"]

Gpus = Annotated[
    int | None,
    typer.Option(
        "--gpus", metavar="N", min=1, help="The number, where it is known: what the limits buy."
    ),
]


def command(
    scenario: ScenarioFile = None,
    model: ModelName = None,
    cluster: ClusterName = None,
    gpus: Gpus = None,
    software: SoftwareName = None,
    overrides: Set = None,
    deadline: Deadline = None,
    budget: Budget = None,
    confidence: Confidence = 0.9,
    price: Price = None,
    region: Region = None,
    law: Law = "hoffmann-2022",
    largest: Largest = None,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Find the fewest GPUs for a deadline, or the soonest end for a budget.

    Says as well how many tokens both buy, and which model makes most of the same compute.
    Exit 0: done; 1: no size meets what is asked; 2: bad input.
    """
    with speaking():
        from simulator.decisions.sizing import size_run

        described, assumed = scenario_for(
            Path(scenario) if scenario else None,
            model=model,
            cluster=cluster,
            gpus=gpus or 8,
            software=software,
            overrides=[*(overrides or ()), *([f"cluster.name={cluster}"] if cluster else [])],
        )
        limits = {"deadline_days": days_of(deadline), "budget_usd": usd_of(budget)}
        prices = prices_of(price)
        on_row = None
        if not as_json:
            from simulator.cli.screen_compare import begin

            on_row = begin(described, assumed)
        answer = size_run(
            described,
            gpus=gpus,
            confidence=confidence,
            prices=prices,
            region=region,
            law=law,
            largest=largest,
            jobs=jobs,
            on_row=on_row,
            **limits,
        )
        if as_json:
            from simulator.report.decision_documents import size_document

            print_json(size_document(answer))
        else:
            from simulator.cli.screen_size import show

            show(answer)
        if answer.answer is None:
            raise typer.Exit(INFEASIBLE)
