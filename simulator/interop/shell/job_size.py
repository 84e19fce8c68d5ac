"""How many servers and accelerators a launcher or a job's head asks for."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable

from simulator.interop.dialects.settings import Place, Setting, Settings

_DIRECTIVE = re.compile(r"#SBATCH\s+(?:--([\w-]+)(?:[=\s]\s*(\S+))?|-(\w)\s*(\S+)?)")
_SHORT = {"N": "nodes", "n": "ntasks", "G": "gpus", "c": "cpus_per_task"}
_TYPED = re.compile(r"(?:gpu:)?(?:([A-Za-z][\w.-]*):)?(\d{1,9})")


def batch_directives(text: str, path: str) -> list[Setting]:
    """The ``#SBATCH`` lines of a job."""
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("#SBATCH") and (match := _DIRECTIVE.match(line)):
            long, value, short, other = match.groups()
            name = long.replace("-", "_") if long else _SHORT.get(short, short)
            written = f"#SBATCH --{long}" if long else f"#SBATCH -{short}"
            setting = value or other or True
            found.append(Setting(name, setting, Place(path, written, number)))
    return found


def seeds_of(directives: Iterable[Setting]) -> dict[str, str]:
    """Variables that SLURM sets for the job."""
    given = {setting.key: str(setting.value) for setting in directives}
    names = {
        "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
        "ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
        "ntasks_per_node": ("SLURM_NTASKS_PER_NODE",),
        "gpus_per_node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    }
    found = {name: given[key] for key, all_ in names.items() if key in given for name in all_}
    return {name: value for name, value in found.items() if value.isdigit()}


def read_directives(settings: Settings) -> None:
    """State servers and accelerators of a job's head."""
    for key in ("nodes", "ntasks", "ntasks_per_node"):
        given = settings.found.get(key)
        if given is not None and re.fullmatch(r"[<\[]?[A-Za-z][\w -]*[>\]]?", str(given.value)):
            settings.notes.append(f"{given.place}: {given.value!r} is a place for a number")
            settings.take(key)
            del settings.found[key]
    nodes = settings.whole("run.nodes", "nodes")
    _typed("run.per_node", settings, "gpus_per_node", "gres")
    _typed("cluster.gpus", settings, "gpus")
    tasks, each = settings.whole("", "ntasks"), settings.whole("", "ntasks_per_node")
    per_task = settings.take("gpus_per_task")
    if settings.value_of("run.per_node") is None and per_task is None and each and each > 1:
        settings.say("run.per_node", each, settings.found["ntasks_per_node"])
    if per_task is None or settings.value_of("run.per_node") is not None:
        return
    match = _TYPED.fullmatch(str(per_task.value))
    if match and each:
        settings.say("run.per_node", int(match[2]) * each, per_task)
    elif match and tasks:
        settings.say("cluster.gpus", int(match[2]) * tasks, per_task)
    elif match and nodes:
        settings.say("cluster.gpus", int(match[2]) * nodes, per_task)


def _of_runai(settings: Settings) -> None:
    """``runai training pytorch submit --workers 3 --gpu-devices-request 8``: workers and a master.

    docs.nvidia.com/run-ai, reference of the command line, read on 2026-11-27.
    """
    devices = settings.take("gpu_devices_request")
    if devices is None or not re.fullmatch(r"[1-9]\d{0,5}", str(devices.value)):
        return
    if settings.value_of("run.per_node") is None:
        settings.say("run.per_node", int(devices.value), devices)
    workers = settings.take("workers")
    if workers is None or settings.value_of("run.nodes") is not None:
        return
    if re.fullmatch(r"\d{1,6}", str(workers.value)):
        master = "no_master" not in settings.found
        settings.say("run.nodes", int(workers.value) + master, workers)


def _typed(name: str, settings: Settings, *keys: str) -> None:
    """``--gres=gpu:h100:8``: a kind of accelerator, which is noted, and a number."""
    setting = settings.take(*keys)
    found = _TYPED.fullmatch(str(setting.value)) if setting else None
    if setting is None or found is None:
        return
    settings.say(name, int(found[2]), setting)
    if found[1]:
        settings.notes.append(f"{setting.place}: asks for accelerators called {found[1]!r}")


def read_launcher(settings: Settings, variables: Container[str] = ()) -> None:
    """State servers and accelerators of torchrun, deepspeed, accelerate, srun and mpirun.

    A variable that nobody sets says nothing here: often the job's head or its cluster sets it.
    Where the script or its operator sets PET_NNODES of `variables`, torchrun takes that in place of
    one server (torch/distributed/run.py: every option has such a variable).
    """
    tasks = () if "nproc_per_node" in settings.found else ("ntasks",)
    for name, keys in (
        ("run.nodes", ("nnodes", "num_nodes", "num_machines", "nodes", "N")),
        ("run.per_node", ("nproc_per_node", "num_gpus", "gpus_per_node", "ntasks_per_node")),
        ("cluster.gpus", ("num_processes", "np", *tasks)),
    ):
        setting = settings.take(*keys)
        if setting is not None and re.fullmatch(r"[1-9]\d{0,7}", str(setting.value)):
            settings.say(name, int(setting.value), setting)
    hosts = settings.found.get("host") or settings.found.get("H")  # colossalai run's
    several = hosts is not None and "," in str(hosts.value)
    if hosts is not None and several and settings.value_of("run.nodes") is None:
        settings.take("host", "H")
        settings.say("run.nodes", len(str(hosts.value).strip(",").split(",")), hosts)
    _of_runai(settings)
    each = settings.value_of("run.per_node")
    alone = not {"nnodes", "num_nodes", "num_machines", "hostfile", "workers"} & set(settings.found)
    starter = next((key for key in ("nproc_per_node", "num_gpus") if key in settings.found), "")
    alone = (
        alone and not several and not (starter == "nproc_per_node" and "PET_NNODES" in variables)
    )
    if each is not None and starter and alone:
        settings.say("run.nodes", 1, settings.found[starter])  # torchrun's and deepspeed's default
