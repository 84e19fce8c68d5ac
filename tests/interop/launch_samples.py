"""Launch files as people have them, one a format: scripts, configurations, a topology."""

from typing import Any

MEGATRON = """\
#!/bin/bash
#SBATCH --nodes=8
#SBATCH --gpus-per-node=8
#SBATCH --time=48:00:00
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-"1"}
TP=${TP:-8}
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE   # one per GPU
    --nnodes $NNODES
    --master_addr $MASTER_ADDR
)
MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups 8 --seq-length 8192
    --max-position-embeddings 8192 --swiglu --normalization RMSNorm --disable-bias-linear
    --untie-embeddings-and-output-weights --position-embedding-type rope
    --attention-dropout 0 --hidden-dropout 0.0 --vocab-size 128256
)
TRAINING_ARGS="
    --micro-batch-size 1 --global-batch-size $((16*4*NNODES))
    --train-iters 100000 --lr 3e-4 --bf16 --use-distributed-optimizer --overlap-grad-reduce
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
    --my-own-flag 7
"
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \\
    ${MODEL_ARGS[@]} $TRAINING_ARGS \\
    --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size 1 --sequence-parallel
"""

TORCHTITAN = """\
[model]
name = "llama3"
flavor = "8B"
[optimizer]
name = "AdamW"
lr = 3e-4
[training]
local_batch_size = 2
seq_len = 8192
steps = 1000
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = -1
tensor_parallel_degree = 4
pipeline_parallel_degree = 1
context_parallel_degree = 1
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
[compile]
enable = true
[invented]
key = 1
"""

DEEPSPEED: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {
        "stage": 3,
        "overlap_comm": True,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
    },
    "invented": {"deep": 1},
}

ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_version: 2
  fsdp_reshard_after_forward: false
  fsdp_activation_checkpointing: true
mixed_precision: bf16
num_machines: 2
num_processes: 16
"""

RECIPE = """\
trainer:
  devices: 8
  num_nodes: 4
  precision: bf16-mixed
  max_steps: 100
model:
  micro_batch_size: 1
  global_batch_size: 128
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: 10
  sequence_parallel: true
  encoder_seq_length: 4096
  cuda_graph_scope: full
  optim:
    name: distributed_fused_adam
"""

MLPERF = """\
source $(dirname ${BASH_SOURCE[0]})/config_common.sh
export MINIBS=64
export TENSOR_MODEL_PARALLEL=4
export PIPELINE_MODEL_PARALLEL=8
export INTERLEAVED_PIPELINE=6
export MICRO_BATCH_SIZE=2
export SEQ_PARALLEL=True
export FP8=True
export DGXNNODES=16
export DGXNGPU=8
export NCCL_MIN_NCHANNELS=4
export SOMETHING_NEW=1
"""

MLPERF_LORA = """\
source $(dirname ${BASH_SOURCE[0]})/config_common.sh
export LORA_A2A=1
export FP8=True
export FP8_AMAX_HISTORY=4
export DGXNNODES=4
export DGXNGPU=8
export MINIBS=1
export MBS=1
export TP=4
export PP=1
export CP=1
export SP=True
export ACG=full && export ACM=block && export ACL=21
export CPU_OFFLOADING=False
export MAX_STEPS=800
"""

EVALUATED = """\
OPTIONS='--hidden-size 4096 --num-attention-heads 32 --group-query-attention --num-query-groups 8 \
  --ffn-hidden-size 21504 --squared-relu --normalization RMSNorm --disable-bias-linear --bf16'
PATTERN="M-M-M-M*-M-M-M*-|M-M-M-M*-M-M-M*-"
DS="--deepspeed --deepspeed_config=ds.json --zero-stage=1 --checkpoint-activations"
cmd="CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nproc_per_node 8 --nnodes 4 pretrain_hybrid.py \
  $OPTIONS $DS --hybrid-layer-pattern \\$PATTERN --mamba-num-heads 128 --mamba-state-dim 128 \
  --step-batch-size-schedule '0:64 2.4B:128 4.8B:256' --micro-batch-size 1 --seq-length 4096 \
  --pipeline-model-parallel-size 2 --tokenizer-type HuggingFaceTokenizer \
  --tokenizer-model meta-llama/Llama-3.1-8B --train-tokens 300000000000 2>&1 | tee train.log"
echo $cmd
eval $cmd
"""

TOPOLOGY = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tmlx5_0\tCPU Affinity
GPU0\t X \tNV12\tNV12\tNV12\tPIX\t0-31
GPU1\tNV12\t X \tNV12\tNV12\tPXB\t0-31
GPU2\tNV12\tNV12\t X \tNV12\tSYS\t32-63
GPU3\tNV12\tNV12\tNV12\t X \tSYS\t32-63
mlx5_0\tPIX\tPXB\tSYS\tSYS\t X \t
"""

TRAINER: dict[str, Any] = {
    "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "bf16": True,
    "learning_rate": 1e-4, "max_steps": 10, "fsdp": "full_shard auto_wrap", "output_dir": "o",
}  # fmt: skip

FSDP2 = """\
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

MICRO_BATCH = 2
GRADIENT_ACCUMULATION = 4
SEQUENCE_LENGTH = 2048
mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("replicate", "shard"))
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for block in model.layers:
    fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
fully_shard(model, mesh=mesh, mp_policy=policy)
"""

MAXTEXT = """\
#!/bin/bash
XLA_FLAGS=" \\
  --xla_enable_async_all_gather=true \\
  --xla_tpu_enable_ici_ar_pipelining=true "
MAXTEXT_ARGS="\\
model_name=llama3.1-405b \\
dtype=bfloat16 \\
per_device_batch_size=2 \\
enable_checkpointing=False \\
ici_fsdp_parallelism=-1 \\
remat_policy=custom \\
decoder_layer_input=offload \\
key_proj=device \\
value_proj=device \\
attention=flash \\
opt_type=adamw \\
mu_dtype=bfloat16 \\
max_target_length=8192 \\
steps=30 \\
my_own_key=1 \\
run_name=${NAME}"
xpk workload create --cluster=$CLUSTER_NAME --device-type=tpu7x-4x8x8 --num-slices=1 \\
  --command="set -e && export LIBTPU_INIT_ARGS='${XLA_FLAGS}' && \\
python3 -m maxtext.trainers.pre_train.train maxtext/configs/base.yml ${MAXTEXT_ARGS} | tee a.log"
"""

NEURONX = """\
name: hf_llama
trainer:
  devices: 32
  num_nodes: 16
  max_steps: 30000
distributed_strategy:
  tensor_model_parallel_size: 32
  pipeline_model_parallel_size: 8
  virtual_pipeline_model_parallel_size: 1
  zero1: True
  sequence_parallel: True
  kv_replicator: 4
data:
  micro_batch_size: 1
  global_batch_size: 1024
  seq_length: ${model.encoder_seq_length}
model:
  encoder_seq_length: 8192
  num_layers: 80
  hidden_size: 8192
  activations_checkpoint_granularity: selective
  activations_checkpoint_recompute: [CoreAttention, LlamaMLP]
  invented: 1
  optim:
    name: adamw_fp32OptState
    lr: 1.5e-4
precision:
  type: 'mixed_precision'
"""

NEURONX_SMALL = NEURONX.replace("size: 32", "size: 4").replace(
    "parallel_size: 8", "parallel_size: 1"
)
"""The same on one server."""

REGISTERED = """\
#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
srun torchrun --nnodes 4 --nproc_per_node 8 -m torchtitan.train --module llama3 --config llama3_8b \
  --parallelism.tensor_parallel_degree 2 --training.max_context_length 8192 --compile.enable
"""

LAUNCHED_FSDP = """\
accelerate launch --use_fsdp --fsdp_sharding_strategy HYBRID_SHARD --num_processes 32 \
  --num_machines 4 trl/scripts/sft.py --model_name_or_path meta-llama/Llama-3.1-8B --use_peft \
  --lora_r 16 --lora_target_modules q_proj v_proj --per_device_train_batch_size 2 \
  --gradient_accumulation_steps 4 --max_length 2048 --bf16 --load_in_4bit
"""

PRIMUS = """\
work_group: ${PRIMUS_TEAM:amd}
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: llama3.1_8B.yaml
    overrides:
      train_iters: 20
      micro_batch_size: ${MBS:4}
      global_batch_size: 256
      seq_length: ${LENGTH:4096}
      tensor_model_parallel_size: ${TP:2}
      moe_expert_capacity_factor: null
      recompute_granularity: full
      recompute_method: block
      recompute_num_layers: 12
"""

FACTORY: dict[str, Any] = {
    "model_name_or_path": "meta-llama/Llama-3.1-8B", "stage": "sft", "finetuning_type": "freeze",
    "freeze_trainable_layers": 4, "cutoff_len": 2048, "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 8, "pure_bf16": True, "fsdp": "hybrid_shard offload",
    "fsdp_config": {"version": 1, "activation_checkpointing": False},
    "gradient_checkpointing_kwargs": {"use_reentrant": False}, "quantization_bit": None,
}  # fmt: skip

NEOX = """\
# Pythia 6.9B, after configs/pythia/6-9B.yml of EleutherAI/gpt-neox@ea7aefd8
{
   "pipe_parallel_size": 1,
   "model_parallel_size": 2,
   "num_layers": 32,
   "hidden_size": 4096,
   "num_attention_heads": 32,
   "seq_length": 2048,
   "max_position_embeddings": 2048,
   "norm": "layernorm",
   "pos_emb": "rotary",
   "rotary_pct": 0.25,
   "no_weight_tying": true,
   "gpt_j_residual": true,
   "output_layer_parallelism": "column",
   "attention_config": [[["flash"], 32]],
   "scaled_upper_triang_masked_softmax_fusion": true,
   "bias_gelu_fusion": true,
   "optimizer": {"type": "Adam", "params": {"lr": 0.00012, "betas": [0.9, 0.95], "eps": 1.0e-8}},
   "min_lr": 0.000012,
   "zero_optimization": {"stage": 1, "overlap_comm": true, "contiguous_gradients": true},
   "train_micro_batch_size_per_gpu": 8,
   "gradient_accumulation_steps": 2,
   "checkpoint_activations": true,
   "checkpoint_num_layers": 1,
   "partition_activations": true,
   "synchronize_each_layer": true,
   "hidden_dropout": 0,
   "attention_dropout": 0,
   "fp16": {"fp16": true, "enabled": true, "loss_scale": 0, "initial_scale_power": 12},
   "train_iters": 143000,
   "lr-decay-iters": 143000,
   "checkpoint_factor": 1000,
   "extra_save_iters": [0, 1, 2],
   "tokenizer_type": "HFTokenizer",
}
"""

NEOX_PATHS = """\
{ "data_path": "/data/pile", "vocab_file": "data/20B_tokenizer.json", "save": "checkpoints",
  "load": "checkpoints", "tensorboard-dir": "logs", "use_wandb": True, "wandb_project": "neox", }
"""

NEMO_2 = """\
import nemo_run as run
from nemo.collections import llm
from nemo.collections.llm.recipes.precision.mixed_precision import bf16_with_fp8_mixed


def configure_recipe(nodes: int = 1, gpus_per_node: int = 2):
    recipe = llm.llama3_8b.pretrain_recipe(
        dir="/checkpoints", name=f"run_{nodes}", num_nodes=nodes, num_gpus_per_node=gpus_per_node
    )
    recipe.trainer.strategy.tensor_model_parallel_size = 2
    recipe.trainer.strategy.context_parallel_size = 1
    recipe.trainer.plugins = bf16_with_fp8_mixed()
    recipe.trainer.max_steps = 1000
    recipe.data.global_batch_size = 8 * 32
    recipe.model.config.recompute_granularity = "full"
    recipe.model.config.recompute_method = "block"
    recipe.model.config.recompute_num_layers = 4
    return recipe


def local_executor(nodes: int = 1, devices: int = 2) -> run.LocalExecutor:
    return run.LocalExecutor(ntasks_per_node=devices, launcher="torchrun")


if __name__ == "__main__":
    recipe = configure_recipe(nodes=1, gpus_per_node=8)
    run.run(recipe, executor=local_executor(devices=recipe.trainer.devices))
"""
"""A script of NeMo-Run after the quick start of NeMo 2's documentation."""

HEADS = """\
#!/bin/bash
#PBS -l select=2:ncpus=64:ngpus=4:mem=400gb,walltime=24:00:00
#PBS -l place=scatter:excl
#PBS -A project
#BSUB -n 8
#BSUB -R "span[ptile=4] rusage[mem=4000]"
#BSUB -gpu "num=4:mode=exclusive_process"
#BSUB -W 2:00
python pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --bf16 \\
    --num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 8192 \\
    --max-position-embeddings 8192 --swiglu --normalization RMSNorm --disable-bias-linear \\
    --untie-embeddings-and-output-weights --position-embedding-type rope --vocab-size 128256 \\
    --tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 64 --train-iters 9
"""
