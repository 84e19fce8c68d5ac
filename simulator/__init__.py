"""Foreshard: plan, predict and explain large-model training on a GPU cluster.

The public names below are loaded when they are first used: ``import simulator`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulator._version import __version__

if TYPE_CHECKING:
    from simulator.api import (
        admit,
        compare,
        diagnose,
        distil,
        fabrics,
        lint,
        measurements,
        parameter_server,
        plan,
        power,
        predict,
        recommender,
        releases,
        rent_or_buy,
        rl,
        schedule,
        several_sites,
        simulate,
        simulate_run,
        size,
        sweep,
        versus,
        what_if,
    )
    from simulator.events.deviations.deviations import Deviation
    from simulator.events.deviations.jittered_step import Jitter
    from simulator.events.sharing.contended import Network
    from simulator.hardware.cluster import Cluster
    from simulator.layout.layouts import Layouts
    from simulator.scoring.validation import validate
    from simulator.workload.recipe import Workload

__all__ = [
    "Cluster",
    "Deviation",
    "Jitter",
    "Layouts",
    "Network",
    "Workload",
    "__version__",
    "admit",
    "compare",
    "diagnose",
    "distil",
    "fabrics",
    "lint",
    "measurements",
    "parameter_server",
    "plan",
    "power",
    "predict",
    "recommender",
    "releases",
    "rent_or_buy",
    "rl",
    "schedule",
    "several_sites",
    "simulate",
    "simulate_run",
    "size",
    "sweep",
    "validate",
    "versus",
    "what_if",
]

_FACES = "simulator.api"
_HOME = {
    "Cluster": "simulator.hardware.cluster",
    "Deviation": "simulator.events.deviations.deviations",
    "Jitter": "simulator.events.deviations.jittered_step",
    "Layouts": "simulator.layout.layouts",
    "Network": "simulator.events.sharing.contended",
    "Workload": "simulator.workload.recipe",
    "validate": "simulator.scoring.validation",
}
"""Module of each public name that is not of the faces."""


def __getattr__(name: str) -> Any:
    """Load a public name at its first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME.get(name, _FACES)), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
