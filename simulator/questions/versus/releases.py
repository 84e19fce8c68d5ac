"""What an upgrade buys: the same run on every release of its framework that is known.

Each release is priced with the layout at hand, and searched for its own best. What stands behind a
release are measured runs like this one with it, and what they were off.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from simulator.answers import Answer
from simulator.errors import InputError
from simulator.evidence.card import Card
from simulator.frames import DataFrame, frame_of_rows
from simulator.planner.answer_evidence import scenario_evidence
from simulator.planner.prediction import Prediction, predict
from simulator.planner.simulated import predict_best
from simulator.planner.variants import Variant, priced_variant
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.search.defaults import stated_layout
from simulator.software.profile import Software, load_software
from simulator.software.releases import load_releases, parsed, stack_of
from simulator.software.software_section import running_on

PAIRS = 0.018
"""The same run on two neighbouring releases differs by so much in the median, and then half of all
pairs by more (docs/accuracy.md, 75 pairs of validation/runs)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseRow(Variant):
    """One release, the layout at hand on it, and its own best."""

    KEYS: tuple[str, ...] = (
        *("release", "software=scenario.software.name", "here", "step_time_s"),
        *("gain", "within_error", "memory_total_bytes", "memory_change_bytes"),
        *("verdict=memory_verdict", "days", "usd", "reason", "best_step_time_s", "best_layout"),
        *("grade=evidence.grade", "runs=evidence.runs", "expected_error=evidence.mean_error"),
        *("notes",),
    )

    release: str
    """The word by which `--software` takes it."""
    here: bool
    """Whether the run is on it now."""
    memory_change_bytes: float | None
    days: float | None
    usd: float | None
    """Of the whole run, less those at hand."""
    best_step_time_s: float | None
    """Of the fastest layout that fits, where it was searched."""
    best_layout: str | None
    evidence: Card | None
    notes: str
    """What the profile says of itself."""

    @property
    def within_error(self) -> bool:
        """Whether two releases that do the same are as far apart."""
        return self.step_time_s is not None and abs(self.gain) <= PAIRS


@dataclass(frozen=True, kw_only=True, repr=False)
class ReleaseChoices(Answer):
    """Every release of a framework."""

    COMMAND: ClassVar[str] = "what-if --releases"
    KEYS: ClassVar[tuple[str, ...]] = (
        *("model=prediction.scenario.workload.architecture.name", "framework", "layout"),
        "assumed_training=prediction.scenario.assumed",
        "idle_fields=prediction.scenario.idle",
        *("rows", "caveats"),
    )

    prediction: Prediction
    """With the software at hand."""
    rows: tuple[ReleaseRow, ...]
    """Oldest first."""

    @property
    def framework(self) -> str:
        """Whose releases they are."""
        return self.prediction.scenario.software.stack

    @property
    def layout(self) -> dict[str, Any]:
        """The layout at hand."""
        return self.prediction.layout

    @property
    def line(self) -> str:
        """The release that gains most."""
        best = max(self.rows, key=lambda row: row.gain)
        return f"{len(self.rows)} releases of {self.framework}; {best.release} {best.gain:+.1%}"

    @property
    def caveats(self) -> tuple[str, ...]:
        """What it leaves out."""
        return (
            "A release differs from its base in what its profile states; what nobody stated holds"
            f" on. Two neighbouring releases differ by {PAIRS:.1%} in the median where"
            " nothing is known to have changed.",
        )

    def to_frame(self) -> DataFrame:
        """One row per release."""
        names = ("release", "step_time_s", "gain", "memory_total_bytes", "memory_verdict", "days",
                 "usd", "best_layout", "reason")  # fmt: skip
        return frame_of_rows([{name: getattr(row, name) for name in names} for row in self.rows])


def release_words(software: Software) -> list[tuple[str, str]]:
    """Words of all releases of a software's framework with their profiles, oldest first.

    >>> from simulator.software.profile import load_software
    >>> release_words(load_software("torchtitan"))[0]
    ('torchtitan-2024.04', 'torchtitan-2024-april')
    """
    variant = next(
        (
            release.variant
            for word, profile in load_releases().words.items()
            if profile == software.name and (release := parsed(word)) is not None
        ),
        "",
    )
    dated: dict[str, tuple[tuple[int, ...], str]] = {}
    for word, profile in load_releases().words.items():
        release = parsed(word)
        if release is None or stack_of(profile) != stack_of(software.name):
            continue
        if release.months is None or release.variant not in (variant, ""):
            continue
        when = (release.months, *release.number[2:])
        if profile not in dated or when < dated[profile][0]:
            dated[profile] = when, word
    ordered = sorted((when, word, profile) for profile, (when, word) in dated.items())
    return [(word, profile) for _, word, profile in ordered]


def release_choices(scenario: Scenario, *, search: bool = True) -> ReleaseChoices:
    """Price a run on every release of its framework.

    Parameters
    ----------
    search : bool
        Look for the fastest layout on each as well.

    Raises
    ------
    InputError
        If only one release of the framework is known, or as :func:`predict`.
    """
    now = predict_best(scenario)
    run = now.scenario
    able = set(running_on(run.cluster.accelerator.platform))
    words = [(word, name) for word, name in release_words(run.software) if name in able]
    if run.software.name not in {name for _, name in words}:
        words.append((run.software.name, run.software.name))
    if len(words) < 2:
        raise InputError(
            f"{scenario.where}: cluster.software: must be of a framework of which several releases"
            f" are known (hardware_profiles/releases.toml), got {run.software.name}"
        )
    free = replace(run, pinned=dict(scenario.pinned))
    rows = tuple(_row(now, free, word, name, search=search) for word, name in words)
    return ReleaseChoices(prediction=now, rows=rows)


def _row(now: Prediction, free: Scenario, word: str, name: str, *, search: bool) -> ReleaseRow:
    """One release."""
    here = name == now.scenario.software.name
    software = now.scenario.software if here else load_software(name)
    pinned = stated_layout(now.estimate.layouts.row(0), software)
    if int(now.layout["ep"]) == 1:
        pinned.pop("dispatcher", None)  # there are no experts to reach
    changed = replace(now.scenario, software=software, pinned=pinned)
    then, reason = now if here else None, ""
    if not here:
        try:
            then = predict(changed)
        except InputError as error:
            reason = error.problems[0].removeprefix(f"{changed.where}: ")
    best = priced_variant(replace(free, software=software), change=word) if search else None
    known: dict[str, Any] = {
        "release": word,
        "here": here,
        "best_step_time_s": best.step_time_s if best else None,
        "best_layout": best.layout if best else None,
        "notes": software.release,
        "change": f"cluster.software = {word}",
        "scenario": changed,
        "reason": reason,
    }
    if then is None:
        names = ("memory_change_bytes", "days", "usd", "evidence")
        nothing: dict[str, Any] = dict.fromkeys(names)
        return ReleaseRow(**known, before_s=now.step_time_s, **nothing)
    return ReleaseRow(
        **known,
        before_s=now.step_time_s,
        step_time_s=then.step_time_s,
        memory_total_bytes=then.memory_bytes,
        memory_verdict=then.memory_verdict,
        memory_change_bytes=then.memory_bytes - now.memory_bytes,
        days=_less(then.days, now.days),
        usd=_less(then.usd, now.usd),
        evidence=scenario_evidence(changed, then.estimate, then.outcome),
    )


def _less(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before
