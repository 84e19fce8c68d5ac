"""The screens of what ships: models, fields, the catalogue, one profile figure by figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from simulator.cli.screen import plain_table, table_of
from simulator.units import show_count

if TYPE_CHECKING:
    from simulator.files import Figure
    from simulator.profiles import Profile
    from simulator.profiles.link_summary import LinkSummary
    from simulator.report.scenario_fields import Field
    from simulator.report.zoo_list import ZooModel


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
