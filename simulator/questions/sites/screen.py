"""The screen of `foreshard sites`."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from rich.table import Table

from simulator.answers import CAVEATS
from simulator.cli.screen import console, heading, notes, plain_table
from simulator.units import show_bytes, show_count, show_percent, show_seconds

if TYPE_CHECKING:
    from simulator.questions.sites.answer import Cycle, SeveralSites


def show(answer: SeveralSites) -> None:
    """Print sites, the cycle, what else one could do, and what the answer leaves out."""
    screen = console()
    screen.print(heading(answer.scenario, priced="sites"))
    screen.print()
    screen.print(_sites(answer))
    screen.print()
    if answer.cycle is not None:
        screen.print(notes("A cycle", _cycle(answer, answer.cycle)))
    screen.print(_alternatives(answer))
    screen.print()
    screen.print(notes("In words", _verdict(answer)))
    screen.print(notes(CAVEATS, answer.caveats))


def _sites(answer: SeveralSites) -> Table:
    columns = ("site", "GPUs", "of", "batch", "step", "waits", "uplink", "latency", "layout")
    table = plain_table(*columns, left=("site", "of", "layout"))
    slowest = max((x.step_time_s for x in answer.steps if not x.reason), default=0.0)
    for step in answer.steps:
        place = step.place
        table.add_row(
            place.name,
            f"{place.gpus:,}",
            step.accelerator,
            f"{step.batch:,}",
            "" if step.reason else show_seconds(step.step_time_s),
            "" if step.reason else show_percent(1.0 - step.step_time_s / slowest),
            _rate(place.uplink_bytes_per_s),
            show_seconds(place.latency_s),
            step.reason or step.described,
        )
    return table


def _cycle(answer: SeveralSites, cycle: Cycle) -> list[str]:
    sites, outer = answer.sites, answer.outer
    parts = "the whole model" if cycle.fragments == 1 else f"one of {cycle.fragments} parts"
    kept = answer.steps[0]
    lines = [
        f"{cycle.inner_steps:,} steps of {show_seconds(cycle.inner_step_s)} ({outer.name}); every"
        f" exchange takes {parts}, {answer.compression.name}: {show_bytes(cycle.message_bytes)}"
        f" a message, each site sends {show_bytes(cycle.sent_bytes)} round the ring",
        f"{show_seconds(cycle.exchange_s)} an exchange, of which all wait"
        f" {show_seconds(cycle.exposed_s)}; {show_seconds(cycle.own_s)} of every site's own;"
        f" {show_percent(cycle.utilisation)} of the time is spent in steps",
        f"on average {_rate(cycle.mean_bytes_per_s)} leave every site; kept beside training:"
        f" {show_bytes(kept.extra_bytes)} on every GPU"
        + (f", {show_bytes(kept.host_bytes)} in every host" if kept.host_bytes else ""),
    ]
    needed = ", ".join(f"{_rate(rate)} {share:.0%}" for share, rate in answer.uplinks.items())
    lines.append(f"of the time in steps by the slowest uplink: {needed}")
    if len({x.step_time_s for x in answer.steps}) > 1 and answer.even_batches:
        names = (f"{x.place.name} {n:,}" for x, n in zip(answer.steps, answer.even_batches,
                                                        strict=True))  # fmt: skip
        lines.append(f"sites would end together with batches of about {', '.join(names)}")
    if sites.more_steps_fraction is None and outer.local_steps:
        lines.append(
            f"as many steps as in one place are assumed ({answer.more_steps:+.0%}, grade"
            f" {outer.more_steps_fraction.grade}); say what yours are: sites.more_steps_fraction"
        )
    return lines


def _rate(bytes_per_s: float) -> str:
    """As links are sold, in bits."""
    return f"{8e-9 * bytes_per_s:.3g} Gbit/s" if isfinite(bytes_per_s) else "no rate"


def _alternatives(answer: SeveralSites) -> Table:
    table = plain_table("", "GPUs", "a step", "tokens/s", "days", "", left=("",))
    for row in answer.alternatives:
        fits = isfinite(row.step_time_s)
        table.add_row(
            row.name,
            f"{row.gpus:,}",
            show_seconds(row.step_time_s) if fits else "",
            show_count(row.tokens_per_s) if fits else "",
            f"{row.days_ideal:,.1f}" if row.days_ideal is not None else "",
            row.reason,
        )
    return table


def _verdict(answer: SeveralSites) -> list[str]:
    """What is soonest, and how long one may wait for one place."""
    sound = [row for row in answer.alternatives if isfinite(row.step_time_s)]
    lines = []
    if sound:
        known = all(row.days_ideal is not None for row in sound)
        key = (lambda x: x.days_ideal) if known else (lambda x: x.step_time_s)
        lines.append(f"soonest: {min(sound, key=key).name}")
    wait, cluster = answer.wait_days, answer.scenario.cluster
    place = f"{cluster.gpus:,} GPUs of {cluster.name} in one place"
    if wait is None:
        if answer.scenario.workload.recipe.tokens is None:
            lines.append("training.tokens would say how long one may wait for the one place")
    elif wait > 0.0:
        lines.append(f"{place} are worth waiting for up to {wait:,.1f} days, not more")
    else:
        lines.append(f"{place} would end {-wait:,.1f} days later, without any waiting")
    return lines
