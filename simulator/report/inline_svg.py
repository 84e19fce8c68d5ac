"""A drawing as a part of a page: SVG of `svg_figure.py` with the page's own light and dark inks.

Every picture is drawn once for wide screens and once for phones; style sheets choose.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from simulator.report.palette import inks
from simulator.report.svg_figure import NOTE

if TYPE_CHECKING:
    from markupsafe import Markup

_SIZE = re.compile(r'(<svg [^>]*?)width="[^"]*" height="[^"]*"([^>]*>)')
_NAMESPACE = 'xmlns="http://www.w3.org/2000/svg" '
"""Of a file; a page knows what an svg element is."""

_INK = re.compile(r'="#([0-9a-f]{6})"')


def noted(text: str) -> str:
    """Return the gid of a shape that says `text`."""
    return NOTE + text


def inline(wide: str, narrow: str, *, alt: str) -> Markup:
    """Put two drawings of one picture into a page, which shows the one that fits.

    Parameters
    ----------
    wide, narrow : str
        SVG, for screens and paper and for phones.
    alt : str
        What is seen, for those who do not see it.
    """
    from markupsafe import Markup, escape

    if wide == narrow:
        return Markup(_part(wide, str(escape(alt))))  # svg_figure.py escapes what is written
    parts = [
        f'<div class="{shape}">{_part(svg, str(escape(alt)))}</div>'
        for shape, svg in (("wide-picture", wide), ("narrow-picture", narrow))
    ]
    return Markup("".join(parts))  # svg_figure.py escapes what is written in a picture


def _part(svg: str, alt: str) -> str:
    known = set(inks("light"))
    text = _SIZE.sub(r"\1\2", svg, count=1).replace(_NAMESPACE, "", 1)
    text = _INK.sub(lambda ink: f'="var(--i{ink[1]})"' if ink[1] in known else ink[0], text)
    return text.replace("<svg ", f'<svg class="picture" role="img" aria-label="{alt}" ', 1)
