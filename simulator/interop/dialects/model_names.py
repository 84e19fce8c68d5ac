"""Which model of the zoo a launch file means by the name of a repository, a recipe or a flavor."""

from __future__ import annotations

import re

from simulator.interop.dialects.settings import Setting, Settings
from simulator.workload import presets

_TUNED = re.compile(r"-(?:hf|instruct|chat|base|it)$")
"""Endings of repositories whose weights were trained on, in the same sizes."""


def zoo_model(repository: str) -> str | None:
    """The zoo's model with the sizes of a repository or of a folder of its name.

    >>> zoo_model("meta-llama/Llama-2-7b-chat-hf"), zoo_model("Meta-Llama-3.1-8B-Instruct")
    ('llama-2-7b', 'llama-3.1-8b')
    >>> zoo_model("facebook/opt-13b")
    """
    plain = _plain(repository)
    for name, source in presets.sources().items():
        if plain in (name, _plain(source.removeprefix("hf:"))):
            return name
    return None


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
