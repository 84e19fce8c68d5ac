"""`foreshard compare`: one run on several clusters and sizes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from simulator.cli.decision_options import (
    Budget,
    Clusters,
    Confidence,
    Counts,
    Deadline,
    Jobs,
    OutFolder,
    Price,
    Region,
    days_of,
    prices_of,
    scenario_for,
    usd_of,
)
from simulator.cli.options import (
    INFEASIBLE,
    Json,
    ModelName,
    ScenarioFile,
    Set,
    SoftwareName,
    check_out,
    print_json,
    say,
    speaking,
    writing,
)

if TYPE_CHECKING:
    from simulator.decisions.cluster_comparison import Comparison

__all__ = ["command"]


def command(
    scenario: ScenarioFile = None,
    model: ModelName = None,
    clusters: Clusters = None,
    gpus: Counts = None,
    software: SoftwareName = None,
    overrides: Set = None,
    deadline: Deadline = None,
    budget: Budget = None,
    confidence: Confidence = 0.5,
    price: Price = None,
    region: Region = None,
    jobs: Jobs = None,
    as_json: Json = False,
    out: OutFolder = None,
) -> None:
    """Compare clusters and sizes for one run: the best layout on each, days, money, energy.

    Exit 0: done; 1: nothing can run, or nothing meets deadline and budget; 2: bad input.
    """
    with speaking():
        from simulator.decisions.cluster_comparison import compare_clusters, own_cluster
        from simulator.decisions.gpu_counts import parse_counts

        names = [name for name in (clusters or "").split(",") if name]
        sizes = parse_counts(gpus) if gpus else [None]
        described, assumed = scenario_for(
            scenario,
            model=model,
            cluster=names[0] if names else None,
            gpus=sizes[0],
            software=software,
            overrides=overrides,
        )
        limits = {"deadline_days": days_of(deadline), "budget_usd": usd_of(budget)}
        prices = prices_of(price)
        if out is not None:
            check_out("--out", out, folder=True)
        on_row = None
        if not as_json:
            from simulator.cli.screen_compare import begin

            on_row = begin(described, assumed)
        answer = compare_clusters(
            described,
            names or [own_cluster(described)],
            gpus,
            confidence=confidence,
            prices=prices,
            region=region,
            jobs=jobs,
            on_row=on_row,
            **limits,
        )
        if as_json:
            from simulator.report.decision_documents import compare_document

            print_json(compare_document(answer))
        else:
            from simulator.cli.screen_compare import show_views

            show_views(answer)
        if out is not None:
            say(f"Written: {', '.join(map(str, _write(answer, out)))}", err=as_json)
        if not any(row.meets(answer.asked) for row in answer.rows):
            raise typer.Exit(INFEASIBLE)


def _write(answer: Comparison, folder: Path) -> list[Path]:
    from simulator.cli.screen import waiting
    from simulator.report.write_decisions import write_comparison

    with writing(folder, "--out"), waiting("writing"):
        return write_comparison(answer, folder)
