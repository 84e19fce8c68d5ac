"""Arguments as a log of Megatron-LM lists them at its start, read as those of a launch are.

``_print_args`` of megatron/training/arguments.py (NVIDIA/Megatron-LM at 000c4ac2) prints every
argument of the parser under its own name, dots, and its value after validation, defaults too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from simulator.interop.dialects.megatron import read_megatron
from simulator.interop.dialects.settings import (
    MOST_SETTINGS,
    Place,
    Reading,
    Setting,
    Settings,
    Stated,
    idle_in,
)

ARGUMENT = re.compile(r"(?:^|\s)([a-zA-Z]\w{1,80}) \.{3,64} (\S.{0,400}?)\s*$", re.M)
"""One of the list: ``  micro_batch_size ................ 4``; one without a value says nothing."""

_ALWAYS = (
    *("recompute_granularity", "add_bias_linear"),
    "accumulate_allreduce_grads_in_fp32",  # true of bf16 unless something asks for less
)
"""Arguments that say something where they are None or false."""

_ONLY_WITH = {
    "num_experts": r"moe_|expert_tensor_|num_experts",
    "multi_latent_attention": r"(?:q|kv)_lora_rank|qk_(?:head_dim|pos_emb_head_dim)|v_head_dim",
    "group_query_attention": r"num_query_groups",
    "fp8": r"fp8_",
    "fp4": r"fp4_",
    "use_precision_aware_optimizer": r"exp_avg",
    "tp_comm_overlap": r"tp_comm_",
    "cpu_offloading": r"cpu_offloading_",
    "optimizer_cpu_offload": r"optimizer_offload_fraction",
    "deepspeed": r"zero_|ds_|deepspeed",
}
"""Arguments that are listed with their defaults although what they belong to is off."""

_OF_EVERY_RELEASE = {"bf16", "fp16"}
"""In the list of a parser, which names every argument: what is not there the release has not. A
shorter list, of a program with fewer arguments, says nothing of what it leaves out."""

_CHUNKS = "virtual_pipeline_model_parallel_size"
_ZEROS = ("0", "0.0")
"""Of an argument that is not known here: what it asks for is off."""


def listed_arguments(
    listed: Iterable[tuple[int, str, str]], path: str, vocabulary: Setting | None = None
) -> Reading:
    """State what a list of arguments says; those of switches that are off say nothing.

    No software profile is named where the list is not that of Megatron's whole parser.

    Parameters
    ----------
    listed : iterable of (int, str, str)
        Line, name and value as printed; of several of a name the last holds.
    path : str
        The log.
    vocabulary : Setting, optional
        Tokens of the tokenizer, which the log tells after its arguments; it stands where they
        name no size.
    """
    found = {
        name: Setting(name, value.strip("[]'\""), Place(path, name, line))
        for line, name, value in list(listed)[:MOST_SETTINGS]
    }
    off = {
        name
        for name, setting in found.items()
        if setting.value in ("None", "False", "") and name not in _ALWAYS
    }
    for switch, names in _ONLY_WITH.items():
        if switch in off or switch not in found:
            off |= {name for name in found if re.match(names, name)}
    kept = [setting for name, setting in found.items() if name not in off]
    if vocabulary is not None and not {"vocab_size", "padded_vocab_size"} & (found.keys() - off):
        kept.append(replace(vocabulary, key="vocab_size"))
    whole = bool(found.keys() & _OF_EVERY_RELEASE)
    own = Settings.of(path, kept)
    reading = read_megatron(own, flags=whole, kind="log of Megatron-LM")
    if not whole:
        reading = replace(reading, software=())
    stated = list(reading.stated)
    if _CHUNKS in off and not any(item.field == "layout.vpp" for item in stated):
        stated.append(Stated("layout.vpp", 1, found[_CHUNKS].place))
    elsewhere = idle_in("megatron_listing")
    idle, unknown = list(reading.idle), list[Place]()
    for place in reading.unknown:
        setting = found.get(place.key)  # what the tokenizer told is no argument
        known = elsewhere(place.key) or (setting is not None and setting.value in _ZEROS)
        (idle if known else unknown).append(place)
    return replace(
        reading, measured=True, stated=tuple(stated), idle=tuple(idle), unknown=tuple(unknown)
    )
