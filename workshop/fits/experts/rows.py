"""Timed layers of experts, pooled by the generation of the device; calls that others contradict.

A device has some forty evenly routed calls of a type, too few for the parameters of a layer;
devices of a generation run the same kernels.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from simulator import catalogue
from simulator.calibration.least_squares import Rows
from simulator.cost.kernels.gemm import device_rates
from simulator.hardware.accelerator import Accelerator
from simulator.hardware.cluster import load_accelerator
from simulator.measured.microbenchmarks import Sieve, Table, groups, load_words, read_table
from workshop.fits.fitting.pooled import Pool
from workshop.fits.gemm.series import shipped_table
from workshop.fits.gemm.typical import stacked_memory

_TYPES = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_blockwise", "nvfp4": "nvfp4"}
_IMPLEMENTATIONS = ("moe_torch_flow_cutlass", "moe_torch_flow_nongated", "deepgemm")
"""Kernels of TRT-LLM that a large batch runs. Left out: the one for few tokens (min_latency); the
Triton kernel on RTX PRO 6000, whose time does not fall with the number of ranks; vLLM on A100 and
B60, of which no call is evenly routed."""
_NOTE = re.compile(r"tp=([1-9]\d{0,5}) ep=([1-9]\d{0,5}) routing=(?:balanced|power_law_([\d.]+))$")
_SIZES = ("tokens", "topk", "experts", "hidden", "inter")
_LEAST_ROWS = 20
"""Evenly routed calls of one type that a generation needs."""
_SEED = 20261121
_DRAWS = 200

SHAPE = ("tokens", "experts", "hidden", "ffn", "gated", "all_tokens", "top_k")
"""Sizes of a layer; a call that is larger in all of them cannot take less time."""

RATES = ("operand_bytes", "peak_flop_per_s", "bandwidth_bytes_per_s", "l2_bytes", "compute_units")
"""Columns of a pool that its device and type settle."""

CLOCK = ("sustained_fraction", "clock_exponent")
"""Further ones, of plain products by cuBLAS."""

_CONTRADICTED = 1.25
"""Time of a call over that of one at least as large, from which it tells of the timing loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertPool:
    """Timed expert layers of one generation, of all types."""

    generation: str
    accelerators: Mapping[str, Accelerator]
    calls: Pool
    """Rows by device, with the type as the variant. Columns: ``SHAPE`` (tokens for each expert,
    experts of the rank), all_experts, ``RATES``, ``CLOCK``, seconds, and skew (exponent of the
    power law by which tokens are routed, 0: evenly).
    """

    @property
    def even(self) -> NDArray[np.bool_]:
        """Evenly routed rows with a token or more to each expert."""
        rows = self.calls.rows
        return np.asarray((rows["skew"] == 0.0) & (rows["tokens"] >= 1.0))


def expert_pools(
    table: Table | None = None, *, accelerators: Mapping[str, str] | None = None
) -> list[ExpertPool]:
    """Read the timed expert layers of every device that has a profile, pooled by generation."""
    table = table or read_table(shipped_table(), "kernels")
    words = load_words().accelerators if accelerators is None else accelerators
    known = set(catalogue.names("accelerators"))
    sieve, text = Sieve(table), table.text
    timed = sieve.kept & (text("kernel") == "moe_grouped_ffn")
    timed &= np.isin(text("impl"), _IMPLEMENTATIONS) & np.isin(text("dtype"), list(_TYPES))
    series: dict[tuple[str, bool], dict[tuple[str, str], tuple[Accelerator, Rows]]] = {}
    for (gpu, word), at in groups(timed, text("gpu"), text("dtype")):
        device, dtype = words.get(gpu, gpu), _TYPES[word]
        if device not in known:
            continue
        accelerator = load_accelerator(device)
        if dtype in accelerator.matrix_flop_per_s:
            key = accelerator.generation, stacked_memory(accelerator)
            rows = _rows(sieve, at, accelerator, dtype)
            series.setdefault(key, {})[device, dtype] = accelerator, rows
    pools = [_pool(generation, found) for (generation, _), found in sorted(series.items())]
    return [pool for pool in pools if len(pool.calls)]


def _pool(
    generation: str, series: Mapping[tuple[str, str], tuple[Accelerator, Rows]]
) -> ExpertPool:
    """Join the types that were timed enough."""
    even: dict[str, int] = {}
    for (_, dtype), (_, rows) in series.items():
        count = int(((rows["skew"] == 0.0) & (rows["tokens"] >= 1.0)).sum())
        even[dtype] = even.get(dtype, 0) + count
    chosen = [(key, *series[key]) for key in sorted(series) if even[key[1]] >= _LEAST_ROWS]
    names = list(next(iter(series.values()))[1])
    counts = [len(rows["seconds"]) for _, _, rows in chosen]
    calls = Pool(
        rows={
            name: np.concatenate([np.empty(0), *(rows[name] for _, _, rows in chosen)])
            for name in names
        },
        device=np.repeat(np.array([key[0] for key, *_ in chosen], dtype=str), counts),
        variant=np.repeat(np.array([key[1] for key, *_ in chosen], dtype=str), counts),
    )
    return ExpertPool(
        generation=generation,
        calls=calls,
        accelerators={key[0]: accelerator for key, accelerator, _ in chosen},
    )


def _rows(sieve: Sieve, at: NDArray[np.intp], accelerator: Accelerator, dtype: str) -> Rows:
    mask = sieve.table.at(at)
    tokens, top_k, experts, hidden, inter = (sieve.positive(name, mask)[mask] for name in _SIZES)
    notes = [_NOTE.match(note) for note in sieve.table.text("note")[mask].tolist()]
    split = np.array([[float(n[i] or 0) if n else 1.0 for i in (1, 2, 3)] for n in notes]).T
    plain = np.char.find(sieve.table.text("impl")[mask], "nongated") >= 0
    types = accelerator.gemm["cublas"]
    plain_product = types.get(dtype, types["bf16"])
    rates = dataclasses.asdict(device_rates(accelerator, dtype))
    rates |= {name: float(getattr(plain_product, name)) for name in CLOCK}
    return {
        "tokens": tokens * top_k / experts,
        "experts": experts / split[1],
        "hidden": hidden,
        "ffn": inter / split[0],
        "gated": np.where(plain, 0.0, 1.0),
        "all_tokens": tokens,
        "top_k": top_k,
        "all_experts": experts,
        "skew": split[2],
        "seconds": sieve.positive("time_us", mask)[mask] * 1e-6,
        **{name: np.full(len(tokens), rates[name]) for name in (*RATES, *CLOCK)},
    }


def contradicted(pool: ExpertPool) -> NDArray[np.bool_]:
    """Rows that took a quarter longer than a call which is at least as large in every size.

    Both are of one type, on one device or on two of the generation (the other call's time is then
    taken times the ratio of peaks or of bandwidths, whichever says more). Measured times alone
    decide; what such a row tells of is a kernel that the timing loop had not tuned.
    """
    calls, rows = pool.calls, pool.calls.rows
    shape = np.stack([rows[name] for name in SHAPE], axis=1)
    zeros = np.zeros(len(calls), dtype=bool)
    for i in range(len(calls)):
        other = (calls.variant == calls.variant[i]) & (rows["tokens"] >= 1.0)
        other &= (shape >= shape[i]).all(axis=1)
        other[i] = False
        slower = np.maximum.reduce(
            [
                np.ones(int(other.sum())),
                *(
                    rows[name][other] / rows[name][i]
                    for name in ("peak_flop_per_s", "bandwidth_bytes_per_s")
                ),
            ]
        )
        least_s = (rows["seconds"][other] * slower).min(initial=np.inf)
        zeros[i] = rows["seconds"][i] > _CONTRADICTED * least_s
    return zeros


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
