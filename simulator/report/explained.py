"""What a term of the answer means: formula, source, figures, and its value in a scenario."""

from __future__ import annotations

import dataclasses
from typing import Any

from simulator import records
from simulator.answers import head, plain
from simulator.cost.memory.peak import MEMORY_KINDS
from simulator.cost.rank_memory import rank_memory
from simulator.cost.terms import MEMORY_MEANING, TERMS
from simulator.errors import InputError, did_you_mean
from simulator.glossary import glossary, meaning
from simulator.planner.prediction import Prediction
from simulator.planner.sensitivity import FigureEffect, figure_effects

_MEMORY_SOURCE = "cost/memory/peak.py, cost/states/state_bytes.py; counted, with torch as the check"
_MEMORY_FIGURES = "software profile [states], [memory]; accelerator memory"


@records.dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """What a term is in one layout."""

    layout: str
    amount: float
    """Seconds of a step, or bytes on the worst rank."""
    share: float
    """Of the step time, or of all its memory."""
    hidden_s: float
    """Communication under compute, which is no part of `amount`."""
    inputs: dict[str, float]
    """Of a kind of memory: what its formula is fed with."""
    effects: list[FigureEffect]
    """Of a term of the step time: figures that move it, most telling first."""


@records.dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """One term."""

    name: str
    label: str
    unit: str
    """``s`` or ``bytes``; blank for a word of the glossary."""
    when: str
    """Stream and phase of a step; blank for memory."""
    formula: str
    source: str
    figures: str
    """What it reads of profiles."""
    value: Value | None = None
    """In the scenario that was given."""


def term_names() -> list[str]:
    """Terms of the step time, then kinds of memory."""
    return [*(term.name for term in TERMS), *MEMORY_KINDS]


def explained(name: str, prediction: Prediction | None = None) -> Explained:
    """Explain a term, and say what it is in a prediction.

    Raises
    ------
    InputError
        If there is no such term, with the nearest.
    """
    for term in TERMS:
        if name in (term.name, term.label):
            found = Explained(
                name=term.name,
                label=term.label,
                unit="s",
                when=f"{term.stream}, {term.phase}",
                formula=term.formula,
                source=term.source,
                figures=term.figures,
            )
            value = None if prediction is None else _time(term.name, prediction)
            return dataclasses.replace(found, value=value)
    if name not in MEMORY_KINDS:
        return _word(name)
    return Explained(
        name=name,
        label=f"memory: {name}",
        unit="bytes",
        when="",
        formula=MEMORY_MEANING[name],
        source=_MEMORY_SOURCE,
        figures=_MEMORY_FIGURES,
        value=None if prediction is None else _memory(name, prediction),
    )


def _word(name: str) -> Explained:
    """What a word of the glossary means; `layout` is how the name of a layout reads.

    Raises
    ------
    InputError
        If there is no such word or term, with the nearest.
    """
    if name == "layout":
        text = "\n".join(f"{sign:<18}{text}" for sign, text in glossary()["layout"].items())
        known: tuple[str, str] | None = ("layout", text)
    else:
        known = meaning(name)
    if known is None:
        hint = did_you_mean(name, [*term_names(), *glossary()["words"], "layout"])
        raise InputError(f"command line: {name}: no such term{hint}")
    label, formula = known
    return Explained(name=label, label="", unit="", when="", formula=formula, source="", figures="")


def _time(name: str, prediction: Prediction) -> Value:
    estimate = prediction.estimate
    seconds = float(estimate.terms_s[name][0])
    hidden = estimate.hidden_s.get(name)
    return Value(
        layout=estimate.layouts.describe(),
        amount=seconds,
        share=seconds / prediction.step_time_s,
        hidden_s=0.0 if hidden is None else float(hidden[0]),
        inputs={},
        effects=[
            figure_effect
            for figure_effect in figure_effects(prediction, name)
            if figure_effect.change_s
        ],
    )


def _memory(name: str, prediction: Prediction) -> Value:
    estimate, scenario = prediction.estimate, prediction.scenario
    ranks = rank_memory(estimate.layouts, scenario.workload, scenario.cluster, scenario.software)
    fullest = int(ranks.total_bytes.argmax())
    size = float(estimate.memory_bytes[name][0])
    return Value(
        layout=estimate.layouts.describe(),
        amount=size,
        share=size / prediction.memory_bytes,
        hidden_s=0.0,
        inputs=dict(ranks.inputs[fullest].get(name, {})),
        effects=[],
    )


def explained_document(explanations: list[Explained]) -> dict[str, Any]:
    """Return terms as `--json` has them."""
    return head("explain") | {"terms": plain(explanations)}
