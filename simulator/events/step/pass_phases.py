"""The phases of a pass, in order, and the spans in which each is drawn: one list for all.

A pass fetches its input, its parameters arrive, what is recomputed runs, the compute runs with all
that hides behind it, and what does not hide follows on the stream that it waits for. Timelines draw
passes so (``events/step/spans.py``), links are shared so (``events/sharing/link_profiles.py``), and
a slow GPU takes longer for what stands on the compute stream (``events/deviations/deviations.py``).
"""

from __future__ import annotations

from typing import NamedTuple

from simulator.cost.terms import HIDDEN, TERMS

_STREAM = {term.name: term.stream for term in TERMS}


class Span(NamedTuple):
    """A part of a phase, on one stream."""

    kind: str
    """One of SPAN_KINDS; "pass": what the pass is."""
    terms: tuple[str, ...]
    share: float = 1.0
    """Of their seconds."""

    @property
    def stream(self) -> str:
        """The stream of its terms."""
        return _STREAM[self.terms[0]]


PHASES = (
    (Span("input", ("input",)),),
    (Span("gather", ("fsdp",)),),
    (Span("recompute", ("recompute",)),),
    (
        Span("pass", ("gemm", "attention", "memory_bound", "stragglers", "slowdown")),
        Span("launch", ("launch",)),
    ),
    (Span("collective", ("tp",)),),
    (Span("exchange", ("cp",)),),
    (Span("dispatch", ("ep",), 0.5), Span("combine", ("ep",), 0.5)),
    (Span("offload", ("offload",)),),
    (Span("reduce", ("dp",)),),
    (Span("reduce", ("small_reductions",)),),
    (Span("send", ("pp",)),),
)
"""Spans of every phase. While a phase runs, a pass takes the same of its links all the time."""

OUTSIDE = ("bubble_warmup", "bubble_drain", "optimizer")
"""Terms that no pass contains: idle time, and what follows the passes."""

PHASE_TERMS = tuple(
    tuple(dict.fromkeys(name for span in phase for name in span.terms)) for phase in PHASES
)
"""Terms of every phase."""


def phase_of(term: str) -> int:
    """Number of the phase that a term belongs to.

    Examples
    --------
    >>> phase_of("input"), phase_of("stragglers") == phase_of("gemm")
    (0, True)
    """
    return next(i for i, names in enumerate(PHASE_TERMS) if term in names)


COMPUTING = phase_of("gemm")
"""The phase behind which calls hide."""

REPEATING = phase_of("recompute")
"""The phase that computes once more."""

BESIDE = tuple(name for name in HIDDEN if name != "pp")
"""What hides inside a pass; a send that hides is a task of its own."""

COMPUTE_TERMS = tuple(name for names in PHASE_TERMS for name in names if _STREAM[name] == "compute")
"""What takes longer on a GPU that is slow."""
