"""Residuals near timed shapes: worked by hand, smooth, alike alone and in a table, nothing far."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from simulator.cost.residual import residual_factor
from simulator.errors import InputError
from simulator.hardware.residuals import TimedShapes, load_residuals

ONE = TimedShapes(
    m=np.array([1024.0]), n=np.array([2048.0]), k=np.array([4096.0]), weight=np.array([0.3])
)
"""One shape that took a factor of exp(0.3) more than the formula says."""


def test_the_residual_of_one_timed_shape_fades_over_octaves() -> None:
    """Two octaves in N are one unit of distance: (1 + sqrt 3) exp(-sqrt 3) of it is left."""
    at, near = residual_factor(ONE, m=1024, n=[2048, 8192], k=4096)
    assert at == pytest.approx(math.exp(0.3), rel=1e-12)
    left = (1 + math.sqrt(3)) * math.exp(-math.sqrt(3))
    assert near == pytest.approx(math.exp(0.3 * left), rel=1e-12)


def test_rows_that_need_another_tile_are_further_off() -> None:
    """1025 rows fill nine tiles of 128 as far as 1152 do: log2(1152 / 1025) of an octave away."""
    step = math.hypot(math.log2(1152 / 1025), math.log2(1025 / 1024) / 2) * math.sqrt(3)
    factor = residual_factor(ONE, m=1025, n=2048, k=4096)
    assert factor == pytest.approx(math.exp(0.3 * (1 + step) * math.exp(-step)), rel=1e-12)


def test_far_from_every_timed_shape_the_formula_stands() -> None:
    assert residual_factor(ONE, m=2**40, n=1, k=1) == pytest.approx(1.0, abs=1e-6)


def test_a_shape_costs_the_same_alone_and_in_a_table() -> None:
    timed = load_residuals("h100-sxm")["cublas", "bf16"]
    draw = np.random.default_rng(5)
    m, n, k = np.round(2.0 ** draw.uniform(4, 16, (3, 3000)))
    table = residual_factor(timed, m=m, n=n, k=k)
    for i in draw.integers(0, 3000, 50).tolist():
        alone = residual_factor(timed, m=m[i], n=n[i], k=k[i])
        assert alone == pytest.approx(table[i], rel=1e-12)
    assert np.abs(np.log(table)).max() < 0.5


def test_devices_without_timings_have_no_residuals() -> None:
    assert load_residuals("h800-sxm") == {}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("cublas,bf16,64,64,x,0.1", "line 2: m, n, k and weight must be numbers"),
        ("cublas,bf16,64,0,64,0.1", "line 2: m, n and k must be at least 1, all finite"),
        ("cublas,bf16,64,64,64,nan", "line 2: m, n and k must be at least 1, all finite"),
    ],
)
def test_a_file_of_residuals_that_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, said: str
) -> None:
    (tmp_path / "accelerators").mkdir()
    (tmp_path / "accelerators" / "mine.toml").write_text('base = "h100-sxm"\n')
    (tmp_path / "residuals").mkdir()
    (tmp_path / "residuals" / "mine.csv").write_text(f"library,dtype,m,n,k,weight\n{line}\n")
    monkeypatch.setenv("FORESHARD_PROFILES", str(tmp_path))
    load_residuals.cache_clear()
    with pytest.raises(InputError, match=said):
        load_residuals("mine")
