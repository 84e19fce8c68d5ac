"""Defaults that bear on an answer: what nobody asked for, and what its alternative would do.

The same layout is priced again with one thing otherwise: gradients of another type, experts reached
another way, kernels launched by captured graphs, communication beside compute or not, another
software that a team may run in place of the one in hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Any, Literal

from simulator.errors import InputError
from simulator.layout.layouts import Layouts
from simulator.planner.changes import with_recipe
from simulator.planner.variants import Variant, priced_variant
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.software.overrides import said_flag, with_overrides
from simulator.software.profile import Software
from simulator.software.releases import load_releases
from simulator.software.software_section import sound_software

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

    Two that come to the same are told once.
    """
    variants: dict[tuple[Any, ...], Variant] = {}
    for other in alternatives_of(scenario, layout, software=software, filled=filled):
        table = layout.replace(**other.fields)
        known = {"name": other.assumed, "doubt": other.doubt, "KEYS": _KEYS}
        priced = priced_variant(other.scenario, table, change=other.change, **known)
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
        One row: the layout that the answer is about.
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
        return with_overrides(software, stated) if stated else software
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
