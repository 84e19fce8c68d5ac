"""`foreshard explain` and `foreshard models`: every term and model, and values those of predict."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from typer.testing import CliRunner

from simulator import predict
from simulator.cli.main import app
from simulator.cost.memory.peak import MEMORY_KINDS
from simulator.cost.terms import TERMS
from simulator.errors import InputError
from simulator.glossary import glossary
from simulator.layout.layouts import Layouts
from simulator.planner import sensitivity
from simulator.questions.catalogue import zoo
from simulator.questions.explain import explained, term_names
from simulator.workload import presets

RUN = {"model": "llama-3.2-1b", "cluster": "dgx-h100", "gpus": 8, "global_batch": 64, "tp": 2}
WORDS = ["--model", "llama-3.2-1b", "--cluster", "dgx-h100", "--gpus", "8"]


def shown(*words: str) -> Any:
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, words)


def test_every_term_is_explained() -> None:
    assert term_names() == [*(term.name for term in TERMS), *MEMORY_KINDS]
    for name in term_names():
        one = explained(name)
        assert all((one.label, one.formula, one.source, one.figures)), name


FEW = ("matrix_flop_per_s.bf16", "scale_up.bus_bytes_per_s")


@pytest.mark.parametrize("name", ["gemm", "tp", "cp"])
def test_the_value_of_a_term_is_what_predict_says(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = sensitivity.used_figures
    monkeypatch.setattr(
        sensitivity, "used_figures", lambda *of: [one for one in every(*of) if one.name in FEW]
    )
    answer = predict(**RUN)
    value = explained(name, answer).value
    assert value is not None
    assert value.amount == float(answer.estimate.terms_s[name][0])
    moved = {effect.figure.name: effect.change_s < 0 for effect in value.effects}
    # Faster products take less time, and hide less of what tensor parallelism sends.
    assert (
        moved
        == {
            "gemm": {FEW[0]: True},
            "tp": {FEW[0]: False, FEW[1]: True},
            "cp": {},
        }[name]
    )


def test_the_value_of_a_kind_of_memory_has_its_inputs() -> None:
    answer = predict(**RUN)
    value = explained("weights", answer).value
    assert value is not None
    assert value.amount == float(answer.estimate.memory_bytes["weights"][0])
    assert value.inputs
    assert value.effects == []


def test_what_cannot_be_explained_is_said() -> None:
    with pytest.raises(InputError, match=r"gem: no such term \(did you mean 'gemm'\?\)"):
        explained("gem")
    found = json.loads(shown("explain", "loss", *WORDS, "--json").stdout)
    assert [one["name"] for one in found["terms"]] == ["loss"]
    assert found["terms"][0]["value"]["layout"].startswith("dp8")
    assert max(map(len, shown("explain").stdout.splitlines())) <= 100


def test_models_lists_the_zoo_with_published_sizes() -> None:
    found = {model.name: model for model in zoo()}
    assert list(found) == presets.names() == sorted(presets.sources())
    assert (found["deepseek-v3"].layers, found["deepseek-v3"].kind) == (
        61,
        "decoder, 256 experts, top 8",
    )
    assert [found[name].kind for name in ("bert-large", "t5-11b", "vit-large-16")] == [
        "encoder, dense",
        "encoder-decoder, dense",
        "images, dense",
    ]
    assert [model.name for model in zoo("405")] == ["llama-3.1-405b"]
    assert all(source.startswith(("hf:", "arXiv ")) for source in presets.sources().values())


def test_models_are_no_profiles_and_the_message_says_where_they_are() -> None:
    wrong = shown("profiles", "list", "models")
    assert (wrong.exit_code, wrong.stderr) == (
        2,
        "profiles: models: are no profiles; `foreshard models` lists them\n",
    )
    assert "llama-3.1-405b" in shown("models").stdout


def test_a_word_of_the_answers_is_explained() -> None:
    for name in glossary()["words"]:
        one = explained(name)
        assert one.formula and (one.name == name or one.unit), "a term of the step, else a word"
    assert "one in ten" in shown("explain", "p10").output
    with pytest.raises(InputError, match=r"gooput: no such term \(did you mean 'goodput'\?\)"):
        explained("gooput")


def test_every_sign_of_a_layout_is_in_its_legend() -> None:
    """The names that `describe` writes, part by part; numbers stand for any."""
    legend = {re.sub(r"\d+", "", sign.partition(":")[0]) for sign in glossary()["layout"]}
    rich = Layouts.of(
        tp=2, cp=2, pp=2, vpp=2, dp=8, ep=2, etp=2, micro_batch=2, sequence_parallel=True,
        sharding="zero1", shard_group=4, recompute="full", recompute_layers=2, offload_layers=1,
        optimizer_offload="nvme", stages=(3, 2, 2, 1), rank_order="tp-cp-pp-dp",
    )  # fmt: skip
    plain = Layouts.of(dp=4, sharding="zero3", reshard_after_forward=2, recompute="selective")
    signs = [*rich.describe().split(), *plain.describe().split()]
    assert len(signs) > 15
    unknown = {re.sub(r"\d+", "", sign.partition(":")[0]) for sign in signs} - legend
    assert unknown == set()
