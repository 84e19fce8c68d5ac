"""A replica that is alone under FSDP2: what its trainer leaves out, casts and keeps instead."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.rank_memory import RankMemory, rank_memory
from simulator.cost.step import evaluate
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.profile import Software, load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

LLAMA = presets.load("llama-3.1-8b")
PARAMETERS, TABLE, TOKENS, VOCABULARY = 8_030_261_248, 128256 * 4096, 4096, 128256
BLOCKS = PARAMETERS - 2 * TABLE - 4096
FORGE = load_software("kempnerforge")
TITAN = load_software("torchtitan")
H100 = load_cluster("dgx-h100", 8)
RATE = float(H100.accelerator.stream["optimizer"].memory_fraction) * 3.35e12


def alone(software: Software, word: str, **fields: Any) -> Software:
    """The same software with what it does of a lone replica."""
    return replace(software, fsdp2=replace(software.fsdp2, lone_replica=word, **fields))


def asked(m: int = 1, **layout: Any) -> tuple[Layouts, Workload]:
    batch = m * layout.get("dp", 1) * layout.get("micro_batch", 1)
    recipe = Recipe(sequence_length=TOKENS, global_batch=batch)
    layouts = Layouts.of(sharding="zero3", global_batch=batch, **layout)
    return layouts, Workload(architecture=LLAMA, recipe=recipe)


def seconds(software: Software, m: int = 1, **layout: Any) -> float:
    layouts, work = asked(m, **layout)
    found = evaluate(layouts, work, load_cluster("dgx-h100", layout.get("dp", 1)), software)
    return float(found.terms_s["memory_bound"][0])


def memory(software: Software, m: int = 1, **layout: Any) -> RankMemory:
    layouts, work = asked(m, **layout)
    return rank_memory(layouts, work, load_cluster("dgx-h100", layout.get("dp", 1)), software)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_autocast_casts_weights_at_each_use_and_gradients_once(recompute: str) -> None:
    # fp32 read and 16 bit written, and back; the embedding is looked up as it is
    cast = 6.0 * (PARAMETERS - TABLE)
    again = {"none": 0.0, "selective": cast, "full": 6.0 * BLOCKS}[recompute]
    found = [seconds(alone(TITAN, word), recompute=recompute) for word in ("wrapped", "autocast")]
    assert found[1] - found[0] == pytest.approx((2.0 * cast + again) / RATE, rel=1e-6)


def test_later_micro_batches_are_added_to_the_first() -> None:
    # two gradients read and their sum written, of 4 B with torchtitan, of 2 B with KempnerForge
    for software, word, size in ((TITAN, "autocast", 4.0), (FORGE, "as_kept", 2.0)):
        one, four = (
            seconds(alone(software, word), m) - seconds(alone(software, "wrapped"), m)
            for m in (1, 4)
        )
        assert four - 4.0 * one == pytest.approx(3 * 3 * size * PARAMETERS / RATE, rel=1e-6)


def test_nothing_is_cast_where_weights_are_kept_in_16_bit() -> None:
    assert seconds(FORGE) == pytest.approx(seconds(alone(FORGE, "wrapped")), rel=1e-12)


def test_others_than_lone_replicas_are_wrapped() -> None:
    for software in (TITAN, FORGE):
        assert seconds(software, dp=8) == seconds(alone(software, "wrapped"), dp=8)
        pair = [memory(s, dp=8).total_bytes for s in (software, alone(software, "wrapped"))]
        assert pair[0] == pair[1]


def test_a_bare_replica_gathers_nothing_and_keeps_its_casts() -> None:
    # with a second micro-batch all gradients are there at the loss, the fullest moment
    bare, wrapped = memory(TITAN, 2), memory(alone(TITAN, "wrapped"), 2)
    assert bare.kinds_bytes["gathered"] == 0.0
    assert wrapped.kinds_bytes["gathered"] > 0.0
    # the copies of the blocks wait for the backward pass, and the head's until the loss is back
    activations, loss = (
        float(bare.kinds_bytes[kind][0] - wrapped.kinds_bytes[kind][0])
        for kind in ("activations", "loss")
    )
    assert activations == pytest.approx(2.0 * BLOCKS, rel=1e-9)
    assert loss == pytest.approx(2.0 * (TABLE + 4096), rel=1e-9)
    # recomputation makes them anew: 32 blocks keep their input
    again = memory(TITAN, 2, recompute="full").kinds_bytes["activations"]
    assert float(again[0]) == 32 * 2.0 * TOKENS * 4096


def test_kempnerforge_on_one_device_by_hand() -> None:
    # weights and two moments, gradients added up, and those of one micro-batch that one graph
    # returns at its end: five times 2 B
    found = memory(FORGE, m=2, recompute="full")
    states = sum(float(found.kinds_bytes[kind][0]) for kind in ("gradients", "optimizer"))
    assert states == 5 * 2.0 * PARAMETERS
    assert found.kinds_bytes["weights"] == found.kinds_bytes["gathered"] == 0.0
    one = memory(alone(FORGE, "as_kept", hands_gradients_over_at_once=False), m=2)
    assert float(one.kinds_bytes["gradients"][0]) == 2.0 * PARAMETERS


def test_whole_gradients_wait_for_the_last_micro_batch() -> None:
    # FSDP2 adds them up in the type of the reduction, fp32; none waits with a single micro-batch
    every = replace(FORGE, states=replace(FORGE.states, reduces_every_micro_batch=True))
    for m, bytes_each in ((1, 0.0), (2, 4.0)):
        layout = {"dp": 8, "micro_batch": 4, "recompute": "full"}
        kinds = [memory(s, m, **layout).kinds_bytes for s in (every, FORGE)]
        more = kinds[1]["gathered"][0] - kinds[0]["gathered"][0]
        assert more == pytest.approx(bytes_each * PARAMETERS, rel=1e-9)
    # sharded ones grow in the last one's backward pass alone
    assert kinds[1]["gradients"][0] < kinds[0]["gradients"][0]


def test_a_loss_over_the_whole_vocabulary_on_every_rank() -> None:
    split = replace(
        FORGE,
        kernels=replace(
            FORGE.kernels, dtensor=replace(FORGE.kernels.dtensor, gathers_logits=False)
        ),
    )
    layouts, work = asked(tp=2)
    two = load_cluster("dgx-h100", 2)
    kinds = [rank_memory(layouts, work, two, s).kinds_bytes["loss"][0] for s in (split, FORGE)]
    # of the 8 B a logit that stand at once, half the vocabulary more
    assert kinds[1] - kinds[0] == pytest.approx(8.0 * TOKENS * VOCABULARY / 2, rel=1e-9)
    step = [
        float(np.asarray(evaluate(layouts, work, two, s).step_time_s)[0]) for s in (split, FORGE)
    ]
    assert step[1] > step[0]


PLAIN = load_software("plain-ddp")


def plain(name: str, tokens: int, micro_batch: int, dp: int = 1, **recipe: Any) -> RankMemory:
    """Memory of plain PyTorch under autocast, a sequence of `tokens` at a time."""
    recompute = recipe.pop("recompute", "none")
    batch = micro_batch * dp
    layouts = Layouts.of(dp=dp, micro_batch=micro_batch, global_batch=batch, recompute=recompute)
    asked_of = Recipe(sequence_length=tokens, global_batch=batch, **recipe)
    work = Workload(architecture=presets.load(name), recipe=asked_of)
    return rank_memory(layouts, work, load_cluster("dgx-h100", dp), PLAIN)


@pytest.mark.parametrize(
    ("name", "tokens", "micro_batch", "more", "measured_gib"),
    [
        ("llama-3.2-1b", 2048, 4, {}, 43.84),
        ("llama-3.2-1b", 2048, 1, {}, 23.09),
        ("llama-3.2-3b", 4096, 1, {"recompute": "full"}, 49.51),
        ("llama-3.1-8b", 2048, 1, {"recompute": "full", "lora_rank": 16}, 18.96),
        ("llama-3.1-8b", 2048, 1, {"lora_rank": 16}, 31.78),
    ],
)
def test_transformers_on_one_h100(
    name: str, tokens: int, micro_batch: int, more: dict[str, Any], measured_gib: float
) -> None:
    # torch.cuda.max_memory_allocated: validation/runs/own_h100.csv
    found = plain(name, tokens, micro_batch, **more)
    outside = ("fragmentation", "context", "communicators")
    held = float(found.total_bytes[0]) - sum(float(found.kinds_bytes[k][0]) for k in outside)
    assert held / 2**30 == pytest.approx(measured_gib, rel=0.03)


def test_buckets_are_a_second_copy_of_what_replicas_reduce() -> None:
    lone, pair = (plain("llama-3.1-8b", 2048, 1, dp, recompute="full") for dp in (1, 2))
    more = float(pair.kinds_bytes["workspace"][0] - lone.kinds_bytes["workspace"][0])
    assert more == 4.0 * PARAMETERS
    adapted = [plain("llama-3.1-8b", 2048, 1, dp, lora_rank=16) for dp in (1, 2)]
    more = float(adapted[1].kinds_bytes["workspace"][0] - adapted[0].kinds_bytes["workspace"][0])
    assert 0.0 < more < 0.01 * 4.0 * PARAMETERS


def test_frozen_weights_wait_in_the_type_of_the_products() -> None:
    # adapters of rank 16 alone are cast: a thousandth of what a whole model's casts take
    found = plain("llama-3.1-8b", 2048, 1, lora_rank=16)
    assert float(found.kinds_bytes["weights"][0]) == pytest.approx(2.0 * PARAMETERS, rel=1e-6)
