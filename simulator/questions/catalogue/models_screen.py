"""The screen of `foreshard models`: a line a model."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from simulator.cli.screen import console
from simulator.report.zoo_list import ZooModel
from simulator.units import show_count


def show(models: Iterable[ZooModel]) -> None:
    """Print models; of experts, what one token passes stands beside all parameters."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("model", no_wrap=True)
    for name in ("size", "active", "layers"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("kind", overflow="fold")
    table.add_column("source", overflow="fold")
    for model in models:
        size, active = show_count(model.parameters), show_count(model.active)
        layers = str(model.layers)
        table.add_row(
            model.name, size, active if active != size else "", layers, model.kind, model.source
        )
    console().print(table)
