"""Real pipelines of small stages over gloo: every rank writes down what it did, and when.

Run by test_real_pipeline.py; the ranks are forked, so that torch is imported once:
``python gloo_pipeline.py FOLDER SECONDS WORLD/SCHEDULE:MICRO_BATCHES:CHUNKS/... ...``
"""

import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

WIDTH, ROWS = 8, 2


def stage_of(piece: int, pieces: int, seconds: float, log: list[Any]) -> PipelineStage:
    """A linear layer whose passes take at least `seconds` each and are written down."""
    torch.manual_seed(piece)
    rows = torch.zeros(ROWS, WIDTH, requires_grad=True)
    stage = PipelineStage(
        torch.nn.Linear(WIDTH, WIDTH),
        piece,
        pieces,
        torch.device("cpu"),
        input_args=(rows,),
        output_args=(rows,),
    )

    def recorded(method: Any, letter: Any) -> Any:
        def run(batch: int, *args: Any, **named: Any) -> Any:
            start = time.monotonic()
            time.sleep(seconds)
            result = method(batch, *args, **named)
            log.append((letter(named), piece, batch, start, time.monotonic()))
            return result

        return run

    def backward(named: Any) -> str:
        return "B" if named.get("full_backward", True) else "I"

    stage.forward_one_chunk = recorded(stage.forward_one_chunk, lambda _: "F")
    stage.backward_one_chunk = recorded(stage.backward_one_chunk, backward)
    stage.backward_weight_one_chunk = recorded(stage.backward_weight_one_chunk, lambda _: "W")
    return stage


def run(name: str, micro_batches: int, chunks: int, rank: int, world: int, seconds: float) -> Any:
    """One step of a schedule; what this rank did."""
    log: list[Any] = []
    kind, pieces = get_schedule_class(name), world * chunks
    last_first = name in ("ZBVZeroBubble", "DualPipeV")
    own = [rank, 2 * world - 1 - rank] if last_first else [rank + world * c for c in range(chunks)]
    stages = [stage_of(piece, pieces, seconds, log) for piece in own]
    single = issubclass(kind, PipelineScheduleSingle)
    schedule = kind(
        stages[0] if single else stages, micro_batches, loss_fn=torch.nn.functional.mse_loss
    )
    given = torch.ones(micro_batches * ROWS, WIDTH)
    inputs = (given,) if 0 in own else ()
    targets = {"target": given} if pieces - 1 in own else {}
    dist.barrier()
    schedule.step(*inputs, **targets)
    dist.barrier()
    return log


def rank_main(folder: Path, seconds: float, world: int, rank: int, words: list[str]) -> None:
    """All schedules of one world, on one rank."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / f"store-{world}"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    logs = {}
    for word in words:
        name, micro_batches, chunks = word.split(":")
        logs[name] = run(name, int(micro_batches), int(chunks), rank, world, seconds)
    dist.destroy_process_group()
    (folder / f"{world}-{rank}.json").write_text(json.dumps(logs))


def main() -> None:
    folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
    fork = multiprocessing.get_context("fork")
    for given in sys.argv[3:]:
        first, *words = given.split("/")
        world = int(first)
        ranks = [
            fork.Process(target=rank_main, args=(folder, seconds, world, rank, words), daemon=True)
            for rank in range(world)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(120)
        if codes := [process.exitcode for process in ranks if process.exitcode != 0]:
            raise SystemExit(f"ranks of {world} ended with {codes}")


if __name__ == "__main__":
    main()
