"""NeMo 1: configurations of its launcher, in NeMo's own words and with its own defaults."""

from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.interop.launch_files.imported import Imported
from simulator.interop.launch_files.merging import import_launch

CONFIG = """
defaults: [_self_]
run: {name: mine, results_dir: /results, time_limit: "1:00:00"}
trainer: {num_nodes: 4, devices: 8, accelerator: gpu, precision: bf16, max_steps: 100}
exp_manager:
  create_checkpoint_callback: true
  checkpoint_callback_params: {monitor: val_loss, save_top_k: 3, every_n_train_steps: 50}
model:
  mcore_gpt: true
  megatron_amp_O2: true
  micro_batch_size: 1
  global_batch_size: 256
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 1
  encoder_seq_length: 4096
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: ${multiply:4, ${.hidden_size}}
  num_attention_heads: 32
  num_query_groups: 8
  bias: false
  activation: fast-swiglu
  normalization: rmsnorm
  position_embedding_type: rope
  share_embeddings_and_output_weights: false
  hidden_dropout: 0.0
  attention_dropout: 0.0
  sequence_parallel: true
  ub_tp_comm_overlap: true
  fp8: true
  fp8_e4m3: false
  fp8_hybrid: true
  tokenizer: {library: huggingface, type: meta-llama/Meta-Llama-3-8B}
  optim: {name: mcore_distributed_optim, lr: 1e-4, overlap_grad_sync: true, sched: {min_lr: 1e-5}}
  data: {seq_length: 4096, data_prefix: [1.0, /data/text], num_workers: 2}
"""


def read(folder: Path, text: str, name: str = "config.yaml", **files: str) -> Imported:
    (folder / name).write_text(text)
    more = [folder / f"{key}.yaml" for key in files]
    for path, content in zip(more, files.values(), strict=True):
        path.write_text(content)
    return import_launch([folder / name, *more], {"cluster": "dgx-h100"})


def test_a_configuration_of_nemo_is_read_in_its_own_words(tmp_path: Path) -> None:
    found = read(tmp_path, CONFIG)
    said = {item.field: item.value for item in found.origins}
    assert found.scenario.cluster.gpus == 32
    assert (said["layout.tp"], said["layout.sharding"]) == (2, "zero1")
    assert (said["training.precision"], said["training.reduce_dtype"]) == ("fp8", "fp32")
    assert said["software.tp_comm_overlap"] is True
    arch = found.scenario.workload.architecture
    layer = 4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 16384 + 2 * 4096  # no biases, gated
    assert arch.parameters == 32 * layer + 2 * 128256 * 4096 + 4096
    assert not found.unknown


def test_states_of_nemos_plain_optimizer_are_not_shared(tmp_path: Path) -> None:
    text = CONFIG.replace("mcore_distributed_optim", "fused_adam").replace("fp8: true", "fp8: no")
    said = {item.field: item.value for item in read(tmp_path, text).origins}
    assert (said["layout.sharding"], said["training.precision"]) == ("ddp", "bf16")


@pytest.mark.parametrize("mark", ["mcore_t5: true", "bert_binary_head: false", "mm_cfg: {llm: x}"])
def test_a_model_that_is_no_decoder_of_text_is_refused(mark: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a model that is no decoder of text is not read"):
        read(tmp_path, CONFIG.replace("mcore_gpt: true", f"mcore_gpt: true\n  {mark}"))


def test_options_of_the_launcher_stand_above_its_configuration(tmp_path: Path) -> None:
    """NeMo-Framework-Launcher: main.py training=llama/mine training.model.micro_batch_size=2."""
    text = (
        "python3 main.py training=llama/mine stages=[training]"
        " training.model.micro_batch_size=2 training.trainer.num_nodes=8\n"
    )
    found = read(tmp_path, text, "run.sh", mine=CONFIG)
    assert found.readings[0].kind == "NeMo 1 configuration"
    assert (found.scenario.pinned["micro_batch"], found.scenario.cluster.gpus) == (2, 64)
    assert found.scenario.pinned["tp"] == 2


def test_adapters_of_nemo(tmp_path: Path) -> None:
    text = CONFIG + "  peft: {peft_scheme: lora, lora_tuning: {adapter_dim: 16}}\n"
    assert read(tmp_path, text).scenario.workload.recipe.lora_rank == 16
    with pytest.raises(InputError, match=r"peft_scheme.*must be lora"):
        read(tmp_path, text.replace("scheme: lora", "scheme: ptuning"))
