"""What ships: `foreshard models`, `foreshard fields` and `foreshard profiles`.

The commands first, then their screens, then what the lists are made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from simulator import catalogue
from simulator.cli.options import BAD_INPUT, Json, check_out, completing, print_line, writing
from simulator.cli.runner import Reply, print_answer, question
from simulator.cli.screen import plain_table, table_of
from simulator.errors import InputError, did_you_mean
from simulator.records import dataclass
from simulator.units import show_count

if TYPE_CHECKING:
    from simulator.files import Figure
    from simulator.profiles import Profile
    from simulator.profiles.link_summary import LinkSummary
    from simulator.report.scenario_fields import Field
    from simulator.workload.architecture import Architecture


@completing
def _names() -> Iterable[str]:
    from simulator.profiles import KINDS

    return sorted({name for kind in KINDS for name in catalogue.names(kind)})


Part = Annotated[str, typer.Argument(metavar="[PART]", help="Only names with this in them.")]
FieldName = Annotated[
    str,
    typer.Argument(metavar="[NAME]", help="A section, a table in it, or a field: training, tp."),
]
Kind = Annotated[str, typer.Argument(metavar="[KIND]", help="accelerators, nodes, clusters, ...")]
ProfileName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Such as h200-sxm or nodes/dgx-h100, or a file.",
        autocompletion=_names,
    ),
]
Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[FILE...]", help="Profiles of your own; all if none is given."),
]
Fabrics = Annotated[
    list[str],
    typer.Argument(
        metavar="CLUSTER|FILE...",
        help="A cluster profile; or edges (.csv), outputs of ibnetdiscover and of"
        " nvidia-smi topo -m, which are joined.",
    ),
]
RunGpus = Annotated[int | None, typer.Option("--gpus", metavar="N", help="GPUs of a run.")]
Node = Annotated[
    str,
    typer.Option("--node", metavar="NODE", help="Its rates stand for what a matrix has links."),
]
Hosts = Annotated[
    str,
    typer.Option("--hosts", metavar="REGEX", help="Hosts of ibnetdiscover that are servers."),
]
Edges = Annotated[
    Path | None,
    typer.Option(
        "--write",
        metavar="FILE.csv",
        help="Write the edges that were read, for \\[topology] of a cluster profile.",
    ),
]


@question("models", "models", "models llama")
def models(*, part: Part = "") -> Reply:
    """List the models of the zoo: parameters, kind, layers, and where their sizes are published.

    Any other model: --model path/to/config.json, a Hugging Face config.
    """
    return Reply(zoo(part), models_screen, models_document)


@question("fields", "fields", "fields training", "fields tp")
def fields(*, name: FieldName = "") -> Reply:
    """List every field of a scenario: what it means, its unit, its default and that one's grade.

    docs/scenario.md is the same as a page.
    """
    from simulator.report.scenario_fields import fields_document, wanted_fields

    return Reply(wanted_fields(name), fields_screen, fields_document)


@question("profiles list", "profiles list clusters")
def list_profiles(*, kind: Kind = "") -> Reply:
    """List profiles by kind: how many figures are measured, fitted, datasheet, assumed."""
    from simulator.profiles import load_all

    return Reply(load_all(kind), list_screen, list_document)


@question("profiles show", "profiles show h100-sxm")
def show_profile(*, name: ProfileName) -> Reply:
    """Show every figure of a profile with its grade, spread, date and source."""
    from simulator.profiles import find_named, load
    from simulator.profiles.check import kind_of

    path = Path(name)
    is_file = name.endswith(".toml")
    places = [(kind_of(path), path)] if is_file else find_named(name)
    return Reply([load(*place) for place in places], profiles_screen, show_document)


@question("profiles check", "profiles check my-cluster.toml")
def check_profiles(*, files: Files = None, as_json: Json = False) -> int:
    """Check that profiles can be read, refer to what exists and stay within physical limits.

    Exit code 2 where anything is wrong; every problem names file and field.
    """
    from simulator.profiles import KINDS
    from simulator.profiles.check import check

    places = [("", path) for path in files or ()] or [
        (kind, catalogue.find(kind, name)) for kind in KINDS for name in catalogue.names(kind)
    ]
    # A base that is wrong shows in every profile on it: once is enough.
    problems = list(dict.fromkeys(p for kind, path in places for p in check(path, kind)))

    def screen(problems: list[str]) -> Iterable[str]:
        for problem in problems:
            print_line(problem, err=True)
        wrong = f"{len(problems)} problems" if problems else "nothing wrong"
        return [f"{len(places)} profiles read, {wrong}"]

    document = check_document(len(places), problems)
    print_answer(Reply(problems, screen, lambda _: document), as_json=as_json)
    return BAD_INPUT if problems else 0


@question(
    "profiles links",
    "profiles links dgx-h100 --gpus 64",
    "profiles links fabric.txt --write edges.csv",
)
def links(
    *,
    names: Fabrics,
    gpus: RunGpus = None,
    node: Node = "",
    hosts: Hosts = ".*",
    write: Edges = None,
) -> Reply:
    """Count the links of a cluster; say its bisection, its over-subscription, its longest way."""
    from simulator.hardware.cluster import load_cluster
    from simulator.hardware.edge_list import write_edges
    from simulator.interop.fabric_files import is_profile, read_fabric
    from simulator.profiles.link_summary import edges_document, links_document, summary

    if any(is_profile(name) for name in names):
        if len(names) > 1 or write is not None:
            raise InputError("command line: a cluster profile stands alone, without --write")
        size = whole_gpus(names[0]) if gpus is None else gpus
        cluster = load_cluster(names[0], size, where="command line")
        return Reply(summary(cluster), links_screen, links_document)
    check_out("--write", write)
    edges, servers = read_fabric([Path(name) for name in names], node=node, hosts=hosts)
    if write is not None:
        with writing(write, "--write"):
            write_edges(edges, write)
    return Reply(edges_document(edges, servers), partial(edges_screen, path=write), dict)


def models_screen(models: Sequence[ZooModel]) -> Iterator[RenderableType]:
    """Give a line a model; of experts, what one token passes stands beside all parameters."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("model", no_wrap=True)
    for name in ("size", "active", "layers"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("kind", overflow="fold")
    table.add_column("source", overflow="fold")
    for model in models:
        size, active = show_count(model.parameters), show_count(model.active)
        active = active if active != size else ""
        table.add_row(model.name, size, active, str(model.layers), model.kind, model.source)
    yield table
    yield f"{len(models)} models; hf: on Hugging Face; any other: --model path/to/config.json"


def fields_screen(fields: Sequence[Field]) -> Iterator[RenderableType]:
    """Give two lines and a sentence a field, a heading for each section."""
    from simulator.report.scenario_fields import about

    for section, rows in groupby(fields, key=lambda field: field.name.partition(".")[0]):
        yield Text(f"[{section}]  {about(section)}", style="bold")
        for field in rows:
            name = Text(f"  {field.name.partition('.')[2]}", style="bold cyan")
            yield name.append(f"  {_terms(field)}", style="not bold default")
            yield Padding(Text(field.sentence), (0, 0, 0, 6))
        yield ""


def _terms(field: Field) -> str:
    """What may be given, in what unit, and what stands where nothing is."""
    default = f"default {field.default} ({field.grade})" if field.default else ""
    rest = "required" if field.required else default
    return "; ".join(filter(None, (field.kind, field.unit, rest)))


def list_screen(profiles: Sequence[Profile]) -> Iterator[RenderableType]:
    """Give a table for each kind; behind every name the number of figures by grade."""
    from simulator.files import GRADES

    for kind, group in groupby(profiles, key=lambda profile: profile.kind):
        table = plain_table(kind, *GRADES, "weakest", "what", left=(kind, "weakest", "what"))
        for profile in group:
            counts = [str(count) if count else "-" for count in profile.grades.values()]
            cut = profile.title if len(profile.title) <= 60 else f"{profile.title[:57]}..."
            table.add_row(profile.name, *counts, profile.weakest or "-", cut)
        yield table
        yield ""


def profiles_screen(profiles: Sequence[Profile]) -> Iterator[RenderableType]:
    """Give settings, figures and sources of every profile."""
    for profile in profiles:
        yield from _profile(profile)


def _profile(profile: Profile) -> Iterator[RenderableType]:
    yield Text(f"{profile.kind}/{profile.name}", style="bold").append(
        f" {profile.title}", style="not bold"
    )
    for word, other in (("base", profile.base), ("borrows from", profile.borrowed)):
        if other:
            yield f"{word}: {other}"
    yield f"file: {profile.path}"
    settings = plain_table("setting", "value", left=("setting", "value"))
    for name, value in profile.settings.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        settings.add_row(name, shown or "-")
    yield settings
    sources = list(dict.fromkeys(figure.source for figure in profile.figures.values()))
    yield _figure_table(profile.figures, sources)
    for number, source in enumerate(sources, 1):
        yield Padding(Text(f"[{number}] {source}"), (0, 0, 0, 2))
    yield ""


def _figure_table(figures: dict[str, Figure], sources: list[str]) -> Table:
    table = plain_table("figure", "value", "grade", "spread", "date", "source", left=("figure",))
    for name, figure in figures.items():
        spread = "-" if figure.spread is None else f"{100 * figure.spread:.0f} %"
        number = f"[{sources.index(figure.source) + 1}]"
        table.add_row(name, f"{figure:g}", figure.grade, spread, figure.date or "-", number)
    return table


def links_screen(link_summary: LinkSummary) -> Iterator[RenderableType]:
    """Give the links of a cluster by kind, and how narrow its network is."""
    how = "as it is cabled" if link_summary.cabled else "by rule from its fabric"
    yield (
        f"{link_summary.cluster}: {link_summary.gpus} GPUs on {link_summary.servers} servers, {how}"
    )
    yield table_of(
        link_summary.links,
        ("link", lambda row: row.kind),
        ("GB/s each way", lambda row: f"{row.bytes_per_s / 1e9:.4g}"),
        ("number", lambda row: str(row.count)),
        left=("link",),
    )
    halves = "all halves" if link_summary.bisection_exact else "neighbouring halves"
    rate = f"{link_summary.bisection_bytes_per_s / 1e9:.5g} GB/s each way"
    yield f"bisection: {rate} (narrowest of {halves})"
    if link_summary.oversubscription is not None:
        yield f"over-subscription: {link_summary.oversubscription:.3g}"
    if link_summary.most_hops is not None:
        yield f"first to last adapter: {link_summary.most_hops} cables"


def edges_screen(document: Mapping[str, Any], path: Path | None) -> Iterator[RenderableType]:
    """Give what edges join, which hosts are which servers, and where they were written."""
    ends = ", ".join(f"{count} {kind}s" for kind, count in document["ends"].items() if count)
    yield f"{ends.replace('switchs', 'switches')}; {document['cables']} cables"
    for pair, count in document["edges"].items():
        yield f"  {pair}: {count} edges"
    for number, name in enumerate(document["servers"]):
        yield Text(f"  server {number}: {name}")
    if path is not None:
        yield f"written: {path}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ZooModel:
    """One model of the zoo."""

    name: str
    parameters: int
    """All of them, tied tensors once."""
    active: int
    """Parameters that one token passes."""
    kind: str
    layers: int
    hidden: int
    """Width of the residual stream."""
    family: str
    """``model_type`` of its config."""
    source: str
    """Where its sizes are published."""


def zoo(part: str = "") -> list[ZooModel]:
    """List the models whose names hold `part`, in alphabetical order.

    Raises
    ------
    InputError
        If there is none, with the nearest name.
    """
    from simulator.workload import presets

    names, sources = presets.names(), presets.sources()
    matches = [name for name in names if part.lower() in name]
    if not matches:
        raise InputError(f"models: no name has {part!r} in it{did_you_mean(part, names)}")
    return [_model(name, presets.load(name), sources[name]) for name in matches]


def models_document(models: Iterable[ZooModel]) -> dict[str, Any]:
    """Return the models as `--json` has them."""
    from simulator.answers import head, plain

    return head("models") | {"models": plain(list(models))}


def _model(name: str, arch: Architecture, source: str) -> ZooModel:
    return ZooModel(
        name=name,
        parameters=arch.parameters,
        active=arch.active_parameters,
        kind=_kind(arch),
        layers=arch.layers,
        hidden=arch.hidden,
        family=arch.family,
        source=source,
    )


def _kind(arch: Architecture) -> str:
    """What it reads and what it is made of."""
    if not arch.vocabulary:
        words = ["images"]
    elif arch.is_encoder_decoder:
        words = ["encoder-decoder"]
    else:
        last = [block.attention for block in arch.blocks if block.attention and not block.width]
        words = ["decoder" if all(attention.causal for attention in last) else "encoder"]
        words += ["tower of images or sound"] if any(block.width for block in arch.blocks) else []
    if arch.moes:
        words.append(f"{arch.moes[0].experts} experts, top {arch.moes[0].top_k}")
    else:
        words.append("dense")
    words += sorted({mixer.word for mixer in arch.mixers})
    return ", ".join(words)


def list_document(profiles: Iterable[Profile]) -> dict[str, Any]:
    """Every profile in one line: what it is and how many figures have which grade."""
    from simulator.answers import head, plain

    return head("profiles list") | {"profiles": plain(list(profiles))}


def show_document(profiles: Iterable[Profile]) -> dict[str, Any]:
    """Profiles with all settings and figures, resolved through bases and lenders."""
    from simulator.answers import head

    return head("profiles show") | {"profiles": [_whole(profile) for profile in profiles]}


def check_document(checked: int, problems: Iterable[str]) -> dict[str, Any]:
    """How many files were read and what is wrong with them."""
    from simulator.answers import head

    return head("profiles check") | {"checked": checked, "problems": list(problems)}


def _whole(profile: Profile) -> dict[str, Any]:
    from simulator.answers import encoded

    rows = [
        {"name": name, "value": float(figure)}
        | encoded(figure, ("grade", "spread", "date?", "source"))
        for name, figure in profile.figures.items()
    ]
    return encoded(profile) | {"settings": profile.settings, "figures": rows}


def whole_gpus(name: str) -> int:
    """GPUs of all servers that a profile lists cables of; else of two leaves, or two pods."""
    from simulator.files import read_profile
    from simulator.hardware.cluster import ClusterProfile, load_node
    from simulator.hardware.edge_list import edges_of, endpoint

    path = catalogue.find("clusters", name, where="command line", field="cluster")
    profile = read_profile(ClusterProfile, path, kind="clusters")
    node = load_node(profile.node, where=str(path), field="node")
    edges = edges_of(profile.topology, path)
    if edges:
        ends = (endpoint(end).server for edge in edges for end in (edge.end_a, edge.end_b))
        return (1 + max(ends)) * node.accelerators
    servers = 2 * (profile.fabric.pod_servers or profile.fabric.leaf_servers)
    gpus = max(servers * node.accelerators, 2 * node.scale_up.domain)
    return min(gpus, profile.largest or gpus)
