"""How launch files train: every word of a value counts, and what is no plain step is refused.

Names and defaults are those of the trainers' own sources, which each test names.
"""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from simulator.distillation import Distillation
from simulator.errors import InputError
from simulator.interop.dialects.torchtitan import registered_jobs
from simulator.interop.launch_files.imported import Imported
from simulator.interop.launch_files.merging import import_launch
from simulator.interop.launch_files.recognising import read_launch_file
from simulator.units import GIB

EIGHT = {"cluster": "dgx-h100", "gpus": 8}
JSON = {
    "model_name_or_path": "meta-llama/Llama-3.1-8B", "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2, "bf16": True, "gradient_checkpointing": True,
    "max_length": 2048,
}  # fmt: skip
PARAMETERS = 8_030_261_248
"""Of Llama 3.1 8B: the model card's 8.03B, counted by hand from its config.json."""
TRL = "accelerate launch --config_file fsdp.yaml {script} --model_name_or_path Qwen/Qwen3-8B"
TRL += " --per_device_train_batch_size 1 --gradient_accumulation_steps 4 --max_length 4096 --bf16"
FSDP = """\
distributed_type: FSDP
mixed_precision: bf16
num_machines: 2
num_processes: 16
fsdp_config:
  fsdp_reshard_after_forward: FULL_SHARD
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
"""
ZERO = """\
distributed_type: DEEPSPEED
mixed_precision: bf16
num_machines: 2
num_processes: 16
deepspeed_config:
  zero_stage: 3
  zero3_init_flag: true
"""


def read(
    folder: Path, files: dict[str, Any], names: dict[str, Any] | None = None, *sets: str
) -> Imported:
    paths = []
    for name, content in files.items():
        paths.append(folder / name)
        paths[-1].write_text(content if isinstance(content, str) else json.dumps(content))
    return import_launch(paths, {**EIGHT, **(names or {})}, sets)


def arguments(folder: Path, **more: Any) -> Imported:
    return read(folder, {"args.json": {**JSON, **more}})


def gib(imported: Imported) -> float:
    return imported.predicted().memory_bytes / GIB


# --- a tower beside the language model -----------------------------------------------------------

MULTIMODAL = """\
torchrun --nproc_per_node 8 examples/multimodal/train.py --num-layers 32 --hidden-size 4096 \\
 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 \\
 --swiglu --normalization RMSNorm --untie-embeddings-and-output-weights --disable-bias-linear \\
 --position-embedding-type rope --vocab-size 128256 --seq-length 576 --decoder-seq-length 2048 \\
 --micro-batch-size 1 --global-batch-size 64 --bf16 --tensor-model-parallel-size 2 \\
 --use-distributed-optimizer --language-model-type llama3.1_8b --vision-model-type clip \\
 --img-h 336 --img-w 336 --patch-dim 14 --disable-vision-class-token"""
CLIP = 24 * (4 * 1024 * 1024 + 4 * 1024 + 2 * 1024 * 4096 + 4096 + 1024 + 4 * 1024)
CLIP += 1024 * 3 * 14 * 14 + 1024 + (576 + 1 + 1) * 1024 + 2 * 1024
"""Blocks with biases and two layer norms; patches, positions, a class token, one norm more."""
PROJECTOR = 4096 * (1024 + 4096)


def test_megatrons_tower_stands_before_the_language_model(tmp_path: Path) -> None:
    """Sizes of examples/multimodal/config.py of Megatron-LM; 336 / 14 squared are 576 patches."""
    work = read(tmp_path, {"run.sh": f"{MULTIMODAL} --freeze-LM --freeze-ViT"}).scenario.workload
    arch, recipe = work.architecture, work.recipe
    assert (recipe.sequence_length, recipe.frozen_parts) == (2048, ("text", "tower"))
    assert (arch.tower_layers, arch.layers) == (24, 24 + 32)
    assert {arch.blocks[kind].tokens for kind in arch.layer_kinds[:24]} == {577}
    assert arch.projector == PROJECTOR
    assert arch.parameters == PARAMETERS + CLIP + PROJECTOR
    trained = read(tmp_path, {"run.sh": MULTIMODAL}).predicted().memory_bytes
    frozen = read(tmp_path, {"run.sh": f"{MULTIMODAL} --freeze-LM --freeze-ViT"}).predicted()
    assert frozen.memory_bytes < trained / 3


def test_pixel_shuffle_makes_the_projector_four_times_as_wide(tmp_path: Path) -> None:
    wide = read(tmp_path, {"run.sh": f"{MULTIMODAL} --pixel-shuffle"}).scenario
    assert wide.workload.architecture.projector == 4096 * (4 * 1024 + 4096)


def test_the_tower_is_on_the_first_stage(tmp_path: Path) -> None:
    piped = f"{MULTIMODAL} --pipeline-model-parallel-size 4 --max-num-tiles 6"
    found = read(tmp_path, {"run.sh": piped})
    assert found.scenario.pinned["stages"] == (32, 8, 8, 8)
    assert any("one tile of an image, not up to 6" in note for note in found.notes)


def test_the_length_of_an_image_is_not_the_language_models(tmp_path: Path) -> None:
    text = MULTIMODAL.replace("--decoder-seq-length 2048", "")
    with pytest.raises(InputError, match=r"'576' are tokens of an image.*sequence_length=N"):
        read(tmp_path, {"run.sh": text})


@pytest.mark.parametrize(
    ("more", "frozen"),
    [
        ({}, ("tower", "projector")),  # hparams/finetuning_args.py
        ({"freeze_multi_modal_projector": False}, ("tower",)),
        ({"freeze_vision_tower": False, "freeze_language_model": True}, ("text", "projector")),
    ],
)
def test_parts_that_llama_factory_freezes(tmp_path: Path, more: Any, frozen: Any) -> None:
    said = {
        "model_name_or_path": "google/gemma-3-4b-it", "finetuning_type": "full", "stage": "sft",
        "cutoff_len": 2048, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 8,
    }  # fmt: skip
    recipe = read(tmp_path, {"a.json": {**said, **more}}).scenario.workload.recipe
    assert set(recipe.frozen_parts) == set(frozen)
    text = {**said, "model_name_or_path": "Qwen/Qwen3-8B"}
    assert not read(tmp_path, {"b.json": text}).scenario.workload.recipe.frozen_parts


# --- type of the weights, low-bit bases ----------------------------------------------------------


@pytest.mark.parametrize("key", ["load_in_4bit", "quantization_bit"])
def test_a_base_in_four_bit(tmp_path: Path, key: str) -> None:
    half = arguments(tmp_path, lora_r=16, lora_rank=16)
    four = arguments(
        tmp_path,
        lora_r=16,
        lora_rank=16,
        **{key: 4 if "bit" in key[-4:] and key[0] == "q" else True},
    )
    assert four.scenario.workload.recipe.quantised_base
    assert four.scenario.workload.recipe.lora_rank == 16
    # Dettmers et al. 2023: 4 bit and 0.127 bit of constants in place of 16 for the blocks' matrices
    blocks = PARAMETERS - 2 * 128_256 * 4096
    reserved = 1.1  # by the caching allocator (plain-ddp's fragmentation_fraction)
    saved = blocks * (16 - 4.127) / 8 * reserved / GIB
    assert gib(half) - gib(four) == pytest.approx(saved, rel=0.001)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"load_in_8bit": True, "lora_r": 8}, "8 bit, which is not modelled"),
        ({"load_in_4bit": True}, "their rank is not said"),
        ({"quantization_bit": 8, "lora_rank": 8}, "8 bit, which is not modelled"),
        ({"lora_r": 8, "lora_modules_to_save": ["lm_head"]}, "whole modules beside the adapters"),
        ({"finetuning_type": "oft"}, "must be lora, freeze or full"),
        ({"finetuning_type": "full", "use_galore": True}, "low-rank optimizer states"),
        ({"lora_r": 8, "lora_target_modules": ["q_proj", "own"]}, "must be among q_proj"),
        ({"fsdp": "full_shard sideways"}, "got 'sideways'"),
        ({"dtype": "int8"}, "must be auto or one of"),
        ({"activation_offloading": True}, "activations in host memory"),
    ],
)
def test_what_is_not_modelled_is_refused_by_its_key(
    tmp_path: Path, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words) as caught:
        arguments(tmp_path, **more)
    assert "args.json: " in str(caught.value)


@pytest.mark.parametrize(
    ("more", "read_and_written"),
    # fused: gradient, weight, two moments in, the last three out, norm and clipping
    [
        ({"optim": "adamw_torch_fused"}, 40.0), ({}, 40.0), ({"optim": "adamw_torch"}, 92.0),
        ({"optim": "adamw_torch", "deepspeed": "zero2.json"}, 50.0),
    ],
)  # fmt: skip
def test_which_kernels_adamw_has_is_what_optim_says_but_under_deepspeed(
    tmp_path: Path, more: dict[str, Any], read_and_written: float
) -> None:
    zero = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
    files = {"zero2.json": zero} if "deepspeed" in more else {}
    imported = read(tmp_path, {"args.json": {**JSON, **more}, **files})
    assert imported.scenario.software.states.optimizer_traffic == read_and_written


@pytest.mark.parametrize("key", ["torch_dtype", "dtype"])
def test_weights_loaded_in_sixteen_bit_are_trained_in_it(tmp_path: Path, key: str) -> None:
    usual, pure = arguments(tmp_path), arguments(tmp_path, **{key: "bfloat16"})
    recipe = pure.scenario.workload.recipe
    assert (recipe.master_weights, recipe.gradient_dtype, recipe.moment_dtype) == (
        False, "bf16", "bf16",
    )  # fmt: skip
    # weights, gradients with DDP's buckets, two moments: 4+8+8 B become 2+4+4 B, and a tenth more;
    # what a checkpointed block keeps of two sequences was fp32, too
    inputs = 2.0 * 32 * 4096 * 2 * 2048
    fewer = (PARAMETERS * 10.0 + inputs) * 1.1 / GIB
    assert gib(usual) - gib(pure) == pytest.approx(fewer, rel=0.02)
    assert arguments(tmp_path, **{key: "float32"}).scenario.workload.recipe.master_weights is None


@pytest.mark.parametrize(
    ("more", "precision"),
    [
        ({}, "fp32"), ({"bf16": True}, "bf16"), ({"fp16": True}, "fp16"),
        ({"dtype": "bfloat16"}, "bf16"),
    ],
)  # fmt: skip
def test_a_trainer_computes_in_fp32_unless_told(
    tmp_path: Path, more: dict[str, Any], precision: str
) -> None:
    """transformers 5.24, training_args.py: bf16 and fp16 are off by default."""
    said = {key: value for key, value in JSON.items() if key != "bf16"}
    found = read(tmp_path, {"args.json": {**said, **more}})
    assert found.scenario.workload.recipe.precision == precision
    assert any("takes for fp32" in note for note in found.notes) == (precision == "fp32")


def test_fsdp_under_mixed_precision_updates_fp32_weights_whatever_was_loaded(
    tmp_path: Path,
) -> None:
    found = arguments(tmp_path, torch_dtype="bfloat16", fsdp="full_shard auto_wrap")
    assert found.scenario.workload.recipe.master_weights is None
    assert any("only loading is in bf16" in note for note in found.notes)


# --- words of fsdp, of accelerate ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "sharding", "group"),
    [
        ("no_shard", "ddp", None), ("full_shard auto_wrap", "zero3", None),
        ("shard_grad_op", "zero2", None), ("hybrid_shard auto_wrap", "zero3", 8),
        ("hybrid_shard_zero2", "zero2", 8), (["hybrid_shard", "auto_wrap"], "zero3", 8),
    ],
)  # fmt: skip
def test_every_word_of_fsdp_counts(
    tmp_path: Path, said: Any, sharding: str, group: int | None
) -> None:
    """transformers 4.57, trainer_utils.py: FSDPOption; torch: shards within a server, copies."""
    found = read(tmp_path, {"args.json": {**JSON, "fsdp": said}}, {"gpus": 32})
    assert found.scenario.pinned["sharding"] == sharding
    assert found.scenario.pinned.get("shard_group") == group


@pytest.mark.parametrize(
    ("strategy", "sharding", "group"),
    [
        ("FULL_SHARD", "zero3", None), ("1", "zero3", None), ("SHARD_GRAD_OP", "zero2", None),
        ("2", "zero2", None), ("NO_SHARD", "ddp", None), ("3", "ddp", None),
        ("HYBRID_SHARD", "zero3", 8), ("4", "zero3", 8), ("HYBRID_SHARD_ZERO2", "zero2", 8),
        ("5", "zero2", 8),
    ],
)  # fmt: skip
def test_strategies_of_accelerate_in_its_file_and_as_options(
    tmp_path: Path, strategy: str, sharding: str, group: int | None
) -> None:
    """accelerate 1.15, utils/constants.py: FSDP_SHARDING_STRATEGY, numbered from 1."""
    script = TRL.format(script="sft.py")
    config = FSDP.replace(
        "fsdp_reshard_after_forward: FULL_SHARD", f"fsdp_sharding_strategy: {strategy}"
    )
    option = script.replace(
        "--config_file fsdp.yaml",
        f"--use_fsdp --fsdp_sharding_strategy {strategy} --num_processes 16 --num_machines 2",
    )
    for files in ({"fsdp.yaml": config, "run.sh": script}, {"run.sh": option}):
        found = read(tmp_path, files, {"gpus": 16})
        assert found.scenario.pinned["sharding"] == sharding
        assert found.scenario.pinned.get("shard_group") == group


def test_offload_of_fsdp_is_never_dropped(tmp_path: Path) -> None:
    said = {**JSON, "fsdp": "full_shard auto_wrap offload"}
    found = read(tmp_path, {"args.json": said})
    assert found.scenario.pinned["parameter_offload"] == "cpu"
    assert found.scenario.pinned["optimizer_offload"] == "cpu"
    kept = read(tmp_path, {"args.json": {**JSON, "fsdp": "full_shard auto_wrap"}})
    # sharded fp32 weights, gradients and two moments leave the GPU: 16 B a parameter of eight ranks
    assert gib(kept) - gib(found) > 0.6 * PARAMETERS * 16 / 8 / GIB
    nested = {
        **JSON,
        "fsdp": True,
        "fsdp_config": {"cpu_offload": True, "reshard_after_forward": False},
    }
    again = read(tmp_path, {"args.json": nested})
    assert again.scenario.pinned["optimizer_offload"] == "cpu"
    assert again.scenario.pinned["sharding"] == "zero2"


@pytest.mark.parametrize("config", [FSDP, ZERO])
@pytest.mark.parametrize(
    "adapters", ["", " --use_peft --lora_r 32 --lora_target_modules q_proj v_proj"]
)
def test_the_order_of_files_counts_for_nothing(tmp_path: Path, config: str, adapters: str) -> None:
    files = {"run.sh": TRL.format(script="trl/scripts/sft.py") + adapters, "fsdp.yaml": config}
    answers = []
    for order in itertools.permutations(files.items()):
        found = read(tmp_path, dict(order), {"gpus": 16})
        answers.append((found.scenario.document, found.predicted().step_time_s))
    assert answers[0] == answers[1]
    assert answers[0][0]["layout"]["sharding"] == "zero3"
    assert found.scenario.software.name == ("torch-fsdp" if config == FSDP else "deepspeed")
    assert found.scenario.workload.recipe.lora_rank == (32 if adapters else 0)
    assert not adapters or found.scenario.workload.recipe.lora_targets == ("q", "v")


def test_adapters_of_every_linear_are_not_those_of_pefts_default(tmp_path: Path) -> None:
    """trl/trainer/model_config.py: lora_target_modules, which peft takes its own of where none."""
    run = TRL.format(script="trl/scripts/sft.py") + " --use_peft"
    for words, targets in (
        ("", ("q", "v")),
        (" --lora_target_modules q_proj", ("q",)),
        (" --lora_target_modules all-linear", ("q", "k", "v", "o", "gate", "up", "down")),
    ):
        found = read(tmp_path, {"run.sh": run + words, "fsdp.yaml": FSDP}, {"gpus": 16})
        said = found.scenario.workload.recipe.lora_targets
        assert set(targets) <= set(said) and (len(targets) == len(said) or "gate" in targets)


def test_files_that_ask_for_different_software_are_a_contradiction(tmp_path: Path) -> None:
    deepspeed = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 3}}
    files = {"run.sh": TRL.format(script="sft.py"), "fsdp.yaml": FSDP, "ds.json": deepspeed}
    with pytest.raises(InputError, match=r"--software NAME decides"):
        read(tmp_path, files, {"gpus": 16})


# --- ways of training ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "more", "reference"),
    [
        ("trl/scripts/dpo.py", "", True),
        ("examples/scripts/dpo.py", " --precompute_ref_log_probs", False),
        ("examples/scripts/orpo.py", "", False), ("examples/cpo.py", " --loss_type simpo", False),
    ],
)  # fmt: skip
def test_pairs_of_answers_are_twice_the_sequences(
    tmp_path: Path, script: str, more: str, reference: bool
) -> None:
    """trl 0.24.0 trainer/dpo_trainer.py: concatenated_forward, and compute_ref_log_probs."""
    files = {"run.sh": TRL.format(script=script) + more, "fsdp.yaml": FSDP}
    scenario = read(tmp_path, files, {"gpus": 16}).scenario
    assert scenario.pinned["micro_batch"] == 2  # of one pair
    assert scenario.workload.recipe.global_batch == 2 * 1 * 4 * 16
    section = scenario.section(Distillation)
    assert (section is not None) == reference
    assert section is None or (section.teacher, section.compares) == (None, "log_probabilities")


@pytest.mark.parametrize("kind", ["program", "stage"])
def test_reward_models_score_pairs(tmp_path: Path, kind: str) -> None:
    """trl 0.24 RewardTrainer, LLaMA-Factory stage rm: one score an answer, two answers a sample."""
    if kind == "program":
        files = {"run.sh": TRL.format(script="reward_modeling.py"), "fsdp.yaml": FSDP}
        workload = read(tmp_path, files, {"gpus": 16}).scenario.workload
        assert workload.recipe.global_batch == 2 * 1 * 4 * 16
    else:
        workload = factory(tmp_path, finetuning_type="full", stage="rm").scenario.workload
    arch = workload.architecture
    assert arch.output_rows == 0 and arch.tasks is not None and arch.tasks.outputs == (1,)
    scored = factory(tmp_path, finetuning_type="lora", stage="rm").scenario.workload
    assert scored.recipe.lora_rank == 8 and scored.architecture.tasks is not None


def test_sizes_of_options_count_sequences(tmp_path: Path) -> None:
    files = {"run.sh": TRL.format(script="dpo.py"), "fsdp.yaml": FSDP}
    found = read(tmp_path, files, {"gpus": 16}, "layout.micro_batch=4")
    assert found.scenario.pinned["micro_batch"] == 4
    assert found.scenario.workload.recipe.global_batch == 4 * 4 * 16


@pytest.mark.parametrize(("loss", "reference"), [("sigmoid", True), ("orpo", False)])
def test_pairs_of_llama_factory(tmp_path: Path, loss: str, reference: bool) -> None:
    """hparams/finetuning_args.py: use_ref_model is stage dpo but for pref_loss orpo and simpo."""
    plain = factory(tmp_path, finetuning_type="lora", stage="sft").scenario
    found = factory(tmp_path, finetuning_type="lora", stage="dpo", pref_loss=loss).scenario
    assert found.workload.recipe.global_batch == 2 * plain.workload.recipe.global_batch
    assert (found.section(Distillation) is not None) == reference


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("examples/kto.py", "training on single answers"), ("bco.py", "training on single answers"),
        ("grpo.py", "reinforcement learning"), ("scripts/ppo/ppo_tldr.py", "reinforcement"),
        ("prm.py", "a reward model of steps"), ("gkd.py", "distillation"),
    ],
)  # fmt: skip
def test_a_program_that_trains_otherwise_is_refused(
    tmp_path: Path, script: str, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        read(tmp_path, {"run.sh": TRL.format(script=script), "fsdp.yaml": FSDP}, {"gpus": 16})


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("trl kto --model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 1", "single"),
        ("trl grpo --model_name_or_path Qwen/Qwen3-8B --gradient_accumulation_steps 2", "learning"),
        (
            "ray job submit -- python3 -m verl.trainer.main_ppo data.train_batch_size=512"
            " actor_rollout_ref.rollout.tensor_model_parallel_size=4 trainer.nnodes=2"
            " actor_rollout_ref.model.path=Qwen/Qwen3-8B",
            "a file of verl, reinforcement learning",
        ),
        (
            "torchrun --nproc_per_node 8 -m verl.trainer.fsdp_sft_trainer data.micro_batch_size=4"
            " model.partial_pretrain=google/gemma-2b-it",
            "a file of verl's supervised fine-tuning, which is not read here",
        ),
        (
            "python3 -m verl.trainer.main_generation trainer.nnodes=1 data.n_samples=1",
            "a file of verl's generation, a program that trains nothing",
        ),
        (
            "deepspeed --module openrlhf.cli.train_ppo_ray --vllm_num_engines 2 --zero_stage 3",
            "a file of OpenRLHF, reinforcement learning",
        ),
        (
            "torchrun --nproc_per_node 8 train_rl.py --tensor-model-parallel-size 2 --num-layers 32"
            " --perform-rl-step --micro-batch-size 1 --global-batch-size 8",
            "reinforcement learning",
        ),
        (
            "torchrun --nproc_per_node 8 pretrain_t5.py --num-layers 12 --hidden-size 768"
            " --num-attention-heads 12 --micro-batch-size 1 --global-batch-size 8",
            "an encoder beside the decoder",
        ),
        (
            "torchrun --nproc_per_node 8 train.py --num-layers 32 --hidden-size 4096"
            " --num-attention-heads 32 --micro-batch-size 1 --global-batch-size 8 --seq-length 576"
            " --freeze-ViT --vision-model-type vit-22b --decoder-seq-length 2048",
            "--vision-model-type: must be one of clip, siglip, .*, got 'vit-22b'",
        ),
        (
            "torchrun --nproc_per_node 8 examples/multimodal/train.py --num-layers 32"
            " --hidden-size 4096 --num-attention-heads 32 --micro-batch-size 1 --seq-length 576"
            " --global-batch-size 8 --freeze-ViT --sound-model-type parakeet",
            "--sound-model-type: an encoder beside the decoder",
        ),
    ],
)  # fmt: skip
def test_commands_that_train_otherwise_are_refused(
    tmp_path: Path, command: str, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        read(tmp_path, {"run.sh": command}, {"model": "qwen3-8b"}, "training.sequence_length=2048",
             "training.global_batch=64")  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "trainer"),
    [
        ("a.yaml", "trainer:\n  mp: p=f32,c=bfloat16\n  train_batch_size: 512\nmodel:\n"
         "  type: llama\n", "Levanter"),
        ("rl.toml", 'max_async_level = 2\nseq_len = 2048\n[orchestrator]\nbatch_size = 512\n',
         "prime-rl"),
        ("g.yaml", "grpo:\n  num_prompts_per_step: 32\npolicy:\n  model_name: Qwen/Qwen3-8B\n"
         "  train_global_batch_size: 512\n", "NeMo-RL"),
    ],
)  # fmt: skip
def test_files_of_other_trainers_are_known_by_name(
    tmp_path: Path, name: str, text: str, trainer: str
) -> None:
    with pytest.raises(InputError, match=f"a file of {trainer}, "):
        read(tmp_path, {name: text}, {"model": "qwen3-8b"}, "training.sequence_length=2048",
             "training.global_batch=64")  # fmt: skip


def test_a_file_of_which_most_keys_are_unknown_is_no_recipe(tmp_path: Path) -> None:
    text = "micro_batch_size: 2\nbackbone: x\noptimiser: y\nstages:\n  stage: 3\nengine: z\n"
    with pytest.raises(InputError, match=r"only 1 of 5 keys are known as those of a recipe"):
        read(tmp_path, {"own.yaml": text}, {"model": "qwen3-8b"}, "training.sequence_length=2048",
             "training.global_batch=64")  # fmt: skip


@pytest.mark.parametrize(
    ("kwargs", "stops"),
    [({"use_reentrant": True}, "never"), ({"use_reentrant": False}, "16bit"), (None, "16bit")],
)
def test_checkpoints_that_are_entered_again_run_to_their_end(
    tmp_path: Path, kwargs: dict[str, bool] | None, stops: str
) -> None:
    """transformers 5.24 modeling_utils.py and torch.utils.checkpoint; nothing said is False."""
    more = {"gradient_checkpointing_kwargs": kwargs} if kwargs else {}
    read_in = read(tmp_path, {"training_args.json": {**JSON, **more}}, {"model": "llama-3.1-8b"})
    assert read_in.scenario.software.kernels.recompute_stops_early == stops


# --- LLaMA-Factory -------------------------------------------------------------------------------

FACTORY = {
    "model_name_or_path": "Qwen/Qwen3-8B", "stage": "sft", "do_train": True, "template": "qwen3",
    "per_device_train_batch_size": 1, "gradient_accumulation_steps": 8, "bf16": True,
}  # fmt: skip


def factory(folder: Path, **more: Any) -> Imported:
    text = "\n".join(
        f"{k}: {str(v).lower() if v is True else v}" for k, v in {**FACTORY, **more}.items()
    )
    return read(folder, {"train.yaml": text + "\n"})


def test_llama_factorys_defaults_fill_what_its_file_leaves_out(tmp_path: Path) -> None:
    """hparams: lora_rank 8, lora_target all, cutoff_len 2048; checkpointing is on (model_args)."""
    found = factory(tmp_path, finetuning_type="lora")
    recipe = found.scenario.workload.recipe
    assert (recipe.lora_rank, recipe.sequence_length) == (8, 2048)
    assert len(recipe.lora_targets) > 6
    assert found.scenario.pinned["recompute"] == "full"
    assert found.scenario.software.kernels.recompute_stops_early == "never"  # use_reentrant_gc
    for words in (
        "rank of adapters not said",
        "checkpointing of activations not said",
        "length not",
    ):
        assert any(words in note for note in found.notes), words
    off = factory(tmp_path, finetuning_type="lora", lora_target="q_proj,v_proj",
                  disable_gradient_checkpointing=True)  # fmt: skip
    assert off.scenario.workload.recipe.lora_targets == ("q", "v")
    assert off.scenario.pinned["recompute"] == "none"


@pytest.mark.parametrize(("count", "frozen"), [(None, 34), (4, 32)])
def test_llama_factory_freezes_all_but_the_last_layers(
    tmp_path: Path, count: int | None, frozen: int
) -> None:
    """model/adapter.py: layers num_layers - n and on are trained; embedding and head are not."""
    more = {} if count is None else {"freeze_trainable_layers": count}
    recipe = factory(tmp_path, finetuning_type="freeze", **more).scenario.workload.recipe
    assert (recipe.frozen_layers, recipe.frozen_head) == (frozen, True)  # of 36
    with pytest.raises(InputError, match="first ones are not modelled"):
        factory(tmp_path, finetuning_type="freeze", freeze_trainable_layers=-2)


def test_llama_factory_in_pure_sixteen_bit(tmp_path: Path) -> None:
    recipe = factory(tmp_path, finetuning_type="full", pure_bf16=True).scenario.workload.recipe
    assert (recipe.master_weights, recipe.moment_dtype) == (False, "bf16")


@pytest.mark.parametrize("stage", ["kto", "ppo"])
def test_stages_of_llama_factory_that_are_no_plain_step(tmp_path: Path, stage: str) -> None:
    with pytest.raises(InputError, match=f"stage: '{stage}' asks for"):
        factory(tmp_path, finetuning_type="lora", stage=stage)


# --- buckets, optimizer types, windows -----------------------------------------------------------


def test_deepspeeds_buckets_take_what_they_hold(tmp_path: Path) -> None:
    """Two buckets of so many 16-bit elements with overlap_comm (DeepSpeed, zero/config.py)."""
    memory = {}
    for elements in (5e7, 5e8, 5e9):
        config = {
            "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4,
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": elements},
        }  # fmt: skip
        found = read(tmp_path, {"ds.json": config}, {"model": "llama-3.1-8b", "gpus": 16},
                     "training.sequence_length=4096")  # fmt: skip
        memory[elements] = found.predicted().memory_bytes
    assert memory[5e9] - memory[5e8] == pytest.approx(2 * 2 * 4.5e9, rel=0.15)  # and fragmentation
    assert memory[5e8] - memory[5e7] == pytest.approx(2 * 2 * 4.5e8, rel=0.15)


def test_buckets_of_the_width_are_the_trainers_own(tmp_path: Path) -> None:
    """transformers/integrations/deepspeed.py: reduce_bucket_size auto = hidden_size squared."""
    config = {"train_micro_batch_size_per_gpu": "auto",
              "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}}  # fmt: skip
    found = read(tmp_path, {"args.json": {**JSON, "deepspeed": "ds.json"}, "ds.json": config})
    assert found.scenario.software.states.bucket_bytes == 2 * 4096**2
    assert found.scenario.software.overlap.gradient_reduce


def test_overlap_is_off_in_the_first_stages_unless_said(tmp_path: Path) -> None:
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1,
              "zero_optimization": {"stage": 1}}  # fmt: skip
    names = {"model": "llama-3.1-8b"}
    found = read(tmp_path, {"ds.json": config}, names, "training.sequence_length=4096")
    assert not found.scenario.software.overlap.gradient_reduce
    assert any("overlap_comm not said" in note for note in found.notes)


MEGATRON = (
    "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096"
    " --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention"
    " --num-query-groups 8 --swiglu --normalization RMSNorm --disable-bias-linear"
    " --untie-embeddings-and-output-weights --position-embedding-type rope --vocab-size 128256"
    " --max-position-embeddings 8192 --seq-length 8192 --micro-batch-size 1"
    " --global-batch-size 64 --bf16 --use-distributed-optimizer --overlap-grad-reduce"
    " --tensor-model-parallel-size 2"
)


def megatron(folder: Path, more: str = "") -> Imported:
    return read(folder, {"run.sh": f"{MEGATRON} {more}\n"}, {"gpus": 16})


def test_types_of_the_precision_aware_optimizer(tmp_path: Path) -> None:
    """megatron/training/arguments.py: main gradients other than fp32 keep and reduce in 16 bit."""
    aware = "--use-precision-aware-optimizer"
    low = megatron(tmp_path, f"{aware} --main-grads-dtype bf16")
    same = megatron(tmp_path, "--grad-reduce-in-bf16")
    assert low.predicted().memory_bytes == same.predicted().memory_bytes
    assert low.scenario.workload.recipe.reduce_dtype == "bf16"
    asked = megatron(
        tmp_path, f"{aware} --main-grads-dtype bf16 --accumulate-allreduce-grads-in-fp32"
    )
    assert asked.scenario.workload.recipe.gradient_dtype == "fp32"
    eight = megatron(tmp_path, f"{aware} --exp-avg-dtype fp8 --exp-avg-sq-dtype fp8")
    assert eight.scenario.software.states.moment == 1
    assert (
        megatron(tmp_path, f"{aware} --main-params-dtype fp16").scenario.software.states.master == 2
    )
    idle = megatron(tmp_path, "--exp-avg-dtype fp8")  # without the optimizer Megatron refuses it
    assert idle.scenario.software.states.moment == 4


@pytest.mark.parametrize(
    "flags", ["--window-size 1024,0", "--window-size 1024,0 --window-attn-skip-freq 2"]
)
def test_a_window_that_the_model_of_the_zoo_has_not(tmp_path: Path, flags: str) -> None:
    plain, windowed = megatron(tmp_path), megatron(tmp_path, flags)
    assert plain.scenario.workload.architecture.name == "llama-3-8b"
    arch = windowed.scenario.workload.architecture
    windows = [arch.blocks[kind].attention.window for kind in arch.layer_kinds]  # type: ignore[union-attr]
    assert windows.count(1025) == (16 if "skip" in flags else 32)
    assert arch.parameters == plain.scenario.workload.architecture.parameters
    assert windowed.predicted().step_time_s < plain.predicted().step_time_s


def test_a_tokenizer_of_another_family_leaves_the_vocabulary_open(tmp_path: Path) -> None:
    sizes = MEGATRON.replace(" --vocab-size 128256", "")
    ours = read(tmp_path, {"run.sh": f"{sizes} --tokenizer-model /data/llama3/tokenizer"})
    assert ours.scenario.workload.architecture.vocabulary == 128_256
    other = f"{sizes} --tokenizer-type HuggingFaceTokenizer --tokenizer-model mistralai/Large"
    with pytest.raises(InputError, match=r"vocabulary \(--vocab-size\) not said"):
        read(tmp_path, {"run.sh": other}, {"gpus": 16})


@pytest.mark.parametrize("flags", ["--hidden-dropout 0.1", "--attention-dropout 0.1"])
def test_dropout_that_the_model_of_the_zoo_has_not(tmp_path: Path, flags: str) -> None:
    assert megatron(tmp_path, flags).scenario.workload.architecture.name == "of-the-command"
    assert (
        megatron(tmp_path, "--hidden-dropout 0.0").scenario.workload.architecture.name
        == "llama-3-8b"
    )


# --- torchtitan ----------------------------------------------------------------------------------

JOB = """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[activation_checkpoint]
mode = "selective"
"""


@pytest.mark.parametrize(
    ("option", "layers"), [("2", 16), ("4", 8), ("32", 1), ("1", 0), (None, 16)]
)
def test_a_number_computes_every_nth_block_again(
    tmp_path: Path, option: str | None, layers: int
) -> None:
    """torchtitan 0.2, distributed/activation_checkpoint.py; its default is "2" (job_config.py)."""
    text = JOB + (f'selective_ac_option = "{option}"\n' if option else "")
    found = read(tmp_path, {"job.toml": text}, {"gpus": 16})
    assert found.scenario.pinned["recompute"] == "full"
    assert found.scenario.pinned.get("recompute_layers", 0) == layers


def test_operators_are_kept_or_computed_again_by_name_and_never_beyond_the_model(
    tmp_path: Path,
) -> None:
    op = read(tmp_path, {"job.toml": JOB + 'selective_ac_option = "op"\n'}, {"gpus": 16})
    assert op.scenario.pinned["recompute"] == "selective"
    none = read(tmp_path, {"job.toml": JOB + 'selective_ac_option = "33"\n'}, {"gpus": 16})
    assert none.scenario.pinned["recompute"] == "none"


@pytest.mark.parametrize(
    ("config", "tp", "recompute", "micro"),
    [
        ("llama3_8b", None, "selective", 1),
        ("llama3_70b", 8, "full", 8),
        ("qwen3_32b", 1, "full", 2),
    ],
)
def test_jobs_of_the_registry(
    tmp_path: Path, config: str, tp: int | None, recompute: str, micro: int
) -> None:
    """pytorch/torchtitan@b5bcd76c, models/*/config_registry.py."""
    module = config.partition("_")[0]
    command = f"torchrun --nnodes 2 --nproc_per_node 8 -m torchtitan.train --module {module}"
    found = read(
        tmp_path, {"run.sh": f"{command} --config {config} --training.steps 5\n"}, {"gpus": 16}
    )
    assert found.scenario.pinned.get("tp") == tp
    assert found.scenario.pinned["recompute"] == recompute
    assert found.scenario.pinned["micro_batch"] == micro
    with pytest.raises(InputError, match=r"'llama3_9b' is a job in Python that is not known here"):
        read(tmp_path, {"run.sh": f"{command} --config llama3_9b\n"}, {"gpus": 16})


def test_every_job_of_the_registry_is_whole() -> None:
    for name, job in registered_jobs().items():
        base = {**registered_jobs().get(str(job.get("base")), {}), **job}
        assert (
            base["training.num_tokens_per_microbatch_per_dp_rank"]
            % base["training.max_context_length"]
            == 0
        )
        assert {"model.name", "model.flavor", "activation_checkpoint.mode"} <= set(base), name


@pytest.mark.parametrize(
    ("said", "stages"),
    [
        ("", [8, 9, 8, 7]),  # 34 with embedding and head: 9, 9, 8, 8
        ("pipeline_parallel_first_stage_less_layers = 0\n", [9, 8, 8, 7]),  # 33: 9, 8, 8, 8
        ("pipeline_parallel_last_stage_less_layers = 2\n", [8, 9, 9, 6]),  # 35: 9, 9, 9, 8
    ],
)
def test_torchtitans_first_and_last_stage_hold_fewer_layers(
    tmp_path: Path, said: str, stages: list[int]
) -> None:
    """torchtitan 0.2, distributed/pipeline_parallel.py: generate_llm_fqn_per_model_part."""
    text = JOB.replace("local_batch_size = 1", "local_batch_size = 8")
    text += 'selective_ac_option = "op"\n[parallelism]\npipeline_parallel_degree = 4\n' + said
    found = read(tmp_path, {"job.toml": text}, {"gpus": 16})
    assert list(found.scenario.pinned["stages"]) == stages
    even = text + "pipeline_parallel_last_stage_less_layers = 0\n"
    if not said:
        even += "pipeline_parallel_first_stage_less_layers = 0\n"
        assert "stages" not in read(tmp_path, {"job.toml": even}, {"gpus": 16}).scenario.pinned


def test_switches_of_megatrons_kernels_are_read(tmp_path: Path) -> None:
    found = megatron(
        tmp_path, "--no-gradient-accumulation-fusion --ddp-bucket-size 50000000"
        " --cross-entropy-loss-fusion --cross-entropy-fusion-impl native"
    )  # fmt: skip
    software = found.scenario.software
    assert "gradient_accumulation" not in software.kernels.fused
    assert "loss" not in software.kernels.fused
    assert float(software.states.bucket_bytes) == 4 * 50_000_000  # gradients in fp32
    assert not software.overlap.parameter_gather  # --overlap-param-gather was not asked for
    eager = megatron(tmp_path, "--attention-backend unfused --overlap-param-gather")
    assert eager.scenario.software.kernels.attention == "unfused"
    assert eager.scenario.software.overlap.parameter_gather


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.sh", "python3 -m MaxText.train MaxText/configs/base.yml use_dpo=true"
         " per_device_batch_size=2 max_target_length=2048 model_name=llama3-8b"),
        ("neuron.yaml", "distributed_strategy:\n  tensor_model_parallel_size: 8\ntrainer:\n"
         "  max_steps: 9\nmodel_alignment_strategy:\n  dpo:\n    kl_beta: 0.1\n"),
    ],
)  # fmt: skip
def test_pairs_are_refused_by_every_trainers_word(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(InputError, match="training on pairs"):
        read(tmp_path, {name: text})


@pytest.mark.parametrize(
    "text",
    [
        "model_name_or_path: Qwen/Qwen3-4B\ntemplate: qwen3\ninfer_backend: huggingface\n",
        "model_name_or_path: Qwen/Qwen3-4B\nexport_dir: saves/out\nexport_size: 5\n",
        "model_name_or_path: Qwen/Qwen3-4B\ndo_predict: true\npredict_with_generate: true\n",
        "provider: baseten\ngpu: h100\ngpu_count: 8\nnode_count: 1\n",
        "model:\n  _component_: torchtune.models.llama2.llama2_7b\ndevice: cuda\ndtype: bf16\n",
    ],
)
def test_a_file_that_trains_nothing_is_named_as_such(text: str, tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        import_launch([file], {"cluster": "dgx-h100", "gpus": 8})
    assert "trains nothing: it evaluates, generates, exports" in str(caught.value)


def test_a_python_configuration_is_led_to_its_question(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    text = "import xtuner\nfsdp = FSDPConfig(ep_size=8)\ndata = DataloaderConfig(pack=1)\n"
    for call, told in (
        ("RLColocateTrainerConfig(rollout_config=1)", "foreshard rl prices it"),
        ("TrainerConfig(global_batch_size=8)", "a file of XTuner v1, which is not read here"),
    ):
        file.write_text(f"{text}trainer = {call}\n")
        with pytest.raises(InputError) as caught:
            import_launch([file], {"cluster": "dgx-h100", "gpus": 8})
        assert told in str(caught.value)


def test_a_configuration_of_pairs_names_no_script(tmp_path: Path) -> None:
    """huggingface/alignment-handbook@925acdf, recipes/zephyr-7b-beta/dpo and zephyr-141b/orpo."""
    config = (
        "model_name_or_path: mistralai/Mistral-7B-v0.1\nbeta: 0.01\nmax_length: 1024\nbf16: true\n"
        "max_prompt_length: 512\nper_device_train_batch_size: 8\ngradient_accumulation_steps: 2\n"
    )
    found = read(tmp_path, {"c.yaml": config})
    assert found.scenario.workload.recipe.global_batch == 2 * 8 * 2 * 8
    assert "compares" in found.scenario.document["distillation"]
    script = "accelerate launch --num_processes 8 scripts/{}.py --config c.yaml\n"
    both = read(tmp_path, {"run.sh": script.format("orpo"), "c.yaml": config})
    assert both.scenario.workload.recipe.global_batch == 2 * 8 * 2 * 8
    assert "distillation" not in both.scenario.document and not both.unknown
    plain = config.replace("beta: 0.01\n", "").replace("max_prompt_length: 512\n", "")
    sft = read(tmp_path, {"c.yaml": plain})
    assert sft.scenario.workload.recipe.global_batch == 8 * 2 * 8


PARTS = (
    "deepspeed --num_gpus 8 train.py --model_name_or_path mine --bf16 True --output_dir out"
    " --per_device_train_batch_size 2 --gradient_accumulation_steps 1 --model_max_length 2048"
    " {more}\n"
)
VISION = "--vision_tower openai/clip-vit-large-patch14-336 --mm_vision_select_layer -2"


@pytest.mark.parametrize(
    ("more", "parts", "rank"),
    [
        # LLaVA, llava/train/train.py: the tower is never trained, the projector alone at first
        (f"{VISION} --tune_mm_mlp_adapter True", ["text", "tower"], None),
        (VISION, ["tower"], None),
        (f"{VISION} --lora_enable True", ["tower"], 64),
        (f"{VISION} --lora_r 128", ["tower"], None),
        # Qwen-VL, qwenvl/train/argument.py: what is not asked for is frozen
        ("--tune_mm_vision False --tune_mm_mlp True --tune_mm_llm True", ["tower"], None),
        ("--tune_mm_mlp True", ["text", "tower"], None),
        # InternVL, internvl/train/internvl_chat_finetune.py: adapters by their rank
        ("--freeze_llm True --freeze_mlp True --freeze_backbone True --use_llm_lora 16",
         ["projector", "tower"], 16),
        ("--freeze_llm False --freeze_mlp False --freeze_backbone True", ["tower"], None),
    ],
)  # fmt: skip
def test_parts_and_adapters_of_trainers_with_towers(
    more: str, parts: list[str], rank: int | None, tmp_path: Path
) -> None:
    (tmp_path / "run.sh").write_text(PARTS.format(more=more))
    said = {x.field: x.value for r in read_launch_file(tmp_path / "run.sh") for x in r.stated}
    assert said["run.frozen_parts"] == parts
    assert said.get("training.lora_rank") == rank
    recomputed = "full" if "freeze_mlp" in more else None  # grad_checkpoint is on by default
    assert said.get("layout.recompute") == recomputed


def test_adapters_of_a_tower_are_refused(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(PARTS.format(more="--use_backbone_lora 8"))
    problems = [text for r in read_launch_file(tmp_path / "run.sh") for text in r.problems]
    assert any("adapters of the tower are not modelled" in text for text in problems)
