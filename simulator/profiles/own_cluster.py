"""A cluster of one's own as profiles: what is stated over the nearest shipped one, checked."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
    adapters: int | None = None
    adapter_gbit: float | None = None
    """Gbit/s of one adapter, one direction."""
    network: str | None = None
    """infiniband, roce, efa, ethernet, omni-path or slingshot."""
    oversubscription: float | None = None
    usd_per_gpu_hour: float | None = None
    largest: int | None = None
    """Most GPUs of one job."""


def shipped_base(gpu: str, links: str | None = None) -> str:
    """Return the shipped cluster whose servers hold such GPUs, joined so.

    Of several the plainest: built on no other, and what most others are built on.

    Raises
    ------
    InputError
        If there is no such accelerator, or no server with it.
    """
    built = Counter(
        str(read_toml(catalogue.find("nodes", name)).get("base"))
        for name in catalogue.names("nodes")
    )
    found: dict[str, tuple[bool, int, str]] = {}
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
            found[name] = (derived, -built[profile.node], name)
    if found:
        return min(found, key=lambda name: found[name])
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
    base = shipped_base(asked.gpu, asked.links)
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
    per_server = asked.per_server or node.accelerators
    domain = _domain(asked, node)
    links = replace(node.scale_up, domain=domain)
    if said := wrong_domain(replace(node, accelerators=per_server, scale_up=links)):
        yield f"cluster init: --domain: {said.partition(': ')[2]}"


def _domain(asked: OwnCluster, node: Node) -> int:
    """GPUs that share the links of a server, or of a rack where the base joins several servers."""
    own = asked.per_server or node.accelerators
    if asked.domain is not None:
        return asked.domain
    return own if node.scale_up.domain <= node.accelerators else node.scale_up.domain


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
    ]
    out = []
    if asked.adapters is not None:
        out.append(f"adapters = {asked.adapters}")
    if asked.adapter_gbit is not None:
        rate = asked.adapter_gbit * GBIT
        out.append(
            f'adapter_bytes_per_s = {{ value = {rate:.6g}, grade = "datasheet", source = "own" }}'
        )
    if asked.network is not None:
        out.append(f"kind = {toml_value(asked.network)}")
    if out:
        lines += ["", "[scale_out]", *out]
    return "\n".join(lines) + "\n"


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
