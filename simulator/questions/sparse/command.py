"""`foreshard recommender`: a step of embedding tables beside a dense model.

The command first, then its screen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from simulator.cli.option_groups import ScenarioOptions
from simulator.cli.options import ScenarioFile, Set
from simulator.cli.runner import Reply, question
from simulator.cli.screen import gib, notes, plain_table
from simulator.glossary import CAVEATS
from simulator.units import show_bytes, show_count, show_percent, show_seconds

if TYPE_CHECKING:
    from simulator.questions.sparse.answer import Recommended


@question("recommender", "recommender run.toml --set sparse.updates=asynchronous")
def ask(*, scenario: ScenarioFile = None, overrides: Set = None) -> Reply:
    """Find what a step of [sparse] takes: tables split over the GPUs, next to a dense model.

    Exit 0: done; 1: tables or model do not fit; 2: bad input.
    """
    from simulator.questions.sparse.answer import recommender

    answer = recommender(ScenarioOptions(overrides=overrides).scenario(scenario))
    return Reply(answer, screen, feasible=answer.fits)


def screen(answer: Recommended) -> Iterator[RenderableType]:
    """Give the step term by term, who holds which tables, and what is left out."""
    recipe = answer.scenario.workload.recipe
    cluster = answer.scenario.cluster
    yield Text(
        f"{show_count(answer.parameters)} parameters, {show_count(_dense(answer))} of them"
        f" dense, on {cluster.gpus:,} x {cluster.accelerator.name} ({cluster.name}),"
        f" {answer.scenario.software.name}; {recipe.global_batch:,} samples a step"
    )
    yield Text(
        f"\nstep {show_seconds(answer.step_time_s)}, {show_count(answer.samples_per_s)}"
        " samples/s\n",
        style="bold",
    )
    yield _memory(answer)
    yield _terms(answer)
    yield ""
    yield notes("Tables", _tables(answer))
    yield notes(CAVEATS, answer.caveats)


def _dense(answer: Recommended) -> int:
    return answer.scenario.workload.architecture.parameters


def _memory(answer: Recommended) -> Text:
    host = f"; {show_bytes(answer.host_bytes)} of every host" if answer.host_bytes else ""
    usable = gib(answer.dense.estimate.usable_bytes)
    return Text(
        f"{answer.verdict}: {gib(answer.memory_bytes)} of {usable} GiB"
        f" usable at peak (worst rank), {gib(answer.kept_bytes)} of them tables{host}",
        style="" if answer.verdict == "FITS" else answer.verdict,
    )


def _terms(answer: Recommended) -> Table:
    table = plain_table("time of a step", "shown", "share", "hidden", left=("time of a step",))
    for name, seconds in answer.terms_s.items():
        hidden = answer.hidden_s.get(name, 0.0)
        if seconds or hidden:
            share = show_percent(seconds / answer.step_time_s)
            table.add_row(
                name, show_seconds(seconds), share, show_seconds(hidden) if hidden else ""
            )
    return table


def _tables(answer: Recommended) -> list[str]:
    deal, sparse = answer.deal, answer.sparse
    reads = sum(t.count * t.pooling for t in sparse.tables)
    batch = answer.scenario.workload.recipe.global_batch
    lines = [
        f"{sum(t.count for t in sparse.tables):,} tables; a step reads {show_count(batch * reads)}"
        f" rows, {show_count(answer.distinct_rows)} of them distinct"
    ]
    if sparse.exchange == "rpc":
        return [*lines, "all in host memory, summed and updated by the hosts"]
    widths = deal.widths
    if widths.max() > 0:
        lines.append(
            f"dealt whole or by column: the busiest GPU sends {widths.max():,.0f} elements of a"
            f" sample, the mean {widths.mean():,.1f}"
        )
    if deal.by_row:
        lines.append(f"{len(deal.by_row):,} split by rows over all GPUs")
    if sparse.cache_fraction < 1.0:
        kept = show_percent(sparse.cache_fraction)
        lines.append(
            f"{kept} of the rows on GPUs answer {show_percent(answer.hit_fraction)} of reads"
        )
    return lines
