"""What a fit to whole training steps may move: parameters, their priors, the figures they set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simulator.calibration import Prior

__all__ = ["PARAMETERS", "Parameter"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """One number that is fitted, and the figures of profiles that follow it."""

    prior: Prior
    """What kernels alone show."""
    profile: str
    """Accelerator, collective library or software profile that holds the figures."""
    figures: Mapping[str, float]
    """Dotted name of each figure, and its ratio to the parameter."""
    digits: int = 3
    """Significant digits that the profile keeps."""
    start: float | None = None
    """Where the fit starts if not at the prior: where the prior is too low to be felt at all."""


def _share(value: float, width: float) -> Prior:
    return Prior(value=value, width=width, low=0.05, high=1.2)


def _rate(*types: str) -> dict[str, float]:
    """Matrix products of these types, under training load."""
    return {f"gemm.cublas.{name}.training_fraction": 1.0 for name in types}


def _stream(elementwise: float, norm: float, other: float) -> dict[str, float]:
    """Classes of memory-bound kernels move together: their ratios are those of kernels alone."""
    shares = {"elementwise": elementwise, "norm": norm, "softmax": other, "loss": other}
    return {f"stream.{name}.memory_fraction": share / elementwise for name, share in shares.items()}


PARAMETERS: dict[str, Parameter] = {
    "h100_rate": Parameter(
        prior=_share(0.894, 0.06), profile="h100-sxm",
        figures=_rate("fp32", "tf32", "fp16", "bf16"),
    ),
    "h100_rate_fp8": Parameter(
        prior=_share(0.871, 0.06), profile="h100-sxm", figures=_rate("fp8"),
    ),
    "h100_attention": Parameter(
        prior=_share(0.57, 0.08), profile="h100-sxm",
        figures={"attention.flash.peak_fraction": 1.0},
    ),
    "h100_stream": Parameter(
        prior=_share(0.53, 0.15), profile="h100-sxm", figures=_stream(0.53, 0.47, 0.51), digits=2,
    ),
    "a100_rate": Parameter(
        prior=_share(0.854, 0.05), profile="a100-sxm-80",
        figures=_rate("fp32", "tf32", "fp16", "bf16"),
    ),
    "a100_stream": Parameter(
        prior=_share(0.66, 0.15), profile="a100-sxm-80", figures=_stream(0.66, 0.58, 0.63),
        digits=2,
    ),
    "nccl_compute_units": Parameter(
        prior=Prior(value=20.0, width=2.0, low=1.0, high=132.0), profile="nccl",
        figures={"compute_units": 1.0}, digits=2, start=40.0,
    ),
    "fp8_kernels": Parameter(
        prior=Prior(value=0.0, width=18.0, low=0.0, high=120.0, linear=True),
        profile="megatron-core", figures={"host.kernels_per_fp8_block": 1.0}, digits=2,
        start=15.0,
    ),
}  # fmt: skip
"""Priors of the rates of matrix products are the sustained fractions that GEMM fits gave
(fit_kernels.py); of attention and of shares of memory bandwidth, kernels and first fits; of compute
units, NCCL's 16 to 32 channels, hardly held, since cache, memory and power add to them. The prior
of fp8 kernels is that there are none."""
