"""The words of a played step: streams, links, kinds of spans, causes of time."""

from __future__ import annotations

from simulator.cost.terms import TERMS

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
