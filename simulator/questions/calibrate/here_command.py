"""`foreshard calibrate-here`: the whole loop on this machine's CPU, from measuring to the gap."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from simulator.cli.options import Json, check_out, print_json, print_line
from simulator.cli.runner import question

NO_TORCH = "calibrate-here: needs torch, which is not here: pip install torch"
FAILED = 1


@question("calibrate-here", "calibrate-here --quick --out here")
def ask(
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
    from simulator.errors import InputError

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
    from simulator.errors import InputError

    if find_spec("torch") is None:
        raise InputError(NO_TORCH)
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
    import json

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
