"""The baselines against the figures that the tables of measured runs came with."""

from __future__ import annotations

from collections import defaultdict
from statistics import mean, median

import pytest

from simulator import catalogue
from simulator.cost.operators.model_flop import model_flop_per_step
from simulator.errors import InputError
from simulator.measured.replay import NotReplayable, load_tables, replay
from simulator.measured.rows import MeasuredRun, read_runs
from simulator.scoring.baselines import (
    ConstantEfficiency,
    constant_efficiency,
    dense_peaks,
    executed_flop,
    precision_class,
    shipped_baseline,
)

# What whoever composed the tables computed with a program of their own: TFLOP/s per GPU.
TFLOP_PER_S = {
    "16 bit": {
        "GB300-NVL72": 668, "GB200-NVL72": 543, "B300": 288, "B200-180GB": 644,
        "H100-SXM5-80GB": 483, "A100-SXM4-80GB": 129, "A100-SXM4-40GB": 141,
        "H100-HBM2e-96GB": 316,
    },
    "fp8": {
        "GB300-NVL72": 2048, "GB200-NVL72": 1577, "H100-SXM5-80GB": 698, "B300": 681,
        "B200-180GB": 1513, "H100-HBM2e-96GB": 347,
    },
    "fp4": {"GB300-NVL72": 3054, "GB200-NVL72": 2003},
}  # fmt: skip

# And the errors: rows, mean and median absolute error, bias, in percent.
ERRORS = {
    ("calibrate", "bloom-prequel"): (81, 9.2, 8.7, 1.8),
    ("calibrate", "dgxc-24.11"): (70, 7.4, 6.4, -0.6),
    ("calibrate", "dgxc-25.02"): (59, 9.2, 7.2, 2.2),
    ("calibrate", "llmfoundry-readme"): (138, 22.9, 18.3, -3.5),
    ("calibrate", "mbridge-25.09"): (11, 27.1, 4.2, -22.4),
    ("calibrate", "mbridge-25.11"): (10, 20.0, 3.6, -10.9),
    ("calibrate", "mbridge-26.02"): (17, 26.1, 4.3, -22.2),
    ("calibrate", "narayanan21-t1"): (10, 10.5, 6.5, 10.5),
    ("calibrate", "simumax-70b"): (12, 20.4, 20.5, 11.5),
    ("calibrate", "simumax-moe"): (6, 16.9, 14.7, -16.9),
    ("calibrate", "torchtitan-2024.12"): (10, 17.8, 8.7, -3.5),
    ("calibrate", "vtrain-multi-3.6b"): (26, 29.0, 22.1, -28.0),
    ("calibrate", "all"): (450, 16.2, 10.1, -3.6),
    ("test", "bloom-prequel"): (22, 10.7, 10.2, -0.8),
    ("test", "dgxc-24.11"): (18, 9.9, 5.6, -8.1),
    ("test", "dgxc-25.02"): (18, 9.2, 3.6, -6.9),
    ("test", "internevo-7b"): (48, 24.4, 24.2, 21.7),
    ("test", "korthikanti22-t5"): (8, 24.0, 28.9, 23.5),
    ("test", "llmfoundry-readme"): (78, 28.2, 21.1, 10.6),
    ("test", "mbridge-25.09"): (14, 41.1, 54.8, -35.3),
    ("test", "mbridge-25.11"): (6, 32.4, 27.5, -10.8),
    ("test", "mbridge-26.02"): (16, 35.1, 35.1, -14.9),
    ("test", "simumax-405b"): (12, 25.6, 25.4, 25.6),
    ("test", "torchtitan-2024.12"): (8, 37.2, 42.3, -7.6),
    ("test", "torchtune"): (7, 50.3, 53.4, 50.3),
    ("test", "vtrain-multi-18.4b"): (15, 15.8, 11.7, -15.8),
    ("test", "all"): (270, 24.7, 20.6, 4.9),
    ("calibrate", "vtrain-single"): (301, 64.0, 67.9, -63.9),
    ("test", "vtrain-single"): (302, 57.4, 61.4, -57.3),
}

# Data sheets: dense bf16. The 96 GB H100 prints none; counted as an SXM part, as its source does.
BF16_PEAK = {
    "A100-SXM4-40GB": 312e12, "A100-SXM4-80GB": 312e12, "H100-SXM5-80GB": 989.4e12,
    "H100-HBM2e-96GB": 989.4e12, "B200-180GB": 2.25e15, "B300": 2.25e15, "GB200-NVL72": 2.5e15,
    "GB300-NVL72": 2.5e15,
}  # fmt: skip
FP4_PEAK = {"GB200-NVL72": 10e15, "GB300-NVL72": 15e15}


def shipped(*names: str) -> list[MeasuredRun]:
    return read_runs([catalogue.folder("validation") / "runs" / f"{name}.csv" for name in names])


@pytest.fixture(scope="module")
def runs() -> list[MeasuredRun]:
    return shipped("calibrate", "test", "vtrain_single")


@pytest.fixture(scope="module")
def fitted() -> ConstantEfficiency:
    peaks = {(gpu, "16 bit"): peak for gpu, peak in BF16_PEAK.items()}
    peaks |= {(gpu, "fp8"): 2 * peak for gpu, peak in BF16_PEAK.items() if "A100" not in gpu}
    peaks |= {(gpu, "fp4"): peak for gpu, peak in FP4_PEAK.items()}
    return constant_efficiency(shipped("calibrate"), peaks)


def test_the_rates_are_those_that_the_tables_came_with(fitted: ConstantEfficiency) -> None:
    found: dict[str, dict[str, int]] = {}
    for (gpu, bits), rate in fitted.flop_per_s.items():
        found.setdefault(bits, {})[gpu] = round(rate / 1e12)
    assert found == TFLOP_PER_S
    shares = {bits: round(share, 3) for bits, share in fitted.peak_share.items()}
    assert shares == {"16 bit": 0.427, "fp8": 0.348, "fp4": 0.202}


def test_the_errors_are_those_that_the_tables_came_with(
    fitted: ConstantEfficiency, runs: list[MeasuredRun]
) -> None:
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    for run in runs:
        predicted = fitted.predict_s(run)
        assert predicted is not None
        error = 100 * (predicted / float(run.fields["step_time_s"]) - 1)
        source = run.get("source")
        errors[run.get("split"), source].append(error)
        if source != "vtrain-single":
            errors[run.get("split"), "all"].append(error)
    found = {}
    for key, some in errors.items():
        size = [abs(error) for error in some]
        found[key] = (len(some), *(round(x, 1) for x in (mean(size), median(size), mean(some))))
    assert found == ERRORS


def test_another_gpu_runs_at_the_usual_share_of_its_peak(fitted: ConstantEfficiency) -> None:
    run = next(run for run in shipped("test") if run.get("precision") == "bf16")
    known = MeasuredRun(where="", fields={**run.fields, "gpu": "H100-SXM5-80GB"})
    other = MeasuredRun(where="", fields={**run.fields, "gpu": "H200-SXM-141GB"})
    assert fitted.predict_s(other) is None  # no peak, no guess
    wider = ConstantEfficiency(
        flop_per_s=fitted.flop_per_s,
        peak_share={"16 bit": 0.4},
        peak_flop_per_s={("H200-SXM-141GB", "16 bit"): 989.4e12},
    )
    slower = 0.4 * 989.4e12 / fitted.flop_per_s["H100-SXM5-80GB", "16 bit"]
    assert wider.predict_s(known) == pytest.approx((wider.predict_s(other) or 0.0) * slower)


def test_a_row_that_cannot_be_read_has_no_baseline(fitted: ConstantEfficiency) -> None:
    run = shipped("test")[0]
    for column, value in (("hidden", "wide"), ("heads", ""), ("precision", ""), ("gpu", "")):
        bad = MeasuredRun(where="", fields={**run.fields, column: value})
        assert fitted.predict_s(bad) is None, column
    with pytest.raises(InputError, match="hidden: must be a whole number, got 'wide'"):
        constant_efficiency([MeasuredRun(where="", fields={**run.fields, "hidden": "wide"})], {})


def test_flops_agree_with_those_of_the_simulator(runs: list[MeasuredRun], extent: str) -> None:
    # Two programs, one convention: what the table says against the architecture made of it.
    tables, seen, every = load_tables(), 0, {"sample": 8, "whole": 1}[extent]
    for run in runs[::every]:
        if run.get("recompute") == "full" or run.get("mtp_layers") not in ("", "0"):
            continue
        if run.get("family") == "gpt_oss":  # windowed attention, which the baseline counts in full
            continue
        try:
            replayed = replay(run.fields, tables)
        except (NotReplayable, InputError):
            continue
        recipe = replayed.workload.recipe
        flop = model_flop_per_step(
            replayed.workload.architecture,
            tokens=recipe.tokens_per_step,
            sequence_length=recipe.sequence_length,
        )
        assert executed_flop(run) == pytest.approx(flop, rel=1e-9), run.get("run_id")
        seen += 1
    assert seen > 150 / every


def test_recomputed_layers_count_once_more() -> None:
    run = next(run for run in shipped("calibrate") if run.get("recompute") == "none")
    layers, stages = int(run.fields["layers"]), int(run.fields["pp"])
    full = {"recompute": "full", "recompute_layers": ""}
    some = {"recompute": "full", "recompute_layers": "1"}
    more = {"recompute": "full", "recompute_layers": str(layers // stages + 1)}
    plain, whole, one, over = (
        executed_flop(MeasuredRun(where="", fields={**run.fields, **words}))
        for words in ({}, full, some, more)
    )
    assert whole == over == pytest.approx(4 / 3 * plain)
    assert one == pytest.approx((1 + stages / layers / 3) * plain)


def test_the_shipped_baseline_is_the_fit_to_the_calibration_rows(
    fitted: ConstantEfficiency,
) -> None:
    assert shipped_baseline().flop_per_s == fitted.flop_per_s
    peaks = dense_peaks()
    for gpu in ("A100-SXM4-80GB", "H100-SXM5-80GB", "B200-180GB", "GB200-NVL72"):
        assert peaks[gpu, "16 bit"] == pytest.approx(BF16_PEAK[gpu], rel=1e-3)
    assert peaks["H100-SXM5-80GB", "fp8"] == pytest.approx(1978.9e12, rel=1e-3)


def test_classes_of_precision() -> None:
    classes = {
        "bf16": "16 bit",
        "fp16": "16 bit",
        "fp8_blockwise": "fp8",
        "mxfp8": "fp8",
        "nvfp4": "fp4",
        "fp32": "32 bit",
        "": "",
    }
    assert {name: precision_class(name) for name in classes} == classes
