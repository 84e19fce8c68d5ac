"""Defaults that bear on an answer: what nobody asked for, and what its alternative would do.

The same layout is priced again with one thing otherwise: gradients of another type, experts reached
another way, the two software profiles that are most like the one in hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from simulator import catalogue
from simulator.errors import InputError
from simulator.layout.layouts import Layouts
from simulator.planner.changes import with_recipe
from simulator.planner.variants import Variant, priced_variant
from simulator.scenario import Scenario
from simulator.software.platforms import sound_software
from simulator.software.profile import load_software
from simulator.software.releases import load_releases

_NEIGHBOURS = 2
"""Other software profiles that are tried."""

_KEYS = (
    *("default=name", "alternative=change", "step_time_s", "memory_total_bytes"),
    *("memory_verdict", "reason"),
)


def bearing_defaults(
    scenario: Scenario,
    layout: Layouts,
    *,
    software: bool = True,
    filled: Mapping[str, Any] | None = None,
) -> list[Variant]:
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
    tried = (
        *_gradients(scenario),
        *_dispatchers(scenario, layout),
        *_sequence_parallel(scenario, layout, filled or {}),
    )
    variants = [
        priced_variant(changed, layout.replace(**fields), name=default, change=change, KEYS=_KEYS)
        for default, change, changed, fields in tried
    ]
    return [*variants, *_software(scenario, layout)] if software else variants


_Tried = tuple[str, str, Scenario, dict[str, Any]]


def _gradients(scenario: Scenario) -> Iterator[_Tried]:
    """The type in which gradients are accumulated, which recipes of the same software set apart."""
    recipe, states = scenario.workload.recipe, scenario.software.states
    if recipe.gradient_dtype is not None or recipe.precision in ("fp32", "tf32"):
        return
    low: Literal["fp16", "bf16"] = "fp16" if recipe.precision == "fp16" else "bf16"
    other: Literal["fp16", "bf16", "fp32"]
    ours, other = (low, "fp32") if float(states.gradient) < 4.0 else ("fp32", low)
    yield (
        f"gradients in {ours} ({scenario.software.name})",
        f"training.gradient_dtype = {other}",
        with_recipe(scenario, gradient_dtype=other, reduce_dtype=recipe.reduce_dtype or other),
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


def _software(scenario: Scenario, layout: Layouts) -> list[Variant]:
    """Under the profiles that are most alike, each with an answer of its own."""
    ours = scenario.software
    variants: dict[tuple[Any, ...], Variant] = {}
    for name in _neighbours(ours.name, ours.platforms):
        other = replace(scenario, software=load_software(name))
        priced = priced_variant(
            other,
            layout,
            name=f"software {ours.name}",
            change=f"cluster.software = {name}",
            KEYS=_KEYS,
        )
        answer = priced.step_time_s, priced.memory_total_bytes, priced.memory_verdict, priced.reason
        variants.setdefault(answer, priced)  # neighbouring releases may have the same figures
        if len(variants) == _NEIGHBOURS:
            break
    return list(variants.values())


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
