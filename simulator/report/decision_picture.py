"""Pictures to decide by: money against time to finish, and what moves the money."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from simulator.planner.movers import Mover
from simulator.report.canvas import (
    FULL,
    NARROW,
    SMALL,
    WIDE,
    canvas,
    headline,
    legend,
    money_axis,
    plain_log,
)
from simulator.report.decision import (
    Asked,
    Offer,
    Option,
    brief_chance,
    brief_days,
    brief_usd,
    gpu_word,
    memory_words,
    price_words,
    short_gpu,
)
from simulator.report.inline_svg import noted
from simulator.report.palette import Sign, colour, gpu_sign
from simulator.units import show_usd

_FAR = 1.6
"""Offers that take longer than so many deadlines stand in the table alone."""

_LOG = 12.0
"""From this ratio of the longest to the shortest on, the axis of time is logarithmic."""


def decision_picture(
    offers: Sequence[Offer],
    options: Sequence[Option],
    asked: Asked,
    title: str,
    *,
    full: bool = False,
    narrow: bool = False,
    svg: bool = False,
) -> Any:
    """Draw money against time to finish: a line for each GPU, whiskers from P10 to P90.

    Deadline and budget are dashed, what lies beyond is shaded; hollow points are TIGHT in memory.
    The options carry their names. Beside others it is narrow; alone on a page it takes its `full`
    width.
    """
    figure, axes = canvas(
        *((NARROW, 4.0) if narrow else (FULL, 4.8) if full else (WIDE, 4.1)), svg=svg
    )
    draw_decision(axes, offers, options, asked)
    headline(figure, "Cost against time to finish", title)
    legend(figure, axes)
    return figure


def draw_decision(
    axes: Any, offers: Sequence[Offer], options: Sequence[Option], asked: Asked
) -> None:
    """Draw the same into axes."""
    shown = drawn_offers(offers, options, asked)
    scale, unit = money_axis(max((_usd(o)[1] for o in shown), default=1.0))
    picked = {id(option.offer) for option in options}
    ranged = {id(o) for o in shown} if len(shown) <= _RANGES else picked
    _frame(axes, shown, asked, scale, ranged)
    names = list(dict.fromkeys(o.named for o in shown))
    for number, name in enumerate(names):
        row = sorted((o for o in shown if o.named == name), key=lambda o: o.gpus)
        chip = row[0].accelerator
        twice = any(o.named != name and o.accelerator == chip for o in shown)
        label = name if twice else short_gpu(chip)
        sign, above = gpu_sign(chip, number), number % 2 == 0
        _line(axes, row, sign, scale, (picked, ranged), label, above=above)
    axes.set_xlabel("days to finish, as predicted" + (" (log scale)" if axes_log(shown) else ""))
    axes.set_ylabel(unit)


def drawn_offers(offers: Sequence[Offer], options: Sequence[Option], asked: Asked) -> list[Offer]:
    """Offers with days and money that are not far beyond the deadline; the three always."""
    picked = {id(option.offer) for option in options}
    limit = _FAR * asked.deadline_days if asked.deadline_days else math.inf
    return [
        o
        for o in offers
        if o.days is not None and o.usd is not None and (o.days.p50 <= limit or id(o) in picked)
    ]


_RANGES = 12
"""Offers up to which all have whiskers; of more the options alone, the others where they hover."""


def axes_log(shown: Sequence[Offer]) -> bool:
    """Whether times are so far apart that their axis is logarithmic."""
    days = [o.days.p50 for o in shown if o.days]
    return bool(days) and max(days) > _LOG * min(days)


def _usd(offer: Offer) -> tuple[float, float]:
    assert offer.usd is not None
    return offer.usd.p10, offer.usd.p90


def _frame(axes: Any, shown: Sequence[Offer], asked: Asked, scale: float, ranged: set[int]) -> None:
    """Limits of the axes, deadline and budget with what lies beyond them."""
    axes.grid(axis="y", color=colour("grid").light, lw=0.7)
    ends = [(o.days.p10, o.days.p90) for o in shown if o.days]
    least, most = (min(e[0] for e in ends), max(e[1] for e in ends)) if ends else (1.0, 2.0)
    money = [end for o in shown if id(o) in ranged for end in _usd(o)]
    money += [o.usd.p50 for o in shown if o.usd]
    dearest = max(money, default=scale)
    late, dear = _near(asked.deadline_days, most), _near(asked.budget_usd, dearest)
    least, most = min(least, late or least), max(most, 1.12 * (late or 0.0))
    low, high = (least / 1.25, 1.25 * most) if axes_log(shown) else (0.0, 1.06 * most)
    if axes_log(shown):
        plain_log(axes, "x")
    axes.set_xlim(low, high)
    cheap = min(money, default=0.0) / scale
    top = 1.08 * max(dearest, 1.05 * (dear or 0.0)) / scale
    foot = 0.8 * cheap if cheap > 0.45 * top else 0.0
    foot = min(foot, 0.95 * (dear or dearest) / scale)
    beside_foot = dear is not None and dear / scale - foot < _LABEL * (top - foot)
    axes.set_ylim(foot, top)
    if dear is not None:
        axes.axhspan(dear / scale, top, color=colour("over budget").light, lw=0, zorder=0)
    if late is not None:
        axes.axvspan(late, high, color=colour("past deadline").light, lw=0, zorder=0)
        red = colour("does not fit").light
        axes.axvline(late, color=red, ls="--", lw=1.3)
        words = f"deadline {late:,.4g} days"
        style = {"ha": "right", "fontsize": 9.0, "color": red}
        style["va"], at, up = ("top", top, -5) if beside_foot else ("bottom", foot, 5)
        axes.annotate(words, (late, at), (-4, up), textcoords="offset points", **style)
    beyond = [
        f"{what} {words} lies beyond"
        for what, limit, seen, words in (
            ("deadline", asked.deadline_days, late, f"{asked.deadline_days or 0.0:,.4g} days"),
            ("budget", asked.budget_usd, dear, show_usd(asked.budget_usd or 0.0)),
        )
        if limit is not None and seen is None
    ]
    if beyond:
        style = {"ha": "right", "va": "top", "fontsize": 9.0, "color": colour("quiet").light}
        words = "\n".join(beyond)
        axes.annotate(words, (high, top), (-4, -4), textcoords="offset points", **style)
    if dear is not None:
        amber = colour("tight").light
        axes.axhline(dear / scale, color=amber, ls="--", lw=1.3)
        style = {"ha": "right", "va": "bottom", "fontsize": 9.0, "color": amber}
        words = f"budget {show_usd(dear)}"
        axes.annotate(words, (high, dear / scale), (-4, 4), textcoords="offset points", **style)


def _near(limit: float | None, most: float) -> float | None:
    """A limit that is drawn; None for one so far away that the offers would shrink to a dot."""
    return limit if limit is not None and limit <= _FARTHEST * most else None


_LABEL = 0.12
"""Share of the height below which the words of a budget reach those of a deadline at the foot."""

_FARTHEST = 3.0
"""Limits beyond so many times what the offers take are written, not drawn."""


_RIM = {"facecolor": "white", "edgecolor": "none", "pad": 0.4, "alpha": 0.8}
"""Behind the names of points, so that whiskers do not strike them out."""


def _line(
    axes: Any,
    row: Sequence[Offer],
    sign: Sign,
    scale: float,
    marked: tuple[set[int], set[int]],
    label: str,
    *,
    above: bool,
) -> None:
    """The offers of one GPU; `marked` are those with a name and those with whiskers."""
    ink = sign.ink.light
    points = [(o, o.days.p50, o.usd.p50 / scale) for o in row if o.days and o.usd]
    axes.plot([x for _, x, _ in points], [y for _, _, y in points], "-", color=ink, lw=1.0)
    for place, (offer, x, y) in enumerate(points):
        named, ranged = (id(offer) in some for some in marked)
        days, usd = offer.days, offer.usd
        assert days is not None and usd is not None
        width = 2.0 if named else 0.7
        if ranged:
            axes.hlines([y], [days.p10], [days.p90], color=ink, lw=width)
            axes.vlines([x], [usd.p10 / scale], [usd.p90 / scale], color=ink, lw=width)
        hollow = offer.memory_verdict == "TIGHT"
        (dot,) = axes.plot(
            [x], [y], sign.shape, color=ink, mfc="white" if hollow else ink,
            ms=10.0 if named else 6.5, label=label if place == 0 else None, zorder=4,
        )  # fmt: skip
        dot.set_gid(noted(offer_note(offer)))
        if named or place in (0, len(points) - 1):
            words = gpu_word(offer) if named else f"{offer.gpus:,}"
            # lines fall to the right: above it their first point is clear of them
            over = above or place == len(points) - 1
            at, up = (5, 7 if over else -17) if named else (0, 3)
            height = usd.p90 / scale if ranged and not named else y
            axes.annotate(
                words, (x, height), (at, up), textcoords="offset points", color=ink,
                ha="left" if named else "center", fontsize=10.0 if named else 9.0, zorder=5,
                bbox=_RIM,
            )  # fmt: skip


def offer_note(offer: Offer) -> str:
    """What a point says: name, totals, chances, memory, price."""
    assert offer.days is not None and offer.usd is not None
    chances = [
        f"{what} kept: {brief_chance(chance)}"
        for what, chance in (("deadline", offer.deadline_chance), ("budget", offer.budget_chance))
        if chance is not None
    ]
    said = [gpu_word(offer), brief_days(offer.days), brief_usd(offer.usd), *chances]
    return "; ".join([*said, memory_words(offer), price_words(offer), offer.described])


def tornado_picture(
    movers: Sequence[Mover], title: str, *, narrow: bool = False, svg: bool = False
) -> Any:
    """Draw by how much each thing moves the money, the largest first; its days stand beside.

    What is moved stands left of its bar, on a narrow picture above it.
    """
    size = (NARROW, 0.6 + 0.62 * len(movers)) if narrow else (SMALL, 0.6 + 0.43 * len(movers))
    figure, axes = canvas(*size, svg=svg)
    money = all(mover.usd is not None for mover in movers)
    every = [mover.usd if money and mover.usd else mover.days for mover in movers]
    low, high = (end(0.0, *(x for pair in every for x in pair)) for end in (min, max))
    scale, unit = money_axis(max(high, -low)) if money else (1.0, "days")
    beside = 0.0 if narrow else 0.8 * (high - low)
    left, right = 1.05 * (low or -0.02 * high) / scale, (high + beside) / scale
    cheaper, dearer = colour("cheaper").light, colour("dearer").light
    heads = [f"{mover.name}\n{mover.change}" for mover in movers]
    for row, (mover, pair) in enumerate(zip(movers, every, strict=True)):
        words = mover.words(money=money)
        for end in filter(None, pair):
            ink = cheaper if end < 0.0 else dearer
            place, height = (row + 0.28, 0.3) if narrow else (row, 0.56)
            (bar,) = axes.barh(place, end / scale, height=height, color=ink, lw=0)
            bar.set_gid(noted(f"{mover.name}, {mover.change}: {', '.join(words)}"))
        level = row - 0.14 if narrow else row
        style = {"va": "center", "fontsize": 8.5}
        axes.text(right, level, "\n".join(words), ha="right", **style)
        if narrow:
            axes.text(left, level, heads[row], ha="left", **style)
            axes.vlines([0.0], [row + 0.12], [row + 0.44], color=colour("text").light, lw=0.9)
    if not narrow:
        axes.axvline(0.0, color=colour("text").light, lw=0.9)
    axes.set_xlim(left, right)
    axes.set_yticks([] if narrow else range(len(movers)), [] if narrow else heads, fontsize=8.5)
    axes.set_ylim(len(movers) - 0.45, -0.55)
    axes.set_xlabel(f"change, {unit}")
    headline(figure, "What moves the cost" if money else "What moves the time", title)
    return figure
