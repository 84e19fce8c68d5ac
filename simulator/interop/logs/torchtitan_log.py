"""A log of torchtitan: tokens per second and device, TFLOP/s, memory.

Lines as in ``MetricsProcessor.log`` of torchtitan/components/metrics.py (releases 0.1 to 0.3;
pytorch/torchtitan at 00fbaafa), and ``wps`` of train.py in 2024 (at 5604ab16). What is printed as
tps is ``tokens of this data-parallel rank / (time x non-data-parallel size)``: tokens of the whole
step over all devices, whatever the layout. So step time = tokens per step / (devices x tps).
Memory is the peak that torch reserved since the line before, on the rank that prints.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from simulator.layout.layouts import accelerators
from simulator.measured.log import LogReading, MeasuredLog
from simulator.measured.log_lines import Progress, marked_lines, rank_of, without_colours
from simulator.units import GIB
from simulator.workload.recipe import Recipe

_MESH, _BATCH = "device mesh with parallelism:", "batch size"
_COMPILED, _AGAIN = "with torch.compile", "activation checkpointing"
_MARKS = (b"tps: ", b"wps: ", *(mark.encode() for mark in (_MESH, _BATCH, _COMPILED, _AGAIN)))
_MODES = {"full": "full", "selective": "selective"}
_APPLIED = re.compile(r"Applied (\w{1,20}) activation checkpointing")

# Digits are bounded: what has more of them is damaged, and no number here needs as many.
_STEP = re.compile(r"(?<!validate )\bstep:\s*(\d{1,15})\s")
_SPEED = re.compile(r"\b[tw]ps:\s*(\d[\d,]{0,20})\s")
_TFLOPS = re.compile(r"\btflops:\s*(\d[\d,]{0,20}\.\d+)\s")
_MEMORY = re.compile(r"\bmemory:\s*(\d{1,9}\.\d+)GiB\(")
_DEGREE = re.compile(r"\b(\w+)=(\d{1,9})\b")
_SIZES = {
    "global_batch": re.compile(r"(global batch size) (\d{1,9}),"),
    "sequence_length": re.compile(r"(sequence length) (\d{1,9}),"),
}
_LOCAL = re.compile(r"(local batch size) (\d{1,9}),")


def read_torchtitan_log(
    path: Path | str,
    recipe: Recipe,
    gpus: int,
    *,
    warm_up: int | None = None,
    progress: Progress | None = None,
) -> MeasuredLog:
    """Read speed, TFLOP/s and memory from a log of torchtitan, with colours or without.

    Arguments and errors as of all readers (``interop/logs/readers.py``).
    """
    reading = LogReading("torchtitan", "a torchtitan log", path)
    tokens = recipe.tokens_per_step / gpus
    compiled = False
    for line, raw in marked_lines(path, _MARKS, progress=progress):
        text = without_colours(raw)
        if _MESH in text:
            _mesh(reading, line, text)
        elif _BATCH in text:
            _batch(reading, line, text)
        elif _COMPILED in text:
            compiled = True
        elif (mode := _APPLIED.search(text)) and mode[1] in _MODES:
            reading.state("recompute", _MODES[mode[1]], line, "activation checkpointing")
        elif "step:" in text and "validate step:" not in text:
            _step(reading, line, text, tokens)
    _software(reading, compiled, gpus)
    return reading.finish(recipe, gpus, warm_up)


def _software(reading: LogReading, compiled: bool, gpus: int) -> None:
    """Torchtitan itself, compiled where the log says so or does not begin with how it was set up.

    Its states are shared by FSDP unless a mesh says otherwise (data_parallel_shard_degree -1).
    """
    begun = "gpus" in reading.stated
    names = ("torchtitan", "torchtitan-eager")
    reading.software = names if compiled or not begun else names[::-1]
    if not (compiled or begun):
        rule = "whether blocks were compiled is not said: counted as compiled"
        reading.notes.append(f"{rule} (--software {names[1]}: they were not)")
    if gpus > 1 and not begun:
        reading.state("sharding", "zero3", 1, "torchtitan's default")
        reading.notes.append("how states are shared is not said: by FSDP, torchtitan's default")
    if not begun and "recompute" not in reading.stated:
        rule = "whether activations are checkpointed is not said: counted as the scenario has it"
        reading.notes.append(f"{rule} (--set layout.recompute=selective: torchtitan's default)")


def _step(reading: LogReading, line: int, text: str, tokens: float) -> None:
    """Take one step line; `tokens` are those of a step over the devices."""
    step, speed = _STEP.search(text), _SPEED.search(text)
    if step is None or speed is None:
        reading.unreadable(line)
        return
    rate = _number(speed.group(1))
    tflops, memory = _TFLOPS.search(text), _MEMORY.search(text)
    reading.add(
        int(step.group(1)),
        tokens / rate if rate else np.inf,
        line=line,
        rank=rank_of(text),
        tflops=_number(tflops.group(1)) if tflops else np.nan,
    )
    if memory:
        reading.peak("reserved", float(memory.group(1)) * GIB)


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _mesh(reading: LogReading, line: int, text: str) -> None:
    """Take the degrees of a device mesh that is wholly resolved."""
    degrees = {name: int(value) for name, value in _DEGREE.findall(text)}
    if not {"dp_replicate", "dp_shard", "tp", "pp"} <= degrees.keys():
        return
    dp = degrees["dp_replicate"] * degrees["dp_shard"]
    world = accelerators(degrees["tp"], degrees["pp"], degrees.get("cp", 1), dp)
    found = {"gpus": world, "dp": dp, **{k: v for k, v in degrees.items() if k in _OWN}}
    if dp > degrees["dp_shard"] > 1:
        found["shard_group"] = degrees["dp_shard"] * degrees.get("cp", 1)
    words = {
        "gpus": "product of the device mesh",
        "dp": "dp_replicate x dp_shard",
        "shard_group": "dp_shard x cp",
    }
    for name, value in found.items():
        reading.state(name, value, line, words.get(name, name))


_OWN = ("tp", "pp", "cp", "ep")
"""Degrees that torchtitan and a layout call the same."""


def _batch(reading: LogReading, line: int, text: str) -> None:
    """Take what the trainer says before it starts; with a pipeline local batch has no twin here."""
    for name, pattern in _SIZES.items():
        if found := pattern.search(text):
            reading.state(name, int(found.group(2)), line, found.group(1))
    stages = reading.stated.get("pp")
    local = _LOCAL.search(text)
    if local and stages is not None and stages.value == 1:
        reading.state("micro_batch", int(local.group(2)), line, local.group(1))
