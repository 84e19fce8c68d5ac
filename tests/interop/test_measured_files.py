"""Logs and traces given with --from: what they say becomes the scenario, their times are said."""

import json
import re
from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.interop.launch_files.advising import advise
from simulator.interop.launch_files.imported import Imported
from simulator.interop.launch_files.merging import import_launch
from simulator.interop.launch_files.recognising import read_launch_file

LOGS = Path(__file__).resolve().parents[1] / "data" / "logs"

ARGUMENTS = {  # as Megatron-LM lists them, with the defaults of what is off
    "add_bias_linear": False, "bf16": True, "cp_comm_type": ["p2p"],
    "exp_avg_dtype": "torch.float32", "ffn_hidden_size": 28672, "fp8": None,
    "fp8_recipe": "delayed", "global_batch_size": 1024, "group_query_attention": True,
    "hidden_size": 8192, "kv_lora_rank": 32, "lr": 0.00015, "max_position_embeddings": 8192,
    "micro_batch_size": 1, "moe_token_dispatcher_type": "allgather",
    "multi_latent_attention": False, "normalization": "RMSNorm", "num_attention_heads": 64,
    "num_experts": None, "num_layers": 80, "num_query_groups": 8, "overlap_grad_reduce": False,
    "padded_vocab_size": 128256, "pipeline_model_parallel_size": 4,
    "position_embedding_type": "rope", "recompute_granularity": None, "seq_length": 8192,
    "sequence_parallel": True, "swiglu": True, "tensor_model_parallel_size": 8,
    "train_iters": 1000, "untie_embeddings_and_output_weights": True,
    "use_distributed_optimizer": True, "virtual_pipeline_model_parallel_size": 5,
    "world_size": 256,
}  # fmt: skip


def read(path: Path, **names: object) -> Imported:
    return import_launch([path], {"cluster": "dgx-h100", **names})


def test_a_log_of_megatron_with_its_arguments(tmp_path: Path) -> None:
    lines = [
        f"0:   {key} {'.' * max(48 - len(key), 4)} {value}" for key, value in ARGUMENTS.items()
    ]
    lines += [
        f" iteration {step:8}/    1000 | consumed samples: {step * 1024:12} | elapsed time per"
        " iteration (ms): 29000.0 | global batch size:  1024 | lm loss: 5.6E+00 |"
        for step in range(1, 31)
    ]
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines))
    found = read(path)
    assert found.scenario.pinned == {
        "tp": 8, "pp": 4, "vpp": 5, "micro_batch": 1, "sharding": "zero1",
        "sequence_parallel": True, "recompute": "none",
    }  # fmt: skip
    architecture = found.scenario.workload.architecture
    assert (architecture.name, architecture.is_moe) == ("llama-3-70b", False)
    assert found.scenario.cluster.gpus == 256
    assert found.scenario.software.name == "megatron-core-defaults"  # its reductions wait
    assert found.scenario.workload.recipe.tokens == 1000 * 1024 * 8192
    assert any("a step took 29 s" in note and "--log" in note for note in found.notes)
    assert advise([path], {"cluster": "dgx-h100"}, changes=0).texts == {}  # no file to change


def test_a_vocabulary_that_no_model_takes_is_listed_as_unknown(tmp_path: Path) -> None:
    listed = (LOGS / "megatron_mi300x_2025.log").read_text()
    path = tmp_path / "train.log"
    path.write_text(re.sub(r"(num_experts \.+) None", r"\1 1e99", listed))
    (reading,) = read_launch_file(path)
    assert "padded vocab (size)" in {place.key for place in reading.unknown}


def test_a_log_of_torchtitan_with_two_ranks() -> None:
    found = read(LOGS / "torchtitan_tp2.log", model="gpt2-small")
    truth = json.loads((LOGS / "truth.json").read_text())
    assert found.scenario.pinned["tp"] == found.scenario.cluster.gpus == 2
    assert found.scenario.workload.recipe.sequence_length == 64
    assert truth  # what the runs were is beside them
    assert any("a step took" in note for note in found.notes)


def test_an_old_log_of_torchtitan_names_its_mesh(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(
        "[titan] - INFO - Building 2-D device mesh with ['dp_shard', 'tp'], [4, 8]\n"
        "[titan] - INFO - Model llama3 8B size: 8,030,261,248 total parameters\n"
        "[titan] - INFO - Applied selective activation checkpointing to the model\n"
        "[titan] - INFO - Compiling each TransformerBlock with torch.compile\n"
    )
    (reading,) = read_launch_file(path)
    stated = {item.field: item.value for item in reading.stated}
    assert stated["layout.tp"] == 8 and stated["cluster.gpus"] == 32
    assert stated["model.name"] == "llama-3.1-8b" and stated["layout.recompute"] == "selective"
    assert reading.software == ("torchtitan",)


def test_a_log_of_mlperf_names_its_benchmark() -> None:
    with pytest.raises(InputError, match=r"cluster\.gpus: not said by these files"):
        read(LOGS / "mlperf_4.1.log")
    (reading,) = read_launch_file(LOGS / "mlperf_4.1.log")
    assert {item.field: item.value for item in reading.stated} == {
        "model.name": "llama-3.1-8b",
        "training.global_batch": 4,
        "training.sequence_length": 64,
    }
    assert [item.place.line for item in reading.stated] == [1, 2, 3]


def test_a_trace_says_ranks_groups_and_where_its_step_went(tmp_path: Path) -> None:
    group = {"Collective name": "all_reduce", "Group size": 4, "Process Group Name": "3"}
    group["Process Group Description"] = "TENSOR_MODEL_PARALLEL_GROUP"
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur,
         "args": {"device": 0, "stream": 7, "correlation": ts, **more}}
        for ts, dur, name, more in (
            (100, 600, "sm90_xmma_gemm_bf16", {}),
            (700, 300, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", group),
        )
    ]  # fmt: skip
    marks = [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 1, "tid": 1,
         "ts": 100, "dur": 900},
    ]  # fmt: skip
    path = tmp_path / "trace.json"
    document = {
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 32},
        "traceEvents": [*marks, *events],
    }
    path.write_text(json.dumps(document))
    (reading,) = read_launch_file(path)
    assert {item.field: item.value for item in reading.stated} == {
        "cluster.gpus": 32,
        "layout.tp": 4,
    }
    assert "compute 67%, exposed communication 33%" in reading.notes[0]
    assert "a step took 0.0009 s on NVIDIA H100 80GB HBM3" in reading.notes[0]
