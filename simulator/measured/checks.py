"""Whether the measured values of a run can be right: readable, in their units, possible at all.

A value in the wrong unit is off by a thousand or more, and that shows: no step does more than the
peak of its device, and no run worth a row does less than a thousandth of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from simulator.errors import InputError, brief
from simulator.measured.replay import Run
from simulator.measured.rows import MeasuredRun, choice, flag, number, text
from simulator.records import dataclass
from simulator.units import GB

T = TypeVar("T")

MEMORY_MOMENTS = {"memory_stage": ("first", "last"), "memory_read": ("first_step",)}
"""Columns that say on which pipeline stage, and when, memory was read, and their words."""
MEMORY_WORDS = ("allocated", "reserved", "nvidia_smi", "analytic", "unknown")
"""What a memory reading may be of; the last is taken where the row does not say."""

_SAME_RATE = 0.02
_TERA = 1e12

_MILLI = 1e-3
_FAR_OFF = 30.0
"""Times the prediction beyond which a step that computes next to nothing is in other units: the
root of a thousand, half way between seconds and milliseconds."""
"""Share of the peak under which a step time is still possible when read as milliseconds."""

_CONVENTIONS = 2.0
"""A stated FLOP rate may pass the peak by this: the score matrix in full counts attention twice,
and recomputation counts a third more. The highest shipped one is at 0.64 of its peak."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Readings:
    """What was measured of one run; what was not is None."""

    step_time_s: float | None = None
    tflops_per_gpu: float | None = None
    """As printed, in the convention of the source."""
    memory_gib: float | None = None
    memory_kind: str | None = None
    """One of MEMORY_WORDS."""


def excluded(run: MeasuredRun) -> str | None:
    """Why a row is left out: what its column ``excluded`` says.

    Examples
    --------
    >>> excluded(MeasuredRun(where="", fields={"excluded": "clock ran slow"}))
    'clock ran slow'
    """
    return run.get("excluded") or None


def readings(run: MeasuredRun) -> Readings:
    """Read the measured values of a row.

    Raises
    ------
    InputError
        With every value that is not a positive number, a memory kind that is not known, and a step
        time that does not give the stated throughput.
    """
    problems: list[str] = []

    def read(parse: Callable[[], T]) -> T | None:
        try:
            return parse()
        except InputError as error:
            problems.extend(error.problems)
            return None

    def positive(field: str) -> float | None:
        return read(lambda: number(run.fields, field)) if run.get(field) else None

    found = Readings(
        step_time_s=positive("step_time_s"),
        tflops_per_gpu=positive("model_tflops_per_gpu"),
        memory_gib=positive("peak_memory_gib"),
        memory_kind=read(lambda: _memory_kind(run)),
    )
    read(lambda: flag(run.fields, "composed"))
    for name, words in MEMORY_MOMENTS.items():
        read(lambda name=name, words=words: choice(run.fields, name, words))  # type: ignore[misc]
    stated, step_time_s = positive("tokens_per_s_per_gpu"), found.step_time_s
    if stated is not None and step_time_s is not None:
        read(lambda: _check_rate(run, step_time_s, stated))
    if problems:
        raise InputError(f"{run.where}: {line}" for line in problems)
    return found


def utilisation(run: Run, *, model_flop: float, step_time_s: float) -> tuple[float, float]:
    """MFU of a step over two dense peaks: that of bf16, and that of the run's own precision.

    The first is the convention (Chowdhery et al. 2022, appendix B) and may pass 1 where the large
    products run in fp8 or fp4; a device without bf16 is taken at its largest peak. The second
    cannot pass 1.

    Parameters
    ----------
    run : Run
        What ran where.
    model_flop : float
        Model FLOPs of one step over all accelerators.
    step_time_s : float
        Seconds per step.
    """
    peaks = run.cluster.accelerator.matrix_flop_per_s
    rate = model_flop / step_time_s / float(run.layout.world[0])
    mixed = float(peaks.get("bf16", max(peaks.values())))
    return rate / mixed, rate / _peak(run)


def implausible(
    run: Run, values: Readings, *, model_flop: float, predicted_s: float = 0.0
) -> list[str]:
    """Say what cannot be right about the measured values of a run: ``column: rule, got value``.

    Parameters
    ----------
    run : Run
        What ran where.
    values : Readings
        What was measured.
    model_flop : float
        Model FLOPs of one step over all accelerators.
    predicted_s : float
        The predicted step time: a small model that waits for its host computes next to nothing of
        its step, as long as the prediction says so too; 0 where there is none.
    """
    found: list[str | None] = []
    if values.step_time_s is not None:
        found.append(_step_time(run, values.step_time_s, model_flop, predicted_s))
    if values.tflops_per_gpu is not None:
        found.append(_flop_rate(run, values.tflops_per_gpu))
    if values.memory_gib is not None and values.memory_kind != "analytic":
        found.append(_memory(run, values.memory_gib))
    return [line for line in found if line is not None]


# --- one rule each -------------------------------------------------------------------------


def _memory_kind(run: MeasuredRun) -> str | None:
    if not run.get("peak_memory_gib"):
        return None
    return text(run.fields, "memory_kind", MEMORY_WORDS) if run.get("memory_kind") else "unknown"


def _check_rate(run: MeasuredRun, step_time_s: float, stated: float) -> None:
    """Refuse a step time whose throughput is not the stated one."""
    gpus = number(run.fields, "num_gpus")
    tokens = number(run.fields, "global_batch") * number(run.fields, "seq_len")
    rate = tokens / step_time_s / gpus
    if abs(rate / stated - 1.0) <= _SAME_RATE:
        return
    causes = {1.0 / _MILLI: "milliseconds?", gpus: "tokens/s of all GPUs?"}
    near = (word for times, word in causes.items() if abs(stated / rate / times - 1) <= _SAME_RATE)
    hint = next((f" ({word})" for word in near), "")
    rule = f"must agree with tokens_per_s_per_gpu ({stated:g}, not {rate:.4g})"
    raise InputError(f"step_time_s: {rule}, got {brief(run.get('step_time_s'))}{hint}")


def _peak(run: Run) -> float:
    """Dense peak of the precision that the run trained in."""
    return float(run.cluster.accelerator.matrix_flop_per_s[run.workload.recipe.matrix_type])


def _peak_words(run: Run) -> str:
    return f"the dense {run.workload.recipe.precision} peak of {run.cluster.accelerator.name}"


def _step_time(run: Run, step_time_s: float, model_flop: float, predicted_s: float) -> str | None:
    share = utilisation(run, model_flop=model_flop, step_time_s=step_time_s)[1]
    if share > 1.0:
        return (
            f"step_time_s: implies {share:.3g} x {_peak_words(run)}; seconds expected,"
            f" got {step_time_s:g}"
        )
    if share < _MILLI and step_time_s > _FAR_OFF * predicted_s:
        return (
            f"step_time_s: implies {100 * share:.2g} % of {_peak_words(run)}; seconds expected,"
            f" got {step_time_s:g} (milliseconds?)"
        )
    return None


def _flop_rate(run: Run, tflops: float) -> str | None:
    """Rates are never compared, but one beyond every convention shows mixed-up units."""
    share = tflops * _TERA / _peak(run)
    if share <= _CONVENTIONS:
        return None
    return (
        f"model_tflops_per_gpu: is {share:.3g} x {_peak_words(run)}; TFLOP/s expected,"
        f" got {tflops:g}"
    )


def _memory(run: Run, size_gib: float) -> str | None:
    """A device holds what it has; the GB of its data sheet may be GiB."""
    capacity_gb = float(run.cluster.accelerator.memory.capacity_bytes) / GB
    if size_gib <= capacity_gb:
        return None
    return (
        f"peak_memory_gib: is above the {capacity_gb:.4g} GB of {run.cluster.accelerator.name};"
        f" GiB expected, got {size_gib:g}"
    )
