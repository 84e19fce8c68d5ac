# ruff: noqa: UP032 - format strings stand here as they stand at their sources
"""What frameworks print while they train, in their own format strings, each with its place.

Only format strings are the frameworks'. Times, losses and speeds are those of train_for_logs.py;
where a GPU run prints its allocator's memory, this prints the resident memory of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import torch.distributed as dist

SEQUENCE, LOCAL_BATCH = 64, 4
"""Tokens per sequence, sequences per rank."""
PAUSE_AT, EVALUATIONS = 12, 20
"""After this step the model is evaluated, on so many batches."""
LAYERS, HIDDEN = 4, 64
MEBI, GIBI = 2.0**20, 2.0**30


def resident_bytes(peak: bool) -> float:
    if peak:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
    return int(Path("/proc/self/statm").read_text().split()[1]) * float(os.sysconf("SC_PAGE_SIZE"))


class Printer:
    """What all styles share: who we are, and the truth of every line."""

    def __init__(self, options: argparse.Namespace, rank: int, parameters: int) -> None:
        self.options, self.rank, self.world = options, rank, options.ranks
        self.dp = self.world // options.model_parallel
        self.batch = LOCAL_BATCH * self.dp
        self.tokens_of_rank = LOCAL_BATCH * SEQUENCE
        self.flop_per_token = 6 * parameters
        self.truth: list[tuple[int, float]] = []
        self.memory_truth: float | None = None

    def say(self, text: str) -> None:
        print(text, flush=True)

    def start(self) -> None:
        self.since = time.perf_counter()

    def step(self, step: int, loss: float, norm: float) -> None: ...
    def evaluating(self, step: int) -> None: ...
    def evaluated(self, step: int, loss: float, took: float) -> None: ...
    def stop(self) -> None: ...


class Megatron(Printer):
    """NVIDIA/Megatron-LM: megatron/training/training.py at 001b00c2, utils.py at 00caa53a,
    arguments.py at 307dcf37. The elapsed time is of the interval, the log's first line is of the
    first iteration and does not begin a new interval; evaluation stands outside."""

    interval = 2
    first = True
    memory = "{:.2f}"

    def start(self) -> None:
        if self.rank == 0:
            # fmt: off
            self.say('using world size: {}, data-parallel size: {}, '
                     'context-parallel size: {} '
                     'tensor-model-parallel size: {}, '
                     'pipeline-model-parallel size: {} '.format(
                         self.world, self.dp, 1, self.options.model_parallel, 1))
            # fmt: on
            self.say("------------------------ arguments ------------------------")
            for arg, value in self.arguments().items():
                self.say("  {} {} {}".format(arg, "." * (48 - len(arg)), value))
            self.say("-------------------- end of arguments ---------------------")
        self.done, self.reported = 0, False
        super().start()

    def arguments(self) -> dict[str, Any]:
        return {
            "context_parallel_size": 1,
            "data_parallel_size": self.dp,
            "global_batch_size": self.batch,
            "hidden_size": HIDDEN,
            "micro_batch_size": LOCAL_BATCH,
            "num_layers": LAYERS,
            "pipeline_model_parallel_size": 1,
            "seq_length": SEQUENCE,
            "tensor_model_parallel_size": self.options.model_parallel,
            "virtual_pipeline_model_parallel_size": None,
            "world_size": self.world,
        }

    def step(self, step: int, loss: float, norm: float) -> None:
        self.done += 1
        begins = self.first and step == 1
        if step % self.interval and not begins:
            return
        if self.world > 1:
            dist.barrier()
        elapsed = (time.perf_counter() - self.since) / self.done
        if self.rank == self.world - 1:
            self.truth.append((step, elapsed))
            self.say(self.line(step, elapsed, loss, norm))
        if not self.reported and self.rank % self.options.model_parallel == self.rank:
            self.report(step)
            self.reported = step > 1 or not self.first
        if not begins:
            self.done, self.since = 0, time.perf_counter()

    def line(self, iteration: int, elapsed: float, loss: float, norm: float) -> str:
        tokens_per_s = self.batch * SEQUENCE / elapsed
        throughput = self.flop_per_token * tokens_per_s / (1e12 * self.world)
        text = f" [{datetime.now().strftime('%Y-%m-%d %H:%M:%S.%f')}]"
        text += " iteration {:8d}/{:8d} |".format(iteration, self.options.steps)
        text += " consumed samples: {:12d} |".format(iteration * self.batch)
        text += " elapsed time per iteration (ms): {:.1f} |".format(elapsed * 1000.0)
        text += f" throughput per GPU (TFLOP/s/GPU): {throughput:.1f} |"
        text += f" learning rate: {1e-3:.6E} |"
        text += f" global batch size: {self.batch:5d} |"
        text += " {}: {:.6E} |".format("lm loss", loss)
        text += f" loss scale: {1.0:.1f} |"
        text += f" grad norm: {norm:.3f} |"
        text += " number of skipped iterations: {:3d} |".format(0)
        return text + " number of nan iterations: {:3d} |".format(0)

    def report(self, iteration: int) -> None:
        sizes = {
            "allocated": resident_bytes(False),
            "max allocated": resident_bytes(True),
            "reserved": resident_bytes(False),
            "max reserved": resident_bytes(True),
        }
        text = f"(after {iteration} iterations) memory (MB)"
        text += "".join(f" | {k}: {self.memory.format(v / MEBI)}" for k, v in sizes.items())
        self.say("[Rank {}] {}".format(self.rank, text))
        if self.rank == 0:
            self.memory_truth = sizes["max reserved"]

    def evaluated(self, step: int, loss: float, took: float) -> None:
        self.since += took  # its timer stands still
        if self.rank == self.world - 1:
            self.say(f" validation loss at iteration {step} | lm loss value: {loss:.6E} | ")


class Megatron2023(Megatron):
    """NVIDIA/Megatron-LM at 974d0fa9 (megatron/training.py) and d2c5e8b4 (megatron/utils.py):
    no date, no throughput, no line for the first iteration, memory unrounded."""

    first = False
    memory = "{}"

    def line(self, iteration: int, elapsed: float, loss: float, norm: float) -> str:
        text = " iteration {:8d}/{:8d} |".format(iteration, self.options.steps)
        text += " consumed samples: {:12d} |".format(iteration * self.batch)
        text += " elapsed time per iteration (ms): {:.1f} |".format(elapsed * 1000.0)
        text += " learning rate: {:.3E} |".format(1e-3)
        text += " global batch size: {:5d} |".format(self.batch)
        text += " {}: {:.6E} |".format("lm loss", loss)
        text += " loss scale: {:.1f} |".format(1.0)
        text += " grad norm: {:.3f} |".format(norm)
        text += " number of skipped iterations: {:3d} |".format(0)
        return text + " number of nan iterations: {:3d} |".format(0)


class Colour:
    """Codes of torchtitan/tools/utils.py."""

    red, green, yellow, blue = "\033[31m", "\033[32m", "\033[33m", "\033[34m"
    magenta, cyan, reset = "\033[35m", "\033[36m", "\033[39m"
    orange, turquoise = "\033[38;2;180;60;0m", "\033[38;2;54;234;195m"


class Torchtitan(Printer):
    """pytorch/torchtitan, release 0.3.0: components/metrics.py, trainer.py, tools/logging.py,
    distributed/parallel_dims.py. Every rank prints, with torchrun's prefix. Evaluation inside a
    log interval is not taken out (it is with torchtitan's own validator)."""

    interval = 2
    colour: Any = Colour

    def say(self, text: str) -> None:
        now = datetime.now().strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]
        print(f"[rank{self.rank}]:[titan] {now} - root - INFO - {text}", flush=True)

    def start(self) -> None:
        self.say(
            f"Building device mesh with parallelism: "
            f"pp={1}, dp_replicate={1}, dp_shard={self.dp}, "
            f"cp={1}, tp={self.options.model_parallel}, ep={1}"
        )
        self.say(
            "Trainer is initialized with "
            f"local batch size {LOCAL_BATCH}, "
            f"global batch size {self.batch}, "
            f"gradient accumulation steps {1}, "
            f"sequence length {SEQUENCE}, "
            f"total steps {self.options.steps} "
            f"(warmup {2})"
        )
        self.last = 0
        super().start()

    def step(self, step: int, loss: float, norm: float) -> None:
        if step % self.interval and step != 1:
            return
        delta, count = time.perf_counter() - self.since, step - self.last
        self.truth.append((step, delta / count))
        self.print_line(step, loss, norm, delta, count)
        self.last, self.since = step, time.perf_counter()

    def print_line(self, step: int, loss: float, norm: float, delta: float, count: int) -> None:
        tps = count * self.tokens_of_rank / (delta * self.options.model_parallel)
        tflops = self.flop_per_token * tps / 1e12
        reserved = resident_bytes(True)
        self.memory_truth = reserved
        self.say(self.line(step, loss, norm, reserved, tps, tflops, 100 * tflops / 989))

    def line(
        self,
        step: int,
        loss: float,
        norm: float,
        reserved: float,
        tps: float,
        tflops: float,
        mfu: float,
    ) -> str:
        color = self.colour
        return (
            f"{color.red}step: {step:2}  "
            f"{color.green}loss: {loss:8.5f}  "
            f"{color.orange}grad_norm: {norm:7.4f}  "
            f"{color.turquoise}memory: {reserved / GIBI:5.2f}GiB"
            f"({100 * reserved / (80 * GIBI):.2f}%)  "
            f"{color.blue}tps: {round(tps):,}  "
            f"{color.cyan}tflops: {tflops:,.2f}  "
            f"{color.magenta}mfu: {mfu:.2f}%{color.reset}"
        )

    def evaluated(self, step: int, loss: float, took: float) -> None:
        color, reserved = self.colour, resident_bytes(True)
        tps = EVALUATIONS * self.tokens_of_rank / (took * self.options.model_parallel)
        self.say(
            f"{color.yellow}validate step: {step:2}  "
            f"{color.green}loss: {loss:7.4f}  "
            f"{color.turquoise}memory: {reserved / GIBI:5.2f}GiB"
            f"({100 * reserved / (80 * GIBI):.2f}%)  "
            f"{color.blue}tps: {round(tps):,}{color.reset}"
        )


class Torchtitan2024(Torchtitan):
    """pytorch/torchtitan at 5604ab16: train.py, without colours; no line on mesh or batch."""

    def start(self) -> None:
        self.last = 0
        Printer.start(self)

    def line(
        self,
        step: int,
        loss: float,
        norm: float,
        reserved: float,
        tps: float,
        tflops: float,
        mfu: float,
    ) -> str:
        return (
            f"step: {step:2}  "
            f"loss: {loss:7.4f}  "
            f"memory: {reserved / GIBI:5.2f}GiB"
            f"({100 * reserved / (80 * GIBI):.2f}%)  "
            f"wps: {round(tps):,}  "
            f"mfu: {mfu:.2f}%"
        )

    def evaluated(self, step: int, loss: float, took: float) -> None: ...


class TorchtitanLibrary(Torchtitan):
    """torchtitan's MetricsProcessor prints the step lines; its device monitor knows GPUs only."""

    def start(self) -> None:
        from torchtitan.components import metrics
        from torchtitan.tools.logging import init_logger

        class Resident:
            device_name = "NVIDIA H100 80GB HBM3"

            def reset_peak_stats(self) -> None: ...
            def get_peak_stats(self) -> metrics.DeviceMemStats:
                size = resident_bytes(True)
                share = 100 * size / (80 * GIBI)
                return metrics.DeviceMemStats(size / GIBI, share, size / GIBI, share, 0, 0)

        class Degrees:
            pp_enabled = False
            non_data_parallel_size = self.options.model_parallel

        metrics.build_device_memory_monitor = Resident
        init_logger()
        config = metrics.MetricsProcessor.Config(log_freq=self.interval)
        self.processor = metrics.MetricsProcessor(config, parallel_dims=Degrees())
        self.processor.num_flops_per_token = self.flop_per_token
        super().start()
        self.processor.time_last_log = self.since

    def print_line(self, step: int, loss: float, norm: float, delta: float, count: int) -> None:
        self.processor.ntokens_since_last_log = count * self.tokens_of_rank
        self.processor.data_loading_times.append(0.0)
        self.memory_truth = resident_bytes(True)
        self.processor.log(step, loss, loss, norm)

    def evaluated(self, step: int, loss: float, took: float) -> None: ...


class MLPerf(Printer):
    """mlcommons/logging, release 4.1.68: mllog/mllog.py, keys of mllog/constants.py. Rank 0."""

    block = 4

    def event(self, kind: str, key: str, value: Any = None, **metadata: Any) -> None:
        if self.rank:
            return
        record = {
            "namespace": "",
            "time_ms": int(time.time() * 1e3),
            "event_type": kind,
            "key": key,
            "value": value,
            "metadata": {"file": "log_printers.py", "lineno": 1, **metadata},
        }
        print(":::MLLOG {log_json}".format(log_json=json.dumps(record)), flush=True)

    def start(self) -> None:
        self.event("POINT_IN_TIME", "submission_benchmark", "llama31_8b")
        self.event("POINT_IN_TIME", "global_batch_size", self.batch)
        self.event("POINT_IN_TIME", "max_sequence_length", SEQUENCE)
        self.event("POINT_IN_TIME", "train_samples", self.options.steps * self.batch)
        self.event("INTERVAL_START", "run_start")
        self.open_block(0)

    def open_block(self, step: int) -> None:
        super().start()
        self.event("INTERVAL_START", "block_start", samples_count=step * self.batch)

    def step(self, step: int, loss: float, norm: float) -> None:
        if step % self.block == 0:
            samples = step * self.batch
            rate = self.block * self.batch / (time.perf_counter() - self.since)
            self.event("POINT_IN_TIME", "tracked_stats", {"throughput": rate}, step=samples)
            elapsed = time.perf_counter() - self.since
            self.event("INTERVAL_END", "block_stop", samples_count=samples)
            self.truth.append((step // self.block, elapsed / self.block))
            if step < self.options.steps and step != PAUSE_AT:
                self.open_block(step)

    def evaluating(self, step: int) -> None:
        self.event("INTERVAL_START", "eval_start", samples_count=step * self.batch)

    def evaluated(self, step: int, loss: float, took: float) -> None:
        self.event("POINT_IN_TIME", "eval_accuracy", loss, samples_count=step * self.batch)
        self.event("INTERVAL_END", "eval_stop", samples_count=step * self.batch)
        self.open_block(step)

    def stop(self) -> None:
        self.event("INTERVAL_END", "run_stop", status="success")


class MLPerfLibrary(MLPerf):
    """mllog itself prints."""

    def start(self) -> None:
        from mlperf_logging import mllog

        mllog.config(root_dir=str(Path(__file__).resolve().parent))
        super().start()

    def event(self, kind: str, key: str, value: Any = None, **metadata: Any) -> None:
        from mlperf_logging import mllog

        if self.rank:
            return
        logger = mllog.get_mllogger()
        prints = {"INTERVAL_START": logger.start, "INTERVAL_END": logger.end}
        prints.get(kind, logger.event)(key, value, metadata=metadata)


STYLES = {
    "megatron": Megatron,
    "megatron-2023": Megatron2023,
    "torchtitan": Torchtitan,
    "torchtitan-2024": Torchtitan2024,
    "mlperf": MLPerf,
}
LIBRARIES = {"torchtitan": TorchtitanLibrary, "mlperf": MLPerfLibrary}
