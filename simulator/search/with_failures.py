"""What failures, checkpoints and restarts make of every layout of an estimate."""

from __future__ import annotations

import pickle
from collections import OrderedDict

import numpy as np

from simulator.arrays import Floats
from simulator.cost.states.state_bytes import saved_bytes
from simulator.cost.step import Estimate
from simulator.cost.terms import TERMS
from simulator.economics.price import Price
from simulator.errors import InfeasibleError, InputError, problem
from simulator.layout.layouts import SHARDINGS
from simulator.reliability.goodput import NEVER
from simulator.reliability.run_outlook import Outlook, outlook, relief
from simulator.reliability.run_terms import Machine, RunTerms, device_counts, run_terms
from simulator.scenario import Scenario
from simulator.search.outcome import Outcome, outcome
from simulator.units import DAY_S, show_seconds

_MOST_KNOWN = 64
"""Outlooks that stay known: those of one search, for which prices, budgets and deadlines differ."""

_known: OrderedDict[bytes, Outlook] = OrderedDict()


def check_interval(outcome: Outcome, scenario: Scenario) -> None:
    """Refuse a checkpoint interval that is longer than the run.

    Raises
    ------
    InputError
        With the length of the run, or its steps.
    """
    interval_s, days = scenario.run.checkpoints.interval_s, float(outcome.days_ideal[0])
    if interval_s is not None and interval_s > days * DAY_S:
        rule = f"must be at most the length of the run, {days * DAY_S:.0f} s"
        raise InputError(problem(scenario.where, "run.checkpoints.interval_s", rule, interval_s))
    every_steps, steps = scenario.run.checkpoints.every_steps, scenario.workload.recipe.steps
    if every_steps is not None and steps is not None and every_steps > steps:
        rule = f"must be at most the steps of the run, {steps:g}"
        raise InputError(problem(scenario.where, "run.checkpoints.every_steps", rule, every_steps))


def priced(estimate: Estimate, scenario: Scenario, *, price: Price | None = None) -> Outcome:
    """Price the real run of every layout of an estimate on the scenario's cluster."""
    recipe, cluster = scenario.workload.recipe, scenario.cluster
    real = None if scenario.goal.ideal else real_run(estimate, scenario)
    price = price or scenario.tariff.price
    site = scenario.tariff.site_at(price)
    return outcome(estimate, recipe, cluster, price=price, site=site, real=real)


def real_run(estimate: Estimate, scenario: Scenario) -> Outlook:
    """Goodput and length of the real run of every layout, known again by what they hang on."""
    machine = machine_of(estimate, scenario)
    key = pickle.dumps((scenario.run, machine))  # compared, never loaded
    result = _known.pop(key, None) or outlook(run_terms(scenario.run, machine))
    _known[key] = result
    if len(_known) > _MOST_KNOWN:
        _known.popitem(last=False)
    return result


def terms_of(estimate: Estimate, scenario: Scenario) -> RunTerms:
    """Terms of the run of every layout."""
    return run_terms(scenario.run, machine_of(estimate, scenario))


def machine_of(estimate: Estimate, scenario: Scenario) -> Machine:
    """What the layouts run on, and what they write.

    A rank writes the states that it alone keeps: all ranks where they are sharded over replicas,
    those of one replica where every replica has all of them.
    """
    run, workload, cluster = scenario.run, scenario.workload, scenario.cluster
    layouts, steps = estimate.layouts, workload.recipe.steps
    node_gpus = cluster.node.accelerators
    world = layouts.world.astype(float)
    replicas = layouts.dp.astype(float)
    sharded = layouts.sharding > SHARDINGS.index("ddp")
    writers = np.where(sharded, world, world / replicas)
    size = run.checkpoints.size_bytes or saved_bytes(workload, scenario.software).states
    return Machine(
        gpus=world,
        node_gpus=node_gpus,
        node_adapters=cluster.node.scale_out.adapters,
        leaf_nodes=cluster.fabric.leaf_servers if cluster.fabric.leaf_servers > 1 else 32,
        replicas=replicas,
        micro_batches=layouts.micro_batches,
        once_share=1.0 - _repeated(estimate) / estimate.step_time_s,
        step_s=estimate.step_time_s,
        work_s=estimate.step_time_s * (np.nan if steps is None else steps),
        checkpoint_bytes=size,
        writer_nodes=np.ceil(writers / node_gpus),
        writer_gpus=writers,
    )


def _repeated(estimate: Estimate) -> Floats:
    """Seconds of a step that come again with every micro-batch."""
    names = [
        term.name for term in TERMS if term.phase == "steady" and term.name in estimate.terms_s
    ]
    return np.asarray(sum(estimate.terms_s[name] for name in names))


def devices_of(scenario: Scenario) -> dict[str, float]:
    """Devices of each kind that the run uses."""
    cluster = scenario.cluster
    machine = Machine(
        gpus=cluster.gpus,
        node_gpus=cluster.node.accelerators,
        node_adapters=cluster.node.scale_out.adapters,
        leaf_nodes=cluster.fabric.leaf_servers if cluster.fabric.leaf_servers > 1 else 32,
        step_s=1.0,
        work_s=1.0,
        checkpoint_bytes=1.0,
        writer_nodes=1.0,
        writer_gpus=1.0,
    )
    return device_counts(machine)


def check_finishes(outcome: Outcome, scenario: Scenario) -> None:
    """Refuse a run whose best layout never ends.

    Raises
    ------
    InfeasibleError
        With how often it fails, what a checkpoint and a restart take, and what would let it end.
    InputError
        If the interval between checkpoints is longer than the run.
    """
    check_interval(outcome, scenario)
    if reason := never_finishes(outcome, scenario):
        raise InfeasibleError(f"{scenario.where}: run: {reason}")


def never_finishes(outcome: Outcome, scenario: Scenario) -> str:
    """Say why the first layout never ends, and what would let it; blank where it does."""
    real = outcome.real
    if scenario.workload.recipe.steps is None or real is None or bool(real.finishes[0]):
        return ""
    terms = real.terms.take(0)
    every = 1.0 / float(terms.rate.sum())
    factor = relief(terms)
    return (
        f"this run never finishes: something fails every {show_seconds(every)}, a checkpoint takes"
        f" {show_seconds(float(terms.write_s[0, 0]))} and a restart"
        f" {show_seconds(float(terms.restart_s[0, 0]))}, so that less than {100 * NEVER:g} % of the"
        f" time would be of use; it would finish with rates of {factor:.3g} times these"
        f" (run.rate_factor = {factor * float(scenario.run.rate_factor):.3g}), a failure every"
        f" {show_seconds(every / max(factor, 1e-12))}"
    )
