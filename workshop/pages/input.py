"""docs/input.md: what stores were measured to feed, beside the closed form of the input.

``python -m workshop.pages.input docs`` writes it; a test holds the committed page to it.
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path
from statistics import median

from simulator.report.write import write_file
from workshop.cases.storage import Fed, fed, from_others, read_fed, read_workloads

_NAME = "input.md"

_INTRO = """\
# Input: what is read, prepared and waited for

`python -m workshop.pages.input docs` writes this page from `validation/storage/`; a test
fails when the committed page no longer holds. Do not edit it.

The section `[data]` of a scenario says what samples are, who prepares them and where they lie
(`examples/vit-small-files.toml`). Without it samples are tokens that are there in time, and answers
say so. With it the term `input` holds what the supply takes longer than the step:

    step = max(step without input, slowest stage)            with loader processes
    step = step without input + reading and preparing        without (workers = 0)

Seconds that each stage takes for the samples of one step:

- workers: samples of a rank x (opening + first bytes + bytes / rate of one stream + preparing) /
  workers
- cores: samples of a server's ranks x core seconds of one / cores
- store, server: bytes that all, and that one server, fetch / rate; ranks of one server and replica
  share its page cache
- requests, opens: reads and files of all / what the store serves a second
- drives: bytes of local copies / rate of the server's drives (`local_copy`, after the first epoch)
- host link: prepared bytes of a rank / rate of the link; from pageable memory at half the rate, and
  the compute waits

`plan` and `predict` say how long the GPUs wait and what would end it; `simulate` plays the loaders
batch by batch (`data.spread` lets times of batches vary), as processes in simpy do to 1e-9
(`tests/events/test_loaders.py`). Padding is `training.batching`: padded (fixed), dynamic, sorted
(uniform dynamic) or packed, over `training.lengths` and their `training.length_shares`.

## Accelerators fed, MLPerf Storage v1.0

Nothing was fitted. Emulated accelerators read a batch and compute for a fixed time; those count
that compute 90 % of the time (CosmoFlow: 70 %)."""


def page() -> str:
    """Write the page as Markdown."""
    rows = read_fed()
    lines = [
        _INTRO,
        "",
        "**From a system's own total rate** (does the arithmetic hold):",
        "",
        "| workload | accelerator | results | GB/s one draws, predicted | measured, median | error"
        " of the number fed, median | worst |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *_own(rows),
        "",
        "**From what the same system delivered to H100, how many A100 it feeds** (a prediction, but"
        " submitters chose numbers of clients anew):",
        "",
        "| workload | submitter | system | predicted | measured | error |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    found = list(from_others(rows))
    off = sorted(abs(told / a.accelerators - 1.0) for a, _, told in found)
    lines += [
        f"| {a.workload} | {a.submitter} | {a.system} | {told} | {a.accelerators} |"
        f" {100 * (told / a.accelerators - 1.0):+.0f} % |"
        for a, _, told in found
    ]
    lines += [
        "",
        f"{len(off)} systems: median absolute error {100 * median(off):.0f} %, largest"
        f" {100 * off[-1]:.0f} %. The large ones are systems whose two totals differ by as much:"
        " more clients, or a result that did not fill the store.",
        "",
        "Source: results of MLPerf Storage v1.0 (mlcommons, 2024-09-25), 132 submissions.",
    ]
    return "\n".join(lines) + "\n"


def _own(rows: list[Fed]) -> list[str]:
    """One line for each workload and accelerator."""
    workloads, lines = read_workloads(), []

    def kind(row: Fed) -> tuple[str, str]:
        return row.workload, row.accelerator

    for (name, accelerator), group in groupby(sorted(rows, key=kind), kind):
        mine, one = list(group), workloads[name]
        draws = one.bytes_per_s(accelerator) * one.utilisation
        measured = median(row.bytes_per_s / row.accelerators for row in mine)
        off = [
            fed(one, accelerator, row.bytes_per_s) / row.accelerators - 1.0
            for row in mine
            if row.accelerators >= 10  # of fewer one more or less is all
        ]
        lines.append(
            f"| {name} | {accelerator} | {len(mine)} | {draws / 1e9:.3g} to"
            f" {draws / one.utilisation / 1e9:.3g} | {measured / 1e9:.3g} |"
            f" {100 * median(map(abs, off)):.1f} % | {100 * max(map(abs, off)):.0f} % |"
        )
    return lines


def main() -> None:
    """Write the page into the folder that is named."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    write_file(folder / _NAME, page().encode())


if __name__ == "__main__":
    main()
