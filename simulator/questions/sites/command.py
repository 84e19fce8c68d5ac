"""`foreshard sites`: one run over several sites, against one place and against waiting for it.

The command first, then its screen.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table

from simulator.cli.option_groups import ScenarioOptions
from simulator.cli.options import ScenarioFile, Set
from simulator.cli.runner import Reply, question
from simulator.cli.screen import heading, notes, table_of
from simulator.glossary import CAVEATS
from simulator.units import show_bytes, show_count, show_percent, show_seconds

if TYPE_CHECKING:
    from simulator.questions.sites.answer import Cycle, SeveralSites


@question("sites", "sites run.toml")
def ask(*, scenario: ScenarioFile = None, overrides: Set = None) -> Reply:
    """Find what a run takes over the places of [sites], and against the one place of [cluster].

    Exit 0: done; 1: nothing fits at one of the sites; 2: bad input.
    """
    from simulator.questions.sites.answer import several_sites

    answer = several_sites(ScenarioOptions(overrides=overrides).scenario(scenario))
    return Reply(answer, screen, feasible=answer.cycle is not None)


def screen(answer: SeveralSites) -> Iterator[RenderableType]:
    """Give sites, the cycle, what else one could do, and what the answer leaves out."""
    yield heading(answer.scenario, priced="sites")
    yield ""
    yield _sites(answer)
    yield ""
    if answer.cycle is not None:
        yield notes("A cycle", _cycle(answer, answer.cycle))
    yield _alternatives(answer)
    yield ""
    yield notes("In words", _verdict(answer))
    yield notes(CAVEATS, answer.caveats)


def _sites(answer: SeveralSites) -> Table:
    slowest = max((x.step_time_s for x in answer.steps if not x.reason), default=0.0)
    return table_of(
        answer.steps,
        ("site", lambda step: step.place.name),
        ("GPUs", lambda step: f"{step.place.gpus:,}"),
        ("of", lambda step: step.accelerator),
        ("batch", lambda step: f"{step.batch:,}"),
        ("step", lambda step: "" if step.reason else show_seconds(step.step_time_s)),
        ("waits", lambda step: "" if step.reason else show_percent(1 - step.step_time_s / slowest)),
        ("uplink", lambda step: _rate(step.place.uplink_bytes_per_s)),
        ("latency", lambda step: show_seconds(step.place.latency_s)),
        ("layout", lambda step: step.reason or step.described),
        left=("site", "of", "layout"),
    )


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
    return table_of(
        answer.alternatives,
        ("", lambda row: row.name),
        ("GPUs", lambda row: f"{row.gpus:,}"),
        ("a step", lambda row: show_seconds(row.step_time_s) if isfinite(row.step_time_s) else ""),
        (
            "tokens/s",
            lambda row: show_count(row.tokens_per_s) if isfinite(row.step_time_s) else "",
        ),
        ("days", lambda row: "" if row.days_ideal is None else f"{row.days_ideal:,.1f}"),
        ("", lambda row: row.reason),
        left=("",),
    )


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
