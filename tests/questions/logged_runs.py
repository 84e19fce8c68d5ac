"""Logs as Megatron-LM prints them, of runs with one cause put into them by a roofline of its own.

Nothing of a diagnosis is in the truth but the predicted step of the run as it should be, which is
off by a log-normal error: parts of a step are counted by hand, causes act on these, and amounts
are drawn evenly over the logarithm of a range, whatever `causes.toml` holds for usual. Noise is
correlated and has heavy tails. Some logs have lines of NCCL, arguments, or timers of level 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulator.planner.prediction import Prediction, predict
from simulator.questions.diagnose.causes import can_have, causes, with_cause
from simulator.scenario import make_scenario
from simulator.scoring.memory_reading import memory_of_kind_gib


@dataclass(frozen=True)
class Run:
    """A run, and what a roofline by hand needs of it."""

    model: str
    cluster: str
    gpus: int
    batch: int
    sequence: int
    layout: dict[str, Any]
    parameters: float
    active: float
    layers: int
    hidden: int
    peak: float
    """FLOP/s, dense bf16."""
    memory: float
    """B/s."""
    adapter: float
    """B/s a GPU."""
    routed: int = 0


RUNS = {
    "7b, a100": Run("llama-2-7b", "dgx-a100", 32, 64, 4096, {"tp": 1, "pp": 1},
                    6.7e9, 6.7e9, 32, 4096, 312e12, 2.0e12, 25e9),
    "70b, pipeline": Run("llama-3.1-70b", "dgx-h100", 64, 128, 4096, {"tp": 4, "pp": 4},
                         70.6e9, 70.6e9, 80, 8192, 989e12, 3.35e12, 50e9),
    "experts": Run("mixtral-8x7b", "dgx-h100", 32, 128, 4096, {"tp": 2, "pp": 1, "ep": 8},
                   46.7e9, 12.9e9, 32, 4096, 989e12, 3.35e12, 50e9, 2),
    "32b": Run("qwen2.5-32b", "hgx-h200", 32, 64, 8192, {"tp": 4, "pp": 1},
               32.8e9, 32.8e9, 64, 5120, 989e12, 4.8e12, 50e9),
    "3b, long": Run("llama-3.2-3b", "dgx-h100", 16, 32, 8192, {"tp": 1, "pp": 1},
                    3.2e9, 3.2e9, 28, 3072, 989e12, 3.35e12, 50e9),
    "8b, one server": Run("llama-3.1-8b", "dgx-h100", 8, 32, 4096, {"tp": 2, "pp": 1},
                          8.0e9, 8.0e9, 32, 4096, 989e12, 3.35e12, 50e9),
    "1b, short": Run("llama-3.2-1b", "dgx-h100", 64, 128, 1024, {"tp": 1, "pp": 1},
                     1.2e9, 1.2e9, 16, 2048, 989e12, 3.35e12, 50e9),
    "8b, little": Run("llama-3.1-8b", "dgx-a100", 64, 64, 2048, {"tp": 2, "pp": 1},
                      8.0e9, 8.0e9, 32, 4096, 312e12, 2.0e12, 25e9),
    "13b, nearly full": Run("llama-2-13b", "dgx-a100", 32, 64, 4096,
                            {"tp": 2, "pp": 1, "micro_batch": 2},
                            13.0e9, 13.0e9, 40, 5120, 312e12, 2.0e12, 25e9),
}  # fmt: skip

RANGES = {
    "adapter_rate": (0.1, 0.75), "socket_transport": (0.01, 0.12), "no_gpudirect": (0.25, 0.6),
    "shared_network": (0.2, 0.7), "slow_server": (1.12, 1.8), "host_bound": (1.6, 5.0),
    "expert_imbalance": (1.25, 3.0), "power_cap": (0.55, 0.88),
}  # fmt: skip
PASSES = ("gemm", "attention", "memory", "tp", "ep", "host")


@dataclass(frozen=True)
class Logged:
    """A log of a run, and what was put into it."""

    run: str
    cause: str
    prediction: Prediction
    path: Path
    beside: str
    """What the log has beside step times and memory: nccl, arguments, timers."""


def parts_of(run: Run, cause: str = "", amount: float = 1.0) -> dict[str, float]:
    """Seconds by part of a step, by hand."""
    tp, pp, ep = (run.layout.get(name, 1) for name in ("tp", "pp", "ep"))
    dp = run.gpus // (tp * pp)
    tokens = run.batch * run.sequence / run.gpus
    passes = 4.0 if cause == "recomputation" else 3.0
    matrix = amount if cause == "power_cap" else 1.0
    fullest = amount if cause == "expert_imbalance" else 1.0
    experts = 0.85 if run.routed else 0.0
    network = 0.75 * run.adapter
    if cause in ("adapter_rate", "socket_transport", "no_gpudirect", "shared_network"):
        network *= amount
    gemm = passes * 2.0 * run.active * tokens / (0.68 * matrix * run.peak)
    gemm *= 1.0 - experts + experts * fullest
    scores = passes * 2.0 * run.layers * run.hidden * run.sequence * tokens
    attention = scores / (0.4 * matrix * run.peak)
    memory = passes * 34.0 * tokens * run.layers * run.hidden / (0.8 * run.memory)
    if cause == "attention_fallback":
        heads = run.layers * run.hidden / 128.0
        memory += passes * heads * tokens * run.sequence * 6.0 / (0.8 * run.memory)
    spans = run.gpus > 8
    width = 4.0 if cause == "fp32_gradients" else 2.0
    held = run.parameters * (1.0 - experts + experts / ep) / (tp * pp)
    ways = max(8 // (tp * ep), 1)  # adapters that a ring through a server uses at once
    data = held * (width + 2.0) / (ways * network if spans else 150e9) * (dp - 1) / dp
    compute = gemm + attention + memory
    if cause != "no_overlap":
        last = compute / max(run.batch // dp, 1)  # gathers and reductions of the last micro-batch
        data = max(data - 0.7 * last, 0.1 * data)
    bytes_ = 2.0 * tokens * tp * run.hidden
    exposed = 1.0 if cause == "no_overlap" else 0.8
    tensor = exposed * passes * 4.0 / 3.0 * run.layers * bytes_ * (tp - 1) / tp / 250e9
    routed = 2.0 * passes * run.layers * tokens * run.routed * run.hidden * 2.0 * fullest
    outside = max(0.0, 1.0 - 8.0 / (ep * tp))
    exchange = routed * (outside / network + (1.0 - outside) / 250e9) / 2.0
    kernels = passes * 60.0 * run.layers / pp * (run.batch // dp)
    slow_host = amount if cause == "host_bound" else 1.0
    host = max(0.0, kernels * 8e-6 * slow_host - compute - tensor - exchange) + 0.01 * compute
    if cause == "slow_server":
        data += (amount - 1.0) * compute
    bubble = (compute + tensor) * (pp - 1) / (run.batch // dp)
    return {
        "gemm": gemm, "attention": attention, "memory": memory, "tp": tensor, "ep": exchange,
        "host": host, "data": data, "pipeline": bubble,
    }  # fmt: skip


def noise(count: int, rng: np.random.Generator) -> np.ndarray:
    """Factors of step times: correlated, heavy tails, 0.4 to 2 %."""
    draws, memory = rng.standard_t(5, count) / 1.29, float(rng.uniform(0.0, 0.8))
    for at in range(1, count):
        draws[at] = memory * draws[at - 1] + math.sqrt(1.0 - memory**2) * draws[at]
    return np.exp(0.004 * 5.0 ** rng.random() * draws)


def course(run: Run, cause: str, amount: float, count: int, rng: np.random.Generator) -> Any:
    """Step times over the one of the run as it should be, and the seconds of loading in them."""
    usual = sum(parts_of(run).values())
    steps, late = noise(count, rng), np.zeros(count)
    ratio = sum(parts_of(run, cause, amount).values()) / usual
    if cause in ("input_pipeline", "allocator_retries"):
        often = 1.0 if cause == "input_pipeline" and rng.random() < 0.2 else rng.uniform(0.05, 0.25)
        late = (rng.random(count) < often) * rng.gamma(2.0, 0.25 / often**0.5, count)
        steps = steps + late
    elif cause == "shared_network" and rng.random() < 0.85:
        on, at = np.zeros(count, bool), 0
        while at < count:
            stay, gone = (int(n) + 5 for n in rng.exponential(18.0, 2))
            on[at : at + stay] = True
            at += stay + gone
        steps = steps * np.where(on, ratio, 1.0)
    elif cause == "expert_imbalance" and rng.random() < 0.5:
        falls = 1.0 + (amount - 1.0) * np.exp(-np.arange(count) / (0.6 * count))
        ratios = [sum(parts_of(run, cause, float(one)).values()) / usual for one in falls]
        steps = steps * np.array(ratios)
    else:
        steps = steps * ratio
    return steps, late if cause == "input_pipeline" else np.zeros(count)


def logged(name: str, cause: str, seed: int, folder: Path, made: dict[str, Any]) -> Logged | None:
    """Write the log of a run with a cause, or "" for none; None where it hardly takes longer."""
    run, rng = RUNS[name], np.random.default_rng([seed, *f"{name}/{cause}".encode()])
    if name not in made:
        sections = {"model": {"name": run.model}, "layout": {"micro_batch": 1, **run.layout}}
        training = {"sequence_length": run.sequence, "global_batch": run.batch}
        cluster = {"name": run.cluster, "gpus": run.gpus}
        sharing = {"sharding": "zero1", **sections["layout"]}
        document = {**sections, "training": training, "cluster": cluster, "layout": sharing}
        made[name] = predict(make_scenario(document))
    prediction = made[name]
    low, high = RANGES.get(cause, (1.0, 1.0))
    amount = low * (high / low) ** rng.random()
    if cause and not can_have(causes()[cause], prediction):
        return None
    count = int(rng.integers(60, 300))
    steps, late = course(run, cause, amount, count, rng)
    if cause and steps.mean() < 1.12:
        return None
    changed = prediction
    if cause in ("recomputation", "fp32_gradients", "attention_fallback"):
        switched = with_cause(prediction, causes()[cause], 1.0)
        if switched is None:
            return None
        changed = switched
    peak = memory_of_kind_gib(changed.estimate, 0, "allocated") * math.exp(0.04 * rng.normal())
    if peak * 2**30 > prediction.estimate.usable_bytes:
        return None
    base_s = prediction.step_time_s * math.exp(0.07 * rng.normal())
    beside = {
        word: rng.random() < share
        for word, share in (("nccl", 0.4), ("arguments", 0.5), ("timers", 0.25))
    }
    spread = {"slow_server": amount}.get(cause, 1.0) * math.exp(abs(0.03 * rng.normal()))
    parts = parts_of(run, cause, amount)
    usual = sum(parts_of(run).values())
    passes = sum(parts[part] for part in PASSES) / usual
    lines = [*_head(cause, beside, rng)]
    for at, (step, loading) in enumerate(zip(steps, late, strict=True), 1):
        slow = 4.0 if at == 1 else 1.0
        lines.append(
            f" iteration {at:8d}/ 5000 | consumed samples: {at * run.batch:12d} | elapsed time per"
            f" iteration (ms): {1e3 * slow * base_s * step:.1f} | learning rate: 1.0E-05 | global"
            f" batch size: {run.batch:5d} | lm loss: 6.1E+00 | grad norm: 1.1 |"
        )
        if at == 2:
            mib = 1024.0 * peak
            lines.append(f"[Rank 0] (after 2 iterations) memory (MB) | max allocated: {mib:.1f} |")
        if beside["timers"]:
            most = 1e3 * base_s * (passes * (spread if cause == "slow_server" else 1.0) + loading)
            least = 1e3 * base_s * passes / (1.0 if cause == "slow_server" else spread)
            wait = 1e3 * base_s * loading
            lines += [
                "(min, max) time across ranks (ms):",
                f"    forward-compute ........: ({least / 3:.2f}, {most / 3 + wait * 2 / 3:.2f})",
                f"    backward-compute .......: ({least / 1.5:.2f}, {(most - wait) / 1.5:.2f})",
                f"    batch-generator ........: ({wait / 2:.2f}, {wait + 3.0:.2f})",
            ]
    path = folder / f"{seed}-{list(RUNS).index(name)}-{cause or 'none'}.log"
    path.write_text("\n".join(lines) + "\n")
    said = "+".join(word for word, there in beside.items() if there)
    return Logged(run=name, cause=cause, prediction=prediction, path=path, beside=said)


def _head(cause: str, beside: dict[str, bool], rng: np.random.Generator) -> Iterator[str]:
    """What a log says before its first step: NCCL of its way, the trainer of its arguments."""
    if beside["nccl"]:
        way = {"no_gpudirect": "NET/IB/3", "socket_transport": "NET/Socket/0"}
        yield "n1:1:2 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [send] via " + way.get(
            cause, "NET/IB/3/GDRDMA"
        )
    if beside["arguments"] and cause not in ("recomputation", "fp32_gradients"):
        yield f"  overlap_grad_reduce ............................. {cause != 'no_overlap'}"
        yield "  recompute_granularity ........................... None"
    if cause == "allocator_retries" and rng.random() < 0.3:
        yield "14 CUDA memory allocation retries."
