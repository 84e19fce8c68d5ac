"""Configurations of trainers that a table describes become scenarios, or are refused as theirs.

Expected batches follow from each trainer's own law: micro-batch x accumulated x data-parallel
ranks, or the global batch that it states.
"""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from simulator.distillation import Distillation
from simulator.errors import InputError
from simulator.interop.dialects.trainer_tables import Trainer, trainers
from simulator.interop.launch_files.imported import Imported
from simulator.interop.launch_files.merging import import_launch
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe
from tests.interop import trainer_samples as samples


def read(folder: Path, name: str, text: str, gpus: int = 8, **names: object) -> Imported:
    """What a configuration says on one server."""
    (folder / name).write_text(text)
    given = {"cluster": "dgx-h100", **({"gpus": gpus} if gpus else {}), **names}
    return import_launch([folder / name], given)


def problems(folder: Path, name: str, text: str) -> str:
    with pytest.raises(InputError) as caught:
        read(folder, name, text).predicted()
    return str(caught.value)


@pytest.mark.parametrize("name", samples.SAMPLES)
def test_a_sample_of_each_trainer_is_read_whole_and_priced(name: str, tmp_path: Path) -> None:
    found = read(tmp_path, name, samples.SAMPLES[name], gpus=4 if name == "litgpt.yaml" else 8)
    assert not found.unknown
    assert found.predicted().estimate.memory_total_bytes[0] > 0
    assert name.partition(".")[0] in {trainer.name for trainer in trainers()}


def test_every_trainer_has_a_sample() -> None:
    assert {name.partition(".")[0] for name in samples.SAMPLES} == {x.name for x in trainers()}


def test_adapters_over_four_bit_weights_under_fsdp(tmp_path: Path) -> None:
    found = read(tmp_path, "qlora.yaml", samples.AXOLOTL)
    recipe = found.scenario.workload.recipe
    assert found.scenario.workload.architecture.name == "llama-3.1-8b"
    assert (recipe.lora_rank, recipe.lora_targets) == (32, ("q", "v", "down"))
    assert (recipe.quantised_base, recipe.optimizer) == (True, "adamw_8bit")
    assert (recipe.sequence_length, recipe.global_batch) == (4096, 2 * 4 * 8)
    assert found.scenario.software.name == "torch-fsdp"
    assert found.scenario.pinned == {"micro_batch": 2, "sharding": "zero3", "recompute": "full"}


def test_axolotl_rounds_every_linear_and_the_head_with_them(tmp_path: Path) -> None:
    """067b021c, utils/quantization.py (`_make_qat_config`); torchao 0.17 knows no other of them."""
    way = "qat:\n  activation_dtype: int8\n  weight_dtype: int4\n  group_size: 32\n"
    text = samples.AXOLOTL_FULL + way
    recipe = read(tmp_path, "qat.yaml", text).scenario.workload.recipe
    assert recipe.fake_quantised_weights == "differentiable_scales"
    assert recipe.fake_quantised_inputs and recipe.fake_quantised_head
    liger = "plugins: [axolotl.integrations.liger.LigerPlugin]\n"
    liger += "liger_fused_linear_cross_entropy: true\n"  # reads the head's weight, calls no linear
    assert not read(tmp_path, "l.yaml", text + liger).scenario.workload.recipe.fake_quantised_head
    plugin = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"  # so does its loss
    cut = f"plugins: [axolotl.integrations.liger.LigerPlugin, {plugin}]\n"
    recipe = read(tmp_path, "c.yaml", text + cut).scenario.workload.recipe
    assert (recipe.fake_quantised_head, recipe.loss_chunks) == (False, 64)
    said = problems(tmp_path, "qat.yaml", text.replace("int4", "nvfp4").replace("int8", "nvfp4"))
    assert "torchao has no fake quantiser for what Axolotl makes of it" in said
    assert "no quantised_base" in problems(tmp_path, "qat.yaml", samples.AXOLOTL + way)


def test_a_repository_of_four_bit_weights_says_so(tmp_path: Path) -> None:
    text = samples.UNSLOTH.replace("load_in_4bit = True", "load_in_4bit = False")
    assert not read(tmp_path, "a.py", text).scenario.workload.recipe.quantised_base
    text = text.replace("Meta-Llama-3.1-8B", "Meta-Llama-3.1-8B-bnb-4bit")
    assert read(tmp_path, "b.py", text).scenario.workload.recipe.quantised_base


def test_shards_as_a_shipped_configuration_of_deepspeed_says(tmp_path: Path) -> None:
    text = samples.AXOLOTL_FULL.replace("context_parallel_size: 2", "context_parallel_size: 1")
    plain = text[: text.index("dp_shard_size")] + "deepspeed: deepspeed_configs/zero3_bf16.json\n"
    found = read(tmp_path, "a.yaml", plain.replace("adamw_torch_8bit", "adamw_torch"))
    assert (found.scenario.software.name, found.scenario.pinned["sharding"]) == (
        "deepspeed",
        "zero3",
    )
    asked = problems(tmp_path, "b.yaml", plain.replace("deepspeed_configs/zero3_bf16", "own/ds"))
    assert "--set layout.sharding=MODE" in asked


def test_context_parallel_ranks_share_a_batch(tmp_path: Path) -> None:
    found = read(tmp_path, "full.yaml", samples.AXOLOTL_FULL)
    recipe = found.scenario.workload.recipe
    assert found.scenario.pinned["cp"] == 2
    assert recipe.global_batch == 8 // 2
    # loaded in 16 bit and updated as it is: two bytes for each weight, two moments of one
    assert (recipe.master_weights, recipe.gradient_dtype) == (False, "bf16")


def test_a_recipe_names_its_strategy_and_degrees(tmp_path: Path) -> None:
    found = read(tmp_path, "sft.yaml", samples.AUTOMODEL)
    recipe, pinned = found.scenario.workload.recipe, found.scenario.pinned
    assert found.scenario.workload.architecture.name == "llama-3.2-1b"
    assert (pinned["tp"], pinned["micro_batch"], pinned["sharding"]) == (2, 8, "zero3")
    assert pinned["sequence_parallel"] is True
    assert "schedule" not in pinned  # of the section for pipelines, with pp_size 1
    assert recipe.tokens == 20 * 64 * 2048
    assert recipe.moment_dtype == "bf16"


@pytest.mark.parametrize(("rounded", "chunks"), [("down", 1), ("up", 2)])
def test_virtual_stages_are_rounded_as_the_file_says(
    rounded: str, chunks: int, tmp_path: Path
) -> None:
    named = f"layers_per_stage: 7\n    round_virtual_stages_to_pp_multiple: {rounded}"
    text = samples.AUTOMODEL.replace("pp_size: 1", "pp_size: 2")
    pinned = read(tmp_path, "a.yaml", text.replace("layers_per_stage: 2", named)).scenario.pinned
    assert pinned["vpp"] == chunks  # 16 layers by 7 are 3 stages: 2 or 4 of them on 2 ranks
    assert pinned["micro_batch"] == 4


def test_matrices_of_adapters_add_up(tmp_path: Path) -> None:
    found = read(tmp_path, "lora.yaml", samples.LITGPT, gpus=4)
    recipe = found.scenario.workload.recipe
    assert recipe.lora_targets == ("q", "v", "gate", "up", "down")
    assert (recipe.global_batch, recipe.tokens) == (16, 50 * 16 * 512)
    assert found.scenario.pinned["recompute"] == "full"  # more than one device
    one = samples.LITGPT.replace("devices: 4", "devices: 1")
    assert read(tmp_path, "one.yaml", one, gpus=1).scenario.pinned["recompute"] == "none"


def test_sizes_in_the_file_make_the_model_and_degrees_the_gpus(tmp_path: Path) -> None:
    found = read(tmp_path, "tiny.yaml", samples.NANOTRON, gpus=0)
    assert found.scenario.cluster.gpus == 4 * 2
    # TinyLlama 1.1B: 22 x (2 x 2048 x 2048 + 2 x 2048 x 256 + 3 x 2048 x 5632 + 2 x 2048)
    # + 2 x 32000 x 2048 + 2048
    parameters = found.scenario.workload.architecture.parameters
    assert parameters == 1_100_048_384
    assert found.scenario.workload.recipe.global_batch == 4 * 8 * 4


def test_ulysses_ranks_and_a_loss_in_pieces(tmp_path: Path) -> None:
    found = read(tmp_path, "arctic.yaml", samples.ARCTIC)
    recipe, pinned = found.scenario.workload.recipe, found.scenario.pinned
    assert recipe.global_batch == 1 * 2 * 8 // 4
    assert (pinned["cp"], pinned["optimizer_offload"], pinned["offload_layers"]) == (4, "cpu", 32)
    # 8000 tokens over 128256 / 4096 = 31.3: pieces of 250, made 256
    assert recipe.loss_chunks == 32


def test_llama_factory_of_plugins(tmp_path: Path) -> None:
    """src/llamafactory/v1/config: checkpointing is on, the batch that of one pass unless said."""
    found = read(tmp_path, "a.yaml", samples.LLAMA_FACTORY_V1)
    recipe = found.scenario.workload.recipe
    assert (recipe.lora_rank, recipe.quantised_base, recipe.sequence_length) == (16, True, 4096)
    assert (recipe.global_batch, recipe.tokens) == (2 * 8, 10 * 2 * 8 * 4096)
    assert found.scenario.pinned["recompute"] == "full"
    assert found.scenario.pinned["sharding"] == "zero3"
    frozen = "peft_config:\n  name: freeze\n"
    text = samples.LLAMA_FACTORY_V1.replace("peft_config:\n  name: lora\n", frozen)
    for line in ("  r: 16\n", "  quantization_bit: 4\n", "quant_config:\n  name: bnb\n"):
        text = text.replace(line, "")
    last = read(tmp_path, "b.yaml", text).scenario.workload.recipe
    assert (last.frozen_layers, last.frozen_head, last.lora_rank) == (36 - 2, True, 0)


def test_names_of_a_script_stand_for_their_values(tmp_path: Path) -> None:
    found = read(tmp_path, "train.py", samples.OLMO_CORE)
    recipe = found.scenario.workload.recipe
    assert (recipe.global_batch, recipe.sequence_length, recipe.tokens) == (128, 8192, 4e12)
    assert found.scenario.pinned["micro_batch"] == 2
    notebook = read(tmp_path, "notebook.py", samples.UNSLOTH)
    assert notebook.scenario.workload.recipe.lora_rank == 16
    assert notebook.scenario.workload.recipe.tokens == 60 * 2 * 4 * 8 * 2048
    assert notebook.scenario.pinned["offload_layers"] == 32


def test_a_model_that_is_loaded_again_was_trained_before(tmp_path: Path) -> None:
    """As unslothai/notebooks end: the adapters are loaded for inference."""
    again = '\nif False:\n    m, t = FastLanguageModel.from_pretrained(model_name="lora_model")\n'
    later = 'model, _ = FastLanguageModel.from_pretrained("lora_model", max_seq_length=64)\n'
    plain = read(tmp_path, "a.py", samples.UNSLOTH).scenario
    found = read(tmp_path, "b.py", samples.UNSLOTH + again + later).scenario
    assert found.workload == plain.workload


def test_a_script_of_a_trainer_and_its_adapters(tmp_path: Path) -> None:
    found = read(tmp_path, "sft.py", samples.HUGGING_FACE)
    recipe = found.scenario.workload.recipe
    assert (found.scenario.workload.architecture.name, recipe.lora_rank) == ("llama-2-7b", 16)
    assert (recipe.quantised_base, recipe.lora_targets) == (True, ("q", "v"))
    assert (recipe.global_batch, recipe.sequence_length) == (4 * 2 * 8, 1024)
    assert (found.scenario.pinned["recompute"], recipe.optimizer) == ("full", "adamw_8bit")
    quiet = samples.HUGGING_FACE.replace(" gradient_checkpointing=True,", "")
    assert read(tmp_path, "a.py", quiet).scenario.pinned["recompute"] == "full"  # TRL's default
    plain = quiet.replace("SFTConfig", "TrainingArguments")
    assert read(tmp_path, "b.py", plain).scenario.pinned["recompute"] == "none"  # transformers'
    zero = samples.HUGGING_FACE.replace("bf16=True", 'deepspeed="ds.json"')
    assert "--set layout.sharding=N says it" in problems(tmp_path, "c.py", zero)
    pairs = samples.HUGGING_FACE.replace("SFTConfig(", "DPOConfig(")
    paired = read(tmp_path, "dpo.py", pairs).scenario
    assert paired.workload.recipe.global_batch == 2 * recipe.global_batch
    assert paired.required(Distillation).compares == "log_probabilities"


def test_a_command_with_short_flags(tmp_path: Path) -> None:
    found = read(tmp_path, "run.sh", samples.COLOSSAL_AI)
    pinned, recipe = found.scenario.pinned, found.scenario.workload.recipe
    assert (pinned["tp"], pinned["sharding"], pinned["recompute"]) == (2, "zero1", "full")
    assert (found.scenario.cluster.gpus, recipe.global_batch) == (8, 16 * 4)


@pytest.mark.parametrize(
    ("sample", "was", "now", "rule"),
    [
        ("axolotl.yaml", "adapter: qlora", "adapter: qlora\nrl: grpo", "foreshard rl prices it"),
        ("axolotl.yaml", "adapter: qlora", "adapter: llama-adapter", "adapter: must be lora or"),
        ("axolotl.yaml", "lora_r: 32", "lora_r: many", "lora_r: must be a whole number"),
        ("axolotl.yaml", "bf16: auto", "bf16: often", "bf16: must be one of auto, true"),
        ("axolotl.yaml", "load_in_4bit: true", "load_in_4bit: false", "must have load_in_4bit"),
        ("axolotl.yaml", "lora_r: 32", "lora_r: 8\nunfrozen_parameters: [lm_head]",
         r"--set training\.frozen_layers=N says it"),
        ("automodel.yaml", "TrainFinetuneRecipeForNextTokenPrediction", "TrainEagle3Recipe",
         "draft model .EAGLE-3. is not"),
        ("automodel.yaml", "strategy: fsdp2", "strategy: own", "must be one of fsdp2, megatron"),
        ("arctic.yaml", "type: sft", "type: swiftkv", "SwiftKV"),
        ("mindformers.yaml", "finetune", "predict", "nothing is trained"),
        ("litgpt.yaml", "bf16-true", "bf8-true", "precision: must be one of bf16-true"),
        ("nanotron.yaml", "zero_stage: 1", "zero_stage: 3", "zero_stage: must be one of 0, 1"),
        ("unsloth.py", "SFTConfig(", "GRPOConfig(", "foreshard rl prices it"),
        ("ms_swift.sh", "--train_type lora", "--train_type longlora", "lora and full are modelled"),
        ("ms_swift.sh", "swift sft", "swift rlhf --rlhf_type grpo", "foreshard rl prices it"),
        ("ms_swift.sh", "swift sft", "swift infer", "a program that trains nothing"),
        ("ms_swift.sh", "--gradient_accumulation_steps 4", "",
         r"ceil\(16 / .*training\.global_batch=N says it"),
        ("llm_foundry.yaml", "name: mpt_causal_lm",
         "name: mpt_causal_lm\n  ffn_config: {ffn_type: mb_dmoe, moe_num_experts: 4}",
         "not gated ones, nor experts"),
        ("llm_foundry.yaml", "mpt_causal_lm", "hf_t5", "mpt_causal_lm and hf_causal_lm"),
        ("olmo_core.py", "2 * SEQUENCE_LENGTH", "1000", "must be a multiple of the 8192 tokens"),
    ],
)  # fmt: skip
def test_what_cannot_be_said_is_refused_with_its_key(
    sample: str, was: str, now: str, rule: str, tmp_path: Path
) -> None:
    text = samples.SAMPLES[sample]
    assert was in text
    said = problems(tmp_path, sample, text.replace(was, now))
    assert re.search(rf"{re.escape(sample)}.*{rule}", said)


def test_a_missing_rank_is_asked_for_and_a_rank_without_adapters_ignored(tmp_path: Path) -> None:
    text = samples.AXOLOTL.replace("lora_r: 32\n", "")
    assert "must have lora_r" in problems(tmp_path, "a.yaml", text)
    plain = samples.AXOLOTL.replace("adapter: qlora\n", "").replace("load_in_4bit: true\n", "")
    found = read(tmp_path, "b.yaml", plain)
    assert found.scenario.workload.recipe.lora_rank == 0
    assert "lora_r" in {place.key for reading in found.readings for place in reading.idle}


@pytest.mark.parametrize(
    ("pattern", "targets"),
    [
        ("'model.layers.[\\d]+.(mlp|self_attn).(up|down|q)_proj'", ("up", "down", "q")),
        ("['*.q_proj', '*.kv_b_proj']", ("q", "kv_up")),
        ("all-linear", Recipe(sequence_length=1, global_batch=1).lora_targets),
        ("'" + "(a|" * 500 + "q_proj'", ("q",)),
    ],
)
def test_patterns_of_matrices_are_read_and_never_run(
    pattern: str, targets: tuple[str, ...], tmp_path: Path
) -> None:
    text = samples.AXOLOTL.replace("[q_proj, v_proj, down_proj]", pattern)
    assert read(tmp_path, "a.yaml", text).scenario.workload.recipe.lora_targets == targets


# --- pairs of answers, teachers -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "pairs", "reference"),
    [("rl: dpo", 2, True), ("rl: ipo", 2, True), ("rl: orpo", 2, False), ("seed: 1", 1, False)],
)
def test_a_pair_of_answers_is_two_sequences(
    words: str, pairs: int, reference: bool, tmp_path: Path
) -> None:
    """axolotl core/builders/rl.py, trl 0.24 concatenated_forward: both answers in a batch."""
    plain = read(tmp_path, "a.yaml", samples.AXOLOTL).scenario
    found = read(tmp_path, "b.yaml", f"{samples.AXOLOTL}{words}\n").scenario
    micro, batch = plain.pinned["micro_batch"], plain.workload.recipe.global_batch
    assert found.pinned["micro_batch"] == pairs * micro
    assert found.workload.recipe.global_batch == pairs * batch
    assert (found.section(Distillation) is not None) == reference
    assert set(found.elsewhere) == ({"distillation"} if reference else set())


@pytest.mark.parametrize(
    ("name", "was", "now", "reference"),
    [
        ("arctic.yaml", "type: sft", "type: dpo", True),
        ("xtuner.py", "SupervisedFinetune,", "DPO,", True),
        ("xtuner.py", "SupervisedFinetune,", "ORPO,", False),
    ],
)
def test_pairs_of_other_trainers(
    name: str, was: str, now: str, reference: bool, tmp_path: Path
) -> None:
    """arctic_training/trainer/dpo_trainer.py: logprobs[:batch_size] are the chosen; xtuner's
    preference_collate_fn.py: answers of a pair one behind the other."""
    text = samples.SAMPLES[name]
    plain = read(tmp_path, name, text).scenario.workload.recipe.global_batch
    found = read(tmp_path, name, text.replace(was, now)).scenario
    assert found.workload.recipe.global_batch == 2 * plain
    assert (found.section(Distillation) is not None) == reference


@pytest.mark.parametrize(
    ("program", "pairs", "reference"),
    [("train_dpo.py", 2, True), ("train_orpo.py", 2, False), ("train_sft.py", 1, False)],
)
def test_a_command_of_a_table_trains_as_its_program_says(
    program: str, pairs: int, reference: bool, tmp_path: Path
) -> None:
    """ColossalChat coati/trainer/dpo.py: chosen and rejected are one batch of the actor."""
    words = "--pretrain meta-llama/Llama-2-7b-hf --plugin zero2 --batch_size 4 --max_length 2048"
    text = f"colossalai run --nproc_per_node 8 {program} {words} --mixed_precision bf16\n"
    found = read(tmp_path, "a.sh", text).scenario
    assert found.pinned["micro_batch"] == 4 * pairs
    assert (found.section(Distillation) is not None) == reference


def test_hosts_of_a_colossal_ai_command_are_its_servers(tmp_path: Path) -> None:
    """colossalai/cli/launcher/__init__.py: -H, --host, names with commas between them."""
    words = "benchmark.py -c 7b -p zero2 -b 4 -l 2048"
    for where, servers in (("", 1), ("--host a,b", 2), ("-H a,b,c", 3), ("--host a", 1)):
        (tmp_path / "a.sh").write_text(f"colossalai run --nproc_per_node 8 {where} {words}\n")
        found = import_launch([tmp_path / "a.sh"], {"cluster": "dgx-h100"}).scenario
        assert found.cluster.gpus == 8 * servers


@pytest.mark.parametrize("name", ["olmo2_7B", "olmo2_13B", "olmo2_32B", "olmo3_7B", "olmo3_32B"])
def test_olmo_models_of_the_zoo_are_not_asked_for(name: str, tmp_path: Path) -> None:
    text = re.sub(r"TransformerConfig\.\w+", f"TransformerConfig.{name}", samples.OLMO_CORE)
    size = {"7B": 7.3e9, "13B": 13.7e9, "32B": 32.2e9}[name.partition("_")[2]]
    found = read(tmp_path, "train.py", text).scenario.workload.architecture
    assert found.parameters == pytest.approx(size, rel=0.01)


@pytest.mark.parametrize(
    "program", ["train_prm.py", "train_kto.py", "train_ppo.py", "train_grpo.py"]
)
def test_a_command_of_a_table_that_trains_otherwise_is_refused(
    program: str, tmp_path: Path
) -> None:
    text = f"colossalai run --nproc_per_node 8 {program} --plugin zero2 --batch_size 4\n"
    assert f"{program} asks for" in problems(tmp_path, "a.sh", text)


@pytest.mark.parametrize("way", ["kto", "ebft", "grpo"])
def test_other_ways_of_axolotl_are_refused(way: str, tmp_path: Path) -> None:
    assert "a.yaml: rl: " in problems(tmp_path, "a.yaml", f"{samples.AXOLOTL}rl: {way}\n")


def test_a_reward_model_has_a_score_in_place_of_a_vocabulary(tmp_path: Path) -> None:
    """trl's RewardTrainer: AutoModelForSequenceClassification with one label over pairs."""
    text = samples.AXOLOTL.replace("adapter: qlora\n", "").replace("load_in_4bit: true\n", "")
    plain = read(tmp_path, "a.yaml", text).scenario.workload
    found = read(tmp_path, "b.yaml", f"{text}reward_model: true\n").scenario.workload
    model = found.architecture
    assert model.output_rows == 0 and model.tasks is not None and model.tasks.outputs == (1,)
    table = plain.architecture.vocabulary * plain.architecture.hidden
    assert plain.architecture.parameters - model.parameters == table - model.hidden - 1
    assert found.recipe.global_batch == 2 * plain.recipe.global_batch


KD = """\
recipe: KnowledgeDistillationRecipeForNextTokenPrediction
step_scheduler: {global_batch_size: 32, local_batch_size: 1}
dist_env: {backend: nccl}
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: meta-llama/Llama-3.2-1B
teacher_model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: meta-llama/Llama-3.2-3B
distributed: {strategy: fsdp2}
kd_ratio: 0.5
"""


def test_a_teacher_stands_beside_the_student(tmp_path: Path) -> None:
    """Automodel examples/llm_kd: a frozen teacher_model of its own."""
    text = KD + "dataset: {seq_length: 1024}\n"
    found = read(tmp_path, "a.yaml", text)
    assert found.scenario.required(Distillation).teacher == "llama-3.2-3b"
    assert found.scenario.workload.recipe.global_batch == 32
    assert not [place for place in found.unknown if "kd" in place.key or "teacher" in place.key]
    unknown = text.replace("Llama-3.2-3B", "my-own-model")
    rule = "'meta-llama/my-own-model' is no model of the zoo: --set distillation.teacher=NAME"
    assert rule in problems(tmp_path, "a.yaml", unknown)


# --- the tables themselves -----------------------------------------------------------------------

_SECTIONS = ("layout", "training", "run", "model", "software", "cluster", "size", "distillation")
_TELLING = re.compile(
    r"dtype|shard|offload|recompute|bucket|window|quant|lora_r$|freez|pack|overlap|checkpointing"
)


def _stated(trainer: Trainer) -> set[str]:
    table = trainer.table
    said = {field for part in ("numbers", "numbers_or_none", "reals", "mebibytes", "tokens")
            for field in table.get(part, {}).values()}  # fmt: skip
    for words in table.get("words", {}).values():
        said |= {name for x in words.values() if isinstance(x, dict) for name in x}
    for rule in table.get("follows", ()):
        said |= {*rule.get("say", {}), *rule.get("instead", {})}
    return said - {"note", "ask"}


@pytest.mark.parametrize("trainer", trainers(), ids=lambda trainer: trainer.name)
def test_a_table_states_fields_that_there_are(trainer: Trainer) -> None:
    recipe = {f"training.{field.name}" for field in fields(Recipe)}
    for field in _stated(trainer):
        section, _, name = field.partition(".")
        assert section in _SECTIONS and name, field
        if section == "training":
            assert field in recipe
    for rule in trainer.table["software"]:
        for name in rule["names"]:
            load_software(name)
    models = [x["model.name"] for words in trainer.table.get("words", {}).values()
              for x in words.values() if isinstance(x, dict) and "model.name" in x]  # fmt: skip
    assert set(models) <= set(presets.names())


@pytest.mark.parametrize("trainer", trainers(), ids=lambda trainer: trainer.name)
def test_no_key_that_may_bear_on_memory_is_idle(trainer: Trainer) -> None:
    idle = {key for keys in trainer.table.get("idle", {}).values() for key in keys.split()}
    telling = {key for key in idle if _TELLING.search(key.rpartition(".")[2])}
    read_ = {*trainer.table.get("words", {}), *trainer.table.get("numbers", {})}
    assert not idle & read_
    assert not any("*" in key for key in idle)
    assert telling <= BEARS_ON_NOTHING.keys(), telling - BEARS_ON_NOTHING.keys()


BEARS_ON_NOTHING = {
    "peft_config.infer_dtype": "of a model that is exported",
    "sample_packing_group_size": "how the loader makes packs, ahead of the step",
    "sample_packing_bin_size": "how the loader makes packs, ahead of the step",
    "streaming_multipack_buffer_size": "how the loader makes packs, ahead of the step",
    "eval_sample_packing": "evaluation is no training step",
    "fp8.precompute_float8_dynamic_scale_for_fsdp": "scales of all weights by one reduction",
    "AutoModelForCausalLM.from_pretrained.quantization_config": "a call that is read by itself",
    "distributed.patch_is_packed_sequence": "spares one synchronisation of the host a layer",
}
"""Keys that speak of what may bear on time or memory, and why they do not."""


def test_steps_between_checkpoints_of_a_trainer(tmp_path: Path) -> None:
    """LitGPT saves every 200 of 1,000 steps, of 50 never; axolotl by steps, or by epochs."""
    text = samples.SAMPLES["litgpt.yaml"]
    long = read(tmp_path, "litgpt.yaml", text.replace("max_steps: 50", "max_steps: 1000"), gpus=4)
    assert long.scenario.run.checkpoints.every_steps == 200
    short = read(tmp_path, "litgpt.yaml", text, gpus=4)
    assert short.scenario.run.checkpoints.every_steps is None
    assert any("run of 50 steps ends before 200" in note for note in short.notes)
    text = samples.SAMPLES["axolotl.yaml"] + "\nsave_steps: 25\n"
    found = read(tmp_path, "axolotl.yaml", text)
    assert found.scenario.run.checkpoints.every_steps == 25
    found = read(tmp_path, "axolotl.yaml", f"{text}save_strategy: epoch\n")
    assert found.scenario.run.checkpoints.every_steps is None and not found.unknown


def test_a_schedule_of_several_stages_has_two_a_rank(tmp_path: Path) -> None:
    """Automodel's pipelining/functional.py, calculate_virtual_stages, without layers_per_stage."""
    text = re.sub(r" *layers_per_stage: .*\n", "", samples.AUTOMODEL)
    text = text.replace("pp_size: 1", "pp_size: 2")
    text = re.sub(r"pp_schedule: .*", "pp_schedule: Interleaved1F1B", text)
    assert read(tmp_path, "sft.yaml", text).scenario.pinned["vpp"] == 2


@pytest.mark.parametrize(
    ("frozen", "parts"),
    [
        ("unfrozen_parameters: [^model.language_model.*, ^lm_head.*]", {"tower", "projector"}),
        ("freeze_mm_modules: true", {"tower", "projector"}),
        ("freeze_mm_modules: false", set()),
    ],
)
def test_parts_of_a_model_with_a_tower_are_frozen(
    frozen: str, parts: set[str], tmp_path: Path
) -> None:
    text = samples.AXOLOTL.replace("NousResearch/Meta-Llama-3.1-8B", "google/gemma-3-4b-it")
    found = read(tmp_path, "a.yaml", f"{text}{frozen}\n")
    assert set(found.scenario.workload.recipe.frozen_parts) == parts
    text_alone = read(tmp_path, "b.yaml", f"{samples.AXOLOTL}{frozen}\n")
    assert not text_alone.scenario.workload.recipe.frozen_parts


def test_a_frozen_language_model_needs_its_tower(tmp_path: Path) -> None:
    text = f"{samples.AXOLOTL}".replace("adapter: qlora", "adapter: qlora\nrelora: true")
    assert any("ReLoRA" in note for note in read(tmp_path, "c.yaml", text).notes)
    recipe = f"{samples.AUTOMODEL}\nfreeze_config:\n  freeze_language_model: true\n"
    assert "needs a tower" in problems(tmp_path, "d.yaml", recipe)


def test_lengths_are_worked_out(tmp_path: Path) -> None:
    """XTuner's LLaVA: 336 / 14 squared are the patches of an image, 576."""
    text = samples.XTUNER.replace("max_length = 2048", "max_length = int(2048 - (336 / 14) ** 2)")
    assert read(tmp_path, "a.py", text).scenario.workload.recipe.sequence_length == 1472
    odd = text.replace("336 / 14", "336 / 13")
    assert "sequence_length" in problems(tmp_path, "b.py", odd)


LITGPT_PRETRAIN = """\
model_name: Llama-3-8B
out_dir: out/pretrain
precision: bf16-true
train:
  {global_batch_size: 512, micro_batch_size: 4, max_tokens: 3000000000000, max_seq_length: 2048}
optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 0.0004}}
devices: auto
num_nodes: 2
"""


def test_litgpt_pretrains_without_checkpoints_of_activations(tmp_path: Path) -> None:
    """26857050, pretrain.py: HYBRID_SHARD (a copy on each server), torch.compile, fused AdamW."""
    found = read(tmp_path, "p.yaml", LITGPT_PRETRAIN, gpus=16)
    pinned = {"sharding": "zero3", "shard_group": 8, "recompute": "none", "micro_batch": 4}
    assert found.scenario.pinned == pinned
    assert found.scenario.software.name == "torch-fsdp-compiled"
    assert found.scenario.document["software"] == {"adamw": "fused"}
    absent = LITGPT_PRETRAIN.replace("devices: auto\n", "")  # whose default is auto
    assert read(tmp_path, "p.yaml", absent, gpus=16).scenario.pinned == pinned


@pytest.mark.parametrize(
    ("name", "old", "new", "kernels"),
    [
        # torch/optim/adamw.py: neither fused nor foreach said is foreach on CUDA
        ("automodel.yaml", "", "", "foreach"),
        ("automodel.yaml", "  lr: 1.0e-5", "  lr: 1.0e-5\n  fused: true", "fused"),
        ("llama_factory_v1.yaml", "", "", "foreach"),
        ("xtuner.py", "", "", "foreach"),
        ("litgpt.yaml", "", "", "foreach"),
    ],
)
def test_which_kernels_of_adamw_a_trainer_asks_torch_for(
    tmp_path: Path, name: str, old: str, new: str, kernels: str
) -> None:
    text = samples.SAMPLES[name]
    assert old in text
    found = read(
        tmp_path, name, text.replace(old, new) if old else text, gpus=0 if "lit" in name else 8
    )
    assert found.scenario.document["software"]["adamw"] == kernels


def test_ms_swift_trains_as_it_is_told(tmp_path: Path) -> None:
    """swift/arguments: checkpointing is on, towers are frozen, weights stay in 16 bit."""
    text = samples.MS_SWIFT.replace("lora --lora_rank 16 --target_modules all-linear", "full")
    found = read(tmp_path, "run.sh", text.replace("--deepspeed zero2 ", ""), gpus=0)
    pinned, recipe = found.scenario.pinned, found.scenario.workload.recipe
    assert (pinned["sharding"], pinned["recompute"], pinned["micro_batch"]) == ("ddp", "full", 2)
    assert (recipe.global_batch, recipe.master_weights) == (2 * 8 * 4, False)
    shared = read(tmp_path, "run.sh", text.replace("zero2", "zero3_offload"), gpus=0)
    assert shared.scenario.pinned["optimizer_offload"] == "cpu"
    assert shared.scenario.workload.recipe.master_weights is None  # as the trainer keeps them
    adapted = read(tmp_path, "run.sh", samples.MS_SWIFT.replace("--lora_rank 16 ", ""), gpus=0)
    assert adapted.scenario.workload.recipe.lora_rank == 8
    two = read(
        tmp_path,
        "run.sh",
        samples.MS_SWIFT.replace("swift sft", "swift rlhf --rlhf_type dpo"),
        gpus=0,
    )
    assert two.scenario.workload.recipe.global_batch == 2 * 2 * 8 * 4


def test_ms_swift_by_megatron_core(tmp_path: Path) -> None:
    """swift/megatron/arguments/megatron_args.py: defaults of its own, adapters by tuner_type."""
    text = (
        "NPROC_PER_NODE=8 NNODES=2 megatron sft --model Qwen/Qwen3-30B-A3B --dataset mine"
        " --tensor_model_parallel_size 2 --expert_model_parallel_size 8 --sequence_parallel true"
        " --moe_permute_fusion true --max_length 8192 --packing true {more}\n"
    )
    plain = read(tmp_path, "run.sh", text.format(more=""), gpus=0)
    pinned, recipe = plain.scenario.pinned, plain.scenario.workload.recipe
    assert plain.scenario.cluster.gpus == 16
    assert (pinned["tp"], pinned["ep"], pinned["micro_batch"]) == (2, 8, 1)
    assert (pinned["sharding"], pinned["recompute"]) == ("zero1", "selective")
    assert (recipe.global_batch, recipe.precision, recipe.lora_rank) == (16, "bf16", 0)
    assert (recipe.sequence_length, recipe.batching) == (8192, "packed")
    assert not plain.unknown
    more = "--tuner_type lora --torch_dtype float16 --recompute_granularity full"
    adapted = read(tmp_path, "run.sh", text.format(more=more), gpus=0)
    assert adapted.scenario.workload.recipe.lora_rank == 8
    assert adapted.scenario.workload.recipe.precision == "fp16"
    assert adapted.scenario.pinned["recompute"] == "full"
    with pytest.raises(InputError, match="reinforcement"):
        read(tmp_path, "run.sh", text.replace("sft", "rlhf --rlhf_type grpo").format(more=""))
