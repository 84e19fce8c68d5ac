"""Parts of the screens: numbers that add up, and progress only where it is wanted."""

from collections.abc import Callable

import pytest
import typer
from rich.text import Text

from simulator.api import predict
from simulator.cli import screen
from simulator.cli.decision_options import days_of, usd_of
from simulator.cli.options import errors_as_exit_codes, print_json
from simulator.cli.screen import (
    Progress,
    amount,
    gib,
    memory_table,
    print_screen,
    seconds_like,
    waiting,
)
from simulator.errors import InputError
from simulator.report.evidence import FIT_RULE


def test_units_of_a_column_follow_the_step_time() -> None:
    assert seconds_like(0.25) == ("ms", 1e3)
    assert seconds_like(12.0) == ("s", 1.0)
    assert amount(1234.5) == "1,234.500"
    assert gib(1.5 * 2**30) == "1.50"


def test_no_progress_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("searching") as progress:
        assert progress is None
    with waiting("writing"):
        pass
    assert capsys.readouterr() == ("", "")


def test_a_bar_appears_only_after_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.9, 2.1, 2.2])
    monkeypatch.setattr(screen.time, "monotonic", lambda: next(clock))
    progress = Progress("searching")
    progress._advance(1, 10)
    assert progress._bar is None
    progress._advance(2, 10)
    assert progress._bar is not None
    # 2 of 10 after 2.1 s
    assert progress._bar.tasks[0].description == "searching (about 10.5 s in all)"
    progress.__exit__(None, None, None)


def test_no_bar_for_the_last_piece() -> None:
    progress = Progress("searching")
    progress._begun -= 3600
    progress._advance(10, 10)
    assert progress._bar is None


@pytest.mark.parametrize(("word", "code"), [("FITS", "32"), ("TIGHT", "33"), ("OOM", "31")])
def test_verdicts_are_coloured_on_a_terminal_that_wants_it(
    word: str, code: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Green, yellow and red of ECMA-48, which each terminal draws for its own ground."""

    def shown() -> str:
        print_screen([Text(word, style=word), Text(word, style=f"bold {word}")])
        return capsys.readouterr().out

    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert shown() == f"{word}\n{word}\n"  # no terminal
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert shown() == f"\x1b[{code}m{word}\x1b[0m\n\x1b[1;{code}m{word}\x1b[0m\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert code not in shown()


@pytest.mark.parametrize(
    ("unit", "days"),
    [("", 6), ("d", 6), ("day", 6), (" days", 6), ("w", 42), ("week", 42), (" weeks", 42),
     ("h", 0.25), ("hour", 0.25), (" hours", 0.25)],
)  # fmt: skip
def test_six_of_every_unit_of_time(unit: str, days: float) -> None:
    assert days_of(f"6{unit}") == days


@pytest.mark.parametrize(
    ("read", "most", "beyond"),
    [(days_of, "1e15", "1.01e15"), (usd_of, "1e15", "1.01e15"), (days_of, "0.001", "0")],
)
def test_what_is_typed_lies_above_zero_and_up_to_a_limit(
    read: Callable[[str], float | None], most: str, beyond: str
) -> None:
    assert read(most) == float(most)
    with pytest.raises(InputError, match="must be"):
        read(beyond)


def test_documents_are_indented_by_two_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": {"b": [1]}})
    said = ["{", '  "a": {', '    "b": [', "      1", "    ]", "  }", "}"]
    assert capsys.readouterr().out.splitlines() == said


def test_the_rule_of_what_fits_stands_beside_the_p90_alone() -> None:
    made = predict(model="llama-3.2-1b", cluster="dgx-h100", gpus=8, global_batch=8, tp=1)
    estimate = made.estimate
    table = memory_table(estimate, 0, 80 * 2.0**30, lambda kind: f"all {kind}")
    names, sizes, shares, meant = (list(column.cells) for column in table.columns)
    said = dict(zip(map(str, names), map(str, meant), strict=True))
    assert (said["P10"], said["P90"]) == ("", FIT_RULE)
    assert said["usable HBM"] == "of 80.00 GiB" and said["sum"].startswith("peak at: ")
    kinds = [kind for kind, column in estimate.memory_bytes.items() if column[0]]
    assert list(said) == [*kinds, "sum", "P10", "P90", "usable HBM"]
    assert all(said[kind] == f"all {kind}" for kind in kinds)
    shown = dict(zip(map(str, names), map(float, map(str, sizes)), strict=True))
    assert sum(shown[kind] for kind in kinds) == pytest.approx(shown["sum"], abs=0.01 * len(kinds))
    assert shown["P10"] <= shown["sum"] <= shown["P90"] <= shown["usable HBM"] < 80.0
    assert str(shares[-1]) == "100.0 %"


@pytest.mark.parametrize(("count", "last"), [(200, "wrong 199"), (201, "and 1 more problems")])
def test_two_hundred_problems_are_shown(
    count: int, last: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as stopped, errors_as_exit_codes():
        raise InputError([f"wrong {n}" for n in range(count)])
    lines = capsys.readouterr().err.splitlines()
    assert (stopped.value.exit_code, lines[-1]) == (2, last)
    assert lines[:200] == [f"wrong {n}" for n in range(200)]
