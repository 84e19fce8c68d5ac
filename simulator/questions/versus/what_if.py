"""What if: the best layout before and after a change, and the old one on the changed machine.

A change is of the machine (``network.adapter=0.5``) or of any field of the scenario
(``training.global_batch=4096``). Both searches are whole, by the closed form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from simulator.answers import Answer
from simulator.errors import InputError, problem
from simulator.frames import DataFrame, Table, frame_of_rows
from simulator.planner.layout_row import LayoutRow, layout_fields, layout_rows
from simulator.planner.machine_changes import (
    Machine,
    faster_host,
    faster_links,
    faster_matrices,
    faster_memory,
    faster_network,
    larger_memory,
    later_network,
    with_adapter_rate,
    with_adapters,
    with_domain,
    with_oversubscription,
)
from simulator.planner.plan import Plan, plan
from simulator.planner.prediction import Prediction, predict
from simulator.scenario import Scenario, make_scenario


@dataclass(frozen=True, kw_only=True, slots=True)
class Thing:
    """What can be changed of a machine."""

    meaning: str
    change: Callable[[Machine, float], Machine]
    kind: Literal["factor", "number", "count"] = "factor"
    """A factor on what is there, or the new value itself."""
    least: float = 0.0
    """Values are above 0 and at least as large."""
    most: float = 1e3


THINGS = {
    "matrix": Thing(meaning="FLOP/s of every matrix type", change=faster_matrices),
    "memory": Thing(meaning="bytes of device memory", change=larger_memory),
    "memory.bandwidth": Thing(meaning="bytes/s of device memory", change=faster_memory),
    "scale_up": Thing(meaning="bytes/s inside the fast domain", change=faster_links),
    "scale_up.domain": Thing(
        meaning="accelerators of the fast domain",
        change=with_domain,
        kind="count",
        least=1,
        most=1 << 16,
    ),
    "network.adapter": Thing(meaning="bytes/s of every adapter", change=faster_network),
    "network.gbps": Thing(
        meaning="Gbit/s of every adapter", change=with_adapter_rate, kind="number", most=1e5
    ),
    "network.adapters": Thing(
        meaning="adapters of a server", change=with_adapters, kind="count", least=1, most=64
    ),
    "network.latency": Thing(meaning="seconds of a network hop", change=later_network),
    "network.oversubscription": Thing(
        meaning="downlinks for an uplink above the leaves",
        change=with_oversubscription,
        kind="number",
        least=1.0,
    ),
    "host": Thing(meaning="kernels that a host enqueues per second", change=faster_host),
}
"""What ``--change`` takes beside the fields of a scenario."""

_SECTIONS = ("model", "training", "cluster", "layout", "goal")


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One change as it was typed."""

    name: str
    text: str
    """Its value as typed."""
    value: float | None
    """A factor or a number; None for a field of the scenario."""

    def __str__(self) -> str:
        """Say what is changed; a factor as one, so that ``memory=80`` is not read as GiB.

        >>> print(*parse_changes(["memory=2", "matrix=-10%", "network.gbps=400"]), sep=", ")
        memory x 2, matrix -10%, network.gbps = 400
        """
        if self.name not in THINGS or THINGS[self.name].kind != "factor":
            return f"{self.name} = {self.text}"
        if self.text.endswith("%"):
            return f"{self.name} {self.text}"
        return f"{self.name} x {self.value:g}"


@dataclass(frozen=True, kw_only=True, repr=False)
class WhatIf(Answer):
    """Both answers."""

    COMMAND: ClassVar[str] = "what-if"
    KEYS: ClassVar[tuple[str, ...]] = (
        *("scenario=before.scenario.document", "workload=before.scenario.workload.architecture"),
        *("change", "*rows", "same_layout_reason?=same_reason", "step_time_ratio=ratio"),
    )

    changes: tuple[Change, ...]
    before: Plan
    after: Plan
    same: Prediction | None
    """The best layout of before on the changed machine; None where it cannot run there."""
    same_reason: str
    """Why it cannot."""

    @property
    def line(self) -> str:
        """The best layout before and after, and what the change does to its step time."""
        before, after = (plan.estimate.layouts.describe(0) for plan in (self.before, self.after))
        same = "the same layout" if before == after else f"{before}, then {after}"
        return f"step time x {self.ratio:.3f}, {same}"

    @property
    def change(self) -> dict[str, str]:
        """What was changed, as typed."""
        return {change.name: change.text for change in self.changes}

    @property
    def rows(self) -> dict[str, LayoutRow | None]:
        """The best layout before and after, and that of before on the changed machine."""
        answers = {"before": self.before, "after": self.after, "same_layout": self.same}
        return {name: layout_rows(x)[0] if x else None for name, x in answers.items()}

    def to_frame(self, table: Table = "layouts") -> DataFrame:
        """One row per answer, before and after: the best layout's row of ``Plan.to_frame``."""
        rows = [plan.to_frame(table).iloc[0].to_dict() for plan in (self.before, self.after)]
        return frame_of_rows(rows)

    @property
    def ratio(self) -> float:
        """Step time of the best layout after over before."""
        return float(self.after.estimate.step_time_s[0] / self.before.estimate.step_time_s[0])


def parse_changes(texts: Sequence[str], *, where: str = "command line") -> list[Change]:
    """Read changes: ``name=0.5``, ``name=+20%``, ``name=x2``, ``section.field=value``.

    Raises
    ------
    InputError
        With every wrong one: the nearest name, or what its value may be.

    Examples
    --------
    >>> [(one.name, one.value) for one in parse_changes(["memory=+20%", "network.adapter=0.5"])]
    [('memory', 1.2), ('network.adapter', 0.5)]
    """
    problems, found = [], []
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            problems.append(problem(where, "--change", "must be name=value", text))
        elif name in THINGS:
            number = _number(value, THINGS[name])
            if number is None:
                problems.append(problem(where, f"--change {name}", _rule(THINGS[name]), value))
            found.append(Change(name=name, text=value, value=number))
        elif name.partition(".")[0] in _SECTIONS and "." in name:
            found.append(Change(name=name, text=value, value=None))
        else:
            rule = "unknown; give one of these, or a field of the scenario"
            problems.append(problem(where, "--change", rule, name, THINGS))
    if not texts:
        problems.append(f"{where}: --change: at least one must be given")
    if problems:
        raise InputError(problems)
    return found


def what_if(scenario: Scenario, changes: Sequence[str]) -> WhatIf:
    """Search a scenario before and after some changes, all of them together.

    Raises
    ------
    InputError
        If a change is unknown or makes no sense.
    InfeasibleError
        If no layout can run and fit, before or after.
    """
    parsed = parse_changes(changes, where=scenario.where)
    changed = _changed(scenario, parsed)
    before, after = plan(scenario), plan(changed)
    same, reason = None, ""
    try:
        same = predict(changed, **_typed(before))
    except InputError as error:
        reason = error.problems[0].removeprefix(f"{scenario.where}: ")
    return WhatIf(changes=tuple(parsed), before=before, after=after, same=same, same_reason=reason)


def _changed(scenario: Scenario, changes: Sequence[Change]) -> Scenario:
    """The scenario with all changes made, those of fields first."""
    fields = [f"{change.name}={change.text}" for change in changes if change.value is None]
    made = scenario
    if fields:
        other = any(text.startswith("model.") for text in fields)
        made = make_scenario(
            scenario.document,
            where=scenario.where,
            overrides=fields,
            architecture=None if other else scenario.workload.architecture,
        )
    machine: Machine = (made.cluster, made.software)
    for one in changes:
        if one.value is not None:
            machine = THINGS[one.name].change(machine, one.value)
    return replace(made, cluster=machine[0], software=machine[1])


def _typed(plan: Plan) -> dict[str, object]:
    """The best layout of a plan as predict takes it back; dp and groups follow the cluster."""
    row = layout_fields(plan.scenario, plan.estimate.layouts)
    del row["global_batch"]
    if row["shard_group"] == row["dp"] * row["cp"]:
        del row["shard_group"]
    del row["dp"]
    return row


def _number(text: str, thing: Thing) -> float | None:
    """Read a value; None where it is none, or out of bounds."""
    percent = re.fullmatch(r"([+-]\d+(?:\.\d+)?)\s*%", text)
    plain = re.fullmatch(r"x?\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)", text)
    if percent and thing.kind == "factor":
        value = 1.0 + float(percent.group(1)) / 100.0
    elif plain and (thing.kind == "factor" or not text.startswith("x")):
        value = float(plain.group(1))
    else:
        return None
    if value > thing.most or (thing.kind == "count" and value != int(value)):
        return None
    return value if value >= thing.least and value > 0.0 else None


def _rule(thing: Thing) -> str:
    """What a value may be."""
    if thing.kind == "factor":
        return f"must be a factor on {thing.meaning}: 0.5, x2, +20% or -10%, up to {thing.most:g}"
    what = "a whole number" if thing.kind == "count" else "a number"
    return f"must be {what} of {thing.meaning}, from {thing.least:g} to {thing.most:g}"
