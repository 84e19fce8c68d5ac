"""`make profiles`: fit every shipped profile again from the facts, the same bytes each time.

``python -m workshop.fits.refit [NAME ...]`` runs the producers of the registry (all, or
those named) and writes three things: the tables that they own in ``hardware_profiles/``, further
files that they make, and ``validation/microbenchmarks/left_out.csv``. Comments, hand-written
figures and their order stay; nothing is written before everything is computed. A profile that
borrows from a relative or has a base gets only what was fitted to timings of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tomli

from simulator import catalogue
from simulator.calibration.profile_text import Section, with_sections
from simulator.errors import InputError, did_you_mean
from workshop.fits import stream as fit_stream
from workshop.fits.attention import profiles as attention_profiles
from workshop.fits.collectives import profiles as collective_profiles
from workshop.fits.experts import holdout as grouped_left_out
from workshop.fits.experts import profiles as grouped_profiles
from workshop.fits.fitting.holdout_errors import LeftOut, written
from workshop.fits.gemm import holdout as gemm_left_out
from workshop.fits.gemm import profiles as gemm_profiles

Sections = Mapping[str, Sequence[Section]]
"""By profile: ``h100-sxm`` is an accelerator, ``nodes/dgx-h100`` says its kind."""


def _nothing() -> dict[str, str]:
    return {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Producer:
    """One family of fits: what it writes into profiles, and how well it predicts unseen shapes."""

    sections: Callable[[], Sections]
    left_out: Callable[[], Iterable[LeftOut]]
    files: Callable[[], Mapping[str, str]] = _nothing
    """Further files: path under hardware_profiles -> text."""


PRODUCERS: dict[str, Producer] = {
    "products": Producer(
        sections=gemm_profiles.gemm_sections,
        left_out=gemm_left_out.gemm_lines,
        files=gemm_profiles.residual_tables,
    ),
    "experts": Producer(
        sections=grouped_profiles.grouped_sections,
        left_out=grouped_left_out.grouped_lines,
        files=grouped_profiles.grouped_residuals,
    ),
    "attention": Producer(
        sections=attention_profiles.attention_sections,
        left_out=attention_profiles.left_out_lines,
        files=attention_profiles.attention_residuals,
    ),
    "memory-bound": Producer(
        sections=fit_stream.stream_sections, left_out=fit_stream.left_out_lines
    ),
    "collectives": Producer(
        sections=collective_profiles.collective_sections,
        left_out=collective_profiles.left_out_lines,
    ),
}
"""By name, in the order in which they write: where two own one table, the later one has it."""


def refit(
    producers: Mapping[str, Producer], *, profiles: Path, left_out: Path | None
) -> list[Path]:
    """Run producers and write what they say; return the files that changed.

    Parameters
    ----------
    producers : mapping
        What to run.
    profiles : Path
        The folder ``hardware_profiles``.
    left_out : Path or None
        The table of errors; None where only some producers run, since it holds those of all.

    Raises
    ------
    InputError
        If a producer names a profile that is not there.
    """
    texts: dict[Path, str] = {}
    lines: list[LeftOut] = []
    for name, producer in producers.items():
        for profile, sections in sorted(producer.sections().items()):
            path = _path(profiles, profile, name)
            text = texts.get(path) or path.read_text(encoding="utf-8")
            texts[path] = with_sections(text, _owned(sections, text))
        texts |= {profiles / place: text for place, text in producer.files().items()}
        lines += producer.left_out()
    if left_out is not None:
        texts[left_out] = written(lines)
    changed = [path for path, text in texts.items() if _read(path) != text]
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts[path], encoding="utf-8")
    return changed


def _owned(sections: Sequence[Section], text: str) -> list[Section]:
    """Leave out what a profile that borrows, or has a base, has no timings for.

    A kernel of an accelerator (the first two names of its tables) with no fitted figure is a guess,
    and what it borrows or has from its base is one already.
    """
    if not {"base", "borrowed"} & tomli.loads(text).keys():
        return list(sections)
    fitted = {
        section.path[:2]
        for section in sections
        if any(figure.grade in ("fitted", "measured") for figure in section.figures.values())
    }
    return [section for section in sections if section.path[:2] in fitted]


def _path(profiles: Path, profile: str, producer: str) -> Path:
    kind, _, name = profile.rpartition("/")
    path = profiles / (kind or "accelerators") / f"{name}.toml"
    if not path.is_file():
        raise InputError(f"{producer}: no such profile, got {profile!r}")
    return path


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def main(arguments: Sequence[str]) -> int:
    """Refit all producers or those named."""
    unknown = [name for name in arguments if name not in PRODUCERS]
    if unknown:
        print(
            f"refit: unknown producer {unknown[0]!r}{did_you_mean(unknown[0], PRODUCERS)}",
            file=sys.stderr,
        )
        return 2
    table = catalogue.folder("validation") / "microbenchmarks" / "left_out.csv"
    changed = refit(
        {name: PRODUCERS[name] for name in arguments or PRODUCERS},
        profiles=catalogue.folder("hardware_profiles"),
        left_out=None if arguments else table,
    )
    for path in changed:
        print(path)
    print(f"{len(changed)} files changed")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
