"""Reading torch profiler traces: a real one of a GPU, file forms, names, what cannot be read.

``tests/data/kineto_v100_step.json`` is a real step (see tests/data/README.md); what is expected of
it was added up by hand. Other expected values are those of the profiler's own TensorBoard plugin
(pytorch/kineto, tb_plugin/test/test_profiler.py), which breaks steps down too. Traces that torch
makes here are in tests/oracles/test_trace_torch.py.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.interop.traces.kineto import read_trace
from simulator.interop.traces.kineto_events import (
    collective_kind,
    dtype_bytes,
    kernel_class,
    operator_class,
)
from simulator.scoring.trace import StepTime, Trace, measure

V100 = Path(__file__).parents[1] / "data" / "kineto_v100_step.json"
US = 1e-6


def write(path: Path, events: Iterable[dict[str, Any]], **head: Any) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, **head, "traceEvents": list(events)}))
    return path


def operator(name: str, ts: float, dur: float, thread: int = 1, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "pid": 9,
        "tid": thread,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def kernel(name: str, ts: float, dur: float, stream: int = 7, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": stream,
        "ts": ts,
        "dur": dur,
        "args": {"device": 0, "stream": stream, **args},
    }


def shares(step: StepTime) -> tuple[float, float, float, float]:
    """Compute alone, both, communication alone, neither: microseconds, as the plugin gives them."""
    compute = sum(step.compute_s.values())
    gaps = step.launch_s + step.idle_s
    talk = (step.hidden_s, step.exposed_s)
    values = (compute - talk[0], *talk, gaps)
    assert sum(step.compute_s.values()) + step.exposed_s + gaps == pytest.approx(step.step_s)
    return tuple(round(value / US, 6) for value in values)  # type: ignore[return-value]


# --- a real trace of a GPU ---------------------------------------------------------------


def test_a_real_step_on_a_v100() -> None:
    step = measure(read_trace(V100))
    assert (step.steps, step.trace.device) == (1, "Tesla V100-DGXS-32GB")
    assert len(step.trace.start_s) == 30 + 2  # kernels, copies
    assert step.step_s == pytest.approx(13410 * US)
    expected = {
        "gemm": 3 + 2 + 3 + 2 + 3,
        "attention": 0,
        "memory_bound": 31,
        "optimizer": 4,  # plain additions, launched inside Optimizer.step#SGD.step
        "other": 0,
    }
    assert step.compute_s == pytest.approx({k: v * US for k, v in expected.items()})
    (copies,) = step.collectives  # two from the host, a microsecond each
    assert (copies.collective.kind, copies.calls) == ("host_copy", 2)
    assert copies.exposed_s == pytest.approx(2 * US)
    # The last kernel ends 266 us before the step; each other gap ended with a late launch.
    assert step.idle_s == pytest.approx(266 * US)
    assert step.launch_s == pytest.approx((13410 - 50 - 266) * US)
    assert step.notes == ()


def test_many_steps_of_it_across_the_reader_s_window(tmp_path: Path) -> None:
    copies, length = 60, 13410 + 90  # 1.7 MB of text: several windows
    document = json.loads(V100.read_text())
    events = []
    for k in range(copies):
        for event in document["traceEvents"]:
            args = dict(event.get("args", {}))
            if "correlation" in args:
                args["correlation"] += 1000 * k
            name = event["name"].replace("ProfilerStep#2", f"ProfilerStep#{k}")
            events.append({**event, "name": name, "ts": event["ts"] + k * length, "args": args})
    document["traceEvents"] = events
    path = tmp_path / "long.json"
    path.write_text(json.dumps(document))
    assert path.stat().st_size > 1.5e6
    step = measure(read_trace(path))
    assert (step.steps, step.counted) == (copies, copies - 1)  # nothing marks the last step's end
    assert step.step_s == pytest.approx(length * US)
    assert step.compute_s["gemm"] == pytest.approx(13 * US)
    assert sum(step.compute_s.values()) + step.exposed_s == pytest.approx(50 * US)
    assert step.idle_s == pytest.approx(0.0, abs=1e-12)  # the host is behind every gap now


# --- what the profiler's own plugin makes of small traces ----------------------------------

WORKER0 = [
    ("gloo:broadcast", 16, 38),
    ("gloo:broadcast", 25, 36),
    ("gloo:broadcast", 66, 18),
    ("gloo:all_reduce", 110, 18),
    ("gloo:all_reduce", 120, 36),
]
WORKER1 = [
    ("gloo:broadcast", 20, 28),
    ("gloo:broadcast", 28, 30),
    ("gloo:broadcast", 77, 6),
    ("gloo:all_reduce", 88, 38),
    ("gloo:all_reduce", 130, 16),
]


@pytest.mark.parametrize(
    ("collectives", "compute", "expected"),
    [
        (WORKER0, [operator("aten::add_", 0, 20), operator("aten::mul", 30, 101)], (47, 74, 35, 0)),
        (WORKER1, [operator("aten::add_", 0, 30), operator("aten::mul", 70, 70)], (36, 64, 34, 12)),
        (
            WORKER0,
            [operator("aten::add_", 0, 20), kernel("vectorized_elementwise_kernel", 30, 101)],
            (31, 70, 39, 16),
        ),
        (
            WORKER1,
            [operator("aten::add_", 0, 30), kernel("vectorized_elementwise_kernel", 70, 70)],
            (16, 54, 44, 32),
        ),
    ],
    ids=["processors, rank 0", "processors, rank 1", "GPU, rank 0", "GPU, rank 1"],
)
def test_overlap_as_the_plugin_has_it(
    tmp_path: Path,
    collectives: list[tuple[str, float, float]],
    compute: list[dict[str, Any]],
    expected: tuple[float, ...],
) -> None:
    # TestDistributed.test_distributed_gloo_cpu and _gloo_gpu: steps_to_overlap
    events = [operator(*one, thread=2 + i) for i, one in enumerate(collectives)]
    step = measure(read_trace(write(tmp_path / "t.json", [*compute, *events])), steps=1)
    compute_only, both, talk_only, neither = shares(step)
    hidden = {one.collective.kind: one.hidden_s for one in step.collectives}
    assert set(hidden) == {"broadcast", "all_reduce"}
    assert (compute_only, both, talk_only, neither) == expected


def test_peak_memory_as_the_plugin_has_it(tmp_path: Path) -> None:
    # TestMemoryCurve: Device Type, Total Allocated, Total Reserved
    curve = [
        (0, 4, 0),
        (1, 400, 512),
        (0, 8000, 0),
        (1, 8000, 10240),
        (1, 5000, 10240),
        (1, 0, 10240),
    ]
    events = [
        {
            "ph": "i",
            "s": "t",
            "name": "[memory]",
            "pid": 0,
            "tid": 0,
            "ts": i,
            "args": {
                "Device Type": kind,
                "Device Id": 0,
                "Total Allocated": size,
                "Total Reserved": held,
            },
        }
        for i, (kind, size, held) in enumerate(curve)
    ]
    on_gpu = read_trace(write(tmp_path / "gpu.json", [kernel("k", 0, 9), *events]))
    assert (on_gpu.allocated_bytes, on_gpu.reserved_bytes) == (8000, 10240)
    on_host = read_trace(write(tmp_path / "host.json", [operator("aten::mm", 0, 9), *events]))
    assert (on_host.allocated_bytes, on_host.reserved_bytes) == (8000, None)


# --- names -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ampere_bf16_s16816gemm_bf16_64x64_sliced1x2_ldg8_f2f_stages_64x6_tn", "gemm"),
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN", "gemm"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16_64x64_64x6_tn_align8>", "gemm"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1", "gemm"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, __nv_bfloat16>", "gemm"),
        ("Cijk_Ailk_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64_MI16x16x1_SN", "gemm"),
        ("triton_tem_fused_addmm_12", "gemm"),
        ("triton_poi_fused_addmm_gelu_3", "memory_bound"),
        ("triton_red_fused__to_copy_mul_rms_norm_0", "memory_bound"),
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>", "attention"),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<>>>",
         "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention)", "attention"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>", "optimizer"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>",
         "optimizer"),
        ("void at::native::vectorized_elementwise_kernel<4, f()::{lambda(float)#1}>",
         "memory_bound"),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, 8>", "memory_bound"),
        ("void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<>", "memory_bound"),
        ("Memcpy DtoD (Device -> Device)", "memory_bound"),
        ("Memset (Device)", "memory_bound"),
        ("Memcpy HtoD (Pageable -> Device)", "collective"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
         "collective"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", "collective"),
        ("ncclSymkDevKernel_ReduceScatter_LL_sum_bf16", "collective"),
        ("void deep_ep::internode::dispatch<false, 8, true, 8>(int4*, float*)", "collective"),
        ("my_own_kernel", "other"),
    ],
)  # fmt: skip
def test_kernel_classes(name: str, expected: str) -> None:
    assert kernel_class(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::addmm", "gemm"),
        ("aten::baddbmm", "gemm"),
        ("aten::linear", "other"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "attention"),
        ("aten::native_layer_norm", "memory_bound"),
        ("aten::gelu_backward", "memory_bound"),
        ("aten::as_strided", "other"),
        ("aten::_fused_adamw_", "optimizer"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "other"),
        ("c10d::allreduce_", "collective"),
        ("_c10d_functional::all_gather_into_tensor", "collective"),
    ],
)
def test_operator_classes(name: str, expected: str) -> None:
    assert operator_class(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_TREE_LL(ncclDevKernelArgs)", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "collective"),
        ("_allgather_base", "all_gather"),
        ("all_to_allv", "all_to_all"),
        ("gloo:all_reduce", "all_reduce"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("void dpsk::ep::internode::combine<>", "all_to_all"),
        ("broadcast", "broadcast"),
        ("recv", "send_recv"),
        ("Memcpy DtoH (Device -> Pinned)", "host_copy"),
    ],
)
def test_collective_kinds(name: str, expected: str) -> None:
    assert collective_kind(name) == expected


def test_sizes_of_types() -> None:
    names = ("BFloat16", "c10::BFloat16", "Float", "long int", "Float8_e4m3fn", "Quaternion")
    assert [dtype_bytes(name) for name in names] == [2, 2, 4, 8, 1, None]


# --- collectives of NCCL -------------------------------------------------------------------


def test_what_nccl_kernels_say_of_themselves(tmp_path: Path) -> None:
    said = {
        "Collective name": "_reduce_scatter_base",
        "In msg nelems": 1_000_000,
        "Out msg nelems": 250_000,
        "Group size": 4,
        "dtype": "BFloat16",
        "Process Group Name": "3",
        "Process Group Ranks": "[0, 2, 4, 6]",
    }
    config = [{"pg_name": "3", "pg_desc": "DATA_PARALLEL_GROUP", "pg_size": 4, "ranks": []}]
    path = write(
        tmp_path / "t.json",
        [kernel("nvjet_x", 0, 10), kernel("ncclDevKernel_Generic_4(args)", 5, 10, 20, **said)],
        distributedInfo={"rank": 2, "world_size": 8, "pg_config": config},
    )
    trace = read_trace(path)
    (one,) = trace.collectives
    assert (one.kind, one.group, one.size, one.ranks) == ("reduce_scatter", "3", 4, (0, 2, 4, 6))
    assert one.description == "DATA_PARALLEL_GROUP"
    assert (trace.rank, trace.world) == (2, 8)
    assert trace.call_bytes.tolist() == [2e6]
    assert measure(trace, steps=1).collectives[0].bytes_ == 2e6


def test_what_the_call_that_issued_them_says(tmp_path: Path) -> None:
    said = {"Collective name": "allreduce", "In msg nelems": 16, "dtype": "Float", "Group size": 2}
    events = [
        operator("record_param_comms", 0, 2, **{"External id": 77}, **said),
        kernel("ncclDevKernel_Generic(args)", 5, 10, **{"External id": 77}),
    ]
    trace = read_trace(write(tmp_path / "t.json", events))
    assert [(one.kind, one.size) for one in trace.collectives] == [("all_reduce", 2)]
    assert trace.call_bytes.tolist() == [64.0]


def test_ranks_that_kineto_shortened_are_no_ranks(tmp_path: Path) -> None:
    said = {"Group size": 64, "Process Group Ranks": "[0, 1, 2, ..., 63]"}
    path = write(tmp_path / "t.json", [kernel("ncclDevKernel_AllGather_RING_LL", 0, 1, **said)])
    (one,) = read_trace(path).collectives
    assert (one.size, one.ranks) == (64, ())


# --- forms of the file ---------------------------------------------------------------------


def same(one: Trace, other: Trace) -> bool:
    pairs = [(one.compute, other.compute), (one.communication, other.communication)]
    return all(
        np.array_equal(a.start_s, b.start_s) and np.array_equal(a.code, b.code) for a, b in pairs
    )


def test_gzip_and_bare_list(tmp_path: Path) -> None:
    whole = read_trace(V100)
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(V100.read_bytes()))
    assert same(read_trace(packed), whole)
    halves = V100.read_bytes()[:9000], V100.read_bytes()[9000:]
    packed.write_bytes(b"".join(gzip.compress(half) for half in halves))  # two members
    assert same(read_trace(packed), whole)
    bare = tmp_path / "trace.json"
    bare.write_text(json.dumps(json.loads(V100.read_text())["traceEvents"]))
    assert same(read_trace(bare), whole)


@pytest.mark.parametrize("packed", [False, True], ids=["json", "gz"])
def test_a_file_that_was_cut_off_is_read_as_far_as_it_is_whole(
    tmp_path: Path, packed: bool
) -> None:
    raw = V100.read_bytes()
    raw = gzip.compress(raw) if packed else raw
    kernels = len(read_trace(V100).start_s)
    path = tmp_path / "cut.json"
    for share in (0.4, 0.6, 0.8):
        path.write_bytes(raw[: int(share * len(raw))])
        trace = read_trace(path)
        assert 0 < len(trace.start_s) < kernels
        assert trace.notes == (
            "the file is cut off: events behind that are missing from every part",
        )


def test_broken_events_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    good = V100.read_text()
    path.write_text(good.replace('"dur": 663', '"dur": nothing').replace('"id": 333', '"id" 333'))
    trace = read_trace(path)
    assert len(trace.start_s) == len(read_trace(V100).start_s)
    assert trace.notes == ("2 events could not be read and are left out",)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "the file is empty"),
        (b"  \n ", "the file is empty"),
        (b"run_id,step_time_s\nx,1\n", "not JSON: begins with 'run_id"),
        (b'{"schemaVersion": 1}', "not a torch profiler trace: it has no list traceEvents"),
        (b'{"traceEvents": []}', "no kernel and no operator in it"),
        (b'{"traceEvents": [', "no kernel and no operator in it"),
        (b'{"traceEvents": [{"ph": "X", "name": "paint", "cat": "blink", "ts": 0, "dur": 5}]}',
         "no kernel and no operator in it"),
        (b'{"deviceProperties": [{"id": 0}], "traceEvents": [{"ph": "X", "cat": "cpu_op",'
         b' "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 5}]}',
         "names a GPU but holds no kernel: profile with ProfilerActivity.CUDA"),
        (gzip.compress(V100.read_bytes())[:900] + b"\xff" * 900, "cannot be read"),
        (b"[" * 100_000, "no kernel and no operator in it"),
    ],
)  # fmt: skip
def test_what_is_no_trace_of_a_run(tmp_path: Path, raw: bytes, message: str) -> None:
    path = tmp_path / "given.json"
    path.write_bytes(raw)
    with pytest.raises(InputError, match=message) as caught:
        read_trace(path)
    assert all(line.startswith(f"{path}: ") for line in caught.value.problems)


def test_missing_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text("{}")
    with pytest.raises(InputError, match=r"is a folder.*rank0\.json") as caught:
        read_trace(tmp_path)
    assert str(caught.value).count(str(tmp_path)) == 1
    with pytest.raises(InputError, match=r"no such file \(did you mean 'rank0\.json'\?\)"):
        read_trace(tmp_path / "rank_0.json")


def test_several_ranks_in_one_file(tmp_path: Path) -> None:
    other = {**kernel("nvjet_x", 3, 5), "pid": 1}
    other["args"] = {**other["args"], "device": 1}
    path = write(tmp_path / "t.json", [kernel("nvjet_x", 0, 5), other])
    with pytest.raises(InputError, match=r"kernels of 2 devices \(\[0, 1\]\)"):
        read_trace(path)


# --- damaged and hostile -------------------------------------------------------------------


@pytest.mark.parametrize("field", ["tid", "pid", "ts", "dur"])
@pytest.mark.parametrize("value", [[1], {}, 10**400, float("nan")])
def test_events_that_cannot_be_are_left_out_and_counted(
    tmp_path: Path, field: str, value: Any
) -> None:
    odd = {**operator("aten::mm", 50, 10), field: value}
    trace = read_trace(write(tmp_path / "t.json", [operator("aten::mm", 0, 20), odd]))
    if field in ("ts", "dur") or not isinstance(value, (int, float)):
        assert trace.notes[0].startswith("1 events have no time, process or thread")
        assert measure(trace).compute_s["gemm"] == pytest.approx(20 * US)


@pytest.mark.parametrize("value", [[1], {}, 10**400, [10**400], None, "[[[", "[" * 100_000, True])
def test_arguments_of_a_collective_may_be_anything(tmp_path: Path, value: Any) -> None:
    names = ("Collective name", "Group size", "In msg nelems", "dtype", "Process Group Name")
    names += ("Process Group Ranks", "Process Group Description", "Input Dims", "Input type")
    names += ("External id", "device", "correlation")
    config = [{"pg_name": value, "pg_size": value, "ranks": value, "pg_desc": value}]
    for name in names:
        event = kernel("ncclDevKernel_AllGather_RING_LL", 0, 5, **{name: value})
        path = write(
            tmp_path / "t.json",
            [event],
            distributedInfo={"rank": value, "world_size": value, "pg_config": config},
            deviceProperties=[{"id": value, "name": value}],
        )
        step = measure(read_trace(path), steps=1)
        json.dumps(step.document(), allow_nan=False)
        assert step.exposed_s == pytest.approx(5 * US)


def test_a_thread_and_a_group_for_every_event(tmp_path: Path) -> None:
    """Ranges that touch take their sum; were each looked for in all, it would take minutes."""
    count = 10_000
    events = [operator("aten::mm", 10 * i, 5, thread=i) for i in range(count)]
    step = measure(read_trace(write(tmp_path / "t.json", events)))
    assert step.compute_s["gemm"] == pytest.approx(5 * count * US)
    said = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 2}
    events = [
        kernel("ncclDevKernel_Generic", 10 * i, 5, **said, **{"Process Group Name": str(i)})
        for i in range(count)
    ]
    step = measure(read_trace(write(tmp_path / "t.json", events)))
    assert len(step.collectives) == count
    assert {round(one.exposed_s / US, 6) for one in step.collectives} == {5.0}
    assert {one.bytes_ for one in step.collectives} == {8.0}


def test_limits_of_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": [' + '{"a" 1}, ' * 2_000 + "{}]}")
    with pytest.raises(InputError, match="more than 1000 events are not JSON"):
        read_trace(path)
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 20_000_000))
    with pytest.raises(InputError, match="unpacks to over 200 times its size"):
        read_trace(path)
    monkeypatch.setattr("simulator.interop.traces.kineto_events.MOST_EVENTS", 5)
    write(path, [operator("aten::mm", i, 1) for i in range(6)])
    with pytest.raises(InputError, match=r"t\.json: more than 5 events: profile fewer steps"):
        read_trace(path)


@pytest.mark.parametrize(
    ("names", "size"),
    [
        (("double", "float64", "long", "long int", "int64", "at::Long"), 8),
        (("float", "float32", "int", "int32", "Float", "c10::Float"), 4),
        (("half", "float16", "bfloat16", "short", "c10::BFloat16", "c10::Half", "BFloat16"), 2),
        (("byte", "char", "uint8", "int8", "bool", "unsigned char", "signed char", "Byte"), 1),
        (("float8_e4m3fn", "c10::Float8_e5m2", "float8_e8m0fnu"), 1),
        (("", "GenericList", "quint4x2", "complex64"), None),
    ],
)
def test_bytes_of_an_element_by_each_name_of_its_type(
    names: tuple[str, ...], size: int | None
) -> None:
    """c10/core/ScalarType.h and its names in Kineto and NCCL's records."""
    assert {name: dtype_bytes(name) for name in names} == dict.fromkeys(names, size)
