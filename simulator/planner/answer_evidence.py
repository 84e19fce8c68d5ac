"""What an answer stands on: measured runs that are alike, and figures that nobody measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from simulator.cost.estimate import Estimate
from simulator.cost.uncertainty import bearing, belief
from simulator.economics.price import Price, Site
from simulator.evidence.card import Card, evidence_card
from simulator.evidence.likeness import P90_T4, Nearness
from simulator.files import Figure, figures
from simulator.hardware.cluster import Cluster
from simulator.hardware.node import ScaleUpKind
from simulator.record_cache import for_same_records
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.search.certainty import likened_runs
from simulator.search.outcome import Outcome
from simulator.software.profile import Software
from simulator.units import P90
from simulator.workload.recipe import Recipe, Workload


@dataclass(frozen=True, kw_only=True, slots=True)
class UsedFigure:
    """A number of a profile that bears on an answer."""

    profile: str
    """Its kind and name: ``accelerator h100-sxm``."""
    name: str
    """Dotted, inside the profile."""
    value: float
    grade: str
    spread: float | None
    """Relative standard deviation that its profile states."""
    source: str


def answer_evidence(
    estimate: Estimate, workload: Workload, cluster: Cluster, software: Software, *, assumed: int
) -> Card:
    """Gather the evidence of the first layout of an estimate.

    `assumed` figures behind it have that grade.
    """
    first = estimate if len(estimate) == 1 else estimate.take(slice(0, 1))
    return _first_evidence(first, workload, cluster, software, assumed)


@for_same_records(16)
def _first_evidence(
    first: Estimate, workload: Workload, cluster: Cluster, software: Software, assumed: int
) -> Card:
    setting = workload, cluster, software
    likened = likened_runs(first, *setting)
    return each_evidence(first, *setting, likened, assumed=assumed)[0]


def each_evidence(
    estimate: Estimate,
    workload: Workload,
    cluster: Cluster,
    software: Software,
    likened: Nearness,
    *,
    assumed: int,
) -> list[Card]:
    """The same of each layout of an estimate, once measured runs are set against them."""
    shares = bearing(estimate, experts=workload.architecture.is_moe)
    least = belief(cluster, software, workload).log_spread(shares) * P90 / P90_T4
    return [
        evidence_card(likened.take(i), assumed=assumed, least=least_error)
        for i, least_error in enumerate(least.tolist())
    ]


def scenario_evidence(scenario: Scenario, estimate: Estimate, result: Outcome) -> Card:
    """Gather the evidence of a scenario's answer; its money counts where it has tokens."""
    priced = scenario.workload.recipe.tokens is not None
    money = (result.price, result.site) if priced else ()
    workload, cluster, software = scenario.workload, scenario.cluster, scenario.software
    assumed = used_but_assumed(workload.recipe, cluster, software, *money)
    return answer_evidence(estimate, workload, cluster, software, assumed=assumed)


def used_figures(
    recipe: Recipe, cluster: Cluster, software: Software, *priced: Price | Site
) -> list[UsedFigure]:
    """List the figures that bear on an answer.

    Rates of types, libraries and links that it does not use are left out, and so are zeros that
    stand for "none".
    """
    words = _words(recipe, cluster, software)
    return [
        _used(f"{kind} {name}", figure_name, figure)
        for kind, name, profile in _profiles(cluster, software, *priced)
        for figure_name, figure in _bearing(profile, kind, words)
    ]


def used_but_assumed(
    recipe: Recipe, cluster: Cluster, software: Software, *priced: Price | Site
) -> int:
    """How many of them nobody measured."""
    words = _words(recipe, cluster, software)
    profiles = _profiles(cluster, software, *priced)
    return sum(len(_bearing(profile, kind, words, "assumed")) for kind, _, profile in profiles)


def _profiles(
    cluster: Cluster, software: Software, *priced: Price | Site
) -> Iterator[tuple[str, str, Any]]:
    yield "cluster", cluster.name, cluster.fabric
    yield "collectives", cluster.library.name, cluster.library
    yield "software", software.name, software
    for group in cluster.groups:
        yield "node", group.node.name, group.node
        yield "accelerator", group.accelerator.name, group.accelerator
    for item in priced:
        yield "price" if isinstance(item, Price) else "site", item.name, item


def _used(profile: str, name: str, figure: Figure) -> UsedFigure:
    source = "default of the program" if figure.source == "user" else figure.source
    return UsedFigure(
        profile=profile,
        name=name,
        value=float(figure),
        grade=figure.grade,
        spread=figure.spread,
        source=source,
    )


def _words(recipe: Recipe, cluster: Cluster, software: Software) -> str:
    """Types, library of products, library of attention and kind of links that are used."""
    # fp16 and what is smaller read bf16 as well
    both = recipe.is_quantised or recipe.precision == "fp16"
    types = f"{recipe.matrix_type}+bf16" if both else recipe.matrix_type
    kernels, link = software.kernels, cluster.node.scale_up.kind
    return ",".join((types, kernels.gemm_library, _attention_library(cluster, software), link))


@for_same_records(256)
def _bearing(profile: Any, kind: str, words: str, grade: str = "") -> list[tuple[str, Figure]]:
    """Figures of a profile, by name, that are of a type, library or link of `words`.

    They are those of the same profiles for every row of a table and every price of a sweep. With a
    `grade`, those of it alone.
    """
    types, products, attention, link = words.split(",")
    used, other_links = types.split("+"), set(get_args(ScaleUpKind)) - {link}

    def bears(name: str) -> bool:
        parts = name.split(".")
        if kind == "collectives":
            return other_links.isdisjoint(parts)
        if parts[0] == "gemm" and len(parts) == 4:
            return parts[1] == products and parts[2] in used
        if parts[0] == "attention" and len(parts) == 3:
            return parts[1] == attention
        if parts[0] == "matrix_flop_per_s":
            return parts[1] in used
        # the discount is in the price by now
        return not (kind == "price" and parts[0].endswith("_discount_fraction"))

    return [
        (name, figure)
        for name, figure in _figures(profile)
        if grade in ("", figure.grade) and float(figure) and bears(name)
    ]


_figures = for_same_records(64)(figures)
"""Figures of a profile."""


def _attention_library(cluster: Cluster, software: Software) -> str:
    """Key of the accelerator's attention table that is read; empty without fused attention."""
    device = cluster.accelerator
    kernels, table = software.on(device.generation).kernels, device.attention
    if kernels.attention != "flash":
        return ""
    return kernels.attention_library if kernels.attention_library in table else "flash"
