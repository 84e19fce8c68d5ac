"""Which measured collectives a fit may see, and what each of them is.

Only calls of NCCL inside one server, made by nccl-tests under one roof: other libraries, custom
all-reduces, sends within one accelerator, timings through a framework and rows that are excluded
stay out. The server of the L40S joins four and eight of them across its sockets, through the memory
of the host: all its calls tell of such boards, those of two neighbours of any on PCIe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator import catalogue
from simulator.cost.collectives.calls import regimes
from simulator.cost.collectives.curves import Regime
from simulator.cost.collectives.nccl.algorithms import choose
from simulator.hardware.cluster import Cluster, load_cluster, load_library, with_release
from simulator.layout.placement import Group
from simulator.measured.microbenchmarks import read_table
from workshop.facts import facts

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
KINDS = (*OPERATIONS, "all_to_all_older")
"""What stands apart in the tables of residuals."""

_FACTS = facts(__file__)

FAMILIES: Mapping[str, tuple[str, ...]] = {
    name: tuple(curves) for name, curves in _FACTS["families"].items()
}
"""Curves by generation of the links that share what large calls reach."""

DEVICES: Mapping[str, tuple[str, str]] = {
    gpu: (curve, cluster) for gpu, (curve, cluster) in _FACTS["devices"].items()
}
"""Curve and cluster profile of the ``gpu`` of a row; see :func:`_by_board` for ``l40s_host``."""

SOURCE: str = _FACTS["source"]
_SOCKETS, _NEIGHBOURS = _FACTS["across_sockets"]["gpu"], _FACTS["across_sockets"]["neighbours"]
"""The GPU whose server was timed across sockets, and how many share a switch there."""

_WORDS = {"alltoall": "all_to_all"}


@lru_cache(maxsize=1)
def boards() -> dict[str, Cluster]:
    """Clusters by the ``gpu`` of a row, as NCCL's choice sees them."""
    return {gpu: load_cluster(name, 8) for gpu, (_, name) in DEVICES.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveRows:
    """Calls inside one domain, column by column."""

    device: NDArray[np.str_]
    curve: NDArray[np.str_]
    operation: NDArray[np.str_]
    members: NDArray[np.int64]
    size_bytes: NDArray[np.float64]
    integer: NDArray[np.bool_]
    release: NDArray[np.str_]
    """Of NCCL, two numbers: ``2.29``."""
    kind: NDArray[np.str_]
    """The operation, ``all_to_all_older`` for those of older releases."""
    regime: NDArray[np.int64]
    """`Regime` of what NCCL chooses."""
    steps: NDArray[np.int64]
    moved_bytes: NDArray[np.float64]
    measured_s: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.measured_s)

    def take(self, which: NDArray[np.bool_] | NDArray[np.intp]) -> CollectiveRows:
        """Return the rows at a boolean mask or at indices."""
        return replace(self, **{f.name: getattr(self, f.name)[which] for f in fields(self)})


def read_rows(path: Path | str | None = None) -> CollectiveRows:
    """Read the calls that the curves are fitted to (the shipped table if no path is given)."""
    found = path or catalogue.folder("validation") / "microbenchmarks" / "collectives.csv"
    table = read_table(found, "collectives")
    gpu, members = table.text("gpu"), table.text("gpus").astype(float).astype(np.int64)
    word = np.array([_WORDS.get(name, name) for name in table.text("operation").tolist()])
    kept = np.isin(gpu, list(DEVICES)) & np.isin(word, OPERATIONS)
    kept &= np.char.startswith(table.text("source"), SOURCE) & (table.text("excluded") == "")
    kept &= np.char.startswith(table.text("lib_version"), "NCCL")
    rows, gpu = _by_board(np.flatnonzero(kept), gpu, members)
    table, members, word = table.take(rows), members[rows], word[rows]
    size = table.text("message_bytes").astype(float)
    integer = table.text("dtype") == "int8"
    passes = np.where(word == "all_reduce", 2, 1)
    full = [text.removeprefix("NCCL ") for text in table.text("lib_version").tolist()]
    release = np.array([".".join(text.split(".")[:2]) for text in full])
    releases = load_library("nccl").releases
    older = np.isin(release, [name for name, one in releases.items() if one.older_exchange])
    return CollectiveRows(
        kind=np.where((word == "all_to_all") & older, "all_to_all_older", word),
        device=gpu,
        curve=np.array([DEVICES[name][0] for name in gpu.tolist()]),
        operation=word,
        members=members,
        size_bytes=size,
        integer=integer,
        release=release,
        regime=_regime(gpu, word, size, members, integer, release),
        steps=passes * (members - 1),
        moved_bytes=passes * size * (members - 1) / members,
        measured_s=table.text("time_us").astype(float) * 1e-6,
    )


def _by_board(
    rows: NDArray[np.intp], gpu: NDArray[np.str_], members: NDArray[np.int64]
) -> tuple[NDArray[np.intp], NDArray[np.str_]]:
    """Rows and the devices that they tell of, those that tell of two boards twice."""
    sockets = gpu[rows] == _SOCKETS
    row = rows[~sockets | (members[rows] <= _NEIGHBOURS)]
    across = rows[sockets]
    names = np.concatenate([gpu[row], np.full(len(across), f"{_SOCKETS}_host")])
    return np.concatenate([row, across]), names


def _regime(
    gpu: NDArray[np.str_],
    operation: NDArray[np.str_],
    size_bytes: NDArray[np.float64],
    members: NDArray[np.int64],
    integer: NDArray[np.bool_],
    release: NDArray[np.str_],
) -> NDArray[np.int64]:
    """`Regime` of what NCCL chooses."""
    ones = np.ones(len(gpu), dtype=np.int64)
    for name, newest in boards().items():
        for number in np.unique(release[gpu == name]).tolist():
            cluster = with_release(newest, number)
            own = (gpu == name) & (release == number)
            for kind in OPERATIONS:
                rows = own & (operation == kind)
                size, n = size_bytes[rows], members[rows]
                if kind == "all_to_all":
                    small = float(cluster.library.releases[number].send_ll_bytes)
                    ones[rows] = np.where(size / n <= small, Regime.LL, Regime.BULK)
                    continue
                group = Group(size=n, local=n)
                code = choose(cluster, kind, size, group, integer=integer[rows])
                ones[rows] = regimes(cluster, code)
    return ones
