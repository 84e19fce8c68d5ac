"""`foreshard profiles`: what is in the catalogue, where each figure is from, whether it can be."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.examples import epilog
from simulator.cli.options import (
    BAD_INPUT,
    Json,
    check_out,
    completing,
    print_json,
    say,
    speaking,
    writing,
)

app = typer.Typer(
    name="profiles",
    help="List, show and check the profiles of hardware, software and prices.",
    no_args_is_help=True,
    add_completion=False,
)


@completing
def _names() -> Iterable[str]:
    from simulator import catalogue
    from simulator.profiles import KINDS

    return sorted({name for kind in KINDS for name in catalogue.names(kind)})


@app.command("list", epilog=epilog("profiles list"))
def list_profiles(
    kind: Annotated[
        str, typer.Argument(metavar="[KIND]", help="accelerators, nodes, clusters, ...")
    ] = "",
    as_json: Json = False,
) -> None:
    """List profiles by kind: how many figures are measured, fitted, datasheet, assumed."""
    with speaking():
        from simulator.profiles import load_all
        from simulator.profiles.documents import list_document

        found = load_all(kind)
        if as_json:
            print_json(list_document(found))
        else:
            from simulator.questions.catalogue.profiles_screen import show_list

            show_list(found)


@app.command("show", epilog=epilog("profiles show"))
def show_profile(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Such as h200-sxm or nodes/dgx-h100, or a file.",
            autocompletion=_names,
        ),
    ],
    as_json: Json = False,
) -> None:
    """Show every figure of a profile with its grade, spread, date and source."""
    with speaking():
        from simulator.profiles import find_named, load
        from simulator.profiles.check import kind_of
        from simulator.profiles.documents import show_document

        path = Path(name)
        is_file = name.endswith(".toml")
        places = [(kind_of(path), path)] if is_file else find_named(name)
        found = [load(*place) for place in places]
        if as_json:
            print_json(show_document(found))
        else:
            from simulator.questions.catalogue.profiles_screen import show_whole

            for profile in found:
                show_whole(profile)


@app.command("check", epilog=epilog("profiles check"))
def check_profiles(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE...]", help="Profiles of your own; all if none is given."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check that profiles can be read, refer to what exists and stay within physical limits.

    Exit code 2 where anything is wrong; every problem names file and field.
    """
    with speaking():
        from simulator import catalogue
        from simulator.profiles import KINDS
        from simulator.profiles.check import check
        from simulator.profiles.documents import check_document

        places = [("", path) for path in files or ()] or [
            (kind, catalogue.find(kind, name)) for kind in KINDS for name in catalogue.names(kind)
        ]
        # A base that is wrong shows in every profile on it: once is enough.
        problems = list(dict.fromkeys(p for kind, path in places for p in check(path, kind)))
        if as_json:
            print_json(check_document(len(places), problems))
        else:
            for problem in problems:
                say(problem, err=True)
            wrong = f"{len(problems)} problems" if problems else "nothing wrong"
            say(f"{len(places)} profiles read, {wrong}")
        if problems:
            raise typer.Exit(BAD_INPUT)


@app.command("links", epilog=epilog("profiles links"))
def show_links(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="CLUSTER|FILE...",
            help="A cluster profile; or edges (.csv), outputs of ibnetdiscover and of"
            " nvidia-smi topo -m, which are joined.",
        ),
    ],
    gpus: Annotated[
        int | None, typer.Option("--gpus", metavar="N", show_default=False, help="GPUs of a run.")
    ] = None,
    node: Annotated[
        str,
        typer.Option("--node", metavar="NODE", help="Its rates stand for what a matrix has links."),
    ] = "",
    hosts: Annotated[
        str,
        typer.Option("--hosts", metavar="REGEX", help="Hosts of ibnetdiscover that are servers."),
    ] = ".*",
    write: Annotated[
        Path | None,
        typer.Option(
            "--write",
            metavar="FILE.csv",
            show_default=False,
            help="Write the edges that were read, for \\[topology] of a cluster profile.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Count the links of a cluster; say its bisection, its over-subscription, its longest way."""
    with speaking():
        from simulator.errors import InputError
        from simulator.hardware.cluster import load_cluster
        from simulator.hardware.edge_list import write_edges
        from simulator.interop.fabrics.fabric_files import is_profile, read_fabric
        from simulator.profiles.link_summary import edges_document, links_document, summary
        from simulator.profiles.whole_cluster import whole_gpus
        from simulator.questions.catalogue.profiles_screen import show_edges, show_links

        if any(is_profile(name) for name in names):
            if len(names) > 1 or write is not None:
                raise InputError("command line: a cluster profile stands alone, without --write")
            size = whole_gpus(names[0]) if gpus is None else gpus
            found = summary(load_cluster(names[0], size, where="command line"))
            if as_json:
                print_json(links_document(found))
            else:
                show_links(found)
            return
        check_out("--write", write)
        edges, servers = read_fabric([Path(name) for name in names], node=node, hosts=hosts)
        if write is not None:
            with writing(write, "--write"):
                write_edges(edges, write)
        document = edges_document(edges, servers)
        if as_json:
            print_json(document)
        else:
            show_edges(document, write)
