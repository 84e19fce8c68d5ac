"""The section of docs/accuracy_details.md on kernels and collectives that no fit has seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Table = Callable[..., str]


def left_out_section(
    lines: Sequence[Mapping[str, Any]], table: Table, percent: Callable[..., str]
) -> Iterator[str]:
    """Word the pooled lines of a document; `table` and `percent` are those of the whole page."""
    if not lines:
        return
    yield "## Shapes that no fit has seen"
    yield (
        "The tables above hold the rows that figures of profiles were fitted to. Here every shape"
        " is left out of the fit that predicts it, on all devices at once (`make profiles`;"
        " `validation/microbenchmarks/left_out.csv` has the devices and libraries one by one)."
        " *constant*: one rate for each device, library and type, the median over large shapes."
        " *formula + residual*: what the formula leaves over on timed shapes near by."
        " *noisy* and *contradicted* rows tell of the timing and not of the kernel (a contradicted"
        " one took a quarter longer than a call at least as large in every size). *one"
        " accelerator left out*: no call of the device was seen, only its datasheet; *one factor*:"
        " and one correction of its rate, the median over its large products. Cells are median /"
        " P90 of absolute errors."
    )
    methods = list(dict.fromkeys(line["method"] for line in lines))
    found: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for line in lines:
        found.setdefault((line["kernel"], line["dtype"]), {})[line["method"]] = line
    rows = []
    for (kernel, dtype), by_method in found.items():
        most = max(line["rows"] for line in by_method.values())
        cells = [_cell(by_method.get(method), percent) for method in methods]
        rows.append([kernel, dtype, str(most), *cells])
    yield table(("what", "type", "calls", *methods), rows, left=2)


def _cell(line: Mapping[str, Any] | None, percent: Callable[..., str]) -> str:
    return "-" if line is None else f"{percent(line['median'])} / {percent(line['p90'])}"
