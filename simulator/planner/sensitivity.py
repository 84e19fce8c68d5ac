"""What would help most, and what binds: the plan again with one thing better.

Each upgrade is a `dataclasses.replace` on cluster or software. The layout may change with it: all
near-winners are evaluated again, so that a gain is that of the best layout, not of the old one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulator.cost.step import evaluate
from simulator.cost.terms import TERMS
from simulator.files import Figure
from simulator.hardware.cluster import Cluster
from simulator.hardware.fabric import HopLatency
from simulator.layout.layouts import Layouts
from simulator.planner.explore import ROOM, TOO_LARGE
from simulator.planner.search import Plan
from simulator.software.profile import Software
from simulator.units import show_bytes, show_percent, show_usd

__all__ = ["BETTER", "Upgrade", "binding", "sensitivity"]

BETTER = ROOM
"""How much better each thing gets: as much as the search remembers near misses in memory."""

Machine = tuple[Cluster, Software]


@dataclass(frozen=True, kw_only=True, slots=True)
class Upgrade:
    """One thing made better, and the fastest layout then."""

    name: str
    change: str
    """What was changed and by how much."""
    same_layout_s: float
    """Step time of the plan's best layout with the upgrade."""
    step_time_s: float
    """Step time of the fastest layout with the upgrade."""
    gain: float
    """Tokens/s over those of the fastest layout without it, minus 1."""
    layout: str
    """The fastest layout with the upgrade."""


def sensitivity(plan: Plan) -> list[Upgrade]:
    """Try every upgrade alone; the one that pays most comes first.

    Notes
    -----
    The plan's fastest layouts, and for memory its fastest near misses, are what upgrades choose
    from.
    """
    scenario = plan.scenario
    roomy = _more_memory(scenario.cluster)
    table = plan.estimate.layouts
    before = float(plan.estimate.step_time_s.min())

    def judged(name: str, change: str, machine: Machine, rows: Layouts) -> Upgrade:
        estimate = evaluate(rows, scenario.workload, *machine)
        best = int(np.argmin(estimate.step_time_s))
        after = float(estimate.step_time_s[best])
        same = float(estimate.step_time_s[0])
        return Upgrade(
            name=name,
            change=change,
            same_layout_s=same,
            step_time_s=after,
            gain=before / after - 1.0,
            layout=estimate.layouts.describe(best),
        )

    wider = Layouts.concatenate([table[:1], plan.found.roomy.layouts])
    upgrades = [
        judged("usable memory", "+10 % usable bytes", (roomy, scenario.software), wider),
        *(
            judged(name, change, better((scenario.cluster, scenario.software)), table)
            for name, change, better in _UPGRADES
        ),
    ]
    return sorted(upgrades, key=lambda upgrade: -upgrade.gain)


def binding(plan: Plan) -> list[str]:
    """Say in sentences which limits bind: memory, deadline, budget, the largest terms."""
    tight = [line for line in (safest(plan),) if line]
    return [*tight, _memory(plan), *_limits(plan), *_largest_terms(plan), *_pinned(plan)]


def safest(plan: Plan) -> str:
    """For a best layout that is TIGHT: the fastest one whose P90 fits too; else nothing."""
    estimate, safe = plan.estimate, plan.found.fastest_safe
    if estimate.verdict_word() != "TIGHT":
        return ""
    p90, usable = float(estimate.memory_p90_bytes[0]), estimate.usable_bytes
    tight = f"The best layout is TIGHT: its P90 lacks {show_bytes(p90 - usable)}."
    if safe is None:
        return f"{tight} No layout has a P90 within the usable {show_bytes(usable)}."
    slower = show_percent(float(safe.step_time_s[0] / estimate.step_time_s.min()) - 1.0)
    return f"{tight} The fastest that FITS is {safe.layouts.describe()}, {slower} slower."


def _memory(plan: Plan) -> str:
    """Whether a faster layout was dropped for memory, and what it lacks."""
    found, best = plan.found, float(plan.estimate.step_time_s[0])
    count, large = found.dropped.get(TOO_LARGE, 0), found.fastest_too_large
    if large is None:
        return f"Memory does not bind: all {found.evaluated:,} layouts evaluated fit."
    step, need = float(large.step_time_s[0]), float(large.memory_total_bytes[0])
    dropped = f"{count:,} of {found.evaluated:,} layouts do not fit"
    if step >= best:
        return (
            f"Memory does not bind: {dropped}, but the fastest of them ({large.layouts.describe()})"
            f" would be {show_percent(step / best - 1.0)} slower than the best."
        )
    return (
        f"Memory binds: {dropped}, the fastest of them ({large.layouts.describe()}) would be"
        f" {show_percent(best / step - 1.0)} faster but needs {show_bytes(need)} on its fullest GPU"
        f" and lacks {show_bytes(need - large.usable_bytes)}."
    )


def _limits(plan: Plan) -> list[str]:
    """Deadline and budget: how likely the best layout stays within each, and by how much."""
    goal, result, chances = plan.scenario.goal, plan.outcome, plan.goal_chances
    sentences = []
    for name, limit, value, chance, show in (
        ("deadline", goal.deadline_days, result.days, chances.deadline, _show_days),
        ("budget", goal.budget_usd, result.usd, chances.budget, show_usd),
    ):
        taken = float(value[0])
        if limit is None or np.isnan(taken):
            continue
        word = _verdict(float(chance[0]))
        over = f"{show(abs(taken - limit))} {'over' if taken > limit else 'to spare'}"
        sentences.append(
            f"The {name} is {word}: {show_percent(float(chance[0]))} chance;"
            f" {show(taken)} of {show(limit)}, {over}."
        )
    return sentences


SAFE, LOST = 0.9, 0.1
"""A goal is safe where P90 keeps it, and missed where P10 does not; between them it is at risk."""


def _verdict(chance: float) -> str:
    return "safe" if chance >= SAFE else "at risk" if chance > LOST else "missed"


def _largest_terms(plan: Plan) -> list[str]:
    """Name the largest term of the step and the largest one that does not compute."""
    step = float(plan.estimate.step_time_s[0])
    shares = {term: float(plan.estimate.terms_s[term.name][0]) / step for term in TERMS}
    first = max(shares, key=lambda term: shares[term])
    sentences = [f"Largest time term: {first.label}, {show_percent(shares[first])} of the step."]
    waiting = {term: share for term, share in shares.items() if term.stream != "compute" and share}
    if waiting:
        second = max(waiting, key=lambda term: waiting[term])
        share = show_percent(waiting[second])
        sentences.append(f"Largest term that does not compute: {second.label}, {share}.")
    return sentences


def _pinned(plan: Plan) -> list[str]:
    """Name the layout fields that the scenario fixed, since only the rest was searched."""
    pinned = {name: value for name, value in plan.scenario.pinned.items() if value != "any"}
    if not pinned:
        return []
    fixed = ", ".join(f"{name} = {value}" for name, value in sorted(pinned.items()))
    return [f"Pinned by the scenario, so not searched: {fixed}."]


def _show_days(days: float) -> str:
    return f"{days:,.1f} days"


def _times(figure: Figure, factor: float) -> Figure:
    """Scale a figure and keep where it comes from."""
    return Figure(figure * factor, figure.grade, figure.source, figure.date, figure.spread)


def _on_groups(cluster: Cluster, part: str, change: Callable[[Any], Any]) -> Cluster:
    """Change the `node` or the `accelerator` of every group."""
    groups = [replace(g, **{part: change(getattr(g, part))}) for g in cluster.groups]
    return replace(cluster, groups=tuple(groups))


def _more_memory(cluster: Cluster) -> Cluster:
    def change(device: Any) -> Any:
        room = replace(device.memory, usable_bytes=_times(device.memory.usable_bytes, BETTER))
        return replace(device, memory=room)

    return _on_groups(cluster, "accelerator", change)


def _faster_matrices(machine: Machine) -> Machine:
    def change(device: Any) -> Any:
        rates = {k: _times(v, BETTER) for k, v in device.matrix_flop_per_s.items()}
        return replace(device, matrix_flop_per_s=rates)

    return _on_groups(machine[0], "accelerator", change), machine[1]


def _faster_memory(machine: Machine) -> Machine:
    def change(device: Any) -> Any:
        rate = _times(device.memory.bandwidth_bytes_per_s, BETTER)
        return replace(device, memory=replace(device.memory, bandwidth_bytes_per_s=rate))

    return _on_groups(machine[0], "accelerator", change), machine[1]


def _faster_links(machine: Machine) -> Machine:
    names = ("bandwidth", "bus", "all_to_all", "send", "nvls")

    def change(node: Any) -> Any:
        rates = {
            f"{name}_bytes_per_s": getattr(node.scale_up, f"{name}_bytes_per_s") for name in names
        }
        better = {name: _times(rate, BETTER) for name, rate in rates.items() if rate is not None}
        return replace(node, scale_up=replace(node.scale_up, **better))

    return _on_groups(machine[0], "node", change), machine[1]


def _faster_network(machine: Machine) -> Machine:
    def change(node: Any) -> Any:
        rate = _times(node.scale_out.adapter_bytes_per_s, BETTER)
        return replace(node, scale_out=replace(node.scale_out, adapter_bytes_per_s=rate))

    return _on_groups(machine[0], "node", change), machine[1]


def _nearer_network(machine: Machine) -> Machine:
    """Halve what one hop, send or peer over the network takes before its bytes flow."""
    cluster, library = machine[0], machine[0].library

    def hops(table: dict[str, HopLatency]) -> dict[str, HopLatency]:
        far = table["network"]
        half = HopLatency(
            ll=_times(far.ll, 0.5), ll128=_times(far.ll128, 0.5), simple=_times(far.simple, 0.5)
        )
        return {**table, "network": half}

    def starts(table: dict[str, Figure]) -> dict[str, Figure]:
        return {**table, "network": _times(table["network"], 0.5)}

    better = replace(
        library,
        ring_hop_s=hops(library.ring_hop_s),
        tree_hop_s=hops(library.tree_hop_s),
        send_base_s=starts(library.send_base_s),
        all_to_all_peer_s=starts(library.all_to_all_peer_s),
    )
    fabric = replace(cluster.fabric, extra_hop_s=_times(cluster.fabric.extra_hop_s, 0.5))
    return replace(cluster, library=better, fabric=fabric), machine[1]


def _faster_host(machine: Machine) -> Machine:
    host = machine[1].host
    quicker = replace(host, seconds_per_kernel=_times(host.seconds_per_kernel, 1.0 / BETTER))
    return machine[0], replace(machine[1], host=quicker)


_UPGRADES: tuple[tuple[str, str, Callable[[Machine], Machine]], ...] = (
    ("matrix rate", "+10 % FLOP/s of every type", _faster_matrices),
    ("memory bandwidth", "+10 % bytes/s of device memory", _faster_memory),
    ("scale-up bandwidth", "+10 % bytes/s inside the fast domain", _faster_links),
    ("network bandwidth", "+10 % bytes/s of every adapter", _faster_network),
    ("network latency", "half of every network hop, send and peer", _nearer_network),
    ("host launch rate", "+10 % kernels enqueued per second", _faster_host),
)
