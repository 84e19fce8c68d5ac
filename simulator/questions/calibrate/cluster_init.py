"""`foreshard cluster init`: a cluster of your own as checked profiles."""

from __future__ import annotations

import datetime
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator import catalogue
from simulator.cli.options import check_out, print_line, writing
from simulator.cli.runner import question
from simulator.errors import InputError

if TYPE_CHECKING:
    from simulator.profiles.own_cluster import OwnCluster


@question(
    "cluster init",
    "cluster init lab --gpu h100-pcie --per-server 4 --network ethernet --adapters 1"
    " --adapter-gbit 25 --price 2.1",
    "cluster init lab --gpu a100-sxm-80 --topo topo.txt",
)
def init(
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is to be called.")],
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="NAME", help="Accelerator profile.")
    ] = None,
    per_server: Annotated[
        int | None, typer.Option("--per-server", metavar="N", help="GPUs of a server.")
    ] = None,
    links: Annotated[
        str | None,
        typer.Option("--links", metavar="KIND", help="nvlink, pcie or xgmi inside a server."),
    ] = None,
    domain: Annotated[
        int | None,
        typer.Option("--domain", metavar="N", help="GPUs that share these links: a server's."),
    ] = None,
    adapters: Annotated[
        int | None, typer.Option("--adapters", metavar="N", help="Network adapters of a server.")
    ] = None,
    adapter_gbit: Annotated[
        float | None, typer.Option("--adapter-gbit", metavar="RATE", help="Gbit/s of an adapter.")
    ] = None,
    network: Annotated[
        str | None,
        typer.Option("--network", metavar="KIND", help="infiniband, roce, efa, ethernet, ..."),
    ] = None,
    oversubscription: Annotated[
        float | None,
        typer.Option("--oversubscription", metavar="X", help="Of the fabric; 1: non-blocking."),
    ] = None,
    price: Annotated[
        float | None, typer.Option("--price", metavar="USD", help="USD of a GPU's hour.")
    ] = None,
    largest: Annotated[
        int | None, typer.Option("--largest", metavar="N", help="Most GPUs of one job.")
    ] = None,
    topo: Annotated[
        Path | None,
        typer.Option(
            "--topo",
            metavar="FILE",
            help="Output of nvidia-smi topo -m: GPUs, links, adapters of a server.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder of your own profiles.")
    ] = Path("profiles"),
) -> None:
    """Write profiles of a server and a cluster (and a price), after the nearest shipped ones.

    What no flag says is asked for on a terminal; anywhere else it is as the shipped cluster has it.
    The profiles are checked before they are written; a file that was edited is not written over.
    """
    from simulator.plain_files import write_files
    from simulator.profiles.own_cluster import OwnCluster, filled_in, own_profiles
    from simulator.quoting import shell_word
    from simulator.spellings import accelerator_named

    check_out("--out", out, folder=True)
    asked = OwnCluster(
        name=name,
        gpu=accelerator_named(gpu or "", catalogue.names("accelerators")) or gpu or "",
        per_server=per_server,
        links=links,
        domain=domain,
        adapters=adapters,
        adapter_gbit=adapter_gbit,
        network=network,
        oversubscription=oversubscription,
        usd_per_gpu_hour=price,
        largest=largest,
    )
    asked = _asked(_seen(asked, topo))
    texts = own_profiles(asked, today=datetime.date.today().isoformat())
    files = {out / path: text.encode() for path, text in texts.items()}
    if edited := [path for path in files if _differs(path, files[path])]:
        rule = "holds something else already: move it away, or name another NAME or --out"
        raise InputError([f"{path}: {rule}" for path in edited])
    with writing(out, "--out"):
        write_files(files)
    for line in filled_in(asked):
        print_line(line)
    for path in files:
        print_line(f"Written: {path}")
    place = shell_word(out)
    print_line(f"Use it: export FORESHARD_PROFILES={place}; foreshard plan ... --cluster {name}")


def _differs(path: Path, content: bytes) -> bool:
    """Whether there is a file of other content: somebody's own figures are not written over."""
    return path.is_file() and path.read_bytes() != content


def _seen(asked: OwnCluster, topo: Path | None) -> OwnCluster:
    """Fill in what a matrix of links shows and no flag says."""
    if topo is None:
        return asked
    from simulator.interop.fabric_files import seen_links

    seen = seen_links(topo)
    counts = set(seen.nvlinks.values())
    if len(counts) > 1 and asked.domain is None:
        said = ", ".join(f"{gpu} {count}" for gpu, count in seen.nvlinks.items())
        rule = "GPUs have unlike numbers of NVLinks, the fewest of which count"
        print_line(f"{topo}: {rule}: {said}")
    if seen.apart:
        said = ", ".join(f"{a} and {b}" for a, b in seen.apart[:4])
        rest = len(seen.apart) - 4
        more = f" and {rest} pair{'s' * (rest > 1)} more" if rest > 0 else ""
        rule = "are joined by way of others, as on a DGX-1"
        print_line(f"{topo}: no NVLink between {said}{more}: they {rule}")
    links = "nvlink" if seen.joined > 1 else "pcie" if seen.gpus > 1 else None
    if 1 < seen.joined < seen.gpus and asked.links != "pcie":
        rule = f"NVLink joins groups of {seen.joined} of the {seen.gpus} GPUs, which no profile"
        raise InputError(f"{topo}: {rule} can say: --links pcie takes them as over PCIe alone")
    if asked.per_server is not None and asked.per_server != seen.gpus:
        rule = f"must be the {seen.gpus} GPUs that {topo} shows"
        raise InputError(f"cluster init: --per-server: {rule}, got {asked.per_server}")
    return replace(
        asked,
        per_server=seen.gpus,
        links=asked.links or links,
        adapters=asked.adapters or seen.adapters or None,
        nvlinks=min(counts) if seen.joined > 1 else None,
        seen=True,
    )


def _asked(asked: OwnCluster) -> OwnCluster:
    """Ask on a terminal for what is missing; elsewhere the GPU must be given."""
    from simulator.profiles.own_cluster import GBIT, shipped_base

    if not sys.stdin.isatty():
        if not asked.gpu:
            raise InputError("cluster init: --gpu: must be given (foreshard profiles list)")
        return asked
    if not asked.gpu:
        asked = replace(asked, gpu=typer.prompt("GPU (foreshard profiles list accelerators)"))
    from simulator.hardware.cluster import load_cluster

    node = load_cluster(shipped_base(asked.gpu, asked.links, asked.per_server), 1).node
    usual = {
        "per_server": ("GPUs of a server", node.accelerators),
        "adapters": ("Network adapters of a server", node.scale_out.adapters),
        "adapter_gbit": ("Gbit/s of an adapter", float(node.scale_out.adapter_bytes_per_s) / GBIT),
        "network": ("Kind of network", node.scale_out.kind),
    }
    missing = {name: what for name, what in usual.items() if getattr(asked, name) is None}
    return replace(
        asked,
        **{name: typer.prompt(text, default=value) for name, (text, value) in missing.items()},
    )
