"""`foreshard sweep`: every combination of some fields, on all cores, on a Dask or Ray cluster.

The command first, then its screen, then what it writes: a document, tables and a page to sort.
"""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Callable, Iterator
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
from simulator.units import show_kwh, show_number_of_days, show_percent, show_seconds, show_usd

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
    from simulator.questions.compare.offer import Asked
    from simulator.questions.sweep.answer import read_grid, sweep_grid

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
    yield notes("", sweep.caveats)
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


_SHOWN = {
    "days_p50": "days",
    "days_p90": "P90",
    "usd_p50": "USD",
    "kwh_p50": "energy",
    "step_time_s": "step",
    "mfu": "MFU",
    "layout": "layout",
    "evidence": "evidence",
    "note": "note",
}
"""Columns of the page beside the fields that vary, and their names."""


def problem_lines(sweep: Sweep) -> list[str]:
    """Say what is wrong with points, once each: a field that all share is wrong in all of them."""
    points: dict[str, list[int]] = {}
    place = f"{sweep.grid.path}: "
    for row in sweep.rows:
        for line in str(row["problem"] or "").splitlines():
            said = line.removeprefix(f"{place}point {row['point']}: ")
            points.setdefault(said, []).append(row["point"])
    return [f"{place}{_numbers(numbers)}: {said}" for said, numbers in points.items()]


def _numbers(points: list[int]) -> str:
    """Numbers of points in order, those that follow one another as a range."""
    runs: list[list[int]] = []
    for point in points:
        if runs and point == runs[-1][-1] + 1:
            runs[-1].append(point)
        else:
            runs.append([point])
    words = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    return f"point{'s' * (len(points) > 1)} {', '.join(words)}"


def sweep_page(sweep: Sweep) -> str:
    """Write a sweep as a page whose table can be sorted."""
    from simulator.questions.compare.offers_page import offers_page

    fields = list(sweep.grid.fields)
    told = [
        row if row["layout"] else {**row, "layout": row["note"], "note": ""} for row in sweep.rows
    ]
    shown = [name for name in _SHOWN if name != "note" or any(row[name] for row in told)]
    rows = [[(row[n], _text(n, row[n]), "") for n in (*fields, *shown)] for row in told]
    bad = sum(row["problem"] is not None for row in sweep.rows)
    return offers_page(
        "sweep",
        f"{sweep.grid.path.stem}: {len(rows):,} points",
        f"{bad:,} of them bad; the best layout of each of the others",
        [
            *((_name(name, fields), isinstance(sweep.rows[0][name], str)) for name in fields),
            *((_SHOWN[name], name in _WORDS) for name in shown),
        ],
        rows,
        table="Points",
        problems=("Points that could not be searched", problem_lines(sweep)) if bad else None,
    )


_WORDS = ("layout", "evidence", "note")

_SHOW: dict[str, Callable[[float], str]] = {
    "days_p50": show_number_of_days,
    "days_p90": show_number_of_days,
    "usd_p50": lambda usd: show_usd(usd).removesuffix(" USD"),
    "kwh_p50": show_kwh,
    "step_time_s": show_seconds,
    "mfu": show_percent,
}


def _name(field: str, fields: list[str]) -> str:
    """The last part of a field's name, where that tells it from the others.

    >>> fields = ["layout.tp", "model.name", "cluster.name"]
    >>> [_name(field, fields) for field in fields]
    ['tp', 'model.name', 'cluster.name']
    """
    last = field.rpartition(".")[2]
    return last if sum(name.rpartition(".")[2] == last for name in fields) == 1 else field


def _text(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name in _SHOW:
        return _SHOW[name](float(value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def write_sweep(sweep: Sweep, out_dir: Path) -> list[Path]:
    """Write the document, the CSV and the page of a sweep, and Parquet where pyarrow is there."""
    from simulator.plain_files import write_files

    table = sweep.to_frame()
    document = json.dumps(sweep.document(), indent=2, allow_nan=False) + "\n"
    contents = {
        "sweep.json": document.encode(),
        "sweep.csv": table.to_csv(index=False).encode(),
        "sweep.html": sweep_page(sweep).encode(),
    }
    if (parquet := _parquet(table)) is not None:
        contents["sweep.parquet"] = parquet
    placed = {out_dir / name: content for name, content in contents.items()}
    write_files(placed)
    return list(placed)


def _parquet(table: Any) -> bytes | None:
    """The table as Parquet; None without pyarrow, which is an optional extra."""
    if importlib.util.find_spec("pyarrow") is None:
        return None
    out = io.BytesIO()
    table.to_parquet(out, index=False)
    return out.getvalue()
