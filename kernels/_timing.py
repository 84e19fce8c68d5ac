"""What every program of this folder shares: the device, timing, random data, and the document.

Needs only torch. Times are seconds, sizes bytes, clocks MHz, power watts, temperatures Celsius.

A program is a list of cases inside a `Run`, which keeps the time and writes the document::

    def main():
        arguments = _timing.parser(__doc__, minutes=1.0).parse_args()
        with _timing.Run(arguments, __file__) as run:
            for case in run.each(cases):                  # stops when the minutes are spent
                with run.guard("copy", {"bytes": 8}, "fp32"):   # an error becomes a skip
                    run.record("copy", "fp32", {"bytes": 8}, "forward", run.time(function))
        return run.exit_code
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import sys
import time
import traceback
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path

from _device import Device, host_free_bytes, software, torch
from _document import write_json
from _sampling import (
    DTYPES,
    FP8_MAX,
    Rotation,
    median_error,
    multiply_flop_per_s,
    rotate,
    spread,
    time_call,
    to_fp8,
    values,
)

__all__ = [
    "DTYPES",
    "FP8_MAX",
    "GB",
    "SCHEMA",
    "Budget",
    "Device",
    "Rotation",
    "Run",
    "Stopped",
    "host_free_bytes",
    "median_error",
    "multiply_flop_per_s",
    "parser",
    "rotate",
    "spread",
    "time_call",
    "to_fp8",
    "torch",
    "values",
    "write_json",
]

SCHEMA = 1
GB = 1e9
PLAIN = (bool, int, float, str, type(None))
QUICK_MINUTES = 0.35
"""At most this with ``--quick``."""
FLUSH_S = 1.0
"""Records on disk are at most about this old; more where writing itself takes long."""


class Budget:
    """The minutes that a program may take, from now."""

    def __init__(self, minutes: float) -> None:
        self.minutes = minutes
        self.end = time.monotonic() + 60 * minutes

    @property
    def left_s(self) -> float:
        """Seconds left, 0 when spent."""
        return max(0.0, self.end - time.monotonic())

    def share_s(self, cases_left: int) -> float:
        """Return the seconds to time one of `cases_left` cases: half its share, 5 ms to 2 s."""
        return min(2.0, max(0.005, 0.5 * self.left_s / max(1, cases_left)))


def parser(description: str, *, minutes: float) -> argparse.ArgumentParser:
    """Return the options that every program has; `minutes` is the default of this one."""
    made = argparse.ArgumentParser(description=description.split("\n\n")[0].strip())
    made.add_argument("--out", type=Path, help="JSON document to write (default: PROGRAM.json)")
    made.add_argument("--minutes", type=float, default=minutes, help="time to take (%(default)s)")
    made.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (%(default)s)")
    made.add_argument("--dtype", help="only these, with commas: fp32,tf32,fp16,bf16,fp8")
    made.add_argument("--quick", action="store_true", help="few and small cases, under 30 s")
    made.add_argument("--seed", type=int, default=0, help="of the random data (%(default)s)")
    return made


class Stopped(KeyboardInterrupt):
    """SIGINT or SIGTERM arrived; `args[0]` is the signal's number."""


class Run:
    """One program at work: its device and budget, and the document that it writes as it goes.

    As a context it turns SIGINT and SIGTERM into a clean end. The document on disk is
    always whole, with ``"complete": false`` until the program has reached its end. `writes=False`
    (ranks other than 0) measures and writes nothing.
    """

    def __init__(self, arguments: argparse.Namespace, file: str, *, writes: bool = True) -> None:
        self.arguments, self.program, self.writes = arguments, Path(file).stem, writes
        self.out = Path(arguments.out or f"{self.program}.json")
        if not self.out.parent.is_dir():
            self._refuse(f"--out: no folder {str(self.out.parent)!r}")
        if not arguments.minutes > 0:
            self._refuse(f"--minutes: must be > 0, got {arguments.minutes}")
        try:
            self.device = Device(arguments.device)
        except (ValueError, RuntimeError) as error:
            self._refuse(f"--device: {error}")
        unknown = set(self._asked()) - set(DTYPES)
        if unknown:
            self._refuse(f"--dtype: must be of {', '.join(DTYPES)}, got {', '.join(unknown)}")
        torch.manual_seed(arguments.seed)
        self.quick = arguments.quick
        self.budget = Budget(min(arguments.minutes, QUICK_MINUTES if self.quick else math.inf))
        self.case_s, self.exit_code, self.shown = 0.1, 0, False
        self.flushed_at, self.pause_s = -math.inf, FLUSH_S
        self.began = time.monotonic()
        self.document = self._empty_document()

    def _refuse(self, problem: str) -> None:
        print(f"{self.program}: {problem}", file=sys.stderr)
        raise SystemExit(2)

    def _asked(self) -> list[str]:
        return [part for part in (self.arguments.dtype or "").split(",") if part]

    def _empty_document(self) -> dict[str, object]:
        return {
            "schema": SCHEMA,
            "program": self.program,
            "command": " ".join([f"python {Path(sys.argv[0]).name}", *sys.argv[1:]]),
            "arguments": {
                key: value if isinstance(value, PLAIN) else str(value)
                for key, value in vars(self.arguments).items()
            },
            "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),  # noqa: UP017
            "seconds": 0.0,
            "complete": False,
            "load_average": os.getloadavg()[0],
            "device": self.device.facts,
            "software": software(self.device),
            "records": [],
            "skipped": [],
        }

    @property
    def spent(self) -> bool:
        """Whether the minutes are over; not before the first record, however slow the machine."""
        return self.budget.left_s <= 0 and bool(self.document["records"])

    def dtypes(self, *names: str) -> list[str]:
        """Return those of `names` that ``--dtype`` allows (all without it)."""
        return [name for name in names if not self._asked() or name in self._asked()]

    def __enter__(self) -> Run:
        self.before = {
            number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)
        }
        self.flush()
        return self

    @staticmethod
    def _stop(number: int, frame: object) -> None:
        raise Stopped(number)

    def __exit__(self, kind, error, trace) -> bool:
        for number in self.before:
            signal.signal(number, signal.SIG_IGN)
        self.document["complete"] = error is None
        if isinstance(error, Stopped):
            self.exit_code = 128 + error.args[0]
        elif isinstance(error, Exception):
            self.exit_code = 1
            self.document["error"] = f"{kind.__name__}: {error}"
            traceback.print_exception(kind, error, trace)
        self.flush()
        self._say_end(cut=error is not None)
        for number, handler in self.before.items():
            signal.signal(number, handler)
        return isinstance(error, (Stopped, Exception))

    def _say_end(self, cut: bool) -> None:
        if self.writes:
            print(
                f"{chr(13) + chr(27) + '[K' if self.shown else ''}{self.program}: "
                f"{len(self.document['records'])} records, {len(self.document['skipped'])} "
                f"skipped, {self.document['seconds']:.0f} s{', cut short' if cut else ''}: "
                f"{self.out}",
                file=sys.stderr,
            )

    def flush(self) -> None:
        """Write the document: whole, then in place of the last one."""
        if not self.writes:
            return
        self.document["seconds"] = round(time.monotonic() - self.began, 3)
        begin = time.monotonic()
        write_json(self.document, self.out)
        self.flushed_at = time.monotonic()
        self.pause_s = max(FLUSH_S, 20 * (self.flushed_at - begin))

    def each(self, cases: list):
        """Yield each case until the time is `spent`; what is left is recorded as skipped.

        `case_s` is the time for timing the present case. A case may have a `name`.
        """
        cases = list(cases)
        for at, case in enumerate(cases):
            if self.spent:
                return self._skip_rest(cases[at:])
            self.case_s = self.budget.share_s(len(cases) - at)
            self._show(at, len(cases), case)
            yield case
        return None

    def _skip_rest(self, cases: list) -> None:
        kinds = Counter(
            (getattr(case, "kernel", self.program), getattr(case, "dtype", None)) for case in cases
        )
        for (kernel, dtype), count in kinds.items():
            reason = f"time: {self.budget.minutes:g} min spent before {count} more cases"
            self.skip(kernel, {}, dtype, reason)

    def _show(self, at: int, count: int, case: object) -> None:
        if self.writes and sys.stderr.isatty():
            self.shown, name = True, str(getattr(case, "name", case))[:60]
            place = f"\r\x1b[K{self.program} {at + 1}/{count}, {self.budget.left_s:.0f} s left"
            print(f"{place}: {name}", end="", file=sys.stderr, flush=True)

    def time(self, function, **options) -> list[float]:
        """Time a call with this run's device and the present case's share; see `time_call`."""
        chosen = {"budget_s": self.case_s, "min_repeats": 3 if self.quick else 5} | options
        return time_call(function, self.device, **chosen)

    def record(
        self, kernel: str, dtype: str, shape: dict, direction: str, times_s: list[float], **more
    ) -> None:
        """Keep one measurement; `more`: optional keys such as library, note, cold."""
        found = {"kernel": kernel, "dtype": dtype, "shape": shape, "direction": direction}
        times = {"times_s": [float(f"{one:.6g}") for one in times_s]}
        self.document["records"].append(found | times | self.device.sensors.last | more)
        if time.monotonic() - self.flushed_at > self.pause_s:
            self.flush()

    def skip(self, kernel: str, shape: dict, dtype: str | None, reason: str) -> None:
        """Keep that something was not measured, and why."""
        self.document["skipped"].append(
            {"kernel": kernel, "shape": shape, "dtype": dtype, "reason": reason}
        )

    def fits(self, kernel: str, shape: dict, dtype: str, need_bytes: float) -> bool:
        """Tell whether `need_bytes` are free (with a tenth to spare); if not, record the skip."""
        free = self.device.free_bytes()
        if need_bytes > 0.9 * free:
            self.device.release()
            free = self.device.free_bytes()
        if need_bytes <= 0.9 * free:
            return True
        reason = f"memory: needs {need_bytes / GB:.1f} GB, {free / GB:.1f} GB free"
        self.skip(kernel, shape, dtype, reason)
        return False

    @contextlib.contextmanager
    def guard(self, kernel: str, shape: dict, dtype: str | None):
        """Turn an error inside into a skip with its reason, and free the memory it held.

        An error after which the GPU answers no more (a bad access) is passed on and ends the run.
        """
        try:
            yield
        except Exception as error:
            first = (str(error).strip().splitlines() or [""])[0][:200]
            short = isinstance(error, (MemoryError, torch.OutOfMemoryError))
            short = short or "can't allocate memory" in str(error)
            reason = "out of memory" if short else type(error).__name__
            self.skip(kernel, shape, dtype, f"{reason}: {first}")
            traceback.clear_frames(error.__traceback__)
            if not self.device.answers():
                raise
            self.device.release()
