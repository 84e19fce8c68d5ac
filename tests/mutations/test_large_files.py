"""The largest files that importers take, of what costs them most: in time and memory by size."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.events.step.user_actions import MOST_ACTIONS
from simulator.interop.launch_files.merging import import_launch
from simulator.plain_files import MOST_VALUES, TOML_LIMIT_BYTES
from tests.mutations.importers import IMPORTERS, NCCL_TEXT, RCCL_JSON, Room

MIB = 2**20
ROW = NCCL_TEXT.splitlines(keepends=True)[8]
OPERATOR = b'"cat":"cpu_op","name":"a%d","tid":1,"ts":1'
KERNEL = b'"cat":"kernel","name":"nccl_%d","tid":1,"ts":1'
SCRIPT = IMPORTERS["launch.sh"].seeds[0].rstrip()
PYTHON = IMPORTERS["fsdp2.py"].seeds[0]
HISTORY = IMPORTERS["history.csv"].seeds[0]
HALF = MOST_VALUES // 2 - 10


def again(before: bytes, piece: bytes, after: bytes, size: int) -> bytes:
    return before + piece * ((size - len(before) - len(after)) // len(piece)) + after


def toml(before: bytes, piece: bytes, after: bytes = b"") -> bytes:
    return again(before, piece, after, TOML_LIMIT_BYTES)


def many(form: bytes, count: int, between: bytes = b"") -> bytes:
    return between.join(form % i for i in range(count))


def event(form: bytes, count: int) -> bytes:
    head = b'{"traceEvents":['
    return head + many(b'{"ph":"X","pid":1,"dur":1,' + form + b"}", count, b",") + b"]}"


def actions(suffix: str) -> bytes:
    half = MOST_ACTIONS // 2 - 1
    rows = [[f"0F{i}" for i in range(half)], [f"0B{i}" for i in range(half)]]
    if suffix == ".json":
        return json.dumps(rows).encode()
    return "".join(",".join(row[i : i + 50_000]) + "\n" for row in rows
                   for i in range(0, half, 50_000)).encode()  # fmt: skip


CASES: list[tuple[str, str, Callable[[], bytes]]] = [
    ("scenario.toml", "lists", lambda: toml(b"x=[", b"[],", b"]")),
    ("scenario.toml", "tables", lambda: toml(b"x=[", b"{a=1},", b"]")),
    ("scenario.toml", "keys", lambda: many(b"k%d=1\n", 90_000)),
    ("scenario.toml", "sections", lambda: many(b"[k%d]\n", 90_000)),
    ("node.toml", "keys", lambda: many(b"k%d=1\n", 90_000)),
    ("node.toml", "a list", lambda: toml(b"[scale_up]\ntorus=[", b"{},", b"]")),
    ("software.toml", "sections", lambda: many(b"[k%d]\n", 90_000)),
    ("config.json", "lists", lambda: b'{"x":[' + b"[]," * HALF + b"0]}"),
    ("config.json", "tables", lambda: b'{"x":[' + b'{"a":1},' * HALF + b"0]}"),
    ("config.json", "keys", lambda: b"{" + many(b'"k%d":1', 2 * HALF, b",") + b"}"),
    ("config.json", "a text", lambda: b'{"x":"' + b"x" * 16 * MIB + b'\xf0\x9f\x98\x80"}'),
    ("nccl-tests.json", "objects", lambda: b"[" + b'{"busBw":1},' * HALF + b"{}]"),
    ("nccl-tests.json", "records", lambda: json.dumps(RCCL_JSON * 8_000).encode()),
    ("nccl-tests.txt", "rows", lambda: again(NCCL_TEXT, ROW, b"", 8 * MIB)),
    ("nccl-tests.txt", "no rows", lambda: again(NCCL_TEXT, b"1 1 x y z a b c d\n", b"", 8 * MIB)),
    ("actions.csv", "ranks", lambda: b"0F0\n" * 9_999),
    ("actions.csv", "blanks", lambda: (b"," * 100_000 + b"\n") * 11),
    ("actions.csv", "actions", lambda: actions(".csv")),
    ("actions.json", "actions", lambda: actions(".json")),
    ("actions.json", "blanks", lambda: b"[" + b"[]," * HALF + b"[]]"),
    ("kineto.json", "threads", lambda: event(OPERATOR, 150_000)),
    ("kineto.json", "kernels", lambda: event(KERNEL, 90_000)),
    ("launch.sh", "doublings", lambda: b"A=xxxx\n" + b"A=$A$A\n" * 60),
    ("launch.sh", "arithmetic", lambda: again(b"", b"$((", b"", TOML_LIMIT_BYTES)),
    ("launch.sh", "substitutions", lambda: again(b"", b"$(", b"", TOML_LIMIT_BYTES)),
    ("launch.sh", "braces", lambda: again(b"", b"${a:-", b"", TOML_LIMIT_BYTES)),
    ("launch.sh", "functions", lambda: again(b"", b"f() {\n", b"}\n", TOML_LIMIT_BYTES)),
    ("launch.sh", "many functions", lambda: many(b"f%d() {\na\n}\n", 40_000)),
    ("launch.sh", "functions of functions", lambda: b"f() {\n" + b"f a\n" * 9_000 + b"}\nf\n"),
    ("launch.sh", "words in braces", lambda: again(b"", b"{a,b} ", b"", TOML_LIMIT_BYTES)),
    ("launch.sh", "open braces", lambda: again(b"x {a,b} ", b'{a,"${b:-', b"", TOML_LIMIT_BYTES)),
    ("launch.sh", "a sequence", lambda: b"x {1..999999999}{a,b}\n"),
    ("launch.sh", "gaps", lambda: many(b"A[%d]=x\n", 60_000)),
    ("launch.sh", "a far place", lambda: b"A[999999999]=x\n" + SCRIPT),
    ("launch.sh", "documents in one another", lambda: b"#!\ncat <<A\n" * 80_000),
    ("launch.sh", "documents", lambda: again(SCRIPT, b"<<A\n", b"", TOML_LIMIT_BYTES)),
    ("launch.sh", "flags", lambda: SCRIPT + many(b" --a%d 1", 60_000)),
    ("launch.sh", "inner", lambda: SCRIPT + many(b" 'a --b%d'", 60_000)),
    ("launch.sh", "variables", lambda: many(b"A%d=$A\n", 60_000) + SCRIPT),
    ("launch.sh", "blank lines", lambda: again(SCRIPT, b"\n", b"", TOML_LIMIT_BYTES)),
    ("torchtitan.toml", "brackets", lambda: toml(b"[model]\nx=[", b"[],", b"]")),
    ("recipe.yaml", "lists", lambda: b"a: 1\nb: " + b"[" * 100_000),
    ("recipe.yaml", "keys", lambda: many(b"k%d: 1\n", 20_000)),
    ("fsdp2.py", "parentheses", lambda: PYTHON + b"x = " + b"(" * 100_000),
    ("fsdp2.py", "sums", lambda: PYTHON + b"x = 1" + b"+1" * 100_000),
    ("topology.txt", "columns", lambda: b"\t" + many(b"GPU%d ", 100_000) + b"\nGPU0 X\n"),
    ("history.csv", "short rows", lambda: again(HISTORY, b".5\n", b"", 2 * MIB)),
    ("history.csv", "short rows of a step", lambda: again(HISTORY, b"6,\n", b"", 2 * MIB)),
    ("history.jsonl", "short rows", lambda: again(b"", b'{"_step":6}\n', b"", 2 * MIB)),
    *(
        (name, "steps", lambda name=name: again(b"", IMPORTERS[name].seeds[0], b"", 8 * MIB))  # type: ignore[misc]
        for name in ("megatron.log", "torchtitan.log", "mlperf.log")
    ),
]


FROM = ("launch.sh", "torchtitan.toml", "deepspeed.json", "recipe.yaml", "fsdp2.py", "topology.txt")


@pytest.mark.parametrize("name", FROM)
def test_200_mb_are_refused_within_a_second(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(IMPORTERS[name].seeds[0])
    os.truncate(path, 200 * MIB)
    begun = time.process_time()
    with pytest.raises(InputError, match="larger than 1 MiB"):
        import_launch([path])
    assert time.process_time() - begun < 1


@pytest.mark.evidence
@pytest.mark.parametrize(("name", "what", "raw"), CASES)
def test_the_largest_files_stay_in_proportion(
    name: str, what: str, raw: Callable[[], bytes], tmp_path: Path
) -> None:
    with Room(tmp_path, IMPORTERS[name], warm=False) as room:
        room.give(raw(), whole=False)
    assert room.tally.crashes == []
    assert room.tally.inputs == 1
