"""Trace a user's own ``torch.nn.Module``: one step on the meta device, nothing computed.

The module runs forward and backward at two batch sizes; every size is a fixed part and one per
sample. Entries of the outermost ``ModuleList`` and ``Sequential`` containers are its layers.
``workload/torch_operators.py`` imports torch, when a module is traced and not before.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from simulator.errors import InputError, brief_text, problem
from simulator.records import dataclass
from simulator.workload.torch_operators import Counts, Recorder, import_torch, import_transformers
from simulator.workload.traced import Amount, TracedFlash, TracedGemm, TracedPart, TracedStream

_BATCHES = (2, 4)
"""Batch sizes of the two runs; batch norm refuses a batch of one vector."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedModule:
    """The distinct layers of a module, their order, and what stands outside them."""

    layers: tuple[TracedPart, ...]
    """Distinct layers."""
    layer_kinds: tuple[int, ...]
    """For each layer, first to last, the index in `layers`."""
    rest: TracedPart
    tokens: int
    """Positions of one sample: the second size of a first input of whole numbers, else 1."""

    @property
    def parameters(self) -> int:
        """All parameters, shared ones once."""
        return self.rest.parameters + sum(self.layers[k].parameters for k in self.layer_kinds)

    def parts(self) -> Iterator[TracedPart]:
        """Yield the part outside the layers, then every layer."""
        yield self.rest
        for kind in self.layer_kinds:
            yield self.layers[kind]


def trace(module: Any, example_inputs: Any, *, element_bytes: int = 2) -> TracedModule:
    """Count what one training step of a module computes, moves and keeps.

    Parameters
    ----------
    module : torch.nn.Module
        Left as it is: a copy without data is traced, in training mode. Give it a forward method
        that returns the loss to have the loss counted too.
    example_inputs : tensor, tuple of tensors, or dict
        Arguments of the forward method; samples are along the first dimension of every tensor.
    element_bytes : int
        2 to trace in bf16, 4 in fp32.

    Raises
    ------
    InputError
        If torch is missing, or the module cannot run without data or grows unevenly with the
        batch.

    Notes
    -----
    Attention through ``torch.nn.functional.scaled_dot_product_attention`` is counted as the fused
    kernel that a GPU runs.
    """
    torch = import_torch()
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"module: must be a torch.nn.Module, got {type(module).__name__}")
    if frozen := [name for name, p in module.named_parameters() if not p.requires_grad]:
        raise InputError(f"module: frozen parameters are not counted yet, got {frozen[0]}")
    dtype = torch.float32 if element_bytes == 4 else torch.bfloat16
    counts = [_run(torch, module, example_inputs, batch, dtype) for batch in _BATCHES]
    parameters = _parameters(module)
    parts = [
        _part(few, many, count, element_bytes)
        for few, many, count in zip(*counts, parameters, strict=True)
    ]
    layers = tuple(dict.fromkeys(parts[1:]))
    return TracedModule(
        layers=layers,
        layer_kinds=tuple(layers.index(part) for part in parts[1:]),
        rest=parts[0],
        tokens=_tokens(torch, example_inputs),
    )


def trace_type(config: Mapping[str, Any], tokens: int, *, where: str) -> TracedModule:
    """Build transformers' class of a config on the meta device and trace it.

    Parameters
    ----------
    config : mapping
        A ``config.json``; the class is the one that it names, else that of the type for causal
        or masked language, for images, or the bare one.
    tokens : int
        Tokens of a sample, where the class reads tokens.
    where : str
        What messages call the config.

    Raises
    ------
    InputError
        If torch or transformers is missing, has no such type, or the class reads what is neither
        tokens nor images.
    """
    torch, transformers = import_torch(), import_transformers()
    kind = str(config.get("model_type"))
    rest = {field: value for field, value in config.items() if field != "model_type"}
    if kind not in transformers.CONFIG_MAPPING:
        rule = f"must be a type that transformers {transformers.__version__} has"
        raise InputError(problem(where, "model_type", rule, kind))
    try:
        made = transformers.CONFIG_MAPPING[kind].from_dict(rest)
        with torch.device("meta"):
            module = _class_of(transformers, made, config)(made)
    except Exception as error:  # whatever a class of transformers says of a config
        said = brief_text(str(error).replace("\n", " "))
        raise InputError(f"{where}: transformers cannot build it: {said}") from None
    whole = torch.zeros(1, 1, tokens, tokens)
    side = getattr(made, "image_size", None) or 224
    height, width = (side, side) if isinstance(side, int) else tuple(side)
    inputs = {
        "input_ids": {
            "input_ids": torch.zeros(1, tokens, dtype=torch.long),
            "attention_mask": whole,
        },
        "pixel_values": {
            "pixel_values": torch.zeros(1, getattr(made, "num_channels", 3), height, width)
        },
    }
    if module.main_input_name not in inputs:
        rule = "must be a type that reads input_ids or pixel_values to be traced"
        raise InputError(problem(where, "model_type", rule, module.main_input_name))
    return trace(module, inputs[module.main_input_name])


def _class_of(transformers: Any, made: Any, config: Mapping[str, Any]) -> Any:
    """The class that a config names, else the one of its type."""
    named = config.get("architectures") or [""]
    stated = getattr(transformers, str(named[0]), None)
    if stated is not None:
        return stated
    for family in ("CAUSAL_LM", "MASKED_LM", "IMAGE_CLASSIFICATION"):
        mapping = getattr(transformers, f"MODEL_FOR_{family}_MAPPING")
        if type(made) in mapping:
            return mapping[type(made)]
    return transformers.MODEL_MAPPING[type(made)]


def _layers(module: Any) -> list[Any]:
    """Entries of the outermost containers; the module itself where it has none."""
    torch = import_torch()
    layers: list[Any] = []

    def visit(container: Any) -> None:
        if isinstance(container, (torch.nn.ModuleList, torch.nn.Sequential)) and len(container) > 1:
            layers.extend(child for child in container if child not in layers)
        else:
            for child in container.children():
                visit(child)

    visit(module)
    return layers or [module]


def _parameters(module: Any) -> list[int]:
    """Parameters outside the layers and of every layer; a shared one counts where it comes first.

    What a layer shares with the outside counts outside.
    """
    layers = _layers(module)
    inside = {id(p) for layer in layers for p in layer.parameters()}
    seen, counts = set(), [sum(p.numel() for p in module.parameters() if id(p) not in inside)]
    for layer in layers:
        parameters = [p for p in layer.parameters() if id(p) not in seen]
        seen |= {id(p) for p in parameters}
        counts.append(sum(p.numel() for p in parameters))
    return counts


def _on_meta(torch: Any, module: Any, dtype: Any) -> Any:
    """Copy the module without its data; tied parameters stay tied."""

    def bare(x: Any) -> Any:
        return torch.empty_like(x, device="meta", dtype=dtype if x.is_floating_point() else x.dtype)

    memo: dict[int, Any] = {id(p): torch.nn.Parameter(bare(p)) for p in module.parameters()}
    memo |= {id(b): bare(b) for b in module.buffers()}
    return copy.deepcopy(module, memo).train()


def _resized(torch: Any, inputs: Any, batch: int, dtype: Any) -> Any:
    """Give the inputs another batch size, on the meta device."""
    leaves = [x for x in torch.utils._pytree.tree_leaves(inputs) if isinstance(x, torch.Tensor)]
    if not leaves or not leaves[0].ndim:
        raise InputError(
            "example_inputs: must hold a tensor with samples along its first dimension"
        )
    samples = leaves[0].shape[0]

    def resize(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        shape = (batch, *x.shape[1:]) if x.ndim and x.shape[0] == samples else x.shape
        return torch.empty(shape, device="meta", dtype=dtype if x.is_floating_point() else x.dtype)

    return torch.utils._pytree.tree_map(resize, inputs)


def _tokens(torch: Any, inputs: Any) -> int:
    leaves = [x for x in torch.utils._pytree.tree_leaves(inputs) if isinstance(x, torch.Tensor)]
    first = leaves[0]
    return int(first.shape[1]) if first.ndim == 2 and not first.is_floating_point() else 1


def _run(torch: Any, module: Any, inputs: Any, batch: int, dtype: Any) -> list[Counts]:
    """Run one step on the meta device and return the counts outside the layers and of each."""
    bare, arguments = _on_meta(torch, module, dtype), _resized(torch, inputs, batch, dtype)
    layers = _layers(bare)
    recorder = Recorder.of(bare, len(layers))
    for index, layer in enumerate(layers, start=1):
        layer.register_forward_pre_hook(_entering(recorder, index), with_kwargs=True)
        layer.register_forward_hook(_leaving(recorder))
    try:
        with _fused_attention(torch), recorder, recorder.saving():
            if isinstance(arguments, Mapping):
                out = bare(**arguments)
            else:
                out = bare(*arguments) if isinstance(arguments, (tuple, list)) else bare(arguments)
            recorder.forward = False
            ends = [
                x
                for x in torch.utils._pytree.tree_leaves(out)
                if isinstance(x, torch.Tensor) and x.requires_grad
            ]
            grads = [torch.empty_like(x) for x in ends]
            torch.autograd.backward(ends, grads)
    except InputError:
        raise
    except Exception as error:  # whatever the user's own forward raises
        raise InputError(f"module: does not run on the meta device: {error}") from error
    return recorder.counts


def _entering(recorder: Recorder, index: int) -> Callable[[Any, Any, Any], None]:
    return lambda _layer, args, kwargs: recorder.enter(index, (args, kwargs))


def _leaving(recorder: Recorder) -> Callable[[Any, Any, Any], None]:
    return lambda _layer, _args, _out: recorder.leave()


@contextmanager
def _fused_attention(torch: Any) -> Iterator[None]:
    """On the meta device torch takes attention apart; run the fused operator instead."""
    aten = torch.ops.aten

    def fused(  # noqa: PLR0917 - the signature is torch's
        q: Any,
        k: Any,
        v: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: Any = None,
        enable_gqa: bool = False,
    ) -> Any:
        if attn_mask is None and q.shape[-1] == v.shape[-1]:
            return aten._scaled_dot_product_flash_attention(
                q, k, v, dropout_p, is_causal, scale=scale
            )[0]
        if enable_gqa:
            k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
        return aten._scaled_dot_product_efficient_attention(
            q, k, v, attn_mask, True, dropout_p, is_causal, scale=scale
        )[0]

    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("scaled_dot_product_attention", fused, "AutogradMeta")
        yield


def _part(few: Counts, many: Counts, parameters: int, element_bytes: int) -> TracedPart:
    """Two runs of one part: every size as a fixed part and one per sample."""
    same = few.names == many.names and set(few.streams) == set(many.streams)
    if not same or any(few.streams[k][2:] != many.streams[k][2:] for k in few.streams):
        raise InputError("module: does other operations with a larger batch")

    def grows(a: float, b: float) -> Amount:
        rate = (b - a) / (_BATCHES[1] - _BATCHES[0])
        return Amount(fixed=a - rate * _BATCHES[0], per_sample=rate)

    gemms = tuple(
        TracedGemm(
            **{name: grows(a[name], b[name]) for name in ("m", "n", "k", "batch")},
            weights=bool(a["weights"]),
        )
        for a, b in zip(few.gemms, many.gemms, strict=True)
    )
    flash = tuple(
        TracedFlash(
            heads=grows(a["heads"], b["heads"]),
            queries=a["queries"],
            keys=a["keys"],
            score_size=a["score_size"],
            value_size=a["value_size"],
            query_bytes=grows(a["query_bytes"], b["query_bytes"]),
            key_bytes=grows(a["key_bytes"], b["key_bytes"]),
            causal=bool(a["causal"]),
        )
        for a, b in zip(few.flash, many.flash, strict=True)
    )
    streams = tuple(
        TracedStream(
            kind=kind,
            forward_bytes=grows(a[0], many.streams[kind][0]),
            backward_bytes=grows(a[1], many.streams[kind][1]),
            calls=(a[2] + a[3]) / 2,
        )
        for kind, a in few.streams.items()
    )
    return TracedPart(
        parameters=parameters,
        gemms=gemms,
        flash=flash,
        streams=streams,
        saved_bytes=grows(few.saved, many.saved),
        input_bytes=grows(few.inputs, many.inputs),
        transient_bytes=grows(few.transient, many.transient),
        element_bytes=element_bytes,
    )
