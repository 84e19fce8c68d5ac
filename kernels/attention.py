"""Time scaled-dot-product attention, forward and backward, by each backend that this torch has.

Backends: flash, efficient, math and cuDNN. Head sizes 64, 128, 256 and MLA's 192 with values of
128; grouped key/value heads; causal and full; 512 to 65,536 tokens. The forward pass keeps what
the backward pass needs, as in training. FLOP are not recorded: they follow from the shape
(forward 2 b h s s (head_dim + head_dim_v), causal half of it).
"""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, replace
from functools import partial

import _timing
from _timing import DTYPES, torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attend

BACKENDS = {
    name: getattr(SDPBackend, member)
    for name, member in {
        "flash": "FLASH_ATTENTION",
        "efficient": "EFFICIENT_ATTENTION",
        "cudnn": "CUDNN_ATTENTION",
        "math": "MATH",
    }.items()
    if hasattr(SDPBackend, member)
}
HEADS = (
    (32, 8, 128, 128),  # Llama 3 8B
    (8, 1, 128, 128),  # Llama 3 70B under tp 8
    (16, 16, 128, 128),  # GPT-3 1.3B with heads of 128
    (12, 12, 128, 128),  # GPT-3 175B under tp 8
    (16, 16, 64, 64),  # BERT and GPT-2 medium
    (64, 8, 64, 64),  # gpt-oss
    (8, 4, 256, 256),  # Gemma
    (16, 16, 192, 128),  # DeepSeek-V3 (MLA) under tp 8
)
"""Query heads, key/value heads, size of queries and keys, size of values."""
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
LONGEST_S = {"cuda": 1.0, "cpu": 0.5}
"""Backward passes that would take longer are skipped, with their forward passes."""
BACKWARD = 3.5
"""Assumed time of a backward pass over a forward one, only to foresee what takes too long."""


@dataclass(frozen=True)
class Shape:
    """One call: sequences, heads, tokens of a sequence, sizes of a head."""

    batch: int
    heads_q: int
    heads_kv: int
    seq_q: int
    seq_kv: int
    head_dim: int
    head_dim_v: int
    causal: bool

    @property
    def flop(self) -> float:
        """Forward FLOP, a causal mask halving them."""
        pairs = self.batch * self.heads_q * self.seq_q * self.seq_kv
        return 2 * pairs * (self.head_dim + self.head_dim_v) * (0.5 if self.causal else 1)

    def bytes(self, item: int) -> int:
        """Return the size of queries, keys, values, result and its gradient."""
        q = self.heads_q * self.seq_q * (self.head_dim + 2 * self.head_dim_v)
        kv = self.heads_kv * self.seq_kv * (self.head_dim + self.head_dim_v)
        return self.batch * (q + kv) * item


@dataclass(frozen=True)
class Case:
    """One shape by one backend in one type."""

    shape: Shape
    dtype: str
    backend: str
    kernel = "attention"

    @property
    def name(self) -> str:
        """What the progress line shows."""
        has = self.shape
        heads = f"{has.heads_q}/{has.heads_kv} heads of {has.head_dim}"
        mask = "causal" if has.causal else "full"
        return f"{self.backend} {self.dtype} {has.batch} x {has.seq_q}, {heads}, {mask}"


def shapes_for(run: _timing.Run) -> list[Shape]:
    """Return the shapes to measure: on a GPU all, on a CPU short ones with a quarter of the heads.

    Batches hold 8,192 tokens or one sequence, whichever is more, and single sequences too.
    """
    if run.device.kind == "cuda" and not run.quick:
        lengths, cut, tokens = LENGTHS, 1, 8192
    else:
        lengths, cut = ((128, 256) if run.quick else (128, 512, 1024, 2048)), 4
        tokens = lengths[-1]
        run.skip("attention", {}, None, f"quick or a CPU: no more than {lengths[-1]} tokens")
    shapes = {}
    for q, kv, size, size_v in HEADS:
        for length in lengths:
            for batch in {1, max(1, tokens // length)}:
                heads = max(1, q // cut), max(1, kv // cut)
                shape = Shape(batch, *heads, length, length, size, size_v, True)
                shapes[shape] = shapes[replace(shape, causal=False)] = None
    return list(shapes)


def cases_for(run: _timing.Run, backends) -> list[Case]:
    """Return the cases spread; fp16 and math only with some shapes."""
    cuda = run.device.kind == "cuda"
    dtypes = run.dtypes("bf16", "fp16") if cuda else run.dtypes("bf16", "fp32")
    cases = []
    for at, shape in enumerate(shapes_for(run)):
        for dtype in dtypes:
            for backend in backends:
                rare = backend == "math" or dtype == "fp16"
                if not rare or at % 4 == 0 or run.quick:
                    cases.append(Case(shape, dtype, backend))
    cases = _timing.spread(cases, run.arguments.seed, lambda case: (case.backend, case.dtype))
    return cases[:48] if run.quick else cases


def backends_for(run: _timing.Run) -> list[str]:
    """Return the backends that this device can have."""
    return list(BACKENDS) if run.device.kind == "cuda" else ["flash", "math"]


def kept_bytes(case: Case) -> int:
    """Return what a call keeps for its backward pass; math keeps two score matrices as well."""
    has = case.shape
    scores = has.batch * has.heads_q * has.seq_q * has.seq_kv * 4
    return has.bytes(DTYPES[case.dtype].itemsize) + (2 * scores if case.backend == "math" else 0)


def inputs(case: Case, run: _timing.Run) -> tuple[torch.Tensor, ...]:
    """Make queries, keys and values that want a gradient."""
    has = case.shape
    sizes = (
        (has.batch, has.heads_q, has.seq_q, has.head_dim),
        (has.batch, has.heads_kv, has.seq_kv, has.head_dim),
        (has.batch, has.heads_kv, has.seq_kv, has.head_dim_v),
    )
    made = (_timing.values(size, DTYPES[case.dtype], run.device) for size in sizes)
    return tuple(tensor.requires_grad_() for tensor in made)


def call(case: Case, given: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Attend; grouped heads are left to the backend."""
    grouped = case.shape.heads_q != case.shape.heads_kv
    return attend(*given, is_causal=case.shape.causal, enable_gqa=grouped)


def call_expanded(case: Case, given: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Attend with keys and values repeated to all heads and values padded to the keys' size.

    What a program must do for a backend that takes neither grouped heads nor two head sizes.
    """
    queries, keys, values = given
    has = case.shape
    values = torch.nn.functional.pad(values, (0, has.head_dim - has.head_dim_v))
    times = has.heads_q // has.heads_kv
    keys, values = (tensor.repeat_interleave(times, dim=1) for tensor in (keys, values))
    return attend(queries, keys, values, is_causal=has.causal)[..., : has.head_dim_v]


def graph(case: Case, function, run: _timing.Run) -> tuple:
    """Attend once and return what `torch.autograd.grad` needs."""
    given = inputs(case, run)
    result = function(case, given)
    gradient = _timing.values(result.shape, DTYPES[case.dtype], run.device)
    return result, given, gradient


def measure(case: Case, function, note: dict, run: _timing.Run) -> None:
    """Time forward and backward by one way of calling."""
    ways = {
        "forward": (partial(inputs, case, run), lambda given: function(case, given)),
        "backward": (partial(graph, case, function, run), lambda given: backward(*given)),
    }
    shape, library = asdict(case.shape), f"torch.sdpa-{case.backend}"
    with sdpa_kernel(BACKENDS[case.backend]):
        for direction, (make, timed) in ways.items():
            take = _timing.rotate(make, kept_bytes(case), run.device)
            times = run.time(lambda timed=timed, take=take: timed(take()))
            more = {"library": library, "cold": take.cold, **note}
            run.record("attention", case.dtype, shape, direction, times, **more)


def backward(result: torch.Tensor, given: tuple, gradient: torch.Tensor) -> tuple:
    """Compute the gradients of queries, keys and values; the graph may be used again."""
    return torch.autograd.grad(result, given, gradient, retain_graph=True)


def takes(case: Case, function, run: _timing.Run) -> str:
    """Return why the backend refuses such a call, or nothing; tried with one short sequence."""
    small = replace(case, shape=replace(case.shape, batch=1, seq_q=128, seq_kv=128))
    with warnings.catch_warnings(record=True) as caught:  # torch says why in warnings
        warnings.simplefilter("always")
        try:
            with sdpa_kernel(BACKENDS[case.backend]):
                backward(*graph(small, function, run))
        except (RuntimeError, TypeError, ValueError) as error:
            said = [str(warning.message) for warning in caught]
            said = [line.split(" (Triggered")[0] for line in said if case.backend in line.lower()]
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            return "; ".join([first, *dict.fromkeys(said)])[:300]
    return ""


def rates(run: _timing.Run) -> dict[str, float]:
    """Return a rough forward FLOP/s of each backend, from one simple call; skip the others."""
    tokens, found = 4096 if run.device.kind == "cuda" and not run.quick else 256, {}
    dtype = "fp16" if run.device.kind == "cuda" else "fp32"
    for backend in backends_for(run):
        case = Case(Shape(1, 8, 8, tokens, tokens, 64, 64, False), dtype, backend)
        why = takes(case, call, run)
        if why:
            run.skip("attention", {"backend": backend}, None, f"{backend}: {why}")
            continue
        with run.guard("attention", asdict(case.shape), dtype), sdpa_kernel(BACKENDS[backend]):
            given = inputs(case, run)
            times = run.time(lambda case=case, given=given: call(case, given), budget_s=0.2)
            found[backend] = case.shape.flop / min(times)
    return found


def measure_case(case: Case, run: _timing.Run, rate: dict, refused: dict) -> None:
    """Measure one case as it is, or with expanded heads where the backend refuses it.

    `refused` remembers what `takes` said about each way of calling.
    """
    has = case.shape
    shape, longest_s = asdict(has), LONGEST_S[run.device.kind]
    expected_s = BACKWARD * has.flop / rate[case.backend]
    if expected_s > longest_s:
        reason = f"time: backward may take {expected_s:.2g} s, at most {longest_s} s"
        return run.skip("attention", shape, case.dtype, reason)
    if not run.fits("attention", shape, case.dtype, 3 * kept_bytes(case)):
        return None
    kind = (case.backend, case.dtype, has.head_dim, has.heads_q == has.heads_kv, has.causal)
    with run.guard("attention", shape, case.dtype):
        for function in (call, call_expanded):
            if (function, kind) not in refused:
                refused[function, kind] = takes(case, function, run)
            if not refused[function, kind]:
                why = f"keys and values expanded: {refused[call, kind]}"
                note = {"expanded": True, "note": why} if function is call_expanded else {}
                return measure(case, function, note, run)
        reason = f"{case.backend}: {refused[call_expanded, kind]}"
        run.skip("attention", shape, case.dtype, reason)
    return None


def main() -> int:
    """Run the program."""
    arguments = _timing.parser(__doc__, minutes=2.0).parse_args()
    with _timing.Run(arguments, __file__) as run:
        for name in set(BACKENDS) - set(backends_for(run)):
            run.skip("attention", {}, None, f"{name}: only on a GPU")
        rate, refused = rates(run), {}
        for case in run.each(cases_for(run, rate)):
            measure_case(case, run, rate, refused)
    return run.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
