"""What may wait in host memory or on the server's drives."""

from __future__ import annotations

import numpy as np

from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import OFFLOADS, SHARDINGS, Layouts
from simulator.layout.rules.rule import Case, Mask, Rule, Setting, Wording, among
from simulator.workload.recipe import HOST_OPTIMIZERS

# --- activations --------------------------------------------------------------------------------


def _word_layers(case: Case) -> Wording:
    most = -(-case.architecture.layers // case.row["pp"])
    return Wording(f"must be at most the {most} layers of a pipeline rank", near=[most])


LAYERS = Rule(
    field="layout.offload_layers",
    reason="activations of more layers offloaded than a rank has",
    wrong=lambda x, at: x.offload_layers > -(-at.architecture.layers // x.pp),
    wording=_word_layers,
)


def _lacks_offload(x: Layouts, at: Setting) -> Mask:
    return (x.offload_layers > 0) & ((not at.software.supports.offload) | (x.pp > 1))


def _word_activations(case: Case) -> Wording:
    name = case.software.name
    if case.software.supports.offload:
        must = f"must be 0 with pp > 1: {name} offloads without pipeline stages only"
    else:
        must = f"must be 0: {name} keeps no activations in host memory"
    return Wording(must, near=[0])


ACTIVATIONS = Rule(
    field="layout.offload_layers",
    reason="the software cannot keep activations in host memory",
    wrong=_lacks_offload,
    wording=_word_activations,
)


def _repeats_offloaded(x: Layouts, at: Setting) -> Mask:
    excluded = "recompute" in at.software.supports.offload_excludes
    return (x.offload_layers > 0) & (x.recompute > 0) & excluded


def _word_recompute(case: Case) -> Wording:
    """Megatron-Core: "CPU offloading does not work when activation recomputation is enabled"."""
    must = f"must be 0 with recompute = {case.row['recompute']!r} in {case.software.name}"
    return Wording(must, near=[0])


RECOMPUTE = Rule(
    field="layout.offload_layers",
    reason="the software cannot combine offloaded activations with recomputation",
    wrong=_repeats_offloaded,
    wording=_word_recompute,
)


def _captures_offloaded(x: Layouts, at: Setting) -> Mask:
    host = at.software.host
    captured = max(host.captured_fraction, host.captured_moe_fraction) > 0
    return (x.offload_layers > 0) & ("graphs" in at.software.supports.offload_excludes and captured)


def _word_graphs(case: Case) -> Wording:
    """Megatron-Core: "CUDA graphs not supported with CPU offloading"."""
    must = f"must be 0: {case.software.name} captures graphs (host.captured_fraction)"
    return Wording(must, near=[0])


GRAPHS = Rule(
    field="layout.offload_layers",
    reason="the software cannot combine offloaded activations with captured graphs",
    wrong=_captures_offloaded,
    wording=_word_graphs,
)


def _offloads_all(x: Layouts, at: Setting) -> Mask:
    excluded = "all_layers" in at.software.supports.offload_excludes
    return (x.offload_layers >= at.architecture.layers) & excluded


def _word_all_layers(case: Case) -> Wording:
    """Megatron-Core: "CPU offloading can be done only for layers less than" all of them."""
    most = case.architecture.layers - 1
    must = f"must be at most {most}: {case.software.name} keeps one layer on the device"
    return Wording(must, near=[most])


ALL_LAYERS = Rule(
    field="layout.offload_layers",
    reason="the software cannot offload the activations of all layers",
    wrong=_offloads_all,
    wording=_word_all_layers,
)


# --- states -------------------------------------------------------------------------------------


def _lacks_optimizer_offload(x: Layouts, at: Setting) -> Mask:
    can = at.software.supports
    sharding = among(x.sharding, SHARDINGS, can.optimizer_offload_sharding)
    return (x.optimizer_offload > 0) & ((not can.optimizer_offload) | ~sharding)


def _word_optimizer(case: Case) -> Wording:
    must = f"must be 'none': {case.software.name} does not offload it"
    if case.software.supports.optimizer_offload:
        must = f"must be 'none' with {case.row['sharding']} in {case.software.name}"
    return Wording(must, repr(case.row["optimizer_offload"]))


OPTIMIZER = Rule(
    field="layout.optimizer_offload",
    reason="the software cannot offload the optimizer",
    wrong=_lacks_optimizer_offload,
    wording=_word_optimizer,
)


def _lacks_host_optimizer(x: Layouts, at: Setting) -> Mask:
    return (x.optimizer_offload > 0) & (at.workload.recipe.optimizer not in HOST_OPTIMIZERS)


def _word_host_optimizer(case: Case) -> Wording:
    optimizer = case.workload.recipe.optimizer
    must = f"must be 'none' with {optimizer} (the host has {', '.join(HOST_OPTIMIZERS)})"
    return Wording(must, repr(case.row["optimizer_offload"]))


HOST_OPTIMIZER = Rule(
    field="layout.optimizer_offload",
    reason="the optimizer has no step on the host",
    wrong=_lacks_host_optimizer,
    wording=_word_host_optimizer,
)


def _keeps_8_bit_away(x: Layouts, at: Setting) -> Mask:
    recipe, can = at.workload.recipe, at.software.supports.fp8_weights_offload
    return (x.optimizer_offload > 0) & recipe.fp8_weights & (recipe.precision not in can)


def _word_fp8_weights(case: Case) -> Wording:
    """Megatron-Core: with --fp8-param-gather the optimizer offload needs delayed scaling."""
    can, precision = case.software.supports, case.workload.recipe.precision
    with_these = f" ({', '.join(can.fp8_weights_offload)} can)" if can.fp8_weights_offload else ""
    must = f"must be 'none' with training.fp8_weights in {precision}{with_these}"
    return Wording(must, repr(case.row["optimizer_offload"]))


FP8_WEIGHTS = Rule(
    field="layout.optimizer_offload",
    reason="the software cannot offload the optimizer with these weights in 8 bit alone",
    wrong=_keeps_8_bit_away,
    wording=_word_fp8_weights,
)


def _lacks_parameter_offload(x: Layouts, at: Setting) -> Mask:
    sharded = x.sharding == SHARDINGS.index("zero3")
    return (x.parameter_offload > 0) & ~(sharded & at.software.supports.parameter_offload)


def _word_parameters(case: Case) -> Wording:
    if case.software.supports.parameter_offload:
        must = f"needs sharding = 'zero3' (it is {case.row['sharding']!r})"
    else:
        must = f"must be 'none': {case.software.name} keeps no parameters in host memory"
    return Wording(must, repr(case.row["parameter_offload"]))


PARAMETERS = Rule(
    field="layout.parameter_offload",
    reason="parameters can be offloaded with zero3 only, by software that can",
    wrong=_lacks_parameter_offload,
    wording=_word_parameters,
)


# --- what the server has ------------------------------------------------------------------------


def _lacks_host_link(x: Layouts, at: Setting) -> Mask:
    copies = (x.offload_layers > 0) | (x.parameter_offload > 0)
    copied = copies & (at.cluster.node.host_bytes_per_s is None)
    return copied | ((x.optimizer_offload > 0) & (not _updates_on_host(at.cluster)))


def _updates_on_host(cluster: Cluster) -> bool:
    """Whether the server's profile says how fast copies and updates of its host are."""
    known = (cluster.node.host_bytes_per_s, cluster.node.host_adam_parameters_per_s)
    return all(figure is not None for figure in known)


def _word_host_link(case: Case) -> Wording:
    why = f"the profile of {case.cluster.node.name} has no host_bytes_per_s"
    for name in ("optimizer_offload", "parameter_offload"):
        if case.row[name] != "none":
            return Wording(f"must be 'none': {why}", repr(case.row[name]), field=f"layout.{name}")
    return Wording(f"must be 0: {why}", near=[0])


HOST_LINK = Rule(
    field="layout.offload_layers",
    reason="no figure for copies between accelerator and host",
    wrong=_lacks_host_link,
    wording=_word_host_link,
)


def _on_drives(x: Layouts) -> Mask:
    offload = np.maximum(x.optimizer_offload, x.parameter_offload)
    return np.asarray(offload == OFFLOADS.index("nvme"))


def _asks_for_drives(case: Case) -> str:
    """The field that asks for drives."""
    optimizer = case.row["optimizer_offload"] == "nvme"
    return "layout.optimizer_offload" if optimizer else "layout.parameter_offload"


def _word_drives_support(case: Case) -> Wording:
    must = f"must be 'none' or 'cpu': {case.software.name} keeps no states on NVMe"
    return Wording(must, "'nvme'", field=_asks_for_drives(case))


DRIVES_SUPPORT = Rule(
    field="layout.optimizer_offload",
    reason="the software cannot keep states on NVMe",
    wrong=lambda x, at: _on_drives(x) & (not at.software.supports.nvme_offload),
    wording=_word_drives_support,
)


def _word_drives(case: Case) -> Wording:
    must = f"must be 'none' or 'cpu': the profile of {case.cluster.node.name} has no [nvme]"
    return Wording(must, "'nvme'", field=_asks_for_drives(case))


DRIVES = Rule(
    field="layout.optimizer_offload",
    reason="the server has no NVMe, or none known",
    wrong=lambda x, at: _on_drives(x) & (at.cluster.node.nvme is None),
    wording=_word_drives,
)
