"""What an upgrade buys: releases in order, against single predictions and counted bytes."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simulator.api import predict, releases
from simulator.cli.main import app
from simulator.questions.versus.releases import ReleaseChoices, ReleaseRow, release_words
from simulator.software.profile import load_software
from simulator.software.releases import parsed

RUNNER = CliRunner()
TITAN: dict[str, Any] = {
    "model": "llama-3.1-8b", "cluster": "dgx-h100", "gpus": 8, "sequence_length": 8192,
    "global_batch": 8, "micro_batch": 1, "tp": 1, "pp": 1, "cp": 1, "sharding": "zero3",
    "recompute": "full", "tokens": "1B",
}  # fmt: skip


def row(answer: ReleaseChoices, word: str) -> ReleaseRow:
    (release,) = [r for r in answer.rows if r.release == word]
    return release


@pytest.mark.parametrize("name", ["torchtitan", "megatron-core", "megatron-bridge-26.04"])
def test_releases_stand_in_the_order_of_their_dates(name: str) -> None:
    months = [parsed(word).months for word, _ in release_words(load_software(name))]  # type: ignore[union-attr]
    assert len(months) > 3
    assert all(a <= b for a, b in pairwise(months))  # type: ignore[operator]


@pytest.mark.parametrize(
    "name", ["torchtitan-2024-eager", "kempnerforge", "megatron-bridge-26.06-library"]
)
def test_releases_of_a_variant_have_it_among_them_and_no_other(name: str) -> None:
    found = release_words(load_software(name))
    variant = name.rpartition("-")[2] if name[-1].isalpha() and "-" in name else "compile"
    assert name in [profile for _, profile in found]
    assert {parsed(word).variant for word, _ in found} <= {variant, ""}  # type: ignore[union-attr]


def test_a_release_is_priced_as_it_is_alone() -> None:
    answer = releases(**TITAN, software="torchtitan-2024.12-compile", search=False)
    old, new = row(answer, "torchtitan-2024.08-compile"), row(answer, "torchtitan-2025.04-compile")
    assert old.here and not new.here
    alone = predict(**TITAN, software="torchtitan-2025.04-compile")
    assert new.step_time_s == alone.step_time_s
    assert new.memory_total_bytes == alone.memory_bytes
    assert old.gain == 0.0 and old.usd == 0.0
    assert new.gain == pytest.approx(old.step_time_s / alone.step_time_s - 1.0)  # type: ignore[operator]


def test_a_compiled_loss_saves_the_copies_of_the_logits() -> None:
    """pytorch/torchtitan#1033 of April 2025: eager cross entropy has up to four fp32 tensors,
    16 B a logit; compiled it keeps the 16-bit logits and their gradient, 4 B."""
    answer = releases(**TITAN, software="torchtitan-2025.04-compile", search=False)
    before = row(answer, "torchtitan-2025.03-compile")
    logits = 8192 * 128_256
    saved = before.memory_change_bytes
    assert 4.0 * logits < saved < 16.0 * logits  # type: ignore[operator]


def test_an_own_best_is_never_slower_than_the_layout_at_hand() -> None:
    free = {k: v for k, v in TITAN.items() if k not in ("tp", "pp", "cp", "sharding", "recompute")}
    answer = releases(**free, software="torchtitan-2025.04-compile")
    for release in answer.rows:
        if release.memory_verdict == "FITS" and release.best_step_time_s is not None:
            assert release.best_step_time_s <= release.step_time_s * (1 + 1e-9)  # type: ignore[operator]


@pytest.mark.evidence
def test_screen_document_and_what_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        '[model]\nname = "llama-3.1-8b"\n[training]\nglobal_batch = 64\nsequence_length = 8192\n'
        '[cluster]\nname = "dgx-h100"\ngpus = 8\nsoftware = "megatron-bridge-25.09"\n'
    )
    result = RUNNER.invoke(app, ["what-if", str(path), "--releases"])
    assert result.exit_code == 0 and "(here)" in result.stdout, result.output
    result = RUNNER.invoke(app, ["what-if", str(path), "--releases", "--json"])
    document = json.loads(result.stdout)
    assert sum(r["here"] for r in document["rows"]) == 1
    assert all({"gain", "grade", "runs", "memory_change_bytes"} <= set(r) for r in document["rows"])
    both = ["--releases", "--change", "memory=2"]
    result = RUNNER.invoke(app, ["what-if", str(path), *both])
    assert result.exit_code == 2 and "--releases" in result.stderr
    path.write_text(path.read_text().replace("megatron-bridge-25.09", "deepspeed"))
    result = RUNNER.invoke(app, ["what-if", str(path), "--releases"])
    assert result.exit_code == 2 and "cluster.software" in result.stderr
