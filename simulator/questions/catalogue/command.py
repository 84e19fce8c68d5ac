"""What ships: `foreshard models`, `foreshard fields` and `foreshard profiles`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.options import BAD_INPUT, Json, check_out, completing, print_line, writing
from simulator.cli.runner import Reply, print_answer, question


@completing
def _names() -> Iterable[str]:
    from simulator import catalogue
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
    from simulator.questions.catalogue.screen import models_screen
    from simulator.report.zoo_list import models_document, zoo

    return Reply(zoo(part), models_screen, models_document)


@question("fields", "fields", "fields training", "fields tp")
def fields(*, name: FieldName = "") -> Reply:
    """List every field of a scenario: what it means, its unit, its default and that one's grade.

    docs/scenario.md is the same as a page.
    """
    from simulator.questions.catalogue.screen import fields_screen
    from simulator.report.scenario_fields import fields_document, wanted_fields

    return Reply(wanted_fields(name), fields_screen, fields_document)


@question("profiles list", "profiles list clusters")
def list_profiles(*, kind: Kind = "") -> Reply:
    """List profiles by kind: how many figures are measured, fitted, datasheet, assumed."""
    from simulator.profiles import load_all
    from simulator.profiles.documents import list_document
    from simulator.questions.catalogue.screen import list_screen

    return Reply(load_all(kind), list_screen, list_document)


@question("profiles show", "profiles show h100-sxm")
def show_profile(*, name: ProfileName) -> Reply:
    """Show every figure of a profile with its grade, spread, date and source."""
    from simulator.profiles import find_named, load
    from simulator.profiles.check import kind_of
    from simulator.profiles.documents import show_document
    from simulator.questions.catalogue.screen import profiles_screen

    path = Path(name)
    is_file = name.endswith(".toml")
    places = [(kind_of(path), path)] if is_file else find_named(name)
    return Reply([load(*place) for place in places], profiles_screen, show_document)


@question("profiles check", "profiles check my-cluster.toml")
def check_profiles(*, files: Files = None, as_json: Json = False) -> int:
    """Check that profiles can be read, refer to what exists and stay within physical limits.

    Exit code 2 where anything is wrong; every problem names file and field.
    """
    from simulator import catalogue
    from simulator.profiles import KINDS
    from simulator.profiles.check import check
    from simulator.profiles.documents import check_document

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
    from simulator.errors import InputError
    from simulator.hardware.cluster import load_cluster
    from simulator.hardware.edge_list import write_edges
    from simulator.interop.fabrics.fabric_files import is_profile, read_fabric
    from simulator.profiles.link_summary import edges_document, links_document, summary
    from simulator.profiles.whole_cluster import whole_gpus
    from simulator.questions.catalogue.screen import edges_screen, links_screen

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
