"""A job held against what it asks for: does it fit, does it end in time, what does it cost.

The job's file is read as `plan --from` reads it. A reason refuses where even the good end (P10) of
the prediction breaks a limit or memory cannot do, and warns where the bad end (P90) does. Beside
each limit stands the chance to keep it, with what published runs took on top and without.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from simulator.answers import Answer
from simulator.errors import InputError
from simulator.files import yaml_of
from simulator.frames import DataFrame, frame_of_rows
from simulator.goal import Goal
from simulator.interop.launch_files.imported import Imported
from simulator.interop.launch_files.job_manifests import read_manifest
from simulator.interop.launch_files.merging import import_launch
from simulator.plain_files import read_text
from simulator.planner.prediction import Prediction
from simulator.questions.compare.offer import Asked, Offer
from simulator.questions.compare.offers import offer_of
from simulator.records import dataclass
from simulator.report.wording import chance_words
from simulator.scenario import Scenario
from simulator.search.best_layout import factor_of
from simulator.search.outcome import goal_chances, spans
from simulator.units import DAY_S, show_bytes, show_number_of_days, show_usd

Decision = Literal["allow", "warn", "refuse"]

CODES: dict[Decision, int] = {"allow": 0, "warn": 3, "refuse": 1}
"""Exit codes; 2 is bad input, as everywhere."""

_WORST: dict[Decision, int] = {"allow": 0, "warn": 1, "refuse": 2}
_FILE_BYTES = 2**20
_TIME = re.compile(r"^#SBATCH\s+(?:--time[=\s]\s*|-t\s*)(\S+)", re.M)
_PBS_TIME = re.compile(r"^#PBS\s(?:.*[\s,])?(?:-l\s*)?walltime=([^\s,#]+)", re.M)
_LSF_TIME = re.compile(r"^#BSUB\s(?:.*\s)?-W\s+([^\s/#]+)", re.M)
_DOUBLINGS = 6
"""Of the job's servers up to which the smallest request is looked for; and as many halvings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """What speaks for a decision."""

    decision: Decision
    about: Literal["layout", "memory", "end", "cost", "reading"]
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """The smallest number of accelerators that does it, with the best layout there."""

    gpus: int
    layout: str
    hours_p90: float | None
    """Time to ask for; None where nobody says how long the run is."""
    usd_p90: float | None
    deadline_chance: float | None
    """To end in time, with what published runs took on top; None without a limit."""
    budget_chance: float | None


@dataclass(frozen=True, kw_only=True, repr=False)
class Admission(Answer):
    """A job, and whether it may start."""

    COMMAND: ClassVar[str] = "admit"
    KEYS: ClassVar[tuple[str, ...]] = (
        *("decision", "reasons", "memory", "ends", "cost", "smallest_request", "from=imported"),
        "caveats",
    )

    imported: Imported
    prediction: Prediction | None
    """None where the layout cannot run."""
    reasons: tuple[Reason, ...]
    limit_s: float | None
    """The job's own limit of time, or the one that was given."""
    budget_usd: float | None
    smallest_request: Request | None

    @property
    def decision(self) -> Decision:
        """The worst of its reasons."""
        return max((reason.decision for reason in self.reasons), key=_WORST.__getitem__)

    @property
    def code(self) -> int:
        """Exit code."""
        return CODES[self.decision]

    @property
    def memory(self) -> dict[str, Any] | None:
        """Of the worst rank."""
        if self.prediction is None:
            return None
        estimate = self.prediction.estimate
        return {
            "p50_bytes": float(estimate.memory_total_bytes[0]),
            "p90_bytes": float(estimate.memory_p90_bytes[0]),
            "usable_bytes": float(estimate.usable_bytes),
            "verdict": estimate.verdict_word(0),
        }

    @property
    def ends(self) -> dict[str, Any] | None:
        """Hours until the end, and those that the job has."""
        span = _span(self.prediction, "days")
        hours = None if span is None else {k: 24.0 * v for k, v in span.items()}
        limit = None if self.limit_s is None else self.limit_s / 3600.0
        if hours is None and limit is None:
            return None
        return {
            "hours": hours,
            "limit_hours": limit,
            **_chances(self.prediction, limit_s=self.limit_s),
        }

    @property
    def cost(self) -> dict[str, Any] | None:
        """USD of the run, and the cap."""
        span = _span(self.prediction, "usd")
        if span is None and self.budget_usd is None:
            return None
        chances = _chances(self.prediction, budget_usd=self.budget_usd)
        return {"usd": span, "budget_usd": self.budget_usd, **chances}

    @property
    def line(self) -> str:
        """All of it in a few words."""
        return f"{self.decision}: {'; '.join(reason.text for reason in self.reasons)}"

    @property
    def caveats(self) -> tuple[str, ...]:
        """What it leaves out."""
        return (
            "A time limit is held against the whole run; a job that goes on from a checkpoint may"
            " need less (--within says what this part has).",
        )

    def to_frame(self) -> DataFrame:
        """One row per reason."""
        return frame_of_rows(
            [{"decision": r.decision, "about": r.about, "text": r.text} for r in self.reasons]
        )


def admit(
    file: Path | str,
    names: Mapping[str, Any] | None = None,
    overrides: Iterable[str] = (),
    *,
    beside: Iterable[Path | str] = (),
    limit_s: float | None = None,
    budget_usd: float | None = None,
) -> Admission:
    """Decide about a job.

    Parameters
    ----------
    file : path
        A job of Slurm, PBS, LSF, Kubernetes, Run:ai or SkyPilot, or any launch file.
    names, overrides
        As in :func:`simulator.interop.launch_files.merging.import_launch`.
    beside : paths
        What its script reads: trainer configurations, config.json.
    limit_s : float, optional
        Seconds that the job has; unless given what its file says, and the goal's deadline where
        that is sooner.
    budget_usd : float, optional
        Most that it may cost; the goal's budget unless given.

    Raises
    ------
    InputError
        As ``import_launch``.
    """
    asked_s = limit_s if limit_s is not None else time_limit_s(file)
    imported = import_launch([file, *beside], names, overrides)
    goal = imported.scenario.goal
    ends_s = [] if asked_s is None else [asked_s]
    if limit_s is None and goal.deadline_days is not None:
        ends_s.append(goal.deadline_days * DAY_S)
    limit = min(ends_s, default=None)
    budget_usd = goal.budget_usd if budget_usd is None else budget_usd
    reasons = [*_unread(imported)]
    prediction: Prediction | None = None
    try:
        prediction = imported.predicted()
    except InputError as error:
        reasons += [Reason(decision="refuse", about="layout", text=t) for t in error.problems]
    if prediction is not None:
        reasons.append(_fits(prediction))
        reasons += _in_time(prediction, limit)
        reasons += _affordable(prediction, budget_usd)
    wrong = any(reason.decision != "allow" and reason.about != "reading" for reason in reasons)
    asked = Asked(
        deadline_days=None if limit is None else limit / DAY_S,
        budget_usd=budget_usd,
        confidence=0.9,
    )
    return Admission(
        imported=imported,
        prediction=prediction,
        reasons=tuple(reasons),
        limit_s=limit,
        budget_usd=budget_usd,
        smallest_request=_smallest(imported.scenario, asked) if wrong else None,
    )


def time_limit_s(file: Path | str) -> float | None:
    """Seconds after which the scheduler ends the job, where its file says so.

    Raises
    ------
    InputError
        If it is not a time as its scheduler writes one.
    """
    text = read_text(file, _FILE_BYTES)
    if match := _TIME.search(text):
        return slurm_seconds(match[1], f"{file}: #SBATCH --time")
    if match := _PBS_TIME.search(text):
        return _clock_s(match[1], 1, f"{file}: #PBS -l walltime")
    if match := _LSF_TIME.search(text):
        return _clock_s(match[1], 60, f"{file}: #BSUB -W")
    if re.search(r"^kind:\s*\w", text, re.M):
        document = yaml_of(text, str(file))
        manifest = read_manifest(document, str(file)) if isinstance(document, dict) else None
        return manifest.seconds if manifest else None
    return None


def slurm_seconds(text: str, where: str) -> float | None:
    """Read minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S; None of UNLIMITED.

    >>> slurm_seconds("2-12:00:00", "x"), slurm_seconds("90", "x"), slurm_seconds("1:30:00", "x")
    (216000.0, 5400.0, 5400.0)
    """
    if text.upper() in ("UNLIMITED", "INFINITE"):
        return None
    days, dash, rest = text.rpartition("-") if "-" in text else ("", "", text)
    parts = rest.split(":")
    if not all(part.isdigit() for part in [*parts, *([days] if dash else [])]) or len(parts) > 3:
        raise InputError(
            f"{where}: must be a time as D-HH:MM:SS, HH:MM:SS or minutes, got {text!r}"
        )
    numbers = [int(part) for part in parts]
    if dash:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:
        hours, (minutes, seconds) = 0, [*numbers, 0][:2]
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds)


def _clock_s(text: str, last_s: int, where: str) -> float:
    """Read parts of a clock whose last one counts `last_s` seconds: PBS ends in them, LSF not.

    >>> _clock_s("1:30:00", 1, "x"), _clock_s("5400", 1, "x"), _clock_s("1:30", 60, "x")
    (5400.0, 5400.0, 5400.0)
    """
    parts, most = text.split(":"), 3 if last_s == 1 else 2
    if not all(re.fullmatch(r"[0-9]{1,9}", part) for part in parts) or len(parts) > most:
        form = "HH:MM:SS or seconds" if last_s == 1 else "HH:MM or minutes"
        raise InputError(f"{where}: must be a time as {form}, got {text[:80]!r}")
    seconds = 0
    for part in parts:
        seconds = 60 * seconds + int(part)
    return float(seconds * last_s)


def _unread(imported: Imported) -> list[Reason]:
    """Keys that nobody understands bear on nothing that is said here."""
    if not imported.unknown:
        return []
    places = ", ".join(map(str, imported.unknown[:5]))
    more = len(imported.unknown) - 5
    return [
        Reason(
            decision="warn",
            about="reading",
            text=f"not understood: {places}{f' and {more} more' if more > 0 else ''}",
        )
    ]


def _fits(prediction: Prediction) -> Reason:
    estimate = prediction.estimate
    word = estimate.verdict_word(0)
    p90, usable = float(estimate.memory_p90_bytes[0]), float(estimate.usable_bytes)
    need = show_bytes(float(estimate.memory_total_bytes[0]))
    text = f"{need} (P90 {show_bytes(p90)}) of {show_bytes(usable)} on the worst rank"
    decisions: dict[str, Decision] = {"FITS": "allow", "TIGHT": "warn"}
    return Reason(decision=decisions.get(word, "refuse"), about="memory", text=f"{word}: {text}")


def _in_time(prediction: Prediction, limit_s: float | None) -> list[Reason]:
    span = _span(prediction, "days")
    if limit_s is None:
        return []
    limit = limit_s / DAY_S
    if span is None:
        text = "how long the run is nobody says (--set training.tokens=N): its end is not checked"
        return [Reason(decision="warn", about="end", text=text)]
    held = _held(span, limit, "end", show_number_of_days, "days until the end", "there are")
    return [_with_chance(held, "to end in time", _chances(prediction, limit_s=limit_s))]


def _affordable(prediction: Prediction, budget_usd: float | None) -> list[Reason]:
    span = _span(prediction, "usd")
    if budget_usd is None:
        return []
    if span is None:
        text = "price or length of the run is not known: its cost is not checked"
        return [Reason(decision="warn", about="cost", text=text)]
    rate = f"for the run at {prediction.outcome.price.words()}"
    held = _held(span, budget_usd, "cost", show_usd, rate, "the cap is")
    chances = _chances(prediction, budget_usd=budget_usd)
    return [_with_chance(held, "to stay below it", chances)]


def _with_chance(reason: Reason, what: str, chances: dict[str, float]) -> Reason:
    """The reason, with how likely it is: what runs took on top bears on that alone."""
    if not chances:
        return reason
    words = chance_words(chances["chance"], chances["chance_without_factor"], what)
    return replace(reason, text=f"{reason.text}; {words}")


def _chances(
    prediction: Prediction | None, *, limit_s: float | None = None, budget_usd: float | None = None
) -> dict[str, float]:
    """The chance to keep one limit, with what published runs took on top and without."""
    if prediction is None or (limit_s is None) == (budget_usd is None):
        return {}
    days = None if limit_s is None else limit_s / DAY_S
    goal = Goal(deadline_days=days, budget_usd=budget_usd)
    parts = prediction.estimate.step_time_s, prediction.outcome, prediction.certainty
    held = goal_chances(*parts, goal, factor_of(prediction.scenario))
    name = "budget" if days is None else "deadline"
    likely, without = (float(getattr(held, f"{name}{kind}")[0]) for kind in ("", "_without_factor"))
    if math.isnan(likely):
        return {}
    return {"chance": likely, "chance_without_factor": without}


def _held(
    span: dict[str, float], limit: float, about: Any, show: Any, what: str, there: str
) -> Reason:
    """P10 and P90 against a limit."""
    decision: Decision = "allow"
    if span["p10"] > limit:
        decision = "refuse"
    elif span["p90"] > limit:
        decision = "warn"
    words = f"{show(span['p50'])} ({show(span['p10'])} to {show(span['p90'])}) {what}"
    return Reason(decision=decision, about=about, text=f"{words}, {there} {show(limit)}")


def _span(prediction: Prediction | None, name: str) -> dict[str, float] | None:
    """P10, P50, P90 of days or USD of the whole run."""
    if prediction is None:
        return None
    given = spans(prediction.estimate, prediction.outcome, prediction.certainty)
    low, high = getattr(given, name)
    values = (float(low[0]), float(getattr(prediction.outcome, name)[0]), float(high[0]))
    if not all(math.isfinite(value) for value in values):
        return None
    return dict(zip(("p10", "p50", "p90"), values, strict=True))


def _smallest(scenario: Scenario, asked: Asked) -> Request | None:
    """The fewest accelerators on which some layout fits and meets what is asked."""
    free = replace(scenario, pinned={}, document={**scenario.document, "layout": {}})
    cluster = scenario.cluster
    base, gpus = cluster.node.accelerators, cluster.gpus
    sizes = {gpus}
    for power in range(1, _DOUBLINGS + 1):
        sizes |= {gpus << power, gpus >> power}
    batch = scenario.workload.recipe.global_batch
    good = sorted(n for n in sizes if n and (n % base == 0 or n < base) and n <= 8 * batch)
    for size in good:
        offer = offer_of(free, cluster.name, size, asked)
        if would_be_allowed(offer, asked):
            return _request(offer)
    return None


def would_be_allowed(offer: Offer, asked: Asked) -> bool:
    """Whether memory fits and P90 of end and cost are within the limits, as of the job itself."""
    limits = ((offer.days, asked.deadline_days), (offer.usd, asked.budget_usd))
    return (
        offer.feasible
        and offer.memory_verdict == "FITS"
        and all(span is not None and span.p90 <= limit for span, limit in limits if limit)
    )


def _request(offer: Offer) -> Request:
    days, usd = offer.days, offer.usd
    return Request(
        gpus=offer.gpus,
        layout=offer.described,
        hours_p90=None if days is None else 24.0 * days.p90,
        usd_p90=None if usd is None else usd.p90,
        deadline_chance=offer.deadline_chance,
        budget_chance=offer.budget_chance,
    )
