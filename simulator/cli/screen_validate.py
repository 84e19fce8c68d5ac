"""The screen of `foreshard validate`: errors by split and source, rankings, what was left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Table

from simulator.cli.screen import console, notes, plain_table
from simulator.scoring.scores import SCORED_MEMORY

if TYPE_CHECKING:
    from simulator.scoring.scores import ScoredRow
    from simulator.scoring.validation import Validation

__all__ = ["show"]

_MEANING = {"calibrate": "figures may be fitted on these", "test": "nothing is fitted on these"}
_WORST = 5
_FIELDS = 6


def show(found: Validation) -> None:
    """Print a validation."""
    summary = found.summary()
    out = console()
    predicted = len(found.predicted)
    out.print(
        f"{len(found.rows)} measured runs: {predicted} predicted,"
        f" {len(found.rows) - predicted} skipped. Error = predicted / measured step time - 1.\n"
    )
    composed = {row.run.get("source") for row in found.rows if row.composed}
    out.print(_errors(summary, composed), "")
    out.print(*_baseline(summary), *_memory(summary), sep="\n")
    out.print("", _ranking(summary["ranking"]), "", sep="\n")
    if predicted:
        out.print(_worst(found.predicted), "")
    reasons = [f"{count:>5}  {reason}" for reason, count in summary["skipped"].items()]
    out.print(notes("skipped", reasons))
    out.print(notes("assumed", _assumed(summary["assumed_fields"])))


def _errors(summary: Mapping[str, Any], composed: set[str]) -> Table:
    """One line for each source of each split, and the split's own line under them."""
    table = plain_table(
        "source", "rows", "predicted", "skipped", "mean", "median", "p90", "max", "bias",
        left=("source",),
    )  # fmt: skip
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
    names = ("mape", "median_ape", "p90_ape", "max_ape")
    return [*counts, *(_percent(errors[name]) for name in names), _percent(errors["bias"], "+")]


def _percent(value: float | None, sign: str = "") -> str:
    return "-" if value is None else f"{100 * value:{sign}.1f} %"


def _baseline(summary: Mapping[str, Any]) -> Iterable[str]:
    """What a constant efficiency makes of the same rows, with the same FLOPs."""
    for split, errors in summary["by_split"].items():
        base = errors["baseline"]
        if base["n"]:
            yield (
                f"baseline, constant efficiency {base['efficiency']:g} of the dense peak, {split}:"
                f" mean {_percent(base['mape'])}, bias {_percent(base['bias'], '+')}"
                f" (ours: {_percent(errors['mape'])}, {_percent(errors['bias'], '+')})"
            )


def _memory(summary: Mapping[str, Any]) -> Iterable[str]:
    for kind in SCORED_MEMORY:
        errors = summary["memory"][kind]
        if errors["n"]:
            yield (
                f"memory, {kind}, {errors['n']} readings: mean {_percent(errors['mape'])}, max"
                f" {_percent(errors['max_ape'])}, bias {_percent(errors['bias'], '+')}"
            )
        else:
            yield f"memory, {kind}: no run that was predicted has such a reading"


def _ranking(groups: list[dict[str, Any]]) -> Table | str:
    """Whether the right layout is called fastest, where runs differ in nothing else."""
    if not groups:
        return "ranking: no five predicted runs differ in nothing but their layout"
    title = "ranking of layouts"
    table = plain_table(title, "layouts", "pairs", "Kendall tau", "regret", left=(title,))
    for group in groups:
        tau = "-" if group["kendall_tau"] is None else f"{group['kendall_tau']:.2f}"
        cells = (str(group["n"]), str(group["pairs"]), tau, _percent(group["regret"]))
        table.add_row(group["group"], *cells)
    return table


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


def _assumed(fields: Mapping[str, int]) -> list[str]:
    """How many predicted rows took a field on assumption, the most frequent fields."""
    if not fields:
        return []
    first = [f"{name} in {count}" for name, count in list(fields.items())[:_FIELDS]]
    more = f", {len(fields) - _FIELDS} other fields in fewer" if len(fields) > _FIELDS else ""
    return [f"rows whose source does not state a field: {', '.join(first)}{more}"]
