"""The table of measured runs (CSV): its columns, its fields, and what a blank field stands for.

validation/README.md describes every column. A table is read whole and every problem of its header
is reported at once. What is wrong with one row only stays with that row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from simulator import catalogue
from simulator.errors import InputError, brief, nearest
from simulator.files import build, check_header, read_csv, read_toml, record, toml_value
from simulator.records import dataclass
from simulator.software.overrides import unknown_field

_NEEDED = """run_id model family layers hidden ffn_hidden heads kv_heads head_dim gated_mlp vocab
    tied_embeddings seq_len gpu num_gpus precision optimizer sharding global_batch micro_batch
    dp tp pp recompute software step_time_s"""

_OTHERS = """source split position num_experts top_k moe_ffn_hidden shared_expert_ffn
    first_dense_layers q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim
    mtp_layers gpus_per_node nvlink_domain nic_gbit_per_gpu fabric shard_group vpp cp ep etp
    sequence_parallel recompute_layers recompute_modules flash_attention moe_balanced moe_routing
    capacity_factor overlap_grad_reduce overlap_param_gather tp_comm_overlap cpu_offload
    cuda_graphs tokens_per_s_per_gpu model_tflops_per_gpu peak_memory_gib memory_kind
    peak_reserved_gib reduce_dtype gradient_dtype moment_dtype fused_gradient_accumulation
    recompute_stops_early offload_layers sliding_window_every_second dispatcher expert_overlap
    loss_chunks optimizer_in_backward cuda_graph_scope loss_fusion transformer_impl deterministic
    memory_stage lora_rank lora_targets quantised_base split_master_weights cp_kind
    mask_in_dataloader fp8_weights bucket_bytes stages composed dropout grouped_experts unpermute
    attention_library memory_read optimizer_offload lengths fp8_attention fp8_head
    excluded assumed notes"""

REQUIRED = tuple(_NEEDED.split())
"""Columns without which no row can be predicted and scored."""

COLUMNS = (*REQUIRED, *_OTHERS.split())
"""Every column that a table may have; one that is missing is blank in every row."""

LAYOUT_COLUMNS = (
    *("dp", "tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch", "sharding", "shard_group"),
    *("cp_kind", "stages", "sequence_parallel", "recompute", "recompute_layers"),
)
"""Columns that say how the work is split."""

SWITCH_COLUMNS = (
    *("recompute_modules", "flash_attention", "overlap_grad_reduce", "overlap_param_gather"),
    *("tp_comm_overlap", "cpu_offload", "cuda_graphs", "fused_gradient_accumulation"),
    *("recompute_stops_early", "offload_layers", "dispatcher", "expert_overlap"),
    *("cuda_graph_scope", "loss_fusion", "transformer_impl", "deterministic"),
    *("lora_rank", "lora_targets", "quantised_base", "split_master_weights", "fp8_weights"),
    *("mask_in_dataloader", "grouped_experts", "unpermute", "attention_library"),
    *("optimizer_offload", "bucket_bytes", "fp8_attention", "fp8_head"),
)
"""Columns that say what the software was told to do."""

LABEL_COLUMNS = (
    *("run_id", "source", "split", "step_time_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu"),
    *("peak_memory_gib", "memory_kind", "peak_reserved_gib", "memory_stage", "composed"),
    *("excluded", "assumed", "notes"),
)
"""Columns that no prediction depends on."""

SOFTWARE = "software."
"""What the name of a column begins with that is a field of the software profile."""

_TRUTH = {"true": True, "false": False}
_MOST = 2**31 - 1
_MOST_PROBLEMS = 20


def is_column(name: str) -> bool:
    """Whether a table may have a column of this name."""
    if name.startswith(SOFTWARE):
        return not unknown_field(name.removeprefix(SOFTWARE))
    return name in COLUMNS


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRun:
    """One row of a table, as it was read."""

    where: str
    """File and line: ``runs.csv: line 7``."""
    fields: Mapping[str, str]
    """Text by column."""
    fault: str | None = None
    """What is wrong with the row as a whole, whatever its fields say."""

    def get(self, field: str) -> str:
        """Text of a field, blank where the table has no such column."""
        return (self.fields.get(field) or "").strip()

    @property
    def software_fields(self) -> tuple[tuple[str, str], ...]:
        """Fields of the software profile that columns state by their dotted names."""
        dotted = (name for name in self.fields if name.startswith(SOFTWARE))
        return tuple((name, text) for name in sorted(dotted) if (text := self.get(name)))


# --- tables ------------------------------------------------------------------------------


def read_tables(paths: Iterable[Path | str]) -> tuple[list[MeasuredRun], list[str]]:
    """Read tables of measured runs, one after the other, and go on after what is wrong.

    Returns
    -------
    runs : list of MeasuredRun
        Every row of every table that can be used. A row whose cells do not match the header, and
        one whose run id is blank or taken by an earlier row, says so in `fault`.
    problems : list of str
        Why a file could not be read, or not to its end: absent, empty, without a row, another kind
        of table, an unknown column, a required one missing.
    """
    runs: list[MeasuredRun] = []
    problems: list[str] = []
    for path in paths:
        try:
            _read(path, runs)
        except InputError as error:
            problems += error.problems
    return _unique(runs), problems


def read_runs(paths: Iterable[Path | str]) -> list[MeasuredRun]:
    """Read tables of measured runs of which every row must be sound.

    Raises
    ------
    InputError
        With every problem of any file and every row that has a fault, see :func:`read_tables`.
    """
    runs, problems = read_tables(paths)
    problems += [f"{run.where}: {run.fault}" for run in runs if run.fault]
    if len(problems) > _MOST_PROBLEMS:
        more = len(problems) - _MOST_PROBLEMS
        problems = [*problems[:_MOST_PROBLEMS], f"and {more} more problems like these"]
    if problems:
        raise InputError(problems)
    return runs


_MOST_RUNS = 50_000
"""Rows of a table of runs; each may take over a thousand bytes of memory, however blank it is."""


def _read(path: Path | str, runs: list[MeasuredRun]) -> None:
    """Append the rows of one table; those before a place where it cannot be read are kept."""
    uneven: dict[int, str] = {}
    before = len(runs)
    for line, fields in read_csv(path, uneven=uneven):
        if len(runs) == before:
            _check_header(path, list(fields))
        if len(runs) - before >= _MOST_RUNS:
            raise InputError(f"{path}: line {line}: must have at most {_MOST_RUNS} rows")
        where = f"{path}: line {line}"
        runs.append(MeasuredRun(where=where, fields=with_sizes(fields), fault=uneven.get(line)))
    if len(runs) == before:
        raise InputError(f"{path}: the table has a header and no rows")


def _check_header(path: Path | str, header: Sequence[str]) -> None:
    missing = [name for name in REQUIRED if name not in header]
    if len(missing) > len(REQUIRED) / 2:
        shown = ", ".join(header[:6]) + (", ..." if len(header) > 6 else "")
        raise InputError(
            f"{path}: not a table of measured runs: it lacks {len(missing)} of the"
            f" {len(REQUIRED)} columns that are required (its columns: {shown})"
        )
    plain = [name for name in header if not name.startswith(SOFTWARE)]
    problems = [
        f"{path}: {name}: unknown column{hint}"
        for name in header
        if name not in plain and (hint := unknown_field(name.removeprefix(SOFTWARE)))
    ]
    if problems:
        raise InputError(problems)
    check_header(path, plain, required=REQUIRED, known=COLUMNS)


def _unique(runs: Iterable[MeasuredRun]) -> list[MeasuredRun]:
    """Mark rows whose run id is blank or stands in an earlier row."""
    first: dict[str, str] = {}
    unique = []
    for run in runs:
        name = run.get("run_id")
        if not run.fault and name in first:
            fault = f"run_id: {name!r} is already the id of {first[name]}"
            run = replace(run, fault=fault)
        elif not run.fault and not name:
            run = replace(run, fault="run_id: required field is blank")
        first.setdefault(name, run.where)
        unique.append(run)
    return unique


# --- fields ------------------------------------------------------------------------------


def text(row: Mapping[str, str], field: str, known: Collection[str] = ()) -> str:
    """Return a field that must not be blank, one of the `known` words where they are given."""
    word = (row.get(field) or "").strip()
    if not word:
        raise InputError(f"{field}: required field is blank")
    if known and word not in known:
        rule = f"must be one of {', '.join(known)}"
        raise InputError(f"{field}: {rule}, got {brief(word)}{nearest(word, known)}")
    return word


def choice(row: Mapping[str, str], field: str, known: Collection[str]) -> str:
    """Return one of the `known` words, or a blank where the field is."""
    return text(row, field, known) if (row.get(field) or "").strip() else ""


def number(row: Mapping[str, str], field: str) -> float:
    """Return a positive, finite number."""
    word = text(row, field)
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise InputError(f"{field}: must be a positive number, got {brief(word)}")
    return value


def whole(
    row: Mapping[str, str], field: str, default: int | None = None, *, most: int = _MOST
) -> int:
    """Return a whole number above zero, or zero where that is the default of a blank field."""
    if default is not None and not (row.get(field) or "").strip():
        return default
    word = text(row, field)
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value != int(value):
        raise InputError(f"{field}: must be a whole number, got {brief(word)}")
    least = 0 if default == 0 else 1
    if not least <= value <= most:
        bound = f"at least {least}" if value < least else f"at most {most}"
        raise InputError(f"{field}: must be {bound}, got {brief(word)}")
    return int(value)


def flag(row: Mapping[str, str], field: str) -> bool:
    """Return whether a field is true; blank is false."""
    word = (row.get(field) or "").strip()
    if word and word.lower() not in _TRUTH:
        raise InputError(f"{field}: must be true or false, got {brief(word)}")
    return _TRUTH.get(word.lower(), False)


def _joined(row: Mapping[str, str], field: str) -> list[int]:
    """Return whole numbers that a field joins by ``+``."""
    number, what = _JOINED[field]
    words = text(row, field).split("+")
    if not all(number.fullmatch(word) for word in words):
        raise InputError(f"{field}: must be {what}, got {brief(text(row, field))}")
    return [int(word) for word in words]


# --- a row, read once -------------------------------------------------------------------

_MOST_LAYERS = 10_000

_NUMBERS = "nic_gbit_per_gpu capacity_factor bucket_bytes"
_FLAGS = """gated_mlp tied_embeddings sequence_parallel dropout cpu_offload optimizer_in_backward
    quantised_base fp8_weights moe_balanced"""
_COUNTS = "hidden ffn_hidden vocab seq_len heads num_gpus global_batch gpus_per_node nvlink_domain"
_DEGREES = "tp pp cp dp ep etp micro_batch shard_group"
_OF_LAYERS = "layers vpp"
_LAYERS_OR_NONE = "mtp_layers recompute_layers"
_OR_NONE = """kv_heads head_dim num_experts top_k moe_ffn_hidden shared_expert_ffn
    first_dense_layers q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim
    offload_layers loss_chunks lora_rank sliding_window_every_second"""
_JOINED = {
    "stages": (re.compile("[0-9]{1,5}"), "layers of every piece joined by +, as 2+4+4+2"),
    "lengths": (re.compile("[1-9][0-9]{0,8}"), "tokens of samples joined by +, as 120+240+480"),
}
_READERS: dict[str, Callable[[Mapping[str, str], str], Any]] = {
    **dict.fromkeys(_NUMBERS.split(), number),
    **dict.fromkeys(_FLAGS.split(), flag),
    **dict.fromkeys((*_COUNTS.split(), *_DEGREES.split()), whole),
    **dict.fromkeys(_OF_LAYERS.split(), partial(whole, most=_MOST_LAYERS)),
    **dict.fromkeys(_LAYERS_OR_NONE.split(), partial(whole, default=0, most=_MOST_LAYERS)),
    **dict.fromkeys(_OR_NONE.split(), partial(whole, default=0)),
    **dict.fromkeys(_JOINED, _joined),
}
"""How a column is read that is no plain text."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a row says, column by column, each read once; blank ones are not there."""

    values: Mapping[str, Any]
    wrong: Mapping[str, str]
    """What is wrong with a column that cannot be read: told to whoever needs it."""

    def get(self, column: str, default: Any = None) -> Any:
        """What a column says; the default where it is blank.

        Raises
        ------
        InputError
            If it cannot be read.
        """
        if column in self.wrong:
            raise InputError(self.wrong[column])
        return self.values.get(column, default)

    def need(self, column: str) -> Any:
        """What a column says that must not be blank, nor zero."""
        value = self.get(column)
        if value is None:
            raise InputError(f"{column}: required field is blank")
        if value == 0 and not isinstance(value, bool):
            raise InputError(f"{column}: must be at least 1, got 0")
        return value

    def word(self, column: str, known: Collection[str], default: str = "") -> str:
        """One of the `known` words; the default where the column is blank."""
        value = self.get(column)
        return default if value is None else text({column: value}, column, known)


def read_row(row: Mapping[str, str]) -> Said:
    """Read every column of a row once."""
    values: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    for column, cell in row.items():
        if not (cell and cell.strip()):
            continue
        try:
            if column.startswith(SOFTWARE):
                values[column] = toml_value(cell)
            else:
                read = _READERS.get(column)
                values[column] = read(row, column) if read else cell.strip()
        except InputError as error:
            (wrong[column],) = error.problems
    return Said(values, wrong)


# --- what is assumed ---------------------------------------------------------------------


def assumed_fields(row: Mapping[str, str]) -> tuple[str, ...]:
    """Name the fields that the row's source does not state.

    Those that the column ``assumed`` names, and blank ones whose default matters to the row: the
    network of a run of one node or the expert parallelism of a dense model do not count.
    """
    named = [word for word in (row.get("assumed") or "").split("+") if word.strip()]
    blank = [
        field
        for matters, fields in _DEFAULTS
        if matters(row)
        for field in fields
        if not (row.get(field) or "").strip()
    ]
    return tuple(dict.fromkeys([*(word.strip() for word in named), *blank]))


def _above(field: str, other: str = "") -> Callable[[Mapping[str, str]], bool]:
    """Whether a number is above another one, or above 1; an unreadable one is not."""

    def above(row: Mapping[str, str]) -> bool:
        try:
            return float(row.get(field) or 0) > (float(row.get(other) or 8) if other else 1)
        except ValueError:
            return False

    return above


_DEFAULTS: tuple[tuple[Callable[[Mapping[str, str]], bool], tuple[str, ...]], ...] = (
    (lambda row: True, ("position", "gpus_per_node", "nvlink_domain", "vpp", "cp")),
    (lambda row: True, ("flash_attention", "cpu_offload", "cuda_graphs")),
    (lambda row: True, ("sharding", "recompute", "dp")),
    (_above("num_gpus", "gpus_per_node"), ("fabric", "nic_gbit_per_gpu")),
    (_above("tp"), ("sequence_parallel", "tp_comm_overlap")),
    (_above("dp"), ("overlap_grad_reduce", "overlap_param_gather")),
    (lambda row: row.get("sharding") != "ddp", ("shard_group",)),
    (lambda row: row.get("recompute") == "selective", ("recompute_modules",)),
    (lambda row: row.get("recompute") == "full", ("recompute_layers",)),
    (_above("ep"), ("dispatcher", "expert_overlap")),
    (_above("cp"), ("cp_kind",)),
    (lambda row: (row.get("cuda_graphs") or "").lower() == "true", ("cuda_graph_scope",)),
    (_above("num_experts"), ("ep", "etp", "moe_balanced", "capacity_factor")),
)
"""When the default of a blank field matters, and of which fields."""


@record
class _Models:
    """validation/models.toml."""

    vocabulary: dict[str, str]
    """By family, and ``other``."""


@lru_cache(maxsize=4)
def _models(path: Path) -> _Models:
    return build(_Models, read_toml(path), where=str(path))


def with_sizes(fields: Mapping[str, str]) -> dict[str, str]:
    """Fill blank sizes of a row's model.

    ``moe_ffn_hidden`` of experts is ``ffn_hidden`` where it is blank: Megatron-Core's default of
    ``--moe-ffn-hidden-size`` (megatron/training/arguments.py).

    Parameters
    ----------
    fields : mapping
        Text by column.
    """
    known = _models(catalogue.folder("validation") / "models.toml")
    filled = dict(fields)
    if not _word(filled, "layers"):
        return filled  # nothing is known of the model: its vocabulary alone would not help
    assumed = []
    if not _word(filled, "vocab"):
        family = _word(filled, "family")
        filled["vocab"] = known.vocabulary.get(family, known.vocabulary["other"])
        assumed.append("vocab")
    if _word(filled, "num_experts") and not _word(filled, "moe_ffn_hidden"):
        filled["moe_ffn_hidden"] = _word(filled, "ffn_hidden")
        assumed.append("moe_ffn_hidden")
    if assumed:
        filled["assumed"] = "+".join(filter(None, (_word(filled, "assumed"), *assumed)))
    return filled


def _word(fields: Mapping[str, str], column: str) -> str:
    return (fields.get(column) or "").strip()
