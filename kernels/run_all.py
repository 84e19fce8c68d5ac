"""Run the programs of this folder one after the other and merge what they measured.

    python run_all.py --out measurements.json --minutes 8
    python run_all.py --quick gemm attention

The order is that of worth: training steps first. Each program gets its share of the minutes
that are left; the document is written again after each, so that a run that is cut keeps what it
has. Programs with several ranks start one per GPU, or two on a CPU (`--ranks`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import _timing

HERE = Path(__file__).resolve().parent
WEIGHTS = {
    "train_step": 3.0,
    "gemm": 3.0,
    "attention": 2.0,
    "memory_bound": 1.5,
    "launch": 0.4,
    "copies": 0.4,
    "grouped_gemm": 1.2,
    "collectives": 1.5,
    "overlap": 0.7,
    "step_ddp": 0.4,
    "step_zero3": 0.4,
    "step_tp": 0.4,
    "step_pp": 0.4,
}
"""Programs in their order, each with its part of the time."""
STEPS = {
    "step_ddp": "--sharding ddp",
    "step_zero3": "--sharding zero3",
    "step_tp": "--sequence-parallel --tp",
    "step_pp": "--accumulate 8 --pp",
}
"""train_step over all ranks; an option at the end gets their number."""
MODELS = {
    "cuda": "--model llama-3.2-1b --sequence 4096",
    "cpu": "--model llama-tiny --precision fp32 --sequence 64",
}
SEVERAL_RANKS = ("collectives", "overlap", *STEPS)
START_S = 4.0
"""What starting a program takes (torch is slow to import)."""
LATE_S = 30.0
"""A program that is so late after its share is asked to stop."""
GRACE_S = 20.0
"""Time to stop before it is killed."""


def options() -> argparse.ArgumentParser:
    """Return the options: those of every program, and which programs."""
    made = _timing.parser(__doc__, minutes=8.0)
    made.set_defaults(out=Path("measurements.json"))
    made.add_argument("--ranks", type=int, help="ranks of collectives and overlap")
    made.add_argument(
        "programs", nargs="*", metavar="PROGRAM", help=f"of {', '.join(WEIGHTS)} (default: all)"
    )
    return made


def checked(arguments: argparse.Namespace) -> list[str]:
    """Return the programs to run, in order; end with code 2 where an argument is wrong."""
    unknown = [name for name in arguments.programs if name not in WEIGHTS]
    problem = ""
    if unknown:
        problem = f"no program {unknown[0]!r} (known: {', '.join(WEIGHTS)})"
    if not arguments.out.parent.is_dir():
        problem = f"--out: no folder {str(arguments.out.parent)!r}"
    if not arguments.minutes > 0:
        problem = f"--minutes: must be > 0, got {arguments.minutes}"
    if problem:
        print(f"run_all: {problem}", file=sys.stderr)
        raise SystemExit(2)
    chosen = arguments.programs or list(WEIGHTS)
    return [name for name in WEIGHTS if name in chosen]


def ranks_of(arguments: argparse.Namespace) -> tuple[str, int]:
    """Return the kind of device, and the ranks of programs that have several."""
    cuda = arguments.device != "cpu" and _timing.torch.cuda.is_available()
    if cuda:
        return "cuda", arguments.ranks or _timing.torch.cuda.device_count()
    return "cpu", arguments.ranks or 2


def share_minutes(name: str, waiting: list[str], left_s: float) -> float:
    """Return the minutes for `name`, the first of `waiting`, of what is left."""
    free_s = max(0.0, left_s - START_S * len(waiting))
    part = WEIGHTS[name] / sum(WEIGHTS[other] for other in waiting)
    return max(0.02, free_s * part / 60)


def command(name: str, arguments: argparse.Namespace, minutes: float, part: Path) -> list[str]:
    """Return the command that runs one program."""
    kind, ranks = ranks_of(arguments)
    script = "train_step" if name in STEPS else name
    made = [sys.executable, str(HERE / f"{script}.py"), "--out", str(part)]
    made += ["--minutes", f"{minutes:.3f}", "--device", arguments.device]
    made += ["--seed", str(arguments.seed)]
    made += ["--dtype", arguments.dtype] if arguments.dtype else []
    made += ["--quick"] if arguments.quick else []
    made += ["--ranks", str(ranks)] if name in SEVERAL_RANKS else []
    if name in STEPS:
        made += [*MODELS[kind].split(), *STEPS[name].split()]
        made += [str(ranks)] if made[-1] in ("--tp", "--pp") else []
    return made


class Merge:
    """The document of the whole run, written anew whenever a program has ended."""

    def __init__(self, arguments: argparse.Namespace, names: list[str]) -> None:
        self.out, self.names = arguments.out, names
        self.began = time.monotonic()
        self.document = {
            "schema": _timing.SCHEMA,
            "program": "run_all",
            "command": " ".join(["python run_all.py", *map(shlex.quote, sys.argv[1:])]),
            "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),  # noqa: UP017
            "seconds": 0.0,
            "complete": False,
            "load_average": os.getloadavg()[0],
            "device": {},
            "software": {},
            "programs": [],
            "records": [],
            "skipped": [],
        }
        self.write()

    def write(self) -> None:
        """Write what there is."""
        done = [entry["program"] for entry in self.document["programs"] if entry["complete"]]
        self.document["complete"] = done == self.names
        self.document["seconds"] = round(time.monotonic() - self.began, 3)
        _timing.write_json(self.document, self.out)

    def skip(self, name: str, reason: str) -> None:
        """Keep that a program was not run, or not to its end, and why."""
        entry = {"program": name, "kernel": name, "shape": {}, "dtype": None, "reason": reason}
        self.document["skipped"].append(entry)

    def add(self, name: str, part: Path, code: int) -> None:
        """Take over what a program wrote; `code` is its exit code."""
        found = read(part)
        entry = {"program": name, "exit_code": code, "complete": False, "records": 0}
        for key in ("command", "arguments", "started", "seconds", "complete", "error"):
            entry |= {key: found[key]} if key in found else {}
        for key in ("records", "skipped"):
            self.document[key] += [{"program": name, **one} for one in found.get(key, [])]
        entry["records"] = len(found.get("records", []))
        for key in ("device", "software"):
            self.document[key] = self.document[key] or found.get(key, {})
        if not entry["complete"]:
            self.skip(name, f"the program ended early, with code {code}")
        self.document["programs"].append(entry)
        self.write()


def read(part: Path) -> dict:
    """Return the document that a program wrote, or nothing."""
    with contextlib.suppress(OSError, ValueError):
        return json.loads(part.read_text())
    return {}


def stop(child: subprocess.Popen) -> None:
    """Ask a program to write what it has and end; kill it when it does not."""
    child.terminate()
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def run_one(name: str, arguments, minutes: float, part: Path) -> int:
    """Run one program within its time and return its exit code."""
    print(f"run_all: {name}, {minutes:.1f} min", file=sys.stderr)
    child = subprocess.Popen(command(name, arguments, minutes, part), start_new_session=True)
    try:
        return child.wait(60 * minutes + START_S + LATE_S)
    except subprocess.TimeoutExpired:
        stop(child)
        return child.returncode
    except _timing.Stopped:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        stop(child)
        raise


def run_programs(names: list[str], arguments: argparse.Namespace, parts: Path) -> int:
    """Run the programs in order, merging after each; return the exit code."""
    alone = [name for name in names if name in SEVERAL_RANKS and ranks_of(arguments)[1] == 1]
    names = [name for name in names if name not in alone]
    merge, budget, code = Merge(arguments, names), _timing.Budget(arguments.minutes), 0
    for name in alone:
        merge.skip(name, "one GPU: there is no second rank to communicate with")
    for at, name in enumerate(names):
        minutes = share_minutes(name, names[at:], budget.left_s)
        minutes = min(minutes, _timing.QUICK_MINUTES) if arguments.quick else minutes
        part = parts / f"{name}.json"
        try:
            ended = run_one(name, arguments, minutes, part)
        except _timing.Stopped as stopped:
            merge.add(name, part, 128 + stopped.args[0])
            return 128 + stopped.args[0]
        merge.add(name, part, ended)
        code = max(code, min(2, abs(ended)))
    return code


def _stopped(number: int, frame: object) -> None:
    raise _timing.Stopped(number)


def main() -> int:
    """Run the chosen programs; return the exit code."""
    arguments = options().parse_args()
    names = checked(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stopped)
    parts = arguments.out.with_suffix(".parts")
    parts.mkdir(exist_ok=True)
    try:
        code = run_programs(names, arguments, parts)
    except _timing.Stopped as stopped:  # between two programs
        code = 128 + stopped.args[0]
    shutil.rmtree(parts, ignore_errors=True)
    count = len(json.loads(arguments.out.read_text())["records"])
    cut = {130: ", interrupted", 143: ", interrupted"}.get(code, "")
    print(f"run_all: {count} records{cut}: {arguments.out}", file=sys.stderr)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
