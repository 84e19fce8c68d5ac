"""Time of host memory: copies of activations and states, and the optimizer step of the host.

ZeRO-Offload (Ren et al. 2021) sends gradients to the host behind the backward pass, updates there,
and sends 16-bit weights back while it updates; ZeRO-Infinity (Rajbhandari et al. 2021) brings each
layer's parameters back for both passes, and has drives where the host's memory is too small.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, by_key
from simulator.cost.memory.peak import host_share, kept_bytes, saved_mode
from simulator.cost.tables import Priced
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import OFFLOADS, Layouts

CPU, NVME = OFFLOADS.index("cpu"), OFFLOADS.index("nvme")

_FP32 = 4.0


def uses_host(layouts: Layouts) -> bool:
    """Whether any layout keeps model states in host memory."""
    return bool(layouts.optimizer_offload.any() or layouts.parameter_offload.any())


def activation_copies_s(
    priced: Priced,
    layouts: Layouts,
    block_key: NDArray[Any],
    held: tuple[Floats, Floats, Floats],
    slowest: NDArray[Any],
    *,
    m: Floats,
    passes_s: tuple[Floats, Floats],
) -> tuple[Floats, Floats]:
    """Exposed and hidden copies of activations to the host and back, on the slowest stage.

    `held` are the blocks that ranks hold, of which some are offloaded and some recomputed; shape
    (layouts, columns, parts). Each way hides behind its pass of `passes_s`. Shapes (layouts,).
    """
    moved = offloaded_bytes(priced, layouts, block_key, held, slowest)
    one_way_s = moved / float(priced.cluster.node.host_bytes_per_s or np.inf)
    return _behind(one_way_s, m, passes_s)


def offloaded_bytes(
    priced: Priced,
    layouts: Layouts,
    block_key: NDArray[Any],
    held: tuple[Floats, Floats, Floats],
    slowest: NDArray[Any],
) -> Floats:
    """Activations of one micro-batch that the slowest stage sends to host memory, (layouts,)."""
    moved: Floats = np.zeros(len(slowest))
    if not held[1].any():
        return moved
    at = np.arange(len(slowest))
    parts, away, again = (x[at, slowest] for x in held)
    mode = saved_mode(layouts)
    for part in range(parts.shape[1] - 2):
        count = parts[:, part][:, None]
        whole = kept_bytes(
            priced.blocks,
            mode,
            block_key,
            part,
            flying=count,
            count=count,
            again=again[:, part][:, None],
        )[:, 0]
        moved = moved + whole * away[:, part] / np.maximum(count[:, 0], 1.0)
    return moved


def host_step_s(
    priced: Priced, layouts: Layouts, state_key: NDArray[Any], m: Floats, window_s: Floats
) -> tuple[Floats, Floats, Floats]:
    """Optimizer step shared by device and host, and the gradients on their way to it.

    Parameters
    ----------
    priced, layouts, state_key : Priced, Layouts, ndarray
        Some rows of a priced table and their state keys.
    m : ndarray
        Micro-batches; gradients go to the host after each where the software adds them up there.
    window_s : ndarray
        A backward pass of every rank, which one copy may hide behind, shape (layouts, columns).

    Returns
    -------
    step_s, shown_s, hidden_s : ndarray
        Seconds of the optimizer step, and of exposed and hidden copies of gradients, on the rank
        that shows most, or where all are hidden copies most; (layouts,).
    """
    device_s, host_s, copy_s, times = host_parts_s(priced, layouts, state_key, m)
    whole_s, shown_s = times * copy_s, times * np.maximum(copy_s - window_s, 0.0)
    worst = np.where(shown_s.any(axis=1), shown_s.argmax(axis=1), whole_s.argmax(axis=1))
    at = np.arange(len(worst))
    shown = shown_s[at, worst]
    return np.maximum(device_s, host_s).max(axis=1), shown, whole_s[at, worst] - shown


def host_parts_s(
    priced: Priced, layouts: Layouts, state_key: NDArray[Any], m: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """Device's and host's part of the optimizer step, one copy of gradients, and how many come.

    The device's part and the host's run at the same time (Twin-Flow of ZeRO-Offload++); on the
    host the update, the way back and the way from and to the drives overlap, tile by tile. Ranks
    of a server share its processors and drives. Shapes (layouts, columns), the last (layouts, 1).
    """
    share = host_share(layouts, priced.workload.recipe)[:, None]
    down, up, parameters, held = priced.states.host_step[:, state_key, :]
    link = float(priced.cluster.node.host_bytes_per_s or np.inf)
    rate = _adam_parameters_per_s(priced.cluster)
    back_s = np.where(layouts.parameter_offload[:, None] > 0, 0.0, up / link)
    passing_s = _drives_s(priced.cluster, layouts, parameters, held, up)
    host_s = share * np.maximum(np.maximum(parameters / rate, back_s), passing_s)
    device_s = (1.0 - share) * priced.states.optimizer_s[state_key]
    times = (
        m[:, None] if priced.software.deepspeed_zero.offloads_gradients else np.ones((len(m), 1))
    )
    return device_s, host_s, share * down / link, times


def parameter_copies_s(
    priced: Priced,
    layouts: Layouts,
    state_key: NDArray[Any],
    m: Floats,
    slowest: NDArray[Any],
    passes_s: tuple[Floats, Floats],
) -> tuple[Floats, Floats]:
    """Exposed and hidden copies of parameter shards to the device, on the slowest stage.

    They come for both passes of every micro-batch, each behind its pass. Shapes (layouts,).
    """
    held = priced.states.state_bytes[0, state_key, slowest]
    link = float(priced.cluster.node.host_bytes_per_s or np.inf)
    copy_s = np.where(layouts.parameter_offload > 0, held / link, 0.0)
    if (layouts.parameter_offload == NVME).any():
        read_s = held / _drive_rates(priced.cluster)[0]
        copy_s = np.where(layouts.parameter_offload == NVME, np.maximum(copy_s, read_s), copy_s)
    return _behind(copy_s, m, passes_s)


def _behind(copy_s: Floats, m: Floats, passes_s: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """What shows of m copies behind either pass, and what is hidden."""
    shown = np.zeros_like(copy_s)
    for beside_s in passes_s:
        shown = shown + np.maximum(copy_s - beside_s, 0.0)
    return m * shown, m * (2.0 * copy_s - shown)


def _drives_s(
    cluster: Cluster, layouts: Layouts, parameters: Floats, states: Floats, weights: Floats
) -> Floats:
    """Seconds in which the drives give and take what one optimizer step needs of them.

    States are read and written; fp32 gradients, which wait beside them, written and read;
    parameters that wait there written (DeepSpeed, runtime/swap_tensor). The drives read and write
    in turn.
    """
    seconds = np.zeros_like(states)
    if not uses_drives(layouts):
        return seconds
    read, write = _drive_rates(cluster)
    both = 1.0 / read + 1.0 / write
    seconds = np.where(
        (layouts.optimizer_offload == NVME)[:, None], (states + _FP32 * parameters) * both, seconds
    )
    return seconds + np.where((layouts.parameter_offload == NVME)[:, None], weights / write, 0.0)


def _drive_rates(cluster: Cluster) -> tuple[float, float]:
    """One rank's share of what the drives of its server read and write in a second."""
    drives, ranks = cluster.node.nvme, min(cluster.node.accelerators, cluster.gpus)
    if drives is None:
        return np.inf, np.inf
    return float(drives.read_bytes_per_s) / ranks, float(drives.write_bytes_per_s) / ranks


def uses_drives(layouts: Layouts) -> bool:
    """Whether any layout keeps model states on local drives."""
    return bool(((layouts.optimizer_offload == NVME) | (layouts.parameter_offload == NVME)).any())


def offloaded_by_tier(
    priced: Priced, layouts: Layouts, state_key: NDArray[Any], activations: Floats
) -> dict[str, Floats]:
    """Bytes that a server keeps in host memory and on its drives: its fullest rank's times ranks.

    `activations` of one rank wait in host memory; optimizer states with the fp32 gradients of
    their step, and parameters, on the tier that the layout says. Shape (layouts,).
    """
    ranks = min(priced.cluster.node.accelerators, priced.cluster.gpus)
    if not uses_host(layouts):
        return {"host": ranks * activations, "nvme": np.zeros(len(layouts))}
    share = host_share(layouts, priced.workload.recipe)[:, None]
    _, _, parameters, held = by_key(priced.states.host_step, state_key, 1)
    states = share * (held + _FP32 * parameters)
    weights = by_key(priced.states.state_bytes[0], state_key)
    size_bytes = {}
    for name, tier in (("host", CPU), ("nvme", NVME)):
        away = np.where((layouts.optimizer_offload == tier)[:, None], states, 0.0)
        away = away + np.where((layouts.parameter_offload == tier)[:, None], weights, 0.0)
        size_bytes[name] = ranks * away.max(axis=1)
    size_bytes["host"] = size_bytes["host"] + ranks * activations
    return size_bytes


def room_bytes(cluster: Cluster) -> dict[str, float]:
    """Bytes that host memory and drives of one server hold; infinite where not known."""
    host, drives = cluster.node.host_memory_bytes, cluster.node.nvme
    return {
        "host": np.inf if host is None else float(host),
        "nvme": np.inf if drives is None else float(drives.capacity_bytes),
    }


def _adam_parameters_per_s(cluster: Cluster) -> float:
    """Parameters that one rank's share of the host processors updates in a second."""
    ranks = min(cluster.node.accelerators, cluster.gpus)
    return float(cluster.node.host_adam_parameters_per_s or np.nan) / ranks
