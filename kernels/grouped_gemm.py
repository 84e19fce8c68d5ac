"""Time the kernels of mixture-of-experts layers: expert products, routing, permutation.

Expert products (kernel `grouped_gemm`, forward, dgrad and wgrad; `rows` tokens in all, each expert
m_i x k times k x n) with even and skewed loads: by torch's grouped kernel where this torch has one,
by a loop of products, and, where the load is even, by one batched product; `library` says which.
The loads are multiples of 16 tokens: grouped kernels may demand it. Then the router (softmax and
top-k), the count and sort of tokens by expert, and their permutation forth and back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise, product

import _timing
from _timing import DTYPES, torch

ALIGNED = 16
"""Loads are multiples of so many tokens."""
SKEWS = {"even": 0.0, "zipf-0.5": 0.5, "zipf-1": 1.0}
"""The i-th expert gets tokens in proportion to i to the power of minus this."""
GROUPED = getattr(torch.nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
LONGEST_S = 0.5
"""Products that would take longer at the rate of a plain one are skipped."""


@dataclass(frozen=True)
class Experts:
    """The experts that one rank of a published model holds; sizes in elements."""

    model: str
    experts: int  # on this rank
    all_experts: int
    topk: int
    hidden: int
    ffn: int


MODELS = (
    Experts("mixtral-8x7b", 8, 8, 2, 4096, 14336),
    Experts("mixtral-8x7b ep4", 2, 8, 2, 4096, 14336),
    Experts("mixtral-8x22b ep8", 1, 8, 2, 6144, 16384),
    Experts("qwen3-235b-a22b ep8", 16, 128, 8, 4096, 1536),
    Experts("qwen3-30b-a3b", 128, 128, 8, 2048, 768),
    Experts("deepseek-v3 ep32", 8, 256, 8, 7168, 2048),
    Experts("deepseek-v3 ep8", 32, 256, 8, 7168, 2048),
)
SMALL = Experts("small", 8, 8, 2, 256, 512)
ROWS = {"cuda": (512, 2048, 8192, 32768, 131072), "cpu": (128, 512, 2048)}
TOKENS = {"cuda": (512, 4096, 16384, 65536), "cpu": (128, 1024, 4096)}


@dataclass(frozen=True)
class Case:
    """One kernel at one size; `work` measures it."""

    kernel: str
    dtype: str
    name: str
    work: Callable


@dataclass(frozen=True)
class Can:
    """The run, the ways of multiplying that work in it, and the rate of a plain product."""

    run: _timing.Run
    ways: dict[str, Callable]
    flop_per_s: float


def loads(rows: int, experts: int, skew: float) -> list[int]:
    """Share `rows` tokens among the experts, in multiples of 16; the sum stays `rows`.

    >>> loads(256, 4, 1.0)
    [128, 64, 32, 32]
    """
    weights = [(at + 1) ** -skew for at in range(experts)]
    blocks, total = rows // ALIGNED, sum(weights)
    ends = [round(blocks * part / total) for part in accumulate(weights)]
    return [ALIGNED * (end - begin) for begin, end in pairwise([0, *ends])]


# --- expert products ----------------------------------------------------------------------------


def grouped(direction: str, given: tuple, offsets: torch.Tensor, sizes: list[int]):
    """Multiply by torch's grouped kernel."""
    inputs, weight, gradient = given
    if direction == "forward":
        return GROUPED(inputs, weight.transpose(-2, -1), offs=offsets)
    if direction == "dgrad":
        return GROUPED(gradient, weight, offs=offsets)
    return GROUPED(gradient.t(), inputs, offs=offsets)


def loop(direction: str, given: tuple, offsets: torch.Tensor, sizes: list[int]):
    """Multiply expert by expert."""
    inputs, weight, gradient = given
    parts = zip(inputs.split(sizes), weight, gradient.split(sizes), strict=True)
    if direction == "forward":
        return [x @ w.t() for x, w, _ in parts]
    if direction == "dgrad":
        return [g @ w for _, w, g in parts]
    return [g.t() @ x for x, _, g in parts]


def batched(direction: str, given: tuple, offsets: torch.Tensor, sizes: list[int]):
    """Multiply equal shares at once."""
    inputs, weight, gradient = given
    x, g = (tensor.view(len(sizes), sizes[0], -1) for tensor in (inputs, gradient))
    if direction == "forward":
        return torch.bmm(x, weight.transpose(1, 2))
    if direction == "dgrad":
        return torch.bmm(g, weight)
    return torch.bmm(g.transpose(1, 2), x)


def operands(rows: int, n: int, k: int, experts: int, dtype: str, run: _timing.Run) -> tuple:
    """Make inputs, weights of all experts, and the gradient of the outputs."""
    sizes = ((rows, k), (experts, n, k), (rows, n))
    return tuple(_timing.values(size, DTYPES[dtype], run.device) for size in sizes)


def fp8_operands(shape: dict[str, int], run: _timing.Run) -> tuple:
    """Make inputs and weights in fp8, and their scales, one per row."""
    rows, n, k, experts = shape.values()
    first = _timing.values((rows, k), DTYPES["fp8"], run.device)
    second = _timing.values((experts, n, k), DTYPES["fp8"], run.device).transpose(1, 2)
    scales = (torch.rand(s, device=run.device.device) + 0.5 for s in ((rows,), (experts, n)))
    return first, second, *scales


def fp8(given: tuple, offsets: torch.Tensor) -> torch.Tensor:
    """Multiply operands quantised before (forward) by torch's grouped fp8 kernel."""
    options = {"offs": offsets, "out_dtype": torch.bfloat16, "use_fast_accum": True}
    return torch._scaled_grouped_mm(*given, **options)


def working(run: _timing.Run) -> dict[str, Callable]:
    """Return the ways that this torch and device can do, by trying; record the others."""
    sizes, shape = [16, 16], {"rows": 32, "n": 64, "k": 64, "experts": 2}
    offsets = torch.tensor([16, 32], dtype=torch.int32, device=run.device.device)
    ways = {"torch.grouped_mm": grouped, "loop of torch.mm": loop, "torch.bmm": batched}
    if run.device.has_fp8():
        ways["torch._scaled_grouped_mm"] = fp8
    found = {}
    for library, way in ways.items():
        with run.guard("grouped_gemm", {"library": library}, "fp8" if way is fp8 else "bf16"):
            if way is fp8:
                fp8(fp8_operands(shape, run), offsets)
            else:
                way("wgrad", operands(*shape.values(), "bf16", run), offsets, sizes)
            found[library] = way
    return found


def measure_experts(held: Experts, rows: int, part: str, skew: str, can: Can) -> None:
    """Time the products of one load by each way that can do it."""
    n, k = (2 * held.ffn, held.hidden) if part == "up" else (held.hidden, held.ffn)
    run, sizes = can.run, loads(rows, held.experts, SKEWS[skew])
    shape = {"rows": rows, "n": n, "k": k, "experts": held.experts}
    expected_s = 2 * rows * n * k / can.flop_per_s
    if expected_s > LONGEST_S:
        reason = f"time: may take {expected_s:.2g} s, at most {LONGEST_S} s"
        return run.skip("grouped_gemm", shape, "bf16", reason)
    each = 2 * (rows * k + held.experts * n * k + rows * n)
    if not run.fits("grouped_gemm", shape, "bf16", 2 * each):
        return None
    offsets = torch.tensor(list(accumulate(sizes)), dtype=torch.int32, device=run.device.device)
    more = {"load": skew, "largest_load": max(sizes), "source": f"{held.model} {part}"}
    make = partial(operands, *shape.values(), "bf16", run)
    take = _timing.rotate(make, each, run.device)
    for library, way in can.ways.items():
        if way is fp8 or (way is batched and len(set(sizes)) > 1):
            continue
        for direction in ("forward", "dgrad", "wgrad"):
            with run.guard("grouped_gemm", shape | {"library": library}, "bf16"):
                times = run.time(lambda w=way, d=direction: w(d, take(), offsets, sizes))
                more |= {"library": library, "cold": take.cold}
                run.record("grouped_gemm", "bf16", shape, direction, times, **more)
    if fp8 in can.ways.values():
        with run.guard("grouped_gemm", shape, "fp8"):
            take = _timing.rotate(partial(fp8_operands, shape, run), each // 2, run.device)
            times = run.time(lambda: fp8(take(), offsets))
            more |= {"library": "torch._scaled_grouped_mm", "scaling": "row", "cold": take.cold}
            run.record("grouped_gemm", "fp8", shape, "forward", times, **more)
    return None


# --- routing and permutation --------------------------------------------------------------------


def route(logits: torch.Tensor, topk: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose the experts of each token and their weights."""
    return torch.topk(torch.softmax(logits, dim=-1), topk, dim=-1)


def unpermute(rows: torch.Tensor, scores: torch.Tensor, where: torch.Tensor, tokens: int):
    """Weight the experts' outputs and add them up where they came from."""
    result = torch.zeros(tokens, rows.shape[1], dtype=rows.dtype, device=rows.device)
    return result.index_add(0, where, rows * scores)


def measure_routing(held: Experts, tokens: int, can: Can) -> None:
    """Time router, count, sort and permutation of `tokens` tokens."""
    run, dtype = can.run, "bf16"
    rows, device = tokens * held.topk, run.device.device
    shape = {"tokens": tokens, "hidden": held.hidden, "topk": held.topk}
    shape["experts"] = held.all_experts
    if not run.fits("moe_permute", shape, dtype, 6 * rows * held.hidden * 4):
        return
    chosen = torch.randint(held.all_experts, (rows,), device=device)
    where = torch.argsort(chosen, stable=True) // held.topk
    scores = torch.rand(rows, 1, device=device).to(DTYPES[dtype])
    floats = chosen.float()

    def values(*size: int) -> torch.Tensor:
        return _timing.values(size, DTYPES[dtype], run.device)

    def back(x: torch.Tensor) -> torch.Tensor:
        return unpermute(x, scores, where, tokens)

    kernels = {
        "moe_router": (lambda: values(tokens, held.all_experts), lambda x: route(x, held.topk)[0]),
        "moe_count": (None, lambda: torch.histc(floats, held.all_experts, 0, held.all_experts)),
        "moe_sort": (None, lambda: torch.argsort(chosen, stable=True)),
        "moe_permute": (lambda: values(tokens, held.hidden), lambda x: x.index_select(0, where)),
        "moe_unpermute": (lambda: values(rows, held.hidden), back),
    }
    for kernel, (make, function) in kernels.items():
        with run.guard(kernel, shape, dtype):
            measure_kernel(kernel, make, function, dtype, shape, run)


def measure_kernel(kernel, make, function, dtype: str, shape: dict, run: _timing.Run) -> None:
    """Time one kernel forward and, where it has inputs that want a gradient, backward."""
    more = {"library": "torch"}
    if make is None:
        return run.record(kernel, "int64", shape, "forward", run.time(function), cold=False, **more)
    given = make()
    each = given.numel() * given.element_size()
    take = _timing.rotate(make, each, run.device)
    times = run.time(lambda: function(take()))
    run.record(kernel, dtype, shape, "forward", times, cold=take.cold, **more)

    def graph() -> tuple:
        inputs = make().requires_grad_()
        result = function(inputs)
        return result, inputs, _timing.values(result.shape, result.dtype, run.device)

    take = _timing.rotate(graph, 3 * each, run.device)
    times = run.time(lambda: backward(*take()))
    return run.record(kernel, dtype, shape, "backward", times, cold=take.cold, **more)


def backward(result: torch.Tensor, inputs: torch.Tensor, gradient: torch.Tensor) -> None:
    """Compute the gradient; the graph may be used again."""
    torch.autograd.grad(result, inputs, gradient, retain_graph=True)


def cases_for(run: _timing.Run) -> list[Case]:
    """Return the cases, spread; a CPU gets one small model. All are bf16, with fp8 beside it."""
    kind = run.device.kind
    small = kind == "cpu" or run.quick
    models = (SMALL,) if small else MODELS
    rows_of, tokens_of = ROWS["cpu" if small else kind], TOKENS["cpu" if small else kind]
    if run.quick:
        rows_of, tokens_of = rows_of[:2], tokens_of[:2]
    cases = []
    for held in models if run.dtypes("bf16") else ():
        for rows, part in product(rows_of, ("up", "down")):
            for skew in SKEWS if held.experts > 1 else ("even",):
                work = partial(measure_experts, held, rows, part, skew)
                name = f"{held.model} {part}, {rows} rows, {skew}"
                cases.append(Case("grouped_gemm", "bf16", name, work))
        for tokens in tokens_of:
            work = partial(measure_routing, held, tokens)
            cases.append(Case("moe_permute", "bf16", f"{held.model} {tokens} tokens", work))
    return _timing.spread(cases, run.arguments.seed)


def main() -> int:
    """Run the program."""
    arguments = _timing.parser(__doc__, minutes=1.5).parse_args()
    with _timing.Run(arguments, __file__) as run:
        if run.device.kind == "cpu" or run.quick:
            run.skip("grouped_gemm", {}, None, "quick or a CPU: only a small model's experts")
        side = 4096 if run.device.kind == "cuda" and not run.quick else 256
        rate = _timing.multiply_flop_per_s("bf16", side, run.device)
        can = Can(run, working(run), rate)
        for case in run.each(cases_for(run)):
            with run.guard(case.kernel, {}, case.dtype):
                case.work(can)
    return run.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
