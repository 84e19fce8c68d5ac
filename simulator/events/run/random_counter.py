"""Random numbers by counting: the n-th number of a seed is a hash of both.

SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"): every seed
is a stream of its own, whatever else runs beside it.
"""

from __future__ import annotations

import math

import numpy as np

from simulator.compiled import compiled

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


@compiled
def mixed(number):  # type: ignore[no-untyped-def]
    """Hash 64 bits."""
    number = (number ^ (number >> np.uint64(30))) * _FIRST
    number = (number ^ (number >> np.uint64(27))) * _SECOND
    return number ^ (number >> np.uint64(31))


@compiled
def seeded(seed):  # type: ignore[no-untyped-def]
    """First state of a seed: hashed, so that neighbouring seeds share no numbers."""
    return mixed(np.uint64(seed) * _STEP + _FIRST)


@compiled
def uniform(random):  # type: ignore[no-untyped-def]
    """Return the next number above 0 and at most 1; `random` holds the state."""
    random[0] += _STEP
    return (float(mixed(random[0]) >> np.uint64(11)) + 1.0) * 2.0**-53


@compiled
def exponential(random, mean):  # type: ignore[no-untyped-def]
    """Return the next number with an exponential distribution."""
    return -mean * math.log(uniform(random))
