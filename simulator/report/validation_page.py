"""The page of a validation: one HTML file that opens by double click, offline, light or dark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

from simulator.report.decision import GRADE_WORDS
from simulator.report.evidence import NOT_MODELLED
from simulator.report.page import environment
from simulator.report.validation_figures import BAND, validation_figures
from simulator.report.validation_numbers import (
    BIN,
    BenchmarkTable,
    ErrorLine,
    ValidationNumbers,
    collect_validation,
    layout_words,
)
from simulator.report.write import write_file
from simulator.scoring.rankings import FEWEST_LAYOUTS, TIE
from simulator.scoring.series import FEWEST_SIZES
from simulator.scoring.validation import Validation
from simulator.units import show_percent, show_signed_percent

TABS = {
    "errors": "Errors",
    "groups": "By group",
    "layouts": "Layouts and scale",
    "runs": "Runs",
    "timings": "Microbenchmarks",
    "reading": "How to read this",
}
"""Parts of the page by anchor, in order; the first alone is printed."""

SECTIONS = {
    "verdict": "How good predictions are",
    "agreement": "Predicted against measured",
    "scale": "Error against scale",
    "spread": "How errors are spread",
    "tables": "Errors by source, kind, GPU, framework, precision, scale",
    "memory": "Memory",
    "rankings": "Rankings of layouts",
    "series": "Scaling series",
    "worst": "Furthest off",
    "skipped": "Skipped runs",
    "benchmarks": "Microbenchmarks",
    "limits": "What the words mean",
}
"""Sections of the page by anchor, in order."""

HOW_TO_READ = (
    ("error", "predicted / measured step time - 1: below zero is predicted too fast"),
    ("mean, median, p90, max", "of absolute errors; the bias is the mean with sign"),
    (
        "split",
        "profile figures may be fitted on runs of calibrate, and nothing is ever fitted on runs of"
        " test; so their errors are never added up, and only those of test say how good a"
        " prediction of a new run is",
    ),
    (
        "composed",
        "step times put together from profiled parts, not read off a whole step: in the table of"
        " sources, and in no other error",
    ),
    (
        "noise",
        "two releases of one software that run the same layout differ by 2 % (median, dense"
        " models) to 6 %: an error below about 3 % is noise",
    ),
    (
        "baseline",
        "every step runs its FLOPs, those of full recomputation included, at one rate for each GPU"
        " and class of precision: the median of the shipped calibration runs, whatever the layout",
    ),
    (
        "assumed",
        "a field that the source of a run does not state takes a documented default; the"
        " prediction is no better than that",
    ),
    (
        "memory",
        "scored against readings of the same kind only: nvidia-smi counts what torch does not",
    ),
)
"""What the words of the page mean."""

_FIELDS = 6
_MEANING = {"calibrate": "figures may be fitted on these", "test": "nothing is fitted on these"}


def write_validation(validation: Validation, path: Path) -> None:
    """Write the page of a validation; its folder is made if it is missing.

    The page is made in memory first and then renamed into place: whole or not at all.
    """
    content = render_validation(validation).encode()
    write_file(path, content)


def render_validation(validation: Validation) -> str:
    """Return the page of a validation as HTML."""
    numbers = collect_validation(validation)
    made = environment()
    made.filters |= {"layout": layout_words, "without_folder": _without_folder}
    return made.get_template("validation_page.html.j2").render(
        n=numbers,
        sections=SECTIONS,
        headline=_headline(numbers),
        verdict=list(_verdict(numbers)),
        intervals=any(line.errors["coverage_80"] is not None for line in numbers.splits),
        drawn=validation_figures(numbers),
        tabs=TABS,
        grade_words=GRADE_WORDS,
        band=BAND,
        bin=BIN,
        fewest_layouts=FEWEST_LAYOUTS,
        fewest_sizes=FEWEST_SIZES,
        tie=TIE,
        how_to_read=HOW_TO_READ,
        not_modelled=NOT_MODELLED,
    )


def _without_folder(told: str) -> str:
    """Name the file only in ``folder/file: what is said of it``: pages are passed on."""
    path, colon, rest = told.partition(": ")
    return PurePath(path).name + colon + rest


# --- verdict -----------------------------------------------------------------------------


_FITTED = "calibrate"


def _headline(numbers: ValidationNumbers) -> str:
    """The mean error of runs that nothing is fitted on; of others where there are none."""
    scored = [line for line in numbers.splits if line.errors["n"]]
    line = next((line for line in scored if line.name != _FITTED), next(iter(scored), None))
    if line is None:
        return f"{numbers.predicted:,} of {len(numbers.rows):,} runs predicted"
    fitted = "nothing is" if line.name != _FITTED else "figures may be"
    return (
        f"Predicted {show_percent(line.errors['mape'])} off in the mean, on {line.errors['n']:,}"
        f" measured runs that {fitted} fitted on"
    )


def _verdict(numbers: ValidationNumbers) -> Iterator[str]:
    """Say in a few sentences how good the predictions are, each split for itself."""
    rows = len(numbers.rows)
    skipped = rows - numbers.predicted
    yield f"{rows:,} measured runs: {numbers.predicted:,} predicted, {skipped:,} skipped."
    for line in numbers.splits:
        yield _split_sentence(line)
    if numbers.composed:
        yield (
            "Put together from parts, not measured, apart from these figures:"
            f" {numbers.composed:,}."
        )
    for table in numbers.benchmarks:
        yield _benchmark_sentence(table)
    for split, score in numbers.ranking_by_split.items():
        yield _ranking_sentence(split, score)
    if numbers.evidence:
        counts = [f"{count:,} {grade}" for grade, count in numbers.evidence.items()]
        yield f"What stands behind the predictions: {', '.join(counts)}."
    if numbers.assumed:
        first = [f"{name} in {count:,}" for name, count in list(numbers.assumed.items())[:_FIELDS]]
        more = len(numbers.assumed) - _FIELDS
        others = f", {more} other fields in fewer" if more > 0 else ""
        yield f"Predicted runs whose source does not state a field: {', '.join(first)}{others}."


def _ranking_sentence(split: str, score: Mapping[str, Any]) -> str:
    groups = score["groups"]
    tau = "none" if score["median_tau"] is None else f"{score['median_tau']:.2f}"
    return (
        f"Layouts put in order, {split}: {groups} group{'s' if groups > 1 else ''}, median tau"
        f" {tau}, regret {show_percent(score['median_regret'])} in the median and"
        f" {show_percent(score['worst_regret'])} at worst."
    )


def _benchmark_sentence(table: BenchmarkTable) -> str:
    head = f"Timings of {table.kind}: {table.predicted:,} of {table.rows:,} predicted"
    return f"{head}; {_error_words(table.errors)}." if table.predicted else f"{head}."


def _split_sentence(line: ErrorLine) -> str:
    errors, baseline = line.errors, line.errors["baseline"]
    meaning = f" ({_MEANING[line.name]})" if line.name in _MEANING else ""
    predicted = errors["rows"] - errors["skipped"]
    head = f"{line.name}{meaning}: {predicted} of {errors['rows']} predicted"
    if not errors["n"]:
        return f"{head}, none with a measured time."
    text = f"{head}; {_error_words(errors)}"
    if errors["coverage_80"] is not None:
        text += f"; {show_percent(errors['coverage_80'])} inside P10-P90"
    if baseline["n"]:
        text += (
            f". Baseline: mean {show_percent(baseline['mape'])}, bias"
            f" {show_signed_percent(baseline['bias'])}"
        )
    return f"{text}."


def _error_words(errors: Mapping[str, Any]) -> str:
    return (
        f"mean error {show_percent(errors['mape'])}, median"
        f" {show_percent(errors['median_ape'])}, p90 {show_percent(errors['p90_ape'])}, largest"
        f" {show_percent(errors['max_ape'])}, bias {show_signed_percent(errors['bias'])}"
    )
