"""A table of offers: what providers ask for an accelerator's hour, with dates and sources.

A CSV with the columns of `COLUMNS`; `grade` may be added. Each row is put on a cluster profile: its
instance where that is the name of one, else the usual server of its GPU
(hardware_profiles/offer_servers.toml).
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from functools import lru_cache
from math import log
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, get_args

import numpy as np

from simulator import catalogue
from simulator.economics.price import Price, Term
from simulator.errors import InputError, did_you_mean, problem
from simulator.files import Figure, build, check_header, read_columns, read_csv, read_toml, record
from simulator.hardware.cluster import clusters_meant
from simulator.records import dataclass
from simulator.units import P90

COLUMNS = (
    *("provider", "instance", "gpu", "gpus", "term", "usd_per_gpu_hour", "egress_usd_per_gb"),
    *("storage_usd_per_gb_month", "date", "source"),
)
"""Of a table; all but instance, egress and storage must be filled."""

_TERMS = tuple(term for term in get_args(Term) if term != "owned")
_GRADES = ("datasheet", "assumed")

_FEWEST = 5
"""Published offers of a GPU and term from which on they tell how far prices are apart."""


@record
class UsualServers:
    """Cluster profiles by words for GPUs, as hardware_profiles/offer_servers.toml has them."""

    servers: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Quote:
    """One row of a table of offers."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("provider", "instance?", "gpu", "gpus", "term", "usd_per_gpu_hour"),
        *("egress_usd_per_gb", "storage_usd_per_gb_month", "date", "source", "grade", "cluster"),
    )

    provider: str
    instance: str = ""
    gpu: str
    gpus: int
    """Accelerators of an instance: fewer are not to be had."""
    term: Term
    usd_per_gpu_hour: float
    egress_usd_per_gb: float | None = None
    storage_usd_per_gb_month: float | None = None
    date: str
    source: str
    grade: str = "datasheet"
    cluster: str
    """Name of the profile that it is put on."""

    @property
    def label(self) -> str:
        """Whose offer it is, of what, on which terms."""
        return f"{self.provider} {self.instance or self.gpu}, {self.term}"

    def price(self, site: str) -> Price:
        """Return it as the price of an hour, power included."""
        spread = price_spread(self.gpu, self.term) if self.grade == "assumed" else None
        figure = Figure(self.usd_per_gpu_hour, self.grade, self.source, self.date, spread)
        return Price(
            name=self.label,
            provider=self.provider,
            term=self.term,
            base="offer",
            usd_per_gpu_hour=figure,
            included_power=True,
            site=site,
        )


def read_quotes(path: Path | str) -> list[Quote]:
    """Read a table of offers; ``published`` is the one that is shipped.

    Raises
    ------
    InputError
        With every wrong cell of the table.
    """
    place = Path(path)
    if str(path) == "published":
        place = catalogue.folder("hardware_profiles") / "offers" / "published.csv"
    quotes: list[Quote] = []
    problems: list[str] = []
    for line, row in read_csv(place):
        if not quotes and not problems:
            check_header(place, row, required=COLUMNS, known=(*COLUMNS, "grade"))
        made = _quote({name: word.strip() for name, word in row.items()}, f"{path}: line {line}")
        if isinstance(made, Quote):
            quotes.append(made)
        else:
            problems += made
    if not quotes and not problems:
        problems.append(f"{path}: must have an offer at least, got none")
    if problems:
        raise InputError(problems)
    return quotes


@lru_cache(maxsize=64)
def price_spread(gpu: str, term: Term) -> float:
    """Relative standard deviation of what providers ask for one GPU on one term.

    From P10 to P90 of the logarithms of published offers; where fewer than `_FEWEST` were published
    of the GPU and term, of all offers over the median of their own.

    Examples
    --------
    H100 on demand is 2.25 to 6.88 USD in seven offers:

    >>> round(price_spread("H100", "on demand"), 2)
    0.31
    """
    shipped = read_columns(catalogue.folder("hardware_profiles") / "offers" / "published.csv")
    servers = {name: _server(name) for name in set(shipped["gpu"])}
    groups: dict[tuple[str | None, str], list[float]] = {}
    for name, of, usd in zip(
        shipped["gpu"], shipped["term"], shipped["usd_per_gpu_hour"], strict=True
    ):
        groups.setdefault((servers[name], of), []).append(log(float(usd)))
    asked = groups.get((_server(gpu), term), [])
    if len(asked) < _FEWEST:
        asked = [usd - median(some) for some in groups.values() if len(some) > 1 for usd in some]
    low, high = np.quantile(asked, [0.1, 0.9])
    return float(high - low) / (2.0 * P90)


def quotes_on(
    table: Path | str | None, clusters: Sequence[str], *, where: str
) -> tuple[list[Quote], list[str]]:
    """Read a table of offers, if there is one, and the clusters that are compared by it.

    Of `clusters` each may name accelerators, or all.

    Raises
    ------
    InputError
        With every wrong cell, or a cluster that no row is put on.
    """
    if table is None:
        return [], list(dict.fromkeys(meant for name in clusters for meant in clusters_meant(name)))
    quotes = read_quotes(table)
    offered = list(dict.fromkeys(quote.cluster for quote in quotes))
    rule = f"must be the cluster of a row of {table}"
    meant = {
        name: [cluster for cluster in clusters_meant(name) if cluster in offered]
        for name in clusters
    }
    problems = [
        problem(where, "clusters", rule, name, offered) for name in clusters if not meant[name]
    ]
    if problems:
        raise InputError(problems)
    names = [cluster for held in meant.values() for cluster in held] or offered
    return [quote for quote in quotes if quote.cluster in names], names


def _quote(row: dict[str, str], where: str) -> Quote | list[str]:
    """One row as an offer, or what is wrong with it."""
    problems = [
        problem(where, name, "must not be blank", "")
        for name in ("provider", "gpu", "source")
        if not row[name]
    ]
    numbers: dict[str, Any] = {}
    for name, least in (
        *(("usd_per_gpu_hour", 0.0), ("gpus", 0.0)),
        *(("egress_usd_per_gb", None), ("storage_usd_per_gb_month", None)),
    ):
        numbers[name], wrong = _number(row[name], name, least, where)
        problems += wrong
    if row["term"] not in _TERMS:
        rule = f"must be {', '.join(_TERMS)}"
        problems.append(problem(where, "term", rule, row["term"], _TERMS))
    grade = row.get("grade") or "datasheet"
    if grade not in _GRADES:
        problems.append(problem(where, "grade", "must be datasheet or assumed", grade, _GRADES))
    try:
        datetime.date.fromisoformat(row["date"])
    except ValueError:
        problems.append(problem(where, "date", "must be a day, as 2026-11-26", row["date"]))
    cluster = _cluster(row, where)
    if isinstance(cluster, list):
        problems += cluster
    elif not problems:
        words: dict[str, Any] = {
            name: row[name] for name in ("provider", "instance", "gpu", "term", "date", "source")
        }
        return Quote(**words, **numbers, grade=grade, cluster=cluster)
    return problems


def _number(
    word: str, name: str, least: float | None, where: str
) -> tuple[float | int | None, list[str]]:
    """A number above `least`; None: blank is allowed, and nought."""
    if least is None and not word:
        return None, []
    rule = "must be a whole number above 0" if name == "gpus" else "must be a number above 0"
    if least is None:
        rule = "must be blank or a number from 0 on"
    try:
        value = float(word)
    except ValueError:
        value = float("nan")
    held = (value > 0.0 if least is not None else value >= 0.0) and value < 1e9
    if not held or (name == "gpus" and value != int(value)):
        return None, [problem(where, name, rule, word)]
    return (int(value) if name == "gpus" else value), []


def _cluster(row: dict[str, str], where: str) -> str | list[str]:
    """The profile that an offer is put on, or why there is none."""
    known = catalogue.names("clusters")
    if row["instance"] in known:
        return row["instance"]
    if usual := _server(row["gpu"]):
        return usual
    if row["gpu"] in known:
        return row["gpu"]
    servers = _servers()
    hint = did_you_mean(_word(row["gpu"]), servers)
    rule = "unknown GPU; name a cluster profile as the instance, or one of these"
    return [f"{where}: gpu: {rule}: {', '.join(servers)}, got {row['gpu']!r}{hint}"]


def _word(gpu: str) -> str:
    return " ".join(gpu.lower().replace("_", " ").split())


def _server(gpu: str) -> str | None:
    """The usual server of a GPU, by a word for it or the name of its profile."""
    usual = _servers()
    if _word(gpu) in usual or _word(gpu) not in catalogue.names("accelerators"):
        return usual.get(_word(gpu))
    holders = clusters_meant(_word(gpu))
    alone = holders[0] if len(holders) == 1 else None
    return next((cluster for cluster in usual.values() if cluster in holders), alone)


@lru_cache(maxsize=1)
def _servers() -> dict[str, str]:
    path = catalogue.folder("hardware_profiles") / "offer_servers.toml"
    usual: UsualServers = build(UsualServers, read_toml(path), where=str(path))
    return usual.servers
