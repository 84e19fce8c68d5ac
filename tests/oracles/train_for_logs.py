"""Train a tiny Llama on this machine's CPU and print what frameworks would print.

    python train_for_logs.py megatron torchtitan --ranks 2 --out FOLDER

writes FOLDER/STYLE.log and, for each rank, FOLDER/STYLE.RANK.json: the truth, which is what the
program's own clock says, unrounded. Styles: megatron (2025), megatron-2023, torchtitan (0.3),
torchtitan-2024, mlperf. With --library torchtitan and mlperf print through the libraries themselves
(pip install torchtitan mlperf-logging); tests/data/logs says which logs were made so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

HERE = Path(__file__).resolve().parent
PATHS = [str(HERE), str(HERE.parents[1] / "kernels")]
sys.path[:0] = PATHS
import _models
import log_printers as printers

for path in PATHS:
    sys.path.remove(path)

SHAPE = _models.MODELS["llama-tiny"]
assert (SHAPE.layers, SHAPE.hidden) == (printers.LAYERS, printers.HIDDEN)


def train(rank: int, options: argparse.Namespace) -> None:
    """Train once for each style; ranks of one model-parallel group see the same batches."""
    torch.set_num_threads(1)
    if options.ranks > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{options.store}", rank=rank, world_size=options.ranks
        )
    styles = {**printers.STYLES, **(printers.LIBRARIES if options.library else {})}
    for style in options.styles:
        if options.ranks > 1:
            dist.barrier()
        log = options.out / f"{style}.log"
        with log.open("a", buffering=1) as file, contextlib.redirect_stdout(file):
            printer = run(styles[style], rank, options)
        told = {"entries": printer.truth, "memory_bytes": printer.memory_truth}
        (options.out / f"{style}.{rank}.json").write_text(json.dumps(told))
    if options.ranks > 1:
        dist.destroy_process_group()


def run(style: type[printers.Printer], rank: int, options: argparse.Namespace) -> printers.Printer:
    torch.manual_seed(0)
    model = _models.Transformer(SHAPE)
    model.make_tables(printers.SEQUENCE, "cpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(1 + rank // options.model_parallel)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    printer = style(options, rank, parameters)
    printer.start()
    for step in range(1, options.steps + 1):
        loss = loss_of(model, data)
        optimizer.zero_grad()
        loss.backward()
        if options.ranks > 1:
            average([parameter.grad for parameter in model.parameters()], options.ranks)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        printer.step(step, loss.item(), norm.item())
        if step == printers.PAUSE_AT:
            printer.evaluating(step)
            began = time.perf_counter()
            with torch.no_grad():
                losses = [loss_of(model, data).item() for _ in range(printers.EVALUATIONS)]
            printer.evaluated(step, sum(losses) / printers.EVALUATIONS, time.perf_counter() - began)
    printer.stop()
    return printer


def average(gradients: list[torch.Tensor], ranks: int) -> None:
    together = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(together)
    sizes = [gradient.numel() for gradient in gradients]
    for gradient, part in zip(gradients, together.split(sizes), strict=True):
        gradient.copy_(part.view_as(gradient) / ranks)


def loss_of(model: torch.nn.Module, data: torch.Generator) -> torch.Tensor:
    shape = (printers.LOCAL_BATCH, printers.SEQUENCE + 1)
    tokens = torch.randint(SHAPE.vocabulary, shape, generator=data)
    logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("styles", nargs="+", choices=sorted(printers.STYLES))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--model-parallel", type=int, default=1)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--library", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options.store = Path(folder) / "store"
        if options.ranks == 1:
            train(0, options)
        else:
            mp.spawn(train, (options,), options.ranks)


if __name__ == "__main__":
    main()
