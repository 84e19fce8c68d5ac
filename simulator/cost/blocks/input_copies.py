"""Input fetch: a micro-batch's tokens and labels on their way from host memory to the device."""

from __future__ import annotations

import numpy as np

from simulator.arrays import Floats
from simulator.cost.collectives.calls import broadcasts_s
from simulator.cost.operators.operations import Ranks
from simulator.hardware.cluster import Cluster
from simulator.software.profile import Software
from simulator.workload.recipe import Workload

_PIXEL_BYTES = 4.0
"""For every value of an image: images are fp32 once they are normalised."""


def fetch_bytes(workload: Workload, software: Software, micro_batch: Floats) -> Floats:
    """Bytes of one micro-batch for the first stage, for the last one, and for both.

    Parameters
    ----------
    workload, software : Workload, Software
    micro_batch : ndarray
        Sequences of a micro-batch, shape (keys,).

    Returns
    -------
    ndarray, shape (keys, 3)
    """
    arch, recipe, fetch = workload.architecture, workload.recipe, software.input
    read = float(recipe.sequence_length)
    written = float(recipe.decoder_length or read) if arch.is_encoder_decoder else 0.0
    tokens = (read + written) * fetch.token_bytes
    labels, shared = (written or read) * fetch.label_bytes, (read + written) * fetch.shared_bytes
    if arch.patch_values:  # an image and its class
        patches = read - arch.extra_embeddings
        tokens = patches * arch.patch_values * _PIXEL_BYTES
        labels, shared = fetch.label_bytes, fetch.shared_bytes
    shared = shared + read**2 * fetch.mask_bytes
    return np.asarray(micro_batch[:, None] * np.array([tokens, labels, shared], dtype=float))


def input_s(workload: Workload, cluster: Cluster, software: Software, ranks: Ranks) -> Floats:
    """Seconds of these copies, over the host link and then over tp; shape (keys, 3).

    A node without a host link has its input where it computes.
    """
    sizes = fetch_bytes(workload, software, ranks.micro_batch)
    seconds = sizes / float(cluster.node.host_bytes_per_s or np.inf)
    if not software.input.broadcast:
        return seconds
    links, group = cluster.links_of("tp"), ranks.groups.tp
    # `broadcasts_s` counts one broadcast of every rank's share: here one rank sends it all
    sent = [broadcasts_s(links, share * group.size, group) / group.size for share in sizes.T]
    return np.asarray(seconds + np.where(sizes > 0, np.stack(sent, axis=1), 0.0))
