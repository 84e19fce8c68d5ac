"""What the commands share: their options, and errors turned into messages and exit codes."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from simulator import catalogue
from simulator.cli.standard_streams import forget_output
from simulator.errors import ForeshardError, InfeasibleError, InputError, visible

INFEASIBLE, BAD_INPUT, INTERRUPTED, CLOSED_PIPE = 1, 2, 130, 141
"""Exit codes besides 0; the last two as a shell gives them for SIGINT and SIGPIPE."""

_MOST_PROBLEMS = 200

ScenarioFile = Annotated[
    Path | None,
    typer.Argument(metavar="SCENARIO", help="Scenario file (TOML, YAML)."),
]


def completing(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """What a shell completes: those names that begin so, which are found when it asks."""

    def complete(begun: str) -> list[str]:
        return [name for name in names() if name.startswith(begun)]

    return complete


@completing
def _models() -> Iterable[str]:
    from simulator.workload import presets

    return presets.names()


def _profiles(kind: str) -> Callable[[str], list[str]]:
    @completing
    def names() -> Iterable[str]:
        return catalogue.names(kind)

    return names


ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="Model of the zoo, or path of a config.json.",
        autocompletion=_models,
    ),
]
ClusterName = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="NAME",
        help="Cluster profile, or path of one.",
        autocompletion=_profiles("clusters"),
    ),
]


def _accelerators(text: str) -> int:
    """Read a whole number of accelerators."""
    if not re.fullmatch(r"-?[0-9]{1,18}", text.strip()):
        raise typer.BadParameter(f"must be a whole number of accelerators, as 1024, got {text!r}")
    return int(text)


Gpus = Annotated[
    int | None,
    typer.Option("--gpus", metavar="N", help="Accelerators of the run.", parser=_accelerators),
]
SoftwareName = Annotated[
    str | None,
    typer.Option(
        "--software",
        metavar="NAME",
        help="Software profile, or path of one.",
        autocompletion=_profiles("software"),
    ),
]
Tokens = Annotated[
    str | None,
    typer.Option("--tokens", metavar="N", help="Tokens of the whole run: 15T, 2e12."),
]
Sequence = Annotated[
    str | None,
    typer.Option("--seq", metavar="N", help="Tokens per sequence: 8192, 8k; plan: 4k..32k."),
]
Batch = Annotated[
    str | None,
    typer.Option("--batch", metavar="N", help="Sequences per step; plan: 256..4096."),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="SECTION.FIELD=VALUE", help="Override one field; may be repeated."
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print the JSON document and nothing else on stdout.")
]


def print_line(text: str, *, err: bool = False) -> None:
    """Print a line, what names and paths hold included, as characters that only show."""
    typer.echo(visible(text), err=err)


@contextmanager
def writing(place: object, option: str = "") -> Iterator[None]:
    """Turn what keeps a file from being written into an error about it, or about `place`."""
    try:
        yield
    except OSError as error:
        named = f"{option}: " if option else ""
        place = error.filename or place
        raise InputError(f"{named}{place}: cannot be written: {error.strerror}") from None


def check_out(option: str, path: Path | None, *, folder: bool = False) -> None:
    """Refuse a place that cannot be written before the work starts; none given is fine."""
    from simulator.plain_files import check_place

    if path is not None:
        with writing(path, option):
            check_place(path, folder=folder)


@contextmanager
def errors_as_exit_codes() -> Iterator[None]:
    """Turn what a user caused into messages on stderr and an exit code; bugs keep their trace."""
    try:
        yield
        sys.stdout.flush()
    except InputError as error:
        more = len(error.problems) - _MOST_PROBLEMS
        print_line("\n".join(error.problems[:_MOST_PROBLEMS]), err=True)
        if more > 0:
            print_line(f"and {more:,} more problems", err=True)
        raise typer.Exit(BAD_INPUT) from None
    except InfeasibleError as error:
        print_line(str(error), err=True)
        raise typer.Exit(INFEASIBLE) from None
    except ForeshardError as error:  # what the input leads to, such as tasks in a deadlock
        print_line(str(error), err=True)
        raise typer.Exit(BAD_INPUT) from None
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        forget_output()
        raise typer.Exit(CLOSED_PIPE) from None


def print_json(document: Mapping[str, Any]) -> None:
    """Write a document on standard output."""
    sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
