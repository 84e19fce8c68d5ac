"""Measured steps of reinforcement learning: rows as scenarios, and what they say about an answer.

A table is known by its columns (``measured/table_kinds.py``). What its rows leave out stands in the
public recipes of the framework (hardware_profiles/rl_recipes.toml). Every shipped row was predicted
before anybody looked at it (validation/first_seen/rl_runs.csv); what it was off by then is what an
answer like it may expect: its error and interval.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from math import exp, log
from pathlib import Path
from typing import Any

from simulator import catalogue
from simulator.errors import InputError
from simulator.evidence.card import GRADES, LARGEST, Card
from simulator.files import check_header, figures, read_csv, read_toml
from simulator.measured.table_kinds import HEADERS
from simulator.records import dataclass
from simulator.reinforcement.rl_step import RLStep
from simulator.rollouts.profiles import load_framework
from simulator.rollouts.rl_section import RL
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


PRIOR_ERROR, PRIOR_RUNS = 0.15, 2.0
"""Error that is expected where nothing is near, and the runs that this is worth."""

_FAR = {
    **{"device": 0.4, "kind": 0.6, "mode": 0.6, "servers": 0.6, "framework": 0.4},
    **{"engine": 0.4, "tools": 0.4, "split": 0.6},
    **{"speculation": 0.4, "graphs": 0.4, "reward": 0.6, "model beside the policy": 0.6},
}
"""Weight of a run that differs in a trait."""
_NEAR = 0.5
_P90 = 1.2816
_MEAN_TO_DEVIATION = 1.2533
"""Standard deviation over mean absolute deviation of a normal distribution."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenStep:
    """A measured step, and the logarithm of what was predicted of it at first over it."""

    run_id: str
    traits: tuple[tuple[str, str], ...]
    error: float


def traits_of(scenario: Scenario, rl: RL) -> dict[str, str]:
    """What makes one step like another."""
    far = rl.generation.tp > scenario.cluster.node.accelerators
    return {
        "device": scenario.cluster.accelerator.name,
        "kind": scenario.workload.kind,
        "mode": rl.policy_age,
        "servers": "several" if far else "one",
        "framework": rl.framework,
        "engine": rl.generation.engine,
        "tools": "none" if rl.turns == 1 else "used",
        "split": rl.mode if rl.mode == "mixed" else "plain",
        "speculation": "none" if rl.generation.speculative_tokens == 0 else "draft layer",
        "graphs": "captured" if rl.generation.cuda_graphs else "none",
        "reward": rl.reward,
        "model beside the policy": _beside_the_policy(rl),
    }


def _beside_the_policy(rl: RL) -> str:
    if rl.algorithm == "ppo":
        return "critic"
    return "teacher" if rl.algorithm == "distillation" else "none"


@cache
def seen_steps() -> tuple[SeenStep, ...]:
    """Measured steps that were predicted before anybody looked, those of the fit left out."""
    folder = catalogue.folder("validation")
    path = folder / "first_seen" / "rl_runs.csv"
    first = {row["run_id"]: row["predicted_step_s"] for _, row in read_csv(path)}
    steps = []
    for line, row in read_csv(folder / "runs" / "rl_runs.csv"):
        predicted, measured = first.get(row["run_id"]), row["step_time_s"]
        run = RLRun(where=f"rl_runs.csv: line {line}", fields=row)
        if not (predicted and measured) or run.fitted:
            continue
        scenario = scenario_of(run)
        traits = traits_of(scenario, scenario.required(RL))
        error = log(float(predicted) / float(measured))
        steps.append(SeenStep(run_id=row["run_id"], traits=tuple(traits.items()), error=error))
    return tuple(steps)


def step_evidence(scenario: Scenario, step: RLStep, *, without: str = "") -> Card:
    """The evidence of a step; no run is evidence of itself, `without` leaves it out."""
    asked = traits_of(scenario, step.rl)
    weighed = sorted(
        ((_weight(asked, seen), seen) for seen in seen_steps() if seen.run_id != without),
        key=lambda item: -item[0],
    )
    near = [seen for weight, seen in weighed if weight >= _NEAR]
    whole = sum(weight for weight, _ in weighed) + PRIOR_RUNS
    error = sum(weight * abs(seen.error) for weight, seen in weighed) + PRIOR_RUNS * PRIOR_ERROR
    error /= whole
    if not near:
        error = max(error, PRIOR_ERROR) * 1.5
    alike = [seen for weight, seen in weighed if weight == 1.0]
    grade = _grade(error, len(alike), len(near))
    first = weighed[0][1] if weighed else None
    kernels = step.generated.replica.kernels
    borrowed = step.generated.replica.borrowed
    return Card(
        grade=grade,
        runs=len(near),
        mean_error=error,
        runs_error=_mean(abs(seen.error) for seen in near),
        nearest_run=first.run_id if first else None,
        nearest_error=exp(first.error) - 1.0 if first else None,
        nearest_distance=_differences(asked, first) if first else "",
        borrowed=tuple((name, borrowed) for name, _ in figures(kernels)) if borrowed else (),
        assumed=_assumed(step),
        widened_by={},
    )


def interval_s(card: Card, step_time_s: float) -> tuple[float, float]:
    """P10 and P90 of a step by the error that is to be expected."""
    spread = exp(_P90 * _MEAN_TO_DEVIATION * (card.mean_error or PRIOR_ERROR))
    return step_time_s / spread, step_time_s * spread


def _weight(asked: dict[str, str], seen: SeenStep) -> float:
    weight = 1.0
    for name, value in seen.traits:
        weight *= 1.0 if asked[name] == value else _FAR[name]
    return weight


def _grade(error: float, alike: int, near: int) -> str:
    if error <= LARGEST[0] and alike >= 2:
        return GRADES[0]
    if error <= LARGEST[1] and near >= 3:
        return GRADES[1]
    return GRADES[2] if near else GRADES[3]


def _differences(asked: dict[str, str], seen: SeenStep) -> str:
    other = [f"another {name}" for name, value in seen.traits if asked[name] != value]
    return ", ".join(other) or "alike in all that tells steps apart"


def _mean(errors: Iterable[float]) -> float | None:
    known = list(errors)
    return sum(known) / len(known) if known else None


def _assumed(step: RLStep) -> int:
    """Figures that nobody measured, of engine, framework and kernels."""
    replica = step.generated.replica
    return sum(
        figure.grade == "assumed"
        for profile in (replica.engine, step.framework, replica.kernels)
        for _, figure in figures(profile)
    )
