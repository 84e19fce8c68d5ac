"""Jobs as schedulers of containers take them: what they ask for, and the script that they start.

Kubeflow's TrainJob and PyTorchJob (Run:ai runs these, too), a Kubernetes Job, Run:ai's
TrainingWorkload and DistributedWorkload, a task of SkyPilot. Each becomes servers, accelerators a
server, and a shell script with its environment, which is read as any other script. Fields:
kubeflow.org/docs/components/trainer and /legacy-v1, docs.skypilot.co (SkyPilot YAML), read on
2026-11-26.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from simulator.errors import InputError
from simulator.interop.dialects.settings import Place, Stated
from simulator.records import dataclass

_DEVICES = ("nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi", "google.com/tpu")
MANIFEST = re.compile(
    r"^(?:kind:\s*(?:TrainJob|PyTorchJob|Job|TrainingWorkload|DistributedWorkload)\b|run:\s*[|>][+-]?\s*$)",
    re.M,
)
"""A line that only such jobs have."""

_NODES = re.compile(r"--nnodes[= ](\d{1,6})(?!\S)")
_SHELLS = ("bash", "sh", "/bin/bash", "/bin/sh")
_TASK_KEYS = {"run", "resources", "num_nodes", "setup", "envs", "file_mounts", "workdir"}


@dataclass(frozen=True, kw_only=True, slots=True)
class JobManifest:
    """A job, taken apart."""

    kind: str
    stated: tuple[Stated, ...]
    script: str
    """Shell: exports, then what the container runs."""
    seconds: float | None = None
    """Until the scheduler ends it."""
    notes: tuple[str, ...] = ()


def read_manifest(document: Mapping[str, Any], path: str) -> JobManifest | None:
    """Take a job apart; None where the document is none of those that are known."""
    kind = str(document.get("kind", ""))
    if reader := _KINDS.get(kind):
        return reader(_table(document.get("spec")), path)
    if "run" in document and len(_TASK_KEYS & set(document)) >= 2:
        return _task(document, path)
    return None


def _train_job(spec: Mapping[str, Any], path: str) -> JobManifest:
    trainer = _table(spec.get("trainer"))
    per_node = _whole(trainer.get("numProcPerNode")) or _devices(trainer.get("resourcesPerNode"))
    nodes = _replicas(trainer.get("numNodes"), f"{path}: spec.trainer.numNodes")
    seen = _sizes(path, nodes, per_node, "spec.trainer.numNodes", "spec.trainer.resourcesPerNode")
    env = {"PET_NNODES": nodes, "PET_NPROC_PER_NODE": per_node}
    return JobManifest(
        kind="a TrainJob of Kubeflow",
        stated=seen,
        script=_script(trainer, env),
        seconds=_ends(spec),
    )


def _pytorch_job(spec: Mapping[str, Any], path: str) -> JobManifest:
    replicas = _table(spec.get("pytorchReplicaSpecs"))
    place = "spec.pytorchReplicaSpecs"
    counts = {
        f"{path}: {place}.{name}.replicas": _table(role).get("replicas")
        for name, role in replicas.items()
    }
    open_ = any(map(_is_variable, counts.values()))
    nodes = 0 if open_ else sum(_replicas(n, where, least=0) for where, n in counts.items())
    first = _table(replicas.get("Master") or replicas.get("Worker"))
    container = _container(_table(first.get("template")))
    per_node = _whole(spec.get("nprocPerNode")) or _devices(container.get("resources"))
    seen = _sizes(path, nodes, per_node, f"{place}.*.replicas", f"{place}.*.resources")
    env = {
        "PET_NNODES": nodes,
        "PET_NPROC_PER_NODE": per_node,
        "WORLD_SIZE": nodes * (per_node or 0),
    }
    return JobManifest(
        kind="a PyTorchJob of Kubeflow",
        stated=seen,
        script=_script(container, {k: v for k, v in env.items() if v}),
        seconds=_ends(_table(spec.get("runPolicy"))) or _ends(spec),
    )


def _job(spec: Mapping[str, Any], path: str) -> JobManifest:
    container = _container(_table(spec.get("template")))
    count = spec.get("completions", spec.get("parallelism"))
    nodes = _replicas(count, f"{path}: spec.completions")
    per_node = _devices(container.get("resources"))
    seen = _sizes(path, nodes, per_node, "spec.completions", "spec.template.spec.containers")
    return JobManifest(
        kind="a Job of Kubernetes", stated=seen, script=_script(container, {}), seconds=_ends(spec)
    )


def _workload(spec: Mapping[str, Any], path: str) -> JobManifest:
    """One pod, or workers and their master; of MPI the master only launches, without devices."""
    given = {name: _table(field).get("value", field) for name, field in spec.items()}
    devices = given.get("gpuDevicesRequest") or given.get("gpu")
    line = " ".join(str(given[name]) for name in ("command", "arguments") if given.get(name))
    items = _table(_table(spec.get("environment")).get("items") or given.get("environment"))
    env = {name: _table(item).get("value", item) for name, item in items.items()}
    nodes, notes, place = 1, tuple[str, ...](), "spec"
    workers = given.get("workers", given.get("numWorkers"))
    if workers is not None:
        place = "spec.workers"
        nodes = _replicas(workers, f"{path}: {place}")
        nodes += str(given.get("distributedFramework")).lower() != "mpi"
        if (match := _NODES.search(line)) and int(match[1]) != nodes:
            rule = f"{place} and a master are {nodes} pods; its command names {match[1]} servers"
            notes = (f"{path}: {rule}, which are taken",)
            nodes = int(match[1])
        env = {"PET_NNODES": nodes, **env}
    seen = _sizes(path, nodes, _whole(devices), place, "spec.gpu")
    exports = "".join(_export(name, value) for name, value in env.items())
    kind = f"a {'Training' if workers is None else 'Distributed'}Workload of Run:ai"
    return JobManifest(kind=kind, stated=seen, script=exports + line, notes=notes)


def _task(document: Mapping[str, Any], path: str) -> JobManifest:
    resources = _table(document.get("resources"))
    asked = resources.get("accelerators")
    name, per_node = "", None
    if isinstance(asked, Mapping) and asked:
        name, per_node = next(iter(asked.items()))
    elif isinstance(asked, str):
        name, _, count = asked.partition(":")
        per_node = count or 1
    nodes = _replicas(document.get("num_nodes"), f"{path}: num_nodes")
    per_node = _whole(per_node)
    env = {
        **_table(document.get("envs")),
        "SKYPILOT_NUM_NODES": nodes,
        "SKYPILOT_NUM_GPUS_PER_NODE": per_node,
    }
    exports = "".join(_export(key, value) for key, value in env.items() if value is not None)
    notes = (f"{path}: resources.accelerators: asks for {name!r}",) if name else ()
    return JobManifest(
        kind="a task of SkyPilot",
        stated=_sizes(path, nodes, per_node, "num_nodes", "resources.accelerators"),
        script=exports + str(document.get("run") or ""),
        notes=notes,
    )


_KINDS: dict[str, Callable[[Mapping[str, Any], str], JobManifest]] = {
    "TrainJob": _train_job,
    "PyTorchJob": _pytorch_job,
    "Job": _job,
    "TrainingWorkload": _workload,
    "DistributedWorkload": _workload,
}


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _whole(value: Any) -> int | None:
    """A positive whole number, also where it is written as a text; None for ``auto`` or none."""
    digits = re.fullmatch(r"[1-9]\d{0,6}", str(value))
    return int(digits[0]) if digits else None


def _is_variable(value: Any) -> bool:
    """Whether envsubst or a chart fills a value in before the job is sent."""
    return isinstance(value, str) and value.startswith(("$", "{{"))


def _replicas(value: Any, where: str, least: int = 1) -> int:
    """Servers, 1 where nothing is said; 0 are none of a role, or what a variable says."""
    if _is_variable(value):
        return 0
    count = 1 if value is None else _whole(value) or (0 if str(value) == "0" else None)
    if count is None or count < least:
        raise InputError(f"{where}: must be a whole number from {least}, got {value!r}")
    return count


def _devices(resources: Any) -> int | None:
    """Accelerators that a container asks for."""
    for side in ("limits", "requests"):
        table = _table(_table(resources).get(side))
        for name in _DEVICES:
            if (count := _whole(table.get(name))) is not None:
                return count
    return None


def _container(template: Mapping[str, Any]) -> Mapping[str, Any]:
    containers = _table(template.get("spec")).get("containers")
    return _table(containers[0]) if isinstance(containers, list) and containers else {}


def _sizes(
    path: str, nodes: int, per_node: int | None, of_nodes: str, of_each: str
) -> tuple[Stated, ...]:
    stated = [Stated("run.nodes", nodes, Place(path, of_nodes))] if nodes else []
    if per_node:
        stated.append(Stated("run.per_node", per_node, Place(path, of_each)))
    return tuple(stated)


def _script(container: Mapping[str, Any], env: Mapping[str, Any]) -> str:
    """Exports and the command; of a shell with -c, what it is to run."""
    given = container.get("env")
    named = {
        str(item["name"]): item.get("value")
        for item in (given if isinstance(given, list) else [])
        if isinstance(item, Mapping) and "name" in item
    }
    exports = "".join(
        _export(name, value) for name, value in {**env, **named}.items() if value is not None
    )
    words = [str(word) for key in ("command", "args") for word in _list(container.get(key))]
    if words and words[0] in _SHELLS and len(words) > 2 and re.fullmatch(r"-\w*c", words[1]):
        return exports + " ".join(words[2:])
    return exports + " ".join(word if "$" in word else shlex.quote(word) for word in words)


def _list(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _export(name: Any, value: Any) -> str:
    return f"export {name}={shlex.quote(str(value))}\n" if str(name).isidentifier() else ""


def _ends(spec: Mapping[str, Any]) -> float | None:
    seconds = _whole(spec.get("activeDeadlineSeconds"))
    return None if seconds is None else float(seconds)
