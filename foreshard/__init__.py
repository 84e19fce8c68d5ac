"""The package under the name of its distribution: ``foreshard.plan`` is ``simulator.plan``.

>>> import foreshard
>>> import simulator
>>> foreshard.plan is simulator.plan
True
"""

from __future__ import annotations

from typing import Any

import simulator
from simulator import __all__ as __all__


def __getattr__(name: str) -> Any:
    """Load a public name at its first use, as ``simulator`` does (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(simulator, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
