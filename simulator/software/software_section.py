"""The software of a scenario: the release that stands for a word, and the machines it runs on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from simulator import catalogue
from simulator.errors import InputError, brief, problem
from simulator.hardware.accelerator import Accelerator, Platform
from simulator.hardware.cluster import Cluster
from simulator.section import Rule, Section
from simulator.software.overrides import (
    SoftwareSection,
    listed,
    usual_software,
    with_overrides,
)
from simulator.software.profile import Software, load_software
from simulator.software.releases import Nearest, load_releases
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Recipe


def nearest_release(
    _: Any, document: Mapping[str, Any], cluster: Cluster | None, *, where: str
) -> Nearest | None:
    """Find the release that stands nearest to `cluster.software`, or what usually runs there.

    None where the file names none and the cluster is not known.
    """
    section = document.get("cluster")
    word = section.get("software") if isinstance(section, Mapping) else None
    releases = load_releases()
    if word is None and cluster is not None:
        word = releases.usual[cluster.accelerator.platform]
    if not isinstance(word, str):
        return None
    if word.endswith(".toml"):
        catalogue.find("software", word, where=where, field="cluster.software")
    return releases.nearest(word, where=f"{where}: cluster.software")


def read_software(
    stated: Any,
    release: Nearest,
    cluster: Cluster | None,
    model: Architecture | None,
    *,
    where: str,
) -> Software:
    """Read the profile of a release as its recipes run, with what [software] puts over it."""
    software = load_software(release.profile).standing_for(release)
    if cluster is not None and model is not None:
        software = software.as_recipes_on(cluster.accelerator.name, model.family)
    return with_overrides(software, stated, where=where)


def _wrong_devices(software: Software, cluster: Cluster, *, where: str) -> list[str]:
    """Devices that the software does not run on, or of whose GEMMs it has no figures."""
    library = software.kernels.gemm_library
    wrong = (wrong_platform(software, kind.accelerator) for kind in cluster.each)
    problems = [f"{where}: cluster.software: {text}" for text in wrong if text]
    return problems + [
        f"{where}: cluster.software: {software.name} multiplies with {brief(library)}, of which"
        f" {kind.accelerator.name} has no figures (it has {', '.join(kind.accelerator.gemm)})"
        for kind in cluster.each
        if library not in kind.accelerator.gemm
    ]


def _wrong_precision(
    training: Recipe, cluster: Cluster | None, software: Software | None, *, where: str
) -> list[str]:
    """A type that the device or the software lacks."""
    problems, precision = list[str](), training.precision
    for device in (kind.accelerator for kind in (cluster.each if cluster is not None else ())):
        if training.matrix_type not in (offered := device.matrix_flop_per_s):
            problems.append(
                f"{where}: training.precision: {device.name} has no {precision}"
                f" (it has {', '.join(offered)}), got {precision!r}"
            )
    if software is not None:
        problems += _untrained(training, software, where)
    if training.fp8_weights and training.quantised_base:
        rule = "must be false with training.quantised_base, whose weights are in 4 bit"
        problems.append(problem(where, "training.fp8_weights", rule, True))
    elif training.fp8_weights and training.freezes and not training.lora_rank:
        rule = "must be false with frozen parts, unless training.lora_rank is above 0"
        problems.append(problem(where, "training.fp8_weights", rule, True))
    return problems


def _untrained(training: Recipe, software: Software, where: str) -> list[str]:
    """A precision that the software does not train in, or keeps no 8-bit weights with."""
    problems, precision = list[str](), training.precision
    known, alone = software.supports.precisions, software.supports.fp8_weights
    if precision not in known:
        problems.append(
            f"{where}: training.precision: {software.name} does not train in"
            f" {precision} (it does in {', '.join(known)}), got {precision!r}"
        )
    if training.fake_quantised_weights != "none" and "norm" in software.kernels.fused:
        rule = (
            f"is counted as torch's kernels one by one: what a compiler or fused modules make of"
            f" it is not known of {software.name} (torch-fsdp, torchtitan-eager and"
            " torchtune-2024-eager have separate ones)"
        )
        field = "training.fake_quantised_weights"
        problems.append(problem(where, field, rule, training.fake_quantised_weights))
    if training.fp8_weights and precision not in alone:
        words = ", ".join(alone) or "none"
        problems.append(
            f"{where}: training.fp8_weights: {software.name} keeps weights in 8 bit"
            f" alone with precision {words}, got {precision!r}"
        )
    return problems


def wrong_machine(
    training: Recipe, cluster: Cluster, software: Software, *, where: str
) -> list[str]:
    """Why a training cannot run on these devices with this software, before any layout is asked."""
    wrong = _wrong_devices(software, cluster, where=where)
    return wrong + _wrong_precision(training, cluster, software, where=where)


RELEASE = Section(
    name="release",
    read=Rule(nearest_release, needs=("document",), uses=("cluster",)),
    required=True,
)

SOFTWARE = Section(
    name="software",
    schemas=(SoftwareSection,),
    base=usual_software,
    words=listed,
    read=Rule(read_software, needs=("release",), uses=("cluster", "model")),
    required=True,
    checks=(
        Rule(_wrong_precision, needs=("training",), uses=("cluster", "software")),
        Rule(_wrong_devices, needs=("software", "cluster")),
    ),
)


def running_on(platform: Platform) -> list[str]:
    """List the software profiles that run on a platform."""
    found = sound_software(catalogue.names("software"))
    return [one.name for one in found if platform in one.platforms]


def first_running(names: Iterable[str], platform: Platform) -> str | None:
    """The first of some software profiles that runs on a platform; None where none does.

    >>> first_running(["megatron-core", "primus"], "rocm")
    'primus'
    """
    return next((name for name in names if platform in load_software(name).platforms), None)


def sound_software(names: Iterable[str]) -> Iterator[Software]:
    """Yield those of some software profiles that can be read; `profiles check` tells of others."""
    for name in names:
        try:
            yield load_software(name)
        except InputError:
            continue


def wrong_platform(software: Software, device: Accelerator) -> str | None:
    """Say what runs on an accelerator where the software does not; None where it does.

    For what is planned: a run that was measured did take place, whatever a table calls it.

    >>> from simulator.hardware.cluster import load_accelerator
    >>> print(wrong_platform(load_software("megatron-core"), load_accelerator("tpu-v5p")))
    megatron-core runs on cuda; on tpu-v5p (xla) run: maxtext, xla-tpu-2020
    """
    if device.platform in software.platforms:
        return None
    others = ", ".join(running_on(device.platform)) or "none of the profiles"
    built = " and ".join(software.platforms)
    return f"{software.name} runs on {built}; on {device.name} ({device.platform}) run: {others}"
