"""`foreshard export`: a layout in a framework's words, or the table of the best layouts."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.option_groups import SearchOptions
from simulator.cli.options import ScenarioFile, check_out, completing, print_line, writing
from simulator.cli.runner import question
from simulator.errors import InputError

if TYPE_CHECKING:
    from simulator.planner.plan import Plan
    from simulator.scenario import Scenario
    from simulator.search.best_layout import BestLayout


@completing
def _forms() -> Iterable[str]:
    from simulator.interop.exporting import WORDS

    return WORDS


Form = Annotated[
    str,
    typer.Option(
        "--as",
        metavar="FORM",
        help="megatron-lm, megatron-bridge, torchtitan, deepspeed, fsdp2, torchrun; slurm,"
        " trainjob, skypilot (a job around the software's own command); chakra (execution traces of"
        " the step, one a rank); csv, markdown, parquet (a table of the best layouts).",
        autocompletion=_forms,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="PATH",
        help="File to write; a folder with chakra. Without it, text goes to standard output.",
    ),
]
Best = Annotated[
    bool,
    typer.Option(
        "--best", help="Search first and take the best layout; else what \\[layout] says."
    ),
]
_MOST_ROWS = 4096

Top = Annotated[
    int, typer.Option("--top", metavar="N", min=1, max=_MOST_ROWS, help="Layouts of a table.")
]

_BINARY = ("parquet", "chakra")


@question(
    "export",
    "export run.toml --as torchtitan",
    "export run.toml --best --as slurm --out job.sh",
    "export run.toml --as markdown --top 10",
)
def ask(
    *,
    form: Form,
    scenario: ScenarioFile = None,
    options: SearchOptions,
    out: Out = None,
    best: Best = False,
    top: Top = 20,
) -> None:
    """Write a layout for the framework that runs it, or the best layouts as a table.

    The layout is what the layout section says, as predict takes it; with --best the search's.
    """
    if form in _BINARY and out is None:
        raise InputError(f"--as {form}: must be written with --out")
    check_out("--out", out, folder=form == "chakra")
    described = options.scenario(scenario)
    contents = _contents(described, form, best=best, top=top)
    if out is None:
        typer.echo(next(iter(contents.values())).decode())
        return
    from simulator.plain_files import write_files

    with writing(out, "--out"):
        named = {(out / name if name else out): text for name, text in contents.items()}
        write_files(named)
    print_line(
        f"Written: {', '.join(map(str, named)) if len(named) < 4 else f'{len(named)} in {out}'}"
    )


def _contents(scenario: Scenario, form: str, *, best: bool, top: int) -> dict[str, bytes]:
    """What is written, by name below --out; a blank name is --out itself."""
    if form in TABLES:
        from simulator.planner.plan import plan

        return {"": layout_table(plan(scenario, keep=max(top, 64)), form, top)}
    if best:
        from simulator.planner.plan import plan

        answer: BestLayout = plan(scenario, keep=64)
    else:
        from simulator.planner.prediction import predict

        answer = predict(scenario)
    layouts = answer.estimate.layouts[0]
    if form == "chakra":
        from simulator.events.simulated_step import simulate
        from simulator.interop.traces.chakra import chakra_traces

        step = simulate(layouts, scenario.workload, scenario.cluster, scenario.software)
        return {f"{name}.et": raw for name, raw in chakra_traces(step).items()}
    from simulator.interop.exporting import export
    from simulator.report.wording import risk_comments

    return {"": "\n".join([export(layouts, scenario, form), *risk_comments(answer), ""]).encode()}


TABLES = ("csv", "markdown", "parquet")

_BRIEF = (
    *("tp", "pp", "vpp", "cp", "dp", "ep", "micro_batch", "sharding", "recompute"),
    *("step_time_s", "p10_s", "p90_s", "mfu", "tokens_per_s_per_gpu", "days", "usd"),
)
"""Columns of the Markdown table; the others have all."""


def layout_table(plan: Plan, form: str, top: int) -> bytes:
    """Write the first layouts as a table, one row each.

    Raises
    ------
    InputError
        If Parquet is asked for and pyarrow is not there.
    """
    table = plan.to_frame().head(top)
    if form == "csv":
        return str(table.to_csv(lineterminator="\n")).encode()
    if form == "parquet":
        file = io.BytesIO()
        try:
            table.to_parquet(file)
        except ImportError:
            rule = 'needs pyarrow: pip install "foreshard[parquet]"'
            raise InputError(f"--as parquet: {rule}") from None
        return file.getvalue()
    names = [name for name in _BRIEF if name in table.columns]
    rows = [[_cell(value) for value in row] for row in table[names].itertuples(index=False)]
    lines = [names, ["---"] * len(names), *rows]
    return ("\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n").encode()


def _cell(value: Any) -> str:
    from simulator.quoting import markdown_cell

    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else ""
    return markdown_cell(str(value))
