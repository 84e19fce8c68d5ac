"""The training command of a script: its launcher, its program, and the settings of both.

And how many servers and accelerators the launcher asks for.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from dataclasses import replace

from simulator.errors import InputError
from simulator.interop.dialects.settings import (
    MOST_SETTINGS,
    UNSET_WORD,
    Place,
    Setting,
    Settings,
)
from simulator.interop.dialects.training_ways import way_of
from simulator.interop.shell.shell_words import Script, Word, read_script
from simulator.records import dataclass

_STARTERS = {
    *("torchrun", "deepspeed", "accelerate", "srun", "mpirun", "mpiexec", "python", "python3"),
    "torch.distributed.run",
    "torch.distributed.launch",
}
_ENTRIES = ("trl", "llamafactory-cli", "axolotl", "swift")
"""Commands whose next word says what is done, and whose options follow it."""
_OF_MEGATRON = ("sft", "pt", "rlhf")
"""Words behind ``megatron`` that make it ms-swift's command."""
_PRINTS = ("echo", "printf")
_SCRIPT = re.compile(r"[^\s=]+\.py")
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*(?:=.*)?", re.S)
_OVERRIDE = re.compile(r"\+{0,2}~?([A-Za-z_]\w*(?:[./@:]\w+)*)=(.*)", re.S)
_FEW = 3
"""Settings of a program that trains, where another that does not has more."""
_MOST_INNER = 64
"""Commands within words that are looked into."""

_INNER = re.compile(r" --|\.py\s|\s-m\s")
"""What a word that is a command of its own has."""

_WRITTEN = re.compile(r"(?<![\w-])--?[A-Za-z][\w.-]*")
_LAUNCHES = (
    "gaudi_spawn.py",
    "launch.py",
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
)


@dataclass(frozen=True)
class Command:
    """The command that trains, taken apart."""

    script: str
    """The program: ``pretrain_gpt.py``, ``torchtitan.train``."""
    launcher: tuple[Setting, ...]
    """Options of what starts it: torchrun, deepspeed, srun."""
    settings: tuple[Setting, ...]
    """Options of the program itself."""
    starter: str = ""
    """What starts it: torchrun, accelerate."""


def training_command(script: Script) -> Command:
    """The command with most settings; of a script without one, what its arrays hold.

    One that is only printed is taken where none runs.
    """
    runs, printed = list[Command](), list[Command]()
    for words in _commands(script):
        if (command := _taken_apart(words, script.path)) is not None:
            (printed if words[0].text in _PRINTS else runs).append(command)
    by_settings = sorted(runs or printed, key=lambda command: -len(command.settings))
    trains = [x for x in by_settings if way_of(x.script) != "nothing" and len(x.settings) >= _FEW]
    best = next(iter([*trains, *by_settings]), None)
    if best is not None and best.settings:
        return replace(best, settings=_placed(best.settings, script.text))
    words = [
        Word(text, script.lines_of.get(name, 0))
        for name, value in script.variables.items()
        if isinstance(value, list) or "--" in value
        for text in (value if isinstance(value, list) else value.split())
    ]
    loose = settings_of(words, script.path)
    if best is None:
        return Command("", (), loose)
    return replace(best, settings=loose)


def _placed(settings: tuple[Setting, ...], text: str) -> tuple[Setting, ...]:
    """Settings with the line where their flag is written, be it in a variable; else their own."""
    lines = {
        flag: number
        for number, line in enumerate(text.split("\n"), 1)
        if not line.lstrip().startswith("#")
        for flag in _WRITTEN.findall(line)
    }
    return tuple(
        replace(item, place=replace(item.place, line=lines.get(item.place.key, item.place.line)))
        for item in settings
    )


def _commands(script: Script) -> Iterable[list[Word]]:
    """Commands, and those that stand as a text in one: ``bash -c "torchrun ..."``."""
    scanned = 0
    for words in script.commands:
        yield words
        for word in words:
            if _INNER.search(word.text) and scanned < _MOST_INNER:
                scanned += 1
                inner = read_script(word.text, script.path, _plain(script))
                yield from ([Word(w.text, word.line) for w in some] for some in inner.commands)


def _plain(script: Script) -> dict[str, str]:
    return {k: v for k, v in script.variables.items() if isinstance(v, str) and len(v) < 1000}


def _taken_apart(words: list[Word], path: str) -> Command | None:
    """Launcher, program and settings of a command; None if it starts no program."""
    names = [word.text.rpartition("/")[2] for word in words]
    pairs = enumerate(zip(names, [*names[1:], ""], strict=True))
    entry = next((at for at, pair in pairs if _is_entry(*pair)), None)
    if entry is not None:
        rest = settings_of(words[entry + 2 :], path)
        count = 3 if names[entry] == "nemo" else 2
        named = " ".join(names[entry : entry + count])
        return Command(named, settings_of(words[:entry], path), rest)
    if not any(name in _STARTERS or _SCRIPT.fullmatch(name) for name in names):
        return None
    starter = next((name for name in names if name in _STARTERS), "")
    for at, word in enumerate(words):
        before = names[at - 1] if at else ""
        by_module = before == "-m" or (before == "--module" and starter == "deepspeed")
        module = by_module and word.text not in _LAUNCHES
        program = _SCRIPT.fullmatch(word.text) and names[at] not in _LAUNCHES
        valued = before.startswith("--") and "=" not in before and before != "--use_deepspeed"
        if module or (program and not valued):
            started = settings_of(words[:at], path)
            return Command(word.text, started, settings_of(words[at + 1 :], path), starter)
    return None


def _is_entry(name: str, after: str) -> bool:
    if name == "nemo":
        return after == "llm"
    return name in _ENTRIES or (name == "megatron" and after in _OF_MEGATRON)


def settings_of(words: list[Word], path: str) -> tuple[Setting, ...]:
    """Flags with the words behind them, ``key=value``, and variables that nothing sets."""
    settings: list[Setting] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        override = _OVERRIDE.fullmatch(word.text)
        if UNSET_WORD.fullmatch(word.text):
            name = word.text.partition(".")[0] if word.text[1:2] != "(" else "$()"
            settings.append(Setting(name, True, Place(path, word.text[:80], word.line)))
        elif _FLAG.fullmatch(word.text):
            flag, equals, value = word.text.partition("=")
            values = [value] if equals else []
            while not equals and at < len(words) and not _starts(words[at].text):
                values.append(words[at].text)
                at += 1
            given = True if not values else values[0] if len(values) == 1 else " ".join(values)
            place = Place(path, flag, word.line)
            settings.append(Setting(flag.lstrip("-").replace("-", "_"), given, place))
        elif override:
            place = Place(path, override[1], word.line)
            settings.append(Setting(override[1], override[2].strip("'\""), place))
        if len(settings) > MOST_SETTINGS:
            raise InputError(f"{path}: must have at most {MOST_SETTINGS} settings in a command")
    return tuple(settings)


def _starts(text: str) -> bool:
    """Whether a word begins another setting."""
    return bool(_FLAG.fullmatch(text)) or bool(_OVERRIDE.fullmatch(text) and "/" not in text[:1])


def _of_runai(settings: Settings) -> None:
    """``runai training pytorch submit --workers 3 --gpu-devices-request 8``: workers and a master.

    docs.nvidia.com/run-ai, reference of the command line, read on 2026-11-27.
    """
    devices = settings.take("gpu_devices_request")
    if devices is None or not re.fullmatch(r"[1-9]\d{0,5}", str(devices.value)):
        return
    if settings.value_of("run.per_node") is None:
        settings.say("run.per_node", int(devices.value), devices)
    workers = settings.take("workers")
    if workers is None or settings.value_of("run.nodes") is not None:
        return
    if re.fullmatch(r"\d{1,6}", str(workers.value)):
        master = "no_master" not in settings.found
        settings.say("run.nodes", int(workers.value) + master, workers)


def read_launcher(settings: Settings, variables: Container[str] = ()) -> None:
    """State servers and accelerators of torchrun, deepspeed, accelerate, srun and mpirun.

    A variable that nobody sets says nothing here: often the job's head or its cluster sets it.
    Where the script or its operator sets PET_NNODES of `variables`, torchrun takes that in place of
    one server (torch/distributed/run.py: every option has such a variable).
    """
    tasks = () if "nproc_per_node" in settings.found else ("ntasks",)
    for name, keys in (
        ("run.nodes", ("nnodes", "num_nodes", "num_machines", "nodes", "N")),
        ("run.per_node", ("nproc_per_node", "num_gpus", "gpus_per_node", "ntasks_per_node")),
        ("cluster.gpus", ("num_processes", "np", *tasks)),
    ):
        setting = settings.take(*keys)
        if setting is not None and re.fullmatch(r"[1-9]\d{0,7}", str(setting.value)):
            settings.say(name, int(setting.value), setting)
    hosts = settings.found.get("host") or settings.found.get("H")  # colossalai run's
    several = hosts is not None and "," in str(hosts.value)
    if hosts is not None and several and settings.value_of("run.nodes") is None:
        settings.take("host", "H")
        settings.say("run.nodes", len(str(hosts.value).strip(",").split(",")), hosts)
    _of_runai(settings)
    each = settings.value_of("run.per_node")
    alone = not {"nnodes", "num_nodes", "num_machines", "hostfile", "workers"} & set(settings.found)
    alone &= not any(key.startswith("$") for key in settings.found)  # which may hold one of them
    starter = next((key for key in ("nproc_per_node", "num_gpus") if key in settings.found), "")
    alone = (
        alone and not several and not (starter == "nproc_per_node" and "PET_NNODES" in variables)
    )
    if each is not None and starter and alone:
        settings.say("run.nodes", 1, settings.found[starter])  # torchrun's and deepspeed's default
