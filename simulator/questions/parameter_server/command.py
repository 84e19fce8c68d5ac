"""`foreshard parameter-server`: one run with servers that hold the weights, against all-reduce.

The command first, then its screen.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.table import Table

from simulator.cli.option_groups import ScenarioOptions
from simulator.cli.options import ScenarioFile, Set
from simulator.cli.runner import Reply, question
from simulator.cli.screen import heading, notes, plain_table, table_of
from simulator.glossary import CAVEATS
from simulator.units import show_bytes, show_count, show_percent, show_seconds

if TYPE_CHECKING:
    from simulator.parameter_servers.rounds import SyncRound
    from simulator.questions.parameter_server.answer import Served, ServedWay


Play = Annotated[
    bool, typer.Option("--play", help="Play rounds on discrete events beside the analytical model.")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Of the played steps.")]


@question("parameter-server", "parameter-server run.toml --play")
def ask(
    *,
    scenario: ScenarioFile = None,
    overrides: Set = None,
    play: Play = False,
    seed: Seed = 0,
) -> Reply:
    """Find what a run takes with the servers of [parameter_server], and with all-reduce.

    Exit 0: done; 1: no layout fits a worker; 2: bad input.
    """
    from simulator.questions.parameter_server.answer import parameter_server, with_play

    answer = parameter_server(ScenarioOptions(overrides=overrides).scenario(scenario))
    if play:
        answer = with_play(answer, seed)
    return Reply(answer, screen, feasible=answer.crew is not None)


def screen(answer: Served) -> Iterator[RenderableType]:
    """Give a worker, its servers, all ways, where each wins, and what is left out."""
    yield heading(answer.scenario, priced="parameter_server")
    yield ""
    yield notes("A worker and its servers", _parts(answer))
    yield _ways(answer)
    yield ""
    if answer.networks:
        yield _networks(answer)
        yield ""
    if len(answer.backups) > 1:
        yield notes("Without waiting for the last workers", [_backups(answer)])
    yield notes(CAVEATS, answer.caveats)


def _parts(answer: Served) -> list[str]:
    worker, section, played = answer.worker, answer.section, answer.played
    lines = [
        f"{answer.workers:,} workers of {worker.gpus} GPUs, {worker.batch:,} sequences each a step;"
        f" {section.servers:,} servers ({section.placement}), {show_bytes(answer.shard_bytes)} each"
    ]
    if section.backup_workers:
        lines.append(f"a step waits for all workers but the last {section.backup_workers:,}")
    if worker.reason or answer.round is None:
        return [*lines, worker.reason]
    lines.append(
        f"{worker.described}: {show_seconds(worker.step_s)} of compute a step,"
        f" {show_bytes(worker.memory_bytes)} on the worst rank ({show_bytes(worker.freed_bytes)}"
        f" less than with states{' and copies' if section.worker_cache == 'host' else ''} there)"
    )
    lines.append(_messages(answer.round))
    if played is not None:
        off = played.closed_form_s / played.played_s - 1.0
        lines.append(
            f"simulated, {played.pieces} pieces a push: {show_seconds(played.played_s)} a round,"
            f" the analytical model says {show_seconds(played.closed_form_s)} ({off:+.1%})"
        )
    return lines


def _messages(sync_round: SyncRound) -> str:
    into, sums, out = sync_round.stations_s
    return (
        f"a push is {show_bytes(sync_round.push_bytes)} in {sync_round.pieces:,.0f} pieces, a pull"
        f" {show_bytes(sync_round.pull_bytes)}; of the servers they take"
        f" {show_seconds(float(into))} in, {show_seconds(float(sums))} to sum,"
        f" {show_seconds(float(sync_round.update_s))} to update,"
        f" {show_seconds(float(out))} out"
    )


def _ways(answer: Served) -> Table:
    def finite(way: ServedWay, text: str) -> str:
        return text if isfinite(way.round_s) else ""

    return table_of(
        answer.ways,
        ("", lambda way: way.name + " (asked)" * (way is answer.ways[0])),
        ("a round", lambda way: finite(way, show_seconds(way.round_s))),
        ("tokens/s", lambda way: finite(way, show_count(way.tokens_per_s))),
        ("stale by", lambda way: finite(way, f"{way.stale_updates:,.1f}")),
        ("more updates", lambda way: show_percent(way.more_updates)),
        ("days", lambda way: "" if way.days_ideal is None else f"{way.days_ideal:,.2f}"),
        ("", lambda way: way.reason),
        left=("",),
    )


def _networks(answer: Served) -> Table:
    """A round of every way at other rates of the adapters and spreads of the workers."""
    names = list(answer.networks[0].round_s)
    left = ("adapters", "steps vary by", "shortest round")
    table = plain_table("adapters", "steps vary by", *names, "shortest round", left=left)
    for network in answer.networks:
        cells = (show_seconds(network.round_s[name]) for name in names)
        table.add_row(f"x {network.factor:g}", f"{network.spread:.0%}", *cells, network.fastest)
    return table


def _backups(answer: Served) -> str:
    """Synchronous steps that wait for all workers, and for all but some."""
    told = (
        f"{backup.workers} dropped: {show_seconds(backup.round_s)} a round,"
        f" {show_count(backup.tokens_per_s)} tokens/s"
        for backup in answer.backups
    )
    return f"{'; '.join(told)} (parameter_server.backup_workers)"
