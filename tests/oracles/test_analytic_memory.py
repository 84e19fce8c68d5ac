"""A paper's own memory arithmetic, worked out again from our operators, to its last digit.

Korthikanti et al. 2022 (arXiv 2205.05198), figure 1: 18 bytes for each of 12 L h^2 / (t p) weights,
embedding, biases and norms left out; s b h (10 + 24 / t + 5 a s / (h t)) or, with sequence
parallelism and selective recomputation, 34 s b h / t bytes for a layer, L (1 + (p - 1) / (p v))
layers on the first stage; statistics of norms left out. These rows are no readings, and no figure
is ever fitted to them or scored on them.
"""

from __future__ import annotations

import csv
import re

import numpy as np
import pytest

from simulator import catalogue
from simulator.cost.memory.peak import MEMORY_KINDS, peak_memory
from simulator.cost.memory.rank_tensors import operators_of
from simulator.cost.operators.matrices import weight_matrices
from simulator.cost.operators.operations import recomputes
from simulator.cost.pricing import price
from simulator.cost.tables import select
from simulator.measured.replay import Run, load_tables, replay
from simulator.units import GIB

_TABLE = catalogue.folder("validation") / "runs" / "analytic_memory.csv"
_PARTS = re.compile(r"params\+optimizer=([0-9.]+) GiB, activations=([0-9.]+) GiB")

with _TABLE.open(newline="", encoding="utf-8") as _file:
    ROWS = [dict(row) for row in csv.DictReader(_file)]


def account(run: Run) -> tuple[float, float, float]:
    """GiB of states and of activations on the first stage, as the paper counts them; and ours.

    The third is the activations of the prediction, which leaves nothing out.
    """
    row, arch = run.layout, run.workload.architecture
    priced = price(row, run.workload, run.cluster, run.software, every_rank=True)
    rows = select(row, priced, slice(0, 1))
    first = int(np.argmin(rows.rank[0]))
    block = operators_of(row, run.workload, run.cluster, run.software)[0]
    matrices = weight_matrices(
        arch, tp=row.tp, pp=row.pp, ep=row.ep, etp=row.etp, kernels=run.software.kernels
    )
    weights = sum(float(np.max(w.parameters)) for w in matrices if w.part == 0)
    states = run.software.states
    each = float(states.weight + states.gradient + states.master + 2 * states.moment)
    drops = run.software.kernels.selective_modules if row.row()["recompute"] == "selective" else ()
    kept = sum(
        float(np.max(tensor.size_bytes))
        for tensor in block.saved
        if not tensor.name.endswith("statistics") and not recomputes(tensor.module, drops)
    )
    ours = float(peak_memory(rows, priced).kinds_bytes[MEMORY_KINDS.index("activations"), 0, first])
    held, flying = float(rows.parts[0, first, 0]), float(rows.in_flight[0, first, 0])
    return each * weights * held / GIB, kept * flying / GIB, ours / GIB


def digits(text: str) -> int:
    """Digits behind the point."""
    return len(text.partition(".")[2])


@pytest.mark.parametrize("row", ROWS, ids=[row["run_id"] for row in ROWS])
def test_the_account_comes_out_to_the_printed_digit(row: dict[str, str]) -> None:
    found = _PARTS.search(row["notes"])
    assert found is not None
    states, activations, ours = account(replay(row, load_tables()))
    half = 0.5 + 1e-9
    for value, printed in (
        (states, found.group(1)),
        (activations, found.group(2)),
        (states + activations, row["peak_memory_gib"]),
    ):
        assert abs(value - float(printed)) <= half * 10 ** -digits(printed), printed
    # the prediction keeps statistics, embedding masks and logits besides
    assert activations < ours < 1.05 * activations


def test_all_eight_bars_of_the_figure_are_there() -> None:
    names = sorted({(row["model"], row["recompute"]) for row in ROWS})
    models = ("gpt-175b", "gpt-1t", "gpt-22b", "gpt-530b")
    assert names == sorted((model, mode) for model in models for mode in ("none", "selective"))
    assert {(row["split"], row["memory_kind"]) for row in ROWS} == {("analytic", "analytic")}
