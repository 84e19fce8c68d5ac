"""Tables of microbenchmarks, whatever they hold, predicted and scored."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from simulator.errors import InputError
from simulator.measured.microbenchmarks import Table, Words, load_words, read_table
from simulator.measured.table_kinds import sort_tables
from simulator.scoring.benchmark_score import BenchmarkKind, BenchmarkScore, summaries
from simulator.scoring.score_collectives import score_a2a, score_collectives
from simulator.scoring.score_kernels import score_kernels

__all__ = ["BenchmarkScore", "summaries"]

_SCORERS: dict[BenchmarkKind, Callable[[Table, Words], BenchmarkScore]] = {
    "kernels": score_kernels,
    "collectives": score_collectives,
    "a2a": score_a2a,
}


def score_microbenchmarks(paths: Iterable[Path | str]) -> tuple[BenchmarkScore, ...]:
    """Predict every row of tables of microbenchmarks, and score the predictions.

    Parameters
    ----------
    paths : iterable of paths
        CSV files as validation/microbenchmarks/README.md describes them. Which kind of table each
        one is, its header tells.

    Returns
    -------
    tuple of BenchmarkScore
        One per table: those of kernels first, then collectives, then expert all-to-all. Rows that
        cannot be predicted are counted with the reason.

    Raises
    ------
    InputError
        If a file is no table, or one of measured runs.

    Examples
    --------
    >>> from simulator import catalogue
    >>> folder = catalogue.folder("validation") / "microbenchmarks"
    >>> (found,) = score_microbenchmarks([folder / "collectives.csv"])
    >>> found.kind, found.rows == len(found.line) + sum(found.skipped.values())
    ('collectives', True)
    """
    tables, problems = sort_tables(paths)
    wrong = tables.get("runs", [])
    problems += [f"{path}: is a table of measured runs, not of microbenchmarks" for path in wrong]
    if problems:
        raise InputError(problems)
    words = load_words()
    return tuple(
        scorer(read_table(path, kind), words)
        for kind, scorer in _SCORERS.items()
        for path in tables.get(kind, [])
    )
