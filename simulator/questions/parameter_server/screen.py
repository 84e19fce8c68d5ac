"""The screen of `foreshard parameter-server`."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from rich.table import Table

from simulator.answers import CAVEATS
from simulator.cli.screen import console, heading, notes, plain_table
from simulator.units import show_bytes, show_count, show_percent, show_seconds

if TYPE_CHECKING:
    from simulator.parameter_server.rounds import SyncRound
    from simulator.questions.parameter_server.answer import Served


def show(answer: Served) -> None:
    """Print a worker, its servers, all ways, where each wins, and what is left out."""
    screen = console()
    screen.print(heading(answer.scenario, priced="parameter_server"))
    screen.print()
    screen.print(notes("A worker and its servers", _parts(answer)))
    screen.print(_ways(answer))
    screen.print()
    if answer.networks:
        screen.print(_networks(answer))
        screen.print()
    if len(answer.backups) > 1:
        screen.print(notes("Without waiting for the last workers", [_backups(answer)]))
    screen.print(notes(CAVEATS, answer.caveats))


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
        f" {show_bytes(worker.memory_bytes)} on the fullest GPU ({show_bytes(worker.freed_bytes)}"
        f" less than with states{' and copies' if section.worker_cache == 'host' else ''} there)"
    )
    lines.append(_messages(answer.round))
    if played is not None:
        off = played.closed_form_s / played.played_s - 1.0
        lines.append(
            f"played, {played.pieces} pieces a push: {show_seconds(played.played_s)} a round, the"
            f" closed form says {show_seconds(played.closed_form_s)} ({off:+.1%})"
        )
    return lines


def _messages(one: SyncRound) -> str:
    into, sums, out = one.stations_s
    return (
        f"a push is {show_bytes(one.push_bytes)} in {one.pieces:,.0f} pieces, a pull"
        f" {show_bytes(one.pull_bytes)}; of the servers they take {show_seconds(float(into))} in,"
        f" {show_seconds(float(sums))} to sum, {show_seconds(float(one.update_s))} to update,"
        f" {show_seconds(float(out))} out"
    )


def _ways(answer: Served) -> Table:
    columns = ("", "a round", "tokens/s", "stale by", "more updates", "days", "")
    table = plain_table(*columns, left=("",))
    for way in answer.ways:
        fits = isfinite(way.round_s)
        asked = " (asked)" if way is answer.ways[0] else ""
        table.add_row(
            way.name + asked,
            show_seconds(way.round_s) if fits else "",
            show_count(way.tokens_per_s) if fits else "",
            f"{way.stale_updates:,.1f}" if fits else "",
            show_percent(way.more_updates),
            f"{way.days_ideal:,.2f}" if way.days_ideal is not None else "",
            way.reason,
        )
    return table


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
