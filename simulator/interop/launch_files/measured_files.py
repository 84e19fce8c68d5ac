"""Logs and traces among launch files: what they say of the run, and how long its steps took.

A log of Megatron-LM lists its arguments ("---- arguments ----"), one of torchtitan its device mesh
and batch, one of MLPerf its batch, length and servers; a torch profiler trace and a database of
Nsight Systems know their ranks, and the first the groups that they talk in.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from simulator.errors import InputError
from simulator.files import json_of
from simulator.interop.dialects.maxtext import read_maxtext
from simulator.interop.dialects.model_names import say_model
from simulator.interop.dialects.settings import (
    MOST_SETTINGS,
    Place,
    Reading,
    Setting,
    Settings,
    Stated,
)
from simulator.interop.dialects.torchtitan import read_torchtitan
from simulator.interop.logs.megatron_log import ARGUMENT, listed_arguments
from simulator.interop.logs.readers import reader_of
from simulator.interop.traces.kineto import read_trace
from simulator.interop.traces.nsys import is_nsys, read_nsys
from simulator.measured.log_lines import LogKind, log_kinds, without_colours
from simulator.plain_files import open_file
from simulator.scoring.trace import StepTime, Trace, measure
from simulator.workload.recipe import Recipe

_HEAD_BYTES = 2**20
"""Where a log says what it runs; steps follow."""

_GZIP = b"\x1f\x8b"
_TRACE = re.compile(rb'"(?:traceEvents|deviceProperties|distributedInfo)"\s*:')
_ELAPSED = re.compile(r"elapsed time per iteration \(ms\): *\d")
_EVENT = re.compile(r":::MLLOG\s*\{")
_SCRIPT = re.compile(r"#!\s*/")
_WRITTEN = (".sh", ".bash", ".slurm", ".sbatch", ".py", ".yaml", ".yml", ".toml", ".md")
"""Names of files that people write, which may look for a log's words and are none."""
_PADDED = re.compile(r"> padded vocab \(size: (\d{1,9})\)")
"""As ``vocab_size_with_padding`` of Megatron-LM prints it."""
_MESH = re.compile(r"device mesh with parallelism: ([\w=, ]{1,400})")
_OLD_MESH = re.compile(r"device mesh with (\[[\w', ]{1,200}\]), (\[[\d, ]{1,200}\])")
_SAID = {
    "training.local_batch_size": re.compile(r"local batch size (\d{1,9})\b"),
    "training.global_batch_size": re.compile(r"global batch size (\d{1,9})\b"),
    "training.seq_len": re.compile(r"sequence length (\d{1,9})\b"),
    "training.steps": re.compile(r"total steps (\d{1,9})\b"),
    "activation_checkpoint.mode": re.compile(r"Applied (\w{1,20}) activation checkpointing"),
    "compile.enable": re.compile(r"Compiling each (TransformerBlock) with torch.compile"),
}
_MODEL = re.compile(r"\bModel (\w{1,40}) (\S{1,20}) size: ")
_DEGREES = {
    "pp": "pipeline", "tp": "tensor", "cp": "context", "ep": "expert",
    "dp_replicate": "data_parallel_replicate", "dp_shard": "data_parallel_shard",
}  # fmt: skip
_MLPERF = {
    "global_batch_size": "training.global_batch",
    "max_sequence_length": "training.sequence_length",
    "number_of_nodes": "run.nodes",
    "accelerators_per_node": "run.per_node",
}
_BENCHMARKS = {
    "llama31_8b": "llama-3.1-8b", "llama31_405b": "llama-3.1-405b", "gpt3": "gpt3-175b",
    "llama2_70b_lora": "llama-2-70b", "bert": "bert-large",
}  # fmt: skip
_GROUPS = (
    ("layout.tp", re.compile(r"^(?:mesh_tp|TENSOR_MODEL_PARALLEL_GROUP)$")),
    ("layout.pp", re.compile(r"^(?:mesh_pp|PIPELINE_MODEL_PARALLEL_GROUP)$")),
    ("layout.cp", re.compile(r"^(?:mesh_cp|CONTEXT_PARALLEL_GROUP)$")),
    ("layout.ep", re.compile(r"^(?:mesh_ep|EXPERT_MODEL_PARALLEL_GROUP)$")),
)
"""What Megatron-Core and torch's device mesh call the groups of a degree."""


def read_measured(path: Path | str) -> list[Reading]:
    """What a log or a trace says; nothing for any other file.

    Raises
    ------
    InputError
        If it is one and cannot be read.
    """
    if is_nsys(path):
        return [_of_trace(read_nsys(path), str(path), "Nsight Systems trace")]
    with open_file(path) as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(_GZIP) or (head.lstrip()[:1] in (b"{", b"[") and _TRACE.search(head)):
        return [_of_trace(read_trace(path), str(path), "torch profiler trace")]
    text = head.decode(errors="replace")
    if _ELAPSED.search(text) or ("--- arguments ---" in text and ARGUMENT.search(text)):
        return [_of_megatron(text, str(path))]
    if _EVENT.search(text):
        return [_of_mlperf(text, str(path))]
    plain = without_colours(text)
    meshed = _MESH.search(plain) or _OLD_MESH.search(plain)
    if meshed or re.search(r"\bstep: *\d.{1,200}\b[wt]ps: ", plain):
        return [_of_torchtitan(plain, str(path))]
    if str(path).endswith(_WRITTEN) or _SCRIPT.match(plain):
        return []
    for name, kind in log_kinds().items():
        if kind.line is not None and re.search(kind.mark, plain):
            return [_timed(_of_lines(name, kind, plain, str(path)), name)]
    return []


def _of_trace(trace: Trace, path: str, kind: str) -> Reading:
    stated = []
    if trace.world and trace.world > 0:
        place = Place(path, "distributedInfo.world_size")
        stated.append(Stated("cluster.gpus", trace.world, place))
    for name, pattern in _GROUPS:
        sizes = {
            collective.size
            for collective in trace.collectives
            if pattern.match(collective.description)
        }
        if len(sizes) == 1 and (size := sizes.pop()) and size > 1:
            stated.append(Stated(name, size, Place(path, f"groups of {name.partition('.')[2]}")))
    try:
        note = _shares(measure(trace))
    except InputError as error:
        note = error.problems[0].removeprefix(f"{path}: ")
    notes = [f"{path}: {note}; validate --trace {path} sets it beside a prediction"]
    notes.append(f"{path}: a trace names no model and no batch: these come from elsewhere")
    return Reading(path=path, kind=kind, stated=tuple(stated), notes=tuple(notes), measured=True)


def _shares(step: StepTime) -> str:
    """Where the time of a step went, in one line."""
    device = f" on {step.trace.device}" if step.trace.device else ""
    parts = {
        "compute": sum(step.compute_s.values()),
        "exposed communication": step.exposed_s,
        "waiting for the host": step.launch_s,
        "idle": step.idle_s,
    }
    shares = ", ".join(f"{name} {part / step.step_s:.0%}" for name, part in parts.items())
    return f"a step took {step.step_s:.4g} s{device}: {shares}"


def _of_megatron(text: str, path: str) -> Reading:
    """Arguments as the run listed them."""
    ends = [end.start() for end in re.finditer("\n", text)]

    def line_of(match: re.Match[str]) -> int:
        return bisect_left(ends, match.start(1)) + 1

    matches = islice(ARGUMENT.finditer(text), MOST_SETTINGS)
    listed = [(line_of(match), match[1], match[2]) for match in matches]
    tokens = None
    if padded := _PADDED.search(text):
        words = "padded vocab (size)"
        tokens = Setting(words, padded[1], Place(path, words, line_of(padded)))
    found = listed_arguments(listed, path, tokens)
    return _timed(found, "megatron")


def _of_torchtitan(text: str, path: str) -> Reading:
    found: dict[str, Any] = {}
    if mesh := _MESH.search(text):
        found |= dict(re.findall(r"\b(\w{1,20})=(\d{1,9})\b", mesh[1]))
    elif old := _OLD_MESH.search(text):
        names, sizes = (re.findall(r"\w+", words) for words in old.groups())
        found |= dict(zip(names, sizes, strict=False))
    degrees = {
        f"parallelism.{word}{'_parallel' if 'parallel' not in word else ''}_degree": found[name]
        for name, word in _DEGREES.items()
        if name in found
    }
    settings = {**degrees}
    for key, pattern in _SAID.items():
        if said := pattern.search(text):
            settings[key] = "true" if key == "compile.enable" else said[1]
    if settings.get("activation_checkpoint.mode") == "selective":  # logs do not say which
        settings["activation_checkpoint.selective_ac_option"] = "op"
    if model := _MODEL.search(text):
        settings |= {"model.name": model[1], "model.flavor": model[2]}
    listed = [Setting(key, value, Place(path, key)) for key, value in settings.items()]
    reading = read_torchtitan(Settings.of(path, listed))
    gpus = 1
    for name in ("pp", "tp", "cp", "dp_replicate", "dp_shard"):
        gpus *= int(found.get(name, 1))
    if degrees and 0 < gpus < 10**7:
        size = Stated("cluster.gpus", gpus, Place(path, "device mesh"))
        reading = replace(reading, stated=(*reading.stated, size))
    reading = replace(reading, kind="log of torchtitan", measured=True)
    return _timed(reading, "torchtitan")


_PARAM = re.compile(r"\bConfig param (\w{1,80}): (.{1,200}?)\s*$", re.M)
"""As ``pyconfig.py`` of MaxText lists every setting; blank ones and None are left out."""
_DEVICES = re.compile(r"\bNum_devices: (\d{1,9}), shape ")


def _of_lines(name: str, kind: LogKind, text: str, path: str) -> Reading:
    """What a log of a kind with a table of its own lists of the run."""
    settings, title = Settings.of(path, ()), kind.title.removeprefix("a ")
    if name == "maxtext":
        listed = [Setting(k, v, Place(path, k)) for k, v in _PARAM.findall(text) if v != "None"]
        reading = read_maxtext(Settings.of(path, listed), kind=title, whole=False)
        if devices := _DEVICES.search(text):
            place = Place(path, "Num_devices")
            reading = replace(
                reading, stated=(*reading.stated, Stated("run.devices", int(devices[1]), place))
            )
        return replace(reading, measured=True, software=kind.software)
    for field, pattern in kind.says.items():
        if (match := re.search(pattern, text)) is None:
            continue
        setting = Setting(field, match[1], Place(path, field.rpartition(".")[2]))
        if field == "model.name":
            say_model(settings, setting)
        elif field == "layout.sharding":
            settings.say(field, "ddp" if match[1] == "0" else f"zero{match[1]}", setting)
        else:
            settings.say(field, int(match[1]) if match[1].isdigit() else match[1], setting)
    return Reading(
        path=path, kind=title, stated=tuple(settings.stated), software=kind.software, measured=True
    )


def _of_mlperf(text: str, path: str) -> Reading:
    stated: dict[str, Stated] = {}
    for number, line in enumerate(text.splitlines(), 1):
        _, mark, words = line.partition(":::MLLOG")
        if not mark or not words.rstrip().endswith("}"):
            continue
        try:
            event = json_of(words.strip(), path)
        except InputError:
            continue
        key, value = (event.get("key"), event.get("value")) if isinstance(event, dict) else (0, 0)
        place = Place(path, str(key), number)
        if key in _MLPERF and type(value) is int and 0 < value < 10**9:
            stated[_MLPERF[key]] = Stated(_MLPERF[key], value, place)
        elif key == "submission_benchmark" and str(value) in _BENCHMARKS:
            stated["model"] = Stated("model.name", _BENCHMARKS[str(value)], place)
    reading = Reading(path=path, kind="log of MLPerf", stated=tuple(stated.values()), measured=True)
    return _timed(reading, "mlperf")


def _timed(reading: Reading, kind: str) -> Reading:
    """The reading, with what its steps took."""
    path = reading.path
    beside = f"validate --log {path} sets it beside a prediction"
    stated: Mapping[str, Any] = {item.field: item.value for item in reading.stated}
    length, batch = (stated.get(f"training.{k}") for k in ("sequence_length", "global_batch"))
    gpus = stated.get("cluster.gpus") or stated.get("run.nodes", 0) * stated.get("run.per_node", 0)
    if not (length and batch and gpus):
        return replace(reading, notes=(*reading.notes, f"{path} is measured time: {beside}"))
    try:
        log = reader_of(kind)(path, Recipe(sequence_length=length, global_batch=batch), gpus)
    except InputError as error:
        said = error.problems[0]
        note = said if said.startswith(path) else f"{path}: {said}"
        return replace(reading, notes=(*reading.notes, note))
    steps = log.step_times_s[log.dropped :]
    note = f"{path}: a step took {float(np.median(steps)):.4g} s, median of {len(steps)}; {beside}"
    return replace(reading, notes=(*reading.notes, note))
