"""What is kept of the events of a torch profiler trace: a few numbers of each, in flat arrays.

Kernels are told apart by their names, those of the libraries' own sources: cuBLAS and CUTLASS
(``*gemm*``, ``nvjet_*``, ``xmma``), rocBLAS (``Cijk_*``), flash-attention and cuDNN attention
(``flash_fwd``, ``fmha``, ``*sdpa*``), NCCL and RCCL (``ncclDevKernel_AllReduce_Sum_...``, older
``ncclKernel_...``), DeepEP, Transformer Engine user buffers, torch (``at::native::...``, Inductor's
``triton_poi_...``).
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.errors import InputError
from simulator.files import is_number
from simulator.scoring.trace import Spans

COLLECTIVES = (
    *("all_reduce", "reduce_scatter", "all_gather", "all_to_all"),
    *("broadcast", "reduce", "send_recv", "barrier", "host_copy", "collective"),
)
"""Kinds that :func:`collective_kind` tells apart; the last where the name does not say which.
Copies between a device and its host travel beside compute as collectives do."""

_COLLECTIVE_KERNEL = re.compile(
    r"nccl|rccl|msccl|oneccl|deep_ep::|ep::(?:inter|intra)node|nvshmem|userbuffers"
    r"|cross_device_reduce|(?:one|two)_shot_all_reduce|multimem_all|memcpy (?:htod|dtoh|ptop)"
)
_KINDS = (
    ("host_copy", re.compile(r"memcpy (?:htod|dtoh)")),
    ("send_recv", re.compile(r"memcpy ptop")),
    ("all_reduce", re.compile(r"all_?reduce|cross_device_reduce")),
    ("reduce_scatter", re.compile(r"reduce_?scatter")),
    ("all_to_all", re.compile(r"all_?to_?all")),
    ("all_gather", re.compile(r"all_?gather|gather")),
    ("broadcast", re.compile(r"broadcast|bcast")),
    ("send_recv", re.compile(r"send|recv")),
    ("barrier", re.compile(r"barrier")),
    ("reduce", re.compile(r"reduce")),
)
_ALL_TO_ALL_LIBRARY = re.compile(r"deep_ep::|ep::(?:inter|intra)node")

# In this order: Inductor names a kernel after every operator it fused, also after products that it
# did not; attention kernels are built from CUTLASS; optimizers are element-wise kernels.
_KERNELS = (
    ("memory_bound", re.compile(r"triton_(?:poi|red|per|for|spl)")),
    (
        "attention",
        re.compile(r"flash(?!infer)|fmha|sdpa|attention|attn_(?:fwd|bwd)|mha_(?:fwd|bwd)"),
    ),
    (
        "optimizer",
        re.compile(r"multi_tensor_apply|multi_tensor_kernel|adam|lamb(?!da)|lars|fused_?sgd|muon"),
    ),
    (
        "gemm",
        re.compile(
            r"gemm|gemv|nvjet|cutlass|cublas|xmma|splitk|cijk_|matmul|wgrad|dgrad|conv(?!ert)"
            r"|triton_tem|triton_mm|\bdot_kernel|\breduce_1block_kernel|gmm"
        ),
    ),
    (
        "memory_bound",
        re.compile(
            r"at::native|elementwise|vectorized|reduce|norm|softmax|cross_entropy|nll_loss|dropout"
            r"|gelu|silu|swiglu|geglu|relu|rope|rotary|embedding|index|gather|scatter|copy|cat"
            r"|transpose|permute|cast|quant|amax|fill|sort|topk|scan|cub::|triton|memset"
            r"|memcpy dtod"
        ),
    ),
)

_HOST_GEMM = re.compile(
    r"(?:aten|mkldnn)::_?(?:mm|addmm(?:_activation)?|bmm|baddbmm|addmv|mv|dot|scaled_mm|int_mm"
    r"|grouped_mm|scaled_grouped_mm|linear_pointwise|mkldnn_linear|mkldnn_convolution"
    r"|convolution_pointwise|slow_conv\w+|thnn_conv\w+)$"
)
_HOST_ATTENTION = re.compile(r"aten::_(?:scaled_dot_product|flash_attention|efficient_attention)")
_HOST_OPTIMIZER = re.compile(r"aten::_fused_(?:adam|adamw|sgd|adagrad)")
_HOST_OVERHEAD = re.compile(
    r"aten::(?:_?unsafe_)?(?:view\w*|reshape\w*|t|transpose|permute|as_strided_?|expand\w*"
    r"|squeeze|unsqueeze|slice|select|narrow|chunk|split\w*|unbind|unfold|detach_?|alias|empty\w*"
    r"|new_empty\w*|resize_\w*|set_|result_type|to|_to_copy|item|_local_scalar_dense"
    r"|resolve_conj|resolve_neg|is_\w+|linear|matmul|einsum|layer_norm|rms_norm|group_norm"
    r"|dropout|embedding|scaled_dot_product_attention|contiguous|clone|zeros\w*|ones\w*|convolution|_convolution|conv\d+d)$"
)
"""Operators that only describe, allocate or call others; their own time is the host's."""

_DTYPE_BYTES = {
    "float": 4, "float32": 4, "int": 4, "int32": 4, "double": 8, "float64": 8, "long": 8,
    "long int": 8, "int64": 8, "half": 2, "float16": 2, "bfloat16": 2, "short": 2, "byte": 1,
    "char": 1, "uint8": 1, "int8": 1, "bool": 1, "unsigned char": 1, "signed char": 1,
}  # fmt: skip


_KEPT_NAMES = 2**16


@lru_cache(maxsize=_KEPT_NAMES)
def kernel_class(name: str) -> str:
    """Class of a device kernel or copy: a term of the table, ``collective`` or ``other``.

    Examples
    --------
    >>> kernel_class("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN")
    'gemm'
    >>> kernel_class("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'collective'
    """
    low = name.lower()
    if _COLLECTIVE_KERNEL.search(low):
        return "collective"
    return next((word for word, pattern in _KERNELS if pattern.search(low)), "other")


@lru_cache(maxsize=_KEPT_NAMES)
def operator_class(name: str) -> str:
    """Class of an operator on the host, for traces of runs without a device.

    Only the operator that does the work counts: the time that ``aten::linear`` spends outside
    ``aten::addmm`` is ``other``, as are allocations and views.
    """
    if name.startswith(("c10d::", "c10d_functional::", "_c10d_functional::")):
        return "collective"
    for word, pattern in (
        ("gemm", _HOST_GEMM),
        ("attention", _HOST_ATTENTION),
        ("optimizer", _HOST_OPTIMIZER),
        ("other", _HOST_OVERHEAD),
    ):
        if pattern.match(name):
            return word
    return "memory_bound" if name.startswith("aten::") else "other"


@lru_cache(maxsize=_KEPT_NAMES)
def collective_kind(name: str) -> str:
    """Kind of a collective from its kernel's name or its ``Collective name``.

    Examples
    --------
    >>> collective_kind("_allgather_base"), collective_kind("ncclDevKernel_SendRecv(...)")
    ('all_gather', 'send_recv')
    """
    low = name.lower()
    if _ALL_TO_ALL_LIBRARY.search(low):
        return "all_to_all"
    return next((kind for kind, pattern in _KINDS if pattern.search(low)), COLLECTIVES[-1])


def dtype_bytes(name: str) -> int | None:
    """Bytes of one element of a type as Kineto or torch names it; None if unknown."""
    low = name.lower().removeprefix("c10::").removeprefix("at::")
    return 1 if low.startswith("float8") else _DTYPE_BYTES.get(low)


US = 1e-6
"""Seconds of a microsecond, the unit of a trace."""

_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
_HOST = {"cpu_op", "operator", "user_annotation"}
_LAUNCH = {"cuda_runtime", "cuda_driver", "runtime"}
"""Categories in lower case; ``Operator``, ``Runtime``, ``Memcpy`` were those of torch 1.8."""

_KEPT = _DEVICE | _HOST | _LAUNCH

_STEP = re.compile(r"ProfilerStep#(\d{1,15})$")
_OPTIMIZER_STEP = "Optimizer.step#"
_HOST_COLLECTIVE = re.compile(r"(?:gloo|nccl|mpi|ucc):|record_param_comms$")
_NO_NUMBER = -1
_EXTERNAL = ("External id", "external id")
_DESCRIBING = (
    *("Collective name", "In msg nelems", "dtype", "Group size", "Input Dims", "Input type"),
    *("Process Group Name", "Process Group Description", "Process Group Ranks", *_EXTERNAL),
)
"""Arguments of a collective that are kept; of gloo's, only the shape of the input is known."""


MOST_EVENTS = 10_000_000
"""Events that are kept; the first beyond is an error. Each takes some hundred bytes."""


class Columns:
    """Events as they come: begin and length in microseconds, what it is, and a number beside it."""

    def __init__(self) -> None:
        self._ts, self._dur = array("d"), array("d")
        self._code, self._number = array("q"), array("q")

    def __len__(self) -> int:
        return len(self._ts)

    def add(self, ts: float, dur: float, code: int, number: int = _NO_NUMBER) -> None:
        """Append one event."""
        self._ts.append(ts)
        self._dur.append(max(dur, 0.0))
        self._code.append(code)
        self._number.append(number)

    def spans(self, zero_us: float) -> Spans:
        """Return all events in seconds after `zero_us`."""
        begin_us = np.array(self._ts) - zero_us
        return Spans(
            start_s=begin_us * US,
            end_s=(begin_us + np.array(self._dur)) * US,
            code=np.array(self._code, dtype=np.int64),
        )

    @property
    def numbers(self) -> NDArray[np.int64]:
        """The number beside each event: correlation of a launch, thread of an operator."""
        return np.array(self._number, dtype=np.int64)


class Events:
    """Everything kept of a trace; `add` takes one event, in any order."""

    def __init__(self, where: str = "trace") -> None:
        self._where = where
        self.names: list[str] = []
        """Names that the codes of `device`, `host` and `ranges` stand for."""
        self.device = Columns()
        """Kernels and copies, with their correlation."""
        self.launches = Columns()
        """Calls of the CUDA runtime and driver, with their correlation."""
        self.host = Columns()
        """Operators, with their thread."""
        self.ranges = Columns()
        """Collectives of gloo, which the host marks on its own threads."""
        self.steps, self.optimizer = Columns(), Columns()
        self.arguments: dict[int, Mapping[str, Any]] = {}
        """Arguments of collective kernels, by their position in `device`."""
        self.range_arguments: list[Mapping[str, Any]] = []
        self.described: dict[int, Mapping[str, Any]] = {}
        """Arguments of collectives as the host issued them, by external id."""
        self.devices: set[int] = set()
        self.memory: dict[tuple[int, int], list[float]] = {}
        """Peak allocated and reserved bytes by device type and index."""
        self.first_us, self.last_us = math.inf, -math.inf
        self.count = 0
        """Events that were kept."""
        self.malformed = 0
        """Events without a time, or on a thread, that can be."""
        self._codes: dict[str, int] = {}
        self._threads: dict[Any, int] = {}

    def add(self, event: Mapping[str, Any]) -> None:
        """Keep what matters of one event.

        Raises
        ------
        InputError
            If there are more events than `MOST_EVENTS`.
        """
        phase, name, kind = event.get("ph"), event.get("name"), event.get("cat")
        if phase == "X" and isinstance(name, str) and isinstance(kind, str):
            if (kind := kind.lower()) not in _KEPT:
                return
            ts, dur = event.get("ts"), event.get("dur")
            if is_number(ts) and is_number(dur) and _is_place(event):
                self._span(event, name, kind, float(ts), float(dur))
            else:
                self.malformed += 1
        elif phase == "i" and name == "[memory]":
            self._allocation(_arguments(event))

    def _span(self, event: Mapping[str, Any], name: str, kind: str, ts: float, dur: float) -> None:
        if kind in _DEVICE:
            self._of_device(event, name, ts, dur)
        elif kind in _LAUNCH:
            self.launches.add(ts, dur, 0, whole_number(_arguments(event).get("correlation")))
        else:
            self._of_host(event, name, kind, ts, dur)
        self.count += 1
        if self.count > MOST_EVENTS:
            raise InputError(f"{self._where}: more than {MOST_EVENTS} events: profile fewer steps")
        self.first_us, self.last_us = min(self.first_us, ts), max(self.last_us, ts + dur)

    def _of_device(self, event: Mapping[str, Any], name: str, ts: float, dur: float) -> None:
        arguments = _arguments(event)
        if kernel_class(name) == "collective":
            self.arguments[len(self.device)] = _describing(arguments)
        self.device.add(ts, dur, self._code(name), whole_number(arguments.get("correlation")))
        self.devices.add(whole_number(arguments.get("device", event.get("pid"))))

    def _of_host(
        self, event: Mapping[str, Any], name: str, kind: str, ts: float, dur: float
    ) -> None:
        if step := _STEP.match(name):
            self.steps.add(ts, dur, int(step.group(1)))
        elif name.startswith(_OPTIMIZER_STEP):
            self.optimizer.add(ts, dur, 0)
        elif _HOST_COLLECTIVE.match(name):
            arguments = _describing(_arguments(event))
            if (issued := _external(arguments)) != _NO_NUMBER:
                self.described.setdefault(issued, {"Collective name": name, **arguments})
            if name.startswith("gloo:"):
                self.ranges.add(ts, dur, self._code(name))
                self.range_arguments.append(arguments)
        elif kind != "user_annotation":
            thread = self._threads.setdefault(
                (event.get("pid"), event.get("tid")), len(self._threads)
            )
            self.host.add(ts, dur, self._code(name), thread)

    def _code(self, name: str) -> int:
        code = self._codes.setdefault(name, len(self.names))
        if code == len(self.names):
            self.names.append(name)
        return code

    def _allocation(self, arguments: Mapping[str, Any]) -> None:
        place = (
            whole_number(arguments.get("Device Type")),
            whole_number(arguments.get("Device Id")),
        )
        peak = self.memory.setdefault(place, [0.0, 0.0])
        for i, field in enumerate(("Total Allocated", "Total Reserved")):
            size = arguments.get(field)
            if is_number(size):
                peak[i] = max(peak[i], float(size))

    def collective(self, position: int) -> Mapping[str, Any]:
        """Arguments of a collective kernel, its own or those of the call that issued it."""
        argument = self.arguments.get(position, {})
        return (
            argument
            if "Collective name" in argument
            else {**self.described.get(_external(argument), {}), **argument}
        )

    def launched_s(self) -> Floats:
        """When the host began to launch each event of `device`; NaN if unknown."""
        keys = self.launches.numbers
        order = np.argsort(keys, kind="stable")
        wanted = self.device.numbers
        if len(order) == 0:
            return np.full(len(wanted), np.nan)
        at = np.minimum(np.searchsorted(keys[order], wanted), len(order) - 1)
        known = (keys[order][at] == wanted) & (wanted != _NO_NUMBER)
        return np.where(known, self.launches.spans(self.first_us).start_s[order][at], np.nan)


def _arguments(event: Mapping[str, Any]) -> Mapping[str, Any]:
    found = event.get("args")
    return found if isinstance(found, dict) else {}


def _describing(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: arguments[name] for name in _DESCRIBING if name in arguments}


def _external(arguments: Mapping[str, Any]) -> int:
    return next(
        (whole_number(arguments[name]) for name in _EXTERNAL if name in arguments), _NO_NUMBER
    )


def _is_place(event: Mapping[str, Any]) -> bool:
    """Whether process and thread of an event are numbers or words."""
    return all(isinstance(event.get(name), (int, str, type(None))) for name in ("pid", "tid"))


def whole_number(value: Any) -> int:
    """A number that identifies something; -1 if there is none."""
    good = isinstance(value, int) and abs(value) < 2**63
    return value if good else _NO_NUMBER
