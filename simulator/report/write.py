"""The report of a plan: pictures of its engineering part, and its files, all written or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.cost.estimate import VERDICTS
from simulator.cost.terms import MEMORY_MEANING
from simulator.plain_files import write_files
from simulator.planner.plan import Plan
from simulator.planner.variants import Variant
from simulator.report.canvas import HALF, NARROW, WIDE, canvas, headline, legend, png_bytes
from simulator.report.decision import Asked, Offer, verdict_sentence
from simulator.report.decision_picture import decision_picture, drawn_offers, tornado_picture
from simulator.report.inline_svg import inline, noted
from simulator.report.numbers import MemoryReport, PlanNumbers, collect
from simulator.report.page import render
from simulator.report.palette import colour
from simulator.report.pipeline_picture import pipeline_picture
from simulator.report.svg_figure import SvgAxes
from simulator.units import GIB, show_bytes, show_percent, show_seconds

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes


_BELOW = 0.24
"""How far an interval lies below the middle of its bar, where values stand."""


def memory_picture(numbers: PlanNumbers, *, narrow: bool = False, svg: bool = False) -> Any:
    """Draw memory by kind for every pipeline stage, against usable memory and capacity."""
    report = numbers.memory
    count = len(report.stages)
    room = 2.6 if narrow else 1.9
    figure, axes = canvas(NARROW if narrow else HALF, min(room + 0.34 * count, 9.0), svg=svg)
    columns = {k: [s.memory_bytes[k] / GIB for s in report.stages] for k in report.kinds}
    notes = {kind: _memory_notes(report, kind) for kind in report.kinds}
    _stack(axes, columns, {k: f"{k} {max(v):.1f}" for k, v in columns.items()}, notes)
    fullest = max(stage.memory_total_bytes for stage in report.stages)
    _intervals(axes, report)
    highest = max(stage.memory_p90_bytes or 0.0 for stage in report.stages)
    limits = (report.usable_bytes, report.capacity_bytes, highest)
    axes.set_xlim(0, (1.5 if narrow else 1.28) * max(fullest, *limits) / GIB)
    _limit_lines(axes, *limits[:2])
    every = -(-count // 24)
    names = [f"stage {i}" for i in range(0, count, every)] if count > 1 else ["every GPU"]
    axes.set_yticks(range(0, count, every), names)
    axes.set_ylim(count - 0.4, -0.85)
    axes.set_xlabel("GiB per GPU at the stage's fullest moment")
    verdict = max((stage.verdict for stage in report.stages), key=VERDICTS.index)
    title = f"{show_bytes(fullest)} of {show_bytes(report.usable_bytes)} usable: {verdict}"
    ink = dict(zip(VERDICTS, ("fits", "tight", "does not fit"), strict=True))[verdict]
    headline(figure, title, f"{numbers.title}\n{numbers.best.described}", ink)
    legend(figure, axes)
    return figure


def _memory_notes(report: MemoryReport, kind: str) -> list[str]:
    """What every stage's part of a kind says of itself."""
    return [
        f"{kind}: {show_bytes(size := stage.memory_bytes[kind])},"
        f" {show_percent(size / stage.memory_total_bytes)} of"
        f" {show_bytes(stage.memory_total_bytes)} on stage {stage.stage},"
        f" peak at: {stage.moment}. {MEMORY_MEANING[kind]}"
        for stage in report.stages
    ]


_LOSSES = {
    "memory-bound kernels": ("memory_bound",),
    "recomputation": ("recompute",),
    "overlap contention (SMs, HBM)": ("slowdown",),
    "exposed tensor-parallel comm.": ("tp",),
    "exposed context-parallel comm.": ("cp",),
    "exposed expert-parallel comm.": ("ep",),
    "exposed parameter gathers (ZeRO-3)": ("fsdp",),
    "exposed gradient reduction": ("dp", "small_reductions"),
    "pipeline bubble and sends": ("bubble_warmup", "bubble_drain", "pp"),
    "straggler wait": ("stragglers",),
    "host launches": ("launch",),
    "optimizer step": ("optimizer",),
    "offload and input": ("offload", "input"),
}
"""What a GPU loses between its peak and the model's FLOP/s: terms of the step in words."""

_FELT = 5e-4
"""Share of the peak below which a loss is left out of the picture."""


def waterfall(numbers: PlanNumbers) -> list[tuple[str, float, float]]:
    """Steps from peak to goodput: words, where the bar begins and its length, as shares of peak.

    The losses are shares of the step; what kernels lack to the peak is the rest of their time.
    """
    best = numbers.best
    share = {name: seconds / best.step_time_s for name, seconds in best.terms_s.items()}
    useful = share.get("gemm", 0.0) + share.get("attention", 0.0)
    losses = [("GEMMs and attention below peak", useful - best.mfu)]
    losses += [(words, sum(share.get(t, 0.0) for t in terms)) for words, terms in _LOSSES.items()]
    steps, at = [("peak", 0.0, 1.0)], 1.0
    for words, loss in losses:
        if abs(loss) >= _FELT:
            steps.append((words, at, -loss))
        at -= loss
    steps.append(("model FLOP/s (MFU)", 0.0, best.mfu))
    if best.goodput < 1.0:
        lost = best.mfu * (1.0 - best.goodput)
        steps += [
            ("failures, slow steps, maintenance", best.mfu, -lost),
            ("goodput over the run", 0.0, best.mfu * best.goodput),
        ]
    return steps


def waterfall_picture(numbers: PlanNumbers, *, narrow: bool = False, svg: bool = False) -> Any:
    """Draw what becomes of a GPU's peak FLOP/s: losses by cause, MFU, goodput."""
    steps, peak = waterfall(numbers), numbers.peak_flop_per_s / 1e12
    size = (NARROW, 0.9 + 0.33 * len(steps)) if narrow else (HALF, 0.9 + 0.29 * len(steps))
    figure, axes = canvas(*size, svg=svg)
    whole, lost = colour("gemm").light, colour("tp").light
    for row, (words, start, length) in enumerate(steps):
        total = start == 0.0
        (bar,) = axes.barh(
            row, peak * length, left=peak * start, height=0.66, color=whole if total else lost, lw=0
        )
        text = f"{peak * length:,.0f}" if total else f"{peak * length:+,.3g}"
        text += f" ({show_percent(abs(length))})"
        bar.set_gid(noted(f"{words}: {text} TFLOP/s per GPU, share of the peak"))
        right = peak * max(start, start + length)
        axes.text(right + 0.012 * peak, row, text, va="center", fontsize=8.5)
    axes.set_yticks(range(len(steps)), [words for words, _, _ in steps], fontsize=8.5)
    axes.set_ylim(len(steps) - 0.5, -0.6)
    axes.set_xlim(0.0, (1.5 if narrow else 1.3) * peak)
    axes.set_xlabel("TFLOP/s per GPU")
    headline(figure, f"From peak to goodput: MFU {show_percent(numbers.best.mfu)}", numbers.title)
    return figure


def heat_text(level: int) -> str:
    """Ink of words on a cell of a heat map, 0 to 4: a dark page turns both round."""
    return "white" if level > 2 else colour("text").light


def heat_picture(numbers: PlanNumbers, *, narrow: bool = False, svg: bool = False) -> Any:
    """Draw the fastest step of each pair of degrees: stronger is faster, a frame is the best."""
    cells = numbers.degrees
    tps, pps = (sorted({getattr(c, name) for c in cells}) for name in ("tp", "pp"))
    size = (NARROW, 0.9 + 0.5 * len(tps)) if narrow else (HALF, 1.0 + 0.62 * len(tps))
    figure, axes = canvas(*size, svg=svg)
    steps = [c.step_time_s for c in cells if c.step_time_s is not None]
    best = min(steps, default=1.0)
    for cell in cells:
        x, y, step = pps.index(cell.pp), tps.index(cell.tp), cell.step_time_s
        slower = 9.0 if step is None else step / best - 1.0
        level = 4 - sum(slower > limit for limit in (0.02, 0.06, 0.12, 0.25))
        ink = "grid" if step is None else f"heat {level}"
        edge = colour("text").light if step == best else "white"
        (bar,) = axes.barh(
            y, 0.96, left=x + 0.02, height=0.94, color=colour(ink).light,
            edgecolor=edge, lw=2.2 if step == best else 0.5,
        )  # fmt: skip
        words = "OOM" if step is None else show_seconds(step).removesuffix(" s")
        words += "\n\u25b2 tight" if cell.verdict == "TIGHT" else ""
        fastest = f"fastest {cell.layout}, {cell.verdict}" if step else "no layout fits"
        bar.set_gid(noted(f"tp {cell.tp}, pp {cell.pp}: {fastest}"))
        text = colour("quiet").light if step is None else heat_text(level)
        axes.text(x + 0.5, y, words, ha="center", va="center", fontsize=9.5, color=text)
    axes.set_xticks([i + 0.5 for i in range(len(pps))], [f"pp {pp}" for pp in pps], fontsize=9.0)
    axes.set_yticks(range(len(tps)), [f"tp {tp}" for tp in tps], fontsize=9.0)
    axes.set_xlim(0, len(pps)), axes.set_ylim(len(tps) - 0.45, -0.55)
    axes.set_xlabel("seconds a step of the fastest layout of each pair")
    headline(figure, "Step time over tp and pp", numbers.title)
    return figure


def _stack(
    axes: Axes | SvgAxes,
    columns: Mapping[str, Sequence[float]],
    labels: Mapping[str, str],
    notes: Mapping[str, Sequence[str]],
) -> None:
    """Stack one horizontal bar per entry; `notes` are what parts say of themselves on a page."""
    count = len(next(iter(columns.values())))
    left = [0.0] * count
    for name, values in columns.items():
        drawn = axes.barh(
            range(count),
            values,
            left=left,
            height=0.66 if count < 25 else 1.0,
            lw=0.4,
            edgecolor="white",
            color=colour(name).light,
            label=labels.get(name, "_"),
        )
        for bar, text in zip(drawn, notes[name], strict=True):
            bar.set_gid(noted(text))
        left = [start + value for start, value in zip(left, values, strict=True)]


def _intervals(axes: Axes | SvgAxes, report: MemoryReport) -> None:
    """A thin line from P10 to P90 below the middle of every stage that has them."""
    known = [
        (y, stage.memory_p10_bytes / GIB, stage.memory_p90_bytes / GIB)
        for y, stage in enumerate(report.stages)
        if stage.memory_p10_bytes is not None and stage.memory_p90_bytes is not None
    ]
    if known:
        rows, low, high = zip(*known, strict=True)
        lines = [row + _BELOW for row in rows]
        axes.hlines(lines, low, high, color=colour("text").light, lw=1.4, label="P10 to P90")


def _limit_lines(axes: Axes | SvgAxes, usable: float, capacity: float) -> None:
    """The line that decides (usable memory) and the datasheet's, labelled on the outer sides."""
    red, grey = colour("does not fit").light, colour("quiet").light
    first = usable <= capacity
    for size, word, ink, style, right in (
        (usable, "usable", red, "-", not first),
        (capacity, "datasheet", grey, "--", first),
    ):
        axes.axvline(size / GIB, color=ink, ls=style, lw=1.6)
        axes.annotate(
            f"{word} {size / GIB:.1f}",
            (size / GIB, 1.0),
            (5 if right else -5, -3),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="left" if right else "right",
            va="top",
            fontsize=8.5,
            color=ink,
        )


_WORTH = 1.15
"""Layouts of the front that take longer than so many times the fastest are in the table alone."""


def front_picture(plan: Plan, title: str, *, narrow: bool = False, svg: bool = False) -> Any:
    """Draw free memory against time of the Pareto-optimal layouts that are worth a look."""
    figure, axes = canvas(NARROW if narrow else WIDE, 3.6, svg=svg)
    axes.grid(axis="y", color=colour("grid").light, lw=0.7)
    estimate, ink = plan.estimate, colour("speed").light
    best = float(estimate.step_time_s[0])
    rows = [int(i) for i in plan.pareto if estimate.step_time_s[i] <= _WORTH * best]
    free = 100.0 * (1.0 - estimate.memory_total_bytes / estimate.usable_bytes)
    for i in rows:
        step_s = float(estimate.step_time_s[i])
        (dot,) = axes.plot([step_s], [free[i]], "o", color=ink, ms=7.0)
        said = f"{show_seconds(step_s)}, {free[i]:.1f} % of memory free"
        dot.set_gid(noted(f"{estimate.layouts.describe(i)}: {said}"))
    axes.set_ylim(0.0, max([10.0, *(1.15 * float(free[i]) for i in rows)]))
    axes.set_xlabel("seconds a step"), axes.set_ylabel("free memory, worst rank, %")
    words = f"{len(plan.pareto)} Pareto-optimal layouts of {len(estimate):,}"
    headline(figure, words, f"{title}; of time, money, free memory and energy")
    return figure


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
        Waits for the plan's own answer as an offer, and others beside it; without others the page
        says how to have them.
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
    several = len(numbers.offers) > 1
    if several and drawn_offers(numbers.offers, numbers.options, numbers.asked):
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
