"""Writing the report of a plan: whole files or none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.plain_files import write_files
from simulator.planner.plan import Plan
from simulator.planner.scaling import Scaling
from simulator.planner.simulated_run import run_curves
from simulator.planner.variants import Variant
from simulator.report.canvas import png_bytes
from simulator.report.inline_svg import inline
from simulator.report.numbers import PlanNumbers, collect
from simulator.report.page import render
from simulator.report.pipeline_picture import pipeline_picture
from simulator.report.plots import front_picture, memory_picture, speedup_picture, time_picture
from simulator.report.run_picture import curves_picture

if TYPE_CHECKING:
    from markupsafe import Markup


def write_plan_report(
    plan: Plan,
    out_dir: Path,
    *,
    launch: str,
    upgrades: list[Variant] | None = None,
    curve: Callable[[], Scaling] | None = None,
    pictures: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Path]:
    """Write ``plan.html``, with its pictures in it; return the paths of what was written.

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
    upgrades : list of Variant, optional
        What ``sensitivity(plan)`` gave, if it was asked for already.
    curve : callable, optional
        Waits for what ``scaling`` gives for the plan's scenario, if that was begun already.
    pictures : bool
        Write each picture beside the page too, as PNG and SVG: PNG takes as long as the page.
    progress : callable, optional
        Called with (searches done, searches in all): other sizes and upgrades are searched here,
        each about as long as the plan itself.
    """
    numbers = collect(plan, upgrades=upgrades, curve=curve, progress=progress)
    contents: dict[str, bytes] = {}
    drawings: dict[str, Markup] = {}
    shown = _pictures(plan, numbers)
    for name, (alt, draw) in shown.items():
        wide = draw(svg=True).svg()
        if pictures:
            contents |= {f"{name}.png": png_bytes(draw()), f"{name}.svg": wide.encode()}
        drawings[name] = inline(wide, draw(narrow=True, svg=True).svg(), alt=alt)
    page = render(numbers, launch=launch, drawings=drawings).encode()
    placed = {out_dir / name: content for name, content in {"plan.html": page, **contents}.items()}
    write_files(placed)
    return list(placed)


def _pictures(plan: Plan, numbers: PlanNumbers) -> dict[str, tuple[str, Callable[..., Any]]]:
    """Pictures of the report by name: what each shows, and what draws it, wide or narrow."""
    about = f"{numbers.title}\n{numbers.best.described}"
    curves = run_curves(plan) if numbers.run else None
    pictures: dict[str, tuple[str, Callable[..., Any]]] = {
        "time": ("Step time by term, layout by layout", partial(time_picture, numbers)),
        "memory": ("Memory by kind, stage by stage", partial(memory_picture, numbers)),
        "pipeline": (
            "Passes and communication of every rank over the step",
            partial(pipeline_picture, numbers.step, title=about),
        ),
        "pareto": (
            "Step time against free memory of every layout",
            partial(front_picture, plan, numbers.title),
        ),
        "speedup": ("Speed-up over GPUs, and what eats it", partial(speedup_picture, numbers)),
    }
    if curves is not None:
        title = about.replace("\n", ", ")
        pictures["run"] = (
            "Goodput against accelerators, checkpoint interval and hot spares",
            partial(curves_picture, curves, title),
        )
    return pictures


def write_file(path: Path, content: bytes) -> Path:
    """Write one file, whole or not at all."""
    write_files({path: content})
    return path
