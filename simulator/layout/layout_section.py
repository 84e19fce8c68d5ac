"""The section [layout]: fields of a layout that are known."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from simulator.errors import problem
from simulator.files import ReadBy, Whole, Word, Words, record
from simulator.layout.layouts import MODULES, RANK_ORDERS
from simulator.layout.stages import read_stages
from simulator.schedules.registry import WORDS
from simulator.section import Rule, Section, build_section
from simulator.software.profile import Software
from simulator.software.supports import CpKind, Dispatcher
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import LARGEST

Positive = Annotated[Whole, Gt(0), Le(LARGEST)]


@record
class LayoutSection:
    """Layout fields that are known. plan: pinned; predict: the rest takes stated defaults."""

    tp: Positive | None = None
    """Tensor-parallel ranks, which cut every matrix."""
    pp: Positive | None = None
    """Pipeline stages."""
    vpp: Positive | None = None
    """Chunks of the model on each pipeline stage; above 1 the schedule is interleaved."""
    cp: Positive | None = None
    """Context-parallel ranks, which cut every sequence."""
    cp_kind: Literal[CpKind, "any"] | None = None
    """How context-parallel ranks exchange keys and values; plan: "any" tries every way that the
    software has."""
    cp_a2a: Positive | None = None
    """Ranks of the all-to-all groups of hierarchical context parallelism (Megatron-Core's
    a2a+p2p); it divides cp, and rings join what is left."""
    dp: Positive | None = None
    """Data-parallel replicas; ranks = tp x cp x dp x pp."""
    ep: Positive | None = None
    """Expert-parallel ranks, which share the experts of a layer; they lie within cp x dp x tp."""
    etp: Positive | None = None
    """Tensor-parallel ranks of an expert."""
    dispatcher: Literal[Dispatcher, "any"] | None = None
    """How tokens reach their experts; plan: "any" tries every way that the software has."""
    micro_batch: Positive | None = None
    """Sequences of one forward pass of a replica."""
    sharding: Literal["ddp", "zero1", "zero2", "zero3"] | None = None
    """What data-parallel ranks share. ddp: nothing; zero1: optimizer states; zero2: gradients too;
    zero3: parameters too (FSDP)."""
    shard_group: Positive | None = None
    """Ranks that share the states; fewer than dp x cp is hybrid sharding (HSDP)."""
    reshard_after_forward: bool | Positive | None = None
    """What zero3 does with a block's parameters after its forward pass. true: it shards them over
    shard_group again; a number: over so many of its ranks, usually those of one server; false:
    it keeps them whole, which is zero2."""
    sequence_parallel: bool | None = None
    """Cut what lies between tensor-parallel matrices along the sequence over tp."""
    recompute: Literal["none", "selective", "full"] | None = None
    """What the backward pass computes again: nothing, the modules of `recompute_modules`, or whole
    blocks."""
    recompute_layers: Annotated[Whole, Ge(0), Le(LARGEST)] | None = None
    """Blocks of a stage that full recomputation covers; none given: all of them."""
    recompute_modules: Annotated[str, Words(MODULES)] | None = None
    """What selective recomputation drops and computes again, joined by +; none given: what the
    software usually names."""
    offload_layers: Annotated[Whole, Ge(0), Le(LARGEST)] | None = None
    """Blocks of a stage whose kept activations wait in host memory."""
    optimizer_offload: Literal["none", "cpu", "nvme"] | None = None
    """Where the optimizer states wait, whose step the host takes: its memory, or local drives."""
    parameter_offload: Literal["none", "cpu", "nvme"] | None = None
    """Where the parameters that zero3 shards wait for their layer: host memory, or local drives."""
    schedule: Annotated[str, Word((*WORDS, "any"))] | None = None
    """Pipeline schedule; plan: "any" tries every one that the software has."""
    rank_order: str | None = None
    """Which ranks are neighbours, fastest first: tp-cp-dp-pp and its like."""
    stages: Annotated[tuple[int, ...], ReadBy(read_stages)] | None = None
    """Layers of each of the pp x vpp pieces of the pipeline, in the order of the model: a list, or
    Megatron's pipeline layout string ("Et*3|(tt|)*29,m|L"); none given: dealt evenly, with
    embedding and head as a layer each where that divides, and plan decides."""

    def pinned(self) -> dict[str, Any]:
        """Return the fields that were given."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


def wrong_reshard(layout: LayoutSection, software: Software, where: str) -> list[str]:
    """A reshard_after_forward that the software lacks or the sharding contradicts."""
    given, name = layout.reshard_after_forward, "layout.reshard_after_forward"
    if given is None:
        return []
    kind = "always" if given is True else "never" if given in (False, 1) else "group"
    words = {"always": "true", "group": "a number", "never": "false"}
    shown = str(given).lower()
    if kind not in software.supports.reshard:
        allowed = " or ".join(words[kind] for kind in software.supports.reshard)
        return [f"{where}: {name}: must be {allowed} in {software.name}, got {shown}"]
    if kind != "never" and (layout.pp or 1) > 1 and software.fsdp2.keeps_gathered_with_pipeline:
        rule = f"must be left out with pp > 1, where {software.name} keeps parameters whole"
        return [f"{where}: {name}: {rule}, got {shown}"]
    meant = ("zero2", "zero3") if kind == "never" else ("zero3",)
    if layout.sharding not in (None, *meant):
        rule = f"needs sharding = 'zero3' (it is {layout.sharding!r})"
        return [f"{where}: {name}: {rule}, got {shown}"]
    return []


def read_layout(raw: Any, *, where: str) -> LayoutSection:
    """Read [layout]."""
    return build_section(LayoutSection, raw, where=where, name="layout")


def _wrong_order(layout: LayoutSection, *, where: str) -> list[str]:
    """A rank order that nobody has."""
    if layout.rank_order is None or layout.rank_order in RANK_ORDERS:
        return []
    rule = "must order tp, cp, dp, pp"
    return [problem(where, "layout.rank_order", rule, layout.rank_order, RANK_ORDERS)]


def _idle(layout: LayoutSection, model: Architecture, *, where: str) -> dict[str, str]:
    """Fields on which nothing hangs beside what else is said."""
    without = {
        f"{model.name} has no experts": (not model.is_moe, ("dispatcher",)),
        "layout.cp is 1": (layout.cp == 1, ("cp_kind",)),
        "layout.sharding is ddp": (layout.sharding == "ddp", ("shard_group",)),
    }
    return {name: why for why, (idle, names) in without.items() if idle for name in names}


LAYOUT = Section(
    name="layout",
    schemas=(LayoutSection,),
    read=Rule(read_layout),
    required=True,
    checks=(
        Rule(wrong_reshard, needs=("layout", "software")),
        Rule(_wrong_order, needs=("layout",)),
    ),
    idle=Rule(_idle, needs=("layout", "model")),
)
