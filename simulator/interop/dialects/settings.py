"""Settings of a file and what they mean: the record that every reader of launch files hands over.

A reader of one dialect takes the settings that it knows out of :class:`Settings`, each with the
field of a scenario that it states; what nobody took is listed, never dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from functools import cache
from pathlib import Path
from typing import Any

from simulator.errors import brief, problem
from simulator.files import read_toml
from simulator.records import dataclass
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import LARGEST

MOST_SETTINGS = 5_000
"""Of one file; scripts of frameworks have some hundred."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands in a file."""

    path: str
    key: str
    """The key, flag or variable."""
    line: int = 0
    """From 1; 0: not known."""

    def __str__(self) -> str:
        line = f"line {self.line}: " if self.line else ""
        return f"{self.path}: {line}{self.key}"


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of a file and its value as written: a word, a number, a list, or true for a flag."""

    key: str
    value: Any
    place: Place


@dataclass(frozen=True, slots=True)
class Stated:
    """A field of a scenario that a file states.

    Fields of the sections ``run`` and ``size`` are no scenario's: steps, accumulated micro-batches
    and servers, from which others follow, and sizes of the model, which are held against its own.
    """

    field: str
    value: Any
    place: Place


@dataclass(frozen=True, slots=True)
class Unset:
    """A value that stands in a variable which no file given sets."""

    field: str
    """The field that it would state; blank where it decides several."""
    value: str
    place: Place
    why: str = "stands in a variable that no file given sets"


@dataclass(frozen=True, slots=True)
class Usual:
    """A field that a trainer's own default fills."""

    field: str
    value: Any
    why: str
    """What is not said, and whose default this is."""
    path: str


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What one file says."""

    path: str
    kind: str
    """What it was recognised as: ``Megatron-LM command``."""
    stated: tuple[Stated, ...] = ()
    unknown: tuple[Place, ...] = ()
    """Keys whose meaning is not known here."""
    idle: tuple[Place, ...] = ()
    """Known keys on which neither time nor memory depends here: learning rate, paths, logging."""
    software: tuple[str, ...] = ()
    """Software profiles that do what the file asks for, the most fitting first."""
    otherwise: tuple[str, ...] = ()
    """Software profiles that are meant where no file of the run asks for any."""
    usual: tuple[Usual, ...] = ()
    """Defaults of the trainer, which hold where no file and no option says the field."""
    architecture: Architecture | None = None
    """Of vocabulary 0 where the file does not say how many tokens there are."""
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    unset: tuple[Unset, ...] = ()
    named: tuple[Setting, ...] = ()
    """Settings whose value is another file of settings."""
    reads: frozenset[str] = frozenset()
    """Names of given files that it reads itself, so that they are not read again."""
    measured: bool = False
    """It tells of a run, and is nothing that could be changed."""


EVERY_STEPS = "run.checkpoints.every_steps"
SAVES, KEEPS = "run.checkpoints.mode", "run.checkpoints.keep"
CHECKPOINTS = (EVERY_STEPS, SAVES, KEEPS)
"""Of checkpoints: fields of the section [run] of a scenario, beside what `Stated` calls so."""

_MOST = {"run.steps": 10**18}
"""Fields that may be larger than any number of a layout or a recipe: steps of a sequence each."""

_VARIABLE = re.compile(r"[$`]")
_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")


UNSET_WORD = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*(?:\[[@*]\])?\}|\(.*\))|`[^`]*`", re.S)
"""A word of a command that nothing in its script sets: a value, other options, or nothing."""
_READ_AS_NOTHING = "stands in a variable that no file given sets: read as if it were empty"

_OTHER_FILES = (
    *("deepspeed", "deepspeed_config", "deepspeed_config_file", "ds_config"),
    *("deepspeed_config.deepspeed_config_file", "fsdp_config", "config_file"),
)
"""Keys that name a file of more settings."""


@dataclass
class Settings:
    """Settings of one file that are still to be understood; the last of several of a key holds."""

    path: str
    found: dict[str, Setting]
    stated: list[Stated] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unset: list[Unset] = field(default_factory=list)
    usual: list[Usual] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    trailing: dict[str, str] = field(default_factory=dict)
    """Options of a command, and variables behind their values that may hold further options."""

    @classmethod
    def of(cls, path: str, settings: Iterable[Setting]) -> Settings:
        """Settings of a file, in its order."""
        whole = cls(path=path, found={setting.key: setting for setting in settings})
        for key, item in whole.found.items():
            if not isinstance(item.value, str) or item.place.key[:1] != "-":
                continue
            words = item.value.split(" ")
            count = len(words)
            while count > 1 and UNSET_WORD.fullmatch(words[count - 1]):
                count -= 1
            if count < len(words):
                whole.found[key] = replace(item, value=" ".join(words[:count]))
                whole.trailing[key] = " ".join(words[count:])
        return whole

    def take(self, *keys: str) -> Setting | None:
        """The setting of the first of some names of a thing, which counts as understood."""
        given = [self.found[key] for key in keys if key in self.found]
        self.taken.update(setting.key for setting in given)
        return given[0] if given else None

    def resolve(self) -> None:
        """Put values in the place of references to other keys: ``${model.encoder_seq_length}``."""
        for key, setting in self.found.items():
            named = _REFERENCE.fullmatch(setting.value) if isinstance(setting.value, str) else None
            other = self.found.get(named[1]) if named else None
            if other is not None:
                self.found[key] = replace(setting, value=other.value)

    def at(self, *keys: str) -> Setting:
        """The setting of the first of some names that is there; one of them is."""
        return next(self.found[key] for key in keys if key in self.found)

    def say(self, name: str, value: Any, setting: Setting) -> None:
        """State a field."""
        self.stated.append(Stated(name, value, setting.place))

    def usually(self, name: str, value: Any, why: str) -> None:
        """State what a trainer's default fills where nothing says the field."""
        self.usual.append(Usual(name, value, why, self.path))

    def value_of(self, name: str) -> Any:
        """What was stated of a field; None where nothing was."""
        return next((item.value for item in self.stated if item.field == name), None)

    def whole(self, name: str, *keys: str, least: int = 1, most: int = LARGEST) -> int | None:
        """State a whole number from `least` to `most`; blanks, "auto" and None say nothing."""
        setting = self.take(*keys)
        if setting is None or setting.value in (None, "", "auto", "None", "null", "none"):
            return None
        number, most = as_whole(setting.value), _MOST.get(name, most)
        if isinstance(setting.value, str) and _VARIABLE.search(setting.value):
            self.unset.append(Unset(name, setting.value, setting.place))
            return None
        if number is None or not least <= number <= most:
            rule = f"must be a whole number from {least}"
            if number is not None and number > most:
                rule += f" to {most}"
            self.problems.append(problem(str(setting.place), "", rule, setting.value))
            return None
        if name:
            self.say(name, number, setting)
        return number

    def saves_every(self, *keys: str) -> None:
        """State the steps between checkpoints; 0 and below are never, a share of the run is said.

        A trainer without an interval of its own keeps the best one.
        """
        setting = self.take(*keys)
        if setting is None or setting.value in (None, "", "auto", "None", "null", "none"):
            return
        if isinstance(setting.value, str) and _VARIABLE.search(setting.value):
            self.unset.append(Unset(EVERY_STEPS, setting.value, setting.place))
            return
        number = as_whole(setting.value)
        if number is not None and 1 <= number <= LARGEST:
            self.say(EVERY_STEPS, number, setting)
        else:
            rule = "is no number of steps: checkpoints are as far apart as is best"
            self.notes.append(f"{setting.place}: {setting.value} {rule}")

    def waits_for_storage(self, why: str) -> None:
        """State that training waits for what it saves, where nothing says otherwise."""
        if self.value_of(EVERY_STEPS) is not None and self.value_of(SAVES) is None:
            self.usually(SAVES, "sync", why)

    def real(self, name: str, *keys: str) -> None:
        """State a number that may have a fraction."""
        setting = self.take(*keys)
        if setting is None or setting.value in (None, "", "auto", "None", "null", "none"):
            return
        if isinstance(setting.value, str) and _VARIABLE.search(setting.value):
            self.unset.append(Unset(name, setting.value, setting.place))
            return
        try:
            number = float(setting.value)
        except (TypeError, ValueError, OverflowError):
            rule = problem(str(setting.place), "", "must be a number", setting.value)
            self.problems.append(rule)
            return
        self.say(name, number, setting)

    def flag(self, *keys: str) -> bool | None:
        """Whether a switch is on; None where it is not there."""
        setting = self.take(*keys)
        if setting is None or setting.value is None:
            return None
        word = str(setting.value).strip().lower()
        if word in ("true", "1", "yes", "on"):
            return True
        if word in ("false", "0", "no", "off", "none", "null", ""):
            return False
        if word == "auto":
            return None
        if setting.place.key[:1] == "-" and UNSET_WORD.fullmatch(str(setting.value)):
            rule = f"{_READ_AS_NOTHING}, so that the switch is on"
            self.notes.append(f"{setting.place}: {setting.value!r} {rule}")
            return True
        if _VARIABLE.search(word):
            self.unset.append(Unset("", str(setting.value), setting.place))
            return None
        self.problems.append(problem(str(setting.place), "", "must be true or false", word))
        return None

    def one_of(self, name: str, switches_on: Iterable[str]) -> None:
        """Ask for a field of which several switches are on, though a trainer takes one of them."""
        places = [self.found[key].place for key in switches_on]
        if len(places) > 1:
            others = " and ".join(place.key for place in places[1:])
            why = f"is on beside {others}, of which a run has one"
            self.unset.append(Unset(name, places[0].key, places[0], why))

    def word(self, name: str, words: Mapping[str, Any], *keys: str) -> Any:
        """State what a word means; an unknown one is a problem that lists the known."""
        setting = self.take(*keys)
        if setting is None or setting.value in (None, "", "auto"):
            return None
        said = str(setting.value).strip().strip("'\"")
        if _VARIABLE.search(said):
            self.unset.append(Unset(name, said, setting.place))
            return None
        if said.lower() not in words:
            rule = f"must be one of {', '.join(words)}"
            self.problems.append(problem(str(setting.place), "", rule, said))
            return None
        if name:
            self.say(name, words[said.lower()], setting)
        return words[said.lower()]

    def _is_file(self, key: str) -> bool:
        value = self.found[key].value if key in self.found else None
        return isinstance(value, str) and value.endswith((".json", ".yaml", ".yml"))

    def rest(self, idle: Callable[[str], bool]) -> tuple[list[Place], list[Place]]:
        """Places of what nobody took: those that bear on nothing, and those not known."""
        left = [setting for key, setting in self.found.items() if key not in self.taken]
        quiet, unknown = list[Place](), list[Place]()
        for item in left:
            usual = isinstance(idle, IdleKeys) and idle.usual(item)
            silent = item.value is None or idle(item.key) or usual
            (quiet if silent else unknown).append(item.place)
        return quiet, unknown

    def reading(self, kind: str, idle: Callable[[str], bool], **more: Any) -> Reading:
        """All of it as the record that is handed on."""
        quiet, unknown = self.rest(idle)
        for key, words in self.trailing.items():
            if (place := self.found[key].place) not in quiet:
                self.notes.append(f"{place}: {words!r} behind it {_READ_AS_NOTHING}")
        return Reading(
            path=self.path,
            kind=kind,
            stated=tuple(self.stated),
            unknown=tuple(unknown),
            idle=tuple(quiet),
            notes=(*self.notes, *more.pop("notes", ())),
            problems=tuple(self.problems),
            unset=tuple(self.unset),
            usual=tuple(self.usual),
            named=tuple(self.found[key] for key in _OTHER_FILES if self._is_file(key)),
            **more,
        )


def as_whole(value: Any) -> int | None:
    """A whole number of a number or of its text; None for anything else.

    >>> as_whole("8"), as_whole(8.0), as_whole("1_000"), as_whole("5e8"), as_whole("1.5")
    (8, 8, 1000, 500000000, None)
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    if isinstance(value, str) and re.fullmatch(r"[ \t]*\d{1,18}(_\d+)*[ \t]*", value, re.ASCII):
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"\s*\d{1,9}(\.\d{1,9})?[eE]\+?\d{1,2}\s*", value):
        return as_whole(float(value))
    return None


def shown(value: Any) -> str:
    """A value as a list of statements shows it."""
    return value if isinstance(value, str) else brief(value).lower()


_TABLE = Path(__file__).resolve().parent / "idle_keys.toml"


@dataclass(frozen=True, slots=True)
class IdleKeys:
    """Keys of a dialect on which neither time nor memory depends."""

    names: frozenset[str]
    """Whatever their value."""
    values: Mapping[str, str]
    """Key -> the value with which alone it says nothing."""

    def __call__(self, key: str) -> bool:
        """Whether a key is idle whatever its value."""
        return key in self.names

    def usual(self, setting: Setting) -> bool:
        """Whether a setting says what holds without it, or leaves it to the trainer."""
        said = _plain(setting.value)
        return setting.key in self.values and said in (self.values[setting.key], "auto")


@cache
def idle_in(dialect: str) -> IdleKeys:
    """The idle keys of a dialect.

    >>> idle_in("megatron")("lr_decay_style"), idle_in("megatron")("cuda_graph_impl")
    (True, False)
    >>> place = Place("run.sh", "--test-mode")
    >>> [idle_in("megatron").usual(Setting("test_mode", on, place)) for on in (False, True)]
    [True, False]
    """
    table = read_toml(_TABLE)
    names = frozenset(word for words in table[dialect].values() for word in words.split())
    values = table["at"].get(dialect, {})
    return IdleKeys(names, {key: _plain(value) for key, value in values.items()})


def with_idle(reading: Reading, settings: Iterable[Setting], dialect: str) -> Reading:
    """A reading in another dialect's words, whose unknown keys may be idle in its own."""
    idle = idle_in(dialect)
    quiet = {item.place for item in settings if idle(item.key) or idle.usual(item)}
    return replace(
        reading,
        idle=(*reading.idle, *(place for place in reading.unknown if place in quiet)),
        unknown=tuple(place for place in reading.unknown if place not in quiet),
    )


def _plain(value: Any) -> str:
    """A value as one of its spellings: numbers without notation, words in small letters."""
    number = as_whole(value)
    word = str(value if number is None else number).strip("'\"").lower()
    return {"no": "false", "yes": "true", "null": "none", "": "none"}.get(word, word)
