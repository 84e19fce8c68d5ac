"""One palette by meaning: the same thing has the same colour in every picture, light and dark.

Computing is blue, repeated or slowed computing violet, communication warm, idle time grey, the
optimizer green. Memory takes the colour of the time term it belongs to where there is one
(optimizer, gathered parameters and their gathers).
"""

from __future__ import annotations

from typing import Literal

from simulator.records import dataclass


@dataclass(frozen=True, slots=True)
class Colour:
    """The colour of one meaning on a light and on a dark page."""

    light: str
    dark: str


_GREY = Colour("#8a929b", "#8d969f")

PALETTE = {
    # page
    "text": Colour("#1c2127", "#e4e7eb"),
    "quiet": Colour("#58626d", "#9ba5b0"),
    "on bar": Colour("#1d2228", "#15181d"),
    "grid": Colour("#d9dde2", "#353b43"),
    "fits": Colour("#1a7f43", "#4cc27a"),
    "tight": Colour("#a15c00", "#e0a03c"),
    "does not fit": Colour("#c62f2f", "#ff7b72"),
    "ideal": Colour("#8a929b", "#8d969f"),
    "speed": Colour("#2458a6", "#79a9f2"),
    # compute
    "gemm": Colour("#2458a6", "#4f86dd"),
    "attention": Colour("#5b93dc", "#86b1f3"),
    "memory_bound": Colour("#a3c6ef", "#bcd5f8"),
    "kernels": Colour("#2458a6", "#4f86dd"),
    "launch": Colour("#3c7d86", "#5fb3bd"),
    "recompute": Colour("#7652b8", "#a384e0"),
    "slowdown": Colour("#b9a3e0", "#cdbdf0"),
    "stragglers": Colour("#57708c", "#8fa6bf"),
    "optimizer": Colour("#2f8a57", "#56b981"),
    # communication
    "tp": Colour("#d4541c", "#f0824f"),
    "cp": Colour("#ee9436", "#f5b36b"),
    "ep": Colour("#a82f2a", "#dd6c63"),
    "fsdp": Colour("#d9a91a", "#ecc654"),
    "offload": Colour("#6d7f2c", "#a5ba58"),
    "input": Colour("#9db03a", "#c6d67c"),
    "pp": Colour("#8a5a3c", "#bd8a68"),
    "small_reductions": Colour("#e3b9cf", "#f0cfe0"),
    "dp": Colour("#bd2f6d", "#e8709f"),
    # idle
    "bubble": Colour("#9aa3ad", "#7a838d"),
    "bubble_warmup": Colour("#9aa3ad", "#7a838d"),
    "bubble_drain": Colour("#c6ccd3", "#a3abb4"),
    "imbalance": Colour("#5f6973", "#5d666f"),
    # memory
    "weights": Colour("#2458a6", "#4f86dd"),
    "gradients": Colour("#3c7d86", "#5fb3bd"),
    "gathered": Colour("#d9a91a", "#ecc654"),
    "activations": Colour("#e08aa8", "#e99cb8"),
    "loss": Colour("#9c3566", "#c9628f"),
    "temporaries": Colour("#a3836b", "#c0a18a"),
    "workspace": Colour("#c9b9a6", "#d9cbba"),
    "communicators": Colour("#d4541c", "#f0824f"),
    "fragmentation": Colour("#b3bac2", "#7a838d"),
    "context": Colour("#8a9099", "#a0a7b0"),
}
"""Colour by meaning: names of TERMS, MEMORY_KINDS, CAUSES, and parts of the page."""

CATEGORIES = {
    "category 1": Colour("#2458a6", "#5f96ea"),
    "category 2": Colour("#d4541c", "#f0824f"),
    "category 3": Colour("#2f8a57", "#56b981"),
    "category 4": Colour("#7652b8", "#a98cec"),
    "category 5": Colour("#c9990a", "#ecc654"),
    "category 6": Colour("#bd2f6d", "#e8709f"),
    "category 7": Colour("#35a0ad", "#6fd0da"),
    "category 8": Colour("#8a5a3c", "#c89672"),
    "category 9": Colour("#6d7d16", "#b3c04d"),
    "category 10": Colour("#5f6973", "#a3abb4"),
}
"""Colours of things that have no meaning of their own, such as sources, in the order of use."""


def inks(side: Literal["light", "dark"]) -> dict[str, str]:
    """Return what stands on one side of a page for every colour of a picture, by six digits.

    Of meanings that share a colour, the first decides what it turns into.

    >>> inks("light")["2458a6"], inks("dark")["2458a6"], inks("dark")["ffffff"]
    ('#2458a6', '#79a9f2', '#15181d')
    """
    page = {"ffffff": Colour("#ffffff", "#15181d"), "000000": PALETTE["text"]}
    for one in PALETTE.values():
        page.setdefault(one.light[1:], one)
    return {digits: getattr(one, side) for digits, one in page.items()}


def colour(meaning: str) -> Colour:
    """Return the colour of a meaning; grey for one that has none yet.

    >>> colour("optimizer").light
    '#2f8a57'
    """
    return PALETTE.get(meaning, _GREY)


_SYMBOLS = ("circle", "diamond", "square")


def category(number: int) -> str:
    """Return the meaning of the nth thing without one, from 0; colours come round again.

    >>> category(0), category(len(CATEGORIES) + 1)
    ('category 1', 'category 2')
    """
    names = list(CATEGORIES)
    return names[number % len(names)]


def symbol(number: int) -> str:
    """Return the symbol of its points: another one for each round of the colours.

    >>> symbol(0), symbol(len(CATEGORIES))
    ('circle', 'diamond')
    """
    return _SYMBOLS[number // len(CATEGORIES) % len(_SYMBOLS)]
