"""What cannot be right: units, rates above a peak, readings above a device; hand-made figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from simulator import catalogue
from simulator.cost.operators.model_flop import model_flop_per_step
from simulator.errors import InputError
from simulator.files import read_csv
from simulator.measured.checks import Readings, excluded, implausible, readings, utilisation
from simulator.measured.replay import Run, load_tables, replay
from simulator.measured.rows import MeasuredRun

RUNS = catalogue.folder("validation") / "runs"
ROWS = {row["run_id"]: row for _, row in read_csv(RUNS / "test.csv")}
GPT = ROWS["korthikanti22-t5-003"]  # 64 A100 of 80 GiB, fp16, full recomputation, 18.13 s
A100_FLOP_PER_S, H100_FLOP_PER_S = 312e12, 989.4e12
TABLES = load_tables()


def run_of(row: Mapping[str, str]) -> Run:
    return replay(row, TABLES)


def read(**given: str) -> Readings:
    return readings(MeasuredRun(where="runs.csv: line 7", fields={**GPT, **given}))


def refused(**given: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        read(**given)
    return list(caught.value.problems)


# --- reading -----------------------------------------------------------------------------


def test_what_is_not_there_is_none() -> None:
    blank = dict.fromkeys(("step_time_s", "model_tflops_per_gpu", "tokens_per_s_per_gpu"), "")
    assert read(**blank) == Readings()
    assert read(peak_memory_gib="70").memory_kind == "unknown"


@pytest.mark.parametrize("word", ["nan", "-3", "0", "1e999", "-inf", "18,13", "18.13 s", "0x12"])
@pytest.mark.parametrize(
    "column", ["step_time_s", "peak_memory_gib", "tokens_per_s_per_gpu", "model_tflops_per_gpu"]
)
def test_numbers_are_positive_and_finite(column: str, word: str) -> None:
    rule = f"runs.csv: line 7: {column}: must be a positive number, got {word!r}"
    assert refused(**{column: word}) == [rule]


def test_every_problem_is_told_at_once() -> None:
    where = "runs.csv: line 7: "
    assert refused(step_time_s="x", peak_memory_gib="70", memory_kind="alocated") == [
        f"{where}step_time_s: must be a positive number, got 'x'",
        f"{where}memory_kind: must be one of allocated, reserved, nvidia_smi, analytic, unknown,"
        " got 'alocated' (did you mean 'allocated'?)",
    ]


def test_the_throughput_must_be_that_of_the_step_time() -> None:
    # 64 sequences of 2048 in 18.13 s on 64 GPUs: 112.96 tokens/s each
    assert read(tokens_per_s_per_gpu="113").step_time_s == 18.13
    (line,) = refused(tokens_per_s_per_gpu="120")
    assert line == (
        "runs.csv: line 7: step_time_s: must agree with tokens_per_s_per_gpu (120, not 113),"
        " got '18.13'"
    )
    (line,) = refused(tokens_per_s_per_gpu="113", step_time_s="18130")
    assert line.endswith("(113, not 0.113), got '18130' (milliseconds?)")
    (line,) = refused(tokens_per_s_per_gpu="7230")
    assert line.endswith("(tokens/s of all GPUs?)")


def test_a_column_excludes_a_row() -> None:
    assert excluded(MeasuredRun(where="", fields={"excluded": " throttled "})) == "throttled"
    assert excluded(MeasuredRun(where="", fields={"excluded": ""})) is None
    assert excluded(MeasuredRun(where="", fields={"notes": "EXCLUDED: throttled"})) is None


# --- utilisation -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run_id", "published"),
    [
        ("korthikanti22-t5-002", 0.415),
        ("korthikanti22-t5-004", 0.514),
        ("korthikanti22-t5-006", 0.560),
        ("korthikanti22-t5-008", 0.563),
    ],
)
def test_mfu_is_what_the_paper_printed(run_id: str, published: float) -> None:
    """Korthikanti et al. 2022, table 5; they count the attention in full, 1 to 3 % more."""
    row = ROWS[run_id]
    run = run_of(row)
    tokens = float(run.workload.recipe.tokens_per_step)
    length = run.workload.recipe.sequence_length
    flop = model_flop_per_step(run.workload.architecture, tokens=tokens, sequence_length=length)
    both = utilisation(run, model_flop=flop, step_time_s=float(row["step_time_s"]))
    assert both[0] == both[1]  # fp16 and bf16 have one peak
    assert published / 1.05 < both[0] < published


def test_mfu_over_the_peak_of_the_own_precision() -> None:
    fp8 = next(
        row
        for row in ROWS.values()
        if row["precision"].startswith("fp8") and row["gpu"] == "H100-SXM5-80GB"
    )
    run, gpus = run_of(fp8), int(fp8["num_gpus"])
    flop = gpus * 1.5 * H100_FLOP_PER_S * 4.0
    bf16, own = utilisation(run, model_flop=flop, step_time_s=4.0)
    assert bf16 == pytest.approx(1.5, rel=1e-9)
    assert own == pytest.approx(0.75, rel=1e-3)  # 1978.9 is printed for 2 x 989.4
    assert implausible(run, Readings(step_time_s=4.0), model_flop=flop) == []


# --- what cannot be ----------------------------------------------------------------------


def wrong(**given: Any) -> list[str]:
    """Say what is wrong with a run whose 64 A100 at their peak would take 10 s for a step."""
    flop = 64 * A100_FLOP_PER_S * 10.0
    return implausible(run_of(GPT), Readings(**given), model_flop=flop)


def test_a_step_cannot_beat_the_peak() -> None:
    assert wrong(step_time_s=10.01) == []
    (line,) = wrong(step_time_s=4.0)
    assert line == (
        "step_time_s: implies 2.5 x the dense fp16 peak of a100-sxm-80; seconds expected, got 4"
    )


def test_a_thousandth_of_the_peak_is_in_milliseconds() -> None:
    assert wrong(step_time_s=9_990.0) == []
    (line,) = wrong(step_time_s=20_000.0)
    assert line == (
        "step_time_s: implies 0.05 % of the dense fp16 peak of a100-sxm-80; seconds expected,"
        " got 20000 (milliseconds?)"
    )


@pytest.mark.parametrize("run_id", ["korthikanti22-t5-004", "internevo-001", "torchtune-003"])
def test_milliseconds_are_found_at_any_utilisation(run_id: str) -> None:
    """From 0.35 to 0.62 of the peak, a thousand times slower is under a thousandth of it."""
    run, seconds = run_of(ROWS[run_id]), float(ROWS[run_id]["step_time_s"])
    recipe = run.workload.recipe
    flop = model_flop_per_step(
        run.workload.architecture,
        tokens=float(recipe.tokens_per_step),
        sequence_length=recipe.sequence_length,
    )
    assert implausible(run, Readings(step_time_s=seconds), model_flop=flop) == []
    assert len(implausible(run, Readings(step_time_s=1e3 * seconds), model_flop=flop)) == 1
    assert len(implausible(run, Readings(step_time_s=1e-3 * seconds), model_flop=flop)) == 1


def test_a_flop_rate_beyond_all_conventions_is_in_another_unit() -> None:
    assert wrong(tflops_per_gpu=623.0) == []
    (line,) = wrong(tflops_per_gpu=156_000.0)  # GFLOP/s
    assert line == (
        "model_tflops_per_gpu: is 500 x the dense fp16 peak of a100-sxm-80; TFLOP/s expected,"
        " got 156000"
    )
    (line,) = wrong(tflops_per_gpu=156e12)  # FLOP/s
    assert "TFLOP/s expected, got 1.56e+14" in line


def test_a_reading_cannot_exceed_the_device_and_arithmetic_can() -> None:
    assert wrong(memory_gib=85.8, memory_kind="reserved") == []  # 80 GiB are 85.9 GB
    assert wrong(memory_gib=112.4, memory_kind="analytic") == []
    whole = 80 * 2**30 / 1e9  # all that there is can be taken
    assert wrong(memory_gib=whole, memory_kind="reserved") == []
    (line,) = wrong(memory_gib=whole + 0.01, memory_kind="reserved")
    (line,) = wrong(memory_gib=70_000.0, memory_kind="nvidia_smi")  # MiB
    assert line == ("peak_memory_gib: is above the 85.9 GB of a100-sxm-80; GiB expected, got 70000")


def test_all_that_is_wrong_is_told() -> None:
    found = wrong(step_time_s=1.0, tflops_per_gpu=1e6, memory_gib=1e6, memory_kind="unknown")
    assert [line.partition(":")[0] for line in found] == [
        "step_time_s",
        "model_tflops_per_gpu",
        "peak_memory_gib",
    ]


def test_every_shipped_row_can_be_right() -> None:
    for name in ("calibrate", "test", "vtrain_single", "analytic_memory"):
        for line, row in read_csv(RUNS / f"{name}.csv"):
            run = MeasuredRun(where=f"{name}: line {line}", fields=row)
            assert readings(run).memory_kind in (
                None,
                "allocated",
                "reserved",
                "nvidia_smi",
                "analytic",
            )


@pytest.mark.parametrize("column", ["memory_stage", "memory_read"])
def test_when_and_where_memory_was_read_is_said_in_known_words(column: str) -> None:
    with pytest.raises(InputError, match=rf"runs\.csv: line 7: {column}: must be one of .*'x'"):
        read(**{column: "x"})
