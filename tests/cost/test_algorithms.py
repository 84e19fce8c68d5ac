"""Laws that every algorithm of NCCL keeps, whichever it is: a new one need only be in the list."""

import numpy as np
import pytest

from simulator.cost.collectives.nccl.algorithm import Algorithm, CallShape, Tuner
from simulator.cost.collectives.nccl.algorithms import ALGORITHMS
from simulator.hardware.cluster import load_cluster
from simulator.layout.placement import Group

H100 = load_cluster("dgx-h100", 1024)
SHAPES = Group(size=np.array([8, 16, 64, 64, 1024, 100]), local=np.array([8, 8, 8, 1, 8, 1]))
SIZES = np.geomspace(8.0, 1e11, 40)[:, None]

pytestmark = pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: a.word)


def test_nccl_believes_in_time_that_grows_with_the_bytes(algorithm: Algorithm) -> None:
    for operation in algorithm.operations:
        tuner = Tuner(H100, operation, SIZES, SHAPES)
        for protocol in algorithm.protocols:
            belief = algorithm.belief(tuner, protocol)
            assert (np.asarray(belief.latency_s) > 0.0).all()
            assert (np.asarray(belief.bytes_per_s) > 0.0).all()


def test_a_call_inside_a_domain_waits_for_no_hop_over_the_network(algorithm: Algorithm) -> None:
    inside = Group(size=np.array([2, 4, 8]), local=np.array([2, 4, 8]))
    tuner = Tuner(H100, algorithm.operations[0], np.asarray(1e9), inside)
    for operation in algorithm.operations:
        shape = CallShape.of(operation, inside)
        runs = algorithm.allowed(tuner, algorithm.protocols[-1])
        assert (np.where(runs, algorithm.far_hops(shape), 0.0) == 0.0).all()


def test_hops_and_bytes_over_the_network_are_those_of_several_domains(algorithm: Algorithm) -> None:
    """At least the share of the other domains must come over the adapters once."""
    crossing = SHAPES.take(np.arange(1, 6))
    for operation in algorithm.operations:
        shape = CallShape.of(operation, crossing)
        assert (np.asarray(algorithm.near_steps(shape)) >= 0).all()
        assert (np.asarray(algorithm.far_hops(shape)) >= 1).all()
        carried = algorithm.adapter_bytes(H100.library, shape, np.asarray(1e6))
        assert (carried >= 1e6 * (shape.nodes - 1) / shape.nodes).all()
        for protocol in algorithm.protocols:
            assert float(algorithm.far_hop_s(H100.library, protocol)) >= 0.0
