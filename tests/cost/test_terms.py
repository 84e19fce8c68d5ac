"""What users read about a term: its sources stand where the table says."""

import re
from pathlib import Path

import pytest

import simulator
from simulator.cost.terms import TERMS, Term

ROOMS = Path(simulator.__file__).parent


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term.name)
def test_modules_that_a_term_names_exist(term: Term) -> None:
    ours = re.findall(r"cost/[a-z_/]+\.py", term.source)
    assert [path for path in ours if not (ROOMS / path).exists()] == []


def test_the_attention_term_names_the_module_of_its_formula() -> None:
    attention = next(term for term in TERMS if term.name == "attention")
    assert "kernels/flash_attention.py" in attention.source
