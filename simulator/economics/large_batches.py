"""Batch against epochs: what a larger batch costs in samples to the same loss.

The learning rate follows the batch (linear scaling, with a warm-up of some epochs; Goyal et al.
2017, arXiv 1706.02677), which changes no step time; how many steps are needed does.
"""

from __future__ import annotations

from typing import Any


def epochs(batch: Any, least: Any, critical_batch: Any) -> Any:
    """Epochs to the same loss at a batch: ``least (1 + batch / critical_batch)``.

    McCandlish et al. 2018 (arXiv 1812.06162), equation 5.1, for the samples: at the critical batch
    twice as many are needed as at a small one.
    """
    return least * (1.0 + batch / critical_batch)


def batch_curve(small: tuple[float, float], large: tuple[float, float]) -> tuple[float, float]:
    """Epochs of a small batch, and the critical one, through two points (batch, epochs).

    Examples
    --------
    MLPerf v0.7, ResNet-50 on A100 and V100: 41 epochs at 3,328 images, 59 at 34,560.

    >>> least, critical = batch_curve((3328, 41), (34560, 59))
    >>> round(least, 1), round(critical, -2)
    (39.1, 67800.0)
    """
    (b, e), (large_b, large_e) = small, large
    slope = (large_e - e) / (large_b - b)
    least = e - slope * b
    return least, least / slope
