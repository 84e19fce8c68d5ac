"""Time what the host costs: launching kernels, and a layer too small to keep the device busy.

`launch` is a kernel on one element: "queue" is what the host takes to queue one more, "round_trip"
a call and the wait for its end, "device" what the device takes for each when the queue is full.
`layer` is a Llama block from tiny to real size, eager and as a CUDA graph: `times_s` is the time
per pass, the device included, `host_times_s` what the host took to queue it, `operators` and
`kernels` how many there were. Where the two times agree, the host is the limit.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import _timing
from _timing import DTYPES, torch
from torch.utils._python_dispatch import TorchDispatchMode

QUEUED = 200
"""Calls in a row: fewer than a GPU's queue holds."""
PASSES = 8
"""Passes of a layer in a row."""
HEAD = 64


@dataclass(frozen=True)
class Layer:
    """Sizes of a Llama block and of its input."""

    batch: int
    sequence: int
    hidden: int
    ffn: int
    kernel = "layer"

    @property
    def name(self) -> str:
        """What the progress line shows."""
        return f"layer, {self.batch} x {self.sequence} tokens, hidden {self.hidden}"


LAYERS = {
    "cuda": (
        Layer(1, 16, 256, 688),
        Layer(1, 128, 1024, 2816),
        Layer(1, 512, 2048, 5632),
        Layer(1, 2048, 2048, 5632),
        Layer(1, 2048, 4096, 14336),
        Layer(1, 8192, 4096, 14336),
    ),
    "cpu": (Layer(1, 16, 64, 172), Layer(1, 16, 256, 688), Layer(1, 64, 512, 1376)),
}


class Block(torch.nn.Module):
    """A Llama block: norm, attention, norm, gated MLP, as plain torch writes it."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.norm, self.norm_mlp = (torch.nn.RMSNorm(hidden, eps=1e-5) for _ in range(2))
        self.qkv = torch.nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = torch.nn.Linear(hidden, hidden, bias=False)
        self.gate, self.up = (torch.nn.Linear(hidden, ffn, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Return the block's output; `x` is batch x sequence x hidden."""
        batch, sequence, hidden = x.shape
        heads = self.qkv(self.norm(x)).view(batch, sequence, 3, hidden // HEAD, HEAD)
        q, k, v = (part.transpose(1, 2) for part in heads.unbind(2))
        q, k = (turn(part, cos, sin) for part in (q, k))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, sequence, hidden))
        y = self.norm_mlp(x)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))


def turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Apply the rotary embedding."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


# --- launches -------------------------------------------------------------------------------------


def queue_times(
    function: Callable, run: _timing.Run, calls: int, repeats: int
) -> tuple[list, list]:
    """Return seconds per call, to its end and to its being queued, from `calls` in a row."""
    whole, host = [], []
    function()
    for _ in range(repeats):
        run.device.synchronize()
        begin = time.perf_counter_ns()
        for _ in range(calls):
            function()
        queued = time.perf_counter_ns()
        run.device.synchronize()
        host.append((queued - begin) / 1e9 / calls)
        whole.append((time.perf_counter_ns() - begin) / 1e9 / calls)
    run.device.sensors.read()
    return whole, host


def measure_launch(run: _timing.Run) -> None:
    """Time a kernel on one element in three ways."""
    one = _timing.values((1,), torch.float32, run.device)
    shape, more = {"elements": 1}, {"library": "eager", "cold": False}

    def add() -> None:
        one.add_(1.0)

    def add_and_wait() -> None:
        one.add_(1.0)
        run.device.synchronize()

    repeats = 20 if run.quick else 100
    with run.guard("launch", shape, "fp32"):
        _, host = queue_times(add, run, QUEUED, repeats)
        run.record("launch", "fp32", shape, "queue", host, **more)
        whole, _ = queue_times(add_and_wait, run, 1, repeats)
        run.record("launch", "fp32", shape, "round_trip", whole, **more)
        if run.device.kind == "cuda":
            run.record("launch", "fp32", shape, "device", run.time(add), **more)
            replay = captured(lambda: [add() for _ in range(QUEUED)])
            times = [one / QUEUED for one in run.time(replay)]
            more |= {"library": "cuda graph", "note": f"graph of {QUEUED} kernels, per kernel"}
            run.record("launch", "fp32", shape, "device", times, **more)


# --- a layer --------------------------------------------------------------------------------------


class Counter(TorchDispatchMode):
    """Counts the operators that run inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        """Count and run."""
        self.count += 1
        return function(*args, **(kwargs or {}))


def operators_of(function: Callable) -> int:
    """Return how many operators `function` runs, those of its backward pass included."""
    with Counter() as counter:
        function()
    return counter.count


def kernels_of(function: Callable, run: _timing.Run) -> dict[str, int]:
    """Return how many kernels and copies the GPU runs; nothing where the profiler sees none."""
    if run.device.kind != "cuda":
        return {}
    try:
        activity = torch.profiler.ProfilerActivity.CUDA
        with torch.profiler.profile(activities=[activity]) as profile:
            function()
            run.device.synchronize()
        count = sum(event.device_type.name == "CUDA" for event in profile.events())
    except Exception:  # profiling may be forbidden, or not built in: only the count is lost
        count = 0
    return {"kernels": count} if count else {}


def captured(function: Callable) -> Callable:
    """Return the replay of `function` as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


def passes(layer: Layer, dtype: str, run: _timing.Run) -> dict[str, Callable]:
    """Return a forward pass, and one with its backward pass, on random data."""
    kind = {"dtype": DTYPES[dtype], "device": run.device.device}
    block = Block(layer.hidden, layer.ffn).to(**kind)
    size = (layer.batch, layer.sequence, layer.hidden)
    x = _timing.values(size, DTYPES[dtype], run.device).requires_grad_()
    cos, sin = (torch.rand(layer.sequence, HEAD, **kind) for _ in range(2))
    gradient = _timing.values(size, DTYPES[dtype], run.device)
    wanted = [x, *block.parameters()]

    def forward() -> None:
        with torch.no_grad():
            block(x, cos, sin)

    def both() -> None:
        torch.autograd.grad(block(x, cos, sin), wanted, gradient)

    return {"forward": forward, "forward_backward": both}


def measure_layer(layer: Layer, dtype: str, run: _timing.Run) -> None:
    """Time one layer, eager and as a graph."""
    shape = asdict(layer) | {"heads": layer.hidden // HEAD}
    repeats = 5 if run.quick else 20
    for direction, function in passes(layer, dtype, run).items():
        counts = {"operators": operators_of(function)} | kernels_of(function, run)
        ways = {"eager": lambda function=function: function}
        if run.device.kind == "cuda":
            ways["cuda graph"] = lambda function=function: captured(function)
        for library, make in ways.items():
            with run.guard("layer", shape | {"library": library}, dtype):
                timed = make()
                first, _ = queue_times(timed, run, 1, 3)
                fitting = int(run.case_s / max(statistics.median(first), 1e-7))
                calls = max(1, min(PASSES, fitting // 3))
                whole, host = queue_times(timed, run, calls, max(3, min(repeats, fitting // calls)))
                more = {"library": library, "cold": False, "host_times_s": host, **counts}
                run.record("layer", dtype, shape, direction, whole, **more)


def main() -> int:
    """Run the program."""
    arguments = _timing.parser(__doc__, minutes=0.5).parse_args()
    with _timing.Run(arguments, __file__) as run:
        cuda = run.device.kind == "cuda"
        if not cuda:
            run.skip("layer", {}, None, "cuda graph, and sizes of real models: only on a GPU")
        if "fp32" in run.dtypes("fp32"):
            measure_launch(run)
        layers = LAYERS["cpu" if run.quick else run.device.kind]
        cases = [(layer, dtype) for layer in layers for dtype in run.dtypes("bf16", "fp32")]
        for layer, dtype in run.each(cases):
            with run.guard("layer", asdict(layer), dtype):
                measure_layer(layer, dtype, run)
    return run.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
