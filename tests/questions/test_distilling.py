"""A student with its teacher: made of both, refused where it cannot be; what is not modelled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app
from simulator.errors import InputError
from simulator.planner.prediction import predict
from simulator.questions.distillation.answer import Distilled, distil
from simulator.scenario import make_scenario


def document(**section: Any) -> dict[str, Any]:
    return {
        "model": {"name": "llama-3.2-1b"},
        "training": {"sequence_length": 4096, "global_batch": 64, "tokens": 1e9},
        "cluster": {"name": "dgx-h100", "gpus": 8},
        "layout": {"tp": 1, "pp": 1, "cp": 1, "micro_batch": 2},
        "distillation": {"teacher": "llama-3.1-8b", **section},
    }


def answer(**section: Any) -> Distilled:
    return distil(make_scenario(document(**section)))


def test_a_step_by_hand() -> None:
    """The student's step, 2 x 8.03e9 FLOPs a token of the teacher, its weights in 16 bit."""
    found = answer()
    one = found.beside
    assert one is not None
    assert one.student_s == pytest.approx(
        predict(make_scenario(document()), **{"sharding": one.layout["sharding"]}).step_time_s,
        rel=0.02,
    )
    tokens = 64 * 4096 / 8
    least_s = 2 * (8.03e9 - 0.525e9) * tokens / 989e12  # the embedding is looked up
    assert least_s < one.teacher_s < 2.5 * least_s
    logits = 2 * 4096 * 128_256
    assert one.teacher_bytes == pytest.approx(2 * 8.03e9 + 4 * logits, rel=0.01)
    assert one.loss_s > 20 * tokens * 128_256 / 3.35e12
    assert one.step_time_s == one.student_s + one.teacher_s + one.loss_s


def test_the_reference_of_adapters_is_their_base() -> None:
    """trl 0.24 dpo_trainer.py: null_ref_context disables adapters, so no copy is kept; full
    training keeps a copy. Of both the logits are raised to 32 bits for their log-probabilities."""
    logits = 4 * 2 * 4096 * 128_256
    taken = {}
    for rank in (0, 16):
        raw = document(compares="log_probabilities")
        del raw["distillation"]["teacher"]
        raw["training"]["lora_rank"] = rank
        found = distil(make_scenario(raw))
        assert found.beside is not None and found.stored_bytes == 4 * 1e9 / 4096
        taken[rank] = found.beside.teacher_bytes
        tokens = 64 * 4096 / 8
        flop_s = 2 * 1.236e9 * tokens / 989e12  # all weights: the table of words is the head
        assert flop_s < found.beside.teacher_s < 4 * flop_s
    assert taken[16] == logits
    assert taken[0] - logits == pytest.approx(2 * 1.236e9, rel=0.01)


def test_launch_files_with_pairs(tmp_path: Path) -> None:
    """The command reads the file, keeps its layout, and says in JSON what it read."""
    path = tmp_path / "run.sh"
    path.write_text(
        "accelerate launch --use_fsdp --num_processes 8 trl/scripts/dpo.py --bf16 --max_length 1024"
        " --model_name_or_path meta-llama/Llama-3.2-1B --per_device_train_batch_size 1\n"
    )
    ran = CliRunner().invoke(
        app, ["distil", "--from", str(path), "--cluster", "dgx-h100", "--json"]
    )
    found = json.loads(ran.stdout)
    assert (ran.exit_code, found["teacher"]["name"]) == (0, "llama-3.2-1b")
    layout = found["beside"]["layout"]
    assert (layout["micro_batch"], layout["dp"], layout["sharding"]) == (2, 8, "zero3")
    assert found["from"]["files"] == [
        {"path": str(path), "kinds": ["accelerate launch", "Hugging Face TrainingArguments"]}
    ]


def test_ahead_of_time() -> None:
    found = answer(kept_values=100)
    assert found.beside is not None and found.alone_s < found.beside.step_time_s
    assert found.stored_bytes == 1e9 * 100 * 6
    steps = 1e9 / (64 * 4096)
    assert found.teacher_gpu_hours == pytest.approx(steps * found.beside.teacher_s * 8 / 3600)


def test_a_teacher_that_leaves_no_room() -> None:
    tight = document()
    tight["cluster"] = {"name": "rtx4090-pcie", "gpus": 8}
    cut = distil(make_scenario(tight)).beside
    assert cut is not None and cut.layout["sharding"] == "zero3", "15 GiB over eight cards"
    tight["layout"]["sharding"] = "zero1"
    found = distil(make_scenario(tight))
    assert found.beside is None and "more memory than usable" in found.reason


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"teacher": "gpt2-xl"},
         "distillation.teacher: must have the 128,256 outputs of llama-3.2-1b, got 50257"),
        ({"teacher": "lama-3.1-8b"}, "(did you mean 'llama-3.1-8b'?)"),
        ({"kept_values": 0}, "distillation.kept_values: must be greater than 0, got 0"),
        ({"student": "x"}, "distillation.student: unknown field"),
    ],
)  # fmt: skip
def test_bad_sections(section: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        answer(**section)
    assert any(words in line for line in caught.value.problems), caught.value.problems


@pytest.mark.parametrize(
    ("section", "field", "words"),
    [
        ("training", "qat", "stands in training.fake_quantised_weights"),
        ("training", "sparse_2_4", "multiply it at twice the dense rate on their data sheets"),
        ("training", "pruning", "not modelled: pruning: a model whose rows"),
        ("training", "teacher", "stands in a section of its own"),
        ("training", "serving", "deployment is out of scope"),
    ],
)
def test_what_is_not_modelled_is_told(section: str, field: str, words: str) -> None:
    named = document()
    named[section][field] = True
    with pytest.raises(InputError) as caught:
        make_scenario(named)
    assert any(words in line for line in caught.value.problems)


def test_a_section_that_is_not_modelled_is_told() -> None:
    with pytest.raises(InputError, match="deployment: not modelled: deployment is out of scope"):
        make_scenario({**document(), "deployment": {}})


@pytest.mark.parametrize("gpus", [8, 16])
def test_both_fit_with_their_p90_wherever_a_layout_can_hold_them_so(gpus: int) -> None:
    """Qwen3 8B from Qwen3 32B: 61 GiB of a teacher in 16 bit fill a card where it is not cut."""
    made = document(teacher="qwen3-32b")
    made["model"] = {"name": "qwen3-8b"}
    del made["layout"]
    made["cluster"]["gpus"] = gpus
    beside = distil(make_scenario(made)).beside
    assert beside is not None and beside.verdict == "FITS"
    assert beside.memory_bytes < beside.memory_p90_bytes <= beside.usable_bytes
    assert beside.layout["tp"] * beside.layout["pp"] > 1 or beside.layout["sharding"] == "zero3"
