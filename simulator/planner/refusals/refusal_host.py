"""Why a layout cannot keep activations, optimizer or parameters in host memory."""

from __future__ import annotations

from simulator.planner.refusals.case import Case
from simulator.workload.recipe import HOST_OPTIMIZERS

__all__ = [
    "fp8_weights",
    "host_optimizer",
    "no_drives",
    "no_graphs",
    "no_host_link",
    "no_nvme_support",
    "no_recompute",
    "offload",
    "offload_layers",
    "one_layer_stays",
    "optimizer_offload",
    "parameter_offload",
]


def offload_layers(case: Case) -> str:
    """Word why `offload_layers` cannot be."""
    most = -(-case.scenario.workload.architecture.layers // case.row["pp"])
    rule = f"must be at most the {most} layers of a pipeline rank"
    return case.line("layout.offload_layers", rule, near=[most])


def offload(case: Case) -> str:
    """Word why `offload` cannot be."""
    name = case.scenario.software.name
    if case.scenario.software.supports.offload:
        rule = f"must be 0 with pp > 1: {name} offloads without pipeline stages only"
    else:
        rule = f"must be 0: {name} keeps no activations in host memory"
    return case.line("layout.offload_layers", rule, near=[0])


def no_host_link(case: Case) -> str:
    """Word why `no_host_link` cannot be."""
    node = case.scenario.cluster.node.name
    for name in ("optimizer_offload", "parameter_offload"):
        if case.row[name] != "none":
            rule = f"must be 'none': the profile of {node} has no host_bytes_per_s"
            return case.line(f"layout.{name}", rule, repr(case.row[name]))
    rule = f"must be 0: the profile of {node} has no host_bytes_per_s"
    return case.line("layout.offload_layers", rule, near=[0])


def optimizer_offload(case: Case) -> str:
    """Word why `optimizer_offload` cannot be."""
    name, can = case.scenario.software.name, case.scenario.software.supports
    rule = f"must be 'none': {name} does not offload it"
    if can.optimizer_offload:
        rule = f"must be 'none' with {case.row['sharding']} in {name}"
    return case.line("layout.optimizer_offload", rule, repr(case.row["optimizer_offload"]))


def host_optimizer(case: Case) -> str:
    """Word an optimizer that the host cannot step."""
    optimizer = case.scenario.workload.recipe.optimizer
    rule = f"must be 'none' with {optimizer} (the host has {', '.join(HOST_OPTIMIZERS)})"
    return case.line("layout.optimizer_offload", rule, repr(case.row["optimizer_offload"]))


def parameter_offload(case: Case) -> str:
    """Word parameters that cannot wait in host memory."""
    software = case.scenario.software
    if software.supports.parameter_offload:
        rule = f"needs sharding = 'zero3' (it is {case.row['sharding']!r})"
    else:
        rule = f"must be 'none': {software.name} keeps no parameters in host memory"
    return case.line("layout.parameter_offload", rule, repr(case.row["parameter_offload"]))


def no_nvme_support(case: Case) -> str:
    """The software has no third tier."""
    rule = f"must be 'none' or 'cpu': {case.scenario.software.name} keeps no states on NVMe"
    return case.line(f"layout.{_on_nvme(case)}", rule, "'nvme'")


def no_drives(case: Case) -> str:
    """The server's profile has no drives."""
    node = case.scenario.cluster.node.name
    rule = f"must be 'none' or 'cpu': the profile of {node} has no [nvme]"
    return case.line(f"layout.{_on_nvme(case)}", rule, "'nvme'")


def _on_nvme(case: Case) -> str:
    """The field that asks for NVMe."""
    asks = case.row["optimizer_offload"] == "nvme"
    return "optimizer_offload" if asks else "parameter_offload"


def no_recompute(case: Case) -> str:
    """Megatron-Core: "CPU offloading does not work when activation recomputation is enabled"."""
    rule = f"must be 0 with recompute = {case.row['recompute']!r} in {case.scenario.software.name}"
    return case.line("layout.offload_layers", rule, near=[0])


def no_graphs(case: Case) -> str:
    """Megatron-Core: "CUDA graphs not supported with CPU offloading"."""
    rule = f"must be 0: {case.scenario.software.name} captures graphs (host.captured_fraction)"
    return case.line("layout.offload_layers", rule, near=[0])


def one_layer_stays(case: Case) -> str:
    """Megatron-Core: "CPU offloading can be done only for layers less than" all of them."""
    most = case.scenario.workload.architecture.layers - 1
    rule = f"must be at most {most}: {case.scenario.software.name} keeps one layer on the device"
    return case.line("layout.offload_layers", rule, near=[most])


def fp8_weights(case: Case) -> str:
    """Megatron-Core: with --fp8-param-gather the optimizer offload needs delayed scaling."""
    can, precision = case.scenario.software.supports, case.scenario.workload.recipe.precision
    with_these = f" ({', '.join(can.fp8_weights_offload)} can)" if can.fp8_weights_offload else ""
    rule = f"must be 'none' with training.fp8_weights in {precision}{with_these}"
    return case.line("layout.optimizer_offload", rule, repr(case.row["optimizer_offload"]))
