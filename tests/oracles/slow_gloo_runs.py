"""Train a small network on two processes over gloo, with one thing wrong, and print what it took.

    python slow_gloo_runs.py CAUSE --steps N

prints a JSON list, for each rank an entry for each step: seconds until its batch was there, of
processor time of its compute, and of the reduction, in which it waits for the other rank. Processor
time leaves out what other programs of the machine take meanwhile.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WIDTH, LAYERS, ROWS = 512, 4, 128
CAUSES = ("none", "input_pipeline", "slow_server")
SLOW_TIMES = 3
"""Passes of the slow rank for one of the other."""
LATE = 0.3
"""Share of batches that are late."""


def batch(cause: str, draw: random.Random, usual_s: float) -> torch.Tensor:
    """Load a batch; where the loader is at fault some come several steps late."""
    if cause == "input_pipeline" and draw.random() < LATE:
        time.sleep(3.0 * usual_s)
    return torch.randn(ROWS, WIDTH)


def train(rank: int, cause: str, steps: int, folder: str) -> None:
    """Both ranks; each writes its times."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    model = torch.nn.Sequential(*layers)
    draw, times = random.Random(7), []
    usual_s = 0.0
    for step in range(steps):
        began = time.perf_counter()
        data = batch(cause if step >= 5 else "none", draw, usual_s)
        loaded, worked = time.perf_counter(), time.thread_time()
        passes = SLOW_TIMES if cause == "slow_server" and rank == 1 else 1
        for _ in range(passes):
            model.zero_grad()
            model(data).square().mean().backward()
        computed, compute_s = time.perf_counter(), time.thread_time() - worked
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        ended = time.perf_counter()
        if step < 5:
            usual_s = ended - began if step < 2 else min(usual_s, ended - began)
        else:
            times.append((loaded - began, compute_s, ended - computed))
    (Path(folder) / f"{rank}.json").write_text(json.dumps(times))
    dist.destroy_process_group()


def main() -> None:
    """Run one case."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("cause", choices=CAUSES)
    made.add_argument("--steps", type=int, default=60)
    options = made.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, args=(options.cause, options.steps, folder), nprocs=2, join=True)
        both = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(2)]
        sys.stdout.write(json.dumps(both))


if __name__ == "__main__":
    main()
