"""One palette by meaning: the same thing has the same colour and sign in every picture and page.

Colours stand in ``tokens.toml``, each for a light and a dark page.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from simulator.records import dataclass

Side = Literal["light", "dark"]


@dataclass(frozen=True, slots=True)
class Colour:
    """The colour of one meaning on a light and on a dark page."""

    light: str
    dark: str


@dataclass(frozen=True, slots=True)
class Sign:
    """How a GPU is drawn: colour, and the shape of its points as matplotlib names it."""

    shape: str
    ink: Colour


_TOKENS = tomllib.loads(Path(__file__).with_name("tokens.toml").read_text(encoding="utf-8"))


def _colours(table: Mapping[str, Any]) -> dict[str, Colour]:
    return {name: Colour(*both) for name, both in table.items()}


PAGE = _colours(_TOKENS["page"])
"""Variables of style sheets."""

PALETTE = _colours(_TOKENS["pictures"])
"""Colour by meaning: names of TERMS, MEMORY_KINDS, and parts of pictures."""

CATEGORIES = _colours(_TOKENS["categories"])
"""Colours of things that have no meaning of their own, such as sources, in the order of use."""

TERMINAL: Mapping[str, str] = _TOKENS["terminal"]
"""Colours of FITS, TIGHT and OOM on a terminal."""

_GREY = PALETTE["ideal"]

_SHAPES = ("h", "<", ">")
_INKS = (
    "category 4",
    "category 7",
    "category 8",
    "category 6",
    "category 9",
    "category 5",
    "category 10",
)
"""Of GPUs without a token, in turn: shapes that none with one has, colours that none is near."""


def gpu_sign(accelerator: str, number: int) -> Sign:
    """Return how the nth GPU of a picture is drawn; those without a token take others in turn.

    >>> gpu_sign("b200-sxm", 3).shape, gpu_sign("tpu-v5p", 1).shape
    ('^', '<')
    """
    for name, token in _TOKENS["gpus"].items():
        if accelerator.startswith(name):
            return Sign(token["sign"], Colour(token["light"], token["dark"]))
    return Sign(_SHAPES[number % len(_SHAPES)], CATEGORIES[_INKS[number % len(_INKS)]])


def inks(side: Side) -> dict[str, str]:
    """Return what stands on one side of a page for every colour of a picture, by six digits.

    Of meanings that share a colour, the first decides what it turns into.

    >>> inks("light")["0b5cad"], inks("dark")["0b5cad"], inks("dark")["ffffff"]
    ('#0b5cad', '#3f8fdc', '#11151b')
    """
    page = {"ffffff": PAGE["page"], "000000": PALETTE["text"]}
    gpus = [Colour(token["light"], token["dark"]) for token in _TOKENS["gpus"].values()]
    for one in (*PALETTE.values(), *CATEGORIES.values(), *gpus):
        page.setdefault(one.light[1:], one)
    return {digits: getattr(one, side) for digits, one in page.items()}


def colour(meaning: str) -> Colour:
    """Return the colour of a meaning; grey for one that has none yet.

    >>> colour("optimizer").light
    '#7a5fa8'
    """
    return PALETTE.get(meaning, _GREY)


def category(number: int) -> str:
    """Return the meaning of the nth thing without one, from 0; colours come round again.

    >>> category(0), category(len(CATEGORIES) + 1)
    ('category 1', 'category 2')
    """
    names = list(CATEGORIES)
    return names[number % len(names)]


def symbol(number: int) -> str:
    """Return the shape of its points: another one for each round of the colours.

    >>> symbol(0), symbol(len(CATEGORIES))
    ('o', 'D')
    """
    return ("o", "D", "s")[number // len(CATEGORIES) % 3]
