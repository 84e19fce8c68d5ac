"""Formulas of kernels with every figure by its name in one call, as tests vary them."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from simulator.arrays import Floats
from simulator.cost.kernels import flash_attention, gemm
from simulator.cost.kernels.gemm import DeviceRates, device_rates
from simulator.hardware.accelerator import Accelerator, AttentionKernel, GemmKernel


def gemm_s(**given: Any) -> Floats:
    given.setdefault("training_fraction", given["sustained_fraction"])
    return gemm.gemm_s(_taken(DeviceRates, given), _taken(GemmKernel, given), **given)


def attention_s(**given: Any) -> Floats:
    device, kernel = _taken(DeviceRates, given), _taken(AttentionKernel, given)
    return flash_attention.attention_s(device, kernel, **given)


def _taken(record: Any, given: dict[str, Any]) -> Any:
    names = [field.name for field in fields(record) if field.name in given]
    return record(**{name: given.pop(name) for name in names})


def gemm_rates(accelerator: Accelerator, dtype: str, held_units: Any = 0.0) -> dict[str, Any]:
    return asdict(device_rates(accelerator, dtype, held_units))


def attention_figures(accelerator: Accelerator, library: str, dtype: str) -> dict[str, Any]:
    kernel = accelerator.attention[library]
    figures = {field.name: float(getattr(kernel, field.name)) for field in fields(kernel)}
    return gemm_rates(accelerator, dtype) | figures
