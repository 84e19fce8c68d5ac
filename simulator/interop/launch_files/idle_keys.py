"""Keys of launch files on which neither time nor memory hangs here: ``idle_keys.toml``."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from simulator.files import read_toml

__all__ = ["idle_in"]

_TABLE = Path(__file__).resolve().parent / "idle_keys.toml"


@cache
def idle_in(dialect: str) -> Callable[[str], bool]:
    """The test for a dialect's idle keys.

    >>> idle_in("megatron")("lr_decay_style"), idle_in("megatron")("cuda_graph_impl")
    (True, False)
    """
    words = read_toml(_TABLE)[dialect].split()
    forms = (re.escape(word).replace(r"\*", ".*").replace(r"\?", ".") for word in words)
    pattern = re.compile("|".join(forms), re.S)
    return lambda key: pattern.fullmatch(key) is not None
