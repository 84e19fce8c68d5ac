"""What lies beside tensors that autograd keeps: buffers, single pieces, communicators, context.

Llama-3.1-8B: 4,096 wide, 32 layers, a vocabulary of 128,256; 4,096 tokens a micro-batch.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from simulator.cost.rank_memory import rank_memory
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.profile import Software, load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

MIB = 1 << 20
HIDDEN, WORDS = 4096, 128256
BOUNDARY = 2 * 4096 * HIDDEN
PARAMETERS = 8_030_261_248


def by_rank(software: str | Software, m: int, **layout: Any) -> dict[str, NDArray[np.float64]]:
    """Bytes of every kind on each pipeline rank, with m micro-batches of one sequence."""
    batch = m * layout.get("dp", 1)
    recipe = Recipe(sequence_length=4096, global_batch=batch)
    work = Workload(architecture=presets.load("llama-3.1-8b"), recipe=recipe)
    table = Layouts.of(global_batch=batch, **layout)
    profile = load_software(software) if isinstance(software, str) else software
    cluster = load_cluster("dgx-a100", int(table.world[0]))
    return rank_memory(table, work, cluster, profile).kinds_bytes


def without(software: Software, part: str, **fields: Any) -> Software:
    return replace(software, **{part: replace(getattr(software, part), **fields)})  # type: ignore[arg-type]


TITAN = load_software("torchtitan")
ZERO3 = {"dp": 2, "sharding": "zero3"}


def test_torch_pipelining_receives_into_a_buffer_for_every_micro_batch() -> None:
    """Eight micro-batches, 4, 3, 2, 1 in flight; an input in flight is counted with its block."""
    plain = without(TITAN, "allocator", pipeline_buffers=False)
    more, less = (by_rank(s, 8, pp=4, **ZERO3)["activations"] for s in (TITAN, plain))
    inputs, outputs, gradients = [0, 5, 6, 7], [4, 3, 2, 0], [8, 8, 8, 0]
    buffers = np.add(np.add(inputs, outputs), gradients)
    assert more - less == pytest.approx(BOUNDARY * buffers, rel=1e-9)


def test_gradients_come_when_one_micro_batch_is_gone() -> None:
    """As many micro-batches as are in flight: the first backward pass starts without gradients."""
    plain = without(TITAN, "allocator", pipeline_buffers=False)
    many, few = (by_rank(plain, m, pp=4, **ZERO3)["activations"][0] for m in (8, 4))
    assert few == pytest.approx(many * 3 / 4, rel=1e-9)


def test_chunks_reduce_one_after_the_other() -> None:
    """fp32 gradients of half the rank's blocks, unless micro-batches of both chunks alternate."""
    layout = {"pp": 2, "vpp": 2, "schedule": "interleaved", **ZERO3}
    few, many = (by_rank("torchtitan", m, **layout)["gathered"][0] for m in (2, 4))
    blocks_and_table = 16 * 218_112_000 + WORDS * HIDDEN
    assert many - few == pytest.approx(4 * blocks_and_table / 2, rel=1e-9)


def test_whole_gradient_of_the_embedding_has_a_segment_of_its_own() -> None:
    """On the first of two stages; the last one has logits to reuse, and none without tp."""
    dtensor = replace(TITAN.kernels.dtensor, whole_embedding_gradient=False)
    plain = without(TITAN, "kernels", dtensor=dtensor)
    layout = {"tp": 2, "pp": 2, "sequence_parallel": 1, **ZERO3}
    more, less = (by_rank(s, 4, **layout)["fragmentation"] for s in (TITAN, plain))
    assert more - less == pytest.approx([2 * WORDS * HIDDEN, 0], abs=1)
    layout |= {"tp": 1, "sequence_parallel": 0}
    more, less = (by_rank(s, 4, **layout)["fragmentation"] for s in (TITAN, plain))
    assert list(more) == list(less)


def idle(found: dict[str, NDArray[np.float64]], software: Software) -> NDArray[np.float64]:
    """Fragmentation less the share of what is allocated."""
    outside = ("communicators", "fragmentation", "context")
    allocated = np.sum([size for kind, size in found.items() if kind not in outside], axis=0)
    share = float(software.allocator.fragmentation_fraction)
    return np.asarray(found["fragmentation"] - share * allocated)


def test_deepspeeds_step_allocates_its_share_of_gradients_in_single_pieces() -> None:
    software = load_software("megatron-deepspeed-2022")
    found = by_rank(software, 1, dp=4, sharding="zero1")
    assert idle(found, software) == pytest.approx(6 * PARAMETERS / 4 + 1e9, rel=1e-3)


@pytest.mark.parametrize(("tp", "words"), [(1, 128256), (8, 129024)])
def test_its_bf16_optimizer_copies_the_largest_gradient(tp: int, words: int) -> None:
    """In fp32: the rank's rows of the table, whose vocabulary is padded to a multiple of 128 tp."""
    software = load_software("megatron-deepspeed-2022-bf16")
    found = by_rank(software, 1, dp=2, tp=tp, sharding="zero1")
    assert idle(found, software) == pytest.approx(4 * words // tp * HIDDEN, rel=1e-6)


def test_communicators_of_deepspeeds_pipeline_engine() -> None:
    """tp, pp, dp; world and replica; two neighbours, tied tables, split sends. 688 MiB each."""
    found = by_rank("megatron-deepspeed-2022", 4, tp=2, pp=2, dp=2, sharding="zero1")
    assert list(found["communicators"]) == [9 * 688 * MIB] * 2
    assert list(found["context"]) == [1573 * MIB] * 2


def test_one_device_has_no_communicator() -> None:
    assert by_rank("megatron-deepspeed-2022", 1)["communicators"][0] == 0
