"""Recipes of NeMo 2 in Python, and options of its command, in the words of Megatron-Core.

What a recipe of NVIDIA/NeMo@8cfedd72 (2025-09-20) sets stands in ``nemo_recipes.csv``, sizes of its
model classes in ``nemo_models.csv`` (``workshop/fits/nemo_recipes.py`` makes both); a script is
followed by ``python_values.py`` and never run. ``recipe.trainer.strategy.tensor_model_parallel_size
= 8`` sets a field of what its calls have made, ``nemo llm pretrain --factory llama3_8b
trainer.num_nodes=2`` the same. The plugin's type of gradients outranks that of ``ddp``
(nemo/lightning/pytorch/plugins/mixed_precision.py), overlap is what MegatronCommOverlapCallback
sets (callbacks/megatron_comm_overlap.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from simulator.errors import InputError, nearest
from simulator.files import read_columns
from simulator.interop.dialects.megatron import read_megatron
from simulator.interop.dialects.model_names import zoo_model
from simulator.interop.dialects.python_values import (
    UNKNOWN,
    Function,
    Made,
    Name,
    Script,
    copied,
    instance,
    made,
)
from simulator.interop.dialects.settings import Place, Reading, Setting, Settings, with_idle
from simulator.interop.dialects.training_ways import way_of

KIND = "NeMo 2 recipe"
_IMPORTED = re.compile(
    r"^[ \t]*(?:from|import)[ \t]+(?:nemo\.(?:collections|lightning)|nemo_run)\b", re.M
)
_FOLDER = Path(__file__).resolve().parent
SOURCE = "NVIDIA/NeMo@8cfedd72"
_RECIPE = re.compile(r"(?:^|\.)(\w+)\.(pretrain|finetune)_recipe$")
_PART = re.compile(r"(?:^|\.)(\w+)\.(model|trainer|pretrain_performance_optimizations)$")
_FACTORY = re.compile(r"(\w+)(?:\((.*)\))?", re.S)
_STARTS = ("pretrain", "train", "finetune")
_RUNS = ("run", "add", "main")
_LEAVE = ("Config", "Partial", "deepcopy", "copy", "print", "info", "pprint", "append")
"""Calls that change nothing of a recipe."""
_PRECISIONS = {
    "mixed": {},
    "with_fp8_mixed": {"fp8": "hybrid", "fp8_recipe": "delayed", "fp8_param_gather": True},
    "with_mxfp8_mixed": {"fp8": "hybrid", "fp8_recipe": "mxfp8", "fp8_param_gather": True},
    "with_fp8_current_scaling_mixed": {
        "fp8": "hybrid", "fp8_recipe": "tensorwise", "fp8_param_gather": True,
    },
    "with_fp8_subchannel_scaling_mixed": {
        "fp8": "hybrid", "fp8_recipe": "blockwise", "fp8_param_gather": False,
    },
}  # fmt: skip
"""Factories of recipes/precision/mixed_precision.py, behind bf16_ or fp16_."""
_DEGREES = {
    "tensor_parallelism": "tensor_model_parallel_size",
    "pipeline_parallelism": "pipeline_model_parallel_size",
    "virtual_pipeline_parallelism": "virtual_pipeline_model_parallel_size",
    "context_parallelism": "context_parallel_size",
    "sequence_parallelism": "sequence_parallel",
    "expert_parallelism": "expert_model_parallel_size",
}
"""Arguments of a recipe's ``trainer``, in the words of its strategy."""
_OF_TRAINER = {
    "num_nodes": "num_nodes", "num_gpus_per_node": "devices", "max_steps": "max_steps",
    "callbacks": "callbacks", "accumulate_grad_batches": "accumulate_grad_batches",
}  # fmt: skip
"""Arguments of a recipe and its trainer, in the words of Lightning's."""
_NOTHING_OF = (
    *("dir", "name", "fn", "resume_path", "vocab_file", "tokenizer_model", "tokenizer", "log"),
    *("limit_test_batches", "limit_val_batches", "log_every_n_steps", "val_check_interval"),
    *("gradient_clip_val", "warmup_steps", "constant_steps", "min_lr", "max_lr", "save_top_k"),
    *("pipeline_parallelism_type", "seed", "workers", "checkpoint_path"),
)
"""Arguments of recipes that bear on neither time nor memory."""
_PLUGIN = "MegatronMixedPrecision"
_OF_PLUGIN = {"fp8": None, "fp8_param_gather": False, "grad_reduce_in_fp32": True}
"""What the plugin sets of a model and of ddp where nobody tells it otherwise."""
_CALLBACKS: dict[str, dict[str, Any]] = {
    "DeepEPCallback": {"moe_token_dispatcher_type": "flex", "moe_enable_deepep": True},
    "MegatronTokenDropCallback": {
        "moe_token_dispatcher_type": "alltoall", "moe_expert_capacity_factor": 1.0,
        "moe_pad_expert_input_to_capacity": True,
    },
    "MegatronCommOverlapCallback": {"overlap_grad_reduce": True, "overlap_param_gather": True},
}  # fmt: skip
"""Callbacks that bear on time or memory, and what each sets where its own arguments do not."""
_MOST_NOTES = 8
_MOST_PARTS = 200
_ADAPTERS = {"LoRA": "lora", "DoRA": "dora", "CanonicalLoRA": "canonical_lora"}
_BEYOND = re.compile(
    r"Gemma[23]|GPTOSS|Llama4|NemotronSuper|NemotronUltra|Hyena|Bidirectional|Embedding|Reranker"
)
"""Models of which Megatron-Core's words leave something out: they are read by the zoo or not."""
_LORA_RANK = 32  # nemo/collections/llm/peft/lora.py: dim
_SHAPE = {
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups",
    "kv_channels", "gated_linear_unit", "normalization", "position_embedding_type",
    "add_bias_linear", "add_qkv_bias", "share_embeddings_and_output_weights", "qk_layernorm",
    "num_moe_experts", "moe_router_topk", "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size", "moe_layer_freq", "q_lora_rank", "kv_lora_rank",
    "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim", "multi_latent_attention",
    "window_size", "hybrid_override_pattern", "mamba_state_dim", "mamba_num_groups",
    "mamba_head_dim", "mamba_num_heads", "vocab_size", "make_vocab_size_divisible_by",
    "activation_func", "squared_relu",
}  # fmt: skip
"""Fields of a model's configuration that make it another model than that of its recipe."""
_ELSEWHERE = re.compile(
    r"(?:log|resume)(?:\.|$)|^name$|^tokenizer|^data\.(?!seq_length|global_batch_size"
    r"|micro_batch_size|packed_sequence_specs)|^optim\.lr_scheduler"
    r"|^trainer\.(?:callbacks|logger|strategy\.ckpt_)|\.(?:fn|forward_step_fn)$"
)
"""Places that bear on neither time nor memory, but for those that are taken out before."""


@cache
def _columns(name: str) -> dict[str, dict[str, str]]:
    columns = read_columns(_FOLDER / name)
    rows = zip(*columns.values(), strict=True)
    return {row[0]: {k: v for k, v in zip(columns, row, strict=True) if v} for row in rows}


def recipes() -> dict[str, dict[str, str]]:
    """What each case of each recipe sets: ``llama3_8b pretrain``, ``llama3_8b finetune lora``."""
    return _columns("nemo_recipes.csv")


def models() -> dict[str, dict[str, str]]:
    """Sizes of each class of a model's configuration: ``Llama3Config8B``."""
    return _columns("nemo_models.csv")


def _names() -> set[str]:
    return {case.partition(" ")[0] for case in recipes()}


def is_recipe(text: str) -> bool:
    """Whether a script sets up a run of NeMo 2.

    >>> is_recipe("from nemo.collections import llm"), is_recipe("import nemo_text_processing")
    (True, False)
    """
    return _IMPORTED.search(text) is not None


def read_recipe(text: str, path: str) -> Reading:
    """What a script sets up, the first where there are several."""
    following = _Following(path)
    script = Script(text, path, following.known)
    run = _runs_of(script)
    if run is None and not following.problems:
        rule = "sets up no run of NeMo that can be followed: no recipe, and no call of llm.train"
        following.problems.append(f"{path}: {rule}")
    for name, line in _elsewhere(script):
        rule = "may change the recipe that it is given, and stands in another file: not followed"
        following.problems.append(f"{Place(path, name, line)}: {rule}")
    if run is not None and _is_of_another_file(run) and not following.problems:
        rule = "makes the run, and stands in another file: not followed"
        following.problems.append(f"{path}: {run.kind} {rule}")
    if run is None or following.problems:
        problems = tuple(dict.fromkeys(following.problems))
        return Reading(path=path, kind=KIND, problems=problems)
    reading = _reading(_settings(run, path), path)
    return replace(reading, notes=(*reading.notes, *_notes(script, run, path)))


def _notes(script: Script, run: Made, path: str) -> Iterator[str]:
    """What is not known of a script, and what it sets that cannot be worked out."""
    lines = [f"{path}: line {line}: {what}" for line, what in script.notes]
    yield from lines[:_MOST_NOTES]
    if len(lines) > _MOST_NOTES:
        yield f"{path}: {len(lines) - _MOST_NOTES} more lines of these kinds"
    trainer = run.fields["trainer"]
    for owner, name in ((run, "optim"), (trainer, "callbacks"), (trainer, "plugins")):
        if not _is_known(owner.fields.get(name)):
            place = _place(owner, name, path, name)
            yield f"{place}: cannot be worked out: what it sets is not counted"


def read_command(settings: Iterable[Setting], path: str, task: str) -> Reading:
    """Options of ``nemo llm pretrain --factory "llama3_8b(num_nodes=2)" trainer.devices=4``."""
    following, options = _Following(path), {item.key.lstrip("+~"): item for item in settings}
    factory = options.pop("factory", None) or options.pop("f", None)
    base = Made("recipe")
    if factory is not None:
        word = _FACTORY.fullmatch(str(factory.value).strip("'\" "))
        name, inside = (word[1], word[2] or "") if word else (str(factory.value), "")
        call = Script(f"options = dict({inside})", path, following.known).names["options"]
        keywords = call if isinstance(call, dict) else {}
        made_there = following.recipe(name, task, keywords, factory.place.line)
        base = made_there if isinstance(made_there, Made) else base
    reading = _reading([*_settings(base, path), *_of_options(options.values())], path)
    return replace(reading, problems=(*reading.problems, *following.problems))


def _of_options(options: Iterable[Setting]) -> Iterator[Setting]:
    for item in options:
        if not _ELSEWHERE.search(item.key) and item.key not in ("yes", "y", "e", "executor"):
            yield replace(item, key=item.key.rpartition(".")[2])


class _Following:
    """What calls of NeMo give to a script that is followed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.problems: list[str] = []

    def known(self, dotted: str, arguments: list[Any], keywords: dict[str, Any], line: int) -> Any:
        """Value of a call of NeMo or NeMo-Run; None: of another."""
        first, last = arguments[0] if arguments else None, dotted.rpartition(".")[2]
        if last in ("Config", "Partial") and "run" in dotted:
            return self._config(first, arguments[1:], keywords, line)
        if last in ("deepcopy", "copy") and isinstance(first, Made):
            return copied(first, {})
        if word := re.search(r"(?:^|[._])(bf16|fp16)_(\w*mixed)$", dotted):
            return self._precision(word, line)
        if dotted.endswith("distributed_fused_adam_with_cosine_annealing"):
            config = {"optimizer": "adam", "use_distributed_optimizer": True}
            return made("optim", [], {"config": made("OptimizerConfig", [], config, line)}, line)
        if word := _RECIPE.search(dotted):
            return self.recipe(word[1], word[2], keywords, line)
        if (word := _PART.search(dotted)) and word[1] in _names():
            return self._part(word[1], word[2], first, keywords, line)
        if word:
            self._unknown(word[1], line)
        return None

    def _config(self, of: Any, arguments: list[Any], keywords: dict[str, Any], line: int) -> Made:
        if isinstance(of, Made) and of.kind == "class":
            return instance(of, arguments, keywords, line)
        kind = of.last if isinstance(of, Name) else of.node.name if isinstance(of, Function) else ""
        return made(kind, arguments, keywords, line)

    def _precision(self, word: re.Match[str], line: int) -> Made | None:
        name = word[2]
        if "nanov2_" in word.string:  # whose current scaling is by blocks there
            name = name.replace("current_scaling", "subchannel_scaling")
        more = _PRECISIONS.get(name)
        if more is None:
            place = Place(self.path, word.string, line)
            self.problems.append(f"{place}: a precision not read here")
            return None
        fields = {"precision": "bf16-mixed", "grad_reduce_in_fp32": True}
        if word[1] == "fp16":
            fields = {"precision": "16-mixed", "grad_reduce_in_fp32": False}
        return made(_PLUGIN, [], {**fields, **more}, line)

    def _unknown(self, name: str, line: int) -> None:
        known = nearest(name, _names()) or f"; {len(_names())} are known"
        place = Place(self.path, name, line)
        self.problems.append(f"{place}: no recipe of NeMo ({SOURCE}){known}")

    def recipe(self, name: str, task: str, keywords: dict[str, Any], line: int) -> Made | None:
        """What a recipe sets, with the arguments that it is given."""
        if name not in _names():
            self._unknown(name, line)
            return None
        case, kept = f"{name} {task}", dict(keywords)
        fast = kept.pop("performance_mode", False) is True
        if task == "finetune":
            scheme = _shown(kept.pop("peft_scheme", "lora"))
            word = str(scheme or "none").lower()
            if word not in ("lora", "dora", "none"):
                rule = f"peft_scheme must be lora, dora or none, got {scheme}"
                self.problems.append(f"{Place(self.path, name, line)}: {rule}")
                return None
            packed = kept.pop("packed_sequence", None)
            case += f" {'none' if word == 'none' else 'lora'}"
            case += " packed" if (fast if packed is None else packed is True) else ""
        case += " performance" if fast else ""
        row = recipes().get(case)
        if row is None:
            tasks = sorted(key.partition(" ")[2] for key in recipes() if key.split(" ")[0] == name)
            rule = f"has no case {case.partition(' ')[2]!r}; it has {', '.join(tasks) or 'none'}"
            self.problems.append(f"{Place(self.path, name, line)}: the recipe {rule}")
            return None
        return self._given(self._of_row(row, case), kept, line)

    def _of_row(self, row: dict[str, str], case: str) -> Made:
        """A case of a recipe as what its calls make."""
        top = Made("recipe", source=f"NeMo's recipe {case} ({SOURCE})")
        for key, text in row.items():
            if key == "case":
                continue
            *parents, last = key.split(".")
            owner = top
            for name in parents:
                owner = owner.fields.setdefault(name, Made("", source=top.source))
            if last == "kind":
                owner.kind = text
            elif last == "callbacks":
                owner.fields[last] = [Made(word, source=top.source) for word in text.split("+")]
            else:
                owner.fields[last] = _plain(text)
        if isinstance(trainer := top.fields.get("trainer"), Made):
            trainer.fields.setdefault("callbacks", list[Any]())  # others bear on nothing
        return top

    def _given(self, recipe: Made, keywords: dict[str, Any], line: int) -> Made:
        """A recipe with the arguments that it was called with."""
        trainer, data = recipe.fields.get("trainer"), recipe.fields.get("data")
        if not isinstance(trainer, Made):
            return recipe
        for name, value in keywords.items():
            if name in ("seq_length", "global_batch_size", "micro_batch_size"):
                if isinstance(data, Made) and value is not None:
                    data.set(name, value, line)
            elif not self._of_trainer(trainer, name, value, line) and name not in _NOTHING_OF:
                place = Place(self.path, name, line)
                rule = "is an argument of a recipe that is not read: set its field of the recipe"
                self.problems.append(f"{place}: {rule}")
        return recipe

    def _of_trainer(self, trainer: Made, name: str, value: Any, line: int) -> bool:
        """Take an argument of a trainer; whether it is one."""
        strategy = trainer.fields.get("strategy")
        if name in _DEGREES:
            if isinstance(strategy, Made):
                strategy.set(_DEGREES[name], value, line)
        elif name in _OF_TRAINER:
            trainer.set(_OF_TRAINER[name], value, line)
        elif name == "precision" and value in ("bf16-mixed", "16-mixed"):
            fields = {"precision": value, "grad_reduce_in_fp32": value == "bf16-mixed"}
            trainer.set("plugins", made(_PLUGIN, [], fields, line), line)
        else:
            return False
        return True

    def _part(
        self, name: str, part: str, first: Any, keywords: dict[str, Any], line: int
    ) -> Made | None:
        """A recipe's ``model()`` or ``trainer()``, or what its performance mode changes."""
        plain = recipes().get(f"{name} pretrain") or recipes().get(f"{name} finetune lora")
        if plain is None:
            return None
        recipe = self._of_row(plain, f"{name} pretrain")
        if part == "pretrain_performance_optimizations":
            fast = recipes().get(f"{name} pretrain performance", {})
            if not isinstance(first, Made):
                return None
            changed = {k: v for k, v in fast.items() if plain.get(k) != v and k != "case"}
            _merged(first, self._of_row({"case": "", **changed}, f"{name} pretrain performance"))
            return first
        fields = recipe.fields.get(part)
        if part == "trainer" and isinstance(fields, Made):
            for word, value in keywords.items():
                self._of_trainer(fields, word, value, line)
        return fields if isinstance(fields, Made) else None


def _merged(into: Made, more: Made) -> None:
    for name, value in more.fields.items():
        there = into.fields.get(name)
        if isinstance(there, Made) and isinstance(value, Made):
            _merged(there, value)
        elif isinstance(there, list) and isinstance(value, list):
            kinds = {item.kind for item in there if isinstance(item, Made)}
            there += [item for item in value if isinstance(item, Made) and item.kind not in kinds]
        else:
            into.fields[name] = value
            into.lines.pop(name, None)


def _plain(text: str) -> Any:
    if text in ("True", "False", "None"):
        return {"True": True, "False": False, "None": None}[text]
    return int(text) if re.fullmatch(r"-?\d{1,15}", text) else text


def is_run(value: Any) -> bool:
    """Whether a call made a run: a trainer, and a model or data."""
    there = isinstance(value, Made) and isinstance(value.fields.get("trainer"), Made)
    return there and not {"model", "data"}.isdisjoint(value.fields) and not way_of(value.kind)


def _is_of_another_file(run: Made) -> bool:
    """Whether a function made it that is not followed, and its trainer is what was set of it."""
    trainer = run.fields["trainer"]
    return run.kind[:1].islower() and not (trainer.kind or trainer.source)


def _elsewhere(script: Script) -> Iterator[tuple[str, int]]:
    """Functions of other files that are given a recipe, and may change it."""
    for dotted, arguments, keywords, line in script.calls:
        last = dotted.rpartition(".")[2]
        ours = last in (*_RUNS, *_STARTS, *_LEAVE) or _PART.search(dotted) or "dump" in last
        if not ours and any(map(is_run, (*arguments, *keywords.values()))):
            yield dotted, line


def _runs_of(script: Script) -> Made | None:
    """What the script runs: what it hands to NeMo-Run, what it calls itself, or what it makes."""
    handed, lines = list[Made](), list[int]()
    for dotted, arguments, keywords, line in script.calls:
        last = dotted.rpartition(".")[2]
        if last in _RUNS:
            factory = keywords.get("default_factory")
            values = [*arguments, *keywords.values()]
            if isinstance(factory, Function):
                values.append(script.guarded(factory))
            handed += [value for value in values if is_run(value)]
            lines += [line] * (len(handed) - len(lines))
        elif last in _STARTS and "trainer" in keywords:
            handed.append(made(last, arguments, keywords, line))
            lines.append(line)
    if handed:
        if len(handed) > 1:
            script.notes[lines[0], f"the first of {len(handed)} runs is read"] = None
        return handed[0]
    there = [value for value in script.names.values() if is_run(value)]
    if there:
        return there[-1]
    functions = [value for value in script.names.values() if isinstance(value, Function)]
    made_by = (script.guarded(function) for function in functions)
    return next((value for value in made_by if is_run(value)), None)


# --- in Megatron-Core's words ---------------------------------------------------------------------


def _settings(recipe: Made, path: str) -> list[Setting]:
    """Fields of a recipe under Megatron-Core's names, those that outrank others behind them."""
    parts = [recipe.fields.get(name) for name in ("data", "optim", "trainer", "log")]
    data, optim, trainer, log = (part if isinstance(part, Made) else Made("") for part in parts)
    settings = list(_model(recipe.fields.get("model"), path))
    settings += _leaves(data, path, "data")
    settings += _leaves(optim, path, "optim")
    strategy = trainer.fields.get("strategy")
    rest = Made("", dict(trainer.fields), dict(trainer.lines), trainer.source)
    callbacks, plugins = rest.fields.pop("callbacks", None), rest.fields.pop("plugins", None)
    rest.fields.pop("strategy", None)
    settings += _leaves(rest, path, "trainer")
    if isinstance(strategy, Made):
        settings += _strategy(strategy, path)
    elif strategy is not None:
        place = _place(trainer, "strategy", path, "trainer.strategy")
        settings.append(Setting("strategy", str(_shown(strategy)), place))
    for item in callbacks if isinstance(callbacks, list) else []:
        if isinstance(item, Made):
            settings += _callback(item, path)
    for item in plugins if isinstance(plugins, list) else [plugins]:
        if isinstance(item, Made):
            usual = Made(item.kind, source=item.source)
            usual.fields = {k: v for k, v in _OF_PLUGIN.items() if k not in item.fields}
            before = next(
                (x for x in settings if x.key == "fp8" and x.value not in (None, False)), None
            )
            if before is not None and "fp8" in usual.fields:
                settings.append(replace(before, key="fp8_of_model"))
            settings += (
                _leaves(usual, path, "trainer.plugins") if item.kind in (_PLUGIN, "") else ()
            )
            settings += _leaves(item, path, "trainer.plugins")
    checkpoints = log.fields.get("ckpt")
    if isinstance(checkpoints, Made) and "every_n_train_steps" in checkpoints.fields:
        place = _place(checkpoints, "every_n_train_steps", path, "log.ckpt.every_n_train_steps")
        settings.append(Setting("save_interval", checkpoints.fields["every_n_train_steps"], place))
    holders = (data, recipe.fields.get("model"))
    settings += [x for holder in holders if isinstance(holder, Made) for x in _words(holder, path)]
    return [*settings, *_adapters(recipe, path)]


def _words(holder: Made, path: str) -> Iterator[Setting]:
    """The tokenizer of data or of a model, which says how many tokens there are."""
    tokenizer = holder.fields.get("tokenizer")
    if not isinstance(tokenizer, Made):
        return
    place = _place(holder, "tokenizer", path, "tokenizer")
    keys = {"pretrained_model_name": "tokenizer_name_or_path", "model_name": "tokenizer_type"}
    for name, key in {**keys, "vocab_size": "vocab_size"}.items():
        if isinstance(value := tokenizer.fields.get(name), (str, int)):
            yield Setting(key, value, place)


def _place(owner: Made, name: str, path: str, key: str) -> Place:
    line = owner.lines.get(name, 0)
    return Place(owner.source if owner.source and not line else path, key, line)


def _leaves(owner: Made, path: str, prefix: str, seen: set[int] | None = None) -> Iterator[Setting]:
    """Fields of what a call made and of what is in it; UNKNOWN as a variable that nobody sets."""
    seen = set() if seen is None else seen
    seen.add(id(owner))
    if len(seen) > _MOST_PARTS:
        raise InputError(f"{path}: {prefix[:80]}: has more than {_MOST_PARTS} parts")
    for name, value in owner.fields.items():
        key = f"{prefix}.{name}"
        if isinstance(value, Made) and not value.is_answer:
            if name == "packed_sequence_specs":
                yield Setting("packed", True, _place(owner, name, path, key))
            elif id(value) not in seen:
                yield from _leaves(value, path, key, seen)
            continue
        if _ELSEWHERE.search(key) or (isinstance(value, list) and any(map(_is_made, value))):
            continue
        if not isinstance(value, (Function, dict)):
            yield Setting(name, _shown(value), _place(owner, name, path, key))


def _shown(value: Any) -> Any:
    """A value as a setting has it: a class by its name, what is not known as a variable."""
    if isinstance(value, list):
        return value if all(isinstance(item, (int, float, str)) for item in value) else "$(...)"
    return value.last if isinstance(value, Name) else value if _is_known(value) else "$(...)"


def _is_known(value: Any) -> bool:
    items = value if isinstance(value, list) else [value]
    return not any(x is UNKNOWN or (isinstance(x, Made) and x.is_answer) for x in items)


def _is_made(value: Any) -> bool:
    return isinstance(value, (Made, Name, Function))


def _strategy(strategy: Made, path: str) -> Iterator[Setting]:
    fields = dict(strategy.fields)
    if "ckpt_async_save" in fields:
        place = _place(strategy, "ckpt_async_save", path, "trainer.strategy.ckpt_async_save")
        yield Setting("async_save", fields.pop("ckpt_async_save"), place)
    fully = fields.pop("fsdp", None)
    if fully in ("megatron", "pytorch"):
        key = "use_megatron_fsdp" if fully == "megatron" else "use_torch_fsdp2"
        yield Setting(key, True, _place(strategy, "fsdp", path, "trainer.strategy.fsdp"))
    if strategy.kind and "Megatron" not in strategy.kind:
        place = _place(strategy, "kind", path, f"trainer.strategy ({strategy.kind})")
        yield Setting("strategy", strategy.kind, place)
    inner = Made(strategy.kind, fields, strategy.lines, strategy.source)
    yield from _leaves(inner, path, "trainer.strategy")


def _callback(item: Made, path: str) -> Iterator[Setting]:
    key = f"trainer.callbacks.{item.kind}"
    usual = _CALLBACKS.get(item.kind)
    if item.kind == "ModelCheckpoint" and "every_n_train_steps" in item.fields:
        place = _place(item, "every_n_train_steps", path, key)
        yield Setting("save_interval", item.fields["every_n_train_steps"], place)
    if usual is None:
        return
    said = {k: v for k, v in item.fields.items() if v is not None and not _is_made(v)}
    for name, value in {**usual, **said}.items():
        place = _place(item, name, path, f"{key}.{name}")
        yield Setting(name, _shown(value), place)


def _adapters(recipe: Made, path: str) -> Iterator[Setting]:
    peft = recipe.fields.get("peft")
    if peft is None:
        return
    place = _place(recipe, "peft", path, "peft")
    kind = peft.kind if isinstance(peft, Made) else str(_shown(peft))
    yield Setting("peft", _ADAPTERS.get(kind, kind.lower()), place)
    if isinstance(peft, Made):
        yield Setting("dim", _shown(peft.fields.get("dim", _LORA_RANK)), place)
        if (modules := peft.fields.get("target_modules")) is not None:
            yield Setting("target_modules", _shown(modules), place)


def _model(model: Any, path: str) -> Iterator[Setting]:
    """Sizes of the model: of its class, with what the script changes of them."""
    if not isinstance(model, Made):
        return
    config = model.fields.get("config", model.fields.get("0"))
    kind = config.kind if isinstance(config, Made) else getattr(config, "last", "")
    config = config if isinstance(config, Made) else Made(kind)
    row = models().get(kind, {})
    source = f"NeMo's {kind} ({SOURCE})"
    changed = {
        name: value for name, value in config.fields.items()
        if name in _SHAPE and str(row.get(name)) != str(_shown(value)) and value is not None
    }  # fmt: skip
    place = Place(path, kind or model.kind, next(iter(config.lines.values()), 0))
    if "repository" in row and not changed and zoo_model(row["repository"]) is not None:
        yield Setting("model", row["repository"], replace(place, path=source, line=0))
    elif row and not _BEYOND.search(kind):
        for name, text in row.items():
            if name not in ("class", "repository"):
                yield Setting(name, _plain(text), Place(source, name))
        if "repository" in row:
            yield Setting("tokenizer_name_or_path", row["repository"], Place(source, "tokenizer"))
    elif kind or model.kind:
        yield Setting("nemo_model", kind or model.kind, replace(place, key=kind or model.kind))
    for name, value in config.fields.items():
        if not isinstance(value, (Made, Function, dict)) and name != "seq_length":
            yield Setting(name, _shown(value), _place(config, name, path, f"model.config.{name}"))


def _reading(settings: list[Setting], path: str) -> Reading:
    whole = Settings.of(path, settings)
    unread = whole.found.pop("nemo_model", None)
    other = whole.found.pop("strategy", None)
    packed = whole.found.pop("packed", None)
    overwritten = whole.found.pop("fp8_of_model", None)
    if overwritten is not None:
        rule = "is overwritten by the precision plugin, which has no fp8: set it there"
        whole.notes.append(f"{overwritten.place}: {overwritten.value!r} {rule}")
    if packed is not None:
        whole.say("training.batching", "packed", packed)
    if "devices" in whole.found and "num_nodes" not in whole.found:
        whole.usually("run.nodes", 1, "num_nodes not said: 1 is the Trainer's default")
    if unread is not None:
        known = "" if unread.value in models() else nearest(str(unread.value), models())
        whole.say("run.model", f"{unread.value}, a model of NeMo that is not read{known}", unread)
    reading = read_megatron(whole, flags=False, kind=KIND)
    problems = list(reading.problems)
    if other is not None:
        rule = f"{other.value!r} is no MegatronStrategy, the one that is read"
        problems.append(f"{other.place}: {rule}")
    reading = replace(reading, software=("nemo-25.04", *reading.software), problems=tuple(problems))
    return with_idle(reading, whole.found.values(), "nemo")
