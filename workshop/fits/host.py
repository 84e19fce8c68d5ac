"""Fitting what a host needs for each thing that it enqueues, on tests whose host is the bottleneck.

Megatron-LM's own tests train models of 512 wide, so that their steps are the host's time. A block
is counted as the product counts it (cost/blocks/launches.py); a step is its blocks on the longest
path, what sends between stages wait for, and what comes once a step. One vector of unit costs holds
for all hosts, each of which is slower or faster as a whole.

``python -m workshop.fits.host`` prints figures, and errors with each test left out.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator import catalogue
from simulator.arrays import Floats
from simulator.calibration.least_squares import Prior, fit_times
from simulator.cost.blocks.launches import launches_s
from simulator.cost.operators.block_operators import block
from simulator.cost.operators.operations import Ranks
from simulator.files import Figure
from simulator.layout.layouts import DISPATCHERS, Layouts
from simulator.layout.placement import place
from simulator.software.profile import Software, load_software
from simulator.workload.architecture import MLP, Attention, Block, MoE
from simulator.workload.recipe import Recipe

UNITS = {
    "seconds_per_kernel": Prior(value=20e-6, width=0.7, low=1e-6, high=1e-3),
    "seconds_per_module": Prior(value=60e-6, width=0.7, low=1e-6, high=1e-3),
    "seconds_per_collective": Prior(value=60e-6, width=0.7, low=1e-6, high=1e-3),
}
"""Unit costs of the profile that are fitted; priors: torch's own launches."""

TIMED = {"seconds_per_expert_product": 8.7e-6}
"""Timed by SimuMax with 80 and 160 experts on a rank, where these tests have four at most."""

BESIDE = {
    "replay_s": Prior(value=190e-6, width=0.4, low=1e-5, high=1e-2),
    "exchange_s": Prior(value=1e-3, width=1.0, low=1e-5, high=1e-1),
    "send_s": Prior(value=0.4e-3, width=1.0, low=1e-6, high=1e-1),
    "step_s": Prior(value=8e-3, width=1.0, low=1e-4, high=1.0),
    "step_of_experts_s": Prior(value=20e-3, width=1.0, low=1e-4, high=1.0),
}
"""Of these tests alone: a checkpointed block, an all-to-all's wait, a stage's send, once a step."""

REFERENCE = "x86-fast"
"""The host whose factor is one."""

_FACTOR = Prior(value=1.2, width=0.3, low=0.3, high=5.0)
_WIDTH, _LENGTH, _HEADS, _SEQUENCES = 512, 1024, 8, 4
"""Sizes of every test: hidden width, tokens, heads, sequences of a micro-batch."""
_GPUS = 8
_PLAIN = "megatron-lm-plain"


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSteps:
    """Rows of validation/host/megatron_steps.csv: what each does of each unit in a step."""

    case: NDArray[Any]
    host: NDArray[Any]
    work: dict[str, Floats]
    """Times each unit cost, and each figure of BESIDE, counts in a step."""
    seconds: Floats

    def take(self, which: NDArray[Any]) -> HostSteps:
        """Some of the rows."""
        return HostSteps(
            case=self.case[which],
            host=self.host[which],
            work={name: count[which] for name, count in self.work.items()},
            seconds=self.seconds[which],
        )


def read_steps() -> HostSteps:
    """Read the table, and count the work of its rows."""
    path = catalogue.folder("validation") / "host" / "megatron_steps.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    work = {tuple(sorted(_shape(row).items())): _work(row) for row in rows}
    counted = [work[tuple(sorted(_shape(row).items()))] for row in rows]
    return HostSteps(
        case=np.array([row["case"] for row in rows]),
        host=np.array([row["host"] for row in rows]),
        work={name: np.array([units[name] for units in counted]) for name in counted[0]},
        seconds=np.array([float(row["step_s"]) for row in rows]),
    )


def _shape(row: Mapping[str, str]) -> dict[str, str]:
    """What the work of a row depends on."""
    named = ("commit", "date", "case", "file", "host", "step_s")
    return {name: value for name, value in row.items() if name not in named}


def _work(row: Mapping[str, str]) -> dict[str, float]:
    """How often a step does what each figure prices."""
    layers, pp, vpp = (int(row[name]) for name in ("layers", "pp", "vpp"))
    passes = float(int(row["micro_batches"]) * vpp + pp - 1)
    blocks = passes * layers / (pp * vpp)
    routed, full = float(row["dispatcher"] != "none"), float(row["recompute"] == "full")
    counted = {name: blocks * _block_units(row, name, full=bool(full)) for name in (*UNITS, *TIMED)}
    exchanges = float(row["dispatcher"] == "alltoall" and int(row["ep"]) > 1)
    beside = {
        "replay_s": blocks * full,
        "exchange_s": blocks * exchanges,
        "send_s": passes * float(pp > 1),
        "step_s": 1.0,
        "step_of_experts_s": routed,
    }
    return counted | beside


def _block_units(row: Mapping[str, str], unit: str, *, full: bool) -> float:
    """Times that one block does what `unit` prices, both ways; a recomputed one forward twice."""
    software = _software(row, unit)
    recipe = Recipe(sequence_length=_LENGTH, global_batch=_GPUS * _SEQUENCES, precision="bf16")
    ranks = _ranks(row)
    position = "rope" if row["rotary"] != "none" else "learned"
    ops = block(_block(row), _WIDTH, ranks, recipe, software.kernels, position)
    forward, backward = (
        float(np.ravel(way)[0]) for way in launches_s(software, ops, ranks, recipe)
    )
    return (2.0 if full else 1.0) * forward + backward


def _software(row: Mapping[str, str], unit: str) -> Software:
    """Megatron-LM as a row runs it, where nothing but `unit` costs anything, and that a second."""
    software = load_software(_PLAIN)
    ones = {name: Figure(float(name == unit)) for name in (*UNITS, *TIMED)}
    host = replace(
        software.host,
        **ones,  # type: ignore[arg-type]
        seconds_per_exchange={},
        deterministic=row["deterministic"] == "1",
        launches={
            name: launches
            for name, launches in software.host.launches.items()
            if name != "auxiliary_loss" or row["auxiliary_loss"] == "1"
        },
    )
    fused = [name for name in software.kernels.fused if name != "rope" or row["rotary"] == "fused"]
    unfused = row["unfused"] == "1" or row["local"] == "1"
    kernels = replace(
        software.kernels, fused=tuple(fused), attention="unfused" if unfused else "flash"
    )
    grouped = replace(software.allocator, grouped_products=row["grouped"] == "1")
    return replace(software, host=host, kernels=kernels, allocator=grouped)


def _ranks(row: Mapping[str, str]) -> Ranks:
    """What a rank of a row sees."""
    tp, pp, cp, ep = (int(row[name]) for name in ("tp", "pp", "cp", "ep"))
    dispatcher = row["dispatcher"] if row["dispatcher"] != "none" else DISPATCHERS[0]
    layouts = Layouts.of(
        global_batch=_GPUS * _SEQUENCES,
        micro_batch=_SEQUENCES,
        dp=_GPUS // (tp * pp * cp),
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        etp=int(row["etp"]),
        sequence_parallel=int(row["sequence_parallel"]),
        dispatcher=dispatcher,
    )
    return Ranks.of_each(layouts, place(layouts, _GPUS))


def _block(row: Mapping[str, str]) -> Block:
    """The block of a row."""
    biased, gated = row["bias"] == "1", row["gated"] == "1"
    if row["latent"] == "1":
        heads = Attention(
            heads=_HEADS,
            kv_heads=_HEADS,
            rope_head_dim=8,
            head_dim=24,
            value_head_dim=16,
            q_lora_rank=192,
            kv_lora_rank=64,
        )
    else:
        size = _WIDTH // _HEADS
        heads = Attention(
            heads=_HEADS, kv_heads=_HEADS, head_dim=size, qkv_bias=biased, output_bias=biased
        )
    if row["dispatcher"] == "none":
        mlp: MLP | MoE = MLP(ffn_hidden=4 * _WIDTH, gated=gated, bias=biased)
    else:
        mlp = MoE(
            experts=int(row["experts"]) * int(row["ep"]),
            top_k=2,
            gated=gated,
            ffn_hidden=4 * _WIDTH,
            shared_ffn_hidden=_WIDTH if row["shared_experts"] == "1" else 0,
        )
    return Block(attention=heads, norm="layer", norms=2, mlp=mlp)


def fit_host(steps: HostSteps) -> dict[str, float]:
    """Fit unit costs, what stands beside them, and the factor of every host but REFERENCE."""
    hosts = [name for name in np.unique(steps.host) if name != REFERENCE]
    priors = UNITS | BESIDE | dict.fromkeys(map(str, hosts), _FACTOR)
    return fit_times(
        priors, lambda values: predict(values, steps), steps.seconds, prior_weight=0.05
    )


def predict(values: Mapping[str, float], steps: HostSteps) -> Floats:
    """Seconds of every row."""
    figures = {**TIMED, **values}
    total = sum(figures[name] * count for name, count in steps.work.items())
    return np.asarray(total * np.array([values.get(name, 1.0) for name in steps.host]))


def left_out(steps: HostSteps) -> Floats:
    """log(predicted / measured) of every row with all rows of its test left out of the fit."""
    errors = np.empty(len(steps.seconds))
    for case in np.unique(steps.case):
        out = steps.case == case
        values = fit_host(steps.take(~out))
        errors[out] = np.log(predict(values, steps.take(out)) / steps.seconds[out])
    return errors


def report(steps: HostSteps) -> list[str]:
    """Word the fit: figures, errors in sample and with each test left out."""
    values = fit_host(steps)
    lines = [f"{name:<28} {value:.4g}" for name, value in values.items()]
    inside, outside = np.log(predict(values, steps) / steps.seconds), left_out(steps)
    for name in (*np.unique(steps.host), "all"):
        mask = (steps.host == name) | (name == "all")
        some = [100 * np.expm1(errors[mask]) for errors in (inside, outside)]
        lines.append(
            f"{name:<14} {mask.sum():>5} rows: {np.abs(some[0]).mean():.1f} %, its test left out"
            f" {np.abs(some[1]).mean():.1f} % (bias {some[1].mean():+.1f} %)"
        )
    return lines


if __name__ == "__main__":
    print(*report(read_steps()), sep="\n")
