"""What torch itself moves around collectives of FSDP2 and tensor parallelism, by operator.

A small Llama runs on a pretended process group, alone and as the only stage of a pipeline. Bytes
that kernels read and write are counted from their tensors.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed import _functional_collectives as funcol
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from simulator.software.profile import load_software
from tests.oracles.traffic import Traffic

sys.path.insert(0, str(Path(__file__).parent))

from one_rank_memory import Model, Shape, pretended, split_states

RANKS, LAYERS, MICRO_BATCHES = 64, 3, 3
SHAPE = Shape(256, 4, 2, 512, 1024, 16, True)
TITAN = load_software("torchtitan")
STATES, FSDP2 = TITAN.states, TITAN.fsdp2


@contextmanager
def counted(*names: str) -> Iterator[list[int]]:
    """Count the bytes that these methods of FSDP2's parameters move."""
    found, own = [0], {name: getattr(FSDPParam, name) for name in names}

    def watched(method: Any) -> Any:
        def call(param: FSDPParam) -> None:
            with Traffic() as traffic:
                method(param)
            found[0] += traffic.moved("aten._to_copy", "aten.add_")

        return call

    for name, method in own.items():
        setattr(FSDPParam, name, watched(method))
    try:
        yield found
    finally:
        for name, method in own.items():
            setattr(FSDPParam, name, method)


def sharded_model() -> Model:
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("shard",))
    torch.set_default_dtype(torch.float32)
    model = Model(SHAPE, LAYERS)
    split_states(model, mesh, False)
    return model


def loss(logits: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), words.flatten())


def pipelined_step() -> tuple[int, int, list[str]]:
    """Parameters, bytes of casts and sums of gradients, and the operators of a pipeline's step."""
    with (
        pretended(RANKS),
        counted("accumulate_unsharded_grad_if_needed", "to_accumulated_grad_if_needed") as added,
    ):
        model = sharded_model()
        parameters = sum(x.numel() for x in model.parameters())
        words = torch.zeros(MICRO_BATCHES, SHAPE.sequence, dtype=torch.int64)
        stage = PipelineStage(model, 0, 1, torch.device("cpu"), group=dist.new_group([0]))
        schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=loss)
        schedule.step(words, target=words)  # runs the model once more, to learn its shapes
        added[0] = 0
        with Traffic() as traffic:
            schedule.step(words, target=words)
    return parameters, added[0], [name for name, _, _ in traffic.seen]


def test_whole_gradients_are_cast_once_and_added_up_afterwards() -> None:
    """16 bit in, fp32 out; then both in, fp32 out, the last micro-batch's too."""
    parameters, added, _ = pipelined_step()
    assert added == parameters * ((2 + 4) + (MICRO_BATCHES - 1) * (4 + 2 + 4))
    assert FSDP2.adds_unreduced


def test_a_pipeline_gathers_first_and_reduces_after_its_last_pass() -> None:
    _, _, names = pipelined_step()
    products = [i for i, name in enumerate(names) if name.startswith("aten.mm")]
    gathers = [i for i, name in enumerate(names) if "_allgather_base_" in name]
    reductions = [i for i, name in enumerate(names) if "_reduce_scatter_base_" in name]
    assert len(gathers) == len(reductions) == LAYERS + 1
    assert max(gathers) < products[len(products) // MICRO_BATCHES]
    assert min(reductions) > max(products)
    assert FSDP2.keeps_gathered_with_pipeline and FSDP2.reduces_after_passes


def test_copies_out_of_and_into_flat_buffers() -> None:
    with pretended(RANKS):
        model = sharded_model()
        parameters = sum(x.numel() for x in model.parameters())
        words = torch.zeros(1, SHAPE.sequence, dtype=torch.int64)
        with Traffic() as traffic:
            loss(model(words), words).backward()
    gathered, reduced = 2 * parameters, 4 * parameters  # bf16 and fp32 on the wire
    assert traffic.moved("fsdp.split_with_sizes_copy") == float(FSDP2.gather_copies) * gathered
    assert traffic.moved("fsdp.chunk_cat") == float(STATES.reduce_copies) * reduced


@pytest.mark.parametrize("kind", ["gather", "scatter"])
@pytest.mark.parametrize("batch", [1, 2, 8])
def test_collectives_along_the_sequence_copy_all_of_it(kind: str, batch: int) -> None:
    """A read and a write of the whole tensor; since PyTorch 2.10 not to gather one sequence."""
    with pretended(8):
        group = dist.group.WORLD
        with Traffic() as traffic:
            if kind == "gather":
                part = torch.zeros(batch, 16, 32, dtype=torch.bfloat16)
                whole = funcol.all_gather_single(part, 1, group)
            else:
                part = torch.zeros(batch, 128, 32, dtype=torch.bfloat16)
                whole = funcol.reduce_scatter_single(part, "sum", 1, group)
        funcol.wait_tensor(whole)
    size = 2 * batch * 128 * 32
    expected = (
        0 if (kind, batch) == ("gather", 1) else float(TITAN.kernels.dtensor.sequence_copies) * size
    )
    assert traffic.moved("aten.cat") == expected
