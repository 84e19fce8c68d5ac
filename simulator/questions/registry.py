"""Every question that has a command: one line each, in the order in which help lists them.

A module registers its questions (:func:`simulator.cli.runner.question`) when it is loaded, which is
when one of them is asked: reading the options of all takes longer than most of them run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.cli.runner import Question

QUESTIONS = {
    "plan": "simulator.questions.plan.command",
    "predict": "simulator.questions.predict.command",
    "export": "simulator.questions.export",
    "serve": "simulator.explorer.command",
    "mcp": "simulator.questions.mcp.command",
    "simulate": "simulator.questions.simulate.command",
    "compare": "simulator.questions.compare.command",
    "size": "simulator.questions.size.command",
    "doctor": "simulator.doctor.command",
    "rent-or-buy": "simulator.questions.rent_or_buy",
    "what-if": "simulator.questions.versus.command",
    "versus": "simulator.questions.versus.command",
    "sweep": "simulator.questions.sweep.command",
    "power": "simulator.questions.power.command",
    "admit": "simulator.questions.admit.command",
    "lint": "simulator.questions.lint.command",
    "models": "simulator.questions.catalogue",
    "fields": "simulator.questions.catalogue",
    "schema": "simulator.questions.schema",
    "explain": "simulator.questions.explain",
    "sites": "simulator.questions.sites.command",
    "parameter-server": "simulator.questions.parameter_server.command",
    "recommender": "simulator.questions.sparse.command",
    "schedule": "simulator.questions.job_schedule.command",
    "distil": "simulator.questions.distillation.command",
    "rl": "simulator.questions.rl.command",
    "validate": "simulator.questions.validate.command",
    "diagnose": "simulator.questions.diagnose.command",
    "measure": "simulator.questions.calibrate.measure_command",
    "calibrate": "simulator.questions.calibrate.command",
    "calibrate-here": "simulator.questions.calibrate.measure_command",
    "profiles list": "simulator.questions.catalogue",
    "profiles show": "simulator.questions.catalogue",
    "profiles check": "simulator.questions.catalogue",
    "profiles links": "simulator.questions.catalogue",
    "cluster init": "simulator.questions.calibrate.cluster_init",
}
"""Module of each, by what is typed; of two words the first is a group."""

GROUPS = {
    "profiles": "List, show and check the profiles of hardware, software and prices.",
    "cluster": "Describe a cluster of your own.",
}
"""What the commands of a group do."""


HELP = {
    "plan": "Find the best layouts for a model, a cluster and a goal.",
    "predict": "Predict step time, memory and cost of one layout.",
    "export": "Write a layout for the framework that runs it, or the best layouts as a table.",
    "serve": "Serve the explorer: model, cluster, goal and pins; the answer follows as they move.",
    "mcp": "Serve plan, predict, compare, size and explain as tools of an agent.",
    "simulate": "Play one training step of one layout, action by action.",
    "compare": (
        "Compare clusters and sizes for one run: the best layout on each, days, money, energy."
    ),
    "size": "Find the fewest GPUs for a deadline, or the soonest end for a budget.",
    "doctor": (
        "Check the simulator against itself: what must hold for every answer, whatever its figures."
    ),
    "rent-or-buy": (
        "Compare renting a cluster with buying it: costs by cause, and when buying pays back."
    ),
    "what-if": "Say what a change would do: the best layout before and after, both searched.",
    "versus": "Compare two layouts term by term, with the chance that each is the faster one.",
    "sweep": (
        "Search every combination of some fields; what is done is kept, so it can be interrupted."
    ),
    "power": "Find how to run under a cap of power: how many accelerators, and at which clock.",
    "admit": (
        "Say whether a job may start as it is asked for: it fits, ends in time, stays under a cap."
    ),
    "lint": "Say what a launch leaves out or sets that costs: seconds, memory and money of each.",
    "models": (
        "List the models of the zoo: parameters, kind, layers, and where their sizes are published."
    ),
    "fields": (
        "List every field of a scenario: what it means, its unit, its default and that one's grade."
    ),
    "schema": (
        "Print the JSON Schema of a scenario file: sections, fields, bounds, what each means."
    ),
    "explain": (
        "Explain a term of the step time or a kind of memory: formula, source, the figures it "
        "needs."
    ),
    "sites": (
        "Find what a run takes over the places of [sites], and against the one place of [cluster]."
    ),
    "parameter-server": (
        "Find what a run takes with the servers of [parameter_server], and with all-reduce."
    ),
    "recommender": (
        "Find what a step of [sparse] takes: tables split over the GPUs, next to a dense model."
    ),
    "schedule": "Find who gets which part of a cluster, how much of it and when, by planned times.",
    "distil": "Find what a step takes with the teacher of [distillation] in it, and ahead of time.",
    "rl": "Find what a step of [rl] takes, who waits for whom, and the best split of accelerators.",
    "validate": "Predict measured runs and show how far off the predictions are.",
    "diagnose": (
        "Find why a run is slower than predicted: which cause, how much of it, and how to tell."
    ),
    "measure": "Measure kernels, collectives and training steps on this machine's GPUs or CPU.",
    "calibrate": "Fit a profile to measurements of your machine, with a shipped profile as prior.",
    "calibrate-here": (
        "Measure this CPU, fit a profile to it, predict small training steps, and compare."
    ),
}
"""First paragraph of the help of every question of one word: the list of them loads none."""


def load(name: str) -> Question:
    """Return one question."""
    from simulator.cli.runner import registered  # which the list of them needs not

    import_module(QUESTIONS[name])
    return registered[name]
