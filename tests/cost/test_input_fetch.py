"""Input fetch: the bytes of real tensors, the rate of the host link, and where copies show."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.blocks.launches import fetch_bytes
from simulator.cost.step import Estimate, evaluate
from simulator.errors import InputError
from simulator.events.simulated_step import simulate
from simulator.events.step.streams import SPAN_KINDS, STREAMS
from simulator.files import Figure
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.host_work import InputFetch
from simulator.software.profile import Software, load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

BRIDGE = load_software("megatron-core")
S, MICRO, M = 4096, 2, 16
TOKENS = S * MICRO


def workload(model: str = "llama-3.1-8b", length: int = S) -> Workload:
    recipe = Recipe(sequence_length=length, global_batch=MICRO * M)
    return Workload(architecture=presets.load(model), recipe=recipe)


def setting(software: Software, rate: float = 50e9, **layout: Any) -> tuple[Any, ...]:
    table = Layouts.of(**layout, micro_batch=MICRO, global_batch=MICRO * M)
    cluster = load_cluster("dgx-h100", int(table.world[0]))
    return table, workload(), at_rate(cluster, rate), software


def at_rate(cluster: Cluster, rate: float) -> Cluster:
    node = replace(cluster.groups[0].node, host_bytes_per_s=Figure(rate))
    return replace(cluster, groups=(replace(cluster.groups[0], node=node),))


def fetching(base: Software = BRIDGE, **fields: Any) -> Software:
    given = {k: Figure(v) if k.endswith("bytes") else v for k, v in fields.items()}
    return replace(base, input=replace(base.input, **given))


def input_s(found: Estimate) -> float:
    return float(found.terms_s["input"][0])


def of(name: str, model: str = "llama-3.1-8b", length: int = S) -> list[float]:
    software = load_software(name)
    found = fetch_bytes(workload(model, length), software, np.array([float(MICRO)]))
    return [float(x) for x in found[0]]


def test_bytes_are_those_of_the_tensors_that_each_software_sends() -> None:
    torch = pytest.importorskip("torch")
    shape = MICRO, S
    ids, floats = torch.empty(shape, dtype=torch.int64), torch.empty(shape, dtype=torch.float32)
    mask = torch.empty((MICRO, 1, S, S), dtype=torch.bool)
    tokens = positions = labels = ids.nbytes
    both = tokens + positions
    assert of("megatron-core") == [0, labels + floats.nbytes, both]
    assert of("megatron-core-defaults") == [both, labels + floats.nbytes, mask.nbytes]
    assert of("megatron-lm-2022") == [0, 0, tokens]
    assert of("torchtitan") == of("torchtune-2024") == [tokens, labels, 0]


def test_images_are_sent_as_pixels() -> None:
    torch = pytest.importorskip("torch")
    pixels = torch.empty((MICRO, 3, 224, 224), dtype=torch.float32)
    assert of("plain-ddp", "vit-large-16", 197) == [pixels.nbytes, 8 * MICRO, 0]


def test_a_decoder_reads_and_labels_its_own_tokens() -> None:
    recipe = Recipe(sequence_length=512, decoder_length=128, global_batch=MICRO)
    work = Workload(architecture=presets.load("t5-11b"), recipe=recipe)
    found = fetch_bytes(work, load_software("plain-ddp"), np.array([1.0]))
    assert found.tolist() == [[8 * (512 + 128), 8 * 128, 0]]


def test_one_stage_sends_all_of_it_once_for_every_micro_batch() -> None:
    found = evaluate(*setting(BRIDGE))
    assert input_s(found) == pytest.approx(M * TOKENS * (8 + 8 + 8 + 4) / 50e9, rel=1e-12)
    assert found.hidden_s["input"][0] == 0.0
    bare = evaluate(*setting(fetching(label_bytes=0, shared_bytes=0)))
    assert found.step_time_s[0] - bare.step_time_s[0] == pytest.approx(input_s(found), rel=1e-6)


def test_the_last_stage_takes_what_both_need_again() -> None:
    """Tokens and positions 16 B on either stage, labels and loss weights 12 B on the last."""
    played = simulate(*setting(BRIDGE, pp=4))
    line = played.timeline
    rows = np.flatnonzero(line.kind == SPAN_KINDS.index("input"))
    assert (line.stream[rows] == STREAMS.index("copy")).all()
    seconds = line.end_s[rows] - line.start_s[rows]
    for rank, each in ((0, 16), (3, 28)):
        own = rows[line.rank[rows] == rank]
        assert line.micro_batch[own].tolist() == list(range(M))
        np.testing.assert_allclose(seconds[line.rank[rows] == rank], TOKENS * each / 50e9)
        forward = (line.rank == rank) & (line.kind == SPAN_KINDS.index("forward"))
        np.testing.assert_allclose(line.end_s[own], line.start_s[np.flatnonzero(forward)])
    assert set(line.rank[rows].tolist()) == {0, 3}
    assert line.start_s[rows].min() == 0.0


def test_chunks_fetch_for_themselves() -> None:
    """zb_v: the first rank holds embedding and head, in two chunks that run at different times."""
    software = replace(BRIDGE, supports=replace(BRIDGE.supports, schedules=("zb_v",)))
    played = simulate(*setting(software, pp=4, vpp=2, schedule="zb_v"))
    line = played.timeline
    rows = np.flatnonzero(line.kind == SPAN_KINDS.index("input"))
    assert set(line.rank[rows].tolist()) == {0}
    seconds = (line.end_s[rows] - line.start_s[rows]).sum()
    assert seconds == pytest.approx(M * TOKENS * (16 + 28) / 50e9)


def test_a_mask_counts_pairs_of_tokens() -> None:
    defaults = load_software("megatron-core-defaults")
    found = evaluate(*setting(defaults))
    assert input_s(found) == pytest.approx(M * MICRO * (28 * S + S * S) / 50e9, rel=1e-12)


def test_one_rank_copies_and_the_others_wait_for_its_broadcast() -> None:
    alone, shared = fetching(broadcast=False), fetching(broadcast=True)
    for tp in (1, 2, 8):
        apart, sent = (input_s(evaluate(*setting(x, tp=tp))) for x in (alone, shared))
        assert apart == pytest.approx(M * TOKENS * 28 / 50e9)
        assert (sent > apart) == (tp > 1)
    # 4.3 GB over NVLink, 450 GB/s at most, of which NCCL's rings reach more than half
    copied_s = 4 * 2**30 / 50e9
    large = fetching(token_bytes=4 * 2**30 / TOKENS, label_bytes=0, shared_bytes=0, broadcast=True)
    sent_s = input_s(evaluate(*setting(large, tp=8))) / M - copied_s
    assert 0.5 < 4 * 2**30 / 450e9 / sent_s < 1.0


def test_prefetched_copies_hide_behind_the_passes() -> None:
    bare = evaluate(*setting(fetching(label_bytes=0, shared_bytes=0)))
    given = setting(fetching(prefetched=True))
    found, played = evaluate(*given), simulate(*given)
    assert input_s(found) == 0.0
    assert found.hidden_s["input"][0] == pytest.approx(M * TOKENS * 28 / 50e9)
    assert played.hidden_s["input"] == pytest.approx(M * TOKENS * 28 / 50e9)
    assert found.step_time_s[0] == bare.step_time_s[0]
    line = played.timeline
    assert (line.kind == SPAN_KINDS.index("input")).sum() == M


@pytest.mark.parametrize("layout", [{}, {"tp": 2}, {"pp": 4}])
@pytest.mark.parametrize("prefetched", [False, True])
def test_a_link_too_slow_shows_alike_in_both(layout: dict[str, Any], prefetched: bool) -> None:
    """100 kB/s: a copy takes longer than passes; what is prefetched shows the rest."""
    given = setting(fetching(prefetched=prefetched), 1e5, **layout)
    found, played = evaluate(*given), simulate(*given)
    stage = 16 + 12
    whole = M * TOKENS * stage / 1e5
    shown = input_s(found)
    assert shown + found.hidden_s["input"][0] == pytest.approx(whole)
    assert (shown < whole) == prefetched
    assert shown > 0.5 * whole
    assert played.terms_s["input"] == pytest.approx(shown, rel=0.02)
    assert played.step_time_s == pytest.approx(found.step_time_s[0], rel=0.02)


def test_where_there_is_no_host_link_nothing_is_copied() -> None:
    table, work, cluster, software = setting(BRIDGE)
    node = replace(cluster.groups[0].node, host_bytes_per_s=None)
    own = replace(cluster, groups=(replace(cluster.groups[0], node=node),))
    assert input_s(evaluate(table, work, own, software)) == 0.0


def test_negative_bytes_are_refused(tmp_path: Any) -> None:
    path = tmp_path / "slow.toml"
    path.write_text('base = "plain-ddp"\n[input]\ntoken_bytes = -8\nprefetch = true\n')
    with pytest.raises(InputError) as error:
        load_software(str(path))
    assert "token_bytes" in str(error.value)
    assert "prefetched" in str(error.value)


def test_the_default_waits() -> None:
    assert not InputFetch().prefetched
    assert not InputFetch().broadcast
