"""Hugging Face ``config.json`` to :class:`Architecture`: one small function per family.

The sizes that make a model what it is are required; every other missing key means the default
of the transformers class (5.x) of that ``model_type``. Keys that no size depends on are ignored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from simulator.errors import InputError, visible
from simulator.files import read_json
from simulator.workload.architecture import Architecture
from simulator.workload.families import (
    deepseek,
    encoders,
    gpt,
    llama,
    nemotron_h,
    qwen3_next,
    t5,
    traced_model,
)
from simulator.workload.fields import Fields

FAMILIES: Mapping[str, Callable[[Fields], Architecture]] = {
    "bert": encoders.bert,
    "deberta-v2": encoders.deberta_v2,
    "deepseek_v2": deepseek.deepseek_v2,
    "deepseek_v3": deepseek.deepseek_v3,
    "falcon": gpt.falcon,
    "gemma2": llama.gemma2,
    "gpt2": gpt.gpt2,
    "gpt_neox": gpt.gpt_neox,
    "gpt_oss": llama.gpt_oss,
    "llama": llama.llama,
    "llama4_text": llama.llama4_text,
    "minimax": llama.minimax,
    "minimax_text_01": llama.minimax,
    "mistral": llama.mistral,
    "mixtral": llama.mixtral,
    "mpt": gpt.mpt,
    "nemotron": gpt.nemotron,
    "nemotron_h": nemotron_h.nemotron_h,
    "opt": gpt.opt,
    "phi3": llama.phi3,
    "qwen2": llama.qwen2,
    "qwen3": llama.qwen3,
    "qwen3_moe": llama.qwen3_moe,
    "qwen3_next": qwen3_next.qwen3_next,
    "swin": encoders.swin,
    "switch_transformers": t5.switch_transformers,
    "t5": t5.t5,
    "traced": traced_model.traced_model,
    "vit": encoders.vit,
    "yuan": llama.yuan,
}
"""The reader of each ``model_type``."""


def from_hf(config: Mapping[str, Any], *, name: str, where: str) -> Architecture:
    """Turn a Hugging Face config into an architecture.

    Parameters
    ----------
    config : mapping
        The document of a ``config.json``. Of a multimodal model only the part under
        ``text_config`` is described; its vision or audio tower is left out.
    name : str
        Name of the architecture.
    where : str
        What messages call the config, usually its path.

    Raises
    ------
    InputError
        With one problem per wrong field: ``where: field: rule, got value``.

    Examples
    --------
    >>> sizes = {"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257}
    >>> from_hf({"model_type": "gpt2", **sizes}, name="mine", where="config.json").parameters
    124439808
    """
    if not isinstance(config, Mapping):
        raise InputError(f"{where}: must be a table of fields, got {type(config).__name__}")
    prefix, inner = "", config.get("text_config")
    if isinstance(inner, Mapping):
        outer = {key: value for key, value in config.items() if key == "tie_word_embeddings"}
        config, prefix = {**outer, **inner}, "text_config."
    fields = Fields(config, name=visible(name), where=where, prefix=prefix)
    architecture = FAMILIES[fields.choose_family(FAMILIES)](fields)
    fields.finish()
    return architecture


def read_config(path: Path | str) -> Architecture:
    """Read a ``config.json``, or the one in a folder, and name it after its file or folder.

    Raises
    ------
    InputError
        If the file cannot be read or describes no model; all its problems at once.
    """
    path = Path(path)
    path = path / "config.json" if os.path.isdir(path) else path
    raw = read_json(path)
    name = path.absolute().parent.name if path.name == "config.json" else path.stem
    return from_hf(raw, name=name, where=str(path))
