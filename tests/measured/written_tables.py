"""Small tables of measured calls, written and read."""

from __future__ import annotations

import csv
from pathlib import Path

from simulator.measured.kernel_calls import KernelCalls, read_kernels
from simulator.measured.microbenchmarks import load_words, read_table


def write(path: Path, *rows: dict[str, str]) -> Path:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    return path


def kernels(folder: Path, *rows: dict[str, str]) -> KernelCalls:
    return read_kernels(read_table(write(folder / "t.csv", *rows), "kernels"), load_words())
