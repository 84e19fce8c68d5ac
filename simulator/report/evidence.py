"""What the report says of itself: assumed figures, meanings of memory, what is left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from simulator.economics.price import Price, Site
from simulator.files import Figure, figures
from simulator.hardware.cluster import Cluster
from simulator.hardware.node import ScaleUpKind
from simulator.planner.certainty import TIE
from simulator.scenario import Scenario
from simulator.workload.architecture import Architecture

__all__ = [
    "FIT_RULE",
    "FLOP_CONVENTION",
    "MEMORY_MEANING",
    "NOT_MODELLED",
    "NO_INTERVAL",
    "AssumedFigure",
    "assumed_figures",
    "memory_meaning",
    "ties",
    "untimed",
]

NO_INTERVAL = "no interval"
"""Printed beside memory where no reading of the software's says how far it may be off."""

FIT_RULE = (
    "FITS: the P90 of memory is within the usable bytes; TIGHT: only the P50 is; OOM: neither."
)
"""What the verdict on memory means."""

FLOP_CONVENTION = (
    "MFU: model FLOPs (three times the forward pass, causal attention counted half, output head"
    " included, embedding look-up not) over GPUs x dense bf16 peak x step time. HFU adds what"
    " recomputation repeats."
)

MEMORY_MEANING = {
    "weights": "parameters of the rank x bytes per weight; zero3 divides them by the shard group",
    "gradients": "parameters of the rank x bytes per gradient; zero2 and zero3 divide them by the"
    " shard group; frameworks that free them after every step have none at the loss of a single"
    " micro-batch",
    "optimizer": "parameters of the rank x (master weight + moments); zero1, zero2 and zero3 divide"
    " them by the shard group",
    "gathered": "zero3: whole copies of what it computes with (embedding and head, the current"
    " block, the next one, the gradient that is being reduced); zero2: two buckets",
    "activations": "bytes that every block keeps for its backward pass x micro-batches in flight",
    "loss": "logits, what the loss keeps of them, gradients of the head; at other moments what"
    " micro-batches that wait for their backward pass have kept of their logits",
    "temporaries": "largest temporaries of one block's backward pass, and what recomputation"
    " rebuilds",
    "workspace": "library workspaces and buffers that stay allocated",
    "communicators": "buffers of the communicators that the rank takes part in",
    "fragmentation": "reserved less allocated: a share of all allocated kinds, and blocks that lie"
    " idle at the peak (FSDP2: pools of gathered weights and reduced gradients, what a block's"
    " forward pass leaves at the loss; DeepSpeed: pieces of the optimizer step)",
    "context": "what a process takes of the device before its first tensor: CUDA context, kernels",
}
"""How each kind of memory (MEMORY_KINDS) is counted."""

NOT_MODELLED = (
    ("failures and goodput", "days and cost assume that every step succeeds"),
    ("checkpoints", "time and memory of saving and loading"),
    ("data input", "the loader is assumed to keep up; only copies to the device count"),
    (
        "jitter",
        "accelerators and hosts of a kind differ and the slowest paces the step, but all"
        " micro-batches take equally long (simulate --jitter varies them)",
    ),
    (
        "network congestion",
        "no other job shares the fabric; links inside the job are shared fairly",
    ),
    (
        "expert load imbalance",
        "every expert receives the same number of tokens unless training.moe_load or moe_imbalance"
        " says otherwise, in every layer alike",
    ),
    (
        "multi-token prediction",
        "extra prediction layers of a model are left out unless a measured run has them",
    ),
    (
        "in-network reduction across servers",
        "NVLink SHARP and switch reduction only inside a domain",
    ),
    (
        "allocator trace",
        "fragmentation is a share of allocated memory; only `predict --memory` replays allocations",
    ),
    ("evaluation and logging", "only training steps are counted"),
)
"""Effects that the numbers leave out, and what is assumed instead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AssumedFigure:
    """A number that nobody measured."""

    profile: str
    name: str
    value: float
    source: str


def untimed(arch: Architecture) -> list[str]:
    """Say of every mixer in place of attention what its prediction assumes."""
    return [f"Assumed: {words}." for words in dict.fromkeys(m.assumption for m in arch.mixers)]


def ties(count: int, shown: int) -> str:
    """Say how many leading layouts cannot be told apart; empty where the best one stands alone.

    Parameters
    ----------
    count : int
        Layouts that tie, the best one included.
    shown : int
        Layouts that the reader sees, best first.

    Examples
    --------
    >>> ties(3, 8)
    'The first 3 are a tie: each of the others beats the first with a chance of 20 % or more.'
    >>> ties(8, 8).partition(":")[0], ties(40, 8).partition(":")[0]
    ('All 8 are a tie', 'All 8 are a tie, with 32 more that follow')
    """
    if count < 2:
        return ""
    who = f"The first {count}" if count < shown else "Both" if shown == 2 else f"All {shown}"
    more = f", with {count - shown:,} more that follow" if count > shown > 0 else ""
    others = "the other" if count == 2 else "each of the others"
    return (
        f"{who} are a tie{more}: {others} beats the first with a chance of"
        f" {TIE:.0%} or more.".replace("%", " %")
    )


def memory_meaning(kind: str) -> str:
    """Say how a kind of memory is counted; empty for a kind without a text."""
    return MEMORY_MEANING.get(kind, "")


def assumed_figures(scenario: Scenario, price: Price, site: Site) -> list[AssumedFigure]:
    """List the assumed figures that bear on a scenario.

    Rates of types, libraries and links that the scenario does not use are left out, and so are
    zeros that stand for "none".
    """
    found = []
    for profile, item in _profiles(scenario, price, site):
        for name, figure in figures(item):
            if figure.grade == "assumed" and float(figure) and _bears(name, profile, scenario):
                found.append(_assumed(profile, name, figure))
    return found


def _profiles(scenario: Scenario, price: Price, site: Site) -> Iterator[tuple[str, Any]]:
    cluster = scenario.cluster
    yield f"cluster {cluster.name}", cluster.fabric
    yield f"collectives {cluster.library.name}", cluster.library
    yield f"software {scenario.software.name}", scenario.software
    for group in cluster.groups:
        yield f"node {group.node.name}", group.node
        yield f"accelerator {group.accelerator.name}", group.accelerator
    yield f"price {price.name}", price
    yield f"site {site.name}", site


def _assumed(profile: str, name: str, figure: Figure) -> AssumedFigure:
    source = "default of the program" if figure.source == "user" else figure.source
    return AssumedFigure(profile=profile, name=name, value=float(figure), source=source)


def _bears(name: str, profile: str, scenario: Scenario) -> bool:
    """Whether a figure belongs to a type, library or link that the scenario uses."""
    words = name.split(".")
    if profile.startswith("collectives"):
        return not set(words) & _other_links(scenario.cluster)
    if words[0] == "gemm" and len(words) == 4:
        return words[1] == scenario.software.kernels.gemm_library and words[2] in _types(scenario)
    if words[0] == "attention" and len(words) == 3:
        return words[1] == _attention_library(scenario)
    if words[0] == "matrix_flop_per_s":
        return words[1] in _types(scenario)
    return True


def _types(scenario: Scenario) -> tuple[str, ...]:
    """Types of the scenario's matrix products; fp16 and what is smaller read bf16 as well."""
    recipe = scenario.workload.recipe
    both = recipe.is_quantised or recipe.precision == "fp16"
    return (recipe.matrix_type, "bf16") if both else (recipe.matrix_type,)


def _attention_library(scenario: Scenario) -> str:
    """Key of the accelerator's attention table that is read; empty without fused attention."""
    kernels, table = scenario.software.kernels, scenario.cluster.accelerator.attention
    if kernels.attention != "flash":
        return ""
    return kernels.attention_library if kernels.attention_library in table else "flash"


def _other_links(cluster: Cluster) -> set[str]:
    return set(get_args(ScaleUpKind)) - {cluster.node.scale_up.kind}
