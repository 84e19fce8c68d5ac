"""Run a measuring program as if there were a GPU: `python pretended_gpu.py PROGRAM.py ARGUMENTS`.

What torch says about a GPU is replaced and the tensors stay on the CPU, so that the code that only
a GPU reaches runs at all. The times mean nothing.
"""

import contextlib
import runpy
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch

CPU = torch.device("cpu")
FREE_BYTES = 1_000_000_000


class Event:
    """An event of a device that does everything at once."""

    def __init__(self, enable_timing: bool) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, end: "Event") -> float:
        return 1e3 * (end.at - self.at)


class Stream:
    """A stream on which nothing waits."""

    def wait_stream(self, other: "Stream") -> None:
        """Go on."""


class Graph:
    """A graph that replays nothing."""

    def replay(self) -> None:
        """Do nothing, in no time at all."""


def pretend() -> None:
    """Replace what the programs ask of `torch.cuda`."""
    facts = {
        "name": "pretended GPU",
        "major": 9,
        "minor": 0,
        "total_memory": FREE_BYTES,
        "multi_processor_count": 4,
        "L2_cache_size": 100_000,
    }
    fakes = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "set_device": lambda device: None,
        "get_device_properties": lambda device: SimpleNamespace(**facts),
        "get_device_capability": lambda device=None: (9, 0),
        "synchronize": lambda device=None: None,
        "memory_reserved": lambda device=None: 0,
        "memory_allocated": lambda device=None: 0,
        "mem_get_info": lambda device=None: (FREE_BYTES, FREE_BYTES),
        "empty_cache": lambda: None,
        "current_stream": Stream,
        "stream": lambda stream: contextlib.nullcontext(),
        "graph": lambda graph: contextlib.nullcontext(),
        "_sleep": lambda cycles: None,
        "Event": Event,
        "Stream": Stream,
        "CUDAGraph": Graph,
    }
    for name, fake in fakes.items():
        setattr(torch.cuda, name, fake)
    torch.Tensor.pin_memory = lambda self: self
    import _timing

    class Pretended(_timing.Device):
        def __init__(self, name: str = "auto") -> None:
            super().__init__(name)
            self.device = CPU

    _timing.Device = Pretended


if __name__ == "__main__":
    program = Path(sys.argv[1])
    sys.path.insert(0, str(program.parent))
    sys.argv = sys.argv[1:]
    pretend()
    runpy.run_path(str(program), run_name="__main__")
