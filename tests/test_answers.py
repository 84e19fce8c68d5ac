"""Answers in Python: a short line, plain numbers, a table, a picture; the notebook that ships."""

from __future__ import annotations

import io
import json
import math
from contextlib import redirect_stdout
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
import pytest

matplotlib.use("agg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simulator import (
    compare,
    diagnose,
    distil,
    fabrics,
    parameter_server,
    plan,
    predict,
    recommender,
    rent_or_buy,
    several_sites,
    simulate,
    simulate_run,
    size,
    sweep,
    versus,
    what_if,
)
from simulator.errors import InputError

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "first_plan.ipynb"
RUN: dict[str, Any] = {"model": "llama-3.2-1b", "cluster": "dgx-h100", "gpus": 8}
RUN |= {"global_batch": 64, "tokens": 1e10}
PINS = {"tp": 1, "cp": 1, "pp": 1, "micro_batch": 2}

GRID = """
[grid]
"training.global_batch" = [64, 128]
[model]
name = "llama-3.2-1b"
[training]
sequence_length = 2048
global_batch = 64
[cluster]
name = "dgx-h100"
gpus = 8
[layout]
tp = 1
pp = 1
cp = 1
micro_batch = 2
"""


@cache
def answer(kind: str) -> Any:
    names = {name: value for name, value in RUN.items() if name not in ("cluster", "gpus")}
    if kind == "sweep":
        raise AssertionError("made in its test")
    return {
        "plan": lambda: plan(**RUN, **PINS, deadline_days=30.0),
        "predict": lambda: predict(**RUN, **PINS),
        "simulate": lambda: simulate(**RUN, pp=2, micro_batch=2),
        "versus": lambda: versus(None, {"tp": 1}, {"tp": 2}, search=False, **RUN),
        "what_if": lambda: what_if(None, ["matrix=0.5"], **RUN, **PINS),
        "diagnose": lambda: diagnose(**RUN, **PINS, step_time_s=3.0),
        "fabrics": lambda: fabrics(**RUN, **PINS),
        "rent_or_buy": lambda: rent_or_buy("dgx-h100", 1024, months=24),
        "simulate_run": lambda: simulate_run(**RUN, **PINS, seeds=20, deadline_days=30.0),
        "size": lambda: size(**names, **PINS, cluster="dgx-h100", deadline_days=5, largest=8),
        "compare": lambda: compare(**names, **PINS, clusters=["dgx-h100"], gpus=[4, 8], jobs=1),
    }[kind]()


def checked(found: Any) -> None:
    """What every answer has."""
    assert len(repr(found)) < 400 and repr(found).startswith(type(found).__name__ + "(")
    html = found._repr_html_()
    assert "<table" in html and len(html) < 100_000
    assert len(found.to_frame()) > 0
    axes = Figure().subplots()
    assert found.plot(axes) is axes
    assert axes.has_data() or axes.patches


KINDS = (
    *("plan", "predict", "simulate", "versus", "what_if", "size", "compare"),
    *("diagnose", "rent_or_buy"),
    *(pytest.param(name, marks=pytest.mark.evidence) for name in ("fabrics", "simulate_run")),
)


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_shows_itself(kind: str) -> None:
    checked(answer(kind))


EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SMALL = {"tp": 1, "pp": 1, "cp": 1}


@pytest.mark.parametrize(
    ("ask", "example", "pins"),
    [
        (several_sites, "two-sites.toml", SMALL | {"micro_batch": 1}),
        (parameter_server, "parameter-server.toml", SMALL | {"micro_batch": 16}),
        (distil, "distillation.toml", {"pp": 1, "cp": 1}),
        (recommender, "dlrm.toml", {}),
    ],
)
def test_answers_to_questions_of_their_own_show_themselves(
    ask: Any, example: str, pins: dict[str, int]
) -> None:
    found = ask(EXAMPLES / example, **pins)
    checked(found)
    document = found.document()
    assert document["caveats"] == list(found.caveats) and list(document)[-1] == "caveats"
    for sentence in found.caveats:
        assert escape(sentence) in found._repr_html_()
    assert document["command"] == {several_sites: "sites", parameter_server:
        "parameter-server", distil: "distil", recommender: "recommender"}[ask]  # fmt: skip


def test_a_document_is_what_json_prints() -> None:
    one = answer("predict")
    assert one.document()["layouts"][0]["step_time_s"] == one.step_time_s
    with pytest.raises(InputError, match="SimulatedStep has none"):
        answer("simulate").document()


@pytest.mark.evidence
def test_answers_on_servers_of_several_kinds_show_themselves(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    groups = '[[cluster.groups]]\nname = "dgx-h100"\ngpus = 8\n'
    groups += '[[cluster.groups]]\nname = "dgx-a100"\ngpus = 8\n'
    layout = "[layout]\ntp = 8\npp = 1\ncp = 1\nmicro_batch = 2\nrecompute = 'none'\n"
    path.write_text(
        "[model]\nname = 'llama-3.2-1b'\n[training]\nsequence_length = 4096\nglobal_batch = 32\n"
        f"tokens = 1e10\n{groups}{layout}"
    )
    for found in (predict(path), plan(path)):
        checked(found)
        assert found.scenario.cluster.gpus == 16
    (row,) = compare(path, gpus=[16], clusters=["dgx-h100"], jobs=1).rows[:1]
    assert row.cluster == "dgx-h100 + dgx-a100" and row.feasible
    assert row.usd is not None and row.usd_per_gpu_hour is not None


def test_a_sweep_shows_itself(tmp_path: Path) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text(GRID)
    checked(sweep(grid, jobs=1))


def test_numbers_of_a_plan_are_those_of_its_best_layout() -> None:
    best = answer("plan")
    row = best.to_frame().iloc[0]
    assert best.step_time_s == row["step_time_s"] and best.days == row["days"]
    assert best.usd == row["usd"] and best.mfu == row["mfu"]
    low, high = best.interval_s
    assert low < best.step_time_s < high
    assert best.meets_deadline is True and best.meets_budget is True
    assert best.deadline_chance == pytest.approx(1.0, abs=1e-3)
    assert best.budget_chance is None
    assert repr(best).startswith("Plan(llama-3.2-1b on 8 x dgx-h100, dp8 mb2")


def test_what_is_not_known_is_none() -> None:
    one = predict(model="llama-3.2-1b", cluster="dgx-h100", gpus=8)
    assert (one.days, one.usd, one.kwh, one.deadline_chance) == (None,) * 4
    assert math.isnan(one.outcome.days[0])


def test_bars_of_a_plot_add_up_to_the_step() -> None:
    one = answer("predict")
    axes = one.plot(Figure().subplots())
    assert sum(bar.get_width() for bar in axes.patches) == pytest.approx(one.step_time_s, rel=1e-9)


def test_without_axes_new_ones_are_made() -> None:
    from matplotlib import pyplot

    axes = answer("predict").plot()
    assert isinstance(axes, Axes)
    pyplot.close(axes.figure)


@pytest.mark.evidence
def test_the_notebook_runs() -> None:
    """Every cell in order, as a kernel would; the last expression of each shows itself."""
    names: dict[str, Any] = {}
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    for cell in (cell for cell in cells if cell["cell_type"] == "code"):
        assert cell["outputs"], "committed with what it shows"
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile("".join(cell["source"]), str(NOTEBOOK), "exec"), names)
        said = ("".join(part.get("text", "")) for part in cell["outputs"])
        assert printed.getvalue() == "".join(said), "run it again"
    assert names["best"].meets_deadline
    assert len(sources) >= 7
