"""Which format a launch file has, by what stands in it, and what it says."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from functools import cache
from pathlib import Path
from typing import Any

from simulator.errors import InputError, brief_text, did_you_mean
from simulator.files import build, json_of, read_records, record, toml_of, yaml_of
from simulator.interop.dialects import gpt_neox, nemo_recipes
from simulator.interop.dialects.deepspeed import read_deepspeed
from simulator.interop.dialects.fsdp2 import is_fsdp2, read_fsdp2
from simulator.interop.dialects.maxtext import (
    MAXTEXT_KEYS,
    read_maxtext,
    read_slice,
)
from simulator.interop.dialects.megatron import MEGATRON_KEYS, read_megatron
from simulator.interop.dialects.megatron_bridge import (
    is_setup_experiment,
    performance_recipes,
    say_recipe,
    with_long_names,
)
from simulator.interop.dialects.megatron_swift import read_megatron_swift
from simulator.interop.dialects.mlperf import VARIABLES, read_mlperf_config
from simulator.interop.dialects.model_names import say_model
from simulator.interop.dialects.nemo import is_named_to_launcher, is_nemo, of_the_launcher
from simulator.interop.dialects.nemo import reading_of as nemo_reading
from simulator.interop.dialects.neuronx import NEURONX_SECTION, read_neuronx
from simulator.interop.dialects.primus import frameworks_of, is_primus, with_defaults
from simulator.interop.dialects.python_calls import calls_of, imported
from simulator.interop.dialects.settings import (
    MOST_SETTINGS,
    Place,
    Reading,
    Setting,
    Settings,
    Stated,
    idle_in,
)
from simulator.interop.dialects.torchrun import PLAIN_VARIABLES, read_variables
from simulator.interop.dialects.torchtitan import SECTIONS, read_torchtitan
from simulator.interop.dialects.torchtune import is_torchtune, read_torchtune
from simulator.interop.dialects.trainer import TRAINER_KEYS, read_accelerate, read_trainer
from simulator.interop.dialects.trainer_tables import (
    configured_by,
    read_trained,
    trainer_of,
    trainers,
)
from simulator.interop.dialects.training_ways import refusal, say_program, way_of
from simulator.interop.fabric_files import is_nvidia_topology, topology_words
from simulator.interop.hjson_text import json_text
from simulator.interop.launch_files.job_manifests import MANIFEST, read_manifest
from simulator.interop.launch_files.measured_files import read_measured
from simulator.interop.shell.command_words import (
    Command,
    read_launcher,
    settings_of,
    training_command,
)
from simulator.interop.shell.job_heads import JOBS, read_heads
from simulator.interop.shell.shell_words import Script, read_script
from simulator.plain_files import read_text
from simulator.quoting import shell_word
from simulator.sections import SECTIONS as SCENARIO_SECTIONS
from simulator.spellings import numbers_written_out
from simulator.workload.huggingface import from_hf

# --- trainers that are known by name and not read ----------------------------------------

_TABLE = Path(__file__).resolve().parent / "foreign_trainers.toml"


@record
class ForeignTrainer:
    """By what the files of a trainer are known."""

    way: str = ""
    marks: list[str] = field(default_factory=list)
    programs: list[str] = field(default_factory=list)
    unless: list[str] = field(default_factory=list)
    """Keys that no such file has."""

    def has(self, keys: set[str], program: str) -> bool:
        """Whether keys, with every table that they stand in, or a program are this trainer's."""
        marked = any(keys.issuperset(mark.split()) for mark in self.marks)
        return any(name in program for name in self.programs) or (
            marked and keys.isdisjoint(self.unless)
        )


@cache
def foreign_trainers() -> dict[str, ForeignTrainer]:
    """Every trainer that is known by name alone."""
    return read_records(ForeignTrainer, _TABLE, "trainers")


def of_another_trainer(path: str, keys: Iterable[str], program: str = "") -> Reading | None:
    """The refusal of a file that belongs to a trainer which is not read; None for any other."""
    within = set[str]()
    for key in keys:
        parts = key.lstrip("+~").split(".")
        within |= {".".join(parts[: n + 1]) for n in range(len(parts))}
    for name, trainer in foreign_trainers().items():
        if trainer.has(within, program):
            way = trainer.way or way_of(program)
            what = refusal(way) if way else "which is not read here: its run can be said in a"
            what += "" if way else " scenario (foreshard fields)"
            problem = f"{path}: a file of {name}, {what}"
            return Reading(path=path, kind=f"file of {name}", problems=(problem,))
    return None


RUN_FIELDS = tuple(
    field.name for kind in SCENARIO_SECTIONS["run"].schemas for field in dataclasses.fields(kind)
)
"""Of a scenario's section [run]; of other files steps and nodes are called ``run.``, too."""

LAUNCH_FILE_LIMIT_BYTES = 2**20
"""Largest launch file; those of frameworks take 2 to 60 KiB."""

KINDS = (
    "a shell script or command line of Megatron-LM, Megatron-Bridge, torchtitan, DeepSpeed or"
    " Hugging Face's Trainer",
    "a torchtitan job (TOML)",
    "a DeepSpeed configuration (JSON)",
    "MaxText's settings (a command, xpk's script, YAML)",
    "a script around torch's fully_shard (Python)",
    "a config.json",
    "TrainingArguments (JSON)",
    "an accelerate configuration (YAML)",
    "a configuration of NeuronX Distributed Training (YAML)",
    "a recipe of NeMo, Megatron-Bridge or Primus (YAML), or options over one of NeMo 1",
    "a recipe of NeMo 2 (Python), or nemo llm with one",
    "a configuration of torchtune (YAML), or tune run with it",
    "a configuration of GPT-NeoX (YAML, several files together), or deepy.py with it",
    "an MLPerf configuration (shell)",
    "a job of SLURM, PBS or LSF",
    "a TrainJob, PyTorchJob, Job or Run:ai workload, or a task of SkyPilot (YAML)",
    "nvidia-smi topo -m",
    "a log of nccl-tests or rccl-tests",
    "a log of Megatron-LM, torchtitan or MLPerf",
    "a trace of torch's profiler or of Nsight Systems (SQLite)",
    "a scenario (TOML)",
)
"""What is recognised."""

_SECTION = re.compile(r"^[ \t]*\[\[?[\w.\"' -]+\]\]?[ \t]*(?:#.*)?$", re.M)
_COLLECTIVES = re.compile(  # behind what srun --label and mpirun --tag-output put in front
    r"^(?:[ \t]*(?:\[[\d,]+\]<std\w+>:|\d{1,6}:))?[# \t]*size\s+count\b.{0,200}\balgbw\s+busbw\b",
    re.M,
)
_HERE_DOCUMENT = re.compile(r"<<-?\s*['\"]?[A-Za-z_]\w*['\"]?[ \t]*$", re.M)
_TOML_LINE = re.compile(r"\s*(?:\[\[?[\w.\"' -]+\]\]?|[\w.\"-]+\s*=\s*[\"'\[{\w.+-])")
_BASE_YML = re.compile(r"\bbase\.yml\b")
_YAML_LINE = re.compile(r"\s*(?:- )?[\w./-]+:(?:\s|$)|\s*- ")


def read_launch_files(paths: Iterable[Path | str]) -> tuple[list[Path], list[Reading]]:
    """Read the files of one run, and those that they name and that lie in their folders.

    Returns
    -------
    files : list of Path
        Those given, and behind them those that they name.
    readings : list of Reading
        What all of them say; what a shell script reads of the others is read with it.

    Raises
    ------
    InputError
        As :func:`read_launch_file`.
    """
    files = [Path(path) for path in paths]
    readings, unreadable = _read_together(files), set[Path]()
    while (named := _named_in_folder(readings, files, unreadable)) is not None:
        try:
            readings = _read_together([*files, named])
            files.append(named)
        except InputError:  # which is said of it once it is given
            unreadable.add(named)
    return files, readings


def names_of(readings: Iterable[Reading]) -> set[str]:
    """Names of the files that were read, here-documents among them."""
    paths = [reading.path for reading in readings]
    return {Path(path.partition(": ")[0]).name for path in paths} | {
        Path(path.rpartition(": ")[2]).name for path in paths
    }


def _named_in_folder(
    readings: list[Reading], files: list[Path], unreadable: set[Path]
) -> Path | None:
    """A file that is not read yet, though one that is names it and has it in its folder."""
    known = {*names_of(readings), *(file.name for file in files)}
    for setting in (item for reading in readings for item in reading.named):
        folder = Path(setting.place.path.partition(": ")[0]).parent
        name = str(setting.value)
        place = folder / (name.rpartition("/")[2] if "$" in name else name)
        unread = place.name not in known and place not in unreadable and os.path.isfile(place)
        if unread and place.resolve().is_relative_to(folder.resolve()):
            return place
    return None


def _read_together(given: list[Path]) -> list[Reading]:
    readings: list[list[Reading] | InputError] = []
    for path in given:
        beside = {other.name: other for other in given if other is not path}
        try:
            readings.append(read_launch_file(path, beside))
        except InputError as error:
            readings.append(error)
    reads = [set().union(*(r.reads for r in x)) if isinstance(x, list) else set() for x in readings]
    wanted = set[str]().union(*reads)
    taken, kept = set[str](), list[Reading]()
    for at in sorted(range(len(given)), key=lambda at: given[at].name in wanted):
        reading = readings[at]
        if given[at].name in taken:
            continue
        if isinstance(reading, InputError):
            raise reading
        kept += reading
        taken |= reads[at]
    return kept


def read_launch_file(
    path: Path | str, beside: Mapping[str, Path | str] | None = None
) -> list[Reading]:
    """Read one file, which may hold several things: a job's head, a launcher, here-documents.

    `beside` are other files of the same run by their names, which a shell script may read.

    Raises
    ------
    InputError
        If it is too large, cannot be parsed, or is nothing that is known here.
    """
    if measured := read_measured(path):
        return measured
    text = read_text(path, LAUNCH_FILE_LIMIT_BYTES)
    if _COLLECTIVES.search(text):
        make = f"foreshard calibrate {shell_word(path)} --base-cluster NAME --out-cluster OWN.toml"
        note = f"{path} measures collectives: {make} makes the cluster to give with --cluster"
        return [Reading(path=str(path), kind="log of nccl-tests", notes=(note,))]
    content = _of_neox_files(text, path, beside or {}) or _by_content(text, str(path), beside)
    if not content and _neox_part(path) is not None:
        rule = "has paths and logging of a GPT-NeoX configuration alone: give it with the model's"
        raise InputError(f"{path}: {rule}")
    if not content:
        known = "; ".join((*KINDS, *(f"a {x.table['kind']}" for x in trainers())))
        raise InputError(f"{path}: not recognised as a launch file; these are: {known}")
    return content


def _of_neox_files(text: str, path: Path | str, beside: Mapping[str, Path | str]) -> list[Reading]:
    """A configuration of GPT-NeoX and the files given with it that have nothing but its arguments.

    They may be JSON in the looser form that YAML takes: with ``True`` and a comma too many.
    """
    if not str(path).endswith(_NEOX_ENDS) or not _NEOX_MARK.search(text):
        return []
    table = yaml_of(text, str(path))
    if not isinstance(table, dict) or not gpt_neox.is_gpt_neox(map(str, table)):
        return []
    settings, reads = _settings(table, str(path)), set[str]()
    for name, other in beside.items():
        part = _neox_part(other)
        if part is not None:
            settings += _settings(part, str(other))
            reads.add(name)
    return [replace(gpt_neox.reading_of(settings, str(path)), reads=frozenset(reads))]


def _neox_part(path: Path | str) -> dict[Any, Any] | None:
    """Another file of a configuration of GPT-NeoX; None where it is any other."""
    if not str(path).endswith(_NEOX_ENDS):
        return None
    try:
        table = yaml_of(read_text(path, LAUNCH_FILE_LIMIT_BYTES), str(path))
    except InputError:
        return None
    return table if gpt_neox.is_part(table) else None


_NEOX_ENDS = (".yml", ".yaml", ".json")
_NEOX_MARK = re.compile(
    r"(?:pipe|model)[_-]parallel[_-]size|attention[_-]config|gpt[_-]j[_-]residual|checkpoint[_-]factor"
)


def _by_content(
    text: str, path: str, beside: Mapping[str, Path | str] | None = None
) -> list[Reading]:
    start = text.lstrip()
    if start[:1] == "{" or (start[:1] in ("/", "#") and path.endswith((".json", ".hjson"))):
        return _of_json_text(text, path)
    if MANIFEST.search(text):
        return _of_documents(text, path)
    if _HERE_DOCUMENT.search(text):
        return _of_shell(text, path, beside)
    if is_fsdp2(text):
        return read_fsdp2(text, path)
    if (packages := imported(text)) and (trained := _of_python(text, path, packages)):
        return trained
    if is_nvidia_topology(text):
        return [_of_topology(text, path)]
    lines = [line for line in text.splitlines() if line.strip() and line.lstrip()[0] != "#"]
    if lines and _TOML_LINE.match(lines[0]) and _SECTION.search(text) and "=" in text:
        return _of_toml(toml_of(text, path), path)
    like = sum(bool(_YAML_LINE.match(line)) for line in lines)
    if path.endswith((".yaml", ".yml")) or like > 0.6 * max(len(lines), 1):
        return _of_documents(text, path)
    return _of_shell(text, path, beside)


_PRINTS = ("echo", "printf", "cat")

_NEXT_DOCUMENT = re.compile(r"^---(?:[ \t].*)?$", re.M)
_MOST_DOCUMENTS = 50


def _of_documents(text: str, path: str) -> list[Reading]:
    """YAML of one document, or the one job among several of a cluster's (services, volumes)."""
    parts = [part for part in _NEXT_DOCUMENT.split(text) if _said(part)]
    if not 1 < len(parts) <= _MOST_DOCUMENTS:
        return _of_yaml(yaml_of(text, path), path)
    documents = [yaml_of(part, path) for part in parts]
    jobs = [x for x in documents if isinstance(x, dict) and read_manifest(x, path) is not None]
    if not jobs:
        return _of_yaml(yaml_of(text, path), path)
    readings = _of_yaml(jobs[0], path)
    if len(jobs) > 1:
        rule = f"{path}: of {len(jobs)} jobs the first was read"
        readings.append(Reading(path=path, kind="script", notes=(rule,)))
    return readings


def _said(part: str) -> bool:
    lines = (line.strip() for line in part.splitlines())
    return any(line and line[0] != "#" for line in lines)


def _flat(table: Mapping[Any, Any], path: str, prefix: str = "") -> Iterable[Setting]:
    """Leaves of nested tables under dotted keys."""
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, path, f"{name}.")
        else:
            yield Setting(name, value, Place(path, name))


def _settings(table: Mapping[Any, Any], path: str) -> list[Setting]:
    settings = list(_flat(table, path))
    if len(settings) > MOST_SETTINGS:
        raise InputError(f"{path}: must have at most {MOST_SETTINGS} settings, got {len(settings)}")
    return settings


def _of_trainer_table(table: Mapping[Any, Any], path: str) -> list[Reading]:
    """A configuration of a trainer that a table describes."""
    settings = _settings(table, path)
    trainer = trainer_of(settings)
    return [] if trainer is None else [read_trained(trainer, Settings.of(path, settings))]


def _of_python(text: str, path: str, packages: frozenset[str]) -> list[Reading]:
    """A script of a trainer that is set up in Python, and that a table describes."""
    if nemo_recipes.is_recipe(text):
        return [nemo_recipes.read_recipe(text, path)]
    if not any(packages.issuperset(wanted[:1]) for x in trainers() for wanted in x.table["claims"]):
        return []
    settings = calls_of(text, path)
    if (trainer := trainer_of(settings, packages)) is not None:
        return [read_trained(trainer, Settings.of(path, settings))]
    foreign = of_another_trainer(path, [item.key for item in settings])
    return [] if foreign is None else [foreign]


def _of_json_text(text: str, path: str) -> list[Reading]:
    """JSON, or a configuration of DeepSpeed in what its loader reads beside it."""
    try:
        return _of_json(json_of(text, path), path, text)
    except InputError as error:
        if path.endswith((".yaml", ".yml")):  # of YAML, braces may hold what JSON may not
            return _of_documents(text, path)
        try:
            plain = json_text(text)
            found = json_of(plain, path)
        except (ValueError, InputError):
            raise error from None
        if not (isinstance(found, dict) and _OF_DEEPSPEED & set(found)):
            raise
    note = f"{path}: not JSON but Hjson, which deepspeed.initialize reads; a Trainer does not"
    readings = _of_json(found, path, plain)
    return [replace(reading, notes=(*reading.notes, note)) for reading in readings]


def _keys_once(text: str, path: str) -> None:
    """Refuse a key that stands twice, as DeepSpeed does (runtime/config_utils.py)."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            rule = "stands twice in a table, which DeepSpeed refuses"
            raise InputError(f"{path}: {brief_text(twice)}: {rule}")
        return table

    json.loads(text, object_pairs_hook=once)


_OF_DEEPSPEED = {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"}


def _of_json(found: Any, path: str, text: str = "") -> list[Reading]:
    if not isinstance(found, dict):
        return []
    if trained := _of_trainer_table(found, path):
        return trained
    if "model_type" in found or isinstance(found.get("text_config"), dict):
        return [_of_config(found, path)]
    if _OF_DEEPSPEED & set(found):
        if (foreign := of_another_trainer(path, map(str, found))) is not None:
            return [foreign]
        if text:
            _keys_once(text, path)
        return [read_deepspeed(Settings.of(path, _settings(found, path)))]
    return _of_yaml(found, path)  # whose files may be written in JSON, too


def _of_settings(found: dict[str, Any], path: str) -> list[Reading]:
    """Settings that nothing but their names tells apart."""
    settings = _settings(found, path)
    if (foreign := of_another_trainer(path, [item.key for item in settings])) is not None:
        return [foreign]
    return _of_trainer(found, path) or _of_sections(found, path)


def _of_trainer(found: dict[str, Any], path: str) -> list[Reading]:
    """Arguments of a Trainer, and DeepSpeed's configuration where they hold it."""
    if not TRAINER_KEYS & set(found):
        return []
    inner = found.get("deepspeed")
    rest = {**found, "deepspeed": "inline"} if isinstance(inner, dict) else found
    trainer = read_trainer(Settings.of(path, _settings(rest, path)))
    return [trainer, *(_of_json(inner, path) if isinstance(inner, dict) else [])]


def _is_scenario(sections: Mapping[str, Any]) -> bool:
    """Whether a file has a scenario's sections, with fields that other files have not."""
    training = sections.get("training")
    said = isinstance(training, dict) and {"sequence_length", "global_batch"} & set(training)
    return isinstance(sections.get("cluster"), dict) or bool(said)


def _of_toml(found: dict[str, Any], path: str) -> list[Reading]:
    return [_of_scenario(found, path)] if _is_scenario(found) else _of_settings(found, path)


def _of_sections(found: dict[str, Any], path: str) -> list[Reading]:
    """A torchtitan job, NeuronX's settings, or fields of a recipe in sections."""
    if isinstance(found.get(NEURONX_SECTION), dict):
        return [read_neuronx(Settings.of(path, _settings(found, path)))]
    if isinstance(found.get("parallelism"), dict) or (
        isinstance(found.get("training"), dict) and set(found) <= {*SECTIONS, "comm", "ema"}
    ):
        settings = _settings(found, path)
        return _claimed(read_torchtitan(Settings.of(path, settings)), len(settings))
    return _of_recipe(_settings(found, path), path)


def _of_yaml(sections: Any, path: str) -> list[Reading]:
    if not isinstance(sections, dict):
        return []
    if manifest := read_manifest(sections, path):
        job = Reading(path=path, kind=manifest.kind, stated=manifest.stated, notes=manifest.notes)
        return [job, *_of_shell(manifest.script, f"{path}: script")]
    if trained := _of_trainer_table(sections, path):
        return trained
    if _is_scenario(sections) and set(map(str, sections)) <= set(SCENARIO_SECTIONS):
        return [_of_scenario(sections, path)]
    if "distributed_type" in sections or "compute_environment" in sections:
        return [read_accelerate(Settings.of(path, _settings(sections, path)))]
    if is_primus(sections):
        return _of_primus(with_defaults(sections), path)
    if is_torchtune(sections):
        return [read_torchtune(Settings.of(path, _settings(sections, path)))]
    if MAXTEXT_KEYS & set(sections):
        own = Settings.of(path, _settings(sections, path))
        whole = own.take("base_config") is not None
        return [read_maxtext(own, kind="MaxText configuration", whole=whole)]
    return _of_settings(sections, path)


def _of_primus(sections: dict[str, Any], path: str) -> list[Reading]:
    """An experiment of Primus: overrides of a trainer's settings, and a model's file."""
    readings = []
    for word, module in sections["modules"].items():
        overrides = module.get("overrides") if isinstance(module, dict) else None
        if not isinstance(overrides, dict):
            continue
        prefix = f"modules.{word}."
        inner = [
            replace(item, place=replace(item.place, key=f"{prefix}overrides.{item.key}"))
            for item in _settings(overrides, path)
        ]
        options = Settings.of(path, inner)
        model = module.get("model")
        if module["framework"] == "torchtitan":
            if isinstance(model, str):
                name = re.sub(r"\.ya?ml$", "", model)
                say_model(options, Setting("model", name, Place(path, f"{prefix}model")))
            readings.append(read_torchtitan(options))
        elif module["framework"] == "maxtext":
            readings.append(read_maxtext(options, kind="MaxText configuration", whole=True))
    if readings or set(frameworks_of(sections)) & {"megatron", "megatron_bridge"}:
        return readings or _of_recipe(_settings(sections, path), path)
    framework = ", ".join(frameworks_of(sections))
    problem = f"{path}: an experiment of Primus by {framework}, which is not read here"
    return [Reading(path=path, kind="experiment of Primus", problems=(problem,))]


def _of_recipe(settings: list[Setting], path: str) -> list[Reading]:
    """Fields of Megatron's configuration under whatever sections a framework has."""
    if is_nemo(item.key for item in settings):
        return [nemo_reading(settings, path)]
    tails = [Setting(_tail(item.key), item.value, item.place) for item in settings]
    if not MEGATRON_KEYS & {item.key for item in tails}:
        return []
    flags = [
        item for item, whole in zip(tails, settings, strict=True) if _FLAGGED.search(whole.key)
    ]
    if flags:  # Megatron-LM's own test cases: MODEL_ARGS with a flag in each line
        on = [item for item in flags if item.value is not False]
        return [read_megatron(Settings.of(path, on), flags=True, kind="arguments of Megatron-LM")]
    kept = [item for item in tails if item.key]
    return _claimed(read_megatron(Settings.of(path, kept), flags=False, kind="recipe"), len(kept))


def _claimed(reading: Reading, keys: int) -> list[Reading]:
    """A reading by names that other trainers have as well: only where it knows most of them."""
    known = keys - len(reading.unknown)
    if 2 * known >= keys or keys <= _FEW_KEYS:
        return [reading]
    rule = f"only {known} of {keys} keys are known as those of a {reading.kind}"
    problem = f"{reading.path}: {rule}, so it is read as none; these are: {'; '.join(KINDS)}"
    return [replace(reading, stated=(), problems=(problem,))]


_FEW_KEYS = 3


_FLAGGED = re.compile(r"(?:^|\.)--[a-z]")


def _tail(key: str) -> str:
    return key.rpartition(".")[2].lstrip("+-").replace("-", "_")


def _of_config(found: dict[str, Any], path: str) -> Reading:
    """A config.json: named after its folder, as ``--model`` names it."""
    given = Path(path)
    name = given.absolute().parent.name if given.name == "config.json" else given.stem
    architecture = from_hf(found, name=name, where=path)
    return Reading(path=path, kind="Hugging Face config", architecture=architecture)


def _of_scenario(found: dict[str, Any], path: str) -> Reading:
    stated, problems = [], []
    for section, table in numbers_written_out(found).items():
        if not isinstance(table, dict):
            problems.append(f"{path}: {section}: must be a table")
            continue
        for key, value in table.items():
            if (section == "run" and key not in RUN_FIELDS) or section == "size":
                known = did_you_mean(key, RUN_FIELDS) if section == "run" else ""
                problems.append(f"{path}: {section}.{key}: unknown field{known}")
                continue
            if wrong := _wrong(section, key, value, path):
                problems += wrong
                continue
            beside = Path(path).parent / str(value)
            if (section, key) == ("model", "name") and os.path.exists(beside):
                value = str(beside)
            stated.append(Stated(f"{section}.{key}", value, Place(path, f"{section}.{key}")))
    return Reading(path=path, kind="scenario", stated=tuple(stated), problems=tuple(problems))


def _wrong(section: str, key: str, value: Any, path: str) -> list[str]:
    """What is wrong with a field of layout or training by itself: others are counted from it."""
    if section not in ("layout", "training"):
        return []
    for schema in SCENARIO_SECTIONS[section].schemas:
        try:
            build(schema, {key: value}, where=path, prefix=section)
        except InputError as error:
            place = f"{path}: {section}.{key}: "
            return [text for text in error.problems if text.startswith(place)]
    return []


def _of_topology(text: str, path: str) -> Reading:
    gpus, linked = topology_words(text)
    place = Place(path, "GPU0 and on")
    note = f"{gpus} GPUs of one server, " + ("joined by NVLink" if linked else "without NVLink")
    seen = (Stated("run.per_node", gpus, place), Stated("run.nvlink", linked, place))
    stated = seen if gpus else ()
    return Reading(path=path, kind="nvidia-smi topo -m", stated=stated, notes=(note,))


def _of_shell(
    text: str, path: str, beside: Mapping[str, Path | str] | None = None
) -> list[Reading]:
    shell, seeds = read_heads(text, path)
    read = {name: read_text(at, LAUNCH_FILE_LIMIT_BYTES) for name, at in (beside or {}).items()
            if name in text or is_named_to_launcher(name, text)
            or gpt_neox.is_named_to_deepy(name, text)}  # fmt: skip
    script = read_script(text, path, seeds, read)
    command = training_command(script)
    configured = (
        _of_tune(script, beside or {})
        or _of_deepy(script, beside or {})
        or _of_options(command, script, beside or {})
    )
    shell += configured or _of_command(command, script)
    if reads := frozenset(read) - frozenset(script.beside):
        shell.append(Reading(path=path, kind="script", reads=reads))
    trains = any(reading.kind not in ("script", *JOBS) for reading in shell)
    for document in script.documents:
        place = f"{path}: {document.name or f'line {document.line}'}"
        if document.name.endswith((".json", ".toml", ".yaml", ".yml")):
            shell += _by_content(document.text, place)
        elif not trains and _INNER_SCRIPT.match(document.text) and path.count(": ") < _MOST_INNER:
            shell += _of_shell(document.text, place, beside)
    return shell


_INNER_SCRIPT = re.compile(r"\s*#!|(?:.*\n)*?\s*(?:srun|torchrun|accelerate|deepspeed|python3?)\s")
"""A document that is a script of its own: what is written and then submitted."""
_MOST_INNER = 3


def _of_command(command: Command, script: Script) -> list[Reading]:
    path, found = script.path, []
    if command.launcher:
        launcher = Settings.of(path, command.launcher)
        read_launcher(launcher, script.variables)
        by_accelerate = command.starter == "accelerate"
        found.append(
            read_accelerate(launcher, "accelerate launch")
            if by_accelerate
            else launcher.reading("launcher", lambda key: True)
        )
    found += _of_slice(script)
    notes, named = [], [Setting("source", name, Place(path, "source")) for name in script.sourced]
    if script.branches:
        rule = "branches that nothing in it decides were all read, one after the other"
        notes.append(f"{path}: {rule}")
    notes += [f"{path}: of the values of {name!r} the first was read" for name in script.loops]
    found += _of_program(command, script)
    if (notes or named) and found:
        found.append(Reading(path=path, kind="script", notes=tuple(notes), named=tuple(named)))
    return found


def _of_program(command: Command, script: Script) -> list[Reading]:
    """What the options of the program that trains say, in the words of its trainer."""
    path, settings = script.path, list(command.settings)
    keys = {item.key for item in settings}
    if known := _of_named_program(command, script):
        return known
    trainer = bool((TRAINER_KEYS | {"deepspeed"}) & keys) and not _MEGATRON_ALONE & keys
    if _names_arguments(settings, script):
        trainer, settings = True, [item for item in settings if item.key != "config"]
    if settings and not trainer and (way := way_of(command.script)):
        place = f"{path}: {command.script}"
        return [Reading(path=path, kind="script", problems=(f"{place} asks for {refusal(way)}",))]
    if compilers := _of_compilers(command, script, keys):
        return compilers
    dotted = {key.partition(".")[0] for key in keys if "." in key}
    if dotted == {"job"}:
        return _of_titan(settings, script)
    registered = {"module", "config"} <= keys or (
        "config" in keys and "torchtitan" in command.script
    )
    sectioned = dotted & {"parallelism", "activation_checkpoint"}
    if registered or sectioned or (dotted and dotted <= set(SECTIONS)):
        return _of_titan(settings, script)
    if trainer:
        return [read_trainer(Settings.of(path, settings), command.script)]
    if experiment := _of_experiment(command.script, settings, path):
        return experiment
    if MEGATRON_KEYS & {_tail(key) for key in keys}:
        recipe = bool(dotted) or "recipe" in command.script or "model" in keys
        tails = [Setting(_tail(item.key), item.value, item.place) for item in settings]
        kind = "Megatron-Bridge command" if recipe else "Megatron-LM command"
        reading = read_megatron(
            Settings.of(path, tails), flags=not recipe, kind=kind, program=command.script
        )
        shared = recipe or _MEGATRON_SURELY.isdisjoint(item.key for item in tails)
        return _claimed(reading, len(tails)) if shared else [reading]
    if len(VARIABLES & set(script.variables)) >= 2:
        return [read_mlperf_config(Settings.of(path, _variables(script)))]
    if len(PLAIN_VARIABLES & set(script.variables)) >= 2:
        return [read_variables(Settings.of(path, _variables(script)))]
    if settings and command.script:
        places = tuple(item.place for item in settings)
        return [Reading(path=path, kind=f"command of {command.script}", unknown=places)]
    return []


def _of_experiment(program: str, settings: list[Setting], path: str) -> list[Reading]:
    """Options of Megatron-Bridge's own experiments, over a recipe that it measured."""
    said = {item.key: str(item.value) for item in settings}
    if (
        not is_setup_experiment(program, said)
        and said.get("recipe", "") not in performance_recipes()
    ):
        return []
    tails = [Setting(_tail(item.key), item.value, item.place) for item in settings]
    options = Settings.of(path, with_long_names(tails))
    say_recipe(options, said.get("task", "pretrain"))
    return [read_megatron(options, flags=False, kind="Megatron-Bridge command")]


def _of_named_program(command: Command, script: Script) -> list[Reading]:
    """What the program itself tells: a trainer that a table describes, or one by its name."""
    path, settings = script.path, list(command.settings)
    keys = {item.key for item in settings}
    starts = [words[0].text for words in script.commands if words]
    runs = frozenset(f"run {name}" for name in (*starts, command.script.partition(" ")[0]))
    if (described := trainer_of(settings, runs)) is not None:
        asked = described.table.get("environment", ())
        around = [x for x in _variables(script) if x.key in asked and "$" not in str(x.value)]
        options = Settings.of(path, [*around, *settings])
        if "rlhf_type" not in keys:  # which says more than the program's name
            say_program(options, command.script)
        return [read_trained(described, options)]
    if command.script.startswith("nemo llm "):
        task = command.script.removeprefix("nemo llm ")
        if task not in ("pretrain", "finetune"):
            problem = f"{path}: {command.script} asks for {refusal('nothing')}"
            return [Reading(path=path, kind="script", problems=(problem,))]
        return [nemo_recipes.read_command(settings, path, task)]
    if command.script.partition(" ")[0] == "megatron":
        return _of_megatron_swift(command, script)
    if (foreign := of_another_trainer(path, keys, command.script)) is not None:
        return [foreign]
    if (launched := of_the_launcher(settings)) is not None:
        return _of_launched(launched, settings, script)
    return []


def _of_megatron_swift(command: Command, script: Script) -> list[Reading]:
    """ms-swift's command by Megatron-Core; servers and their GPUs stand in its environment."""
    sizes = {"NNODES": "nnodes", "NPROC_PER_NODE": "nproc_per_node"}
    around = [x for x in _variables(script) if x.key in sizes and "$" not in str(x.value)]
    launcher = Settings.of(script.path, [replace(x, key=sizes[x.key]) for x in around])
    read_launcher(launcher, script.variables)
    options = Settings.of(script.path, command.settings)
    return [
        launcher.reading("launcher", lambda key: True),
        read_megatron_swift(options, command.script),
    ]


def _of_titan(options: list[Setting], script: Script) -> list[Reading]:
    """Options of torchtitan over the job that ``--job.config_file`` names, which they outrank."""
    config = next((x for x in options if x.key == "job.config_file"), None)
    name = "" if config is None else Path(str(config.value)).name.strip("\"'")
    if name in script.beside:
        stated = _settings(toml_of(script.beside.pop(name), name), name)
        whole = {item.key: item for item in (*stated, *options)}
        return [read_torchtitan(Settings.of(script.path, whole.values()))]
    named = () if config is None else (config,)
    if all(item.key.startswith("job.") for item in options):  # the job's file says the rest
        places = tuple(item.place for item in options)
        return [Reading(path=script.path, kind="torchtitan command", idle=places, named=named)]
    return [replace(read_torchtitan(Settings.of(script.path, options)), named=named)]


def _of_launched(options: list[Setting], settings: list[Setting], script: Script) -> list[Reading]:
    """Options of NeMo 1's launcher over the configuration that ``training=llama/llama3_8b`` names.

    Without that file what the options say is read, and the file is asked for.
    """
    config = next((item for item in settings if item.key.lstrip("+~") == "training"), None)
    stated: list[Setting] = []
    named: tuple[Setting, ...] = ()
    if config is not None:
        name = f"{str(config.value).rpartition('/')[2]}.yaml"
        if name in script.beside:
            sections = yaml_of(script.beside.pop(name), name)
            stated = _settings(sections, name) if isinstance(sections, dict) else []
        else:
            named = (replace(config, value=name),)
    whole = {item.key: item for item in (*stated, *options)}
    return [replace(nemo_reading(list(whole.values()), script.path), named=named)]


def _names_arguments(settings: list[Setting], script: Script) -> bool:
    """Whether ``--config`` names a file of a Trainer's arguments that was given."""
    config = next((item for item in settings if item.key == "config"), None)
    text = "" if config is None else script.beside.get(Path(str(config.value)).name, "")
    return any(f"{key}:" in text for key in TRAINER_KEYS)


_MEGATRON_SURELY = {
    *("num_layers", "hidden_size", "num_attention_heads", "tensor_model_parallel_size"),
    *("pipeline_model_parallel_size", "train_iters", "train_samples", "use_mcore_models"),
}
"""Arguments of which Megatron-LM's commands have some, and scripts of one's own hardly any."""
_MEGATRON_ALONE = {"tensor_model_parallel_size", "num_layers", "micro_batch_size"}


def _of_compilers(command: Command, script: Script, keys: set[str]) -> list[Reading]:
    """Settings of MaxText and NeuronX, whose graphs are compiled ahead of the run."""
    path, settings = script.path, Settings.of(script.path, command.settings)
    if MAXTEXT_KEYS & keys or "maxtext" in command.script.lower():
        whole = _BASE_YML.search(script.text) is not None
        return [read_maxtext(settings, kind="MaxText command", whole=whole)]
    if {"device_type", "num_slices"} <= keys:
        read_slice(settings)
        place = f"a table of {command.script}"
        settings.notes.append(f"{path}: the settings of MaxText stand in {place}")
        return [settings.reading("job of xpk", idle_in("xpk"))]
    if any(key.startswith(f"{NEURONX_SECTION}.") for key in keys):
        if named := settings.found.get("config_name"):
            rule = f"the rest stands in {named.value}.yaml: give it with --from too"
            settings.notes.append(f"{path}: {rule}")
        return [read_neuronx(settings)]
    return []


def _of_slice(script: Script) -> list[Reading]:
    """What xpk, which starts MaxText on a slice, is asked for."""
    command = next((words for words in script.commands if words and words[0].text == "xpk"), None)
    if command is None:
        return []
    job = Settings.of(script.path, settings_of(command, script.path))
    job.take("command")
    read_slice(job)
    return [job.reading("job of xpk", idle_in("xpk"))]


def _of_tune(script: Script, beside: Mapping[str, Path | str]) -> list[Reading]:
    """What torchtune's command runs: a recipe, with its configuration where that is given too."""
    for words in script.commands:
        texts = [word.text for word in words]
        if "tune" not in texts or "--config" not in texts[texts.index("tune") :]:
            continue
        start, end = texts.index("tune") + 1, texts.index("--config")  # tune run OPTIONS RECIPE
        bare = [
            i for i in range(start, end) if texts[i][:1] not in ("", "-") and "=" not in texts[i]
        ]
        at = bare[-1] if bare else start
        if texts[start] != "run" or at == start:
            continue
        started = _started(settings_of(words[start + 1 : at], script.path), script)
        said = {item.key: item for item in settings_of(words[at + 1 :], script.path)}
        config = said.pop("config")
        if (stated := _configuration(config, script, beside)) is None:
            rule = f"stands in {config.value}: give that file with --from too"
            return [replace(started, problems=(f"{config.place}: what the recipe does {rule}",))]
        recipe = Setting("recipe", texts[at], Place(script.path, "recipe", words[at].line))
        path = str(beside[Path(str(config.value)).name])
        whole = Settings.of(path, [*stated, *said.values()])
        return [started, read_torchtune(whole, recipe)]
    return []


def _of_deepy(script: Script, beside: Mapping[str, Path | str]) -> list[Reading]:
    """What GPT-NeoX's launcher starts with the configurations that it names, all of them one."""
    for words in script.commands:
        texts = [word.text for word in words]
        at = next((i for i, text in enumerate(texts) if text.endswith("deepy.py")), None)
        if at is None or texts[0] in _PRINTS:
            continue
        program, files = gpt_neox.files_named(texts[at + 1 :])
        if way := way_of(program):
            problem = f"{script.path}: {program} asks for {refusal(way)}"
            return [Reading(path=script.path, kind="script", problems=(problem,))]
        place = Place(script.path, "deepy.py", words[at].line)
        settings, missing = list[Setting](), list[Setting]()
        for name in files:
            setting = Setting("deepy.py", name, place)
            stated = _configuration(setting, script, beside)
            settings += stated or []
            missing += [setting] if stated is None else []
        if missing or not files:
            rule = ", ".join(str(item.value) for item in missing) or "files that it does not name"
            rule = f"{place}: what its run does stands in {rule}: give it with --from too"
            kind = "command of deepy.py"
            return [Reading(path=script.path, kind=kind, problems=(rule,), named=tuple(missing))]
        return [gpt_neox.reading_of(settings, script.path)]
    return []


def _of_options(
    command: Command, script: Script, beside: Mapping[str, Path | str]
) -> list[Reading]:
    """Options of a command over a trainer's configuration, where that is given too."""
    trainer = configured_by(command.settings)
    if trainer is None:
        return []
    said = {item.key: item for item in command.settings}
    config = said.pop("config", None) or said.pop("c")
    started = _started(command.launcher, script)
    stated = _configuration(config, script, beside)
    if stated is None:
        rule = f"what its run does stands in {config.value}: give that file with --from too"
        return [replace(started, problems=(f"{config.place}: {rule}",), named=(config,))]
    return [started, read_trained(trainer, Settings.of(script.path, [*stated, *said.values()]))]


def _started(options: Iterable[Setting], script: Script) -> Reading:
    """What a launcher's options say, where a configuration says the rest."""
    launcher = Settings.of(script.path, options)
    read_launcher(launcher, script.variables)
    return launcher.reading("launcher", lambda key: True)


def _configuration(
    config: Setting, script: Script, beside: Mapping[str, Path | str]
) -> list[Setting] | None:
    """Settings of the YAML that a command names; None where that file was not given."""
    name = Path(str(config.value)).name
    if (text := script.beside.pop(name, None)) is None:
        return None
    path = str(beside[name])
    stated = yaml_of(text, path)
    if not isinstance(stated, dict):
        raise InputError(f"{path}: must be a table of settings")
    return _settings(stated, path)


def _variables(script: Script) -> list[Setting]:
    return [
        Setting(name, value, script.place_of(name))
        for name, value in script.variables.items()
        if isinstance(value, str) and name in script.lines_of
    ]
