"""`foreshard models`: the models that ship, by name."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.options import Json, print_json, say, speaking

Part = Annotated[str, typer.Argument(metavar="[PART]", help="Only names with this in them.")]


def command(part: Part = "", as_json: Json = False) -> None:
    """List the models of the zoo: parameters, kind, layers, and where their sizes are published.

    Any other model: --model path/to/config.json, a Hugging Face config.
    """
    with speaking():
        from simulator.report.zoo_list import models_document, zoo

        found = zoo(part)
        if as_json:
            print_json(models_document(found))
            return
        from simulator.questions.catalogue.models_screen import show

        show(found)
        say(f"{len(found)} models; hf: on Hugging Face; any other: --model path/to/config.json")
