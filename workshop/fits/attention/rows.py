"""Measured calls of fused attention, pooled by kernel: what ``profiles.py`` fits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simulator import catalogue
from simulator.arrays import Floats
from simulator.calibration.least_squares import Rows
from simulator.cost.kernels.flash_attention import attention_s
from simulator.cost.kernels.gemm import DeviceRates
from simulator.hardware.accelerator import AttentionKernel
from simulator.measured.kernel_calls import (
    attention_library,
    attention_shape,
    call_seconds,
    pass_of,
)
from simulator.measured.microbenchmarks import Sieve, Texts, Words, load_words, read_table
from workshop.facts import facts
from workshop.fits.fitting.devices import Device, profile_of
from workshop.fits.fitting.pooled import Pool

CACHE = "_fp8_cache"
"""Ending of a library that keeps keys and values in fp8: a variant of the one without."""

_FACTS = facts(__file__)
TRAINING: tuple[str, ...] = tuple(_FACTS["training"])
"""Libraries that training calls."""

_KERNELS: tuple[str, ...] = tuple(_FACTS["kernels"])
_TYPES = {"bfloat16": "bf16", "bf16": "bf16", "fp16": "fp16", "fp8": "fp8"}


def attention_calls(known: Mapping[str, Device], folder: Path | None = None) -> Pool:
    """Read every call of the shipped tables that a device with a profile made.

    The device column holds the profile, the variant the library.
    """
    folder = folder or catalogue.folder("validation") / "microbenchmarks"
    words = load_words()
    pools = [_read(folder / f"{name}.csv", known, words) for name in _TABLES]
    rows = {name: np.concatenate([pool.rows[name] for pool in pools]) for name in pools[0].rows}
    return Pool(
        rows=rows,
        device=np.concatenate([pool.device for pool in pools]),
        variant=np.concatenate([pool.variant for pool in pools]),
    )


_TABLES = ("kernels", "attention_training")


def _read(path: Path, known: Mapping[str, Device], words: Words) -> Pool:
    table = read_table(path, "kernels")
    sieve = Sieve(table)
    device = np.array([profile_of(gpu, words, known) for gpu in table.text("gpu").tolist()])
    sieve.skip("another kernel", ~np.isin(table.text("kernel"), _KERNELS))
    sieve.skip("no profile", device == "")
    shape, passes = attention_shape(sieve, sieve.kept.copy()), pass_of(table, words)
    seconds = call_seconds(sieve, shape, passes, words)
    take = np.flatnonzero(sieve.kept)
    dtype = [_TYPES.get(word, word) for word in table.text("dtype")[take].tolist()]
    words_of = (table.text("impl")[take].tolist(), dtype, table.text("causal")[take].tolist())
    library = [attention_library(words, *each) for each in zip(*words_of, strict=True)]
    rows: Rows = {name: column[take] for name, column in shape.items()}
    rows |= {
        "seconds": seconds[take],
        "forward": (passes[take] != "backward").astype(float),
        "backward": (passes[take] != "forward").astype(float),
    }
    owners = [known[name] for name in device[take].tolist()]
    rows["peak_flop_per_s"] = np.array(
        [owner.flop_per_s[kind] for owner, kind in zip(owners, dtype, strict=True)]
    )
    rows["bandwidth_bytes_per_s"] = np.array([owner.bandwidth_bytes_per_s for owner in owners])
    rows["compute_units"] = np.array([owner.compute_units for owner in owners])
    return Pool(rows=rows, device=device[take], variant=np.array(library, dtype=str))


_NOT_SIZES = ("seconds", "forward", "backward")
_RATES = ("peak_flop_per_s", "bandwidth_bytes_per_s", "compute_units")


def predicted_s(values: Mapping[str, Any], rows: Rows) -> Floats:
    """Price rows with parameters of ``AttentionKernel``, each at the clock of its own length."""
    sizes: dict[str, Any] = {
        name: column for name, column in rows.items() if name not in (*_NOT_SIZES, *_RATES)
    }
    rates = DeviceRates(**{name: rows[name] for name in _RATES})
    kernel = AttentionKernel(**values)
    total = rows["forward"] * attention_s(rates, kernel, **sizes, sustained=False)
    if rows["backward"].any():
        back_s = attention_s(rates, kernel, **sizes, sustained=False, backward=True)
        total = total + rows["backward"] * back_s
    return np.asarray(total)


def shapes(rows: Rows) -> list[tuple[float, ...]]:
    """Return the shape of every row, by which rows are left out together."""
    names = ("heads", "queries", "keys", "score_size", "value_size", "key_bytes", "query_bytes")
    return list(zip(*(rows[name].tolist() for name in names), strict=True))


def family(library: Texts) -> Texts:
    """Library without the type of its cache."""
    return np.array([name.removesuffix(CACHE) for name in library.tolist()], dtype=str)
