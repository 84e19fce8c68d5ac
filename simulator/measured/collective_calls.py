"""Rows of tables of collectives and of expert all-to-all as calls that can be priced.

A call is an operation on so many bytes over a group of ranks, of which some share a server. Rows
that there is no formula or no cluster for are skipped with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress

import numpy as np

from simulator import catalogue
from simulator.arrays import Bools, Floats, Ints
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.layout.placement import Group
from simulator.measured.microbenchmarks import (
    Sieve,
    Table,
    Texts,
    Words,
    groups,
    profiles,
    refuse_impossible,
)
from simulator.records import dataclass
from simulator.workload.modules import MOST_PICKS

_OPERATIONS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "sendrecv": "send",
    "send_recv": "send",
    "broadcast": "broadcast",
    "reduce": "reduce",
}

_NO_FORMULA = {"all_reduce_custom": "the all-reduce of another library"}

_SERIES = (
    "operation",
    "system",
    "gpu",
    "gpus",
    "nodes",
    "dtype",
    "lib_version",
    "placement",
    "source",
)
"""Columns in which calls agree that differ in their size alone."""
_QUARTER_LONGER = 1.25
_CONTRADICTED = "contradicted: a quarter longer than a call at least as large"

_A2A = {"NCCL": "all_to_all", "DeepEP": "dispatch"}
"""How a library of expert all-to-all moves tokens: each copy by itself, or tokens once."""

_POINT_TO_POINT = "torch.distributed"
"""Where a send was timed as a call of torch's own, one rank sends and the other receives; in
nccl-tests every rank does both."""
_WHOLE = ("send", "one_way_send", "broadcast", "reduce")
"""What a rank sends or receives all of."""
_UNITS = 20.0
_NUMBER = re.compile(r"\d+(\.\d*)?")
_ELEMENT_BYTES = 2.0
"""What an all-to-all moves per element where training is priced (cost/operators/mlp.py)."""

DEEPEP_DISPATCH_BYTES = 1.0 + 4.0 / 128.0
"""DeepEP's timings dispatch fp8 with an fp32 scale for 128 elements (its README); what comes back
is 16 bit."""
DEEPEP_MOST_SERVERS = 4
"""Servers that a token goes to at most in DeepEP's normal mode over several: its test draws from
the best min(servers, 4) groups (tests/test_internode.py), as DeepSeek-V3 routes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveCalls:
    """One table, column by column; what the sieve has skipped is blank, NaN or a group of one."""

    sieve: Sieve
    operation: Texts
    """all_reduce, all_gather, reduce_scatter, all_to_all, send (another one comes in meanwhile),
    one_way_send or dispatch (DeepEP, both ways)."""
    label: Texts
    """What to call it in a table of errors: ``dispatch`` and ``combine`` are all-to-alls."""
    library: Texts
    dtype: Texts
    cluster: Texts
    """Cluster profile."""
    size_bytes: Floats
    """As the formulas take it: the gathered or reduced buffer, or what one rank sends."""
    row_bytes: Floats
    """Of one token; zero where there are none."""
    release: Texts
    """Of the collective library, two numbers; blank where the row does not say."""
    units: Floats
    """Compute units that a dispatch or combine was given; 20, DeepEP's default, where not said."""
    copies: Ints
    """Experts per token; 1 where there are none."""
    experts: Ints
    """Of how many."""
    group: Group
    starts: Floats
    """Accelerators on which one host thread starts a call, one after another."""
    measured_s: Floats
    clusters: Mapping[str, Cluster]


def read_collectives(table: Table, words: Words) -> CollectiveCalls:
    """Tell what each row of a table of nccl-tests times is, and skip what cannot be priced."""
    sieve, text = Sieve(table), table.text("operation")
    sieve.known("operation", {*_OPERATIONS, *_NO_FORMULA})
    for name, what in _NO_FORMULA.items():
        sieve.skip(f"no formula for {what}", text == name)
    sieve.skip(_CONTRADICTED, _contradicted(table))
    label = np.array([_OPERATIONS.get(word, "") for word in text.tolist()])
    one_way = (label == "send") & (table.text("placement") == _POINT_TO_POINT)
    operation = np.where(one_way, "one_way_send", label)
    dtype = np.array([words.types.get(word, word) for word in table.text("dtype").tolist()])
    every = np.ones(len(table), dtype=bool)
    return _calls(
        sieve,
        words,
        operation=operation,
        label=label,
        library=table.text("lib_version"),
        dtype=dtype,
        copies=np.ones(len(table)),
        experts=np.ones(len(table)),
        release=_releases(table.text("lib_version")),
        units=np.full(len(table), _UNITS),
        row_bytes=np.zeros(len(table)),
        size_bytes=sieve.positive("message_bytes", every),
        measured_s=sieve.positive("time_us", every) * 1e-6,
    )


def read_a2a(table: Table, words: Words) -> CollectiveCalls:
    """Tell what each dispatch and combine of a table of expert all-to-all is.

    A row that holds both is two calls: first come the dispatches of all rows, then the combines.
    """
    combines = (table.text("combine_us") != "") | (table.text("combine_GBps") != "")
    dispatches = ~combines | (table.text("dispatch_us") != "") | (table.text("dispatch_GBps") != "")
    table = table.take(np.concatenate([np.flatnonzero(dispatches), np.flatnonzero(combines)]))
    label = np.repeat(["dispatch", "combine"], [dispatches.sum(), combines.sum()])
    sieve, library = Sieve(table), table.text("library")
    sieve.refuse(library == "", "library", "required field is blank")
    family = np.array([word.partition(" ")[0] for word in library.tolist()], dtype=str)
    other = sieve.kept & ~np.isin(family, list(_A2A))
    for (name, what), rows in list(groups(other, family, label)):
        sieve.skip(f"no formula for {name} {what} yet", table.at(rows))
    low_latency = (family == "DeepEP") & (table.text("mode") == "low_latency")
    unknown = (family == "DeepEP") & ~np.isin(table.text("mode"), ["normal", "low_latency"])
    sieve.skip_each("no formula for DeepEP {} yet", unknown, "mode")
    tokens, hidden = (sieve.positive(name, sieve.kept) for name in ("tokens_per_rank", "hidden"))
    copies = sieve.positive("topk", sieve.kept)
    sieve.refuse(copies % 1.0 > 0.0, "topk", "must be a whole number")
    sieve.refuse(copies > MOST_PICKS, "topk", f"must be at most {MOST_PICKS}")
    once = family == "DeepEP"
    experts = np.where(once, sieve.positive("experts", sieve.kept & once), copies)
    sieve.refuse(once & (experts < copies), "experts", "must be at least topk")
    narrow = once & (label == "dispatch")
    element_bytes = np.where(narrow, DEEPEP_DISPATCH_BYTES, _ELEMENT_BYTES)
    sent = np.where(once, 1.0, copies)
    dispatch = sieve.positive("dispatch_us", label == "dispatch")
    combine = sieve.positive("combine_us", label == "combine")
    return _calls(
        sieve,
        words,
        operation=np.where(
            low_latency, "low_latency_dispatch", [_A2A.get(w, "") for w in family.tolist()]
        ),
        release=np.full(len(table), ""),
        units=_units(table, label),
        label=label,
        library=_with_units(table, label),
        dtype=np.where(narrow, "fp8", "bf16"),
        copies=copies,
        experts=experts,
        size_bytes=tokens * hidden * sent * element_bytes,
        row_bytes=hidden * element_bytes,
        measured_s=np.where(label == "combine", combine, dispatch) * 1e-6,
    )


def _contradicted(table: Table) -> Bools:
    """Calls that took a quarter longer than one at least as large of the same series."""
    columns = [table.text(name) for name in _SERIES]
    zeros = np.zeros(len(table), dtype=bool)
    size, took = (_or_nan(table.text(name)) for name in ("message_bytes", "time_us"))
    for _, rows in groups(np.isfinite(size) & np.isfinite(took), *columns):
        order = rows[np.argsort(size[rows], kind="stable")]
        shortest = np.minimum.accumulate(took[order][::-1])[::-1]
        first = np.searchsorted(size[order], size[order])  # where calls of the same size begin
        zeros[order] = took[order] > _QUARTER_LONGER * shortest[first]
    return zeros


def _or_nan(text: Texts) -> Floats:
    """Numbers of a column, NaN for what is none: that is refused where the column is read."""
    full = np.full(len(text), np.nan)
    for row, word in enumerate(text.tolist()):
        with suppress(ValueError):
            full[row] = float(word)
    return full


def _releases(text: Texts) -> Texts:
    """First two numbers of a release of NCCL; blank for anything else."""
    matches = [re.match(r"NCCL (\d+\.\d+)", word) for word in text.tolist()]
    return np.array([match[1] if match else "" for match in matches], dtype=str)


def _units(table: Table, label: Texts) -> Floats:
    """Compute units that each call was given."""
    where = np.where(label == "combine", table.text("combine_sms"), table.text("dispatch_sms"))
    return np.array([float(word) if _NUMBER.fullmatch(word) else _UNITS for word in where.tolist()])


def _with_units(table: Table, label: Texts) -> Texts:
    """Library, and the multiprocessors that it was given where the row says so."""
    combine = label == "combine"
    tolist = np.where(combine, table.text("combine_sms"), table.text("dispatch_sms")).tolist()
    pairs = zip(table.text("library").tolist(), tolist, strict=True)
    named = (f"{name}, {sms.removesuffix('.0')} SMs" if sms else name for name, sms in pairs)
    return np.array(list(named), dtype=str)


def _calls(
    sieve: Sieve,
    words: Words,
    *,
    operation: Texts,
    label: Texts,
    library: Texts,
    dtype: Texts,
    size_bytes: Floats,
    measured_s: Floats,
    copies: Floats,
    experts: Floats,
    release: Texts,
    units: Floats,
    row_bytes: Floats,
) -> CollectiveCalls:
    """Add cluster and group, and refuse what no link could do."""
    cluster = _cluster(sieve, words)
    clusters = {name: load_cluster(name, 1) for name in np.unique(cluster[sieve.kept]).tolist()}
    gpus, servers = _servers(sieve, cluster, clusters)
    _skip_unknown_networks(sieve, words, servers)
    calls = CollectiveCalls(
        sieve=sieve,
        operation=operation,
        label=label,
        library=library,
        dtype=dtype,
        cluster=cluster,
        release=release,
        units=units,
        size_bytes=size_bytes,
        row_bytes=row_bytes,
        measured_s=measured_s,
        clusters=clusters,
        copies=np.where(sieve.kept, copies, 1.0).astype(np.intp),
        experts=np.where(sieve.kept, experts, 1.0).astype(np.intp),
        group=_group(sieve, cluster, clusters, gpus, servers),
        starts=_starts(sieve, gpus),
    )
    _check_links(calls)
    return calls


# --- cluster and group -------------------------------------------------------------------


def _cluster(sieve: Sieve, words: Words) -> Texts:
    """Cluster of each row: that of its system, else of its GPU."""
    names = set(catalogue.names("clusters"))
    systems = (words.systems.get(word, word) for word in sieve.table.text("system").tolist())
    named = np.array([name if name in names else "" for name in systems], dtype=str)
    return np.where(named == "", profiles(sieve, "clusters", words.clusters, named == ""), named)


def _skip_unknown_networks(sieve: Sieve, words: Words, servers: Floats) -> None:
    """Skip calls between servers whose cluster the GPU alone has told: servers it may, not more."""
    text = sieve.table.text
    known = {*catalogue.names("clusters"), *words.systems}
    between = (
        (servers > 1.0) & ~np.isin(text("system"), list(known)) & ~np.isin(text("gpu"), list(known))
    )
    sieve.skip("no system stated, so that the network is unknown", between & (text("system") == ""))
    sieve.skip_each("no cluster profile for {}", between, "system")


def _servers(
    sieve: Sieve, cluster: Texts, clusters: Mapping[str, Cluster]
) -> tuple[Floats, Floats]:
    """Ranks of each call, and servers that they are on: where blank, as few as will do."""
    gpus = sieve.positive("gpus", sieve.kept)
    sieve.refuse((gpus < 2.0) | (gpus % 1.0 > 0.0), "gpus", "must be a whole number from 2 on")
    sizes = {name: float(found.node.accelerators) for name, found in clusters.items()}
    room = np.array([sizes.get(name, np.nan) for name in cluster.tolist()])
    stated = sieve.table.text("nodes") != ""
    fewest = np.ceil(gpus / room)
    servers = np.where(stated, sieve.positive("nodes", sieve.kept & stated), fewest)
    sieve.refuse(stated & ~(servers % 1.0 == 0.0), "nodes", "must be a whole number")
    each = gpus / servers
    rule = "must be equal parts of no more than the servers hold"
    sieve.refuse((each % 1.0 > 0.0) | (each > room), "gpus", rule)
    return gpus, servers


def _starts(sieve: Sieve, gpus: Floats) -> Floats:
    """Accelerators of each host thread; one where the row does not say how many threads ran."""
    stated = sieve.table.text("threads") != ""
    threads = np.where(stated, sieve.positive("threads", sieve.kept & stated), gpus)
    sieve.refuse(threads > gpus, "threads", "must be no more than gpus")
    return np.ceil(gpus / threads)


def _group(
    sieve: Sieve, cluster: Texts, clusters: Mapping[str, Cluster], gpus: Floats, servers: Floats
) -> Group:
    """Ranks and how many of them share a scale-up domain, which may span servers."""
    size, local = np.ones(len(gpus), dtype=np.int64), np.ones(len(gpus), dtype=np.int64)
    for (name, count, on), rows in groups(
        sieve.kept, cluster, gpus.astype(str), servers.astype(str)
    ):
        node, ranks = clusters[name].node, int(float(count))
        size[rows], local[rows] = ranks, ranks // int(float(on))
        if node.scale_up.domain > node.accelerators:
            most = min(node.scale_up.domain, ranks)
            local[rows] = next(part for part in range(most, 0, -1) if ranks % part == 0)
    return Group(size=size, local=local)


def _check_links(calls: CollectiveCalls) -> None:
    """Refuse calls that are faster than the links of one GPU.

    What every rank must send or receive: all of the buffer where the switch reduces, else (n - 1)
    in n parts of it, twice for an all-reduce.
    """
    n = calls.group.size.astype(float)
    part = (n - 1.0) / n
    least_s = np.full(len(n), np.nan)
    for (name, operation), rows in groups(calls.sieve.kept, calls.cluster, calls.operation):
        links = calls.clusters[name].node.scale_up
        whole = operation in _WHOLE or (operation == "all_reduce" and links.nvls_bytes_per_s)
        share = 1.0 if whole else part[rows] * (2.0 if operation == "all_reduce" else 1.0)
        rate = float(links.bandwidth_bytes_per_s)
        least_s[rows] = share * calls.size_bytes[rows] / rate
    experts = {"dispatch": "dispatch_us", "combine": "combine_us"}
    column = np.array([experts.get(word, "time_us") for word in calls.label.tolist()])
    for name in np.unique(column).tolist():
        refuse_impossible(
            calls.sieve,
            name,
            column == name,
            measured_s=calls.measured_s,
            least_s=least_s,
            limit="link rate",
        )
