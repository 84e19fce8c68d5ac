"""Writing the report of a plan: whole files or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.plain_files import write_files
from simulator.planner.plan import Plan
from simulator.planner.variants import Variant
from simulator.report.canvas import png_bytes
from simulator.report.decision import Asked, Offer, verdict_sentence
from simulator.report.decision_picture import decision_picture, drawn_offers, tornado_picture
from simulator.report.inline_svg import inline
from simulator.report.numbers import PlanNumbers, collect
from simulator.report.page import render
from simulator.report.pipeline_picture import pipeline_picture
from simulator.report.plots import (
    front_picture,
    heat_picture,
    memory_picture,
    waterfall_picture,
)

if TYPE_CHECKING:
    from markupsafe import Markup


def write_plan_report(
    plan: Plan,
    out_dir: Path,
    *,
    launch: str,
    offers: Callable[[], Sequence[Offer]],
    asked: Asked,
    upgrades: list[Variant] | None = None,
    pictures: bool = False,
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
    offers : callable
        Waits for the plan's own answer as an offer, and others beside it.
    asked : Asked
        Deadline, budget and how surely an option has to meet them.
    upgrades : list of Variant, optional
        What ``sensitivity(plan)`` gave, if it was asked for already.
    pictures : bool
        Write each picture beside the page too, as PNG and SVG: PNG takes as long as the page.
    """
    numbers = collect(plan, offers=offers(), asked=asked, upgrades=upgrades)
    contents: dict[str, bytes] = {}
    drawings: dict[str, Markup] = {}
    for name, (alt, draw) in _pictures(plan, numbers).items():
        wide = draw(svg=True)
        if pictures:
            contents |= {f"{name}.png": png_bytes(draw()), f"{name}.svg": wide.svg().encode()}
        shapes = (wide, draw(narrow=True, svg=True))
        drawings[name] = inline(*(shape.svg(head=False) for shape in shapes), alt=alt)
    page = render(numbers, launch=launch, drawings=drawings).encode()
    placed = {out_dir / name: content for name, content in {"plan.html": page, **contents}.items()}
    write_files(placed)
    return list(placed)


def _pictures(plan: Plan, numbers: PlanNumbers) -> dict[str, tuple[str, Callable[..., Any]]]:
    """Pictures of the report by name: what each shows, and what draws it, wide or narrow."""
    about = f"{numbers.title}\n{numbers.best.described}"
    pictures: dict[str, tuple[str, Callable[..., Any]]] = {}
    if drawn_offers(numbers.offers, numbers.options, numbers.asked):
        chosen = numbers.offers, numbers.options, numbers.asked, numbers.title
        said = verdict_sentence(numbers.own, numbers.asked)
        words = f"Cost against time to finish, P10 to P90: {said}"
        pictures["decision"] = words, partial(decision_picture, *chosen)
    if numbers.movers:
        words = "What moves the answer most, the largest first"
        pictures["tornado"] = words, partial(tornado_picture, numbers.movers, numbers.title)
    pictures |= {
        "waterfall": ("From a GPU's peak to goodput", partial(waterfall_picture, numbers)),
        "memory": ("Peak memory by kind, stage by stage", partial(memory_picture, numbers)),
        "pipeline": (
            "Passes and communication of every rank over the step",
            partial(pipeline_picture, numbers.step, title=about),
        ),
        "pareto": (
            "Free memory against step time of the Pareto-optimal layouts",
            partial(front_picture, plan, numbers.title),
        ),
    }
    if numbers.degrees:
        words = "The fastest step of each pair of tp and pp"
        pictures["degrees"] = words, partial(heat_picture, numbers)
    return pictures


def write_file(path: Path, content: bytes) -> Path:
    """Write one file, whole or not at all."""
    write_files({path: content})
    return path
