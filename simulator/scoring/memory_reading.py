"""Predicted memory as a reading shows it: its kind, the pipeline stage, and when it was taken.

torch counts neither communicators nor the context as allocated or reserved; fragmentation is what
it reserves above what it allocates. nvidia-smi sees all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from simulator.arrays import Floats
from simulator.cost.estimate import Estimate
from simulator.cost.memory.rank_tensors import stages_of
from simulator.cost.operators.matrices import weight_matrices
from simulator.cost.rank_memory import rank_memory
from simulator.cost.states.gathered import largest_tensor
from simulator.cost.states.state_costs import STATE_KINDS
from simulator.files import Figure
from simulator.measured.checks import MEMORY_MOMENTS
from simulator.measured.replay import Run
from simulator.measured.rows import choice
from simulator.units import GIB

_OUTSIDE = ("communicators", "context")
_LEFT_OUT = {"allocated": (*_OUTSIDE, "fragmentation"), "reserved": _OUTSIDE}
_LASTING = (*STATE_KINDS, "workspace")
_MOMENTS_BYTES = 8.0
"""Two moments of a parameter in fp32."""


def memory_of_kind_gib(estimate: Estimate, i: int, kind: str | None) -> float:
    """Memory of the fullest rank as a reading of this kind would show it."""
    return float(_of_kind(estimate.memory_bytes, kind)[i]) / GIB


def read_gib(
    fields: Mapping[str, str], run: Run, estimate: Estimate, i: int, kind: str | None
) -> float:
    """Memory of a measured run as its row's reading shows it.

    Parameters
    ----------
    fields : mapping
        Text by column: ``memory_stage`` and ``memory_read`` say where and when it was read, in
        words of `measured.checks.MEMORY_MOMENTS`.
    run : Run
        The run that the row became.
    estimate, i
        Its estimate, row `i` of a table.
    kind : str or None
        What was read: ``allocated``, ``reserved``, another.
    """
    stage, moment = (choice(fields, name, words) for name, words in MEMORY_MOMENTS.items())
    early = moment == "first_step"
    if not stage and not early:
        return memory_of_kind_gib(estimate, i, kind)
    ranks = _after_first_step(run, kind) if early else _ranks(run, kind)
    if not stage:
        return float(ranks.max()) / GIB
    return float(ranks[0 if stage == "first" else -1]) / GIB


def first_step_gib(run: Run, kind: str | None) -> float:
    """Memory of the fullest rank as a reading after the first step alone shows it."""
    return float(_after_first_step(run, kind).max()) / GIB


def _ranks(run: Run, kind: str | None) -> Floats:
    """Bytes of every pipeline rank at its fullest moment."""
    held = rank_memory(run.layout, run.workload, run.cluster, run.software)
    return _of_kind(held.kinds_bytes, kind)


def _after_first_step(run: Run, kind: str | None) -> Floats:
    """Bytes of every rank at the fullest moment up to the end of the first step.

    Optimizers make their moments in their first step, after its passes: Megatron-LM's line
    "(after 1 iterations) memory" has seen activations without moments, and moments without
    activations (megatron/training/training.py prints it once).
    """
    held = rank_memory(run.layout, run.workload, run.cluster, run.software)
    lasting: Floats = np.asarray(sum(held.kinds_bytes[name] for name in _LASTING))
    recipe = replace(run.workload.recipe, moment_dtype=None)
    states = replace(run.software.states, moment=Figure(0.0))
    passes = rank_memory(
        run.layout,
        replace(run.workload, recipe=recipe),
        run.cluster,
        replace(run.software, states=states),
    )
    share = (held.kinds_bytes["optimizer"] - passes.kinds_bytes["optimizer"]) / _MOMENTS_BYTES
    return np.maximum(_of_kind(passes.kinds_bytes, kind), lasting + _step_bytes(run, share))


def _step_bytes(run: Run, share: Floats) -> Floats:
    """What the step makes of each rank's largest tensor, or of the `share` that it updates."""
    held = stages_of(run.layout, run.workload)
    content = np.column_stack([held.blocks, held.embedding, held.head])
    ranks = range(int(run.layout.pp[0]))
    parts = np.stack([content[held.rank == rank].sum(axis=0) for rank in ranks])[None]
    degrees = {name: getattr(run.layout, name) for name in ("tp", "pp", "ep", "etp")}
    kernels = run.software.kernels
    matrices = weight_matrices(run.workload.architecture, **degrees, kernels=kernels)
    largest = largest_tensor(parts, matrices, kernels)[0]
    return np.asarray(float(run.software.states.step_tensor) * np.minimum(largest, share))


def _of_kind(kinds: Mapping[str, Floats], kind: str | None) -> Floats:
    left_out = _LEFT_OUT.get(kind or "", ())
    return np.asarray(sum(size for name, size in kinds.items() if name not in left_out))
