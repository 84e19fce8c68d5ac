"""A cap of power for the hall: fewer accelerators at a full clock, or more at a lower one.

Under a cap the clock falls, and with it the dynamic draw as clock to the power of 1 / e, e being
what timed products say of the device (``clock_exponent``; cost/kernels/gemm.py):

    busy(f) = idle + (busy - idle) f^(1/e)

GEMMs and attention slow down with the clock; memory, links and hosts keep their rates.
Servers that do not run are off. Every draw is that of a mean step at the meter of the site.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from simulator.answers import Answer, Encoded
from simulator.cost.step import Estimate, evaluate
from simulator.economics.energy import cluster_energy_joule
from simulator.errors import InfeasibleError, InputError, problem
from simulator.files import Figure, with_figure
from simulator.frames import DataFrame, frame_of_rows
from simulator.hardware.cluster import Cluster
from simulator.planner.changes import machine_with
from simulator.planner.prediction import refuse_mixed
from simulator.records import dataclass
from simulator.report.wording import AT_ASSUMED
from simulator.scenario import Scenario
from simulator.search.best_layout import factor_of
from simulator.search.certainty import certainty
from simulator.search.fastest import explore_scenario
from simulator.search.outcome import Outcome, busy_seconds, goal_chances
from simulator.search.with_failures import priced
from simulator.software.profile import Software

SHARES = (1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125)
"""Of the servers that may run."""

LEAST_CLOCK = 0.3
"""Of the training clock: below it voltage has reached its floor, and the power law ends."""

UNTIMED = 0.61
"""Exponent where no timing of the device tells: the median of the 28 fitted ones above 0 of the
shipped profiles. Draw as the cube of the clock (a third) would leave a GB300 at 500 of 1,400 W 63 %
of its clock; 28 to 39 % were measured (facebookexperimental/triton#2023)."""

_AS_PREDICTED = "Days, energy and USD are as predicted; chances are held to what to plan for:"

_POINTS = 13
_HALVINGS = 9


@dataclass(frozen=True, kw_only=True, slots=True)
class PowerChoice(Encoded):
    """So many accelerators at a clock."""

    gpus: int
    clock: float
    """Over the clock under training load without a cap."""
    limit_watt: float
    """What a busy accelerator draws there: the limit to set (nvidia-smi -pl)."""
    kw: float
    """Of the hall, at the meter, over a mean step."""
    step_time_s: float
    tokens_per_s: float
    tokens_per_kwh: float
    days: float | None
    """Of the real run; None where its length is not known."""
    kwh: float | None
    usd: float | None
    deadline_chance: float | None
    """To end in time, with what published runs took on top; None without a deadline."""
    budget_chance: float | None
    layout: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontierPoint(Encoded):
    """The fastest choice under a cap."""

    cap_kw: float
    choice: PowerChoice


@dataclass(frozen=True, kw_only=True, repr=False)
class PowerChoices(Answer):
    """What a cap leaves, and the frontier over caps."""

    COMMAND: ClassVar[str] = "power"
    KEYS: ClassVar[tuple[str, ...]] = (
        *("scenario=scenario.document", "assumed_training=scenario.assumed"),
        *("idle_fields=scenario.idle", "cap_kw"),
        *("full_kw=full.kw", "exponent", "best", "choices", "frontier", "caveats"),
    )

    scenario: Scenario
    cap_kw: float
    exponent: float
    """Of the clock over the dynamic draw."""
    assumed_exponent: bool
    full: PowerChoice
    """All of them at a full clock, whatever the cap."""
    choices: tuple[PowerChoice, ...]
    """Under the cap, the fastest first."""
    frontier: tuple[FrontierPoint, ...]
    """Over caps from that of all of them down."""

    @property
    def best(self) -> PowerChoice:
        """The fastest under the cap."""
        return self.choices[0]

    @property
    def line(self) -> str:
        """The fastest in a few words."""
        best = self.best
        return (
            f"{best.gpus:,} of {self.scenario.cluster.gpus:,} at {best.clock:.0%} of the clock,"
            f" {best.kw:,.0f} of {self.cap_kw:,.0f} kW, {best.step_time_s:.3g} s a step"
        )

    @property
    def caveats(self) -> tuple[str, ...]:
        """What it leaves out."""
        why = f"no timing of this device tells its exponent: {UNTIMED}, that of others, is taken"
        price, factor = self.scenario.tariff.price, factor_of(self.scenario)
        return (
            *([price.words()] if price.usd_per_gpu_hour is not None else []),
            *([AT_ASSUMED] if price.assumed else []),
            *([f"{_AS_PREDICTED} {factor.sentence()}"] if factor is not None else []),
            *([why] if self.assumed_exponent else []),
            "Draws are means over a step; breakers see the busy draw of all at once.",
            "The layout of a size is the fastest at a full clock; servers that do not run are off.",
        )

    def to_frame(self) -> DataFrame:
        """One row per number of accelerators under the cap."""
        return frame_of_rows([choice.document() for choice in self.choices])


@dataclass(frozen=True, kw_only=True, slots=True)
class _Size:
    """The fastest layout on some of the servers."""

    scenario: Scenario
    estimate: Estimate
    """One row, at a full clock."""


def power_choices(
    scenario: Scenario, cap_kw: float, *, shares: Sequence[float] = SHARES
) -> PowerChoices:
    """Find how to run under a cap.

    Parameters
    ----------
    scenario : Scenario
        Of the whole cluster.
    cap_kw : float
        Of the hall at the meter: servers, their share of the network, cooling.
    shares : sequence of float
        Of the servers that may run.

    Raises
    ------
    InputError
        If the cap is no power, or the servers are of several kinds.
    InfeasibleError
        If nothing fits, or nothing that fits stays under the cap at any clock.
    """
    refuse_mixed(scenario)
    if not 0.0 < cap_kw < 1e9:
        raise InputError(problem(scenario.where, "--cap", "must be kW above 0, below 1e9", cap_kw))
    sizes = list(_sizes(scenario, shares))
    if not sizes:
        raise InfeasibleError(f"{scenario.where}: no layout fits on any part of the cluster")
    exponent, assumed = _exponent(scenario)
    choices = _under(sizes, cap_kw, exponent)
    if not choices:
        least = min(_choice(size, LEAST_CLOCK, exponent).kw for size in sizes)
        raise InfeasibleError(
            f"{scenario.where}: --cap: {cap_kw:g} kW is less than the {least:,.1f} kW of"
            f" the smallest part that fits, at {LEAST_CLOCK:.0%} of the clock"
        )
    full = _choice(sizes[0], 1.0, exponent)
    caps = full.kw * np.linspace(1.0, 0.25, _POINTS)
    best = [(float(cap), _under(sizes, float(cap), exponent, fastest=True)) for cap in caps]
    return PowerChoices(
        scenario=scenario,
        cap_kw=cap_kw,
        exponent=exponent,
        assumed_exponent=assumed,
        full=full,
        choices=tuple(choices),
        frontier=tuple(FrontierPoint(cap_kw=cap, choice=made[0]) for cap, made in best if made),
    )


def _exponent(scenario: Scenario) -> tuple[float, bool]:
    """How the clock follows the dynamic draw, and whether that is assumed."""
    device = scenario.cluster.accelerator
    table = device.gemm.get(scenario.software.kernels.gemm_library, {})
    product = table.get(scenario.workload.recipe.matrix_type)
    timed = float(product.clock_exponent) if product is not None else 0.0
    return (timed, False) if timed > 0.0 else (UNTIMED, True)


def _sizes(scenario: Scenario, shares: Sequence[float]) -> Iterator[_Size]:
    """The fastest layout on each part of the servers that fits."""
    cluster, width = scenario.cluster, scenario.cluster.node.accelerators
    servers = max(cluster.gpus // width, 1)
    counts = {max(round(share * servers), 1) * min(width, cluster.gpus) for share in shares}
    for gpus in sorted(counts, reverse=True):
        part = replace(scenario, cluster=cluster.with_gpus(gpus))
        if gpus != cluster.gpus:
            free = {k: v for k, v in part.pinned.items() if k not in ("dp", "shard_group")}
            part = replace(part, pinned=free)
        try:
            best = explore_scenario(part, part.pinned, keep=1, counts=False).best
        except InputError:
            continue
        if len(best):
            yield _Size(scenario=part, estimate=best.take([0]))


def _at_clock(cluster: Cluster, clock: float, exponent: float) -> tuple[Cluster, float]:
    """The cluster at a share of its clock, and the draw of a busy accelerator there."""
    device = cluster.accelerator
    idle, busy = float(device.power.idle_watt), float(device.power.busy_watt)
    watt = idle + (busy - idle) * clock ** (1.0 / exponent)
    group = cluster.groups[0]
    lower = with_figure(device, "power.busy_watt", Figure(watt, "assumed", "power cap"))
    return replace(cluster, groups=(replace(group, accelerator=lower),)), watt


def _run_at(
    size: _Size, clock: float, exponent: float
) -> tuple[tuple[Cluster, Software], float, Estimate, Outcome]:
    """A part of the cluster at a clock: cluster and software, W of a busy one, step, whole run."""
    scenario = size.scenario
    cluster, watt = _at_clock(scenario.cluster, clock, exponent)
    machine = machine_with((cluster, scenario.software), ("matrix", clock))
    estimate = evaluate(size.estimate.layouts, scenario.workload, *machine)
    return machine, watt, estimate, priced(estimate, replace(scenario, cluster=machine[0]))


def _choice(size: _Size, clock: float, exponent: float) -> PowerChoice:
    """What a part of the cluster takes at a clock."""
    scenario = size.scenario
    (cluster, _), watt, estimate, outcome = _run_at(size, clock, exponent)
    step_s, recipe = float(estimate.step_time_s[0]), scenario.workload.recipe
    joule = cluster_energy_joule(
        cluster, outcome.site, step_time_s=estimate.step_time_s, busy_s=busy_seconds(estimate)
    )
    kw = float(joule[0]) / step_s / 1e3
    tokens_per_s = float(outcome.tokens_per_s[0])
    known = recipe.steps is not None
    return PowerChoice(
        gpus=scenario.cluster.gpus,
        clock=clock,
        limit_watt=watt,
        kw=kw,
        step_time_s=step_s,
        tokens_per_s=tokens_per_s,
        tokens_per_kwh=tokens_per_s / kw * 3600.0,
        days=float(outcome.days[0]) if known else None,
        kwh=float(outcome.kwh[0]) if known else None,
        usd=float(outcome.usd[0]) if known and np.isfinite(outcome.usd[0]) else None,
        deadline_chance=None,
        budget_chance=None,
        layout=estimate.layouts.describe(0),
    )


def _judged(size: _Size, choice: PowerChoice, exponent: float) -> PowerChoice:
    """The choice with its chances to keep deadline and budget, of those that there are."""
    goal = size.scenario.goal
    if goal.deadline_days is None and goal.budget_usd is None:
        return choice
    machine, _, estimate, outcome = _run_at(size, choice.clock, exponent)
    sure = certainty(estimate, size.scenario.workload, *machine)
    factor = factor_of(size.scenario)
    held = goal_chances(estimate.step_time_s, outcome, sure, goal, factor)
    known = [float(x[0]) if np.isfinite(x[0]) else None for x in (held.deadline, held.budget)]
    return replace(choice, deadline_chance=known[0], budget_chance=known[1])


def _under(
    sizes: Sequence[_Size], cap_kw: float, exponent: float, *, fastest: bool = False
) -> list[PowerChoice]:
    """Every part at the highest clock that stays under a cap, the fastest first.

    With `fastest` parts are left out that are slower even at a full clock.
    """
    made: list[PowerChoice] = []
    for size in sizes:
        choice = _choice(size, 1.0, exponent)
        if fastest and made and choice.step_time_s > min(row.step_time_s for row in made):
            continue
        if choice.kw > cap_kw:
            lowest = _choice(size, LEAST_CLOCK, exponent)
            if lowest.kw > cap_kw:
                continue
            choice = _highest(size, (lowest, choice), cap_kw, exponent)
        made.append(_judged(size, choice, exponent))
    return sorted(made, key=lambda choice: (choice.step_time_s, choice.gpus))


def _highest(
    size: _Size, between: tuple[PowerChoice, PowerChoice], cap_kw: float, exponent: float
) -> PowerChoice:
    """The highest clock under a cap, found by halving: the draw grows with the clock."""
    low, high = between
    for _ in range(_HALVINGS):
        middle = _choice(size, 0.5 * (low.clock + high.clock), exponent)
        low, high = (middle, high) if middle.kw <= cap_kw else (low, middle)
    return low
