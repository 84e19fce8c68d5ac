"""Hugging Face ``config.json`` to :class:`Architecture`, by the row of its ``model_type``.

The sizes that make a model what it is are required; every other missing key means the default
of the transformers class (5.x) of that ``model_type``. Keys that no size depends on are ignored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from simulator.errors import InputError, problem, visible
from simulator.files import read_json
from simulator.workload.architecture import Architecture
from simulator.workload.families import encoders, from_table, t5, table, traced_model
from simulator.workload.fields import Fields

READERS: Mapping[str, Callable[[Fields], Architecture]] = {
    "deberta-v2": encoders.deberta_v2,
    "swin": encoders.swin,
    "switch_transformers": t5.switch_transformers,
    "t5": t5.t5,
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
    prefix, inner = "", config.get("text_config")
    if isinstance(inner, Mapping) and not _is_known(config.get("model_type")):
        outer = {key: value for key, value in config.items() if key == "tie_word_embeddings"}
        config, prefix = {**outer, **inner}, "text_config."
    fields = Fields(config, name=visible(name), where=where, prefix=prefix)
    fields.family = _family(config, where, prefix)
    architecture = READERS.get(fields.family, from_table.from_row)(fields)
    fields.finish()
    return architecture


def _is_known(family: object) -> bool:
    return isinstance(family, str) and (family in READERS or table.has(family))


def _family(config: Mapping[str, Any], where: str, prefix: str) -> str:
    """Read ``model_type``; an unknown one is raised at once, for nothing else can be read."""
    family, place = config.get("model_type"), f"{prefix}model_type"
    if isinstance(family, str) and _is_known(family):
        return family
    if "model_type" not in config:
        raise InputError(f"{where}: {place}: required field is missing")
    rule = (
        f"must be one of {len(families())} types that have a row; a model of another type is traced"
        " from Python (Workload.from_torch, needs torch), or given by the sizes of a type that is"
        " built alike (llama, qwen3_moe, ...)"
    )
    raise InputError(problem(where, place, rule, family))


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
