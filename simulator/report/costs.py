"""What the money of a run goes to: hours that train, hours that are lost, spares, electricity."""

from __future__ import annotations

import math
from dataclasses import dataclass

from simulator.search.outcome import Outcome
from simulator.units import DAY_S, HOUR_S, show_count, show_percent

_HOURS = DAY_S / HOUR_S
_LEAST = 1e-4
"""Parts of the money below this share are left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CostLine:
    """One part of the money; all parts add up to it."""

    what: str
    amount: str
    usd: float


def cost_lines(outcome: Outcome, gpus: int, i: int = 0) -> list[CostLine]:
    """Split the money of a layout; nothing where tokens or price are not known.

    Hours of the ideal run are steps x step time; what the real run takes longer is lost to
    failures, checkpoints and slow steps; what is paid beyond `gpus` waits as hot spares.
    """
    usd, rate = float(outcome.usd[i]), outcome.price.usd_per_gpu_hour
    if rate is None or not math.isfinite(usd):
        return []
    ideal = float(outcome.days_ideal[i]) * _HOURS * gpus
    held = float(outcome.days[i]) * _HOURS * gpus
    parts = (
        ("training", ideal),
        ("failures, checkpoints, restarts and slow steps", held - ideal),
        ("hot spares", float(outcome.gpu_hours[i]) - held),
    )
    lines = [
        CostLine(what=what, amount=f"{show_count(hours)} GPU-hours", usd=hours * float(rate))
        for what, hours in parts
    ]
    power = usd - float(outcome.gpu_hours[i]) * float(rate)
    lines.append(
        CostLine(what="electricity", amount=f"{show_count(float(outcome.kwh[i]))} kWh", usd=power)
    )
    return [line for line in lines if line.usd > _LEAST * usd]


def price_words(outcome: Outcome) -> str:
    """Say what the price is, how sure, and whether it holds electricity."""
    price = outcome.price
    rate = price.usd_per_gpu_hour
    if rate is None:
        return f"No price is known ({price.name}): give one with `foreshard compare --price USD`."
    spread = "" if rate.spread is None else f", give or take {show_percent(rate.spread)}"
    power = "with" if price.included_power else "without"
    source = f"; {rate.source}" if rate.source else ""
    return (
        f"{float(rate):,.2f} USD per GPU-hour ({price.name}, {rate.grade}{spread}), {power}"
        f" electricity{source}. {price.note}".strip()
    )
