"""Hugging Face ``config.json`` to :class:`Architecture`, by the row of its ``model_type``.

The sizes that make a model what it is are required; every other missing key means the default
of the transformers class (5.x) of that ``model_type``. Keys that no size depends on are ignored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulator.errors import InputError, problem, visible
from simulator.files import read_json
from simulator.workload.architecture import Architecture
from simulator.workload.families import encoders, from_table, table, traced_model
from simulator.workload.fields import Fields

_TOWERS = ("vision_config", "audio_config", "speech_config", "video_config", "perceiver_config")

READERS: Mapping[str, Callable[[Fields], Architecture]] = {
    "deberta-v2": encoders.deberta_v2,
    "swin": encoders.swin,
    "switch_transformers": encoders.switch_transformers,
    "t5": encoders.t5,
    "traced": traced_model.traced_model,
    "vit": encoders.vit,
}
"""Readers of what no row says; all other families are rows of ``families/families.csv``."""


def families() -> list[str]:
    """List every ``model_type`` that is read."""
    return sorted({*READERS, *table.names()})


def from_hf(config: Mapping[str, Any], *, name: str, where: str) -> Architecture:
    """Turn a Hugging Face config into an architecture.

    Parameters
    ----------
    config : mapping
        The document of a ``config.json``. Of a multimodal model whose own type has no row only the
        part under ``text_config`` is described; its vision or audio tower is left out.
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
    (in_4_bit, notes), prefix, inner = _stored(config, where), "", config.get("text_config")
    if isinstance(inner, Mapping) and not _is_known(config.get("model_type")):
        outer = {key: value for key, value in config.items() if key == "tie_word_embeddings"}
        towers = [key for key in config if key.endswith("_config") and key in _TOWERS]
        notes += [f"{tower} of {where} is left out, with its projector" for tower in towers]
        config, prefix = {**outer, **inner}, "text_config."
    fields = Fields(config, name=visible(name), where=where, prefix=prefix)
    fields.family = _family(config, where, prefix)
    architecture = READERS.get(fields.family, from_table.from_row)(fields)
    fields.finish()
    said = (*architecture.notes, *notes)
    return replace(architecture, notes=said, stored_in_4_bit=in_4_bit) if notes else architecture


def _stored(config: Mapping[str, Any], where: str) -> tuple[bool, list[str]]:
    """Whether a checkpoint is stored in 4 bit, and what else is said of how it is stored.

    Key by method, as transformers' ``utils/quantization_config.py`` writes them: bitsandbytes
    ``load_in_4bit``, GPTQ, AWQ and others ``bits`` (AutoAWQ ``w_bit``), HQQ ``nbits`` two tables
    inside, Quanto ``weights``. Of a model of parts the part of text may state it.
    """
    field, stored, text = "quantization_config", None, config.get("text_config")
    if config.get(field) is not None:
        stored = config[field]
    elif isinstance(text, Mapping) and text.get(field) is not None:
        field, stored = f"text_config.{field}", text[field]
    if stored is None:
        return False, []
    if not isinstance(stored, Mapping):
        raise InputError(problem(where, field, "must be a table of fields", stored))
    method = visible(str(stored.get("quant_method", "unknown method")))
    inside = stored.get("quant_config")
    inside = inside.get("weight_quant_params") if isinstance(inside, Mapping) else None
    bits = [stored.get("bits"), stored.get("w_bit")]
    bits += [inside.get("nbits")] if isinstance(inside, Mapping) else []
    flags = [stored.get("load_in_4bit"), stored.get("_load_in_4bit")]
    if True in flags or 4 in bits or stored.get("weights") == "int4":
        return True, [
            f"the checkpoint is in 4 bit ({method}): so are frozen matrices under adapters, unless"
            " training.quantised_base is false; without adapters weights are those of the recipe"
        ]
    return False, [
        f"quantization_config ({method}) says how a checkpoint is stored: weights are those of the"
        " recipe"
    ]


def _is_known(family: object) -> bool:
    return isinstance(family, str) and (family in READERS or table.has(family))


def _family(config: Mapping[str, Any], where: str, prefix: str) -> str:
    """Read ``model_type``; an unknown one is raised at once, for nothing else can be read."""
    place = f"{prefix}model_type"
    family = config.get("model_type", config.get("_class_name"))
    if isinstance(family, str) and _is_known(family):
        return family
    if family is None and "model_type" not in config:
        raise InputError(f"{where}: {place}: required field is missing")
    rule = (
        f"must be one of {len(families())} types that have a row; with model.trace_tokens another"
        " is traced by torch and transformers where they are installed"
    )
    raise InputError(problem(where, place, rule, family))


def _traced(config: Mapping[str, Any], tokens: int, *, name: str, where: str) -> Architecture:
    """Make an architecture of a type that no row describes, by tracing transformers' class."""
    from simulator.workload.torch_module import trace_type

    model = trace_type(config, tokens, where=where)
    note = (
        f"the layers are those of transformers' class of {config.get('model_type')}, traced at"
        f" {model.tokens} tokens a sample: each operator of torch by its own bytes and products"
    )
    made = traced_model.traced_architecture(name, model.layers, model.layer_kinds, model.rest)
    return replace(made, max_positions=model.tokens, notes=(note,))


def read_config(path: Path | str, *, trace_tokens: int = 0) -> Architecture:
    """Read a ``config.json``, or the one in a folder, and name it after its file or folder.

    Of a folder of diffusers (with a ``model_index.json``) the transformer is read: it is what is
    trained, on latents and text embeddings that come ready made. With `trace_tokens` a type that
    no row describes is built by transformers and traced at so many tokens a sample.

    Raises
    ------
    InputError
        If the file cannot be read or describes no model; all its problems at once.
    """
    path = Path(path)
    folder = path if os.path.isdir(path) else path.parent
    pipeline = path.name == "model_index.json" or (folder / "model_index.json").is_file()
    if pipeline and (os.path.isdir(path) or path.name == "model_index.json"):
        path = folder / "transformer" / "config.json"
    elif os.path.isdir(path):
        path = folder / "config.json"
    raw = read_json(path)
    named = folder if pipeline else path.absolute().parent
    name = named.absolute().name if path.name == "config.json" else path.stem
    kind = raw.get("model_type") if isinstance(raw, Mapping) else None
    if trace_tokens and isinstance(kind, str) and not _is_known(kind) and "text_config" not in raw:
        return _traced(raw, trace_tokens, name=name, where=str(path))
    return from_hf(raw, name=name, where=str(path))
