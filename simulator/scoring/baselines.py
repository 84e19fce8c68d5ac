"""What a prediction must beat: constant efficiency.

It comes from the measured rows alone, the model's columns included, so that it covers runs that
cannot be replayed and stays where it is when the physics moves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np

from simulator import catalogue
from simulator.errors import InputError
from simulator.hardware.cluster import load_cluster
from simulator.measured.replay import load_tables
from simulator.measured.rows import MeasuredRun, flag, number, read_runs, whole
from simulator.records import dataclass

Device = tuple[str, str]
"""Name of a GPU and class of a precision."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConstantEfficiency:
    """Every GPU runs every training step at one rate, whatever the layout."""

    flop_per_s: Mapping[Device, float]
    """Rate of the GPUs that the fit has seen."""
    peak_share: Mapping[str, float]
    """Share of the dense peak that stands for all others, by class of precision."""
    peak_flop_per_s: Mapping[Device, float]

    def predict_s(self, run: MeasuredRun) -> float | None:
        """Seconds of one step.

        None where the fit has no rate and the GPU no known peak, or where a column that counts is
        blank or wrong.
        """
        device = _device(run)
        bits = device[1]
        rate = self.flop_per_s.get(device)
        if rate is None and bits in self.peak_share and device in self.peak_flop_per_s:
            rate = self.peak_share[bits] * self.peak_flop_per_s[device]
        try:
            return None if rate is None else _flop_per_gpu(run) / rate
        except InputError:
            return None


def constant_efficiency(
    runs: Iterable[MeasuredRun], peak_flop_per_s: Mapping[Device, float]
) -> ConstantEfficiency:
    """Fit the baseline: the median executed FLOP/s of each GPU and class of precision.

    Parameters
    ----------
    runs : iterable of MeasuredRun
        What the baseline may know: runs of the split ``calibrate``, without composed ones.
    peak_flop_per_s : mapping
        Dense peak by GPU name and class, see :func:`dense_peaks`.

    Raises
    ------
    InputError
        If a column that counts is blank or wrong.
    """
    rates: dict[Device, list[float]] = defaultdict(list)
    shares: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        device = _device(run)
        rate = _flop_per_gpu(run) / number(run.fields, "step_time_s")
        rates[device].append(rate)
        if device in peak_flop_per_s:
            shares[device[1]].append(rate / peak_flop_per_s[device])
    return ConstantEfficiency(
        flop_per_s={device: float(np.median(some)) for device, some in sorted(rates.items())},
        peak_share={bits: float(np.median(some)) for bits, some in sorted(shares.items())},
        peak_flop_per_s=peak_flop_per_s,
    )


@lru_cache(maxsize=1)
def shipped_baseline() -> ConstantEfficiency:
    """Fit the baseline to the shipped calibration runs."""
    runs = read_runs([catalogue.folder("validation") / "runs" / "calibrate.csv"])
    return constant_efficiency(runs, dense_peaks())


def dense_peaks() -> dict[Device, float]:
    """Dense peak of every GPU that replay.toml names, by class of precision."""
    peaks: dict[Device, float] = {}
    for gpu, cluster in load_tables().clusters.items():
        for dtype, rate in load_cluster(cluster, 1).accelerator.matrix_flop_per_s.items():
            device = (gpu, precision_class(dtype))
            peaks[device] = max(float(rate), peaks.get(device, 0.0))
    return peaks


def precision_class(precision: str) -> str:
    """Class of the large products' type: ``16 bit``, ``fp8``, ``fp4``, ``32 bit``, or nothing.

    Examples
    --------
    >>> [precision_class(name) for name in ("bf16", "mxfp8", "nvfp4", "tf32", "")]
    ['16 bit', 'fp8', 'fp4', '32 bit', '']
    """
    classes = {"fp8": "fp8", "fp4": "fp4", "16": "16 bit", "32": "32 bit"}
    return next((name for word, name in classes.items() if word in precision), "")


def executed_flop(run: MeasuredRun) -> float:
    """FLOPs of one step over all GPUs, recomputation included.

    Six per token and weight of every GEMM, output head included and input embedding
    not; causal attention; a third more where layers are recomputed in full. An extra
    token-prediction layer is a layer, its head, and the projection of two inputs to one.
    """
    row = run.fields
    hidden, vocabulary = whole(row, "hidden"), whole(row, "vocab")
    layers, extra = whole(row, "layers"), whole(row, "mtp_layers", 0)
    attention, per_position = _attention(row)
    last, others = _mlp_weights(row)
    weights = layers * attention + others + hidden * vocabulary
    weights += extra * (attention + last + 2 * hidden * hidden + hidden * vocabulary)
    length = whole(row, "seq_len")
    per_token = 6.0 * weights + 3.0 * (layers + extra) * per_position * length
    return per_token * whole(row, "global_batch") * length * (1.0 + _recomputed(row) / 3.0)


def _device(run: MeasuredRun) -> Device:
    return run.get("gpu"), precision_class(run.get("precision"))


def _flop_per_gpu(run: MeasuredRun) -> float:
    return executed_flop(run) / whole(run.fields, "num_gpus")


def _attention(row: Mapping[str, str]) -> tuple[int, int]:
    """Weights of one layer's attention; width of its queries and values over all heads."""
    hidden, heads = whole(row, "hidden"), whole(row, "heads")
    latent = whole(row, "kv_lora_rank", 0)
    if not latent:
        head = whole(row, "head_dim")
        return 2 * hidden * head * (heads + whole(row, "kv_heads")), 2 * heads * head
    plain, rotary = whole(row, "qk_nope_head_dim"), whole(row, "qk_rope_head_dim")
    value, rank = whole(row, "v_head_dim"), whole(row, "q_lora_rank", 0)
    query = heads * (plain + rotary)
    weights = rank * (hidden + query) if rank else hidden * query
    weights += hidden * (latent + rotary) + latent * heads * (plain + value)
    return weights + heads * value * hidden, query + heads * value


def _mlp_weights(row: Mapping[str, str]) -> tuple[int, int]:
    """Weights that a token passes in the MLP of the last layer, and of all layers; with router."""
    hidden, layers = whole(row, "hidden"), whole(row, "layers")
    matrix = (3 if flag(row, "gated_mlp") else 2) * hidden
    dense = matrix * whole(row, "ffn_hidden")
    experts = whole(row, "num_experts", 0)
    if not experts:
        return dense, layers * dense
    active = whole(row, "top_k") * whole(row, "moe_ffn_hidden") + whole(row, "shared_expert_ffn", 0)
    sparse, leading = matrix * active + hidden * experts, whole(row, "first_dense_layers", 0)
    return sparse, leading * dense + (layers - leading) * sparse


def _recomputed(row: Mapping[str, str]) -> float:
    """Share of the layers that run forward twice: full recomputation covers some of each rank."""
    if row.get("recompute") != "full":
        return 0.0
    covered = whole(row, "recompute_layers", 0) * whole(row, "pp", 1)
    return min(covered / whole(row, "layers"), 1.0) if covered else 1.0
