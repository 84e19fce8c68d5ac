"""How a launch file trains: adapters, frozen parts, low-bit bases, and ways that are no such step.

A pre-training price is no answer to reinforcement learning or to training on pairs: what names such
a way is a problem, never a remark (:data:`WAYS`). Defaults of adapters as in huggingface/trl 0.24.0
(trainer/model_config.py), huggingface/peft 0.21.2 and hiyouga/LLaMA-Factory@ff6d4d12 (hparams).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.util import find_spec

from simulator.interop.dialects.settings import Place, Setting, Settings

REINFORCEMENT, PAIRS, SCORES = "reinforcement", "pairs", "scores"
WAYS = {
    REINFORCEMENT: "reinforcement learning: a step is generation, log-probabilities and an update,"
    " whose price is no pre-training step's; degrees of the rollout engine shard nothing of the"
    " training",
    PAIRS: "training on pairs of answers: twice the sequences, most often beside a frozen reference"
    " model, is not read from this file",
    "preference": "training on single answers that are liked or not: a second batch and a frozen"
    " reference model beside it are not modelled",
    SCORES: "a reward model: one score in place of a vocabulary, over pairs, is not read from this"
    " file",
    "steps": "a reward model of steps: scores within an answer are not modelled",
    "nothing": "a program that trains nothing: it evaluates, generates, exports, prepares data or"
    " says where a job runs",
    "distillation": "distillation: a teacher that runs beside the model is not read from a launch"
    " file",
}
"""A way of training that is no step of pre-training or fine-tuning -> what it is."""

_PROGRAMS = {
    REINFORCEMENT: "ppo grpo dapo gspo rloo reinforce reinforce_plus_plus online_dpo nash_md xpo"
    " rlhf rlvr rl rollout",
    PAIRS: "dpo ipo orpo cpo simpo",
    "preference": "kto bco",
    SCORES: "reward rm reward_modeling reward_model",
    "steps": "prm",
    "nothing": "inference infer generate generation text_generation serve server evaluate"
    " evaluation eval evalharness convert converter convertor export quantize preprocess"
    " preprocess_data merge",
    "distillation": "gkd distill distillation distil knowledge_distillation minillm",
}
_WORDS = {
    way: re.compile(rf"(?:^|[\W_])(?:{words.replace(' ', '|')})(?:$|[\W_])")
    for way, words in _PROGRAMS.items()
}


_TRAINS = re.compile(r"train|tun(?:e|ing)|sft")


def way_of(program: str) -> str:
    """The way of training that the name of a program or recipe says; blank for a plain step.

    >>> way_of("examples/scripts/dpo.py"), way_of("verl.trainer.main_ppo"), way_of("trl/sft.py")
    ('pairs', 'reinforcement', '')
    >>> way_of("full_dpo_distributed"), way_of("pretrain_gpt.py"), way_of("train_and_eval.py")
    ('pairs', '', '')
    >>> way_of("tools/run_text_generation_server.py"), way_of("evaluate_gpt.py")
    ('nothing', 'nothing')
    """
    name = re.sub(r"\.(?:py|sh|ya?ml)$", "", program.lower().rstrip("/")).rpartition("/")[2]
    ways = (way for way, words in _WORDS.items() if words.search(name))
    return next((way for way in ways if way != "nothing" or not _TRAINS.search(name)), "")


_ELSEWHERE = {
    REINFORCEMENT: (
        "simulator.questions.rl",
        "foreshard rl prices it; its --from FILE reads NeMo-RL, verl, OpenRLHF, TRL, slime, AReaL",
    )
}
"""A way that is a question of its own, where this version has it -> its folder, how it is asked."""


def refusal(way: str) -> str:
    """What is said of a file that trains so, behind its place; and who answers it, if any."""
    folder, how = _ELSEWHERE.get(way, ("", ""))
    there = bool(folder) and find_spec(folder) is not None
    return f"{WAYS[way]}: {how if there else 'nothing is answered'}"


def refuse_way(settings: Settings, way: str, setting: Setting) -> None:
    """Refuse what names a way of training that is not modelled."""
    said = "" if setting.value is True else f" {str(setting.value)[:60]!r}"
    settings.problems.append(f"{setting.place}:{said} asks for {refusal(way)}")


_ALONE = re.compile(r"(?:^|[\W_])(?:orpo|cpo|simpo)(?:$|[\W_])")


def needs_reference(loss: str) -> bool:
    """Whether a loss over pairs, by its name or its program's, compares with a frozen reference.

    >>> needs_reference("train_dpo.py"), needs_reference("train_orpo.py")
    (True, False)
    """
    return not _ALONE.search(loss)


def say_program(settings: Settings, program: str) -> None:
    """Read training on pairs from a program's name; refuse what else is no plain step."""
    way = way_of(program)
    at = Setting(program, None, Place(settings.path, program))
    if way == PAIRS:
        say_pairs(settings, at, reference=needs_reference(program))
    elif way == SCORES:
        say_scores(settings, at)
    elif way:
        settings.problems.append(f"{at.place} asks for {refusal(way)}")


def say_pairs(settings: Settings, setting: Setting, *, reference: bool) -> None:
    """State that a sample is two answers, and whether a frozen reference scores both as well.

    Both answers are one batch (huggingface/trl 0.24.0, trainer/dpo_trainer.py:
    concatenated_forward), whose sequences are twice the samples.
    """
    settings.say("run.sequences_each", 2, setting)
    if reference:
        settings.say("distillation.compares", "log_probabilities", setting)
    else:
        settings.say("run.no_reference", True, setting)


def say_scores(settings: Settings, setting: Setting) -> None:
    """State that pairs of answers get a score each, in place of an output over the vocabulary.

    Both are one batch or two passes (huggingface/trl 0.24.0, trainer/reward_trainer.py), the head
    one number (AutoModelForSequenceClassification with one label).
    """
    settings.say("run.sequences_each", 2, setting)
    settings.say("model.tasks", {"outputs": [1]}, setting)


# --- adapters ------------------------------------------------------------------------------------

_MATRICES = {
    "q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o",
    "gate_proj": "gate", "up_proj": "up", "down_proj": "down",
    "q_a_proj": "q_down", "q_b_proj": "q_up", "kv_a_proj_with_mqa": "kv_down", "kv_b_proj": "kv_up",
}  # fmt: skip
_JOINED = {
    **dict.fromkeys(("qkv_proj", "c_attn", "query_key_value", "wqkv", "w_pack"), ("q", "k", "v")),
    **dict.fromkeys(("out_proj", "dense"), ("o",)),
    **dict.fromkeys(("gate_up_proj",), ("gate", "up")),
    **dict.fromkeys(("dense_h_to_4h", "fc1", "fc_in"), ("up",)),
    **dict.fromkeys(("dense_4h_to_h", "fc2", "fc_out"), ("down",)),
}
"""Modules of several matrices, or named otherwise."""
_ALL = ("all", "all-linear", "all_linear", "none", "")


def say_targets(settings: Settings, *keys: str) -> None:
    """State which matrices get adapters, by the names of their modules."""
    setting = settings.take(*keys)
    words = module_names(setting)
    if setting is None or words is None:
        return
    matrices: list[str] = []
    for word in words:
        known = (_MATRICES[word],) if word in _MATRICES else _JOINED.get(word.lower(), ())
        if not known:
            rule = f"must be among {', '.join(_MATRICES)} or all-linear"
            settings.problems.append(f"{setting.place}: {rule}, got {word[:60]!r}")
            return
        matrices += known
    settings.say("training.lora_targets", list(dict.fromkeys(matrices)), setting)


def module_names(setting: Setting | None) -> list[str] | None:
    """Names of a list in whatever brackets; None where all matrices are meant, or nothing said."""
    if setting is None or setting.value is None:
        return None
    items: Iterable[object] = (
        setting.value
        if isinstance(setting.value, list)
        else re.split(r"[\s,]+", str(setting.value))
    )
    words = [str(item).strip("[]'\" ") for item in items]
    words = [word for word in words if word]
    return None if not words or words[0].lower() in _ALL else words


def say_rank(
    settings: Settings, *keys: str, usual: int = 0, setting: Setting | None = None
) -> None:
    """State the rank of adapters; `usual` where `setting` asks for some and none gives a rank."""
    if settings.whole("training.lora_rank", *keys, least=0) is None and usual and setting:
        settings.say("training.lora_rank", usual, setting)
        settings.notes.append(f"{setting.place}: rank of adapters not said, {usual} is its default")


def refuse_adapters(settings: Settings, reasons: dict[str, str]) -> None:
    """Refuse what changes adapters or the optimizer in a way that is not modelled, where it is on.

    `reasons`: key -> what it does.
    """
    for key, reason in reasons.items():
        setting = settings.found.get(key)
        if setting is None:
            continue
        settings.take(key)
        if str(setting.value).strip().lower() not in ("false", "none", "null", "0", "", "[]"):
            settings.problems.append(f"{setting.place}: {reason}, which is not modelled")


def say_low_bit(settings: Settings, in_4_bit: Setting | None, in_8_bit: Setting | None) -> None:
    """State that the frozen matrices are kept in 4 bit; 8 bit is not modelled."""
    if in_8_bit is not None:
        rule = "keeps the frozen matrices in 8 bit, which is not modelled"
        settings.problems.append(f"{in_8_bit.place}: {rule}")
    elif in_4_bit is not None:
        settings.say("training.quantised_base", True, in_4_bit)
