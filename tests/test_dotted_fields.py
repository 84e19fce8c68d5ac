"""A field set by its dotted name: what is on the way is made, copied, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.dotted_fields import put
from simulator.errors import InputError


def test_tables_on_the_way_are_made() -> None:
    document: dict[str, Any] = {}
    put(document, "run.storage.write_bytes_per_s", 5, where="here")
    assert document == {"run": {"storage": {"write_bytes_per_s": 5}}}


def test_entries_of_lists_are_numbered_from_zero() -> None:
    document: dict[str, Any] = {"cluster": {"groups": [{"gpus": 8}, {"gpus": 16}]}}
    put(document, "cluster.groups.1.gpus", 32, where="here")
    assert document == {"cluster": {"groups": [{"gpus": 8}, {"gpus": 32}]}}


def test_what_two_documents_share_is_not_changed() -> None:
    groups = [{"gpus": 8}]
    shared = {"groups": groups}
    document = {"cluster": shared}
    put(document, "cluster.groups.0.gpus", 16, where="here")
    assert groups == [{"gpus": 8}] and shared == {"groups": [{"gpus": 8}]}
    assert document["cluster"]["groups"] == [{"gpus": 16}]


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("tp", "must name section.field"),
        ("layout.", "must name section.field"),
        ("a.b.c", "a.b must be a table, got 3"),
        ("a.c.2.d", "2 must be a place in a list of 0, 1"),
        ("a.c.-1", "-1 must be a place in a list of 0, 1"),
        ("a.c.first", "first must be a place in a list of 0, 1"),
        ("a.e.0", "0 must be a place in a list; the list is empty"),
    ],
)
def test_a_wrong_way_is_said(key: str, words: str) -> None:
    document: dict[str, Any] = {"a": {"b": 3, "c": [1, 2], "e": []}}
    with pytest.raises(InputError, match="here: ") as error:
        put(document, key, 5, where="here")
    assert words in str(error.value)
