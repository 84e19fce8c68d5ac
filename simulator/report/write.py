"""Writing the report of a plan: whole files or none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.plain_files import write_files
from simulator.planner.plan import Plan
from simulator.planner.scaling import Scaling
from simulator.planner.simulated_run import run_curves
from simulator.planner.variants import Variant
from simulator.report.canvas import load, png_bytes, svg_bytes
from simulator.report.inline_svg import inline
from simulator.report.numbers import PlanNumbers, collect
from simulator.report.page import render
from simulator.report.pipeline_picture import pipeline_picture
from simulator.report.plots import front_picture, memory_picture, speedup_picture, time_picture
from simulator.report.run_picture import curves_picture
from simulator.second_process import run_in_process

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

_Files = tuple[bytes, bytes, bytes | None]
"""A picture as SVG, the narrow one as SVG, and as PNG where it is asked for."""

_AWAITED = "speedup"
"""The picture that is drawn last: of what may still be searched."""


def write_plan_report(
    plan: Plan,
    out_dir: Path,
    *,
    launch: str,
    upgrades: list[Variant] | None = None,
    curve: Callable[[], Scaling] | None = None,
    pictures: bool = False,
    processes: int = 1,
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
    processes : int
        2 draws half of the pictures in a copy of this process (``second_process.py``): for one
        without threads of its own at work.
    progress : callable, optional
        Called with (searches done, searches in all): other sizes and upgrades are searched here,
        each about as long as the plan itself.
    """
    numbers = collect(plan, upgrades=upgrades, curve=curve, progress=progress)
    contents: dict[str, bytes] = {}
    drawings: dict[str, Markup] = {}
    shown = _pictures(plan, numbers)
    drawn = _drawn({name: draw for name, (_, draw) in shown.items()}, processes, png=pictures)
    for name, (alt, _) in shown.items():
        svg, narrow, png = drawn[name]
        if png is not None:
            contents |= {f"{name}.png": png, f"{name}.svg": svg}
        drawings[name] = inline(svg, narrow, name=name, alt=alt)
    page = render(numbers, launch=launch, drawings=drawings).encode()
    placed = {out_dir / name: content for name, content in {"plan.html": page, **contents}.items()}
    write_files(placed)
    return list(placed)


def _drawn(
    draws: dict[str, Callable[..., Figure]], processes: int, *, png: bool
) -> dict[str, _Files]:
    """The files of every picture by its name."""
    if processes < 2:
        return {name: _files(draw, png=png) for name, draw in draws.items()}
    load()
    names = sorted(draws, key=lambda name: name == _AWAITED)
    with run_in_process(
        lambda: {name: _files(draws[name], png=png) for name in names[::2]}
    ) as others:
        own = {name: _files(draws[name], png=png) for name in names[1::2]}
        return own | others()


def _files(draw: Callable[..., Figure], *, png: bool) -> _Files:
    whole = draw(narrow=False)
    drawn = svg_bytes(whole)  # first: it finds room for texts, so that the page stays the same
    return drawn, svg_bytes(draw(narrow=True)), png_bytes(whole) if png else None


def _pictures(plan: Plan, numbers: PlanNumbers) -> dict[str, tuple[str, Callable[..., Figure]]]:
    """Pictures of the report by name: what each shows, and what draws it, wide or narrow."""
    about = f"{numbers.title}\n{numbers.best.described}"
    curves = run_curves(plan) if numbers.run else None
    pictures: dict[str, tuple[str, Callable[..., Figure]]] = {
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
