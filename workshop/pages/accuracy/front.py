"""docs/accuracy.md: what a stranger needs first, on one page. `make accuracy` writes it.

The page is a function of the document (workshop/cases/accuracy.py); it holds no number of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from workshop.cases.certainty_scores import UNFITTED
from workshop.pages.accuracy.first_sight import new_runs
from workshop.pages.accuracy.intervals import coverage

Table = Callable[..., str]
Percent = Callable[..., str]

_UNSEEN = (*UNFITTED, "own")
_KINDS = {"all": "all", "dense": "dense", "MoE": "experts"}
_FEWEST_RUNS = 3
_WORST_SOURCES = 4
_INTRO = """\
# Accuracy

Predicted step times against published ones.
[accuracy_details.md](accuracy_details.md) has every source, kernels, memory, scaling, rankings and
decisions.

Error = predicted / measured - 1. *mean* and *median* are of absolute errors, *bias* keeps the sign,
*inside* is the share between P10 and P90. *Constant efficiency* is the baseline: every GPU of a
type at one rate, the median of runs that figures may be fitted to."""
_REPRODUCE = """\
## How to reproduce it

    foreshard validate validation/runs/fresh_test_2.csv          # any table
    make accuracy                            # these pages

Sources and their trust: `validation/README.md`."""


def front_page(document: Mapping[str, Any], table: Table, percent: Percent) -> str:
    """Write the first page of a document; `table` and `percent` are those of the details."""
    parts = [
        _INTRO,
        *new_runs(document.get("first_sight", ()), table, percent),
        *_by_kind(document, table, percent),
        *coverage(document.get("intervals", {}), table, percent),
        *_whole_runs(document),
        *_reinforcement(document, percent),
        *_weak_side(document, table, percent),
        _REPRODUCE,
    ]
    return "\n\n".join(parts) + "\n"


def _by_kind(document: Mapping[str, Any], table: Table, percent: Percent) -> Iterator[str]:
    yield "## By kind of model, today"
    yield (
        "Mean errors of runs that no step time is fitted to (in brackets). *test*: first"
        " tables; *second-test*: newer releases, other vendors; *vendor-test*: printed with"
        " vendors' recipes, two switches chosen in sight; *own*: one H100 of ours."
    )
    rows = []
    for split in filter(document["kinds"].__contains__, _UNSEEN):
        kinds = document["kinds"][split]
        cells = [f"{percent(kinds[kind]['mape'])} ({kinds[kind]['n']})" for kind in _KINDS]
        constant = kinds["all"]["constant_efficiency"]["mape"]
        rows.append([split, *cells, percent(kinds["all"]["bias"], "+"), percent(constant)])
    yield table(("table", *_KINDS.values(), "bias", "constant efficiency"), rows)
    fitted = document["kinds"]["calibrate"]["all"]
    floor = document["baselines"]["noise_floor"]["dense"]
    yield (
        f"Runs that figures may be fitted to {percent(fitted['mape'])}"
        f" ({fitted['n']}); the same dense run on two neighbouring releases of a framework is"
        f" {percent(floor['median'])} apart (median), P90 {percent(floor['p90'])}."
    )


def _whole_runs(document: Mapping[str, Any]) -> Iterator[str]:
    """What published trainings took over their prediction, in a line."""
    whole = document.get("goodput", {}).get("gpu_hours", {}).get("kinds", {}).get("whole")
    if whole:
        yield (
            f"{whole['n']} published trainings took {whole['factor']:.2f} times the predicted"
            f" GPU-hours ({whole['p10']:.2f} to {whole['p90']:.2f}): [every one](goodput.md)."
        )


def _reinforcement(document: Mapping[str, Any], percent: Percent) -> Iterator[str]:
    """What measured steps of reinforcement learning were predicted as, in a line."""
    errors = document.get("rl")
    if not errors:
        return
    first, kinds, memory = errors["first_sight"], errors["kinds"], errors.get("memory")
    yield (
        f"Steps of reinforcement learning ({first['n']} published totals): {percent(first['mape'])}"
        f" off at first sight, {percent(kinds['all']['mape'])} today,"
        f" {percent(kinds['all']['coverage_80'])} inside."
        + (
            f" Right about memory in {memory['right']} of {memory['n']}"
            " (`validation/decisions.toml`)."
            if memory
            else ""
        )
    )


def _weak_side(document: Mapping[str, Any], table: Table, percent: Percent) -> Iterator[str]:
    yield "## Where not to trust it"
    sources = [
        (name, split, errors)
        for name, splits in document["sources"].items()
        for split, errors in splits.items()
        if split in _UNSEEN and not errors["composed"] and errors["n"] >= _FEWEST_RUNS
    ]
    sources.sort(key=lambda item: -item[2]["mape"])
    yield f"Sources with the largest mean error ({_FEWEST_RUNS} runs and more):"
    rows = []
    for name, split, errors in sources[:_WORST_SOURCES]:
        inside = document["certainty"]["by_source"][name][split]["coverage"]
        mean, bias = percent(errors["mape"]), percent(errors["bias"], "+")
        rows.append([name, split, str(errors["n"]), mean, bias, percent(inside)])
    yield table(("source", "table", "runs", "mean", "bias", "inside"), rows, left=2)
    lines = document.get("groups_left_out", ())
    devices = {line["group"]: line for line in lines if line["left_out"] == "device"}
    if devices:
        everything = devices.pop("all")
        worst = "; ".join(
            f"{name} {percent(line['mape'])}"
            for name, line in sorted(devices.items(), key=lambda item: -item[1]["mape"])[
                :_WORST_SOURCES
            ]
        )
        yield (
            "A GPU whose kernels nobody timed, by another generation's tables:"
            f" {percent(everything['mape'])}; worst {worst}."
        )
    yield ("What is not modelled, with its size: end of [design.md](design.md).")
