"""What `foreshard simulate` prints of servers of several kinds."""

from __future__ import annotations

import math

from rich.table import Table
from rich.text import Text

from simulator.cli.screen import amount, gib, plain_table, seconds_like, verdict_style
from simulator.events.played import SimulatedStep
from simulator.events.step.streams import STREAMS
from simulator.events.step.timeline import Mixed
from simulator.planner.mixed_servers import KindUse, usd_per_step
from simulator.units import show_percent, show_seconds

_PLACES = 8
"""Simulated ranks whose place is said at most."""


def verdicts(kinds: list[KindUse]) -> Text:
    """Whether the fullest GPU of each kind fits, a line each."""
    text = Text()
    for kind in kinds:
        text.append(kind.verdict, style=verdict_style(kind.verdict))
        text.append(
            f": {gib(kind.memory_bytes)} of {gib(kind.usable_bytes)} GiB usable on the fullest GPU"
            f" of {kind.name}\n",
            style="not bold",
        )
    return text


def kinds_table(step: SimulatedStep, mixed: Mixed, kinds: list[KindUse]) -> Table:
    """GPUs of each kind: how long they compute and wait; the step if all were of the kind."""
    unit, scale = seconds_like(step.step_time_s)
    like = f"step, all {sum(kind.gpus for kind in kinds):,} like these"
    columns = [f"{word} ({unit})" for word in ("computing", "not computing", like)]
    table = plain_table("servers", "GPUs", *columns, "played is", left=("servers",))
    compute = STREAMS.index("compute")
    for kind in kinds:
        name = STREAMS[compute]
        seconds = (kind.busy_s[name], kind.idle_s[name], kind.alone_s)
        off = 100.0 * (mixed.steady_s / kind.alone_s - 1.0)
        cells = [f"{kind.gpus:,}", *(amount(scale * x) for x in seconds), f"{off:+.1f} %"]
        table.add_row(kind.name, *cells)
    return table


def mixed_lines(step: SimulatedStep, mixed: Mixed, kinds: list[KindUse]) -> list[str]:
    """What the slower servers cost, where ranks lie, and the price of a step."""
    first = kinds[0]
    lost = mixed.steady_s - first.alone_s
    gpus = sum(kind.gpus for kind in kinds)
    lines = [
        f"step {show_seconds(first.alone_s)} if all {gpus:,} GPUs were {first.name}:"
        f" {show_seconds(abs(lost))} {'longer' if lost >= 0.0 else 'shorter'} as they are"
    ]
    lines += [_without_others(kind, mixed.steady_s) for kind in kinds if kind.without_others_s > 0]
    shown = min(len(mixed.gpus), _PLACES)
    lines += [_place(mixed, rank) for rank in range(shown)]
    if shown < len(mixed.gpus):
        lines.append(f"and {len(mixed.gpus) - shown:,} more simulated ranks (--json lists them)")
    usd = usd_per_step(kinds, step)
    if math.isfinite(usd):
        join = ", ".join(f"{kind.name} {kind.usd_per_hour:,.2f}" for kind in kinds)
        lines.append(f"{usd:,.4f} USD per step, each kind at its own price (per hour: {join})")
    return lines


def _without_others(kind: KindUse, steady_s: float) -> str:
    """Whether servers of one kind are faster without the others; closed form of their own step."""
    alone, named = kind.without_others_s, f"the {kind.gpus:,} {kind.name} without the others"
    text = f"{named}: {show_seconds(alone)} by the closed form, the same layout with fewer replicas"
    gain = 1.0 - alone / steady_s
    return f"{text}: the others slow them by {show_percent(gain)}" if gain > 0.0 else text


def _place(mixed: Mixed, rank: int) -> str:
    """Stage, replicas and servers of a simulated rank."""
    stage, runs = mixed.place(rank)
    replicas = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
    return f"rank {rank}: stage {stage} of replicas {replicas} on {mixed.servers(rank)}"
