"""Names in a torch profiler trace -> operator class, collective, bytes of a type.

Kernel names are those of the libraries' own sources: cuBLAS and CUTLASS (``*gemm*``, ``nvjet_*``,
``xmma``), rocBLAS (``Cijk_*``), flash-attention and cuDNN attention (``flash_fwd``, ``fmha``,
``*sdpa*``), NCCL and RCCL (``ncclDevKernel_AllReduce_Sum_...``, older ``ncclKernel_...``), DeepEP,
Transformer Engine user buffers, torch (``at::native::...``, Inductor's ``triton_poi_...``).
"""

from __future__ import annotations

import re
from functools import lru_cache

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
