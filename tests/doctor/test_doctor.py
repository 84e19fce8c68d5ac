"""The self-check: it covers all pairs, passes on what ships, and sees what is broken."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import pytest
from typer.testing import CliRunner

from simulator import catalogue
from simulator.cli.main import app
from simulator.doctor.examine import (
    IDENTITIES,
    Combination,
    broken,
    every_pair,
    examine,
    one_of_each,
)
from simulator.hardware.cluster import load_cluster
from simulator.planner.prediction import Prediction, predict
from simulator.scenario import make_scenario
from simulator.software.profile import load_software
from simulator.workload import presets


@pytest.fixture(scope="module")
def sound() -> Prediction:
    scenario = make_scenario(
        {
            "model": {"name": "llama-3.1-8b"},
            "training": {"sequence_length": 2048, "global_batch": 64, "tokens": 1e9},
            "cluster": {"name": "dgx-h100", "gpus": 16},
        }
    )
    return predict(scenario, tp=2)


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
