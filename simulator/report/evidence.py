"""What the report says of itself: assumed figures, meanings of memory, what is left out."""

from __future__ import annotations

from simulator.search.certainty import TIE
from simulator.workload.architecture import Architecture

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
    ("logging", "what a run writes beside its checkpoints takes no time"),
)
"""Effects that the numbers leave out, and what is assumed instead."""


def untimed(arch: Architecture) -> list[str]:
    """Say what a model's prediction takes for granted, a sentence each."""
    return [f"Assumed: {words}." for words in arch.assumed]


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
