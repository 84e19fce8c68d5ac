"""Time operators that memory limits: norms, activations, rotary, dropout, losses, AdamW, casts.

By size, forward and backward. `bytes` of a record is the least traffic: every input read and every
result written once (backward: the gradient of the result, the inputs read again, the gradients of
the inputs). Dropout writes a mask of one byte an element, which its backward pass reads in place of
the input; of an embedding no row is read twice. What torch really moves is more where one operator
is several kernels; that is part of the measurement. AdamW has the direction "step".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import _timing
import torch.nn.functional as F
from _timing import DTYPES, torch

HEAD = 128
"""Size of an attention head (rotary)."""
DROPPED = 0.1
CHUNKS = 8
"""Parts of the chunked cross-entropy."""
STATES_MOVED = 7
"""AdamW reads parameter, gradient, two moments; it writes all but the gradient."""


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn pairs of channels, written as Llama's reference code does."""
    heads = x.view(x.shape[0], -1, HEAD)
    first, second = heads.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (heads * cos + turned * sin).view_as(x)


def swiglu(x: torch.Tensor) -> torch.Tensor:
    """Gate one half with the other."""
    gate, value = x.chunk(2, dim=-1)
    return F.silu(gate) * value


def chunked_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Sum the loss of parts of the tokens, so that the fp32 copy of the logits stays small."""
    parts = zip(logits.chunk(CHUNKS), labels.chunk(CHUNKS), strict=True)
    return sum(F.cross_entropy(x.float(), y, reduction="sum") for x, y in parts) / len(labels)


def quantise_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cast to fp8 with one scale per row."""
    scale = x.abs().amax(dim=-1, keepdim=True).float().clamp(min=1e-12) / _timing.FP8_MAX
    return (x.float() / scale).to(DTYPES["fp8"]), scale


@dataclass(frozen=True)
class Operator:
    """One operator: `call(*inputs)`; `inputs` names what to make (see `Maker`)."""

    inputs: str
    call: Callable
    library: str = "torch"
    backward: bool = True


OPERATORS = {
    "copy": Operator("x", torch.clone, backward=False),
    "residual_add": Operator("x x", torch.add, backward=False),
    "layer_norm": Operator("x w w", lambda x, w, b: F.layer_norm(x, w.shape, w, b)),
    "rms_norm": Operator("x w", lambda x, w: F.rms_norm(x, w.shape, w, 1e-5)),
    "gelu": Operator("x", lambda x: F.gelu(x, approximate="tanh")),
    "swiglu": Operator("xx", swiglu),
    "rotary": Operator("x angle angle", rotary),
    "dropout": Operator("x", lambda x: F.dropout(x, DROPPED, True)),
    "softmax": Operator("x", lambda x: F.softmax(x, dim=-1)),
    "cross_entropy": Operator("x label", lambda x, y: F.cross_entropy(x.float(), y)),
    "cross_entropy_chunked": Operator("x label", chunked_loss, f"{CHUNKS} chunks"),
    "embedding": Operator("index table", F.embedding),
    "cast_to_fp32": Operator("x", lambda x: x.to(torch.float32), backward=False),
    "cast_to_bf16": Operator("x", lambda x: x.to(torch.bfloat16), backward=False),
    "quantise_fp8": Operator("x", _timing.to_fp8, "torch, scale per tensor", False),
    "quantise_fp8_rows": Operator("x", quantise_rows, "torch, scale per row", False),
}
ADAMW = {"fused": {"fused": True}, "foreach": {"foreach": True}, "per-tensor": {"foreach": False}}
VOCABULARIES = {"cuda": (32000, 128256), "cpu": (4000, 32000)}
HIDDEN = {"cuda": (1024, 2048, 4096, 8192, 16384), "cpu": (512, 2048)}
TOKENS = {"cuda": (64, 512, 2048, 8192, 32768, 131072), "cpu": (16, 128, 1024, 4096)}
ELEMENTS = {"cuda": (10**5, 10**6, 10**7, 10**8, 10**9), "cpu": (10**5, 10**6, 10**7)}


@dataclass(frozen=True)
class Case:
    """One operator on `rows` x `columns` elements."""

    kernel: str
    dtype: str
    rows: int
    columns: int

    @property
    def shape(self) -> dict[str, int]:
        """What the record says about the size."""
        if self.kernel == "adamw":
            return {"elements": self.rows, "tensors": self.columns}
        return {"rows": self.rows, "columns": self.columns}

    @property
    def name(self) -> str:
        """What the progress line shows."""
        return f"{self.kernel} {self.dtype} {self.rows} x {self.columns}"


class Maker:
    """Makes the inputs of an operator: methods by the words in `Operator.inputs`."""

    def __init__(self, case: Case, run: _timing.Run) -> None:
        self.case, self.run, self.dtype = case, run, DTYPES[case.dtype]

    def _floats(self, *size: int) -> torch.Tensor:
        wants = OPERATORS[self.case.kernel].backward
        return _timing.values(size, self.dtype, self.run.device).requires_grad_(wants)

    def _indices(self, most: int) -> torch.Tensor:
        return torch.randint(most, (self.case.rows,), device=self.run.device.device)

    def _one(self, word: str) -> torch.Tensor:
        rows, columns = self.case.rows, self.case.columns
        if word == "angle":
            return _timing.values((rows, 1, HEAD), self.dtype, self.run.device)
        if word in ("label", "index"):
            return self._indices(columns if word == "label" else vocabulary(self.run))
        sizes = {"x": (rows, columns), "xx": (rows, 2 * columns), "w": (columns,)}
        return self._floats(*sizes.get(word, (vocabulary(self.run), columns)))

    def inputs(self) -> list[torch.Tensor]:
        """Make the inputs of the operator."""
        return [self._one(word) for word in OPERATORS[self.case.kernel].inputs.split()]


def vocabulary(run: _timing.Run) -> int:
    """Return the rows of the embedding table."""
    return VOCABULARIES[run.device.kind][0]


def size_of(tensors) -> int:
    """Return the bytes of some tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def floats(result) -> tuple[torch.Tensor, ...]:
    """Return the tensors of a result, whether it is one or several."""
    return result if isinstance(result, tuple) else (result,)


def forward(case: Case, run: _timing.Run, given: list[torch.Tensor]) -> None:
    """Time the forward pass."""
    operator = OPERATORS[case.kernel]
    out = size_of(floats(operator.call(*given)))
    moved = size_of(given) + out
    if case.kernel == "embedding":  # of the table the rows that are asked for
        moved = size_of(given[:1]) + out + min(out, size_of(given[1:]))
    elif case.kernel == "dropout":
        moved += case.rows * case.columns
    take = _timing.rotate(Maker(case, run).inputs, size_of(given), run.device)
    times = run.time(lambda: operator.call(*take()))
    more = {"library": operator.library, "bytes": moved, "cold": take.cold}
    run.record(case.kernel, case.dtype, case.shape, "forward", times, **more)


def backward(case: Case, run: _timing.Run, given: list[torch.Tensor]) -> None:
    """Time the backward pass of graphs that were made before."""
    operator = OPERATORS[case.kernel]

    def graph():
        inputs = Maker(case, run).inputs()
        result = operator.call(*inputs)
        wanted = [tensor for tensor in inputs if tensor.requires_grad]
        return result, wanted, _timing.values(result.shape, result.dtype, run.device)

    result = operator.call(*given)
    grads = [tensor for tensor in given if tensor.requires_grad]
    kept = size_of(given) + 2 * size_of([result])
    moved = size_of(given) + size_of([result]) + size_of(grads)
    if case.kernel == "embedding":  # the table is not read, its gradient is written
        moved -= size_of(given[1:])
    elif case.kernel == "dropout":
        moved += case.rows * case.columns - size_of(given)
    del result
    take = _timing.rotate(graph, kept, run.device)
    times = run.time(lambda: backward_call(*take()))
    more = {"library": operator.library, "bytes": moved, "cold": take.cold}
    run.record(case.kernel, case.dtype, case.shape, "backward", times, **more)


def backward_call(result, wanted: list[torch.Tensor], gradient: torch.Tensor) -> None:
    """Compute the gradients; the graph may be used again."""
    torch.autograd.grad(result, wanted, gradient, retain_graph=True)


def adamw(case: Case, run: _timing.Run) -> None:
    """Time a step of AdamW, its states in the type of the parameters, by each implementation."""
    each, item = case.rows // case.columns, DTYPES[case.dtype].itemsize
    for library, options in ADAMW.items():
        with run.guard("adamw", case.shape, case.dtype):
            made = [
                _timing.values((each,), DTYPES[case.dtype], run.device).requires_grad_()
                for _ in range(case.columns)
            ]
            for tensor in made:
                tensor.grad = _timing.values((each,), tensor.dtype, run.device)
            optimizer = torch.optim.AdamW(made, lr=1e-4, weight_decay=0.1, **options)
            times = run.time(optimizer.step)
            moved = STATES_MOVED * each * case.columns * item
            more = {"library": library, "bytes": moved}
            more["cold"] = 4 * each * case.columns * item >= 2 * run.device.cache_bytes
            run.record("adamw", case.dtype, case.shape, "step", times, **more)


def measure(case: Case, run: _timing.Run) -> None:
    """Measure one case, forward and, where it has one, backward."""
    each = 6 * DTYPES[case.dtype].itemsize + 16
    need = 40 * case.rows if case.kernel == "adamw" else each * case.rows * case.columns
    if not run.fits(case.kernel, case.shape, case.dtype, need):
        return None
    if case.kernel == "adamw":
        return adamw(case, run)
    with run.guard(case.kernel, case.shape, case.dtype):
        given = Maker(case, run).inputs()
        forward(case, run, given)
        if OPERATORS[case.kernel].backward:
            backward(case, run, given)
    return None


def sizes_for(kernel: str, run: _timing.Run) -> list[tuple[int, int]]:
    """Return (rows, columns) for an operator: tokens by hidden size, or by vocabulary."""
    kind = run.device.kind
    tokens, hidden = TOKENS[kind], HIDDEN[kind]
    if run.quick:
        tokens, hidden = TOKENS["cpu"][1:3], HIDDEN["cpu"][:1]
    if kernel.startswith("cross_entropy"):
        words = VOCABULARIES["cpu"][:1] if run.quick else VOCABULARIES[kind]
        return [(rows, word) for rows in tokens if rows <= 32768 for word in words]
    return [(rows, columns) for rows in tokens for columns in hidden]


def cases_for(run: _timing.Run) -> list[Case]:
    """Return the cases, spread: all with bf16, every third with fp32.

    fp8 needs a torch that has the type; a cast to a type comes from the other one.
    """
    dtypes, cases = run.dtypes("bf16", "fp32"), []
    for kernel in OPERATORS:
        if kernel.startswith("quantise") and DTYPES["fp8"] is None:
            run.skip(kernel, {}, "fp8", "this torch has no float8_e4m3fn")
            continue
        for at, (rows, columns) in enumerate(sizes_for(kernel, run)):
            for dtype in dtypes:
                if dtype == "bf16" or at % 3 == 0 or kernel == "cast_to_bf16":
                    cases.append(Case(kernel, dtype, rows, columns))
    cases = [case for case in cases if case.kernel != f"cast_to_{case.dtype}"]
    elements = ELEMENTS["cpu"][:2] if run.quick else ELEMENTS[run.device.kind]
    cases += [Case("adamw", d, n, t) for d in dtypes for n in elements for t in (1, 50)]
    return _timing.spread(cases, run.arguments.seed)


def main() -> int:
    """Run the program."""
    arguments = _timing.parser(__doc__, minutes=1.5).parse_args()
    with _timing.Run(arguments, __file__) as run:
        if run.device.kind == "cpu" or run.quick:
            run.skip("memory_bound", {}, None, "quick or a CPU: the larger sizes left out")
        for case in run.each(cases_for(run)):
            measure(case, run)
    return run.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
