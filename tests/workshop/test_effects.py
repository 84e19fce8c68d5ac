"""Published effect sizes: the shipped ones, how far off each may be, and the rules of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulator import catalogue
from simulator.cost.step import evaluate
from simulator.errors import InputError
from simulator.layout.layouts import Layouts
from simulator.search.defaults import complete
from workshop.cases import effects as module
from workshop.cases.effects import (
    Effect,
    PredictedEffect,
    effects,
    load_effects,
    predict_effect,
)
from workshop.pages.accuracy.effects import effects_section
from workshop.pages.accuracy.page import _percent, _table

# --- the shipped effects -----------------------------------------------------------------

MOST_MISSED = {
    "interleaving": 0.05,
    "fused optimizer": 0.006,
    "zero-bubble, memory of 1F1B": 0.035,
    "zero-bubble, twice the memory": 0.073,
    "zero-bubble, computed": 0.025,
    "sequence parallelism": 0.023,
    "full recomputation": 0.02,
    "selective recomputation": 0.023,
    "sequence parallelism and selective recomputation": 0.052,
    "PipeDream-2BW": 0.06,
    "data parallelism": 0.025,
    "ring all-reduce": 0.02,
    "weight-update sharding": 0.05,
    "asynchronous tensor parallelism": 0.083,
    "modules recomputed": 0.07,
    "layout": 0.19,
    "overlap of expert traffic": 0.35,
    "captured graphs": 0.16,
    "dispatcher": 0.2,
    "tensor-parallel overlap": 0.07,
    "data-parallel overlap": 0.035,
    "batch": 0.02,
    "strong scaling": 0.6,
    "experts folded": 0.8,
    "flash attention": 0.097,
    "schedules on AMD": 0.06,
    "compiled": 0.03,
    "precision": 0.04,
}
"""How far a prediction may lie outside of what is reported, in points of the effect."""


@pytest.fixture(scope="module")
def shipped() -> list[PredictedEffect]:
    return effects()


def by_words(shipped: list[PredictedEffect], group: str, *words: str) -> list[float]:
    found = [
        one.predicted
        for one in shipped
        if one.effect.group == group and all(word in one.effect.what for word in words)
    ]
    assert found
    return found


@pytest.mark.evidence
def test_every_effect_is_predicted_near_what_is_reported(shipped: list[PredictedEffect]) -> None:
    assert {one.effect.group for one in shipped} == set(MOST_MISSED)
    far = {
        one.effect.what: (one.effect.least, one.predicted)
        for one in shipped
        if abs(one.miss) > MOST_MISSED[one.effect.group]
    }
    assert far == {}


@pytest.mark.evidence
def test_signs_are_right_and_half_of_the_sizes_near(shipped: list[PredictedEffect]) -> None:
    """95 % of the signs, and the median within 3 points or a third, are what is asked for."""
    signs = [one.right for one in shipped if one.right is not None]
    assert len(signs) >= 75
    assert sum(signs) >= 0.95 * len(signs)
    assert sum(one.near for one in shipped) >= 0.7 * len(shipped)


@pytest.mark.evidence
def test_more_memory_buys_more_of_the_bubble(shipped: list[PredictedEffect]) -> None:
    """ZB-2p before ZB-1p, in every run of the paper's table 4."""
    one_p = by_words(shipped, "zero-bubble, memory of 1F1B", "ZB-1p")
    two_p = by_words(shipped, "zero-bubble, twice the memory", "ZB-2p")
    assert all(more > less for less, more in zip(one_p, two_p, strict=True))


@pytest.mark.evidence
def test_the_gap_closes_with_the_batch(shipped: list[PredictedEffect]) -> None:
    """Narayanan et al. 2021, section 5.3.2, and table 4 of Qi et al. 2024."""
    for group in ("interleaving", "zero-bubble, memory of 1F1B", "zero-bubble, twice the memory"):
        (few,) = by_words(shipped, group, "28.3B", " 96 micro-batches")
        (many,) = by_words(shipped, group, "28.3B", "256 micro-batches")
        assert few > 1.5 * many > 0


@pytest.mark.evidence
def test_2bw_gains_less_with_more_accumulation(shipped: list[PredictedEffect]) -> None:
    for size in ("3.8B", "2.2B"):
        (few,) = by_words(shipped, "PipeDream-2BW", size, "batch 512")
        (many,) = by_words(shipped, "PipeDream-2BW", size, "batch 2048")
        assert few > 2 * many


@pytest.mark.parametrize(("schedule", "most"), [("gpipe", 32), ("1f1b", 256)])
def test_gpipe_runs_out_of_memory_where_it_did(schedule: str, most: int) -> None:
    """Narayanan et al. 2021 (2BW), section 5.3 and appendix B.1: GPT 2.2B on 8 V100s, where GPipe
    fits with a batch of 32 and not with 64; 1F1B stashes no more micro-batches than stages."""
    _, runs = load_effects()
    for batch in (32, 64, 256):
        side = {"schedule": schedule, "training.global_batch": batch}
        scenario = module._scenario(runs["2bw-2-2b-server"], side)
        row, _ = complete(scenario, scenario.pinned)
        found = evaluate(Layouts.of(**row), scenario.workload, scenario.cluster, scenario.software)
        assert bool(found.fits[0]) == (batch <= most)


def test_sharding_the_update_takes_it_off_the_step() -> None:
    """Each of 1024 replicas updates its share: what is left of the update's time is 1/1024."""
    _, runs = load_effects()
    whole, shared = (
        module._simulated(runs["bert-tpu"], {"sharding": x})[0] for x in ("ddp", "zero1")
    )
    kept = shared.terms_s["optimizer"] / whole.terms_s["optimizer"]
    assert kept == pytest.approx(1 / 1024, rel=0.3)
    # replicas that hold all gradients need not reduce their norm
    saved = whole.step_time_s - shared.step_time_s + shared.terms_s["small_reductions"]
    assert saved == pytest.approx(whole.terms_s["optimizer"], rel=0.02)


REPOSITORIES = ("pytorch/torchtitan", "NVIDIA", "AMD-AGI/Primus")


def test_each_figure_has_its_source() -> None:
    listed, runs = load_effects()
    assert {one.run for one in listed} == set(runs)
    for one in listed:
        published = "arXiv" in one.source or one.source.startswith(REPOSITORIES)
        assert published or one.measure == "all_reduce_time"
        assert one.most is None or one.most > one.least


# --- its rules, by hand ------------------------------------------------------------------

RUN = {
    "model": {"name": "megatron-22b"},
    "training": {"sequence_length": 2048, "global_batch": 32, "precision": "fp16"},
    "cluster": {"name": "dgx-a100", "gpus": 8, "software": "megatron-lm-2022"},
    "layout": {"tp": 2, "pp": 4},
}


def effect(measure: str = "throughput", **given: Any) -> Effect:
    fields: dict[str, Any] = {
        "group": "g",
        "what": "w",
        "source": "s",
        "verified": True,
        "run": "r",
        "least": 0.1,
        "before": {},
        "after": {},
    }
    return Effect(**{**fields, "measure": measure, **given})


def test_a_miss_is_the_distance_from_the_span() -> None:
    span = effect(least=0.1, most=0.2)
    misses = [PredictedEffect(effect=span, predicted=x).miss for x in (0.05, 0.1, 0.15, 0.23)]
    assert misses == pytest.approx([-0.05, 0.0, 0.0, 0.03])
    one = effect(least=-0.03)
    misses = [PredictedEffect(effect=one, predicted=x).miss for x in (-0.05, 0.01)]
    assert misses == pytest.approx([-0.02, 0.04])
    bound = effect(least=0.1, or_more=True)
    misses = [PredictedEffect(effect=bound, predicted=x).miss for x in (0.07, 0.9)]
    assert misses == pytest.approx([-0.03, 0.0])


def test_a_sign_is_asked_for_beyond_noise_and_a_size_within_a_third() -> None:
    given = [(0.01, -0.05), (0.1, -0.01), (0.3, 0.21), (0.3, 0.19), (-0.05, -0.03)]
    found = [PredictedEffect(effect=effect(least=x), predicted=y) for x, y in given]
    assert [one.right for one in found] == [None, False, True, True, True]
    assert [one.near for one in found] == [False, False, True, False, True]
    span = PredictedEffect(effect=effect(least=-0.3, most=-0.2), predicted=-0.25)
    assert span.right and span.near


# --- runs that are rows of the tables of measured runs ------------------------------------------

ROW = {"measured": "mbridge-guide-11", "columns": {"tp_comm_overlap": "false"}}


def test_columns_of_a_measured_run_are_changed() -> None:
    """Eight times the batch takes eight times as long, but for the bubble and the optimizer."""
    assert predict_effect(effect("step_time"), ROW).predicted == 0.0
    after = {"global_batch": 256}
    longer = predict_effect(effect("step_time", after=after), ROW).predicted
    assert 5.5 < longer < 7.0
    more = predict_effect(effect("throughput", after=after), ROW).predicted
    assert (1 + more) * (1 + longer) == pytest.approx(8.0)


def test_nothing_changed_is_no_effect() -> None:
    for measure in ("throughput", "step_time"):
        assert predict_effect(effect(measure), RUN).predicted == 0.0


def test_throughput_counts_sequences_and_step_time_seconds() -> None:
    """Twice the batch: m + p - 1 micro-batches of time, 67 for 35 (and a like optimizer step)."""
    after = {"training.global_batch": 64}
    longer = predict_effect(effect("step_time", after=after), RUN).predicted
    assert longer == pytest.approx(67 / 35 - 1, abs=0.03)
    more = predict_effect(effect("throughput", after=after), RUN).predicted
    assert (1 + more) * (1 + longer) == pytest.approx(2.0)


def test_full_recomputation_of_a_layer_adds_a_forward_pass() -> None:
    """At least the third of the FLOPs that the paper expects."""
    sides = {"before": {"recompute": "none"}, "after": {"recompute": "full"}}
    found = predict_effect(effect("layer_time", **sides), RUN | {"layout": {"tp": 8}}).predicted
    assert 0.3 < found < 0.5  # and the launches of a second forward pass


def test_without_a_barrier_only_a_schedule_that_ends_askew_gains() -> None:
    """Rank 0 of 1F1B works from the first to the last moment; ranks of ZB-H2 end one by one."""
    gains = [
        predict_effect(
            effect(before={}, after={"schedule": "zb_h2"}, barrier=barrier), RUN
        ).predicted
        for barrier in (True, False)
    ]
    assert 0 < gains[0] < gains[1] < 35 / 32 - 1
    same = [
        predict_effect(effect(before={}, after={"schedule": "zb_h1"}, barrier=x), RUN).predicted
        for x in (True, False)
    ]
    assert same[0] == pytest.approx(same[1])


def test_a_ring_moves_its_share_of_the_bytes() -> None:
    sides = [{"ranks": n, "message_bytes": 2**32} for n in (4, 8)]
    ring = effect("all_reduce_time", before=sides[0], after=sides[1])
    found = predict_effect(ring, {"cluster": {"name": "dgx-a100", "gpus": 8}}).predicted
    assert found == pytest.approx((7 / 8) / (3 / 4) - 1, abs=0.05)


def test_the_share_of_the_optimizer_is_a_share() -> None:
    share = effect("optimizer_share")
    few, many = (
        predict_effect(share, RUN | {"training": {**RUN["training"], "global_batch": size}})
        for size in (8, 64)
    )
    assert 0 < many.predicted < few.predicted < 0.5


# --- bad input ---------------------------------------------------------------------------


def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    validation = catalogue.folder("validation")
    text = (validation / "effects.toml").read_text(encoding="utf-8")
    assert old in text
    for path in validation.iterdir():
        if path.name != "effects.toml":
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "effects.toml").write_text(text.replace(old, new, 1), encoding="utf-8")
    monkeypatch.setattr(module.catalogue, "folder", lambda _: tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('run = "narayanan21"', 'run = "narayanan22"', "did you mean 'narayanan21'"),
        ('measure = "throughput"', 'measure = "speed"', "measure"),
        ("verified = true", 'verified = "perhaps"', "verified"),
        ("least = 0.1\n", "", "least"),
        ('measured = "mbridge-guide-07"', 'measured = "mbridge-guide-7"', "mbridge-guide-07"),
    ],
)
def test_a_wrong_file_is_refused(
    old: str, new: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, monkeypatch, old, new)
    with pytest.raises(InputError, match=words):
        load_effects()


def test_an_all_reduce_without_its_size_is_refused() -> None:
    with pytest.raises(InputError, match="message_bytes"):
        predict_effect(effect("all_reduce_time", before={"ranks": 4}), RUN)


def test_a_column_that_no_table_has_is_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'dispatcher'"):
        predict_effect(effect(after={"dispatchers": "alltoall"}), ROW)


def test_a_layout_that_cannot_run_is_refused() -> None:
    with pytest.raises(InputError, match="cannot run"):
        predict_effect(effect(after={"tp": 4, "pp": 4}), RUN)


# --- the page ----------------------------------------------------------------------------


def test_the_section_words_numbers_bounds_and_spans() -> None:
    lines = [
        PredictedEffect(effect=effect(**given), predicted=0.125).figures()
        for given in (
            {"least": -0.03, "verified": False},
            {"least": 0.1, "or_more": True, "remark": "Off"},
            {"least": 0.1, "most": 0.2, "remark": "Off"},
            {"least": 0.0, "most": 0.6, "remark": "Other"},
        )
    ]
    title, _, signs, table, notes = effects_section(lines, _table, _percent)
    assert signs.startswith("The sign is right in 3 of the 4 that are 2 % and more; 3 of 4")
    assert title == "## Published effect sizes"
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()[2:]]
    assert [row[1] for row in cells] == ["w", "w (1)", "w (1)", "w (2)"]
    assert [row[3] for row in cells] == [
        r"-3.0 % \*",
        "+10.0 % or more",
        "+10.0 % to +20.0 %",
        "up to +60.0 %",
    ]
    assert {row[4] for row in cells} == {"+12.5 %"}
    assert notes == "1. Off.\n2. Other."
    assert list(effects_section([], _table, _percent)) == []
