"""One layout of an answer with everything that a person compares: JSON, page and explorer read it.

Times are in seconds, sizes in bytes; a value that does not exist (days of a run of unknown length)
is None, never NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from simulator.answers import Encoded, plain
from simulator.cost.terms import STREAM_OF
from simulator.economics.planning_factor import PlanningFactor, Span
from simulator.planner.input_verdict import InputVerdict, input_verdict
from simulator.records import dataclass
from simulator.search.best_layout import BestLayout
from simulator.search.checkpoints import Checkpoint, checkpoints
from simulator.search.defaults import layout_fields
from simulator.search.outcome import Outcome, answer_columns, spans

_COMMUNICATION = ("tensor", "context", "expert", "pipeline", "data")


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutRow(Encoded):
    """One layout; its terms add up to `step_time_s` and `memory_total_bytes`."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("layout", "step_time_s", "p10_s", "p90_s", "probability_fastest"),
        *("probability_beats_best", "tokens_per_s_per_gpu", "mfu", "hfu", "terms_s", "hidden_s"),
        *("input", "memory_bytes", "peak_stage", "memory_total_bytes", "usable_bytes"),
        *("host_memory_bytes", "nvme_bytes", "memory_p10_bytes", "memory_p90_bytes", "fits"),
        *("verdict=memory_verdict", "goodput", "lost", "interruption_every_s", "checkpoint"),
        "days_ideal",
        *("days", "days_p10", "days_p90", "gpu_hours", "usd_per_gpu_hour", "usd", "usd_p10"),
        *("usd_p90", "kwh", "kwh_p10", "kwh_p90", "co2_kg", "price", "planning_factor"),
        "planned_days",
        *("planned_usd", "planned_kwh", "deadline_chance", "budget_chance"),
        *("deadline_chance_without_factor", "budget_chance_without_factor"),
    )

    rank: int
    """Place in the answer, from 1."""
    layout: dict[str, Any]
    """Its fields as ``predict`` takes them back."""
    described: str
    """The same in a few words."""
    step_time_s: float
    p10_s: float
    p90_s: float
    probability_fastest: Any
    """Chance of being the fastest of the answer's layouts; None where they were not compared."""
    probability_beats_best: float | None
    ties: bool
    """Whether it cannot be told from the best one."""
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    mfu: float
    hfu: float
    terms_s: dict[str, float]
    hidden_s: dict[str, float]
    input: InputVerdict | None
    """How its input keeps up; None without a section [data]."""
    memory_bytes: dict[str, float]
    peak_stage: int
    """The fullest."""
    slowest_stage: int
    memory_total_bytes: float
    memory_p10_bytes: float | None
    memory_p90_bytes: float | None
    """None where the software has no spread."""
    usable_bytes: float
    host_memory_bytes: float
    nvme_bytes: float
    fits: bool
    memory_verdict: str
    """FITS, TIGHT or OOM."""
    goodput: float
    """Share of the time held that trains."""
    lost: dict[str, float] | None
    """Shares of the wall time that the run loses, by cause."""
    interruption_every_s: float | None
    checkpoint: Checkpoint
    """What it writes to go on from: bytes, seconds, how often, what stays."""
    days_ideal: float | None
    days: float | None
    days_p10: float | None
    days_p90: float | None
    """GPU-hours grow with them."""
    gpu_hours: float | None
    usd_per_gpu_hour: float | None
    usd: float | None
    usd_p10: float | None
    usd_p90: float | None
    """With the spread of the price."""
    kwh: float | None
    kwh_p10: float | None
    kwh_p90: float | None
    co2_kg: float | None
    """Of the energy, where [economics] or the price's site says the electricity comes from."""
    meets_deadline: bool
    meets_budget: bool
    price: dict[str, Any]
    """Of an accelerator's hour, where it comes from and how sure it is."""
    planning_factor: PlanningFactor | None
    """What published runs took on top of their prediction; None without a length, or all ideal."""
    planned_days: dict[str, float | None] | None
    planned_usd: dict[str, float | None] | None
    planned_kwh: dict[str, float | None] | None
    """Days, money and energy with it: P10, P50 and P90."""
    deadline_chance: float | None
    budget_chance: float | None
    """With the planning factor. None where no goal was set."""
    deadline_chance_without_factor: float | None
    budget_chance_without_factor: float | None

    @property
    def communication_share(self) -> float:
        """Exposed communication over step time."""
        return self._share(_COMMUNICATION)

    @property
    def bubble_share(self) -> float:
        """Idle time over step time."""
        return self._share(("idle",))

    @property
    def memory_headroom(self) -> float:
        """Share of usable memory that stays free on the fullest device."""
        return 1.0 - self.memory_total_bytes / self.usable_bytes

    def _share(self, streams: tuple[str, ...]) -> float:
        seconds = (s for name, s in self.terms_s.items() if STREAM_OF[name] in streams)
        return sum(seconds) / self.step_time_s


def layout_rows(answer: BestLayout, places: Iterable[int] = (0,)) -> list[LayoutRow]:
    """Tabulate layouts of an answer by their places, from 0."""
    estimate, outcome, sure = answer.estimate, answer.outcome, answer.certainty
    whole, chances = spans(estimate, outcome, sure), answer.goal_chances
    price, planned = outcome.price.usd_per_gpu_hour, answer.planned
    factor, in_time, in_budget = answer.planning_factor, answer.in_time, answer.in_budget
    places = tuple(places)
    saved = checkpoints(answer.scenario, estimate, outcome.real, places)
    columns = {
        **answer_columns(estimate, outcome, sure),
        "tokens_per_s": outcome.tokens_per_s,
        "probability_beats_best": sure.beats_best,
        "host_memory_bytes": estimate.offloaded_bytes["host"],
        "nvme_bytes": estimate.offloaded_bytes["nvme"],
        "deadline_chance": chances.deadline,
        "budget_chance": chances.budget,
        "deadline_chance_without_factor": chances.deadline_without_factor,
        "budget_chance_without_factor": chances.budget_without_factor,
        **{f"{name}_p10": getattr(whole, name)[0] for name in ("days", "usd", "kwh")},
        **{f"{name}_p90": getattr(whole, name)[1] for name in ("days", "usd", "kwh")},
    }
    tables = {name: getattr(estimate, name) for name in ("terms_s", "hidden_s", "memory_bytes")}
    return [
        LayoutRow(
            rank=i + 1,
            layout=layout_fields(answer.scenario, estimate.layouts, i),
            described=estimate.layouts.describe(i),
            ties=i < sure.tied,
            input=input_verdict(answer.scenario, estimate, i),
            usable_bytes=float(estimate.usable_bytes),
            usd_per_gpu_hour=None if price is None else float(price),
            price=outcome.price.origin,
            planning_factor=factor,
            planned_days=None if planned is None else _thirds(planned.days, i),
            planned_usd=None if planned is None else _thirds(planned.usd, i),
            planned_kwh=None if planned is None else _thirds(planned.kwh, i),
            meets_deadline=bool(in_time[i]),
            meets_budget=bool(in_budget[i]),
            checkpoint=checkpoint,
            **_lost(outcome, i),
            **{name: _row(table, i) for name, table in tables.items()},
            **{name: plain(column[i]) for name, column in columns.items()},
        )
        for i, checkpoint in zip(places, saved, strict=True)
    ]


def _lost(outcome: Outcome, i: int) -> dict[str, Any]:
    """Shares of wall time that a run loses, by cause, and how often it is interrupted."""
    if outcome.real is None:
        return {"lost": None, "interruption_every_s": None}
    per_s = float(outcome.real.failures[i].sum())
    every_s = 1.0 / per_s if per_s > 0.0 else None
    return {"lost": _row(outcome.real.phases, i), "interruption_every_s": every_s}


def _thirds(columns: tuple[Any, Any, Any], i: int) -> dict[str, float | None]:
    """P10, P50 and P90 of a layout."""
    return {name: plain(column[i]) for name, column in zip(Span.KEYS, columns, strict=True)}


def _row(columns: Mapping[str, Any], i: int) -> Any:
    return {name: float(column[i]) for name, column in columns.items()}
