"""Listen to torch's operators while a module runs: products, attention, bytes moved and kept."""

from __future__ import annotations

from dataclasses import field
from functools import cache
from math import prod
from typing import Any

from simulator.errors import InputError
from simulator.records import dataclass

_KINDS = {
    **dict.fromkeys(("native_layer_norm", "native_batch_norm", "native_group_norm"), "norm"),
    **dict.fromkeys(("_fused_rms_norm", "cudnn_batch_norm", "_native_batch_norm_legit"), "norm"),
    **dict.fromkeys(("_softmax", "_safe_softmax"), "softmax"),
    **dict.fromkeys(("_log_softmax", "nll_loss_forward", "nll_loss2d_forward"), "loss"),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), "loss"),
    **dict.fromkeys(("clone", "copy_", "_to_copy", "cat", "constant_pad_nd"), "copy"),
}
"""Stream class of an operator (its ``_backward`` too); all others are elementwise."""

_FREE = ("_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
"""Operators that move nothing; views neither."""

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution")
_FLASH = ("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention")


def import_torch() -> Any:
    """Import torch, which the simulator does without elsewhere."""
    try:
        import torch
        import torch.utils._pytree  # noqa: F401 - an attribute of torch from here on
    except ImportError:
        raise InputError(
            "module: tracing needs torch, which is not installed (pip install torch)"
        ) from None
    return torch


def import_transformers() -> Any:
    """Import transformers, whose classes stand for types that no row describes."""
    try:
        import transformers
    except ImportError:
        raise InputError(
            "model: tracing a type needs transformers, which is not installed"
            " (pip install transformers)"
        ) from None
    return transformers


@dataclass(kw_only=True, slots=True)
class Counts:
    """What one part of the module did at one batch size."""

    names: list[str] = field(default_factory=list)
    """Products and attention calls in order."""
    gemms: list[dict[str, float]] = field(default_factory=list)
    flash: list[dict[str, float]] = field(default_factory=list)
    streams: dict[str, list[float]] = field(default_factory=dict)
    """By class: bytes forward and backward, kernels forward and backward."""
    saved: float = 0.0
    inputs: float = 0.0
    transient: float = 0.0


@cache
def _recorder() -> type:
    """Make the class that listens, once torch is there."""
    torch = import_torch()
    from torch.utils._python_dispatch import TorchDispatchMode

    class Listener(TorchDispatchMode):
        def __init__(self, recorder: Recorder) -> None:
            super().__init__()
            self.recorder = recorder

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            self.recorder.note(torch, func, args, kwargs or {}, result)
            return result

    return Listener


@dataclass(kw_only=True, slots=True)
class Recorder:
    """Sorts what it hears by the part of the module that does it; part 0 is outside the layers."""

    counts: list[Counts]
    resident: set[int]
    """Storages of parameters and buffers."""
    weights: set[int]
    """Storages of parameters."""
    forward: bool = True
    current: int = 0
    spans: list[tuple[int, int, int]] = field(default_factory=list)
    """(first, end, part): numbers that autograd gave to the nodes of a layer's forward pass."""
    kept: dict[int, Any] = field(default_factory=dict)
    """Storages that autograd keeps: held here so that no other takes their place."""
    started: int = 0
    _mode: Any = None

    @classmethod
    def of(cls, module: Any, layers: int) -> Recorder:
        """Make a recorder for a module on the meta device."""
        weights = {_storage(p) for p in module.parameters()}
        return cls(
            counts=[Counts() for _ in range(layers + 1)],
            resident=weights | {_storage(b) for b in module.buffers()},
            weights=weights,
        )

    def __enter__(self) -> Recorder:
        self._mode = _recorder()(self)
        self._mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._mode.__exit__(*error)

    def saving(self) -> Any:
        """Hooks on what autograd keeps."""
        return import_torch().autograd.graph.saved_tensors_hooks(self._keep, lambda x: x)

    def _keep(self, x: Any) -> Any:
        key = _storage(x)
        if self.forward and key not in self.resident and key not in self.kept:
            self.kept[key] = x.untyped_storage()
            self.counts[self.current].saved += self.kept[key].nbytes()
        return x

    def enter(self, part: int, arguments: Any) -> None:
        """Begin a layer's forward pass."""
        torch = import_torch()
        leaves = torch.utils._pytree.tree_leaves(arguments)
        tensors = {_storage(x): x for x in leaves if isinstance(x, torch.Tensor)}
        inputs = [x for x in tensors.values() if x.requires_grad] or list(tensors.values())
        self.counts[part].inputs += sum(map(_bytes, inputs))
        self.current, self.started = part, torch._C._autograd._get_sequence_nr()

    def leave(self) -> None:
        """End a layer's forward pass."""
        end = import_torch()._C._autograd._get_sequence_nr()
        self.spans.append((self.started, end, self.current))
        self.current = 0

    def _part(self, torch: Any) -> Counts:
        """Part at work: in the backward pass, the one whose forward pass made the present node."""
        if self.forward:
            return self.counts[self.current]
        node = torch._C._current_autograd_node()
        number = -1 if node is None else node._sequence_nr()
        inside = (part for first, end, part in self.spans if first <= number < end)
        return self.counts[next(inside, 0)]

    def note(self, torch: Any, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Take down one operator."""
        name = func.overloadpacket.__name__
        if func.is_view or name in _FREE or name == "detach":
            return
        leaves = torch.utils._pytree.tree_leaves
        read = [x for x in leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        wrote = [x for x in leaves(result) if isinstance(x, torch.Tensor)]
        part = self._part(torch)
        if not self.forward:
            passing = {_storage(x): _bytes(x) for x in [*read, *wrote]}
            for key in self.kept.keys() | self.resident:
                passing.pop(key, None)
            part.transient = max(part.transient, sum(passing.values()))
        if name in _PRODUCTS or name in _FLASH:
            if self.forward:
                part.names.append(name)
                self._product(part, name, args, kwargs, wrote[0])
        elif not name.startswith((*(f"{flash}_backward" for flash in _FLASH), "convolution_b")):
            if name == "embedding":  # reads the rows it wants, not the table
                read = [*read[1:], wrote[0]]
            kind = _KINDS.get(name, _KINDS.get(name.removesuffix("_backward"), "elementwise"))
            kind = _KINDS.get(name.removesuffix("_backward_data"), kind)
            row = part.streams.setdefault(kind, [0.0, 0.0, 0.0, 0.0])
            direction = 0 if self.forward else 1
            row[direction] += sum(map(_bytes, [*read, *wrote]))
            row[2 + direction] += 1

    def _product(self, part: Counts, name: str, args: Any, kwargs: Any, out: Any) -> None:
        if name in _FLASH:
            part.flash.append(_flash(name, args, kwargs, out))
            return
        if name == "convolution":
            sizes, operands = _convolution(args, out), args[:2]
        else:
            operands = args[-2:] if name in ("mm", "bmm") else args[1:3]
            a, b = (x.shape for x in operands)
            sizes = {"m": a[-2], "n": b[-1], "k": a[-1], "batch": a[0] if len(a) == 3 else 1}
        weights = any(_storage(x) in self.weights for x in operands)
        part.gemms.append({**sizes, "weights": weights})


def _convolution(args: Any, out: Any) -> dict[str, float]:
    """A convolution as an implicit product: one row for every position it is applied to."""
    x, weight, transposed, groups = args[0], args[1], args[6], args[8]
    window = prod(weight.shape[2:])
    if transposed:  # weight (in, out / groups, ...), applied to every input position
        return {
            "m": x.shape[0] * prod(x.shape[2:]),
            "n": weight.shape[1] * window,
            "k": weight.shape[0] // groups,
            "batch": groups,
        }
    return {
        "m": out.shape[0] * prod(out.shape[2:]),
        "n": weight.shape[0] // groups,
        "k": weight.shape[1] * window,
        "batch": groups,
    }


def _flash(name: str, args: Any, kwargs: Any, out: Any) -> dict[str, float]:
    """Sizes of a fused attention call: shapes are (..., heads, tokens, elements)."""
    q, k, v = args[:3]
    at = 4 if name == _FLASH[0] else 6
    causal = bool(args[at] if len(args) > at else kwargs.get("is_causal", False))
    return {
        "heads": prod(q.shape[:-2]),
        "queries": q.shape[-2],
        "keys": k.shape[-2],
        "score_size": q.shape[-1],
        "value_size": v.shape[-1],
        "query_bytes": _bytes(q) + _bytes(out),
        "key_bytes": _bytes(k) + _bytes(v),
        "causal": causal,
    }


def _bytes(x: Any) -> float:
    return float(x.numel() * x.element_size())


def _storage(x: Any) -> int:
    return int(x.untyped_storage()._cdata)
