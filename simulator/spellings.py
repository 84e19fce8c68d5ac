"""Models and devices by the names that others give them: nvidia-smi, repositories, tables, logs.

One table has what no rule explains (``hardware_profiles/spellings.toml``); the rule compares
letters and digits alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from simulator import catalogue
from simulator.files import build, read_toml, record

_LONGEST = 200
"""Characters of the longest name that is looked at."""

_FILE = re.compile(r"\.(?:ya?ml|json|toml)$")
_SIZE = re.compile(r"(?<![a-z0-9.])(\d+x)?(\d+)(?:\.0)?(\.\d+)?b(?![a-z0-9])")


@record
class Spellings:
    """``spellings.toml``."""

    makers: tuple[str, ...]
    endings: tuple[str, ...]
    beginnings: tuple[str, ...]
    models: dict[str, tuple[str, ...]]
    precisions: dict[str, tuple[str, ...]]
    accelerators: dict[str, tuple[str, ...]]
    nearest_kind: dict[str, str]
    """How names of models begin that the zoo has none of, and a model of it that computes alike."""


def spellings() -> Spellings:
    """The table of spellings that is shipped."""
    return _read(catalogue.folder("hardware_profiles") / "spellings.toml")


@lru_cache(maxsize=4)
def _read(path: Path) -> Spellings:
    return build(Spellings, read_toml(path), where=str(path))


@lru_cache(maxsize=4096)
def plain_model(name: str) -> str:
    """A model's name without owner, endings, and what parts its words; its size stands last.

    >>> plain_model("meta-llama/Meta-Llama-3-8B-Instruct"), plain_model("LLAMA3-8B")
    ('llama3 8b', 'llama3 8b')
    >>> plain_model("Llama31-8B") == plain_model("llama-3.1-8b"), plain_model("gpt3-2.7b")
    (True, 'gpt3 2.7b')
    """
    table = spellings()
    text = name[:_LONGEST].strip().rstrip("/").rpartition("/")[2].lower()
    text = _FILE.sub("", text)
    size = next(iter(_SIZE.finditer(text)), None)
    if size is not None:
        text = f"{text[: size.start()]} {text[size.end() :]}"
    words = [word for part in re.split(r"[^a-z0-9.]+", text) if (word := part.strip("."))]
    while len(words) > 1 and words[-1] in table.endings:
        words.pop()
    while len(words) > 1 and words[0] in table.beginnings:
        words.pop(0)
    letters = re.sub(r"[^a-z0-9]", "", "".join(words))
    return letters if size is None else f"{letters} {size[1] or ''}{size[2]}{size[3] or ''}b"


def model_named(name: str, known: Mapping[str, str]) -> str | None:
    """The model of `known` (name -> repository, or blank) that a name means; None: none of them.

    >>> model_named("LLAMA3-8B", {"llama-3-8b": "", "llama-3.1-8b": ""})
    'llama-3-8b'
    """
    if name in known:
        return name
    plain = plain_model(name)
    for model, repository in known.items():
        other = spellings().models.get(model, ())
        if plain in {plain_model(x) for x in (model, *filter(None, (repository,)), *other)}:
            return model
    return None


@lru_cache(maxsize=4096)
def plain_device(name: str) -> str:
    """A device's name in small letters and digits, without its maker.

    >>> plain_device("NVIDIA H100 80GB HBM3"), plain_device("Tesla V100-SXM2-16GB")
    ('h10080gbhbm3', 'v100sxm216gb')
    """
    text = re.sub(
        r"[^a-z0-9]+", " ", name[:_LONGEST].lower().replace("(r)", "").replace("(tm)", "")
    )
    words = [word for word in text.split() if word not in spellings().makers]
    return "".join(words)


def _sorted_device(name: str) -> str:
    """The same with its words in one order, ``80G`` as ``80gb`` and a count (``8x``) left out.

    >>> _sorted_device("8x H100-80G-SXM5") == _sorted_device("H100 SXM5 80GB")
    True
    """
    words = re.sub(r"\b(\d+)g\b", r"\1gb", re.sub(r"[^a-z0-9]+", " ", name[:_LONGEST].lower()))
    words = re.sub(r"^(?:\d+x|x\d+) ?", "", words)
    return plain_device(" ".join(sorted(words.split())))


def accelerator_named(name: str, known: Iterable[str]) -> str | None:
    """The profile of `known` that the name of a device means; None: none of them.

    >>> accelerator_named("NVIDIA A100-SXM4-80GB", ["a100-sxm-80", "h100-sxm"])
    'a100-sxm-80'
    """
    names = list(known)
    for plain in (plain_device, _sorted_device):
        word = plain(name)
        for profile in names:
            if word == plain(profile):
                return profile
        for profile, others in spellings().accelerators.items():
            if profile in names and word in map(plain, others):
                return profile
    return None


def precision_named(word: str) -> str:
    """A scenario's word for the type of large products; the word itself where it is no other's.

    >>> precision_named("BF16"), precision_named("FP8-CS"), precision_named("int8")
    ('bf16', 'fp8_current', 'int8')
    """
    plain = re.sub(r"[^a-z0-9]+", "", word[:_LONGEST].lower())
    for name, others in spellings().precisions.items():
        if plain in (re.sub(r"[^a-z0-9]+", "", other) for other in (name, *others)):
            return name
    return word


_SCALED = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s?([kKMGBT])")
_TIMES = {"k": 1, "K": 1, "M": 2, "G": 3, "B": 3, "T": 4}
_POWER = re.compile(r"\s*\d{1,9}(?:\.\d{0,9})?[eE]\+?\d{1,2}\s*")
"""What YAML 1.1 takes for text for want of a point and a sign: ``2e12``."""
_SUFFIX = re.compile(r"^\s*\d[\d.]*\s?[kKMGBT](?:\s*\.\.|\s*$)|\.\.\s*\d[\d.]*\s?[kKMGBT]\s*$")


def numbers_written_out(document: Mapping[str, Any]) -> dict[str, Any]:
    """Sections whose fields say ``8k``, ``2M`` or ``1T`` as the numbers that these are.

    Of lengths of sequences k is 1,024 and M its square, as models' contexts are named; of all else
    1,000 and so on. Ends of ranges (``4k..16k``) and items of lists count as well.

    >>> numbers_written_out({"training": {"tokens": "1.5T", "sequence_length": "4k..8k"}})
    {'training': {'tokens': 1500000000000, 'sequence_length': '4096..8192'}}
    >>> numbers_written_out({"training": {"tokens": "2e12"}})  # a number of YAML without a point
    {'training': {'tokens': 2000000000000}}
    """
    return {
        name: {
            key: number_written_out(key, value)
            if value.__class__ is list
            or (
                value.__class__ is str
                and (key == "precision" or _SUFFIX.search(value) or _POWER.fullmatch(value))
            )
            else value
            for key, value in fields.items()
        }
        if isinstance(fields, Mapping) and name != "model"
        else fields
        for name, fields in document.items()
    }


def number_written_out(field: str, value: Any) -> Any:
    """A value of a field with its ``k``, ``M``, ``B`` or ``T`` as a number; others as they are."""
    if isinstance(value, list):
        return [number_written_out(field, item) for item in value]
    if not isinstance(value, str) or len(value) > 60:
        return value
    if field.rpartition(".")[2].strip() == "precision":
        return precision_named(value)
    if _POWER.fullmatch(value):
        number = float(value)
        return int(number) if number.is_integer() and number < 1e18 else number
    if not _SUFFIX.search(value):
        return value
    base = 1024 if "length" in field else 1000
    text = _SCALED.sub(lambda m: _whole(m[1], base ** _TIMES[m[2]]), value.strip())
    return int(text) if text.isdigit() else text


def _whole(digits: str, times: int) -> str:
    """``1.5`` x 10**12 without the error of a float; a fraction that is left stays one."""
    whole, _, part = digits.partition(".")
    number, left = divmod(int(whole + part) * times, 10 ** len(part))
    return str(number) if left == 0 else f"{int(whole + part) * times / 10 ** len(part):.9g}"


def override_written_out(text: str) -> str:
    """``training.tokens=1T`` with the number itself.

    >>> override_written_out("training.sequence_length=8k")
    'training.sequence_length=8192'
    >>> override_written_out("training.precision=BF16")
    'training.precision=bf16'
    """
    key, equals, value = text.partition("=")
    if not equals or key.strip().startswith("model."):
        return text
    return f"{key}={number_written_out(key, value)}"
