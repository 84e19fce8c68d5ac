"""Why one layout cannot run, in the words of the field that is wrong, with the nearest good value.

The search counts reasons (``layout/rules/feasibility.py``); a person who typed a layout wants to
know which field to change and to what. Every reason has a sentence here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import lcm
from typing import Any

from simulator.layout.layouts import Layouts
from simulator.planner.candidates import divisors
from simulator.planner.refusals import refusal_context as context
from simulator.planner.refusals import refusal_host as host
from simulator.planner.refusals import refusal_schedule as schedule
from simulator.planner.refusals import refusal_sharding as sharding
from simulator.planner.refusals.case import Case, around, closest
from simulator.scenario import Scenario
from simulator.schedules.registry import SCHEDULES
from simulator.workload.architecture import MoE

__all__ = ["DEPEND_ON_DP", "WORLD", "limits", "refusal"]

WORLD = "dp x tp x pp x cp is not the number of GPUs"

_BATCH = "global batch does not divide by dp x micro-batch"
_INTERLEAVE = "interleaving needs pp > 1 and micro-batches in rounds that the software has"
_FOLD = "ep x etp does not divide dp x cp x tp"
_SHARD_GROUP = "shard_group does not divide dp x cp"

_GATHERED = "an all-gather of tokens takes neither a capacity factor nor overlapped expert traffic"

DEPEND_ON_DP = (WORLD, _BATCH, _INTERLEAVE, _FOLD, _SHARD_GROUP)
"""Reasons that may only follow from a wrong data-parallel degree."""

_LARGEST_BATCH = 2**31 - 1


def limits(scenario: Scenario, given: Mapping[str, Any]) -> list[str]:
    """Problems of fields that are larger than anything could make sense of."""
    gpus, layers = scenario.cluster.gpus, scenario.workload.architecture.layers
    batch = scenario.workload.recipe.global_batch
    most = dict.fromkeys(
        ("tp", "pp", "cp", "cp_a2a", "dp", "ep", "etp", "shard_group"), (gpus, "GPUs")
    )
    most["reshard_after_forward"] = (gpus, "GPUs")
    most |= dict.fromkeys(("vpp", "recompute_layers", "offload_layers"), (layers, "layers"))
    most["micro_batch"] = (batch, "sequences of training.global_batch")
    found = [
        f"{scenario.where}: layout.{name}: must be at most the {limit} {what}, got {given[name]}"
        f" (nearest: {limit})"
        for name, (limit, what) in most.items()
        if (given.get(name) or 0) > limit
    ]
    if batch > _LARGEST_BATCH:
        rule = f"must be at most {_LARGEST_BATCH}"
        found.append(f"{scenario.where}: training.global_batch: {rule}, got {batch}")
    return found


def refusal(
    scenario: Scenario, given: Mapping[str, Any], row: Mapping[str, Any], reason: str
) -> str:
    """Word the reason why a layout cannot run.

    Parameters
    ----------
    given : mapping
        Layout fields that were typed; the others follow from them when a value is tried.
    row : mapping
        The whole layout.
    reason : str
        One of ``feasibility.REASONS``.
    """
    case = Case(scenario=scenario, given=given, row=row)
    wording = _WORDINGS.get(reason)
    if wording is None:
        layout = Layouts.of(**row).describe()
        return f"{scenario.where}: layout: cannot run: {reason}, got {layout}"
    return wording(case)


# --- the number of GPUs, the batch ------------------------------------------------------------


def _world(case: Case) -> str:
    row, gpus = case.row, case.scenario.cluster.gpus
    rest = row["tp"] * row["pp"] * row["cp"]
    if "dp" in case.given:
        product = " x ".join(str(row[name]) for name in ("dp", "tp", "pp", "cp"))
        rule = f"dp x tp x pp x cp must be cluster.gpus = {gpus}"
        offers = [f"dp {gpus // rest}"] if gpus % rest == 0 else []
        return case.line("layout.dp", rule, f"{product} = {row['dp'] * rest}", offers)
    product = " x ".join(str(row[name]) for name in ("tp", "pp", "cp"))
    for name in ("pp", "cp", "tp"):
        near = case.nearest(name, divisors(gpus), lambda value: False)
        if name in case.given and near:
            rule = f"tp x pp x cp must divide cluster.gpus = {gpus}"
            offers = [f"{name} {value}" for value in near]
            return case.line(f"layout.{name}", rule, f"{product} = {rest}", offers)
    servers = case.scenario.cluster.node.accelerators
    step = rest if gpus <= servers and rest <= servers else lcm(rest, servers)
    return case.line("cluster.gpus", f"must divide by {product} = {rest}", gpus, around(gpus, step))


def _batch(case: Case) -> str:
    row = case.row
    step = row["dp"] * row["micro_batch"]
    rounds = row["pp"] if SCHEDULES[row["schedule"]].takes_rounds else 1
    near = around(row["global_batch"], step * rounds)
    rule = f"must divide by dp x micro_batch = {step}"
    return case.line("training.global_batch", rule, row["global_batch"], near)


# --- what the model divides into ----------------------------------------------------------------


def _tp(case: Case, rule: str, own: Callable[[int], bool]) -> str:
    return case.line("layout.tp", rule, near=case.nearest("tp", _shares(case), own))


def _shares(case: Case) -> list[int]:
    return divisors(case.scenario.cluster.gpus)


def _heads(case: Case) -> str:
    counts = [kind.attention.heads for kind in case.scenario.workload.architecture.blocks]
    wrong = next(count for count in counts if count % case.row["tp"])
    return _tp(case, f"must divide {wrong} attention heads", lambda tp: wrong % tp == 0)


def _kv_heads(case: Case) -> str:
    counts = [kind.attention.kv_heads for kind in case.scenario.workload.architecture.blocks]
    tp = case.row["tp"]
    wrong = next(count for count in counts if count % tp and tp % count)
    rule = f"must divide or be a multiple of {wrong} key/value heads"
    return _tp(case, rule, lambda tp: wrong % tp == 0 or tp % wrong == 0)


def _mlp(case: Case) -> str:
    mlps = [kind.mlp for kind in case.scenario.workload.architecture.blocks]
    widths = [mlp.shared_ffn_hidden if isinstance(mlp, MoE) else mlp.ffn_hidden for mlp in mlps]
    wrong = next(width for width in widths if width % case.row["tp"])
    return _tp(case, f"must divide the MLP width {wrong}", lambda tp: wrong % tp == 0)


def _sequence(case: Case) -> str:
    row, length = case.row, case.scenario.workload.recipe.sequence_length
    pieces = row["tp"] * row["cp"] * (2 if row["cp"] > 1 else 1)
    name = "2 x cp x tp" if row["cp"] > 1 else "tp"
    rule = f"must divide by {name} = {pieces}"
    return case.line("training.sequence_length", rule, length, around(length, pieces))


def _stages(case: Case) -> str:
    row, layers = case.row, case.scenario.workload.architecture.layers
    name = "pp" if row["vpp"] == 1 else "vpp"
    most = layers if name == "pp" else layers // row["pp"]
    rule = f"pp x vpp must be at most the {layers} layers"
    near = case.nearest(name, range(1, most + 1), lambda value: value <= most)
    return case.line(f"layout.{name}", rule, near=near)


def _even(case: Case) -> str:
    row, layers = case.row, case.scenario.workload.architecture.layers
    software = case.scenario.software.name
    rule = f"pp x vpp must divide {layers} layers ({software} has no uneven stages)"
    name = "pp" if row["vpp"] == 1 else "vpp"
    other = row["vpp"] if name == "pp" else row["pp"]
    near = case.nearest(name, range(1, layers + 1), lambda value: layers % (value * other) == 0)
    return case.line(f"layout.{name}", rule, near=near)


# --- experts ------------------------------------------------------------------------------------


def _moes(case: Case) -> list[MoE]:
    blocks = case.scenario.workload.architecture.blocks
    return [kind.mlp for kind in blocks if isinstance(kind.mlp, MoE)]


def _experts(case: Case) -> str:
    count = next(moe.experts for moe in _moes(case) if moe.experts % case.row["ep"])
    near = case.nearest("ep", divisors(count), lambda ep: count % ep == 0)
    return case.line("layout.ep", f"must divide {count} experts", near=near)


def _fold(case: Case) -> str:
    row = case.row
    ranks, etp = row["dp"] * row["cp"] * row["tp"], row["etp"]
    near = case.nearest("ep", divisors(ranks), lambda ep: ranks % (ep * etp) == 0)
    rule = f"ep x etp must divide dp x cp x tp = {ranks}"
    return case.line("layout.ep", rule, f"{row['ep']} x {etp}", [f"ep {ep}" for ep in near])


def _expert_width(case: Case) -> str:
    width = next(moe.ffn_hidden for moe in _moes(case) if moe.ffn_hidden % case.row["etp"])
    near = case.nearest("etp", _shares(case), lambda etp: width % etp == 0)
    return case.line("layout.etp", f"must divide the expert width {width}", near=near)


def _gathered(case: Case) -> str:
    others = [word for word in case.scenario.software.supports.dispatchers if word != "allgather"]
    capacity = case.scenario.workload.recipe.moe_capacity_factor is not None
    why = "training.moe_capacity_factor" if capacity else "overlapped expert traffic"
    return case.line("layout.dispatcher", f"must not be allgather with {why}", near=others)


def _dense(case: Case) -> str:
    name = "ep" if case.row["ep"] > 1 else "etp"
    model = case.scenario.workload.architecture.name
    return case.line(f"layout.{name}", f"must be 1: {model} has no experts", near=[1])


# --- what the software can do -------------------------------------------------------------------


def _lacks(field: str, what: str) -> Callable[[Case], str]:
    def wording(case: Case) -> str:
        rule = f"must be 1: {case.scenario.software.name} has no {what}"
        return case.line(f"layout.{field}", rule, near=[1])

    return wording


def _tensor(case: Case) -> str:
    if not case.scenario.software.supports.tensor:
        return _lacks("tp", "tensor parallelism")(case)
    must = str(not case.row["sequence_parallel"]).lower()
    rule = f"must be {must} with tp > 1 in {case.scenario.software.name}"
    return case.line("layout.sequence_parallel", rule)


def _pipeline(case: Case) -> str:
    if case.row["pp"] > 1 and not case.scenario.software.supports.pipeline:
        return _lacks("pp", "pipeline parallelism")(case)
    if case.row["vpp"] > 1 and SCHEDULES[case.row["schedule"]].by_default:
        return _lacks("vpp", "interleaved schedule")(case)
    return _choice("schedule", "schedules")(case)


def _expert_parallel(case: Case) -> str:
    return _lacks("ep" if case.row["ep"] > 1 else "etp", "expert parallelism")(case)


def _choice(field: str, allowed: str, when: str = "") -> Callable[[Case], str]:
    def wording(case: Case) -> str:
        words = getattr(case.scenario.software.supports, allowed)
        choices = ", ".join(words) or "none"
        rule = f"must be one of {choices}{when} in {case.scenario.software.name}"
        return case.line(f"layout.{field}", rule, repr(case.row[field]))

    return wording


def _recompute(case: Case) -> str:
    can = case.scenario.software.supports
    if case.row["recompute"] in can.recompute:
        rule = f"must be 0: {case.scenario.software.name} recomputes all layers or none"
        return case.line("layout.recompute_layers", rule, near=[0])
    return _choice("recompute", "recompute")(case)


def _recompute_layers(case: Case) -> str:
    row, layers = case.row, case.scenario.workload.architecture.layers
    if row["recompute"] != "full":
        rule = f"needs recompute = 'full' (it is {row['recompute']!r})"
        return case.line("layout.recompute_layers", rule, near=[0])
    most = -(-layers // row["pp"])
    rule = f"must be at most the {most} layers of a pipeline rank"
    return case.line("layout.recompute_layers", rule, near=[most])


def _step_in_backward(case: Case) -> str:
    share = case.row["dp"] * case.row["micro_batch"]
    rule = f"must be dp x micro_batch = {share} with training.optimizer_in_backward"
    return case.line("training.global_batch", rule, case.row["global_batch"], [share])


def _shard_group(case: Case) -> str:
    ranks = case.row["dp"] * case.row["cp"]
    near = closest(case.row["shard_group"], divisors(ranks))
    return case.line("layout.shard_group", f"must divide dp x cp = {ranks}", near=near)


def _traced(case: Case) -> str:
    name = case.scenario.workload.architecture.name
    for degree in ("tp", "pp", "cp", "ep", "etp"):
        if case.row[degree] > 1:
            rule = f"must be 1: {name} is a traced module, which runs in data parallelism only"
            return case.line(f"layout.{degree}", rule, near=[1])
    rule = f"must be none or full: of the traced module {name} no part is known alone"
    return case.line("layout.recompute", rule, repr(case.row["recompute"]))


def _sequence_parallel(rule: str) -> Callable[[Case], str]:
    return lambda case: case.line("layout.sequence_parallel", rule)


_WORDINGS: dict[str, Callable[[Case], str]] = {
    WORLD: _world,
    _BATCH: _batch,
    _INTERLEAVE: schedule.interleave,
    _FOLD: _fold,
    _SHARD_GROUP: _shard_group,
    "a traced module runs in data parallelism, with recomputation of all layers or none": _traced,
    "tp does not divide the attention heads": _heads,
    "tp and the key/value heads do not divide one another": _kv_heads,
    "tp does not divide the MLP width": _mlp,
    "tp, cp do not divide the sequence length": _sequence,
    "fewer layers than pipeline stages": _stages,
    "layers do not divide evenly over pp x vpp": _even,
    "ep does not divide the experts": _experts,
    "etp does not divide the expert width": _expert_width,
    "experts need ep, etp = 1 on a dense model": _dense,
    "sequence parallelism needs tp > 1": _sequence_parallel("must be false where tp is 1"),
    "experts with tp > 1 need sequence parallelism": _sequence_parallel(
        "must be true: experts with tp > 1 need it"
    ),
    "the software has no such tensor or sequence parallelism": _tensor,
    "the software has no such pipeline schedule": _pipeline,
    "the schedule does not go with this pp, vpp or number of micro-batches": schedule.schedule,
    "the software has no such context parallelism": context.kind,
    "the software has no expert parallelism": _expert_parallel,
    "the software has no such sharding of states": _choice("sharding", "sharding"),
    "the software cannot combine this sharding with pp > 1": _choice(
        "sharding", "sharding_with_pipeline", " with pp > 1"
    ),
    "the software cannot combine this sharding with tp > 1": _choice(
        "sharding", "sharding_with_tensor", " with tp > 1"
    ),
    "the software has no such recomputation": _recompute,
    "the software has no such rank order": _choice("rank_order", "rank_orders"),
    "recompute_layers needs full recomputation and at most the layers of a rank": _recompute_layers,
    "activations of more layers offloaded than a rank has": host.offload_layers,
    "the software cannot keep activations in host memory": host.offload,
    "no figure for copies between accelerator and host": host.no_host_link,
    "the software cannot offload the optimizer": host.optimizer_offload,
    "the optimizer has no step on the host": host.host_optimizer,
    "parameters can be offloaded with zero3 only, by software that can": host.parameter_offload,
    "an optimizer step inside the backward pass needs a single micro-batch": _step_in_backward,
    **context.SENTENCES,
    "the software cannot share this sharding among fewer ranks than all replicas": sharding.hybrid,
    "the software cannot combine offloaded activations with recomputation": host.no_recompute,
    "the software cannot combine offloaded activations with captured graphs": host.no_graphs,
    "the software cannot offload the activations of all layers": host.one_layer_stays,
    "weights in 8 bit alone need optimizer states that ranks share": sharding.fp8_weights,
    "the software cannot offload the optimizer with these weights in 8 bit alone": (
        host.fp8_weights
    ),
    "the software cannot keep states on NVMe": host.no_nvme_support,
    "the server has no NVMe, or none known": host.no_drives,
    "reshard_after_forward needs zero3, a divisor of the ranks that share, and software that can": (
        sharding.reshard
    ),
    "the software has no such dispatch of tokens to experts": _choice("dispatcher", "dispatchers"),
    _GATHERED: _gathered,
    "post-validation of the optimizer needs a zero-bubble schedule, and software that can": (
        schedule.post_validation
    ),
}
"""The sentence of each reason."""
