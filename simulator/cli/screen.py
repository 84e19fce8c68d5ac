"""What the screens of the commands are made of: console, tables of terms and memory, progress."""

from __future__ import annotations

import math
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from simulator.errors import visible
from simulator.report.palette import TERMINAL
from simulator.units import GIB, show_count, show_percent, show_seconds

if TYPE_CHECKING:
    from simulator.cost.step import Estimate
    from simulator.scenario import Scenario

NO_FIT = "OOM"
"""Style of what does not fit or is missed; FITS and TIGHT are the others (``_styles``)."""

_Row = TypeVar("_Row")

_WIDTH = 136
"""Columns where the output is no terminal (and COLUMNS does not say)."""

_NARROWEST, _WIDEST = 40, 1_000

_CUT = "\N{HORIZONTAL ELLIPSIS}"
"""What rich puts where a cell was cut."""

_PLAIN = str.maketrans("▁▂▃▄▅▆▇█▓░", ".:-=+*%#%r")
"""Bars on a terminal that has ASCII alone."""

_PATIENCE_S = 2.0
"""A progress bar appears after this time."""


class _Screen(Console):
    """A console that shows every character; it leaves a closed pipe (``| head``) to the runner."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Write out what a terminal would obey in names, and what is not ASCII in rich's marks."""
        plain = _PLAIN if self.options.ascii_only else {}
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else visible(segment.text)
            yield segment._replace(text=text.replace(_CUT, "~").translate(plain))


def _styles() -> Theme:
    """What FITS, TIGHT and OOM look like: colours that the terminal's own palette draws.

    So they can be read on its ground, light or dark. Nothing is coloured where the output is no
    terminal, or NO_COLOR is set.
    """
    ways = ("", "bold ", "not bold ")
    return Theme({f"{way}{name}": f"{way}{ink}" for name, ink in TERMINAL.items() for way in ways})


def console() -> Console:
    """A console on standard output, without guesses at what to colour."""
    wide = shutil.get_terminal_size((_WIDTH, 24)).columns
    wide = min(max(wide, _NARROWEST), _WIDEST)
    return _Screen(highlight=False, markup=False, emoji=False, width=wide, theme=_styles())


def print_screen(blocks: Iterable[RenderableType]) -> None:
    """Print texts, tables and notes below one another; a blank text is a blank line.

    A text that says ``no_wrap`` is for copying: it stays in one line, however long.
    """
    screen = console()
    for block in blocks:
        screen.print(block, soft_wrap=isinstance(block, Text) and bool(block.no_wrap))


def heading(scenario: Scenario, *, priced: str = "") -> Text:
    """Say what is asked about, in two lines, and what of it the figures leave out.

    `priced` is a section that they hold, though those of a step on [cluster] would not.
    """
    from simulator.report.wording import assumed_words, idle_words, length_words

    arch, recipe = scenario.workload.architecture, scenario.workload.recipe
    cluster = scenario.cluster
    size = show_count(arch.parameters)
    if arch.is_moe:
        size += f" ({show_count(arch.active_parameters)} active)"
    tokens, per = f"{length_words(recipe)}, ", "step"
    if priced == "rl":  # several updates make a step
        tokens, per = "", "update"
    text = Text(f"{arch.name}, {size} parameters", style="bold")
    groups = [
        f"{group.gpus:,} x {group.accelerator.name} ({cluster.each[group.kind].name})"
        for group in cluster.groups
    ]
    text.append(f" on {' + '.join(groups)}, {scenario.software.name}\n")
    if scenario.assumed_software:
        text.append(f"nearest known release: {scenario.assumed_software}\n", style="TIGHT")
    text.append(
        f"{tokens}{recipe.global_batch:,} sequences of {recipe.sequence_length:,} per {per}, "
        f"{recipe.precision}, {recipe.optimizer}",
        style="not bold",
    )
    for section, command in scenario.elsewhere.items():
        if section != priced:
            words = f"\n[{section}] is not in these figures: `{command}` has it"
            text.append(words, style="not bold TIGHT")
    if assumed := assumed_words(scenario):
        text.append(f"\n{assumed}", style="not bold")
    if idle := idle_words(scenario):
        text.append(f"\n{idle}", style="not bold TIGHT")
    return text


def plain_table(*columns: str, left: Sequence[str] = ()) -> Table:
    """A table without a frame; columns are right-aligned unless named in `left`."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        flush = column in left
        table.add_column(column, justify="left" if flush else "right", no_wrap=not flush)
    return table


def table_of(
    rows: Iterable[_Row],
    *columns: tuple[str, Callable[[_Row], str | Text]],
    left: Sequence[str] = (),
) -> Table:
    """A plain table of one row each; a column is its heading, and what makes a cell of a row."""
    table = plain_table(*(head for head, _ in columns), left=left)
    for row in rows:
        table.add_row(*(cell(row) for _, cell in columns))
    return table


def seconds_like(total_s: float) -> tuple[str, float]:
    """Unit in which a step time and all its terms are shown, so that a column adds up."""
    return ("ms", 1e3) if total_s < 1.0 else ("s", 1.0)


def amount(value: float) -> str:
    """Three decimals, with the thousands set apart."""
    return f"{value:,.3f}"


def gib(size_bytes: float) -> str:
    """Gibibytes with two decimals."""
    return f"{size_bytes / GIB:,.2f}"


def fitting(estimate: Estimate, i: int = 0) -> Text:
    """FITS, TIGHT or OOM in its colour."""
    word = estimate.verdict_word(i)
    return Text(word, style=word)


def term_table(
    estimates: Mapping[str, tuple[Estimate, int]], *, share: bool = False, formula: bool = False
) -> Table:
    """Time terms of one or more layouts side by side; each column adds up to its step time.

    Parameters
    ----------
    estimates : mapping
        Heading of the column -> estimate and row.
    share : bool
        Add the share of the first layout; terms below a two-thousandth of it are one line.
    formula : bool
        Add the share and the formula of each term, however small.
    """
    from simulator.cost.terms import TERMS  # lists of names need none of it

    first, row = next(iter(estimates.values()))
    unit, scale = seconds_like(float(first.step_time_s[row]))
    extra = ("share", "formula")[: share + 2 * formula]
    names = [f"{name} ({unit})" for name in estimates]
    table = plain_table("time of a step", *names, *extra, left=("time of a step", "formula"))

    def add(label: str, values_s: list[float], text: str = "", style: str = "") -> None:
        part = show_percent(values_s[0] / float(first.step_time_s[row]))
        cells = [amount(scale * value_s) for value_s in values_s]
        table.add_row(label, *cells, *(part, text)[: len(extra)], style=style)

    small: dict[str, list[float]] = {}
    for term in TERMS:
        values_s = [float(e.terms_s[term.name][i]) for e, i in estimates.values()]
        if share and not formula and values_s[0] < _SMALL * float(first.step_time_s[row]):
            small |= {term.label: values_s} if any(values_s) else {}
        elif any(values_s):
            add(term.label, values_s, term.formula)
    if len(small) == 1:
        add(*next(iter(small.items())))
    elif small:
        add(
            f"{len(small)} smaller terms",
            [sum(parts) for parts in zip(*small.values(), strict=True)],
        )
    add("sum = step time", [float(e.step_time_s[i]) for e, i in estimates.values()], style="bold")
    return table


_SMALL = 5e-4
"""Share of a step below which a term is not worth a line."""


def memory_table(estimate: Estimate, i: int, capacity: float, meaning: Any = None) -> Table:
    """Peak memory (worst rank) by kind, its sum, and the line that it must stay under."""
    from simulator.cost.memory.moments import MOMENTS
    from simulator.report.evidence import FIT_RULE

    extra = () if meaning is None else ("what",)
    title = f"peak memory (worst rank, stage {int(estimate.peak_stage[i])})"
    table = plain_table(title, "GiB", "of usable", *extra, left=(title, "what"))
    total, usable = float(estimate.memory_total_bytes[i]), float(estimate.usable_bytes)

    def add(name: str, size: float, text: str = "", style: str = "") -> None:
        cells = [name, gib(size), show_percent(size / usable)]
        table.add_row(*cells, *(() if meaning is None else (text,)), style=style)

    for kind, column in estimate.memory_bytes.items():
        if column[i]:
            add(kind, float(column[i]), "" if meaning is None else meaning(kind))
    moment = MOMENTS[int(estimate.peak_moment[i])]
    style = f"bold {estimate.verdict_word(i)}"
    add("sum", total, f"peak at: {moment}", style)
    for name, size in (
        ("P10", estimate.memory_p10_bytes[i]),
        ("P90", estimate.memory_p90_bytes[i]),
    ):
        if math.isfinite(size):
            add(name, float(size), "" if name == "P10" else FIT_RULE, style)
    add("usable HBM", usable, f"of {gib(capacity)} GiB", "bold")
    return table


def notes(title: str, lines: Sequence[str]) -> Group:
    """A heading and its lines, set in; nothing where there are none."""
    body = [Padding(Text(line), (0, 0, 0, 2), expand=False) for line in lines]
    return Group(*([Text(title, style="bold")] if lines and title else []), *body)


def best_of(searched: int) -> str:
    """Say where a layout that nobody named is from."""
    return f"no layout was given: the best of {searched:,}, as plan finds it"


def took(what: str, seconds: float) -> None:
    """Say on a terminal's standard error how long something took; answers have no times in them."""
    if sys.stderr.isatty():
        sys.stderr.write(f"{what} in {show_seconds(seconds)}\n")


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Say on a terminal's standard error what takes more than two seconds."""
    if not sys.stderr.isatty():
        yield
        return
    status = Console(stderr=True).status(what)
    timer = threading.Timer(_PATIENCE_S, status.start)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        status.stop()


class Progress:
    """A bar on a terminal's standard error for work of more than two seconds; else nothing.

    Used as ``with Progress("searching") as progress: work(progress=progress)``; `progress` is
    None or a callable that takes (done, in all).
    """

    def __init__(self, what: str) -> None:
        self._what, self._begun = what, time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Any:
        return self._advance if sys.stderr.isatty() else None

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _advance(self, done: int, total: int) -> None:
        if self._bar is None:
            passed_s = time.monotonic() - self._begun
            if passed_s < _PATIENCE_S or done >= total:
                return
            from rich.progress import Progress as Bar

            self._bar = Bar(console=Console(stderr=True), transient=True)
            whole = f" (about {show_seconds(passed_s * total / done)} in all)" if done else ""
            self._task = self._bar.add_task(f"{self._what}{whole}", total=total)
            self._bar.start()
        self._bar.update(self._task, completed=done, total=total)
