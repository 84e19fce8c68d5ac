"""Who does what when, over two steps: what a drawing of a step shows."""

from __future__ import annotations

from simulator.records import dataclass
from simulator.reinforcement.rl_step import RLStep

LANES = ("generator", "trainer")

WORDS = {
    "generation": "generation",
    "reward": "reward",
    "log_probabilities": "log-probabilities",
    "training": "training",
    "refit": "refit",
    "phase_change": "change of sides",
    "driver": "driver",
    "waiting": "waiting",
}
"""What each phase is called."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A phase on a lane."""

    lane: str
    phase: str
    """A key of ``RLStep.parts_s``, or ``waiting``."""
    batch: int
    start_s: float
    end_s: float


_GENERATOR = ("generation", "reward")
_TRAINER = ("driver", "log_probabilities", "training", "refit", "phase_change")


def timeline(step: RLStep) -> list[Span]:
    """Phases of two batches, waiting put between, from the moment at which the first is written.

    On policy a batch is written, then learned from. With staleness the generator writes the next
    batch while the trainer learns from the one before. Mixed, the trainer's devices write as well.
    """
    whole, parts = step.step_time_s, step.parts_s
    spans = []
    for batch in (0, 1):
        begin = batch * whole
        if step.lent_s > 0.0:
            spans += _row({"generation": step.lent_s}, ("generation",), "trainer", batch, begin)
        after = begin + (step.lent_s if step.rl.staleness else step.generator_side_s)
        spans += _row(parts, _GENERATOR, "generator", batch + (step.rl.staleness > 0), begin)
        spans += _row(parts, _TRAINER, "trainer", batch, after)
    return sorted([*spans, *_gaps(spans, 2.0 * whole)], key=lambda span: (span.lane, span.start_s))


def _row(
    parts: dict[str, float], phases: tuple[str, ...], lane: str, batch: int, start_s: float
) -> list[Span]:
    spans = []
    for phase in phases:
        if parts[phase] > 0.0:
            end_s = start_s + parts[phase]
            spans.append(Span(lane=lane, phase=phase, batch=batch, start_s=start_s, end_s=end_s))
            start_s = end_s
    return spans


def _gaps(spans: list[Span], end_s: float) -> list[Span]:
    """Where a lane has nothing to do."""
    gaps = []
    for lane in LANES:
        at = 0.0
        for span in [span for span in spans if span.lane == lane] + [None]:
            until = end_s if span is None else span.start_s
            if until > at + 1e-9 * end_s:
                gaps.append(Span(lane=lane, phase="waiting", batch=-1, start_s=at, end_s=until))
            at = until if span is None else span.end_s
    return gaps
