"""Fit the kernels of an engine's iterations, and write their profiles.

``python -m workshop.fits.decode.fit`` reads validation/serving/decode.csv, fits each device
alone, leaves one shape after the other out, and writes hardware_profiles/decode_kernels/*.toml with
that error in their sources, and hardware_profiles/residuals/decode_experts/*.csv.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from simulator import catalogue
from simulator.arrays import Floats
from simulator.cost.kernels.residual import matern
from simulator.files import read_csv
from simulator.hardware.cluster import load_accelerator
from simulator.reinforcement.decode_kernels import (
    ROUTING_EXPONENT,
    all_reduce_in_domain_s,
    decode_attention_s,
    expert_features,
    expert_layer_s,
    reached_experts,
)

_HEAD = 128.0
_LARGEST_REDUCED = 2 * 2**20
_NOISE = 0.05
"""Share of a residual's variance that is not of the shape."""


@dataclass(frozen=True, kw_only=True)
class Law:
    """A kernel's figures: name, start of the fit, bounds, unit; and its time by them."""

    figures: dict[str, tuple[float, float, float, float]]
    seconds: Callable[[Any, dict[str, Any]], Floats]

    def at(self, values: Sequence[float]) -> SimpleNamespace:
        """The figures in SI units."""
        units = [unit for _, _, _, unit in self.figures.values()]
        scaled = (value * unit for value, unit in zip(values, units, strict=True))
        return SimpleNamespace(**dict(zip(self.figures, scaled, strict=True)))


ATTENTION = Law(
    figures={
        "attention_launch_s": (8.0, 1.0, 30.0, 1e-6),
        "attention_key_head_s": (10.0, 0.1, 500.0, 1e-9),
        "attention_head_s": (1.0, 0.0, 200.0, 1e-9),
        "attention_memory_fraction": (0.85, 0.2, 1.0, 1.0),
        "attention_sharpness": (1.5, 1.0, 6.0, 1.0),
    },
    seconds=lambda figures, x: decode_attention_s(figures, **x),
)

EXPERTS = Law(
    figures={
        "expert_launch_s": (20.0, 2.0, 60.0, 1e-6),
        "expert_s": (50.0, 0.0, 400.0, 1e-9),
        "expert_memory_fraction": (0.85, 0.2, 1.0, 1.0),
        "expert_peak_fraction": (0.5, 0.05, 1.0, 1.0),
        "expert_row_passes": (1.0, 0.0, 20.0, 1.0),
        "expert_sharpness": (2.0, 1.0, 6.0, 1.0),
    },
    seconds=lambda figures, x: expert_layer_s(figures, **x),
)

ALL_REDUCE = Law(
    figures={
        "one_shot_s": (5.0, 1.0, 20.0, 1e-6),
        "one_shot_bytes_per_s": (150.0, 2.0, 2000.0, 1e9),
        "two_shot_s": (9.0, 1.0, 60.0, 1e-6),
        "two_shot_bytes_per_s": (150.0, 2.0, 2000.0, 1e9),
    },
    seconds=lambda figures, x: all_reduce_in_domain_s(figures, **x),
)


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """Figures of a law on one device, and how far off it is where a shape was left out."""

    values: list[float]
    median: float
    p90: float
    rows: int
    log_residual: Floats


def fit(law: Law, x: dict[str, Any], measured_s: Floats, shapes: Floats) -> Fitted:
    """Fit a law to timed calls by logarithms; `shapes` says which are left out together."""

    def solve(rows: Floats) -> list[float]:
        start, low, high = (np.array([f[i] for f in law.figures.values()]) for i in range(3))
        some = {name: np.broadcast_to(v, measured_s.shape)[rows] for name, v in x.items()}

        def off(values: Floats) -> Floats:
            return np.asarray(np.log(law.seconds(law.at(values.tolist()), some) / measured_s[rows]))

        solution = least_squares(off, start, bounds=(low, high), loss="soft_l1", f_scale=0.1)
        return [float(value) for value in solution.x]

    out = np.empty(len(measured_s))
    for shape in np.unique(shapes):
        left = shapes == shape
        predicted = law.seconds(law.at(solve(~left)), x)
        out[left] = np.abs(
            np.broadcast_to(predicted, measured_s.shape)[left] / measured_s[left] - 1
        )
    values = solve(np.full(len(measured_s), True))
    whole = np.broadcast_to(law.seconds(law.at(values), x), measured_s.shape)
    return Fitted(
        values=values,
        median=float(np.median(out)),
        p90=float(np.quantile(out, 0.9)),
        rows=len(out),
        log_residual=np.log(measured_s / whole),
    )


def rows_of(kernel: str) -> dict[str, list[dict[str, str]]]:
    """Timed calls of a kernel by device."""
    path = catalogue.folder("validation") / "serving" / "decode.csv"
    rows: dict[str, list[dict[str, str]]] = {}
    for _, row in read_csv(path):
        if row["kernel"] == kernel and row["dtype"] == "bf16":
            rows.setdefault(row["device"], []).append(row)
    return rows


def _columns(rows: Sequence[dict[str, str]], *names: str) -> list[Floats]:
    return [np.array([float(row[name] or 0) for row in rows]) for name in names]


def attention(device: str, rows: list[dict[str, str]]) -> Fitted:
    """Decode attention; caches between a fiftieth and twice the last level are left out.

    A timing loop finds those again in it, an engine's iteration does not.
    """
    memory = load_accelerator(device).memory
    b, c, heads, kv, us = _columns(
        rows, "rows", "context_or_bytes", "heads_or_tp", "kv_heads_or_ep", "time_us"
    )
    cache = b * c * kv * _HEAD * 2.0 * 2.0
    level = float(memory.l2_bytes)
    kept = (cache > 2.0 * level) | (cache < level / 50.0)
    x = {"sequences": b, "heads": heads, "kv_heads": kv, "cache_bytes": cache}
    x = {name: value[kept] for name, value in x.items()}
    x["bandwidth_bytes_per_s"] = np.full(kept.sum(), float(memory.bandwidth_bytes_per_s))
    return fit(ATTENTION, x, us[kept] * 1e-6, kv[kept])


def experts(device: str, rows: list[dict[str, str]]) -> tuple[Fitted, list[list[float]]]:
    """Layers of experts, and the weights of what each shape leaves over."""
    chip = load_accelerator(device)
    tokens, tp, ep, hidden, ffn, top_k, count, us = _columns(
        rows,
        *("rows", "heads_or_tp", "kv_heads_or_ep", "hidden", "ffn", "top_k", "experts"),
        "time_us",
    )
    reached = np.array(
        [
            float(
                min(n, e / k) * k
                if row["routing"] == "balanced"
                else reached_experts(n, int(e), int(k), exponent=ROUTING_EXPONENT)
            )
            for row, n, k, e in zip(rows, tokens, top_k, count, strict=True)
        ]
    )
    x: dict[str, Any] = {
        "bandwidth_bytes_per_s": float(chip.memory.bandwidth_bytes_per_s),
        "peak_flop_per_s": float(chip.matrix_flop_per_s["bf16"]),
        "tokens": tokens,
        "reached": reached / ep,
        "copies": tokens * top_k / ep,
        "hidden": hidden,
        "ffn": ffn / tp,
    }
    fitted = fit(EXPERTS, x, us * 1e-6, hidden * 1e6 + ffn * 1e3 + count)
    plain = np.array([row["routing"] != "balanced" for row in rows])
    sizes = {"tokens": tokens, "experts": count / ep, "hidden": hidden, "ffn": ffn / tp}
    some = {name: value[plain] for name, value in {**sizes, "top_k": top_k}.items()}
    at = expert_features(**some)
    gram = matern(at, at) + _NOISE * np.eye(len(at))
    weights = np.linalg.solve(gram, fitted.log_residual[plain])
    table = [[*values, w] for *values, w in zip(*some.values(), weights, strict=True)]
    return fitted, table


def reduced(rows: list[dict[str, str]]) -> Fitted:
    """All-reduces of messages up to 2 MiB."""
    ranks, size, us = _columns(rows, "rows", "context_or_bytes", "time_us")
    kept = size <= _LARGEST_REDUCED
    x = {"ranks": ranks[kept], "size_bytes": size[kept]}
    return fit(ALL_REDUCE, x, us[kept] * 1e-6, ranks[kept])


def main() -> None:
    """Fit all devices and write their profiles."""
    folder = Path(catalogue.folder("hardware_profiles"))
    attentions, layers, calls = map(rows_of, ("decode_attention", "experts", "all_reduce"))
    (folder / "residuals" / "decode_experts").mkdir(exist_ok=True)
    for device in attentions:
        layer, table = experts(device, layers[device])
        parts = {
            "attention": (ATTENTION, attention(device, attentions[device])),
            "experts": (EXPERTS, layer),
            "all_reduce": (ALL_REDUCE, reduced(calls[device])),
        }
        release = attentions[device][0]["release"]
        (folder / "decode_kernels" / f"{device}.toml").write_text(_toml(device, release, parts))
        lines = ["library,dtype,tokens,experts,hidden,ffn,top_k,weight"]
        lines += [
            "vllm,bf16," + ",".join(f"{value:.4g}" for value in row)
            for row in table
            if abs(row[-1]) >= 0.005
        ]
        path = folder / "residuals" / "decode_experts" / f"{device}.csv"
        path.write_text("\n".join(lines) + "\n")
        shown = [
            f"{name} {part.median:.1%} (p90 {part.p90:.0%})" for name, (_, part) in parts.items()
        ]
        print(f"{device}: shapes left out, median: {', '.join(shown)}")


def _toml(device: str, release: str, parts: dict[str, tuple[Law, Fitted]]) -> str:
    """The profile of a device."""
    lines = [
        f"# Kernels of an engine's iterations on {device}: written by workshop/fits/decode/fit.py"
    ]
    for name, (law, part) in parts.items():
        for (figure, (_, _, _, unit)), value in zip(law.figures.items(), part.values, strict=True):
            spread = round(max(part.median, 0.02), 3)
            said = f'value = {value * unit:.4g}, grade = "fitted", source = "{name}"'
            lines.append(f"{figure} = {{ {said}, spread = {spread} }}")
    what = {"attention": "key heads", "experts": "shapes of a layer", "all_reduce": "group sizes"}
    for name, (_, part) in parts.items():
        text = (
            f"fit of simulator/reinforcement/decode_kernels.py by workshop/fits/decode/fit.py to"
            f" {part.rows} calls of vLLM {release}, ai-dynamo/aiconfigurator@095f58a5 (Apache-2.0);"
            f" {what[name]} left out one after the other: median {part.median:.1%},"
            f" p90 {part.p90:.0%}"
        )
        lines += ["", f"[sources.{name}]", f'text = "{text}"', 'date = "2026-11-26"']
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
