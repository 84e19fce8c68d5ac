"""`foreshard sweep`: every combination of some fields, on all cores, on a Dask or Ray cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.decision_options import (
    Budget,
    Deadline,
    Jobs,
    Price,
    Region,
    days_of,
    prices_of,
    usd_of,
)
from simulator.cli.options import (
    INFEASIBLE,
    Json,
    check_out,
    print_json,
    say,
    speaking,
    writing,
)
from simulator.errors import InputError, problem

GridFile = Annotated[
    Path, typer.Argument(metavar="GRID", help="Grid file (TOML): \\[grid] and common sections.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Where results go, and where an interrupted sweep goes on; reports/NAME unless given.",
    ),
]
Backend = Annotated[
    str, typer.Option("--backend", metavar="NAME", help="local; dask or ray with --scheduler.")
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        "--scheduler", metavar="ADDRESS", help="A Dask scheduler or a Ray head that runs already."
    ),
]


def command(
    grid: GridFile,
    deadline: Deadline = None,
    budget: Budget = None,
    price: Price = None,
    region: Region = None,
    jobs: Jobs = None,
    backend: Backend = "local",
    scheduler: Scheduler = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Search every combination of some fields; what is done is kept, so it can be interrupted.

    Exit 0: done, bad points are reported; 1: no point can run; 2: bad input.
    """
    with speaking():
        from simulator.cli.screen import Progress
        from simulator.questions.compare.many_searches import BACKENDS
        from simulator.questions.compare.offers import Asked
        from simulator.questions.sweep.answer import read_grid, sweep_grid
        from simulator.questions.sweep.report import write_sweep

        if backend not in BACKENDS:
            rule = f"must be {' or '.join(BACKENDS)}"
            raise InputError(problem("command line", "--backend", rule, backend, BACKENDS))
        if (backend != "local") != (scheduler is not None):
            named = "dask (or ray)" if backend == "local" else backend
            rule = f"--backend {named} and --scheduler ADDRESS must be given together"
            raise InputError(f"command line: --scheduler: {rule}")
        asked = Asked(
            deadline_days=days_of(deadline),
            budget_usd=usd_of(budget),
            prices=prices_of(price),
            region=region,
        )
        wanted = read_grid(grid)
        folder = out or Path("reports") / grid.stem
        check_out("--out", folder, folder=True)
        with Progress(f"{len(wanted):,} points") as progress, writing(folder, "--out"):
            found = sweep_grid(
                wanted,
                asked=asked,
                folder=folder,
                jobs=jobs,
                scheduler=scheduler,
                backend=backend,
                progress=progress,
            )
            written = write_sweep(found, folder)
        if as_json:
            print_json(found.document())
        else:
            from simulator.questions.sweep.screen import show

            show(found)
        say(f"Written: {', '.join(map(str, written))}", err=as_json)
        if not any(row["feasible"] for row in found.rows):
            raise typer.Exit(INFEASIBLE)
