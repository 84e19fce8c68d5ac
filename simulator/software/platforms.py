"""Which training frameworks run on an accelerator: what both are built on must be the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from simulator import catalogue
from simulator.errors import InputError
from simulator.hardware.accelerator import Accelerator, Platform
from simulator.software.profile import Software, load_software


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
