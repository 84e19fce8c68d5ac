"""Counts parameters of published models by transformers' own classes, from their ``config.json``.

Run it where transformers and torch are installed, over a folder of published configs; ``python
tests/oracles/count_published.py FOLDER > tests/data/published_configs.json`` keeps of each config
what some row reads, as it was published: keys missing, old spellings. Models are built on the meta
device. A type that transformers does not know is left out.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers

from simulator.workload.families import table
from tests.oracles.count_families import built, config_of, parameters

PARTS = ("text_config", "vision_config", "audio_config")


def kept(config: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """Keep of a published config the fields that some row reads, in its parts too."""
    return {
        key: kept(value, known) if key in PARTS and isinstance(value, Mapping) else value
        for key, value in config.items()
        if key in known
    }


def known_fields() -> frozenset[str]:
    """Name every field that some row reads, and those that say what a model is."""
    rows = [table.row(family) for family in table.names()]
    fields = {name for row in rows for word in row.words for name in row.fields(word)}
    spelt = {old for row in rows for old in row.also.values()}
    return frozenset((fields | spelt | {*PARTS, "model_type", "architectures"}) - {"id2label"})


def count(config: Mapping[str, Any]) -> int:
    """Count the parameters of transformers' class of a config, with its own defaults."""
    changes = {key: value for key, value in config.items() if key != "model_type"}
    return parameters(built(config["model_type"], config_of(config["model_type"], changes)))


def main() -> None:
    """Print the facts of every config of a folder that transformers can build."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    known, cases, seen = known_fields(), [], set()
    for path in sorted(Path(sys.argv[1]).glob("*.json")):
        config = kept(json.loads(path.read_text()), known)
        text = json.dumps(config, sort_keys=True)
        try:
            counted = count(config)
        except Exception as error:
            print(f"{path.name}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        if text not in seen:
            seen.add(text)
            name = path.name.removesuffix(".json").removesuffix("_config").replace("--", "/")
            cases.append({"model": name, "config": config, "parameters": counted})
    made = f"transformers {transformers.__version__}"
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    print(f'{{"made_with": "{made}", "cases": [\n{lines}\n]}}')


if __name__ == "__main__":
    main()
