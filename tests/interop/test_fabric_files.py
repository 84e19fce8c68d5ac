"""Outputs of ibnetdiscover and nvidia-smi topo -m, made after the documented formats."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app
from simulator.errors import InputError
from simulator.hardware.edge_list import Edge
from simulator.interop.fabric_files import read_ibnetdiscover, read_nvidia_topology

RUNNER = CliRunner()
NDR = 4 * 100e9 / 8


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "output.txt"
    path.write_text(text)
    return path


# Two hosts with two adapters, two leaves, one spine with two cables to each leaf.
FABRIC = """\
#
# Topology file: generated on Sun Nov 22 21:00:00 2026
#
# Initiated from node b83fd20300000020 port b83fd20300000020

vendid=0x2c9
devid=0xd2f2
sysimgguid=0xfc6a1c0300000100
switchguid=0xfc6a1c0300000100(fc6a1c0300000100)
Switch\t64 "S-fc6a1c0300000100"\t\t# "leaf-0" enhanced port 0 lid 10 lmc 0
[1]\t"H-b83fd20300000010"[1](b83fd20300000010) \t\t# "node10 mlx5_0" lid 3 4xNDR
[2]\t"H-b83fd20300000020"[1](b83fd20300000020) \t\t# "node2 mlx5_0" lid 4 4xNDR
[33]\t"S-fc6a1c0300000300"[1]\t\t# "spine" lid 12 4xNDR
[34]\t"S-fc6a1c0300000300"[2]\t\t# "spine" lid 12 4xNDR
[65]\t"H-fc6a1c0300000109"[1](fc6a1c0300000109) \t\t# "Aggregation Node" lid 20 4xNDR

vendid=0x2c9
devid=0xd2f2
switchguid=0xfc6a1c0300000200(fc6a1c0300000200)
Switch\t64 "S-fc6a1c0300000200"\t\t# "leaf-1" enhanced port 0 lid 11 lmc 0
[1]\t"H-b83fd20300000011"[1](b83fd20300000011) \t\t# "node10 mlx5_1" lid 5 4xNDR
[2]\t"H-b83fd20300000021"[1](b83fd20300000021) \t\t# "node2 mlx5_1" lid 6 4xNDR
[33]\t"S-fc6a1c0300000300"[3]\t\t# "spine" lid 12 4xNDR
[34]\t"S-fc6a1c0300000300"[4]\t\t# "spine" lid 12 2xNDR

Switch\t64 "S-fc6a1c0300000300"\t\t# "spine" enhanced port 0 lid 12 lmc 0
[1]\t"S-fc6a1c0300000100"[33]\t\t# "leaf-0" lid 10 4xNDR
[2]\t"S-fc6a1c0300000100"[34]\t\t# "leaf-0" lid 10 4xNDR
[3]\t"S-fc6a1c0300000200"[33]\t\t# "leaf-1" lid 11 4xNDR
[4]\t"S-fc6a1c0300000200"[34]\t\t# "leaf-1" lid 11 2xNDR

caguid=0xfc6a1c0300000109
Ca\t1 "H-fc6a1c0300000109"\t\t# "Aggregation Node"
[1](fc6a1c0300000109) \t"S-fc6a1c0300000100"[65]\t\t# lid 20 lmc 0 "leaf-0" lid 10 4xNDR
Ca\t1 "H-b83fd20300000010"\t\t# "node10 mlx5_0"
[1](b83fd20300000010) \t"S-fc6a1c0300000100"[1]\t\t# lid 3 lmc 0 "leaf-0" lid 10 4xNDR
Ca\t1 "H-b83fd20300000011"\t\t# "node10 mlx5_1"
[1](b83fd20300000011) \t"S-fc6a1c0300000200"[1]\t\t# lid 5 lmc 0 "leaf-1" lid 11 4xNDR
Ca\t1 "H-b83fd20300000020"\t\t# "node2 mlx5_0"
[1](b83fd20300000020) \t"S-fc6a1c0300000100"[2]\t\t# lid 4 lmc 0 "leaf-0" lid 10 4xNDR
Ca\t1 "H-b83fd20300000021"\t\t# "node2 mlx5_1"
[1](b83fd20300000021) \t"S-fc6a1c0300000200"[2]\t\t# lid 6 lmc 0 "leaf-1" lid 11 4xNDR
"""


def test_a_fabric_is_discovered(tmp_path: Path) -> None:
    found = read_ibnetdiscover(written(tmp_path, FABRIC))
    assert found.servers == ("node2", "node10")  # as a person counts
    joined = {frozenset((e.end_a, e.end_b)): [] for e in found.edges}
    for edge in found.edges:
        joined[frozenset((edge.end_a, edge.end_b))].append((edge.bytes_per_s, edge.count))
    assert joined == {
        frozenset(("adapter 1.0", "leaf-0")): [(NDR, 1)],
        frozenset(("adapter 0.0", "leaf-0")): [(NDR, 1)],
        frozenset(("adapter 1.1", "leaf-1")): [(NDR, 1)],
        frozenset(("adapter 0.1", "leaf-1")): [(NDR, 1)],
        frozenset(("leaf-0", "spine")): [(NDR, 2)],
        frozenset(("leaf-1", "spine")): [(NDR, 1), (NDR / 2, 1)],
    }


def test_hosts_that_are_no_servers_are_left_out(tmp_path: Path) -> None:
    found = read_ibnetdiscover(written(tmp_path, FABRIC), hosts=r"node\d")
    assert found.servers == ("node2",)
    with pytest.raises(InputError, match="hosts: not a regular expression"):
        read_ibnetdiscover(written(tmp_path, FABRIC), hosts="node[")
    with pytest.raises(InputError, match="no cable between adapters of hosts 'gpu' and switches"):
        read_ibnetdiscover(written(tmp_path, 'Ca 1 "H-1" # "a mlx5_0"\n'), hosts="gpu")


BROKEN = [
    (FABRIC[: FABRIC.index("caguid")], "a cable leads to it, but it is not listed: cut off?"),
    (FABRIC.replace("2xNDR", "2xNDX"), "unknown speed 'NDX' (known: DDR, EDR"),
    (FABRIC.replace("[34]\t\"S-fc6a1c0300000300\"[2]", "[34]\t\"S-fc6a"),
     "must be [port] \"GUID\"[port] ... width and speed"),
    (FABRIC + "Segmentation fault\n", "not a line of ibnetdiscover, got 'Segmentation fault'"),
    ("# nothing\n", "no switch and no adapter"),
    ('[1] "S-1"[2] # "x" lid 1 4xNDR\n', "a port before any node"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BROKEN)
def test_a_broken_discovery_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        read_ibnetdiscover(written(tmp_path, text))
    assert message in str(error.value)


# Four GPUs, each beside an adapter; an adapter for storage at a host bridge of its own.
SWITCHED = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tNIC2\tNIC3\tNIC4\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV18\tNV18\tNV18\tPIX\tNODE\tSYS\tSYS\tNODE\t0-55\t0\t\tN/A
GPU1\tNV18\t X \tNV18\tNV18\tNODE\tPIX\tSYS\tSYS\tNODE\t0-55\t0\t\tN/A
GPU2\tNV18\tNV18\t X \tNV18\tSYS\tSYS\tPIX\tNODE\tSYS\t56-111\t1\t\tN/A
GPU3\tNV18\tNV18\tNV18\t X \tSYS\tSYS\tNODE\tPIX\tSYS\t56-111\t1\t\tN/A
NIC0\tPIX\tNODE\tSYS\tSYS\t X \tNODE\tSYS\tSYS\tNODE
NIC1\tNODE\tPIX\tSYS\tSYS\tNODE\t X \tSYS\tSYS\tNODE
NIC2\tSYS\tSYS\tPIX\tNODE\tSYS\tSYS\t X \tNODE\tSYS
NIC3\tSYS\tSYS\tNODE\tPIX\tSYS\tSYS\tNODE\t X \tSYS
NIC4\tNODE\tNODE\tSYS\tSYS\tNODE\tNODE\tSYS\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
"""
RATES = {"nvlink_bytes_per_s": 450e9, "pcie_bytes_per_s": 50e9}


def test_a_server_with_a_switch(tmp_path: Path) -> None:
    edges = read_nvidia_topology(written(tmp_path, SWITCHED), **RATES)
    wires = [edge for edge in edges if "nvswitch 0" in (edge.end_a, edge.end_b)]
    assert wires == [
        Edge(end_a=f"gpu 0.{i}", end_b="nvswitch 0", bytes_per_s=25e9, count=18) for i in range(4)
    ]
    ends = {name for edge in edges for name in (edge.end_a, edge.end_b)}
    assert {name for name in ends if name.startswith("adapter")} == {
        f"adapter 0.{i}"
        for i in range(4)  # not that for storage
    }
    under = {edge.end_a for edge in edges if edge.end_b == "PCIe switch 0.0"}
    assert under == {"slot 0 GPU0", "slot 0 NIC0"}
    above = [(e.end_a, e.count) for e in edges if e.end_b.startswith("processors")]
    assert above == [("NUMA node 0.0", 2), ("NUMA node 0.1", 2)]


def test_wires_without_a_switch(tmp_path: Path) -> None:
    # A quad of GPUs with four NVLinks to each other one: 12 links, as an A100 has.
    rows = "\n".join(
        "\t".join([f"GPU{i}", *("X" if i == j else "NV4" for j in range(4)), "0-31", "0"])
        for i in range(4)
    )
    text = f"\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\n{rows}\n"
    edges = read_nvidia_topology(written(tmp_path, text), **(RATES | {"nvlink_bytes_per_s": 300e9}))
    wires = [e for e in edges if e.end_a.startswith("gpu") and e.end_b.startswith("gpu")]
    assert len(wires) == 6
    assert {(edge.bytes_per_s, edge.count) for edge in wires} == {(25e9, 4)}


def test_several_servers_are_alike(tmp_path: Path) -> None:
    edges = read_nvidia_topology(written(tmp_path, SWITCHED), **RATES, servers=2)
    assert len(edges) % 2 == 0
    assert edges[len(edges) // 2].end_a == "gpu 1.0"


BROKEN_MATRICES = [
    (SWITCHED[: SWITCHED.index("NIC3\tSYS")], "no row of NIC3, NIC4: cut off?"),
    (SWITCHED.replace("GPU3\tNV18\tNV18\tNV18\t X \tSYS\tSYS\tNODE\tPIX\tSYS\t56-111\t1\t\tN/A",
                      "GPU3\tNV18\tNV1"), "line 5: GPU3: must have 9 cells, got 2"),
    (SWITCHED.replace("GPU0\t X \tNV18", "GPU0\t X \tPXI"),
     "line 2: GPU0, GPU1: unknown word 'PXI' (known: X, NV#, PIX, PXB, PHB, NODE, SYS)"),
    (SWITCHED.replace("GPU1\tNV18\t X", "GPU1\tNV12\t X"),
     "GPU0, GPU1: must be as GPU1, GPU0, NV12, got NV18"),
    ("nvidia-smi: command not found\n", "no line names the columns, GPU0 and on"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BROKEN_MATRICES)
def test_a_broken_matrix_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        read_nvidia_topology(written(tmp_path, text), **RATES)
    assert message in str(error.value)


def test_both_become_the_topology_of_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "net.txt").write_text(FABRIC)
    two = ["links", str(tmp_path / "net.txt"), "--write", str(tmp_path / "edges.csv")]
    done = RUNNER.invoke(app, ["profiles", *two])
    assert done.exit_code == 0, done.output
    assert "server 0: node2" in done.stdout
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes" / "pair.toml").write_text(
        'base = "dgx-h100"\naccelerators = 2\n[scale_up]\ndomain = 2\n[scale_out]\nadapters = 2\n'
    )
    profile = tmp_path / "mine.toml"
    profile.write_text(
        f'base = "dgx-h100"\nnode = "{tmp_path}/nodes/pair.toml"\n'
        '[fabric]\nusable_fraction = 1\n[topology]\nfile = "edges.csv"\n'
    )
    shown = RUNNER.invoke(app, ["profiles", "links", str(profile)])
    assert shown.exit_code == 0, shown.output
    assert "4 GPUs on 2 servers, as it is cabled" in shown.stdout
    assert "bisection: 100 GB/s" in shown.stdout  # two adapters of a server
    unknown = RUNNER.invoke(app, ["profiles", "links", str(tmp_path / "mine.toml"), "--gpus", "6"])
    assert unknown.exit_code == 2
    assert "must list the 3 servers of the run, got 2" in unknown.stderr


def test_a_matrix_needs_rates(tmp_path: Path) -> None:
    path = str(written(tmp_path, SWITCHED))
    refused = RUNNER.invoke(app, ["profiles", "links", path])
    assert refused.exit_code == 2
    assert "--node must name a node profile" in refused.stderr
    done = RUNNER.invoke(app, ["profiles", "links", path, "--node", "dgx-h100", "--json"])
    assert done.exit_code == 0, done.output
    assert '"gpu": 4' in done.stdout


@pytest.mark.parametrize(
    ("speed", "gbit_per_s"),
    [
        ("4xSDR", 8), ("4xDDR", 16), ("4xQDR", 32), ("4xFDR10", 40), ("4xFDR", 54.54),
        ("4xEDR", 100), ("4xHDR", 200), ("2xHDR", 100), ("4xNDR", 400), ("1xXDR", 200),
        ("12xEDR", 300),
    ],
)  # fmt: skip
def test_data_rates_of_infiniband_generations(
    tmp_path: Path, speed: str, gbit_per_s: float
) -> None:
    """InfiniBand Trade Association's roadmap: data rates of four lanes, after their coding."""
    text = FABRIC.replace("4xNDR", speed).replace("2xNDR", speed)
    rates = {edge.bytes_per_s for edge in read_ibnetdiscover(written(tmp_path, text)).edges}
    assert [8 * rate / 1e9 for rate in rates] == pytest.approx([gbit_per_s], abs=0.01)
