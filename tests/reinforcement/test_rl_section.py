"""[rl]: both sides of every rule, a step beside each refusal is fine; sums of what is asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.errors import InputError
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.rollouts.rl_section import RL, check_with_others, read_rl, split_gpus, unserved
from simulator.workload import presets
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Recipe

PLAIN: dict[str, Any] = {"prompts": 6, "samples": 35, "answer_tokens": 700}
STALE = {"mode": "apart", "staleness": 1}
MIXED = {"mode": "mixed", "staleness": 2, "partial_rollouts": True}


def section(**fields: Any) -> RL:
    return read_rl({**PLAIN, **fields}, where="run.toml")


@pytest.fixture(scope="module")
def model() -> Architecture:
    return presets.load("llama-3.1-8b")


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return load_cluster("dgx-h100", 24)


@pytest.mark.parametrize(
    ("fine", "wrong", "field"),
    [
        ({"mode": "apart", "staleness": 0}, {"mode": "apart", "staleness": -1}, "staleness"),
        ({**STALE}, {"staleness": 1}, "staleness"),
        ({**MIXED}, {**MIXED, "partial_rollouts": False}, "partial_rollouts"),
        ({**MIXED, "generation": {"gpus": 1}}, {**MIXED, "generation": {"gpus": 0}},
         "generation.gpus"),
        ({"mode": "mixed", "generation": {"gpus": 0}},
         {"mode": "colocated", "generation": {"gpus": 0}}, "generation.gpus"),
        ({"algorithm": "distillation", "teacher": "qwen3-32b"}, {"teacher": "qwen3-32b"},
         "teacher"),
        ({**STALE, "partial_rollouts": True}, {"mode": "apart", "partial_rollouts": True},
         "partial_rollouts"),
        ({"answer_tokens": None, "answer_lengths": (3,)}, {"answer_lengths": (3,)},
         "answer_tokens"),
        ({"answer_tokens": None, "answer_file": "a"}, {"answer_tokens": None}, "answer_tokens"),
        ({"prompts": 100_000, "samples": 10}, {"prompts": 90_910, "samples": 11}, "samples"),
        ({"algorithm": "dapo", "prompts": 2000, "samples": 100, "kept_groups": 0.2},
         {"algorithm": "dapo", "prompts": 2000, "samples": 100, "kept_groups": 0.199},
         "kept_groups"),
        ({"kept_groups": 1.0}, {"kept_groups": 0.99}, "kept_groups"),
        ({"algorithm": "dapo", "kept_groups": 0.99}, {"algorithm": "ppo", "kept_groups": 0.99},
         "kept_groups"),
        ({"reward": "model", "reward_model": "qwen3-8b"}, {"reward": "model"}, "reward_model"),
        ({"reward": "sandbox"}, {"reward": "sandbox", "reward_model": "qwen3-8b"},
         "reward_model"),
        ({"mode": "apart", "refit": "storage"}, {"refit": "storage"}, "refit"),
        ({"mode": "apart", "scoring_gpus": 2}, {"mode": "mixed", "scoring_gpus": 2},
         "scoring_gpus"),
        ({"mode": "apart", "scoring_gpus": 2},
         {"mode": "apart", "scoring_gpus": 2, "reference_model": False}, "scoring_gpus"),
        ({"mode": "apart", "scoring_gpus": 2, "reference_model": False, "algorithm": "ppo"},
         {"mode": "apart", "scoring_gpus": 2, "reference_model": False,
          "old_probabilities": True}, "scoring_gpus"),
        ({"mode": "apart", "scoring_gpus": 2, "reference_model": False, "reward": "model",
          "reward_model": "qwen3-8b"},
         {"mode": "apart", "scoring_gpus": 2, "algorithm": "distillation",
          "teacher": "qwen3-32b"}, "scoring_gpus"),
        ({"generation": {"tp": 6, "ep": 3}}, {"generation": {"tp": 6, "ep": 4}}, "generation.ep"),
        ({"generation": {"tp": 6, "dp_attention": 2}},
         {"generation": {"tp": 6, "dp_attention": 5}}, "generation.dp_attention"),
    ],
)  # fmt: skip
def test_a_step_beside_what_is_refused_is_fine(
    fine: dict[str, Any], wrong: dict[str, Any], field: str
) -> None:
    section(**fine)
    with pytest.raises(InputError) as caught:
        section(**wrong)
    assert [text.split(": ")[1] for text in caught.value.problems] == [f"rl.{field}"]


@pytest.mark.parametrize(
    ("fields", "training", "wrong"),
    [
        ({"prompt_tokens": 3395, "answer_tokens": 700}, {}, None),
        ({"prompt_tokens": 3396, "answer_tokens": 700}, {}, "rl.answer_tokens"),
        ({"prompt_tokens": 95, "longest_answer": 4000}, {}, None),
        ({"prompt_tokens": 96, "longest_answer": 4000}, {}, "rl.longest_answer"),
        ({"prompt_tokens": 4094, "answer_tokens": 1}, {}, None),
        ({"prompt_tokens": 4095, "answer_tokens": 1}, {}, "rl.prompt_tokens"),
        ({}, {"sequence_length": 131_072}, None),
        ({}, {"sequence_length": 131_073}, "training.sequence_length"),
        ({}, {"global_batch": 70}, None),
        ({}, {"global_batch": 140}, "training.global_batch"),
        ({"epochs": 2}, {"global_batch": 140}, None),
        ({"generation": {"precision": "fp8"}}, {}, None),
    ],
)
def test_what_a_run_leaves_room_for(
    fields: dict[str, Any],
    training: dict[str, Any],
    wrong: str | None,
    model: Architecture,
    cluster: Cluster,
) -> None:
    """6 x 35 = 210 answers, sequences of 4,095 tokens, a model of 131,072 positions."""
    recipe = Recipe(**{"sequence_length": 4095, "global_batch": 210, **training})
    said = check_with_others(
        rl=section(**fields), model=model, training=recipe, cluster=cluster, where="run.toml"
    )
    assert [text.split(": ")[1] for text in said] == ([wrong] if wrong else [])


@pytest.mark.parametrize(
    ("fields", "gpus", "parts", "wrong"),
    [
        ({}, 24, (24, 0), None),
        ({"mode": "apart"}, 24, (12, 12), None),
        ({"mode": "apart"}, 23, (12, 11), None),
        ({"mode": "apart", "scoring_gpus": 5}, 24, (10, 9), None),
        ({"mode": "apart", "scoring_gpus": 5, "generation": {"gpus": 18}}, 24, (1, 18), None),
        ({"mode": "apart", "scoring_gpus": 5, "generation": {"gpus": 19}}, 24, (0, 19), "gpus"),
        ({"mode": "apart", "generation": {"gpus": 23}}, 24, (1, 23), None),
        ({"mode": "apart", "generation": {"gpus": 24}}, 24, (0, 24), "gpus"),
        ({"mode": "apart", "generation": {"gpus": 0}}, 24, (24, 0), "gpus"),
        ({"mode": "mixed", "generation": {"gpus": 0}}, 24, (24, 0), None),
        ({"generation": {"tp": 8}}, 24, (24, 0), None),
        ({"generation": {"tp": 16}}, 24, (24, 0), "tp"),
        ({"generation": {"tp": 3}}, 24, (24, 0), "tp"),
        ({"generation": {"tp": 12, "dp_attention": 3}}, 24, (24, 0), None),
        ({"mode": "apart", "generation": {"gpus": 16, "tp": 16}}, 24, (8, 16), None),
        ({"mode": "mixed", "generation": {"gpus": 16, "tp": 16}}, 24, (8, 16), "tp"),
        ({"mode": "mixed", "generation": {"gpus": 16, "tp": 8}}, 24, (8, 16), None),
    ],
)
def test_who_trains_and_who_generates(
    fields: dict[str, Any],
    gpus: int,
    parts: tuple[int, int],
    wrong: str | None,
    model: Architecture,
) -> None:
    """Half generate unless it is said, what scores apart; tp divides them and 32 heads."""
    rl = section(**fields)
    assert split_gpus(rl, gpus) == parts
    recipe = Recipe(sequence_length=4096, global_batch=210)
    whole = load_cluster("dgx-h100", 24)
    cluster = replace(whole, groups=(replace(whole.groups[0], gpus=gpus),))
    said = check_with_others(rl=rl, model=model, training=recipe, cluster=cluster, where="run.toml")
    assert [text.split(": ")[1] for text in said] == ([f"rl.generation.{wrong}"] if wrong else [])


@pytest.mark.parametrize(
    ("fields", "passes", "placed"),
    [
        ({}, 2, 1),
        ({"reference_model": False}, 1, 0),
        ({"old_probabilities": False}, 1, 1),
        ({"old_probabilities": False, "reference_model": False}, 0, 0),
        ({"algorithm": "ppo"}, 3, 2),
        ({"algorithm": "ppo", "reference_model": False}, 2, 1),
        ({"algorithm": "distillation"}, 2, 1),
        ({"algorithm": "distillation", "reference_model": False}, 2, 1),
        ({"algorithm": "distillation", "teacher": "qwen3-32b"}, 1, 0),
        ({"reward": "model", "reward_model": "qwen3-8b"}, 2, 2),
        ({"algorithm": "ppo", "reward": "model", "reward_model": "qwen3-8b"}, 3, 3),
    ],
)
def test_models_that_score_an_answer(fields: dict[str, Any], passes: int, placed: int) -> None:
    """The old policy, a reference or a teacher of its size, a critic; a judge has other sizes."""
    assert section(**fields).forward_passes == passes
    assert section(**fields).placed_models == 0
    rl = RL(**{**PLAIN, **fields, "mode": "apart", "scoring_gpus": 4})
    assert rl.placed_models == placed


def test_answers_that_are_learned_from_and_written() -> None:
    assert (section().answers, section().written) == (210, 210)
    kept = section(algorithm="dapo", kept_groups=0.3)
    assert (kept.answers, kept.written) == (210, 700)
    assert section(staleness=1, mode="apart").policy_age == "stale"
    assert section().policy_age == "on policy"
    for fields, lends in (({}, False), (STALE, False), (MIXED, True), ({"mode": "mixed"}, False)):
        assert section(**fields).lends is lends


@pytest.mark.parametrize(
    ("fields", "one_by_one"),
    [
        ({}, False), (STALE, True), ({"generation": {"asynchronous": True}}, True),
        ({**STALE, "generation": {"asynchronous": False}}, False),
    ],
)  # fmt: skip
def test_an_engine_is_asked_one_by_one_where_it_writes_ahead(
    fields: dict[str, Any], one_by_one: bool
) -> None:
    assert section(**fields).asks_one_by_one is one_by_one


def test_a_replica_in_words() -> None:
    def words(**fields: Any) -> str:
        return section(generation=fields).generation.described

    assert words() == "tp 1"
    assert words(tp=8, ep=8) == "tp 8, ep 8"
    assert words(tp=2, ep=2) == "tp 2, ep 2"
    assert words(tp=8, dp_attention=2, max_sequences=1) == "tp 8, dp attention 2, 1 sequences"
    assert words(tp=2, max_sequences=1024) == "tp 2, 1,024 sequences"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("llama-3.1-8b", ""), ("qwen3-30b-a3b", ""), ("deepseek-v3", ""),
        ("bert-large", "bert-large is no decoder"), ("t5-11b", "t5-11b is no decoder"),
        ("nemotron-h-8b", "nemotron-h-8b mixes tokens without"),
        ("vit-large-16", "vit-large-16 does not write tokens"),
        ("resnet-50", "resnet-50 does not write tokens"),
    ],
)  # fmt: skip
def test_whose_words_an_engine_writes(name: str, said: str) -> None:
    found = unserved(presets.load(name))
    assert found.startswith(said)
    assert bool(found) == bool(said)


@pytest.mark.parametrize(
    ("generation", "words"),
    [
        ({"tp": 5}, "must divide the 24 accelerators that generate and the 32 attention heads"),
        ({"tp": 24, "dp_attention": 2},
         "must divide dp_attention = 2 x the 32 attention heads of llama-3.1-8b, got 24"),
        ({"tp": 3}, "must divide the 32 attention heads of llama-3.1-8b, got 3"),
    ],
)  # fmt: skip
def test_what_tp_of_an_engine_must_divide(
    generation: dict[str, Any], words: str, model: Architecture, cluster: Cluster
) -> None:
    said = check_with_others(
        rl=section(generation=generation), model=model, cluster=cluster, where="run.toml",
        training=Recipe(sequence_length=4096, global_batch=210),
    )  # fmt: skip
    assert len(said) == 1 and f"run.toml: rl.generation.tp: {words}" in said[0]
