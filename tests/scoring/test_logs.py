"""A log beside the prediction of its scenario: errors by hand, contradictions, the impossible."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.interop.launch_files.merging import import_launch
from simulator.interop.logs.megatron_log import read_megatron_log
from simulator.interop.logs.torchtitan_log import read_torchtitan_log
from simulator.measured.log import MeasuredLog, Stated
from simulator.measured.rows import COLUMNS
from simulator.planner.prediction import predict
from simulator.scenario import Scenario, make_scenario
from simulator.scoring.logs import compare
from simulator.units import GIB

LOGS = Path(__file__).resolve().parents[1] / "data" / "logs"
TRUTH = json.loads((LOGS / "truth.json").read_text())
TINY = {
    "model_type": "llama", "name": "llama-tiny", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 256, "max_position_embeddings": 128,
}  # fmt: skip
"""The model that the logs are of."""


def scenario(**changes: Any) -> Scenario:
    sections = {
        "model": TINY,
        "training": {"sequence_length": 64, "global_batch": 8},
        "cluster": {"name": "dgx-h100", "gpus": 2},
        "layout": {},
    }
    for field, value in changes.items():
        section, _, name = field.partition("__")
        sections[section] = {**sections[section], name: value} if name else value
    return make_scenario(sections, where="run.toml")


def megatron(of: Scenario | None = None) -> MeasuredLog:
    of = of or scenario()
    return read_megatron_log(LOGS / "megatron_2025.log", of.workload.recipe, of.cluster.gpus)


def torchtitan(of: Scenario) -> MeasuredLog:
    """The log that says nothing of its run."""
    return read_torchtitan_log(LOGS / "torchtitan_2024.log", of.workload.recipe, of.cluster.gpus)


def refused(log: MeasuredLog, of: Scenario) -> list[str]:
    with pytest.raises(InputError) as caught:
        compare(log, of)
    return [line.replace(log.path, "train.log") for line in caught.value.problems]


def test_errors_by_hand() -> None:
    found = compare(megatron(), scenario())
    truth = TRUTH["megatron_2025"]["step_times_s"]
    measured = np.median(truth[found.log.dropped :])
    predicted = sum(found.prediction.estimate.terms_s.values())[0]
    assert found.step_error == pytest.approx(predicted / measured - 1, rel=1e-3)
    numbers = {quantity.name: quantity for quantity in found.quantities()}
    assert list(numbers) == [
        "step_time",
        "tokens_per_s_per_gpu",
        "mfu",
        "memory_allocated",
        "memory_reserved",
    ]
    rate = numbers["tokens_per_s_per_gpu"]
    assert rate.measured == pytest.approx(8 * 64 / 2 / measured, rel=1e-3)
    assert rate.predicted == pytest.approx(8 * 64 / 2 / predicted)
    assert rate.error is not None
    assert rate.error == pytest.approx(measured / predicted - 1, rel=1e-3)
    mfu = numbers["mfu"]
    flop = found.prediction.estimate.model_flop
    assert mfu.measured == pytest.approx(flop / measured / (2 * 989e12), rel=2e-3)


def test_memory_beside_a_reading_of_the_same_kind() -> None:
    log = replace(
        megatron(),
        memory_bytes={"allocated": 1e9, "reserved": 2e9, "device": 3e9, "theoretical": 4e9},
    )
    found = compare(log, scenario())
    numbers = {quantity.name: quantity for quantity in found.quantities()}
    kinds = {k: float(v[0]) for k, v in found.prediction.estimate.memory_bytes.items()}
    total = sum(kinds.values())
    reserved = total - kinds["communicators"] - kinds["context"]
    expected = {
        "allocated": reserved - kinds["fragmentation"],
        "reserved": reserved,
        "device": total,
        "theoretical": total,
    }
    for kind, size in expected.items():
        quantity = numbers[f"memory_{kind}"]
        assert quantity.predicted == pytest.approx(size)
        assert quantity.measured == log.memory_bytes[kind]
    errors = {kind: numbers[f"memory_{kind}"].error for kind in expected}
    assert errors["allocated"] == pytest.approx(expected["allocated"] / 1e9 - 1)
    assert errors["reserved"] == pytest.approx(expected["reserved"] / 2e9 - 1)
    assert (errors["device"], errors["theoretical"]) == (None, None)


def test_flop_as_the_framework_counts_them() -> None:
    log = replace(megatron(), model_tflops_per_gpu=2.0)
    numbers = {quantity.name: quantity for quantity in compare(log, scenario()).quantities()}
    flop = numbers["model_flop_per_gpu_and_step"]
    assert flop.measured == pytest.approx(2e12 * log.median_step_s)
    # 3 x forward; forward: 2 per weight of blocks and head, and half of 4 x 64 per pair of tokens
    weights = 4 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128) + 64 * 256
    per_token = 3 * (2 * weights + 4 * 0.5 * 4 * 64 * 64)
    assert flop.predicted == pytest.approx(per_token * 8 * 64 / 2, rel=0.01)


# --- what the log says of its run ---------------------------------------------------------


def test_layout_fields_that_the_scenario_leaves_open_come_from_the_log() -> None:
    found = compare(megatron(), scenario())
    open_fields = {"dp": 2, "cp": 1, "tp": 1, "pp": 1, "micro_batch": 4, "vpp": 1}
    assert dict(found.from_log) == open_fields
    assert found.prediction.layout["micro_batch"] == 4
    assert predict(scenario()).layout["micro_batch"] == 1
    pinned = scenario(layout={"micro_batch": 4, "tp": 1})
    assert dict(compare(megatron(), pinned).from_log) == {"dp": 2, "cp": 1, "pp": 1, "vpp": 1}


def mi300x(**changes: Any) -> Scenario:
    """The model of megatron_mi300x_2025.log on its machine; its launch is left to the log."""
    sizes = {
        "model_type": "llama", "name": "of-the-log", "hidden_size": 6144,
        "intermediate_size": 21504, "num_hidden_layers": 56, "num_attention_heads": 96,
        "num_key_value_heads": 24, "vocab_size": 50257, "max_position_embeddings": 8192,
    }  # fmt: skip
    return scenario(**{
        "model": sizes,
        "training": {"sequence_length": 8192, "global_batch": 512},
        "cluster": {"name": "mi300x-8", "gpus": 8},
        **changes,
    })  # fmt: skip


def of_mi300x(of: Scenario, path: Path = LOGS / "megatron_mi300x_2025.log") -> MeasuredLog:
    return read_megatron_log(path, of.workload.recipe, of.cluster.gpus)


def test_a_whole_list_of_arguments_says_the_whole_run() -> None:
    """What the command in the same public log asks for, with Megatron's own defaults."""
    found = compare(of_mi300x(mi300x()), mi300x())
    assert dict(found.from_log) == {
        "tp": 4, "pp": 2, "cp": 1, "dp": 1, "ep": 1, "vpp": 1, "micro_batch": 1,
        "sharding": "zero1", "recompute": "selective", "sequence_parallel": True,
    }  # fmt: skip
    assert dict(found.training_from_log) == {
        "precision": "bf16", "optimizer": "adamw", "gradient_dtype": "fp32",
        "reduce_dtype": "fp32",
    }  # fmt: skip
    assert found.software_from_log == found.prediction.scenario.software.name == "primus"
    assert found.log.unknown == (
        "align_grad_reduce",
        "apply_rope_fusion",
        "bias_dropout_fusion",
        "rotary_scaling_factor",
        "scatter_gather_tensors_in_pipeline",
    )
    named = compare(of_mi300x(mi300x()), mi300x(cluster__software="primus"))
    assert named.software_from_log is None
    assert named.prediction.step_time_s == found.prediction.step_time_s


def test_a_launch_script_and_the_log_of_it_are_read_alike(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 56 --hidden-size 6144"
        " --num-attention-heads 96 --ffn-hidden-size 21504 --max-position-embeddings 8192"
        " --seq-length 8192 --train-iters 20 --tokenizer-type GPT2BPETokenizer"
        " --global-batch-size 512 --disable-bias-linear --normalization RMSNorm"
        " --untie-embeddings-and-output-weights --swiglu --attention-dropout 0"
        " --hidden-dropout 0 --use-rotary-position-embeddings --position-embedding-type rope"
        " --group-query-attention"
        " --num-query-groups 24 --micro-batch-size 1 --tensor-model-parallel-size 4"
        " --pipeline-model-parallel-size 2 --sequence-parallel --bf16"
        " --use-distributed-optimizer --recompute-activations"
    )
    where = {"cluster": "mi300x-8"}
    from_script, from_log = (
        import_launch([path], where).predicted()
        for path in (script, LOGS / "megatron_mi300x_2025.log")
    )
    beside = compare(of_mi300x(mi300x()), mi300x()).prediction
    assert from_script.step_time_s == from_log.step_time_s
    assert beside.step_time_s == pytest.approx(from_log.step_time_s, rel=1e-6)
    assert beside.memory_bytes == pytest.approx(from_log.memory_bytes, rel=1e-6)


@pytest.mark.parametrize(
    ("before", "after", "name", "value"),
    [
        ("recompute_granularity", "full", "recompute", "full"),
        ("use_distributed_optimizer", "False", "sharding", "ddp"),
        ("sequence_parallel", "False", "sequence_parallel", False),
        ("fp8", "hybrid", "precision", "fp8"),
        ("use_torch_fsdp2", "True", "sharding", "zero3"),
        ("optimizer", "sgd", "optimizer", "sgd"),
        ("accumulate_allreduce_grads_in_fp32", "False", "reduce_dtype", "bf16"),
    ],
)
def test_every_switch_of_the_list_counts(
    before: str, after: str, name: str, value: object, tmp_path: Path
) -> None:
    text = (LOGS / "megatron_mi300x_2025.log").read_text()
    path = tmp_path / "train.log"
    path.write_text(re.sub(rf"^(  {before} \.+) .*$", rf"\1 {after}", text, flags=re.M))
    assert of_mi300x(mi300x(), path).stated[name].value == value


def test_switches_that_a_scenario_contradicts_are_named() -> None:
    of = mi300x(
        layout={"sharding": "ddp", "recompute": "full", "sequence_parallel": False},
        training__precision="fp8",
    )
    log = of_mi300x(of)
    lines = {stated.words: stated.line for stated in log.stated.values()}
    assert sorted(refused(log, of)) == sorted(
        f"train.log: line {lines[words]}: {words}: must be {ours} as {field} of run.toml, got"
        f" {theirs} (to follow the log: --set {field}={theirs})"
        for words, field, ours, theirs in (
            ("use_distributed_optimizer", "layout.sharding", "ddp", "zero1"),
            ("recompute_granularity", "layout.recompute", "full", "selective"),
            ("sequence_parallel", "layout.sequence_parallel", "false", "true"),
            ("bf16", "training.precision", "fp8", "bf16"),
        )
    )


def test_what_cannot_run_is_told_with_its_line(tmp_path: Path) -> None:
    text = (LOGS / "megatron_mi300x_2025.log").read_text()
    path = tmp_path / "train.log"
    off = "  fp8 ............................................. None"
    path.write_text(text.replace(off, off.replace("fp8", "fp4").replace("None", "e2m1")))
    device, software = refused(of_mi300x(mi300x(), path), mi300x())
    assert "training.precision: mi300x has no nvfp4" in device
    assert "training.precision: primus does not train in nvfp4" in software
    line = text[: text.index(off)].count("\n") + 1
    assert device.endswith(f" (train.log: line {line}: fp4)")


def test_every_contradiction_is_named_with_both_values() -> None:
    other = scenario(
        training__global_batch=16,
        training__sequence_length=32,
        cluster__gpus=4,
        layout={"tp": 2},
        model=TINY | {"num_hidden_layers": 2},
    )
    log = megatron()
    at = {stated.words: stated.line for stated in log.stated.values()}
    assert sorted(refused(log, other)) == sorted(
        f"train.log: line {at[words]}: {words}: must be {rest}"
        for words, rest in (
            (
                "global batch size",
                "16 as training.global_batch of run.toml, got 8"
                " (to follow the log: --set training.global_batch=8)",
            ),
            (
                "seq_length",
                "32 as training.sequence_length of run.toml, got 64"
                " (to follow the log: --set training.sequence_length=64)",
            ),
            (
                "world_size",
                "4 as cluster.gpus of run.toml, got 2 (to follow the log: --set cluster.gpus=2)",
            ),
            (
                "tensor_model_parallel_size",
                "2 as layout.tp of run.toml, got 1 (to follow the log: --set layout.tp=1)",
            ),
            ("num_layers", "2 as the layers of the model of run.toml, got 4"),
        )
    )


def test_a_rank_beyond_the_gpus() -> None:
    of = scenario(cluster__gpus=1)
    assert refused(torchtitan(of), of) == [
        "train.log: rank: must be below 1, cluster.gpus of run.toml, got a line of rank 1"
    ]


def test_a_layout_of_the_log_that_cannot_run_is_told() -> None:
    log = megatron()
    log = replace(log, stated={"tp": Stated(value=2, line=1, words="tp"), "dp": log.stated["dp"]})
    (line,) = refused(log, scenario())
    assert "dp x tp x pp x cp must be cluster.gpus = 2" in line


# --- what cannot be -----------------------------------------------------------------------


def test_a_step_of_no_time() -> None:
    log = megatron()
    fast = replace(log, step_times_s=log.step_times_s * 1e-5)
    (line,) = refused(fast, scenario())
    assert line.startswith("train.log: step time: must be at least 0.0001 s (is it in another unit")


def test_more_than_the_peak() -> None:
    # a tiny model's tokens/s, said to be those of 405 billion parameters
    large = scenario(model={"name": "llama-3.1-405b"})
    (line,) = refused(torchtitan(large), large)
    assert line.startswith("train.log: step_time_s: implies ")
    assert line.endswith("(is run.toml another model, batch, precision or number of GPUs?)")


def test_fp8_is_measured_against_its_own_peak() -> None:
    large = scenario(model={"name": "llama-3.1-70b"})
    flop = predict(large).estimate.model_flop
    bf16_s = flop / (2 * 989.4e12)
    log = torchtitan(large)
    log = replace(log, step_times_s=np.full(len(log.steps), 0.7 * bf16_s))
    assert "the dense bf16 peak of h100-sxm" in refused(log, large)[0]
    fp8 = scenario(model={"name": "llama-3.1-70b"}, training__precision="fp8")
    assert compare(log, fp8).measured_mfu == pytest.approx(1 / 0.7, rel=1e-3)


def test_memory_read_after_the_first_step_lacks_the_moments() -> None:
    """Llama-3.1-8B over tp 8: 8,030 M parameters, two fp32 moments each, beside the activations."""
    of = scenario(
        model={"name": "llama-3.1-8b"},
        training={"sequence_length": 8192, "global_batch": 8},
        cluster={"name": "dgx-h100", "gpus": 8, "software": "megatron-core"},
        layout={"tp": 8, "micro_batch": 4, "sharding": "ddp"},
    )
    read = torchtitan(scenario())
    log = replace(
        read,
        step_times_s=100 * read.step_times_s,
        memory_bytes={"allocated": 40 * GIB},
        stated={},
        model_tflops_per_gpu=None,
    )
    early, late = (
        compare(replace(log, memory_after_step=step), of).quantities()[-1].predicted
        for step in (1, 2)
    )
    assert late - early == pytest.approx(8 * 8.030e9 / 8, rel=0.01)
    assert compare(replace(log, memory_after_step=1), of).run()["memory_read"] == "first_step"
    assert compare(replace(log, memory_after_step=2), of).run()["memory_read"] is None


def test_more_memory_than_the_device_has() -> None:
    log = replace(megatron(), memory_bytes={"reserved": 100 * GIB})
    (line,) = refused(log, scenario())
    assert line.startswith("train.log: peak_memory_gib: is above the ")


def test_a_slow_step_is_no_mistake() -> None:
    slow = replace(megatron(), step_times_s=megatron().step_times_s * 1e3)
    assert compare(slow, scenario()).measured_mfu < 1e-6


# --- documents ----------------------------------------------------------------------------


def test_document() -> None:
    found = compare(megatron(), scenario(layout={"recompute": "full"}))
    document = json.loads(json.dumps(found.document(), allow_nan=False))
    assert list(document) == [
        "log",
        "run",
        "layout_from_log",
        "training_from_log",
        "software_from_log",
        "software_fields_from_log",
        "quantities",
        "terms_s",
        "hidden_s",
        "memory_bytes",
    ]
    assert list(document["log"]) == [
        "framework",
        "path",
        "entries",
        "first_step",
        "last_step",
        "first_line",
        "last_line",
        "warm_up",
        "step_time_s",
        "p10_s",
        "p90_s",
        "ranks",
        "stated",
        "unknown_arguments",
        "notes",
    ]
    for quantity in document["quantities"]:
        assert list(quantity) == ["name", "unit", "predicted", "measured", "error"]
    step = document["quantities"][0]
    assert sum(document["terms_s"].values()) == pytest.approx(step["predicted"])
    assert (document["log"]["first_step"], document["log"]["last_step"]) == (1, 24)
    run = document["run"]
    assert set(run) <= set(COLUMNS)
    assert (run["layers"], run["num_gpus"], run["dp"], run["recompute"]) == (4, 2, 2, "full")
    assert run["memory_kind"] == "allocated"
    assert run["peak_memory_gib"] == pytest.approx(
        TRUTH["megatron_2025"]["memory_bytes"] / GIB, rel=1e-3
    )
    assert run["step_time_s"] == step["measured"] == document["log"]["step_time_s"]
