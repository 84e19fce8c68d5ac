"""Configurations of trainers that a table describes: ``trainers/NAME.toml``, a file for each.

A trainer is added by its table alone, with a case in ``tests/interop/test_trainer_tables.py``:

- ``kind``, ``source``: what a file is called, where names and defaults stand.
- ``claims``: lists of keys or sections; a file that has all of one list is the trainer's, but for
  one that has any of ``unless``.
- ``model``, ``teacher``: keys that name a repository, ``[architecture]`` a section with the keys
  of a config.json.
- ``[same]``: a key and other names of it; with a point at its end, of a section.
- ``[numbers]``, ``[reals]``: a key and the field that its number states; ``[numbers_or_none]``: 0
  and -1 state nothing; ``[mebibytes]`` of a field in bytes, ``[tokens]`` of one in sequences.
- ``environment``: variables of a script around its command that count as options.
- ``saves``: keys of steps between checkpoints.
- ``deepspeed``: what stands before keys of DeepSpeed's own configuration.
- ``options``: keys and sections of which one tells that a command's options change such a file.
- ``unwrapped``: sections whose settings count as the file's own; ``calls`` and ``assigned``: the
  calls and names of a Python script whose keywords are settings.
- ``[words.KEY]``: a value (``"*"``: any other) and the fields that it states, or the reason why it
  is refused; ``note`` is said beside, ``ask`` names a field that only the user knows, ``{}``
  states nothing. A list states what its words do, or what all do together, under
  all of them with spaces between.
- ``[[ignored]]``: ``keys`` and sections that the trainer does not read where ``when`` holds.
- ``[[follows]]``: fields (``say``) where nothing stated them and ``when`` holds; ``instead``: in
  place of what was stated; ``ask`` and ``why``: a field that only the user knows; ``numbers``: as
  above; ``refuse`` the reason why that is refused.
- ``[[software]]``: profiles, the first list whose ``when`` holds.
- ``[idle]``, ``[idle_sections]``: a reason, and keys or whole sections on which neither time nor
  memory depends for that reason.

``when``: a key and one of its values (a word or a list of words); ``on`` is anything but none,
false, off, 0 and empty, ``off`` those and a key that is not there, ``absent`` that alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from simulator.errors import InputError, problem
from simulator.files import read_toml
from simulator.interop.dialects.deepspeed import say_zero
from simulator.interop.dialects.model_names import say_model, say_teacher
from simulator.interop.dialects.settings import Place, Reading, Setting, Settings, Unset
from simulator.records import dataclass
from simulator.workload.architecture import Architecture
from simulator.workload.huggingface import from_hf

_FOLDER = Path(__file__).resolve().parent / "trainers"
_OFF = ("none", "null", "false", "off", "0", "0.0", "", "[]", "{}", "no")
_REPEATED = re.compile(r"\(\??:?([a-z_]+(?:\|[a-z_]+)+)\)(_proj)")
_MATRIX = re.compile(r"[a-z][a-z_0-9]*")
_FOUR_BIT = re.compile(r"bnb-(?:4bit|nf4)|-4bit$|-nf4\b", re.I)
_LONGEST = 2_000
"""Characters of a list of matrices that are looked at."""


@dataclass(frozen=True)
class Trainer:
    """A trainer's table."""

    name: str
    table: Mapping[str, Any]

    def claims(self, keys: frozenset[str]) -> bool:
        """Whether a file with these keys and sections is this trainer's."""
        if not keys.isdisjoint(self.table.get("unless", ())):
            return False
        return any(keys.issuperset(wanted) for wanted in self.table["claims"])


@cache
def trainers() -> tuple[Trainer, ...]:
    """Every trainer that a table describes, by name."""
    files = sorted(_FOLDER.glob("*.toml"))
    return tuple(Trainer(path.stem, read_toml(path)) for path in files)


def trainer_of(settings: Iterable[Setting], beside: frozenset[str] = frozenset()) -> Trainer | None:
    """The trainer whose configuration has these settings; None: it is known by no table.

    `beside` is what else tells a trainer: ``import NAME`` of a script, ``run NAME`` of a command.
    """
    keys = beside.union(key for setting in settings for key in _with_sections(setting.key))
    return next((trainer for trainer in trainers() if trainer.claims(keys)), None)


def configured_by(settings: Iterable[Setting]) -> Trainer | None:
    """The trainer whose configuration, named by ``--config`` or ``-c``, such options change."""
    keys = frozenset(key for setting in settings for key in _with_sections(setting.key))
    if keys.isdisjoint(("config", "c")):
        return None
    options = ((x, mark) for x in trainers() for mark in x.table.get("options", ()))
    return next((trainer for trainer, mark in options if mark in keys), None)


def _with_sections(key: str) -> Iterator[str]:
    """``a.b.c``, ``a.b`` and ``a``."""
    while key:
        yield key
        key = key.rpartition(".")[0]


def read_trained(trainer: Trainer, settings: Settings) -> Reading:
    """State what a configuration says, by its trainer's table."""
    table = trainer.table
    _prepare(settings, table)
    ignored = tuple(_without(settings, table.get("ignored", ())))
    for key in table.get("model", ()):
        model = settings.take(key)
        if model is not None and not _off(model.value) and not _stated(settings, "model.name"):
            say_model(settings, model)
    for key in table.get("teacher", ()):
        say_teacher(settings, settings.take(key))
    architecture = _architecture(settings, table.get("architecture"))
    _say_numbers(settings, table)
    for prefix in table.get("deepspeed", ()):
        say_zero(settings, prefix)
    for key, words in table.get("words", {}).items():
        _say_words(settings, key, words)
    for key in table.get("adapted", ()):
        _say_matrices(settings, key)
    _say_quantised(settings, table.get("model", ()))
    for rule in table.get("follows", ()):
        _follow(settings, rule)
    fitting = (x["names"] for x in table.get("software", ()) if _holds(settings, x.get("when", {})))
    idle = {key for keys in table.get("idle", {}).values() for key in keys.split()}
    sections = {key for keys in table.get("idle_sections", {}).values() for key in keys.split()}
    reading = settings.reading(
        str(table["kind"]),
        lambda key: key in idle or not sections.isdisjoint(_with_sections(key)),
        software=tuple(next(fitting, ())),
        architecture=architecture,
    )
    return replace(reading, idle=(*reading.idle, *ignored))


def _prepare(settings: Settings, table: Mapping[str, Any]) -> None:
    """Leave what is a setting of the trainer, under the names that its table has."""
    if "calls" in table:
        calls = tuple(f"{call}." for call in table["calls"])
        known = {*table["calls"], *table.get("assigned", ())}
        settings.found = {
            k: v for k, v in settings.found.items() if k in known or k.startswith(calls)
        }
    for section in table.get("unwrapped", ()):
        for key in [key for key in settings.found if key.startswith(f"{section}.")]:
            setting = settings.found.pop(key)
            inner = key.removeprefix(f"{section}.")
            settings.found.setdefault(inner, Setting(inner, setting.value, setting.place))
    for name, others in table.get("same", {}).items():
        for other in others:
            whole = (
                [k for k in settings.found if k.startswith(other)] if name[-1] == "." else [other]
            )
            for key in whole:
                new = name + key.removeprefix(other)
                if key in settings.found and new not in settings.found:
                    setting = settings.found.pop(key)
                    settings.found[new] = Setting(new, setting.value, setting.place)
    settings.resolve()


def _without(settings: Settings, rules: Iterable[Mapping[str, Any]]) -> Iterator[Place]:
    """Take out settings that the trainer itself does not read, and say where they stand."""
    for rule in rules:
        if _holds(settings, rule["when"]):
            wanted = set(rule["keys"].split())
            for key in [k for k in settings.found if not wanted.isdisjoint(_with_sections(k))]:
                yield settings.found.pop(key).place


def _say_numbers(settings: Settings, table: Mapping[str, Any]) -> None:
    for key, field in table.get("numbers_or_none", {}).items():
        if key in settings.found and _word(settings.found[key].value) in ("0", "-1"):
            settings.take(key)
        settings.whole(field, *({key} - settings.taken))
    for key, field in table.get("numbers", {}).items():
        settings.whole(field, key)
    for key, field in table.get("reals", {}).items():
        settings.real(field, key)
    for key, field in table.get("mebibytes", {}).items():
        size = settings.whole("", key, most=2**20)
        settings.say(field, (size or 0) * 2**20, settings.found[key]) if size else None
    for key in table.get("saves", ()):
        _say_saves(settings, key)
    for key, field in table.get("tokens", {}).items():
        _say_sequences(settings, key, field)


def _say_saves(settings: Settings, key: str) -> None:
    """State the steps between checkpoints, unless a strategy beside them is not by steps."""
    section, dot, _ = key.rpartition(".")
    strategy = settings.found.get(f"{section}{dot}save_strategy")
    if strategy is None or _word(strategy.value).rpartition(".")[2] == "steps":
        settings.saves_every(key)
    else:
        settings.take(key)


def _say_sequences(settings: Settings, key: str, field: str) -> None:
    """State how many sequences tokens are, by the length that was stated before."""
    length = settings.value_of("training.sequence_length")
    tokens = settings.whole("", key)
    if tokens is None or not length:
        return
    if tokens % length:
        rule = f"must be a multiple of the {length} tokens of a sequence"
        settings.problems.append(problem(str(settings.found[key].place), "", rule, tokens))
    else:
        settings.say(field, tokens // length, settings.found[key])


def _word(value: Any) -> str:
    return str(value).strip().strip("'\"").lower()


def _off(value: Any) -> bool:
    return _word(value) in _OFF


def _stated(settings: Settings, field: str) -> bool:
    return any(item.field == field for item in settings.stated)


def _holds(settings: Settings, when: Mapping[str, Any]) -> bool:
    for key, wanted in when.items():
        setting = settings.found.get(key)
        off = setting is None or _off(setting.value)
        words = [wanted] if isinstance(wanted, str) else wanted
        value = "" if setting is None else setting.value
        said = {_word(x) for x in (value if isinstance(value, list | tuple) else [value])}
        states = {"off": off, "on": not off, "absent": setting is None}
        if not any(states.get(word, word in said) for word in words):
            return False
    return True


def _say_words(settings: Settings, key: str, words: Mapping[str, Any]) -> None:
    setting = settings.take(key)
    if setting is None:
        return
    if isinstance(setting.value, str) and "$" in setting.value:
        settings.flag(key)  # which asks for what stands in a variable
        return
    value = setting.value
    listed = list(value[:64]) if isinstance(value, (list, tuple)) else [value]
    if (together := " ".join(map(_word, listed))) in words:
        listed = [together]
    for part in listed:
        word = _word(part)
        said = words.get(word)
        if said is None and _off(part):
            continue
        said = words.get("*") if said is None else said
        if said is None:
            known = ", ".join(x for x in words if x != "*")
            settings.problems.append(
                problem(str(setting.place), "", f"must be one of {known}", part)
            )
        elif isinstance(said, str):
            settings.problems.append(problem(str(setting.place), "", said, part))
        else:
            _say(settings, said, setting)


def _say(settings: Settings, fields: Mapping[str, Any], setting: Setting) -> None:
    for field, value in fields.items():
        if field == "ask":
            why = "is for you to say: no file does"
            settings.unset.append(Unset(value, str(setting.value)[:99], setting.place, why))
        elif field == "note":
            settings.notes.append(f"{setting.place}: {value}")
        else:
            before = settings.value_of(field) if isinstance(value, list) else None
            settings.stated = [x for x in settings.stated if before is None or x.field != field]
            settings.say(field, value if before is None else [*before, *value], setting)


def _follow(settings: Settings, rule: Mapping[str, Any]) -> None:
    """What follows from several settings, or from one that is not there."""
    when = rule.get("when", {})
    if not _holds(settings, when):
        return
    for key in when:
        settings.take(key)
    at = next((settings.found[key] for key in when if key in settings.found), None)
    at = at or Setting("", None, Place(settings.path, next(iter(when), "") + " by default"))
    if "refuse" in rule:
        settings.problems.append(problem(str(at.place), "", rule["refuse"], at.value))
    if "note" in rule:
        settings.notes.append(f"{at.place}: {rule['note']}")
    if "ask" in rule:
        settings.unset.append(Unset(rule["ask"], str(at.value or next(iter(when)))[:99], at.place,
                                    rule["why"]))  # fmt: skip
    for key, field in rule.get("numbers", {}).items():
        settings.whole(field, key)
    for field, value in rule.get("say", {}).items():
        if not _stated(settings, field):
            settings.say(field, value, at)
    for field, value in rule.get("instead", {}).items():
        settings.say(field, value, at)


@cache
def _matrices() -> dict[str, list[str]]:
    return dict(read_toml(_FOLDER.parent / "adapted_matrices.toml"))


def _say_quantised(settings: Settings, keys: Iterable[str]) -> None:
    """State that frozen weights are of 4 bit where the name of their repository says so."""
    named = [settings.found[key] for key in keys if key in settings.found]
    four_bit = next((x for x in named if _FOUR_BIT.search(str(x.value)[:_LONGEST])), None)
    if four_bit is not None and settings.value_of("training.lora_rank"):
        settings.say("training.quantised_base", True, four_bit)


def _say_matrices(settings: Settings, key: str) -> None:
    """State the matrices that get adapters; a pattern is read for the names in it, never run."""
    setting = settings.take(key)
    if setting is None or _off(setting.value):
        return
    value = setting.value
    text = " ".join(map(str, value[:64])) if isinstance(value, (list, tuple)) else str(value)
    text = _REPEATED.sub(
        lambda m: " ".join(word + m[2] for word in m[1].split("|")), text[:_LONGEST]
    )
    if {"all-linear", "*", "*_proj"} & set(text.replace(",", " ").split()):
        return
    known = _matrices()
    words = [word for word in _MATRIX.findall(text) if word in known]
    adapted = list(dict.fromkeys(name for word in words for name in known[word]))
    if adapted:
        settings.say("training.lora_targets", adapted, setting)
    else:
        settings.notes.append(f"{setting.place}: no matrix in it is known: all linears are adapted")
    left_out = [w for w in ("lm_head", "embed_tokens", "experts") if w in _MATRIX.findall(text)]
    settings.notes += [f"{setting.place}: adapters of {word} are not counted" for word in left_out]


def _architecture(settings: Settings, rule: Mapping[str, Any] | None) -> Architecture | None:
    """The model whose sizes stand in the file, under the keys of a config.json."""
    if rule is None:
        return None
    prefix = f"{rule['section']}."
    inner = {
        key.removeprefix(prefix): item
        for key, item in settings.found.items()
        if key.startswith(prefix)
    }
    said = {f"{key}={_word(item.value)}" for key, item in inner.items()} | set(inner)
    family = next((v for k, v in rule["families"].items() if k in said), None)
    if family is None:
        return None
    sizes = {key: item.value for key, item in inner.items()}
    settings.taken.update(f"{prefix}{key}" for key in inner)
    try:
        return from_hf({**sizes, "model_type": family}, name=rule["name"], where=settings.path)
    except InputError as error:
        settings.problems += error.problems
        return None
