"""Runs over several sites: made of what each site takes alone, and refused where they cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.errors import InputError
from simulator.planner.prediction import predict
from simulator.questions.sites.answer import SeveralSites, several_sites
from simulator.scenario import make_scenario

PINS = {"tp": 1, "pp": 1, "cp": 1, "micro_batch": 1, "sharding": "zero2", "recompute": "none",
        "rank_order": "tp-cp-dp-pp", "vpp": 1}  # fmt: skip


def place(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name, "cluster": "dgx-h100", "gpus": 8, "uplink_bytes_per_s": 1.25e9,
        "latency_s": 0.02, **more,
    }  # fmt: skip


def document(**sites: Any) -> dict[str, Any]:
    return {
        "model": {"name": "llama-3.2-1b"},
        "training": {"sequence_length": 4096, "global_batch": 64, "tokens": 1e10},
        "cluster": {"name": "dgx-h100", "gpus": 16, "software": "torchtitan"},
        "layout": PINS,
        "sites": {"at": [place("a"), place("b")], **sites},
    }


def answer(**sites: Any) -> SeveralSites:
    return several_sites(make_scenario(document(**sites)))


def test_two_halves_by_hand() -> None:
    """100 steps of 32 sequences on 8 GPUs each, then fp32 weights of 1.236 billion, once round."""
    found = answer(inner_steps=100)
    alone = document()
    alone["training"]["global_batch"], alone["cluster"]["gpus"] = 32, 8
    step_s = predict(make_scenario(alone)).step_time_s
    parameters = found.scenario.workload.architecture.parameters
    cycle = found.cycle
    assert cycle is not None
    assert cycle.inner_step_s == pytest.approx(step_s, rel=1e-9)
    assert cycle.sent_bytes == 4 * parameters  # 2 (2 - 1) / 2 of the message
    ring_s = 4 * parameters / 1.25e9 + 2 * 0.02
    assert cycle.exchange_s == pytest.approx(ring_s)
    outer_s = cycle.own_s  # 28 B a parameter over 8 GPUs, under a tenth of a second
    assert 28 * parameters / 8 / 3.35e12 < outer_s < 0.1
    assert cycle.total_s == pytest.approx(100 * step_s + ring_s + outer_s)
    steps = 1e10 / (64 * 4096)
    assert found.own.days_ideal == pytest.approx(steps * cycle.total_s / 100 / 86_400)


def own_s(compression: str) -> float:
    at = [place(f"site {i}") for i in range(4)]
    made = document(at=at, inner_steps=100, compression=compression, compression_fraction=0.25)
    made["cluster"]["gpus"], made["training"]["global_batch"] = 32, 96
    found = several_sites(make_scenario(made))
    assert found.cycle is not None
    return found.cycle.own_s


def test_messages_that_are_not_summed_are_read_of_every_other_site() -> None:
    """The largest values, of four sites: 32 B of every value make a message, 16 B of each that was
    sent, a quarter, are read of three others; beside the 28 B of DiLoCo's outer step."""
    assert own_s("top-k") / own_s("none") == pytest.approx((28 + 32 + 3 * 0.25 * 16) / 28)


@pytest.mark.evidence
def test_more_steps_are_days() -> None:
    plain, more = answer(inner_steps=10), answer(inner_steps=10, more_steps_fraction=0.25)
    assert plain.own.days_ideal is not None
    assert more.own.days_ideal == pytest.approx(1.25 * plain.own.days_ideal)
    assert more.alternatives[1:] == plain.alternatives[1:]


def test_the_slow_site_is_waited_for_and_even_batches_mend_it() -> None:
    slow = [place("a"), place("b", cluster="dgx-a100")]
    found = answer(at=slow, inner_steps=50)
    fast_s, slow_s = (step.step_time_s for step in found.steps)
    assert found.cycle is not None and found.cycle.inner_step_s == slow_s > 1.5 * fast_s
    assert found.even_batches is not None and sum(found.even_batches) == 64
    one, two = found.even_batches
    assert one / two == pytest.approx(slow_s / fast_s, rel=0.05)


@pytest.mark.evidence
def test_every_step_is_no_cycle() -> None:
    found = answer(outer_step="synchronous")
    assert found.cycle is not None and found.cycle.inner_steps == 1
    assert [row.name for row in found.alternatives] == [
        *("these sites", "one place", "a alone", "b alone")
    ]
    assert found.cycle.utilisation < answer(inner_steps=100).cycle.utilisation  # type: ignore[union-attr]


def test_wait_for_one_place_until_both_end_together() -> None:
    found = answer(inner_steps=100)
    one = next(row for row in found.alternatives if row.name == "one place")
    assert found.wait_days is not None and one.days_ideal is not None
    assert found.wait_days + one.days_ideal == pytest.approx(found.own.days_ideal)


def test_rates_are_told_for_the_utilisations_of_streaming_diloco() -> None:
    """50, 80, 90, 95 and 99 % (Douillard et al. 2025, arXiv 2501.18512, table 1), by what is sent.

    The exchange is waited for whole: of a cycle of N inner steps it may take N (1 / u - 1) steps.
    """
    found = answer(inner_steps=100)
    cycle, told = found.cycle, found.uplink_bytes_per_s_for_utilisation
    assert cycle is not None
    assert [row["utilisation"] for row in told] == [0.5, 0.8, 0.9, 0.95, 0.99]
    for row in told:
        waits_s = 100 * cycle.inner_step_s * (1.0 / row["utilisation"] - 1.0) - cycle.own_s
        sends_s = waits_s - 2 * 0.02
        assert row["bytes_per_s"] == pytest.approx(cycle.sent_bytes / sends_s)


def test_an_exchange_may_run_beside_all_steps_up_to_the_next() -> None:
    assert answer(inner_steps=8, fragments=4, overlap_steps=2).sites.overlap_steps == 2


def test_states_on_the_host() -> None:
    found = answer(inner_steps=10, outer_states="host")
    parameters = found.scenario.workload.architecture.parameters
    assert found.steps[0].extra_bytes == 0.0 and found.steps[0].host_bytes == 8 * parameters
    adam_s = parameters / 3.9e9  # of the one server
    assert found.cycle is not None and found.cycle.own_s > adam_s


@pytest.mark.parametrize(
    ("sites", "words"),
    [
        ({"at": [place("a")]}, "sites.at: Tuple should have at least 2 items"),
        ({"at": [place("a"), place("a")]}, "sites.at: names must differ, got 'a'"),
        ({"inner_steps": 0}, "sites.inner_steps: must be greater than 0, got 0"),
        ({"fragments": 2}, "sites.fragments: must be at most sites.inner_steps, 1, got 2"),
        ({"inner_steps": 8, "fragments": 4, "overlap_steps": 3},
         "sites.overlap_steps: must be at most the 2 steps between two exchanges"),
        ({"outer_step": "synchronous", "inner_steps": 5}, "sites.inner_steps: must be 1"),
        ({"outer_step": "synchronous", "fragments": 2}, "sites.fragments: must be 1"),
        ({"outer_step": "synchronous", "overlap_steps": 1}, "sites.overlap_steps: must be 0"),
        ({"outer_step": "dilico"}, "did you mean 'diloco'"),
        ({"compression": "int4"}, "sites.compression: unknown compression 'int4'"),
        ({"at": [place("a", batch=3), place("b")]}, "must be given for all sites or for none"),
        ({"at": [place("a", uplink_bytes_per_s=0.0), place("b")]},
         "sites.at.0.uplink_bytes_per_s: must be greater than or equal to 1000"),
        ({"at": [place("a", latency_s=-1.0), place("b")]}, "sites.at.0.latency_s"),
        ({"inner_step": 5}, "sites.inner_step: unknown field (did you mean 'inner_steps'?)"),
    ],
)  # fmt: skip
def test_bad_sections(sites: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        answer(**sites)
    assert any(words in line for line in caught.value.problems), caught.value.problems


def test_what_only_the_whole_shows() -> None:
    uneven = [place("a", batch=40), place("b", batch=40)]
    with pytest.raises(InputError, match=r"must add up to training.global_batch, 64, got 80"):
        answer(at=uneven)
    plain = document()
    del plain["sites"]
    with pytest.raises(InputError, match="sites: required section is missing"):
        several_sites(make_scenario(plain))
    with pytest.raises(InputError, match=r"sites.at \(a\): training.precision: t4 has no bf16"):
        answer(at=[place("a", cluster="aws-g4dn"), place("b")])
    with pytest.raises(InputError, match=r"sites.at \(a\): .*did you mean 'dgx-h100'"):
        answer(at=[place("a", cluster="dgx-h101"), place("b")])
    full = answer(at=[place("a", cluster="rtx4090-pcie", gpus=1), place("b")], inner_steps=5)
    assert full.cycle is None and full.steps[0].reason and full.own.days_ideal is None
