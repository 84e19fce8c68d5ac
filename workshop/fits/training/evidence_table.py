"""Writing ``hardware_profiles/uncertainty/runs.csv``: the measured runs behind an answer."""

from __future__ import annotations

import csv
from dataclasses import asdict
from pathlib import Path

import numpy as np

from simulator import catalogue
from simulator.evidence.card import run_kind
from simulator.evidence.evidence_runs import COLUMNS
from workshop.fits.training.holdout_runs import Unseen


def write_evidence_runs(*parts: Unseen) -> Path:
    """Write what is known of runs that no figure was fitted to, sorted by name; return the path."""
    rows = []
    for part in parts:
        for training, error in zip(part.runs, np.expm1(part.errors).tolist(), strict=True):
            run, device = training.run, training.run.cluster.accelerator
            kind = run_kind(run.workload, device, run.software, run.cluster.gpus)
            values = asdict(kind) | {"run_id": training.row.get("run_id"), "error": f"{error:.4f}"}
            rows.append({name: values[name] for name in COLUMNS})
    path = catalogue.folder("hardware_profiles") / "uncertainty" / "runs.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(sorted(rows, key=lambda row: str(row["run_id"])))
    return path
