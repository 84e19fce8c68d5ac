"""The scenario: a file, flags or both -> workload, cluster, software, pinned layout, goal.

Problems of all sections are collected and reported together. Sections that later versions will
read are refused with "not yet" rather than ignored.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli
from annotated_types import Ge, Gt, Le

from simulator import catalogue
from simulator.between_sites.sites_section import Sites, read_sites
from simulator.data_input.data_section import DataInput, read_data
from simulator.distillation.teacher_section import Distillation, read_distillation
from simulator.dotted_fields import put
from simulator.economics.economics_section import Economics, read_economics, usual_economics
from simulator.errors import InputError, brief, did_you_mean, problem
from simulator.files import (
    Figure,
    Items,
    Number,
    ReadBy,
    Unit,
    Whole,
    Word,
    Words,
    build,
    read_toml,
    record,
)
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.hardware.node_groups import NodeGroupSection, load_groups
from simulator.layout.layouts import MODULES, RANK_ORDERS
from simulator.layout.stage_words import read_stages
from simulator.parameter_server.server_section import ParameterServer, read_parameter_server
from simulator.ranges import Choice, is_several, read_choice
from simulator.reliability.reliability_profile import Reliability, load_reliability, read_run
from simulator.schedules.registry import WORDS
from simulator.software.platforms import wrong_platform
from simulator.software.profile import Software, load_software
from simulator.software.releases import Nearest, load_releases
from simulator.software.supports import CpKind, Dispatcher
from simulator.sparse_tables.dense_model import dense_architecture
from simulator.sparse_tables.sparse_section import Sparse, read_sparse
from simulator.workload import presets
from simulator.workload.architecture import Architecture
from simulator.workload.contradictions import wrong_training
from simulator.workload.huggingface import from_hf
from simulator.workload.not_modelled import told
from simulator.workload.recipe import LARGEST, Recipe, Workload
from simulator.workload.tasks import TaskHeads

__all__ = [
    "DECIDED",
    "MAY_BE_SEVERAL",
    "SECTIONS",
    "UNDECIDED",
    "ClusterSection",
    "Goal",
    "LayoutSection",
    "Scenario",
    "SearchSection",
    "Section",
    "load_scenario",
    "make_scenario",
    "wrong_reshard",
]

Positive = Annotated[Whole, Gt(0), Le(LARGEST)]


_MOST_SECTIONS = 20
"""Unknown sections that are said: each is compared with what is known."""


@record
class ModelSection:
    """Which model is trained: one of the zoo, a config.json, or its fields here."""

    name: str | None = None
    """A model of the zoo (`foreshard models`), or the path of a Hugging Face config.json, from the
    scenario's folder; beside model_type: what the model is called."""
    model_type: str | None = None
    """A family of Hugging Face (llama, deepseek_v3, ...): the other fields of a config.json stand
    beside it, under their own names."""
    tasks: TaskHeads | None = None
    """Heads of several tasks behind the last block; none given: the model's own output."""


@record
class ClusterSection:
    """Which machines, how many, and what runs on them."""

    name: str
    """A cluster profile of hardware_profiles/clusters, or a path to one."""
    gpus: Annotated[Positive, Unit("accelerators")]
    """Accelerators of the run."""
    software: str | None = None
    """A software profile of hardware_profiles/software, or a path to one; none: what usually runs
    on the accelerator (`[usual]` of hardware_profiles/releases.toml)."""


@record
class GroupedSection:
    """The same of servers of several kinds, which ``foreshard plan`` and ``simulate`` take."""

    groups: Annotated[Any, Items(NodeGroupSection)]
    """Instead of name and gpus: [[cluster.groups]], each with a name and gpus of its own, which
    ranks fill in this order."""
    software: str | None = None
    """A software profile, as without groups; none: what usually runs on the first of them."""


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


MAY_BE_SEVERAL = ("global_batch", "sequence_length")
"""Fields of [training] that may be a list or a range, of which a plan chooses."""

DECIDED = (
    *("tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch", "sharding", "rank_order"),
    *("recompute", "recompute_modules", "stages"),
)
"""Layout fields that a search decides by default."""

UNDECIDED = (
    *("schedule", "dispatcher", "cp_kind"),
    *("offload_layers", "optimizer_offload", "parameter_offload"),
)
"""Those that it decides where `[search] allow` names them."""

OFFERED = ("precision", "optimizer", "moment_dtype", "gradient_dtype", "lora_rank")
"""Fields of [training] of which a plan says what others would take, where allow names them."""


@record
class SearchSection:
    """What a search may decide."""

    allow: tuple[str, ...] | None = None
    """Layout fields that may be decided; the others take the value that predict takes; none given:
    the usual ones (tp to stages), not schedule, dispatcher, cp_kind and offloads. What changes the
    result of the training is never decided: where precision, optimizer, moment_dtype,
    gradient_dtype or lora_rank is named, plan says what others of them would take."""

    def problems(self, where: str) -> list[str]:
        """Words that are no field of a layout, or a field of the training."""
        found, training = [], {field.name for field in fields(Recipe)}
        for word in self.allow or ():
            if word in OFFERED:
                continue
            if word in training:
                rule = "changes the training, so it is yours to set: training." + word
                found.append(f"{where}: search.allow: {word!r} {rule}")
            elif word not in (*DECIDED, *UNDECIDED):
                every = (*DECIDED, *UNDECIDED, *OFFERED)
                known, hint = ", ".join(every), did_you_mean(word, every)
                found.append(f"{where}: search.allow: must be among {known}, got {word!r}{hint}")
        return found


@record
class Goal:
    """What the plan is for."""

    minimize: Literal["time", "cost", "energy"] = "time"
    """What the best layout is best at."""
    deadline_days: Annotated[Number, Gt(0)] | None = None
    """The run must finish within this many days."""
    budget_usd: Annotated[Number, Gt(0)] | None = None
    """The run must cost no more than this."""
    smallest_batch: Annotated[Positive, Unit("sequences")] | None = None
    """plan may shrink the global batch to this; none given: training.global_batch is the smallest,
    unless largest_batch is below it."""
    largest_batch: Annotated[Positive, Unit("sequences")] | None = None
    """plan may raise the global batch to this; none given: training.global_batch is the largest,
    unless smallest_batch is above it."""


@dataclass(frozen=True, slots=True)
class Section:
    """What a section may hold: `foreshard fields` and docs/scenario.md list it from here."""

    schemas: tuple[type, ...]
    """Records whose fields it has; the first one's docstring says what it is for."""
    base: Callable[[], Any] | None = None
    """Makes the record that stands below it: its values are the defaults."""
    renamed: tuple[tuple[str, str], ...] = ()
    """Fields of the record that have another name here."""


SECTIONS = {
    "model": Section((ModelSection,)),
    "training": Section((Recipe,)),
    "cluster": Section((ClusterSection, GroupedSection)),
    "layout": Section((LayoutSection,)),
    "goal": Section((Goal,)),
    "run": Section((Reliability,), base=load_reliability, renamed=(("name", "set"),)),
    "search": Section((SearchSection,)),
    "data": Section((DataInput,)),
    "sites": Section((Sites,)),
    "parameter_server": Section((ParameterServer,)),
    "distillation": Section((Distillation,)),
    "economics": Section((Economics,), base=usual_economics),
    "sparse": Section((Sparse,)),
}
"""Sections of a scenario, in the order in which they are read about."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """Everything a command needs to know."""

    where: str
    """The file it came from, or "command line"."""
    workload: Workload
    cluster: Cluster
    software: Software
    pinned: dict[str, Any]
    goal: Goal
    run: Reliability
    """What the run goes through, [run] over the set that it names."""
    document: dict[str, Any]
    """The sections as given, with overrides applied."""
    assumed_software: str | None = None
    """The known release that stands for the one that was named; None where that is known."""
    allow: tuple[str, ...] | None = None
    """Layout fields that a search may decide ([search]); None: DECIDED."""
    choices: dict[str, Choice] = dataclasses.field(default_factory=dict)
    """Fields of [training] that a plan chooses, of MAY_BE_SEVERAL."""
    sites: Sites | None = None
    """Several sites in place of [cluster] ([sites])."""
    parameter_server: ParameterServer | None = None
    """Servers that hold the weights ([parameter_server])."""
    distillation: Distillation | None = None
    """A teacher beside the student ([distillation])."""
    economics: Economics | None = None
    """What an hour costs, where [economics] says so; else it is the price of the cluster."""
    sparse: Sparse | None = None
    """Embedding tables beside the dense model ([sparse])."""

    @property
    def elsewhere(self) -> dict[str, str]:
        """Sections that a step on [cluster] leaves out, and the command that prices each."""
        given = _PRICED_BY.items()
        return {name: command for name, command in given if getattr(self, name) is not None}


def load_scenario(path: Path | str, overrides: Iterable[str] = ()) -> Scenario:
    """Read a scenario file and apply ``section.field=value`` overrides.

    Raises
    ------
    InputError
        With every problem of the file, each naming its field.
    """
    return make_scenario(
        read_toml(path), where=str(path), overrides=overrides, base=Path(path).parent
    )


def make_scenario(
    document: Mapping[str, Any],
    *,
    where: str = "scenario",
    overrides: Iterable[str] = (),
    base: Path | None = None,
    architecture: Architecture | None = None,
    several: bool = False,
) -> Scenario:
    """Build a scenario from nested tables, as a TOML file gives them.

    `architecture` stands for the section [model], where no file describes it (a traced module).
    With `several`, batch and sequence may be lists or ranges (``Scenario.choices``).
    """
    document = {name: dict(v) if isinstance(v, Mapping) else v for name, v in document.items()}
    for override in overrides:
        _override(document, override)
    problems = _wrong_sections(document, where)
    choices, single = _choices(document, where, problems, several=several)
    parts: dict[str, Any] = {}
    steps: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("architecture", lambda: architecture or _modelled(document, where, base)),
        ("recipe", lambda: _section(Recipe, single, "training", where)),
        ("place", lambda: _place(document, where)),
        ("layout", lambda: _section(LayoutSection, document, "layout", where)),
        ("goal", lambda: _section(Goal, document, "goal", where)),
        ("run", lambda: _run(document, where)),
        ("search", lambda: _search(document, where)),
    )
    problems += _taken(steps, parts)
    problems += _read_optional(document, where, parts)
    if "place" in parts:
        loads: tuple[tuple[str, Callable[[], Any]], ...] = (
            ("cluster", lambda: _cluster(parts["place"], where)),
            ("stands", lambda: _stands(parts["place"].software, parts.get("cluster"), where)),
            ("economics", lambda: _economics(document, parts.get("cluster"), where)),
        )
        problems += _taken(loads, parts)
    stands: Nearest | None = parts.get("stands")
    if stands is not None:
        parts["software"] = load_software(stands.profile).standing_for(stands)
    problems += _contradictions(parts, where)
    if problems:
        raise InputError(dict.fromkeys(problems))
    return Scenario(
        where=where,
        workload=Workload(**{name: parts[name] for name in ("architecture", "recipe", "data")}),
        cluster=parts["cluster"],
        software=parts["software"],
        pinned=parts["layout"].pinned(),
        goal=parts["goal"],
        run=_interrupted(parts["run"], parts["economics"], parts["cluster"], document),
        document=document,
        assumed_software=parts["stands"].text,
        allow=parts["search"].allow,
        choices=choices,
        **{name: parts[name] for name in _ALONE},
    )


def _taken(steps: Iterable[tuple[str, Callable[[], Any]]], parts: dict[str, Any]) -> list[str]:
    """Put what steps return into `parts` by their names, and return what is wrong."""
    problems: list[str] = []
    for name, step in steps:
        try:
            parts[name] = step()
        except InputError as error:
            problems += error.problems
    return problems


def _choices(
    document: Mapping[str, Any], where: str, problems: list[str], *, several: bool
) -> tuple[dict[str, Choice], dict[str, Any]]:
    """What batch and sequence may be where they are several, and the sections with one of each.

    That one is the largest: what is wrong with a sequence that is too long is wrong with it.
    """
    found, training = dict[str, Choice](), document.get("training")
    if not isinstance(training, Mapping):
        return found, dict(document)
    one = dict(training)
    for name in MAY_BE_SEVERAL:
        if not is_several(training.get(name)):
            continue
        try:
            found[name] = read_choice(training[name])
        except ValueError as error:
            problems.append(f"{where}: training.{name}: {error}")
            one[name] = 1
            continue
        one[name] = found[name].values[-1]
        if not several:
            rule = "must be one number here; plan takes a list or a range"
            problems.append(problem(where, f"training.{name}", rule, training[name]))
    return found, {**document, "training": one}


def _stands(word: str | None, cluster: Cluster | None, where: str) -> Nearest | None:
    """The software profile of a name, or of the release that stands nearest to it.

    Without a name, what usually runs on the accelerator; None where that is not known either.
    """
    releases = load_releases()
    if word is None:
        if cluster is None:
            return None
        word = releases.usual[cluster.accelerator.platform]
    if word.endswith(".toml"):
        catalogue.find("software", word, where=where, field="cluster.software")
    return releases.nearest(word, where=f"{where}: cluster.software")


def _section(schema: Any, document: Mapping[str, Any], name: str, where: str) -> Any:
    raw = document.get(name, {})
    if not isinstance(raw, Mapping):
        raise InputError(problem(where, name, "must be a table", raw))
    if name == "training" and (wrong := told(raw, where, name)):
        raise InputError(wrong)
    return build(schema, raw, where=where, prefix=name)


def _run(document: Mapping[str, Any], where: str) -> Reliability:
    raw = document.get("run", {})
    if not isinstance(raw, Mapping):
        raise InputError(problem(where, "run", "must be a table", raw))
    return read_run(raw, where=where)


def _economics(
    document: Mapping[str, Any], cluster: Cluster | None, where: str
) -> Economics | None:
    if cluster is None or "economics" not in document:
        return None
    return read_economics(document["economics"], cluster, where=where)


def _interrupted(
    run: Reliability, economics: Economics | None, cluster: Cluster, document: Mapping[str, Any]
) -> Reliability:
    """Preempt a run on spot servers as often as [economics.rent] says, where [run] does not."""
    causes = document.get("run", {}).get("causes", {})
    if economics is None or economics.basis != "spot" or "preemption" in causes:
        return run
    assert economics.rent is not None
    each = economics.rent.spot_interruptions_per_day
    rate = Figure(float(each) / cluster.nodes, each.grade, each.source, each.date, each.spread)
    found = replace(run.causes["preemption"], per_device_day=rate)
    return replace(run, causes={**run.causes, "preemption": found})


_ALONE = ("sites", "parameter_server", "distillation", "economics", "sparse")
"""Sections that are fields of a scenario as they were read."""

_PRICED_BY = {
    "sites": "foreshard sites",
    "parameter_server": "foreshard parameter-server",
    "distillation": "foreshard distil",
}
"""Sections that a step on [cluster] leaves out, and the command that prices them."""

_READERS: dict[str, Callable[..., Any]] = {
    "data": read_data,
    "sites": read_sites,
    "parameter_server": read_parameter_server,
    "sparse": read_sparse,
    "distillation": read_distillation,
}
"""Sections that may be left out whole: None stands for them then."""


def _read_optional(document: Mapping[str, Any], where: str, parts: dict[str, Any]) -> list[str]:
    """Put into `parts` what sections say that may be left out, and return what is wrong."""
    problems: list[str] = []
    for name, read in _READERS.items():
        parts[name] = None
        if name in document:
            try:
                parts[name] = read(document[name], where=where)
            except InputError as error:
                problems += error.problems
    return problems


def _search(document: Mapping[str, Any], where: str) -> SearchSection:
    section: SearchSection = _section(SearchSection, document, "search", where)
    if wrong := section.problems(where):
        raise InputError(wrong)
    return section


def _place(document: Mapping[str, Any], where: str) -> ClusterSection | GroupedSection:
    """[cluster]: one name and number of accelerators, or a list of groups."""
    raw = document.get("cluster", {})
    if not (isinstance(raw, Mapping) and "groups" in raw):
        return _section(ClusterSection, document, "cluster", where)
    if both := [name for name in ("name", "gpus") if name in raw]:
        rule = f"must stand without cluster.{' and cluster.'.join(both)}: each group has its own"
        raise InputError(f"{where}: cluster.groups: {rule}")
    return build(GroupedSection, raw, where=where, prefix="cluster")


def _cluster(place: ClusterSection | GroupedSection, where: str) -> Cluster:
    if isinstance(place, GroupedSection):
        return load_groups(place.groups, where=where)
    return load_cluster(place.name, place.gpus, where=where)


def _wrong_sections(document: Mapping[str, Any], where: str) -> list[str]:
    problems = []
    for name in document:
        if name not in SECTIONS:
            unknown = f"{where}: {name}: unknown section{did_you_mean(name, SECTIONS)}"
            problems += told([name], where, "") or [unknown]
        if len(problems) > _MOST_SECTIONS:
            return [*problems, f"{where}: more than {_MOST_SECTIONS} sections are unknown"]
    return problems


def _modelled(document: Mapping[str, Any], where: str, base: Path | None) -> Architecture:
    """The model of [model], or the dense one of [sparse], which stands for it."""
    if "sparse" not in document:
        return _architecture(document.get("model"), where, base)
    if "model" in document:
        raise InputError(f"{where}: model: must be left out with [sparse], which describes it")
    return dense_architecture(read_sparse(document["sparse"], where=where))


def _architecture(raw: Any, where: str, base: Path | None) -> Architecture:
    """A zoo name, a path to a Hugging Face config.json, or the fields of one inline."""
    if not isinstance(raw, Mapping) or not raw:
        raise InputError(
            f"{where}: model: required section is missing (name, or Hugging Face fields)"
        )
    if "tasks" in raw:
        alone = {field: value for field, value in raw.items() if field != "tasks"}
        return _with_tasks(raw["tasks"], _architecture(alone, where, base), where)
    if "model_type" in raw:
        return from_hf(raw, name=str(raw.get("name", "custom")), where=f"{where}: model")
    if unknown := sorted(set(raw) - {"name"}):
        known = ("name", "model_type", "tasks")
        raise InputError(
            f"{where}: model.{unknown[0]}: unknown field{did_you_mean(unknown[0], known)}"
        )
    name = raw["name"]
    if not isinstance(name, str):
        raise InputError(problem(where, "model.name", "must be a zoo name or a path", name))
    beside = base / name if base is not None else None
    if beside is not None and name and name not in presets.names() and os.path.exists(beside):
        name = str(beside)
    return presets.load(name, where=where, field="model.name")


def _with_tasks(raw: Any, arch: Architecture, where: str) -> Architecture:
    """Put the heads of several tasks behind a model, beside or instead of its own output."""
    if not isinstance(raw, Mapping):
        raise InputError(problem(where, "model.tasks", "must be a table", raw))
    tasks = build(TaskHeads, raw, where=where, prefix="model.tasks")
    problems = []
    if tasks.experts and not tasks.expert_hidden:
        rule = "required with experts: their inner width"
        problems.append(f"{where}: model.tasks.expert_hidden: {rule}")
    for name in ("expert_hidden", "expert_outputs"):
        if getattr(tasks, name) and not tasks.experts:
            rule = "needs experts above 0"
            problems.append(problem(where, f"model.tasks.{name}", rule, getattr(tasks, name)))
    if tasks.batch_fractions and len(tasks.batch_fractions) != len(tasks.outputs):
        rule = f"must have one of each of the {len(tasks.outputs)} tasks of outputs"
        given = list(tasks.batch_fractions)
        problems.append(problem(where, "model.tasks.batch_fractions", rule, given))
    if arch.is_encoder_decoder or arch.mtp_layers:
        kind = "an encoder-decoder" if arch.is_encoder_decoder else "a model that predicts ahead"
        problems.append(f"{where}: model.tasks: not yet for {kind} ({arch.name})")
    if problems:
        raise InputError(problems)
    return replace(arch, tasks=tasks, classes=arch.classes if tasks.keeps_output else 0)


def _override(document: dict[str, Any], text: str) -> None:
    """Apply one ``section.field=value``; the value is read as TOML, else as a plain word."""
    key, equals, value = text.partition("=")
    if not (equals and "." in key and all(key.strip().split("."))):
        raise InputError(problem("--set", "", "must be section.field=value", text))
    try:
        parsed = tomli.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        parsed = value.strip()
    put(document, key.strip(), parsed, where="--set")


def _contradictions(parts: Mapping[str, Any], where: str) -> list[str]:
    """What each section allows but the whole does not."""
    recipe = parts.get("recipe")
    problems = _wrong_precision(recipe, parts, where) if recipe is not None else []
    arch = parts.get("architecture")
    if recipe is not None and arch is not None:
        length, most = recipe.sequence_length, arch.max_positions
        fixed, learned = arch.has_fixed_length, arch.position == "learned"
        if length != most if fixed else learned and length > most:
            tokens = "tokens per image" if fixed else "learned positions"
            problems.append(
                f"{where}: training.sequence_length: {arch.name} has {most} {tokens},"
                f" got {length} (nearest: {most})"
            )
    if recipe is not None:
        ep = parts["layout"].ep if "layout" in parts else None
        problems += wrong_training(recipe, arch, where, ep=ep)
    goal = parts.get("goal")
    if goal is not None and (goal.smallest_batch or 0) > (goal.largest_batch or math.inf):
        rule = f"must be at most goal.largest_batch = {goal.largest_batch}"
        near = f"(nearest: {goal.largest_batch})"
        problems.append(
            f"{problem(where, 'goal.smallest_batch', rule, goal.smallest_batch)} {near}"
        )
    if goal is not None and recipe is not None and recipe.tokens is None:
        for name in ("deadline_days", "budget_usd"):
            if (limit := getattr(goal, name)) is not None:
                problems.append(f"{where}: goal.{name}: needs training.tokens, got {limit}")
    if "software" in parts and "cluster" in parts:
        devices = (kind.accelerator for kind in parts["cluster"].each)
        wrong = (wrong_platform(parts["software"], device) for device in devices)
        problems += [f"{where}: cluster.software: {text}" for text in wrong if text]
        problems += _wrong_library(parts["software"], parts["cluster"], where)
    data = parts.get("data")
    if data is not None and data.local_copy and "cluster" in parts:
        problems += [
            f"{where}: data.local_copy: {kind.node.name} has no local drives in its profile (nvme)"
            for kind in parts["cluster"].each
            if kind.node.nvme is None
        ]
    if "layout" in parts and "software" in parts:
        problems += wrong_reshard(parts["layout"], parts["software"], where)
    order = parts["layout"].rank_order if "layout" in parts else None
    if order is not None and order not in RANK_ORDERS:
        rule = "must order tp, cp, dp, pp"
        problems.append(problem(where, "layout.rank_order", rule, order, RANK_ORDERS))
    return problems


def _wrong_library(software: Software, cluster: Cluster, where: str) -> list[str]:
    """A library of matrix products of which a device has no figures."""
    library = software.kernels.gemm_library
    return [
        f"{where}: cluster.software: {software.name} multiplies with {brief(library)}, of which"
        f" {kind.accelerator.name} has no figures (it has {', '.join(kind.accelerator.gemm)})"
        for kind in cluster.each
        if library not in kind.accelerator.gemm
    ]


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


def _wrong_precision(recipe: Recipe, parts: Mapping[str, Any], where: str) -> list[str]:
    """A type that the device or the software lacks."""
    problems, precision = [], recipe.precision
    if "cluster" in parts:
        for device in (kind.accelerator for kind in parts["cluster"].each):
            if recipe.matrix_type not in (offered := device.matrix_flop_per_s):
                problems.append(
                    f"{where}: training.precision: {device.name} has no {precision}"
                    f" (it has {', '.join(offered)}), got {precision!r}"
                )
    if "software" in parts:
        known = parts["software"].supports.precisions
        if precision not in known:
            problems.append(
                f"{where}: training.precision: {parts['software'].name} does not train in"
                f" {precision} (it does in {', '.join(known)}), got {precision!r}"
            )
        alone = parts["software"].supports.fp8_weights
        if recipe.fp8_weights and precision not in alone:
            words = ", ".join(alone) or "none"
            problems.append(
                f"{where}: training.fp8_weights: {parts['software'].name} keeps weights in 8 bit"
                f" alone with precision {words}, got {precision!r}"
            )
    if recipe.fp8_weights and recipe.quantised_base:
        rule = "must be false with training.quantised_base, whose weights are in 4 bit"
        problems.append(problem(where, "training.fp8_weights", rule, True))
    elif recipe.fp8_weights and recipe.freezes and not recipe.lora_rank:
        rule = "must be false with frozen parts, unless training.lora_rank is above 0"
        problems.append(problem(where, "training.fp8_weights", rule, True))
    return problems
