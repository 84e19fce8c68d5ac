"""The page of reinforcement learning: its question, by names and numbers alone, and its answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from simulator.answers import plain
from simulator.explorer.asked import Degree, Pins, read_question
from simulator.files import Number, Whole, record
from simulator.questions.rl.answer import rl
from simulator.questions.rl.picture import INKS
from simulator.reinforcement.timeline import timeline
from simulator.report.palette import colour
from simulator.rollouts.rl_section import Generation, Mode, Serving
from simulator.scenario import Scenario, make_scenario
from simulator.search.in_threads import may_go_on

_SECTION = (
    "algorithm",
    "prompts",
    "samples",
    "prompt_tokens",
    "answer_tokens",
    "mode",
    "staleness",
    "partial_rollouts",
    "framework",
)
_ENGINE = {
    "engine": "engine",
    "generator_tp": "tp",
    "generator_gpus": "gpus",
    "generator_precision": "precision",
}
_MOST_ROWS = 10


@record
class RLQuestion:
    """What learns from what, on what."""

    model: str
    cluster: str
    gpus: Annotated[Whole, Ge(1), Le(20_000)]
    sequence_length: Annotated[Whole, Ge(2), Le(1_000_000)] = 4096
    global_batch: Degree = 512
    algorithm: Literal["grpo", "dapo", "rloo", "ppo", "distillation"] = "grpo"
    prompts: Annotated[Whole, Ge(1), Le(4096)] = 64
    samples: Annotated[Whole, Ge(1), Le(256)] = 32
    prompt_tokens: Annotated[Whole, Ge(1), Le(1_000_000)] = 256
    answer_tokens: Annotated[Number, Gt(0), Le(1_000_000)] = 1000.0
    mode: Mode = "colocated"
    staleness: Annotated[Whole, Ge(0), Le(64)] = 0
    partial_rollouts: bool = False
    framework: str = "nemo-rl"
    engine: Serving = Generation().engine
    generator_tp: Degree = 1
    generator_gpus: Degree | None = None
    generator_precision: Literal["bf16", "fp8"] = "bf16"
    by: Literal["time", "usd", "throughput"] = "time"
    pins: Pins = Pins()


def rl_question(text: str) -> RLQuestion:
    """Read a question; errors as :func:`simulator.explorer.asked.read_question`."""
    asked: RLQuestion = read_question(RLQuestion, text)
    return asked


def _scenario(asked: RLQuestion) -> Scenario:
    engine = {name: getattr(asked, field) for field, name in _ENGINE.items()}
    section = {name: getattr(asked, name) for name in _SECTION}
    document = {
        "model": {"name": asked.model},
        "training": {"sequence_length": asked.sequence_length, "global_batch": asked.global_batch},
        "cluster": {"name": asked.cluster, "gpus": asked.gpus},
        "layout": asked.pins.given(),
        "rl": section | {"generation": {k: v for k, v in engine.items() if v is not None}},
    }
    return make_scenario(document, where="question")


def rl_answer(asked: RLQuestion, *, search: bool) -> dict[str, Any]:
    """What the page shows: the step by phase on two lanes, who waits, splits, what would help."""
    answer = rl(_scenario(asked), by=asked.by, search=search, progress=lambda done, of: may_go_on())
    document = answer.document()
    rows = [row for row in document["tried"] if row["step_time_s"] is not None]
    rows.sort(key=lambda row: (row["verdict"] == "OOM", row["update_s"]))
    shown = answer.shown
    return {
        **document,
        "line": answer.line,
        "trainer_layout": "" if shown is None else shown.step.trainer.described,
        "spans": [] if shown is None else plain(timeline(shown.step)),
        "inks": {
            phase: (word, colour(ink).light, colour(ink).dark)
            for phase, (ink, word) in INKS.items()
        },
        "tried": rows[:_MOST_ROWS],
        "tried_splits": len(answer.tried),
    }
