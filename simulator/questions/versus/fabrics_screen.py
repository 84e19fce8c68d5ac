"""The screen of `foreshard what-if --fabrics`."""

from __future__ import annotations

from simulator.cli.screen import amount, console, heading, notes, plain_table, seconds_like
from simulator.questions.versus.fabrics import FabricChoice, FabricChoices
from simulator.units import show_percent, show_usd

_MOST = 12
_RAILS = (
    "rails are tried where something narrow lies above the leaves: elsewhere they change no time"
)
_USD = (
    "USD: servers that are bought, run for the hours of the run; the network by the bit, in"
    " proportion to what the page of prices was quoted with; --json has every fabric"
)
_DOMAIN = (
    "no price: a domain other than the cluster's. What a GPU costs more in one of 72 has no known"
    ' source; give it as fast_domain_usd_per_gpu in [economics.own] (basis = "own")'
)


def show_fabrics(answer: FabricChoices) -> None:
    """Print fabrics that none beats in time and price; without prices the fastest."""
    screen = console()
    screen.print(heading(answer.scenario))
    front = answer.front()
    words = f"{len(front)} of them have no other that is as fast with a cheaper network"
    if not answer.priced:
        words = f"no prices are known: {len(front)} have no other that is as fast with fewer bits"
    screen.print(f"\n{len(answer.rows)} fabrics; {words}\n")
    rows = front[:_MOST]
    unit, scale = seconds_like(answer.rows[0].step_time_s)
    table = plain_table(
        "adapters", "narrow", "rails", "domain", f"step ({unit})", "slower", "days", "network USD",
        "run USD", "layout", left=("adapters", "layout"),
    )  # fmt: skip
    for row in rows:
        table.add_row(*_cells(row, answer.rows[0].step_time_s, scale))
    screen.print(table)
    unpriced = answer.priced and any(row.network_usd is None for row in answer.rows)
    said = [_USD] * answer.priced
    if unpriced:
        said += [_DOMAIN, *_other_domains(answer)]
    said += [_RAILS]
    screen.print(notes("Read this", said))


def _cells(row: FabricChoice, best_s: float, scale: float) -> tuple[str, ...]:
    return (
        f"{row.adapters} x {row.gbps} Gbit/s",
        f"{row.oversubscription}:1",
        "yes" if row.rails else "no",
        f"{row.domain}",
        amount(scale * row.step_time_s),
        show_percent(row.step_time_s / best_s - 1.0),
        "" if row.days is None else f"{row.days:,.1f}",
        "" if row.network_usd is None else show_usd(row.network_usd),
        "" if row.usd is None else show_usd(row.usd),
        str(row.layout),
    )


def _other_domains(answer: FabricChoices) -> list[str]:
    """The fastest fabric of each domain that has no price: its time is known all the same."""
    fastest: dict[int, FabricChoice] = {}
    for row in answer.rows:
        if row.network_usd is None:
            fastest.setdefault(row.domain, row)
    return [
        f"domain {domain}, without a price: {amount(row.step_time_s)} s a step at best, on"
        f" {row.adapters} x {row.gbps} Gbit/s {row.oversubscription}:1, {row.layout}"
        for domain, row in fastest.items()
    ]
