"""`foreshard validate`: predictions beside measured runs, by source and split."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.options import Json, print_json, speaking

__all__ = ["command"]

RunFiles = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="RUNS.csv", help="Tables of measured runs; the shipped ones if none is given."
    ),
]


def command(runs: RunFiles = None, as_json: Json = False) -> None:
    """Predict measured runs and show how far off the predictions are.

    Rows that cannot be predicted are counted with the reason. A table has the columns that
    validation/README.md describes. Exit code 2 only if no row at all could be predicted.
    """
    with speaking():
        from simulator.cli.screen import Progress
        from simulator.errors import InputError
        from simulator.scoring.validation import validate

        with Progress("predicting measured runs") as progress:
            found = validate(runs or (), progress=progress)
        if as_json:
            print_json(found.document())
        else:
            from simulator.cli.screen_validate import show

            show(found)
        if not found.predicted:
            raise InputError("no row could be predicted; the reason of each is in the answer")
