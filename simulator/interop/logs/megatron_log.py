"""A log of Megatron-LM, or of what prints its lines (Megatron-Bridge, Megatron-DeepSpeed, Primus).

Lines as in ``training_log`` of megatron/training/training.py and ``report_memory`` of
megatron/training/utils.py (NVIDIA/Megatron-LM at 001b00c2 and 00caa53a), and of the 2023 release
without throughput (megatron/training.py at 974d0fa9). The elapsed time is a mean over the
iterations since the line before; its interval timer stands still during evaluation.

Arguments are read as those of a launch are: ``_print_args`` of megatron/training/arguments.py (at
000c4ac2) lists every argument of the parser under its own name, dots, and its value after
validation, defaults too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from simulator.errors import InputError
from simulator.interop.dialects.megatron import read_megatron
from simulator.interop.dialects.settings import (
    MOST_SETTINGS,
    Place,
    Reading,
    Setting,
    Settings,
    Stated,
    idle_in,
)
from simulator.measured.log import LogReading, MeasuredLog
from simulator.measured.log_lines import Progress, marked_lines, rank_of
from simulator.units import MIB
from simulator.workload.recipe import Recipe

_STEP, _MEMORY, _WORLD = "elapsed time per iteration (ms):", ") memory (MB) |", "using world size:"
_THEORY, _DOTS = "Theoretical memory footprints:", " ..."
_MARKS = tuple(mark.encode() for mark in (_STEP, _MEMORY, _WORLD, _THEORY, _DOTS))

# Digits are bounded: what has more of them is damaged, and no number here needs as many.
_ITERATION = re.compile(r"iteration\s+(\d{1,15})/\s*\d+ \|")
_ELAPSED = re.compile(r"elapsed time per iteration \(ms\): *(\d{1,15}\.\d+)(?:/[\d.]+)? *\|")
_SAMPLES = re.compile(r"consumed samples: *(\d{1,15}) *\|")
_BATCH = re.compile(r"global batch size: *(\d{1,15}) *\|")
_TFLOPS = re.compile(r"throughput per GPU \(TFLOP/s/GPU\): *(\d{1,15}\.\d+)(?:/[\d.]+)? *\|")
_PEAK = re.compile(r"\| (max allocated|max reserved|total device memory used): *(\d{1,15}\.\d+)")
_AFTER = re.compile(r"\(after (\d{1,15}) iterations\) memory")
_MEMORY_RANK = re.compile(r"\[Rank (\d{1,9})\]")
_TOTAL = re.compile(r"total=(\d{1,15}\.\d+) MB")
_SIZE = re.compile(r"([a-z-]+ size): (\d{1,15})\b")

_KINDS = {
    "max allocated": "allocated",
    "max reserved": "reserved",
    "total device memory used": "device",
}
_SIZES = {
    "world size": "gpus",
    "data-parallel size": "dp",
    "context-parallel size": "cp",
    "tensor-model-parallel size": "tp",
    "pipeline-model-parallel size": "pp",
}
_SECTIONS = ("layout", "training", "size", "cluster")
"""Of what the arguments state, what a scenario has."""


def read_megatron_log(
    path: Path | str,
    recipe: Recipe,
    gpus: int,
    *,
    warm_up: int | None = None,
    progress: Progress | None = None,
) -> MeasuredLog:
    """Read iteration times, TFLOP/s and memory from a log of Megatron-LM.

    Arguments and errors as of all readers (``interop/logs/readers.py``).
    """
    reading = LogReading("megatron", "a Megatron-LM log", path)
    before: tuple[int, int, int] | None = None
    listed: list[tuple[int, str, str]] = []
    for line, text in marked_lines(path, _MARKS, progress=progress):
        if _STEP in text:
            before = _step(reading, line, text, before)
        elif _MEMORY in text:
            _memory(reading, text)
        elif _THEORY in text:
            if total := _TOTAL.search(text):
                reading.peak("theoretical", float(total.group(1)) * MIB)
        elif _WORLD in text:
            for words, value in _SIZE.findall(text):
                if words in _SIZES:
                    reading.state(_SIZES[words], int(value), line, words)
        elif (found := ARGUMENT.search(text)) and len(listed) < MOST_SETTINGS:
            listed.append((line, found[1], found[2]))
    if listed:
        _arguments(reading, listed)
    return reading.finish(recipe, gpus, warm_up)


def _arguments(reading: LogReading, listed: list[tuple[int, str, str]]) -> None:
    """Take what the arguments state; step lines say the batch of every step themselves."""
    found = listed_arguments(listed, reading.path)
    for item in found.stated:
        section, _, name = item.field.partition(".")
        if section in _SECTIONS and not (name == "global_batch" and name in reading.stated):
            reading.state(name, item.value, item.place.line, item.place.key)
        elif section == "software":
            reading.state(item.field, item.value, item.place.line, item.place.key)
        elif item.field == "run.shard_instances" and item.value > 1:
            reading.unknown.append(item.place.key)
    for line, key, value in listed:
        if key == "data_parallel_size" and value.isdecimal():
            reading.state("dp", int(value), line, key)
    reading.unknown += [place.key for place in found.unknown]
    reading.software = found.software
    said = f"{reading.path}: "
    reading.notes += [f"not understood: {text.removeprefix(said)}" for text in found.problems]


def _step(
    reading: LogReading, line: int, text: str, before: tuple[int, int, int] | None
) -> tuple[int, int, int] | None:
    """Take one iteration line; give (iteration, consumed samples, global batch) for the next."""
    iteration, elapsed = _ITERATION.search(text), _ELAPSED.search(text)
    if iteration is None or elapsed is None:
        reading.unreadable(line)
        return before
    step = int(iteration.group(1))
    samples, batch, tflops = (p.search(text) for p in (_SAMPLES, _BATCH, _TFLOPS))
    now = (step, int(samples.group(1)) if samples else 0, int(batch.group(1)) if batch else 0)
    size = now[2] or _grown(now, before)
    if size:
        reading.state("global_batch", size, line, "global batch size")
    if before is not None and before[2] == now[2] != 0:
        _check_samples(reading, line, now, before)
    reading.add(
        step,
        float(elapsed.group(1)) / 1e3,
        line=line,
        rank=rank_of(text),
        batch=now[2],
        tflops=float(tflops.group(1)) if tflops else np.nan,
    )
    return now


def _grown(now: tuple[int, int, int], before: tuple[int, int, int] | None) -> int:
    """Samples consumed per iteration since the line before; 0 where that is not known."""
    if before is None or not (now[0] > before[0] and now[1] > before[1] > 0):
        return 0
    samples, iterations = now[1] - before[1], now[0] - before[0]
    return samples // iterations if samples % iterations == 0 else 0


def _check_samples(
    reading: LogReading, line: int, now: tuple[int, int, int], before: tuple[int, int, int]
) -> None:
    """Refuse a log whose consumed samples grow by something else than the batch that it prints."""
    grown = _grown(now, before)
    if grown and grown != now[2]:
        raise InputError(
            f"{reading.path}: line {line}: consumed samples: must grow by the global batch size"
            f" {now[2]} each iteration, got {grown}"
        )


def _memory(reading: LogReading, text: str) -> None:
    """Take the peaks of one rank; the MB of these lines are 2**20 bytes."""
    rank = _MEMORY_RANK.search(text)
    reading.saw(int(rank.group(1)) if rank else None)
    if after := _AFTER.search(text):
        reading.memory_after_step = max(int(after.group(1)), reading.memory_after_step or 0)
    for words, value in _PEAK.findall(text):
        reading.peak(_KINDS[words], float(value) * MIB)


ARGUMENT = re.compile(r"(?:^|\s)([a-zA-Z]\w{1,80}) \.{3,64} (\S.{0,400}?)\s*$", re.M)
"""One of the list: ``  micro_batch_size ................ 4``; one without a value says nothing."""

_ALWAYS = (
    *("recompute_granularity", "add_bias_linear"),
    "accumulate_allreduce_grads_in_fp32",  # true of bf16 unless something asks for less
)
"""Arguments that say something where they are None or false."""

_ONLY_WITH = {
    "num_experts": r"moe_|expert_tensor_|num_experts",
    "multi_latent_attention": r"(?:q|kv)_lora_rank|qk_(?:head_dim|pos_emb_head_dim)|v_head_dim",
    "group_query_attention": r"num_query_groups",
    "fp8": r"fp8_",
    "fp4": r"fp4_",
    "use_precision_aware_optimizer": r"exp_avg",
    "tp_comm_overlap": r"tp_comm_",
    "cpu_offloading": r"cpu_offloading_",
    "optimizer_cpu_offload": r"optimizer_offload_fraction",
    "deepspeed": r"zero_|ds_|deepspeed",
}
"""Arguments that are listed with their defaults although what they belong to is off."""

_OF_EVERY_RELEASE = {"bf16", "fp16"}
"""In the list of a parser, which names every argument: what is not there the release has not. A
shorter list, of a program with fewer arguments, says nothing of what it leaves out."""

_CHUNKS = "virtual_pipeline_model_parallel_size"
_ZEROS = ("0", "0.0")
"""Of an argument that is not known here: what it asks for is off."""


def listed_arguments(
    listed: Iterable[tuple[int, str, str]], path: str, vocabulary: Setting | None = None
) -> Reading:
    """State what a list of arguments says; those of switches that are off say nothing.

    No software profile is named where the list is not that of Megatron's whole parser.

    Parameters
    ----------
    listed : iterable of (int, str, str)
        Line, name and value as printed; of several of a name the last holds.
    path : str
        The log.
    vocabulary : Setting, optional
        Tokens of the tokenizer, which the log tells after its arguments; it stands where they
        name no size.
    """
    found = {
        name: Setting(name, value.strip("[]'\""), Place(path, name, line))
        for line, name, value in list(listed)[:MOST_SETTINGS]
    }
    off = {
        name
        for name, setting in found.items()
        if setting.value in ("None", "False", "") and name not in _ALWAYS
    }
    for switch, names in _ONLY_WITH.items():
        if switch in off or switch not in found:
            off |= {name for name in found if re.match(names, name)}
    kept = [setting for name, setting in found.items() if name not in off]
    if vocabulary is not None and not {"vocab_size", "padded_vocab_size"} & (found.keys() - off):
        kept.append(replace(vocabulary, key="vocab_size"))
    whole = bool(found.keys() & _OF_EVERY_RELEASE)
    own = Settings.of(path, kept)
    reading = read_megatron(own, flags=whole, kind="log of Megatron-LM")
    if not whole:
        reading = replace(reading, software=())
    stated = list(reading.stated)
    if _CHUNKS in off and not any(item.field == "layout.vpp" for item in stated):
        stated.append(Stated("layout.vpp", 1, found[_CHUNKS].place))
    elsewhere = idle_in("megatron_listing")
    idle, unknown = list(reading.idle), list[Place]()
    for place in reading.unknown:
        setting = found.get(place.key)  # what the tokenizer told is no argument
        known = elsewhere(place.key) or (setting is not None and setting.value in _ZEROS)
        (idle if known else unknown).append(place)
    return replace(
        reading, measured=True, stated=tuple(stated), idle=tuple(idle), unknown=tuple(unknown)
    )
