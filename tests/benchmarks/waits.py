"""What a user waits for, against its goal and against the last landing.

``python -m tests.benchmarks.waits [--write] [GROUP...]`` measures the rows of ``waits.csv`` of some
groups (starts, plans, ...), all unless given, and prints them; ``--write`` keeps what was measured.
Processor seconds are user and system with children: those of two idle cores, whatever else runs.
Seconds of the wall count what else runs. Goals are those that were asked of an idle machine;
``per_s`` is 150 times what calculon prices on one such core (1,340 layouts a second, of GPT-3 175B
on 1,024 A100, 26 November 2026).
"""

from __future__ import annotations

import csv
import datetime
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_suffix(".csv")

GPT3 = (
    *("simulate", "--model", "gpt3-175b", "--cluster", "dgx-a100", "--gpus", "256"),
    *("--set", "training.tokens=3e11", "--set", "training.global_batch=512"),
    *("--set", "layout.tp=8", "--set", "layout.pp=32", "--set", "layout.vpp=3"),
    *("--set", "layout.micro_batch=1"),
)
CLUSTERS = "dgx-h100,dgx-a100,hgx-h200,dgx-b200,gb200-nvl72,aws-p5,mi300x-8"

Rows = Iterator[tuple[str, float]]
"""Name and value of rows of the table."""


def spent(*words: str, until: bytes = b"", **variables: str) -> tuple[float, float, float]:
    """Run a command: processor seconds, peak MiB of all its processes, wall until a text."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    began, shown = time.perf_counter(), 0.0
    with subprocess.Popen(
        [sys.executable, "-m", "simulator", *words],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        peak = [0.0]
        watch = threading.Thread(target=_watched, args=(process.pid, peak), daemon=True)
        watch.start()
        assert process.stdout is not None
        for line in process.stdout:
            if until and not shown and until in line:
                shown = time.perf_counter() - began
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(words)}: exit code {process.returncode}")
    return used.ru_utime + used.ru_stime, max(peak[0], used.ru_maxrss / 1024), shown


def _watched(pid: int, peak: list[float]) -> None:
    """Keep the largest sum of what a process and those below it hold, MiB."""
    while Path(f"/proc/{pid}").exists():
        sizes, waiting = 0.0, [pid]
        while waiting:
            one = waiting.pop()
            try:
                text = Path(f"/proc/{one}/smaps_rollup").read_text()
                sizes += int(text.partition("\nPss:")[2].split()[0]) / 1024
                below = Path(f"/proc/{one}/task/{one}/children").read_text()
                waiting += map(int, below.split())
            except (OSError, IndexError, ValueError):
                continue  # it has ended
        peak[0] = max(peak[0], sizes)
        time.sleep(0.05)


def median(*words: str, rounds: int = 5) -> float:
    """Processor seconds of a command that is short."""
    return statistics.median(spent(*words)[0] for _ in range(rounds))


def starts(_: Path) -> Rows:
    """What a command takes that says little."""
    yield "help", median("-h")
    words = {"_FORESHARD_COMPLETE": "complete_bash", "COMP_WORDS": "foreshard pre"}
    complete = [spent(**words, COMP_CWORD="1")[0] for _ in range(5)]
    yield "completion", statistics.median(complete)
    yield "predict", median("predict", "examples/llama-3.1-8b.toml")


def plans(folder: Path) -> Rows:
    """Two plans, page and all."""
    for name, example in (
        ("plan 70B on 1024", "llama-3.1-70b"),
        ("plan DeepSeek-V3 on 2048", "deepseek-v3"),
    ):
        words = ("plan", f"examples/{example}.toml", "--out", str(folder / example))
        cpu_s, mib, verdict_s = spent(*words, until=b"FITS")
        yield name, cpu_s
        yield f"{name} to the verdict", verdict_s
        yield f"{name} all processes", mib


def first_uses(folder: Path) -> Rows:
    """The engine of events, where numba has compiled nothing yet."""
    plain = (*GPT3[:1], "examples/llama-3.1-8b.toml")
    for name, words in (
        ("simulate first ever", GPT3),
        ("simulate --run first ever", (*plain, "--run")),
        ("simulate --contention first ever", (*GPT3, "--contention")),
    ):
        yield name, spent(*words, NUMBA_CACHE_DIR=str(folder / name.replace(" ", "")))[0]
    spent(*GPT3)
    yield "simulate 512 micro-batches", median(*GPT3, rounds=3)


def events(_: Path) -> Rows:
    """The first step of GPT-3 175B that a process plays, its code compiled before."""
    code = (
        "import time\nfrom simulator import api\n"
        "asked = dict(model='gpt3-175b', cluster='dgx-a100', gpus=256, tokens=3e11,"
        " global_batch=512, sequence_length=2048, tp=8, pp=32, vpp=3, micro_batch=1)\n"
        "before = api.predict(**asked)\nbegan = time.process_time()\napi.simulate(**asked)\n"
        "print(time.process_time() - began)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    yield "step events first in a process", float(done.stdout)


def decisions(folder: Path) -> Rows:
    """Many searches."""
    scenario = ("examples/llama-3.1-70b.toml", "--clusters", CLUSTERS, "--gpus", "64..4096")
    yield "compare 7 x 7", spent("compare", *scenario)[0]
    (folder / "run.toml").write_bytes((ROOT / "examples/llama-3.1-70b.toml").read_bytes())
    gpus, prices = '"cluster.gpus" = {}\n', '"economics.usd_per_gpu_hour" = {}\n'
    grids = {
        "one": gpus.format([512]),
        "points": gpus.format([256, 512, 768, 1024]),
        "prices": gpus.format([512]) + prices.format([1 + n / 8 for n in range(33)]),
    }
    taken = {}
    for name, text in grids.items():
        place = folder / f"{name}.toml"
        place.write_text(f'scenario = "run.toml"\n[grid]\n{text}')
        taken[name] = spent("sweep", str(place), "--jobs", "1", "--out", str(folder / name))[0]
    yield "sweep a further point", (taken["points"] - taken["one"]) / 3
    yield "sweep a further price", (taken["prices"] - taken["one"]) / 32


def tables(_: Path) -> Rows:
    """All shipped runs."""
    yield "validate the shipped runs", spent("validate")[0]


def growth(folder: Path) -> Rows:
    """A model of many layers."""
    config = {
        **{"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672},
        **{"num_hidden_layers": 512, "num_attention_heads": 64, "num_key_value_heads": 8},
        "vocab_size": 128256,
    }
    (folder / "deep.json").write_text(json.dumps(config))
    words = ("--model", str(folder / "deep.json"), "--cluster", "dgx-h100", "--gpus", "2048")
    batch = ("--set", "training.global_batch=2048", "--set", "training.sequence_length=4096")
    cpu_s, mib, _ = spent("plan", *words, *batch, "--no-report")
    yield "plan 512 layers", cpu_s
    yield "plan 512 layers memory", mib


def explorer(_: Path) -> Rows:
    """Sliders of the explorer, processor seconds of nine of ten."""
    from starlette.testclient import TestClient

    from simulator.explorer.web import application

    clock = itertools.count()
    pages = TestClient(
        application(clock=lambda: float(next(clock))),
        base_url="http://127.0.0.1",
        client=("127.0.0.1", 1),
    )
    start = {"model": "llama-3.1-70b", "cluster": "dgx-h100", "gpus": 256, "tokens": 1e12}
    start |= {"sequence_length": 8192, "global_batch": 1024}
    pages.get("/api/search", params={"q": json.dumps(start)})
    taken = []
    for move in range(40):
        moved = {**start, "gpus": 32 * (4 + move % 20)}
        began = time.process_time()
        pages.get("/api/now", params={"q": json.dumps(moved), "last": json.dumps(start)})
        taken.append(time.process_time() - began)
    yield "explorer a move p90", float(np.quantile(taken, 0.9))


def rates(_: Path) -> Rows:
    """GPT-3 175B on 1,024 A100: every term of a table of layouts, in one thread."""
    from simulator.cost.step import evaluate
    from simulator.scenario import make_scenario
    from simulator.search.candidates import candidates
    from simulator.search.in_threads import one_thread

    training = {"tokens": 3e11, "sequence_length": 2048, "global_batch": 1536}
    made = make_scenario(
        {
            "model": {"name": "gpt3-175b"},
            "training": training,
            "cluster": {"name": "dgx-a100", "gpus": 1024},
        }
    )
    setting = made.workload, made.cluster, made.software
    from simulator.layout.rules.feasibility import reasons

    table = candidates(*setting)
    able = table[np.flatnonzero(reasons(table, *setting) == 0)[: 1 << 16]]
    with one_thread():
        began = time.process_time()
        evaluate(able, *setting)
    yield "layouts priced in full", len(able) / (time.process_time() - began)


WORKS: tuple[Callable[[Path], Rows], ...] = (
    *(starts, plans, first_uses, events, decisions, tables, growth, explorer, rates),
)


def main(words: list[str]) -> None:
    """Measure, print, and keep where asked."""
    with TABLE.open(newline="") as file:
        rows = {row["work"]: row for row in csv.DictReader(file)}
    wanted = [word for word in words if not word.startswith("--")]
    print(f"{'work':44} {'now':>10} {'last':>10} {'goal':>10}  over goal")
    with tempfile.TemporaryDirectory() as place:
        for work in WORKS:
            if wanted and work.__name__ not in wanted:
                continue
            for name, value in work(Path(place)):
                if (row := rows.get(name)) is None:
                    continue
                goal, unit = float(row["goal"]), row["unit"]
                over = goal / value if unit == "per_s" else value / goal
                last = row["last"] or "-"
                print(f"{name:44} {value:10.4g} {last:>10} {goal:10.4g}  {over:5.2f}  {unit}")
                row |= {"last": f"{value:.3g}", "measured_on": str(datetime.date.today())}
    if "--write" in words:
        with TABLE.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(next(iter(rows.values()))), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows.values())


if __name__ == "__main__":
    main(sys.argv[1:])
