"""Measured steps of reinforcement learning: a row of a table as a scenario.

A table is known by its columns (``measured/table_kinds.py``). What its rows leave out stands in the
public recipes of the framework (hardware_profiles/rl_recipes.toml).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from simulator import catalogue
from simulator.errors import InputError
from simulator.files import check_header, read_csv, read_toml
from simulator.measured.table_kinds import HEADERS
from simulator.records import dataclass
from simulator.rollouts.profiles import load_framework
from simulator.scenario import Scenario, make_scenario


@dataclass(frozen=True, kw_only=True, slots=True)
class RLRun:
    """A row."""

    where: str
    fields: Mapping[str, str]

    @property
    def measured_s(self) -> float | None:
        """The measured step."""
        text = self.fields.get("step_time_s", "")
        return float(text) if text else None

    @property
    def fitted(self) -> bool:
        """Whether figures were fitted to it."""
        return self.fields["run_id"] in _recipes()["fitted"]

    @property
    def on_policy(self) -> bool:
        """Whether weights are never old."""
        return self.fields["policy_lag"].lower().startswith("on")


def read_rl_table(path: Path) -> list[RLRun]:
    """Read a table; InputError with every problem of its header."""
    runs: list[RLRun] = []
    for line, row in read_csv(path):
        if not runs:
            header = HEADERS["rl"]
            check_header(path, list(row), required=header.required, known=header.columns)
        runs.append(RLRun(where=f"{path}: line {line}", fields=row))
    return runs


@cache
def _recipes() -> dict[str, Any]:
    return read_toml(catalogue.folder("hardware_profiles") / "rl_recipes.toml")


def scenario_of(run: RLRun) -> Scenario:
    """Make the scenario of a row.

    Raises
    ------
    InputError
        If it leaves out what nothing else says, or names what is not known.
    """
    fields, recipes = run.fields, _recipes()
    framework = fields["source"]
    if framework not in recipes["clusters"]:
        raise InputError(f"{run.where}: source: no facts of this framework, got {framework}")
    needed = ("policy_lag", "avg_generated_len", "gpus", "generation_tp_pp",
              "training_tp_cp_ep_pp_vpp")  # fmt: skip
    missing = [name for name in needed if not fields.get(name)]
    if missing:
        raise InputError(f"{run.where}: not stated: {', '.join(missing)}")
    model = recipes["models"].get(fields["model"])
    if model is None:
        raise InputError(f"{run.where}: model: not known, got {fields['model']}")
    said = recipes.get(framework, {})
    recipe = {**said.get("usual", {}), **said.get(model, {})}
    return make_scenario(_document(run, model, recipe, said), where=run.where)


def _document(
    run: RLRun, model: str, recipe: Mapping[str, Any], said: Mapping[str, Any]
) -> dict[str, Any]:
    fields = run.fields
    gpus, samples = int(fields["gpus"]), int(recipe["samples"])
    layout, generation = (
        _layout(fields["training_tp_cp_ep_pp_vpp"]),
        _list(fields["generation_tp_pp"]),
    )
    layout["recompute"] = recipe["recompute"]
    if (stages := recipe.get("stages", {}).get(str(layout["pp"]))) is not None:
        layout["stages"] = list(stages)
    engine: dict[str, Any] = {"tp": int(generation[0])}
    training: dict[str, Any] = {}
    if "FP8" in fields.get("section", ""):
        engine |= {"precision": "fp8", **recipe.get("fp8", {})}
        training["precision"] = said["fp8_training"]
    lag = 0 if run.on_policy else int(fields["policy_lag"].split("-")[0])
    if lag:
        engine["gpus"] = recipe.get("generating", {}).get(str(gpus), gpus // 2)
    elif recipe.get("asynchronous"):
        engine["asynchronous"] = True
    return {
        "model": {"name": model},
        "training": {
            "sequence_length": int(fields["train_max_seq"]),
            "global_batch": int(fields["train_global_batch"]),
            **training,
        },
        "cluster": {
            "name": _cluster(run),
            "gpus": gpus,
            "software": load_framework(fields["source"], where=run.where).software,
        },
        "layout": layout,
        "rl": {
            "algorithm": fields["algorithm"].lower(),
            "prompts": int(fields["gen_global_batch"]) // samples,
            "samples": samples,
            "prompt_tokens": int(said["prompt_tokens"]),
            "answer_tokens": float(fields["avg_generated_len"]),
            "mode": "apart" if lag else "colocated",
            "staleness": lag,
            "framework": fields["source"],
            "generation": engine,
        },
    }


def _cluster(run: RLRun) -> str:
    """The cluster that a table's section names."""
    words = _recipes()["clusters"][run.fields["source"]]
    section = run.fields.get("section", "")
    for word, cluster in words.items():
        if word and section.startswith(word):
            return str(cluster)
    if not section and "" in words:
        return str(words[""])
    raise InputError(f"{run.where}: section: no cluster is known for it, got {section or 'none'}")


def _list(text: str) -> list[Any]:
    """A list as tables print it; words that are no numbers stay words."""
    items = text.strip().strip("[]").split(",")
    return [json.loads(item) if item.strip().isdigit() else item.strip() for item in items]


def _layout(text: str) -> dict[str, Any]:
    """Fields of [layout] from tp, cp, ep, pp, vpp.

    Rows of Llama print one number more: first three and last two are what they are elsewhere.
    """
    items = _list(text)
    if len(items) < 5:
        raise InputError(f"training_tp_cp_ep_pp_vpp: must be [tp, cp, ep, pp, vpp], got {text}")
    tp, cp, ep = items[:3]
    pp, vpp = items[-2:]
    layout = {"tp": tp, "cp": cp, "ep": ep, "pp": pp}
    if isinstance(vpp, int) and vpp > 1:
        layout["vpp"] = vpp
    return {name: value for name, value in layout.items() if value != 1 or name == "pp"}
