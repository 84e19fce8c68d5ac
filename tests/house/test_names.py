"""Names say a quantity or a thing of the field: pronouns as variables may only become fewer."""

from __future__ import annotations

import ast
import warnings

import pytest

from tests.house.figures import (
    Source,
    allowed_pronouns,
    positionals,
    product_names,
    pronouns_by_folder,
    sources,
)

LOWER = "python -m tests.house.figures --lower"


@pytest.fixture(scope="module")
def files() -> list[Source]:
    return sources()


def test_pronouns_become_no_more(files: list[Source]) -> None:
    counts, most = pronouns_by_folder(files), allowed_pronouns()
    more = {
        folder: f"{count}, at most {most.get(folder, 0)}"
        for folder, count in counts.items()
        if count > most.get(folder, 0)
    }
    assert not more, (
        f"{more}: variables called one, found, each or own. Say the quantity (step_s, rank, rows)."
        f" Where files only moved between folders: {LOWER}"
    )
    fewer = {
        folder: f"{counts.get(folder, 0)}, at most {count}"
        for folder, count in most.items()
        if counts.get(folder, 0) < count
    }
    if fewer:
        warnings.warn(f"{LOWER} lowers what is allowed: {fewer}", stacklevel=1)


# --- how it is counted, by hand -----------------------------------------------------------

TEXT = '''"""One module."""
# a comment

def first(self, one, /, *, own):
    """Say."""
    found = [each for each in one]  # code
    return found, "h100-sxm", "h100-sxm", "a run on h100", {"vllm": 1}
'''


def test_counting_by_hand() -> None:
    source = Source("simulator/cost/kernels/a.py", TEXT)
    assert (source.folder, source.room) == ("simulator/cost", "simulator/cost/kernels")
    assert Source("simulator/a.py", "").folder == "simulator"
    assert source.code_lines == 3
    # parameters one and own; found twice, each twice, one once
    assert source.pronouns == 7
    assert [positionals(function) for function in source.functions()] == [1]
    assert product_names([source]) == {"simulator/cost/kernels/a.py": 2}
    assert product_names([Source("simulator/interop/a.py", TEXT)]) == {}


def test_nothing_else_counts_as_a_pronoun() -> None:
    text = "x.one = x['each']\nf(own=1)\nclass found: pass\n"
    assert Source("simulator/a.py", text).pronouns == 0
    assert sum(isinstance(node, ast.Name) for node in ast.walk(ast.parse(text))) == 3
