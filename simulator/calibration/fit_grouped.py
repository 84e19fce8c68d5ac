"""Fitting the layer of experts to timed calls: one generation and type at a time.

A device has some forty evenly routed calls of a type, too few for eleven parameters; devices of a
generation run the same kernels, and share them. What the devices differ in (peak, memory, units,
falling clock) their profiles say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from simulator import catalogue
from simulator.calibration import Floats, Prior, Rows, fit_values, pick
from simulator.calibration.gemm_series import shipped_table
from simulator.calibration.left_out import LeftOut, left_out
from simulator.calibration.profile_text import FigureText, Section
from simulator.calibration.typical_gemm import stacked_memory
from simulator.cost.grouped import expert_layer_s
from simulator.cost.kernels import gemm_rates
from simulator.hardware.accelerator import Accelerator
from simulator.hardware.cluster import load_accelerator
from simulator.measured.microbenchmarks import Sieve, Table, groups, load_words, read_table

__all__ = [
    "EVEN",
    "GROUPED_PRIORS",
    "ExpertSeries",
    "Pool",
    "expert_pools",
    "fit_pool",
    "grouped_lines",
    "grouped_sections",
]

GROUPED_PRIORS = {
    "peak_fraction": Prior(value=0.85, width=0.15, low=0.2, high=1.0),
    "memory_fraction": Prior(value=0.8, width=0.15, low=0.3, high=1.05),
    "prologue_k": Prior(value=250.0, width=0.6, low=20.0, high=3000.0),
    "wave_quantisation": Prior(value=0.5, width=0.4, low=0.0, high=1.0, linear=True),
    "small_tile_penalty": Prior(value=0.2, width=0.4, low=0.0, high=3.0, linear=True),
    "l2_refetch": Prior(value=0.2, width=0.6, low=0.0, high=5.0, linear=True),
    "launch_s": Prior(value=20e-6, width=0.6, low=1e-6, high=200e-6),
    "per_expert_s": Prior(value=20e-9, width=1.0, low=0.5e-9, high=1e-6),
    "routed_s": Prior(value=0.2e-9, width=1.0, low=0.005e-9, high=10e-9),
    "token_passes": Prior(value=1.0, width=0.6, low=0.05, high=30.0),
    "row_passes": Prior(value=1.5, width=0.6, low=0.1, high=20.0),
}

_TYPES = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_blockwise", "nvfp4": "nvfp4"}
_IMPLEMENTATIONS = ("moe_torch_flow_cutlass", "moe_torch_flow_nongated", "deepgemm")
"""Kernels of TRT-LLM that a large batch runs. Left out: the one for few tokens (min_latency); the
Triton kernel on RTX PRO 6000, whose time does not fall with the number of ranks; vLLM on A100 and
B60, of which no call is evenly routed."""
_NOTE = re.compile(r"tp=([1-9]\d{0,5}) ep=([1-9]\d{0,5}) routing=(?:balanced|power_law_([\d.]+))$")
_SIZES = ("tokens", "topk", "experts", "hidden", "inter")
_LEAST_ROWS = 20
_FOLDS = 5
_SEED = 20261121
_DRAWS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSeries:
    """Timed expert layers of one device and type."""

    accelerator: Accelerator
    dtype: str
    rows: Rows
    """Columns tokens (for each expert), experts (of the rank), hidden, ffn, gated, all_tokens,
    top_k, ranks, skew (exponent of the power law by which tokens are routed, 0: evenly), seconds.
    """

    @property
    def even(self) -> NDArray[np.bool_]:
        """Evenly routed rows with a token or more to each expert."""
        return np.asarray((self.rows["skew"] == 0.0) & (self.rows["tokens"] >= 1.0))


Pool = tuple[ExpertSeries, ...]
"""Series of one generation and type that share their parameters."""


def expert_pools(
    table: Table | None = None, *, accelerators: Mapping[str, str] | None = None
) -> list[Pool]:
    """Read the timed expert layers of every device that has a profile, pooled by generation."""
    table = table or read_table(shipped_table(), "kernels")
    words = load_words().accelerators if accelerators is None else accelerators
    known = set(catalogue.names("accelerators"))
    sieve, text = Sieve(table), table.text
    timed = sieve.kept & (text("kernel") == "moe_grouped_ffn")
    timed &= np.isin(text("impl"), _IMPLEMENTATIONS) & np.isin(text("dtype"), list(_TYPES))
    pools: dict[tuple[str, bool, str], list[ExpertSeries]] = {}
    for (gpu, word), at in groups(timed, text("gpu"), text("dtype")):
        device, dtype = words.get(gpu, gpu), _TYPES[word]
        if device not in known:
            continue
        accelerator = load_accelerator(device)
        if dtype not in accelerator.matrix_flop_per_s:
            continue
        series = ExpertSeries(accelerator=accelerator, dtype=dtype, rows=_rows(sieve, at))
        key = accelerator.generation, stacked_memory(accelerator), dtype
        pools.setdefault(key, []).append(series)
    by_name = [tuple(sorted(pool, key=lambda one: one.accelerator.name)) for pool in pools.values()]
    enough = [pool for pool in by_name if sum(one.even.sum() for one in pool) >= _LEAST_ROWS]
    return sorted(enough, key=lambda pool: (pool[0].accelerator.generation, pool[0].dtype))


def _rows(sieve: Sieve, at: NDArray[np.intp]) -> Rows:
    mask = sieve.table.at(at)
    tokens, top_k, experts, hidden, inter = (sieve.positive(name, mask)[mask] for name in _SIZES)
    seconds = sieve.positive("time_us", mask)[mask] * 1e-6
    notes = [_NOTE.match(note) for note in sieve.table.text("note")[mask].tolist()]
    split = np.array([[float(n[i] or 0) if n else 1.0 for i in (1, 2, 3)] for n in notes]).T
    plain = np.char.find(sieve.table.text("impl")[mask], "nongated") >= 0
    return {
        "tokens": tokens * top_k / experts, "experts": experts / split[1], "hidden": hidden,
        "ffn": inter / split[0], "gated": np.where(plain, 0.0, 1.0), "all_tokens": tokens,
        "top_k": top_k, "ranks": split[1], "skew": split[2], "seconds": seconds,
    }  # fmt: skip


# --- the model ---------------------------------------------------------------------------


def _predict(values: Mapping[str, float], one: ExpertSeries, rows: Rows) -> Floats:
    types = one.accelerator.gemm["cublas"]
    kernel = types.get(one.dtype, types["bf16"])
    load = np.array([
        busiest_load(alpha, int(experts * ranks), int(ranks))
        for alpha, experts, ranks in zip(rows["skew"], rows["experts"], rows["ranks"], strict=True)
    ])  # fmt: skip
    names = ("experts", "hidden", "ffn", "gated", "all_tokens", "top_k")
    return expert_layer_s(
        tokens=rows["tokens"] * load, rates=gemm_rates(one.accelerator, one.dtype), figures=values,
        sustained_fraction=float(kernel.sustained_fraction), **{name: rows[name] for name in names},
    )  # fmt: skip


@lru_cache(maxsize=4096)
def busiest_load(alpha: float, experts: int, ranks: int) -> float:
    """Tokens of the busiest rank over an even share, where experts draw theirs from a power law.

    Densities fall as ``x^-alpha`` between 1 and a thousand; experts lie on ranks as drawn. The mean
    of 200 draws with a fixed seed. `alpha` zero: an even share.
    """
    if alpha == 0.0 or ranks == 1 or experts % ranks:
        return 1.0
    drawn = np.random.default_rng(_SEED).random((_DRAWS, experts))
    low, high = 1.0, 1000.0 ** (1.0 - alpha)
    wanted = ((high - low) * drawn + low) ** (1.0 / (1.0 - alpha))
    share = wanted / wanted.sum(axis=1, keepdims=True)
    by_rank = share.reshape(_DRAWS, ranks, -1).sum(axis=2).max(axis=1)
    return float(by_rank.mean() * ranks)


def fit_pool(pool: Pool, used: Sequence[NDArray[np.bool_]] | None = None) -> dict[str, float]:
    """Fit the evenly routed rows of a pool, or those of them that are `used`."""
    used = [one.even for one in pool] if used is None else used
    chosen = [pick(one.rows, mask) for one, mask in zip(pool, used, strict=True)]

    def predict(values: Mapping[str, float], _: Rows) -> Floats:
        return np.concatenate([
            _predict(values, one, rows) for one, rows in zip(pool, chosen, strict=True)
        ])  # fmt: skip

    seconds = np.concatenate([rows["seconds"] for rows in chosen])
    return fit_values(GROUPED_PRIORS, predict, {"seconds": seconds})


# --- sections ----------------------------------------------------------------------------


def grouped_sections(pools: Sequence[Pool] | None = None) -> dict[str, list[Section]]:
    """Return what the tables ``[grouped.cublas.TYPE]`` of each profile should say, by profile."""
    pools = expert_pools() if pools is None else pools
    found: dict[str, list[Section]] = {}
    for pool in pools:
        values = fit_pool(pool)
        times = _unseen(pool)
        unseen = [
            (one, seconds[one.even], one.rows["seconds"][one.even])
            for one, seconds in zip(pool, times, strict=True)
        ]
        dtype = pool[0].dtype
        score = _line(EVEN, "all", dtype, unseen)
        figures = {
            name: FigureText(value=value, grade="fitted",
                             spread=score.spread if name == "peak_fraction" else None)
            for name, value in values.items()
        }  # fmt: skip
        names = ", ".join(one.accelerator.name for one in pool)
        text = (
            f"fit of expert_layer_s (cost/grouped.py) by calibration/fit_grouped.py to "
            f"{score.rows} evenly routed {dtype} layers of {names}, TRT-LLM tables of "
            f"ai-dynamo/aiconfigurator@095f58a5. Shapes left out on all of them at once: median "
            f"{100 * score.median:.1f} %, p90 {100 * score.p90:.0f} %"
        )
        for one in pool:
            found.setdefault(one.accelerator.name, []).append(
                Section(path=("grouped", "cublas", dtype), figures=figures, text=text,
                        source=f"grouped_{dtype}", date="2026-11-21")
            )  # fmt: skip
    return found


# --- lines of the table ------------------------------------------------------------------


def grouped_lines(pools: Sequence[Pool] | None = None) -> list[LeftOut]:
    """Score expert layers whose shape was left out on all devices, and those routed unevenly."""
    pools = expert_pools() if pools is None else pools
    unseen, uneven = [], []
    for pool in pools:
        predicted = _unseen(pool)
        for one, seconds in zip(pool, predicted, strict=True):
            unseen.append((one, seconds[one.even], one.rows["seconds"][one.even]))
        values = fit_pool(pool)
        for one in pool:
            skewed = (one.rows["skew"] > 0.0) & (one.rows["tokens"] >= 1.0)
            rows = pick(one.rows, skewed)
            uneven.append((one, _predict(values, one, rows), rows["seconds"]))
    lines = []
    for kernel, parts in ((EVEN, unseen), (UNEVEN, uneven)):
        lines.append(_line(kernel, "all", "all", parts))
        for dtype in sorted({one.dtype for one, *_ in parts}):
            some = [part for part in parts if part[0].dtype == dtype]
            lines.append(_line(kernel, "all", dtype, some))
        for part in parts:
            if len(part[1]):
                lines.append(_line(kernel, part[0].accelerator.name, part[0].dtype, [part]))
    return lines


EVEN = "grouped expert layer, even load"
UNEVEN = "grouped expert layer, power-law routing"


def _line(
    kernel: str, device: str, dtype: str, parts: Sequence[tuple[ExpertSeries, Floats, Floats]]
) -> LeftOut:
    predicted, measured = (np.concatenate([part[i] for part in parts]) for i in (1, 2))
    return left_out(predicted, measured, kernel=kernel, device=device, library="cublas",
                    dtype=dtype, method="formula")  # fmt: skip


def _unseen(pool: Pool) -> list[Floats]:
    """Seconds of every even row from a fit without its shape on any device of the pool."""
    names = ("tokens", "experts", "hidden", "ffn", "all_tokens")
    shapes = [np.stack([one.rows[name] for name in names], axis=1) for one in pool]
    _, which = np.unique(np.concatenate(shapes), axis=0, return_inverse=True)
    dealt = np.random.default_rng(_SEED).permutation(int(which.max()) + 1) % _FOLDS
    folds = np.split(dealt[which.ravel()], np.cumsum([len(shape) for shape in shapes])[:-1])
    found = [np.full(len(one.rows["seconds"]), np.nan) for one in pool]
    for number in range(_FOLDS):
        used = [one.even & (fold != number) for one, fold in zip(pool, folds, strict=True)]
        values = fit_pool(pool, used)
        for one, fold, seconds in zip(pool, folds, found, strict=True):
            out = one.even & (fold == number)
            seconds[out] = _predict(values, one, pick(one.rows, out))
    return found
