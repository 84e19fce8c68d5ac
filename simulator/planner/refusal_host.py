"""Why a layout cannot keep activations, optimizer or parameters in host memory."""

from __future__ import annotations

from simulator.planner.case import Case
from simulator.workload.recipe import HOST_OPTIMIZERS

__all__ = [
    *("host_optimizer", "no_host_link", "offload", "offload_layers"),
    *("no_drives", "no_nvme_support", "optimizer_offload", "parameter_offload"),
]


def offload_layers(case: Case) -> str:
    most = -(-case.scenario.workload.architecture.layers // case.row["pp"])
    rule = f"must be at most the {most} layers of a pipeline rank"
    return case.line("layout.offload_layers", rule, near=[most])


def offload(case: Case) -> str:
    name = case.scenario.software.name
    if case.scenario.software.supports.offload:
        rule = f"must be 0 with pp > 1: {name} offloads without pipeline stages only"
    else:
        rule = f"must be 0: {name} keeps no activations in host memory"
    return case.line("layout.offload_layers", rule, near=[0])


def no_host_link(case: Case) -> str:
    node = case.scenario.cluster.node.name
    for name in ("optimizer_offload", "parameter_offload"):
        if case.row[name] != "none":
            rule = f"must be 'none': the profile of {node} has no host_bytes_per_s"
            return case.line(f"layout.{name}", rule, repr(case.row[name]))
    rule = f"must be 0: the profile of {node} has no host_bytes_per_s"
    return case.line("layout.offload_layers", rule, near=[0])


def optimizer_offload(case: Case) -> str:
    name = case.scenario.software.name
    rule = f"must be 'none': {name} does not offload it"
    return case.line("layout.optimizer_offload", rule, repr(case.row["optimizer_offload"]))


def host_optimizer(case: Case) -> str:
    optimizer = case.scenario.workload.recipe.optimizer
    rule = f"must be 'none' with {optimizer} (the host has {', '.join(HOST_OPTIMIZERS)})"
    return case.line("layout.optimizer_offload", rule, repr(case.row["optimizer_offload"]))


def parameter_offload(case: Case) -> str:
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
