"""`make profiles` on profiles that borrow: only what their own timings gave is written there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from simulator import catalogue
from simulator.calibration.profile_text import FigureText, Section
from simulator.files import read_profile
from simulator.hardware.accelerator import Accelerator
from simulator.measured.microbenchmarks import load_words
from workshop.fits.collectives.rows import boards
from workshop.fits.fitting.devices import devices, profile_of
from workshop.fits.refit import Producer, refit


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    return Path(shutil.copytree(catalogue.folder("hardware_profiles"), tmp_path / "profiles"))


def section(path: tuple[str, ...], grade: str, value: float = 0.55) -> Section:
    figures = {"peak_fraction": FigureText(value=value, grade=grade, spread=0.1)}
    return Section(path=path, figures=figures, source="_".join(path), text="x", date="2026-11-21")


def test_a_guess_is_not_written_over_what_is_borrowed(profiles: Path) -> None:
    sections = [
        section(("attention", "flash"), "assumed"),
        section(("gemm", "cublas", "bf16"), "fitted"),
        section(("gemm", "cublas", "fp16"), "assumed"),  # beside timings of its kernel
    ]
    producer = Producer(sections=lambda: {"l4": sections, "l40s": sections}, left_out=list)
    changed = refit({"one": producer}, profiles=profiles, left_out=None)
    assert [path.name for path in changed] == ["l4.toml", "l40s.toml"]
    text = (profiles / "accelerators" / "l4.toml").read_text()
    assert "[attention.flash]" not in text
    assert "[borrowed]" in text
    borrower, owner = (
        read_profile(Accelerator, profiles / "accelerators" / f"{name}.toml", kind="accelerators")
        for name in ("l4", "l40s")
    )
    assert borrower.gemm["cublas"]["bf16"].peak_fraction == 0.55
    assert borrower.gemm["cublas"]["fp16"].peak_fraction == 0.55
    assert borrower.gemm["cublas"]["bf16"].peak_fraction.grade == "fitted"
    # shipped figures of the L40S, which the catalogue lends, not those of this folder
    shipped = devices()["l40s"].tables["attention"]["flash"]["peak_fraction"]["value"]
    assert borrower.attention["flash"].peak_fraction == shipped != 0.55
    assert owner.attention["flash"].peak_fraction == 0.55


def test_devices_are_read_whether_they_borrow_or_not() -> None:
    known = devices()
    assert set(known) == set(catalogue.names("accelerators"))
    assert known["h100-nvl"].tables == {"gemm": {}, "attention": {}, "stream": {}}
    assert known["h100-nvl"].bandwidth_bytes_per_s == 3.9e12


def test_calls_of_a_card_are_fitted_on_the_profile_that_lends() -> None:
    words = load_words()
    assert words.accelerators["a100_pcie"] == "a100-pcie-80"
    assert profile_of("a100_pcie", words, devices()) == "a100-sxm-80"
    assert profile_of("rtx_pro_6000_server", words, devices()) == "rtx-pro-6000-server"
    assert profile_of("a40", words, devices()) == ""


def test_nccl_sees_a_card_of_blackwell_as_blackwell() -> None:
    """It asks for compute capability 10 or more, which RTX PRO 6000 (12.0) has."""
    board = boards()["rtx_pro_6000_server"]
    assert board.accelerator.generation == "blackwell-gb20x"
    like = board.library.tuning.like
    assert (like["blackwell-gb20x"], like["ampere-ga10x"]) == ("blackwell", "ampere")
    assert like["blackwell-gb20x"] in board.library.tuning.ll_ceiling_bytes_per_s


def test_a_borrower_has_the_clock_of_its_relative() -> None:
    known = devices()
    assert known["h100-nvl"].training_fraction() == known["h100-hbm2e-96"].training_fraction()
    own = known["a100-pcie-80"].tables["gemm"]["cublas"]["bf16"]["training_fraction"]["value"]
    assert known["a100-pcie-80"].training_fraction() == own
