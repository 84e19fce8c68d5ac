"""`foreshard compare`: one run on several clusters and sizes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.cli.decision_options import (
    IDEAL,
    Clusters,
    Confidence,
    Counts,
    Ideal,
    Offers,
    OutFolder,
    clusters_of,
)
from simulator.cli.option_groups import AllowTight, Limits, Money, SearchOptions
from simulator.cli.options import (
    Batch,
    ModelName,
    ScenarioFile,
    Sequence,
    Set,
    SoftwareName,
    Tokens,
    check_out,
    writing,
)
from simulator.cli.runner import Reply, question
from simulator.goal import CONFIDENCE

if TYPE_CHECKING:
    from simulator.questions.compare.answer import Comparison


@question(
    "compare",
    "compare run.toml --clusters dgx-h100,gb200-nvl72 --gpus 64..4096 --deadline 90d",
    "compare run.toml --offers published --gpus 64,512",
)
def ask(
    *,
    scenario: ScenarioFile = None,
    model: ModelName = None,
    clusters: Clusters = None,
    gpus: Counts = None,
    software: SoftwareName = None,
    tokens: Tokens = None,
    seq: Sequence = None,
    batch: Batch = None,
    overrides: Set = None,
    limits: Limits,
    confidence: Confidence = CONFIDENCE,
    allow_tight: AllowTight = False,
    money: Money,
    offers: Offers = None,
    ideal: Ideal = False,
    out: OutFolder = None,
) -> Reply:
    """Compare clusters and sizes for one run: the best layout on each, days, money, energy.

    Exit 0: done; 1: nothing can run, or nothing meets deadline and budget; 2: bad input.
    """
    from simulator.cli.screen import Progress
    from simulator.economics.quotes import quotes_on
    from simulator.questions.compare.answer import (
        compare_clusters,
        first_that_holds,
        own_clusters,
    )
    from simulator.questions.compare.gpu_counts import parse_counts
    from simulator.questions.compare.screen import screen

    quotes, names = quotes_on(offers, clusters_of(clusters), where="command line")
    sizes = parse_counts(gpus) if gpus else [None]
    described, assumed = SearchOptions(
        model=model,
        cluster=first_that_holds(names, sizes[0]) if scenario is None else None,
        gpus=sizes[0] if scenario is None else None,
        software=software,
        tokens=tokens,
        seq=seq,
        batch=batch,
        allow_tight=allow_tight,
        overrides=[*(overrides or ()), *[IDEAL] * ideal],
    ).scenario(scenario)
    limited = {**limits.read, **money.read}
    if out is not None:
        check_out("--out", out, folder=True)
    with Progress("searching offers") as progress:
        answer = compare_clusters(
            described,
            names or own_clusters(described),
            gpus,
            confidence=confidence,
            quotes=quotes,
            progress=progress,
            **limited,
        )
    return Reply(
        answer,
        partial(screen, assumed=assumed),
        write=None if out is None else partial(_write, folder=out),
        feasible=any(row.meets(answer.asked) for row in answer.rows),
    )


def _write(answer: Comparison, folder: Path) -> list[str]:
    from simulator.cli.screen import waiting
    from simulator.questions.compare.page import write_comparison

    with writing(folder, "--out"), waiting("writing"):
        return [f"Written: {', '.join(map(str, write_comparison(answer, folder)))}"]
