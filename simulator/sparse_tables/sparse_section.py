"""The section [sparse]: embedding tables, the dense model beside them, how tables are split."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, MaxLen, MinLen

from simulator.errors import InputError, did_you_mean, problem
from simulator.files import Items, Number, Unit, Whole, build, read_toml, record

_ZOO = Path(__file__).resolve().parent / "zoo"

Width = Annotated[Whole, Gt(0), Le(1_000_000), Unit("elements")]
Widths = Annotated[tuple[Width, ...], MinLen(1), MaxLen(100)]


@record
class SparseTable:
    """Tables that are alike, [[sparse.tables]]."""

    rows: Annotated[Whole, Gt(0), Le(1_000_000_000_000), Unit("rows")]
    """Rows of one table: its categories, after hashing."""
    count: Annotated[Whole, Gt(0), Le(100_000), Unit("tables")] = 1
    """How many such tables there are."""
    width: Width | None = None
    """Elements of a row; none given: `sparse.width`."""
    pooling: Annotated[Number, Gt(0), Le(1e6), Unit("rows of a sample")] = 1.0
    """Rows that a sample reads of one table; their sum is what goes on."""
    skew: Annotated[Number, Ge(0), Le(5)] = 1.0
    """Exponent s of Zipf's law, by which the i-th most popular row is read in proportion to i^-s;
    0: all alike."""


@record
class Task:
    """One of several tasks over the same trunk, [[sparse.tasks]]."""

    top: Widths
    """Widths of its own layers behind the interaction, the last its outputs."""
    batch_fraction: Annotated[Number, Gt(0), Le(1)] = 1.0
    """Share of the samples that have a label of it; the others pass its layers by."""
    loss_weight: Annotated[Number, Gt(0), Unit("weight")] = 1.0
    """Weight of its loss in the sum, which changes no time."""


@record
class Sparse:
    """Embedding tables next to a dense model, for `foreshard recommender`; stands for [model]."""

    tables: Annotated[tuple[SparseTable, ...], MinLen(1), MaxLen(10_000), Items(SparseTable)]
    """The tables, [[sparse.tables]]."""
    width: Width = 128
    """Elements of a row, and of what the bottom layers hand to the interaction."""
    dense_features: Width = 13
    """Numbers of a sample that are no categories."""
    bottom: Widths
    """Widths of the layers that read them, up to `width`."""
    interaction: Literal["dot", "concat"] = "dot"
    """dot: products of every pair of rows' sums and the bottom's result; concat: side by side."""
    tasks: Annotated[tuple[Task, ...], MinLen(1), MaxLen(1_000), Items(Task)]
    """What is predicted, [[sparse.tasks]]: one task, or several over the same trunk."""
    element_bytes: Annotated[Number, Gt(0), Le(8), Unit("bytes per element")] = 4.0
    """Of a row as it is kept."""
    exchange_element_bytes: Annotated[Number, Gt(0), Le(8), Unit("bytes per element")] = 2.0
    """Of a row's sum as it travels."""
    row_state_bytes: Annotated[Number, Ge(0), Unit("bytes per row")] = 4.0
    """Of the optimizer for one row: row-wise AdaGrad keeps one number, sgd none."""
    sharding: Literal["auto", "table", "row", "column"] = "auto"
    """table: a table lies whole on one rank; column: in parts of its width; row: every rank holds
    an equal part of its rows. auto: whole tables, those that do not fit by column, then by row."""
    exchange: Literal["all-to-all", "rpc"] = "all-to-all"
    """all-to-all: tables lie on the accelerators. rpc: in host memory of all servers, which sum up
    and update rows (a parameter server for the sparse part alone)."""
    updates: Literal["synchronous", "asynchronous"] = "synchronous"
    """asynchronous: exchange and update of rows run during the dense model's next step, which then
    reads rows one step old."""
    cache_fraction: Annotated[Number, Gt(0), Le(1)] = 1.0
    """Share of the rows on the accelerators, the most popular ones; the others wait in host memory
    and are copied in and out when they are read."""


def recommenders() -> list[str]:
    """List the models that ship."""
    return sorted(path.stem for path in _ZOO.glob("*.toml"))


def read_sparse(raw: Any, *, where: str) -> Sparse:
    """Read the section: a `name` of a model that ships, and what the section says in its place.

    Raises
    ------
    InputError
        With every problem, each naming its field.
    """
    if not isinstance(raw, Mapping):
        raise InputError(problem(where, "sparse", "must be a table", raw))
    section = dict(raw)
    if "name" in section:
        name, known = section.pop("name"), recommenders()
        if name not in known:
            rule = f"must be one of {', '.join(known)}"
            hint = did_you_mean(str(name), known)
            raise InputError(problem(where, "sparse.name", rule, name) + hint)
        section = {**read_toml(_ZOO / f"{name}.toml"), **section}
        section.pop("source", None)
    sparse: Sparse = build(Sparse, section, where=where, prefix="sparse")
    if wrong := _wrong(sparse, where):
        raise InputError(wrong)
    return sparse


def _wrong(sparse: Sparse, where: str) -> list[str]:
    """What each field allows but the whole does not."""
    problems = []
    if sparse.interaction == "dot" and sparse.bottom[-1] != sparse.width:
        rule = f"must end with sparse.width, {sparse.width}, to be multiplied with the rows' sums"
        problems.append(problem(where, "sparse.bottom", rule, sparse.bottom[-1]))
    if sparse.interaction == "dot":
        for i, table in enumerate(sparse.tables):
            if table.width not in (None, sparse.width):
                rule = f"must be sparse.width, {sparse.width}, with interaction = 'dot'"
                problems.append(problem(where, f"sparse.tables.{i}.width", rule, table.width))
    if sparse.exchange == "rpc" and sparse.cache_fraction < 1.0:
        rule = "must be 1 with exchange = 'rpc', where no rows lie on accelerators"
        problems.append(problem(where, "sparse.cache_fraction", rule, sparse.cache_fraction))
    return problems
