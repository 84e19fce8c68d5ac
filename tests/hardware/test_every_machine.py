"""Every shipped cluster carries a training step whose figures make sense."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from simulator import catalogue
from simulator.api import plan, predict
from simulator.cli.main import app
from simulator.errors import InputError
from simulator.files import figures
from simulator.hardware.accelerator import Accelerator
from simulator.hardware.cluster import load_accelerator, load_cluster, load_node
from simulator.planner.prediction import Prediction

SHIPPED = catalogue.folder("hardware_profiles")
CLUSTERS = sorted(path.stem for path in (SHIPPED / "clusters").glob("*.toml"))
ACCELERATORS = sorted(path.stem for path in (SHIPPED / "accelerators").glob("*.toml"))
IN_THE_TABLES = [
    *("v100-sxm2-16", "v100-sxm2-32", "v100-pcie-16", "v100-pcie-32", "t4", "a10", "a10g"),
    *("a100-sxm-40", "a100-sxm-80", "a100-pcie-40", "a100-pcie-80", "a800-sxm-80", "rtx3090"),
    *("rtx4090", "rtxa6000", "l4", "l40", "l40s", "h100-sxm", "h100-pcie", "h100-nvl", "h800-sxm"),
    *("h20", "h200-sxm", "gh200", "b200-sxm", "gb200", "b300-sxm", "gb300", "rtx-pro-6000-server"),
    *("mi250x", "mi300x", "mi325x", "mi355x", "gaudi2", "gaudi3", "tpu-v4", "tpu-v5e", "tpu-v5p"),
    "ascend-910b",
]


@lru_cache
def step(name: str, servers: int) -> Prediction:
    """A step of a small model, data-parallel, the same work for every accelerator."""
    one = load_cluster(name, 1)
    gpus = servers * one.node.accelerators
    return predict(
        model="llama-3.2-1b",
        cluster=name,
        gpus=gpus,
        precision=one.accelerator.sixteen_bit,
        sequence_length=2048,
        global_batch=8 * gpus,
        # XLA's unfused loss holds 10 bytes a logit: a core of 16 GB has room for one
        micro_batch=1 if one.accelerator.platform == "neuron" else 4,
        recompute="full",
    )


def test_every_accelerator_of_the_tables_is_there_and_in_some_cluster() -> None:
    assert set(IN_THE_TABLES) <= set(ACCELERATORS)
    used = {load_cluster(name, 1).accelerator.name for name in CLUSTERS}
    assert used == set(ACCELERATORS)


SYSTEMS = [
    *("dgx-1v", "dgx-2", "dgx-a100-40", "dgx-a100", "dgx-h100", "hgx-h200", "dgx-b200", "dgx-b300"),
    *("gb200-nvl72", "gb300-nvl72", "aws-p3", "aws-p3dn", "aws-p4d", "aws-p4de", "aws-p5"),
    *("aws-p5e", "aws-p5en", "aws-p6-b200", "azure-ndv4", "azure-ndmv4", "azure-ndv5"),
    *("azure-mi300x", "azure-gb300", "gcp-a2-high", "gcp-a2-ultra", "gcp-a3-high", "gcp-a3-mega"),
    *("gcp-a3-ultra", "gcp-a4", "oci-h100", "l40s-pcie", "selene", "frontier", "mi300x-8"),
    *("meta-24k", "imbue-h100"),
]


def test_every_system_of_the_tables_is_there() -> None:
    assert set(SYSTEMS) <= set(CLUSTERS)


def test_every_node_is_in_some_cluster() -> None:
    nodes = {path.stem for path in (SHIPPED / "nodes").glob("*.toml")}
    assert {load_cluster(name, 1).node.name for name in CLUSTERS} == nodes


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CLUSTERS)
def test_a_small_model_trains_on_one_and_two_servers(name: str) -> None:
    one, two = step(name, 1), step(name, 2)
    for found in (one, two):
        seconds = found.estimate.step_time_s
        terms = sum(float(term[0]) for term in found.estimate.terms_s.values())
        assert np.isfinite(seconds).all() and terms == pytest.approx(float(seconds[0]))
        assert 0.005 < found.outcome.mfu[0] <= found.outcome.hfu[0] < 1.0
        assert found.estimate.fits[0]
    # The work of a server stays and the network joins; only the sharded optimizer gets less.
    alone, joined = (
        float(found.estimate.step_time_s[0] - found.estimate.terms_s["optimizer"][0])
        for found in (one, two)
    )
    assert 0.9999 * alone <= joined < 10.0 * alone


GENERATIONS = [
    list(group)
    for _, group in groupby(
        sorted(map(load_accelerator, ACCELERATORS), key=lambda part: part.generation),
        key=lambda part: part.generation,
    )
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("parts", GENERATIONS, ids=lambda parts: parts[0].generation)
def test_more_of_everything_is_never_slower_within_a_generation(parts: list[Accelerator]) -> None:
    """Products and memory-bound work of a step, where peak and bandwidth are both higher."""
    homes = {load_cluster(name, 1).accelerator.name: name for name in CLUSTERS}

    def computing_s(part: Accelerator) -> float:
        terms = step(homes[part.name], 1).estimate.terms_s
        return float(sum(terms[name][0] for name in ("gemm", "attention", "recompute")))

    for slow in parts:
        for fast in parts:
            peak = fast.matrix_flop_per_s[fast.sixteen_bit]
            ahead = peak / slow.matrix_flop_per_s[slow.sixteen_bit]
            wide = fast.memory.bandwidth_bytes_per_s >= slow.memory.bandwidth_bytes_per_s
            if ahead > 1.15 and wide:
                assert computing_s(fast) < computing_s(slow), (fast.name, slow.name)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["dgx-1v", "aws-g4dn", "mi300x-8", "hls-gaudi3", "tpu-v5p"])
def test_plan_finds_a_layout(name: str) -> None:
    one = load_cluster(name, 1)
    found = plan(
        model="llama-3.2-1b",
        cluster=name,
        gpus=one.node.accelerators,
        sequence_length=2048,
        global_batch=64,
        precision=one.accelerator.sixteen_bit,
    )
    assert found.estimate.fits[0]


def test_borrowed_figures_are_assumed_and_wider_than_the_lenders() -> None:
    borrower, lender = load_accelerator("mi325x"), load_accelerator("h200-sxm")
    ours = dict(figures(borrower.stream, "stream"))
    theirs = dict(figures(lender.stream, "stream"))
    assert ours.keys() < theirs.keys()  # classes of serving kernels are not borrowed
    training = {"elementwise", "norm", "softmax", "loss", "optimizer", "copy"}
    assert {name.split(".")[1] for name in ours} == training
    for name, figure in ours.items():
        assert figure.grade == "assumed" and figure == theirs[name]
        if theirs[name].source == "user":  # a term that the lender's kernels do not have
            continue
        assert "H200" in figure.source
        if theirs[name].spread is not None:
            assert figure.spread == pytest.approx(np.hypot(theirs[name].spread, 0.25))
    # what the profile states itself stays (tests/cost/test_amd_products.py holds it against AMD's)
    assert borrower.gemm["cublas"]["bf16"].peak_fraction.grade == "fitted"


def test_mesh_links_worked_by_hand() -> None:
    """MI300X: 7 links of 64 GB/s one way; a pair has one, of which 48 GB/s are data."""
    links = load_node("mi300x-8").scale_up
    assert links.bandwidth_bytes_per_s == 448e9
    assert links.send_bytes_per_s == 48e9
    assert links.pair_fraction * links.bus_bytes_per_s == pytest.approx(48e9, rel=0.01)
    gaudi = load_node("hls-gaudi3").scale_up  # 21 ports of 200 Gbit/s
    assert gaudi.bandwidth_bytes_per_s == 21 * 25e9


def test_without_a_price_there_is_no_cost_and_no_budget(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "model": "llama-3.2-1b",
        "cluster": "h100-pcie-8",
        "gpus": 8,
        "sequence_length": 2048,
    }
    given |= {"pp": 1, "recompute": "none"}  # fewer layouts
    found = plan(**given, global_batch=64, tokens=1e9, minimize="cost")
    assert np.isnan(found.outcome.usd).all() and np.isfinite(found.outcome.days).all()
    options = [
        "--model",
        "llama-3.2-1b",
        "--cluster",
        "h100-pcie-8",
        "--gpus",
        "8",
        "--set",
        "training.tokens=1e9",
        "--set",
        "layout.pp=1",
        "--set",
        "layout.recompute=none",
        "--out",
        str(tmp_path),
    ]
    screen = CliRunner().invoke(app, ["plan", *options])
    assert screen.exit_code == 0, screen.stderr
    assert not re.search(r"\bnan\b", screen.stdout)
    assert "no price known for this cluster" in (tmp_path / "plan.html").read_text()
    missing = r"budget_usd: needs a price \(.*\), and h100-pcie-8 has none"
    with pytest.raises(InputError, match=missing):
        plan(**given, global_batch=64, tokens=1e9, budget_usd=1000.0)
