"""Files drawn from what readers know: keys and words of their tables, in numbers no sample has.

The mutator beside this changes sound files; here the tables alone say what a file may have: keys of
a trainer with its words, settings of an RL framework, fields of a family of models, lines of a log
with other numbers. Each is answered or refused in words; none ends in a traceback or takes long.
``python -m tests.mutations.test_drawn_inputs 20000 [READER ...]`` counts as many of each.
"""

from __future__ import annotations

import copy
import json
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.errors import ForeshardError
from simulator.interop import rl_scripts
from simulator.interop.dialects.trainer_tables import Trainer, trainers
from simulator.interop.launch_files.merging import import_launch
from simulator.interop.logs.readers import reader_of
from simulator.workload.families import table as families
from simulator.workload.huggingface import from_hf
from simulator.workload.recipe import Recipe
from tests.interop import log_samples
from tests.mutations import test_schema_documents as schema
from tests.mutations.mutator import VALUES

FEW, MANY = 12, 600
MOST_S = 4.0
"""Of the processor, for one input."""

PRICED_EVERY = 10
NUMBERS = (0, 1, 2, 3, 4, 8, 16, 32, 64, 100, 512, 1024, 2048, 4096, 8192, 131072, -1, 2**31)
HARSH = ("nan", "inf", "-1", "0", "1e999", "9" * 400, "1,024", "1_024", "0x10", "--", "", "1e-320",
         "12.5%", "3.2e+14", "²", "٣", "1.2.3", "1 024", "$N", "8k", "None")  # fmt: skip

# --- configurations of trainers -------------------------------------------------------------------


@cache
def _known(name: str) -> dict[str, tuple[Any, ...]]:
    """Keys of a trainer's table, and the values that it has words for."""
    table = next(x.table for x in trainers() if x.name == name)
    models = ("llama-3.1-8b", "Qwen/Qwen3-8B", "own/model", "unsloth/llama-3-8b-bnb-4bit")
    named = (*table.get("model", ()), *table.get("teacher", ()))
    known: dict[str, tuple[Any, ...]] = dict.fromkeys(named, models)
    for section in ("numbers", "numbers_or_none", "reals", "mebibytes", "tokens"):
        known |= dict.fromkeys(table.get(section, {}), NUMBERS)
    known |= dict.fromkeys(table.get("saves", ()), NUMBERS)
    for key, words in table.get("words", {}).items():
        known[key] = (*(word for word in words if word != "*"), "own")
    for key in table.get("adapted", ()):
        known[key] = (["q_proj", "v_proj"], "all-linear", "(q|k)_proj", ["lm_head"], "linear_qkv")
    for rule in table.get("follows", ()):
        for key in rule.get("when", {}):
            known.setdefault(key, (True, False, 1, None))
    for key, others in table.get("same", {}).items():
        if key[-1] != ".":
            known |= {other: known.get(key, NUMBERS) for other in others}
    for keys in table.get("idle", {}).values():
        known |= dict.fromkeys(keys.split()[:3], (1, "x"))
    return known


def _value(values: tuple[Any, ...], chance: random.Random) -> Any:
    way = chance.random()
    if way < 0.06:
        return copy.deepcopy(chance.choice(VALUES))  # what is nested into it stays in this input
    if way < 0.1:
        return [chance.choice(values or (1,)) for _ in range(chance.choice((0, 1, 2, 70)))]
    drawn = chance.choice(values or (1,))
    return {"true": True, "false": False}.get(drawn, drawn) if isinstance(drawn, str) else drawn


def _nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """``a.b = 1`` as a table in a table; a key that stands in another's way gives way."""
    tree: dict[str, Any] = {}
    for key, value in leaves.items():
        *holders, last = key.split(".")
        place: Any = tree
        for holder in holders:
            inner = place.setdefault(holder, {})
            if not isinstance(inner, dict):
                inner = place[holder] = {}
            place = inner
        place[last] = value
    return tree


def _written(value: Any) -> str:
    """A value in Python, tables as calls of ``dict``."""
    if isinstance(value, dict):
        inner = ", ".join(f"{k}={_written(v)}" for k, v in value.items() if k.isidentifier())
        return f"dict({inner})"
    return repr(value) if value == value and value not in (float("inf"), float("-inf")) else "None"


def _python(trainer: Trainer, packages: Iterable[str], leaves: Mapping[str, Any]) -> str:
    lines = [f"import {package}" for package in packages]
    tables: dict[str, dict[str, Any]] = {}
    for key, value in leaves.items():
        call = next((x for x in trainer.table["calls"] if key.startswith(f"{x}.")), "")
        if call:
            tables.setdefault(call, {})[key.removeprefix(f"{call}.")] = value
        elif key.isidentifier():
            lines.append(f"{key} = {_written(value)}")
    for call, inner in tables.items():
        shown = _written(_nested(inner)).removeprefix("dict")
        lines.append(f"{call} = dict{shown}" if call.islower() else f"x = {call}{shown}")
    return "\n".join(lines) + "\n"


def trainer_file(name: str, chance: random.Random) -> tuple[str, str]:
    """Name and text of a configuration that a trainer claims."""
    trainer = next(x for x in trainers() if x.name == name)
    known = _known(name)
    claimed = chance.choice(trainer.table["claims"])
    keys = [key for key in claimed if " " not in key]
    keys += chance.sample([*known], min(len(known), chance.randint(1, 14)))
    leaves = {key: _value(known.get(key, NUMBERS), chance) for key in keys}
    if "calls" in trainer.table:
        packages = [key.partition(" ")[2] for key in claimed if key.startswith("import ")]
        return "drawn.py", _python(trainer, packages, leaves)
    if any(key.startswith("run ") for key in claimed):
        words = " ".join(f"--{key} {json.dumps(value)}" for key, value in leaves.items())
        return "drawn.sh", f"colossalai run --nproc_per_node 8 train.py {words}\n"
    return "drawn.yaml", json.dumps(_nested(leaves))


def _read_trainer_file(name: str, folder: Path, chance: random.Random) -> bool:
    file, text = trainer_file(name, chance)
    (folder / file).write_text(text)
    names = {"cluster": "dgx-h100", "gpus": 8, "model": "llama-3.1-8b"}
    sizes = ["training.sequence_length=2048", "training.global_batch=64"]
    imported = import_launch([folder / file], names, sizes)
    if chance.random() < 1 / PRICED_EVERY:
        imported.predicted()
    return True


# --- settings of RL frameworks --------------------------------------------------------------------


FIELDS = {".".join(path): field for path, field in schema.leaves(schema.scenario_schema())}


@cache
def _rl_keys(name: str) -> dict[str, tuple[Any, ...]]:
    """Settings that a framework's formulas name, with values of the fields that they state."""
    dialect, chance = rl_scripts._dialects()[name], random.Random(name)
    known: dict[str, tuple[Any, ...]] = dict.fromkeys(dialect["known_by"], (8,))
    rules = dialect.get("when", {}).items()
    stated = [dialect.get("fields", {}), *(x for _, words in rules for x in words.values())]
    for field, formula in (item for fields in stated for item in fields.items()):
        what = FIELDS.get(field, {})
        drawn = tuple(schema.value(what, field, chance) for _ in range(12)) if what else NUMBERS
        kind = json.dumps(what)
        number = '"enum"' not in kind and '"boolean"' not in kind
        usual = (0.5, 0.8) if what.get("maximum") == 1 else (2, 8, 4096)
        words = {word for word in drawn if isinstance(word, str)}  # of the field: no settings
        for key in sorted({*re.findall(r"\b[a-z_][\w.]*", str(formula))} - words):
            known.setdefault(key, (*usual * (12 * number), *drawn))
    known |= {key: (*words, True, False) for key, words in rules}
    return known | dict.fromkeys(dialect.get("model", ()), ("Qwen/Qwen3-8B", "own/m", "qwen3-8b"))


def _read_rl_file(name: str, folder: Path, chance: random.Random) -> bool:
    known = _rl_keys(name)
    told = rl_scripts._dialects()[name]["known_by"]
    leaves: dict[str, Any] = dict.fromkeys(told, 8)
    share = chance.random()
    leaves |= {key: chance.choice(known[key]) for key in known if chance.random() < share}
    leaves |= {key: _value(known[key], chance) for key in chance.sample([*known], 2)}
    path = folder / "drawn.yaml"
    path.write_text(json.dumps(_nested(leaves)))
    names = {"cluster": "dgx-h100", "gpus": 16, "model": "qwen3-8b"}
    rl_scripts.scenario_from_script(
        path, names, ["rl.answer_tokens=512", "training.sequence_length=8192"]
    )
    return True


# --- families of models ---------------------------------------------------------------------------


def config(family: str, chance: random.Random) -> dict[str, Any]:
    """A config.json of a family: some of the fields that its row reads, at any value."""
    read = sorted(families.row(family).defaults)
    sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    made: dict[str, Any] = {"model_type": family}
    made |= {key: chance.choice((8, 64, 512)) for key in sizes if chance.random() < 0.8}
    for key in chance.sample([*read, *families.kinds()], min(6, len(read))):
        kind = families.kinds().get(key, "size")
        flags, lists = (True, False, None), ([0, 1], ["full_attention"], [64] * 8, [], {"x": 1})
        pool: tuple[Any, ...] = {"flag": flags, "size": NUMBERS}.get(kind, (*lists, *NUMBERS))
        made[key] = _value(pool, chance)
    return made


def _read_config(name: str, folder: Path, chance: random.Random) -> bool:
    family = chance.choice(families.names())
    architecture = from_hf(config(family, chance), name="drawn", where="config.json")
    assert architecture.parameters > 0 and architecture.layers >= 0
    return True


# --- logs -----------------------------------------------------------------------------------------


def _read_log(name: str, folder: Path, chance: random.Random) -> bool:
    """Read a log some of whose numbers are others, and what it lists of the run."""
    lines = (log_samples.LISTINGS.get(name, "") + log_samples.LOGS[name]).splitlines()

    def other(number: re.Match[str]) -> str:
        way = chance.random()
        if way < 0.6:
            return number[0]
        return chance.choice(HARSH) if way < 0.8 else f"{10 ** chance.uniform(-9, 18):.3f}"

    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(lines))
        lines[at] = re.sub(r"\d[\d.,]*", other, lines[at])
        lines.insert(chance.randrange(len(lines)), chance.choice(lines))
    path = folder / "drawn.log"
    path.write_text("\n".join(lines), encoding="utf-8")
    measured = reader_of(name)(path, Recipe(sequence_length=64, global_batch=8), 2)
    assert measured is not None
    if name in log_samples.LISTINGS:
        names = {"cluster": "dgx-h100", "gpus": 8, "model": "llama-3-8b"}
        import_launch([path], names, ["training.sequence_length=1024"])
    return True


def test_a_list_where_a_size_stands_is_not_repeated_by_another() -> None:
    """2^62 items: found by inputs drawn here."""
    wrong = {"out_channels": ["x"], "patch_size": 2**31}
    with pytest.raises(ForeshardError, match="num_layers: required field is missing"):
        from_hf({"model_type": "SanaTransformer2DModel", **wrong}, name="drawn", where="c")


Reader = Callable[[str, Path, random.Random], bool]
READERS: dict[str, tuple[str, Reader]] = {
    **{f"trainer {x.name}": (x.name, _read_trainer_file) for x in trainers()},
    **{f"rl {name}": (name, _read_rl_file) for name in rl_scripts._dialects()},
    "families": ("", _read_config),
    **{f"log {name}": (name, _read_log) for name in log_samples.LOGS},
}
"""Readers by what is drawn for them."""


def crash(name: str, folder: Path, chance: random.Random) -> tuple[str | None, bool]:
    """What went wrong with an input, if anything; whether it was answered."""
    word, read = READERS[name]
    begun, answered = time.process_time(), False
    try:
        answered = read(word, folder, chance)
    except ForeshardError as error:
        if not str(error).strip():
            return "refused without a word", False
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}", False
    if (spent := time.process_time() - begun) > MOST_S:
        return f"{spent:.1f} s", answered
    return None, answered


def _crashes(name: str, folder: Path, count: int) -> Iterator[tuple[str, bool]]:
    for number in range(count):
        problem, answered = crash(name, folder, random.Random(f"{name} {number}"))
        yield f"{name} {number}: {problem}" if problem else "", answered


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.evidence)])
@pytest.mark.filterwarnings("error")
def test_what_a_reader_knows_is_answered_or_refused(name: str, count: int, tmp_path: Path) -> None:
    results = [*_crashes(name, tmp_path, count)]
    assert [problem for problem, _ in results if problem] == []
    assert count < MANY or any(answered for _, answered in results)


@settings(suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from([*READERS]), chance=st.randoms(use_true_random=False))
def test_what_hypothesis_draws_of_known_keys(name: str, chance: random.Random) -> None:
    with tempfile.TemporaryDirectory() as folder:
        problem, _ = crash(name, Path(folder), chance)
    assert problem is None


if __name__ == "__main__":
    for name in sys.argv[2:] or READERS:
        with tempfile.TemporaryDirectory() as folder, suppress(KeyboardInterrupt):
            results = [*_crashes(name, Path(folder), int(sys.argv[1]))]
        wrong = [problem for problem, _ in results if problem]
        answered = sum(taken for _, taken in results)
        print(f"{name}: {len(results)} inputs, {answered} answered, {len(wrong)} crashes")
        print(*wrong[:5], sep="\n", end="\n" if wrong else "")
