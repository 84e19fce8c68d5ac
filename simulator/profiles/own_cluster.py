"""A cluster of one's own as profiles: what is stated over the nearest shipped one, checked."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args, get_type_hints

from simulator import catalogue
from simulator.errors import InputError, did_you_mean, problem
from simulator.files import read_toml
from simulator.hardware.cluster import ClusterProfile, load_node
from simulator.hardware.node import Node, ScaleOut, wrong_domain
from simulator.profiles import load
from simulator.profiles.check import check
from simulator.quoting import comment_line, toml_value
from simulator.records import dataclass

GBIT = 125e6
"""Bytes per second of a gigabit per second."""

_NETWORKS = get_args(get_type_hints(ScaleOut)["kind"])

_WORDS = "abcdefghijklmnopqrstuvwxyz0123456789-._"


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnCluster:
    """What is stated; None: as the shipped cluster has it that is built on."""

    name: str
    gpu: str
    """An accelerator profile."""
    per_server: int | None = None
    links: str | None = None
    """What joins the GPUs of a server: nvlink, pcie, xgmi, ..."""
    domain: int | None = None
    """GPUs that share those links; those of a server unless given."""
    nvlinks: int | None = None
    """NVLinks of a GPU, where a matrix of links shows them."""
    seen: bool = False
    """A matrix of links says what joins the GPUs: all of them are there."""
    adapters: int | None = None
    adapter_gbit: float | None = None
    """Gbit/s of one adapter, one direction."""
    network: str | None = None
    """infiniband, roce, efa, ethernet, omni-path or slingshot."""
    oversubscription: float | None = None
    usd_per_gpu_hour: float | None = None
    largest: int | None = None
    """Most GPUs of one job."""


def shipped_base(gpu: str, links: str | None = None, per_server: int | None = None) -> str:
    """Return the shipped cluster whose servers hold such GPUs, joined so.

    Of several one with as many GPUs in a server, then the plainest: built on no other, and what
    most others are built on.

    Raises
    ------
    InputError
        If there is no such accelerator, or no server with it.
    """
    built = Counter(
        str(read_toml(catalogue.find("nodes", name)).get("base"))
        for name in catalogue.names("nodes")
    )
    holders: dict[str, tuple[bool, bool, int, str]] = {}
    kinds: set[str] = set()
    for name in catalogue.names("clusters"):
        path = catalogue.find("clusters", name)
        profile: ClusterProfile = load("clusters", path).value
        node = load_node(profile.node)
        if node.accelerator != gpu:
            continue
        kinds.add(node.scale_up.kind)
        if links in (None, node.scale_up.kind):
            raw = (read_toml(path), read_toml(catalogue.find("nodes", profile.node)))
            derived = "base" in raw[0] or "base" in raw[1]
            other_size = per_server is not None and node.accelerators != per_server
            holders[name] = (other_size, derived, -built[profile.node], name)
    if holders:
        return min(holders, key=lambda name: holders[name])
    if kinds:
        rule = f"shipped servers with {gpu} have {' or '.join(sorted(kinds))}"
        raise InputError(problem("cluster init", "--links", rule, links))
    known = catalogue.names("accelerators")
    if gpu not in known:
        raise InputError(
            f"cluster init: --gpu: unknown accelerator {gpu!r}{did_you_mean(gpu, known)}"
        )
    raise InputError(f"cluster init: --gpu: no shipped server holds {gpu}: nothing to build on")


def own_profiles(asked: OwnCluster, *, today: str) -> dict[Path, str]:
    """Write the profiles of a cluster: paths below a folder of profiles, and their texts.

    Raises
    ------
    InputError
        With every problem of what was stated, or of the profiles that it would make.
    """
    base = shipped_base(asked.gpu, asked.links, asked.per_server)
    cluster: ClusterProfile = load("clusters", catalogue.find("clusters", base)).value
    node = load_node(cluster.node)
    if wrong := list(_wrong(asked, node)):
        raise InputError(wrong)
    files = {
        Path("nodes") / f"{asked.name}.toml": _node_text(asked, node, today),
        Path("clusters") / f"{asked.name}.toml": _cluster_text(asked, base, today),
    }
    if asked.usd_per_gpu_hour is not None:
        files[Path("prices") / f"{asked.name}.toml"] = _price_text(asked, today)
    if problems := _problems(files):
        raise InputError(problems)
    return files


def filled_in(asked: OwnCluster) -> list[str]:
    """What no option and no file says, and which shipped profile it was taken from."""
    base = shipped_base(asked.gpu, asked.links, asked.per_server)
    cluster: ClusterProfile = load("clusters", catalogue.find("clusters", base)).value
    node = load_node(cluster.node)
    out = node.scale_out
    count = asked.adapters or out.adapters
    taken = {
        f"{asked.per_server or node.accelerators} GPUs in a server": asked.per_server,
        f"{_domain(asked, node)} GPUs that share its links (--domain)": (
            asked.domain or asked.seen or None
        ),
        f"{count} network adapters (--adapters)": asked.adapters,
        f"{_adapter_gbit(asked, node):g} Gbit/s each (--adapter-gbit)": asked.adapter_gbit,
        f"{out.kind} (--network)": asked.network,
    }
    lines = [f"After {base}, as nothing says otherwise: "]
    lines[0] += ", ".join(text for text, said in taken.items() if said is None)
    lines[0] += f"; the fabric of {base}"
    if asked.seen and asked.domain is None and node.scale_up.domain > _domain(asked, node):
        lines.append(
            f"{_domain(asked, node)} GPUs share the links, all that the matrix shows: where they"
            f" lead on to other servers, as the {node.scale_up.domain} of {base}, --domain says so"
        )
    if asked.adapter_gbit is None and (usual := _usual_gbit(node)) > _adapter_gbit(asked, node):
        lines.append(
            f"{count} adapters are no faster together than the {out.adapters} of {usual:g} Gbit/s"
            f" of {base}: a matrix names ports, not speeds; --adapter-gbit says theirs"
        )
    if (share := _links_share(asked, node)) != 1.0:
        lines.append(
            f"{asked.nvlinks} NVLinks a GPU, {share:.0%} of those of {base}: rates inside a server"
            " are that share of its"
        )
    return lines


def _usual_gbit(node: Node) -> float:
    return float(node.scale_out.adapter_bytes_per_s) / GBIT


def _adapter_gbit(asked: OwnCluster, node: Node) -> float:
    """Gbit/s of an adapter; more adapters a GPU than the base has share what the base's have."""
    if asked.adapter_gbit is not None:
        return asked.adapter_gbit
    usual = _usual_gbit(node)
    if asked.adapters is None:
        return usual
    gpus = asked.per_server or node.accelerators
    same = node.scale_out.adapters * gpus / node.accelerators
    return min(usual, usual * same / asked.adapters)


_NVLINK_BYTES_PER_S = {80e9: 20e9, 900e9: 50e9}
"""Rate of a GPU, one direction -> that of one of its NVLinks (NVLink 1, 5); else 25 GB/s."""


def _links_share(asked: OwnCluster, node: Node) -> float:
    """NVLinks of a GPU that a matrix shows, as a share of those of the base."""
    if asked.nvlinks is None or node.scale_up.kind != "nvlink":
        return 1.0
    return min(asked.nvlinks / _nvlinks(node), 1.0)


def _nvlinks(node: Node) -> int:
    """NVLinks of a GPU, by its rate."""
    rate = float(node.scale_up.bandwidth_bytes_per_s)
    return round(rate / _NVLINK_BYTES_PER_S.get(rate, 25e9))


def _wrong(asked: OwnCluster, node: Node) -> Iterator[str]:
    """What is stated and cannot be."""
    if not asked.name or set(asked.name) - set(_WORDS):
        rule = "must be made of small letters, digits, - . and _"
        yield problem("cluster init", "NAME", rule, asked.name)
    if asked.name in catalogue.names("clusters") or asked.name in catalogue.names("nodes"):
        rule = "must be a name that no profile has yet"
        yield problem("cluster init", "NAME", rule, asked.name)
    if asked.network is not None and asked.network not in _NETWORKS:
        rule = "must be a kind of network"
        yield problem("cluster init", "--network", rule, asked.network, _NETWORKS)
    for flag, value in (
        ("--per-server", asked.per_server),
        ("--domain", asked.domain),
        ("--adapters", asked.adapters),
        ("--adapter-gbit", asked.adapter_gbit),
        ("--oversubscription", asked.oversubscription),
        ("--price", asked.usd_per_gpu_hour),
        ("--largest", asked.largest),
    ):
        if value is not None and not 0.0 < value < 1e9:
            yield problem("cluster init", flag, "must be above 0", value)
    if node.scale_up.kind == "nvlink" and (asked.nvlinks or 0) > _nvlinks(node):
        yield (
            f"cluster init: --topo: {asked.nvlinks} NVLinks a GPU, of which {asked.gpu} has"
            f" {_nvlinks(node)}: another GPU (--gpu), or another server's matrix?"
        )
    per_server = asked.per_server or node.accelerators
    domain = _domain(asked, node)
    links = replace(node.scale_up, domain=domain)
    if said := wrong_domain(replace(node, accelerators=per_server, scale_up=links)):
        yield f"cluster init: --domain: {said.partition(': ')[2]}"


def _domain(asked: OwnCluster, node: Node) -> int:
    """GPUs that share the links of a server, or of a rack where the base joins several servers.

    A matrix of links shows all that there are: where it was read, no rack is assumed.
    """
    if asked.domain is not None:
        return asked.domain
    per_server = asked.per_server or node.accelerators
    inside = asked.seen or node.scale_up.domain <= node.accelerators
    return per_server if inside else node.scale_up.domain


def _source(today: str) -> list[str]:
    return ["[sources.own]", 'text = "stated to foreshard cluster init"', f'date = "{today}"', ""]


def _node_text(asked: OwnCluster, node: Node, today: str) -> str:
    per_server = asked.per_server or node.accelerators
    lines = [
        comment_line(
            f"{asked.name}: servers with {per_server} x {asked.gpu}; what is not said here is that"
            f" of {node.name}."
        ),
        f"base = {toml_value(node.name)}",
        f"accelerators = {per_server}",
        "",
        *_source(today),
        "[scale_up]",
        f"domain = {_domain(asked, node)}",
        *_scaled(node, _links_share(asked, node)),
    ]
    out = []
    if asked.adapters is not None:
        out.append(f"adapters = {asked.adapters}")
    gbit = _adapter_gbit(asked, node)
    if asked.adapter_gbit is not None or gbit != _usual_gbit(node):
        grade = "assumed" if asked.adapter_gbit is None else "datasheet"
        out.append(
            f"adapter_bytes_per_s = {{ value = {gbit * GBIT:.6g},"
            f' grade = "{grade}", source = "own" }}'
        )
    if asked.network is not None:
        out.append(f"kind = {toml_value(asked.network)}")
    if out:
        lines += ["", "[scale_out]", *out]
    return "\n".join(lines) + "\n"


_RATES = ("bandwidth", "bus", "all_to_all", "send", "nvls")


def _scaled(node: Node, share: float) -> list[str]:
    """Rates inside a server with fewer NVLinks than the base has."""
    if share == 1.0:
        return []
    rates = {name: getattr(node.scale_up, f"{name}_bytes_per_s") for name in _RATES}
    return [
        f"{name}_bytes_per_s = {{ value = {float(rate) * share:.6g},"
        ' grade = "assumed", source = "own", spread = 0.2 }'
        for name, rate in rates.items()
        if rate is not None
    ]


def _cluster_text(asked: OwnCluster, base: str, today: str) -> str:
    lines = [comment_line(f"{asked.name}, after {base}."), f"base = {toml_value(base)}"]
    lines.append(f"node = {toml_value(asked.name)}")
    if asked.usd_per_gpu_hour is not None:
        lines.append(f"price = {toml_value(asked.name)}")
    if asked.largest is not None:
        lines.append(f"largest = {asked.largest}")
    if asked.oversubscription is not None:
        value = f'{{ value = {asked.oversubscription:g}, grade = "datasheet", source = "own" }}'
        lines += ["", *_source(today), "[fabric]", f"oversubscription = {value}"]
    return "\n".join(lines) + "\n"


def _price_text(asked: OwnCluster, today: str) -> str:
    value = f'{{ value = {asked.usd_per_gpu_hour:g}, grade = "datasheet", source = "own" }}'
    lines = [
        comment_line(f"What {asked.name} costs."),
        f"usd_per_gpu_hour = {value}",
        "included_power = true",
    ]
    return "\n".join([*lines, "", *_source(today)])


def _problems(files: dict[Path, str]) -> list[str]:
    """What the check of profiles says of these, put where it looks for a user's own."""
    before = os.environ.get("FORESHARD_PROFILES")
    with TemporaryDirectory() as place:
        for path, text in files.items():
            (Path(place) / path).parent.mkdir(exist_ok=True)
            (Path(place) / path).write_text(text, encoding="utf-8")
        folders = [place, *([before] if before else [])]
        os.environ["FORESHARD_PROFILES"] = os.pathsep.join(folders)
        try:
            problems = [
                said.replace(f"{place}{os.sep}", "")
                for path in files
                for said in check(Path(place) / path, path.parent.name)
            ]
        finally:
            os.environ.pop("FORESHARD_PROFILES")
            if before is not None:
                os.environ["FORESHARD_PROFILES"] = before
    return problems
