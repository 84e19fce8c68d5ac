"""A drawing as a part of a page: matplotlib's SVG, with the page's own light and dark inks.

Every picture is drawn once for wide screens and once for phones; style sheets choose. A shape whose
gid begins with NOTE carries a text that browsers show where the pointer rests on it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from simulator.report.palette import inks

if TYPE_CHECKING:
    from markupsafe import Markup

NOTE = "note: "
"""Begins the gid of a shape that has something to say."""

_HEAD = re.compile(
    r"^.*?(?=<svg)|<metadata>.*?</metadata>|<style.*?</style>|<defs>\s*</defs>", re.S
)
_SIZE = re.compile(r'(<svg [^>]*?)width="[^"]*" height="[^"]*"([^>]*>)')
_NOTED = re.compile(rf'<g id="{NOTE}([^"]*)">')
_COLOUR = re.compile(r"#([0-9a-f]{6})\b")
_UNUSED = re.compile(r' id="(?:patch|line2d|text|xtick|ytick|axes|figure|matplotlib)[^"]*"')
_PLACES = re.compile(r' (?:d|x|y|transform)="[^"]*"')
_DIGITS = re.compile(r"(\d\.\d\d)\d+")
"""A hundredth of a point is finer than any screen."""
_NAMED = re.compile(r'(\bid="|xlink:href="#|url\(#)')


def noted(text: str) -> str:
    """Return the gid of a shape that says `text`."""
    return NOTE + text


def inline(wide: bytes, narrow: bytes, *, name: str, alt: str) -> Markup:
    """Put two drawings of one picture into a page, which shows the one that fits.

    Parameters
    ----------
    wide, narrow : bytes
        SVG files, for screens and paper and for phones.
    name : str
        Sets the names inside them apart from those of other pictures.
    alt : str
        What is seen, for those who do not see it.
    """
    from markupsafe import Markup, escape

    parts = [
        f'<div class="{shape}">{_part(svg, f"{name}-{shape}", str(escape(alt)))}</div>'
        for shape, svg in (("wide-picture", wide), ("narrow-picture", narrow))
    ]
    return Markup("".join(parts))  # matplotlib escapes what is written in a picture


def _part(svg: bytes, name: str, alt: str) -> str:
    text = _HEAD.sub("", svg.decode())
    text = _SIZE.sub(r"\1\2", text, count=1)
    text = _NOTED.sub(r"<g><title>\1</title>", text)
    text = _NAMED.sub(rf"\g<1>{name}-", _UNUSED.sub("", text))
    text = _PLACES.sub(lambda found: _DIGITS.sub(r"\1", found[0]), text)
    known = set(inks("light"))
    text = _COLOUR.sub(lambda found: f"var(--i{found[1]})" if found[1] in known else found[0], text)
    return text.replace("<svg ", f'<svg class="picture" role="img" aria-label="{alt}" ', 1)
