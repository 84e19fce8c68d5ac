"""`foreshard validate`: predictions beside measured runs, by source and split.

The command first, then its screen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table

from simulator.cli.option_groups import ScenarioOptions
from simulator.cli.options import Json, check_out, print_json, print_line, writing
from simulator.cli.runner import Reply, question
from simulator.cli.screen import Progress, notes, plain_table, waiting
from simulator.errors import InputError
from simulator.questions.validate.log_command import (
    AnyLog,
    LogScenario,
    MegatronLog,
    MlperfLog,
    TorchtitanLog,
    WarmUp,
    validate_logs,
)
from simulator.questions.validate.trace_command import TraceFile, TraceSteps, validate_trace

if TYPE_CHECKING:
    from simulator.scoring.scores import ScoredRow
    from simulator.scoring.validation import Validation


_MOST_PROBLEMS = 20

RunFiles = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="RUNS.csv",
        help="Tables of measured runs, kernels or collectives; the shipped ones if none is given.",
    ),
]

Map = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="COLUMN=FIELD",
        help='A column of your own table and what it is: "GPU type=gpu", "t (ms)=step_time_ms"; may'
        " be repeated. Sizes of models of the zoo need no columns then.",
    ),
]
Page = Annotated[
    Path | None,
    typer.Option("--html", metavar="OUT", help="Write the page that shows every row to this file."),
]

FirstSeen = Annotated[
    Path | None,
    typer.Option(
        "--first-seen",
        metavar="OUT.csv",
        help="Keep the predictions of one new table before anybody looks at its rows, and the table"
        " beside them: written once, never again.",
    ),
]


@question(
    "validate",
    "validate",
    "validate my-runs.csv --html validation.html",
    "validate mine.csv --map 'GPU type=gpu' --map 't (ms)=step_time_ms'",
    "validate --megatron-log train.log --scenario run.toml",
    "validate --trace rank0.json.gz --scenario run.toml",
)
def ask(
    *,
    runs: RunFiles = None,
    as_json: Json = False,
    html: Page = None,
    first_seen: FirstSeen = None,
    mapped: Map = None,
    megatron_log: MegatronLog = None,
    torchtitan_log: TorchtitanLog = None,
    mlperf_log: MlperfLog = None,
    log: AnyLog = None,
    scenario: LogScenario = None,
    options: ScenarioOptions,
    warm_up: WarmUp = None,
    trace: TraceFile = None,
    trace_steps: TraceSteps = None,
) -> Reply:
    """Predict measured runs and show how far off the predictions are.

    Rows that cannot be predicted are counted with the reason. A table has the columns that
    validation/README.md describes; --software names the profile for rows whose software is of no
    family that is known. Exit code 2 only if no row at all could be predicted.

    With --log (or --megatron-log, --torchtitan-log, --mlperf-log), set what your own run measured
    beside its prediction instead, that of a scenario or of what the log says of itself; with
    --trace, its profiled step, cause by cause.
    """
    logs = {"megatron": megatron_log, "torchtitan": torchtitan_log, "mlperf": mlperf_log}
    named = {f"--{name}-log": path for name, path in logs.items()}
    others = {**named, "--log": log, "--warm-up": warm_up}
    of_table = {"RUNS.csv": runs, "--html": html, "--first-seen": first_seen}
    if reply := validate_trace(
        trace, scenario, options, steps=trace_steps, others={**of_table, **others}
    ):
        return reply
    if reply := validate_logs(logs, log or (), scenario, options, warm_up=warm_up, others=of_table):
        return reply
    if html is not None and html.is_dir():
        raise InputError(f"--html: must be a file, got the folder {str(html)!r}")
    check_out("--html", html)
    if first_seen is not None:
        from simulator.scoring.first_sight import check_unwritten

        check_unwritten("--first-seen", first_seen, runs or ())
        check_out("--first-seen", first_seen)
    validation = _validate(runs, options.software or "", mapped, as_json)
    return Reply(
        validation, screen, write=partial(_write, runs=runs, html=html, first_seen=first_seen)
    )


def _validate(
    runs: list[Path] | None, software: str, mapped: list[str] | None, as_json: bool
) -> Validation:
    """Predict; where no table can be read, print an empty document before saying why."""
    from simulator.measured.mapped_tables import parse_map
    from simulator.scoring.validation import Validation, validate

    if mapped and not runs:
        raise InputError("--map: needs a table of your own, RUNS.csv")
    columns = parse_map(mapped or ())
    try:
        with Progress("predicting measured runs") as progress:
            return validate(runs or (), software=software, columns=columns, progress=progress)
    except InputError as error:
        if as_json:
            print_json(Validation(rows=(), problems=error.problems).document())
        raise


def _write(
    validation: Validation, runs: list[Path] | None, html: Path | None, first_seen: Path | None
) -> Iterator[str]:
    """Write page and first sight, and say which rows could not be used."""
    from simulator.report.validation_page import write_validation

    if html is not None:
        with writing(html, "--html"), waiting("writing the page"):
            write_validation(validation, html)
        aside = "; steps of reinforcement learning are on the screen and in --json alone"
        yield f"Page: {html}{aside if validation.rl else ''}"
    if first_seen is not None and runs:
        from simulator.scoring.first_sight import write_first_sight

        with writing(first_seen, "--first-seen"):
            for place in write_first_sight(validation.all_rows, first_seen, runs[0]):
                yield f"First sight: {place}"
    for problem in validation.problems[:_MOST_PROBLEMS]:
        print_line(problem, err=True)
    if len(validation.problems) > _MOST_PROBLEMS:
        more = len(validation.problems) - _MOST_PROBLEMS
        print_line(f"and {more} more problems, see --json", err=True)
    if not validation.used:
        named = ", ".join(map(str, runs or ())) or "shipped tables"
        rule = "no row could be predicted; the answer has the reason of each"
        raise InputError(f"{named}: {rule}")


_MEANING = {"calibrate": "figures may be fitted on these", "test": "nothing is fitted on these"}
_PARTS = {
    "kind": "by_kind",
    "GPU": "by_gpu",
    "framework": "by_framework",
    "precision": "by_precision",
    "scale": "by_scale",
}
_ERRORS = {"mean": "mape", "median": "median_ape", "p90": "p90_ape", "max": "max_ape"}
_COVERAGE = 0.95
"""Share of the replayable rows of a source that must be predicted before its error says much."""

_SPLITS = 3
_WORST = 5
_GROUPS = 10
_LINES = 12
_FIELDS = 6

_BENCHMARK_PARTS = {"by kernel": "by_kernel", "by device": "by_device"}
_BENCHMARK_ERRORS = ("mape", "median_ape", "p90_ape", "max_ape")
_REASONS = 5


def screen(validation: Validation) -> Iterator[RenderableType]:
    """Give a validation."""
    summary = validation.summary()
    if validation.rows:
        yield from _runs(validation, summary)
    if validation.rl:
        yield from _rl(validation, summary["rl"])
    yield from _benchmark_tables(summary)


def _rl(validation: Validation, errors: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Steps of reinforcement learning: errors by what was fitted, policy, device and model."""
    predicted = sum(row.status == "ok" for row in validation.rl)
    yield (
        f"{len(validation.rl)} steps of reinforcement learning: {predicted} predicted,"
        f" {errors['skipped']} skipped. Error = predicted / measured step time - 1.\n"
    )
    table = plain_table("steps", "rows", *_ERRORS, "bias", left=("steps",))
    parts = {"all": errors}
    for key in ("by_use", "by_policy", "by_device", "by_model"):
        parts |= dict(errors[key])
    for name, some in parts.items():
        sizes = [_percent(some[key]) for key in _ERRORS.values()]
        table.add_row(name, str(some["n"]), *sizes, _percent(some["bias"], "+"))
    yield table
    if errors["coverage_80"] is not None:
        yield f"\nP10 to P90 holds {_percent(errors['coverage_80'])} of them"
    lines = (f"{row.run_id}: {row.reason}" for row in validation.rl if row.status == "skipped")
    yield notes("skipped", _cut(lines))


def _runs(validation: Validation, summary: Mapping[str, Any]) -> Iterator[RenderableType]:
    predicted = len(validation.predicted)
    rows = len(validation.rows)
    yield (
        f"{rows} measured runs: {predicted} predicted,"
        f" {rows - predicted} skipped. Error = predicted / measured step time - 1.\n"
    )
    composed = {row.run.get("source") for row in validation.rows if row.composed}
    yield from (_errors(summary, composed), "")
    if summary["step"]["n"]:
        yield from (_parts(summary), "")
    yield from (*_baseline(summary), *_intervals(summary), *_memory(summary))
    yield from ("", *_ranking(summary), "")
    if predicted:
        yield from (_worst(validation.predicted), "")
    reasons = (f"{count:>5}  {reason}" for reason, count in summary["skipped"].items())
    yield notes("above the bf16 peak", _cut(_above_peak(validation.predicted)))
    yield notes("rows that cannot be right", _cut(_refused(validation.rows)))
    yield notes("sources with rows that are not predicted", _uncovered(summary))
    yield notes("skipped", _cut(reasons))
    yield from (notes("assumed", _assumed(summary["assumed_fields"])), "")


# --- errors ------------------------------------------------------------------------------


def _errors(summary: Mapping[str, Any], composed: set[str]) -> Table:
    """One line for each source of each split, and the split's own line under them."""
    left = ("source",)
    table = plain_table("source", "rows", "predicted", "skipped", *_ERRORS, "bias", left=left)
    splits = dict.fromkeys(
        split for source in summary["by_source"].values() for split in source["by_split"]
    )
    for split in sorted(splits):
        meaning = _MEANING.get(split)
        table.add_row(f"{split} ({meaning})" if meaning else split, style="bold")
        for source, errors in summary["by_source"].items():
            if split in errors["by_split"]:
                name = f"{source}, composed: not pooled" if source in composed else source
                table.add_row(f"  {name}", *_cells(errors["by_split"][split]))
        if split in summary["by_split"]:
            table.add_row(f"  all {split}", *_cells(summary["by_split"][split]), style="bold")
    return table


def _cells(errors: Mapping[str, Any]) -> list[str]:
    counts = [str(errors["rows"]), str(errors["n"]), str(errors["skipped"])]
    sizes = [_percent(errors[name]) for name in _ERRORS.values()]
    return [*counts, *sizes, _percent(errors["bias"], "+")]


def _parts(summary: Mapping[str, Any]) -> Table:
    """Errors by kind, GPU, framework, precision and scale, the splits side by side."""
    splits = list(summary["by_split"])
    pooled = len(splits) > _SPLITS
    shown = ["all splits"] if pooled else splits
    columns = [word for split in shown for word in (split, "mean", "bias")]
    table = plain_table("by", *columns, left=("by",))
    for title, key in _PARTS.items():
        table.add_row(title, style="bold")
        for name, errors in summary[key].items():
            parts = [errors] if pooled else [errors["by_split"].get(split) for split in splits]
            cells = [_short(some) if some else ["-"] * 3 for some in parts]
            table.add_row(f"  {name}", *(cell for three in cells for cell in three))
    return table


def _short(errors: Mapping[str, Any]) -> list[str]:
    return [str(errors["n"]), _percent(errors["mape"]), _percent(errors["bias"], "+")]


def _baseline(summary: Mapping[str, Any]) -> Iterable[str]:
    """What a constant efficiency makes of the same rows."""
    for split, errors in summary["by_split"].items():
        base = errors["baseline"]
        if base["n"]:
            yield (
                f"baseline, constant efficiency per GPU and precision, {split}:"
                f" mean {_percent(base['mape'])}, bias {_percent(base['bias'], '+')}"
                f" (ours: {_percent(errors['mape'])}, {_percent(errors['bias'], '+')})"
            )


def _intervals(summary: Mapping[str, Any]) -> Iterable[str]:
    """What P10-P90 intervals hold and how wide they are, beside those of one width for all."""
    for split, errors in summary["by_split"].items():
        if errors["coverage_80"] is not None:
            constant = errors["constant_interval"]
            yield f"intervals, {split}: {_interval(errors)} (constant width: {_interval(constant)})"


def _interval(values: Mapping[str, Any]) -> str:
    inside, width = _percent(values["coverage_80"]), _percent(values["interval_width"])
    score = values["interval_score"]
    shown = "-" if score is None else f"{score:.3f}"
    return f"{inside} inside, median width {width}, score {shown}"


def _memory(summary: Mapping[str, Any]) -> Iterable[str]:
    from simulator.scoring.scores import SCORED_MEMORY

    for kind in SCORED_MEMORY:
        errors = summary["memory"][kind]
        if errors["n"]:
            yield (
                f"memory, {kind}, {errors['n']} readings: mean {_percent(errors['mape'])}, max"
                f" {_percent(errors['max_ape'])}, bias {_percent(errors['bias'], '+')}"
            )
        else:
            yield f"memory, {kind}: no run that was predicted has such a reading"


# --- rankings ----------------------------------------------------------------------------


def _ranking(summary: Mapping[str, Any]) -> Iterable[Table | str]:
    """Whether the right layout is called fastest, where runs differ in nothing else."""
    if not summary["ranking"]:
        yield "ranking: no five predicted runs differ in nothing but their layout"
        return
    groups = [group for group in summary["ranking"] if not group["composed"]]
    title = f"ranking of layouts, {min(_GROUPS, len(groups))} of {len(groups)} groups, worst first"
    table = plain_table(title, "layouts", "pairs", "Kendall tau", "regret", left=(title,))
    for group in sorted(groups, key=lambda group: -group["regret"])[:_GROUPS]:
        cells = (str(group["n"]), str(group["pairs"]), _tau(group["kendall_tau"]))
        table.add_row(f"  {group['group']}", *cells, _percent(group["regret"]))
    if groups:
        yield table
    for split, found in summary["ranking_by_split"].items():
        yield (
            f"ranking, {split}, {found['groups']} groups: median tau {_tau(found['median_tau'])},"
            f" regret {_percent(found['median_regret'])} (median),"
            f" {_percent(found['worst_regret'])} (worst)"
        )


def _tau(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


# --- rows --------------------------------------------------------------------------------


def _worst(rows: Iterable[ScoredRow]) -> Table:
    """The rows that are furthest off, composed ones left out."""
    title = f"furthest off ({_WORST} rows)"
    table = plain_table(title, "split", "predicted", "measured", "error", left=(title, "split"))
    known = [row for row in rows if row.step_error is not None and not row.composed]
    for row in sorted(known, key=lambda row: -abs(row.step_error or 0.0))[:_WORST]:
        times = (f"{row.predicted_step_s:.3f} s", f"{row.measured_step_s:.3f} s")
        name = f"{row.run.get('run_id')}, {row.run.get('model')} on {row.run.get('gpu')}"
        table.add_row(name, row.run.get("split"), *times, _percent(row.step_error, "+"))
    return table


def _above_peak(rows: Iterable[ScoredRow]) -> Iterable[str]:
    """Runs whose MFU passes 1 by the convention, and what it is of their own precision's peak."""
    for row in rows:
        mfu, own = row.measured_mfu, row.measured_mfu_own
        if mfu is not None and own is not None and mfu > 1.0:
            yield (
                f"{row.run.get('run_id')}: measured MFU {mfu:.2f} of the bf16 peak,"
                f" {own:.2f} of the {row.run.get('precision')} peak"
            )


def _refused(rows: Iterable[ScoredRow]) -> Iterable[str]:
    """What is wrong with rows, each with file, line and column."""
    for row in rows:
        if not row.replayable:
            reason = row.reason or ""
            yield reason if reason.startswith(row.run.where) else f"{row.run.where}: {reason}"


def _uncovered(summary: Mapping[str, Any]) -> list[str]:
    """Sources of which too few rows are predicted for their error to speak for them."""
    return [
        f"{source}: {_percent(errors['coverage'])} of {errors['replayable']} replayable rows"
        for source, errors in summary["by_source"].items()
        if errors["coverage"] is not None and errors["coverage"] < _COVERAGE
    ]


def _cut(lines: Iterable[str]) -> Sequence[str]:
    """The first lines, and how many more there are."""
    found = list(lines)
    more = len(found) - _LINES
    return found if more <= 0 else [*found[:_LINES], f"and {more} more, see --json"]


def _assumed(fields: Mapping[str, int]) -> list[str]:
    """How many predicted rows took a field on assumption, the most frequent fields."""
    if not fields:
        return []
    first = [f"{name} in {count}" for name, count in list(fields.items())[:_FIELDS]]
    more = f", {len(fields) - _FIELDS} other fields in fewer" if len(fields) > _FIELDS else ""
    return [f"rows whose source does not state a field: {', '.join(first)}{more}"]


# --- kernels and collectives ---------------------------------------------------------------


def _percent(value: float | None, sign: str = "") -> str:
    """Show a relative error, a dash where there is none; with ``+`` always with its sign."""
    return "-" if value is None else f"{100 * value:{sign}.1f} %"


def _benchmark_tables(summary: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield a table for kernels and one for collectives, each with what it leaves out."""
    for what in ("kernels", "collectives"):
        found = summary[what]
        if found is not None:
            yield _benchmarks(what, found)
            yield notes(f"{what} skipped", _reasons(found["skipped"]))
            yield ""


def _benchmarks(what: str, found: Mapping[str, Any]) -> Table:
    table = plain_table(what, "calls", "mean", "median", "p90", "max", "bias", left=(what,))
    for title, key in _BENCHMARK_PARTS.items():
        table.add_row(title, style="bold")
        for name, errors in found[key].items():
            table.add_row(f"  {name}", *_benchmark_cells(errors))
    table.add_row(f"all, {found['rows']:,} in the tables", *_benchmark_cells(found), style="bold")
    return table


def _benchmark_cells(errors: Mapping[str, Any]) -> list[str]:
    sizes = [_percent(errors[name]) for name in _BENCHMARK_ERRORS]
    return [f"{errors['n']:,}", *sizes, _percent(errors["bias"], "+")]


def _reasons(skipped: Mapping[str, int]) -> list[str]:
    """The most frequent reasons, and how many rows had another one."""
    lines = [f"{count:>5}  {reason}" for reason, count in list(skipped.items())[:_REASONS]]
    rest = list(skipped.values())[_REASONS:]
    return [*lines, f"{sum(rest):>5}  for {len(rest)} other reasons, see --json"] if rest else lines
