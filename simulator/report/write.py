"""Writing the report of a plan: whole files or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from simulator.plain_files import write_files
from simulator.planner.run_curves import run_curves
from simulator.planner.search import Plan
from simulator.planner.sensitivity import Upgrade
from simulator.report.comparison_plots import front_png
from simulator.report.numbers import collect
from simulator.report.page import render
from simulator.report.pipeline_picture import pipeline_png
from simulator.report.plots import memory_png, speedup_png, time_png
from simulator.report.run_picture import curves_png

__all__ = ["write_file", "write_plan_report"]


def write_plan_report(
    plan: Plan,
    out_dir: Path,
    *,
    launch: str,
    upgrades: list[Upgrade] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Path]:
    """Write ``plan.html`` and its PNGs: memory, pareto, pipeline, run, speedup and time.

    Returns their paths.

    Everything is made in memory first and then renamed into place, so that an error or a full disk
    leaves no half-written file behind.

    Parameters
    ----------
    plan : Plan
        What to report.
    out_dir : Path
        Made if it is missing.
    launch : str
        The command that starts the best layout.
    upgrades : list of Upgrade, optional
        What ``sensitivity(plan)`` gave, if it was asked for already.
    progress : callable, optional
        Called with (searches done, searches in all): other sizes and upgrades are searched here,
        each about as long as the plan itself.
    """
    numbers = collect(plan, upgrades=upgrades, progress=progress)
    about = f"{numbers.title}\n{numbers.best.layout}"
    pipeline = pipeline_png(numbers.step, title=about)
    curves = run_curves(plan) if numbers.run else None
    run = None if curves is None else curves_png(curves, about.replace("\n", ", "))
    contents = {
        "plan.html": render(numbers, launch=launch, pipeline=pipeline, run=run).encode(),
        "memory.png": memory_png(numbers),
        "pareto.png": front_png(plan, numbers.title),
        "pipeline.png": pipeline,
        "speedup.png": speedup_png(numbers),
        "time.png": time_png(numbers),
    }
    if run is not None:
        contents["run.png"] = run
    placed = {out_dir / name: content for name, content in contents.items()}
    write_files(placed)
    return list(placed)


def write_file(path: Path, content: bytes) -> Path:
    """Write one file, whole or not at all."""
    write_files({path: content})
    return path
