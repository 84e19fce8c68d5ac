"""A measured step beside the predicted one: by how much they differ, and for what cause.

Both are partitions of a step, so that the gaps of the causes add up to the gap of the step. A cause
takes together what a trace cannot tell apart: recomputed kernels look like any others, compute that
communication slows is just slower, and a rank that waits for its pipeline neighbours sits in a
receive or idles.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from simulator.answers import Encoded, encoded
from simulator.cost.blocks.block_costs import PASS_TERMS
from simulator.cost.passes import over_parts
from simulator.cost.pricing import price
from simulator.cost.tables import select
from simulator.cost.terms import HIDDEN, TERMS
from simulator.errors import InputError
from simulator.measured.checks import utilisation
from simulator.measured.replay import Run
from simulator.planner.prediction import Prediction, predict
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.scoring.memory_reading import memory_of_kind_gib
from simulator.scoring.trace import Collective, StepTime
from simulator.units import GIB

# --- terms of measured collectives -------------------------------------------------------

_CAUSES = {"tp": "tp", "cp": "cp", "dp": "data", "pp": "pipeline"}

# In this order: EXPERT_DATA_PARALLEL_GROUP is data-parallel, EXPERT_MODEL_PARALLEL_GROUP is not.
_WORDS = (
    ({"pp", "pipeline"}, "pipeline"),
    ({"dp", "edp", "data", "fsdp", "hsdp", "shard", "replicate"}, "data"),
    ({"etp", "tp", "tensor"}, "tp"),
    ({"ep", "expert"}, "ep"),
    ({"cp", "context"}, "cp"),
)
"""Words of Megatron-Core's group descriptions and of torch's mesh dimensions."""


def cause_of(collective: Collective, layout: Mapping[str, Any]) -> str:
    """Name the cause to which a collective of a run with this layout belongs.

    Parameters
    ----------
    collective : Collective
    layout : mapping
        Degrees and ``rank_order``, as ``Layouts.row`` gives them.

    Returns
    -------
    str
        ``tp``, ``cp``, ``ep``, ``data``, ``pipeline``, ``offload``, or ``collectives`` if nothing
        tells.

    Examples
    --------
    >>> layout = {"tp": 2, "cp": 1, "dp": 4, "pp": 1, "ep": 1, "rank_order": "tp-cp-dp-pp"}
    >>> cause_of(Collective(kind="all_gather", size=2, ranks=(0, 1)), layout)
    'tp'
    >>> cause_of(Collective(kind="all_reduce", size=4), layout)
    'data'
    """
    if collective.kind == "host_copy":
        return "offload"
    for found in (
        _by_words(collective),
        _by_kind(collective, layout),
        _by_members(collective, layout),
        _by_size(collective, layout),
    ):
        if found:
            return found
    return "collectives"


def _by_words(collective: Collective) -> str:
    words = set(re.findall(r"[a-z]+", f"{collective.description} {collective.group}".lower()))
    return next((cause for some, cause in _WORDS if some & words), "")


def _by_kind(collective: Collective, layout: Mapping[str, Any]) -> str:
    """Sends are the pipeline's, or a ring's; only experts, or heads of a context, are exchanged."""
    if collective.kind == "send_recv":
        return "pipeline" if layout["pp"] > 1 else "cp" if layout["cp"] > 1 else ""
    if collective.kind == "all_to_all":
        return "ep" if layout["ep"] > 1 else "cp" if layout["cp"] > 1 else ""
    return ""


def _by_members(collective: Collective, layout: Mapping[str, Any]) -> str:
    """Dimensions of the rank grid along which the members differ."""
    if len(collective.ranks) < 2:
        return ""
    stride, vary = 1, set()
    for name in str(layout["rank_order"]).split("-"):
        if len({rank // stride % layout[name] for rank in collective.ranks}) > 1:
            vary.add(name)
        stride *= layout[name]
    if vary == {"cp", "dp"}:
        return "data"
    return _CAUSES[vary.pop()] if len(vary) == 1 else ""


def _by_size(collective: Collective, layout: Mapping[str, Any]) -> str:
    """The only dimension of the group's size; without a size, the only one there is.

    Stages send to each other; whatever else their groups do, they do not in every step.
    """
    sizes = [(layout[name], _CAUSES[name]) for name in ("tp", "cp", "dp")]
    sizes.append((layout["dp"] * layout["cp"], "data"))
    wanted = collective.size
    fitting = {cause for size, cause in sizes if size > 1 and wanted in (None, size)}
    return fitting.pop() if len(fitting) == 1 else ""


CAUSES = {
    "gemm": ("GEMMs", ("gemm",)),
    "attention": ("attention", ("attention",)),
    "memory_bound": ("memory-bound kernels", ("memory_bound",)),
    "optimizer": ("optimizer", ("optimizer",)),
    "other": ("kernels of no known class", ()),
    "tp": ("tensor-parallel collectives", ("tp",)),
    "cp": ("context-parallel exchange", ("cp",)),
    "ep": ("expert dispatch and combine", ("ep",)),
    "data": ("data-parallel collectives", ("fsdp", "dp", "small_reductions", "stragglers")),
    "offload": ("copies to and from the host", ("offload", "input")),
    "pipeline": ("pipeline sends, fill and drain", ("pp", "bubble_warmup", "bubble_drain")),
    "collectives": ("collectives of no known group", ()),
    "launch": ("waiting for the host", ("launch",)),
    "idle": ("idle, not for the host", ()),
}
"""Name of a cause: its label, and the terms of the table that it takes together."""

_COMPUTE = ("gemm", "attention", "memory_bound")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """Seconds of a step that have one cause, predicted and measured."""

    name: str
    label: str
    predicted_s: float
    measured_s: float
    predicted_hidden_s: float = 0.0
    """Communication under compute: a memo, never part of the step."""
    measured_hidden_s: float = 0.0

    @property
    def gap_s(self) -> float:
        """Predicted less measured."""
        return self.predicted_s - self.measured_s


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceComparison(Encoded):
    """A trace and the prediction of the run that it is of."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("trace=step", "predicted_step_s=prediction.step_time_s", "measured_step_s=step.step_s"),
        *("gap_s", "causes=named_causes", "memory", "notes"),
    )

    step: StepTime
    prediction: Prediction
    causes: tuple[Cause, ...]
    """Largest gap first; causes without any seconds are left out."""
    notes: tuple[str, ...]

    @property
    def gap_s(self) -> float:
        """Predicted step less measured step; the causes' gaps add up to it."""
        return self.prediction.step_time_s - self.step.step_s

    def share(self, cause: Cause) -> float | None:
        """Share of the whole gap: above 1 or below 0 where causes cancel; None without a gap."""
        return cause.gap_s / self.gap_s if self.gap_s else None

    def memory_bytes(self) -> dict[str, tuple[float, float]]:
        """Peak by kind of reading: of the fullest rank as predicted, of this rank as measured."""
        read = {
            "allocated": self.step.trace.allocated_bytes,
            "reserved": self.step.trace.reserved_bytes,
        }
        estimate = self.prediction.estimate
        return {
            kind: (GIB * memory_of_kind_gib(estimate, 0, kind), size)
            for kind, size in read.items()
            if size is not None
        }

    @property
    def named_causes(self) -> list[dict[str, Any]]:
        """The causes as JSON says them."""
        return [
            {
                "name": cause.name,
                "terms": CAUSES[cause.name][1] if cause.name in CAUSES else (cause.name,),
                **encoded(cause, ("predicted_s", "measured_s", "gap_s")),
                "share_of_gap": self.share(cause),
                **encoded(cause, ("predicted_hidden_s", "measured_hidden_s")),
            }
            for cause in self.causes
        ]

    @property
    def memory(self) -> dict[str, dict[str, float]]:
        """Peaks by kind of reading, as JSON says them."""
        keys = ("predicted_bytes", "measured_bytes")
        read = self.memory_bytes().items()
        return {kind: dict(zip(keys, pair, strict=True)) for kind, pair in read}


def compare_trace(step: StepTime, scenario: Scenario) -> TraceComparison:
    """Predict the run that a trace is of, and explain the gap by cause.

    Raises
    ------
    InputError
        If the trace contradicts the scenario, both values named; if its step is faster than the
        scenario's devices can be; or if the layout cannot run.
    """
    world, gpus = step.trace.world, scenario.cluster.gpus
    if world is not None and world != gpus:
        raise InputError(
            f"{step.trace.where}: distributedInfo: world_size must be cluster.gpus of"
            f" {scenario.where} ({gpus}), got {world}"
        )
    prediction = predict(scenario)
    _possible(step, prediction)
    causes = sorted(_causes(step, prediction), key=lambda cause: -abs(cause.gap_s))
    return TraceComparison(
        step=step,
        prediction=prediction,
        causes=tuple(c for c in causes if c.predicted_s or c.measured_s or c.measured_hidden_s),
        notes=(*step.notes, *_notes(step, prediction)),
    )


def _causes(step: StepTime, prediction: Prediction) -> list[Cause]:
    """Every cause; a term that no cause takes stands for itself."""
    predicted = predicted_parts(prediction)
    hidden = {name: float(prediction.estimate.hidden_s[name][0]) for name in HIDDEN}
    measured, beside = _measured(step, prediction)
    return [
        Cause(
            name=name,
            label=label,
            predicted_s=predicted[name],
            measured_s=measured.get(name, 0.0),
            predicted_hidden_s=sum(hidden.get(term, 0.0) for term in some),
            measured_hidden_s=beside.get(name, 0.0),
        )
        for name, (label, some) in _every_cause().items()
    ]


def _every_cause() -> dict[str, tuple[str, tuple[str, ...]]]:
    """CAUSES; a term that none of them takes stands for itself."""
    taken = {term for _, some in CAUSES.values() for term in some}
    alone = {term.name: (term.label, (term.name,)) for term in TERMS if term.name not in taken}
    return {**CAUSES, **alone}


def predicted_parts(prediction: Prediction) -> dict[str, float]:
    """Seconds of a predicted step by the causes that a trace can tell apart."""
    terms = _traced_terms(prediction)
    return {name: sum(terms[term] for term in some) for name, (_, some) in _every_cause().items()}


def _possible(step: StepTime, prediction: Prediction) -> None:
    """No device passes its peak: the trace is of another run, or its steps are not whole steps."""
    scenario, estimate = prediction.scenario, prediction.estimate
    run = Run(
        workload=scenario.workload,
        cluster=scenario.cluster,
        software=scenario.software,
        layout=estimate.layouts,
    )
    share = utilisation(run, model_flop=estimate.model_flop, step_time_s=step.step_s)[1]
    if share > 1.0:
        raise InputError(
            f"{step.trace.where}: a step of {step.step_s:.3g} s would take {share:.3g} of the peak"
            f" FLOP rate of {scenario.where}: is it of another model, batch or number of GPUs, or"
            " does it mark micro-batches as steps (--trace-steps)?"
        )


def _traced_terms(prediction: Prediction) -> dict[str, float]:
    """Predicted terms as a trace would show them; they add up to the same step.

    Recomputed kernels are of a class like any others, and compute that communication slows is just
    slower; which kernels those are, nobody can see, so all take their share. Most accelerators
    wait for the slowest one where replicas meet.
    """
    terms = {name: float(column[0]) for name, column in prediction.estimate.terms_s.items()}
    if again := _recomputed(prediction):
        terms = {name: seconds + again.get(name, 0.0) for name, seconds in terms.items()}
        terms["recompute"] = 0.0
    if compute_s := sum(terms[name] for name in _COMPUTE):
        for name in _COMPUTE:
            terms[name] *= 1.0 + terms["slowdown"] / compute_s
        terms["slowdown"] = 0.0
    return terms


def _recomputed(prediction: Prediction) -> dict[str, float]:
    """Recomputation of whole blocks by the term that its kernels belong to.

    Which kernels selective recomputation repeats, the table of blocks does not tell by term.
    """
    estimate, scenario = prediction.estimate, prediction.scenario
    again_s = float(estimate.terms_s["recompute"][0])
    if prediction.layout["recompute"] != "full" or not again_s:
        return {}
    priced = price(estimate.layouts, scenario.workload, scenario.cluster, scenario.software)
    rows = select(estimate.layouts, priced, slice(0, 1))
    column = int(np.flatnonzero(rows.rank[0] == estimate.slowest_stage[0])[0])
    forward = priced.blocks.forward_s[:, rows.block_key[0]]
    shares = np.array([over_parts(rows.covered[0, column], part) for part in forward])
    return dict(zip(PASS_TERMS, (again_s * shares / shares.sum()).tolist(), strict=True))


def _measured(step: StepTime, prediction: Prediction) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of the step by cause, and communication under compute by cause.

    Idling of a pipeline's rank is its fill and drain.
    """
    found = {**step.compute_s, "launch": step.launch_s}
    found["pipeline" if prediction.layout["pp"] > 1 else "idle"] = step.idle_s
    hidden: dict[str, float] = {}
    for collective in step.collectives:
        name = cause_of(collective.collective, prediction.layout)
        found[name] = found.get(name, 0.0) + collective.exposed_s
        hidden[name] = hidden.get(name, 0.0) + collective.hidden_s
    return found, hidden


def _notes(step: StepTime, prediction: Prediction) -> list[str]:
    """What a reader of the gaps must know."""
    trace, layout = step.trace, prediction.layout
    accelerator = prediction.scenario.cluster.accelerator.name
    notes = []
    if not trace.device:
        notes.append(f"the trace is of a run on processors, the prediction of {accelerator}")
    elif not _same_device(trace.device, accelerator):
        notes.append(f"the trace is of a {trace.device}, the prediction of {accelerator}")
    if layout["pp"] > 1:
        stage = int(prediction.estimate.slowest_stage[0])
        whose = "a rank" if trace.rank is None else f"rank {trace.rank}"
        notes.append(
            f"predicted terms are those of pipeline stage {stage}; the trace is of {whose}"
        )
    if prediction.layout["recompute"] == "selective":
        notes.append("recomputed kernels look like others: they are measured with their class")
    if step.collectives:
        notes.append("a collective lasts until the slowest rank has come: waiting counts with it")
    return notes


def _same_device(one: str, other: str) -> bool:
    """Whether two names share a model word: ``NVIDIA H100 80GB HBM3`` and ``H100 SXM``."""

    def models(name: str) -> set[str]:
        words = name.lower().replace("-", " ").split()
        return {w for w in words if w[:1].isalpha() and any(c.isdigit() for c in w)}

    return bool(models(one) & models(other)) or not models(one)
