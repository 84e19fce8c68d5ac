"""`foreshard cluster init`: profiles of one's own that are checked before they are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app
from simulator.hardware.cluster import load_cluster
from simulator.profiles.own_cluster import shipped_base

TOPO = """\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity
GPU0\t X \tPIX\tSYS\tSYS\tPIX\t0-15
GPU1\tPIX\t X \tSYS\tSYS\tPIX\t0-15
GPU2\tSYS\tSYS\t X \tPIX\tSYS\t16-31
GPU3\tSYS\tSYS\tPIX\t X \tSYS\t16-31
NIC0\tPIX\tPIX\tSYS\tSYS\t X \t
"""


def init(folder: Path, *words: str, typed: str | None = None) -> Any:
    return CliRunner().invoke(
        app, ["cluster", "init", *words, "--out", str(folder / "own")], input=typed
    )


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("FORESHARD_PROFILES", raising=False)
    return tmp_path


def test_two_boxes_over_pcie_meet_over_the_network(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("lab", "--gpu", "h100-pcie", "--per-server", "4", "--network", "ethernet")
    done = init(own, *words, "--adapters", "1", "--adapter-gbit", "25", "--price", "2.1")
    assert (done.exit_code, done.stderr) == (0, "")
    monkeypatch.setenv("FORESHARD_PROFILES", str(own / "own"))
    cluster = load_cluster("lab", 8)
    assert (cluster.node.accelerators, cluster.domain, cluster.price) == (4, 4, "lab")
    assert float(cluster.node.scale_out.adapter_bytes_per_s) == 25e9 / 8
    assert cluster.node.scale_out.kind == "ethernet"
    # What nobody stated is that of the shipped server with these GPUs.
    shipped = load_cluster("h100-pcie-8", 8).node
    assert cluster.node.scale_up.bus_bytes_per_s == shipped.scale_up.bus_bytes_per_s
    checked = CliRunner().invoke(app, ["profiles", "check", str(own / "own/nodes/lab.toml")])
    assert checked.exit_code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--domain", "8"], "--domain: must be at most the 4 accelerators of a server, where pcie"),
        (["--adapters", "0"], "--adapters: must be above 0, got 0"),
        (
            ["--network", "etherned"],
            "--network: must be a kind of network, got 'etherned' (",
        ),
        (["--links", "nvlink"], "--links: shipped servers with h100-pcie have pcie, got 'nvlink'"),
        (["--gpu", "h100"], "--gpu: unknown accelerator 'h100' (did you mean 'h100-sxm'?)"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(
    own: Path, words: list[str], said: str
) -> None:
    done = init(own, "lab", "--gpu", "h100-pcie", "--per-server", "4", *words)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"cluster init: {said}")
    assert not (own / "own").exists()


def test_a_name_that_is_taken_is_refused(own: Path) -> None:
    done = init(own, "dgx-h100", "--gpu", "h100-sxm")
    assert "must be a name that no profile has yet" in done.stderr


def test_figures_of_ones_own_are_not_written_over(own: Path) -> None:
    words = ("lab", "--gpu", "h100-pcie", "--per-server", "4")
    assert init(own, *words).exit_code == init(own, *words).exit_code == 0
    edited = own / "own" / "clusters" / "lab.toml"
    edited.write_text("# mine\n")
    done = init(own, *words)
    assert done.exit_code == 2 and f"{edited}: holds something else already" in done.stderr
    assert edited.read_text() == "# mine\n"


def test_a_matrix_of_links_says_gpus_links_and_adapters(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own / "topo.txt").write_text(TOPO)
    done = init(own, "box", "--gpu", "l40s", "--topo", str(own / "topo.txt"))
    assert (done.exit_code, done.stderr) == (0, "")
    monkeypatch.setenv("FORESHARD_PROFILES", str(own / "own"))
    node = load_cluster("box", 4).node
    assert (node.accelerators, node.scale_up.kind, node.scale_out.adapters) == (4, "pcie", 1)


def test_what_is_built_on_is_the_plainest_shipped_cluster() -> None:
    assert shipped_base("h100-sxm") == "dgx-h100"
    assert shipped_base("gb200") == "gb200-nvl72"


def test_without_a_terminal_the_gpu_must_be_given(own: Path) -> None:
    assert "--gpu: must be given" in init(own, "lab").stderr
