"""Which collective an event of a torch profiler trace is: kind, process group, bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from typing import Any

import numpy as np

from simulator.files import is_number
from simulator.interop.traces.kineto_classes import collective_kind, dtype_bytes
from simulator.records import dataclass
from simulator.scoring.trace import Collective


@dataclass(slots=True)
class Groups:
    """Distinct collectives, and what the trace says of their process groups."""

    configured: Any = None
    """``pg_config`` of ``distributedInfo``."""
    found: list[Collective] = field(default_factory=list)
    """The collectives that the codes stand for."""
    _codes: dict[Collective, int] = field(default_factory=dict)
    _configs: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)

    def code(self, name: str, arguments: Mapping[str, Any]) -> int:
        """Code of a collective by its name and the arguments of its event."""
        kind = collective_kind(_text(arguments.get("Collective name")) or name)
        group = _text(arguments.get("Process Group Name"))
        config = {} if kind == "host_copy" else self._config(group)
        size = arguments.get("Group size", config.get("pg_size"))
        ranks = _ranks(arguments.get("Process Group Ranks", config.get("ranks")))
        described = arguments.get("Process Group Description", config.get("pg_desc"))
        collective = Collective(
            kind=kind,
            group=group or _text(config.get("pg_name")),
            description=_text(described),
            size=int(size) if isinstance(size, int) and is_number(size) else None,
            ranks=ranks if len(ranks) == size else (),
        )
        code = self._codes.setdefault(collective, len(self.found))
        if code == len(self.found):
            self.found.append(collective)
        return code

    def __post_init__(self) -> None:
        """Sort what is configured by the names of groups; a blank stands for any of them."""
        configs = self.configured if isinstance(self.configured, list) else []
        for config in configs:
            if isinstance(config, dict):
                for name in {_text(config.get("pg_name")), ""}:
                    self._configs.setdefault(name, []).append(config)

    def _config(self, name: str) -> Mapping[str, Any]:
        """What is configured of a group; of the only one there is, if no name is given."""
        configs = self._configs.get(name, [])
        return configs[0] if len(configs) == 1 else {}


def input_bytes(arguments: Mapping[str, Any]) -> float:
    """Bytes that a collective takes in; NaN if its arguments do not say.

    NCCL's are counted (``In msg nelems``, ``dtype``); of gloo's the shape of the tensor is known if
    the trace was made with ``record_shapes``.
    """
    elements, dtype = arguments.get("In msg nelems"), arguments.get("dtype")
    if elements is None:
        dims, types = arguments.get("Input Dims"), arguments.get("Input type")
        if not (isinstance(dims, list) and isinstance(types, list) and dims and types):
            return np.nan
        elements, dtype = _product(dims[0]), types[0]
    size = dtype_bytes(_text(dtype))
    return float(elements) * size if size is not None and is_number(elements) else np.nan


def _text(value: Any) -> str:
    """A word or a number as text; a blank for anything else."""
    return str(value) if isinstance(value, (str, int, float)) else ""


def _product(dims: Any) -> float | None:
    if not isinstance(dims, list) or not all(map(is_number, dims)):
        return None
    with np.errstate(over="ignore"):
        return float(np.prod(dims, dtype=float))


def _ranks(value: Any) -> tuple[int, ...]:
    """Members of a group: a list, or its text; empty where Kineto shortened it."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return ()
    whole = isinstance(value, list) and all(isinstance(x, int) and is_number(x) for x in value)
    return tuple(value) if whole else ()
