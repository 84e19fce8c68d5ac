"""`foreshard size`: how many accelerators for a date or a budget, and what both buy."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from simulator.cli.decision_options import (
    IDEAL,
    Confidence,
    Ideal,
    Largest,
    Law,
)
from simulator.cli.option_groups import AllowTight, Limits, Money, SearchOptions
from simulator.cli.options import (
    Batch,
    ClusterName,
    ModelName,
    ScenarioFile,
    Sequence,
    Set,
    SoftwareName,
    Tokens,
)
from simulator.cli.runner import Reply, question

Gpus = Annotated[
    int | None,
    typer.Option(
        "--gpus", metavar="N", min=1, help="The number, where it is known: what the limits buy."
    ),
]


@question(
    "size",
    "size run.toml --deadline 90d --confidence 0.9",
    "size run.toml --budget 2M",
)
def ask(
    *,
    scenario: ScenarioFile = None,
    model: ModelName = None,
    cluster: ClusterName = None,
    gpus: Gpus = None,
    software: SoftwareName = None,
    tokens: Tokens = None,
    seq: Sequence = None,
    batch: Batch = None,
    overrides: Set = None,
    limits: Limits,
    confidence: Confidence = 0.9,
    law: Law = "hoffmann-2022",
    largest: Largest = None,
    allow_tight: AllowTight = False,
    money: Money,
    ideal: Ideal = False,
) -> Reply:
    """Find the fewest GPUs for a deadline, or the soonest end for a budget.

    Says as well how many tokens both buy, and which model makes most of the same compute.
    Exit 0: done; 1: no size meets what is asked; 2: bad input.
    """
    from simulator.cli.screen import waiting
    from simulator.questions.size.answer import size_run
    from simulator.questions.size.screen import screen

    described, assumed = SearchOptions(
        model=model,
        cluster=cluster if scenario is None else None,
        gpus=(gpus or 8) if scenario is None else None,
        software=software,
        tokens=tokens,
        seq=seq,
        batch=batch,
        allow_tight=allow_tight,
        overrides=[
            *(overrides or ()),
            *([f"cluster.name={cluster}"] if cluster else []),
            *[IDEAL] * ideal,
        ],
    ).scenario(scenario)
    asked = {**limits.read, **money.read}
    with waiting("searching sizes"):
        answer = size_run(
            described,
            gpus=gpus,
            confidence=confidence,
            law=law,
            largest=largest,
            **asked,
        )
    return Reply(answer, partial(screen, assumed=assumed), feasible=answer.answer is not None)
