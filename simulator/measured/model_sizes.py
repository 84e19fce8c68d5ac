"""Sizes that a row of measured runs leaves blank: by its family, by a framework's default.

One that is taken is named in the row's column ``assumed``. The name of a model says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from simulator import catalogue
from simulator.files import build, read_toml, record


@record
class _Models:
    """validation/models.toml."""

    vocabulary: dict[str, str]
    """By family, and ``other``."""


@lru_cache(maxsize=4)
def _models(path: Path) -> _Models:
    return build(_Models, read_toml(path), where=str(path))


def with_sizes(fields: Mapping[str, str]) -> dict[str, str]:
    """Fill blank sizes of a row's model.

    ``moe_ffn_hidden`` of experts is ``ffn_hidden`` where it is blank: Megatron-Core's default of
    ``--moe-ffn-hidden-size`` (megatron/training/arguments.py).

    Parameters
    ----------
    fields : mapping
        Text by column.
    """
    known = _models(catalogue.folder("validation") / "models.toml")
    filled = dict(fields)
    if not _word(filled, "layers"):
        return filled  # nothing is known of the model: its vocabulary alone would not help
    assumed = []
    if not _word(filled, "vocab"):
        family = _word(filled, "family")
        filled["vocab"] = known.vocabulary.get(family, known.vocabulary["other"])
        assumed.append("vocab")
    if _word(filled, "num_experts") and not _word(filled, "moe_ffn_hidden"):
        filled["moe_ffn_hidden"] = _word(filled, "ffn_hidden")
        assumed.append("moe_ffn_hidden")
    if assumed:
        filled["assumed"] = "+".join(filter(None, (_word(filled, "assumed"), *assumed)))
    return filled


def _word(fields: Mapping[str, str], column: str) -> str:
    return (fields.get(column) or "").strip()
