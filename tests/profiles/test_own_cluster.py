"""`foreshard cluster init`: profiles of one's own that are checked before they are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app
from simulator.hardware.cluster import load_cluster
from simulator.profiles.own_cluster import _nvlinks, shipped_base

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
    ("words", "servers_gpus", "domain"),
    [
        (["--gpu", "h100-sxm", "--per-server", "4"], 4, 4),  # of a server whose eight are joined
        (["--gpu", "h100-sxm"], 8, 8),
        (["--gpu", "gb200", "--per-server", "4"], 4, 72),  # servers of a rack share its switches
        (["--gpu", "gb200", "--per-server", "4", "--domain", "36"], 4, 36),
    ],
)
def test_links_join_a_server_or_the_rack_of_the_base(
    own: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], servers_gpus: int, domain: int
) -> None:
    done = init(own, "lab", *words)
    assert (done.exit_code, done.stderr) == (0, "")
    monkeypatch.setenv("FORESHARD_PROFILES", str(own / "own"))
    node = load_cluster("lab", 72).node
    assert (node.accelerators, node.scale_up.domain) == (servers_gpus, domain)


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
        (["--gpu", "h900"], "--gpu: unknown accelerator 'h900'"),
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


def matrix(cells: list[list[str]], adapters: int = 0) -> str:
    """The text of ``nvidia-smi topo -m``: words between GPUs, adapters behind bridges of GPU0."""
    gpus = [f"GPU{i}" for i in range(len(cells))]
    nics = [f"NIC{i}" for i in range(adapters)]
    lines = ["\t" + "\t".join([*gpus, *nics, "CPU Affinity"])]
    for name, row in zip(gpus, cells, strict=True):
        lines.append("\t".join([name, *row, *["PXB"] * adapters, "0-31"]))
    for i, name in enumerate(nics):
        row = [" X " if i == j else "PXB" for j in range(adapters)]
        lines.append("\t".join([name, *["PXB"] * len(gpus), *row]))
    return "\n".join(lines) + "\n"


def joined(words: dict[tuple[int, int], str], gpus: int) -> list[list[str]]:
    return [
        [
            " X " if a == b else words.get((min(a, b), max(a, b)), words.get((-1, -1), "SYS"))
            for b in range(gpus)
        ]
        for a in range(gpus)
    ]


CUBE = {
    (0, 1): "NV1", (0, 2): "NV1", (0, 3): "NV2", (0, 4): "NV2", (1, 2): "NV2", (1, 3): "NV1",
    (1, 5): "NV2", (2, 3): "NV1", (2, 6): "NV2", (3, 7): "NV1", (4, 5): "NV1", (4, 6): "NV1",
    (4, 7): "NV2", (5, 6): "NV2", (5, 7): "NV1", (6, 7): "NV1",
}  # fmt: skip
"""Cube mesh of a DGX-1V as its owners post it; GPU 3 and 7 have five links here, others six."""


@pytest.mark.parametrize(
    ("gpu", "words", "gpus", "base", "domain"),
    [
        ("gb200", {(-1, -1): "NV18"}, 4, "gb200-nvl72", 4),  # a board of four, not a rack
        ("v100-sxm2-32", CUBE, 8, "aws-p3dn", 8),
        ("a100-sxm-80", {(-1, -1): "NV4"}, 4, "dgx-a100", 4),  # Juwels Booster, Leonardo
    ],
)
def test_all_links_that_a_matrix_shows_are_all_there_are(
    own: Path, monkeypatch: pytest.MonkeyPatch, gpu: str, words: Any, gpus: int, base: str,
    domain: int,
) -> None:  # fmt: skip
    (own / "topo.txt").write_text(matrix(joined(words, gpus), 4))
    done = init(own, "box", "--gpu", gpu, "--topo", str(own / "topo.txt"))
    assert (done.exit_code, done.stderr) == (0, "")
    assert f"After {base}, as nothing says otherwise" in done.stdout
    monkeypatch.setenv("FORESHARD_PROFILES", str(own / "own"))
    node = load_cluster("box", gpus).node
    assert (node.accelerators, node.scale_up.domain) == (gpus, domain)
    if base == "gb200-nvl72":
        assert "as the 72 of gb200-nvl72, --domain says so" in done.stdout
        rack = init(own, "rack", "--gpu", gpu, "--topo", str(own / "topo.txt"), "--domain", "72")
        assert rack.exit_code == 0 and load_cluster("rack", gpus).node.scale_up.domain == 72
    if words is CUBE:
        assert "unlike numbers of NVLinks, the fewest of which count: GPU0 6" in done.stdout
        assert "no NVLink between GPU0 and GPU5, GPU0 and GPU6" in done.stdout
        shipped = float(load_cluster("aws-p3dn", 8).node.scale_up.bandwidth_bytes_per_s)
        assert float(node.scale_up.bandwidth_bytes_per_s) == pytest.approx(shipped * 5 / 6)


@pytest.mark.parametrize(
    ("more", "rest"), [(0, " and 8 pairs more"), (7, " and 1 pair more"), (8, "")]
)
def test_pairs_that_no_link_joins_are_named_up_to_four(own: Path, more: int, rest: str) -> None:
    """Sixteen of the 28 pairs of a cube mesh have links, and some more here."""
    apart = [(a, b) for a in range(8) for b in range(a + 1, 8) if (a, b) not in CUBE]
    words = CUBE | dict.fromkeys(apart[:more], "NV1")
    (own / "topo.txt").write_text(matrix(joined(words, 8), 4))
    done = init(own, "box", "--gpu", "v100-sxm2-32", "--topo", str(own / "topo.txt"))
    named = ", ".join(f"GPU{a} and GPU{b}" for a, b in apart[more : more + 4])
    assert f"no NVLink between {named}{rest}: they are joined" in done.stdout


NVLINKS = {
    **{"dgx-1p": 4, "dgx-1v": 6, "dgx-2": 6, "dgx-a100": 12, "hgx-a800": 8, "dgx-h100": 18},
    **{"hgx-h800": 8, "hgx-h200": 18, "dgx-b200": 18, "gb200-nvl72": 18},
}
"""NVLinks of a GPU, as NVIDIA's data sheets of P100 to GB200 (and of the A800 and H800) say."""


@pytest.mark.parametrize(("cluster", "links"), NVLINKS.items())
def test_links_of_a_gpu_are_those_of_its_data_sheet(cluster: str, links: int) -> None:
    assert _nvlinks(load_cluster(cluster, 1).node) == links


def test_bridges_between_pairs_are_named(own: Path) -> None:
    pairs = {(0, 1): "NV4", (2, 3): "NV4"}
    (own / "topo.txt").write_text(matrix(joined(pairs, 4), 1))
    words = ("--gpu", "rtxa6000", "--topo", str(own / "topo.txt"))
    done = init(own, "box", *words)
    assert done.exit_code == 2 and "NVLink joins groups of 2 of the 4 GPUs" in done.stderr
    done = init(own, "box", *words, "--links", "pcie")
    assert (done.exit_code, done.stderr) == (0, "")
    (own / "topo.txt").write_text(matrix(joined({(0, 1): "NV4"}, 4), 1))
    done = init(own, "odd", *words)
    assert done.exit_code == 2 and "NVLink joins groups of 1 and 2 GPUs" in done.stderr


def test_more_adapters_than_the_base_has_are_no_faster_together(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own / "topo.txt").write_text(matrix(joined({(-1, -1): "NV18"}, 8), 16))
    done = init(own, "box", "--gpu", "h100-sxm", "--topo", str(own / "topo.txt"))
    assert "16 adapters are no faster together than the 8 of 400 Gbit/s of dgx-h100" in done.stdout
    monkeypatch.setenv("FORESHARD_PROFILES", str(own / "own"))
    out = load_cluster("box", 8).node.scale_out
    shipped = load_cluster("dgx-h100", 8).node.scale_out
    whole = out.adapters * float(out.adapter_bytes_per_s)
    assert whole == shipped.adapters * float(shipped.adapter_bytes_per_s)
    words = ("fast", "--gpu", "h100-sxm", "--topo", str(own / "topo.txt"), "--adapter-gbit", "400")
    done = init(own, *words)
    assert "no faster together" not in done.stdout
    assert float(load_cluster("fast", 8).node.scale_out.adapter_bytes_per_s) == 50e9


def test_a_matrix_that_an_option_contradicts_is_refused(own: Path) -> None:
    (own / "topo.txt").write_text(TOPO)
    done = init(own, "box", "--gpu", "l40s", "--topo", str(own / "topo.txt"), "--per-server", "8")
    assert done.exit_code == 2 and "--per-server: must be the 4 GPUs that" in done.stderr


def test_what_is_built_on_is_the_plainest_shipped_cluster() -> None:
    assert shipped_base("h100-sxm") == "dgx-h100"
    assert shipped_base("v100-sxm2-32") == "dgx-2"
    assert shipped_base("v100-sxm2-32", None, 8) == "aws-p3dn"
    assert shipped_base("gb200") == "gb200-nvl72"


def test_without_a_terminal_the_gpu_must_be_given(own: Path) -> None:
    assert "--gpu: must be given" in init(own, "lab").stderr


MIXED = {(a, b): "NV12" if a // 4 == b // 4 else "NV4" for a in range(8) for b in range(a + 1, 8)}


@pytest.mark.parametrize(
    ("gpu", "words", "gpus", "said"),
    [
        # 3 x 12 + 4 x 4 links of a GPU are no mesh, and a switch gives all pairs as many
        ("a100-sxm-80", MIXED, 8, "NV4 and NV12 are more than the 18 NVLinks that a GPU has"),
        ("a100-sxm-80", {(-1, -1): "NV18"}, 8, "18 NVLinks a GPU, of which a100-sxm-80 has 12"),
        ("Tesla V100-SXM2-32GB", {(-1, -1): "NV6"}, 4, "18 NVLinks a GPU, of which v100-sxm2-32"),
        ("NVIDIA H800", {(-1, -1): "NV18"}, 8, "18 NVLinks a GPU, of which h800-sxm has 8"),
    ],
)
def test_links_that_no_gpu_has_are_refused(
    own: Path, gpu: str, words: Any, gpus: int, said: str
) -> None:
    (own / "topo.txt").write_text(matrix(joined(words, gpus)))
    done = init(own, "box", "--gpu", gpu, "--topo", str(own / "topo.txt"))
    assert done.exit_code == 2 and said in done.stderr


@pytest.mark.parametrize(
    ("spelled", "base"),
    [("NVIDIA H100 80GB HBM3", "dgx-h100"), ("h200", "hgx-h200"), ("B200", "dgx-b200")],
)
def test_a_gpu_is_taken_by_the_name_that_others_give_it(own: Path, spelled: str, base: str) -> None:
    (own / "topo.txt").write_text(matrix(joined({}, 1), 1))  # one GPU has no links to others
    done = init(own, "box", "--gpu", spelled, "--topo", str(own / "topo.txt"))
    assert (done.exit_code, done.stderr) == (0, "")
    assert f"After {base}" in done.stdout


def test_what_is_there_already_is_written_again_where_it_is_the_same(own: Path) -> None:
    words = ("lab", "--gpu", "h100-pcie", "--per-server", "4")
    assert init(own, *words).exit_code == 0
    again = init(own, *words)
    assert (again.exit_code, again.stderr) == (0, "")
    place = own / "own" / "nodes" / "lab.toml"
    place.write_text(place.read_text() + "# mine\n")
    refused = init(own, *words)
    assert refused.exit_code == 2 and "nodes/lab.toml: holds something else already" in (
        refused.stderr.replace("\n", " ")
    )
    assert place.read_text().endswith("# mine\n"), "nobody's own figures are written over"
