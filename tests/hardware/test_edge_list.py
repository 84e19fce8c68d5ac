"""Edges that a user lists, in a profile or a CSV file: what is read and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.hardware.cluster import load_cluster
from simulator.hardware.edge_list import (
    Edge,
    TopologySection,
    check_edges,
    edges_of,
    read_edges,
    write_edges,
)
from simulator.profiles.check import check

PAIR = "end_a,end_b,bytes_per_s\nadapter 0.0,leaf,50e9\nadapter 1.0,leaf,50e9\n"


def table(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "edges.csv"
    path.write_text(text)
    return path


def test_a_table_is_read_and_written(tmp_path: Path) -> None:
    path = table(tmp_path, "end_a,end_b,bytes_per_s,latency_s,count\nleaf 0, spine 1 ,5e10,,2\n")
    edge = Edge(end_a="leaf 0", end_b="spine 1", bytes_per_s=5e10, count=2)
    assert read_edges(path) == (edge,)
    write_edges([edge], tmp_path / "again.csv")
    assert read_edges(tmp_path / "again.csv") == (edge,)


WRONG = [
    ("end_a,end_b\nx,y\n", "edges.csv: bytes_per_s: required column is missing"),
    ("end_a,end_b,bytes_per_s,cables\nx,y,1,1\n", "edges.csv: cables: unknown column"),
    ("end_a,end_b,bytes_per_s\nx,y,0\n", "line 2: bytes_per_s: must be greater than 0, got 0.0"),
    ("end_a,end_b,bytes_per_s\nx,y,-1\n", "line 2: bytes_per_s: must be greater than 0, got -1.0"),
    ("end_a,end_b,bytes_per_s\nx,y,nan\n", "line 2: bytes_per_s: must be a finite number, got nan"),
    ("end_a,end_b,bytes_per_s\nx,y,fast\n", "line 2: bytes_per_s: must be a number"),
    ("end_a,end_b,bytes_per_s\nx,y,\n", "line 2: bytes_per_s: required field is missing"),
    ("end_a,end_b,bytes_per_s,count\nx,y,1,0\n", "line 2: count: must be greater than 0, got 0"),
    ("end_a,end_b,bytes_per_s,count\nx,y,1,1.5\n", "line 2: count: must be a whole number"),
    ("end_a,end_b,bytes_per_s,latency_s\nx,y,1,-1\n",
     "latency_s: must be greater than or equal to 0, got -1.0"),
    ("end_a,end_b,bytes_per_s\nx,x,1\n", "end_b: must be another end than end_a, got 'x'"),
    ("end_a,end_b,bytes_per_s\nGPU0.1,y,1\n",
     "end: must be named like 'gpu SERVER.INDEX', got 'GPU0.1' (nearest: 'gpu 0.1')"),
    ("end_a,end_b,bytes_per_s\nnic 3,y,1\n", "got 'nic 3' (nearest: 'adapter 3.0')"),
    ("end_a,end_b,bytes_per_s\na=b,y,1\n", "must be letters, digits, single blanks"),
    ("end_a,end_b,bytes_per_s\nleaf 0,spine 0,1\nleaf 1,spine 0,1\nleaf 0,spien 0,1\n",
     "'spien 0' stands once only, so that nothing passes it (did you mean 'spine 0'?)"),
    ("end_a,end_b,bytes_per_s\n", "edges: must be at least one"),
    ("", "the file is empty"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        read_edges(table(tmp_path, text))
    assert message in str(error.value)


def test_only_the_first_of_many_problems_are_shown() -> None:
    edges = [Edge(end_a=f"gpu{i}", end_b="switch", bytes_per_s=1.0) for i in range(50)]
    with pytest.raises(InputError) as error:
        check_edges(edges, "mine")
    assert len(error.value.problems) == 7
    assert error.value.problems[-1] == "mine: edges: 44 more of this kind"


def test_two_hundred_thousand_edges_are_read_and_no_more() -> None:
    edge = Edge(end_a="gpu 0.0", end_b="switch", bytes_per_s=1.0)
    section = TopologySection(edges=(edge,) * 200_001)
    with pytest.raises(InputError, match=r"mine.toml: topology: edges: must be at most 200000$"):
        edges_of(section, Path("mine.toml"))


def profile(tmp_path: Path, topology: str) -> Path:
    path = tmp_path / "clusters" / "mine.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'base = "gh200"\n{topology}')
    return path


def test_a_profile_names_its_file(tmp_path: Path) -> None:
    path = profile(tmp_path, '[topology]\nfile = "../edges.csv"\n')
    table(tmp_path, PAIR)
    assert [edge.end_b for edge in load_cluster(str(path), 2).edges] == ["leaf", "leaf"]
    assert load_cluster(str(path), 1).edges == ()  # one server has no use for its adapters' cables
    assert check(path) == []
    with pytest.raises(InputError, match="must list the 4 servers of the run, got 2"):
        load_cluster(str(path), 4)


def test_a_profile_lists_its_edges(tmp_path: Path) -> None:
    line = '[[topology.edges]]\nend_a = "adapter {}.0"\nend_b = "leaf"\nbytes_per_s = 5e10\n'
    path = profile(tmp_path, line.format(0) + line.format(1))
    assert len(load_cluster(str(path), 2).edges) == 2


def test_a_profile_with_neither_or_a_missing_file(tmp_path: Path) -> None:
    path = profile(tmp_path, "[topology]\n")
    with pytest.raises(InputError, match="topology: must have either file or edges"):
        load_cluster(str(path), 2)
    path = profile(tmp_path, '[topology]\nfile = "none.csv"\n')
    with pytest.raises(InputError, match=r"none\.csv: no such file"):
        load_cluster(str(path), 2)
    assert "no such file" in check(path)[0]


def test_two_servers_on_leaves_that_nothing_joins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four servers the first two hang on leaves of their own; only all four could be joined."""
    ends = [("adapter 0.0", "a"), ("adapter 2.0", "a"), ("adapter 1.0", "b"), ("adapter 3.0", "b")]
    edges = "".join(
        f'[[topology.edges]]\nend_a = "{server}"\nend_b = "{leaf}"\nbytes_per_s = 50e9\n'
        for server, leaf in ends
    )
    profile(tmp_path, edges)
    monkeypatch.setenv("FORESHARD_PROFILES", str(tmp_path))
    with pytest.raises(InputError, match="from the GPUs of server 0 to those of server 1"):
        load_cluster("mine", 2)
