"""Which model of the zoo a launch file means by the name of a repository, a recipe or a flavor."""

from __future__ import annotations

from simulator.interop.dialects.settings import Setting, Settings, Unset
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


def say_teacher(settings: Settings, setting: Setting | None) -> None:
    """State the frozen model beside the trained one; one that is not in the zoo is asked for."""
    name = "" if setting is None or setting.value is None else str(setting.value).strip("'\"")
    if setting is None or not name:
        return
    if known := zoo_model(name[:200]):
        settings.say("distillation.teacher", known, setting)
    else:
        why = "is no model of the zoo"
        settings.unset.append(Unset("distillation.teacher", name[:99], setting.place, why))
