"""The sections [rl] and [rl.generation]: a policy that learns from its own answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, MaxLen, MinLen

from simulator.errors import InputError, problem
from simulator.files import Number, Unit, Whole, record
from simulator.hardware.cluster import Cluster
from simulator.rollouts.profiles import load_engine
from simulator.section import Rule, Section, build_section
from simulator.workload import presets
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import LARGEST, Length, Recipe

Positive = Annotated[Whole, Gt(0), Le(LARGEST)]
Tokens = Annotated[Whole, Gt(0), Le(LARGEST), Unit("tokens")]
Share = Annotated[Number, Gt(0), Le(1), Unit("share of 1")]
Seconds = Annotated[Number, Ge(0), Le(1e7), Unit("seconds")]

Mode = Literal["colocated", "apart", "mixed"]
Serving = Literal["vllm", "sglang", "tensorrt-llm"]

_MOST_PROMPTS, _MOST_ANSWERS = 100_000, 1_000_000


@record
class Generation:
    """The engine that writes answers, [rl.generation]."""

    engine: Serving = "vllm"
    """What serves the policy; its limits are in hardware_profiles/engines."""
    asynchronous: bool | None = None
    """Whether requests come one by one to an engine of its own process (vLLM's AsyncLLM, a server),
    not as one list (LLM.generate); none given: with staleness."""
    gpus: Annotated[Whole, Ge(0), Le(LARGEST), Unit("accelerators")] | None = None
    """Accelerators that only generate; none given: half of [cluster], none where colocated."""
    tp: Positive = 1
    """Tensor-parallel ranks of a replica."""
    ep: Positive = 1
    """Expert-parallel ranks of a replica, within tp: experts whole on a rank each, not cut."""
    dp_attention: Positive = 1
    """Groups of a replica that keep caches of different sequences, within tp."""
    precision: Literal["bf16", "fp8"] = "bf16"
    """Type of the blocks' products, and of their weights in the engine."""
    cache_precision: Literal["bf16", "fp8"] = "bf16"
    """Type of keys and values in the cache."""
    max_sequences: Positive | None = None
    """Sequences that run at once in a replica; none given: the engine's own limit, which hangs on
    how it is called."""
    memory_share: Share | None = None
    """Share of the memory that engine weights, cache and workspace may fill; none given: as the
    framework sets it where colocated, and apart."""
    prefix_sharing: bool = True
    """Answers to the same prompt share the cache of the prompt and its prefill."""
    chunk_tokens: Tokens | None = None
    """Most tokens of prompts and answers in an iteration (chunked prefill); none given: the
    engine's."""
    cuda_graphs: bool = True
    """Whether iterations replay a captured graph; without, every kernel is launched by the host."""
    speculative_tokens: Annotated[Whole, Ge(0), Le(16)] = 0
    """Tokens that a draft layer proposes in an iteration; 0: none."""
    acceptance: Annotated[Number, Ge(0), Le(1), Unit("share of 1")] = 0.7
    """Chance that a proposed token is kept, of those before which all were."""

    @property
    def described(self) -> str:
        """How a replica is cut, and its limit of sequences where one is set."""
        words = [f"tp {self.tp}"]
        words += [f"ep {self.ep}"] if self.ep > 1 else []
        words += [f"dp attention {self.dp_attention}"] if self.dp_attention > 1 else []
        words += [f"{self.max_sequences:,} sequences"] if self.max_sequences else []
        return ", ".join(words)


@record
class RL:
    """A policy that learns from its own answers, which `foreshard rl` prices.

    [training] says how an update is made: sequence_length is the longest prompt with its answer,
    global_batch the answers of an update.
    """

    algorithm: Literal["grpo", "dapo", "rloo", "ppo", "distillation"] = "grpo"
    """What an update minimises. dapo: groups whose answers are all right or all wrong are dropped
    (`kept_groups`); ppo: a critic of the policy's size learns beside it; distillation: a teacher in
    place of the reference scores what the policy writes."""
    teacher: str | None = None
    """distillation: a model of the zoo, or the path of a Hugging Face config.json, with the
    policy's vocabulary; none given: a model of the policy's size. It has the trainer's layout."""
    prompts: Annotated[Positive, Le(_MOST_PROMPTS)]
    """Prompts of a step."""
    samples: Positive = 1
    """Answers to each prompt."""
    prompt_tokens: Tokens = 128
    """Mean tokens of a prompt."""
    answer_tokens: Annotated[Number, Gt(0), Le(LARGEST), Unit("tokens")] | None = None
    """Mean tokens of an answer; needed unless `answer_lengths` or `answer_file` say more."""
    longest_answer: Tokens | None = None
    """Tokens at which an answer is cut; none given: what the sequence leaves."""
    spread: Annotated[Number, Ge(0), Le(5)] = 0.8
    """Standard deviation of the logarithm of answers' lengths before they are cut."""
    between_prompts: Annotated[Number, Ge(0), Le(1), Unit("share of 1")] = 0.5
    """Share of that variance that lies between prompts, so that answers to one are alike."""
    answer_lengths: Annotated[tuple[Length, ...], MinLen(1), MaxLen(4096)] | None = None
    """Tokens of answers, a sample or quantiles, each equally likely."""
    answer_file: Annotated[str, MinLen(1)] | None = None
    """A text file with the tokens of an answer in each line, as logged by an earlier run."""
    turns: Annotated[Positive, Le(1000)] = 1
    """Times that the policy writes before an answer is done; tools run between."""
    tool_s: Seconds = 0.0
    """Seconds of a tool between two turns, during which a sequence does not run."""
    tool_tokens: Annotated[Whole, Ge(0), Le(LARGEST), Unit("tokens")] = 0
    """Tokens that a tool's result adds to the sequence."""
    reward: Literal["rule", "model", "sandbox"] = "rule"
    """Who judges answers: a rule at once, a model on the generator's accelerators, or programs run
    on hosts."""
    reward_s: Seconds = 0.0
    """Seconds to judge an answer by rule or in a sandbox."""
    reward_workers: Positive = 64
    """Answers judged at once."""
    reward_model: str | None = None
    """A model of the zoo, or the path of a Hugging Face config.json, that judges."""
    reference_model: bool = True
    """Whether a frozen reference scores the answers too (a KL term)."""
    old_probabilities: bool = True
    """Whether the trainer scores the answers with the policy that wrote them before it updates."""
    kept_groups: Share = 1.0
    """dapo: share of the groups that are kept; others are generated in vain."""
    epochs: Annotated[Positive, Le(100)] = 1
    """Times that a batch of answers is learned from."""
    mode: Mode = "colocated"
    """colocated: all accelerators generate, then all train. apart: [rl.generation] has its own.
    mixed: it has its own, and those that train generate too: on policy before they train, with
    staleness while they would wait for answers."""
    offload_states: bool = True
    """colocated, mixed: optimizer states, gradients and the trainer's weights wait on the host
    while the engine runs; false: they stay beside it."""
    staleness: Annotated[Whole, Le(1000), Unit("updates of the generator")] = 0
    """Updates by which weights may be older than those that learn from their answers. 0: on policy;
    1: one step off; more: a queue."""
    partial_rollouts: bool = False
    """Answers that are not done go on under new weights, so that a batch never waits for the last
    one."""
    in_flight_updates: bool = True
    """With staleness: the engine takes new weights between two iterations and goes on; false: it
    finishes what it runs first."""
    refit: Literal["collective", "storage"] = "collective"
    """How new weights reach the engine. collective: gathered and broadcast, or by memory handles on
    the same devices; storage: written once as [run.checkpoints] says and read by every server that
    generates."""
    scoring_gpus: Annotated[Whole, Ge(0), Le(LARGEST), Unit("accelerators")] = 0
    """apart: accelerators on which reference, critic and a model that judges have equal places of
    their own, where they score, and the critic learns, while the policy does."""
    scoring_micro_batch: Annotated[Positive, Unit("packed sequences")] | None = None
    """Packed sequences that a rank scores at once; none given: the trainer's micro-batch."""
    framework: str = "nemo-rl"
    """A profile of hardware_profiles/rl_frameworks: what moving weights takes, and more."""
    generation: Generation = Generation()
    """The engine."""

    @property
    def critic_beside(self) -> bool:
        """Whether a critic trains on the policy's devices, with states of its own."""
        return self.algorithm == "ppo" and not self.scoring_gpus

    @property
    def answers(self) -> int:
        """Answers that one step learns from."""
        return self.prompts * self.samples

    @property
    def written(self) -> int:
        """Answers that are generated for it."""
        return round(self.answers / (self.kept_groups if self.algorithm == "dapo" else 1.0))

    @property
    def forward_passes(self) -> int:
        """Scorings of a batch by models of the policy's size: old policy, reference, critic."""
        distils = self.algorithm == "distillation"
        other = self.teacher is None if distils else self.reference_model
        return self.old_probabilities + other + (self.algorithm == "ppo")

    @property
    def placed_models(self) -> int:
        """Models with accelerators of their own, where [rl] gives any."""
        models = self.forward_passes - self.old_probabilities + (self.reward == "model")
        return models if self.scoring_gpus else 0

    @property
    def policy_age(self) -> str:
        """Whether weights may be older than those that learn from their answers."""
        return "stale" if self.staleness else "on policy"

    @property
    def lends(self) -> bool:
        """Whether accelerators that train generate only while they would wait."""
        return self.mode == "mixed" and self.staleness > 0

    @property
    def asks_one_by_one(self) -> bool:
        """Whether the engine runs asynchronously."""
        said = self.generation.asynchronous
        return self.staleness > 0 if said is None else said


def read_rl(raw: Any, *, where: str) -> RL:
    """Read [rl] with [rl.generation].

    Raises
    ------
    InputError
        With every problem, each naming its field.
    """
    section = build_section(RL, raw, where=where, name="rl")
    problems = []

    def wrong(name: str, rule: str, value: Any) -> None:
        problems.append(problem(where, f"rl.{name}", rule, value))

    if section.staleness < 0:
        wrong("staleness", "must be at least 0", section.staleness)
    if section.staleness and section.mode == "colocated":
        wrong("staleness", "must be 0 with mode = 'colocated'", section.staleness)
    if section.lends and not section.partial_rollouts:
        rule = "must be true with mode = 'mixed' and staleness: answers go on elsewhere"
        wrong("partial_rollouts", rule, False)
    if section.lends and section.generation.gpus == 0:
        wrong("generation.gpus", "must be above 0 with staleness", 0)
    if section.teacher is not None and section.algorithm != "distillation":
        wrong("teacher", "goes with algorithm = 'distillation'", section.teacher)
    if section.partial_rollouts and not section.staleness:
        wrong("partial_rollouts", "must be false without staleness", True)
    said = [name for name in ("answer_tokens", "answer_lengths", "answer_file")
            if getattr(section, name) is not None]  # fmt: skip
    if len(said) != 1:
        rule = "one of answer_tokens, answer_lengths, answer_file must be given"
        problems.append(f"{where}: rl.answer_tokens: {rule}, got {', '.join(said) or 'none'}")
    if section.answers > _MOST_ANSWERS:
        wrong("samples", f"prompts x samples must be at most {_MOST_ANSWERS:,}", section.answers)
    if section.algorithm == "dapo" and section.written > _MOST_ANSWERS >= section.answers:
        rule = f"prompts x samples / kept_groups must be at most {_MOST_ANSWERS:,}"
        wrong("kept_groups", rule, section.kept_groups)
    if section.kept_groups < 1.0 and section.algorithm != "dapo":
        wrong("kept_groups", "must be 1 unless algorithm = 'dapo'", section.kept_groups)
    if section.reward_model is not None and section.reward != "model":
        wrong("reward_model", "goes with reward = 'model'", section.reward_model)
    elif section.reward_model is None and section.reward == "model":
        wrong("reward_model", "must be given with reward = 'model'", None)
    if section.refit == "storage" and section.mode != "apart":
        wrong("refit", f"must be collective with mode = '{section.mode}'", section.refit)
    if section.mode == "colocated" and section.generation.gpus is not None:
        rule = "must be left out with mode = 'colocated'"
        wrong("generation.gpus", rule, section.generation.gpus)
    if section.scoring_gpus and section.mode != "apart":
        wrong("scoring_gpus", "must be 0 unless mode = 'apart'", section.scoring_gpus)
    elif section.scoring_gpus and not section.placed_models:
        rule = "must be 0 without a reference, critic or judging model"
        wrong("scoring_gpus", rule, section.scoring_gpus)
    for name in ("ep", "dp_attention"):
        if section.generation.tp % getattr(section.generation, name):
            rule = f"must divide tp = {section.generation.tp}"
            wrong(f"generation.{name}", rule, getattr(section.generation, name))
    if problems:
        raise InputError(problems)
    return section


def check_with_others(
    *, rl: RL, model: Architecture, training: Recipe, cluster: Cluster, where: str
) -> list[str]:
    """What contradicts model, recipe or cluster."""
    problems, engine = [], rl.generation
    longest = training.sequence_length
    if rl.prompt_tokens >= longest:
        rule = f"must leave room for an answer in training.sequence_length = {longest:,}"
        problems.append(problem(where, "rl.prompt_tokens", rule, rl.prompt_tokens))
    room = longest - rl.prompt_tokens
    lengths = {"longest_answer": rl.longest_answer, "answer_tokens": rl.answer_tokens}
    for name, tokens in lengths.items():
        if tokens is not None and tokens > room > 0:
            rule = (
                f"must be at most {room:,}, which training.sequence_length less the prompt leaves"
            )
            problems.append(problem(where, f"rl.{name}", rule, tokens))
    if longest > model.max_positions:
        rule = f"must be at most the {model.max_positions:,} positions of {model.name}"
        problems.append(problem(where, "training.sequence_length", rule, longest))
    if rl.answers * rl.epochs % training.global_batch:
        rule = f"must divide prompts x samples x epochs = {rl.answers * rl.epochs:,}"
        problems.append(problem(where, "training.global_batch", rule, training.global_batch))
    problems += _wrong_split(rl, cluster.gpus, where)
    problems += _wrong_tp(rl, cluster.gpus, model, where)
    if rl.teacher is not None:
        problems += _wrong_teacher(rl.teacher, model, longest, where)
    if reason := unserved(model):
        problems.append(
            f"{where}: rl.generation.engine: {engine.engine} cannot be priced: {reason}"
        )
    vendors = load_engine(engine.engine).vendors
    if cluster.accelerator.vendor not in vendors:
        rule = f"must run on {cluster.accelerator.name}; {engine.engine} runs on"
        problems.append(
            f"{where}: rl.generation.engine: {rule} accelerators of {', '.join(vendors)}"
        )
    if engine.precision not in cluster.accelerator.matrix_flop_per_s:
        rule = f"must be a type of {cluster.accelerator.name}"
        problems.append(problem(where, "rl.generation.precision", rule, engine.precision))
    return problems


def _wrong_split(rl: RL, gpus: int, where: str) -> list[str]:
    """What a split of accelerators cannot be."""
    problems = []
    trainers, alone = split_gpus(rl, gpus)
    if trainers <= 0:
        whole = "cluster.gpus - rl.scoring_gpus" if rl.scoring_gpus else "cluster.gpus"
        left = gpus - rl.scoring_gpus
        rule = f"must leave accelerators to train on: be below {whole} = {left}"
        problems.append(problem(where, "rl.generation.gpus", rule, alone))
    if rl.mode == "apart" and alone == 0:
        problems.append(problem(where, "rl.generation.gpus", "must be above 0", rl.generation.gpus))
    return problems


def _wrong_tp(rl: RL, gpus: int, model: Architecture, where: str) -> list[str]:
    """What an engine's tp cannot be: one problem that names every number it must divide."""
    engine, rules = rl.generation, []
    trainers, alone = split_gpus(rl, gpus)
    generating = {alone: "generate"} if rl.mode != "colocated" else {}
    if rl.mode != "apart":
        generating[trainers] = "train and generate" if alone else "generate"
    for count, what in generating.items():
        if count > 0 and count % engine.tp:
            rules.append(f"the {count} accelerators that {what}")
            break
    heads = min((attention.heads for attention in model.attentions), default=1)
    if heads % (engine.tp // engine.dp_attention):
        groups = f"dp_attention = {engine.dp_attention} x " if engine.dp_attention > 1 else ""
        rules.append(f"{groups}the {heads} attention heads of {model.name}")
    rule = f"must divide {' and '.join(rules)}"
    return [problem(where, "rl.generation.tp", rule, engine.tp)] if rules else []


def _wrong_teacher(name: str, model: Architecture, longest: int, where: str) -> list[str]:
    """What a teacher of its own cannot be."""
    teacher, problems = presets.load(name, where=where, field="rl.teacher"), []
    if teacher.vocabulary != model.vocabulary:
        rule = f"must have the {model.vocabulary:,} outputs of {model.name}"
        problems.append(problem(where, "rl.teacher", rule, teacher.vocabulary))
    if longest > teacher.max_positions:
        rule = f"must have positions for training.sequence_length = {longest:,}"
        problems.append(problem(where, "rl.teacher", rule, teacher.max_positions))
    return problems


def split_gpus(rl: RL, gpus: int) -> tuple[int, int]:
    """Accelerators that train, and that only generate."""
    if rl.mode == "colocated":
        return gpus, 0
    gpus -= rl.scoring_gpus
    alone = gpus // 2 if rl.generation.gpus is None else rl.generation.gpus
    return gpus - alone, alone


def generating_gpus(rl: RL, gpus: int) -> int:
    """Accelerators that a batch is dealt to: of those lent while they would wait, none."""
    return split_gpus(rl, gpus)[1] if rl.mode == "apart" or rl.lends else gpus


def unserved(model: Architecture) -> str:
    """Why an engine's iteration cannot be priced for a model; blank where it can."""
    if model.traced is not None or model.patch_values:
        return f"{model.name} does not write tokens"
    if model.is_encoder_decoder or any(not a.causal for a in model.attentions):
        return f"{model.name} is no decoder"
    if model.mixers:
        return f"{model.name} mixes tokens without attention, whose decode kernels nobody timed"
    return ""


def _idle(rl: RL, cluster: Cluster, *, where: str) -> dict[str, str]:
    """Fields on which nothing hangs beside what else is said."""
    lists = rl.answer_lengths is not None or rl.answer_file is not None
    without = {
        "rl.turns is 1": (rl.turns == 1, ("tool_s", "tool_tokens")),
        "a model judges": (rl.reward == "model", ("reward_s", "reward_workers")),
        "rl.reward_s is 0": (rl.reward_s == 0.0, ("reward_workers",)),
        "the teacher scores in place of a reference": (
            rl.algorithm == "distillation",
            ("reference_model",),
        ),
        "rl.mode is apart": (rl.mode == "apart", ("offload_states",)),
        "rl.staleness is 0": (rl.staleness == 0, ("in_flight_updates",)),
        "the lengths of answers are given": (lists, ("spread",)),
        "every prompt has one answer": (rl.samples == 1, ("generation.prefix_sharing",)),
        "requests go one by one to several replicas": (
            rl.asks_one_by_one and generating_gpus(rl, cluster.gpus) >= 2 * rl.generation.tp,
            ("generation.prefix_sharing",),
        ),
        "rl.generation.speculative_tokens is 0": (
            rl.generation.speculative_tokens == 0,
            ("generation.acceptance",),
        ),
    }
    return {name: why for why, (idle, names) in without.items() if idle for name in names}


RL_SECTION = Section(
    name="rl",
    schemas=(RL,),
    read=Rule(read_rl),
    checks=(Rule(check_with_others, needs=("rl", "model", "training", "cluster")),),
    idle=Rule(_idle, needs=("rl", "cluster")),
    priced_by="foreshard rl",
    refused="a step of [rl] generates, scores, trains and moves weights: use `foreshard rl`",
)
