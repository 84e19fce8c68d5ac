"""Parameters of a product on a device that was never timed: typical of its generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from simulator.hardware.accelerator import Accelerator

_STACKED = 10e9
"""Memory bandwidth per compute unit, byte/s, from which a device has stacked memory (HBM): V100
11e9 to B200 52e9; with GDDR T4 8e9, L40S 6e9, RTX PRO 6000 8.5e9."""


def stacked_memory(accelerator: Accelerator) -> bool:
    """Whether the memory is fast for the device's size, as HBM is and GDDR is not."""
    rate = accelerator.memory.bandwidth_bytes_per_s / accelerator.compute_units
    return float(rate) >= _STACKED


def typical_values(
    fits: Sequence[tuple[Accelerator, Mapping[str, float]]], generation: str, stacked: bool
) -> dict[str, float]:
    """Return the median of every parameter over the fitted devices most like the one asked for.

    Those of its generation with memory of its kind; where there are none, all with memory of its
    kind, then all.

    Parameters
    ----------
    fits : sequence
        Devices, each with the fitted figures of one type and library.
    generation : str
        Of the device that is asked for.
    stacked : bool
        Whether it has stacked memory.
    """
    kind = [fit for fit in fits if stacked_memory(fit[0]) == stacked]
    alike = [fit for fit in kind if fit[0].generation == generation] or kind or list(fits)
    return {name: float(np.median([fit[1][name] for fit in alike])) for name in alike[0][1]}
