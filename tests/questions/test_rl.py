"""`foreshard rl`: JSON, splits, remedies, bad input, and scripts of frameworks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import simulator
from simulator.cli.main import app
from simulator.errors import InputError
from simulator.interop.rl_scripts import dialect_of, scenario_from_script, settings_of_file
from simulator.questions.rl.answer import PricedRL, rl
from simulator.questions.rl.page import rl_page
from simulator.reinforcement.split_search import best_of, score
from simulator.rollouts.rl_section import RL
from simulator.scenario import make_scenario
from simulator.units import show_bytes
from tests.reinforcement.scenes import scene

RUN = """
[model]
name = "llama-3.1-8b"
[training]
sequence_length = 4096
global_batch = 512
[cluster]
name = "dgx-h100"
gpus = 16
software = "megatron-bridge"
[layout]
recompute = "full"
[rl]
prompts = 64
samples = 32
answer_tokens = 1000
mode = "apart"
staleness = 1
[rl.generation]
gpus = 8
"""

FROZEN = {
    *("mode", "step_time_s", "p10_s", "p90_s", "updates", "generation_s", "reward_s"),
    *("log_probabilities_s", "training_s", "refit_s", "phase_change_s", "driver_s", "waiting"),
    *("staleness", "gpus", "tokens_per_s_per_gpu", "preempted", "layouts", "memory", "verdict"),
    "lent_s",
    *("usd_per_1000_updates", "kwh_per_1000_updates", "goodput", "price", "evidence"),
}


@pytest.fixture(scope="module")
def answer() -> PricedRL:
    stale = {"rl__mode": "apart", "rl__staleness": 1, "rl__generation__gpus": 8}
    return rl(scene(**stale))


def _run(folder: Path, *arguments: str) -> tuple[int, str]:
    (folder / "run.toml").write_text(RUN)
    result = CliRunner().invoke(app, ["rl", str(folder / "run.toml"), *arguments])
    return result.exit_code, result.output


def test_json_has_the_keys_that_stay(tmp_path: Path) -> None:
    code, text = _run(tmp_path, "--json", "--as-given")
    document = json.loads(text)
    assert code == 0
    assert set(document["rl"]) == FROZEN
    assert set(document["rl"]["waiting"]) == {"trainer", "generator"}
    assert set(document["rl"]["staleness"]) == {"p50", "p90"}
    assert document["rl"]["gpus"] == {"training": 8, "generation": 8}
    assert set(document["rl"]["layouts"]) == {"training", "generation"}
    assert document["tried"] == []


def test_what_has_no_effect_is_said() -> None:
    given = rl(_made(["rl.algorithm=dapo", "rl.turns=3"]), search=False).caveats
    assert "DAPO's kept_groups is 1: no group is dropped, no further round is priced." in given
    assert "Tools between 3 turns take no time: tool_s, tool_tokens are 0." in given
    made = ["rl.algorithm=dapo", "rl.kept_groups=0.5", "rl.turns=3", "rl.tool_s=1"]
    assert not any(
        "is 1" in line or "no time" in line for line in rl(_made(made), search=False).caveats
    )


def test_screen_page_and_picture(tmp_path: Path) -> None:
    page, picture = tmp_path / "rl.html", tmp_path / "rl.svg"
    code, text = _run(tmp_path, "--as-given", "--page", str(page), "--picture", str(picture))
    assert code == 0
    for word in ("generation", "log-probabilities", "training", "refit", "128 sequences each"):
        assert word in text
    assert "<svg" in page.read_text()
    assert "generator" in picture.read_text()


def test_the_best_split_is_no_worse_than_the_scenarios_own(answer: PricedRL) -> None:
    assert answer.asked is not None
    assert answer.best is not None
    for by in ("time", "usd", "throughput"):
        best = best_of(list(answer.tried), by)  # type: ignore[arg-type]
        assert best is not None
        assert best.step is not None
        own = score(answer.asked.step, by)  # type: ignore[arg-type]
        assert score(best.step, by) <= own * 1.001  # type: ignore[arg-type]


def test_where_the_binding_side_changes(answer: PricedRL) -> None:
    for pair in answer.flips:
        few = [row for row in answer.rows if row["generation_gpus"] == pair["from"]]
        many = [row for row in answer.rows if row["generation_gpus"] == pair["to"]]
        assert min(row["trainer_waits"] for row in many if row["mode"] == "apart") == 0.0
        assert min(row["generator_waits"] for row in few if row["mode"] == "apart") == 0.0


def test_an_engines_own_limit_is_a_remedy() -> None:
    """vLLM's asynchronous engine runs 128 sequences unless told; nothing warns of it."""
    stale = {"rl__mode": "apart", "rl__staleness": 1, "rl__generation__gpus": 4}
    told = rl(scene(**stale, layout__pp=1), search=False).told
    limits = [remedy for remedy in told if remedy.field == "rl.generation.max_sequences"]
    assert limits[0].value == 1024
    assert "128 sequences at once unless told" in limits[0].why


def test_a_share_that_leaves_the_trainer_no_room_is_out_of_memory_with_the_largest_that_does(
    tmp_path: Path,
) -> None:
    """Weights fit, so that it is no wrong input: exit 1, and what was tried stands below."""
    (tmp_path / "run.toml").write_text(RUN.split("mode =")[0])
    more = ["--set", "rl.generation.memory_share=0.99", "--as-given", "--json"]
    result = CliRunner().invoke(app, ["rl", str(tmp_path / "run.toml"), *more])
    document = json.loads(result.output)
    assert (result.exit_code, document["rl"]["verdict"]) == (1, "OOM")
    side = document["rl"]["memory"]["generation"]
    rest = side["trainer asleep"] / side["usable_bytes"]
    (share,) = (
        remedy["value"]
        for remedy in document["remedies"]
        if remedy["field"] == "rl.generation.memory_share"
    )
    assert 1.0 - rest - 0.01 < share <= 1.0 - rest


def test_a_split_without_room_names_what_would_do() -> None:
    big = rl(
        scene(model="llama-3.1-70b", gpus=16, layout__tp=8, rl__generation__tp=1), search=False
    )
    assert big.asked is None
    assert not big.feasible
    assert "weights of tp = 1 and workspace take" in big.reason
    assert any(remedy.field == "rl.generation.tp" for remedy in big.told) or not big.told


def test_money_is_accelerator_hours_at_their_price() -> None:
    made = rl(scene(economics__usd_per_gpu_hour=2.0), search=False).asked
    assert made is not None
    hours = made.step.step_time_s / 4 * 1000 / 3600 * 16
    assert made.usd_per_1000_updates == pytest.approx(hours * 2.0 / made.goodput)
    assert 0.9 < made.goodput < 1.0
    # 16 devices of 700 W and their servers, some 10 kW each, at a site of some 1.2
    assert 10.0 < made.kwh_per_1000_updates / (hours / 16) < 35.0


def test_racks_are_paid_for_whole() -> None:
    made = rl(scene(cluster__name="gb200-nvl72", economics__usd_per_gpu_hour=2.0), search=False)
    asked = made.asked
    assert asked is not None and asked.step.all_gpus < 72
    hours = asked.step.step_time_s / 4 * 1000 / 3600 * 72
    assert asked.usd_per_1000_updates == pytest.approx(hours * 2.0 / asked.goodput)


def test_python_takes_the_arguments_of_the_command() -> None:
    section = {"prompts": 64, "samples": 32, "answer_tokens": 1000.0}
    made = simulator.rl(
        model="llama-3.1-8b", cluster="dgx-h100", gpus=16, software="megatron-bridge", pp=2,
        recompute="full", sequence_length=4096, global_batch=512, rl=section, search=False,
    )  # fmt: skip
    assert made.document()["command"] == "rl"
    assert "rl" in made.document()
    assert len(made.to_frame()) == 1
    assert "waits" in repr(made)


def test_pages_say_what_they_show(answer: PricedRL) -> None:
    page = rl_page(answer)
    assert page.count("<tr") > len(answer.tried)
    assert "Two steps" in page
    assert answer.asked is not None
    parts, memory = (page.index(f"<h2>{heading}</h2>") for heading in ("Time of a step", "Memory"))
    assert parts < page.index("log-probabilities</td>", parts) < memory
    for side in answer.asked.step.memory.values():
        assert page.index(show_bytes(side.total_bytes), memory) > memory


def test_a_remedy_is_what_a_scenario_has(tmp_path: Path) -> None:
    """Screen and page alike: true and quotes as TOML writes them, and updates, not steps."""
    page = tmp_path / "rl.html"
    sync = ("--set", "rl.mode=colocated", "--set", "rl.staleness=0", "--set", "rl.generation={}")
    code, text = _run(tmp_path, "--as-given", *sync, "--page", str(page))
    assert code == 0 and "512 sequences of 4,096 per update" in text
    for words in ("rl.generation.asynchronous = true", "rl.generation.precision = "):
        assert words in text and words in page.read_text()
    assert "= True" not in page.read_text()


def test_plan_points_to_the_command(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(RUN)
    result = CliRunner().invoke(app, ["plan", str(tmp_path / "run.toml")])
    assert result.exit_code == 2
    assert "use `foreshard rl`" in result.output


# --- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mode": "apart", "generation.gpus": 16}, "rl.generation.gpus: must leave accelerators"),
        ({"mode": "apart", "generation.gpus": 24}, "rl.generation.gpus: must leave accelerators"),
        ({"mode": "apart", "staleness": -1}, "rl.staleness: must be at least 0, got -1"),
        ({"staleness": 1}, "rl.staleness: must be 0 with mode = 'colocated', got 1"),
        ({"answer_tokens": 5000}, "rl.answer_tokens: must be at most 3,968"),
        ({"longest_answer": 4096}, "rl.longest_answer: must be at most 3,968"),
        ({"prompt_tokens": 5000}, "rl.prompt_tokens: must leave room for an answer"),
        ({"generation.tp": 3}, "rl.generation.tp: must divide the 16 accelerators"),
        (
            {"generation.memory_share": 1.5},
            "memory_share: must be less than or equal to 1, got 1.5",
        ),
        ({"prompts": 63}, "training.global_batch: must divide prompts x samples x epochs = 2,016"),
        (
            {"framework": "verll"},
            "unknown rl_framework 'verll' (did you mean 'verl'?)",
        ),
        ({"kept_groups": 0.5}, "rl.kept_groups: must be 1 unless algorithm = 'dapo'"),
        ({"reward": "model"}, "rl.reward_model: must be given with reward = 'model'"),
        ({"reward_model": "qwen3-8b"}, "rl.reward_model: goes with reward = 'model'"),
        ({"partial_rollouts": True}, "rl.partial_rollouts: must be false without staleness"),
        ({"generation.engine": "vlm"}, "rl.generation.engine"),
        (
            {"algorithm": "dapo", "kept_groups": 1e-4},
            "rl.kept_groups: prompts x samples / kept_groups must be at most 1,000,000",
        ),
        ({"refit": "storage"}, "rl.refit: must be collective with mode = 'colocated'"),
        ({"mode": "mixed", "refit": "storage"}, "rl.refit: must be collective with mode = 'mixed'"),
        ({"mode": "apart", "generation.gpus": 0}, "rl.generation.gpus: must be above 0"),
        ({"mode": "mixed", "generation.gpus": 16}, "rl.generation.gpus: must leave accelerators"),
        (
            {"mode": "mixed", "generation.gpus": 6, "generation.tp": 4},
            "rl.generation.tp: must divide the 6 accelerators that generate",
        ),
        (
            {"mode": "mixed", "generation.gpus": 8, "staleness": 1},
            "rl.partial_rollouts: must be true with mode = 'mixed' and staleness",
        ),
        ({"teacher": "qwen3-32b"}, "rl.teacher: goes with algorithm = 'distillation'"),
        (
            {"algorithm": "distillation", "teacher": "qwen3-32b"},
            "rl.teacher: must have the 128,256 outputs of llama-3.1-8b, got 151936",
        ),
        ({"generation.memory_share": 0.2}, "rl.generation.memory_share: weights of tp = 1"),
        ({"mode": "apart", "generation.gpus": 7}, "rl.generation.gpus: must leave a multiple of 2"),
        ({"mode": "apart", "generation.tp": 3}, "the 8 accelerators that generate and the 32 att"),
        ({"generation.dp_attention": 3}, "rl.generation.dp_attention: must divide tp = 1, got 3"),
        ({"scoring_gpus": 4}, "rl.scoring_gpus: must be 0 unless mode = 'apart', got 4"),
        ({"answer_lengths": [10, 20]}, "one of answer_tokens, answer_lengths, answer_file"),
    ],
)
def test_one_message_with_field_and_rule(changes: dict[str, Any], said: str) -> None:
    overrides = [f"rl.{name}={json.dumps(value)}" for name, value in changes.items()]
    with pytest.raises(InputError) as caught:
        rl(_made(overrides), search=False)
    assert said in str(caught.value)
    assert len(caught.value.problems) == 1


def test_an_engine_that_cannot_serve_the_model() -> None:
    for model, said in (("bert-large", "is no decoder"), ("nemotron-h-8b", "mixes tokens without")):
        with pytest.raises(InputError, match=said):
            _made([f"model.name={model}", "training.sequence_length=512", "rl.answer_tokens=100"])


def test_an_engine_of_another_vendor() -> None:
    said = (
        r"rl\.generation\.engine: must run on mi300x; tensorrt-llm runs on accelerators of NVIDIA"
    )
    with pytest.raises(InputError, match=said):
        _made(["cluster.name=mi300x-8", "cluster.gpus=16", "rl.generation.engine=tensorrt-llm"])


def test_a_precision_that_the_device_lacks() -> None:
    with pytest.raises(InputError, match=r"rl\.generation\.precision: must be a type of a100"):
        _made(["cluster.name=dgx-a100", "rl.generation.precision=fp8"])


def _made(overrides: list[str]) -> Any:
    document = {
        "model": {"name": "llama-3.1-8b"},
        "training": {"sequence_length": 4096, "global_batch": 512},
        "cluster": {"name": "dgx-h100", "gpus": 16},
        "layout": {"pp": 2, "recompute": "full"},
        "rl": {"prompts": 64, "samples": 32, "prompt_tokens": 128, "answer_tokens": 1000.0},
    }
    return make_scenario(document, overrides=overrides)


# --- scripts --------------------------------------------------------------------------------

NEMO = """
grpo:
  num_prompts_per_step: 64
  num_generations_per_prompt: 32
  async_grpo:
    enabled: true
    max_trajectory_age_steps: 1
    in_flight_weight_updates: true
policy:
  model_name: meta-llama/Llama-3.1-8B-Instruct
  train_global_batch_size: 512
  max_total_sequence_length: 4096
  megatron_cfg:
    enabled: true
    activation_checkpointing: true
    tensor_model_parallel_size: 1
    pipeline_model_parallel_size: 2
  generation:
    colocated:
      enabled: false
      resources:
        num_nodes: 1
        gpus_per_node: 8
    vllm_cfg:
      async_engine: true
      tensor_parallel_size: 1
      gpu_memory_utilization: 0.8
cluster:
  gpus_per_node: 8
  num_nodes: 2
"""

VERL = """
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_batch_size=1024 \\
    data.max_prompt_length=512 \\
    data.max_response_length=1024 \\
    actor_rollout_ref.model.path=Qwen/Qwen3-8B \\
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \\
    actor_rollout_ref.rollout.n=5 \\
    trainer.n_gpus_per_node=8 \\
    trainer.nnodes=2 $@
"""

OPENRLHF = """
ray job submit --address="http://127.0.0.1:8265" -- python3 -m openrlhf.cli.train_ppo_ray \\
   --actor_num_nodes 1 --actor_num_gpus_per_node 8 \\
   --vllm_num_engines 4 --vllm_tensor_parallel_size 2 \\
   --advantage_estimator rloo \\
   --pretrain meta-llama/Llama-3.1-8B-Instruct \\
   --train_batch_size 256 --rollout_batch_size 128 --n_samples_per_prompt 4 \\
   --prompt_max_len 1024 --generate_max_len 1024 --zero_stage 3 --gradient_checkpointing
"""


def _script(folder: Path, name: str, text: str, **names: Any) -> tuple[Any, list[str]]:
    path = folder / name
    path.write_text(text)
    return scenario_from_script(path, {"cluster": "dgx-h100", **names})


def test_a_recipe_of_nemo_rl(tmp_path: Path) -> None:
    made, lines = _script(tmp_path, "grpo.yaml", NEMO)
    section = made.required(RL)
    assert (section.prompts, section.samples, section.staleness) == (64, 32, 1)
    assert (section.mode, section.generation.gpus) == ("apart", 8)
    assert made.cluster.gpus == 16
    assert made.pinned == {"tp": 1, "pp": 2, "recompute": "full"}
    assert made.workload.recipe.global_batch == 512
    assert any("half of the longest" in line for line in lines)


def test_a_recipe_over_another(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(NEMO)
    over = "defaults: base.yaml\ngrpo:\n  num_prompts_per_step: 32\n"
    made, _ = _script(tmp_path, "over.yaml", over)
    assert made.required(RL).prompts == 32
    assert made.required(RL).samples == 32


def test_a_command_of_verl(tmp_path: Path) -> None:
    made, _ = _script(tmp_path, "run.sh", VERL)
    section = made.required(RL)
    assert (section.algorithm, section.samples, section.framework) == ("grpo", 5, "verl")
    # a mini-batch counts prompts: 256 x 5 answers an update, four updates
    assert made.workload.recipe.global_batch == 1280
    assert made.cluster.gpus == 16
    assert made.pinned["sharding"] == "zero3"
    assert section.generation.memory_share == 0.6


def test_a_command_of_openrlhf(tmp_path: Path) -> None:
    made, _ = _script(tmp_path, "run.sh", OPENRLHF)
    section = made.required(RL)
    assert (section.algorithm, section.mode) == ("rloo", "apart")
    # init_kl_coef = 0.01 unless given: a reference on a node of its own
    assert (made.cluster.gpus, section.generation.gpus, section.scoring_gpus) == (24, 8, 8)
    assert made.pinned == {"sharding": "zero3", "recompute": "full"}
    hosts = OPENRLHF.rstrip() + " --adam_offload\n"
    assert _script(tmp_path, "hosts.sh", hosts)[0].pinned["optimizer_offload"] == "cpu"


def test_nodes_of_reference_critic_and_reward_of_openrlhf(tmp_path: Path) -> None:
    """openrlhf/cli/train_ppo_ray.py: a group of nodes each, unless all are colocated.

    GAE has a critic. 8 + 8 of actor and engines, 8 reference, 8 critic, 8 reward: 40.
    """
    plain = OPENRLHF.rstrip()
    ppo = plain.replace("rloo", "gae") + " --reward_pretrain OpenRLHF/Llama-3-8b-rm-700k"
    made, lines = _script(tmp_path, "run.sh", ppo)
    section = made.required(RL)
    assert (section.algorithm, section.reward) == ("ppo", "model")
    assert (made.cluster.gpus, section.scoring_gpus, section.placed_models) == (40, 24, 3)
    assert any("--set rl.reward_model=NAME" in line for line in lines)
    together, _ = _script(tmp_path, "one.sh", ppo + " --colocate_all_models")
    section = together.required(RL)
    assert (together.cluster.gpus, section.scoring_gpus, section.mode) == (8, 0, "colocated")
    beside, _ = _script(tmp_path, "async.sh", ppo + " --colocate_all_models --async_train")
    section = beside.required(RL)
    assert (beside.cluster.gpus, section.staleness, section.mode) == (16, 1, "apart")
    no_kl, _ = _script(tmp_path, "kl.sh", plain + " --init_kl_coef 0")
    section = no_kl.required(RL)
    assert (no_kl.cluster.gpus, section.scoring_gpus, section.reference_model) == (16, 0, False)


def test_flags_with_dots_of_openrlhf(tmp_path: Path) -> None:
    """v0.10 on: examples/scripts/train_ppo_ray_hybrid_engine.sh."""
    text = """
python3 -m openrlhf.cli.train_ppo_ray \\
   --actor.num_nodes 1 --actor.num_gpus_per_node 8 --vllm.num_engines 4 \\
   --vllm.tensor_parallel_size 2 --train.colocate_all --vllm.gpu_memory_utilization 0.5 \\
   --actor.model_name_or_path Qwen/Qwen3-8B --train.batch_size 128 --rollout.batch_size 1024 \\
   --rollout.n_samples_per_prompt 1 --data.max_len 2048 --ds.zero_stage 3 \\
   --algo.kl.init_coef 0 --algo.advantage.estimator reinforce_baseline --vllm.enforce_eager
"""
    made, lines = _script(tmp_path, "run.sh", text)
    section = made.required(RL)
    assert (made.cluster.gpus, section.mode, section.prompts) == (8, "colocated", 1024)
    assert made.workload.recipe.sequence_length == 2048
    assert section.generation.memory_share == 0.5 and not section.generation.cuda_graphs
    # as many engines as the actor has GPUs, which OpenRLHF insists on
    assert "not read: vllm.num_engines" in lines


def test_engines_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"rollout\.name: hf writes answers with the trainer's own"
    ):
        _script(tmp_path, "run.sh", VERL.replace("rollout.n=5", "rollout.n=5 \\\n"
                " actor_rollout_ref.rollout.name=hf"))  # fmt: skip
    path = tmp_path / "grpo.py"
    path.write_text(TRL.replace("use_vllm=True", "use_vllm=False"))
    with pytest.raises(InputError, match="use_vllm: transformers' generate"):
        scenario_from_script(path, {"cluster": "dgx-h100", "gpus": 8})


def test_micro_batches_of_scoring_in_verl(tmp_path: Path) -> None:
    more = (
        "rollout.n=5 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2"
        " actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4"
    )
    made, _ = _script(tmp_path, "run.sh", VERL.replace("rollout.n=5", more))
    assert made.required(RL).scoring_micro_batch == 4
    assert made.pinned["micro_batch"] == 2
    dynamic = VERL.replace("rollout.n=5", more + " actor_rollout_ref.actor.use_dynamic_bsz=True")
    made, _ = _script(tmp_path, "dynamic.sh", dynamic)
    assert made.required(RL).scoring_micro_batch is None and "micro_batch" not in made.pinned


def test_separate_rollouts_of_verl(tmp_path: Path) -> None:
    """docs/advance/v1_async_trainer.md: standalone nodes beside hybrid ones, lent where asked."""
    more = (
        "trainer.nnodes=2 trainer.v1.trainer_mode=separate_async"
        " actor_rollout_ref.rollout.nnodes=1 actor_rollout_ref.rollout.n_gpus_per_node=8"
    )
    apart, _ = _script(tmp_path, "run.sh", VERL.replace("trainer.nnodes=2", more))
    section = apart.required(RL)
    assert (apart.cluster.gpus, section.generation.gpus, section.mode) == (24, 8, "apart")
    assert (section.staleness, section.partial_rollouts) == (8, True)
    switch = more + " trainer.v1.separate_async.hybrid_rollout.enable_switch=True"
    lent, _ = _script(tmp_path, "lent.sh", VERL.replace("trainer.nnodes=2", switch))
    assert lent.required(RL).mode == "mixed" and lent.required(RL).lends


SLIME = """
ROLLOUT_ARGS=(--rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 8192
   --global-batch-size 256)
ray job submit -- python3 train.py --actor-num-nodes 2 --actor-num-gpus-per-node 8 \\
   --hf-checkpoint models/Qwen3-30B-A3B ${ROLLOUT_ARGS[@]} --rollout-num-gpus-per-engine 4 \\
   --tensor-model-parallel-size 4 --expert-model-parallel-size 8
"""


def test_placements_of_slime(tmp_path: Path) -> None:
    """slime/ray/placement_group.py: colocated, the larger of both numbers; else their sum."""

    def placed(name: str, more: str, text: str = SLIME) -> tuple[int, str, int | None, int]:
        # arguments of the model come from a script that is not there
        flags = f"{more} ${{MODEL_ARGS[@]}} --actor-num-nodes"
        made, _ = _script(tmp_path, name, text.replace("--actor-num-nodes", flags))
        section = made.required(RL)
        return made.cluster.gpus, section.mode, section.generation.gpus, section.staleness

    assert placed("one.sh", "--colocate") == (16, "colocated", None, 0)
    assert placed("all.sh", "--colocate --rollout-num-gpus 16") == (16, "colocated", None, 0)
    assert placed("more.sh", "--colocate --rollout-num-gpus 24") == (24, "mixed", 8, 0)
    assert placed("apart.sh", "--rollout-num-gpus 8") == (24, "apart", 8, 0)
    later = SLIME.replace("train.py", "train_async.py")
    assert placed("async.sh", "--rollout-num-gpus 8", later) == (24, "apart", 8, 1)
    stops, _ = _script(tmp_path, "stops.sh", later.replace("--hf", "--rollout-num-gpus 8 --hf"))
    assert not stops.required(RL).in_flight_updates
    assert stops.required(RL).framework == "slime"


@pytest.mark.parametrize(
    ("text", "name"), [(SLIME + " --advantage-estimator grpo", "slime"), (OPENRLHF, "OpenRLHF")]
)
def test_plan_names_the_framework_of_a_script(tmp_path: Path, text: str, name: str) -> None:
    """Both have --advantage-estimator and --actor-num-gpus-per-node."""
    path = tmp_path / "run.sh"
    path.write_text(text.rstrip())
    result = CliRunner().invoke(app, ["plan", "--from", str(path), "--cluster", "dgx-h100"])
    assert result.exit_code == 2
    assert f"a file of {name}, reinforcement learning" in " ".join(result.output.split())
    assert "foreshard rl prices it; its --from FILE reads" in " ".join(result.output.split())


@pytest.mark.parametrize(
    "words",
    [
        {"allocation_mode": "sglang:d4p1t2+fsdp:d8"},
        {"allocation_mode": "sglang.d4p1t2+d8p1t1"},
        {"rollout.backend": "sglang:d4t2", "actor.backend": "fsdp:d8p1t1"},
    ],
)
def test_allocations_of_areal(tmp_path: Path, words: dict[str, str]) -> None:
    """areal/api/alloc_mode.py: d, t, p, c are multiplied; 8 generate in tp 2, 8 train."""
    text = (
        "rollout:\n  max_head_offpolicyness: 2\n{rollout}gconfig:\n  n_samples: 4\n"
        "  max_new_tokens: 1024\ntrain_dataset:\n  batch_size: 256\nactor:\n"
        "  path: Qwen/Qwen3-8B\n{actor}{top}"
    )
    lines = {name.partition(".")[0]: f"  backend: '{word}'\n" for name, word in words.items()}
    top = f"allocation_mode: {words['allocation_mode']}\n" if "allocation_mode" in words else ""
    text = text.format(rollout=lines.get("rollout", ""), actor=lines.get("actor", ""), top=top)
    made, said = _script(tmp_path, "grpo.yaml", text)
    section = made.required(RL)
    assert (made.cluster.gpus, section.generation.gpus, section.generation.tp) == (16, 8, 2)
    assert (section.mode, section.staleness) == ("apart", 2)
    assert (made.pinned["tp"], made.pinned["sharding"]) == (1, "zero3")
    assert not any(line.startswith("not read") for line in said)


def test_a_trainer_of_areal(tmp_path: Path) -> None:
    text = (
        "rollout:\n  max_head_offpolicyness: 2\n  backend: 'vllm:d4t2'\ngconfig:\n"
        "  n_samples: 4\n  max_new_tokens: 1024\ntrain_dataset:\n  batch_size: 256\nactor:\n"
        "  path: Qwen/Qwen3-30B-A3B\n  backend: 'megatron:d2p2t4e4'\n"
    )
    made, _ = _script(tmp_path, "grpo.yaml", text)
    assert made.cluster.gpus == 8 + 16
    assert made.required(RL).generation.engine == "vllm"
    assert {**made.pinned, "tp": 4, "pp": 2, "ep": 4} == made.pinned
    assert "sharding" not in made.pinned


def test_what_a_switch_turns_off_is_not_read(tmp_path: Path) -> None:
    """NeMo-RL's DTensor trainer: its tp and no pipeline, whatever Megatron's section says."""
    on = "enabled: true\n    activation_checkpointing"
    off = NEMO.replace(on, on.replace("true", "false"))
    assert off != NEMO
    more = (
        "  dtensor_cfg:\n    enabled: true\n    tensor_parallel_size: 8\n"
        "    context_parallel_size: 1\n  generation:\n"
    )
    made, lines = _script(tmp_path, "grpo.yaml", off.replace("  generation:\n", more))
    assert made.pinned["tp"] == 8 and "pp" not in made.pinned
    assert made.pinned["sharding"] == "zero3" and made.software.name == "torch-fsdp"
    (others,) = (line for line in lines if line.startswith("not read: "))
    assert "policy.megatron_cfg.pipeline_model_parallel_size" in others


def test_a_word_where_a_number_belongs_is_wrong(tmp_path: Path) -> None:
    words = NEMO.replace("num_generations_per_prompt: 32", "num_generations_per_prompt: many")
    with pytest.raises(
        InputError, match="num_generations_per_prompt: must be a number, got 'many'"
    ):
        _script(tmp_path, "grpo.yaml", words)


def test_verl_scores_no_reference_unless_a_term_needs_it(tmp_path: Path) -> None:
    """verl/trainer/config: both KL terms are false, states stay on the device."""
    plain, _ = _script(tmp_path, "run.sh", VERL)
    section = plain.required(RL)
    assert not section.offload_states
    on = VERL.replace(
        "algorithm.adv_estimator=grpo",
        "algorithm.adv_estimator=grpo actor_rollout_ref.actor.use_kl_loss=True",
    )
    made, lines = _script(tmp_path, "on.sh", on)
    assert made.required(RL).reference_model
    assert not any("rl.reference_model = False" in line for line in lines)
    without = VERL.replace("actor_rollout_ref.actor.use_kl_loss=True", "")
    assert not _script(tmp_path, "off.sh", without)[0].required(RL).reference_model


TRL = """
from trl import GRPOConfig, GRPOTrainer

GENERATIONS = 16
training_args = GRPOConfig(
    output_dir="out",
    use_vllm=True,
    vllm_mode="colocate",
    vllm_tensor_parallel_size=2,
    num_generations=GENERATIONS,
    max_completion_length=2048,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=8,
    steps_per_generation=16,
    beta=0.0,
)
trainer = GRPOTrainer(model="Qwen/Qwen3-8B", reward_funcs=[], args=training_args)
"""


def test_a_script_of_trl(tmp_path: Path) -> None:
    """trl/trainer/grpo_config.py: batches are of each rank; 16 micro-steps a generation, 8 a step.

    4 x 16 x 8 ranks = 512 answers, 32 prompts of 16; 4 x 8 x 8 = 256 an update. Prompts are of 512
    tokens unless said, checkpointing is on, and beta = 0 needs no reference.
    """
    path = tmp_path / "grpo.py"
    path.write_text(TRL)
    made, lines = scenario_from_script(path, {"cluster": "dgx-h100", "gpus": 8})
    section = made.required(RL)
    (usual,) = (line for line in lines if line.startswith("usual with trl"))
    assert "max_prompt_length = 512" in usual and "num_generations" not in usual
    assert (section.prompts, section.samples, section.answers) == (32, 16, 512)
    assert (section.prompt_tokens, section.longest_answer) == (512, 2048)
    assert made.workload.recipe.global_batch == 256
    assert (section.mode, section.generation.tp) == ("colocated", 2)
    assert section.generation.memory_share == 0.3 and not section.reference_model
    assert made.pinned == {"micro_batch": 4, "recompute": "full"}
    over = ["cluster.name=dgx-h100", "cluster.gpus=8"]  # ranks count from it, as from the option
    assert scenario_from_script(path, {}, over)[0].workload.recipe.global_batch == 256
    server = tmp_path / "server.py"
    server.write_text(TRL.replace('"colocate"', '"server"'))
    apart, _ = scenario_from_script(server, {"cluster": "dgx-h100", "gpus": 16})
    # half of them train unless a launcher starts another number: 4 x 16 x 8 answers
    assert (apart.required(RL).answers, apart.required(RL).generation.gpus) == (512, 8)
    assert made.workload.architecture.name == "qwen3-8b"
    path.write_text(TRL.replace("beta=0.0", "beta=0.04"))
    made, lines = scenario_from_script(path, {"cluster": "dgx-h100", "gpus": 8})
    assert made.required(RL).reference_model
    assert not any(line.startswith("not read") and "beta" in line for line in lines)


def test_what_a_launcher_of_trl_is_told(tmp_path: Path) -> None:
    """8 ranks are 8 GPUs where the engine lies beside them: 4 x 4 x 8 = 128 answers, 16 x 8."""
    text = (
        "accelerate launch --config_file zero3.yaml --num_processes 8 trl/scripts/grpo.py"
        " --model_name_or_path Qwen/Qwen2.5-7B-Instruct --per_device_train_batch_size 4"
        " --gradient_accumulation_steps 4 --num_generations 8 --use_vllm --vllm_mode colocate\n"
    )
    path = tmp_path / "run.sh"
    path.write_text(text)
    made, lines = scenario_from_script(path, {"cluster": "dgx-h100"})
    assert (made.cluster.gpus, made.workload.recipe.global_batch) == (8, 128)
    assert made.required(RL).prompts == 16
    assert any(line.startswith("zero3.yaml, the launcher's, is not read") for line in lines)


def test_scripts_of_no_known_framework(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a script or configuration of"):
        _script(tmp_path, "run.sh", "torchrun pretrain_gpt.py --num-layers 2\n")
    with pytest.raises(InputError, match="is no model of the zoo"):
        _script(tmp_path, "run.sh", VERL.replace("Qwen3-8B", "Qwen9-8B"))
    path = tmp_path / "run.sh"
    path.write_text(VERL)
    with pytest.raises(InputError, match="say on what: --cluster"):
        scenario_from_script(path, {})


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("accelerate launch grpo.py --num_generations 8 --max_completion_length 512", "trl"),
        (
            "python3 train.py --rollout-max-response-len 8192 --rollout-num-gpus-per-engine 2",
            "slime",
        ),
    ],
)
def test_other_frameworks_are_recognised(tmp_path: Path, text: str, name: str) -> None:
    path = tmp_path / "run.sh"
    path.write_text(text + "\n")
    assert dialect_of(settings_of_file(path)) == name


VERL_ACTOR = "actor_rollout_ref.actor"
MEGATRON = f"{VERL_ACTOR}.strategy=megatron {VERL_ACTOR}.megatron"


@pytest.mark.parametrize(
    ("more", "pinned", "rank"),
    [
        # volcengine/verl: workers/fsdp_workers.py splits sequences and heads (Ulysses)
        (
            f"{VERL_ACTOR}.ulysses_sequence_parallel_size=2 {VERL_ACTOR}.fsdp_config.fsdp_size=-1",
            {"cp": 2, "cp_kind": "all_to_all"},
            0,
        ),
        (f"{VERL_ACTOR}.fsdp_config.fsdp_size=8", {"cp": 1, "shard_group": 8}, 0),
        ("actor_rollout_ref.model.lora_rank=32", {"cp": 1}, 32),
        # trainer/config/engine/megatron.yaml: null is no number of chunks
        (
            f"{MEGATRON}.override_transformer_config.recompute_granularity=full"
            f" {VERL_ACTOR}.megatron.virtual_pipeline_model_parallel_size=null"
            f" {VERL_ACTOR}.optim.override_optimizer_config.optimizer_cpu_offload=True",
            {"recompute": "full", "optimizer_offload": "cpu"},
            0,
        ),
    ],
)
def test_what_verls_trainer_is_told(
    tmp_path: Path, more: str, pinned: dict[str, Any], rank: int
) -> None:
    command = VERL.replace("trainer.nnodes=2 $@", f"trainer.nnodes=2 {more}")
    made, lines = _script(tmp_path, "run.sh", command)
    assert {name: made.pinned[name] for name in pinned} == pinned
    assert made.workload.recipe.lora_rank == rank
    unread = [line for line in lines if line.startswith("not read")]
    assert all(line.endswith("virtual_pipeline_model_parallel_size") for line in unread)


def test_verl_by_the_name_of_its_configuration(tmp_path: Path) -> None:
    """trainer/config/ppo_megatron_trainer.yaml: Megatron's engine, whose optimizer is shared."""
    named = "--config-name=ppo_megatron_trainer.yaml algorithm.adv_estimator"
    more = f"trainer.nnodes=2 {VERL_ACTOR}.megatron.tensor_model_parallel_size=2"
    command = VERL.replace("algorithm.adv_estimator", named).replace("trainer.nnodes=2 $@", more)
    made, lines = _script(tmp_path, "run.sh", command)
    assert made.software.name == "megatron-core"
    assert (made.pinned["sharding"], made.pinned["tp"]) == ("zero1", 2)
    assert not any("strategy = fsdp" in line for line in lines)


def test_ulysses_of_verl_is_priced(tmp_path: Path) -> None:
    more = f"trainer.nnodes=2 {VERL_ACTOR}.ulysses_sequence_parallel_size=2"
    made, _ = _script(tmp_path, "run.sh", VERL.replace("trainer.nnodes=2 $@", more))
    assert "all_to_all" in made.software.supports.cp_kinds


def test_what_slimes_trainer_is_told(tmp_path: Path) -> None:
    """THUDM/slime@624b824a, scripts/run-qwen3-30B-A3B.sh: Adam's states are on the host."""
    more = "--colocate --optimizer-cpu-offload --expert-tensor-parallel-size 1 --lr 1e-6"
    made, lines = _script(tmp_path, "run.sh", SLIME.rstrip() + f" {more}\n")
    assert (made.pinned["optimizer_offload"], made.pinned["etp"]) == ("cpu", 1)
    assert made.pinned["sharding"] == "zero1"  # arguments.py: use_distributed_optimizer = True
    assert "1 more bear on neither time nor memory" in lines
    with pytest.raises(InputError, match="debug_train_only: nothing is generated"):
        _script(tmp_path, "sft.sh", SLIME.rstrip() + " --debug-train-only\n")


@pytest.mark.parametrize(
    ("fp8", "precision"),
    [("{enabled: true, fp8_recipe: blockwise}", "fp8_blockwise"),
     ("{enabled: false, fp8_recipe: blockwise}", "bf16")],
)  # fmt: skip
def test_eight_bit_training_of_nemo_rl(tmp_path: Path, fp8: str, precision: str) -> None:
    """NVIDIA-NeMo/RL, examples/configs/grpo_math_1B.yaml: policy.megatron_cfg.fp8_cfg."""
    stages = "    pipeline_model_parallel_size: 2\n"
    text = NEMO.replace(stages, f"{stages}    fp8_cfg: {fp8}\n")
    made, _ = _script(tmp_path, "recipe.yaml", text)
    assert made.workload.recipe.precision == precision


def test_a_split_that_does_not_fit_says_so_before_all_other_notes() -> None:
    """PPO of 8B with states of both models on every device: two times 15 GiB of weights alone."""
    asked = scene(
        rl__algorithm="ppo", layout__pp=1, layout__recompute="none", rl__answer_tokens=500
    )
    answer = rl(asked, search=False)
    assert answer.shown is not None and answer.shown.step.verdict == "OOM"
    side = answer.shown.step.memory["training"]
    assert answer.caveats[0] == (
        f"Training does not fit; {side.total_bytes / 2**30:.1f} GiB of 78.6 GiB."
    )
    assert answer.document()["caveats"][0] == answer.caveats[0]
