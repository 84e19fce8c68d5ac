"""The self-check: predict every combination that fits together, and hold it against identities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from simulator.answers import Encoded
from simulator.doctor.combinations import Combination, whole_servers
from simulator.doctor.identities import IDENTITIES, Broken, broken
from simulator.errors import InputError
from simulator.hardware.cluster import load_cluster
from simulator.planner.prediction import Prediction, predict
from simulator.records import dataclass
from simulator.scenario import make_scenario
from simulator.workload.presets import load

_TOKENS = 1e9
_SEQUENCE = 2048
_BATCH = 64
_LAYOUTS: tuple[dict[str, Any], ...] = (
    {},
    {"sharding": "zero3"},
    {"sharding": "ddp"},
    {"tp": 2},
    {"micro_batch": 4},
    {"pp": 2},
)
"""What is tried until a combination can run: not every software has every kind of sharding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One combination that breaks an identity, or ends in an error that is no answer."""

    KEYS: ClassVar[tuple[str, ...]] = ("*combination", "*broken")

    combination: Combination
    broken: Broken


@dataclass(frozen=True, kw_only=True, slots=True)
class Examination(Encoded):
    """What a self-check found."""

    KEYS: ClassVar[tuple[str, ...]] = ("predicted", "identities", "refused", "findings")
    identities: ClassVar[tuple[str, ...]] = tuple(IDENTITIES)

    predicted: int
    refused: dict[str, int]
    """Combinations that do not fit together, by reason."""
    findings: tuple[Finding, ...]


def examine(
    combinations: Iterable[Combination], *, progress: Callable[[int, int], None] | None = None
) -> Examination:
    """Predict a training step of every combination on two servers, and check it.

    A combination that the software or arithmetic rules out is counted, not a finding; any error
    other than a refused input is one.
    """
    cases = list(combinations)
    refused: Counter[str] = Counter()
    findings: list[Finding] = []
    for done, case in enumerate(cases, start=1):
        try:
            prediction = _predicted(case)
            if isinstance(prediction, str):
                refused[prediction] += 1
            else:
                findings += [Finding(combination=case, broken=one) for one in broken(prediction)]
        except Exception as error:  # a crash is what this looks for
            said = Broken(identity="ends in an answer", said=f"{type(error).__name__}: {error}")
            findings.append(Finding(combination=case, broken=said))
        if progress is not None:
            progress(done, len(cases))
    return Examination(
        predicted=len(cases) - refused.total(), refused=dict(refused), findings=tuple(findings)
    )


def _predicted(case: Combination) -> Prediction | str:
    """The first layout that can run, or why none can."""
    reason = ""
    for layout in _LAYOUTS:
        try:
            return predict(make_scenario(_document(case, layout)))
        except InputError as error:
            reason = reason or str(error).partition("\n")[0].partition(", got")[0]
    return reason


def _document(case: Combination, layout: dict[str, Any]) -> dict[str, Any]:
    """A scenario of two servers: a sequence that every text model has; images have their own."""
    return {
        "model": {"name": case.model},
        "training": {"tokens": _TOKENS, "global_batch": _BATCH, **_training(case)},
        "cluster": {
            "name": case.cluster,
            "gpus": whole_servers(case.cluster),
            "software": case.software,
        },
        "layout": layout,
    }


def _training(case: Combination) -> dict[str, Any]:
    """A type that the device has, and tokens per sequence that the model takes."""
    arch, rates = load(case.model), load_cluster(case.cluster, 1).accelerator.matrix_flop_per_s
    precision = next((dtype for dtype in ("bf16", "fp16") if dtype in rates), "fp32")
    if arch.traced is not None and arch.traced.element_bytes == 4:
        precision = "fp32"
    most = arch.max_positions
    fixed, learned = arch.has_fixed_length, arch.position == "learned"
    length = most if fixed else min(_SEQUENCE, most) if learned else _SEQUENCE
    return {"precision": precision, "sequence_length": length}
