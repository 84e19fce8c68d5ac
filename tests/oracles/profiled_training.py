"""Train a tiny network on this machine's processors under torch.profiler and export its traces.

    python profiled_training.py FOLDER --ranks 2

writes ``rank0.json.gz``, ... and ``truth0.json``, ...: what the program itself counted and timed,
and what the profiler's own ``key_averages`` says.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

STEPS = 3
WIDTH, LENGTH, BATCH = 64, 32, 4


class Block(nn.Module):
    """Attention and an MLP, as torch runs them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).view(BATCH, LENGTH, 4, -1).transpose(1, 2).chunk(3, -1)
        heads = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.mlp(self.proj(heads.transpose(1, 2).reshape(x.shape)))


def train(path: Path, wrap: Any = lambda model: model) -> dict[str, Any]:
    """Profile STEPS steps after one of warm-up, export them, and return the truth about them."""
    torch.manual_seed(0)
    model = wrap(nn.Sequential(Block(), Block()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(BATCH, LENGTH, WIDTH)
    truth: dict[str, Any] = {"parameters": sum(p.numel() for p in model.parameters())}
    clock = []

    def done(found: Any) -> None:
        found.export_chrome_trace(str(path))
        truth["self_s"] = {
            one.key: one.self_cpu_time_total / 1e6
            for one in found.key_averages()
            if not one.is_user_annotation
        }

    plan = schedule(wait=0, warmup=1, active=STEPS, repeat=1)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=plan,
        on_trace_ready=done,
        profile_memory=True,
        record_shapes=True,
    ) as profiler:
        for _ in range(1 + STEPS):
            clock.append(time.perf_counter())
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            clock.append(time.perf_counter())
            profiler.step()
    begun, ended = clock[0::2], clock[1::2]  # of each step, the warm-up first
    truth["inside_s"] = sum(ended[i] - begun[i] for i in range(1, 1 + STEPS))
    truth["outside_s"] = ended[-1] - ended[0]
    return truth


def rank_main(rank: int, folder: Path, ranks: int) -> None:
    """Train one rank of a data-parallel run over gloo."""
    torch.set_num_threads(1)
    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    parallel = nn.parallel.DistributedDataParallel
    truth = train(folder / f"rank{rank}.json.gz", lambda model: parallel(model, bucket_cap_mb=0.1))
    (folder / f"truth{rank}.json").write_text(json.dumps(truth))
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    given = parser.parse_args()
    arguments = (given.folder.resolve(), given.ranks)
    mp.start_processes(rank_main, args=arguments, nprocs=given.ranks, start_method="fork")
