"""Small configurations of trainers that a table describes, written for these tests."""

AXOLOTL = """\
base_model: NousResearch/Meta-Llama-3.1-8B
load_in_4bit: true
datasets:
  - path: own.jsonl
    type: chat_template
output_dir: ./out
adapter: qlora
lora_r: 32
lora_alpha: 16
lora_target_modules: [q_proj, v_proj, down_proj]
sequence_len: 4096
sample_packing: true
gradient_accumulation_steps: 4
micro_batch_size: 2
optimizer: adamw_bnb_8bit
learning_rate: 0.0002
bf16: auto
gradient_checkpointing: true
attn_implementation: flash_attention_2
deepspeed:
fsdp_version: 2
fsdp_config:
  offload_params: false
  state_dict_type: SHARDED_STATE_DICT
  auto_wrap_policy: TRANSFORMER_BASED_WRAP
  transformer_layer_cls_to_wrap: LlamaDecoderLayer
  reshard_after_forward: true
"""

AXOLOTL_FULL = """\
base_model: meta-llama/Llama-3.1-8B
datasets:
  - path: own.jsonl
sequence_len: 8192
sample_packing: true
micro_batch_size: 1
gradient_accumulation_steps: 1
optimizer: adamw_torch_8bit
bf16: true
gradient_checkpointing: true
context_parallel_size: 2
dp_shard_size: 4
fsdp_version: 2
fsdp_config:
  reshard_after_forward: true
"""

AUTOMODEL = """\
recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler:
  global_batch_size: 64
  local_batch_size: 8
  max_steps: 20
dist_env:
  backend: nccl
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: meta-llama/Llama-3.2-1B
  torch_dtype: bf16
distributed:
  strategy: fsdp2
  dp_size: none
  tp_size: 2
  cp_size: 1
  pp_size: 1
  pipeline:
    pp_schedule: interleaved1f1b
    pp_microbatch_size: 4
    layers_per_stage: 2
  sequence_parallel: true
  activation_checkpointing: true
loss_fn:
  _target_: nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy
dataset:
  _target_: nemo_automodel.components.datasets.llm.squad.make_squad_dataset
  seq_length: 2048
packed_sequence:
  packed_sequence_size: 0
optimizer:
  _target_: torch.optim.AdamW
  lr: 1.0e-5
"""

LITGPT = """\
checkpoint_dir: checkpoints/meta-llama/Meta-Llama-3-8B
out_dir: out/lora
precision: bf16-true
quantize:
devices: 4
num_nodes: 1
lora_r: 16
lora_alpha: 16
lora_query: true
lora_key: false
lora_value: true
lora_projection: false
lora_mlp: true
lora_head: false
data:
  class_path: litgpt.data.Alpaca2k
train:
  save_interval: 200
  global_batch_size: 16
  micro_batch_size: 2
  lr_warmup_steps: 10
  epochs: 2
  max_tokens:
  max_steps: 50
  max_seq_length: 512
eval:
  interval: 25
optimizer:
  class_path: torch.optim.AdamW
  init_args:
    lr: 0.0002
"""

NANOTRON = """\
general: {project: own, run: small, seed: 42}
model:
  ddp_bucket_cap_mb: 25
  dtype: bfloat16
  make_vocab_size_divisible_by: 1
  model_config:
    is_llama_config: true
    hidden_act: silu
    hidden_size: 2048
    intermediate_size: 5632
    max_position_embeddings: 2048
    num_attention_heads: 32
    num_hidden_layers: 22
    num_key_value_heads: 4
    rms_norm_eps: 1.0e-05
    tie_word_embeddings: false
    vocab_size: 32000
optimizer:
  accumulate_grad_in_fp32: true
  zero_stage: 1
  weight_decay: 0.01
parallelism:
  dp: 4
  pp: 1
  pp_engine: 1f1b
  tp: 2
  tp_mode: REDUCE_SCATTER
  tp_linear_async_communication: false
  recompute_layer: true
tokens:
  batch_accumulation_per_replica: 8
  micro_batch_size: 4
  sequence_length: 2048
  train_steps: 100
"""

ARCTIC = """\
type: sft
micro_batch_size: 1
gradient_accumulation_steps: 2
sequence_parallel_size: 4
activation_checkpoint_cpu_offload: true
model:
  type: liger
  name_or_path: meta-llama/Llama-3.1-8B-Instruct
  attn_implementation: flash_attention_2
deepspeed:
  zero_optimization:
    stage: 3
    offload_optimizer:
      device: cpu
data:
  sources: [own]
  max_length: 32000
logger:
  level: INFO
optimizer:
  type: cpu_adam
  learning_rate: 0.00001
"""

LLM_FOUNDRY = """\
variables: {max_seq_len: 2048, global_seed: 17}
max_seq_len: ${variables.max_seq_len}
model:
  name: mpt_causal_lm
  init_device: meta
  d_model: 4096
  n_heads: 32
  n_layers: 32
  expansion_ratio: 4
  max_seq_len: ${variables.max_seq_len}
  vocab_size: 50368
  attn_config: {attn_impl: flash}
train_loader: {name: text, drop_last: true}
optimizer: {name: decoupled_adamw, lr: 1.2e-4}
max_duration: 63900ba
global_train_batch_size: 1024
device_train_microbatch_size: 8
precision: amp_bf16
fsdp_config:
  sharding_strategy: FULL_SHARD
  mixed_precision: PURE
  activation_checkpointing: true
"""

MINDFORMERS = """\
seed: 0
run_mode: finetune
trainer: {type: CausalLanguageModelingTrainer, model_name: qwen3}
pretrained_model_dir: Qwen/Qwen3-8B
runner_config: {epochs: 1, batch_size: 1}
optimizer: {type: AdamW}
callbacks: &watched [{type: MFLossMonitor}]
eval_callbacks: *watched
parallel: {parallel_mode: 1, enable_parallel_optimizer: true}
parallel_config:
  data_parallel: 2
  model_parallel: 4
  pipeline_stage: 1
  micro_batch_num: 4
  use_seq_parallel: true
recompute_config: {recompute: true, select_recompute: false}
model: {model_config: {seq_length: 4096, compute_dtype: bfloat16, use_flash_attention: true}}
"""

OLMO_CORE = """\
from olmo_core.config import DType
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.train import Duration, TrainerConfig
from olmo_core.train.train_module import TransformerDataParallelConfig, TransformerTrainModuleConfig

SEQUENCE_LENGTH = 8192
GLOBAL_BATCH_SIZE = 128 * SEQUENCE_LENGTH


def build(common):
    model = TransformerConfig.llama3_8B(vocab_size=128256)
    module = TransformerTrainModuleConfig(
        rank_microbatch_size=2 * SEQUENCE_LENGTH,
        max_sequence_length=common.max_sequence_length,
        optim=SkipStepAdamWConfig(lr=3e-4, betas=(0.9, 0.95)),
        compile_model=True,
        dp_config=TransformerDataParallelConfig(
            name=DataParallelType.fsdp, param_dtype=DType.bfloat16, reduce_dtype=DType.float32
        ),
        ac_config=TransformerActivationCheckpointingConfig(
            mode=TransformerActivationCheckpointingMode.full
        ),
    )
    return model, module, TrainerConfig(max_duration=Duration.tokens(int(4e12)))
"""

UNSLOTH = """\
from unsloth import FastLanguageModel
import torch
max_seq_length = 2048
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name = "unsloth/Meta-Llama-3.1-8B", max_seq_length = max_seq_length, load_in_4bit = True,
)
model = FastLanguageModel.get_peft_model(
    model, r = 8 * 2, lora_alpha = 16, target_modules = ["q_proj", "k_proj", "v_proj", "o_proj"],
    use_gradient_checkpointing = "unsloth",
)
from trl import SFTTrainer, SFTConfig
trainer = SFTTrainer(
    model = model, tokenizer = tokenizer, train_dataset = None, packing = True,
    args = SFTConfig(
        per_device_train_batch_size = 2, gradient_accumulation_steps = 4, max_steps = 60,
        optim = "adamw_8bit", learning_rate = 2e-4,
    ),
)
"""

HUGGING_FACE = """\
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

quantised = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
model = AutoModelForCausalLM.from_pretrained(
    "meta-llama/Llama-2-7b-hf", quantization_config=quantised, device_map="auto"
)
adapters = LoraConfig(r=16, lora_alpha=32, target_modules=["q_proj", "v_proj"])
arguments = SFTConfig(
    output_dir="out", per_device_train_batch_size=4, gradient_accumulation_steps=2, bf16=True,
    max_length=1024, max_steps=100, optim="paged_adamw_8bit", gradient_checkpointing=True,
)
SFTTrainer(model=model, args=arguments, train_dataset=None, peft_config=adapters).train()
"""

XTUNER = """\
import torch
from peft import LoraConfig
from torch.optim import AdamW
from xtuner.model import SupervisedFinetune

pretrained_model_name_or_path = "meta-llama/Meta-Llama-3-8B-Instruct"
max_length = 2048
pack_to_max_length = True
sequence_parallel_size = 1
batch_size = 1
accumulative_counts = 16
optim_type = AdamW
lr = 2e-4
model = dict(
    type=SupervisedFinetune,
    llm=dict(
        pretrained_model_name_or_path=pretrained_model_name_or_path,
        quantization_config=dict(load_in_4bit=True, load_in_8bit=False),
    ),
    lora=dict(type=LoraConfig, r=64, lora_alpha=16),
)
"""

COLOSSAL_AI = """\
#!/bin/bash
colossalai run --nproc_per_node 8 --hostfile hosts.txt benchmark.py -c 7b -g -x -b 16 -l 4096 \\
    -p 3d --tp 2 --zero 1 --mbs 1
"""

LLAMA_FACTORY_V1 = """\
model: Qwen/Qwen3-8B
model_class: llm
peft_config:
  name: lora
  r: 16
  lora_alpha: 32
  target_modules: all
dist_config:
  name: fsdp2
  dcp_path: null
quant_config:
  name: bnb
  quantization_bit: 4
train_dataset: data/own.yaml
output_dir: out
micro_batch_size: 2
cutoff_len: 4096
learning_rate: 1.0e-4
max_steps: 10
sample_backend: hf
max_new_tokens: 128
"""
MS_SWIFT = """\
nproc_per_node=8
NPROC_PER_NODE=$nproc_per_node \\
swift sft \\
    --model Qwen/Qwen3-8B --train_type lora --lora_rank 16 --target_modules all-linear \\
    --dataset 'mine/instructions#2000' --torch_dtype bfloat16 --max_length 4096 --packing true \\
    --attn_impl flash_attn --num_train_epochs 1 --per_device_train_batch_size 2 \\
    --gradient_accumulation_steps 4 --learning_rate 1e-4 --deepspeed zero2 --save_steps 100
"""
SAMPLES = {
    "axolotl.yaml": AXOLOTL, "automodel.yaml": AUTOMODEL, "litgpt.yaml": LITGPT,
    "nanotron.yaml": NANOTRON, "arctic.yaml": ARCTIC, "llm_foundry.yaml": LLM_FOUNDRY,
    "mindformers.yaml": MINDFORMERS, "olmo_core.py": OLMO_CORE, "unsloth.py": UNSLOTH,
    "hugging_face.py": HUGGING_FACE, "xtuner.py": XTUNER, "colossal_ai.sh": COLOSSAL_AI,
    "llama_factory_v1.yaml": LLAMA_FACTORY_V1, "ms_swift.sh": MS_SWIFT,
}  # fmt: skip
"""A sample of each table, by its name."""
