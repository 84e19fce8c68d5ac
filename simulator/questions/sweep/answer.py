"""Many scenarios at once: every combination of some fields, the best layout of each.

A grid is a TOML file: what all points have in common, and lists of values of some fields. What is
done is written down point by point, so that an interrupted sweep goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

from simulator import catalogue
from simulator._version import __version__
from simulator.answers import Answer
from simulator.dotted_fields import put
from simulator.errors import ForeshardError, InputError, did_you_mean, problem
from simulator.files import read_document
from simulator.frames import DataFrame, frame_of_rows
from simulator.questions.compare.answer import offer_row
from simulator.questions.compare.gpu_counts import parse_counts
from simulator.questions.compare.many_searches import cores, done_as_they_come
from simulator.questions.compare.offer import Asked, Offer
from simulator.questions.compare.offers import offer, search_sizes
from simulator.records import dataclass
from simulator.report.wording import AT_ASSUMED
from simulator.scenario import AFTER_SEARCH, Scenario, make_scenario
from simulator.search.fastest import MOST_KNOWN
from simulator.sections import SECTIONS

MOST_POINTS = 100_000
"""Of a grid; more are refused."""

_COUNTS = "cluster.gpus"

_MOST_TOGETHER = 32
"""Points that a worker does before it hands them over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One combination."""

    number: int
    """From 1, in the order of the grid."""
    values: dict[str, Any]
    """Of the fields that the grid varies."""
    document: dict[str, Any]
    """The whole scenario."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A grid file, read."""

    path: Path
    fields: dict[str, list[Any]]
    """Values of every field that varies."""
    common: dict[str, Any]
    """Sections that all points have."""

    def __len__(self) -> int:
        return math.prod(len(values) for values in self.fields.values())

    def points(self) -> Iterator[Point]:
        """Yield every combination, the last field fastest."""
        for number, values in enumerate(product(*self.fields.values()), start=1):
            chosen = dict(zip(self.fields, values, strict=True))
            document = {name: dict(section) for name, section in self.common.items()}
            for name, value in chosen.items():
                put(document, name, value, where=f"{self.path}: grid")
            yield Point(number=number, values=chosen, document=document)


@dataclass(frozen=True, kw_only=True, repr=False)
class Sweep(Answer):
    """What became of every point, in the order of the grid."""

    COMMAND: ClassVar[str] = "sweep"
    KEYS: ClassVar[tuple[str, ...]] = ("grid=grid.fields", "common=grid.common", "rows", "caveats")

    grid: Grid
    asked: Asked
    rows: tuple[dict[str, Any], ...]
    """One per point: its number, the varied fields, ``problem`` where it was bad, its offer."""
    known: int
    """How many were on disk already."""

    @property
    def line(self) -> str:
        """All of it in a few words."""
        bad = sum(row["problem"] is not None for row in self.rows)
        return f"{len(self.rows)} points, {bad} bad, {self.known} known before"

    @property
    def caveats(self) -> tuple[str, ...]:
        """What a mark at money means, where the price of a point is assumed."""
        marked = any(row.get("price_grade") == "assumed" for row in self.rows)
        return (AT_ASSUMED,) * marked

    def to_frame(self) -> DataFrame:
        """One row per point."""
        return frame_of_rows(self.rows)


def read_grid(path: Path | str) -> Grid:
    """Read a grid file.

    ``[grid]`` has lists of values by field, ``"cluster.gpus" = [64, 512]``, or for this one a text
    as ``--gpus`` takes it. The other sections are those of a scenario and hold for all points;
    ``scenario = "run.toml"`` at the top takes them from a file, under what the grid says itself.

    Raises
    ------
    InputError
        With every problem of the file.
    """
    path = Path(path)
    raw = dict(read_document(path))
    problems: list[str] = []
    common: dict[str, Any] = {}
    base = raw.pop("scenario", None)
    if isinstance(base, str):
        common = {name: dict(v) for name, v in read_document(path.parent / base).items()}
    elif base is not None:
        problems.append(problem(str(path), "scenario", "must be the path of a file", base))
    lists = raw.pop("grid", None)
    if not isinstance(lists, Mapping) or not lists:
        problems.append(f"{path}: grid: required section is missing: fields and lists of values")
        lists = {}
    for name, section in raw.items():
        if name not in SECTIONS:
            hint = did_you_mean(name, (*SECTIONS, "grid", "scenario"))
            problems.append(f"{path}: {name}: unknown section{hint}")
        elif not isinstance(section, Mapping):
            problems.append(problem(str(path), name, "must be a table", section))
        else:
            common[name] = {**common.get(name, {}), **section}
    fields = {name: _values(path, name, values, problems) for name, values in lists.items()}
    count = math.prod(len(values) for values in fields.values())
    if count > MOST_POINTS:
        problems.append(
            problem(str(path), "grid", f"must have at most {MOST_POINTS} points", count)
        )
    if problems:
        raise InputError(problems)
    read = Grid(path=path, fields=fields, common=common)
    next(read.points())  # a field that lies where no table is, is the same in every point
    return read


def _values(path: Path, name: str, values: Any, problems: list[str]) -> list[Any]:
    """Values of one field; what is wrong with them is added to the problems."""
    field = f"grid.{name}"
    section = name.partition(".")[0]
    if "." not in name or section not in SECTIONS:
        hint = did_you_mean(section, SECTIONS)
        problems.append(f'{path}: {field}: must be "section.field"{hint}')
    if name == _COUNTS and isinstance(values, str):
        try:
            return list(parse_counts(values, where=str(path), field=field))
        except InputError as error:
            problems += error.problems
            return []
    if not isinstance(values, list) or not values:
        problems.append(problem(str(path), field, "must be a list of values", values))
        return []
    texts = [json.dumps(value, default=str, sort_keys=True) for value in values]
    if len(set(texts)) < len(texts):
        problems.append(problem(str(path), field, "must have every value once", values))
    return values


def sweep_grid(
    grid: Grid,
    *,
    asked: Asked | None = None,
    folder: Path | None = None,
    jobs: int | None = None,
    scheduler: str | None = None,
    backend: str = "dask",
    progress: Callable[[int, int], None] | None = None,
) -> Sweep:
    """Search every point of a grid.

    Parameters
    ----------
    asked : Asked, optional
        Deadline, budget, prices and region, for all points.
    folder : Path, optional
        Where ``points.jsonl`` is: what it has of this grid is not searched again, and what is found
        is added to it line by line. None: nothing is written.
    jobs, scheduler, backend
        As in :func:`simulator.questions.compare.many_searches.done_as_they_come`.
    progress : callable, optional
        Called with (points done, all) after each.

    Raises
    ------
    InputError
        If a scheduler does not answer. What is wrong with a single point is said in its row.
    """
    wanted = asked or Asked()
    points = list(grid.points())
    salt = _salt(wanted)
    keys = {point.number: _key(point, salt) for point in points}
    store = folder / "points.jsonl" if folder is not None else None
    known = _read(store) if store is not None else {}
    done = {number: known[key] for number, key in keys.items() if key in known}
    before = len(done)
    todo = [point for point in points if point.number not in done]
    processes = cores() if jobs is None else jobs
    searches = _of_several_sizes(_by_search(todo), processes if scheduler is None else len(todo))
    arguments = [(some, str(grid.path), str(grid.path.parent), wanted) for some in searches]
    arrivals = done_as_they_come(
        _search, arguments, jobs=jobs, scheduler=scheduler, backend=backend
    )
    for rows_of_search in arrivals:
        for number, row in rows_of_search:
            done[number] = row
            if store is not None:
                _append(store, keys[number], row)
            if progress is not None:
                progress(len(done), len(points))
    rows = tuple({"point": point.number, **point.values, **done[point.number]} for point in points)
    return Sweep(grid=grid, asked=wanted, rows=rows, known=before)


def _by_search(points: list[Point]) -> list[list[Point]]:
    """Points that differ in money and goals alone together, few enough to be written down soon."""
    alike: dict[str, list[list[Point]]] = {}
    for point in points:
        groups = alike.setdefault(_without(point, AFTER_SEARCH), [[]])
        if len(groups[-1]) == _MOST_TOGETHER:
            groups.append([])
        groups[-1].append(point)
    return [group for groups in alike.values() for group in groups]


def _of_several_sizes(searches: list[list[Point]], workers: int) -> list[list[list[Point]]]:
    """Searches that differ in the number of accelerators alone together.

    Of several workers each has two pieces of work or more.
    """
    pieces = 2 * workers if workers > 1 else 1
    most = min(len(searches) // pieces, MOST_KNOWN)
    alike: dict[str, list[list[list[Point]]]] = {}
    for points in searches:
        groups = alike.setdefault(_without(points[0], AFTER_SEARCH, _COUNTS), [[]])
        points_of_group = sum(map(len, groups[-1])) + len(points)
        if groups[-1] and (len(groups[-1]) >= most or points_of_group > _MOST_TOGETHER):
            groups.append([])
        groups[-1].append(points)
    return [group for groups in alike.values() for group in groups]


def _without(point: Point, sections: tuple[str, ...], field: str = "") -> str:
    """A point's scenario in words, without some sections and one field."""
    document = {name: x for name, x in point.document.items() if name not in sections}
    section, _, name = field.partition(".")
    if isinstance(table := document.get(section), Mapping):
        document[section] = {key: x for key, x in table.items() if key != name}
    return json.dumps(document, sort_keys=True, default=str)


def _search(
    searches: list[list[Point]], path: str, base: str, asked: Asked
) -> list[tuple[int, dict[str, Any]]]:
    """Number and row of each point of some searches, which differ in the size of the cluster."""
    made = dict[int, Scenario | ForeshardError]()
    for points in searches:
        searched = None
        for point in points:
            where = f"{path}: point {point.number}"
            try:
                searched = make_scenario(
                    point.document, where=where, base=Path(base), searched=searched
                )
                made[point.number] = searched
            except ForeshardError as error:
                made[point.number] = error
    firsts = [made[points[0].number] for points in searches]
    search_sizes([x for x in firsts if isinstance(x, Scenario)], asked)
    return [_row(point, made[point.number], asked) for points in searches for point in points]


def _row(point: Point, made: Scenario | ForeshardError, asked: Asked) -> tuple[int, dict[str, Any]]:
    """Number and row of one point."""
    if isinstance(made, ForeshardError):
        return _bad_row(point, made)
    try:
        limits, goal = asdict(asked), made.goal
        limits["deadline_days"] = asked.deadline_days or goal.deadline_days
        limits["budget_usd"] = asked.budget_usd or goal.budget_usd
        return point.number, {"problem": None, **offer_row(offer(made, Asked(**limits)))}
    except ForeshardError as error:
        return _bad_row(point, error)


def _bad_row(point: Point, error: ForeshardError) -> tuple[int, dict[str, Any]]:
    """Number and row of a point that says what is wrong with it."""
    empty = offer_row(Offer(cluster="", gpus=0, feasible=False))
    cluster = point.document.get("cluster", {})
    named = {"cluster": str(cluster.get("name", "")), "gpus": cluster.get("gpus")}
    return point.number, {"problem": str(error), **empty, **named}


def _salt(asked: Asked) -> str:
    """What a result depends on beside its point: what is asked, the program, and all profiles."""
    digest = hashlib.sha256(f"{__version__}{json.dumps(asdict(asked), sort_keys=True)}".encode())
    for place in (*catalogue.user_folders(), catalogue.folder("hardware_profiles")):
        for path in sorted(place.rglob("*")):
            if path.suffix in (".toml", ".csv") and path.is_file():
                digest.update(str(path.relative_to(place)).encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _key(point: Point, salt: str) -> str:
    text = json.dumps(point.document, sort_keys=True, default=str)
    return hashlib.sha256(f"{salt}{text}".encode()).hexdigest()[:32]


def _read(store: Path) -> dict[str, dict[str, Any]]:
    """Rows by key; a line that is damaged or cut off is left out."""
    if not store.is_file():
        return {}
    found = {}
    for line in store.read_bytes().splitlines():
        try:
            loads = json.loads(line.decode())
            row = dict(loads["row"])
            if loads["sum"] == _sum(row):
                found[str(loads["key"])] = row
        except (ValueError, KeyError, TypeError):
            continue
    return found


def _append(store: Path, key: str, row: dict[str, Any]) -> None:
    """Add one row, on a line of its own whatever came before."""
    store.parent.mkdir(parents=True, exist_ok=True)
    cut = store.is_file() and store.stat().st_size > 0 and not _ends_a_line(store)
    with store.open("a", encoding="utf-8") as file:
        line = json.dumps({"key": key, "sum": _sum(row), "row": row})
        file.write(("\n" if cut else "") + line + "\n")


def _sum(row: Mapping[str, Any]) -> str:
    """What shows that a row is as it was written."""
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:16]


def _ends_a_line(store: Path) -> bool:
    with store.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"
