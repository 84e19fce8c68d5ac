"""The JSON document of `simulate --run`: shares, days and seconds of a run that was played."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.planner.simulated_run import RunCurves, SimulatedRun
from simulator.reliability.incidents import Incidents
from simulator.report.document import head, layout_fields
from simulator.units import DAY_S

_HUNDRED = 0.01


def run_document(simulated_run: SimulatedRun) -> dict[str, Any]:
    """Write what became of the runs beside the closed form, and the curves."""
    prediction, played, real = simulated_run.prediction, simulated_run.played, simulated_run.outlook
    outcome, curves, incidents = prediction.outcome, simulated_run.curves, simulated_run.incidents
    good, days = played.goodput, played.wall_s / DAY_S
    goal = prediction.scenario.goal.deadline_days
    usd = float(outcome.usd[0])
    run = {
        "goodput": {"mean": float(played.ideal_s / played.wall_s.mean()), **_ends(good)},
        "lost": played.lost_shares(),
        "phases": played.phase_shares(),
        "days": {"ideal": played.ideal_s / DAY_S, **_ends(days, middle=True)},
        "deadline_chance": None if goal is None else float(np.mean(days <= goal)),
        "interruptions": played.interruptions(),
        "checkpoint_interval_s": float(real.interval_s[0]),
        "daly_interval_s": float(real.daly_s[0]),
        "copy_interval_s": float(real.copy_interval_s[0]) if real.terms.in_memory else None,
        "spares": int(real.hot_spares[0]),
        "one_server_less": _shrunk(simulated_run),
        "cheapest_spares": curves.cheapest.hot,
        "usd_per_point_of_goodput": _known(usd * _HUNDRED / float(outcome.goodput[0])),
        "closed_form_goodput": float(real.goodput[0]),
        "seeds": len(played.wall_s),
        "first_seed": played.first_seed,
        "seconds": None,
    }
    return {
        **head("simulate --run", prediction.scenario, prediction.estimate),
        "layout": layout_fields(prediction.scenario, prediction.estimate.layouts),
        "searched": prediction.searched,
        "verdict": prediction.estimate.verdict_word(),
        "run": run,
        "curves": _curves(curves),
        "incidents": None if incidents is None else _incidents(incidents),
    }


def _shrunk(simulated_run: SimulatedRun) -> dict[str, float] | None:
    """A step of a run that shrinks by a server; None where runs wait for repairs."""
    less = simulated_run.without_a_server
    return None if less is None else {"step_time_s": less.step_time_s, "tokens": less.tokens}


def _ends(values: Any, *, middle: bool = False) -> dict[str, float]:
    """P10, P90 and, where asked for, P50 of the runs."""
    marks = (10, 50, 90) if middle else (10, 90)
    return {f"p{mark}": float(np.percentile(values, mark)) for mark in marks}


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _curves(curves: RunCurves) -> dict[str, Any]:
    return {
        "gpus": {"gpus": curves.gpus.tolist(), "goodput": curves.by_gpus.tolist()},
        "interval": {"seconds": curves.interval_s.tolist(), "goodput": curves.by_interval.tolist()},
        "spares": [
            {"hot": x.hot, "goodput": x.goodput, "gpu_hours": _known(x.gpu_hours),
             "usd": _known(x.usd)}
            for x in curves.spares
        ],
    }  # fmt: skip


def _incidents(incidents: Incidents) -> dict[str, Any]:
    return {
        "file": incidents.where,
        "days": incidents.days,
        "rates": [
            {"cause": rate.cause, "count": rate.count, "per_device_day": rate.per_device_day,
             "p10": rate.p10, "p90": rate.p90}
            for rate in incidents.rates
        ],
        "shape": None
        if incidents.shape is None
        else {
            "value": incidents.shape.shape,
            "low": incidents.shape.low,
            "high": incidents.shape.high,
            "kept": incidents.shape.kept,
        },
    }  # fmt: skip
