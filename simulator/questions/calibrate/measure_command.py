"""`foreshard measure`: time this machine with the programs of `kernels/`, which need torch.

And `foreshard calibrate-here`: the whole loop on this machine's CPU, from measuring to the gap.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from simulator.cli.option_groups import ScenarioOptions
from simulator.cli.options import BAD_INPUT, Json, check_out, print_json, print_line
from simulator.cli.runner import Reply, question
from simulator.errors import InputError, problem

NO_TORCH = "needs torch, which is not here: pip install torch"


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

    if plan is not None and programs:
        rule = "must be left out with --plan, which ranks all of them and runs none"
        raise InputError(problem("command line", "PROGRAM", rule, " ".join(programs)))
    if plan is not None:
        return _planned(plan, have or [])
    if have:
        raise InputError("command line: --have: must come with --plan SCENARIO")
    if find_spec("torch") is None:
        raise InputError(f"measure: {NO_TORCH}")

    script = folder("kernels") / "run_all.py"
    options = ["--out", str(out), "--minutes", str(minutes), "--device", device]
    options += ["--quick"] if quick else []
    code = _run([sys.executable, str(script), *options, *(programs or ())])
    if as_json and out.is_file() and code != BAD_INPUT:
        print_json(json.loads(out.read_text()))
    return code


def _planned(path: Path, have: list[Path]) -> Reply:
    """Rank what can be measured for the run of a scenario."""
    from simulator.measured.measurements import read_measurements
    from simulator.planner.simulated import predict_best
    from simulator.questions.calibrate.command import planned_screen
    from simulator.questions.calibrate.next_measurement import plan_measurements

    scenario = ScenarioOptions().scenario(path)
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


FAILED = 1


@question("calibrate-here", "calibrate-here --quick --out here")
def measure_here(
    *,
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Where everything is written.")
    ] = Path("reports/local-cpu"),
    minutes: Annotated[
        float, typer.Option("--minutes", metavar="N", help="Time to measure, in minutes.")
    ] = 4.0,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            metavar="S",
            help="Wait up to S seconds in all until other processes rest.",
        ),
    ] = 0.0,
    quick: Annotated[
        bool, typer.Option("--quick", help="A tiny model, once: does it run? Figures mean nothing.")
    ] = False,
    measured: Annotated[
        Path | None,
        typer.Option("--measured", metavar="FILE.json", help="Take this document; do not measure."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure this CPU, fit a profile to it, predict small training steps, and compare.

    Two processes, one core each: kernels, gloo and the host's work are timed in turns with real
    steps of torch (alone, DDP, FSDP2, tensor parallel, pipeline). Profiles called local-cpu are
    fitted to the parts, never to the steps; the planner predicts the steps from them.
    """
    if not minutes > 0 or not wait >= 0:
        name, value = ("--wait", wait) if minutes > 0 else ("--minutes", minutes)
        raise InputError(f"calibrate-here: {name}: must be positive, got {value:g}")
    if os.path.exists(out) and not out.is_dir():
        raise InputError(f"calibrate-here: --out: must be a folder, got {str(out)!r}")
    check_out("--out", out, folder=True)
    out.mkdir(parents=True, exist_ok=True)
    path = measured or out / "measurements.json"
    if measured is None:
        _measure(path, minutes, wait, quick)
    document = _compare(path, out)
    if as_json:
        print_json(document)
    else:
        print_line((out / "steps.md").read_text(encoding="utf-8"))
        print_line(f"Written: {out / 'steps.md'}, {out / 'steps.json'}, {out / 'profiles'}")


def _measure(path: Path, minutes: float, wait: float, quick: bool) -> None:
    """Run the measuring program over two ranks; end with its code if it fails."""
    if find_spec("torch") is None:
        raise InputError(f"calibrate-here: {NO_TORCH}")
    from simulator.catalogue import folder

    script = folder("kernels") / "step_parts.py"
    options = ["--ranks", "2", "--out", str(path), "--minutes", f"{minutes:g}"]
    options += ["--wait", f"{wait:g}"] + (["--quick"] if quick else [])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(script), *options], env=environment, check=False)
    if done.returncode:
        typer.echo(f"calibrate-here: {script.name} ended with code {done.returncode}", err=True)
        raise typer.Exit(done.returncode if done.returncode > 0 else FAILED)


def _compare(path: Path, out: Path) -> dict[str, Any]:
    """Fit, write the profiles, predict with them, write the comparison."""
    from simulator.calibration.local_profiles import local_profiles
    from simulator.calibration.measured_steps import local_steps
    from simulator.measured.measurements import read_measurements
    from simulator.plain_files import write_files
    from simulator.report.calibration import local_document, local_markdown

    measured = read_measurements(path)
    profiles = local_profiles(measured)
    folder = out / "profiles"
    write_files({folder / name: text.encode() for name, text in profiles.texts.items()})
    with _first(folder):
        steps = local_steps(measured)
    document = local_document(measured, profiles, steps)
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    page = local_markdown(document)
    write_files({out / "steps.json": text.encode(), out / "steps.md": page.encode()})
    return document


@contextmanager
def _first(folder: Path) -> Iterator[None]:
    """Let profiles of a folder come before all others."""
    before = os.environ.get("FORESHARD_PROFILES")
    os.environ["FORESHARD_PROFILES"] = os.pathsep.join([str(folder), *([before] if before else [])])
    try:
        yield
    finally:
        if before is None:
            del os.environ["FORESHARD_PROFILES"]
        else:
            os.environ["FORESHARD_PROFILES"] = before
