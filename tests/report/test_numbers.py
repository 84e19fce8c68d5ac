"""The numbers of the report are those of the plan, and they add up."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from simulator.cost.memory.peak import MEMORY_KINDS
from simulator.cost.rank_memory import rank_memory
from simulator.cost.step import evaluate
from simulator.cost.terms import MEMORY_MEANING, TERMS
from simulator.planner.plan import Plan, plan
from simulator.questions.compare.offer import asked_of, offer_of_answer
from simulator.report.comparison import (
    ROLES,
    time_bars,
    time_changes,
    why_it_wins,
)
from simulator.report.numbers import (
    PlanNumbers,
    collect,
    layout_rows,
    memory_report,
    search_statistics,
)
from simulator.report.palette import PALETTE
from simulator.scenario import make_scenario
from simulator.units import show_signed_percent

ROOT = Path(__file__).resolve().parents[2]


def make_plan(**layout: object) -> Plan:
    document = {
        "model": {"name": "llama-3.1-8b"},
        "training": {"sequence_length": 4096, "global_batch": 128, "tokens": 1e12},
        "cluster": {"name": "dgx-h100", "gpus": 32},
        "layout": layout,
        "goal": {"deadline_days": 1000.0},
    }
    return plan(make_scenario(document))


@pytest.fixture(scope="module")
def answer() -> Plan:
    return make_plan()


@pytest.fixture(scope="module")
def staged() -> Plan:
    return make_plan(pp=4)


def test_rows_follow_from_their_step_by_hand(answer: Plan) -> None:
    """10^12 tokens in steps of 128 x 4096 on 32 H100s of 989.4 TFLOP/s at 2.99 USD an hour.

    Llama 3.1 8B multiplies by 32 x (2 x 4096^2 + 2 x 4096 x 1024 + 3 x 4096 x 14336) + 4096 x
    128256 weights, each for 6 FLOP a token, and by half of the keys: 6 x 32 x 4096 x 4096 more.
    """
    rows = layout_rows(answer, range(20))
    assert len(rows) == 20 and [row.rank for row in rows] == list(range(1, 21))
    weights = 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 4096 * 128256
    assert weights == 7_504_658_432
    flop = 524_288 * (6 * weights + 6 * 32 * 4096 * 4096)
    for row in rows:
        assert row.tokens_per_s == pytest.approx(524_288 / row.step_time_s)
        assert row.tokens_per_s_per_gpu == pytest.approx(16_384 / row.step_time_s)
        assert row.mfu == pytest.approx(flop / row.step_time_s / (32 * 989.4e12), rel=1e-4)
        ideal = 1e12 / 524_288 * row.step_time_s / 86_400
        assert ideal < row.days < 1.03 * ideal  # failures, checkpoints, the slow steps
        assert row.gpu_hours == pytest.approx(768 * row.days)
        assert row.usd == pytest.approx(2.99 * row.gpu_hours)
        assert row.memory_total_bytes < row.usable_bytes < 85.9e9  # 80 GiB
        assert row.fits and row.meets_deadline and row.meets_budget
    best = rows[0].layout
    assert rows[0].described == f"dp32 mb{best['micro_batch']} {best['sharding']}"
    assert [row.days for row in rows] == sorted(row.days for row in rows)  # type: ignore[type-var]
    # every GPU works
    assert all(
        row.layout["tp"] * row.layout["pp"] * row.layout["cp"] * row.layout["dp"] == 32
        for row in rows
    )


def test_what_does_not_exist_is_none_not_nan() -> None:
    document = {
        "model": {"name": "gpt2-small"},
        "training": {"sequence_length": 1024, "global_batch": 8},
        "cluster": {"name": "dgx-h100", "gpus": 1},
    }
    row = layout_rows(plan(make_scenario(document)), [0])[0]
    assert (row.days, row.gpu_hours, row.usd, row.kwh) == (None, None, None, None)
    assert row.meets_deadline and row.meets_budget


def test_memory_by_stage_adds_up_to_the_estimate(staged: Plan) -> None:
    report = memory_report(staged)
    assert [stage.stage for stage in report.stages] == [0, 1, 2, 3]
    for stage in report.stages:
        assert sum(stage.memory_bytes.values()) == pytest.approx(
            stage.memory_total_bytes, rel=1e-12
        )
    fullest = max(report.stages, key=lambda stage: stage.memory_total_bytes)
    estimate = staged.estimate
    assert fullest.memory_total_bytes == pytest.approx(estimate.memory_total_bytes[0], rel=1e-12)
    assert fullest.stage == estimate.peak_stage[0]
    kinds = {kind: float(size[0]) for kind, size in estimate.memory_bytes.items()}
    assert fullest.memory_bytes == pytest.approx(kinds, rel=1e-12)
    assert report.usable_bytes == estimate.usable_bytes


def test_rank_memory_peaks_where_every_estimate_does(staged: Plan, extent: str) -> None:
    scenario = staged.scenario
    for i in range(0, len(staged.estimate), {"sample": 53, "whole": 7}[extent]):
        row = staged.estimate.layouts[i]
        held = rank_memory(row, scenario.workload, scenario.cluster, scenario.software)
        one = evaluate(row, scenario.workload, scenario.cluster, scenario.software, every_rank=True)
        assert len(held.total_bytes) == row.pp[0]
        assert np.max(held.total_bytes) == pytest.approx(one.memory_total_bytes[0], rel=1e-12)


def test_bars_add_up_and_differences_too(answer: Plan) -> None:
    bars = time_bars(answer)
    assert [bar.role for bar in bars] == list(ROLES)
    for bar in bars:
        assert sum(bar.terms_s.values()) == pytest.approx(bar.step_time_s, rel=1e-12)
    changes = time_changes(bars)
    for bar in bars[1:]:
        saved = sum(change.saved_s[bar.role] for change in changes)
        assert saved == pytest.approx(bar.step_time_s - bars[0].step_time_s, abs=1e-9)
    assert all(any(change.seconds.values()) for change in changes)


def test_reasons_say_slower_by_how_much(answer: Plan) -> None:
    bars = time_bars(answer)
    sentences = why_it_wins(bars)
    assert len(sentences) == 2
    for bar, sentence in zip(bars[1:], sentences, strict=True):
        assert bar.layout in sentence
        assert ("slower" in sentence) or ("is the best layout itself" in sentence)


def test_a_faster_bar_is_explained_by_what_is_pinned() -> None:
    slow = make_plan(tp=8, pp=4, recompute="full")
    bars = time_bars(slow)
    assert bars[-1].step_time_s < bars[0].step_time_s
    assert bars[-1].ruled_out == "pp = 4, recompute = full, tp = 8 are pinned"
    assert bars[-1].named == f"data parallel only ({bars[-1].ruled_out})"
    sentence = why_it_wins(bars)[-1]
    assert "faster" in sentence and f", but {bars[-1].ruled_out}" in sentence
    axes = slow.plot()
    assert "pinned: pp = 4, recompute = full, tp = 8" in axes.get_title(loc="left")
    words = [label.get_text().replace("\n", " ") for label in axes.get_yticklabels()]
    assert words[-1] == f"{bars[-1].named} {bars[-1].layout}"


def test_the_search_accounts_for_every_layout(answer: Plan) -> None:
    search = search_statistics(answer)
    assert search.layouts == search.feasible + sum(search.dropped.values())
    assert search.evaluated >= search.feasible
    assert list(search.dropped.values()) == sorted(search.dropped.values(), reverse=True)


@pytest.fixture(scope="module")
def numbers(answer: Plan) -> PlanNumbers:
    asked = asked_of(answer)
    return collect(answer, offers=[offer_of_answer(answer, asked)], asked=asked)


def test_assumed_figures_are_those_in_use(answer: Plan, numbers: PlanNumbers) -> None:
    found = numbers.assumed
    assert answer.evidence.assumed == len(found) and {one.grade for one in found} == {"assumed"}
    names = {(figure.profile, figure.name) for figure in found}
    assert ("price neocloud-h100", "usd_per_gpu_hour") in names
    assert not any(".fp32." in name or ".tf32." in name for _, name in names)
    assert not any(name.endswith("pcie") for _, name in names)
    assert all(figure.source and figure.value for figure in found)


def test_everything_that_is_drawn_has_a_colour_and_a_meaning() -> None:
    assert {term.name for term in TERMS} <= set(PALETTE)
    assert set(MEMORY_KINDS) <= set(PALETTE) and set(MEMORY_KINDS) <= set(MEMORY_MEANING)


def test_signed_percent_has_no_minus_zero() -> None:
    assert show_signed_percent(-0.0003) == "+0.0 %"
    assert show_signed_percent(-0.0123) == "-1.2 %"


def test_collect_keeps_the_parts(answer: Plan, numbers: PlanNumbers) -> None:
    assert numbers.best == layout_rows(answer, [0])[0]
    assert numbers.title == "llama-3.1-8b on 32 GPUs of dgx-h100"
    assert len(numbers.upgrades) == 7
    assert numbers.evidence == answer.evidence and numbers.deadline_days == 1000.0


def test_numbers_start_light() -> None:
    heavy = ("matplotlib", "jinja2", "pandas", "scipy")
    code = (
        "import sys, simulator.report.numbers, simulator.report.write\n"
        f"print(*[name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
