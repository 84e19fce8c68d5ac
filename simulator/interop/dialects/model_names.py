"""Which model of the zoo a launch file means by the name of a repository, a recipe or a flavor."""

from __future__ import annotations

from simulator.interop.dialects.settings import Setting, Settings
from simulator.workload import presets


def zoo_model(repository: str) -> str | None:
    """The zoo's model with the sizes of a repository or of a folder of its name.

    >>> zoo_model("Meta-Llama-3.1-8B-Instruct"), zoo_model("llama3.1_70B.yaml")
    ('llama-3.1-8b', 'llama-3.1-70b')
    """
    return presets.named(repository)


def say_model(settings: Settings, setting: Setting) -> None:
    """State the model of a repository's name; one that is not in the zoo is asked for by name."""
    said = str(setting.value).strip("'\"")
    if not said or len(said) > 200 or "$" in said:
        return
    known = zoo_model(said)
    settings.say("model.name" if known else "run.model", known or said, setting)
