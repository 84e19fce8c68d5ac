"""What if: the best layout before and after a change, and the old one on the changed machine.

A change is of the machine (``network.adapter=0.5``) or of any field of the scenario
(``training.global_batch=4096``). Both searches are whole, by the closed form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from simulator.answers import Answer
from simulator.errors import InputError, problem
from simulator.frames import DataFrame, Table, frame_of_rows
from simulator.planner.assumptions import Assumption, assumptions
from simulator.planner.changes import MACHINE_CHANGES, MachineChange, machine_with
from simulator.planner.layout_row import LayoutRow, layout_rows
from simulator.planner.plan import Plan, plan
from simulator.planner.prediction import Prediction, predict
from simulator.records import dataclass
from simulator.scenario import Scenario, make_scenario
from simulator.search.certainty import changed_total, ratio_span
from simulator.search.defaults import stated_layout
from simulator.sections import SECTIONS


@dataclass(frozen=True, kw_only=True, slots=True)
class TypedChange:
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
        if self.name not in MACHINE_CHANGES or MACHINE_CHANGES[self.name].kind != "factor":
            return f"{self.name} = {self.text}"
        if self.text.endswith("%"):
            return f"{self.name} {self.text}"
        return f"{self.name} x {self.value:g}"


@dataclass(frozen=True, kw_only=True, repr=False)
class WhatIf(Answer):
    """Both answers."""

    COMMAND: ClassVar[str] = "what-if"
    KEYS: ClassVar[tuple[str, ...]] = (
        *("scenario=before.scenario.document", "assumed_training=before.scenario.assumed"),
        "idle_fields=before.scenario.idle",
        "workload=before.scenario.workload.architecture",
        *("change", "*rows", "same_layout_reason?=same_reason", "step_time_ratio=ratio"),
        *("step_time_ratio_p10=span.0", "step_time_ratio_p90=span.1", "within_error"),
        *("run_within_error", "days_change=days_change.p50", "usd_change=usd_change.p50"),
        *("days_change_p10=days_change.p10", "days_change_p90=days_change.p90"),
        *("usd_change_p10=usd_change.p10", "usd_change_p90=usd_change.p90"),
        *("summary", "assumptions", "caveats"),
    )

    changes: tuple[TypedChange, ...]
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

    @property
    def span(self) -> tuple[float, float]:
        """P10 and P90 of the ratio of the step times: errors that both share cancel."""
        before, after = (plan.estimate.take([0]) for plan in (self.before, self.after))
        made = self.before.scenario
        return ratio_span(before, after, made.workload, made.cluster, made.software)

    @property
    def within_error(self) -> bool:
        """Whether the change may well be none: P10 to P90 of the ratio hold 1."""
        low, high = self.span
        return low <= 1.0 <= high

    @property
    def run_within_error(self) -> bool:
        """The same of the days: a change of the batch is one of the number of steps, too."""
        low, high = self.days_change["p10"], self.days_change["p90"]
        return self.within_error if low is None or high is None else low <= 0.0 <= high

    @property
    def verdict(self) -> str:
        """What the change does to the step, and whether that is within the error."""
        low, high = self.span
        factor = f"x {self.ratio:.3f} ({low:.3f} to {high:.3f}, {error_words(self.within_error)})"
        said = "unchanged" if low == high == 1.0 else factor
        return (
            f"with {', '.join(map(str, self.changes))}: step time {said}, the best layout of each"
        )

    @property
    def summary(self) -> list[str]:
        """The verdict, as JSON says it."""
        return [f"{self.verdict[0].upper()}{self.verdict[1:]}."]

    @property
    def days_change(self) -> dict[str, float | None]:
        """P10, P50 and P90 of the days of the best layout after less those before."""
        return changed_total(self.before.days, self.after.days, self.ratio, self.span)

    @property
    def usd_change(self) -> dict[str, float | None]:
        """The same of the money."""
        return changed_total(self.before.usd, self.after.usd, self.ratio, self.span)

    @property
    def assumptions(self) -> list[Assumption]:
        """What the answer before the change takes for granted and bears on it most."""
        return assumptions(self.before)

    @property
    def caveats(self) -> tuple[str, ...]:
        """What stands behind either answer, and what it leaves out."""
        return tuple(dict.fromkeys((*self.before.caveats, *self.after.caveats)))

    def to_frame(self, table: Table = "layouts") -> DataFrame:
        """One row per answer, before and after: the best layout's row of ``Plan.to_frame``."""
        rows = [plan.to_frame(table).iloc[0].to_dict() for plan in (self.before, self.after)]
        return frame_of_rows(rows)

    @property
    def ratio(self) -> float:
        """Step time of the best layout after over before."""
        return float(self.after.estimate.step_time_s[0] / self.before.estimate.step_time_s[0])


def error_words(within: bool) -> str:
    """Say whether a difference is within the error of the prediction."""
    return "within the error" if within else "beyond the error"


def parse_changes(texts: Sequence[str], *, where: str = "command line") -> list[TypedChange]:
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
    problems, changes = [], []
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            problems.append(problem(where, "--change", "must be name=value", text))
        elif name in MACHINE_CHANGES:
            number = _number(value, MACHINE_CHANGES[name])
            if number is None:
                problems.append(
                    problem(where, f"--change {name}", _rule(MACHINE_CHANGES[name]), value)
                )
            changes.append(TypedChange(name=name, text=value, value=number))
        elif name.partition(".")[0] in SECTIONS and "." in name:
            changes.append(TypedChange(name=name, text=value, value=None))
        else:
            rule = "unknown; give one of these, or a field of the scenario"
            problems.append(problem(where, "--change", rule, name, MACHINE_CHANGES))
    if not texts:
        problems.append(f"{where}: --change: at least one must be given")
    if problems:
        raise InputError(problems)
    return changes


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
        row = before.estimate.layouts.row(0)
        same = predict(changed, **stated_layout(row, before.scenario.software))
    except InputError as error:
        reason = error.problems[0].removeprefix(f"{scenario.where}: ")
    return WhatIf(changes=tuple(parsed), before=before, after=after, same=same, same_reason=reason)


def _changed(scenario: Scenario, changes: Sequence[TypedChange]) -> Scenario:
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
    values = [(change.name, change.value) for change in changes if change.value is not None]
    cluster, software = machine_with((made.cluster, made.software), *values)
    return replace(made, cluster=cluster, software=software)


def _number(text: str, thing: MachineChange) -> float | None:
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


def _rule(thing: MachineChange) -> str:
    """What a value may be."""
    if thing.kind == "factor":
        return f"must be a factor on {thing.meaning}: 0.5, x2, +20% or -10%, up to {thing.most:g}"
    what = "a whole number" if thing.kind == "count" else "a number"
    return f"must be {what} of {thing.meaning}, from {thing.least:g} to {thing.most:g}"
