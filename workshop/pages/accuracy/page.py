"""docs/accuracy_details.md: every figure of accuracy, and both pages written by `make accuracy`.

The page is a function of the document (workshop/cases/accuracy.py) and holds no number of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.report.write import write_file
from workshop.cases.accuracy import accuracy, compare, regressions
from workshop.pages.accuracy.certainty import certainty_section
from workshop.pages.accuracy.effects import effects_section
from workshop.pages.accuracy.first_sight import changes_section
from workshop.pages.accuracy.front import front_page
from workshop.pages.accuracy.goodput import goodput_section, planned_runs
from workshop.pages.accuracy.groups import groups_section
from workshop.pages.accuracy.holdout import left_out_section
from workshop.pages.accuracy.holdout_layouts import (
    decisions_section,
    recipes_section,
    retimed_section,
)
from workshop.pages.accuracy.intervals import PICTURE_NAME, coverage_details, picture
from workshop.pages.accuracy.mutations import mutations_section
from workshop.pages.accuracy.switches import switches_section
from workshop.pages.accuracy.without_terms import without_section

JSON_NAME, FRONT_NAME, DETAILS_NAME = "accuracy.json", "accuracy.md", "accuracy_details.md"

_MOST_MOVED = 20
_MOST_REASONS = 10
_FIRST = {
    "calibrate": "figures of profiles may be fitted to these runs",
    "test": "nothing is ever fitted to these runs",
}
_SPLITS = {
    **_FIRST,
    "second-calibrate": "newer releases; the widths of intervals are fitted to these runs, no time",
    "second-test": "newer releases and other vendors; nothing is ever fitted to these runs",
    "second-memory": "the tests of Megatron-LM and MindSpeed, most of them far below a full GPU;"
    " nothing is fitted to their times",
    "vendor-test": "runs printed with other vendors' recipes; no figure is fitted to them, two"
    " switches were chosen with them in sight",
    "fresh-test": "published runs that were in no table before; no figure is fitted to them; first"
    " predicted before anything was changed for them (validation/README.md has that figure)",
    "fresh-test-2": "the same once more, from sources that were in no table on 25 November 2026",
    "third-open": "other trainers, sites and devices; first predicted on 26 November 2026; what"
    " spreads tokens over experts at random was read off two of them, no other figure",
    "third-open-aws": "one site's runs over EFA; no figure is fitted to them",
    "fourth-open": "what buyers ask: fine-tuning, FSDP, Megatron, one GPU to 5,120; first"
    " predicted on 28 November 2026; no figure is fitted to them",
}
_PEERS = {"calculon": "Calculon", "simumax": "SimuMax"}
_INTRO = """\
# Accuracy in detail

`make accuracy` writes this page, its first page [accuracy.md](accuracy.md) and `accuracy.json`; a
test fails when the committed figures no longer hold. Do not edit it.

What is compared: the step time that Foreshard predicts for a run that somebody measured and
published (`validation/README.md` lists the sources), against the step time they measured. Error =
predicted / measured - 1. Mean, median, P90 and max are of absolute errors; bias is the mean with
its sign. Profile figures may be fitted to runs of the split *calibrate*, never to runs of *test*.
A run counts as replayable unless its row contradicts itself or its table excludes it; a
replayable run that is not predicted is a gap of ours, and the last section says why it is there.

It is compared with two baselines, computed from the same rows:

- **constant efficiency**: every GPU of one type runs every step of one class of precision at one
  rate, the median of *calibrate*. FLOPs are those of the GEMMs and of causal attention,
  a third more under full recomputation. The figure is its mean error on the runs that Foreshard
  predicts.
- **next release**: how far the same run on two neighbouring releases of the same framework is
  apart (median). What changes between releases is in no column of the tables, so that no
  prediction can be expected to come closer. `-`: no such pair was measured."""


# --- the page ----------------------------------------------------------------------------


def pages(document: Mapping[str, Any]) -> dict[str, str]:
    """Write the document of :func:`workshop.cases.accuracy.accuracy` as Markdown, by file."""
    front = front_page(document, _table, _percent)
    files = {FRONT_NAME: front, DETAILS_NAME: _details(document)}
    found = document.get("intervals")
    return {**files, PICTURE_NAME: picture(found)} if found else files


def _details(document: Mapping[str, Any]) -> str:
    parts = [
        _INTRO,
        *_sources(document["sources"]),
        *_kinds(document),
        *_ablation(document["ablation"]),
        *_ranking(document["ranking"]),
        *_memory(document["memory"]),
        *_series(document["series"]),
        *effects_section(document.get("effects", ()), _table, _percent),
        *switches_section(document.get("switches", ()), _table, _percent),
        *decisions_section(document.get("decisions", ()), _table, _percent),
        *recipes_section(document.get("recipes", ()), _table, _percent),
        *retimed_section(document.get("retimed", ()), _table, _percent),
        *goodput_section(document.get("goodput"), _percent),
        *planned_runs(document.get("goodput"), _table, _percent),
        *coverage_details(document.get("intervals", {}), _table, _percent),
        *certainty_section(document["certainty"], _table, _percent),
        *_microbenchmarks(document["microbenchmarks"]),
        *groups_section(document.get("groups_left_out", ()), _table, _percent),
        *left_out_section(document.get("left_out", ()), _table, _percent),
        *_peers(document),
        *mutations_section(document.get("mutations", ()), _table),
        *changes_section(document.get("first_sight", ()), _table, _percent),
        *_skipped(document["skipped"]),
    ]
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """Write a table; the first `left` columns are words, the others numbers."""
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    lines = ([cell.replace("|", "\\|") for cell in cells] for cells in (head, rule, *rows))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _percent(value: float | None, sign: str = "") -> str:
    return "-" if value is None else f"{100 * value:{sign}.1f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


_ERROR_HEAD = ("mean", "median", "P90", "max", "bias")
_BESIDE_HEAD = (*_ERROR_HEAD, "constant efficiency")


def _errors(errors: Mapping[str, Any]) -> list[str]:
    sizes = (errors[key] for key in ("mape", "median_ape", "p90_ape", "max_ape"))
    return [*map(_percent, sizes), _percent(errors["bias"], "+")]


def _beside_constant(errors: Mapping[str, Any]) -> list[str]:
    return [*_errors(errors), _percent(errors["constant_efficiency"]["mape"])]


def _sources(sources: Mapping[str, Any]) -> Iterator[str]:
    yield "## Step time by source"
    head = ("source", "predicted of replayable", *_BESIDE_HEAD, "next release")
    composed: list[list[str]] = []
    for split, meaning in _SPLITS.items():
        rows: list[list[str]] = []
        for name, splits in sources.items():
            if split in splits:
                found = splits[split]
                counts = f"{found['predicted']} of {found['replayable']}"
                cells = [counts, *_beside_constant(found), _percent(found["next_release"])]
                if found["composed"]:
                    composed.append([f"{name}, {split}", *cells])
                else:
                    rows.append([name, *cells])
        if rows:
            yield f"**{split}**: {meaning}.\n\n{_table(head, rows)}"
    if composed:
        yield (
            "Composed, not measured: step times put together from profiled layers. They stay out of"
            f" every pooled figure.\n\n{_table(head, composed)}"
        )


def _kinds(document: Mapping[str, Any]) -> Iterator[str]:
    yield "## Dense and experts"
    rows = [
        [
            f"{split}, {kind}",
            str(errors["n"]),
            *_beside_constant(errors),
            _percent(errors["mape_over_sources"]),
        ]
        for split, kinds in document["kinds"].items()
        for kind, errors in kinds.items()
    ]
    yield _table(("runs", "predicted", *_BESIDE_HEAD, "mean of sources"), rows)
    baselines = document["baselines"]
    constant = baselines["constant_efficiency"]["all_rows"]
    shares = (f"{_percent(errors['mape'])} on {split}" for split, errors in constant.items())
    yield (
        "*mean of sources*: every source weighs the same, however many runs it has. On all"
        f" replayable runs, predicted or not, constant efficiency is {' and '.join(shares)} off."
    )
    noise = baselines["noise_floor"]
    floors = {**{f"all, {kind}": noise[kind] for kind in ("dense", "MoE")}, **noise["by_framework"]}
    yield (
        "The same run on two neighbouring releases of one framework, by how much it is apart. For"
        " Megatron-DeepSpeed that is two states of BLOOM's preparation; its machines were set up"
        " anew in between."
    )
    yield _table(
        ("framework", "pairs", "median", "P90", "max"),
        [
            [name, str(floor["n"]), *(_percent(floor[key]) for key in ("median", "p90", "max"))]
            for name, floor in floors.items()
        ],
    )


def _ablation(found: Mapping[str, Any]) -> Iterator[str]:
    yield "## What each piece of the physics is worth"
    counts = {split: found["steps"][0][split]["n"] for split in _FIRST}
    yield (
        f"The same {counts['calibrate']} runs of *calibrate* and {counts['test']} of *test* at"
        " every step; each step keeps what the steps before it have. The first one is fitted to"
        " step times, the others are the simulator itself with less in it: what is missing in them"
        " is time that nothing stands for. All steps before the last one take the kernels and state"
        f" types of one software for all runs (`{found['neutral']}`), with a host that costs no"
        " time. Tau and regret are medians over the groups of the next section."
    )
    head = ("step", *("mean", "dense", "MoE", "bias", "tau", "regret"))
    for split in _FIRST:
        rows = []
        for step in found["steps"]:
            some = step[split]
            cells = [_percent(some[key]) for key in ("mape", "dense", "moe")]
            cells += [_percent(some["bias"], "+"), _number(some["median_tau"])]
            rows.append([step["name"], *cells, _percent(some["median_regret"])])
        yield f"**{split}**\n\n{_table(head, rows)}"
    yield "\n".join(f"- *{step['name']}*: {step['what']}." for step in found["steps"])
    if "without" in found:
        yield from without_section(found["without"], _table, _percent)


def _ranking(found: Mapping[str, Any]) -> Iterator[str]:
    yield "## Whether the right layout is called fastest"
    yield (
        "A group is at least five layouts of runs that differ in nothing else. Kendall's tau counts"
        " pairs whose measured times differ by more than 3 %; regret is what picking the predicted"
        " best would have cost."
    )
    head = ("group", "split", "layouts", "pairs", "tau", "regret")
    rows = [
        [
            group["group"],
            group["split"],
            str(group["n"]),
            str(group["pairs"]),
            _number(group["kendall_tau"]),
            _percent(group["regret"]),
        ]
        for group in found["groups"]
        if not group["composed"]
    ]
    yield _table(head, rows, left=2)
    yield "\n".join(
        f"- {split}: {some['groups']} groups, median tau {_number(some['median_tau'])}, median"
        f" regret {_percent(some['median_regret'])}, worst {_percent(some['worst_regret'])}"
        for split, some in found["by_split"].items()
    )


def _memory(found: Mapping[str, Any]) -> Iterator[str]:
    yield "## Memory of the fullest rank"
    yield (
        "Only against readings of the same kind: *allocated* and *reserved* as torch counts them."
    )
    rows = [
        [kind, source, split, str(errors["n"]), *_errors(errors)]
        for kind, sources in found["scored"].items()
        for source, splits in sources.items()
        for split, errors in splits.items()
    ]
    head = ("kind", "source", "split", "readings", *_ERROR_HEAD)
    yield _table(head, rows, left=3)
    others = ", ".join(f"{count} of kind {kind}" for kind, count in found["not_scored"].items())
    if others:
        yield f"Not scored: {others}, and readings of runs that are not predicted."


def _series(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "## Scaling"
    yield (
        "Runs that differ in nothing but the number of GPUs (weak: the same sequences per GPU;"
        " strong: the same global batch). Predicted over measured step time at the smallest and at"
        " the largest size, and the mean absolute error over all points."
    )
    head = ("series", "split", "kind", "GPUs", "points", "smallest", "largest", "mean")
    rows = []
    for one in found:
        ratios = [p / m for p, m in zip(one["predicted_s"], one["measured_s"], strict=True)]
        size = f"{one['gpus'][0]} to {one['gpus'][-1]}"
        ends = [_number(ratios[0]), _number(ratios[-1])]
        cells = [_series_name(one), one["split"], one["kind"], size, str(len(ratios))]
        rows.append([*cells, *ends, _percent(one["mape"])])
    yield _table(head, rows, left=3)


def _series_name(one: Mapping[str, Any]) -> str:
    degrees = [f"{name}{one[name]}" for name in ("tp", "pp") if one[name] > 1]
    group = f":{one['shard_group']}" if one["shard_group"] else ""
    layout = " ".join([*degrees, f"mb{one['micro_batch']}", f"{one['sharding']}{group}"])
    return f"{one['model']}, {one['gpu']}, {one['precision']}, {one['software']}, {layout}"


def _microbenchmarks(tables: Mapping[str, Any]) -> Iterator[str]:
    if not tables:
        return
    yield "## Kernels and collectives alone"
    yield (
        "Microbenchmarks (`validation/microbenchmarks/README.md`), by the formulas that price"
        " training steps."
    )
    head = ("what", "predicted", *_ERROR_HEAD)
    for name, table in tables.items():
        lines = {f"all, of {table['rows']} rows": table, **table["by_kernel"], **table["by_device"]}
        rows = [[what, str(errors["n"]), *_errors(errors)] for what, errors in lines.items()]
        yield f"**{name}**\n\n{_table(head, rows)}"
        if why := table.get("skipped"):
            yield _not_predicted(why)


def _not_predicted(why: Mapping[str, int]) -> str:
    """Reasons and rows, the most frequent ones in words."""
    reasons = [f"{reason} ({count:,})" for reason, count in why.items()]
    rest = sum(list(why.values())[_MOST_REASONS:])
    others = [f"{len(why) - _MOST_REASONS} other reasons ({rest:,})"] if rest else []
    return f"Not predicted: {'; '.join(reasons[:_MOST_REASONS] + others)}."


def _peers(document: Mapping[str, Any]) -> Iterator[str]:
    peers = document["peers"]
    yield "## What two other simulators do on the same runs"
    yield peers["origin"]
    rows = []
    for line in peers["step"]:
        splits = document["sources"][line["source"]]
        ours = splits.get("test") or splits["second-test"]
        constant = ours["constant_efficiency_all_rows"]["mape"]
        cells = [_percent(line[name]) for name in _PEERS]
        figures = [*cells, _percent(constant), _percent(ours["mape"])]
        rows.append([line["source"], line["remark"], *figures])
    head = ("test source", "remark", *_PEERS.values(), "constant efficiency", "Foreshard")
    yield _table(head, rows, left=2)
    ranked = {_PEERS[name]: some for name, some in peers["ranking"].items()}
    lines = {**ranked, "Foreshard": peers["ours"]}
    yield (
        "Ranking over all groups on A100: "
        + "; ".join(
            f"{name}: median tau {_number(some['median_tau'])}, median regret"
            f" {_percent(some['median_regret'])}, worst {_percent(some['worst_regret'])}"
            for name, some in lines.items()
        )
        + "."
    )


def _skipped(reasons: Mapping[str, int]) -> Iterator[str]:
    yield "## Runs without a prediction"
    yield _table(
        ("reason", "runs"), [[why, str(n)] for why, n in reasons.items()] or [["none", "0"]]
    )


# --- writing it --------------------------------------------------------------------------


def main(folder: Path) -> None:
    """Write the files into `folder`, after printing what moved against those that are there."""
    document = accuracy()
    old = folder / JSON_NAME
    if old.is_file():
        before = json.loads(old.read_text(encoding="utf-8"))
        moved = compare(before, document)
        print(f"{len(moved)} predictions moved")
        print(*moved[:_MOST_MOVED], *regressions(before, document), sep="\n")
    contents = {
        JSON_NAME: json.dumps(document, indent=1, allow_nan=False) + "\n",
        **pages(document),
    }
    folder.mkdir(parents=True, exist_ok=True)
    print(*[write_file(folder / name, text.encode()) for name, text in contents.items()], sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
