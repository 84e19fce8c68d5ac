"""Colours of pages and pictures can be told from what they stand on: WCAG 2.1 AA, computed."""

from __future__ import annotations

import re
import tomllib
from itertools import product
from pathlib import Path

import pytest

import simulator.report.palette
from simulator.report.page import environment
from simulator.report.palette import PAGE, PALETTE, Colour, gpu_sign, inks
from simulator.report.svg_figure import SvgFigure
from simulator.report.write import heat_text

TOKENS = tomllib.loads(
    Path(simulator.report.palette.__file__).with_name("tokens.toml").read_text(encoding="utf-8")
)
GPUS = {name: gpu_sign(f"{name}-sxm", 0).ink for name in TOKENS["gpus"]}
SIDES = ("light", "dark")


def luminance(ink: str) -> float:
    """Relative luminance (WCAG 2.1, 1.4.3)."""
    parts = [int(ink[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(ink: str, ground: str) -> float:
    dark, light = sorted((luminance(ink), luminance(ground)))
    return (light + 0.05) / (dark + 0.05)


def test_contrast_of_black_on_white_is_that_of_the_norm() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("side", SIDES)
def test_texts_can_be_read(side: str) -> None:
    texts = ("text", "quiet", "mark", "fits", "tight", "fails")
    pairs = list(product(texts, ("page", "panel")))
    pairs += [(name, f"{name}-ground") for name in ("mark", "fits", "tight", "fails")]
    pairs += [("text", f"{name}-ground") for name in ("mark", "tight", "fails")]
    for name, ground in pairs:
        held = contrast(getattr(PAGE[name], side), getattr(PAGE[ground], side))
        assert held >= 4.5, (side, name, ground)


@pytest.mark.parametrize("side", SIDES)
def test_words_of_pictures_can_be_read_where_they_stand(side: str) -> None:
    def of(colour: Colour) -> str:
        return str(getattr(colour, side))

    page = of(PAGE["page"])
    shaded = [page, of(PALETTE["past deadline"]), of(PALETTE["over budget"])]
    names = [PALETTE[name] for name in ("text", "quiet", "does not fit", "tight")]
    for ink, ground in product([*names, *GPUS.values()], shaded):
        assert contrast(of(ink), ground) >= 4.5, (side, ink, ground)


def test_cells_of_a_heat_map_can_be_read_on_both_sides() -> None:
    for level in range(5):
        cell = PALETTE[f"heat {level}"]
        drawn = heat_text(level)
        written = inks("dark")["ffffff" if drawn == "white" else drawn[1:]]
        assert contrast("#ffffff" if drawn == "white" else drawn, cell.light) >= 4.5, level
        assert contrast(written, cell.dark) >= 4.5, level


@pytest.mark.parametrize("side", SIDES)
def test_large_marks_can_be_seen(side: str) -> None:
    page = getattr(PAGE["page"], side)
    large = ("gemm", "attention", "memory_bound", "weights", "gradients", "optimizer", "tp")
    for name in large:
        assert contrast(getattr(PALETTE[name], side), page) >= 3.0, (side, name)


def test_every_gpu_has_a_sign_of_its_own() -> None:
    signs = [gpu_sign(f"{name}-sxm", 0) for name in TOKENS["gpus"]]
    assert len({sign.shape for sign in signs}) == len({sign.ink.light for sign in signs}) == 6


def test_gpus_without_a_token_look_like_no_other() -> None:
    """Cost against time once drew H200 and MI300X as the same green diamond."""
    known = {gpu_sign(f"{name}-sxm", 0).shape for name in TOKENS["gpus"]}
    known_inks = {gpu_sign(f"{name}-sxm", 0).ink.light for name in TOKENS["gpus"]}
    others = [gpu_sign("mi300x", number) for number in range(21)]
    assert len({(sign.shape, sign.ink.light) for sign in others}) == len(others)
    assert known.isdisjoint(sign.shape for sign in others)
    assert known_inks.isdisjoint(sign.ink.light for sign in others)
    figure = SvgFigure(3.0, 2.0)
    axes = figure.subplots()
    for number, sign in enumerate(others):
        axes.plot([number], [0.0], sign.shape, color=sign.ink.light)
    drawn = re.findall(r'<path d="(M[^"]+z)"', figure.svg())
    assert len(drawn) == len(others)  # each with corners: none falls back to a circle


def test_style_sheet_and_pictures_take_the_same_file() -> None:
    made = environment().from_string("{{ page_inks['mark'].dark }} {{ palette['gemm'].light }}")
    assert made.render() == f"{TOKENS['page']['mark'][1]} {TOKENS['pictures']['gemm'][0]}"
