"""`foreshard compare`: one run on several clusters and sizes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from simulator.cli.decision_options import (
    Clusters,
    Confidence,
    Counts,
    OutFolder,
)
from simulator.cli.option_groups import LIMITS, MONEY, Limits, Money, Names, taking
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
    from simulator.questions.compare.answer import Comparison


@taking
def command(
    scenario: ScenarioFile = None,
    model: ModelName = None,
    clusters: Clusters = None,
    gpus: Counts = None,
    software: SoftwareName = None,
    overrides: Set = None,
    limits: Limits = LIMITS,
    confidence: Confidence = 0.5,
    money: Money = MONEY,
    as_json: Json = False,
    out: OutFolder = None,
) -> None:
    """Compare clusters and sizes for one run: the best layout on each, days, money, energy.

    Exit 0: done; 1: nothing can run, or nothing meets deadline and budget; 2: bad input.
    """
    with speaking():
        from simulator.questions.compare.answer import compare_clusters, own_clusters
        from simulator.questions.compare.gpu_counts import parse_counts

        names = [name for name in (clusters or "").split(",") if name]
        sizes = parse_counts(gpus) if gpus else [None]
        described, assumed = Names(
            model=model,
            cluster=names[0] if names and scenario is None else None,
            gpus=sizes[0] if scenario is None else None,
            software=software,
            overrides=overrides,
        ).scenario(scenario)
        asked = {**limits.read, **money.read}
        if out is not None:
            check_out("--out", out, folder=True)
        on_row = None
        if not as_json:
            from simulator.questions.compare.screen import begin

            on_row = begin(described, assumed)
        answer = compare_clusters(
            described,
            names or own_clusters(described),
            gpus,
            confidence=confidence,
            on_row=on_row,
            **asked,
        )
        if as_json:
            print_json(answer.document())
        else:
            from simulator.questions.compare.screen import show_views

            show_views(answer)
        if out is not None:
            say(f"Written: {', '.join(map(str, _write(answer, out)))}", err=as_json)
        if not any(row.meets(answer.asked) for row in answer.rows):
            raise typer.Exit(INFEASIBLE)


def _write(answer: Comparison, folder: Path) -> list[Path]:
    from simulator.cli.screen import waiting
    from simulator.questions.compare.write import write_comparison

    with writing(folder, "--out"), waiting("writing"):
        return write_comparison(answer, folder)
