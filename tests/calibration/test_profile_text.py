"""Figures written into a profile's text: comments stay, a second writing changes nothing."""

from simulator.calibration.profile_text import FigureText, Section, with_sections

PROFILE = """\
# A device
name = "x"

[sources.old]
text = "by hand"
date = "2026-01-01"
[sources.sheet]
text = "data sheet"
date = "2026-01-01"

[memory]
size = { value = 80e9, grade = "datasheet", source = "sheet" }  # a comment

[gemm.cublas.bf16]
launch_s = { value = 2e-6, grade = "assumed", source = "old" }
"""

FITTED = Section(
    path=("gemm", "cublas", "bf16"),
    figures={
        "launch_s": FigureText(value=2.504e-6, grade="fitted", spread=0.0512),
        "peak_fraction": FigureText(value=0.87, grade="fitted"),
    },
    source="fit",
    text="fit of 10 rows",
    date="2026-11-21",
)


def test_figures_and_source_are_written_and_the_rest_stays() -> None:
    written = with_sections(PROFILE, [FITTED])
    assert 'launch_s = { value = 2.5e-6, grade = "fitted", source = "fit", spread = 0.051 }' in (
        written
    )
    assert 'peak_fraction = { value = 0.87, grade = "fitted", source = "fit" }' in written
    assert 'text = "fit of 10 rows"' in written
    assert "by hand" not in written  # no figure points to it any more
    assert (
        '[memory]\nsize = { value = 80e9, grade = "datasheet", source = "sheet" }  # a' in written
    )


def test_a_second_writing_changes_nothing() -> None:
    once = with_sections(PROFILE, [FITTED])
    assert with_sections(once, [FITTED]) == once
    assert with_sections(PROFILE, []).replace("[sources.old]", "") != once


def test_a_missing_table_is_added() -> None:
    section = Section(
        path=("attention", "flash"),
        figures={"a": FigureText(value=1.0, grade="fitted")},
        source="new",
        text="t",
        date="2026-11-21",
    )
    assert "[attention.flash]\na = { value = 1, grade" in with_sections(PROFILE, [section])
