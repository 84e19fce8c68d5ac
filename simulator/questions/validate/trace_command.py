"""`foreshard validate --trace TRACE.json`: a profiled step beside its prediction, by cause."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from simulator.cli.option_groups import Names

TraceFile = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="TRACE",
        help="What torch.profiler exported of one rank (.json[.gz]), or nsys (.sqlite).",
    ),
]
TraceSteps = Annotated[
    int | None,
    typer.Option(
        "--trace-steps", metavar="N", min=1, help="Steps in the trace, if it does not mark them."
    ),
]


def validate_trace(
    trace: Path | None,
    scenario: Path | None,
    *,
    names: Names,
    steps: int | None,
    others: Mapping[str, Any],
    as_json: bool,
) -> bool:
    """Answer `foreshard validate` where a trace is given; False where none is.

    Parameters
    ----------
    trace : path, optional
    scenario, names
        What describes the run.
    steps : int, optional
        Steps that the whole trace covers.
    others : mapping
        What cannot be given together with a trace, by its option.
    as_json : bool
        Print the document.

    Raises
    ------
    InputError
        With the problems of trace and scenario.
    """
    from simulator.answers import head
    from simulator.cli.options import print_json
    from simulator.cli.screen import waiting
    from simulator.errors import InputError
    from simulator.interop.traces.kineto import read_trace
    from simulator.interop.traces.nsys import is_nsys, read_nsys
    from simulator.scoring.trace import measure
    from simulator.scoring.trace_gap import compare_trace

    if trace is None:
        if steps is not None:
            raise InputError("--trace-steps: only with --trace TRACE")
        return False
    if wrong := [name for name, value in others.items() if value]:
        raise InputError(f"{', '.join(wrong)}: cannot be given together with --trace")
    described, _ = names.scenario(scenario)
    with waiting(f"reading {trace.name}"):
        read = read_nsys(trace) if is_nsys(trace) else read_trace(trace)
        found = compare_trace(measure(read, steps=steps), described)
    if as_json:
        print_json({**head("validate"), **found.document()})
    else:
        from simulator.questions.validate.trace_screen import show

        show(found)
    return True
