"""DeepSpeed's configuration: known names, batch sizes that agree, the layout as it means it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from simulator.api import predict
from simulator.errors import InputError
from simulator.interop.dialects.deepspeed import deepspeed_config
from simulator.interop.exporting import launch_flags
from simulator.interop.hjson_text import json_text
from simulator.interop.launch_files.merging import import_launch

# Of deepspeedai/DeepSpeed@1b88ac36: deepspeed/runtime/config.py and constants.py,
# runtime/zero/config.py (aliases where a field has one) and offload_config.py,
# runtime/swap_tensor/constants.py.
KNOWN: dict[str, Any] = {
    "train_batch_size": int, "train_micro_batch_size_per_gpu": int,
    "gradient_accumulation_steps": int, "gradient_clipping": float,
    "bf16": {"enabled": bool}, "fp16": {"enabled": bool},
    "data_types": {"grad_accum_dtype": str}, "communication_data_type": str,
    "optimizer": {"type": str, "params": dict}, "sequence_parallel_size": int,
    "zero_optimization": {
        "stage": int, "overlap_comm": bool, "contiguous_gradients": bool, "reduce_scatter": bool,
        "reduce_bucket_size": int, "allgather_partitions": bool, "allgather_bucket_size": int,
        "use_multi_rank_bucket_allreduce": bool, "stage3_max_live_parameters": int,
        "stage3_max_reuse_distance": int, "stage3_prefetch_bucket_size": int,
        "stage3_param_persistence_threshold": int, "zero_hpz_partition_size": int,
        "mics_shard_size": int,
        "offload_optimizer": {
            "device": str, "pin_memory": bool, "ratio": float, "nvme_path": str,
            "buffer_count": int, "pipeline_read": bool, "pipeline_write": bool,
        },
        "offload_param": {
            "device": str, "pin_memory": bool, "nvme_path": str, "max_in_cpu": int,
        },
    },
    "aio": {
        "block_size": int, "queue_depth": int, "single_submit": bool, "overlap_events": bool,
    },
}  # fmt: skip


def check(found: Any, known: Any, where: str = "") -> None:
    """Every name is known and every value of its type."""
    if isinstance(known, dict):
        assert isinstance(found, dict), where
        assert not set(found) - set(known), where
        for name, value in found.items():
            check(value, known[name], f"{where}.{name}")
    else:
        assert type(found) is known, where


def block(**asked: Any) -> str:
    found = predict(
        **{
            "model": "llama-3.1-8b",
            "cluster": "dgx-h100",
            "gpus": 16,
            "software": "deepspeed",
            "recompute": "full",
            **asked,
        }
    )
    return launch_flags(found.estimate.layouts, found.scenario)


def config(**asked: Any) -> dict[str, Any]:
    text = re.search(r"<<'JSON'\n(.*)\nJSON\n", block(**asked), re.S)
    assert text is not None
    found: dict[str, Any] = json.loads(text.group(1))
    check(found, KNOWN)
    return found


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_every_stage(stage: int) -> None:
    found = config(sharding=f"zero{stage}", micro_batch=2, global_batch=128)
    assert found["zero_optimization"]["stage"] == stage
    assert found["zero_optimization"]["reduce_bucket_size"] == 500_000_000
    each, steps = found["train_micro_batch_size_per_gpu"], found["gradient_accumulation_steps"]
    assert found["train_batch_size"] == each * steps * 16 == 128
    assert found["bf16"] == {"enabled": True}
    assert found["data_types"] == {"grad_accum_dtype": "bf16"}


def test_sequence_parallel_ranks_are_no_replicas() -> None:
    found = config(sharding="zero3", cp=2, global_batch=64)
    assert found["sequence_parallel_size"] == 2
    each, steps = found["train_micro_batch_size_per_gpu"], found["gradient_accumulation_steps"]
    assert each * steps * 16 // 2 == 64


def test_smaller_groups_have_names_of_their_own() -> None:
    zero = config(sharding="zero3", reshard_after_forward=8)["zero_optimization"]
    assert zero["zero_hpz_partition_size"] == 8 and "mics_shard_size" not in zero
    zero = config(sharding="zero3", shard_group=8)["zero_optimization"]
    assert zero["mics_shard_size"] == 8 and "zero_hpz_partition_size" not in zero
    zero = config(sharding="zero3", shard_group=8, cp=2, global_batch=64)["zero_optimization"]
    assert zero["mics_shard_size"] == 8  # of 16 ranks that share, 8 replicas of 2


def test_offload_to_memory_and_to_drives() -> None:
    found = config(sharding="zero3", optimizer_offload="nvme", parameter_offload="cpu")
    zero = found["zero_optimization"]
    assert zero["offload_optimizer"]["device"] == "nvme"
    assert zero["offload_optimizer"]["pipeline_read"] is True
    assert zero["offload_param"] == {"device": "cpu", "pin_memory": True}
    assert "aio" in found
    assert "aio" not in config(sharding="zero2", optimizer_offload="cpu")


def test_the_command_starts_every_server_and_names_the_file() -> None:
    found = block(sharding="zero3").splitlines()[-1]
    assert found.startswith("torchrun --nnodes 2 --nproc_per_node 8")
    assert found.endswith("train.py --deepspeed ds_config.json --gradient_checkpointing")


def test_an_optimizer_that_deepspeed_does_not_build_is_left_to_the_script() -> None:
    text = block(sharding="zero3", optimizer="sgd")
    assert "optimizer = 'sgd'" in text.splitlines()[-1]
    found = predict(
        model="llama-3.1-8b",
        cluster="dgx-h100",
        gpus=16,
        software="deepspeed",
        optimizer="sgd",
        recompute="full",
    )
    assert "optimizer" not in deepspeed_config(found.layout, found.scenario)


COMMENTED = """\
// of our cluster
{
  "train_micro_batch_size_per_gpu": 2,  # one would do
  "train_batch_size": 32
  /* "zero_optimization": {"stage": 2},
     "fp16": {"enabled": true} */
  zero_optimization: {
    stage: 3   // all of it
    'offload_optimizer': {device: "cpu"},
    reduce_bucket_size: 5e8,
  },
  bf16: {"enabled": true,},
}
"""


def test_comments_and_loose_commas_are_read_as_deepspeed_reads_them(tmp_path: Path) -> None:
    """edaa7221, runtime/config.py: hjson.load; the values are those of hjson 3.1.0."""
    config_file, plain = tmp_path / "ds.json", tmp_path / "plain.json"
    config_file.write_text(COMMENTED)
    values = {
        "train_micro_batch_size_per_gpu": 2, "train_batch_size": 32,
        "zero_optimization": {
            "stage": 3, "offload_optimizer": {"device": "cpu"}, "reduce_bucket_size": 5e8,
        },
        "bf16": {"enabled": True},
    }  # fmt: skip
    plain.write_text(json.dumps(values))
    given = {"model": "llama-3.1-8b", "cluster": "dgx-h100", "gpus": 16}
    length = ["training.sequence_length=4096"]
    with_comments = import_launch([config_file], given, length)
    assert (
        with_comments.scenario.document == import_launch([plain], given, length).scenario.document
    )
    assert "a Trainer does not" in " ".join(with_comments.notes)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        # each as hjson 3.1.0 reads it
        ("{a: 1 # one\n b: two words\n}", {"a": 1, "b": "two words"}),
        ('{"u": "http://x" // y\n k: 01\n m: -1.5e3, n: null}',
         {"u": "http://x", "k": "01", "m": -1500.0, "n": None}),
        ("{a: [1\n 2, true,]\n b: {}, c: 3 d}\n}", {"a": [1, 2, True], "b": {}, "c": "3 d}"}),
        ("{'a': 'it\\'s \"so\"'}", {"a": 'it\'s "so"'}),
        ("{a: '''two\nlines'''}", {"a": "two\nlines"}),
    ],
)  # fmt: skip
def test_hjson_as_json(text: str, values: dict[str, Any]) -> None:
    made = json_text(text)
    assert json.loads(made) == values


def test_a_key_that_stands_twice_is_refused_as_deepspeed_refuses_it(tmp_path: Path) -> None:
    """edaa7221, runtime/config_utils.py: dict_raise_error_on_duplicate_keys."""
    config_file = tmp_path / "ds.json"
    stages = '"zero_optimization": {"stage": 1}, "zero_optimization": {"stage": 3}'
    config_file.write_text(f'{{"train_batch_size": 32, {stages}}}')
    with pytest.raises(InputError, match="zero_optimization: stands twice in a table"):
        import_launch([config_file], {"model": "llama-3.1-8b", "cluster": "dgx-h100", "gpus": 8})
