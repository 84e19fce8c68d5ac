"""`foreshard measure`: time this machine with the programs of `kernels/`, which need torch."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from simulator.cli.options import BAD_INPUT, Json, print_json
from simulator.cli.runner import Reply, question

NO_TORCH = "measure: needs torch, which is not here: pip install torch"


@question(
    "measure",
    "measure --minutes 5 --out measured.json",
    "measure --plan run.toml",
    "measure --plan run.toml --have gemm.json",
)
def ask(
    *,
    programs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROGRAM", help="Programs to run, such as gemm.", show_default="all"
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="JSON document to write.")
    ] = Path("measurements.json"),
    minutes: Annotated[
        float, typer.Option("--minutes", metavar="N", help="Time to take, in minutes.")
    ] = 8.0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few and small cases: under 30 s per program.")
    ] = False,
    device: Annotated[
        str, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda or cuda:N.")
    ] = "auto",
    plan: Annotated[
        Path | None,
        typer.Option(
            "--plan",
            metavar="SCENARIO",
            help="Measure nothing: rank the programs by how much each narrows the step of this"
            " run.",
        ),
    ] = None,
    have: Annotated[
        list[Path] | None,
        typer.Option("--have", metavar="FILE", help="With --plan: what was measured already."),
    ] = None,
    as_json: Json = False,
) -> Reply | int:
    """Measure kernels, collectives and training steps on this machine's GPUs or CPU.

    Runs the stand-alone programs of kernels/ one after the other. The document is written as
    they go, so that an interrupted run keeps what it has. --plan says which of them is worth most
    for one run.
    """
    from simulator.catalogue import folder
    from simulator.errors import InputError, problem

    if plan is not None and programs:
        rule = "must be left out with --plan, which ranks all of them and runs none"
        raise InputError(problem("command line", "PROGRAM", rule, " ".join(programs)))
    if plan is not None:
        return _planned(plan, have or [])
    if have:
        raise InputError("command line: --have: must come with --plan SCENARIO")
    if find_spec("torch") is None:
        raise InputError(NO_TORCH)

    script = folder("kernels") / "run_all.py"
    options = ["--out", str(out), "--minutes", str(minutes), "--device", device]
    options += ["--quick"] if quick else []
    code = _run([sys.executable, str(script), *options, *(programs or ())])
    if as_json and out.is_file() and code != BAD_INPUT:
        print_json(json.loads(out.read_text()))
    return code


def _planned(path: Path, have: list[Path]) -> Reply:
    """Rank what can be measured for the run of a scenario."""
    from simulator.cli.option_groups import ScenarioOptions
    from simulator.measured.measurements import read_measurements
    from simulator.planner.simulated import predict_best
    from simulator.questions.calibrate.command import planned_screen
    from simulator.questions.calibrate.next_measurement import plan_measurements

    scenario, _ = ScenarioOptions().scenario(path)
    answer = plan_measurements(predict_best(scenario), [read_measurements(file) for file in have])
    return Reply(answer, planned_screen)


def _run(arguments: list[str]) -> int:
    """Run a command in a session of its own, pass signals on to it, return its exit code."""
    with subprocess.Popen(arguments, start_new_session=True) as child:

        def pass_on(number: int, frame: FrameType | None) -> None:
            child.send_signal(number)

        before = {
            number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            return child.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
