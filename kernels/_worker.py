"""A second process that measures the cases of train_step's suite, and the end that asks it.

A case that crashes, hangs or leaves memory behind costs the next ones nothing: the process that
measures (the worker) is ended and started anew.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from dataclasses import asdict

import _timing
from _cases import Case, Impossible

LEFT_BEHIND_BYTES = 64 * 2**20
"""A worker that holds more than this after a case is not used again."""
START_S = 60.0
"""Seconds that a worker may need to start."""
MARK = "RESULT "


def work(arguments, measure) -> int:
    """Be the worker: a case is a line of JSON on standard input, its result one on output."""
    run = _timing.Run(arguments, __file__, writes=False)
    for line in sys.stdin:
        asked = json.loads(line)
        result = _try(Case(**asked["case"]), run, measure, asked["budget_s"])
        run.device.release()
        result["last"] = run.device.kind == "cuda" and _left_bytes() > LEFT_BEHIND_BYTES
        print(MARK + json.dumps(result, allow_nan=False), flush=True)
        if result["last"]:
            break
    return 0


def _try(case: Case, run: _timing.Run, measure, budget_s: float) -> dict:
    run.document["skipped"].clear()
    with run.guard(case.kernel, {}, case.dtype):
        try:
            found = measure(case, run, stay=True, budget_s=budget_s)
        except Impossible as impossible:
            return {"reason": str(impossible)}
        found["more"] |= run.device.sensors.last
        return found
    return {"reason": run.document["skipped"][-1]["reason"]}


def _left_bytes() -> int:
    torch = _timing.torch
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated()


class Lost(Exception):
    """The worker did not answer; the text says why."""


class Worker:
    """The other end: starts the worker when it is needed, asks it, ends it."""

    def __init__(self, device: str, seed: int) -> None:
        self.command = [sys.executable, os.path.join(os.path.dirname(__file__), "train_step.py")]
        self.command += ["--worker", "--device", device, "--seed", str(seed)]
        self.process: subprocess.Popen | None = None
        self.group: tuple | None = None
        self.lines: queue.Queue[str | None] = queue.Queue()

    def ask(self, case: Case, budget_s: float, limit_s: float) -> dict:
        """Return what the worker says of the case; `Lost` after `limit_s` or where it died."""
        if self.group != case.group:  # torch's caches keep what belongs to a group
            self.end()
        if self.process is None or self.process.poll() is not None:
            self._start()
            limit_s += START_S
        self.group = case.group
        question = json.dumps({"case": asdict(case), "budget_s": budget_s})
        try:
            self.process.stdin.write(question + "\n")
            self.process.stdin.flush()
            found = self._answer(time.monotonic() + limit_s, limit_s)
        except (Lost, OSError) as error:
            code = self.process.poll()
            self.end()
            raise Lost(f"{error}" + (f" (exit code {code})" if code else "")) from None
        if found.pop("last"):
            self.end()
        return found

    def _start(self) -> None:
        pipe = subprocess.PIPE
        self.lines = queue.Queue()
        self.process = subprocess.Popen(self.command, stdin=pipe, stdout=pipe, text=True)
        reader = threading.Thread(target=self._read, args=(self.process, self.lines), daemon=True)
        reader.start()

    @staticmethod
    def _read(process: subprocess.Popen, lines: queue.Queue) -> None:
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    def _answer(self, end: float, limit_s: float) -> dict:
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise Lost(f"time: no result after {limit_s:.0f} s") from None
            if line is None:
                self.process.wait(10)
                raise Lost("the process that measured it died")
            if line.startswith(MARK):
                return json.loads(line.removeprefix(MARK))

    def end(self) -> None:
        """End the worker at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
