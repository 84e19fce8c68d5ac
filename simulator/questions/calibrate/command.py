"""`foreshard calibrate`: a profile of your own machine from what it measured."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.options import check_out, writing
from simulator.cli.runner import Reply, question

if TYPE_CHECKING:
    from simulator.calibration.calibrate_machine import Calibration, Target
    from simulator.measured.measurements import Measurements

Base = Annotated[
    str | None,
    typer.Option("--base", metavar="NAME", help="Accelerator profile to start from."),
]
BaseCluster = Annotated[
    str | None,
    typer.Option(
        "--base-cluster", metavar="NAME", help="Cluster profile to start from, for collectives."
    ),
]


def _out(option: str, what: str) -> Any:
    return typer.Option(option, metavar="FILE.toml", help=f"{what} profile to write.")


@question(
    "calibrate",
    "calibrate measured.json --base h100-sxm --out my-h100.toml",
    "calibrate all_reduce.log --base-cluster dgx-h100 --out-node my-node.toml"
    " --out-cluster my-cluster.toml",
)
def ask(
    *,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Documents of `foreshard measure`, logs of nccl-tests or rccl-tests.",
        ),
    ],
    base: Base = None,
    out: Annotated[Path | None, _out("--out", "Accelerator")] = None,
    base_cluster: BaseCluster = None,
    out_node: Annotated[Path | None, _out("--out-node", "Node")] = None,
    out_cluster: Annotated[Path | None, _out("--out-cluster", "Cluster")] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE.png", help="Picture; beside --out if not given."),
    ] = None,
    misfit: Annotated[
        bool, typer.Option("--misfit", help="Write profiles that do not fit what was measured.")
    ] = False,
) -> Reply:
    """Fit a profile to measurements of your machine, with a shipped profile as prior.

    Kernels go into --out, an accelerator profile. Collectives inside a server go into --out-node,
    those between servers into --out-cluster; both start from --base-cluster. A new node names the
    new accelerator, a new cluster the new node. Comments of the base stay. Either every file is
    written or none; none where more than a fifth is left over, or a link's figure stands at the end
    of its range: the machine is then another one than the base.
    """
    from simulator.calibration.calibrate_machine import new_profiles
    from simulator.questions.calibrate.screen import screen
    from simulator.report.calibration import calibration_document, calibration_png

    check_out("--plot", plot)
    base, targets = _targets(base, base_cluster, out, out_node, out_cluster)
    calibrate = _calibrate(_read(files), base, base_cluster, targets)
    if calibrate.misfits and not misfit:
        _refuse(calibrate.misfits, base_cluster, files[0])
    texts: dict[Path, bytes] = {
        path: text.encode() for path, text in new_profiles(calibrate, targets).items()
    }
    picture = plot or next(iter(texts)).with_suffix(".png")
    texts[picture] = calibration_png(calibrate)
    _write(texts)
    written = {part: str(t.path) for part, t in targets.items()} | {"plot": str(picture)}
    names = {"accelerator": "accelerator", "node": "node", "cluster": "fabric"}
    document = partial(
        calibration_document,
        bases={"accelerator": base, "cluster": base_cluster},
        files={name: written.get(part) for name, part in names.items()} | {"plot": str(picture)},
    )
    return Reply(calibrate, partial(screen, written=written), document)


def _refuse(misfits: list[str], base_cluster: str | None, file: Path) -> None:
    """Say what does not fit, and what of the base to state first."""
    from simulator.errors import InputError
    from simulator.hardware.cluster import load_cluster

    lines = [f"{file}: {said}: --misfit writes it all the same" for said in misfits]
    if base_cluster is not None:
        node = load_cluster(base_cluster, 1).node
        out, gbit = node.scale_out, float(node.scale_out.adapter_bytes_per_s) / 125e6
        lines.append(
            f"calibrate: {base_cluster} has {out.adapters} adapters of {gbit:g} Gbit/s a server"
            f" ({out.kind}) and {node.scale_up.kind} inside: where yours are others, foreshard"
            " cluster init NAME --adapters N --adapter-gbit RATE --network KIND makes a base"
        )
    raise InputError(lines)


def _targets(
    base: str | None,
    base_cluster: str | None,
    out: Path | None,
    out_node: Path | None,
    out_cluster: Path | None,
) -> tuple[str | None, dict[str, Target]]:
    """Say which profile goes where, or what is missing to know it."""
    from simulator import catalogue
    from simulator.calibration.calibrate_machine import Target
    from simulator.errors import InputError
    from simulator.files import read_profile
    from simulator.hardware.cluster import ClusterProfile, load_node

    problems = []
    if not (out or out_node or out_cluster):
        problems.append("calibrate: needs --out, --out-node or --out-cluster to write to")
    if (out_node or out_cluster) and base_cluster is None:
        problems.append("calibrate: --out-node and --out-cluster need --base-cluster")
    if out and base is None and base_cluster is None:
        problems.append("calibrate: --out needs --base, the profile of this or the nearest device")
    for option, path in (("--out", out), ("--out-node", out_node), ("--out-cluster", out_cluster)):
        if path is not None and (path.suffix != ".toml" or path.is_dir()):
            problems.append(f"{option}: must be a file that ends in .toml, got {str(path)!r}")
    if problems:
        raise InputError(problems)
    for option, path in (("--out", out), ("--out-node", out_node), ("--out-cluster", out_cluster)):
        check_out(option, path)
    targets: dict[str, Target] = {}
    node = ""
    if base_cluster is not None:
        path = catalogue.find("clusters", base_cluster, where="calibrate", field="--base-cluster")
        node = read_profile(ClusterProfile, path, kind="clusters").node
        base = base or load_node(node).accelerator
    if out is not None and base is not None:
        catalogue.find("accelerators", base, where="calibrate", field="--base")
        targets["accelerator"] = Target(kind="accelerators", base=base, path=out)
    if out_node is not None:
        settings = {"accelerator": out.stem} if out is not None else {}
        targets["node"] = Target(kind="nodes", base=node, path=out_node, settings=settings)
    if out_cluster is not None and base_cluster is not None:
        settings = {"node": out_node.stem} if out_node is not None else {}
        targets["fabric"] = Target(
            kind="clusters", base=base_cluster, path=out_cluster, settings=settings
        )
    return base, targets


def _read(files: Iterable[Path]) -> list[Measurements]:
    """Read every file, with all problems of all files at once."""
    from simulator.errors import InputError
    from simulator.interop.logs.nccl_tests import is_nccl_tests, read_nccl_tests
    from simulator.measured.measurements import read_measurements

    documents: list[Measurements] = []
    problems: list[str] = []
    for path in files:
        try:
            reader = read_nccl_tests if is_nccl_tests(path) else read_measurements
            documents.append(reader(path))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return documents


def _calibrate(
    documents: list[Measurements],
    base: str | None,
    base_cluster: str | None,
    targets: dict[str, Target],
) -> Calibration:
    from simulator.calibration.calibrate_machine import calibrate
    from simulator.cli.screen import Progress
    from simulator.hardware.cluster import load_accelerator, load_cluster

    cluster = None
    if base_cluster is not None:
        one = load_cluster(base_cluster, 1, where="calibrate", field="--base-cluster")
        cluster = load_cluster(base_cluster, one.node.accelerators)
    part = load_accelerator(base) if base is not None and "accelerator" in targets else None
    with Progress("fitting") as progress:
        return calibrate(documents, accelerator=part, cluster=cluster, progress=progress)


def _write(contents: dict[Path, bytes]) -> None:
    """Write all files or none: each beside its place first, then renamed."""
    from simulator.plain_files import write_files

    with writing(next(iter(contents))):
        write_files(contents)
