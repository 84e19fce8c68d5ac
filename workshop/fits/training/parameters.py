"""What a fit to whole training steps may move: parameters, their priors, the figures they set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simulator.calibration.least_squares import Prior


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """One number that is fitted, and the figures of profiles that follow it."""

    prior: Prior
    """What kernels alone show."""
    profiles: tuple[str, ...]
    """Accelerator, collective library or software profiles that hold the figures."""
    figures: Mapping[str, float]
    """Dotted name of each figure, and its ratio to the parameter."""
    digits: int = 3
    """Significant digits that the profile keeps."""
    start: float | None = None
    """Where the fit starts if not at the prior: where the prior is too low to be felt at all."""
    heirs: tuple[str, ...] = ()
    """Profiles that take the figures over from their base."""

    def reaches(self, profile: str) -> bool:
        """Whether a profile has the figures, its own or its base's."""
        return profile in self.profiles or profile in self.heirs


def _share(value: float, width: float) -> Prior:
    return Prior(value=value, width=width, low=0.02, high=1.2)


def _rate(*types: str) -> dict[str, float]:
    """Matrix products of these types, under training load."""
    return {f"gemm.cublas.{name}.training_fraction": 1.0 for name in types}


def _attention(*libraries: str) -> dict[str, float]:
    """Fused attention of these libraries, under training load."""
    return {f"attention.{name}.training_fraction": 1.0 for name in libraries}


def _stream(elementwise: float, norm: float, other: float) -> dict[str, float]:
    """Classes of memory-bound kernels move together: their ratios are those of kernels alone."""
    shares = {"elementwise": elementwise, "norm": norm, "softmax": other, "loss": other}
    return {f"stream.{name}.memory_fraction": share / elementwise for name, share in shares.items()}


def _blackwell_stream(share: float) -> dict[str, float]:
    """Classes of memory-bound kernels on Blackwell, and permutation as SimuMax measured it."""
    return _stream(share, 0.47 / 0.53 * share, 0.51 / 0.53 * share) | {
        "stream.permute.memory_fraction": 0.75
    }


_OLD_MEGATRON = ("megatron-lm-2021", "megatron-deepspeed-2023")
_H100 = ("h100-sxm", "h200-sxm")
"""The same chip; the second has a faster memory, of which kernels reach another share."""

_H800 = ("h800-sxm",)
_A100, _A800 = ("a100-sxm-80",), ("a100-sxm-40", "a800-sxm-80")
_SIXTEEN = ("fp32", "tf32", "fp16", "bf16")
_EIGHT = ("fp8", "fp8_blockwise")

_MXFP8 = 0.95
"""Rate of MXFP8 products over those with one scale: 12 products of a block on B300 take 7.16 and
6.81 ms once cast (NVIDIA/TransformerEngine@1609c890, docs/examples/gemm_profiling)."""

_NVFP4 = {"b200-sxm": 1.22, "gb200": 1.18, "gb300": 1.21}
"""The same of NVFP4, over figures of timed calls that cast their operand (`training_nvfp4` of the
profiles): the same 12 products take 3.76 ms, 1.81 times the rate of those with one scale."""

_BLACKWELL = {"b200-sxm": 0.846, "gb200": 1.0, "gb300": 1.0}
"""Accelerators, and the sustained fraction that their fp8 timings show. One rate for fp8 with one
scale and with one for 32 elements, at the ratio that kernels show: the same units run both, and
runs do not tell them apart."""

_VARIATION = Prior(value=0.014, width=0.4, low=0.001, high=0.05)
"""8 % between fast and slow accelerators of a kind (Sinha et al. 2022), 5.5 standard deviations of
some hundred draws."""

PARAMETERS: dict[str, Parameter] = {
    **{
        f"{profile}_rate_fp8": Parameter(
            prior=_share(share, 0.10), profiles=(profile,),
            figures=_rate("fp8") | {
                "gemm.cublas.mxfp8.training_fraction": _MXFP8,
                "gemm.cublas.nvfp4.training_fraction": _NVFP4[profile],
            },
        )
        for profile, share in _BLACKWELL.items()
    },
    "h100_rate": Parameter(
        prior=_share(0.859, 0.06), profiles=_H100, heirs=_H800, figures=_rate(*_SIXTEEN),
    ),
    "h100_rate_fp8": Parameter(
        prior=_share(0.85, 0.06), profiles=_H100, heirs=_H800, figures=_rate(*_EIGHT),
    ),
    "h100_attention": Parameter(
        prior=_share(0.894, 0.10), profiles=_H100, heirs=_H800, figures=_attention("flash"),
    ),
    "h100_stream": Parameter(
        prior=_share(0.53, 0.10), profiles=("h100-sxm",), heirs=_H800,
        figures=_stream(0.53, 0.47, 0.51), digits=2,
    ),
    "h100_hbm2e_rate": Parameter(
        prior=_share(0.62, 0.15), profiles=("h100-hbm2e-96",), figures=_rate(*_SIXTEEN),
    ),
    "h100_hbm2e_rate_fp8": Parameter(
        prior=_share(0.76, 0.15), profiles=("h100-hbm2e-96",), figures=_rate(*_EIGHT),
    ),
    "h100_hbm2e_attention": Parameter(
        prior=_share(0.62, 0.15), profiles=("h100-hbm2e-96",),
        figures=_attention("sdpa"),
    ),
    "b200_rate": Parameter(
        prior=_share(0.842, 0.15), profiles=("b200-sxm",), figures=_rate(*_SIXTEEN),
    ),
    "b200_attention": Parameter(
        prior=_share(0.78, 0.10), profiles=("b200-sxm",), figures=_attention("flash", "sdpa"),
    ),
    "blackwell_stream": Parameter(
        prior=_share(0.62, 0.10), profiles=(*_BLACKWELL, "b300-sxm"),
        figures=_blackwell_stream(0.62), digits=2,
    ),
    "blackwell_cudnn": Parameter(
        prior=_share(0.88, 0.10), profiles=(*_BLACKWELL, "b300-sxm"),
        figures=_attention("cudnn", "cudnn_mxfp8"),
    ),
    "gb200_attention": Parameter(
        prior=_share(0.777, 0.10), profiles=("gb200", "gb300"), figures=_attention("flash", "sdpa"),
    ),
    "a100_rate": Parameter(
        prior=_share(0.823, 0.05), profiles=_A100, heirs=_A800, figures=_rate(*_SIXTEEN),
    ),
    "a100_attention": Parameter(
        prior=_share(0.928, 0.08), profiles=_A100, heirs=_A800, figures=_attention("flash"),
    ),
    "a100_triton_attention": Parameter(
        prior=_share(1.0, 0.08), profiles=_A100, heirs=_A800, figures=_attention("triton_2022"),
    ),
    "a100_triton_narrow_heads": Parameter(
        prior=Prior(value=0.888, width=0.15, low=0.5, high=1.5), profiles=_A100, heirs=_A800,
        figures={"attention.triton_2022.narrow_head_factor": 1.0},
    ),
    "a100_stream": Parameter(
        prior=_share(0.66, 0.10), profiles=_A100, heirs=_A800,
        figures=_stream(0.66, 0.58, 0.63), digits=2,
    ),
    "a100_unaligned": Parameter(
        prior=_share(0.25, 0.5), profiles=_A100, heirs=_A800,
        figures={f"gemm.cublas.{name}.unaligned_fraction": 1.0 for name in ("fp16", "bf16")},
        digits=2,
    ),
    "h100_variation": Parameter(
        prior=_VARIATION, profiles=_H100, heirs=_H800, figures={"time_variation": 1.0}, digits=2,
    ),
    "a100_variation": Parameter(
        prior=_VARIATION, profiles=_A100, heirs=_A800, figures={"time_variation": 1.0}, digits=2,
    ),
    "host_variation": Parameter(
        prior=Prior(value=0.03, width=0.5, low=0.001, high=0.2),
        profiles=("megatron-core", "megatron-core-defaults"),
        figures={"host.time_variation": 1.0}, digits=2,
    ),
    "nccl_compute_units": Parameter(
        prior=Prior(value=24.0, width=0.35, low=1.0, high=132.0), profiles=("nccl",),
        figures={"compute_units": 1.0}, digits=2,
    ),
    "fp8_kernels": Parameter(
        prior=Prior(value=0.0, width=18.0, low=0.0, high=120.0, linear=True),
        profiles=("megatron-core", "megatron-core-defaults"), heirs=("megatron-bridge",),
        figures={"host.kernels_per_fp8_block": 1.0}, digits=2, start=15.0,
    ),
    "moe_kernels": Parameter(
        prior=Prior(value=102.0, width=0.3, low=5.0, high=400.0),
        profiles=("megatron-core", "megatron-core-defaults"),
        figures={"host.kernels_per_moe_block": 1.0}, digits=2,
    ),
    "megatron_launch": Parameter(
        prior=Prior(value=29e-6, width=0.2, low=3e-6, high=100e-6),
        profiles=("megatron-core", "megatron-core-defaults"), heirs=("megatron-bridge",),
        figures={"host.seconds_per_kernel": 1.0}, digits=2,
    ),
    "old_megatron_launch": Parameter(
        prior=Prior(value=29e-6, width=0.2, low=3e-6, high=100e-6),
        profiles=("megatron-lm-2022", "megatron-deepspeed-2022-async"), heirs=_OLD_MEGATRON,
        figures={"host.seconds_per_kernel": 1.0}, digits=2,
    ),
    "blocking_launch": Parameter(
        prior=Prior(value=29e-6, width=0.2, low=3e-6, high=100e-6),
        profiles=("megatron-deepspeed-2022",), figures={"host.seconds_per_kernel": 1.0}, digits=2,
    ),
    "numa_launch": Parameter(
        prior=Prior(value=29e-6, width=0.2, low=3e-6, high=100e-6),
        profiles=("megatron-deepspeed-2022-numa",), heirs=("megatron-deepspeed-2022-bf16",),
        figures={"host.seconds_per_kernel": 1.0}, digits=2,
    ),
    "llm_foundry_launch": Parameter(
        prior=Prior(value=12e-6, width=0.3, low=3e-6, high=100e-6),
        profiles=("llm-foundry-2023",), figures={"host.seconds_per_kernel": 1.0}, digits=2,
    ),
}  # fmt: skip
"""Priors of the rates of matrix products are the sustained fractions that GEMM fits gave
(fit_gemm.py); of memory-bound kernels on Blackwell what cuDNN's norms (0.63 to 0.80 of the rate on
GB200 and GB300) and SimuMax's kernels (0.67 on B200) show; of attention on H100 what products
showed before their clock rose with idle units, on B200 and A100 that of long calls; of the H100
with HBM2e, first fits to its own runs; of other shares of memory bandwidth, kernels and first fits;
of compute units, NCCL's 16 to 32 channels. The prior of
fp8 kernels is that there are none; of launches, what SimuMax's steps at small sizes show; of
products off tensor cores, the data sheet's 78 of 312 TFLOP/s."""
