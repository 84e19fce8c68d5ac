"""How long a run is, in words."""

from __future__ import annotations

from simulator.units import show_count
from simulator.workload.recipe import Recipe


def length_words(recipe: Recipe) -> str:
    """Tokens of the run with its batch, beside those of a small one where they are fewer.

    Examples
    --------
    >>> one = Recipe(sequence_length=8, global_batch=64, tokens=1e9, critical_batch=128.0)
    >>> length_words(one)
    '1.5B tokens (1B with a small batch)'
    """
    if recipe.tokens is None or recipe.run_tokens is None:
        return "one step"
    small = (
        ""
        if recipe.critical_batch is None
        else f" ({show_count(recipe.tokens)} with a small batch)"
    )
    return f"{show_count(recipe.run_tokens)} tokens{small}"
