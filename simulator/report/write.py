"""Writing the report of a plan: whole files or none."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from simulator.planner.search import Plan
from simulator.report.numbers import collect
from simulator.report.page import render
from simulator.report.pipeline_picture import pipeline_png
from simulator.report.plots import memory_png, speedup_png, time_png

__all__ = ["write_file", "write_files", "write_plan_report"]


def write_plan_report(
    plan: Plan,
    out_dir: Path,
    *,
    launch: str,
    progress: Callable[[int, int], None] | None = None,
) -> list[Path]:
    """Write ``plan.html``, ``memory.png``, ``pipeline.png``, ``speedup.png`` and ``time.png``.

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
    progress : callable, optional
        Called with (searches done, searches in all): other sizes and upgrades are searched here,
        each about as long as the plan itself.
    """
    numbers = collect(plan, progress=progress)
    about = f"{numbers.title}\n{numbers.best.layout}"
    pipeline = pipeline_png(numbers.step, title=about)
    contents = {
        "plan.html": render(numbers, launch=launch, pipeline=pipeline).encode(),
        "memory.png": memory_png(numbers),
        "pipeline.png": pipeline,
        "speedup.png": speedup_png(numbers),
        "time.png": time_png(numbers),
    }
    out_dir.mkdir(parents=True, exist_ok=True)
    return [write_file(out_dir / name, content) for name, content in contents.items()]


def write_file(path: Path, content: bytes) -> Path:
    """Write a file beside its place and rename it; readers see the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path


def write_files(contents: Mapping[Path, bytes]) -> None:
    """Write several files, their folders made where missing: an error leaves all as they were."""
    parts = {path: path.with_name(f".{path.name}.{os.getpid()}.part") for path in contents}
    try:
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            parts[path].write_bytes(content)
        for path, part in parts.items():
            part.replace(path)
    except BaseException:
        for part in parts.values():
            part.unlink(missing_ok=True)
        raise
