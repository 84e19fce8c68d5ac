"""Claims of techniques: the committed page is made from them, and they keep what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from workshop.cases.technique_claims import held_claims, read_claims
from workshop.pages.techniques import page

ROOT = Path(__file__).resolve().parents[2]


def test_the_committed_page_is_made_from_the_claims() -> None:
    assert (ROOT / "docs" / "technique_claims.md").read_text() == page()


def test_bounds_are_kept_and_no_claim_is_far_off() -> None:
    for row in held_claims():
        assert row.keeps_bound is not False, row.claim.what
        assert row.claim.bound or abs(row.error) < 0.5, row.claim.what


def test_an_exchange_by_hand() -> None:
    """10.2 GB of int8 round 14 sites: 26/14 of it at 62.5 MB/s, and 26 hops of 0.15 s."""
    (row,) = [row for row in held_claims() if "three continents; the" in row.claim.what]
    assert row.predicted == pytest.approx(26 / 14 * 10.2e9 / 62.5e6 + 26 * 0.15)


def test_sources_are_all_used() -> None:
    claims, sources, _ = read_claims()
    assert {claim.source for claim in claims} == set(sources)
