"""Vendors' claims, predicted for each thing that they may mean: verdicts of docs/decisions.md.

The claims are the vendor's; the tests hold which readings can be true, and arithmetic bounds.
"""

from functools import lru_cache
from typing import Any

import pytest

from simulator.decisions.offers import Asked, Offer, offer
from simulator.hardware.cluster import load_accelerator
from simulator.scenario import make_scenario

pytestmark = pytest.mark.evidence

GPT_40B = {
    "model_type": "gpt2",
    "name": "gpt-40b",
    "n_layer": 48,
    "n_head": 64,
    "n_embd": 8192,
    "n_positions": 2048,
    "vocab_size": 50304,
}
HOURS = 7.0
"""Claimed: 860 million tokens on 8 L40S."""


@lru_cache
def tuned(cluster: str, gpus: int, precision: str, lora: bool) -> Offer:
    training: dict[str, Any] = {"sequence_length": 2048, "global_batch": 128, "tokens": 860e6}
    training |= {"precision": precision, **({"lora_rank": 16} if lora else {})}
    document = {
        "model": GPT_40B,
        "training": training,
        "cluster": {"name": cluster, "gpus": gpus},
    }
    return offer(make_scenario(document), Asked())


def hours(found: Offer, chance: float) -> float:
    assert found.days is not None, found.reason
    return 24.0 * found.days.at(chance)


def test_the_peak_of_8_cards_bounds_every_reading() -> None:
    # 4 FLOPs a frozen parameter and token: 1.38e20 take 13 h at the bf16 peak, 6.5 h at fp8's.
    peaks = load_accelerator("l40s").matrix_flop_per_s
    flop = 4.0 * 40e9 * 860e6
    assert flop / (8 * peaks["bf16"]) / 3600.0 > HOURS
    assert 6.0 < flop / (8 * peaks["fp8"]) / 3600.0 < HOURS


def test_eight_cards_do_not_do_it() -> None:
    assert not tuned("l40s-pcie", 8, "bf16", False).feasible
    assert not tuned("l40s-pcie", 8, "fp8", False).feasible
    for precision in ("bf16", "fp8"):
        assert hours(tuned("l40s-pcie", 8, precision, True), 0.1) > 2.0 * HOURS


def test_eight_servers_do() -> None:
    assert hours(tuned("l40s-pcie", 64, "bf16", False), 0.1) < HOURS
    assert hours(tuned("l40s-pcie", 64, "fp8", False), 0.1) < HOURS
    assert hours(tuned("l40s-pcie", 64, "bf16", True), 0.9) < HOURS


def test_no_reading_has_1_7_times_the_speed_of_a100() -> None:
    for gpus, lora in ((8, True), (64, True), (64, False)):
        a100 = tuned("dgx-a100", gpus, "bf16", lora)
        for precision in ("bf16", "fp8"):
            l40s = tuned("l40s-pcie", gpus, precision, lora)
            assert a100.step_time_s is not None and l40s.step_time_s is not None
            assert a100.step_time_s / l40s.step_time_s < 1.7


@pytest.mark.parametrize(
    ("cluster", "precision"), [("dgx-2", "fp16"), ("dgx-a100", "bf16"), ("l40s-pcie", "bf16")]
)
def test_gpt_3_on_10_000_cards_in_30_days(cluster: str, precision: str) -> None:
    document = {
        "model": {"name": "gpt3-175b"},
        "training": {
            "sequence_length": 2048,
            "global_batch": 2500,
            "tokens": 300e9,
            "precision": precision,
        },
        "cluster": {"name": cluster, "gpus": 10_000},
    }
    found = offer(make_scenario(document), Asked())
    assert found.days is not None and found.days.p90 < 30.0
