"""Time matrix multiplications: forward, dgrad and wgrad of linear layers.

Shapes are those of real layers under tensor parallelism and micro-batches, and a sweep with M, N
and K spread by logarithm, odd sizes included. Each record gives the dimensions of the product that
it timed (A of m x k times B of k x n, 2 m n k FLOP) and the `layout` of the operands as cuBLAS
names it: TN forward, NN dgrad, NT wgrad; fp8 is always TN.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import partial

import _timing
from _timing import DTYPES, torch


@dataclass(frozen=True)
class Model:
    """The linear layers of one published model: sizes in elements, tokens of one sequence."""

    name: str
    hidden: int
    ffn: int
    qkv: int  # outputs of the fused query, key and value projection
    attention: int  # inputs of the output projection
    vocabulary: int
    sequence: int
    gated: bool


MODELS = (
    Model("gpt3-1.3b", 2048, 8192, 6144, 2048, 51200, 2048, False),
    Model("gpt3-6.7b", 4096, 16384, 12288, 4096, 51200, 2048, False),
    Model("gpt3-175b", 12288, 49152, 36864, 12288, 51200, 2048, False),
    Model("llama-3-8b", 4096, 14336, 6144, 4096, 128256, 8192, True),
    Model("llama-3-70b", 8192, 28672, 10240, 8192, 128256, 8192, True),
    Model("llama-3.1-405b", 16384, 53248, 18432, 16384, 128256, 8192, True),
    Model("mixtral-8x7b", 4096, 14336, 6144, 4096, 32000, 4096, True),
    Model("mixtral-8x22b", 6144, 16384, 8192, 6144, 32768, 4096, True),
)
SIZES = (1, 2, 4, 8)
"""Tensor-parallel degrees, and micro-batches."""
LAYOUTS = {"forward": "TN", "dgrad": "NN", "wgrad": "NT"}
LONGEST_S = {"cuda": 0.3, "cpu": 0.5}
"""Products that would take longer are skipped."""


@dataclass(frozen=True)
class Case:
    """One linear layer: (m, k) tokens in, (n, k) weights, (m, n) out."""

    dtype: str
    m: int
    n: int
    k: int
    source: str
    kernel = "gemm"

    @property
    def shape(self) -> dict[str, int]:
        """Dimensions of the forward product."""
        return {"m": self.m, "n": self.n, "k": self.k}

    @property
    def name(self) -> str:
        """What the progress line shows."""
        return f"{self.dtype} {self.m}x{self.n}x{self.k} ({self.source})"


def layers(model: Model, tp: int) -> dict[str, tuple[int, int]]:
    """Return (n, k) of each linear layer of one rank of `tp`."""
    return {
        "qkv": (model.qkv // tp, model.hidden),
        "projection": (model.hidden, model.attention // tp),
        "up": (model.ffn * (1 + model.gated) // tp, model.hidden),
        "down": (model.hidden, model.ffn // tp),
        "head": (model.vocabulary // tp, model.hidden),
    }


def layer_shapes(models, degrees, tokens) -> dict[tuple[int, int, int], str]:
    """Return the distinct (m, n, k) of the models' layers, each with where it comes from.

    `tokens(model)` lists the tokens that one rank may hold.
    """
    found = {}
    for model in models:
        for tp in degrees:
            for name, (n, k) in layers(model, tp).items():
                for m in tokens(model):
                    found.setdefault((m, n, k), f"{model.name} {name} tp{tp}")
    return found


def sweep_shapes(count: int, least: int, most: int, seed: int) -> dict[tuple[int, int, int], str]:
    """Draw (m, n, k) spread by logarithm: half multiples of 64, a quarter of 8, a quarter any."""
    draw = random.Random(seed)

    def size(multiple: int) -> int:
        value = math.exp(draw.uniform(math.log(least), math.log(most)))
        return max(least, round(value / multiple) * multiple)

    shapes = {}
    for at in range(count):
        multiple = (64, 8, 64, 1)[at % 4]
        shapes[size(multiple), size(multiple), size(multiple)] = f"sweep, multiple of {multiple}"
    return shapes


def shapes_for(run: _timing.Run) -> dict[tuple[int, int, int], str]:
    """Return what to measure here: everything on a GPU, small shares of layers on a CPU."""
    seed = run.arguments.seed
    if run.device.kind == "cuda" and not run.quick:
        real = layer_shapes(MODELS, SIZES, lambda model: [b * model.sequence for b in SIZES])
        return real | sweep_shapes(600, 16, 65536, seed)
    run.skip("gemm", {}, None, "quick or a CPU: whole sequences and all but two models left out")
    few = [model for model in MODELS if model.name in ("gpt3-1.3b", "llama-3-8b")]
    if run.quick:
        real = layer_shapes(few[:1], (8,), lambda model: [64, 256])
        return real | sweep_shapes(12, 16, 2048, seed)
    real = layer_shapes(few, (4, 8), lambda model: [64, 256, 1024])
    return real | sweep_shapes(120, 16, 4096, seed)


def cases_for(run: _timing.Run, dtypes: list[str]) -> list[Case]:
    """Return the cases, spread so that a cut run still covers all types.

    Every shape comes with bf16 and, where there is one, fp8; the other types with a third.
    """
    cases = []
    for at, ((m, n, k), source) in enumerate(shapes_for(run).items()):
        chosen = [name for name in dtypes if name in ("bf16", "fp8") or run.quick or at % 3 == 0]
        cases += [Case(name, m, n, k, source) for name in chosen]
    return _timing.spread(cases, run.arguments.seed)


def operands(case: Case, run: _timing.Run) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Make input, weight and gradient of the output."""
    sizes = ((case.m, case.k), (case.n, case.k), (case.m, case.n))
    return tuple(_timing.values(size, DTYPES[case.dtype], run.device) for size in sizes)


def product(direction: str, given: tuple, **options) -> torch.Tensor:
    """Multiply as the layer does in `direction`."""
    inputs, weight, gradient = given
    if direction == "forward":
        return torch.mm(inputs, weight.t(), **options)
    if direction == "dgrad":
        return torch.mm(gradient, weight, **options)
    return torch.mm(gradient.t(), inputs, **options)


def dimensions(direction: str, case: Case) -> dict[str, int]:
    """Return m, n, k of the product that `direction` needs."""
    sizes = {
        "forward": (case.m, case.n, case.k),
        "dgrad": (case.m, case.k, case.n),
        "wgrad": (case.n, case.k, case.m),
    }[direction]
    return dict(zip("mnk", sizes, strict=True))


def measure_plain(case: Case, run: _timing.Run, can: dict) -> None:
    """Time the three products by `torch.mm`; wgrad also with an fp32 result where torch can."""
    torch.set_float32_matmul_precision("high" if case.dtype == "tf32" else "highest")
    size = DTYPES[case.dtype].itemsize
    each = size * (case.m * case.k + case.n * case.k + case.m * case.n)
    if not run.fits("gemm", case.shape, case.dtype, 2 * each):
        return
    take = _timing.rotate(partial(operands, case, run), each, run.device)
    more = {"library": "torch.mm", "source": case.source, "cold": take.cold}
    for direction, layout in LAYOUTS.items():
        times = run.time(lambda direction=direction: product(direction, take()))
        shape = dimensions(direction, case)
        run.record("gemm", case.dtype, shape, direction, times, layout=layout, **more)
    if can["output"] and case.dtype in ("bf16", "fp16"):
        times = run.time(lambda: product("wgrad", take(), out_dtype=torch.float32))
        shape, note = dimensions("wgrad", case), {"layout": "NT", "output": "fp32"}
        run.record("gemm", case.dtype, shape, "wgrad", times, **note, **more)


def fp8_operands(shape: dict[str, int], run: _timing.Run) -> tuple[torch.Tensor, torch.Tensor]:
    """Make A by rows and B by columns in fp8."""
    m, n, k = shape.values()
    first = _timing.values((m, k), DTYPES["fp8"], run.device)
    return first, _timing.values((n, k), DTYPES["fp8"], run.device).t()


def fp8_scales(shape: dict[str, int], scaling: str, run: _timing.Run) -> list[torch.Tensor]:
    """Make the scales of A and B: one each ("tensor"), or one per row and column ("row")."""
    sizes = ((shape["m"], 1), (1, shape["n"])) if scaling == "row" else ((), ())
    return [torch.rand(size, device=run.device.device) + 0.5 for size in sizes]


def scaled_product(given: tuple, scales: list[torch.Tensor], fast: bool) -> torch.Tensor:
    """Multiply in fp8; `fast`: accumulate as forward passes do, without the fp32 promotion."""
    options = {"out_dtype": torch.bfloat16, "use_fast_accum": fast}
    return torch._scaled_mm(*given, scale_a=scales[0], scale_b=scales[1], **options)


def measure_fp8(case: Case, run: _timing.Run, can: dict) -> None:
    """Time the three products by `torch._scaled_mm`, per tensor and per row."""
    for direction in LAYOUTS:
        shape, fast = dimensions(direction, case), direction == "forward"
        m, n, k = shape.values()
        if n % 16 or k % 16:
            run.skip("gemm", shape, "fp8", "fp8 needs n and k divisible by 16")
            continue
        each = m * k + n * k
        if not run.fits("gemm", shape, "fp8", 12 * each + 2 * m * n):
            continue
        take = _timing.rotate(partial(fp8_operands, shape, run), each, run.device)
        for scaling in can["scaling"]:
            with run.guard("gemm", shape | {"scaling": scaling}, "fp8"):
                scales = fp8_scales(shape, scaling, run)
                times = run.time(lambda t=take, s=scales, f=fast: scaled_product(t(), s, f))
                more = {"library": "torch._scaled_mm", "source": case.source, "cold": take.cold}
                more |= {"layout": "TN", "scaling": scaling, "fast_accumulation": fast}
                run.record("gemm", "fp8", shape, direction, times, **more)


def rates(run: _timing.Run, dtypes: list[str]) -> dict[str, float]:
    """Return a rough FLOP/s of each type (of fp8: that of bf16), to foresee what takes too long."""
    side = 8192 if run.device.kind == "cuda" and not run.quick else 512
    found = {}
    for dtype in dtypes:
        with run.guard("gemm", {"m": side, "n": side, "k": side}, dtype):
            like = "bf16" if dtype == "fp8" else dtype
            found[dtype] = _timing.multiply_flop_per_s(like, side, run.device)
    return found


def variants(run: _timing.Run) -> dict[str, list[str]]:
    """Return which results (wgrad) and which fp8 scalings this torch can do here, by trying."""
    small = dict.fromkeys("mnk", 64)
    plain = torch.ones(64, 64, dtype=torch.bfloat16, device=run.device.device)
    tries = {}
    if run.device.kind == "cuda":
        tries["fp32"] = lambda: torch.mm(plain, plain, out_dtype=torch.float32)
    if run.device.has_fp8():
        for scaling in ("tensor", "row"):
            scales = partial(fp8_scales, small, scaling, run)
            tries[scaling] = lambda s=scales: scaled_product(fp8_operands(small, run), s(), True)
    found = {"output": [], "scaling": []}
    for name, attempt in tries.items():
        kind = "output" if name == "fp32" else "scaling"
        with run.guard("gemm", {kind: name}, "bf16" if kind == "output" else "fp8"):
            attempt()
            found[kind].append(name)
    return found


def measure(case: Case, run: _timing.Run, rate: dict[str, float], can: dict) -> None:
    """Measure one case, or say why not."""
    if case.dtype not in rate:
        run.skip("gemm", case.shape, case.dtype, "the probe of this type failed")
        return
    expected_s = 2 * case.m * case.n * case.k / rate[case.dtype]
    longest_s = min(LONGEST_S[run.device.kind], 0.005 * 60 * run.budget.minutes)
    if expected_s > longest_s:
        reason = f"time: one call would take about {expected_s:.2g} s, at most {longest_s:.2g} s"
        run.skip("gemm", case.shape, case.dtype, reason)
        return
    with run.guard("gemm", case.shape, case.dtype):
        (measure_fp8 if case.dtype == "fp8" else measure_plain)(case, run, can)


def available(run: _timing.Run) -> list[str]:
    """Return the types to measure here; what the device lacks is recorded as skipped."""
    cuda = run.device.kind == "cuda"
    lacks = {"tf32": not cuda, "fp8": not run.device.has_fp8()}
    if cuda and torch.cuda.get_device_capability() < (8, 0):
        lacks |= {"tf32": True, "bf16": True}
    names = run.dtypes("bf16", "fp8", "fp16", "tf32", "fp32")
    for name in names:
        if lacks.get(name):
            run.skip("gemm", {}, name, f"this device multiplies no {name}")
    return [name for name in names if not lacks.get(name)]


def main() -> int:
    """Run the program."""
    arguments = _timing.parser(__doc__, minutes=3.0).parse_args()
    with _timing.Run(arguments, __file__) as run:
        dtypes = available(run)
        rate, can = rates(run, dtypes), variants(run)
        for case in run.each(cases_for(run, dtypes)):
            measure(case, run, rate, can)
    return run.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
