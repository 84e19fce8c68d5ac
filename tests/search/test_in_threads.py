"""Pieces of tables in threads: in their order, and in none where other processes work."""

import os
import threading
from contextvars import Context

import pytest

from simulator.search.in_threads import in_threads, one_thread


def _thread(piece: int) -> tuple[int, int]:
    return piece, threading.get_ident()


def test_pieces_come_in_order_from_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    found = Context().run(list, in_threads(_thread, range(20)))
    assert [piece for piece, _ in found] == list(range(20))
    assert threading.get_ident() not in {ident for _, ident in found}


def test_one_thread_starts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)

    def there_and_then() -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        with one_thread():
            there = list(in_threads(_thread, range(20)))
        return there, list(in_threads(_thread, range(2)))

    found, after = Context().run(there_and_then)
    assert found == [(piece, threading.get_ident()) for piece in range(20)]
    assert threading.get_ident() not in {ident for _, ident in after}
