"""Every question that has a command: one line each, in the order in which help lists them.

A module registers its questions (:func:`simulator.cli.runner.question`) when it is loaded, which is
when one of them is asked: reading the options of all takes longer than most of them run.
"""

from __future__ import annotations

from importlib import import_module

from simulator.cli.runner import Question, registered

QUESTIONS = {
    "plan": "simulator.questions.plan.command",
    "predict": "simulator.questions.predict.command",
    "export": "simulator.questions.export.command",
    "serve": "simulator.explorer.command",
    "simulate": "simulator.questions.simulate.command",
    "compare": "simulator.questions.compare.command",
    "size": "simulator.questions.size.command",
    "doctor": "simulator.doctor.command",
    "rent-or-buy": "simulator.questions.rent_or_buy.command",
    "what-if": "simulator.questions.versus.command",
    "versus": "simulator.questions.versus.command",
    "sweep": "simulator.questions.sweep.command",
    "models": "simulator.questions.catalogue.command",
    "fields": "simulator.questions.catalogue.command",
    "schema": "simulator.questions.schema.command",
    "explain": "simulator.questions.explain.command",
    "sites": "simulator.questions.sites.command",
    "parameter-server": "simulator.questions.parameter_server.command",
    "recommender": "simulator.questions.sparse.command",
    "schedule": "simulator.questions.job_schedule.command",
    "distil": "simulator.questions.distillation.command",
    "rl": "simulator.questions.rl.command",
    "validate": "simulator.questions.validate.command",
    "measure": "simulator.questions.calibrate.measure_command",
    "calibrate": "simulator.questions.calibrate.command",
    "calibrate-here": "simulator.questions.calibrate.here_command",
    "profiles list": "simulator.questions.catalogue.command",
    "profiles show": "simulator.questions.catalogue.command",
    "profiles check": "simulator.questions.catalogue.command",
    "profiles links": "simulator.questions.catalogue.command",
    "cluster init": "simulator.questions.calibrate.cluster_init",
}
"""Module of each, by what is typed; of two words the first is a group."""

GROUPS = {
    "profiles": "List, show and check the profiles of hardware, software and prices.",
    "cluster": "Describe a cluster of your own.",
}
"""What the commands of a group do."""


def load(name: str) -> Question:
    """Return one question."""
    import_module(QUESTIONS[name])
    return registered[name]
