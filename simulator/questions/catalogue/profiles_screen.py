"""The screens of `foreshard profiles`: the catalogue, and one profile figure by figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from simulator.cli.screen import console, plain_table
from simulator.files import GRADES, Figure
from simulator.profiles import Profile

if TYPE_CHECKING:
    from simulator.profiles.link_summary import LinkSummary


def show_list(profiles: Sequence[Profile]) -> None:
    """Print a table for each kind; behind every name the number of figures by grade."""
    screen = console()
    for kind, group in groupby(profiles, key=lambda profile: profile.kind):
        table = plain_table(kind, *GRADES, "weakest", "what", left=(kind, "weakest", "what"))
        for profile in group:
            counts = [str(count) if count else "-" for count in profile.grades.values()]
            cut = profile.title if len(profile.title) <= 60 else f"{profile.title[:57]}..."
            table.add_row(profile.name, *counts, profile.weakest or "-", cut)
        screen.print(table)
        screen.print()


def show_whole(profile: Profile) -> None:
    """Print settings, figures and sources of one profile."""
    screen = console()
    screen.print(Text(f"{profile.kind}/{profile.name}", style="bold"), Text(profile.title))
    for word, other in (("base", profile.base), ("borrows from", profile.borrowed)):
        if other:
            screen.print(f"{word}: {other}")
    screen.print(f"file: {profile.path}")
    settings = plain_table("setting", "value", left=("setting", "value"))
    for name, value in profile.settings.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        settings.add_row(name, shown or "-")
    screen.print(settings)
    sources = list(dict.fromkeys(figure.source for figure in profile.figures.values()))
    screen.print(_figure_table(profile.figures, sources))
    for number, source in enumerate(sources, 1):
        screen.print(Padding(Text(f"[{number}] {source}"), (0, 0, 0, 2)))
    screen.print()


def _figure_table(figures: dict[str, Figure], sources: list[str]) -> Table:
    table = plain_table("figure", "value", "grade", "spread", "date", "source", left=("figure",))
    for name, figure in figures.items():
        spread = "-" if figure.spread is None else f"{100 * figure.spread:.0f} %"
        number = f"[{sources.index(figure.source) + 1}]"
        table.add_row(name, f"{figure:g}", figure.grade, spread, figure.date or "-", number)
    return table


def show_links(link_summary: LinkSummary) -> None:
    """Print the links of a cluster by kind, and how narrow its network is."""
    screen = console()
    how = "as it is cabled" if link_summary.cabled else "by rule from its fabric"
    screen.print(
        Text(
            f"{link_summary.cluster}: {link_summary.gpus} GPUs on"
            f" {link_summary.servers} servers, {how}"
        )
    )
    table = plain_table("link", "GB/s each way", "number", left=("link",))
    for row in link_summary.links:
        table.add_row(row.kind, f"{row.bytes_per_s / 1e9:.4g}", str(row.count))
    screen.print(table)
    tried = (
        "narrowest of all halves"
        if link_summary.bisection_exact
        else "narrowest of neighbouring halves"
    )
    screen.print(
        f"bisection: {link_summary.bisection_bytes_per_s / 1e9:.5g} GB/s each way ({tried})"
    )
    if link_summary.oversubscription is not None:
        screen.print(f"over-subscription: {link_summary.oversubscription:.3g}")
    if link_summary.most_hops is not None:
        screen.print(f"first to last adapter: {link_summary.most_hops} cables")


def show_edges(document: Mapping[str, Any], path: Path | None) -> None:
    """Print what edges join, which hosts are which servers, and where they were written."""
    screen = console()
    ends = ", ".join(f"{count} {kind}s" for kind, count in document["ends"].items() if count)
    screen.print(f"{ends.replace('switchs', 'switches')}; {document['cables']} cables")
    for pair, count in document["edges"].items():
        screen.print(f"  {pair}: {count} edges")
    for number, name in enumerate(document["servers"]):
        screen.print(Text(f"  server {number}: {name}"))
    if path is not None:
        screen.print(f"written: {path}")
