"""Logs of nccl-tests and rccl-tests: what they print, and both JSON formats.

Text: the table of ``writeBenchmarkLineBody`` (NVIDIA/nccl-tests src/util.cu at 0fdb00a3): size,
count, type, redop, root, then time in microseconds, algbw, busbw and #wrong out of place and again
in place; older releases have no root and print ``error`` for ``#wrong``. JSON: what ``-J FILE``
writes (the same file, version 1 and 2), and what ``-Z json -x FILE`` of rccl-tests writes: a list
of records with name, ranks, ranksPerNode, size, time.
"""

from __future__ import annotations

import datetime
import io
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from simulator.errors import InputError, brief
from simulator.files import is_number, read_json, says_number
from simulator.measured.measurements import Call, Device, Measurements
from simulator.plain_files import open_file, refuse_long_numbers

OPERATIONS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}
"""Name of the test without underscores -> kernel of our own documents."""

_TEST = re.compile(
    r"(?<![\w])(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|send_?recv"
    r"|broadcast|reduce|gather|scatter)_perf",
    re.IGNORECASE,
)
_RANK = re.compile(
    r"(?:#\s+|^\s*)Rank\s+(\d{1,6})\s+(?:Group\s+(\d{1,6})\s+)?Pid\s+\d+"
    r" on\s+(\S{1,200}) device\s+\d+ \[[^\]]{1,40}\] (.{1,200}?)\s*$"
)
"""One line of a rank; logs that were pasted as text may lack the ``#``."""
_PER_PROCESS = re.compile(r"\bnThread (\d{1,4}) nGpus (\d{1,4}) minBytes\b")
_BUS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
"""busbw over algbw is so many times ``(n - 1) / n`` of n ranks (nccl-tests doc/PERFORMANCE.md)."""
_PREFIX = re.compile(r"^\s*(?:\[[\d,]+\]<std\w+>:\s?|\d{1,6}:\s)")
_TYPES = {"half": "fp16", "bfloat16": "bf16", "float": "fp32", "double": "fp64"}
_NO_OPERATION = (
    "which collective was measured: keep the line '# Collective test starting: ..._perf', the"
    " command, or a file name such as all_reduce_perf.log"
)
_DOCUMENT = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:\{|\[\s*[\{\]])")
_HEAD_BYTES, _LONGEST = 4096, 100_000
"""Bytes that tell what a file is; characters of a line, of which a table has some hundred."""
_AGREE = 0.1
"""Time and algbw are printed with three digits; more apart, and a column is not what it says."""
_SAME_BUS = 0.03
"""By how much the ratio of two numbers of three digits may be off; 8 ranks and 16 are 7 % apart."""
_SMALLEST_RATE = 0.5
"""GB/s below which three digits of algbw say too little."""


def is_nccl_tests(path: Path | str) -> bool:
    """Tell whether a file is a log of nccl-tests or rccl-tests rather than one of our documents."""
    if not _is_document(path):
        return True
    document = read_json(path)
    if isinstance(document, list):
        return bool(document) and isinstance(document[0], dict) and "busBw" in document[0]
    return isinstance(document, dict) and "results" in document and "records" not in document


def read_nccl_tests(path: Path | str) -> Measurements:
    """Read collectives of one log; out-of-place times, in-place ones where there are no others.

    Raises
    ------
    InputError
        If nothing was measured, the collective or the ranks are not said, a result was wrong
        (#wrong above zero), or time and bandwidth do not agree (other units).
    """
    path = Path(path)
    if not _is_document(path):
        return _text(path)
    document = read_json(path)
    return (_rccl_json if isinstance(document, list) else _nccl_json)(path, document)


def _is_document(path: Path | str) -> bool:
    """Whether a file begins as JSON does; mpirun's ``[1,0]<stdout>:`` begins a line of text."""
    with open_file(path) as file:
        return bool(_DOCUMENT.match(file.read(_HEAD_BYTES)))


# --- text -----------------------------------------------------------------------------------


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of a log and their numbers; no more than one is held at a time."""
    with open_file(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", errors="replace")
        for number in itertools.count(1):
            line = text.readline(_LONGEST)
            if len(line) == _LONGEST:
                raise InputError(f"{path}: line {number}: longer than {_LONGEST} characters")
            if not line:
                return
            refuse_long_numbers(line.encode(), f"{path}: line {number}")
            yield number, line


def _text(path: Path) -> Measurements:
    """Every table of a text log; each stands under the device lines that came before it."""
    calls: list[Call] = []
    problems: list[str] = []
    ranks: dict[str, tuple[str, str]] = {}
    operation, names, fresh = _operation(path.name), set[str](), True
    group: tuple[int, int] | None = None
    each = 0
    for number, line in _lines(path):
        line = _PREFIX.sub("", line)
        if found := _TEST.search(line):
            operation = _operation(found.group())
        if found := _PER_PROCESS.search(line):
            each = int(found[1]) * int(found[2])
            ranks, group, fresh = {} if fresh else ranks, None, False
        if found := _RANK.search(line):
            if fresh:
                ranks, fresh = {}, False
            group = None
            ranks[found[1]] = (found[3], found[2] or "0")
            names.add(found[4])
            continue
        cells = line.split()
        if len(cells) < 8 or not cells[0].isdigit() or not cells[1].isdigit():
            continue
        fresh = True
        where = f"{path}: line {number}"
        if not (ranks or each):
            raise InputError(f"{where}: no '# Rank ... on HOST device ...' lines say who took part")
        if not operation:
            raise InputError(f"{where}: cannot tell {_NO_OPERATION}")
        if each and len(ranks) % each:
            rule = f"names {len(ranks)} ranks, but every process has {each} (nThread x nGpus)"
            raise InputError(f"{where}: the list of devices above it {rule}: lines are missing")
        try:
            row = _cells(cells)
        except (ValueError, IndexError):
            problems.append(f"{where}: not a line of nccl-tests, got {line.strip()[:80]!r}")
            continue
        if wrong := _not_numbers(row, where):
            problems += wrong
            continue
        problems += _disagree(row, where)
        if not ranks and not _of_one_process(row, operation, each):
            rule = "no '# Rank ... on HOST device ...' lines say who took part, and its bandwidths"
            raise InputError(f"{where}: {rule} are not those of one process with {each}")
        group = group or (_group(ranks) if ranks else (each, 1))
        calls.append(_call(row, operation, group, where))
    return _measurements(path, calls, problems, names)


def _of_one_process(row: Mapping[str, Any], operation: str, ranks: int) -> bool:
    """Whether bus and algorithm bandwidth can be those of so many ranks."""
    if operation not in _BUS or row["algbw"] <= _SMALLEST_RATE:
        return operation in _BUS
    wanted = _BUS[operation] * (ranks - 1) / ranks
    return bool(abs(row["busbw"] - wanted * row["algbw"]) <= _SAME_BUS * row["busbw"])


def _cells(cells: list[str]) -> dict[str, Any]:
    """One line: from the right, since older releases lack columns on the left."""
    try:  # a timestamp at the end: date and time
        datetime.date.fromisoformat(cells[-2])
        cells = cells[:-2]
    except (ValueError, IndexError):
        pass
    numbers = 0  # columns behind the words: size count type [redop] [root] | numbers
    for cell in reversed(cells[3:]):
        if not _is_number(cell):
            break
        numbers += 1
    columns = cells[len(cells) - numbers :]
    per_side = 4 if len(columns) < 16 else 8  # with per-iteration columns
    if len(columns) % per_side == 1:
        columns = columns[1:]  # root
    out, inside = columns[:per_side], columns[per_side : 2 * per_side]
    time = out if len(columns) >= per_side else inside
    return {
        "size": int(cells[0]),
        "type": cells[2],
        "time": float(time[0]),
        "algbw": float(time[1]),
        "busbw": float(time[2]),
        "wrong": _wrong(time[3]),
    }


def _is_number(cell: str) -> bool:
    return cell == "N/A" or says_number(cell)


def _wrong(cell: object) -> float:
    """``#wrong``: a count; N/A was not checked; ``error`` of old releases is a small rest."""
    text = str(cell)
    count = float(text) if _is_number(text) and text != "N/A" else 0.0
    return count if count >= 1.0 else 0.0


def _group(ranks: Mapping[str, tuple[str, str]]) -> tuple[int, int]:
    """Ranks and servers of the largest group (NCCL_TESTS_SPLIT makes several of one shape)."""
    groups: dict[str, list[str]] = {}
    for host, group in ranks.values():
        groups.setdefault(group, []).append(host)
    hosts = max(groups.values(), key=len)
    return len(hosts), len(set(hosts))


# --- JSON -----------------------------------------------------------------------------------


def _nccl_json(path: Path, document: Any) -> Measurements:
    if not isinstance(document, dict) or "results" not in document:
        raise InputError(f"{path}: not a document of nccl-tests: it has no results")
    if document.get("version") not in (1, 2):
        raise InputError(f"{path}: version: must be 1 or 2, got {brief(document.get('version'))}")
    config = document.get("config") if isinstance(document.get("config"), dict) else {}
    devices = _objects(document.get("devices") or (config or {}).get("devices"), path, "devices")
    results = _objects(document["results"], path, "results")
    if not devices:
        raise InputError(f"{path}: devices: must say which ranks took part")
    listed = document.get("args")
    arguments = " ".join(map(str, listed)) if isinstance(listed, list) else ""
    operation = _operation(arguments) or _operation(path.name)
    if not operation:
        raise InputError(f"{path}: cannot tell {_NO_OPERATION}")
    ranks = {
        str(d.get("rank", i)): (str(d.get("hostname", "")), str(d.get("group", "0")))
        for i, d in enumerate(devices)
    }
    calls: list[Call] = []
    problems: list[str] = []
    group = _group(ranks)
    for index, result in enumerate(results):
        where = f"{path}: results[{index}]"
        sides = [result.get("out_of_place"), result.get("in_place")]
        side: dict[str, Any] = next((one for one in sides if isinstance(one, dict)), {})
        row = {
            "size": result.get("size"),
            "type": str(result.get("type", "")),
            "time": side.get("time", side.get("cpu_time")),
            "algbw": side.get("alg_bw"),
            "busbw": side.get("bus_bw"),
            "wrong": _wrong(side.get("nwrong") or 0.0),
        }
        if wrong := _not_numbers(row, where):
            problems += wrong
            continue
        problems += _disagree(row, where)
        calls.append(_call(row, operation, group, where))
    names = {str(d.get("device_info", "")) for d in devices}
    date = str(document.get("start_time") or "")[:10]
    return _measurements(path, calls, problems, names, date)


def _objects(value: Any, path: Path, name: str) -> list[dict[str, Any]]:
    """A list of objects, or no list at all."""
    items = [] if value is None else value
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise InputError(f"{path}: {name}: must be a list of objects")
    return items


def _rccl_json(path: Path, records: Any) -> Measurements:
    """A list of records, each with its own ranks; in place only where nothing else is there."""
    calls: list[Call] = []
    problems: list[str] = []
    sides = {bool(record.get("inPlace")) for record in records if isinstance(record, dict)}
    for index, record in enumerate(records):
        where = f"{path}: [{index}]"
        if not isinstance(record, dict):
            problems.append(f"{where}: must be an object, got {type(record).__name__}")
            continue
        if bool(record.get("inPlace")) and False in sides:
            continue
        row: dict[str, Any] = {
            "size": record.get("size"),
            "type": str(record.get("type", "")),
            "time": record.get("time"),
            "algbw": record.get("algBw"),
            "busbw": record.get("busBw"),
            "wrong": _wrong(record.get("wrong", "0")),
            "ranks": record.get("ranks"),
            "nodes": record.get("nodes"),
        }
        operation = OPERATIONS.get(str(record.get("name", "")).lower().replace("_", ""), "")
        if not operation:
            problems.append(f"{where}: name: unknown collective, got {brief(record.get('name'))}")
        elif wrong := _not_numbers(row, where):
            problems += wrong
        else:
            problems += _disagree(row, where)
            group = (int(row["ranks"]), int(row["nodes"]))
            calls.append(_call(row, operation, group, where))
    return _measurements(path, calls, problems, set())


# --- shared ---------------------------------------------------------------------------------


def _operation(text: str) -> str:
    found = _TEST.search(text)
    return OPERATIONS[found[1].lower().replace("_", "")] if found else ""


def _not_numbers(row: Mapping[str, Any], where: str) -> list[str]:
    """Times that are no positive numbers, sizes below zero, ranks and servers that are no counts.

    An all-to-all of a few bytes is no element for each rank, and prints a size of 0.
    """
    not_numbers = []
    for name in ("size", "time", "ranks", "nodes"):
        value = row.get(name, 1)
        whole = name in ("ranks", "nodes")
        rule = "a whole number from 1 on" if whole else "a positive number"
        if not is_number(value) or value < (name != "size") * 1e-9 or (whole and value % 1):
            not_numbers.append(f"{where}: {name}: must be {rule}, got {brief(value)}")
    return not_numbers


def _disagree(row: Mapping[str, Any], where: str) -> Iterator[str]:
    """Say that a result was wrong, or that time and bandwidth are not of one call."""
    if row["wrong"]:
        yield f"{where}: #wrong: {row['wrong']:g} values came out wrong: such a run is no evidence"
    if isinstance(row["algbw"], float) and row["algbw"] > _SMALLEST_RATE:
        rate = row["size"] / row["time"] / 1e3  # bytes per microsecond -> GB/s
        if abs(rate / row["algbw"] - 1.0) > _AGREE:
            yield (
                f"{where}: size over time is {rate:.4g} GB/s, but algbw says {row['algbw']:g}: is"
                " the time in microseconds?"
            )


def _call(row: Mapping[str, Any], operation: str, group: tuple[int, int], where: str) -> Call:
    ranks, nodes = group
    sizes = {"message_bytes": row["size"], "ranks": ranks, "nodes": nodes}
    return Call(
        place=f"{where} ({operation})",
        kernel=operation,
        dtype=_TYPES.get(row["type"], row["type"]),
        direction="forward",
        library="nccl-tests",
        shape={name: float(size) for name, size in sizes.items()},
        seconds=float(row["time"]) / 1e6,
    )


def _measurements(
    path: Path, calls: list[Call], problems: list[str], names: set[str], date: str = ""
) -> Measurements:
    if problems:
        raise InputError(problems[:50])
    if not calls:
        raise InputError(f"{path}: no line of results of nccl-tests or rccl-tests")
    written = datetime.date.fromtimestamp(path.stat().st_mtime).isoformat()
    device = Device(kind="cuda", name=sorted(names)[0]) if any(names) else None
    kernels = ", ".join(dict.fromkeys(call.kernel for call in calls))
    return Measurements(
        path=str(path),
        source=f"{path.name} ({kernels})",
        date=date or written,
        device=device,
        calls=tuple(calls),
    )
