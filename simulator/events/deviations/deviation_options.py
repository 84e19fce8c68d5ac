"""Deviations and worn links as they are written on the command line.

``stage=3,replica=1,compute=1.2`` and ``adapter-up 3.1=0.5``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields

from simulator.errors import InputError, did_you_mean, problem
from simulator.events.deviations.deviations import Deviation
from simulator.hardware.cluster import Cluster, load_cluster

_FIELDS = tuple(field.name for field in fields(Deviation))
_WHOLE = ("stage", "replica")


def parse_deviations(texts: Iterable[str], gpus: int, where: str) -> list[Deviation]:
    """Read deviations, each ``field=value`` with commas between, fields those of `Deviation`.

    `cluster` takes the name of a cluster profile, of which as many GPUs are used.

    Raises
    ------
    InputError
        With everything that is wrong in any of them.
    """
    deviations: list[Deviation] = []
    wrong: list[str] = []
    for text in texts:
        try:
            deviations.append(_parsed(text, gpus, where))
        except InputError as error:
            wrong += error.problems
    if wrong:
        raise InputError(wrong)
    return deviations


def _parsed(text: str, gpus: int, where: str) -> Deviation:
    values: dict[str, int | float | Cluster] = {}
    wrong: list[str] = []
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not value:
            wrong.append(problem(where, "", "must be FIELD=VALUE,... (stage=3,compute=1.2)", text))
        elif name not in _FIELDS:
            wrong.append(f"{where}: unknown field {name!r}{did_you_mean(name, _FIELDS)}")
        elif name in values:
            wrong.append(problem(where, name, "must be given once", text))
        else:
            try:
                values[name] = _value(name, value, gpus, where)
            except InputError as error:
                wrong += error.problems
    if wrong:
        raise InputError(wrong)
    return Deviation(**values)  # type: ignore[arg-type]


def _value(name: str, value: str, gpus: int, where: str) -> int | float | Cluster:
    if name == "cluster":
        return load_cluster(value, gpus, where=where)
    try:
        number = float(value)
    except ValueError:
        raise InputError(problem(where, name, "must be a number", value)) from None
    if name not in _WHOLE:
        return number
    if not number.is_integer():
        near = f" (nearest: {round(number)})" if math.isfinite(number) else ""
        raise InputError(problem(where, name, "must be a whole number", value) + near)
    return int(number)


def parse_link_degradation(texts: Iterable[str], where: str) -> dict[str, float]:
    """Read worn links, each ``LINK=SHARE``: a name of ``network/links.py``, and what is left.

    Raises
    ------
    InputError
        With everything that is wrong in any of them but whether there is such a link.
    """
    link_degradation: dict[str, float] = {}
    wrong: list[str] = []
    for text in texts:
        name, equals, share = (word.strip() for word in text.rpartition("=")[:3])
        name = " ".join(name.split())
        if not equals or not name:
            rule = "must be LINK=SHARE ('adapter-up 3.1=0.5')"
            wrong.append(problem(where, "", rule, text))
        elif name in link_degradation:
            wrong.append(problem(where, name, "must be given once", text))
        else:
            try:
                link_degradation[name] = float(share)
            except ValueError:
                rule = "must be the share of its capacity that is left, 0 to 1"
                wrong.append(problem(where, name, rule, share))
    if wrong:
        raise InputError(wrong)
    return link_degradation
