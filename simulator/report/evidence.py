"""What the report says of itself: assumed figures, meanings of memory, what is left out."""

from __future__ import annotations

from simulator.report.wording import assumed_words, idle_words
from simulator.search.best_layout import BestLayout
from simulator.search.certainty import TIE
from simulator.workload.recipe import Recipe, Workload

NO_INTERVAL = "no interval"
"""Printed beside memory where no reading of the software's says how far it may be off."""

FIT_RULE = (
    "FITS: the P90 of memory is within the usable bytes; TIGHT: only the P50 is; OOM: neither."
)
"""What the verdict on memory means."""

FLOP_CONVENTION = (
    "MFU: model FLOPs (three times the forward pass, with adapters less the gradients of frozen"
    " weights: about twice; causal attention counted half, output head"
    " included, embedding look-up not) over GPUs x dense bf16 peak x step time. HFU adds what"
    " recomputation repeats."
)

NO_TOKENS = "No training.tokens given: no days, GPU-hours, USD or kWh."

NOT_MODELLED = (
    ("data input without [data]", "the loader keeps up; only copies to the device count"),
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
    (
        "hooks of ZeRO-3",
        "their host time, 5 to 8 ms a layer and micro-batch by count, is taken to hide behind"
        " kernels; with small models at few tokens a step may be up to twice as long",
    ),
    ("logging", "what a run writes beside its checkpoints takes no time"),
)
"""Effects that the numbers leave out, and what is assumed instead."""


_FAKE_QUANTISED = (
    "fake quantisation runs as eager kernels, which no run here has measured: published steps are"
    " 2.2 times as long as plain ones (1.7 B parameters, 2025), 1.1 times with kernels of 2024"
    " (8 B parameters)"
)
"""Throughput with and without: pytorch/torchtune pulls 2864 (5,688 to 2,569 tokens/s) and 1330 (221
to 206), dev-discuss.pytorch.org/t/2700 (1.89 over 1.69); the older ones may count steps without."""


def untimed(workload: Workload) -> list[str]:
    """Say what the prediction of a model and its recipe takes for granted, a sentence each."""
    rounded = workload.recipe.fake_quantised_weights != "none"
    assumed = (*workload.architecture.assumed, *((_FAKE_QUANTISED,) if rounded else ()))
    return [f"Assumed: {words}." for words in assumed]


def limits_of(answer: BestLayout) -> tuple[str, ...]:
    """What stands behind an answer about layouts, what it takes for granted and leaves out."""
    workload = answer.scenario.workload
    return (
        *_length_limits(workload.recipe),
        *answer.evidence.sentences(),
        *untimed(workload),
        FLOP_CONVENTION,
        f"Not modelled: {', '.join(name for name, _ in NOT_MODELLED)}.",
    )


def _length_limits(recipe: Recipe) -> list[str]:
    """What the totals of a run without a length, or of less than a step, are worth."""
    if recipe.run_tokens is None:
        return [NO_TOKENS]
    if recipe.run_tokens >= recipe.tokens_per_step:
        return []
    return [
        f"training.tokens = {recipe.run_tokens:,.0f} are less than one step, which has"
        f" {recipe.tokens_per_step:,}: days, GPU-hours, USD and kWh are those of a part of it."
    ]


def caveats_of(answer: BestLayout) -> tuple[str, ...]:
    """The same, and what the heading of the screen says of fields that nobody, or one, gave."""
    words = (assumed_words(answer.scenario), idle_words(answer.scenario))
    return (*(f"{text[0].upper()}{text[1:]}." for text in words if text), *limits_of(answer))


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
