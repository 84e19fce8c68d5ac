"""Gradients at their single moments, and tensors too large for the blocks that others leave free.

Per state key and distinct rank, as ``cost/states/state_costs.py``, which stores them.
"""

from __future__ import annotations

import numpy as np

from simulator.arrays import Floats
from simulator.cost.operators.matrices import Matrix
from simulator.cost.operators.operations import element_bytes
from simulator.cost.states.state_bytes import PartStates, largest_block
from simulator.cost.states.state_keys import StateKeys
from simulator.layout.layouts import Layouts
from simulator.software.kernels import Kernels
from simulator.software.profile import Software
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Workload

_JOINED = {"q": "qkv", "k": "qkv", "v": "qkv", "gate": "gate and up", "up": "gate and up"}
"""Matrices that are one tensor where their linears are one."""


def early_gradients(parts: Floats, states: PartStates, arch: Architecture, kept: Floats) -> Floats:
    """Whole gradients of the head (with the table it is tied to) and of the largest block.

    Where only shards stay, whole ones are in the type of the gathered weights. Then, of the block's
    and of those of head and embedding, the share that is `kept` once they are reduced.
    """
    whole = states.gather if states.shards_only else states.gradients
    gradient, stays = whole[0] + whole[1], states.gradients[0] + states.gradients[1]
    head = parts[:, :, -1] * gradient[:, None, -1]
    if arch.tied_embeddings and arch.output_rows:
        head = head + parts[:, :, -1] * parts[:, :, -2] * gradient[:, None, -2]
    root = parts[:, :, -2] * stays[:, None, -2] + parts[:, :, -1] * stays[:, None, -1]
    table = parts[:, :, -2] * stays[:, None, -2]
    if arch.tied_embeddings and arch.output_rows:
        table = table * (1.0 - np.minimum(parts[:, :, -1], 1.0))
    gradients = (
        head,
        largest_block(parts, gradient),
        largest_block(parts, stays) * kept,
        root * kept,
        table,
    )
    return np.stack(np.broadcast_arrays(*gradients))


def embedding_gradient(
    parts: Floats, workload: Workload, software: Software, layouts: Layouts
) -> Floats:
    """Bytes of the whole table's gradient in the compute type; zero where a rank makes its share.

    torch/distributed/tensor/_ops/_embedding_ops.py: embedding_dense_backward knows no sharding of
    the vocabulary, so that its result is whole and only then cut.
    """
    arch = workload.architecture
    if not software.kernels.dtensor.whole_embedding_gradient or arch.traced is not None:
        return np.zeros(parts.shape[:2])
    table = element_bytes(workload.recipe) * arch.vocabulary * arch.hidden
    return np.asarray(parts[:, :, -2] * np.where(layouts.tp > 1, table, 0.0)[:, None])


def step_pieces(keys: StateKeys, share: Floats) -> Floats:
    """Bytes that reduction and optimizer step allocate in single pieces, shape (keys, columns).

    `share` are the parameters of which a rank keeps the optimizer states.
    """
    states, arch = keys.software.states, keys.workload.architecture
    size_bytes = float(states.step) * share + float(states.step_buffer_bytes)
    largest_copy = float(states.largest_copy)
    if not largest_copy or arch.traced is not None:
        return size_bytes
    largest = largest_tensor(keys.parts, keys.matrices, keys.software.kernels)
    return np.asarray(size_bytes + largest_copy * largest)


def largest_tensor(parts: Floats, matrices: list[Matrix], kernels: Kernels) -> Floats:
    """Parameters of the largest tensor among a rank's weights, shape (keys, columns).

    Where the software joins linears, queries, keys and values are one, and so are gate and up;
    where one kernel multiplies a rank's experts, all of them are.
    """
    sizes: dict[tuple[int, str, bool], Floats] = {}
    for w in matrices:
        name = w.name if kernels.separate_linears else _JOINED.get(w.name, w.name)
        whole = w.routed and kernels.expert_products == "one_kernel"
        size = w.parameters if whole else np.asarray(w.rows * w.columns, dtype=float)
        key = (w.part, name, w.routed)
        sizes[key] = sizes.get(key, np.zeros(())) + size
    largest: Floats = np.zeros(parts.shape[:2])
    for (part, _, _), size in sizes.items():
        largest = np.maximum(largest, np.where(parts[:, :, part] > 0, size[..., None], 0.0))
    return largest
