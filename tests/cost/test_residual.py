"""Residuals near timed shapes: worked by hand, smooth, alike alone and in a table, nothing far."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from simulator.cost.kernels.residual import attention_sizes, residual_factor
from simulator.errors import InputError
from simulator.hardware.residuals import SIZES, TimedShapes, columns, load_residuals

ONE = TimedShapes(
    kernel="gemm",
    weight=np.array([0.3]),
    sizes={"m": np.array([1024.0]), "n": np.array([2048.0]), "k": np.array([4096.0])},
)
"""One shape that took a factor of exp(0.3) more than the formula says."""


def test_the_residual_of_one_timed_shape_fades_over_octaves() -> None:
    """Two octaves in N are one unit of distance: (1 + sqrt 3) exp(-sqrt 3) of it is left."""
    at, near = residual_factor(ONE, m=1024, n=[2048, 8192], k=4096)
    assert at == pytest.approx(math.exp(0.3), rel=1e-12)
    left = (1 + math.sqrt(3)) * math.exp(-math.sqrt(3))
    assert near == pytest.approx(math.exp(0.3 * left), rel=1e-12)


def test_rows_that_need_another_tile_are_further_off() -> None:
    """1025 rows fill nine tiles of 128 as far as 1152 do: log2(1152 / 1025) of an octave away.

    And 16 does not divide them: half a unit more.
    """
    step = math.hypot(math.log2(1152 / 1025), math.log2(1025 / 1024) / 2, 0.5) * math.sqrt(3)
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


def test_attention_of_other_heads_fades_over_four_octaves() -> None:
    """Sixteen times the heads is one unit away, and so is a sixteenth of the length."""
    shape = {
        "heads": 32.0,
        "queries": 4096.0,
        "query_bytes": 64.0,
        "key_bytes": 16.0,
        "score_size": 192.0,
        "value_size": 128.0,
    }
    sizes = attention_sizes(shape)
    assert sizes == {"heads": 32.0, "queries": 4096.0, "groups": 4.0, "head_size": 160.0}
    one = TimedShapes(
        kernel="attention",
        sizes={name: np.array([x]) for name, x in sizes.items()},
        weight=np.array([0.3]),
    )
    left = (1 + math.sqrt(3)) * math.exp(-math.sqrt(3))
    for other in ({"heads": 512.0}, {"queries": 256.0}):
        assert residual_factor(one, **(sizes | other)) == pytest.approx(math.exp(0.3 * left))


def test_an_expert_layer_with_a_gate_tells_less_of_one_without() -> None:
    sizes = dict.fromkeys(SIZES["experts"], 64.0) | {"gated": 1.0}
    one = TimedShapes(
        kernel="experts",
        sizes={name: np.array([x]) for name, x in sizes.items()},
        weight=np.array([0.3]),
    )
    assert residual_factor(one, **sizes) == pytest.approx(math.exp(0.3))
    left = (1 + math.sqrt(3)) * math.exp(-math.sqrt(3))
    for other in ({"gated": 0.0}, {"tokens": 512.0}):
        assert residual_factor(one, **(sizes | other)) == pytest.approx(math.exp(0.3 * left))


@pytest.mark.parametrize("kernel", ["attention", "experts"])
def test_shipped_residuals_are_bounded_and_fade_to_the_formula(kernel: str) -> None:
    """Nowhere more than a factor of 1.5; a thousand octaves from every shape the formula alone."""
    found = load_residuals("h100-sxm", kernel)
    assert len(found) >= 3
    for timed in found.values():
        at = residual_factor(timed, **timed.sizes)
        assert np.abs(np.log(at)).max() < math.log(1.5)
        assert np.abs(np.log(at)).max() > 0.02
        far = dict(timed.sizes) | {SIZES[kernel][0]: np.full(len(at), 2.0**1000)}
        assert residual_factor(timed, **far) == pytest.approx(1.0, abs=1e-9)


def test_what_all_libraries_share_is_part_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "accelerators").mkdir()
    (tmp_path / "accelerators" / "mine.toml").write_text('base = "h100-sxm"\n')
    (tmp_path / "residuals" / "attention").mkdir(parents=True)
    lines = [",".join(columns("attention")), "*,*,32,4096,4,128,0.1", "fa3,bf16,32,4096,4,128,0.2"]
    (tmp_path / "residuals" / "attention" / "mine.csv").write_text("\n".join(lines))
    monkeypatch.setenv("FORESHARD_PROFILES", str(tmp_path))
    found = load_residuals("mine", "attention")
    assert list(found) == [("fa3", "bf16")]
    factor = residual_factor(found["fa3", "bf16"], heads=32, queries=4096, groups=4, head_size=128)
    assert factor == pytest.approx(math.exp(0.3))


def test_devices_without_timings_have_no_residuals() -> None:
    for kernel in SIZES:
        assert load_residuals("h800-sxm", kernel) == {}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("cublas,bf16,64,64,x,0.1", "line 2: m, n, k, weight must be numbers"),
        ("cublas,bf16,64,0,64,0.1", "line 2: m, n and k must be at least 1, all finite"),
        ("cublas,bf16,64,64,64,nan", "line 2: m, n and k must be at least 1, all finite"),
    ],
)
def test_a_file_of_residuals_that_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, said: str
) -> None:
    (tmp_path / "accelerators").mkdir()
    (tmp_path / "accelerators" / "mine.toml").write_text('base = "h100-sxm"\n')
    (tmp_path / "residuals" / "gemm").mkdir(parents=True)
    (tmp_path / "residuals" / "gemm" / "mine.csv").write_text(
        f"library,dtype,m,n,k,weight\n{line}\n"
    )
    monkeypatch.setenv("FORESHARD_PROFILES", str(tmp_path))
    with pytest.raises(InputError, match=said):
        load_residuals("mine")


def test_a_table_that_was_measured_again_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "residuals" / "gemm" / "chip.csv"
    for folder in (tmp_path / "accelerators", table.parent):
        folder.mkdir(parents=True)
    (tmp_path / "accelerators" / "chip.toml").write_text('base = "h100-sxm"\n')
    monkeypatch.setenv("FORESHARD_PROFILES", str(tmp_path))
    assert load_residuals("chip") == {}
    for rows in (1, 2):
        lines = [f"cublas,bf16,{1024 * row},1024,1024,0.5\n" for row in range(1, rows + 1)]
        table.write_text(f"library,dtype,m,n,k,weight\n{''.join(lines)}")
        assert len(load_residuals("chip")["cublas", "bf16"].weight) == rows
