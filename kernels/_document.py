"""The document on disk: written whole, one record on a line."""

from __future__ import annotations

import json
import os
from pathlib import Path


def text_of(document: dict) -> str:
    """Return `document` as JSON text in which every item of a list has its own line."""
    parts = []
    for key, value in document.items():
        text = json.dumps(value, allow_nan=False)
        if isinstance(value, list) and value:
            lines = ",\n  ".join(json.dumps(item, allow_nan=False) for item in value)
            text = f"[\n  {lines}\n ]"
        parts.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def write_json(document: dict, path: Path) -> None:
    """Write `document` to `path` so that a reader, or a cut, never meets half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text_of(document))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
