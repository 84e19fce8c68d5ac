"""Every shipped profile loads, refers to what exists, and says where each figure comes from."""

import datetime
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from simulator import catalogue
from simulator.cost.uncertainty import StepErrors
from simulator.economics.price import load_price, load_site
from simulator.errors import InputError
from simulator.evidence.likeness import Likeness
from simulator.files import GRADES, figures, read_profile, read_toml
from simulator.hardware import cluster as hardware
from simulator.hardware.cluster import load_cluster, load_node
from simulator.profiles import KINDS
from simulator.profiles.check import check
from simulator.software.profile import load_software

SCHEMAS: dict[str, type] = {**KINDS, "uncertainty": StepErrors}
SHIPPED = [
    (path.parent.name, path.stem)
    for path in sorted(catalogue.folder("hardware_profiles").glob("*/*.toml"))
]
load_accelerator = lru_cache(hardware.load_accelerator)
NODES = [name for kind, name in SHIPPED if kind == "nodes"]
CLUSTERS = [name for kind, name in SHIPPED if kind == "clusters"]
REQUIRED = [
    "dgx-a100", "dgx-h100", "grand-teton-h100", "hgx-h200", "dgx-b200", "dgx-b300", "gb200-nvl72",
    "gb300-nvl72", "l40s-pcie", "aws-p4d", "aws-p4de", "aws-p5",
]  # fmt: skip
OF_TODAY = [
    "megatron-bridge", "megatron-core", "megatron-core-defaults", "plain-ddp", "torchtitan",
    "torchtitan-eager", "torchtitan-2024", "torchtitan-2024-eager", "torchtune-2024",
    "torchtune-2024-eager",
]  # fmt: skip
"""Software that runs on every accelerator; the rest is of years when there were A100 and H100."""

OF_BLACKWELL = [
    "megatron-bridge-26.02",
    "megatron-bridge-26.04",
    "megatron-bridge-26.06",
    "megatron-bridge-26.06-library",
    "megatron-lm-plain-2026",
    "mlperf-nemo-v5.1",
]
"""Software whose attention was timed on Blackwell; elsewhere its flash attention stands for it."""


def place(kind: str, name: str) -> Path:
    return catalogue.folder("hardware_profiles") / kind / f"{name}.toml"


def load(kind: str, name: str) -> Any:
    schema = Likeness if name == "likeness" else SCHEMAS[kind]
    return read_profile(schema, place(kind, name), kind=kind)


def written(raw: Any, dotted: str) -> bool:
    """Whether the file itself gives the figure at this dotted name (else it is a default)."""
    for part in dotted.split("."):
        if not isinstance(raw, dict) or part not in raw:
            return False
        raw = raw[part]
    return True


def tables_with_values(raw: Any) -> Iterator[dict[str, Any]]:
    if isinstance(raw, dict):
        if "value" in raw:
            yield raw
        for item in raw.values():
            yield from tables_with_values(item)


def test_there_is_a_schema_for_every_kind() -> None:
    assert {kind for kind, _ in SHIPPED} == set(SCHEMAS)


def test_the_required_clusters_are_there() -> None:
    assert set(REQUIRED) <= set(CLUSTERS)


@pytest.mark.parametrize(("kind", "name"), SHIPPED)
def test_every_figure_has_a_grade_a_source_and_a_date(kind: str, name: str) -> None:
    raw = read_toml(place(kind, name))
    profile = load(kind, name)
    assert profile.name == name
    own = [pair for pair in figures(profile) if written(raw, pair[0])]
    assert own or "base" in raw or name == "none-known"
    for dotted, figure in own:
        assert figure.grade in GRADES, dotted
        assert len(figure.source) > 10 and figure.source != "user", dotted
        assert datetime.date.fromisoformat(figure.date) <= datetime.date(2026, 12, 31), dotted
        assert figure.spread is None or 0 < figure.spread <= 1, dotted


@pytest.mark.parametrize(("kind", "name"), SHIPPED)
def test_every_source_is_used_and_none_is_a_path(kind: str, name: str) -> None:
    """Settings of a software are no figures: its other sources say where those are from."""
    raw = read_toml(place(kind, name))
    sources = raw.pop("sources", {})
    if kind != "software":
        used = {table["source"] for table in tables_with_values(raw)}
        used |= {raw["borrowed"]["source"]} if "borrowed" in raw else set()
        assert used == set(sources)
    text = place(kind, name).read_text()
    assert "shared/" not in text
    assert not re.search(r"(?<![\w.])/(work|home|root|tmp|mnt|usr)/", text)


@pytest.mark.parametrize("name", CLUSTERS)
def test_references_of_a_cluster_resolve(name: str) -> None:
    cluster = load_cluster(name, 8)
    price = load_price(cluster.price)
    site = load_site(price.site)
    assert cluster.accelerator.name == cluster.node.accelerator
    assert cluster.node.scale_up.kind in cluster.library.ring_hop_s
    assert 1.0 <= site.power_usage_effectiveness < 2.0
    assert (price.usd_per_gpu_hour is None) == (price.name == "none-known")
    assert 0.2 < (price.usd_per_gpu_hour or 1.0) < 15


@pytest.mark.parametrize("name", [name for kind, name in SHIPPED if kind == "prices"])
def test_a_price_says_what_it_is(name: str) -> None:
    price = load_price(name)
    assert price.note
    assert price.site in catalogue.names("sites")
    usd = price.usd_per_gpu_hour
    assert usd is None or not (usd.grade == "assumed" and usd.spread is None)


@pytest.mark.parametrize("software", [name for kind, name in SHIPPED if kind == "software"])
def test_every_software_finds_its_kernels(software: str) -> None:
    """On every accelerator."""
    kernels = load_software(software).kernels
    for accelerator in (name for kind, name in SHIPPED if kind == "accelerators"):
        device = load_accelerator(accelerator)
        library = device.gemm[kernels.gemm_library]
        assert device.sixteen_bit in library, accelerator
        of_their_years = device.name.startswith(("a100", "a800", "h100", "h200", "h800"))
        if software in OF_BLACKWELL:
            of_their_years = device.name.startswith(("b200", "b300", "gb200", "gb300"))
        if of_their_years or software in OF_TODAY:
            assert kernels.attention_library in device.attention, accelerator
        assert set(library) <= set(device.matrix_flop_per_s), accelerator


@pytest.mark.parametrize("name", NODES)
def test_no_link_is_faster_than_its_wires(name: str) -> None:
    links = load_node(name).scale_up
    wires = links.bandwidth_bytes_per_s
    assert 0 < links.bus_bytes_per_s < wires
    assert 0 < links.send_bytes_per_s < wires
    assert 0 < links.all_to_all_bytes_per_s < wires
    assert 0 < links.pair_fraction * links.bus_bytes_per_s < wires
    if links.nvls_bytes_per_s is not None:  # reduction in the switch halves the traffic
        assert links.bus_bytes_per_s < links.nvls_bytes_per_s < 2 * wires
    assert links.domain % load_node(name).accelerators == 0


SLOTS = (
    dict.fromkeys(("pascal", "volta", "turing", "tpu-v4"), 16e9)
    | {"cdna2": 36e9}
    | dict.fromkeys(("ampere", "ampere-ga10x", "ada", "gaudi2", "da-vinci"), 32e9)
)


@pytest.mark.parametrize("name", NODES)
def test_copies_to_the_host_are_slower_than_memory_and_not_faster_than_the_slot(name: str) -> None:
    """Data sheets, one direction: PCIe Gen3 x16 16 GB/s, Gen4 32, Gen5 64, Infinity Fabric of a
    MI250X die 36, NVLink-C2C 450 over the GPUs of a processor.
    """
    node = load_node(name)
    part = load_accelerator(node.accelerator)
    slot = SLOTS.get(part.generation, 64e9)
    # two devices of a TPU v3 chip share its slot
    slot = {"tpu-v3": 8e9, "tpu-v5e": 16e9, "tpu-v5p": 32e9}.get(part.name, slot)
    wires = 450e9 / min(node.accelerators, 2) if node.host == "grace" else slot
    assert node.host_bytes_per_s is not None
    assert 0.3 * wires < node.host_bytes_per_s < min(wires, part.memory.bandwidth_bytes_per_s)


@pytest.mark.parametrize("name", NODES)
def test_a_server_draws_more_when_busy(name: str) -> None:
    node = load_node(name)
    power = load_accelerator(node.accelerator).power
    assert 0 < power.idle_watt < power.busy_watt
    assert 0.1 < node.host_watt / (node.accelerators * power.busy_watt) < 0.6


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_network_is_slower_than_the_links(name: str) -> None:
    cluster = load_cluster(name, 8)
    one_way = cluster.node.scale_up.bandwidth_bytes_per_s
    assert cluster.network_bytes_per_s_per_gpu < one_way
    assert 0 < cluster.fabric.usable_fraction <= 1 <= cluster.fabric.oversubscription


def test_newer_links_are_faster() -> None:
    order = ["l40s-pcie", "hgx-a800", "hgx-h800", "dgx-a100", "dgx-h100", "dgx-b200"]
    rates = [float(load_node(name).scale_up.bus_bytes_per_s) for name in order]
    assert rates == sorted(rates)
    for ultra, plain in [("dgx-b300", "dgx-b200"), ("gb300-nvl72", "gb200-nvl72")]:
        newer, older = load_node(ultra), load_node(plain)
        assert newer.scale_up.bandwidth_bytes_per_s == older.scale_up.bandwidth_bytes_per_s
        ratio = newer.scale_up.bus_bytes_per_s / older.scale_up.bus_bytes_per_s
        assert ratio == pytest.approx(1.0, abs=0.1)
        network = newer.scale_out.adapter_bytes_per_s / older.scale_out.adapter_bytes_per_s
        assert network == pytest.approx(2.0)


def test_network_share_of_one_accelerator_worked_by_hand() -> None:
    # p4d: 4 x 12.5 GB/s over 8 is 6.25, of which 0.918; p5: 32 x 12.5 over 8 is 50.
    def nominal(name: str) -> float:
        cluster = load_cluster(name, 8)
        return cluster.network_bytes_per_s_per_gpu / cluster.fabric.usable_fraction

    assert nominal("aws-p4d") == pytest.approx(6.25e9)
    assert nominal("aws-p4de") == pytest.approx(6.25e9)
    assert nominal("aws-p5") == pytest.approx(50e9)
    assert nominal("dgx-h100") == pytest.approx(50e9)
    assert nominal("grand-teton-h100") == pytest.approx(50e9)
    assert nominal("dgx-b300") == pytest.approx(100e9)
    assert nominal("gb300-nvl72") == pytest.approx(100e9)
    assert nominal("dgx-a100") == pytest.approx(25e9)
    assert nominal("l40s-pcie") == pytest.approx(6.25e9)
    assert load_cluster("aws-p4d", 8).network_bytes_per_s_per_gpu == pytest.approx(0.918 * 6.25e9)


@pytest.mark.parametrize("name", ["gb200-nvl72", "gb300-nvl72"])
def test_a_rack_is_one_domain_of_many_servers(name: str) -> None:
    cluster = load_cluster(name, 144)
    assert (cluster.domain, cluster.nodes, cluster.gpus) == (72, 36, 144)


def test_half_a_server_is_refused_with_the_nearest_sizes() -> None:
    with pytest.raises(InputError, match="nearest: 8 or 16"):
        load_cluster("dgx-h100", 12)


@pytest.mark.parametrize(
    ("kind", "wrong", "right"),
    [
        ("clusters", "dgx-h10", "dgx-h100"),
        ("nodes", "hgx-h2o", "hgx-h20"),
        ("prices", "aws-p5d", "aws-p5"),
        ("clusters", "dgx-h200", "hgx-h200"),  # and no gh200, which is spelled nearer
        ("clusters", "workstation-4090", "rtx4090-pcie"),
        ("clusters", "p5.48xlarge", "aws-p5"),
    ],
)
def test_an_unknown_name_brings_the_nearest(kind: str, wrong: str, right: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"{wrong!r} (did you mean {right!r}")):
        catalogue.find(kind, wrong)
    assert catalogue.find(kind, right).stem == right


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a user's own profiles."""
    monkeypatch.setenv("FORESHARD_PROFILES", str(tmp_path))
    for kind in ("nodes", "clusters"):
        (tmp_path / kind).mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("base", "kind"), [("l40s-pcie", "pcie"), ("mi300x-8", "xgmi"), ("dgx-h100", "host")]
)
def test_a_domain_over_links_of_a_server_ends_with_it(profiles: Path, base: str, kind: str) -> None:
    """Four accelerators in place of the eight of the base, whose domain is inherited."""
    path = profiles / "nodes/half.toml"
    path.write_text(f'base = "{base}"\naccelerators = 4\n[scale_up]\nkind = "{kind}"\n')
    with pytest.raises(InputError) as caught:
        load_node("half")
    (message,) = caught.value.problems
    assert message == (
        f"{path}: scale_up.domain: must be at most the 4 accelerators of a server, where {kind}"
        " ends, got 8 (nearest: 4)"
    )
    assert check(path, "nodes") == [message]
    path.write_text(f"{path.read_text()}domain = 4\n")
    assert load_node("half").scale_up.domain == 4


def test_a_domain_over_switches_may_be_a_rack() -> None:
    assert load_node("gb200-nvl72").scale_up.domain > load_node("gb200-nvl72").accelerators
    assert load_node("tpu-v5p").scale_up.domain > load_node("tpu-v5p").accelerators


def test_what_a_cluster_names_is_looked_up_when_it_is_read(profiles: Path) -> None:
    path = profiles / "clusters/own.toml"
    path.write_text('base = "dgx-h100"\nprice = "neocloud-h1000"\n')
    with pytest.raises(InputError) as caught:
        load_cluster("own", 8)
    assert str(caught.value) == (
        f"{path}: price: unknown price 'neocloud-h1000' (did you mean 'neocloud-h100'?)"
    )
