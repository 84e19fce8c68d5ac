"""The cause, and how much of it, that makes the prediction equal what was measured.

Each cause is solved for the amount at which the predicted step is as long as the measured one. How
probable it is follows from Bayes' rule: the chance that runs disappoint for it, times how well a
run with it agrees with everything that was seen: step time, memory, the parts of a traced step, the
course of step times, and what the log says in words. One more account stands among them: that
nothing is wrong, and the prediction is as far off as its interval says. A last one: that the
scenario does not describe the run, whose step time may then be anything.

    P(cause | seen)  ~  prior x (integral over amounts of P(amount) P(step | amount))
                        x P(memory) x P(parts of the step) x P(course) x P(words)

Errors of the prediction have Student's t of 4 degrees of freedom, since their tails are heavy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from simulator.answers import Answer
from simulator.arrays import Floats
from simulator.errors import InputError
from simulator.frames import DataFrame, frame_of_rows
from simulator.interop.logs.readers import Timers, keep_timers, log_kind, read_timers, reader_of
from simulator.planner.prediction import Prediction, predict
from simulator.questions.diagnose.causes import Cause, added_s, can_have, causes, with_cause
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.scoring.memory_reading import memory_of_kind_gib
from simulator.scoring.trace import measure
from simulator.scoring.trace_gap import compare_trace, predicted_parts
from simulator.units import GIB, show_percent, show_seconds

NOTHING = 0.35
"""Chance, before anything is seen, that a run which somebody asks about is as it should be."""

NOT_THE_RUN = 0.05
"""Chance, before anything is seen, that the scenario describes another run than the measured."""

_ANYTHING = 1.0 / (2.0 * math.log(30.0))
"""Density of the step time of any other run, over its logarithm: up to 30 times off either way."""

_LOST_SIGMA = 0.04
"""Of what the mean of a steady log loses over its median, as a share of it."""

_PLAUSIBLE = 3.0
"""Standard deviations that an amount of a plausible size may lie from the typical one."""

_SELDOM = 0.02
"""Share of steps (two at least) that may be slow by accident: a hang, a restart, an evaluation."""

_INTERVAL = 20
"""Steps, at least, between single slow steps that return evenly: checkpoints and evaluations."""

_AMOUNTS = 7
"""At which a cause is priced, in equal ratios; between them step times are interpolated."""

_FINE = 400

_HALVINGS = 4
"""Of the ratio of two amounts, after which the amount is within 3 % of what it is."""

_MEMORY_SIGMA = 0.06
"""Of the logarithm of predicted over measured peak memory (docs/accuracy.md: 2 to 6 %)."""

_PART_SIGMA, _PART_FLOOR = 0.15, 0.02
"""Of a part of a traced step: a share of the part, and of the step."""

_KINDS = ("steady", "tails", "drift", "periodic")
_COURSES = {
    "steady": (0.92, 0.03, 0.03, 0.02),
    "tails": (0.26, 0.70, 0.02, 0.02),
    "drift": (0.45, 0.02, 0.50, 0.03),
    "periodic": (0.23, 0.02, 0.05, 0.70),
}
"""Chance that step times look like each of `_KINDS`, by how the cause makes them look.

`course_of` tells them apart in 89 to 99 % of series with noise of 0.3 to 4 %, whose neighbours are
correlated by 0 to 0.95 (tests/questions/logged_runs.py). Assumed beside: of loaders one in four is
late in every step, of imbalances every second stays, of neighbours one in five.
"""

_WORDS = 12.0
"""Odds for a cause of which the log speaks."""

_STATED = 100.0
"""Odds for and against a cause where the software at fault prints which way it took."""

_ALIKE = 3.2
"""Ratio of evidence that is "not worth more than a bare mention" (Kass and Raftery 1995, 3.2)."""

_MOST = 0.5
"""Share of the gap from which a cause counts as the one: it leaves less than it explains."""

_LEVELS = 4
"""Steps in a row, at least, of most that are slow where slow stretches come and go."""

_PASSES = ("gemm", "attention", "memory_bound", "tp", "cp", "ep", "launch")
"""Parts of a step that its passes have; the first three are what a slow server slows."""

_FEWEST = 20
"""Step lines below which their course says nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """One cause and the amount of it that explains the run."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("name", "says", "amount", "unit", "explains", "probability", "step_time_s"),
        *("memory_bytes", "looks_like", "test", "words", "plausible"),
    )

    name: str
    says: str
    amount: float | None
    """None where it is there or not."""
    unit: str
    explains: float
    """Share of the gap between prediction and measurement."""
    probability: float
    step_time_s: float
    """Predicted with it."""
    memory_bytes: float | None
    """Peak predicted with it."""
    looks_like: str
    """Where else one would see it."""
    test: str
    """Five minutes that decide."""
    words: tuple[str, ...] = ()
    """Lines of the log that speak of it."""
    plausible: bool = True
    """Whether so much of it is likely enough to be, and brings the measured step within P10 to P90
    of the run with it."""

    @property
    def amount_words(self) -> str:
        """The amount with its unit."""
        if self.amount is None:
            return self.unit
        if self.unit == "s per step":
            return f"{show_seconds(self.amount)} a step"
        if self.unit.startswith("share"):
            return f"{show_percent(self.amount)} {self.unit.removeprefix('share ')}"
        return f"{self.amount:.2f} {self.unit}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """What step times of a run look like."""

    kind: str
    """steady, tails, drift, periodic; blank where too few are known."""
    tail_share: float = 0.0
    """Of steps that take over 1.25 times the median, without those aside."""
    drift: float = 0.0
    """Growth from the first to the last step, as a share of the median."""
    period: int = 0
    """Steps between slow stretches; 0 where they do not return evenly."""
    mean_s: float = 0.0
    """Mean step, without those aside; 0 where too few are known."""
    lost: float = 0.0
    """What the mean takes over the median, as a share of the median."""
    aside: int = 0
    """Slow steps left out of the mean: checkpoints, evaluations, accidents."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What is known of a run."""

    measured_s: float
    memory_bytes: Mapping[str, float] = field(default_factory=dict)
    """Peak of the fullest rank by kind of reading: allocated, reserved."""
    parts_s: Mapping[str, float] | None = None
    """Of a traced step, by cause (``scoring/trace_gap.py``)."""
    course: Course = Course(kind="")
    lines: tuple[str, ...] = ()
    """Lines of its log that speak of some cause."""
    settled: frozenset[str] = frozenset()
    """Fields of layout and training that its log states, and the prediction has."""
    timers: Timers = Timers()
    """Of its log."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Diagnoses(Answer):
    """Causes of a run's step time, the most probable first."""

    COMMAND: ClassVar[str] = "diagnose"
    KEYS: ClassVar[tuple[str, ...]] = (
        "assumed_training=prediction.scenario.assumed",
        "idle_fields=prediction.scenario.idle",
        *("measured_step_s", "predicted_step_s", "p10_s", "p90_s", "gap_s", "course", "causes"),
        *("unexplained", "nothing_wrong", "not_the_run", "verdict", "says", "not_possible"),
        *("alike", "by_trace", "caveats"),
    )

    prediction: Prediction
    measured_step_s: float
    course: Course
    causes: tuple[Diagnosis, ...]
    nothing_wrong: float
    """Probability that the prediction is off, and the run as it should be."""
    not_the_run: float
    """Probability that the scenario describes another run."""
    not_possible: tuple[str, ...]
    """Causes that this run cannot have."""
    alike: tuple[str, ...] = ()
    """Causes that what is given does not tell from the first, which is among them: their order is
    that of how often they occur."""
    by_trace: tuple[tuple[str, ...], ...] = ()
    """Of these, sets that a trace of one step would tell apart; none where one was given."""

    @property
    def predicted_step_s(self) -> float:
        """As predicted, without any of them."""
        return self.prediction.step_time_s

    @property
    def p10_s(self) -> float:
        """Of the prediction."""
        return float(self.prediction.certainty.p10_s[0])

    @property
    def p90_s(self) -> float:
        """Of the prediction."""
        return float(self.prediction.certainty.p90_s[0])

    @property
    def gap_s(self) -> float:
        """Measured less predicted."""
        return self.measured_step_s - self.predicted_step_s

    @property
    def unexplained(self) -> float:
        """Share of the gap that the most probable cause leaves."""
        return 1.0 - self.causes[0].explains if self.causes else 1.0

    @property
    def inside(self) -> bool:
        """Whether the measured steps, typical and mean, lie within P10 to P90."""
        steps = self.measured_step_s, self.course.mean_s or self.measured_step_s
        return all(self.p10_s <= step <= self.p90_s for step in steps)

    @property
    def verdict(self) -> Literal["within", "cause", "outside", "faster", "slower"]:
        """What follows.

        within: nothing to look for; cause: the first one explains it; outside: outside P10 to P90,
        and no cause is more probable than an error of the prediction; faster, slower: than
        the prediction and any cause of a plausible size allow.
        """
        first = self.causes[0].probability if self.causes else 0.0
        far: Literal["faster", "slower"] = "faster" if self.gap_s < 0.0 else "slower"
        if self.not_the_run >= max(first, self.nothing_wrong):
            near = bool(self.causes) and self.causes[0].plausible and 2.0 * first > self.not_the_run
            return "cause" if near else far
        if self.nothing_wrong >= first:
            return "within" if self.inside else "outside"
        return "cause" if self.inside or self.causes[0].plausible else far

    @property
    def says(self) -> str:
        """The verdict in a sentence."""
        verdict, off = self.verdict, show_percent(self.nothing_wrong)
        check = (
            "check global batch, sequence length, number of GPUs, precision and model of the"
            " scenario against the run"
        )
        if verdict == "within":
            return (
                "Nothing that must be looked for: what is measured lies within what the prediction"
                f" may be off (probability {off})."
            )
        if verdict == "outside":
            course = self.course.mean_s or self.measured_step_s
            side = "below P10" if min(self.measured_step_s, course) < self.p10_s else "above P90"
            return (
                f"What is measured lies {side} of the prediction, and no cause explains it better"
                f" than an error of the prediction (probability {off}): {check}."
            )
        if verdict == "faster":
            return f"Faster than the prediction allows: the scenario is not the run; {check}."
        if verdict == "slower":
            none = not any(cause.plausible for cause in self.causes)
            what = (
                "cause of a plausible size explains" if none else "one cause is likely to make it"
            )
            return (
                f"Slower than any {what}: the scenario is not the run, or several causes act"
                f" together; {check}."
            )
        first = self.causes[0]
        sure = (
            "Most probably" if first.probability >= 0.5 else "No cause is certain; the likeliest:"
        )
        return (
            f"{sure} {first.says}: {first.amount_words}, probability"
            f" {show_percent(first.probability)}, {show_percent(first.explains)} of the gap."
        )

    @property
    def line(self) -> str:
        """All of it in a few words."""
        return {
            "within": f"within what the prediction may be off ({self.nothing_wrong:.0%})",
            "outside": f"outside P10 to P90, no cause ({self.nothing_wrong:.0%})",
            "faster": "faster than the prediction allows",
            "slower": "slower than any cause explains",
            "cause": "".join(f"{c.says} ({c.probability:.0%})" for c in self.causes[:1]),
        }[self.verdict]

    @property
    def caveats(self) -> tuple[str, ...]:
        """What it leaves out."""
        return (
            "One cause at a time: two that act together look like a third.",
            "Chances before anything is seen are assumed (hardware_profiles/causes.toml); the test"
            " beside each cause decides, not its probability.",
        )

    def to_frame(self) -> DataFrame:
        """One row per cause."""
        keys = [key for key in Diagnosis.KEYS if key != "words"]
        return frame_of_rows([{key: getattr(row, key) for key in keys} for row in self.causes])


def course_of(step_times_s: Floats) -> Course:
    """Say what step times look like: with tails, a drift, slow stretches that return, or steady."""
    steps = np.asarray(step_times_s, float)
    if len(steps) < _FEWEST:
        return Course(kind="")
    middle = float(np.median(steps))
    slow = steps > 1.25 * middle
    aside = _aside(slow)
    slow &= ~aside
    third = max(len(steps) // 3, 1)
    drift = float(np.median(steps[-third:]) - np.median(steps[:third])) / middle
    noise = float(np.median(np.abs(np.diff(steps)))) / middle
    returns, period = _slow_stretches(steps, noise * middle)
    kind = "steady"
    if returns:
        kind = "periodic"
    elif abs(drift) > max(0.04, 2.0 * noise):
        kind = "drift"
    elif 0.02 <= slow.mean() <= 0.4:
        kind = "tails"
    mean_s = float(steps[~aside].mean())
    return Course(
        kind=kind,
        tail_share=float(slow.mean()),
        drift=drift,
        period=period,
        mean_s=mean_s,
        lost=max(mean_s / middle - 1.0, 0.0),
        aside=int(aside.sum()),
    )


def _aside(slow: Any) -> Any:
    """Which steps are checkpoints, evaluations or accidents: seldom, or alone and evenly apart."""
    starts = [start for start, _ in _stretches(slow)]
    gaps = np.diff(starts)
    alone = all(length == 1 for _, length in _stretches(slow))
    even = len(gaps) >= 2 and alone and np.ptp(gaps) == 0 and gaps[0] >= _INTERVAL
    seldom = slow.sum() <= max(_SELDOM * len(slow), 2)
    return slow.copy() if even or seldom else np.zeros_like(slow)


def _slow_stretches(steps: Floats, noise_s: float) -> tuple[bool, int]:
    """Whether slow stretches return, and after how many steps (0: not evenly).

    Evenly, or between two levels: few steps lie between these, and few that are slow stand alone.
    """
    low, high = np.percentile(steps, [10.0, 90.0])  # of two levels, however long each lasts
    if high - low <= max(6.0 * noise_s, 0.03 * float(np.median(steps))):
        return False, 0
    slow = steps > (low + high) / 2.0
    stretches = _stretches(slow)
    gaps = np.diff([start for start, length in stretches if length >= 3])
    even = len(gaps) >= 2 and np.ptp(gaps) <= 0.5 * gaps.mean() and gaps.sum() >= 0.4 * len(steps)
    lasting = [length for _, length in stretches if length >= _LEVELS]
    between = np.abs(steps - (low + high) / 2.0) < 0.25 * (high - low)
    levels = len(lasting) >= 2 and between.mean() < 0.2 and sum(lasting) >= 0.7 * slow.sum()
    return bool(even or levels), int(np.median(gaps)) if even else 0


def _stretches(slow: Any) -> list[tuple[int, int]]:
    """Starts and lengths of stretches of slow steps."""
    edges = np.flatnonzero(np.diff(np.r_[0, np.asarray(slow, int), 0]))
    return [(int(a), int(b - a)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def spoken(lines: Iterable[str]) -> tuple[str, ...]:
    """Lines of a log that speak of some cause, the first of every kind."""
    patterns = [
        re.compile(pattern)
        for cause in causes().values()
        for pattern in (*cause.words, *cause.stated, *cause.denied)
    ]
    first: dict[int, str] = {}
    for line in lines:
        short = line[:400]
        for number, pattern in enumerate(patterns):
            if number not in first and pattern.search(short):
                first[number] = short.strip()
    return tuple(dict.fromkeys(first.values()))


def read_run(
    scenario: Scenario,
    log: Path | None,
    trace: Path | None,
    step_time_s: float | None = None,
) -> tuple[Prediction, Seen]:
    """Read what is known of a run, and predict it.

    Raises
    ------
    InputError
        With the problems of the log or the trace, or where it contradicts the scenario.
    """
    from simulator.interop.traces.kineto import read_trace
    from simulator.interop.traces.nsys import is_nsys, read_nsys
    from simulator.scoring.logs import compare

    memory: dict[str, float] = {}
    parts = None
    course, measured_s = Course(kind=""), step_time_s
    lines: tuple[str, ...] = ()
    prediction, settled, timers = None, frozenset[str](), Timers()
    if log is not None:
        recipe, gpus = scenario.workload.recipe, scenario.cluster.gpus
        read = reader_of(log_kind(log))(log, recipe, gpus)
        comparison = compare(read, scenario)
        prediction, measured_s = comparison.prediction, read.median_step_s
        settled = frozenset(read.stated)
        course, memory = course_of(read.kept_s), comparison.memory_of_a_whole_step()
        if log.is_file():  # a folder of a tracker has numbers alone
            with_timers: list[str] = []
            with log.open(encoding="utf-8", errors="replace") as text:
                lines = spoken(keep_timers(text, with_timers))
            timers = read_timers(with_timers)
    if prediction is None:
        prediction = predict(scenario)
    if trace is not None:
        step = measure(read_nsys(trace) if is_nsys(trace) else read_trace(trace), steps=None)
        gaps = compare_trace(step, prediction.scenario).causes
        parts = {cause.name: cause.measured_s for cause in gaps}
        measured_s = measured_s or step.step_s
    seen = Seen(
        measured_s=measured_s or 0.0,
        memory_bytes=memory,
        parts_s=parts,
        course=course,
        lines=lines,
        settled=settled,
        timers=timers,
    )
    return prediction, seen


def diagnose(prediction: Prediction, seen: Seen) -> Diagnoses:
    """Solve every cause for its amount and weigh it.

    Parameters
    ----------
    prediction : Prediction
        Of the run as it should be.
    seen : Seen
        What was measured.

    Raises
    ------
    InputError
        If the measured step time is not a positive number.
    """
    if not 0.0 < seen.measured_s < math.inf:
        raise InputError(f"measured step time: must be above 0 s, got {seen.measured_s!r}")
    solved: list[_Weighed] = []
    absent: list[str] = []
    for name, cause in causes().items():
        can = can_have(cause, prediction, seen.memory_bytes, seen.settled)
        made = _solved(name, cause, prediction, seen) if can else None
        if made is None:
            absent.append(cause.says)
        else:
            solved.append(made)
    sigma = _sigma(prediction)
    nothing = _step_density(prediction.step_time_s, seen.measured_s, sigma)
    course = _of_course("steady", seen.course)
    nothing *= NOTHING * _rest(prediction, seen) * course * _steady(seen.course)
    nothing *= _timed(prediction, seen)
    unread = replace(seen, memory_bytes={})  # of another run it may be anything
    other = NOT_THE_RUN * _ANYTHING * _rest(prediction, unread) * course
    other *= _ANYTHING * _MEMORY_SIGMA / 0.375 if seen.memory_bytes else 1.0
    scale = (1.0 - NOTHING - NOT_THE_RUN) / sum(cause.prior for cause in causes().values())
    solved.sort(key=lambda made: -made.prior * made.evidence)
    weights = [scale * made.prior * made.evidence for made in solved]
    total = (nothing + other + sum(weights)) or 1.0
    alike = [made for made in solved if _ALIKE * made.evidence >= solved[0].evidence > 0.0]
    return Diagnoses(
        prediction=prediction,
        measured_step_s=seen.measured_s,
        course=seen.course,
        causes=tuple(
            replace(made.diagnosis, probability=float(weight / total))
            for weight, made in zip(weights, solved, strict=True)
        ),
        alike=tuple(made.diagnosis.name for made in alike),
        by_trace=() if seen.parts_s is not None else _by_trace(alike),
        nothing_wrong=float(nothing / total),
        not_the_run=float(other / total),
        not_possible=tuple(absent),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Weighed:
    """A cause with its amount."""

    diagnosis: Diagnosis
    prior: float
    evidence: float
    """Density of all that is seen, of a run with it."""
    parts_s: Mapping[str, float]
    """Of a traced step with it."""


def _by_trace(alike: Iterable[_Weighed]) -> tuple[tuple[str, ...], ...]:
    """Names of causes in sets that a trace of a step tells apart; within a set it does not."""
    sets: list[list[_Weighed]] = []
    for made in alike:
        step_s = made.diagnosis.step_time_s
        traced = Seen(measured_s=step_s, parts_s=made.parts_s)
        for some in sets:
            if _ALIKE * _parts(some[0].parts_s, traced) >= 1.0:
                some.append(made)
                break
        else:
            sets.append([made])
    return tuple(tuple(made.diagnosis.name for made in some) for some in sets)


def _sigma(prediction: Prediction) -> float:
    """Of the logarithm of measured over predicted step time."""
    low, high = float(prediction.certainty.p10_s[0]), float(prediction.certainty.p90_s[0])
    return max(math.log(high / low) / 2.563, 0.01)


def _student(x: Any) -> Any:
    """Density of Student's t with 4 degrees of freedom."""
    return 0.375 * (1.0 + np.square(x) / 4.0) ** -2.5


def _step_density(predicted_s: Any, measured_s: float, sigma: float) -> Any:
    return _student(np.log(measured_s / predicted_s) / sigma) / sigma


def _solved(name: str, cause: Cause, prediction: Prediction, seen: Seen) -> _Weighed | None:
    """A cause with its amount, and what it weighs; None where it changes nothing."""
    base = prediction.step_time_s
    sized = _sized_by_course(cause, prediction, seen)
    if sized is None:
        return None
    changed, amount, step_s, density, explained_s = sized
    gap = explained_s - base
    explains = (step_s - base) / gap if gap else 0.0
    # what explains less than most of it counts by its share; what makes faster explains no slow run
    density *= min(max(explains, 1e-3) / _MOST, 1.0)
    words, odds = _said(cause, seen.lines)
    extra = added_s(prediction, cause, amount or 0.0)
    evidence = density * odds * _of_course(cause.series, seen.course)
    evidence *= _rest(changed, seen, cause.shows, extra)
    evidence *= _timed(changed, seen, cause, amount or 0.0)
    parts_s = predicted_parts(changed)
    parts_s[cause.shows] = parts_s.get(cause.shows, 0.0) + extra
    memory = float(changed.estimate.memory_total_bytes[0])
    made = Diagnosis(
        name=name,
        says=cause.says,
        amount=amount,
        unit=cause.unit,
        explains=min(explains, 1.0) if abs(explains - 1.0) < 0.02 else explains,
        probability=0.0,
        step_time_s=step_s,
        memory_bytes=memory,
        looks_like=cause.elsewhere,
        test=cause.test,
        words=words,
        plausible=_plausible(cause, amount, step_s, explained_s, prediction),
    )
    return _Weighed(diagnosis=made, prior=cause.prior, evidence=evidence, parts_s=parts_s)


def _said(cause: Cause, lines: Iterable[str]) -> tuple[tuple[str, ...], float]:
    """Lines of a log that speak for a cause, and the odds that all of them give."""
    ways = (cause.stated, cause.words, cause.denied)
    stated, words, denied = (
        tuple(line for line in lines if any(re.search(p, line) for p in patterns))
        for patterns in ways
    )
    odds = _STATED if stated else _WORDS if words else 1.0 / _STATED if denied else 1.0
    return tuple(dict.fromkeys((*stated, *words))), odds


def _plausible(
    cause: Cause, amount: float | None, step_s: float, explained_s: float, prediction: Prediction
) -> bool:
    """Whether so much of a cause is likely enough, and brings a step to what is to be explained."""
    base, certainty = prediction.step_time_s, prediction.certainty
    low, high = float(certainty.p10_s[0]) / base, float(certainty.p90_s[0]) / base
    if not low * step_s <= explained_s <= high * step_s:
        return False
    if not amount:
        return amount is None
    share = amount / base if cause.adds_seconds else amount
    return abs(math.log(share / cause.typical)) <= _PLAUSIBLE * cause.spread


_Sized = tuple[Prediction, float | None, float, float]
"""Run with a cause, its amount, the step with it and the density of what was measured."""


def _sized_by_course(
    cause: Cause, prediction: Prediction, seen: Seen
) -> tuple[Prediction, float | None, float, float, float] | None:
    """Size a cause on the typical step, or where it comes and goes, on the mean.

    A cause that comes and goes may leave the typical step as predicted: it is then sized on what
    the mean takes over it. The account that is more probable counts. The last of what is given is
    the step that it explains.
    """
    base, sigma, course = prediction.step_time_s, _sigma(prediction), seen.course
    if cause.series not in {"tails", "periodic"} or not course.lost:
        sized = _sized(cause, prediction, seen.measured_s, sigma)
        if sized is None:
            return None
        return *sized[:3], sized[3] * _steady(course), seen.measured_s
    accounts = []
    whole = _sized(cause, prediction, course.mean_s, sigma)
    if whole is not None:
        accounts.append((*whole, course.mean_s))
    lost_s = base * (1.0 + course.lost)
    part = _sized(cause, prediction, lost_s, _LOST_SIGMA)
    if part is not None:
        typical = float(_step_density(base, seen.measured_s, sigma))
        accounts.append((*part[:3], part[3] * typical * _LOST_SIGMA / 0.375, lost_s))
    return max(accounts, key=lambda account: account[3], default=None)


def _sized(cause: Cause, prediction: Prediction, measured_s: float, sigma: float) -> _Sized | None:
    """Size a cause on a step time; None where it changes nothing."""
    if cause.is_switch:
        changed = with_cause(prediction, cause, 1.0)
        if changed is None or abs(changed.step_time_s / prediction.step_time_s - 1.0) < 1e-4:
            return None
        step_s = changed.step_time_s
        return changed, None, step_s, float(_step_density(step_s, measured_s, sigma))
    if cause.adds_seconds or cause.slows_a_server:
        return prediction, *_added(cause, prediction, measured_s, sigma)
    reached = _priced(cause, prediction, measured_s, sigma)
    if reached is None:
        return None
    return reached[0], reached[1], reached[0].step_time_s, reached[2]


def _steady(course: Course) -> float:
    """How well a mean that takes more than the median agrees with steps that are all alike."""
    return float(_student(course.lost / _LOST_SIGMA)) / 0.375


def _amounts(cause: Cause, count: int) -> Floats:
    """Amounts from harmless to the worst, in equal ratios."""
    if cause.typical < 1.0:
        return np.geomspace(cause.most, cause.least, count)
    return np.geomspace(cause.least, cause.most, count)


def _amount_density(cause: Cause, amounts: Any) -> Any:
    """Log-normal, over the logarithm of amounts."""
    z = np.log(np.asarray(amounts) / cause.typical) / cause.spread
    return np.exp(-0.5 * z * z) / (cause.spread * math.sqrt(2.0 * math.pi))


def _added(
    cause: Cause, prediction: Prediction, measured_s: float, sigma: float
) -> tuple[float, float, float]:
    """Amount, step time and density of a cause that adds seconds to a step."""
    base = prediction.step_time_s
    if cause.adds_seconds:
        shares = np.geomspace(1e-4, cause.most, _FINE)
        amounts, prior = base * shares, _amount_density(cause, shares)
        logs = np.log(shares)
    else:
        amounts = np.geomspace(cause.least, cause.most, _FINE)
        prior, logs = _amount_density(cause, amounts), np.log(amounts)
    per_amount = added_s(prediction, cause, 2.0) if cause.slows_a_server else 0.0
    extra = amounts if cause.adds_seconds else (amounts - 1.0) * per_amount
    density = prior * _step_density(base + extra, measured_s, sigma)
    gap = max(measured_s - base, 0.0)
    if cause.adds_seconds:
        amount = min(gap, cause.most * base)
    else:
        amount = min(1.0 + gap / per_amount, cause.most) if per_amount else 1.0
    step_s = base + added_s(prediction, cause, amount)
    return amount, step_s, float(np.trapezoid(density, logs))


def _priced(
    cause: Cause, prediction: Prediction, measured_s: float, sigma: float
) -> tuple[Prediction, float, float] | None:
    """Run, amount and density of a cause that is priced by the model."""
    amounts, steps = [], []
    for amount in _amounts(cause, _AMOUNTS).tolist():
        changed = with_cause(prediction, cause, amount)
        if changed is not None:
            amounts.append(amount)
            steps.append(changed.step_time_s)
    if len(steps) < 2 or max(steps) < 1.001 * min(steps):
        return None
    logs, log_steps = np.log(amounts), np.log(steps)
    order = np.argsort(logs)
    fine = np.linspace(logs.min(), logs.max(), _FINE)
    fine_steps = np.exp(np.interp(fine, logs[order], log_steps[order]))
    prior = _amount_density(cause, np.exp(fine))
    density = prior * _step_density(fine_steps, measured_s, sigma)
    amount = _solve(cause, prediction, measured_s, (amounts, steps))
    changed = with_cause(prediction, cause, amount)
    if changed is None:
        return None
    return changed, amount, float(abs(np.trapezoid(density, fine)))


def _solve(
    cause: Cause,
    prediction: Prediction,
    measured_s: float,
    priced: tuple[list[float], list[float]],
) -> float:
    """The amount at which the predicted step is the measured one, or the nearest that there is."""
    amounts, steps = priced
    worse = np.asarray(steps) >= measured_s
    if not worse.any():
        return amounts[int(np.argmax(steps))]
    first = int(np.argmax(worse))
    if first == 0:
        return amounts[0]
    low, high = math.log(amounts[first - 1]), math.log(amounts[first])
    for _ in range(_HALVINGS):
        middle = math.exp(0.5 * (low + high))
        changed = with_cause(prediction, cause, middle)
        if changed is None:
            break
        if changed.step_time_s >= measured_s:
            high = math.log(middle)
        else:
            low = math.log(middle)
    return math.exp(0.5 * (low + high))


def _of_course(series: str, course: Course) -> float:
    """Chance of what step times look like, of a cause that makes them look like `series`."""
    if not course.kind:
        return 1.0
    return _COURSES[series][_KINDS.index(course.kind)]


def _rest(prediction: Prediction, seen: Seen, shows: str = "", extra_s: float = 0.0) -> float:
    """How well memory and the parts of a traced step agree with a changed run."""
    weight = 1.0
    for kind, measured in seen.memory_bytes.items():
        predicted = GIB * memory_of_kind_gib(prediction.estimate, 0, kind)
        fits = float(_student(math.log(measured / predicted) / _MEMORY_SIGMA)) / 0.375
        weight *= fits ** (1.0 / len(seen.memory_bytes))  # readings of one and the same memory
    if seen.parts_s is not None:
        weight *= _parts(predicted_parts(prediction), seen, shows, extra_s)
    return weight * _room(prediction)


def _timed(
    prediction: Prediction, seen: Seen, cause: Cause | None = None, amount: float = 0.0
) -> float:
    """How well the timers of a log agree with a run with so much of a cause, or with none."""
    timers, weight = seen.timers, 1.0
    if timers.loading_s is not None:
        late_s = amount if cause is not None and cause.loads else 0.0
        sigma = _PART_SIGMA * late_s + _PART_FLOOR * seen.measured_s
        weight *= float(_student((timers.loading_s - late_s) / sigma)) / 0.375
    slow = amount if cause is not None and cause.slows_a_server else 1.0
    if timers.passes_s:
        parts = predicted_parts(prediction)
        passes_s = sum(parts.get(name, 0.0) for name in _PASSES)
        passes_s += (slow - 1.0) * sum(parts.get(name, 0.0) for name in _PASSES[:3])
        sigma = math.hypot(_PART_SIGMA, _sigma(prediction))
        weight *= float(_student(math.log(timers.passes_s / passes_s) / sigma)) / 0.375
    if timers.rank_spread is not None and int(prediction.layout["pp"]) == 1:  # stages differ
        unknown = cause is not None and cause.imbalance
        off = 2.0 if unknown else math.log(timers.rank_spread / slow) / _PART_SIGMA
        weight *= float(_student(off)) / 0.375
    return weight


def _room(prediction: Prediction) -> float:
    """A run that would need far more memory than there is, would not have run."""
    need = float(prediction.estimate.memory_total_bytes[0])
    over = math.log(need / float(prediction.estimate.usable_bytes)) / _MEMORY_SIGMA
    return 1.0 if over <= 0.0 else float(_student(over)) / 0.375


def _parts(
    predicted_s: Mapping[str, float], seen: Seen, shows: str = "", extra_s: float = 0.0
) -> float:
    """How well the parts of a step agree; each may be off by a share of itself and of the step."""
    weight, measured = 1.0, seen.parts_s or {}
    for name in {*predicted_s, *measured}:
        part_s = predicted_s.get(name, 0.0) + (extra_s if name == shows else 0.0)
        sigma = _PART_SIGMA * part_s + _PART_FLOOR * seen.measured_s
        weight *= float(_student((measured.get(name, 0.0) - part_s) / sigma)) / 0.375
    return weight
