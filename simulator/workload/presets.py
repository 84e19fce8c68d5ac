"""The zoo: published model configurations that are shipped with the package, loaded by name.

The files are ``zoo/*.json``, each a Hugging Face ``config.json`` with its published values. The
``gpt3-*`` and ``megatron-*`` are sizes from papers written in the fields of ``gpt2``.
``zoo/sources.toml`` says where each is published.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from dataclasses import replace
from difflib import SequenceMatcher
from operator import attrgetter
from pathlib import Path

from simulator.errors import InputError, nearest, problem
from simulator.files import read_toml
from simulator.plain_files import kind_of_file
from simulator.spellings import model_named, spellings
from simulator.workload.architecture import Architecture
from simulator.workload.families import table as families
from simulator.workload.huggingface import read_config

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")

_LONGEST = 200
"""Characters of the longest name that is looked at."""

_ZOO = Path(__file__).resolve().parent / "zoo"


def names() -> list[str]:
    """List the models of the zoo in alphabetical order."""
    return sorted(map(attrgetter("stem"), _ZOO.glob("*.json")))


def sources() -> dict[str, str]:
    """Where the sizes of each model are published, by its name."""
    return read_toml(_ZOO / "sources.toml")


def named(name: str) -> str | None:
    """The model of the zoo that a repository, a folder or a table means; None: it has none.

    >>> named("meta-llama/Llama-2-7b-chat-hf"), named("LLAMA3-8B"), named("facebook/opt-13b")
    ('llama-2-7b', 'llama-3-8b', None)
    """
    published = sources()
    hubs = {known: published.get(known, "") for known in names()}
    repositories = {k: v.removeprefix("hf:") if v[:3] == "hf:" else "" for k, v in hubs.items()}
    return model_named(name, repositories)


def _of_hub(repository: str) -> Path | None:
    """Find a model by its Hugging Face id among what was downloaded here.

    The cache is where huggingface_hub keeps it: ``HF_HUB_CACHE``, ``HF_HOME/hub``, or
    ``~/.cache/huggingface/hub``; the snapshot is that of the branch main, else the only one.
    """
    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    folder = hub / f"models--{repository.replace('/', '--')}"
    branch = folder / "refs" / "main"
    revision = branch.read_text(encoding="utf-8").strip() if branch.is_file() else "*"
    configs = sorted(folder.glob(f"snapshots/{revision}/config.json"))
    return configs[0] if len(configs) == 1 else None


def load(
    name_or_path: str, *, where: str = "model", field: str = "name", trace_tokens: int = 0
) -> Architecture:
    """Load a model of the zoo, a ``config.json`` (or a folder with one), or a Hugging Face id.

    A name of the zoo comes before a file or folder of the same name, either before another
    spelling of a name (:func:`named`); an id (``owner/name``) is one
    of the zoo's sources or in the local cache of Hugging Face. Nothing is downloaded.

    Parameters
    ----------
    name_or_path : str
        A name that :func:`names` lists, a path, or a Hugging Face id.
    where, field : str
        The file and field that asked for it, for messages.
    trace_tokens : int
        Tokens of a sample at which a type that no row describes is traced; 0: it is refused.

    Raises
    ------
    InputError
        If there is no such model, with a name for the same sizes; or every problem of the config.

    Examples
    --------
    >>> load("llama-3.1-8b").parameters
    8030261248
    """
    text = os.fspath(name_or_path) if isinstance(name_or_path, os.PathLike) else name_or_path
    if not isinstance(text, str):
        raise InputError(problem(where, field, "must be the name or path of a model", text))
    known = names()
    if text in known:
        return read_config(_ZOO / f"{text}.json")
    if text and os.path.exists(text):
        if kind := kind_of_file(os.stat(text).st_mode):
            raise InputError(problem(where, field, f"must be a file or a folder, not {kind}", text))
        return read_config(text, trace_tokens=trace_tokens)
    if (spelled := named(text)) is not None:
        return read_config(_ZOO / f"{spelled}.json")
    if text.endswith(".json"):
        raise InputError(problem(where, field, "no such file", text))
    rule = "must be a model of the zoo or the path of a config.json"
    if _HUB_ID.fullmatch(text):
        rule += ", or the id of a model in the local cache of Hugging Face"
        there = _of_hub(text)
        if there is not None:
            return replace(
                read_config(there, trace_tokens=trace_tokens), name=text.partition("/")[2]
            )
    raise InputError(problem(where, field, rule, text) + _of_the_same_size(text, known))


_KINDS = (
    "decoders of text (llama-3.1-8b), mixtures of experts (mixtral-8x7b), encoders (bert-large),"
    " encoder-decoders (t5-11b), images (vit-large-16, resnet-50)"
)
"""Kinds of models in the zoo, one of each."""


def _of_the_same_size(text: str, known: Iterable[str]) -> str:
    """A name that is spelled alike and says the same numbers, or what else can be given.

    >>> _of_the_same_size("llama3.1-8b", ["llama-3.1-8b"])
    " (did you mean 'llama-3.1-8b'?)"
    >>> _of_the_same_size("qwen3-14b", ["qwen3-8b"])[:18]
    ' (known: qwen3-8b;'
    >>> _of_the_same_size("yi-34b", ["qwen3-8b", "qwen3-32b"])[:41]
    ' (known of about this size: qwen3-32b; it'
    """
    text = text.rpartition("/")[2]
    names, word = sorted(known), _first_word(text)
    numbers = re.findall(r"\d+", text)
    alike = [
        name
        for name in names
        if (not numbers or re.findall(r"\d+", name) == numbers)
        and SequenceMatcher(None, word, _first_word(name)).ratio() > _ALIKE
    ]
    if hint := nearest(text, alike):
        return hint
    other = _in_its_place(text)
    same = [name for name in names if word and _first_word(name) == word]
    near = [name for name in names if _size_ratio(text, name) < _NEAR_SIZE]
    known_ones = f"known of about this size: {', '.join(near)}" if near and not same else ""
    known_ones = known_ones or f"known: {', '.join(same or names)}"
    listed = f"{known_ones}; " if same or not other else ""
    if near and not other:
        listed += "its own config.json from Hugging Face says its shape: --model PATH; "
    return f" ({listed}{other}kinds: {_KINDS})"


_ALIKE = 0.6
"""Likeness of the first words of two names from which on one may be the other, mistyped."""


_NEAR_SIZE = 1.15
"""Ratio of billions of parameters up to which one model can stand in for another."""


_BILLIONS = re.compile(r"(?:^|[-_ ])(\d+(?:\.\d+)?)b\b")


def _size_ratio(text: str, name: str) -> float:
    """Ratio of the billions of parameters that two names state, the larger over the smaller.

    >>> _size_ratio("yi-34b", "qwen3-32b"), _size_ratio("yi-34b", "phi-4")
    (1.0625, inf)
    """
    stated = [_BILLIONS.search(words.lower()) for words in (text, name)]
    sizes = sorted(float(size[1]) for size in stated if size)
    return sizes[1] / sizes[0] if len(sizes) == 2 and sizes[0] else math.inf


def _first_word(name: str) -> str:
    """Letters before the first digit, hyphen or blank, in small letters."""
    letters = re.match(r"[a-z]+", name.lower())
    return letters[0] if letters else ""


def _hyphens(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name)


def _in_its_place(text: str) -> str:
    """What can be given for a model that the zoo has not: by the beginning of its name."""
    plain = _hyphens(text.rpartition("/")[2].lower()[:_LONGEST])

    def longest(words: Iterable[str]) -> str:
        begins = (w for w in words if re.match(rf"{re.escape(_hyphens(w))}(?![a-z])", plain))
        return max(begins, key=len, default="")

    family, outside = longest(families.names()), spellings().nearest_kind
    said = (
        f'its config.json can be read (model_type = "{family}"): give the path as model.name; '
        if family
        else ""
    )
    if kind := longest(outside):
        if not family:
            said = (
                "no row of a config.json describes it: give the module itself, Workload.from_torch"
                " in Python; "
            )
        said += f"of the zoo, {outside[kind]} is of its kind, at another size; "
    return said
