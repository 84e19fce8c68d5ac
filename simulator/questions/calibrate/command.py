"""`foreshard calibrate`: a profile of your own machine from what it measured.

The command first, then its screen and that of `measure --plan`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from simulator import catalogue
from simulator.cli.options import check_out, writing
from simulator.cli.runner import Reply, question
from simulator.cli.screen import Progress, heading, notes, plain_table
from simulator.errors import InputError
from simulator.glossary import CAVEATS
from simulator.units import show_percent, show_seconds, show_seconds_span, show_usd

if TYPE_CHECKING:
    from simulator.calibration.calibrate_machine import Calibration, ClassFit, Errors, Target
    from simulator.measured.measurements import Measurements
    from simulator.questions.calibrate.next_measurement import MeasurementPlan


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
    from simulator.calibration.calibrate_machine import Target
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


_REASONS = 12


def screen(calibration: Calibration, written: Mapping[str, str]) -> Iterator[RenderableType]:
    """Give errors and figures of every class, and the files that were written."""
    for title, fits in (
        ("accelerator", calibration.accelerator),
        ("node", calibration.node),
        ("cluster", calibration.fabric),
    ):
        if fits:
            yield _error_table(title, fits)
            yield ""
    yield _figure_table([*calibration.accelerator, *calibration.node, *calibration.fabric])
    lines = [
        f"{count:>6}  {reason}" for reason, count in list(calibration.left_out.items())[:_REASONS]
    ]
    more = len(calibration.left_out) - _REASONS
    yield notes("calls left out", lines + ([f"and {more} more reasons"] * (more > 0)))
    for part, path in written.items():
        yield f"{'cluster' if part == 'fabric' else part}: {path}"


def _error_table(title: str, fits: Sequence[ClassFit]) -> Table:
    """Median and p90 of |predicted / measured - 1|: base profile, fit, shapes left out."""
    table = plain_table(title, "calls", "base", "fitted", "left out", "spread", left=(title,))
    for fit in fits:
        cells = [_both(errors) for errors in (fit.before, fit.after, fit.left_out)]
        table.add_row(fit.name, str(fit.calls), *cells, f"{100 * fit.spread:.1f} %")
        for name, (calls, before, after) in fit.parts.items():
            if len(fit.parts) > 1:
                table.add_row(f"  {name}", str(calls), _both(before), _both(after), "", "")
    return table


def _both(errors: Errors) -> str:
    return f"{100 * errors.median:.1f} / {100 * errors.p90:.0f} %"


def _figure_table(fits: Sequence[ClassFit]) -> Table:
    table = plain_table("figure", "base", "fitted", left=("figure",))
    for fit in fits:
        for name, (base, new) in fit.figures.items():
            table.add_row(f"{'.'.join(fit.path)}.{name}", f"{base:.4g}", f"{new:.4g}")
    return table


def planned_screen(answer: MeasurementPlan) -> Iterator[RenderableType]:
    """Give the step as it is known, and what would narrow it most."""
    yield heading(answer.prediction.scenario)
    low, high = answer.before_s
    said = answer.measured
    step_s = answer.prediction.step_time_s if said is None else said["step_time_s"]
    yield Text(
        f"\n{answer.prediction.estimate.layouts.describe()}\nstep {show_seconds(step_s)}"
        f" (P10 to P90: {show_seconds_span(low, high)})\n",
        style="bold",
    )
    if said is not None:
        lines = [f"{n}: x {e['factor']:.3f}, {e['calls']} calls" for n, e in said["errors"].items()]
        before = show_seconds(answer.prediction.step_time_s)
        yield notes("Measured here", [*lines, f"the step was {before} before it"])
    money = f"USD{answer.prediction.outcome.price.mark}"
    table = plain_table(
        "measure", "hears", "minutes", "GPUs", money, "P10 to P90 then", "narrower",
        left=("measure", "hears"),
    )  # fmt: skip
    for item in answer.measurements:
        table.add_row(
            item.program,
            item.hears,
            f"{item.minutes:.3g}",
            f"{item.gpus:,}",
            "" if item.usd is None else show_usd(item.usd),
            show_seconds_span(item.p10_s, item.p90_s),
            show_percent(item.narrower),
        )
    yield table
    yield ""
    together = show_percent(answer.kernels_together)
    yield notes("", [f"All programs of kernels but train_step together: {together} narrower."])
    yield notes("How", [item.command for item in answer.measurements])
    shapes = [f"{m.program}: {', '.join(m.shapes)}" for m in answer.measurements if m.shapes]
    yield notes("Shapes of this run", shapes)
    yield notes("Then", answer.then)
    yield notes(CAVEATS, answer.caveats)
