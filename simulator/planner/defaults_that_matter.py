"""Defaults that bear on an answer: what nobody asked for, and what its alternative would do.

The same layout is priced again with one thing otherwise: gradients of another type, experts reached
another way, the two software profiles that are most like the one in hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from simulator import catalogue
from simulator.cost.step import Estimate, evaluate
from simulator.errors import InputError
from simulator.layout.layouts import Layouts
from simulator.layout.rules.feasibility import FEASIBLE, REASONS, reasons
from simulator.scenario import Scenario
from simulator.software.platforms import sound_software
from simulator.software.profile import load_software
from simulator.software.releases import load_releases
from simulator.units import show_bytes, show_seconds, show_signed_percent

_NEIGHBOURS = 2
"""Other software profiles that are tried."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Alternative:
    """One default, and the layout's price without it."""

    default: str
    """What the answer takes: ``gradients in bf16``."""
    alternative: str
    """How to ask for the other: ``training.gradient_dtype = fp32``."""
    step_time_s: float | None
    """None where the layout cannot run so."""
    memory_total_bytes: float | None
    memory_verdict: str | None
    """FITS, TIGHT or OOM."""
    reason: str | None
    """Why it cannot run."""

    def sentence(self, step_s: float) -> str:
        """One line, beside the answer's own step time."""
        told = f"{self.default}; with {self.alternative}"
        if self.step_time_s is None or self.memory_total_bytes is None:
            return f"{told} this layout cannot run: {self.reason}"
        change = show_signed_percent(self.step_time_s / step_s - 1.0)
        step, memory = show_seconds(self.step_time_s), show_bytes(self.memory_total_bytes)
        return f"{told} {step} ({change}), {memory}, {self.memory_verdict}"


def bearing_defaults(
    scenario: Scenario,
    layout: Layouts,
    *,
    software: bool = True,
    filled: Mapping[str, Any] | None = None,
) -> list[Alternative]:
    """Try the alternatives of what nobody chose.

    Parameters
    ----------
    scenario : Scenario
        What it states is no default, and stays.
    layout : Layouts
        One row: the layout that the answer is about.
    software : bool
        Try the nearest software profiles too, for which all of them are read (0.2 s).
    filled : mapping, optional
        Layout fields that took a default; none where a search chose them.
    """
    found = []
    for default, alternative, other, changed in (
        *_gradients(scenario),
        *_dispatchers(scenario, layout),
        *_sequence_parallel(scenario, layout, filled or {}),
    ):
        found.append(_priced(default, alternative, other, layout.replace(**changed)))
    return [*found, *_software(scenario, layout)] if software else found


_Tried = tuple[str, str, Scenario, dict[str, Any]]


def _priced(default: str, alternative: str, other: Scenario, rows: Layouts) -> Alternative:
    parts = (other.workload, other.cluster, other.software)
    estimate: Estimate | None = None
    code = int(reasons(rows, *parts)[0])
    why = None if code == FEASIBLE else str(REASONS[code])
    if why is None:
        try:
            estimate = evaluate(rows, *parts)
        except InputError as error:  # the device has no figures of that library
            why = str(error).partition("\n")[0]
    return Alternative(
        default=default,
        alternative=alternative,
        step_time_s=None if estimate is None else float(estimate.step_time_s[0]),
        memory_total_bytes=None if estimate is None else float(estimate.memory_total_bytes[0]),
        memory_verdict=None if estimate is None else estimate.verdict_word(),
        reason=why,
    )


def _gradients(scenario: Scenario) -> Iterator[_Tried]:
    """The type in which gradients are accumulated, which recipes of the same software set apart."""
    recipe, states = scenario.workload.recipe, scenario.software.states
    if recipe.gradient_dtype is not None or recipe.precision in ("fp32", "tf32"):
        return
    low: Literal["fp16", "bf16"] = "fp16" if recipe.precision == "fp16" else "bf16"
    other: Literal["fp16", "bf16", "fp32"]
    ours, other = (low, "fp32") if float(states.gradient) < 4.0 else ("fp32", low)
    changed = replace(recipe, gradient_dtype=other, reduce_dtype=recipe.reduce_dtype or other)
    workload = replace(scenario.workload, recipe=changed)
    yield (
        f"gradients in {ours} ({scenario.software.name})",
        f"training.gradient_dtype = {other}",
        replace(scenario, workload=workload),
        {},
    )


def _dispatchers(scenario: Scenario, layout: Layouts) -> Iterator[_Tried]:
    """How tokens reach their experts."""
    if int(layout.ep[0]) == 1 or "dispatcher" in scenario.pinned:
        return
    ours = str(layout.row()["dispatcher"])
    for other in scenario.software.supports.dispatchers:
        if other != ours:
            yield (
                f"experts by {ours}",
                f"layout.dispatcher = {other}",
                scenario,
                {"dispatcher": other},
            )


def _sequence_parallel(
    scenario: Scenario, layout: Layouts, filled: Mapping[str, Any]
) -> Iterator[_Tried]:
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
    yield (
        f"{words[ours]} with tp {int(layout.tp[0])}",
        f"layout.sequence_parallel = {wanted}",
        scenario,
        {"sequence_parallel": not ours},
    )


def _software(scenario: Scenario, layout: Layouts) -> list[Alternative]:
    """Under the profiles that are most alike, each with an answer of its own."""
    ours = scenario.software
    alternatives: list[Alternative] = []
    for name in _neighbours(ours.name, ours.platforms):
        other = replace(scenario, software=load_software(name))
        default, alternative = f"software {ours.name}", f"cluster.software = {name}"
        priced = _priced(default, alternative, other, layout)
        if all(replace(priced, alternative=one.alternative) != one for one in alternatives):
            alternatives.append(priced)  # neighbouring releases may have the same figures
        if len(alternatives) == _NEIGHBOURS:
            break
    return alternatives


@lru_cache(maxsize=32)
def _neighbours(name: str, platforms: tuple[str, ...]) -> tuple[str, ...]:
    """Other frameworks of the same platform that releases stand for, the most alike first."""
    try:
        said = dict(_leaves(load_software(name)))
    except InputError:  # given by path
        return ()
    alike: list[tuple[int, str]] = []
    others = (load_releases().standing & set(catalogue.names("software"))) - {name}
    for profile in sound_software(sorted(others)):
        if set(platforms) & set(profile.platforms):
            same = sum(said.get(key) == value for key, value in _leaves(profile))
            alike.append((-same, profile.name))
    return tuple(other for _, other in sorted(alike))


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every figure and word of a record, by its path."""
    if is_dataclass(value):
        for field in fields(value):
            yield from _leaves(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}")
    else:
        yield path, value
