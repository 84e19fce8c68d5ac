"""Configurations of GPT-NeoX: DeepSpeed's keys, and beside them those of a Megatron of 2021.

Names, defaults and what follows from them as in EleutherAI/gpt-neox@ea7aefd8 (2026-05-19):
megatron/neox_arguments (neox_args.py, deepspeed_args.py, arguments.py: from_ymls,
calculate_derived), megatron/model (transformer.py, moe_mlp.py, gpt2_model.py) and
megatron/tokenizer/tokenizer.py. Several files are one configuration, in which no key stands twice;
dashes are underscores.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulator.interop.dialects.deepspeed import say_engine
from simulator.interop.dialects.settings import (
    KEEPS,
    Reading,
    Setting,
    Settings,
    idle_in,
    with_idle,
)
from simulator.interop.dialects.training_ways import (
    PAIRS,
    REINFORCEMENT,
    SCORES,
    refuse_adapters,
    refuse_way,
    say_pairs,
    say_scores,
)
from simulator.workload.architecture import MLP, Architecture, Attention, Block, MoE, Norm

KIND = "GPT-NeoX configuration"
_PIPELINE = {"pipe_parallel_size", "pipe-parallel-size"}
_MODEL = {"model_parallel_size", "model-parallel-size"}
_LAYERS = {"num_layers", "num-layers"}
_MARKS = {"attention_config", "gpt_j_residual", "checkpoint_factor", "output_layer_parallelism"}
"""Arguments that no other trainer has."""
_TOKENIZERS = {"gpt2bpetokenizer": 50257, "hfgpt2tokenizer": 50258, "charleveltokenizer": 512}
"""Tokenizers whose size is fixed, GPT-2's with a token to pad with."""
_FILES = {"20b_tokenizer.json": 50277}
"""Files of words that its documentation gives, of the 20B model and of Pythia."""
_GATED = ("geglu", "swiglu", "reglu", "bilinear", "glu")
_UNGATED = ("gelu", "relu", "softsign", "swish", "silu", "mish")
_POSITIONS = {"learned": "learned", "rotary": "rope", "sinusoidal": "none", "alibi": "alibi",
              "none": "none"}  # fmt: skip
_NORMS: dict[str, Norm] = {
    "layernorm": "layer", "te_layernorm": "layer", "rmsnorm": "rms", "te_rmsnorm": "rms",
    "non_parametric_layernorm": "none",
}  # fmt: skip
_SHAPE = (
    *("hidden_size", "num_attention_heads", "num_kv_heads", "intermediate_size", "mlp_multiple_of"),
    *("sliding_window_width", "max_position_embeddings", "moe_num_experts", "moe_expert_interval"),
    *("moe_top_k", "padded_vocab_size", "make_vocab_size_divisible_by"),
)
_WORDS = (
    *("norm", "pos_emb", "activation", "attention_config", "expansion_factor", "tokenizer_type"),
    *("vocab_file", "attention_dropout", "hidden_dropout"),
)
_SWITCHES = (
    *("no_weight_tying", "gpt_j_residual", "gpt_j_tied", "use_qk_layernorm"),
    *("use_bias_in_attn_linear", "use_bias_in_mlp"),
)
_FUSIONS = (
    *("scaled_upper_triang_masked_softmax_fusion", "scaled_masked_softmax_fusion", "rope_fusion"),
    *("bias_gelu_fusion", "bias_dropout_fusion", "layernorm_fusion", "rmsnorm_fusion"),
    *("use_flashattn_swiglu", "te_columnparallel", "te_rowparallel", "te_layernorm_mlp", "te_mha"),
    *("fp16_lm_cross_entropy", "attention_softmax_in_fp32", "apply_query_key_layer_scaling"),
    *("use_fused_rope", "synchronize_each_layer"),
)
_NOT_MODELLED = {
    "te_fp8_mha": "attention in fp8",
    "num_unique_layers": "layers that share their weights",
    "soft_prompt_tuning.enabled": "a prompt that is trained alone",
    "curriculum_learning.enabled": "sequences that grow over the run",
    "compression_training": "weights that are compressed on the way",
}
_TRAINS = {"reinforce": REINFORCEMENT, "dpo": PAIRS, "rm": SCORES, "kto": "preference"}
_MOST_LAYERS = 10_000


def is_gpt_neox(keys: Iterable[str]) -> bool:
    """Whether a file's keys are those of GPT-NeoX.

    >>> is_gpt_neox(["pipe-parallel-size", "num-layers"]), is_gpt_neox(["num_layers"])
    (True, False)
    """
    said = set(keys)
    known = bool(said & _PIPELINE) or bool(said & _MODEL and said & _LAYERS)
    return known or len({key.replace("-", "_") for key in said} & _MARKS) > 1


def is_part(table: Any) -> bool:
    """Whether a file has nothing but arguments of GPT-NeoX, paths and logging among them.

    >>> is_part({"data-path": "/data", "launcher": "slurm"}), is_part({"model_name_or_path": "x"})
    (True, False)
    """
    if not isinstance(table, Mapping) or not table:
        return False
    idle = idle_in("gpt_neox")
    return all(idle(name) or name in idle.values or name in _TAKEN for name in map(_plain, table))


def _plain(key: Any) -> str:
    return str(key).replace("-", "_")


def files_named(words: list[str]) -> tuple[str, list[str]]:
    """The program that ``deepy.py`` starts, and the configurations that its words name.

    >>> files_named(["train.py", "-d", "configs", "125M", "local.yml", "--wandb_group", "x"])
    ('train.py', ['configs/125M.yml', 'configs/local.yml'])
    """
    folder, bare, at = "", list[str](), 0
    while at < len(words):
        word = words[at]
        at += 1
        if word in ("-d", "--conf_dir"):
            folder = words[at] if at < len(words) else ""
            at += 1
        elif word.startswith("--conf_dir="):
            folder = word.partition("=")[2]
        elif word == "--eval_tasks":
            while at < len(words) and not words[at].startswith("-"):
                at += 1
        elif word.startswith("-"):
            at += "=" not in word
        else:
            bare.append(word)
    ends = (".yml", ".json")
    names = [name if name.endswith(ends) else f"{name}.yml" for name in bare[1:]]
    return (bare[0] if bare else ""), [str(Path(folder) / name) for name in names]


def is_named_to_deepy(name: str, text: str) -> bool:
    """Whether a command of ``deepy.py`` names a configuration, which it may without its ending.

    >>> is_named_to_deepy("125M.yml", "python deepy.py train.py -d configs 125M local_setup")
    True
    """
    stem = re.sub(r"\.yml$", "", name)
    named = re.search(rf"(?:^|[\s/'\"]){re.escape(stem)}(?:\.yml)?(?![\w.-])", text)
    return stem != name and "deepy.py" in text and named is not None


def reading_of(settings: Iterable[Setting], path: str) -> Reading:
    """What the files of a run say together; a key that stands twice is refused, as it is there."""
    whole = dict[str, Setting]()
    twice = list[str]()
    for item in settings:
        key = _plain(item.key).removeprefix("deepspeed_extra_args.")
        if key in whole:
            rule = "stands twice in the files of a run, which GPT-NeoX refuses"
            twice.append(f"{item.place}: {rule}; before: {whole[key].place}")
        whole.setdefault(key, replace(item, key=key))
    reading = read_gpt_neox(Settings.of(path, whole.values()))
    return replace(reading, problems=(*reading.problems, *twice))


def read_gpt_neox(settings: Settings) -> Reading:
    """State what a configuration says, and what its trainer does where it says nothing."""
    items = list(settings.found.values())
    _degrees(settings)
    _engine(settings)
    settings.whole("training.sequence_length", "seq_length")
    settings.whole("run.steps", "train_iters")
    _checkpoints(settings)
    _recomputation(settings)
    _way(settings)
    _optimizer(settings)
    refuse_adapters(settings, _NOT_MODELLED)
    fused = [settings.found[key] for key in _FUSIONS if settings.take(key)]
    if fused:
        rule = "kernels are counted as the software profile has them, whatever these say"
        settings.notes.append(f"{fused[0].place}, {len(fused)} in all of its kind: {rule}")
    architecture = _Shape(settings).architecture()
    reading = settings.reading(
        KIND,
        idle_in("deepspeed"),
        software=_software(settings),
        architecture=architecture,
    )
    return with_idle(reading, items, "gpt_neox")


def _software(settings: Settings) -> tuple[str, ...]:
    """Profiles of a Megatron over DeepSpeed's engine."""
    plain = settings.value_of("layout.sharding") in (None, "ddp", "zero1")
    older = ("megatron-deepspeed-2023",) if plain else ()
    return (*older, "deepspeed", "megatron-core-defaults", "megatron-core")


def _degrees(settings: Settings) -> None:
    tp = settings.whole("layout.tp", "model_parallel_size", least=0) or 1
    piped = settings.whole("", "pipe_parallel_size", least=0)
    if piped:
        settings.say("layout.pp", piped, settings.found["pipe_parallel_size"])
    else:
        why = "pipe_parallel_size of 0 or not said: layers in a row, no pipeline"
        settings.usually("layout.pp", 1, why)
    if settings.value_of("layout.tp") == 0:
        settings.stated = [item for item in settings.stated if item.field != "layout.tp"]
    elif settings.value_of("layout.tp") is None:
        settings.usually("layout.tp", 1, "model_parallel_size not said: 1")
    on = settings.flag("sequence_parallel")
    if on is not None:
        settings.say("layout.sequence_parallel", on and tp > 1, settings.found["sequence_parallel"])
    elif tp > 1:
        why = "sequence_parallel not said: GPT-NeoX's default is off"
        settings.usually("layout.sequence_parallel", False, why)
    how = settings.take("pipe_partition_method")
    if how is not None and (piped or 1) > 1 and not str(how.value).startswith("type:"):
        rule = "is not read: layers are dealt to stages evenly, --set layout.stages=[...] says how"
        settings.notes.append(f"{how.place}: {how.value!r} {rule}")
    for field, key in (("run.nodes", "num_nodes"), ("run.per_node", "num_gpus")):
        given = settings.found.get(key)
        if given is not None and str(given.value) == "-1":  # all that the list of hosts has
            settings.take(key)
        else:
            settings.whole(field, key)
    settings.whole("cluster.gpus", "global_num_gpus")


def _engine(settings: Settings) -> None:
    """DeepSpeed's part: batch, states, types."""
    stage = settings.found.get("zero_optimization.stage")
    inside = [key for key in settings.found if key.startswith("zero_optimization.")]
    if stage is None and inside:
        rule = "has no stage, which GPT-NeoX asks for"
        settings.problems.append(f"{settings.found[inside[0]].place}: zero_optimization {rule}")
    word = {"fp16": "fp16", "bfloat16": "bf16", "fp32": "fp32"}
    say_engine(settings)
    settings.take("fp16.fp16", "fp16.type", "bf16.bf16")  # names of what their enabled turns on
    precision = settings.word("training.precision", word, "precision")
    if settings.value_of("layout.sharding") is None:
        why = "zero_optimization not said: stage 0, nothing is shared"
        settings.usually("layout.sharding", "ddp", why)
    elif stage is not None and "pipe_parallel_size" in settings.found:
        piped = settings.value_of("layout.pp")
        if piped and settings.value_of("layout.sharding") in ("zero2", "zero3"):
            rule = "ZeRO's stages 2 and 3 do not go with pipe_parallel_size of 1 or more, which"
            rule += " runs DeepSpeed's pipeline (runtime/pipe/engine.py): 0 turns it off"
            settings.problems.append(f"{stage.place}: {rule}, got {stage.value} with {piped}")
    if settings.value_of("run.accumulation") is None:
        why = "gradient_accumulation_steps not said: 1 is GPT-NeoX's default"
        settings.usually("run.accumulation", 1, why)
    if precision is None and settings.value_of("training.precision") is None:
        why = "neither precision nor fp16 nor bf16 said: GPT-NeoX computes in fp32"
        settings.usually("training.precision", "fp32", why)
    if settings.flag("fp32_allreduce"):
        settings.say("training.reduce_dtype", "fp32", settings.found["fp32_allreduce"])


def _checkpoints(settings: Settings) -> None:
    scale = settings.take("checkpoint_scale")
    if scale is not None and str(scale.value).lower() == "log":
        factor = settings.take("checkpoint_factor")
        if factor is not None:
            rule = "saves ever further apart: checkpoints are as far apart as is best"
            settings.notes.append(f"{scale.place}: {rule}")
    else:
        settings.saves_every("checkpoint_factor")
        settings.waits_for_storage("DeepSpeed's engine saves while training waits")
    settings.whole(KEEPS, "keep_last_n_checkpoints")


def _recomputation(settings: Settings) -> None:
    """Layers run again from the inputs of so many."""
    on = settings.flag("checkpoint_activations")
    layers = settings.whole("", "checkpoint_num_layers")
    if on:
        settings.say("layout.recompute", "full", settings.found["checkpoint_activations"])
        if (layers or 1) > 1:
            rule = f"of {layers} layers one input is kept; counted as one of each"
            settings.notes.append(f"{settings.found['checkpoint_num_layers'].place}: {rule}")
    elif on is False:
        settings.say("layout.recompute", "none", settings.found["checkpoint_activations"])
    else:
        settings.usually("layout.recompute", "none", "checkpoint_activations not said: off")
    for key in ("partition_activations", "checkpoint_in_cpu", "contiguous_checkpointing"):
        if settings.flag(key) and on:
            settings.notes.append(f"{settings.found[key].place}: not counted in memory or time")


def _way(settings: Settings) -> None:
    """Training on pairs, scores or rewards, by ``train_impl``."""
    how = settings.take("train_impl")
    free = settings.flag("dpo_reference_free")
    way = "" if how is None else _TRAINS.get(str(how.value).lower(), "")
    if how is None or not way:
        return
    if way == PAIRS:
        say_pairs(settings, how, reference=not free)
    elif way == SCORES:
        say_scores(settings, how)
    else:
        refuse_way(settings, way, how)


def _optimizer(settings: Settings) -> None:
    if settings.flag("use_bnb_optimizer"):
        at = settings.found["use_bnb_optimizer"]
        settings.stated = [x for x in settings.stated if x.field != "training.optimizer"]
        settings.say("training.optimizer", "adamw_8bit", at)
    elif settings.value_of("training.optimizer") is None and "optimizer.type" not in settings.found:
        settings.usually("training.optimizer", "adamw", "optimizer not said: Adam")


class _Shape:
    """The model by its sizes and switches."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.layers = settings.whole("size.layers", "num_layers", most=_MOST_LAYERS)
        self.sizes = {key: settings.whole("", key) for key in _SHAPE}
        self.words = {key: settings.take(key) for key in _WORDS}
        self.flags = {key: settings.flag(key) for key in _SWITCHES}
        for key in ("rotary_pct", "rotary_emb_base", "moe_router_type"):
            settings.take(key)
        for name in ("hidden_size", "num_attention_heads"):
            if (value := self.sizes[name]) is not None:
                said = {"hidden_size": "size.hidden", "num_attention_heads": "size.heads"}
                settings.say(said[name], value, settings.found[name])
        multiple = self.sizes["make_vocab_size_divisible_by"]
        if multiple:
            at = settings.found["make_vocab_size_divisible_by"]
            settings.say("software.kernels.pads_vocabulary_to", multiple, at)
        elif self.layers:
            why = "make_vocab_size_divisible_by not said: 128"
            settings.usually("software.kernels.pads_vocabulary_to", 128, why)

    def _word(self, name: str, usual: str) -> str:
        setting = self.words[name]
        blank = setting is None or setting.value is None
        return usual if blank or setting is None else str(setting.value).strip("'\"").lower()

    def _cannot(self, what: str, key: str) -> None:
        """Say that a model is of a kind that is not modelled: nothing is made up for it."""
        self.settings.problems.append(f"{self.settings.found[key].place}: {what}, not modelled")

    def architecture(self) -> Architecture | None:
        """The model; None where sizes are missing or what it has is not modelled."""
        hidden, heads = self.sizes["hidden_size"], self.sizes["num_attention_heads"]
        before = len(self.settings.problems)
        kinds = self._kinds()
        norm = _NORMS.get(self._word("norm", "layernorm"))
        position = _POSITIONS.get(self._word("pos_emb", "learned"))
        if norm is None:
            self._cannot(f"a norm of kind {self._word('norm', '')!r}", "norm")
        if position is None:
            self._cannot(f"positions of kind {self._word('pos_emb', '')!r}", "pos_emb")
        if self.flags["use_qk_layernorm"]:
            self._cannot("one norm of all heads of queries and keys", "use_qk_layernorm")
        if (word := self._word("activation", "gelu")) not in (*_GATED, *_UNGATED):
            self._cannot(f"an activation of kind {word[:40]!r}", "activation")
        if self.layers is None or hidden is None or heads is None or norm is None:
            return None
        if hidden % heads:
            at = self.settings.found["num_attention_heads"].place
            self.settings.problems.append(f"{at}: must divide hidden_size {hidden}, got {heads}")
        if (groups := self.sizes["num_kv_heads"]) and heads % groups:
            at = self.settings.found["num_kv_heads"].place
            rule = f"must divide num_attention_heads {heads}, got {groups}"
            self.settings.problems.append(f"{at}: {rule}")
        widths = self._widths(hidden)
        if len(self.settings.problems) > before or widths is None or position is None:
            return None
        return self._of_layers(hidden, heads, norm, position, widths, kinds)

    def _of_layers(
        self, hidden: int, heads: int, norm: Norm, position: Any, width: int, kinds: list[str]
    ) -> Architecture:
        block = self._block(hidden, heads, norm, width)
        experts, interval = self._experts(hidden), self.sizes["moe_expert_interval"] or 1
        layers = [
            replace(block, mlp=experts) if experts is not None and at % interval == 0 else block
            for at in range(self.layers or 0)
        ]
        if layers and "global" in kinds:
            self._without_flash(kinds)
        if not (vocabulary := self._vocabulary()):
            what = f"{self.layers} layers of {hidden}, whose tokenizer has an unknown size"
            self.settings.say("run.model", what, self.settings.found["hidden_size"])
        length = self.settings.value_of("training.sequence_length")
        return Architecture.of_layers(
            layers,
            name="of-the-configuration",
            family="custom",
            hidden=hidden,
            vocabulary=vocabulary,
            tied_embeddings=not self.flags["no_weight_tying"],
            position=position,
            max_positions=self.sizes["max_position_embeddings"] or length or 2048,
            final_norm=norm,
        )

    def _without_flash(self, kinds: list[str]) -> None:
        """Attention by two products and a softmax, which is what GPT-NeoX does unless told."""
        config = self.words["attention_config"]
        if "flash" in kinds:
            rule = "has layers with and without flash attention: all are counted with it"
            assert config is not None, "both kinds stand in it"
            self.settings.notes.append(f"{config.place}: {rule}")
        elif config is not None and config.value is not None:
            self.settings.say("software.flash_attention", False, config)
        else:
            why = "attention_config not said: global attention, without flash attention"
            self.settings.usually("software.flash_attention", False, why)

    def _kinds(self) -> list[str]:
        """Kinds of attention of all layers: ``[[["flash", "global"], 6]]`` or a list of words."""
        setting, layers = self.words["attention_config"], self.layers or 0
        if setting is None or setting.value is None:
            return ["global"] * layers
        dealt = list[str]()
        for item in setting.value if isinstance(setting.value, list) else [setting.value]:
            if isinstance(item, str):
                dealt.append(item)
                continue
            pattern, times = item if isinstance(item, list) and len(item) == 2 else (None, 0)
            if not isinstance(pattern, list) or not pattern or len(pattern) > _MOST_LAYERS:
                self._wrong(setting)
                return []
            every = layers // len(pattern) if times == "all" else times
            if type(every) is not int or not 0 < every * len(pattern) <= _MOST_LAYERS:
                self._wrong(setting)
                return []
            dealt += [str(kind) for kind in pattern] * every
        if layers and len(dealt) != layers:
            rule = f"must name the attention of {layers} layers, got {len(dealt)}"
            self.settings.problems.append(f"{setting.place}: {rule}")
        if other := sorted({kind for kind in dealt if kind not in ("global", "flash")}):
            self._cannot(f"layers of kind {', '.join(other)[:60]!r}", "attention_config")
        return dealt

    def _wrong(self, setting: Setting) -> None:
        rule = 'must be a list of patterns, [[["flash"], 12]]'
        self.settings.problems.append(f"{setting.place}: {rule}, got {str(setting.value)[:80]!r}")

    def _widths(self, hidden: int) -> int | None:
        """Inner width of an MLP, of which a gated one has two thirds, rounded up to a multiple."""
        setting = self.words["expansion_factor"]
        inner, multiple = self.sizes["intermediate_size"], self.sizes["mlp_multiple_of"] or 1
        if inner is None and setting is not None and setting.value is not None:
            try:
                inner = int(float(setting.value) * hidden)
            except (TypeError, ValueError, OverflowError):
                inner = 0
            if not 0 < inner < 2**31:
                rule = f"must be a number above 0, got {str(setting.value)[:40]!r}"
                self.settings.problems.append(f"{setting.place}: {rule}")
                return None
        elif inner is not None and setting is not None and setting.value is not None:
            rule = "stands beside intermediate_size, of which GPT-NeoX takes one"
            self.settings.problems.append(f"{setting.place}: {rule}")
        inner = 4 * hidden if inner is None else inner
        gated = self._word("activation", "gelu") in _GATED
        first = int(inner * 2 / 3) if gated else inner
        second = first // 2 if gated else inner
        first = 2 * multiple * -(-first // (2 * multiple))
        second = multiple * -(-second // multiple)
        if (first // 2 if gated else first) == second:
            return second
        key = next(k for k in ("intermediate_size", "expansion_factor", "hidden_size")
                   if k in self.settings.found)  # fmt: skip
        rule = (
            f"makes an MLP whose halves do not fit, {first} into {second} with"
            f" mlp_multiple_of {multiple}, which GPT-NeoX cannot run"
        )
        if gated:
            rule += f"; one of width N takes intermediate_size of 3 N, {3 * inner} for {inner}"
        self.settings.problems.append(f"{self.settings.found[key].place}: {rule}")
        return None

    def _dropped(self, name: str) -> bool:
        try:
            return float(self._word(name, "0")) > 0
        except ValueError:
            return False

    def _block(self, hidden: int, heads: int, norm: Norm, width: int) -> Block:
        biased = self.flags["use_bias_in_attn_linear"] is not False
        word = self._word("activation", "gelu")
        attention = Attention(
            heads=heads,
            kv_heads=self.sizes["num_kv_heads"] or heads,
            head_dim=hidden // heads,
            qkv_bias=biased,
            output_bias=biased,
            window=self.sizes["sliding_window_width"] or 0,
            dropout=self._dropped("attention_dropout"),
        )
        mlp = MLP(
            ffn_hidden=width,
            gated=word in _GATED,
            activation="relu" if word == "relu" else "gelu",
            bias=self.flags["use_bias_in_mlp"] is not False,
        )
        return Block(
            attention=attention,
            mlp=mlp,
            norm=norm,
            dropout=self._dropped("hidden_dropout"),
            parallel_residual=bool(self.flags["gpt_j_residual"]),
        )

    def _experts(self, hidden: int) -> MoE | None:
        """Experts without biases or gates, whole ones shared among the ranks of a tensor group."""
        count = self.sizes["moe_num_experts"] or 1
        if count == 1:
            return None
        settings, tp = self.settings, self.settings.value_of("layout.tp") or 1
        if tp > 1:
            at = settings.found["model_parallel_size"]
            settings.say("layout.ep", tp, at)
            settings.say("layout.etp", 1, at)
            settings.say("layout.dispatcher", "allgather", at)
        if settings.value_of("layout.sharding") in ("zero2", "zero3"):
            rule = "experts do not go with ZeRO's stages 2 and 3 (arguments.py)"
            settings.problems.append(f"{settings.found['moe_num_experts'].place}: {rule}")
        usual = 256 * -(-4 * hidden // 256)
        top = self.sizes["moe_top_k"] or 1
        return MoE(
            experts=count,
            top_k=min(top, count),
            ffn_hidden=self.sizes["intermediate_size"] or usual,
            gated=False,
        )

    def _vocabulary(self) -> int:
        """Tokens of a tokenizer that is known; 0 where it is not."""
        padded = self.sizes["padded_vocab_size"]
        if padded:
            return padded
        kind = self._word("tokenizer_type", "gpt2bpetokenizer")
        file = self._word("vocab_file", "").rpartition("/")[2]
        if kind in _TOKENIZERS:
            if self.words["tokenizer_type"] is None:
                why = f"tokenizer_type not said: GPT2BPETokenizer, {_TOKENIZERS[kind]:,} tokens"
                self.settings.notes.append(f"{self.settings.path}: {why}")
            return _TOKENIZERS[kind]
        return _FILES.get(file, 0)


_TAKEN = frozenset(
    {
        *_SHAPE, *_WORDS, *_SWITCHES, *_FUSIONS, *(key.partition(".")[0] for key in _NOT_MODELLED),
        "rotary_pct", "rotary_emb_base", "moe_router_type", "num_layers", "model_parallel_size",
        "pipe_parallel_size", "sequence_parallel", "pipe_partition_method", "num_nodes",
        "num_gpus", "global_num_gpus", "zero_optimization", "train_batch_size", "precision",
        "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "fp16", "bf16",
        "data_types", "communication_data_type", "optimizer", "fp32_allreduce", "seq_length",
        "train_iters", "checkpoint_scale", "checkpoint_factor", "keep_last_n_checkpoints",
        "checkpoint_activations", "checkpoint_num_layers", "partition_activations",
        "checkpoint_in_cpu", "contiguous_checkpointing", "train_impl", "dpo_reference_free",
        "use_bnb_optimizer", "deepspeed_extra_args", "activation_checkpointing",
    }
)  # fmt: skip
"""Arguments that are read."""
