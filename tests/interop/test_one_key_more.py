"""One key more in a launch file that is read: the field that it sets, the note, or the refusal.

What each key means is the framework's own documentation of it; the files beside it are the samples
of the other tests, so only that key can have changed what is read.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import InputError
from simulator.interop.launch_files.imported import Imported
from simulator.interop.launch_files.merging import import_launch
from tests.interop.launch_samples import (
    MAXTEXT,
    MEGATRON,
    MLPERF,
    REGISTERED,
    TRAINER,
)
from tests.interop.test_torchtune import FULL

EXPERTS = "--num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 8"
PIPED = "--pipeline-model-parallel-size 2 --num-layers 32"


def read(folder: Path, name: str, text: str, length: int | None = None, **given: Any) -> Imported:
    """What a file says on B200, which have every number format."""
    (folder / name).write_text(text)
    unsaid = [f"training.sequence_length={length}"] if length else []
    return import_launch([folder / name], {"cluster": "dgx-b200", **given}, unsaid)


def megatron(folder: Path, more: str) -> Imported:
    return read(folder, "run.sh", f"{MEGATRON.rstrip()} {more}\n")


def torchtitan(folder: Path, more: str) -> Imported:
    return read(folder, "run.sh", f"{REGISTERED.rstrip()} {more}\n")


def maxtext(folder: Path, more: str) -> Imported:
    text = MAXTEXT.replace("my_own_key=1", more.replace(" ", " \\\n"))
    return read(folder, "run.sh", text, cluster="tpu7x")


def mlperf(folder: Path, more: str) -> Imported:
    lines = "".join(f"export {word}\n" for word in more.split())
    name = "config_DGXH100_16x8x64_tp4_pp8.sh"
    return read(folder, name, MLPERF + lines, length=8192, model="llama-2-70b")


def torchtune(folder: Path, more: str) -> Imported:
    return read(folder, "own.yaml", FULL + more.replace(" ; ", "\n") + "\n", gpus=8)


def trainer(folder: Path, more: str) -> Imported:
    text = json.dumps(TRAINER | json.loads(more))
    return read(folder, "args.json", text, length=2048, gpus=8, model="llama-3.1-8b")


SAYS: list[tuple[Any, str, dict[str, object]]] = [
    (megatron, "--tp-comm-overlap", {"software.tp_comm_overlap": True}),
    (megatron, f"{EXPERTS} --overlap-moe-expert-parallel-comm", {"software.expert_overlap": True}),
    (megatron, EXPERTS, {"layout.etp": 8, "layout.ep": 8}),
    (megatron, "--use-torch-fsdp2", {"layout.sharding": "zero3"}),
    (megatron, f"{PIPED} --num-layers-per-virtual-pipeline-stage 4", {"layout.vpp": 4}),
    (megatron, f"{PIPED} --num-layers-per-virtual-pipeline-stage 16", {"layout.vpp": 1}),
    (megatron, "--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16",
     {"training.moment_dtype": "bf16"}),
    (megatron, "--use-precision-aware-optimizer --exp-avg-dtype fp8 --exp-avg-sq-dtype fp16",
     {"software.states.moment": (1 + 2) / 2}),
    (megatron, "--use-precision-aware-optimizer --main-params-dtype fp16",
     {"software.states.master": 2}),
    (torchtitan, "--optimizer.early-step-in-backward", {"training.optimizer_in_backward": True}),
    (torchtitan, "--training.enable_cpu_offload",
     {"layout.parameter_offload": "cpu", "layout.optimizer_offload": "cpu"}),
    (torchtitan, "--model.converters quantize.linear.mx", {"training.precision": "mxfp8"}),
    (torchtitan, "--model.converters quantize.linear.float8"
     " --quantize.linear.float8.enable_fsdp_float8_all_gather",
     {"training.precision": "fp8_current", "training.fp8_weights": True}),
    (torchtitan, "--training.mixed_precision_param float32", {"training.precision": "fp32"}),
    (torchtitan, "--training.mixed_precision_reduce bfloat16", {"training.reduce_dtype": "bf16"}),
    (torchtitan, "--training.dtype bfloat16",
     {"training.master_weights": False, "training.moment_dtype": "bf16"}),
    (torchtitan, "--parallelism.pipeline_parallel_degree 2"
     " --parallelism.pipeline_parallel_schedule Interleaved1F1B", {"layout.vpp": 2}),
    (maxtext, "weight_dtype=bfloat16", {"training.master_weights": False}),
    (maxtext, "grad_dtype=bfloat16", {"training.gradient_dtype": "bf16"}),
    (maxtext, "quantization=fp8_full", {"training.precision": "fp8_current"}),
    (maxtext, "quantization=fp8_full weight_quantization_calibration_method=fixed,-224,224"
     " act_quantization_calibration_method=fixed,-224,224", {"training.precision": "fp8"}),
    (maxtext, "num_vocab_tiling=4", {"training.loss_chunks": 4}),
    (mlperf, "FP8_PARAM_GATHER=True", {"training.fp8_weights": True}),
    (mlperf, "USE_DIST_OPTIMIZER=True", {"layout.sharding": "zero1"}),
    (mlperf, "USE_DIST_OPTIMIZER=False", {"layout.sharding": "ddp"}),
    (mlperf, "USE_FSDP=True", {"layout.sharding": "zero3"}),
    (mlperf, "TP_PP_DP_MAPPING=True", {"layout.rank_order": "tp-cp-pp-dp"}),
    (torchtune, "enable_fp8_training: true ; fp8_recipe_name: tensorwise",
     {"training.precision": "fp8_current"}),
    (torchtune, "ac_mode: selective ; ac_option: 1 ; enable_activation_checkpointing: false",
     {"layout.recompute": "full"}),
    (torchtune, "ac_mode: selective ; ac_option: op ; enable_activation_checkpointing: false",
     {"layout.recompute": "selective"}),
    (torchtune, "ac_mode: none ; enable_activation_checkpointing: false",
     {"layout.recompute": "none"}),
    (trainer, '{"adafactor": true}', {"training.optimizer": "adafactor"}),
    (trainer, '{"ddp_bucket_cap_mb": 50}', {"software.bucket_bytes": 50 * 2**20}),
    (trainer, '{"gradient_checkpointing": true}', {"layout.recompute": "full"}),
    (trainer, '{"gradient_checkpointing": false}', {"layout.recompute": "none"}),
    (trainer, '{"use_flash_attention": false}', {"software.flash_attention": False}),
    (trainer, '{"attn_implementation": "eager"}', {"software.flash_attention": False}),
]  # fmt: skip


@pytest.mark.parametrize(("reader", "more", "fields"), SAYS)
def test_a_key_sets_its_field(reader, more, fields, tmp_path: Path) -> None:
    said = {item.field: item.value for item in reader(tmp_path, more).origins}
    assert {name: said.get(name, "nothing") for name in fields} == fields


NOTES: list[tuple[Any, str, str]] = [
    (maxtext, "packing=False", "every sample is counted as long as max_target_length"),
    (torchtune, "activation_offloading_use_streams: false", "counted beside the computation"),
    (torchtune, "optimizer: {_component_: bitsandbytes.optim.PagedAdamW8bit}",
     "pages that wait on the host"),
    (trainer, '{"dtype": "auto"}', "as the checkpoint has them"),
    (trainer, '{"packing": false}', "every sample is counted as long as the longest"),
    (torchtitan, "--parallelism.pipeline_parallel_degree 2"
     " --parallelism.fsdp_reshard_after_forward always", "after every stage is not told apart"),
]  # fmt: skip


@pytest.mark.parametrize(("reader", "more", "note"), NOTES)
def test_what_is_not_counted_is_said(reader, more, note, tmp_path: Path) -> None:
    assert any(note in text for text in reader(tmp_path, more).notes)


REFUSED: list[tuple[Any, str, str]] = [
    (megatron, f"{PIPED} --num-layers-per-virtual-pipeline-stage 3",
     "3 x pp 2 must divide 32 layers"),
    (megatron, "--pipeline-model-parallel-size 4"
     " --pipeline-model-parallel-layout 'Et*11|t*11|t*10mL'", "must name stages that pp 4 divides"),
    (megatron, "--recompute-granularity selective --recompute-modules core_attn nothing",
     "got 'nothing'"),
    (torchtitan, "--activation_checkpoint.mode selective"
     " --activation_checkpoint.selective_ac_option 0", "must be op or the number of blocks"),
    (torchtitan, "--model.converters quantize.linear.nvfp4", "does not train in nvfp4"),
    (torchtitan, "--training.num_tokens_per_train_step 12000", "must be a multiple of"),
    (maxtext, "per_device_batch_size=0", "must be a number above 0"),
    (maxtext, "ici_tensor_parallelism=0", "must be a whole number from 1, or -1"),
    (maxtext, "remat_policy=everything", "must be one of full, minimal"),
    (torchtune, "ac_mode: selective ; ac_option: 2 ; enable_activation_checkpointing: false",
     "must be op or 1"),
    (torchtune, "ac_mode: full", "must not be there with enable_activation_checkpointing"),
    (trainer, '{"dtype": "int8"}', "must be auto or one of"),
    (trainer, '{"load_in_4bit": true}', "trained by adapters alone"),
]  # fmt: skip


@pytest.mark.parametrize(("reader", "more", "words"), REFUSED)
def test_what_cannot_be_meant_is_refused(reader, more, words, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words.replace("|", ".")):
        reader(tmp_path, more)
