"""Accelerators that stores feed: by hand, and the committed page."""

from pathlib import Path
from statistics import median

import pytest

from workshop.cases.storage import fed, from_others, read_fed, read_workloads
from workshop.pages.input import page


def test_by_hand() -> None:
    """unet3d on H100: 7 x 146.6 MB in 0.323 s are 3.177 GB/s, of which 90 % will do: 2.859 GB/s."""
    unet = read_workloads()["unet3d"]
    assert unet.bytes_per_s("h100") == pytest.approx(3.177e9, rel=1e-3)
    assert [fed(unet, "h100", rate) for rate in (2.8e9, 2.9e9, 28.7e9, 103.9e9)] == [0, 1, 10, 36]


def test_stores_that_fed_h100_feed_so_many_a100() -> None:
    """DDN's appliance: 96.7 GiB/s to 36 H100; 72 A100 were fed."""
    found = list(from_others(read_fed()))
    told = {(a.submitter, a.workload): n for a, _, n in found}
    assert told["DDN", "unet3d"] == 71
    errors = [abs(n / a.accelerators - 1.0) for a, _, n in found]
    assert len(errors) == 36
    assert median(errors) < 0.1


def test_the_committed_page_holds() -> None:
    assert (Path(__file__).parents[2] / "docs" / "input.md").read_text("utf-8") == page()
