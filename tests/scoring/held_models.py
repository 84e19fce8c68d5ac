"""Every model of the zoo and of the families under drawn layouts, as when somebody last looked.

``python -m tests.scoring.held_models`` predicts them again, says what moved and writes the file.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from simulator.cost.step import evaluate
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.layout.rules.feasibility import reasons
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.architecture import Architecture
from simulator.workload.families import table
from simulator.workload.huggingface import from_hf
from simulator.workload.recipe import Recipe, Workload
from tests.scoring.held_runs import Held, write

DATA = Path(__file__).resolve().parents[1] / "data"
PATH = DATA / "held_models.csv"
HEAD = ("model", "layouts", "step_s", "memory_gib", "fullest_gib")
GPUS, LAYOUTS, BATCH, LENGTH = 16, 48, 32, 4096
STACKS = ("megatron-core", "torchtitan", "deepspeed", "megatron-bridge", "torch-fsdp")


@cache
def drawn() -> Layouts:
    """Layouts of 16 accelerators, the same ones each time."""
    chance = random.Random(38)
    rows: dict[str, list[Any]] = {}
    for _ in range(LAYOUTS):
        tp, pp, cp = (chance.choice(sizes) for sizes in ((1, 1, 2, 4), (1, 1, 2), (1, 1, 2)))
        recompute = chance.choice(("none", "selective", "full"))
        sharding = chance.choice(("ddp", "zero1", "zero2", "zero3"))
        dp = GPUS // (tp * pp * cp)
        row = {
            "tp": tp,
            "pp": pp,
            "cp": cp,
            "dp": dp,
            "ep": chance.choice([n for n in (1, 1, 2, 4) if dp * cp % n == 0]),
            "micro_batch": chance.choice((1, 1, 2)),
            "sharding": sharding,
            "shard_group": dp * cp,
            "sequence_parallel": int(tp > 1 and chance.random() < 0.7),
            "recompute": recompute,
            "recompute_modules": "mlp"
            if recompute == "selective" and chance.random() < 0.3
            else "",
            "optimizer_offload": chance.choice(("none", "none", "cpu")),
        }
        for name, value in row.items():
            rows.setdefault(name, []).append(value)
    return Layouts.of(global_batch=BATCH, **rows)


def architectures() -> Iterator[tuple[str, Architecture]]:
    """The zoo, and a small model of each family that transformers' classes were counted for."""
    for name in presets.names():
        yield name, presets.load(name)
    for case in json.loads((DATA / "families.json").read_text(encoding="utf-8"))["cases"]:
        config = case["config"]
        whole = "parts" in table.row(config["model_type"]).words or "architectures" in config
        outer = config if whole else {"text_config": config}
        name = config.get("architectures", [config["model_type"]])[0]
        yield f"{name} (small)", from_hf(outer, name=name, where="config.json")


def predicted() -> Held:
    """Layouts that can run, geometric means of step and memory, and the fullest, by model."""
    return dict(each())


def each() -> Iterator[tuple[str, tuple[float, ...]]]:
    """The same, one model after another."""
    cluster = load_cluster("dgx-h100", GPUS)
    for (name, architecture), stack in zip(architectures(), cycle(STACKS)):
        software = load_software(stack)
        length = min(architecture.max_positions, LENGTH)
        traced = architecture.traced
        precision = "fp32" if traced is not None and traced.element_bytes == 4 else "bf16"
        recipe = Recipe(sequence_length=length, global_batch=BATCH, precision=precision)
        workload = Workload(architecture=architecture, recipe=recipe)
        layouts = drawn()
        layouts = layouts[np.flatnonzero(reasons(layouts, workload, cluster, software) == 0)]
        estimate = evaluate(layouts, workload, cluster, software)
        step, memory = estimate.step_time_s, estimate.memory_total_bytes / 2.0**30
        mean = [float(np.exp(np.log(column).mean())) for column in (step, memory)]
        yield name, (float(len(layouts)), *mean, float(memory.max()))


if __name__ == "__main__":
    write(predicted(), PATH, HEAD)
