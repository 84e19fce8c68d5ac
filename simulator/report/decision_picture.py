"""Pictures to decide by: money against time to finish, and what moves the money."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from string import ascii_lowercase, ascii_uppercase
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
from simulator.report.label_places import Box, Label, Place, Plot, placed
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
    size = (NARROW, 4.0) if narrow else (FULL, 4.8) if full else (WIDE, 4.1)
    figure, axes = canvas(*size, svg=svg)
    draw_decision(axes, offers, options, asked, size)
    headline(figure, "Cost against time to finish", title)
    legend(figure, axes)
    return figure


def draw_decision(
    axes: Any,
    offers: Sequence[Offer],
    options: Sequence[Option],
    asked: Asked,
    inches: tuple[float, float] = (WIDE, 4.1),
) -> None:
    """Draw the same into axes of a picture of so many inches."""
    shown = drawn_offers(offers, options, asked)
    scale, unit = money_axis(max((_usd(o)[1] for o in shown), default=1.0))
    picked = {id(option.offer) for option in options}
    ranged = {id(o) for o in shown} if len(shown) <= _RANGES else picked
    plot, marks, labels = _frame(axes, shown, asked, (scale, ranged), inches)
    ends = list[Label]()
    names = list(dict.fromkeys(o.named for o in shown))
    letters = _letters(shown)
    chips = list[str]()
    for number, name in enumerate(names):
        row = sorted((o for o in shown if o.named == name), key=lambda o: o.gpus)
        chip = row[0].accelerator
        twice = any(o.named != name and o.accelerator == chip for o in shown)
        sign = gpu_sign(chip, number)
        dash = _DASHES[chips.count(chip) % len(_DASHES)]
        chips.append(chip)
        letter = letters.get(name, "")
        words = f"{letter}  {name}".strip() if twice else short_gpu(chip)
        _line(axes, row, (sign, dash), scale, (picked, ranged), words)
        for size, offer in enumerate(row):
            marks.append(_mark(plot, offer, scale, picked))
            if id(offer) in picked:
                labels.append(_name(offer, sign, scale, letter))
            elif size in (0, len(row) - 1):
                ends.append(_number(offer, sign, scale, ranged, letter))
    for label, place, _ in placed([*labels, *ends], plot, marks):
        style = {"ha": place.ha, "va": place.va, "fontsize": label.size, **label.style}
        axes.annotate(label.text, place.at, place.shift, textcoords="offset points", **style)
    axes.set_xlabel("days to finish, as predicted" + (" (log scale)" if axes_log(shown) else ""))
    axes.set_ylabel(unit)


_DASHES = ("-", "--", ":")
"""Lines of offers with the same GPU, in turn."""


def _letters(shown: Sequence[Offer]) -> dict[str, str]:
    """A letter for each offer where one GPU has more of them than there are lines; else none."""
    chips = {o.named: o.accelerator for o in shown}
    if max(Counter(chips.values()).values(), default=0) <= len(_DASHES):
        return {}
    return dict(zip(chips, ascii_lowercase + ascii_uppercase, strict=False))


_BESIDE, _BELOW = 62.0, 75.0
"""Points of a picture that its plot leaves to what is written left of it and below."""


def _mark(plot: Plot, offer: Offer, scale: float, picked: set[int]) -> Box:
    """The box of a point."""
    assert offer.days is not None and offer.usd is not None
    return plot.mark(offer.days.p50, offer.usd.p50 / scale, 10.0 if id(offer) in picked else 6.5)


def _name(offer: Offer, sign: Sign, scale: float, letter: str) -> Label:
    """Number and GPU of an option, and its letter, beside its point."""
    assert offer.days is not None and offer.usd is not None
    at = (offer.days.p50, offer.usd.p50 / scale)
    sides = (("left", 7.0), ("right", -7.0), ("center", 0.0))
    places = [
        Place(at=at, shift=(along, up), ha=ha, va=va)
        for reach in (5.0, 18.0)
        for ha, along in sides
        for va, up in (("bottom", reach), ("top", -reach))
    ]
    return Label(
        text=f"{gpu_word(offer)} {letter}".strip(), size=10.0, places=places,
        style={"color": sign.ink.light, "zorder": 5, "bbox": _RIM},
    )  # fmt: skip


def _number(offer: Offer, sign: Sign, scale: float, ranged: set[int], letter: str) -> Label:
    """Number of GPUs, and the letter of the offer, at the end of a line."""
    assert offer.days is not None and offer.usd is not None
    x, y = offer.days.p50, offer.usd.p50 / scale
    ends = (offer.usd.p90 / scale, offer.usd.p10 / scale) if id(offer) in ranged else (y, y)
    places = [
        Place(at=(x, ends[0]), shift=(0.0, 5.0), ha="center", va="bottom"),
        Place(at=(x, ends[1]), shift=(0.0, -5.0), ha="center", va="top"),
        *(
            Place(at=(x, y), shift=(along, up), ha=ha, va=va)
            for ha, along in (("left", 6.0), ("right", -6.0))
            for va, up in (("bottom", 2.0), ("top", -2.0))
        ),
    ]
    return Label(
        text=f"{offer.gpus:,} {letter}".strip(), size=9.0, places=places, needed=False,
        style={"color": sign.ink.light, "zorder": 5, "bbox": _RIM},
    )  # fmt: skip


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


def _frame(
    axes: Any,
    shown: Sequence[Offer],
    asked: Asked,
    money_of: tuple[float, set[int]],
    inches: tuple[float, float],
) -> tuple[Plot, list[Box], list[Label]]:
    """Limits of the axes, deadline and budget with what lies beyond them.

    `money_of` is what amounts are divided by, and the offers whose range is drawn. Returns what the
    frame spans, the lines in it and their words.
    """
    scale, ranged = money_of
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
    axes.set_ylim(foot, top)
    width, height = (72.0 * inches[0] - _BESIDE, 72.0 * inches[1] - _BELOW)
    plot = Plot(x=(low, high), y=(foot, top), width=width, height=height, log_x=axes_log(shown))
    marks, labels = list[Box](), list[Label]()
    if dear is not None:  # first, so that what is past the deadline is shaded as such
        axes.axhspan(dear / scale, top, color=colour("over budget").light, lw=0, zorder=0)
        axes.axhline(dear / scale, color=colour("tight").light, ls="--", lw=1.3)
        at = plot.points(low, dear / scale)[1]
        marks.append((0.0, width, at - 1.0, at + 1.0))
        labels.append(_budget_words(dear, dear / scale, plot))
    if late is not None:
        axes.axvspan(late, high, color=colour("past deadline").light, lw=0, zorder=0)
        axes.axvline(late, color=colour("does not fit").light, ls="--", lw=1.3)
        at = plot.points(late, foot)[0]
        marks.append((at - 1.0, at + 1.0, 0.0, height))
        labels.insert(0, _deadline_words(late, plot))
    beyond = [
        f"{what} {words} lies beyond"
        for what, limit, seen, words in (
            ("deadline", asked.deadline_days, late, f"{asked.deadline_days or 0.0:,.4g} days"),
            ("budget", asked.budget_usd, dear, show_usd(asked.budget_usd or 0.0)),
        )
        if limit is not None and seen is None
    ]
    if beyond:
        style = {"color": colour("quiet").light}
        corners = [
            Place(at=(x, y), shift=(4.0 * sign, up), ha=ha, va=va)
            for y, up, va in ((top, -4.0, "top"), (foot, 4.0, "bottom"))
            for x, sign, ha in ((high, -1.0, "right"), (low, 1.0, "left"))
        ]
        labels.append(Label(text="\n".join(beyond), size=9.0, places=corners, style=style))
    return plot, marks, labels


def _deadline_words(late: float, plot: Plot) -> Label:
    """Words along the line of the deadline, left of it or right, from its foot or its top."""
    heights = [(plot.y[0], 5.0, "bottom"), (plot.y[1], -5.0, "top")]
    heights += [
        (plot.y[0] + share * (plot.y[1] - plot.y[0]), 0.0, "bottom") for share in (0.2, 0.4, 0.6)
    ]
    places = [
        Place(at=(late, y), shift=(along, up), ha=ha, va=va)
        for ha, along in (("right", -4.0), ("left", 4.0))
        for y, up, va in heights
    ]
    style = {"color": colour("does not fit").light, "zorder": 5, "bbox": _RIM}
    return Label(text=f"deadline {late:,.4g} days", size=9.0, places=places, style=style)


def _budget_words(dear: float, height: float, plot: Plot) -> Label:
    """Words along the line of the budget, above it or below, at its right end or its left."""
    ends = ((plot.x[1], -4.0, "right"), (plot.x[0], 4.0, "left"))
    places = [
        Place(at=(x, height), shift=(along, up), ha=ha, va=va)
        for up, va in ((4.0, "bottom"), (-4.0, "top"))
        for x, along, ha in ends
    ]
    style = {"color": colour("tight").light, "zorder": 5, "bbox": _RIM}
    return Label(text=f"budget {show_usd(dear)}", size=9.0, places=places, style=style)


def _near(limit: float | None, most: float) -> float | None:
    """A limit that is drawn; None for one so far away that the offers would shrink to a dot."""
    return limit if limit is not None and limit <= _FARTHEST * most else None


_FARTHEST = 3.0
"""Limits beyond so many times what the offers take are written, not drawn."""


_RIM = {"facecolor": "white", "edgecolor": "none", "pad": 0.4, "alpha": 0.8}
"""Behind the names of points, so that whiskers do not strike them out."""


def _line(
    axes: Any,
    row: Sequence[Offer],
    drawn: tuple[Sign, str],
    scale: float,
    marked: tuple[set[int], set[int]],
    label: str,
) -> None:
    """The offers of one GPU; `marked` are those with a name and those with whiskers."""
    sign, dash = drawn
    ink = sign.ink.light
    points = [(o, o.days.p50, o.usd.p50 / scale) for o in row if o.days and o.usd]
    axes.plot(
        [x for _, x, _ in points], [y for _, _, y in points], dash, marker=sign.shape, color=ink,
        lw=1.0, ms=4.0, label=label,
    )  # fmt: skip
    for offer, x, y in points:
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
            ms=10.0 if named else 6.5, zorder=4,
        )  # fmt: skip
        dot.set_gid(noted(offer_note(offer)))


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
