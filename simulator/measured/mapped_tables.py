"""A user's own table of runs: its columns by their names here, sizes by the model's name.

What no column says takes the usual value, which the row's column ``assumed`` names; columns that
nobody mapped and that have no meaning here are told, not dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from simulator.errors import InputError, did_you_mean, problem
from simulator.files import read_csv
from simulator.measured.rows import COLUMNS, MeasuredRun, is_column, with_sizes
from simulator.software.profile import load_software
from simulator.software.releases import load_releases
from simulator.workload import presets
from simulator.workload.architecture import MLP

DERIVED = ("step_time_ms", "tokens_per_s")
"""Fields beside COLUMNS from which the time of a step follows: in ms; tokens/s of the whole run."""

_USUAL = {
    "precision": "bf16",
    "optimizer": "adamw",
    "sharding": "zero1",
    "recompute": "none",
    "micro_batch": "1",
    "tp": "1",
    "pp": "1",
}
"""What a run is taken to do where its table has no word of it."""

_MOST_ROWS = 50_000


def parse_map(texts: Iterable[str]) -> dict[str, str]:
    """Column -> field of ``"GPU type=gpu"``.

    Raises
    ------
    InputError
        If a text has no ``=``, or names a field that is none.

    Examples
    --------
    >>> parse_map(["GPU type=gpu", "t (ms)=step_time_ms"])
    {'GPU type': 'gpu', 't (ms)': 'step_time_ms'}
    """
    found: dict[str, str] = {}
    problems = []
    for text in texts:
        column, equals, field = (part.strip() for part in text.rpartition("="))
        if not (equals and column and field):
            problems.append(problem("--map", "", "must be column=field", text))
        elif not (is_column(field) or field in DERIVED):
            turned = is_column(column) or column in DERIVED
            hint = did_you_mean(field, (*COLUMNS, *DERIVED))
            hint = f" (the column comes first: {field}={column})" if turned else hint
            problems.append(f"--map: {column}: no field of a run: {field!r}{hint}")
        else:
            found[column] = field
    if problems:
        raise InputError(problems)
    return found


def read_mapped(
    paths: Sequence[Path | str], names: Mapping[str, str]
) -> tuple[list[MeasuredRun], list[str]]:
    """Read tables whose columns `names` maps to fields; other columns keep their names.

    Returns
    -------
    runs : list of MeasuredRun
    problems : list of str
        Files that cannot be read, columns that are mapped and not there, columns that mean nothing.
    """
    runs: list[MeasuredRun] = []
    problems: list[str] = []
    for path in paths:
        uneven: dict[int, str] = {}
        before = len(runs)
        try:
            for line, cells in read_csv(path, uneven=uneven):
                if len(runs) == before:
                    problems += _about_columns(path, list(cells), names)
                if len(runs) - before >= _MOST_ROWS:
                    rule = f"must have at most {_MOST_ROWS} rows"
                    raise InputError(f"{path}: line {line}: {rule}")
                fields = _fields(cells, names, f"{Path(path).stem}-{line}")
                where = f"{path}: line {line}"
                fault = uneven.get(line) or _without_sizes(fields)
                runs.append(MeasuredRun(where=where, fields=fields, fault=fault))
            if len(runs) == before:
                raise InputError(f"{path}: the table has a header and no rows")
        except InputError as error:
            problems += error.problems
    return runs, problems


def _without_sizes(fields: Mapping[str, str]) -> str | None:
    """What is wrong with a row whose model neither the zoo nor any column has sizes of."""
    name = fields["model"]
    if not name or fields["layers"] or fields["family"]:
        return None
    return problem("model", "", "must be of the zoo where no column has its sizes", name,
                   presets.names())  # fmt: skip


def _about_columns(path: Path | str, header: list[str], names: Mapping[str, str]) -> list[str]:
    lost = [name for name in names if name not in header]
    if lost:
        raise InputError(
            f"{path}: --map: no column {name!r}{did_you_mean(name, header)}" for name in lost
        )
    unread = [name for name in header if name not in names and not is_column(name)]
    if not unread:
        return []
    shown = ", ".join(repr(name) for name in unread[:20])
    return [f"{path}: columns that mean nothing here are not read: {shown} (--map column=field)"]


def _fields(cells: Mapping[str, str], names: Mapping[str, str], name: str) -> dict[str, str]:
    """Text by field: what the cells say, the model's sizes, what follows, what is usual."""
    said = {column: cells[column] for column in cells if is_column(column) and column not in names}
    said |= {field: cells[column] for column, field in names.items()}
    fields = dict.fromkeys(COLUMNS, "") | {k: (v or "").strip() for k, v in said.items()}
    fields["run_id"] = fields["run_id"] or name
    fields = {**fields, **{k: v for k, v in _of_zoo(fields["model"]).items() if not fields[k]}}
    _follow(fields)
    assumed = [key for key in _USUAL if not fields[key]]
    usual = {**_USUAL, "sharding": _usual_sharding(fields["software"])}
    fields |= {key: usual[key] for key in assumed}
    fields["assumed"] = "+".join(filter(None, (fields["assumed"], *assumed)))
    return with_sizes(fields)


@lru_cache(maxsize=256)
def _usual_sharding(software: str) -> str:
    """How a framework shares states where nobody says: zero1, zero3 where it has no such thing."""
    try:
        name = load_releases().nearest(software, where="software").profile
        can = load_software(name).supports.sharding
    except InputError:
        return _USUAL["sharding"]  # the row is refused by its software
    return next((mode for mode in (_USUAL["sharding"], "zero3") if mode in can), can[0])


def _follow(fields: dict[str, str]) -> None:
    """The time of a step from milliseconds, or from tokens a second."""
    rates = {key: fields.pop(key, "") for key in DERIVED}
    if fields["step_time_s"]:
        return
    try:
        if rates["step_time_ms"]:
            fields["step_time_s"] = f"{float(rates['step_time_ms']) / 1e3:.9g}"
            return
        gpus = float(fields["num_gpus"])
        whole = rates["tokens_per_s"] or fields["tokens_per_s_per_gpu"]
        rate = float(whole) * (1.0 if rates["tokens_per_s"] else gpus)
        tokens = float(fields["global_batch"]) * float(fields["seq_len"])
        fields["step_time_s"] = f"{tokens / rate:.9g}"
    except (ValueError, ZeroDivisionError, OverflowError):
        return  # the row says that the field is blank


def _of_zoo(name: str) -> dict[str, str]:
    """Columns of a model of the zoo; none for any other name."""
    known = presets.named(name)
    if known is None:
        return {}
    arch = presets.load(known)
    dense = next((mlp for mlp in arch.mlps if isinstance(mlp, MLP)), arch.mlps[0])
    sizes: dict[str, object] = {
        "family": arch.family, "layers": arch.layers, "hidden": arch.hidden,
        "vocab": arch.vocabulary, "tied_embeddings": str(arch.tied_embeddings).lower(),
        "gated_mlp": str(dense.gated).lower(), "ffn_hidden": dense.ffn_hidden,
        "position": arch.position,
    }  # fmt: skip
    for attention in arch.attentions[:1]:
        sizes |= {"heads": attention.heads, "kv_heads": attention.kv_heads}
        sizes["head_dim"] = attention.head_dim
        if attention.is_mla:
            sizes |= {
                "q_lora_rank": attention.q_lora_rank, "kv_lora_rank": attention.kv_lora_rank,
                "qk_nope_head_dim": attention.head_dim - attention.rope_head_dim,
                "qk_rope_head_dim": attention.rope_head_dim, "v_head_dim": attention.value_dim,
            }  # fmt: skip
    for moe in arch.moes[:1]:
        first = [arch.blocks[kind].is_moe for kind in arch.layer_kinds].index(True)
        sizes |= {
            "num_experts": moe.experts, "top_k": moe.top_k, "moe_ffn_hidden": moe.ffn_hidden,
            "shared_expert_ffn": moe.shared_ffn_hidden, "first_dense_layers": first,
        }  # fmt: skip
    return {key: str(value) for key, value in sizes.items()}
