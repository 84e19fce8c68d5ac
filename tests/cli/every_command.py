"""Every command of `foreshard` once, small; what it prints and writes, as one number each.

``python -m tests.cli.every_command FOLDER [NAME ...]`` runs the commands in FOLDER and prints a
JSON object: name -> exit code and SHA-256 of standard output and of every file that was written.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
from contextlib import redirect_stderr
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUN = ["--model", "gpt2-small", "--cluster", "dgx-a100", "--gpus", "8"]
SET = ["--set", "training.tokens=1e10", "--set", "layout.micro_batch=4"]
NEXT = ["--set", "layout.pp=2"]

JOBS = ["--jobs", os.environ.get("JOBS", "1")]

COMMANDS: dict[str, list[str]] = {
    "plan": ["plan", *RUN, *SET, "--out", "report"],
    "plan --json": ["plan", *RUN, *SET, "--json", "--refine", "2"],
    "predict": ["predict", *RUN, *SET],
    "predict --json": ["predict", *RUN, *SET, "--json", "--trace", "predicted.json.gz"],
    "predict --memory": ["predict", *RUN, *SET, "--memory"],
    "predict --figures": ["predict", *RUN, *SET, "--figures"],
    "export": ["export", *RUN, *NEXT, "--as", "megatron-lm"],
    "simulate": ["simulate", *RUN, *NEXT, "--trace", "played.json", "--picture", "step.png"],
    "simulate --json": ["simulate", *RUN, *NEXT, "--jitter", "0.03", "--contention", "--json"],
    "compare": ["compare", *RUN[:2], "--clusters", "dgx-a100,dgx-h100", "--gpus", "8", *SET, *JOBS],
    "size": ["size", *RUN[:4], *SET, "--deadline", "2d", "--largest", "16", "--json", *JOBS],
    "distil": ["distil", "distil.toml", "--json"],
    "rl": ["rl", "rl.toml"],
    "rl --json": ["rl", "rl.toml", "--json", "--as-given"],
    "doctor": ["doctor"],
    "explain": ["explain", "gemm", *RUN],
    "fields": ["fields"],
    "models": ["models"],
    "schema": ["schema"],
    "rent-or-buy": ["rent-or-buy", "--cluster", "dgx-h100", "--gpus", "64"],
    "what-if": ["what-if", "run.toml", "--change", "network.adapter=0.5"],
    "versus": ["versus", "run.toml", "tp=1", "tp=2", "--json"],
    "admit": ["admit", str(ROOT / "examples/admission/trainjob.yaml"), *RUN[2:4], "--json"],
    "lint": ["lint", str(ROOT / "examples/admission/trainjob.yaml"), *RUN[2:4], "--json"],
    "power": ["power", "run.toml", "--cap", "6", "--picture", "power.svg"],
    "diagnose": ["diagnose", *RUN, *NEXT, "--step-time", "1.5"],
    "sweep": ["sweep", "grid.toml", "--out", "sweep", *JOBS],
    "parameter-server": ["parameter-server", "servers.toml", "--play", "--json"],
    "schedule": ["schedule", "jobs.toml", *JOBS],
    "recommender": ["recommender", str(ROOT / "examples/dlrm.toml")],
    "recommender --json": ["recommender", str(ROOT / "examples/dlrm.toml"), "--json"],
    "sites": ["sites", "sites.toml"],
    "sites --json": ["sites", "sites.toml", "--json"],
    "validate": ["validate", "runs.csv", "--html", "validation.html"],
    "validate --json": ["validate", "runs.csv", "--json"],
    "calibrate": [
        *("calibrate", "all_reduce_perf.log", "--base-cluster", "dgx-h100", "--json"),
        *("--out-node", "own-node.toml", "--out-cluster", "own-cluster.toml"),
    ],
    "cluster init": ["cluster", "init", "lab", "--gpu", "h100-pcie", "--per-server", "4"],
    "profiles list": ["profiles", "list"],
    "profiles show": ["profiles", "show", "h100-sxm"],
    "profiles check": ["profiles", "check", str(ROOT / "hardware_profiles/nodes/dgx-h100.toml")],
    "profiles links": ["profiles", "links", "dgx-h100", "--gpus", "64"],
}
"""Words of each; none says how long it took."""

SITES = """
[sites]
inner_steps = 10
[[sites.at]]
name = "a"
cluster = "dgx-a100"
gpus = 4
uplink_bytes_per_s = 1e9
latency_s = 0.01
[[sites.at]]
name = "b"
cluster = "dgx-a100"
gpus = 4
uplink_bytes_per_s = 1e9
latency_s = 0.01
"""

QUICK = ("predict --json", "profiles show")
"""Those that take a fraction of a second."""

TIMED = ("measure", "calibrate-here", "serve", "mcp")
"""Commands that time this machine, no two of whose answers are alike; and one that never ends."""


def prepare(folder: Path) -> None:
    """Write what the commands read."""
    lines = (ROOT / "validation/runs/calibrate.csv").read_bytes().splitlines(keepends=True)
    (folder / "runs.csv").write_bytes(b"".join([lines[0], *lines[1:400:90]]))
    (folder / "run.toml").write_text(
        '[model]\nname = "gpt2-small"\n[training]\ntokens = 1e10\nglobal_batch = 64\n'
        'sequence_length = 1024\n[cluster]\nname = "dgx-a100"\ngpus = 8\n'
    )
    (folder / "grid.toml").write_text(
        '[grid]\n"cluster.gpus" = [8, 16]\n' + (folder / "run.toml").read_text()
    )
    (folder / "servers.toml").write_text(
        (folder / "run.toml").read_text() + "[parameter_server]\nservers = 1\nworker_gpus = 2\n"
    )
    (folder / "jobs.toml").write_text(
        '[[parts]]\nname = "p"\ncluster = "dgx-a100"\ngpus = 8\n'
        + '[[jobs]]\nname = "j"\nmodel = { name = "gpt2-small" }\ngpus = [8]\n'
        + "training = { sequence_length = 1024, global_batch = 64, tokens = 1e9 }\n"
    )
    (folder / "distil.toml").write_text(
        (folder / "run.toml").read_text() + '[distillation]\nteacher = "gpt2-xl"\n'
    )
    (folder / "rl.toml").write_text(
        (folder / "run.toml").read_text() + "[rl]\nprompts = 16\nsamples = 4\nanswer_tokens = 200\n"
    )
    (folder / "sites.toml").write_text((folder / "run.toml").read_text() + SITES)
    table = "".join(
        f" {size} {size // 4} float sum -1 {us:.1f} {size / us / 1e3:.2f} {size / us / 1e3:.2f} 0\n"
        for size, us in ((2**p, 40.0 + 2**p / 232e3) for p in range(20, 32, 2))
    )
    (folder / "all_reduce_perf.log").write_text(
        "".join(
            f"#  Rank  {i} Group  0 Pid 1 on gpu1 device  {i} [0x0{i}] NVIDIA H100 80GB HBM3\n"
            for i in range(8)
        )
        + table
    )


def digest(name: str, folder: Path) -> list[object]:
    """Exit code of a command, and a number for what it printed and wrote."""
    from simulator.cli.main import app

    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    raw, out = io.BytesIO(), sys.stdout
    shown = sys.stdout = io.TextIOWrapper(raw, encoding=out.encoding)
    code: object = 0
    try:
        with redirect_stderr(io.StringIO()):
            app(COMMANDS[name])
    except SystemExit as end:
        code = end.code
    finally:
        shown.flush()
        sys.stdout = out
    sums = {"": hashlib.sha256(raw.getvalue()).hexdigest()}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and before.get(path) != path.stat().st_mtime_ns:
            sums[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return [code or 0, sums]


def main() -> None:
    """Run the commands that are named, or all."""
    folder = Path(sys.argv[1])
    prepare(folder)
    os.chdir(folder)
    found = {name: digest(name, folder) for name in sys.argv[2:] or COMMANDS}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
