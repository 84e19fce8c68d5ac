"""What measured steps of reinforcement learning say about an answer: error to expect, interval.

Every shipped row was predicted before anybody looked at it (validation/first_seen/rl_runs.csv);
what it was off by then is what an answer like it may expect.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from math import exp, log

from simulator import catalogue
from simulator.evidence.card import GRADES, LARGEST, Card
from simulator.files import figures, read_csv
from simulator.records import dataclass
from simulator.reinforcement.rl_step import RLStep
from simulator.reinforcement.runs import RLRun, scenario_of
from simulator.rollouts.rl_section import RL
from simulator.scenario import Scenario

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
