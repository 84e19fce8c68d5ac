"""What an optimizer keeps and computes: bytes of moments, and the Newton-Schulz products of Muon.

Element-wise optimizers keep so many bytes a parameter; Adafactor and Muon look at matrices.
"""

from __future__ import annotations

import numpy as np

from simulator.arrays import Floats
from simulator.cost.kernels.gemm import device_rates, gemm_s
from simulator.cost.operators.matrices import Matrix
from simulator.errors import InputError, problem
from simulator.hardware.cluster import Cluster
from simulator.software.profile import Software
from simulator.workload.recipe import Recipe

EIGHT_BIT = 1.0 + 4.0 / 256
"""A moment in 8 bit with one fp32 scale for every 256 values (Dettmers et al. 2022, section 2)."""

NEWTON_SCHULZ_STEPS = 5
"""Iterations that orthogonalise an update (Jordan et al. 2024; torch.optim.Muon)."""

LAYER_WISE_TRAFFIC = {"lamb": 20.0, "lars": 8.0}
"""Bytes a parameter beside Adam's and sgd's step, fp32. LAMB: the update is written, then update
and weight are each read for their norms and again for the step (apex csrc/multi_tensor_lamb.cu).
LARS (You et al. 2017, arXiv 1708.03888, algorithm 1): weight and gradient are read for their norms,
the step has the rate that they give (MXNet's multi_sum_sq, multi_lars, multi_mp_sgd_mom_update)."""


def moment_bytes(
    recipe: Recipe, usual: float, trained: Floats, matrices: list[Matrix], blocks: int
) -> Floats:
    """Bytes of the moments of one instance of every part.

    Parameters
    ----------
    recipe : Recipe
        Names the optimizer.
    usual : float
        Bytes of one moment of one parameter.
    trained : ndarray
        Trained parameters, shape (2, keys, parts): dense, then of routed experts.
    matrices : list of Matrix
        The trained matrices.
    blocks : int
        Number of block kinds; the parts behind them are embedding and head.

    Returns
    -------
    ndarray
        Shape of `trained`.

    Notes
    -----
    Adafactor (Shazeer and Stern 2018, section 3): the second moment of a matrix is a number for
    every row and every column; vectors keep it whole.
    """
    each = {
        "adamw": 2 * usual,
        "lamb": 2 * usual,
        "muon": 2 * usual,
        "adamw_8bit": 2 * EIGHT_BIT,
        "lion": usual,
        "sgd": usual,
        "lars": usual,
        "adafactor": usual * (1 + recipe.adafactor_momentum),
    }[recipe.optimizer]
    total = each * trained
    if recipe.optimizer not in ("adafactor", "muon"):
        return total
    for w in matrices:
        if recipe.optimizer == "adafactor":
            less = w.count * (w.rows * w.columns - w.rows - w.columns)
        else:
            less = w.parameters if w.part < blocks else 0.0
        total[int(w.routed), :, w.part] -= usual * less
    return total


def newton_schulz_s(
    matrices: list[Matrix], trained: Floats, cluster: Cluster, software: Software
) -> Floats:
    """Seconds that Muon takes to orthogonalise the updates of every part's matrices.

    Every iteration multiplies ``X Xᵀ``, its square and its product with X, in bf16, X with the
    smaller side first; tensor-parallel ranks treat their shards as matrices of their own.
    Shape as `trained`: (2, keys, parts).
    """
    device = cluster.accelerator
    library = software.kernels.gemm_library
    if library not in device.gemm:
        rule = "no measured or assumed entry"
        raise InputError(
            problem(f"accelerator {device.name}", "gemm library", rule, library, device.gemm)
        )
    kernel = device.gemm[library][device.sixteen_bit]
    rates = device_rates(device, device.sixteen_bit)
    seconds = np.zeros_like(trained)
    for w in matrices:
        if w.part >= trained.shape[2] - 2:
            continue
        small, large = np.minimum(w.rows, w.columns), np.maximum(w.rows, w.columns)
        for n, k in ((small, large), (small, small), (large, small)):
            once = gemm_s(
                rates, kernel, m=np.ceil(small), n=np.ceil(n), k=np.ceil(k), result_bytes=2.0
            )
            seconds[int(w.routed), :, w.part] += NEWTON_SCHULZ_STEPS * w.count * once
    return seconds
