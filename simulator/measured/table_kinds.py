"""Which kind of table a CSV file is, told by its header alone.

Measured training runs, steps of reinforcement learning, or microbenchmarks: kernels, collectives,
expert all-to-all. The columns are described in validation/README.md and
validation/microbenchmarks/README.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Literal

from simulator.errors import InputError
from simulator.files import read_csv
from simulator.measured.rows import COLUMNS, REQUIRED
from simulator.records import dataclass

Kind = Literal["runs", "kernels", "collectives", "a2a", "rl"]

LEFT_OUT = "left_out.csv"
"""Errors of fits, shipped among the microbenchmarks: no measurements, so that nothing is priced."""

_KERNEL_OTHERS = """impl M N K batch seq_q seq_kv heads_q heads_kv head_dim causal direction experts
    topk tokens hidden inter tflops bytes gbps framework source note excluded"""

_COLLECTIVE_OTHERS = """system nodes dtype algbw_GBps busbw_GBps lib_version placement threads
    source note excluded"""

_A2A_OTHERS = """mode nodes experts framework source combine_us dispatch_GBps combine_GBps
    dispatch_notify_us combine_notify_us dispatch_sms combine_sms excluded"""

_RL_NEEDED = """run_id source algorithm model policy_lag train_max_seq avg_generated_len gpus
    gen_global_batch train_global_batch generation_tp_pp training_tp_cp_ep_pp_vpp step_time_s"""

_RL_OTHERS = """release section precision tokens_per_s_per_gpu source_path source_url split
    excluded notes"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """The columns of one kind of table."""

    what: str
    """What its rows are, in words."""
    required: tuple[str, ...]
    """Columns without which no row can be predicted and scored; they also tell the kind."""
    columns: tuple[str, ...]
    """Every column that it may have."""


def _header(what: str, required: str, others: str) -> Header:
    needed = tuple(required.split())
    return Header(what=what, required=needed, columns=(*needed, *others.split()))


HEADERS: dict[Kind, Header] = {
    "runs": Header(what="measured runs", required=REQUIRED, columns=COLUMNS),
    "kernels": _header("kernel times", "kernel gpu dtype time_us", _KERNEL_OTHERS),
    "collectives": _header(
        "collective times", "operation gpu gpus message_bytes time_us", _COLLECTIVE_OTHERS
    ),
    "a2a": _header(
        "expert all-to-all times",
        "gpu library gpus tokens_per_rank hidden topk dispatch_us",
        _A2A_OTHERS,
    ),
    "rl": _header("steps of reinforcement learning", _RL_NEEDED, _RL_OTHERS),
}


def table_kind(path: Path | str) -> Kind:
    """Tell the kind of a table by its header.

    Raises
    ------
    InputError
        If the file cannot be read or has no rows, if it has half of the required columns of no kind
        of table (the nearest kind is named, with what is missing), or all of more than one.

    Examples
    --------
    >>> from simulator import catalogue
    >>> table_kind(catalogue.folder("validation") / "microbenchmarks" / "collectives.csv")
    'collectives'
    """
    _, first = next(read_csv(path, uneven={}), (0, None))
    if first is None:
        raise InputError(f"{path}: the table has a header and no rows")
    fits = [kind for kind, header in HEADERS.items() if first.keys() >= set(header.required)]
    if len(fits) == 1:
        return fits[0]
    if fits:
        both = " and of ".join(HEADERS[kind].what for kind in fits)
        raise InputError(f"{path}: has the columns of a table of {both}; one table holds one kind")
    nearest, share, said = _nearest(first)
    if share > 0.5:  # its reader names each column that is missing or not known
        return nearest
    raise InputError(f"{path}: {said}")


def sort_tables(paths: Iterable[Path | str]) -> tuple[dict[Kind, list[Path]], list[str]]:
    """Sort tables by kind, in the order given, and say what is wrong with the others.

    Returns
    -------
    tables : dict of lists
        Paths by kind; a kind of which there is none is absent.
    problems : list of str
        Why a file is no table at all.
    """
    found: dict[Kind, list[Path]] = {}
    problems: list[str] = []
    for path in paths:
        try:
            found.setdefault(table_kind(path), []).append(Path(path))
        except InputError as error:
            problems += error.problems
    return found, problems


def _nearest(columns: Collection[str]) -> tuple[Kind, float, str]:
    """Name the kind that a header comes nearest to, the share of its columns, and what it lacks."""

    def nearness(kind: Kind) -> tuple[float, int]:
        header = HEADERS[kind]
        present = sum(name in columns for name in header.required)
        return present / len(header.required), sum(name in header.columns for name in columns)

    kind = max(HEADERS, key=nearness)
    header = HEADERS[kind]
    missing = [name for name in header.required if name not in columns]
    shown = ", ".join(list(columns)[:6]) + (", ..." if len(columns) > 6 else "")
    said = (
        f"not a table of {header.what}, the nearest kind: it lacks {len(missing)} of the"
        f" {len(header.required)} columns that are required: {', '.join(missing)}"
        f" (its columns: {shown})"
    )
    return kind, nearness(kind)[0], said
