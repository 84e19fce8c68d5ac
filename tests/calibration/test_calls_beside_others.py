"""Which measured calls enter a fit: each that does beside one, a step away, that does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator import catalogue
from simulator.calibration.calibrate_machine import calibrate
from simulator.calibration.classes import accelerator_classes
from simulator.calibration.least_squares import Prior, fit_and_score, fit_times
from simulator.calibration.link_classes import link_classes, network_classes
from simulator.cost.kernels.flash_attention import attention_s
from simulator.cost.kernels.gemm import device_rates
from simulator.errors import InputError
from simulator.hardware.cluster import load_accelerator, load_cluster
from simulator.measured.measurements import Call, Measurements


def call(kernel: str, shape: dict[str, float], **fields: Any) -> Call:
    given = {
        "place": "here",
        "dtype": "bf16",
        "direction": "forward",
        "library": "",
        "seconds": 1.0,
    }
    return Call(kernel=kernel, shape=shape, **{**given, **fields})


CPU = str(next(
    (catalogue.folder("hardware_profiles") / "local-cpu" / "accelerators").glob("*.toml")
))  # fmt: skip
"""This repository's profile of a processor."""

COLLECTIVE = {"message_bytes": 2.0**20, "ranks": 8.0, "nodes": 1.0}


@pytest.mark.parametrize(
    ("kernel", "changes", "reason"),
    [
        ("all_reduce", {}, ""), ("all_reduce", {"ranks": 2.0}, ""),
        ("all_reduce", {"ranks": 1.0}, "a collective of one rank"),
        ("all_reduce", {"stride": 1.0}, ""),
        ("all_reduce", {"stride": 2.0}, "sub-groups with a stride"),
        ("all_reduce", {"message_bytes": 65_536.0}, ""),
        ("all_reduce", {"message_bytes": 65_535.0},
         "messages below 64 KiB: latency is the library's"),
        ("all_reduce", {"nodes": 2.0}, "ranks spread over more servers than they fill"),
        ("broadcast", {}, "no formula for broadcast"), ("gemm", {}, "gemm: no collective"),
    ],
)  # fmt: skip
def test_collectives_inside_a_server(kernel: str, changes: dict[str, float], reason: str) -> None:
    found, skipped = link_classes([call(kernel, {**COLLECTIVE, **changes})],
                                  load_cluster("dgx-h100", 8))  # fmt: skip
    assert skipped == ({reason: 1} if reason else {})
    assert len(found) == (not reason)


@pytest.mark.parametrize(
    ("kernel", "ranks", "name"),
    [
        ("all_reduce", 8.0, "all-reduce in the switch, one domain"),
        ("all_reduce", 5.0, "all-reduce in the switch, one domain"),
        ("all_reduce", 4.0, "ring collectives, one domain"),
        ("all_gather", 8.0, "ring collectives, one domain"),
        ("reduce_scatter", 8.0, "ring collectives, one domain"),
        ("all_to_all", 8.0, "all-to-all, one domain"), ("send_recv", 2.0, "send, one domain"),
    ],
)  # fmt: skip
def test_figures_that_collectives_tell_of(kernel: str, ranks: float, name: str) -> None:
    """NCCL reduces in the switch of five ranks and more, as nccl-tests were seen to."""
    cluster = load_cluster("dgx-h100", 8)
    ((found,), _) = link_classes([call(kernel, {**COLLECTIVE, "ranks": ranks})], cluster)
    assert found.name == name
    other = load_cluster("dgx-a100", 8)
    ((ring,), _) = link_classes([call(kernel, {**COLLECTIVE, "ranks": ranks})], other)
    assert "switch" not in ring.name


@pytest.mark.parametrize(("ranks", "between"), [(8.0, 0), (9.0, 1), (16.0, 1)])
def test_collectives_that_leave_their_domain_tell_of_the_network(
    ranks: float, between: int
) -> None:
    cluster = load_cluster("dgx-h100", 16)
    calls = [call("all_gather", {**COLLECTIVE, "ranks": ranks, "nodes": 2.0 if between else 1.0})]
    assert len(network_classes(calls, cluster)) == between
    assert len(link_classes(calls, cluster)[0]) == 1 - between


@pytest.mark.parametrize(
    ("size", "nodes", "scored", "local"),
    [(2.0**20, 2.0, True, 8.0), (2.0**20 - 1, 4.0, False, 4.0)],
)
def test_what_a_call_between_servers_moves_at_least(
    size: float, nodes: float, scored: bool, local: float
) -> None:
    """Fifteen parts in sixteen over twice the adapters of the ranks of a server: 50 GB/s each."""
    shape = {"message_bytes": size, "ranks": 16.0, "nodes": nodes}
    (found,) = network_classes([call("all_gather", shape)], load_cluster("dgx-h100", 16))
    assert found.scored.tolist() == [scored]
    assert found.rows["local"].tolist() == [local]
    out = load_cluster("dgx-h100", 16).node.scale_out
    rate = 2.0 * local * out.adapters * float(out.adapter_bytes_per_s) / 8
    assert found.least_s == pytest.approx([size * 15 / 16 / rate])


ATTENTION: dict[str, float] = {
    "batch": 1, "heads_q": 32, "heads_kv": 8, "seq_q": 4096, "seq_kv": 4096, "head_dim": 128,
    "causal": 1,
}  # fmt: skip
FLASH = {"library": "torch.sdpa-flash"}
COLD = {"cold": True, "library": "fused"}


@pytest.mark.parametrize(
    ("kernel", "shape", "fields", "taken"),
    [
        ("gemm", {"m": 7.0, "n": 5.0, "k": 3.0}, {}, True),
        ("gemm", {"m": 7.0, "n": 5.0}, {}, False),
        ("gemm", {"m": 7.0, "n": 5.0, "k": 3.0}, {"dtype": "fp16"}, True),
        ("gemm", {"m": 7.0, "n": 5.0, "k": 3.0}, {"dtype": "int8"}, False),
        ("gemm", {"m": 7.0, "n": 5.0, "k": 3.0}, {"note": {"scaling": "row"}}, False),
        ("gemm", {"m": 7.0, "n": 5.0, "k": 3.0}, {"note": {"scaling": "tensor"}}, True),
        ("gemm", {"m": 7.0, "n": 5.0, "k": 3.0}, {"note": {"output": "fp32"}}, False),
        ("attention", ATTENTION, FLASH, True),
        ("attention", ATTENTION, {}, False),
        ("attention", ATTENTION, {**FLASH, "dtype": "fp16"}, True),
        ("attention", ATTENTION, {**FLASH, "dtype": "fp32"}, False),
        ("attention", ATTENTION, {**FLASH, "direction": "backward"}, True),
        ("attention", ATTENTION, {**FLASH, "direction": "both"}, False),
        ("attention", {**ATTENTION, "causal": 0}, FLASH, False),
        ("attention", {**ATTENTION, "seq_kv": 4095}, FLASH, False),
        ("attention", {**ATTENTION, "head_dim": 64}, FLASH, False),
        ("attention", {**ATTENTION, "head_dim_v": 64}, FLASH, False),
        ("attention", {**ATTENTION, "head_dim_v": 128}, FLASH, True),
        ("attention", {**ATTENTION, "head_dim": 64}, {**FLASH, "note": {"in_step": True}}, True),
        ("attention", {**ATTENTION, "heads_kv": 0}, FLASH, False),
        ("rms_norm", {}, {**COLD, "moved_bytes": 1e6}, True),
        ("rms_norm", {}, {**COLD, "moved_bytes": 0.999e6}, False),
        ("rms_norm", {}, {**COLD, "moved_bytes": None}, False),
        ("rms_norm", {}, {"moved_bytes": 1e6, "cold": False}, False),
        ("rms_norm", {}, {"moved_bytes": 1e5, "note": {"in_step": True}}, True),
        ("adamw", {}, {**COLD, "moved_bytes": 1e7}, True),
        ("adamw", {}, {"cold": True, "library": "foreach", "moved_bytes": 1e7}, False),
        ("embedding", {}, {**COLD, "moved_bytes": 1e7}, False),
    ],
)  # fmt: skip
def test_kernels_beside_one_another(
    kernel: str, shape: dict[str, float], fields: dict[str, Any], taken: bool
) -> None:
    classes, skipped = accelerator_classes([call(kernel, shape, **fields)],
                                           load_accelerator("h100-sxm"))  # fmt: skip
    assert (len(classes), sum(skipped.values())) == (int(taken), int(not taken))


@pytest.mark.parametrize(
    ("kernel", "shape", "fields", "scored"),
    [
        ("gemm", {"m": 700.0, "n": 600.0, "k": 512.0}, {}, True),
        ("gemm", {"m": 700.0, "n": 511.0, "k": 600.0}, {}, False),
        ("gemm", {"m": 7.0, "n": 511.0, "k": 600.0}, {"note": {"in_step": True}}, True),
        ("copy", {}, {**COLD, "moved_bytes": 1e7}, True),
        ("copy", {}, {**COLD, "moved_bytes": 0.999e7}, False),
    ],
)  # fmt: skip
def test_calls_whose_errors_count(
    kernel: str, shape: dict[str, float], fields: dict[str, Any], scored: bool
) -> None:
    device = load_accelerator("h100-sxm")
    ((found,), _) = accelerator_classes([call(kernel, shape, **fields)], device)
    assert found.scored.tolist() == [scored]
    if kernel == "gemm":
        flop = 2 * shape["m"] * shape["n"] * shape["k"]
        assert found.least_s == pytest.approx([flop / float(device.matrix_flop_per_s["bf16"])])
    else:
        rate = float(device.memory.bandwidth_bytes_per_s)
        assert found.least_s == pytest.approx([fields["moved_bytes"] / rate])


@pytest.mark.parametrize(("direction", "times"), [("forward", 1.0), ("backward", 2.5)])
def test_attention_is_no_faster_than_its_products(direction: str, times: float) -> None:
    """Two products of a causal half each, forward; five, backward."""
    device = load_accelerator("h100-sxm")
    ((found,), _) = accelerator_classes(
        [call("attention", ATTENTION, **FLASH, direction=direction)], device
    )
    flop = times * 2 * 2 * 32 * 4096**2 / 2 * 128
    assert found.least_s == pytest.approx([flop / float(device.matrix_flop_per_s["bf16"])])


def rows(count: int) -> dict[str, Any]:
    """Times of 3 s and 0.7 s a size, of sizes that come three times each."""
    size = 1.0 + np.arange(count) // 3
    return {"size": size, "seconds": 3.0 + 0.7 * size}


PRIORS = {
    "start": Prior(value=2.0, width=0.5, low=0.1, high=9.0),
    "each": Prior(value=1.0, width=0.5, low=0.1, high=9.0, linear=True),
}


def line(values: Any, some: Any) -> Any:
    return values["start"] + values["each"] * some["size"]


def test_a_fit_finds_what_made_its_times_and_scores_shapes_it_has_not_seen() -> None:
    given = rows(60)
    found = fit_and_score(PRIORS, line, given, np.ones(60, dtype=bool))
    assert found.rows == 60
    assert found.values == pytest.approx({"start": 3.0, "each": 0.7}, rel=2e-2)
    assert found.median_error < 3e-3 and found.spread < 3e-3 and found.p90_error < 1e-2
    assert fit_times(
        PRIORS, lambda values: line(values, given), given["seconds"], prior_weight=1e-9
    ) == pytest.approx({"start": 3.0, "each": 0.7}, rel=1e-4)


def test_errors_of_a_fit_that_cannot_move() -> None:
    """Every other shape took a tenth more, the others as much less, and no figure may follow."""
    given = rows(60)
    fixed: dict[str, Any] = {"value": 3.0, "width": 1e-9, "low": 0.1, "high": 9.0}
    priors = {"start": Prior(**fixed), "each": Prior(**{**fixed, "value": 0.7}, linear=True)}
    times = np.where(given["size"] % 2 == 1, 1.1, 1 / 1.1)
    noisy = dict(given, seconds=given["seconds"] * times)
    found = fit_and_score(priors, line, noisy, np.ones(60, dtype=bool))
    assert found.spread == pytest.approx(np.log(1.1), rel=1e-3)
    assert found.median_error == pytest.approx((0.1 + 1 / 11) / 2, rel=1e-3)
    assert found.p90_error == pytest.approx(0.1, rel=1e-3)
    # those alone that are scored: one in ten, all of which took more
    some = fit_and_score(priors, line, noisy, given["size"] % 10 == 1)
    assert some.spread == pytest.approx(0.0, abs=1e-6)
    assert some.median_error == pytest.approx(1 / 11, rel=1e-3)


@pytest.mark.parametrize(("count", "scored", "fine"), [(6, 1, True), (5, 1, False), (6, 0, False)])
def test_three_rows_are_needed_for_each_parameter(count: int, scored: int, fine: bool) -> None:
    given = rows(count)
    mask = np.arange(count) < scored
    if fine:
        assert fit_and_score(PRIORS, line, given, mask).rows == count
    else:
        with pytest.raises(
            InputError, match=rf"at least 6 rows for 2 parameters.*got {count} rows"
        ):
            fit_and_score(PRIORS, line, given, mask)


def test_no_parameter_leaves_its_bounds() -> None:
    narrow = {**PRIORS, "start": Prior(value=2.0, width=0.5, low=1.5, high=2.5)}
    found = fit_times(narrow, lambda values: line(values, rows(30)), rows(30)["seconds"],
                      prior_weight=1e-9)  # fmt: skip
    assert 1.5 <= found["start"] <= 2.5 and found["start"] == pytest.approx(2.5, rel=1e-3)


def document(*calls: Call) -> Measurements:
    return Measurements(path="m.json", source="a lab", date="2026-11-01", device=None, calls=calls)


@pytest.mark.parametrize(("kinds", "said"), [(19, 19), (20, 20), (23, 20)])
def test_twenty_reasons_are_given_why_nothing_can_be_fitted(kinds: int, said: int) -> None:
    calls = [call(f"kernel{i}", {}) for i in range(kinds)]
    with pytest.raises(InputError) as caught:
        calibrate([document(*calls)], accelerator=load_accelerator("h100-sxm"))
    assert len(caught.value.problems) == said
    assert caught.value.problems[0].startswith("m.json: nothing to fit: 1 calls: kernel")


def test_classes_are_counted_as_they_are_done() -> None:
    """Copies and norms of nine sizes each, a fifth of the memory's rate lost."""
    device = load_accelerator("h100-sxm")
    rate = 0.8 * float(device.memory.bandwidth_bytes_per_s)
    calls = [
        call(kernel, {}, **COLD, moved_bytes=size, seconds=3e-6 + size / rate)
        for kernel in ("copy", "rms_norm")
        for size in np.geomspace(2e7, 3e9, 9).tolist()
    ]
    told: list[tuple[int, int]] = []
    found = calibrate([document(*calls)], accelerator=device,
                      progress=lambda done, of: told.append((done, of)))  # fmt: skip
    assert told == [(1, 2), (2, 2)]
    for fitted in found.accelerator:
        assert fitted.figures["memory_fraction"][1] == pytest.approx(0.8, rel=0.01)


def test_classes_of_devices_and_of_links_are_counted_together() -> None:
    """Copies on a device and all-reduces of a server, whose links two figures describe."""
    machine = load_cluster("dgx-h100", 8)
    rate = float(machine.accelerator.memory.bandwidth_bytes_per_s)
    sizes = np.geomspace(2e7, 3e9, 5).tolist()
    calls = [call("copy", {}, **COLD, moved_bytes=size, seconds=3e-6 + size / rate)
             for size in sizes]  # fmt: skip
    calls += [call("all_reduce", {**COLLECTIVE, "message_bytes": size}, seconds=2e-5 + size / 2e11)
              for size in sizes]  # fmt: skip
    told: list[tuple[int, int]] = []
    calibrate([document(*calls)], accelerator=machine.accelerator, cluster=machine,
              progress=lambda done, of: told.append((done, of)))  # fmt: skip
    assert told == [(1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("share", "at_end"), [(0.02, True), (0.0201, True), (0.0205, False), (0.03, False)]
)
def test_a_figure_within_a_hundredth_of_its_least_is_at_an_end(share: float, at_end: bool) -> None:
    """Copies at 2 % of the data sheet's rate, the least that is sought, and at a little more."""
    device = load_accelerator("h100-sxm")
    rate = share * float(device.memory.bandwidth_bytes_per_s)
    calls = [call("copy", {}, **COLD, moved_bytes=size, seconds=3e-6 + size / rate)
             for size in np.geomspace(2e7, 3e9, 9).tolist()]  # fmt: skip
    (fitted,) = calibrate([document(*calls)], accelerator=device).accelerator
    assert fitted.figures["memory_fraction"][1] == pytest.approx(share, rel=2e-3)
    assert ("memory_fraction" in fitted.at_end) == at_end


@pytest.mark.parametrize(("device", "dtype", "width"), [("cpu", "fp32", 4), ("gpu", "bf16", 2)])
def test_attention_moves_queries_keys_values_and_results(
    device: str, dtype: str, width: int
) -> None:
    """Two tokens of many sequences: memory binds, which two tensors a head and a key head pass."""
    base = load_accelerator(CPU if device == "cpu" else "h100-sxm")
    shape = {**ATTENTION, "batch": 1e6, "seq_q": 2.0, "seq_kv": 2.0, "head_dim": 64.0}
    ((found,), _) = accelerator_classes(
        [call("attention", shape, **FLASH, dtype=dtype, note={"in_step": True})], base
    )
    kernel = base.attention["sdpa"]
    queries, keys = (1e6 * heads * 2 * 2 * 64 * width for heads in (32, 8))
    halves: dict[str, Any] = {"heads": 32e6, "queries": 2.0, "keys": 1.0, "span": 2.0}
    halves |= {"score_size": 64.0, "value_size": 64.0}
    rates = device_rates(base, dtype)
    none, both = (
        attention_s(rates, kernel, **halves, query_bytes=times * queries, key_bytes=times * keys,
                    sustained=False)
        for times in (0.0, 1.0)
    )  # fmt: skip
    assert float(both) > float(none)
    assert found.predict({}, found.rows) == pytest.approx([float(both)], rel=1e-9)
