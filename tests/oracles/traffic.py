"""Bytes that torch's operators are given and return, written down as they run."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Traffic(TorchDispatchMode):
    """Writes down every operator with the bytes of what it is given and of what it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = list[tuple[str, int, int]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        written = (kwargs or {}).get("out", result)
        self.seen.append((str(func), _bytes(args), _bytes(written)))
        return result

    def moved(self, *names: str) -> int:
        """Bytes that operators of these names (``aten.add``: all overloads) read and write."""
        found = ((name.rpartition(".")[0], given + made) for name, given, made in self.seen)
        return sum(size for name, size in found if name in names)


def _bytes(tensors: Any) -> int:
    return sum(x.nbytes for x in tree_leaves(tensors) if isinstance(x, torch.Tensor))
