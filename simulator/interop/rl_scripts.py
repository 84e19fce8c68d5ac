"""Scripts and configurations of RL frameworks as scenarios with [rl].

What a setting becomes stands in rl_dialects.toml: names and defaults are facts of the frameworks,
read here and put together. Nothing of a script is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from simulator.dotted_fields import put
from simulator.errors import InputError
from simulator.files import read_toml, yaml_of
from simulator.interop.dialects.python_calls import calls_of
from simulator.interop.dialects.settings import Setting, idle_in
from simulator.interop.shell.command_words import training_command
from simulator.interop.shell.shell_words import read_script
from simulator.plain_files import read_text
from simulator.scenario import Scenario, cluster_options, make_scenario
from simulator.workload import presets

_LIMIT_BYTES = 2**20
_ENOUGH = 2
"""Settings of a framework by which it is recognised."""

_LARGEST = 10**12
"""Largest number that is taken for meant."""

WORLD = "world_size"
"""Setting that stands for the ranks that train."""

PROGRAM, RANKS, ALL = "(program)", "num_processes", "(accelerators)"
"""Settings that stand for the script that is started, the ranks that a launcher starts, and the
accelerators that are named beside the script."""

CONFIGURATION = "config_file"
"""What a launcher is told of the file that says how states are shared."""

_MOST_TOLD = 40
"""Settings that stay out which are named."""

_MOST_BASES = 8
"""Configurations that one may stand over, one on the other."""

_HALF = 0.5
"""Share of the longest answer that is taken for the mean where a script says none."""

_CONFIGURATION = re.compile(r"(GRPO|RLOO|PPO|OnlineDPO)Config")
_TRAINER = re.compile(r"(GRPO|RLOO|PPO|OnlineDPO)Trainer")

_JOINED = re.compile(r" [*+-] ")
"""What joins settings to a formula."""

_ARRAY = re.compile(r"\s*\$\{\w+\[[@*]\]\}")
"""More settings, of an array that another script fills."""

_NOTHING = ("null", "none")
_TRUTHS, _ANY = ("true", "false"), "*"
_SECTIONS = ("rl", "cluster", "layout", "training")
"""Sections of which a dialect sets fields; other names are settings."""

_ENDINGS = ("-instruct", "-base", "-chat", "-hf", "-it")


@cache
def _dialects() -> dict[str, Any]:
    return read_toml(Path(__file__).with_suffix("").parent / "rl_dialects.toml")


def settings_of_file(path: Path) -> dict[str, Any]:
    """Settings of a YAML file, those of its `defaults` below them, or of a script.

    Of a shell script those of its command, of a Python script keywords of its configuration
    (``GRPOConfig(num_generations=8)``) and the model that its trainer is given.
    """
    text = read_text(path, _LIMIT_BYTES)
    if path.suffix == ".py":
        return dict(_of_python(calls_of(text, str(path))))
    if path.suffix in (".yaml", ".yml"):
        return dict(_of_yaml(path, text, 0))
    command = training_command(read_script(text, str(path)))
    settings = {PROGRAM: command.script.rpartition("/")[2]} if command.script else {}
    told = [item for item in command.launcher if item.key in (RANKS, CONFIGURATION)]
    settings |= {item.key: _plain(item.value) for item in told}
    for setting in command.settings:
        settings[setting.key.lstrip("-+~").replace("-", "_")] = _plain(setting.value)
    return settings


def dialect_of(settings: Mapping[str, Any]) -> str:
    """The framework whose settings these are; blank where they are none's."""
    scores = {
        name: sum(key in _named(settings, dialect) for key in dialect["known_by"])
        for name, dialect in _dialects().items()
    }
    best = max(scores, key=lambda name: scores[name])
    return best if scores[best] >= _ENOUGH else ""


def document_of(settings: Mapping[str, Any], name: str) -> tuple[dict[str, Any], list[str]]:
    """The sections that settings of a framework come to, and which settings were read.

    Raises
    ------
    InputError
        If a setting asks for what is not priced.
    """
    dialect = _dialects()[name]
    settings, parts = _named(settings, dialect), _parts(settings, dialect)
    known = {**dialect.get("usual", {}), **_filled(settings), **parts}
    for key, cases in dialect.get("refused", {}).items():
        if (reason := cases.get(str(known.get(key, "")).lower())) is not None:
            raise InputError(f"{key}: {reason}")
    fields: dict[str, Any] = {
        field: value for field, value in dialect.get("usual", {}).items()
        if field.partition(".")[0] in _SECTIONS
    }  # fmt: skip
    used = [*dialect["model"], *dialect.get("patterns", {})]
    formulas, answered = dict(dialect["fields"]), set[str]()  # by another setting, not by default
    for key, cases in dialect.get("when", {}).items():
        word = str(known.get(key, "")).lower()
        case = cases.get(word, cases.get(_ANY) if key in known else None)
        used += [key] if case is not None or word in _TRUTHS else []
        for field, value in (case or {}).items():
            if field.partition(".")[0] not in _SECTIONS:
                known[field] = value
                answered.add(field)
            elif value == "":
                formulas.pop(field, None)
                fields.pop(field, None)
            elif isinstance(value, str) and (value in known or _JOINED.search(value)):
                formulas[field] = value
            else:
                fields[field] = value
    for field, formula in formulas.items():
        for words in [formula] if isinstance(formula, str) else formula:
            value, keys = _value(words, known)
            if value is not None:
                fields[field] = value
                used += keys
                break
    document: dict[str, Any] = {"rl": {"framework": dialect["framework"]}}
    for field, value in fields.items():
        put(document, field, value, where=name)
    return document, [key for key in used if key not in answered or key in settings]


def _named(settings: Mapping[str, Any], dialect: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under the names by which the dialect knows them, whatever release wrote them."""
    names = dialect.get("renamed", {})
    return {names.get(key, key): value for key, value in settings.items()}


def _filled(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings but for those of no value, or of a variable that the script does not set."""
    return {
        key: value
        for key, value in settings.items()
        if not (isinstance(value, str) and (value[:1] == "$" or value.lower() in _NOTHING))
    }


def _parts(settings: Mapping[str, Any], dialect: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that stand in a word together (``sglang:d4t2``), under names of their own.

    Names of a pattern's groups have two underscores for a dot; a number that is left out is 1.
    """
    parts: dict[str, Any] = {}
    for key, pattern in dialect.get("patterns", {}).items():
        if (match := re.fullmatch(pattern, str(settings.get(key, "")))) is not None:
            for name, text in match.groupdict(default="1").items():
                parts[name.replace("__", ".")] = _plain(text)
    return parts


def scenario_from_script(
    path: Path, names: Mapping[str, Any], overrides: Iterable[str] = ()
) -> tuple[Scenario, list[str]]:
    """Make the scenario of a script; `names` are model, cluster, gpus and software as given.

    Returns
    -------
    scenario : Scenario
    lines : list of str
        What was read, what was assumed, and which settings stay out.

    Raises
    ------
    InputError
        If the file is of no framework that is known, or leaves out what [rl] needs.
    """
    overrides = list(overrides)
    names = cluster_options(names, overrides)
    settings = settings_of_file(path)
    dialect = dialect_of(settings)
    if not dialect:
        known = ", ".join(_dialects())
        raise InputError(f"{path}: not a script or configuration of {known}")
    facts = _dialects()[dialect]
    try:
        document, used = document_of({**settings, **_ranks(settings, names, facts)}, dialect)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    _mix(document)
    given = settings.keys() - {PROGRAM}
    renamed = facts.get("renamed", {})
    read = {key for key in given if renamed.get(key, key) in used}
    lines = [f"{path}: {dialect}, {len(read)} of {len(given)} settings are read"]
    others = sorted(given - read)
    if told := [key for key in others if not _idle(key)]:
        more = f" and {len(told) - _MOST_TOLD} more" if len(told) > _MOST_TOLD else ""
        lines.append(f"not read: {', '.join(told[:_MOST_TOLD])}{more}")
    if len(told) < len(others):
        lines.append(f"{len(others) - len(told)} more bear on neither time nor memory")
    if CONFIGURATION in given:
        rule = "the launcher's, is not read: --set layout.sharding=zero3 says how states are shared"
        lines.append(f"{settings[CONFIGURATION]}, {rule}")
    usual = facts.get("usual", {})
    named = _named(settings, facts)
    for key, cases in facts.get("told", {}).items():
        word = str(named.get(key, "")).lower()
        lines += [cases[word]] if word in cases else []
    unsaid = usual.keys() - named.keys()
    taken = [
        f"{key} = {value}"
        for key, value in usual.items()
        if key in unsaid and (key in used or _taken(document, key) == value)
    ]
    if taken:
        lines.append(f"usual with {dialect}, because not given: {', '.join(taken)}")
    model = names.get("model") or _model(settings, dialect, path)
    put(document, "model.name", model, where=str(path))
    for name in ("gpus", "software"):
        if names.get(name) is not None:
            put(document, f"cluster.{name}", names[name], where=str(path))
    if names.get("cluster") is None:
        raise InputError(f"{path}: say on what: --cluster NAME (and --gpus, where it says none)")
    put(document, "cluster.name", names["cluster"], where=str(path))
    lines += _assume(document, overrides)
    return make_scenario(document, where=str(path), overrides=overrides), lines


def _idle(key: str) -> bool:
    """Whether trainers have a setting of this name on which nothing depends."""
    return any(idle_in(dialect)(key.rpartition(".")[2]) for dialect in ("megatron", "trainer"))


def _taken(document: Mapping[str, Any], field: str) -> Any:
    """What a document has in a dotted field; None: nothing."""
    value: Any = document
    for name in field.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _ranks(
    settings: Mapping[str, Any], names: Mapping[str, Any], dialect: Mapping[str, Any]
) -> dict[str, int]:
    """All accelerators, and those that train, for batches that are given for each of their ranks.

    As many as a launcher starts; else the share of all that the dialect states.
    """
    gpus, facts = names.get("gpus"), dialect.get("ranks")
    if facts is None:
        return {}
    known = {**dialect.get("usual", {}), **settings}
    share = facts["share"].get(str(known.get(facts["by"])), 1.0)
    started = settings.get(RANKS)
    if gpus is None and share == 1.0 and isinstance(started, int):
        gpus = started
    if gpus is None:
        return {}
    ranks = started if isinstance(started, int) and 0 < started <= gpus else int(gpus * share)
    return {ALL: gpus, WORLD: ranks} | ({WORLD: settings[WORLD]} if WORLD in settings else {})


def _assume(document: dict[str, Any], overrides: Iterable[str]) -> list[str]:
    """Fill in what no script says, unless it is overridden; say so."""
    rl, training = document["rl"], document.setdefault("training", {})
    said = {text.partition("=")[0].strip() for text in overrides}
    longest = rl.get("longest_answer")
    lines = []
    if "rl.prompt_tokens" not in said and longest and rl.get("prompt_tokens"):
        lines.append(f"assumed: prompts as long as allowed, {rl['prompt_tokens']:,} tokens")
    if not said & {"rl.answer_tokens", "rl.answer_lengths", "rl.answer_file"}:
        room = longest or training.get("sequence_length", 0) - rl.get("prompt_tokens", 128)
        if room > 0:
            rl["answer_tokens"] = _HALF * room
            lines.append(
                f"assumed: answers have {rl['answer_tokens']:,.0f} tokens in the mean, half of the"
                " longest; --set rl.answer_tokens=N says what yours have"
            )
    if rl.get("reward") == "model" and "rl.reward_model" not in said:
        rl["reward_model"] = document["model"]["name"]
        lines.append(
            "assumed: the model that judges is of the policy's size; --set rl.reward_model=NAME"
        )
    answers = rl.pop("answers", None)
    if answers and "prompts" not in rl and "samples" in rl:
        rl["prompts"] = max(answers // max(rl["samples"], 1), 1)
    if "prompts" not in rl and "global_batch" in training and "samples" in rl:
        rl["prompts"] = max(training["global_batch"] // max(rl["samples"], 1), 1)
    if "global_batch" not in training and {"prompts", "samples"} <= set(rl):
        training["global_batch"] = rl["prompts"] * rl["samples"]
        lines.append("assumed: one update a step")
    return lines


def _mix(document: dict[str, Any]) -> None:
    """Colocated beside accelerators that only generate is mixed."""
    rl, cluster = document["rl"], document.setdefault("cluster", {})
    alone = rl.get("generation", {}).get("gpus")
    if rl.get("mode", "colocated") != "colocated" or alone is None:
        return
    if alone > 0:
        rl["mode"] = "mixed"
        cluster["gpus"] = cluster.get("gpus", 0) + alone
    else:
        del rl["generation"]["gpus"]


def _of_yaml(path: Path, text: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Leaves under dotted keys, those of the configurations below first."""
    table = yaml_of(text, str(path))
    if not isinstance(table, dict):
        raise InputError(f"{path}: must be a table of settings")
    bases = table.pop("defaults", [])
    for name in [bases] if isinstance(bases, str) else bases or []:
        base = path.parent / str(name)
        if depth < _MOST_BASES and isinstance(name, str) and base.is_file():
            yield from _of_yaml(base, read_text(base, _LIMIT_BYTES), depth + 1)
    yield from _leaves(table, "")


def _of_python(settings: Iterable[Setting]) -> Iterator[tuple[str, Any]]:
    for setting in settings:
        called, _, key = setting.key.rpartition(".")
        if _CONFIGURATION.fullmatch(called):
            yield key, setting.value
        elif _TRAINER.fullmatch(called) and key in ("model", "0"):
            yield "model_name_or_path", setting.value


def _leaves(table: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _plain(value: Any) -> Any:
    """A word of a command as the number or truth that it spells."""
    if not isinstance(value, str):
        return True if value is None else value
    text = _ARRAY.sub("", value).strip().strip("\"'")
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text if text else True


def _value(formula: str, known: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """The value of sums of products of settings; None where one is missing or no number."""
    terms = re.split(r" ([+-]) ", formula)
    products = [[key.strip() for key in term.split("*")] for term in terms[::2]]
    keys = [key for product in products for key in product]
    for key in keys:
        if isinstance(known.get(key), str) and "$" not in known[key]:
            raise InputError(f"{key}: must be a number, got {known[key][:40]!r}")
    if any(not isinstance(known.get(key), (bool, int, float)) for key in keys):
        return None, keys
    if wrong := [key for key in keys if not abs(known[key]) <= _LARGEST]:
        raise InputError(f"{wrong[0]}: must be a number up to {_LARGEST:,}")
    if len(keys) == 1:
        return known[keys[0]], keys
    signs = [1, *(1 if sign == "+" else -1 for sign in terms[1::2])]
    factors = ([known[key] for key in product] for product in products)
    return sum(sign * prod(some) for sign, some in zip(signs, factors, strict=True)), keys


def _model(settings: Mapping[str, Any], dialect: str, path: Path) -> str:
    """The model of the zoo that a checkpoint's name means."""
    settings = _named(settings, _dialects()[dialect])
    for key in _dialects()[dialect]["model"]:
        text = str(settings.get(key, "")).rstrip("/").rpartition("/")[2].lower()
        text = text.removeprefix("meta-")
        for ending in ("", *_ENDINGS):
            name = text.removesuffix(ending) if ending else text
            if name in presets.names():
                return name
        if text:
            rule = "is no model of the zoo; name one, or a config.json, with --model"
            raise InputError(f"{path}: {key}: {text} {rule}")
    raise InputError(f"{path}: names no model; say which with --model")
