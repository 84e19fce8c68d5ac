"""The assumptions and the defaults that bear on an answer: what the other choice would do.

An answer takes a software with its flags, a type of gradients, a way to the experts, kernels
launched by captured graphs, communication beside compute or not. Each is priced by predicting the
other choice on the best layout; where that does not FIT so, or the software is another one that a
team may run in place of the one in hand, on the fastest that does of the answer's other layouts and
of those that a search finds. Those that change the step most stand under the verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Any, Literal

import numpy as np

from simulator.cost.step import Estimate, evaluate
from simulator.errors import InputError
from simulator.layout.layouts import Layouts
from simulator.layout.rules.feasibility import FEASIBLE, REASONS, reasons
from simulator.planner.changes import with_recipe
from simulator.planner.variants import Variant, variant_of
from simulator.record_cache import for_same_records
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.search.best_layout import BestLayout
from simulator.search.with_failures import priced
from simulator.software.overrides import said_flag, with_overrides
from simulator.software.profile import Software
from simulator.software.releases import load_releases
from simulator.software.software_section import sound_software
from simulator.units import show_bytes, show_signed_percent, show_usd_change

_KEYS = (
    *("default=name", "alternative=change", "step_time_s", "memory_total_bytes"),
    *("verdict=memory_verdict", "reason", "doubt?"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Alternative:
    """What stands in place of something that nobody chose."""

    assumed: str
    """What the answer takes: ``gradients in bf16 (megatron-core)``."""
    change: str
    """How to ask for the alternative: ``training.gradient_dtype = fp32``."""
    scenario: Scenario
    fields: dict[str, Any] = field(default_factory=dict)
    """Layout fields that it changes."""
    doubt: str = ""
    """What measured pairs say against its price."""


def bearing_defaults(
    scenario: Scenario,
    layout: Layouts,
    *,
    software: bool = True,
    filled: Mapping[str, Any] | None = None,
) -> list[Variant]:
    """Try the alternatives of what nobody chose; arguments as in :func:`alternatives_of`.

    Two that come to the same are told once. What :func:`assumptions` priced of the same layouts is
    not priced again.
    """
    variants: dict[tuple[Any, ...], Variant] = {}
    for other in _alternatives(scenario, layout, software, filled):
        known: dict[str, Any] = {"name": other.assumed, "doubt": other.doubt, "KEYS": _KEYS}
        known |= {"change": other.change, "layout": None}
        result = _on_the_same(other, layout)
        if isinstance(result, Estimate):
            priced = variant_of(other.scenario, result, **known)
        else:
            priced = Variant(scenario=other.scenario, reason=result, **known)
        answer = priced.step_time_s, priced.memory_total_bytes, priced.memory_verdict, priced.reason
        variants.setdefault((other.assumed, *answer), priced)
    return list(variants.values())


def alternatives_of(
    scenario: Scenario,
    layout: Layouts,
    *,
    software: bool = True,
    filled: Mapping[str, Any] | None = None,
) -> Iterator[Alternative]:
    """What could stand in place of each thing that nobody chose.

    Parameters
    ----------
    scenario : Scenario
        What it states is no default, and stays.
    layout : Layouts
        The first row is the layout that the answer is about.
    software : bool
        Try other software profiles and what launch commands switch.
    filled : mapping, optional
        Layout fields that took a default; none where a search chose them.
    """
    yield from _gradients(scenario)
    yield from _dispatchers(scenario, layout)
    yield from _sequence_parallel(scenario, layout, filled or {})
    if software:
        yield from _switches(scenario, layout)
        yield from _software(scenario)


@for_same_records(2)
def _alternatives(
    scenario: Scenario, layouts: Layouts, software: bool, filled: Mapping[str, Any] | None
) -> list[Alternative]:
    """What :func:`alternatives_of` yields, the same records for whoever asks again."""
    return list(alternatives_of(scenario, layouts[:1], software=software, filled=filled))


@for_same_records(32)
def _on_the_same(other: Alternative, layouts: Layouts) -> Estimate | str:
    """An alternative on the first layout; or why it cannot run so."""
    setting = other.scenario.workload, other.scenario.cluster, other.scenario.software
    table = layouts[:1].replace(**other.fields)
    code = int(reasons(table, *setting)[0])
    if code != FEASIBLE:
        return str(REASONS[code])
    try:
        return evaluate(table, *setting)
    except InputError as error:  # the device has no figures of that library
        return str(error).partition("\n")[0]


def _gradients(scenario: Scenario) -> Iterator[Alternative]:
    """The type in which gradients are accumulated, which recipes of the same software set apart."""
    recipe, states = scenario.workload.recipe, scenario.software.states
    if recipe.gradient_dtype is not None or recipe.precision in ("fp32", "tf32"):
        return
    low: Literal["fp16", "bf16"] = "fp16" if recipe.precision == "fp16" else "bf16"
    other: Literal["fp16", "bf16", "fp32"]
    ours, other = (low, "fp32") if float(states.gradient) < 4.0 else ("fp32", low)
    yield Alternative(
        assumed=f"gradients in {ours} ({scenario.software.name})",
        change=f"training.gradient_dtype = {other}",
        scenario=with_recipe(
            scenario, gradient_dtype=other, reduce_dtype=recipe.reduce_dtype or other
        ),
    )


_SCATTERED = "measured pairs of dispatchers scatter widely"
"""Their median miss is 20 points (docs/accuracy_details.md, One switch changed)."""


def _dispatchers(scenario: Scenario, layout: Layouts) -> Iterator[Alternative]:
    """How tokens reach their experts."""
    if int(layout.ep[0]) == 1 or "dispatcher" in scenario.pinned:
        return
    ours = str(layout.row()["dispatcher"])
    for other in scenario.software.supports.dispatchers:
        if other != ours:
            yield Alternative(
                assumed=f"experts by {ours}",
                change=f"layout.dispatcher = {other}",
                scenario=scenario,
                fields={"dispatcher": other},
                doubt=_SCATTERED,
            )


def _sequence_parallel(
    scenario: Scenario, layout: Layouts, filled: Mapping[str, Any]
) -> Iterator[Alternative]:
    """Whether tp splits the sequence between its products: a flag that recipes set, off by itself.

    Megatron-LM needs ``--sequence-parallel``; its recipes and those of Megatron-Bridge set it.
    """
    can = scenario.software.supports.sequence_parallel
    both = len(set(can)) == 2 and not scenario.workload.architecture.is_moe
    if "sequence_parallel" not in filled or int(layout.tp[0]) == 1 or not both:
        return
    ours = bool(filled["sequence_parallel"])
    words = ("no sequence parallelism", "sequence parallelism")
    wanted = "false" if ours else "true"
    yield Alternative(
        assumed=f"{words[ours]} with tp {int(layout.tp[0])}",
        change=f"layout.sequence_parallel = {wanted}",
        scenario=scenario,
        fields={"sequence_parallel": not ours},
    )


_SWITCHED = {
    "cuda_graphs": ("kernels launched one by one", "captured graphs"),
    "expert_overlap": ("experts' traffic in the open", "experts' traffic beside compute"),
    "overlap_grad_reduce": ("gradients reduced at the end", "gradients reduced beside compute"),
    "overlap_param_gather": (
        "parameters gathered at the end",
        "parameters gathered beside compute",
    ),
    "tp_comm_overlap": ("tp traffic not pipelined with products", "tp traffic in products' pieces"),
}
"""Switches that are turned (hardware_profiles/switches.toml): in words, off and on."""


def _switches(scenario: Scenario, layout: Layouts) -> Iterator[Alternative]:
    """What launch commands turn on or off, where the scenario says nothing of its software."""
    if "software" in scenario.document:
        return
    traffic = int(layout.ep[0]) > 1, int(layout.dp[0] * layout.cp[0]) > 1
    needed = {"expert_overlap": traffic[0], "overlap_grad_reduce": traffic[1]}
    gathers = layout.row()["sharding"] in ("zero1", "zero2")
    needed["overlap_param_gather"] = traffic[1] and gathers
    needed["cuda_graphs"] = scenario.cluster.accelerator.platform == "cuda"
    needed["tp_comm_overlap"] = needed["cuda_graphs"] and _pipelines_tensor(scenario, layout)
    for name, words in _SWITCHED.items():
        if not needed[name]:
            continue
        on = said_flag(scenario.software, name)
        other = _stated(scenario.software, {name: not on})
        if other is not None and other != scenario.software:
            yield Alternative(
                assumed=words[on],
                change=f"software.{name} = {str(not on).lower()}",
                scenario=replace(scenario, software=other),
            )


def _pipelines_tensor(scenario: Scenario, layout: Layouts) -> bool:
    """Whether a launch command can cut tp's collectives into pieces beside their products.

    Transformer Engine does so with user buffers of some types, which Megatron-Core takes with
    --tp-comm-overlap and sequence parallelism alone; torch by asynchronous tensor parallelism.
    """
    software, overlap = scenario.software, scenario.software.overlap
    if software.launcher == "script" or not bool(layout.sequence_parallel[0] & (layout.tp[0] > 1)):
        return False
    buffered = scenario.workload.recipe.precision in overlap.user_buffers.precisions
    engine = bool(software.kernels.transformer_engine.flash_attn_on)
    return overlap.tensor_pipelined == "async" or (engine and buffered)


def _stated(software: Software, stated: Mapping[str, Any]) -> Software | None:
    """A software with what is stated put over it; None where it has no such thing."""
    try:
        return with_overrides(software, stated)
    except InputError:
        return None


def _software(scenario: Scenario) -> Iterator[Alternative]:
    """Other software that a team may run in place of this."""
    ours, device = scenario.software, scenario.cluster.accelerator
    others = (name for name in load_releases().also if name != ours.name)
    for profile in sound_software(others):
        other = _stated(profile, scenario.document.get("software", {}))
        if other is not None and device.platform in other.platforms:
            yield Alternative(
                assumed=f"software {ours.name}",
                change=f"cluster.software = {other.name}",
                scenario=replace(scenario, software=other),
            )


ASSUMED = "Assumed, and what the other choice would change"
"""Heading of what :func:`assumption_lines` says."""

MOST = 3
"""Assumptions that are told."""

_BRIEF = 2
"""Of them on a first screen."""

_KEPT = ("tp", "cp", "ep", "etp", "micro_batch")
"""Fields of the best layout that an alternative keeps where it looks for one that FITS: stages,
chunks and recomputation are what memory asks for."""

_LEAST = 0.001
"""Relative change of the step below which a choice decides nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumption(Variant):
    """What an answer takes for granted, and what the other choice would make of it."""

    KEYS: tuple[str, ...] = (
        *("assumed=name", "alternative=change", "step_time_s", "step_time_change=relative"),
        *("days", "usd", "usd_change", "verdict=memory_verdict", "layout", "doubt?"),
    )

    days: float | None = None
    usd: float | None = None
    """Of the run with the other choice; None where tokens or price are not known."""
    usd_change: float | None = None
    mark: str = ""
    """Behind money that rests on an assumed price."""

    @property
    def relative(self) -> float:
        """Change of the step time, relative."""
        return (self.step_time_s or 0.0) / self.before_s - 1.0

    def words(self, *, brief: bool = False) -> str:
        """What is assumed, and the price of the other choice; `brief`: in few words."""
        changed = [f"{show_signed_percent(self.relative)} time"]
        if self.usd_change is not None:
            changed.append(f"{show_usd_change(self.usd_change)}{self.mark}")
        if self.memory_verdict != "FITS":
            changed.append(f"{self.memory_verdict}, {show_bytes(self.memory_total_bytes or 0.0)}")
        if self.layout is not None:
            whole = f"as {self.layout} (the best layout would not fit)"
            changed.append("another layout" if brief else whole)
        if self.doubt:
            changed.append(self.doubt)
        value = self.change.partition(" = ")[2]
        other = value if brief and value not in ("true", "false") else self.change
        return f"{self.name}{', or' if brief else ';'} {other}: {', '.join(changed)}"


@for_same_records(2)
def assumptions(answer: BestLayout) -> list[Assumption]:
    """Price what an answer takes for granted: MOST of it, the largest change of the step first."""
    nearest = dict[str, tuple[float, tuple[Alternative, Estimate, bool]]]()
    for other in _alternatives(answer.scenario, answer.estimate.layouts, True, None):
        if other.assumed in nearest:
            continue  # of several other softwares the first listed: the same one, plain
        estimate, same = _where_it_runs(answer, other)
        change = 0.0 if estimate is None else _step_s(estimate) / answer.step_time_s - 1.0
        if estimate is not None and (abs(change) >= _LEAST or not same):
            nearest[other.assumed] = change, (other, estimate, same)
    most = sorted(nearest.values(), key=lambda assumed: -abs(assumed[0]))[:MOST]
    return [_assumption(answer, *assumed) for _, assumed in most]


def assumption_lines(answer: BestLayout, *, brief: bool = False) -> list[str]:
    """The same in words: always a line."""
    most = _BRIEF if brief else MOST
    told = [assumption.words(brief=brief) for assumption in assumptions(answer)[:most]]
    return told or ["no other choice that was tried changes the step by 0.1 %"]


def _where_it_runs(answer: BestLayout, other: Alternative) -> tuple[Estimate | None, bool]:
    """One alternative on the best layout, and whether it is that; None where nothing can run so.

    Where it would not run so, or not FIT, on the fastest of the answer's that does, or searched.
    """
    result = _on_the_same(other, answer.estimate.layouts)
    estimate = result if isinstance(result, Estimate) else None
    if estimate is not None and estimate.verdict[0] <= answer.estimate.verdict[0]:
        return estimate, True
    near = [_fastest_listed(answer, other), _searched(answer, other)]
    able = [layouts for layouts in near if layouts is not None and len(layouts)]
    return (min(able, key=_step_s), False) if able else (estimate, True)


def _assumption(
    answer: BestLayout, other: Alternative, estimate: Estimate, same: bool
) -> Assumption:
    """An alternative with what a run of it takes; `same`: the layout is the answer's."""
    result = priced(estimate, other.scenario)
    days, usd = _known(result.days[0]), _known(result.usd[0])
    before = _known(answer.outcome.usd[0])
    return variant_of(
        other.scenario,
        estimate,
        of=Assumption,
        change=other.change,
        name=other.assumed,
        doubt=other.doubt,
        before_s=answer.step_time_s,
        days=days,
        usd=usd,
        usd_change=None if usd is None or before is None else usd - before,
        mark=result.price.mark,
        layout=None if same else estimate.layouts.describe(),
    )


def _fastest_listed(answer: BestLayout, other: Alternative) -> Estimate | None:
    """The fastest layout of the answer that FITS so; None where none does, or of other software.

    An answer lists the fastest by hundreds, near one another in step time and far apart in memory.
    """
    table = answer.estimate.layouts[1:]
    if other.scenario.software.name != answer.scenario.software.name or not len(table):
        return None
    estimate = _estimated(table.replace(**other.fields), other)
    if estimate is None:
        return None
    able = np.flatnonzero(estimate.verdict <= answer.estimate.verdict[0])
    return estimate.take(able[[np.argmin(estimate.step_time_s[able])]]) if len(able) else None


def _searched(answer: BestLayout, other: Alternative) -> Estimate:
    """The fastest layout that FITS so, with the best one's degrees over which operators are cut.

    Another software is free in all: what suits one is not what suits the other. So is any choice
    where the answer lists no other layouts.
    """
    from simulator.search.fastest import explore_scenario  # a prediction starts without

    best = {**answer.layout, **other.fields}
    alike = other.scenario.software.name == answer.scenario.software.name
    kept = (*_KEPT, *other.fields) if alike and len(answer.estimate) > 1 else tuple(other.fields)
    pinned = {name: best[name] for name in kept} | answer.scenario.pinned
    return explore_scenario(other.scenario, pinned, keep=1, counts=False, near_miss=False).best


def _estimated(table: Layouts, other: Alternative) -> Estimate | None:
    """Estimates of the layouts that can run; None where none can."""
    scenario = other.scenario
    setting = scenario.workload, scenario.cluster, scenario.software
    table = table[reasons(table, *setting) == FEASIBLE]
    try:
        return evaluate(table, *setting) if len(table) else None
    except InputError:  # the device has no figures of that library
        return None


def _step_s(estimate: Estimate) -> float:
    return float(estimate.step_time_s[0])


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
