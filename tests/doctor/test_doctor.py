"""The self-check: it covers all pairs, passes on what ships, and sees what is broken."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from itertools import product
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from simulator import catalogue
from simulator.cli.main import app
from simulator.doctor.command import screen
from simulator.doctor.examine import (
    IDENTITIES,
    Broken,
    Combination,
    Examination,
    Finding,
    broken,
    every_pair,
    examine,
    one_of_each,
)
from simulator.files import Figure
from simulator.hardware.cluster import load_cluster
from simulator.planner.prediction import Prediction, predict
from simulator.scenario import make_scenario
from simulator.software.profile import load_software
from simulator.workload import presets


def document(model: str, *, sequence_length: int = 2048) -> dict[str, Any]:
    return {
        "model": {"name": model},
        "training": {"sequence_length": sequence_length, "global_batch": 64, "tokens": 1e9},
        "cluster": {"name": "dgx-h100", "gpus": 16},
    }


@pytest.fixture(scope="module")
def sound() -> Prediction:
    return predict(make_scenario(document("llama-3.1-8b")), tp=2)


@pytest.mark.evidence
def test_all_pairs_are_covered() -> None:
    """Every model meets every cluster and software, every software every cluster it runs on."""
    cases = every_pair()
    models, clusters = presets.names(), catalogue.names("clusters")
    assert {(one.model, one.cluster) for one in cases} == set(product(models, clusters))
    platforms = {name: load_cluster(name, 1).accelerator.platform for name in clusters}
    runs = {
        (software, cluster)
        for software in catalogue.names("software")
        for cluster in clusters
        if platforms[cluster] in load_software(software).platforms
    }
    assert {(one.software, one.cluster) for one in cases} == runs
    on_cuda = {software for software, cluster in runs if platforms[cluster] == "cuda"}
    assert {(one.model, one.software) for one in cases} >= set(product(models, on_cuda))


def test_the_short_check_has_everything_once() -> None:
    cases = one_of_each()
    assert {one.model for one in cases} == set(presets.names())
    assert {one.cluster for one in cases} == set(catalogue.names("clusters"))
    runnable = {one.software for one in every_pair()}
    assert {one.software for one in cases} == runnable


def test_a_sound_prediction_breaks_nothing(sound: Prediction) -> None:
    assert broken(sound) == []


def spoilt(sound: Prediction, identity: str) -> Prediction:
    """The prediction with one side of an identity moved by a thousandth, or turned around."""
    estimate, outcome, sure = sound.estimate, sound.outcome, sound.certainty
    if identity == "terms add up":
        return replace(sound, estimate=replace(estimate, step_time_s=estimate.step_time_s * 1.001))
    if identity == "median inside its interval":
        return replace(sound, certainty=replace(sure, p10_s=sure.p90_s))
    if identity == "FLOPs by three roads":
        return replace(sound, estimate=replace(estimate, model_flop=estimate.model_flop * 0.999))
    if identity == "bytes by two roads":
        more = estimate.memory_total_bytes * 1.001
        return replace(sound, estimate=replace(estimate, memory_total_bytes=more))
    if identity == "no device beyond its peak":
        return replace(
            sound, estimate=replace(estimate, executed_flop=estimate.executed_flop * 10.0)
        )
    if identity == "no device beyond what was measured":
        return replace(sound, estimate=replace(estimate, model_flop=estimate.model_flop * 10.0))
    if identity == "money is hours by price":
        return replace(sound, outcome=replace(outcome, usd=outcome.usd * 1.001))
    return replace(sound, outcome=replace(outcome, kwh=outcome.kwh * 10.0))


@pytest.mark.parametrize("identity", IDENTITIES)
def test_what_is_broken_is_seen(sound: Prediction, identity: str) -> None:
    assert identity in {one.identity for one in broken(spoilt(sound, identity))}


def told(prediction: Prediction, identity: str) -> list[str]:
    return [one.said for one in broken(prediction) if one.identity == identity]


@pytest.mark.parametrize("side", ["idle", "busy"])
@pytest.mark.parametrize(("off", "sound_still"), [(-1e-6, False), (1e-6, True)])
def test_energy_lies_between_servers_idle_and_busy_by_hand(
    sound: Prediction, side: str, off: float, sound_still: bool
) -> None:
    """Two servers of eight, the site's overhead and its network's share on top."""
    outcome, node = sound.outcome, sound.scenario.cluster.node
    power = sound.scenario.cluster.accelerator.power
    device_watt = float(power.idle_watt if side == "idle" else power.busy_watt)
    servers_watt = 2 * float(node.host_watt) + 16 * device_watt
    site = outcome.site
    over = float(site.power_usage_effectiveness) / (1 - float(site.network_watt_fraction))
    kwh = servers_watt * over * float(outcome.days[0]) * 86_400 / 3.6e6
    inwards = off if side == "idle" else -off
    changed = replace(sound, outcome=replace(outcome, kwh=np.array([kwh * (1 + inwards)])))
    assert (told(changed, "energy between idle and busy") == []) is sound_still


@pytest.mark.parametrize("included", [True, False])
def test_money_by_hand(included: bool) -> None:
    """Three hot spares of eight are paid beside 16; electricity where the price has none."""
    run = {"spares": {"hot": 3}}
    found = predict(make_scenario({**document("llama-3.1-8b"), "run": run}), tp=2)
    outcome, usd_per_hour, usd_per_kwh = found.outcome, 2.5, 0.08
    paid = Figure(usd_per_hour)
    price = replace(outcome.price, usd_per_gpu_hour=paid, included_power=included)
    site = replace(outcome.site, electricity_usd_per_kwh=Figure(usd_per_kwh))
    hours = float(outcome.days[0]) * 24 * (16 + 3 * 8)
    usd = hours * usd_per_hour + (0 if included else usd_per_kwh * float(outcome.kwh[0]))
    due = replace(outcome, price=price, site=site, usd=np.array([usd]), gpu_hours=np.array([hours]))
    assert told(replace(found, outcome=due), "money is hours by price") == []
    over = np.array([1 + 1e-6])
    for wrong in (replace(due, usd=usd * over), replace(due, gpu_hours=hours * over)):
        (line,) = told(replace(found, outcome=wrong), "money is hours by price")
        assert f"{usd:.6g} USD" in line or f"for {hours:.6g} hours" in line


@pytest.mark.parametrize(
    ("model", "length", "parameters", "table", "seen"),
    [
        ("gpt2-small", 1024, 124_439_808 - 1024 * 768, 0, 512),  # positions learned, table shared
        ("llama-3.1-8b", 2048, 8_030_261_248, 128_256 * 4096, 1024),
        ("mistral-7b", 8192, 7_241_732_096, 32_000 * 4096, 3072),  # a window of 4,096
    ],
)
def test_flop_by_the_formula_of_palm(
    model: str, length: int, parameters: int, table: int, seen: int
) -> None:
    """Chowdhery et al. 2022, appendix B: T (6 N + 12 L H Q S), half of it seen by causal tokens.

    Parameters as their authors' checkpoints have them. A window of half the length hides from the
    latter half all but 4,096: 3/4 of 4,096 are seen on average.
    """
    found = predict(make_scenario(document(model, sequence_length=length)))
    arch = found.scenario.workload.architecture
    scores = arch.blocks[0].attention
    assert scores is not None
    attention = 12 * len(arch.layer_kinds) * seen * scores.heads * scores.head_dim
    by_hand = 64 * length * (6 * (parameters - table) + attention)
    for over, named in ((1.0200, False), (1.0215, True)):
        moved = replace(found.estimate, model_flop=by_hand * over)
        said = told(replace(found, estimate=moved), "FLOPs by three roads")
        assert any("by 6 N T and attention" in line for line in said) is named


@pytest.mark.parametrize(
    ("model", "length"),
    [("bert-large", 512), ("deberta-v3-large", 512), ("granite-4.0-h-micro", 512),
     ("qwen2.5-vl-7b", 512), ("resnet-50", 1), ("t5-11b", 512)],
)  # fmt: skip
def test_formulas_of_plain_decoders_are_not_asked_of_others(model: str, length: int) -> None:
    found = predict(make_scenario(document(model, sequence_length=length)))
    wrong = replace(found.estimate, model_flop=found.estimate.model_flop * 2.0)
    said = told(replace(found, estimate=wrong), "FLOPs by three roads")
    assert said and not any("by 6 N T" in line or "by the operators" in line for line in said)


def test_a_device_at_its_peak_is_beyond_it(sound: Prediction) -> None:
    """989.4 TFLOP/s of dense bf16 on an H100 (data sheet), 16 of them."""
    for share, beyond in ((0.9999, False), (1.0001, True)):
        flop = np.array([share * 989.4e12 * 16 * sound.step_time_s])
        changed = replace(sound, estimate=replace(sound.estimate, executed_flop=flop))
        assert bool(told(changed, "no device beyond its peak")) is beyond


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_bytes_of_a_kind_are_a_size(sound: Prediction, value: float) -> None:
    kinds = {**sound.estimate.memory_bytes, "weights": np.array([value])}
    said = told(
        replace(sound, estimate=replace(sound.estimate, memory_bytes=kinds)), "bytes by two roads"
    )
    assert f"weights are {value:.6g} bytes" in said


@pytest.mark.parametrize("term_s", [-1e-3, float("nan")])
def test_a_term_of_less_than_nothing_is_seen(sound: Prediction, term_s: float) -> None:
    terms = {**sound.estimate.terms_s, "gemm": np.array([term_s])}
    assert told(replace(sound, estimate=replace(sound.estimate, terms_s=terms)), "terms add up")


def shown(examination: Examination) -> str:
    console = Console(file=StringIO(), width=200)
    console.print(*screen(examination), sep="\n")
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_screen_lists_forty_of_what_is_broken_and_the_commonest_refusals() -> None:
    combination = Combination("gpt2-small", "dgx-h100", "plain-ddp")
    findings = [
        Finding(combination=combination, broken=Broken(identity=f"law {i}", said="1, not 2"))
        for i in range(46)
    ]
    refused = {f"reason {i}": i for i in range(1, 48)}
    few = Examination(predicted=1234, refused=refused, findings=tuple(findings[:40]))
    text = shown(few)
    assert "1,234 combinations" in text and "40 broken" in text and " more" not in text
    assert f"{sum(range(1, 48)):,} do not fit together" in text
    assert "47: reason 47" in text and "8: reason 8" in text and "7: reason 7\n" not in text
    many = shown(replace(few, findings=tuple(findings)))
    assert "46 broken" in many and "and 6 more, see --json" in many
    assert "law 39: 1, not 2" in many and "law 40" not in many
    assert "nothing broken" in shown(replace(few, refused={}, findings=()))


def test_a_crash_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(case: Combination) -> str:
        raise ZeroDivisionError(case.model)

    monkeypatch.setattr("simulator.doctor.examine._predicted", crash)
    found = examine([Combination("gpt2-small", "dgx-h100", "plain-ddp")])
    (finding,) = found.findings
    assert (finding.broken.identity, found.predicted) == ("ends in an answer", 1)
    assert finding.broken.said == "ZeroDivisionError: gpt2-small"


def test_padded_experts_do_more_than_the_model_asks_for_and_break_nothing() -> None:
    checked = examine([Combination("mixtral-8x7b", "dgx-h100", "kempnerforge")])
    assert (checked.predicted, checked.findings) == (1, ())


def test_what_does_not_fit_together_is_counted() -> None:
    """GPT-2 runs by plain DDP on GPUs; on a TPU nothing of CUDA does."""
    found = examine([Combination("gpt2-small", "dgx-h100", "plain-ddp")] * 2)
    assert (found.predicted, found.refused, found.findings) == (2, {}, ())
    found = examine([Combination("gpt2-small", "tpu-v4", "plain-ddp")])
    assert found.predicted == 0 and "runs on cuda" in next(iter(found.refused))


def test_a_traced_model_is_asked_about_in_its_own_type() -> None:
    """ResNet-50 was traced twice: kept in 2 bytes an element and in 4."""
    cases = [Combination(name, "dgx-h100", "plain-ddp") for name in ("resnet-50", "resnet-50-fp32")]
    found = examine(cases)
    assert (found.predicted, found.refused, found.findings) == (2, {}, ())


@pytest.mark.evidence
def test_every_pair_is_sound() -> None:
    found = examine(every_pair())
    assert found.findings == ()
    assert found.predicted > 3000


@pytest.mark.evidence
def test_the_command_says_so() -> None:
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["findings"] == [] and said["predicted"] > 50
    assert said["identities"] == list(IDENTITIES)
