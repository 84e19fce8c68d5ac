"""Which model of the zoo a launch file means by the name of a repository, a recipe or a flavor."""

from __future__ import annotations

import re

from simulator.interop.dialects.settings import Setting, Settings
from simulator.workload import presets

_TUNED = re.compile(r"(?:-(?:hf|instruct|chat|base|it)|[-_]v0\.\d|\.ya?ml)$")
"""Endings of repositories whose weights were trained on, in the same sizes, and of files."""


_SAME_SIZES = {
    "llama3.370b": "llama-3.1-70b", "deepseekv3671b": "deepseek-v3",
    "llama417b16e": "llama-4-scout", "llama417bx16e": "llama-4-scout",
    "llama417b128e": "llama-4-maverick", "llama417bx128e": "llama-4-maverick",
}  # fmt: skip
"""Names without what parts their words -> the model of the zoo with those sizes."""


def zoo_model(repository: str) -> str | None:
    """The zoo's model with the sizes of a repository or of a folder of its name.

    >>> zoo_model("meta-llama/Llama-2-7b-chat-hf"), zoo_model("Meta-Llama-3.1-8B-Instruct")
    ('llama-2-7b', 'llama-3.1-8b')
    >>> zoo_model("llama3.1_70B.yaml"), zoo_model("qwen3_30b_a3b"), zoo_model("facebook/opt-13b")
    ('llama-3.1-70b', 'qwen3-30b-a3b', None)
    """
    plain = _plain(repository)
    spelled = _letters(plain)
    alike = None
    for name, source in presets.sources().items():
        known = (name, _plain(source.removeprefix("hf:")))
        if plain in known:
            return name
        if alike is None and spelled in map(_letters, known):
            alike = name
    return alike or _SAME_SIZES.get(spelled)


def _letters(name: str) -> str:
    """A name without what parts its words, which every trainer writes otherwise."""
    return re.sub(r"[^a-z0-9.]|\.0(?=b)", "", name)


def _plain(repository: str) -> str:
    text = repository.rstrip("/").rpartition("/")[2].lower().removeprefix("meta-")
    while found := _TUNED.search(text):
        text = text[: found.start()]
    return text


def say_model(settings: Settings, setting: Setting) -> None:
    """State the model of a repository's name; one that is not in the zoo is asked for by name."""
    said = str(setting.value).strip("'\"")
    if not said or len(said) > 200 or "$" in said:
        return
    known = zoo_model(said)
    settings.say("model.name" if known else "run.model", known or said, setting)
