"""SI base units inside, formatting only at the edge.

Every quantity in the program is a plain float (or array) in seconds, bytes, FLOP,
watts or USD; the name says which. This module holds the few constants that turn
a person's units (a P90 among them) into those, and the functions that turn them back
for the screen.
"""

from __future__ import annotations

import re

GB = 1e9
MIB = 2.0**20
GIB = 2.0**30
HOUR_S = 3600.0
DAY_S = 86_400.0
KWH_J = 3.6e6

P90 = 1.2815515655446004
"""The 90th percentile of a standard normal distribution; the 10th is its negative."""

_PREFIX = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_SMALL = {"m": 1e-3, "u": 1e-6, "n": 1e-9}
_NUMBER = re.compile(r"^\s*([-+]?[0-9][0-9_]*\.?[0-9_]*(?:[eE][-+]?[0-9]+)?)\s*(\S*)\s*$")


def parse(text: str) -> float:
    """Read a number with an optional SI prefix and unit, as SI base units.

    Parameters
    ----------
    text : str
        ``"3.35 TB/s"``, ``"80 GiB"``, ``"400 Gbit/s"``, ``"15T"``, ``"12 us"``, ``"240 days"``.

    Returns
    -------
    float
        Bytes, bytes per second, seconds, FLOP, or a bare count.

    Raises
    ------
    ValueError
        If the text is not a number followed by a known unit.

    Examples
    --------
    >>> parse("3.35 TB/s")
    3350000000000.0
    >>> parse("400 Gbit/s")
    50000000000.0
    >>> parse("1 GiB")
    1073741824.0
    """
    match = _NUMBER.match(text)
    if match is None:
        raise ValueError(f"not a number: {text!r}")
    number = float(match.group(1).replace("_", ""))
    unit = match.group(2).removesuffix("/s")
    times = {"day": DAY_S, "days": DAY_S, "h": HOUR_S, "s": 1.0}
    if unit in times:
        return number * times[unit]
    for name, scale in (("bit", 0.125), ("FLOP", 1.0), ("B", 1.0), ("s", 1.0), ("", 1.0)):
        if unit.endswith(name):
            prefix = unit.removesuffix(name)
            known = _PREFIX | _BINARY | (_SMALL if name == "s" else {})
            if prefix in known:
                return number * known[prefix] * scale
    raise ValueError(f"unknown unit {match.group(2)!r} in {text!r}")


def _three(value: float) -> str:
    """Three digits, also where the last are zeros, so that numbers below one another compare.

    >>> _three(0.0), _three(4.996), _three(16.0), _three(830.4)
    ('0', '5.00', '16.0', '830')
    """
    if value == 0.0:
        return "0"
    size = abs(value)
    digits = 3 if size < 0.9995 else 2 if size < 9.995 else 1 if size < 99.95 else 0
    return f"{value:.{digits}f}"


def show_seconds(seconds: float) -> str:
    """Format a duration: ``12.3 us``, ``4.56 ms``, ``7.89 s``, ``3.20 h``, ``178.0 days``.

    >>> show_seconds(599.0), show_seconds(702.0), show_seconds(5400.0)
    ('599 s', '11.7 min', '1.50 h')
    """
    for limit, scale, unit in ((1e-3, 1e-6, "us"), (1.0, 1e-3, "ms"), (600.0, 1.0, "s")):
        if abs(seconds) < limit:
            return f"{_three(seconds / scale)} {unit}"
    if abs(seconds) < HOUR_S:
        return f"{_three(seconds / 60.0)} min"
    if abs(seconds) < 2 * DAY_S:
        return f"{_three(seconds / HOUR_S)} h"
    return f"{seconds / DAY_S:,.1f} days"


def show_days(days: float) -> str:
    """Format the length of a run: days, or what is below one in smaller units.

    >>> show_days(23.46), show_days(1 / 24), show_days(float("inf"))
    ('23.5 days', '1.00 h', 'inf days')
    """
    return f"{days:,.1f} days" if days >= 1.0 else show_seconds(days * DAY_S)


def show_days_span(days: float, low: float, high: float) -> str:
    """Format the length of a run with its ends, in the unit of the first.

    >>> show_days_span(51.4, 47.6, 55.5), show_days_span(0.296, 0.21, 0.4)
    ('51.4 days (47.6 to 55.5)', '7.10 h (5.04 to 9.60)')
    """
    text = show_days(days)
    unit = text.partition(" ")[2]
    unit_days = {"days": 1.0, "h": HOUR_S / DAY_S, "min": 60.0 / DAY_S, "s": 1.0 / DAY_S}.get(unit)
    if unit_days is None:
        return f"{text} ({show_days(low)} to {show_days(high)})"
    shown = (f"{end:,.1f}" if unit == "days" else _three(end / unit_days) for end in (low, high))
    return f"{text} ({' to '.join(shown)})"


def show_number_of_days(days: float) -> str:
    """Format days without their unit: a digit behind the point, of a short run two that count.

    >>> show_number_of_days(165.23), show_number_of_days(6321.7), show_number_of_days(0.0124)
    ('165.2', '6,322', '0.012')
    """
    if days < 0.95:
        return f"{days:.2g}"
    return f"{days:,.1f}" if days < 999.95 else f"{days:,.0f}"


def show_chance(share: float) -> str:
    """Format a chance; nothing is certain.

    >>> show_chance(0.42), show_chance(0.99996), show_chance(0.0)
    ('42.0 %', 'over 99.9 %', 'under 0.1 %')
    """
    if share > 0.999:
        return "over 99.9 %"
    return "under 0.1 %" if share < 0.001 else show_percent(share)


def show_kwh(kwh: float) -> str:
    """Format energy at the meter: ``4.85 GWh``, ``61.6 MWh``, ``33.1 kWh``."""
    for scale, unit in ((1e6, "GWh"), (1e3, "MWh")):
        if abs(kwh) >= 0.9995 * scale:
            return f"{_three(kwh / scale)} {unit}"
    return f"{_three(kwh)} kWh"


def show_kwh_span(low: float, high: float) -> str:
    """Format a range of energy, the unit once where both have the same.

    >>> show_kwh_span(154e3, 433e3), show_kwh_span(0.934, 1.25e3)
    ('154 to 433 MWh', '0.934 kWh to 1.25 MWh')
    """
    first, last = show_kwh(low), show_kwh(high)
    return f"{first.removesuffix(last[-4:])} to {last}"


def show_co2(kg: float) -> str:
    """Format what electricity emits: ``2.51 kt``, ``36.0 t``, ``814 kg``."""
    for scale, unit in ((1e6, "kt"), (1e3, "t")):
        if abs(kg) >= 0.9995 * scale:
            return f"{_three(kg / scale)} {unit}"
    return f"{_three(kg)} kg"


def show_seconds_span(low_s: float, high_s: float) -> str:
    """Format a range of durations, the unit once where both have the same.

    Examples
    --------
    >>> show_seconds_span(4.56, 5.1), show_seconds_span(0.99, 1.1)
    ('4.56 to 5.10 s', '990 ms to 1.10 s')
    """
    low, high = show_seconds(low_s), show_seconds(high_s)
    return f"{low.removesuffix(' ' + high.partition(' ')[2])} to {high}"


def show_bytes(size_bytes: float) -> str:
    """Format a size with binary prefixes: ``512 B``, ``1.5 GiB``."""
    for scale, unit in ((2.0**40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (2.0**10, "KiB")):
        if abs(size_bytes) >= scale:
            return f"{size_bytes / scale:.1f} {unit}"
    return f"{size_bytes:.0f} B"


def show_rate(bytes_per_s: float) -> str:
    """Format a rate with decimal prefixes, as links and drives are sold: ``3.1 GB/s``."""
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(bytes_per_s) >= scale:
            return f"{bytes_per_s / scale:.3g} {unit}/s"
    return f"{bytes_per_s:.3g} B/s"


def show_count(count: float) -> str:
    """Format a large count with a decimal prefix.

    >>> show_count(70.55e9), show_count(15e12), show_count(999.9e6), show_count(1.234e15)
    ('70.5B', '15T', '1B', '1,234T')
    """
    for scale, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= 0.9995 * scale:  # three digits of which round up
            value = count / scale
            return f"{value:,.0f}{unit}" if abs(value) >= 999.5 else f"{value:.3g}{unit}"
    return f"{count:.3g}"


def show_usd(amount_usd: float | None) -> str:
    """Format an amount of money: ``12.4 M USD``, ``830 k USD``, ``95.0 USD``; None: no price."""
    if amount_usd is None or amount_usd != amount_usd:
        return "cost not known"
    for scale, unit in ((1e9, " bn"), (1e6, " M"), (1e3, " k")):
        if abs(amount_usd) >= 0.9995 * scale:  # three digits of which round up
            return f"{_three(amount_usd / scale)}{unit} USD"
    return f"{_three(amount_usd)} USD"


def show_usd_change(amount_usd: float) -> str:
    """Format how much more or less money something takes.

    >>> show_usd_change(-1.2e6), show_usd_change(830.0)
    ('-1.20 M USD', '+830 USD')
    """
    return f"{'-' if amount_usd < 0.0 else '+'}{show_usd(abs(amount_usd))}"


def show_usd_span(low_usd: float, high_usd: float) -> str:
    """Format a range of amounts of money, the unit once where both have the same.

    Examples
    --------
    >>> show_usd_span(1.05e7, 1.24e7), show_usd_span(9.5e5, 1.1e6), show_usd_span(617, 1060)
    ('10.5 to 12.4 M USD', '950 k to 1.10 M USD', '617 USD to 1.06 k USD')
    """
    low, high = show_usd(low_usd), show_usd(high_usd)
    least, unit = low.partition(" ")[2], high.partition(" ")[2]
    dropped = unit if least == unit else " USD" if " " in least else ""
    return f"{low.removesuffix(dropped).strip()} to {high}"


def show_signed_percent(share: float) -> str:
    """Format a share with its sign and one digit; what rounds to nothing is +0.0.

    >>> show_signed_percent(0.123), show_signed_percent(-0.0001)
    ('+12.3 %', '+0.0 %')
    """
    return f"{round(100 * share, 1) + 0.0:+.1f} %"


def show_change(value: float, than: float, words: tuple[str, str] = ("faster", "slower")) -> str:
    """Say how much less or more a value is than another one: of times, faster or slower.

    Examples
    --------
    >>> show_change(15.4, 15.6), show_change(2.0, 1.0), show_change(1.0, 1.00001)
    ('1.3 % faster', '100.0 % slower', 'less than 0.1 % faster')
    """
    change = value / than - 1.0
    size = show_percent(abs(change)) if abs(change) >= _SHOWN else "less than 0.1 %"
    return f"{size} {words[change >= 0.0]}"


_SHOWN = 0.0005
"""Relative change that is shown as more than 0.0 %."""


def show_percent(share: float) -> str:
    """Format a share as a percentage with one digit: ``42.1 %``."""
    return f"{100 * share:.1f} %"
