"""What fits and cases take as given: names of devices, releases, sources, in TOML files."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import tomli


@lru_cache(maxsize=16)
def _read(path: Path) -> dict[str, Any]:
    return tomli.loads(path.read_text(encoding="utf-8"))


def facts(module: str, table: str = "") -> dict[str, Any]:
    """Return a table of the ``facts.toml`` that lies beside a module (its ``__file__``)."""
    read = _read(Path(module).resolve().with_name("facts.toml"))
    return read[table] if table else read
