"""The words of a played step: streams, links, kinds of spans, causes of time; phases of a pass."""

from __future__ import annotations

from typing import NamedTuple

from simulator.cost.terms import HIDDEN, STREAM_OF, TERMS

STREAMS = ("compute", "tensor", "context", "expert", "pipeline", "data", "copy", "host")
"""What a rank can do at the same time; the words of `Term.stream`. Stream s of rank r is number
``r * len(STREAMS) + s`` in the task graph."""


COMPUTE, PIPELINE, DATA, COPY, HOST = (
    STREAMS.index(word) for word in ("compute", "pipeline", "data", "copy", "host")
)

LINKS = ("tensor", "context", "expert", "pipeline", "data", "copy")
"""Streams whose work is on links."""


SPAN_KINDS = (
    "forward", "backward", "backward_input", "backward_weight", "recompute", "collective",
    "exchange", "dispatch", "combine", "send", "receive", "gather", "reduce", "offload", "fetch",
    "launch", "norm", "optimizer", "input",
)  # fmt: skip
"""Spans: passes and recomputation; tensor-parallel collectives, exchanges of keys and values,
expert traffic; sends between stages; parameter gathers and gradient reductions; copies to the host
and back; waiting for kernel launches; the end of a step; the next batch."""


CAUSES = tuple(term.name for term in TERMS)
"""Names of the terms of a step time."""


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
        return STREAM_OF[self.terms[0]]


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

COMPUTE_TERMS = tuple(
    name for names in PHASE_TERMS for name in names if STREAM_OF[name] == "compute"
)
"""What takes longer on a GPU that is slow."""
