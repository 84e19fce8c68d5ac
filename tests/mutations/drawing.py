"""The second mutator: files drawn from what readers and frameworks know, sound in syntax.

The first one (``mutator.py``) changes sound files; this one puts fields into them that no sample
has: keys of the frameworks themselves (``tests/interop/trainer_keys``), of the tables of readers,
of the schema of scenarios and of every profile that is shipped, with values that others have, at
their limits, or of another kind. Scripts of the shell and of Python are written from a grammar,
logs get other numbers, and tables other columns.
"""

from __future__ import annotations

import ast
import copy
import csv
import io
import json
import random
import re
import struct
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from simulator.interop import rl_scripts
from simulator.interop.dialects.trainer_tables import Trainer, trainers
from simulator.workload.families import table as families
from tests.interop import log_samples
from tests.mutations import test_schema_documents as schema
from tests.mutations.mutator import VALUES, to_toml

ROOT = Path(__file__).resolve().parents[2]
KEYS = ROOT / "tests/interop/trainer_keys"
NUMBERS = (0, 1, 2, 3, 4, 8, 16, 32, 64, 100, 512, 1024, 2048, 4096, 8192, 131072, -1, 2**31)
MODELS = ("llama-3.1-8b", "Qwen/Qwen3-8B", "own/model", "unsloth/llama-3-8b-bnb-4bit", "gpt2")
HARSH = ("nan", "inf", "-1", "0", "1e999", "9" * 400, "1,024", "1_024", "0x10", "--", "", "1e-320",
         "12.5%", "3.2e+14", "²", "٣", "1.2.3", "1 024", "$N", "8k", "None")  # fmt: skip
MANY = 3_000
"""Fields, rows or options of a file that is drawn large."""

Known = Mapping[str, Sequence[Any]]
"""Values that stand at a key somewhere, by key; dots lead into tables."""
Draw = Callable[[random.Random, Sequence[bytes], bool], str | bytes]
"""(what is drawn from, sound files, whether it is to be large) -> a file."""

_SOURCES = "every source"
"""Under it stand all sources of profiles, since each figure names one."""

# --- what is known ----------------------------------------------------------------------------


@cache
def framework_keys(name: str) -> Known:
    """Keys of a framework with their defaults."""
    lines = (KEYS / f"{name}.csv").read_text().splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return {row["key"]: (_plain(row["default"] or ""),) for row in rows}


def _plain(text: str) -> Any:
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError):
            continue
    return text


def leaves_of(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Keys and values of a document, those of tables within it too."""
    for key, value in tree.items() if isinstance(tree, dict) else ():
        here = f"{path}.{key}" if path else str(key)
        if isinstance(value, dict) and value and "value" not in value:
            yield from leaves_of(value, here)
        else:
            yield here, value


def _tables_of(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Tables of a document, by the keys that lead to them."""
    for key, value in tree.items() if isinstance(tree, dict) else ():
        if isinstance(value, dict) and value:
            here = f"{path}.{key}" if path else str(key)
            yield here, value
            yield from _tables_of(value, here)


def _gathered(trees: Iterable[Any]) -> Known:
    found: dict[str, list[Any]] = {}
    for tree in trees:
        for key, value in (*leaves_of(tree), *_tables_of(tree)):
            found.setdefault(key, []).append(value)
    return {key: values[:40] for key, values in found.items()}


@cache
def _profile_keys(folder: str) -> Known:
    """Fields of all profiles in a folder, with what stands there."""
    files = sorted((ROOT / "hardware_profiles" / folder).glob("*.toml"))
    trees = [tomllib.loads(path.read_text()) for path in files]
    known = _gathered(trees)
    sources: dict[str, Any] = {}
    for tree in trees:
        sources |= tree.get("sources", {})
    return {key: x for key, x in known.items() if not key.startswith("sources")} | {
        _SOURCES: [sources]
    }


@cache
def _constants(*modules: str) -> Known:
    """Words of readers' own source, which are keys or values of what they read."""
    words = set[str]()
    for module in modules:
        tree = ast.parse((ROOT / "simulator/interop/dialects" / f"{module}.py").read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words |= set(re.findall(r"[A-Za-z_][\w.-]*\w", node.value[:2000]))
    some = sorted(word for word in words if len(word) < 60)
    return dict.fromkeys(some, (*some[:: len(some) // 60 + 1], True, False, *NUMBERS))


@cache
def trainer_keys(name: str) -> Known:
    """Keys of a trainer's table, and the values that it has words for."""
    table = next(x.table for x in trainers() if x.name == name)
    named = (*table.get("model", ()), *table.get("teacher", ()))
    known: dict[str, tuple[Any, ...]] = dict.fromkeys(named, MODELS)
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


# --- values and documents -----------------------------------------------------------------------


_MOST_FACTORED = 10**290
"""A larger number has no product with a fraction."""


def value_of(values: Sequence[Any], chance: random.Random) -> Any:
    """A value that others have as a rule, else a number at its limits, or of another kind."""
    way = chance.random()
    if way < 0.06:
        return copy.deepcopy(chance.choice(VALUES))  # what is nested into it stays in this file
    if way < 0.1:
        return [chance.choice(values or (1,)) for _ in range(chance.choice((0, 1, 2, 70)))]
    drawn = copy.deepcopy(chance.choice(values or (1,)))
    if isinstance(drawn, bool) or drawn is None:
        return chance.choice((True, False, drawn))
    if isinstance(drawn, (int, float)) and abs(drawn) < _MOST_FACTORED and way < 0.5:
        return chance.choice(
            (*NUMBERS, *(drawn * x for x in (2, 3, 0.5, 1e3, 1e-3, -1, 1 - 1e-9, 1e12)))
        )
    return {"true": True, "false": False}.get(drawn, drawn) if isinstance(drawn, str) else drawn


def nested(leaves: Mapping[str, Any], tree: dict[str, Any] | None = None) -> dict[str, Any]:
    """``a.b = 1`` as a table in a table; a key that stands in another's way gives way."""
    tree = {} if tree is None else tree
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


def _some(known: Known, chance: random.Random, most: int = 8) -> dict[str, Any]:
    count = chance.choice((1, 1, 2, 3, most))
    names = chance.sample(_names(known), min(len(known), count))
    return {name: value_of(known[name], chance) for name in names}


_LISTED: dict[int, tuple[Known, list[str]]] = {}


def _names(known: Known) -> list[str]:
    """Names as a list, made once: `known` is kept with it."""
    return _LISTED.setdefault(id(known), (known, [*known]))[1]


def _document(known: Known, tree: Any, chance: random.Random, large: bool) -> Any:
    """A sound document with other fields, some of its own left out or changed."""
    leaves = dict(leaves_of(tree))
    for key in chance.sample([*leaves], min(len(leaves), chance.choice((0, 0, 1, 2)))):
        if chance.random() < 0.4:
            del leaves[key]
        else:
            leaves[key] = value_of((leaves[key], *known.get(key, ())), chance)
    made = nested(leaves)
    for key, value in _some(known, chance).items():
        _put(made, key, value, known, chance)
    if _SOURCES in known and chance.random() < 0.9:
        made["sources"] = known[_SOURCES][0]
    if large:
        items = [value_of(NUMBERS, chance) for _ in range(MANY)]
        key = chance.choice([*leaves, *_names(known)])
        nested({f"{key}.k{i}": x for i, x in enumerate(items)} if len(key) % 2 else {key: items},
               made)  # fmt: skip
    return made


def _put(tree: dict[str, Any], key: str, value: Any, known: Known, chance: random.Random) -> None:
    """Set a field; tables that it stands in and that are not there are those of others."""
    *holders, last = key.split(".")
    place: Any = tree
    for depth, holder in enumerate(holders, 1):
        if not isinstance(place.get(holder), dict):
            place[holder] = {}
            others = known.get(".".join(holders[:depth]), ())
            if others and isinstance(other := chance.choice(others), dict):
                place[holder] = copy.deepcopy(other)
        place = place[holder]
    place[last] = value


@cache
def _read(raw: bytes, kind: str) -> Any:
    return tomllib.loads(raw.decode()) if kind == "toml" else json.loads(raw)


def _toml(known: Callable[[], Known]) -> Draw:
    def draw(chance: random.Random, seeds: Sequence[bytes], large: bool) -> str:
        return to_toml(_document(known(), _read(chance.choice(seeds), "toml"), chance, large))

    return draw


def _json(known: Callable[[], Known]) -> Draw:
    """JSON, which YAML is too."""

    def draw(chance: random.Random, seeds: Sequence[bytes], large: bool) -> str:
        return json.dumps(_document(known(), _read(chance.choice(seeds), "json"), chance, large))

    return draw


def _as_yaml(tree: Mapping[str, Any], before: str = "") -> str:
    """Tables as blocks, what stands in them in JSON."""
    lines = []
    for key, value in tree.items():
        name = key if re.fullmatch(r"[A-Za-z_][\w.-]*", key) else json.dumps(key)
        if isinstance(value, dict) and value and all(isinstance(x, str) for x in value):
            lines += [f"{before}{name}:", _as_yaml(value, f"{before}  ")]
        else:
            lines.append(f"{before}{name}: {json.dumps(value)}")
    return "\n".join(lines)


@cache
def _yaml_as_json(raw: bytes) -> Any:
    import yaml

    return yaml.safe_load(raw.decode())


def _yaml(known: Callable[[], Known]) -> Draw:
    def draw(chance: random.Random, seeds: Sequence[bytes], large: bool) -> str:
        made = _document(known(), _yaml_as_json(chance.choice(seeds)), chance, large)
        return _as_yaml(made) if chance.random() < 0.9 else json.dumps(made)

    return draw


def _scenario(chance: random.Random, seeds: Sequence[bytes], large: bool) -> str:
    made = schema.document(chance)
    if large:
        path, _ = chance.choice(schema.LEAVES)
        nested({".".join(path): [value_of(NUMBERS, chance) for _ in range(MANY)]}, made)
    return to_toml(made)


def _config(chance: random.Random, seeds: Sequence[bytes], large: bool) -> str:
    """A config.json of a family: some of the fields that its row reads, or a sound one's."""
    family = chance.choice(families.names())
    read = sorted(families.row(family).defaults)
    made: dict[str, Any] = {"model_type": family}
    if chance.random() < 0.5:
        made = {**_read(chance.choice(seeds), "json")}
    else:
        sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
        made |= {key: chance.choice((8, 64, 512)) for key in sizes if chance.random() < 0.8}
    for key in chance.sample([*read, *families.kinds()], min(6, len(read))):
        kind = families.kinds().get(key, "size")
        flags, lists = (True, False, None), ([0, 1], ["full_attention"], [64] * 8, [], {"x": 1})
        pool: tuple[Any, ...] = {"flag": flags, "size": NUMBERS}.get(kind, (*lists, *NUMBERS))
        made[key] = value_of(pool, chance)
        if large:
            made[key] = [made[key]] * MANY
    return json.dumps(made)


# --- scripts --------------------------------------------------------------------------------------


_FORMS = (
    "{flags}", 'ARGS="{flags}"\n', "ARGS=({flags})\n", "ARGS=()\nARGS+=({flags})\n",
    "if [ $N -gt 1 ]; then\nARGS='{flags}'\nelse\nARGS=\"{flags}\"\nfi\n",
    "case $SIZE in\n8B) ARGS=\"{flags}\";;\n*) ARGS='--x 1';;\nesac\n",
    'for TP in 1 2 4; do\nARGS="{flags}"\ndone\n', 'launch() {{\nlocal ARGS="{flags}"\n',
    "read -r -d '' ARGS <<EOF\n{flags}\nEOF\n", "export ARGS=${{ARGS:-\"{flags}\"}}\n",
)  # fmt: skip
"""How options stand in a script: in the command itself, or in ARGS."""
_STARTS = (
    "torchrun --nproc_per_node {n} --nnodes {m} {p} {a}\n",
    'srun -N {m} --gpus-per-node={n} bash -c "torchrun --nproc_per_node {n} {p} {a}"\n',
    "python -m torch.distributed.run --nproc-per-node={n} {p} {a}\n", "exec python3 {p} {a}\n",
    "deepspeed --num_gpus {n} --num_nodes {m} {p} {a}\n", "eval torchrun {p} {a} | tee log\n",
    "accelerate launch --num_processes {n} {p} {a}\n",
    "cat > run.sh <<EOF\ntorchrun {p} {a}\nEOF\n",
    "#SBATCH --nodes={m}\n#SBATCH --gpus-per-node={n}\nsrun python {p} {a}\n",
)  # fmt: skip
_PROGRAMS = {
    "megatron": ("pretrain_gpt.py", "pretrain_mamba.py", "/opt/Megatron-LM/pretrain_gpt.py"),
    "trainer": ("run_clm.py", "sft.py", "train.py"),
    "torchtitan": ("-m torchtitan.train", "train.py"),
    "deepspeed": ("train.py --deepspeed ds.json", "pretrain_gpt.py"),
    "accelerate": ("train.py",),
}
_VALUE_FORMS = ("{v}", "'{v}'", '"{v}"', "={v}", "$V{i}", "${{V{i}}}", "${{V{i}:-{v}}}",
                '${{W{i}:-"{v}"}}', "$(({v}))", "$(({v}*2))", "${{L[{j}]}}")  # fmt: skip
_SIZES: dict[str, Any] = {
    "num_layers": 8, "hidden_size": 512, "num_attention_heads": 8, "seq_length": 1024,
    "micro_batch_size": 1, "global_batch_size": 64, "max_position_embeddings": 1024,
    "vocab_size": 32000, "train_iters": 100, "model_name_or_path": "gpt2", "bf16": True,
    "per_device_train_batch_size": 1, "max_seq_length": 1024,
}  # fmt: skip
_ALL = ("megatron", "trainer", "torchtitan", "deepspeed", "accelerate")


def _shell(chance: random.Random, seeds: Sequence[bytes], large: bool) -> str:
    """A launch script by a grammar: a framework's options in a form, and what starts them."""
    name = chance.choice(("megatron", "megatron", "trainer", "torchtitan", chance.choice(_ALL)))
    known = framework_keys(name)
    options = {key: x for key, x in _SIZES.items() if chance.random() < 0.9 and key in known}
    options |= _some(known, chance, 12)
    before: list[str] = ["L=(1 2 4 8)\n"]
    parts: list[str] = []
    for i, (key, value) in enumerate(options.items()):
        flag = "--" + (key.replace("_", "-") if name == "megatron" else key)
        shown = " ".join(map(str, value)) if isinstance(value, list) else str(value)
        if value is True or value is None:
            parts.append(flag)
            continue
        form = "{v}" if chance.random() < 0.5 else chance.choice(_VALUE_FORMS)
        if "$V" in form or "${V" in form.replace("{{", "{"):
            before.append(f"V{i}={shown}\n")
        written = form.format(v=shown, i=i, j=chance.choice((0, 3, 7, "@", "$V1", -1)))
        parts.append(f"{flag}{'' if written[:1] == '=' else ' '}{written}")
    if large:
        parts += [f"--own-{i} {i}" for i in range(MANY)]
    flags = chance.choice((" ", " ", " \\\n    ")).join(parts)
    form = chance.choice(_FORMS)
    start = chance.choice(_STARTS).format(
        n=chance.choice((8, 4, "$GPUS", "${SLURM_GPUS:-8}")), m=chance.choice((1, 4, "$NNODES")),
        p=chance.choice(_PROGRAMS[name]), a="{a}",
    )  # fmt: skip
    if form == "{flags}":
        return "".join(before) + start.replace("{a}", flags)
    used = chance.choice(("$ARGS", "${ARGS}", "${ARGS[@]}", '"${ARGS[@]}"', "${ARGS[*]}"))
    ends = "}\nlaunch\n" if form.startswith("launch") else ""
    if chance.random() < 0.2:
        return chance.choice(seeds).decode() + "".join(before) + form.format(flags=flags)
    return "".join(before) + form.format(flags=flags) + start.replace("{a}", used) + ends


def _settings_script(known: Callable[[], Known]) -> Draw:
    """``key=value`` behind a sound command, as MaxText and Colossal-AI take them."""

    def draw(chance: random.Random, seeds: Sequence[bytes], large: bool) -> str:
        made = [f"{key}={_word(value)}" for key, value in _some(known(), chance, 12).items()]
        made += [f"own_{i}={i}" for i in range(MANY)] if large else []
        text = chance.choice(seeds).decode().rstrip()
        between = chance.choice((" ", " \\\n  "))
        return text + between + between.join(made) + "\n"

    return draw


def _word(value: Any) -> str:
    return json.dumps(value) if isinstance(value, (list, dict)) else f"'{value}'"


def _python(chance: random.Random, seeds: Sequence[bytes], large: bool) -> str:
    """A sound script of Python with other constants and names, statements moved or repeated."""
    tree = copy.deepcopy(_parsed(chance.choice(seeds)))
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    for node in chance.sample(constants, min(len(constants), chance.randint(1, 6))):
        drawn = value_of((node.value, *MODELS[:1], *NUMBERS), chance)
        if isinstance(drawn, (str, bool, int, float, type(None))):
            node.value = drawn if drawn == drawn else None
    named = [node for node in ast.walk(tree) if isinstance(node, (ast.keyword, ast.Attribute))]
    for node in chance.sample(named, min(len(named), chance.choice((0, 1, 2)))):
        other = chance.choice(named)
        word = other.arg if isinstance(other, ast.keyword) else other.attr
        if isinstance(node, ast.keyword):
            node.arg = word
        elif word:
            node.attr = word
    at = chance.randrange(len(tree.body))
    tree.body += [tree.body[at]] * (MANY if large else chance.choice((0, 0, 1)))
    tree.body.insert(chance.randrange(len(tree.body)), tree.body.pop(at))
    return ast.unparse(tree)


@cache
def _parsed(raw: bytes) -> ast.Module:
    return ast.parse(raw)


# --- configurations of trainers -------------------------------------------------------------------


def _written(value: Any) -> str:
    """A value in Python, tables as calls of ``dict``."""
    if isinstance(value, dict):
        inner = ", ".join(f"{k}={_written(v)}" for k, v in value.items() if k.isidentifier())
        return f"dict({inner})"
    return repr(value) if value == value and value not in (float("inf"), float("-inf")) else "None"


def _trainer_python(trainer: Trainer, packages: Iterable[str], leaves: Mapping[str, Any]) -> str:
    lines = [f"import {package}" for package in packages]
    tables: dict[str, dict[str, Any]] = {}
    for key, value in leaves.items():
        call = next((x for x in trainer.table["calls"] if key.startswith(f"{x}.")), "")
        if call:
            tables.setdefault(call, {})[key.removeprefix(f"{call}.")] = value
        elif key.isidentifier():
            lines.append(f"{key} = {_written(value)}")
    for call, inner in tables.items():
        shown = _written(nested(inner)).removeprefix("dict")
        lines.append(f"{call} = dict{shown}" if call.islower() else f"x = {call}{shown}")
    return "\n".join(lines) + "\n"


def _trainer(name: str) -> Draw:
    """A configuration that a trainer claims, or a sound one with keys of its table."""
    trainer = next(x for x in trainers() if x.name == name)
    in_python, in_shell = "calls" in trainer.table, any(
        key.startswith("run ") for claims in trainer.table["claims"] for key in claims
    )  # fmt: skip

    def draw(chance: random.Random, seeds: Sequence[bytes], large: bool) -> str:
        known = trainer_keys(name)
        if chance.random() < 0.4:
            if in_python:
                return _python(chance, seeds, large)
            if not in_shell:
                tree = _yaml_as_json(chance.choice(seeds))
                return _as_yaml(_document(known, tree, chance, large))
        claimed = chance.choice(trainer.table["claims"])
        leaves = {
            key: value_of(known.get(key, NUMBERS), chance) for key in claimed if " " not in key
        }
        leaves |= _some(known, chance, 14)
        leaves |= {f"own{i}": i for i in range(MANY)} if large else {}
        if in_python:
            packages = [key.partition(" ")[2] for key in claimed if key.startswith("import ")]
            return _trainer_python(trainer, packages, leaves)
        if in_shell:
            words = " ".join(f"--{key} {json.dumps(value)}" for key, value in leaves.items())
            return f"colossalai run --nproc_per_node 8 train.py {words}\n"
        return _as_yaml(nested(leaves))

    return draw


# --- settings of RL frameworks --------------------------------------------------------------------


_FIELDS = {".".join(path): field for path, field in schema.leaves(schema.scenario_schema())}


@cache
def rl_keys(name: str) -> Known:
    """Settings that a framework's formulas name, with values of the fields that they state."""
    dialect, chance = rl_scripts._dialects()[name], random.Random(name)
    known: dict[str, tuple[Any, ...]] = dict.fromkeys(dialect["known_by"], (8,))
    rules = dialect.get("when", {}).items()
    stated = [dialect.get("fields", {}), *(x for _, words in rules for x in words.values())]
    for field, formula in (item for fields in stated for item in fields.items()):
        what = _FIELDS.get(field, {})
        drawn = tuple(schema.value(what, field, chance) for _ in range(12)) if what else NUMBERS
        kind = json.dumps(what)
        number = '"enum"' not in kind and '"boolean"' not in kind
        usual = (0.5, 0.8) if what.get("maximum") == 1 else (2, 8, 4096)
        words = {word for word in drawn if isinstance(word, str)}  # of the field: no settings
        for key in sorted({*re.findall(r"\b[a-z_][\w.]*", str(formula))} - words):
            known.setdefault(key, (*usual * (12 * number), *drawn))
    known |= {key: (*words, True, False) for key, words in rules}
    return known | dict.fromkeys(dialect.get("model", ()), ("Qwen/Qwen3-8B", "own/m", "qwen3-8b"))


def rl_settings(name: str, chance: random.Random) -> dict[str, Any]:
    """Settings of a run of a framework."""
    known = rl_keys(name)
    leaves: dict[str, Any] = dict.fromkeys(rl_scripts._dialects()[name]["known_by"], 8)
    share = chance.random()
    leaves |= {key: chance.choice(known[key]) for key in known if chance.random() < share}
    leaves |= {key: value_of(known[key], chance) for key in chance.sample([*known], 2)}
    return nested(leaves)


def rl_documents() -> Iterator[dict[str, Any]]:
    """Settings by which each framework is known, on one set of accelerators."""
    for name, dialect in rl_scripts._dialects().items():
        colocated = {"colocate_all_models": True} if name == "openrlhf" else {}
        yield nested(dict.fromkeys(dialect["known_by"], 8) | colocated)


def _rl(chance: random.Random, seeds: Sequence[bytes], large: bool) -> str:
    made = rl_settings(chance.choice([*rl_scripts._dialects()]), chance)
    return json.dumps(nested({f"own{i}": i for i in range(MANY)} if large else {}, made))


# --- lines and tables -----------------------------------------------------------------------------


def _log(chance: random.Random, seeds: Sequence[bytes], large: bool) -> bytes:
    """A sound log, some of whose numbers are others, with lines that stand elsewhere too."""
    lines = chance.choice(seeds).split(b"\n")

    def other(number: re.Match[bytes]) -> bytes:
        way = chance.random()
        if way < 0.6:
            return number[0]
        drawn = chance.choice(HARSH) if way < 0.8 else f"{10 ** chance.uniform(-9, 18):.3f}"
        return drawn.encode()

    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(lines))
        lines[at] = re.sub(rb"\d[\d.,]*", other, lines[at])
        lines.insert(chance.randrange(len(lines)), chance.choice(lines))
    if large:
        lines += chance.choices(lines, k=MANY)
    return b"\n".join(lines)


_STEPS = ("step", "_step", "Step", "global_step", "trainer/global_step", "iteration", "epoch")
_CLOCKS = ("_timestamp", "_runtime", "wall_time", "timestamp", "time", "Relative Time (Process)")
_TOLD = (
    "train_step_timing in s",
    "step_time",
    "perf/step_time_s",
    "iteration-time",
    "loss",
    "time_per_iteration_ms",
    "throughput/tflops",
    "model_tflops_per_gpu",
    "lr",
    "",
    "é",
)
"""Names of numbers: steps, times of day, and what is told of a step."""


def _points(chance: random.Random, large: bool) -> Iterator[dict[str, Any]]:
    """Rows of a run's history: a step, a time of day, and what a step took."""
    names = [*chance.sample(_STEPS, chance.choice((1, 1, 2))),
             *chance.sample(_CLOCKS, chance.choice((0, 1, 2))),
             *chance.sample(_TOLD, chance.randint(1, 4))]  # fmt: skip
    odd = chance.random() ** 2
    for step in range(1, (MANY if large else 12) + 1):
        row: dict[str, Any] = dict.fromkeys(names, 1.5)
        row |= {name: step * chance.choice((1, 1, 2)) for name in names if name in _STEPS}
        row |= {name: 1.7e9 + 2.5 * step for name in names if name in _CLOCKS}
        if chance.random() < odd:
            row[chance.choice(names)] = chance.choice((*VALUES, *HARSH))
        yield row


def _table_of(rows: Iterable[Mapping[str, Any]], chance: random.Random) -> str:
    rows = list(rows)
    text = io.StringIO()
    writer = csv.writer(
        text, delimiter=chance.choice(",,,,,;\t|"), lineterminator=chance.choice(("\n", "\r\n"))
    )
    writer.writerow(rows[0])
    writer.writerows([str(x)[:2000] for x in row.values()] for row in rows)
    return chance.choice(("", "", "\ufeff", "# exported\n")) + text.getvalue()


def _history(form: str) -> Draw:
    def draw(chance: random.Random, seeds: Sequence[bytes], large: bool) -> str | bytes:
        rows = _points(chance, large)
        if form == "csv":
            return _table_of(rows, chance)
        if form == "jsonl":
            return "\n".join(map(json.dumps, rows))
        if form == "state":
            entries: list[Any] = [*rows, {"step": 100, "train_runtime": value_of((200.0,), chance)}]
            return json.dumps({"log_history": entries, "global_step": value_of((100,), chance)})
        return _records(rows, chance, form)

    return draw


def _records(rows: Iterable[Mapping[str, Any]], chance: random.Random, form: str) -> bytes:
    """TFRecords of scalars, or an offline run of W&B, whose fields are in order."""
    field, varint = log_samples._field, log_samples._varint
    out = bytearray(b":W&B\xe1\xbe\x00" if form == "wandb" else b"")
    for row in rows:
        if form == "wandb":
            named = ((key, json.dumps(value)) for key, value in row.items())
            data = field(2, b"".join(field(1, field(2, k.encode()) + field(16, v.encode()))
                                     for k, v in named))[: 2**15 - 8]  # fmt: skip
            left = 2**15 - len(out) % 2**15
            out += bytes(left) if left < len(data) + 7 else b""
            out += (
                bytes(4)
                + struct.pack("<HB", len(data), chance.choice((1, 1, 1, 1, 2, 3, 4)))
                + data
            )
            continue
        scalars = b""
        for key, value in row.items():
            number = float(value) if isinstance(value, (int, float)) and abs(value) < 1e38 else 2.5
            packed = struct.pack("<f", number)
            scalar = field(1, key.encode())
            scalar += (
                varint(2 << 3 | 5) + packed if chance.random() < 0.7 else field(8, field(4, packed))
            )
            scalars += field(1, scalar)
        step = chance.choice((next(iter(row.values())), 7, 2**63 - 1))
        step = step if isinstance(step, int) and 0 <= step < 2**64 else 3
        wall = struct.pack("<d", chance.choice((1.7e9 + step, 1.7e9 + step, float("nan"), 0.0)))
        event = b"\x09" + wall + b"\x10" + varint(step) + field(5, scalars)
        out += struct.pack("<Q", len(event)) + bytes(4) + event + bytes(4)
    return bytes(out)


@cache
def _run_columns() -> Known:
    """Columns of all tables of runs, with what stands there."""
    found: dict[str, list[Any]] = {}
    for path in sorted((ROOT / "validation/runs").glob("*.csv")):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                for key, value in row.items():
                    found.setdefault(key, []).append(value)
    return {key: sorted(set(values))[::7][:60] or [""] for key, values in found.items()}


def _runs(chance: random.Random, seeds: Sequence[bytes], large: bool) -> str:
    """A table of runs with columns and cells of other tables."""
    rows = list(csv.DictReader(chance.choice(seeds).decode().splitlines()))
    rows = rows[: chance.choice((1, 2, 3))] * (200 if large else 1)
    known = _run_columns()
    for key in chance.sample(_names(known), chance.randint(1, 5)):
        at = chance.randrange(len(rows))
        for number, row in enumerate(rows):
            drawn = value_of(known[key], chance) if number == at else row.get(key, "")
            row[key] = (
                chance.choice(HARSH) if number == at and chance.random() < 0.1 else str(drawn)
            )
    names = list(rows[0])
    if chance.random() < 0.3:
        chance.shuffle(names)
    return _table_of([{name: row.get(name, "") for name in names} for row in rows], chance)


def _topology(chance: random.Random, seeds: Sequence[bytes], large: bool) -> str:
    """``nvidia-smi topo -m`` of some accelerators and adapters."""
    gpus, nics = chance.choice((1, 2, 4, 8, 16)), chance.choice((0, 1, 8))
    if large:
        gpus, nics = 72, 72
    names = [f"GPU{i}" for i in range(gpus)] + [f"NIC{i}" for i in range(nics)]
    links = (
        "NV18",
        "NV12",
        "NV4",
        "SYS",
        "PIX",
        "NODE",
        "PHB",
        "PXB",
        "X",
        "OK",
        "NV999999999",
        "-",
        "",
    )
    usual = chance.choice(links[:7])
    tail = chance.choice(("", "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"))
    lines = ["\t".join(["", *names]) + tail]
    for i, name in enumerate(names):
        cells = [usual if chance.random() < 0.97 else chance.choice(links) for _ in names]
        cells[i] = "X"
        lines.append("\t".join([name, *cells]) + ("\t0-47\t0\tN/A" if tail else ""))
    lines += ["", "Legend:", "", *(f"  NIC{i}: mlx5_{i}" for i in range(nics))]
    return "\n".join(lines) + "\n"


_KINDS = ("F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD", "REDUCE_GRAD")


def _actions(form: str) -> Draw:
    def draw(chance: random.Random, seeds: Sequence[bytes], large: bool) -> str:
        """Passes of every micro-batch through every stage, in an order; some others besides."""
        stages, batches = chance.choice((1, 2, 2, 2, 4)), chance.choice((1, 2, 2, 2, 5))
        batches = MANY if large else batches
        halves = chance.random() < 0.3
        rows = [
            [f"{s}F{b}" for b in range(batches)]
            + [f"{s}{half}{b}" for b in range(batches) for half in ("IW" if halves else "B")]
            for s in range(stages)
        ]
        for _ in range(chance.choice((0, 0, 1, 2, 4))):
            row = chance.choice(rows)
            stage, batch = chance.choice((0, 1, 2, 9_999_999)), chance.choice((0, 1, "", 9_999_999))
            word = f"{stage}{chance.choice(_KINDS)}{batch}"
            pair = f"({word};{chance.choice(row)})OVERLAP_F_B"
            at = chance.randrange(len(row) + 1)
            row[at : at + chance.choice((0, 1))] = [chance.choice((word, word, "", pair))]
            chance.shuffle(row) if chance.random() < 0.1 and not large else None
        if form == "csv":
            return "\n".join(map(",".join, rows)) + "\n"
        shown = [" ".join(x) if chance.random() < 0.1 else x for x in rows]
        if form == "toml":
            return f"actions = {json.dumps(shown)}\n"
        return json.dumps({"actions": shown} if chance.random() < 0.5 else shown)

    return draw


def _tree(chance: random.Random, seeds: Sequence[bytes], large: bool) -> str:
    """A sound document of many records: values of a record in another, numbers at limits."""
    tree = copy.deepcopy(_read(chance.choice(seeds), "json"))
    records = [x for x in _records_in(tree) if x]
    for record in chance.sample(records, min(len(records), chance.randint(1, 6))):
        other = chance.choice(records)
        key = chance.choice([*record])
        name = key if chance.random() < 0.7 else chance.choice([*other])
        record[key if chance.random() < 0.8 else name] = copy.deepcopy(
            value_of((other.get(name, 1),), chance)
        )
        if chance.random() < 0.2:
            record |= copy.deepcopy(other)
    if large:
        for rows in (x for x in _lists_in(tree) if x):
            rows += [copy.deepcopy(x) for x in chance.choices(rows, k=MANY)]
            break
    return json.dumps(tree)


def _records_in(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
    for inner in (
        tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    ):
        yield from _records_in(inner)


def _lists_in(tree: Any) -> Iterator[list[Any]]:
    if isinstance(tree, list):
        yield tree
    for inner in tree.values() if isinstance(tree, dict) else ():
        yield from _lists_in(inner)


# --- all --------------------------------------------------------------------------------------


def _keys(name: str, *modules: str) -> Callable[[], Known]:
    return cache(lambda: {**_constants(*modules), **framework_keys(name)})


DRAWS: dict[str, Draw] = {
    "scenario.toml": _scenario,
    "config.json": _config,
    **{
        f"{name}.toml": _toml(partial(_profile_keys, folder))
        for name, folder in (
            *(("accelerator", "accelerators"), ("node", "nodes")),
            *(("cluster", "clusters"), ("software", "software")),
        )
    },
    "runs.csv": _runs,
    "history.csv": _history("csv"),
    "history.jsonl": _history("jsonl"),
    "trainer_state.json": _history("state"),
    "events.out.tfevents": _history("events"),
    "run.wandb": _history("wandb"),
    "kineto.json": _tree,
    "launch.sh": _shell,
    "torchtitan.toml": _toml(_keys("torchtitan", "torchtitan")),
    "deepspeed.json": _json(_keys("deepspeed", "deepspeed")),
    "trainer.json": _json(_keys("trainer", "trainer")),
    "accelerate.yaml": _yaml(_keys("accelerate", "trainer")),
    "recipe.yaml": _yaml(_keys("megatron", "megatron_bridge", "primus")),
    "topology.txt": _topology,
    "fsdp2.py": _python,
    "maxtext.sh": _settings_script(_keys("maxtext", "maxtext")),
    "neuronx.yaml": _yaml(lambda: _constants("neuronx")),
    "torchtune.yaml": _yaml(lambda: _constants("torchtune")),
    "nccl-tests.json": _tree,
    "actions.csv": _actions("csv"),
    "actions.json": _actions("json"),
    "actions.toml": _actions("toml"),
    "rl.yaml": _rl,
    **{
        f"{x.name}.{suffix}": _trainer(x.name)
        for x in trainers()
        for suffix in ("yaml", "py", "sh")
    },
}
"""What draws the files of an importer; those of logs are lines with other numbers."""


def drawn(name: str, seeds: Sequence[bytes], chance: random.Random, *, large: bool) -> bytes:
    """A file of an importer: sound in syntax, with what its readers and frameworks know."""
    made = DRAWS.get(name, _log)(chance, seeds, large)
    return made.encode("utf-8", "replace") if isinstance(made, str) else made
