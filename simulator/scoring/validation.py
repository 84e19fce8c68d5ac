"""Predicted against measured: every row of tables of measured runs, and the errors by source.

Rows that come to the same model, machine and software are predicted together. A row that cannot be
predicted, and one whose measured values cannot be right, is kept with the reason. Runs whose step
time was composed of profiled parts, not read off a whole step (``composed``), stay out
of every pooled figure. Tables of microbenchmarks go their own way (scoring/score_tables.py).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from simulator import catalogue
from simulator.answers import Encoded
from simulator.cost.step import Estimate, evaluate
from simulator.cost.uncertainty import traits
from simulator.errors import InputError
from simulator.evidence.card import Card
from simulator.evidence.likeness import nearness
from simulator.frames import DataFrame, frame_of_rows
from simulator.layout.layouts import Layouts
from simulator.measured.checks import Readings, excluded, implausible, readings, utilisation
from simulator.measured.mapped_tables import read_mapped
from simulator.measured.replay import NotReplayable, Run, Tables, load_tables, replay
from simulator.measured.rows import MeasuredRun, assumed_fields, read_tables
from simulator.measured.table_kinds import LEFT_OUT, sort_tables
from simulator.planner.answer_evidence import each_evidence, used_but_assumed
from simulator.records import dataclass
from simulator.scoring.baselines import shipped_baseline
from simulator.scoring.memory_reading import read_gib
from simulator.scoring.scores import ScoredRow, summary
from simulator.search.certainty import Certainty, certainty

if TYPE_CHECKING:
    from simulator.scoring.benchmark_score import BenchmarkScore

_SHIPPED = ("runs/calibrate.csv", "runs/test.csv", "measured/*.csv", "microbenchmarks/*.csv")
_WORDS = ("model", "gpu", "seq_len", "precision", "nic_gbit_per_gpu")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Replayed:
    """A row that became a run."""

    index: int
    row: MeasuredRun
    run: Run
    measured: Readings


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation(Encoded):
    """Measured runs, all rows in the order of their files, and microbenchmarks."""

    KEYS: ClassVar[tuple[str, ...]] = ("rows=all_rows", "summary", "problems")

    rows: tuple[ScoredRow, ...]
    rl: tuple[ScoredRow, ...] = ()
    """Steps of reinforcement learning, which stay out of every figure of the others."""
    benchmarks: tuple[BenchmarkScore, ...] = ()
    """One per table of kernels, collectives or expert all-to-all."""
    problems: tuple[str, ...] = ()
    """Why a file could not be used, or not to its end; and rows of microbenchmarks that cannot be
    right."""

    @property
    def all_rows(self) -> tuple[ScoredRow, ...]:
        """Runs of both kinds."""
        return (*self.rows, *self.rl)

    @property
    def predicted(self) -> tuple[ScoredRow, ...]:
        """Rows that were predicted."""
        return tuple(row for row in self.all_rows if row.status == "ok")

    @property
    def used(self) -> bool:
        """Whether anything at all was predicted."""
        return bool(self.predicted) or any(len(table.line) for table in self.benchmarks)

    def to_frame(self) -> DataFrame:
        """One row per measured run beside its prediction: the columns of its table, then ours."""
        rows = ({**row.run.fields, **row.document()} for row in self.all_rows)
        return frame_of_rows(rows).set_index("run_id")

    def summary(self) -> dict[str, Any]:
        """Summarise errors and rankings, see :func:`simulator.scoring.scores.summary`.

        ``kernels`` and ``collectives`` sum up the microbenchmarks, ``rl`` steps of reinforcement
        learning; None without such a table.
        """
        from simulator.scoring.benchmark_score import summaries  # predict starts without it
        from simulator.scoring.score_rl import rl_summary

        runs, benchmarks = summary(self.rows), summaries(self.benchmarks)
        return {**runs, **benchmarks, "rl": rl_summary(self.rl)}


def validate(
    paths: Sequence[PathLike[str] | str] | PathLike[str] | str = (),
    *,
    software: str = "",
    columns: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Validation:
    """Predict every row of tables of measurements, and score the predictions.

    Parameters
    ----------
    paths : paths, optional
        CSV files of measured runs as validation/README.md describes them, or of microbenchmarks as
        validation/microbenchmarks/README.md does; the header tells which. Without any, the shipped
        ones: runs that figures may be fitted on (split ``calibrate``), runs that none ever was
        (``test``), and microbenchmarks.
    software : str, optional
        Software profile for rows whose word is of no family that is known.
    columns : mapping, optional
        Column of a user's own table -> field of a run (``measured/mapped_tables.py``); every file
        is a table of runs then.
    progress : callable, optional
        Told how many runs are done, of how many.

    Raises
    ------
    InputError
        If no file at all can be used. What is wrong with one file of several is one of the
        `problems`, what is wrong with one run the reason why it is skipped.

    Examples
    --------
    >>> runs = catalogue.folder("validation") / "runs"
    >>> found = validate(runs / "analytic_memory.csv")
    >>> len(found.rows), found.summary()["step"]["n"]
    (8, 0)
    """
    given = [paths] if isinstance(paths, (str, PathLike)) else list(paths)
    places = [Path(path) for path in given] or _shipped()
    tables, problems = sort_tables([] if columns else places)
    read = tables.pop("runs", [])
    runs, wrong = read_mapped(places, columns) if columns else read_tables(read)
    rl_rows, wrong_rl = _score_rl(tables.pop("rl", []), progress)
    benchmarks, more = _score_benchmarks([path for some in tables.values() for path in some])
    problems += [*wrong, *wrong_rl, *more]
    if not runs and not rl_rows and not benchmarks:
        raise InputError(problems)
    return Validation(
        rows=_validate_runs(runs, software, progress),
        rl=tuple(rl_rows),
        benchmarks=tuple(benchmarks),
        problems=tuple(problems),
    )


def _score_rl(
    paths: list[Path], progress: Callable[[int, int], None] | None
) -> tuple[list[ScoredRow], list[str]]:
    """Score tables of steps of reinforcement learning."""
    if not paths:
        return [], []
    from simulator.scoring.score_rl import score_rl  # other tables go without

    return score_rl(paths, progress)


def _shipped() -> list[Path]:
    folder = catalogue.folder("validation")
    found = [path for pattern in _SHIPPED for path in sorted(folder.glob(pattern))]
    return [path for path in found if path.name != LEFT_OUT]


def _score_benchmarks(paths: Iterable[Path]) -> tuple[list[BenchmarkScore], list[str]]:
    """Score tables of microbenchmarks, and say what is wrong with files and with rows."""
    from simulator.scoring.score_tables import score_microbenchmarks  # predict starts without it

    benchmark_scores: list[BenchmarkScore] = []
    problems: list[str] = []
    for path in paths:
        try:
            benchmark_scores += score_microbenchmarks([path])
        except InputError as error:
            problems += error.problems
    return benchmark_scores, problems + [
        line for table in benchmark_scores for line in table.problems
    ]


def _validate_runs(
    runs: Sequence[MeasuredRun], software: str, progress: Callable[[int, int], None] | None
) -> tuple[ScoredRow, ...]:
    rows: dict[int, ScoredRow] = {}
    replayed: list[_Replayed] = []
    tables = load_tables(software=software)
    for index, row in enumerate(runs):
        replay = _replay(index, row, tables)
        if isinstance(replay, ScoredRow):
            rows[index] = replay
        else:
            replayed.append(replay)
    for members in _together(replayed):
        rows |= _predict(members)
        if progress is not None:
            progress(len(rows), len(runs))
    baseline = shipped_baseline()
    scored = [rows[index] for index in range(len(runs))]
    return tuple(
        replace(row, baseline_step_s=baseline.predict_s(row.run)) if row.status == "ok" else row
        for row in scored
    )


# --- one row -----------------------------------------------------------------------------


def _replay(index: int, row: MeasuredRun, tables: Tables) -> _Replayed | ScoredRow:
    """Turn a row into a run, or say why it cannot be one."""
    try:
        measured = readings(row)
    except InputError as error:
        return _skipped(row, str(error), Readings(), replayable=False)
    left_out = excluded(row)
    if left_out is not None:
        return _skipped(row, f"excluded: {left_out}", measured, replayable=False)
    if row.fault is not None:
        return _skipped(row, f"{row.where}: {row.fault}", measured, replayable=False)
    try:
        run = replay(row.fields, tables, where=row.where)
    except NotReplayable as error:
        return _skipped(row, str(error), measured)
    except InputError as error:
        return _skipped(row, str(error), measured, replayable=False)
    return _Replayed(index=index, row=row, run=run, measured=measured)


def _skipped(
    row: MeasuredRun, reason: str, measured: Readings, *, replayable: bool = True
) -> ScoredRow:
    fields = _measured(measured)
    return ScoredRow(run=row, status="skipped", reason=reason, replayable=replayable, **fields)


def _measured(readings: Readings) -> dict[str, Any]:
    """What was measured, as fields of a ScoredRow."""
    return {
        "measured_step_s": readings.step_time_s,
        "measured_memory_gib": readings.memory_gib,
        "memory_kind": readings.memory_kind,
    }


def _together(replayed: Iterable[_Replayed]) -> list[list[_Replayed]]:
    """Gather the rows that one table of layouts can price.

    They come to equal workload, cluster and software but for the number of GPUs and the batch,
    which layouts say as well. Rows that differ in one of a few words are not even compared.
    """
    groups: dict[Hashable, list[tuple[Any, list[_Replayed]]]] = {}
    for one in replayed:
        shared, near = _shared(one.run), groups.setdefault(tuple(map(one.row.get, _WORDS)), [])
        same = next((some for other, some in near if other == shared), None)
        if same is None:
            near.append((shared, [one]))
        else:
            same.append(one)
    return [some for near in groups.values() for _, some in near]


def _shared(run: Run) -> tuple[Any, ...]:
    """Everything that the price of a layout depends on."""
    recipe, cluster = run.workload.recipe, run.cluster
    machine = replace(cluster, groups=tuple(replace(part, gpus=0) for part in cluster.groups))
    training = replace(recipe, global_batch=1)
    return run.workload.architecture, training, run.software, machine, cluster.domain


# --- predictions -------------------------------------------------------------------------


def _predict(members: Sequence[_Replayed]) -> dict[int, ScoredRow]:
    """Predict rows that one table of layouts can price."""
    run = members[0].run
    layouts = Layouts.concatenate(member.run.layout for member in members)
    try:
        estimate = evaluate(layouts, run.workload, run.cluster, run.software)
    except InputError as error:  # the profile lacks a library or type that the row needs
        return {one.index: _skipped(one.row, str(error), one.measured) for one in members}
    setting = run.workload, run.cluster, run.software
    likened = nearness(traits(estimate, *setting), [_family(one.row) for one in members])
    sure = certainty(estimate, *setting, likened=likened)
    assumed = used_but_assumed(run.workload.recipe, run.cluster, run.software)
    cards = each_evidence(estimate, *setting, likened, assumed=assumed)
    batch = float(run.workload.recipe.global_batch)
    flop = estimate.model_flop / batch * layouts.global_batch
    return {
        one.index: _score(one, estimate, sure, i, flop=float(flop[i]), card=cards[i])
        for i, one in enumerate(members)
    }


def _family(row: MeasuredRun) -> str:
    """The source of a run up to its first hyphen: no run of it is evidence of its prediction."""
    return row.get("source").partition("-")[0]


def _score(
    one: _Replayed, estimate: Estimate, sure: Certainty, i: int, *, flop: float, card: Card
) -> ScoredRow:
    """Set one row of an estimate beside what was measured, unless that cannot be right.

    `flop` are the model FLOPs of one step, `card` is the evidence of the prediction.
    """
    run, measured = one.run, one.measured
    predicted_s = float(estimate.step_time_s[i])
    reason: str | None = None
    if wrong := implausible(run, measured, model_flop=flop, predicted_s=predicted_s):
        reason = "\n".join(f"{one.row.where}: {line}" for line in wrong)
        if measured.memory_gib is None or any(line.startswith("peak_memory") for line in wrong):
            return _skipped(one.row, reason, measured, replayable=False)
        measured = replace(measured, step_time_s=None)  # what memory it held stays comparable
    mfu: tuple[float | None, float | None] = (None, None)
    if measured.step_time_s is not None:
        mfu = utilisation(run, model_flop=flop, step_time_s=measured.step_time_s)
    return ScoredRow(
        run=one.row,
        status="ok",
        reason=reason,
        predicted_step_s=predicted_s,
        p10_s=float(sure.p10_s[i]),
        p90_s=float(sure.p90_s[i]),
        predicted_memory_gib=read_gib(one.row.fields, run, estimate, i, measured.memory_kind),
        evidence=card,
        assumed_software=run.stands.text if run.stands else None,
        terms_s={name: float(seconds[i]) for name, seconds in estimate.terms_s.items()},
        hidden_s={name: float(seconds[i]) for name, seconds in estimate.hidden_s.items()},
        memory_bytes={kind: float(size[i]) for kind, size in estimate.memory_bytes.items()},
        measured_mfu=mfu[0],
        measured_mfu_own=mfu[1],
        assumed=assumed_fields(one.row.fields),
        **_measured(measured),
    )
