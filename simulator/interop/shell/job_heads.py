"""Heads of job scripts: what SLURM, PBS and LSF are asked for, in lines that a shell passes over.

PBS as in the reference of OpenPBS 23 (qsub, pbs_resources: chunks of ``select``, ``place``) and of
Torque 6 (``nodes=2:ppn=8:gpus=8``); LSF as in IBM's reference of bsub 10.1 (``-gpu num=``: of a
host unless it says task; ``-nnodes`` of its Job Step Manager; ``span[ptile=]``), read 2026-11-28.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import replace

from simulator.interop.dialects.settings import Place, Reading, Setting, Settings, idle_in

JOBS = ("job of SLURM", "job of PBS", "job of LSF")
"""Kinds of what is read here."""


def read_heads(text: str, path: str) -> tuple[list[Reading], dict[str, str]]:
    """What the head of a job asks for, and the variables that its scheduler sets for the job."""
    readings, seeds = list[Reading](), dict[str, str]()
    for kind, lines, read, sets in (
        (JOBS[0], _of_slurm(text, path), _read_slurm, _set_by_slurm),
        (JOBS[1], _of_pbs(text, path), _read_pbs, _set_by_pbs),
        (JOBS[2], _of_lsf(text, path), _read_lsf, _set_by_lsf),
    ):
        if lines:
            job = Settings.of(path, lines)
            read(job)
            seeds |= sets(lines)
            readings.append(job.reading(kind, idle_in(kind.rpartition(" ")[2].lower())))
    return readings, seeds


# --- SLURM ----------------------------------------------------------------------------------------

_SHORT = {"N": "nodes", "n": "ntasks", "G": "gpus", "c": "cpus_per_task"}
_TYPED = re.compile(r"(?:gpu:)?(?:([A-Za-z][\w.-]*):)?(\d{1,9})")


def _of_slurm(text: str, path: str) -> list[Setting]:
    """The ``#SBATCH`` lines of a job, of which each may have several options.

    sbatch passes over those behind the first command, and those behind ``hetjob`` are of another
    part of the job: they have names of their own, which nothing here reads. Where a script writes
    its job and hands it on, all lines stand behind commands.
    """
    directives, late = list[Setting](), list[Setting]()
    behind = ""
    for number, line in enumerate(text.split("\n"), 1):
        if not line.startswith("#SBATCH"):
            behind = behind or ("" if line.strip()[:1] in ("", "#") else " behind a command")
            continue
        words = _words(line.removeprefix("#SBATCH"))
        if words[:1] in (["hetjob"], ["packjob"]):
            behind = " of another part"
        for at, word in enumerate(words):
            if word[:1] != "-":
                continue
            long, _, value = word[2:].partition("=") if word[:2] == "--" else ("", "", word[2:])
            written = f"--{long}" if long else word[:2]
            name = long.replace("-", "_") or _SHORT.get(word[1:2], word[1:2])
            following = words[at + 1] if at + 1 < len(words) and words[at + 1][:1] != "-" else ""
            place = Place(path, f"#SBATCH {written}", number)
            kept = late if behind else directives
            kept.append(Setting(name + behind, value or following or True, place))
    if directives:
        return directives + late
    return [replace(item, key=item.key.partition(" ")[0]) for item in late]


def _words(line: str) -> list[str]:
    """Words of a scheduler's line, as a shell has them."""
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # a quote that stays open
        return line.split()


def _set_by_slurm(directives: Iterable[Setting]) -> dict[str, str]:
    """Variables that SLURM sets for the job."""
    given = {setting.key: str(setting.value) for setting in directives}
    names = {
        "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
        "ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
        "ntasks_per_node": ("SLURM_NTASKS_PER_NODE",),
        "gpus_per_node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    }
    values = {name: given[key] for key, all_ in names.items() if key in given for name in all_}
    return {name: value for name, value in values.items() if value.isdigit()}


def _read_slurm(settings: Settings) -> None:
    """State servers and accelerators that ``sbatch`` is asked for."""
    for key in ("nodes", "ntasks", "ntasks_per_node"):
        given = settings.found.get(key)
        if given is not None and re.fullmatch(r"[<\[]?[A-Za-z][\w -]*[>\]]?", str(given.value)):
            settings.notes.append(f"{given.place}: {given.value!r} is a place for a number")
            settings.take(key)
            del settings.found[key]
    nodes = settings.whole("run.nodes", "nodes")
    _typed("run.per_node", settings, "gpus_per_node", "gres")
    _typed("cluster.gpus", settings, "gpus")
    tasks, per_node = settings.whole("", "ntasks"), settings.whole("", "ntasks_per_node")
    per_task = settings.take("gpus_per_task")
    if settings.value_of("run.per_node") is None and per_task is None and per_node and per_node > 1:
        settings.say("run.per_node", per_node, settings.found["ntasks_per_node"])
    if per_task is None or settings.value_of("run.per_node") is not None:
        return
    match = _TYPED.fullmatch(str(per_task.value))
    if match and per_node:
        settings.say("run.per_node", int(match[2]) * per_node, per_task)
    elif match and tasks:
        settings.say("cluster.gpus", int(match[2]) * tasks, per_task)
    elif match and nodes:
        settings.say("cluster.gpus", int(match[2]) * nodes, per_task)


def _typed(name: str, settings: Settings, *keys: str) -> None:
    """``--gres=gpu:h100:8``: a kind of accelerator, which is noted, and a number."""
    setting = settings.take(*keys)
    if setting is None:
        return
    asked = str(setting.value).split(",")
    if setting.key == "gres":
        asked = [word for word in asked if word.startswith("gpu")]
    match = _TYPED.fullmatch(asked[0]) if len(asked) == 1 else None
    if match is None:
        if asked and "$" not in str(setting.value):
            rule = "is no number of accelerators of one kind: not read"
            settings.notes.append(f"{setting.place}: {str(setting.value)[:80]!r} {rule}")
        return
    settings.say(name, int(match[2]), setting)
    if match[1]:
        settings.notes.append(f"{setting.place}: asks for accelerators called {match[1]!r}")


# --- PBS ------------------------------------------------------------------------------------------

_GPUS = ("ngpus", "gpus", "naccelerators")


def _flags(text: str, mark: str, path: str) -> list[Setting]:
    """Flags of a scheduler's lines, each with the words behind it."""
    settings = list[Setting]()
    for number, line in enumerate(text.split("\n"), 1):
        if not line.startswith(f"{mark} "):
            continue
        words = _words(line.removeprefix(mark))
        flag, values = "", list[str]()
        for word in [*words, "-"]:
            if word[:1] != "-":
                values.append(word)
                continue
            if flag:
                place = Place(path, f"{mark} {flag}", number)
                settings.append(Setting(flag.lstrip("-"), " ".join(values) or True, place))
            flag, values = word, []
    return settings


def _of_pbs(text: str, path: str) -> list[Setting]:
    """The ``#PBS`` lines of a job; resources of ``-l`` under their own names."""
    directives = list[Setting]()
    for item in _flags(text, "#PBS", path):
        listed = str(item.value) if item.key == "l" else item.key[1:]
        if item.key[:1] != "l" or not listed:
            directives.append(item)
            continue
        for resource in listed.split(","):
            name, _, value = resource.strip().partition("=")
            place = Place(path, f"#PBS -l {name[:40]}", item.place.line)
            directives.append(Setting(name, value or True, place))
    return directives


def _set_by_pbs(directives: Iterable[Setting]) -> dict[str, str]:
    """Variables that PBS sets: Torque's of servers, and of all GPUs as some sites do."""
    seeds = dict[str, str]()
    for item in directives:
        servers = re.match(r"(\d{1,7})(?::|$)", str(item.value))
        if item.key == "nodes" and servers:
            seeds["PBS_NUM_NODES"] = servers[1]
        if item.key == "ngpus" and str(item.value).isdecimal():
            seeds["PBS_NGPUS"] = str(item.value)
    return seeds


def _pieces(setting: Setting) -> list[tuple[int, int | None]] | None:
    """Chunks or servers and the GPUs of each: ``2:ncpus=8:ngpus=4+1:ncpus=2``; None: not known."""
    pieces = list[tuple[int, int | None]]()
    for piece in str(setting.value).split("+"):
        first, *rest = piece.split(":")
        if re.fullmatch(r"\d{1,7}", first):
            count = int(first)
        elif re.search(r"[$<>\[\]{}]", first):
            return None
        else:  # a resource without a number in front, or the name of a server
            count, rest = 1, [first, *rest]
        gpus = None
        for word in rest:
            name, _, value = word.partition("=")
            if name in _GPUS and re.fullmatch(r"\d{1,5}", value):
                gpus = int(value)
        pieces.append((count, gpus))
    return pieces


def _read_pbs(settings: Settings) -> None:
    """State servers and accelerators that ``qsub`` is asked for.

    A chunk is a server of its own where they are scattered, or where it names no GPUs; otherwise
    several may share one, and the sum of GPUs alone is known.
    """
    place = settings.take("place")
    scattered = place is not None and "scatter" in str(place.value)
    asked = settings.take("select", "nodes")
    whole = settings.take("ngpus", "gpus")
    if whole is not None and re.fullmatch(r"[1-9]\d{0,6}", str(whole.value)):
        settings.say("cluster.gpus", int(str(whole.value)), whole)
    if asked is None:
        return
    pieces = _pieces(asked)
    if pieces is None:
        settings.notes.append(f"{asked.place}: {str(asked.value)[:80]!r} is a place for a number")
        return
    with_gpus = [(count, gpus) for count, gpus in pieces if gpus]
    servers = sum(count for count, _ in with_gpus or pieces)
    alike = len({gpus for _, gpus in with_gpus}) == 1
    if not with_gpus and whole is None and servers:
        settings.say("run.nodes", servers, asked)
    elif with_gpus and alike and (scattered or asked.key == "nodes"):
        settings.say("run.nodes", servers, asked)
        settings.say("run.per_node", with_gpus[0][1], asked)
    elif with_gpus and whole is None:
        settings.say("cluster.gpus", sum(count * (gpus or 0) for count, gpus in pieces), asked)


# --- LSF ------------------------------------------------------------------------------------------


def _of_lsf(text: str, path: str) -> list[Setting]:
    """The ``#BSUB`` lines of a job; requirements of several ``-R`` stand together."""
    directives, required = list[Setting](), list[Setting]()
    for item in _flags(text, "#BSUB", path):
        (required if item.key == "R" else directives).append(item)
    if required:
        said = " ".join(str(item.value) for item in required)
        directives.append(Setting("R", said, required[0].place))
    return directives


def _set_by_lsf(directives: Iterable[Setting]) -> dict[str, str]:
    """Variables that LSF sets: slots of the job."""
    slots = [str(item.value) for item in directives if item.key == "n"]
    return {"LSB_DJOB_NUMPROC": slots[-1]} if slots and slots[-1].isdecimal() else {}


def _read_lsf(settings: Settings) -> None:
    """State servers and accelerators that ``bsub`` is asked for."""
    required, wanted = settings.take("R"), settings.take("gpu")
    said = "" if required is None else str(required.value)
    slots = settings.whole("", "n", most=10**7)
    hosts = settings.whole("run.nodes", "nnodes")
    tiled = re.search(r"span\[\s*ptile\s*=\s*(\d{1,5})", said)
    tile = int(tiled[1]) if tiled else 0
    if required is not None and hosts is None:
        if re.search(r"span\[\s*hosts\s*=\s*1\b", said):
            hosts = 1
        elif slots and tile and slots % tile == 0:
            hosts = slots // tile
        if hosts:
            settings.say("run.nodes", hosts, required)
    number = re.search(
        r"\bnum\s*=\s*(\d{1,5})(/task)?", "" if wanted is None else str(wanted.value)
    )
    older = re.search(r"\bngpus(?:_\w+)?\s*=\s*(\d{1,5})", said.partition("rusage[")[2])
    if wanted is not None and number and number[2] and slots:
        settings.say("cluster.gpus", int(number[1]) * slots, wanted)
    elif wanted is not None and number and int(number[1]):
        settings.say("run.per_node", int(number[1]), wanted)
    elif required is not None and older and int(older[1]):
        settings.say("run.per_node", int(older[1]), required)
