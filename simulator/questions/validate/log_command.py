"""`foreshard validate --megatron-log LOG`: a user's own training log beside its prediction.

The command first, then its screen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from simulator.cli.runner import Reply
from simulator.cli.screen import (
    Progress,
    amount,
    gib,
    heading,
    notes,
    plain_table,
    seconds_like,
    term_table,
)
from simulator.errors import InputError
from simulator.glossary import CAVEATS
from simulator.units import show_percent, show_seconds, show_seconds_span

if TYPE_CHECKING:
    from simulator.cli.option_groups import ScenarioOptions
    from simulator.scenario import Scenario
    from simulator.scoring.logs import LogComparison, Quantity


MegatronLog = Annotated[
    Path | None,
    typer.Option("--megatron-log", metavar="LOG", help="What Megatron-LM printed, or its kin."),
]
TorchtitanLog = Annotated[
    Path | None, typer.Option("--torchtitan-log", metavar="LOG", help="What torchtitan printed.")
]
MlperfLog = Annotated[
    Path | None, typer.Option("--mlperf-log", metavar="LOG", help="A log with :::MLLOG lines.")
]
AnyLog = Annotated[
    list[Path] | None,
    typer.Option(
        "--log",
        metavar="LOG",
        help="A training log of any kind that is read (NeMo, DeepSpeed, MaxText, LitGPT, ...), or"
        " the history of a run: CSV, JSON lines, TensorBoard, MLflow; may be repeated.",
    ),
]
LogScenario = Annotated[
    Path | None,
    typer.Option(
        "--scenario", metavar="SCENARIO", help="Scenario file (TOML) of the run of a log or trace."
    ),
]
WarmUp = Annotated[
    int | None,
    typer.Option(
        "--warm-up", metavar="N", min=0, help="Step lines to leave out at the start of a log."
    ),
]


def compare_logs(
    logs: Iterable[tuple[str, Path]],
    scenario: Scenario,
    *,
    warm_up: int | None = None,
) -> list[LogComparison]:
    """Read each log that is given and predict its run.

    Parameters
    ----------
    logs : pairs
        Kind (``megatron``, ``deepspeed``, ...) and path of each.
    scenario : Scenario
        The run, as the user describes it; the log decides what of its training was assumed.
    warm_up : int, optional
        Step lines to leave out at the start.

    Raises
    ------
    InputError
        With the problems of every log.
    """
    from simulator.interop.logs.readers import reader_of
    from simulator.scoring.logs import compare

    log_comparisons: list[LogComparison] = []
    problems: list[str] = []
    recipe, gpus = scenario.workload.recipe, scenario.cluster.gpus
    for kind, path in logs:
        try:
            with Progress(f"reading {path.name}") as progress:
                log = reader_of(kind)(path, recipe, gpus, warm_up=warm_up, progress=progress)
            log_comparisons.append(compare(log, scenario))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return log_comparisons


def validate_logs(
    logs: Mapping[str, Path | None],
    more: Iterable[Path],
    scenario: Path | None,
    options: ScenarioOptions,
    *,
    warm_up: int | None,
    others: Mapping[str, Any],
) -> Reply | None:
    """Answer `foreshard validate` where a log is given; None where none is.

    Parameters
    ----------
    logs : mapping
        Logs whose kind an option names, by that kind.
    more : iterable of path
        Logs of whatever kind they are.
    scenario, options
        What describes the run.
    warm_up : int, optional
        Step lines to leave out at the start.
    others : mapping
        What cannot be given together with a log, by its option.

    Raises
    ------
    InputError
        With the problems of logs and scenario, or if one is given without the other.
    """
    pairs = [(kind, path) for kind, path in logs.items() if path is not None]
    more = list(more)
    if not (pairs or more):
        of_table = ("software",)  # means something to a table of runs, too
        wrong = [
            f"--{name}"
            for name, value in options.named.items()
            if value is not None and name not in of_table
        ]
        wrong += ["--scenario"] * (scenario is not None) + ["--set"] * bool(options.overrides)
        wrong += ["--warm-up"] * (warm_up is not None)
        if wrong:
            raise InputError(
                f"{', '.join(wrong)}: only with a log or a trace, e.g. --megatron-log LOG"
            )
        return None
    if wrong := [name for name, value in others.items() if value]:
        raise InputError(f"{', '.join(wrong)}: cannot be given together with a log")
    from simulator.interop.logs.readers import log_kind

    pairs += [(log_kind(path), path) for path in more]
    logged = [path for kind, path in pairs if kind != "history"]
    if scenario is None and logged and not options.complete:
        described = _said_by(logged[0], options)
    else:
        described = options.scenario(scenario)
    comparisons = compare_logs(pairs, described, warm_up=warm_up)
    return Reply(comparisons, logs_screen, _document)


def _said_by(log: Path, options: ScenarioOptions) -> Scenario:
    """The scenario that a log describes itself, where no file and no options do.

    Raises
    ------
    InputError
        With what it does not say, and the option that does.
    """
    from simulator.interop.launch_files.merging import import_launch

    try:
        return import_launch([log], options.named, options.overrides or ()).scenario
    except InputError as error:
        said = (text.removeprefix("--from: ") for text in error.problems)
        rule = "; --scenario FILE says all of a run"
        raise InputError(
            f"{log}: {text.replace('these files', 'this log')}{rule}"
            if "not said by" in text
            else text
            for text in said
        ) from None


def _document(comparisons: Iterable[LogComparison]) -> dict[str, Any]:
    from simulator.answers import head
    from simulator.scoring.log_differences import differences

    logs = [{**log.document(), "differences": differences(log)} for log in comparisons]
    return {**head("validate"), "logs": logs}


_MOST_RANKS, _MOST_NAMED = 8, 12


def logs_screen(log_comparisons: Iterable[LogComparison]) -> Iterator[RenderableType]:
    """Give every comparison: what was read, measured beside predicted, the predicted terms."""
    from simulator.scoring.log_differences import differences, how_to_trace

    for comparison in log_comparisons:
        estimate = comparison.prediction.estimate
        yield heading(comparison.prediction.scenario)
        yield _read(comparison)
        yield _beside(comparison)
        yield ""
        lines = [*differences(comparison), how_to_trace(comparison)]
        yield notes("Where the difference lies, as far as a log can tell", lines)
        yield ""
        yield term_table({"predicted": (estimate, 0)}, share=True)
        yield notes("", _hidden(comparison))
        yield ""
        yield notes(CAVEATS, _remarks(comparison))


def _read(comparison: LogComparison) -> Text:
    """The layout, and what of the log the measured values are made of."""
    log = comparison.log
    text = Text(f"\n{comparison.prediction.estimate.layouts.describe()}\n", style="bold")
    kept = log.steps[log.dropped :]
    ranks = f", ranks seen: {_few(log.ranks)}" if log.ranks else ""
    text.append(
        f"{log.path}: {len(log.steps):,} step lines{ranks}. Measured: the median of"
        f" {len(kept):,}, from step {kept[0]:,} to {kept[-1]:,}.\n"
        f"Left out as warm-up: {log.dropped:,} ({log.rule}).\n",
        style="not bold",
    )
    return text


def _few(ranks: tuple[int, ...]) -> str:
    words = ", ".join(str(rank) for rank in ranks[:_MOST_RANKS])
    return words if len(ranks) <= _MOST_RANKS else f"{words}, ... ({len(ranks)} in all)"


def _beside(comparison: LogComparison) -> Table:
    """Measured beside predicted; the error only where the two are of one kind."""
    title = "predicted beside measured"
    table = plain_table(title, "predicted", "measured", "error", left=(title,))
    unit, scale = seconds_like(comparison.log.median_step_s)
    low, high = comparison.log.spread_s
    for quantity in comparison.quantities():
        name, write = _written(quantity, unit, scale)
        error = "-" if quantity.error is None else f"{100 * quantity.error:+.1f} %"
        table.add_row(name, write(quantity.predicted), write(quantity.measured), error)
        if quantity.name == "step_time":
            spread = f"{amount(scale * low)} to {amount(scale * high)}"
            table.add_row("  its P10 to P90", "-", spread, "-")
    return table


def _written(quantity: Quantity, unit: str, scale: float) -> tuple[str, Callable[[float], str]]:
    """Label of a quantity, and how its values are written."""
    if quantity.name.startswith("memory_"):
        kind = quantity.name.removeprefix("memory_")
        return f"memory, {kind} (GiB)", gib
    return {
        "step_time": (f"step time ({unit})", lambda x: amount(scale * x)),
        "tokens_per_s_per_gpu": ("tokens/s/GPU", lambda x: f"{x:,.0f}"),
        "mfu": ("MFU", show_percent),
        "model_flop_per_gpu_and_step": ("TFLOP per GPU and step", lambda x: f"{x / 1e12:,.1f}"),
    }[quantity.name]


def _hidden(comparison: LogComparison) -> list[str]:
    hidden = comparison.prediction.estimate.hidden_s
    parts = [f"{name} {show_seconds(float(c[0]))}" for name, c in hidden.items() if c[0]]
    return [f"hidden under compute, not in the sum: {', '.join(parts)}"] if parts else []


def _values(fields: Mapping[str, Any]) -> str:
    """``tp = 2, sequence_parallel = true``; blank in a layout: as usual."""

    def word(value: Any) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        return "usual" if value in ("", [], ()) else str(value)

    return ", ".join(f"{name} = {word(value)}" for name, value in fields.items())


def _taken(comparison: LogComparison) -> list[str]:
    """What the log decides, because the scenario leaves it open."""
    lines = []
    if comparison.from_log:
        lines.append(f"Layout fields taken from the log: {_values(comparison.from_log)}.")
    if comparison.training_from_log:
        values = _values(comparison.training_from_log)
        lines.append(f"Training fields taken from the log: {values}.")
    if comparison.software_from_log is not None:
        lines.append(f"Software profile after the log: {comparison.software_from_log}.")
    if comparison.software_fields_from_log:
        values = _values(comparison.software_fields_from_log)
        lines.append(f"Software fields taken from the log: {values}.")
    return lines


def _remarks(comparison: LogComparison) -> list[str]:
    """Where the layout came from, what the kinds of number mean, and what the reader noted."""
    from simulator.measured.log_lines import log_kinds
    from simulator.report.evidence import FLOP_CONVENTION

    log, prediction = comparison.log, comparison.prediction
    lines = []
    lines += _taken(comparison)
    rest = {k: v for k, v in prediction.defaults.items() if k not in comparison.from_log}
    if rest:
        lines.append(
            f"Layout fields assumed, because neither log nor scenario has them: {_values(rest)}."
        )
    if unknown := log.unknown:
        named, more = ", ".join(unknown[:_MOST_NAMED]), len(unknown) - _MOST_NAMED
        lines.append(
            f"Arguments of the log that are not known here, so not counted: {named}"
            + (f" and {more} more (--json lists them)." if more > 0 else ".")
        )
    software = prediction.scenario.software.name
    chosen = comparison.software_from_log is not None
    kind = log_kinds().get(log.framework)
    if kind is not None and kind.profile and log.framework not in software and not chosen:
        lines.append(f"The log is of {log.framework}, the software profile is {software}.")
    if log.model_tflops_per_gpu is not None:
        lines.append(
            "Measured TFLOP are those that the framework counts (its TFLOP/s x step time)."
            " Conventions differ; far apart, they point to another model."
        )
    if comparison.memory_is_of_the_first_step:
        full = gib(float(prediction.estimate.memory_total_bytes[0]))
        lines.append(
            "Memory was read after the first step, whose activations lay without the optimizer's"
            f" moments; so is the prediction beside it. Later steps need {full} GiB in all."
        )
    span = show_seconds_span(*prediction.interval_s)
    lines += [FLOP_CONVENTION, f"Predicted step time, P10 to P90: {span}."]
    return lines + [f"{note[0].upper()}{note[1:]}." for note in log.notes]
