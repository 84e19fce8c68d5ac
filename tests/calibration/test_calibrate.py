"""`foreshard calibrate`: figures that made the times come back, nonsense is refused by name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from simulator import catalogue
from simulator.api import predict
from simulator.calibration.classes import accelerator_classes
from simulator.calibration.link_classes import link_classes
from simulator.cli.main import app
from simulator.errors import InputError
from simulator.files import read_profile
from simulator.hardware.accelerator import Accelerator
from simulator.hardware.cluster import ClusterProfile, load_accelerator, load_cluster
from simulator.hardware.node import Node
from simulator.measured.measurements import Call, read_measurements

RUNNER = CliRunner()
Write = Callable[..., Path]
TRUTH = {
    "gemm.cublas.bf16": {"peak_fraction": (0.78, 0.03), "memory_fraction": (0.7, 0.06)},
    "attention.sdpa": {
        "peak_fraction": (0.30, 0.02), "prologue_keys": (200.0, 0.15),
        "backward_fraction": (0.75, 0.02),
    },
    "stream.norm": {"memory_fraction": (0.6, 0.02), "launch_s": (3e-6, 0.2)},
    "stream.copy": {"memory_fraction": (0.6, 0.02), "launch_s": (3e-6, 0.2)},
}  # fmt: skip
"""What made the times (conftest.py), and how near the fit must come, relative."""


def run(*arguments: object, code: int = 0) -> Any:
    result = RUNNER.invoke(app, ["calibrate", *map(str, arguments)])
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def refused(path: Path, tmp_path: Path, *more: object) -> str:
    """Calibrate, expect exit code 2 and nothing written; return what was said."""
    before = sorted(tmp_path.rglob("*"))
    result = run(path, "--base", "h200-sxm", "--out", tmp_path / "mine.toml", *more, code=2)
    assert sorted(tmp_path.rglob("*")) == before
    assert result.stdout == ""
    return str(result.stderr)


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """One calibration for several tests: its folder and its document."""
    import importlib.util

    place = Path(__file__).with_name("conftest.py")
    spec = importlib.util.spec_from_file_location("made_documents", place)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    part = read_profile(Accelerator, catalogue.find("accelerators", "h200-sxm"))
    folder = tmp_path_factory.mktemp("calibrated")
    file = folder / "measurements.json"
    file.write_text(json.dumps(made.head(part) | {"records": made.kernel_records(part)}))
    out = folder / "profiles" / "accelerators" / "my-h200.toml"
    result = run(file, "--base", "h200-sxm", "--out", out, "--json")
    return folder, json.loads(result.stdout)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("table", TRUTH)
def test_the_figures_that_made_the_times_come_back(
    calibrated: tuple[Path, dict[str, Any]], table: str
) -> None:
    folder, document = calibrated
    found = {
        row["name"]: row["fitted"]
        for one in document["classes"]
        if one["table"] == table
        for row in one["figures"]
    }
    path = folder / "profiles" / "accelerators" / "my-h200.toml"
    value: Any = read_profile(Accelerator, path)
    for part in table.split("."):
        value = value[part] if isinstance(value, dict) else getattr(value, part)
    for name, (truth, near) in TRUTH[table].items():
        assert found[name] == pytest.approx(truth, rel=near), name
        assert getattr(value, name) == pytest.approx(found[name], rel=0.01)
        assert getattr(value, name).grade == "fitted"


def test_errors_fall_and_the_spread_is_that_of_shapes_left_out(
    calibrated: tuple[Path, dict[str, Any]],
) -> None:
    """The times carry a noise of 1 %: median 0.67 %, p90 1.6 %, spread 1 %."""
    _, document = calibrated
    names = [one["name"] for one in document["classes"]]
    assert names == [
        "attention sdpa forward",
        "attention sdpa backward",
        "gemm bf16",
        "memory-bound copy",
        "memory-bound norm",
    ]
    for one in document["classes"]:
        assert one["profile"] == "accelerator"
        assert one["before"]["median"] > 0.1
        assert one["after"]["median"] < 0.012
        assert one["left_out"]["median"] < 0.015 and one["left_out"]["p90"] < 0.04
        assert 0.005 <= one["spread"] < 0.02
    (gemm,) = [one for one in document["classes"] if one["name"] == "gemm bf16"]
    assert [part["name"] for part in gemm["parts"]] == ["dgrad", "forward", "wgrad"]
    assert sum(part["calls"] for part in gemm["parts"]) == gemm["calls"] == 150


def test_the_new_profile_keeps_comments_and_what_was_not_measured(
    calibrated: tuple[Path, dict[str, Any]],
) -> None:
    folder, _ = calibrated
    path = folder / "profiles" / "accelerators" / "my-h200.toml"
    text, base = path.read_text(), catalogue.find("accelerators", "h200-sxm").read_text()
    first, second = text.splitlines()[:2]
    assert first.startswith("# my-h200: h200-sxm, fitted to measurements.json, torch 2.9.0")
    assert second == base.splitlines()[0]
    assert "# 141 GiB" in text
    ours = read_profile(Accelerator, path)
    theirs = read_profile(Accelerator, catalogue.find("accelerators", "h200-sxm"))
    assert (
        ours.memory == theirs.memory and ours.gemm["cublas"]["fp8"] == theirs.gemm["cublas"]["fp8"]
    )
    training = ours.gemm["cublas"]["bf16"].training_fraction
    assert training == theirs.gemm["cublas"]["bf16"].training_fraction
    peak = ours.gemm["cublas"]["bf16"].peak_fraction
    assert (peak.grade, peak.date) == ("fitted", "2026-10-01")
    assert peak.spread is not None and peak.spread < 0.03
    assert re.search(r"150 calls \(gemm bf16\).*shapes left out of the fit: median", peak.source)


def test_the_json_document_has_its_keys(calibrated: tuple[Path, dict[str, Any]]) -> None:
    folder, document = calibrated
    assert list(document) == [
        "schema",
        "version",
        "command",
        "source",
        "date",
        "bases",
        "files",
        "classes",
        "left_out",
    ]
    assert (document["command"], document["date"]) == ("calibrate", "2026-10-01")
    assert document["bases"] == {"accelerator": "h200-sxm", "cluster": None}
    assert list(document["files"]) == ["accelerator", "node", "cluster", "plot"]
    assert list(document["classes"][0]) == [
        "profile",
        "name",
        "table",
        "calls",
        "before",
        "after",
        "left_out",
        "spread",
        "parts",
        "figures",
    ]
    picture = Path(document["files"]["plot"])
    assert picture == folder / "profiles" / "accelerators" / "my-h200.png"
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert not list(folder.rglob("*.part"))


def test_links_and_network_come_back_and_the_chain_of_profiles_predicts(
    collective_document: dict[str, Any],
    write: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """bus 300, switch 400, all-to-all 250, send 260 GB/s, adapters 0.7 (conftest.py)."""
    folder = tmp_path / "profiles"
    node, cluster = folder / "nodes" / "my-hgx.toml", folder / "clusters" / "my-cluster.toml"
    result = run(
        write(collective_document),
        "--base-cluster",
        "hgx-h200",
        "--out-node",
        node,
        "--out-cluster",
        cluster,
        "--json",
    )
    document = json.loads(result.stdout)
    assert [one["profile"] for one in document["classes"]] == ["node"] * 4 + ["cluster"]
    links = read_profile(Node, node).scale_up
    assert links.bus_bytes_per_s == pytest.approx(300e9, rel=0.02)
    assert links.nvls_bytes_per_s == pytest.approx(400e9, rel=0.02)
    assert links.all_to_all_bytes_per_s == pytest.approx(250e9, rel=0.02)
    assert links.send_bytes_per_s == pytest.approx(260e9, rel=0.02)
    assert links.bus_bytes_per_s.grade == "fitted"
    fabric = read_profile(ClusterProfile, cluster)
    assert fabric.node == "my-hgx"
    assert fabric.fabric.usable_fraction == pytest.approx(0.7, rel=0.03)
    monkeypatch.setenv("FORESHARD_PROFILES", str(folder))
    given = {"model": "llama-3.1-8b", "gpus": 16, "sequence_length": 2048, "tp": 8}
    ours = predict(**given, cluster="my-cluster").estimate.step_time_s[0]
    assert ours > predict(**given, cluster="hgx-h200").estimate.step_time_s[0]


def test_logs_of_nccl_tests_say_the_same_as_our_own_document(
    collective_document: dict[str, Any], log_text: Callable[..., str], write: Write, tmp_path: Path
) -> None:
    logs = [
        write(log_text(collective_document, kernel, ranks, hosts), f"{kernel}{ranks}.log")
        for kernel in ("all_reduce", "all_gather", "reduce_scatter")
        for ranks, hosts in ((2, 1), (8, 1), (16, 2))
    ]
    node, cluster = tmp_path / "node.toml", tmp_path / "cluster.toml"
    result = run(
        *logs, "--base-cluster", "hgx-h200", "--out-node", node, "--out-cluster", cluster, "--json"
    )
    links = read_profile(Node, node).scale_up
    assert links.bus_bytes_per_s == pytest.approx(300e9, rel=0.02)
    assert links.nvls_bytes_per_s == pytest.approx(400e9, rel=0.02)
    assert links.send_bytes_per_s.grade == "fitted"  # as the base has it: nothing measured
    base = read_profile(Node, catalogue.find("nodes", "hgx-h200")).scale_up
    assert links.send_bytes_per_s == base.send_bytes_per_s
    assert read_profile(ClusterProfile, cluster).fabric.usable_fraction == pytest.approx(0.7, 0.03)
    assert json.loads(result.stdout)["files"]["plot"] == str(tmp_path / "node.png")


def test_a_collective_faster_than_the_wires_is_refused(
    collective_document: dict[str, Any], write: Write, tmp_path: Path
) -> None:
    wrong = collective_document["records"][48]
    assert (wrong["kernel"], wrong["shape"]["nodes"]) == ("all_gather", 1)
    wrong["times_s"] = [wrong["shape"]["message_bytes"] / 2e12]
    node = tmp_path / "node.toml"
    result = run(
        write(collective_document), "--base-cluster", "hgx-h200", "--out-node", node, code=2
    )
    assert "records[48] (all_gather): ring collectives, one domain:" in result.stderr
    assert "times as fast as the limit" in result.stderr
    assert not node.exists()


def test_a_network_that_is_not_the_bases_is_refused(
    collective_document: dict[str, Any], log_text: Callable[..., str], write: Write, tmp_path: Path
) -> None:
    """Two servers over one 10 GbE port: 1.1 GB/s of bus bandwidth where eight adapters have 300."""
    for record in collective_document["records"]:
        shape = record["shape"]
        if shape["nodes"] > 1:
            factor = 2 * (shape["ranks"] - 1) / shape["ranks"]
            record["times_s"] = [5e-4 + factor * shape["message_bytes"] / 1.1e9]
    log = write(log_text(collective_document, "all_reduce", 16, 2), "all_reduce.log")
    cluster = tmp_path / "cluster.toml"
    words = (log, "--base-cluster", "hgx-h200", "--out-cluster", cluster)
    result = run(*words, code=2)
    assert "collectives between servers: " in result.stderr
    assert "usable_fraction stands at the end of its range" in result.stderr
    assert "hgx-h200 has 8 adapters of 400 Gbit/s a server (infiniband)" in result.stderr
    assert "--adapter-gbit RATE" in result.stderr
    assert not cluster.exists()
    run(*words, "--misfit")
    assert read_profile(ClusterProfile, cluster).fabric.usable_fraction == pytest.approx(0.05)


def test_servers_with_more_gpus_than_the_bases_are_refused(
    collective_document: dict[str, Any], log_text: Callable[..., str], write: Write, tmp_path: Path
) -> None:
    log = write(log_text(collective_document, "all_reduce", 16, 2), "all_reduce.log")
    out = tmp_path / "cluster.toml"
    result = run(log, "--base-cluster", "gh200", "--out-cluster", out, code=2)
    assert "8 ranks in a server, but one of gh200 has 1" in result.stderr
    alone = write(log_text(collective_document, "all_reduce", 8, 1), "all_reduce_8.log")
    result = run(alone, "--base-cluster", "gh200", "--out-cluster", out, code=2)
    assert "8 ranks in a server, but one of gh200 has 1" in result.stderr


def test_accelerator_node_and_cluster_name_one_another(
    kernel_document: dict[str, Any], write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel_document["records"] = [r for r in kernel_document["records"] if r["kernel"] == "copy"]
    folder = tmp_path / "profiles"
    kinds = {"": "accelerators", "-node": "nodes", "-cluster": "clusters"}
    outs = [x for o, kind in kinds.items() for x in (f"--out{o}", folder / kind / "mine.toml")]
    result = run(write(kernel_document), "--base-cluster", "azure-ndmv4", *outs, code=2)
    assert "has 132 compute units, the base a100-sxm-80 108" in result.stderr
    result = run(write(kernel_document), "--base-cluster", "aws-p5en", *outs)
    flat = "".join(result.stdout.split())  # long paths are wrapped
    assert "memory-boundcopy" in flat and str(folder / "nodes" / "mine.toml") in flat
    monkeypatch.setenv("FORESHARD_PROFILES", str(folder))
    found = predict(model="llama-3.1-8b", cluster="mine", gpus=8)
    cluster = found.scenario.cluster
    assert cluster.accelerator.name == cluster.node.name == cluster.name == "mine"
    assert cluster.accelerator.stream["copy"].memory_fraction.grade == "fitted"


# --- what is refused ----------------------------------------------------------------------------


def change(document: dict[str, Any], **record: Any) -> dict[str, Any]:
    document["records"][7] |= record
    return document


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"times_s": [float("nan")]}, "records[7] (gemm): times_s: must be positive numbers of "),
        ({"times_s": [-1e-3]}, "times_s: must be positive numbers of seconds, got -0.001"),
        ({"times_s": []}, "times_s: must be a list of seconds, got []"),
        ({"times_s": ["fast"]}, "must be positive numbers of seconds, got 'fast'"),
        ({"shape": None}, "records[7] (gemm): shape: must be an object of sizes, got None"),
        ({"shape": {"m": -4, "n": 1, "k": 1}}, "shape.m: must be a size, got -4"),
        ({"kernel": 3}, "records[7]: kernel: must be a word, got 3"),
        (
            {"times_s": [1e-9], "shape": {"m": 8192, "n": 8192, "k": 8192}},
            "records[7] (gemm): gemm bf16: 1.11e+06 times as fast as the limit of the device",
        ),
    ],
)
def test_a_record_that_cannot_be_is_named(
    kernel_document: dict[str, Any],
    write: Write,
    tmp_path: Path,
    wrong: dict[str, Any],
    message: str,
) -> None:
    path = write(change(kernel_document, **wrong))
    said = refused(path, tmp_path)
    assert message in said and str(path) in said


@pytest.mark.parametrize(
    ("seconds", "read"), [(1e-12, True), (0.99e-12, False), (1e9, True), (1.01e9, False)]
)
def test_times_from_a_picosecond_to_thirty_years_are_read(
    kernel_document: dict[str, Any], write: Write, seconds: float, read: bool
) -> None:
    path = write(kernel_document | {"records": [kernel_document["records"][7]]})
    assert len(read_measurements(path).calls) == 1
    record = kernel_document["records"][7] | {"times_s": [seconds]}
    path = write(kernel_document | {"records": [record]})
    if read:
        assert read_measurements(path).calls[0].seconds == seconds
        return
    with pytest.raises(InputError, match="times_s: must be positive numbers of seconds"):
        read_measurements(path)


DAMAGED: list[Any] = [
    *(None, True, -1, 0, 1e400, "x", [], {}, [None], {"m": None}, [[1.0]], 1e-300),
    *(10**400, [10**400], {"m": 10**400}, 1e300, {"m": 1e300}),
]


@pytest.mark.parametrize(
    "field", ["kernel", "dtype", "shape", "direction", "library", "bytes", "cold"]
)
def test_a_damaged_document_never_ends_in_a_trace(
    kernel_document: dict[str, Any],
    collective_document: dict[str, Any],
    h200: Accelerator,
    write: Write,
    field: str,
) -> None:
    """Whatever stands in a field: the record is refused by name, or sorted, or left out."""
    cluster = load_cluster("hgx-h200", 8)
    kernels = {record["kernel"]: record for record in kernel_document["records"]}
    kernels["all_gather"] = collective_document["records"][40]
    for record in kernels.values():
        for value in DAMAGED:
            raw = kernel_document | {"records": [{**record, field: value}]}
            try:
                document = read_measurements(write(raw))
            except InputError as error:
                assert all("records[0]" in line for line in error.problems)
                continue
            classes, skipped = accelerator_classes(document.calls, h200)
            links, more = link_classes(document.calls, cluster)
            for one in (*classes, *links):
                assert np.isfinite(one.predict({}, one.rows)).all()
            found = sum(len(one.places) for one in (*classes, *links))
            assert found + len(skipped) + len(more) >= 1


@pytest.mark.parametrize(("times", "unit"), [(1e3, "milliseconds"), (1e6, "microseconds")])
def test_another_unit_is_recognised(
    kernel_document: dict[str, Any], write: Write, tmp_path: Path, times: float, unit: str
) -> None:
    for one in kernel_document["records"]:
        one["times_s"] = [times * t for t in one["times_s"]]
    said = refused(write(kernel_document), tmp_path)
    assert f"are the times in {unit}? They must be seconds" in said


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ({"sms": 144}, "has 144 compute units, the base h200-sxm 132"),
        ({"memory_bytes": 80e9}, "has 80.0 GB of memory, the base h200-sxm 151.4"),
        ({"kind": "cpu", "name": "EPYC"}, "EPYC is a CPU, the base h200-sxm is not"),
        ({"kind": "tpu"}, "device: must say kind (cuda or cpu) and name"),
    ],
)
def test_another_device_is_refused(
    kernel_document: dict[str, Any],
    write: Write,
    tmp_path: Path,
    device: dict[str, Any],
    message: str,
) -> None:
    kernel_document["device"] |= device
    assert message in refused(write(kernel_document), tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema": 2, "records": []}', "schema: must be 1, got 2"),
        ('{"rows": []}', "not a document of measurements: it has no records"),
        ('{"schema": 1', "not valid JSON"),
        ("", "no line of results of nccl-tests or rccl-tests"),
    ],
)
def test_what_is_no_document_is_refused(
    write: Write, tmp_path: Path, text: str, message: str
) -> None:
    assert message in refused(write(text), tmp_path)


def test_too_few_calls_are_left_out_and_said(
    kernel_document: dict[str, Any], write: Write, tmp_path: Path
) -> None:
    rest = [r for r in kernel_document["records"] if r["kernel"] == "copy"]
    few = [r for r in kernel_document["records"] if r["kernel"] == "gemm"][:5]
    kernel_document["records"] = few
    said = refused(write(kernel_document, "few.json"), tmp_path)
    assert "nothing to fit: 5 calls: gemm bf16: needs at least 27 rows for 9 parameters" in said
    kernel_document["records"] = few + rest
    out = tmp_path / "mine.toml"
    found = json.loads(
        run(write(kernel_document), "--base", "h200-sxm", "--out", out, "--json").stdout
    )
    assert not any(one["name"] == "gemm bf16" for one in found["classes"])
    assert any(reason.startswith("gemm bf16: needs") for reason in found["left_out"])
    base = read_profile(Accelerator, catalogue.find("accelerators", "h200-sxm"))
    assert read_profile(Accelerator, out).gemm == base.gemm


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "x.toml"], "--out needs --base"),
        (["--base", "h200-sxm"], "needs --out, --out-node or --out-cluster"),
        (["--base", "h200-sxm", "--out", "x.json"], "must be a file that ends in .toml"),
        (["--out-node", "x.toml"], "--out-node and --out-cluster need --base-cluster"),
        (["--base", "h2000", "--out", "x.toml"], "--base: unknown accelerator 'h2000'"),
        (["--base-cluster", "hgx", "--out-node", "x.toml"], "--base-cluster: unknown cluster"),
    ],
)
def test_what_is_missing_is_said(
    write: Write,
    kernel_document: dict[str, Any],
    tmp_path: Path,
    options: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(write(kernel_document), *options, code=2)
    assert message in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["measurements.json"]


def test_nothing_is_written_where_one_file_cannot_be(
    kernel_document: dict[str, Any], write: Write, tmp_path: Path
) -> None:
    kernel_document["records"] = [r for r in kernel_document["records"] if r["kernel"] == "copy"]
    file = write(kernel_document)
    (tmp_path / "taken").write_text("a file where a folder must be")
    before = sorted(tmp_path.rglob("*"))
    result = run(
        file,
        "--base",
        "h200-sxm",
        "--out",
        tmp_path / "mine.toml",
        "--plot",
        tmp_path / "taken" / "x.png",
        code=2,
    )
    assert "cannot be written" in result.stderr
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("heads", "length", "taken"), [(11, 3072, 1), (11, 2944, 0), (38, 896, 0)])
def test_attention_that_does_not_fill_the_device_twice_is_left_out(
    heads: int, length: int, taken: int
) -> None:
    """Tiles of 128 queries on 132 processors: 11 heads of 24 fill them twice, of 23 they do not.

    38 heads of 7 do, but 896 tokens are too short.
    """
    sizes = {"batch": 1, "heads_q": heads, "heads_kv": heads, "seq_q": length, "seq_kv": length}
    call = Call(
        place="here", kernel="attention", dtype="bf16", direction="forward",
        library="torch.sdpa-flash", shape={**sizes, "head_dim": 128, "causal": 1}, seconds=1e-3,
    )  # fmt: skip
    h200 = load_accelerator("h200-sxm")
    assert h200.compute_units == 132
    classes, skipped = accelerator_classes([call], h200)
    assert (len(classes), sum(skipped.values())) == (taken, 1 - taken)


@pytest.mark.parametrize(
    ("ranks", "pairs"), [([2], False), ([4], False), ([4, 8], False), ([2, 8], True)]
)
def test_the_rate_of_a_pair_is_asked_of_pairs_beside_others(ranks: list[int], pairs: bool) -> None:
    """A share of the ring's rate: a ring and two ranks must both have been timed."""
    cluster = load_cluster("mi300x-8", 8)
    calls = [
        Call(
            place="here", kernel="all_gather", dtype="bf16", direction="forward", library="rccl",
            shape={"message_bytes": 2.0**26, "ranks": float(n), "nodes": 1.0}, seconds=1e-3,
        )
        for n in ranks
    ]  # fmt: skip
    ((rings,), skipped) = link_classes(calls, cluster)
    assert set(rings.priors) == {"bus_bytes_per_s"} | ({"pair_fraction"} if pairs else set())
    assert not skipped and len(rings.places) == len(ranks)


@pytest.mark.parametrize("small", ["m", "n", "k"])
@pytest.mark.parametrize(("size", "taken"), [(1, 1), (0, 0)])
def test_a_product_with_one_row_is_a_product(small: str, size: int, taken: int) -> None:
    sizes = {"m": 4096, "n": 4096, "k": 4096, small: size}
    call = Call(
        place="here", kernel="gemm", dtype="bf16", direction="forward", library="torch.matmul",
        shape=sizes, seconds=1e-4,
    )  # fmt: skip
    classes, skipped = accelerator_classes([call], load_accelerator("h200-sxm"))
    assert (len(classes), sum(skipped.values())) == (taken, 1 - taken)


@pytest.mark.parametrize(
    ("kernel", "share"),
    [("all_reduce", 2 * 7 / 8), ("all_gather", 7 / 8), ("reduce_scatter", 7 / 8),
     ("all_to_all", 7 / 8), ("send_recv", 1.0)],
)  # fmt: skip
def test_bus_bandwidth_is_counted_as_nccl_tests_do(kernel: str, share: float) -> None:
    """doc/PERFORMANCE.md of nccl-tests: of eight ranks 2 x 7/8 of the bytes, 7/8, or all of them.

    No call takes less than these bytes over the wires: 450 GB/s, twice that where a switch adds.
    """
    cluster = load_cluster("dgx-h100", 8)
    call = Call(
        place="here", kernel=kernel, dtype="bf16", direction="forward", library="nccl",
        shape={"message_bytes": 9e8, "ranks": 8.0, "nodes": 1.0}, seconds=1.0,
    )  # fmt: skip
    ((found,), _) = link_classes([call], cluster)
    wires = 900e9 if kernel == "all_reduce" else 450e9
    assert found.least_s == pytest.approx([share * 9e8 / wires])


def test_causal_attention_multiplies_half_of_all_pairs() -> None:
    """2 x 2 FLOPs a pair and channel of S^2 / 2 pairs, at half of the peak.

    So many tokens that the first and last tiles of a head take a hundredth.
    """
    sizes = {"batch": 1, "heads_q": 128, "heads_kv": 128, "seq_q": 65536, "seq_kv": 65536}
    call = Call(
        place="here", kernel="attention", dtype="bf16", direction="forward",
        library="torch.sdpa-flash", shape={**sizes, "head_dim": 128, "causal": 1}, seconds=1e-3,
    )  # fmt: skip
    h200 = load_accelerator("h200-sxm")
    ((found,), _) = accelerator_classes([call], h200)
    flop = 2 * 2 * 128 * 65536**2 / 2 * 128
    seconds = flop / (0.5 * float(h200.matrix_flop_per_s["bf16"]))
    assert 1.0 < float(found.predict({"peak_fraction": 0.5}, found.rows)[0]) / seconds < 1.02
    assert found.least_s == pytest.approx([seconds / 2])
