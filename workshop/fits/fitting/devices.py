"""What a fit needs to know of a device, read from its profile before its kernels are fitted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from simulator import catalogue
from simulator.errors import InputError
from simulator.files import read_toml
from simulator.hardware.cluster import load_accelerator
from simulator.inheritance import merged
from simulator.measured.microbenchmarks import Words
from workshop.facts import facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Datasheet figures of an accelerator, whatever its profile says of kernels."""

    name: str
    generation: str
    compute_units: float
    flop_per_s: Mapping[str, float]
    """Dense peak by type."""
    bandwidth_bytes_per_s: float
    l2_bytes: float
    tables: Mapping[str, Mapping[str, Any]]
    """Its own `gemm`, `attention` and `stream` tables, without what it borrows or its base has."""
    borrows: bool

    def training_fraction(self) -> float:
        """Rate of 16-bit products under training load over that of a short call."""
        kernel = self.tables["gemm"].get("cublas", {}).get("bf16", {})
        if "training_fraction" in kernel or not self.borrows:
            return _value(kernel.get("training_fraction", _UNKNOWN_CLOCK))
        lent = load_accelerator(self.name).gemm.get("cublas", {}).get("bf16")
        return _UNKNOWN_CLOCK if lent is None else float(lent.training_fraction)


_UNKNOWN_CLOCK = 0.9


def devices() -> dict[str, Device]:
    """Read every accelerator profile, by name."""
    return {name: _device(name) for name in sorted(catalogue.names("accelerators"))}


def _device(name: str) -> Device:
    path = catalogue.find("accelerators", name)
    text = read_toml(path)
    sheet = _over_base(text)
    try:
        memory = sheet["memory"]
        return Device(
            name=name,
            generation=str(sheet["generation"]),
            compute_units=float(sheet["compute_units"]),
            flop_per_s={key: _value(x) for key, x in sheet["matrix_flop_per_s"].items()},
            bandwidth_bytes_per_s=_value(memory["bandwidth_bytes_per_s"]),
            l2_bytes=_value(memory["l2_bytes"]),
            borrows=bool({"base", "borrowed"} & text.keys()),
            tables={kind: text.get(kind, {}) for kind in ("gemm", "attention", "stream")},
        )
    except KeyError as error:
        raise InputError(f"{path}: {error.args[0]}: required field is missing") from None


def _over_base(text: Mapping[str, Any]) -> Mapping[str, Any]:
    """A profile's tables over those of its base, figures as they are written."""
    base = text.get("base")
    if base is None:
        return text
    return merged(_over_base(read_toml(catalogue.find("accelerators", base))), text)


def _value(figure: Any) -> float:
    return float(figure["value"] if isinstance(figure, Mapping) else figure)


_STAND_INS: dict[str, str] = facts(__file__)["stand_ins"]
"""GPU of the tables whose calls are fitted on the same chip on another board: the profile that
lends its figures to the card's own."""


def profile_of(gpu: str, words: Words, known: Mapping[str, Device]) -> str:
    """Profile on which calls of a GPU of the tables are fitted, or "" if there is none."""
    name = _STAND_INS.get(gpu) or words.accelerators.get(gpu, gpu)
    return name if name in known else ""


def same_chip(device: Device, others: Iterable[Device]) -> str:
    """Name the device with the same units at the same peak, "" if there is none.

    An export part or another memory size: its kernels are those of its sibling.
    """
    for other in others:
        peaks = (device.flop_per_s.get("bf16"), other.flop_per_s.get("bf16"))
        alike = device.generation == other.generation and peaks[0] == peaks[1]
        if alike and device.compute_units == other.compute_units and device.name != other.name:
            return other.name
    return ""
