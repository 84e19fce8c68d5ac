"""`foreshard sweep`: every combination of some fields, on all cores, on a Dask or Ray cluster.

The command first, then its screen.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType

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
from simulator.cli.options import check_out, writing
from simulator.cli.runner import Reply, question
from simulator.cli.screen import Progress, notes, plain_table
from simulator.errors import InputError, problem
from simulator.units import show_percent, show_seconds, show_usd

if TYPE_CHECKING:
    from simulator.questions.sweep.answer import Sweep


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


@question("sweep", "sweep grid.toml --out results")
def ask(
    *,
    grid: GridFile,
    deadline: Deadline = None,
    budget: Budget = None,
    price: Price = None,
    region: Region = None,
    jobs: Jobs = None,
    backend: Backend = "local",
    scheduler: Scheduler = None,
    out: Out = None,
) -> Reply:
    """Search every combination of some fields; what is done is kept, so it can be interrupted.

    Exit 0: done, bad points are reported; 1: no point can run; 2: bad input.
    """
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
        answer = sweep_grid(
            wanted,
            asked=asked,
            folder=folder,
            jobs=jobs,
            scheduler=scheduler,
            backend=backend,
            progress=progress,
        )
        written = write_sweep(answer, folder)
    return Reply(
        answer,
        screen,
        write=lambda _: [f"Written: {', '.join(map(str, written))}"],
        feasible=any(row["feasible"] for row in answer.rows),
    )


_MOST = 40
"""Points and problems on the screen; the files have them all."""


def screen(sweep: Sweep) -> Iterator[RenderableType]:
    """Give a sweep."""
    from simulator.questions.sweep.report import problem_lines
    from simulator.report.wording import AT_ASSUMED

    fields = list(sweep.grid.fields)
    last = [name.rpartition(".")[2] for name in fields]
    names = [end if last.count(end) == 1 else name for end, name in zip(last, fields, strict=True)]
    table = plain_table(
        "point", *names, "step", "MFU", "days", "USD", "layout", left=(*names, "layout")
    )
    good = [row for row in sweep.rows if row["problem"] is None]
    for row in good[:_MOST]:
        table.add_row(str(row["point"]), *(str(row[name]) for name in fields), *_cells(row))
    yield table
    if any(row["price_grade"] == "assumed" for row in good):
        yield notes("", [AT_ASSUMED])
    if len(good) > _MOST:
        yield notes("", [f"and {len(good) - _MOST:,} more, in the files"])
    bad = problem_lines(sweep)
    if bad:
        more = [f"and {len(bad) - _MOST:,} more, in the files"] if len(bad) > _MOST else []
        yield notes("Points that could not be searched", [*bad[:_MOST], *more])
    searched = len(sweep.rows) - sweep.known
    yield notes("", [f"{searched:,} points searched, {sweep.known:,} known before"])


def _cells(row: dict[str, Any]) -> list[str]:
    """Step, MFU, days, money and layout of a point."""
    from simulator.economics.price import MARK

    if not row["feasible"]:
        return ["-", "-", "-", "-", str(row["note"])]
    days, usd = row["days_p50"], row["usd_p50"]
    assumed = row["price_grade"] == "assumed"
    return [
        show_seconds(row["step_time_s"]),
        show_percent(row["mfu"]),
        "-" if days is None else f"{days:,.1f}",
        "-" if usd is None else show_usd(usd).removesuffix(" USD") + MARK * assumed,
        str(row["layout"]),
    ]
