"""Software runs on accelerators whose programs are built on the same; others are refused."""

from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner

from simulator import catalogue
from simulator.api import predict
from simulator.cli.main import app
from simulator.errors import InputError
from simulator.hardware.accelerator import Platform
from simulator.hardware.cluster import load_accelerator
from simulator.scenario import make_scenario
from simulator.software.profile import load_software
from simulator.software.releases import load_releases
from simulator.software.software_section import running_on

PLATFORMS = get_args(Platform)
VENDORS = {"NVIDIA": "cuda", "AMD": "rocm", "Google": "xla", "Intel": "synapseai", "Huawei": "cann"}


def document(cluster: str, **given: Any) -> dict[str, Any]:
    return {
        "model": {"name": "llama-3.2-1b"},
        "training": {"sequence_length": 2048, "global_batch": 64},
        "cluster": {"name": cluster, "gpus": 8, **given},
    }


@pytest.mark.parametrize("name", catalogue.names("accelerators"))
def test_an_accelerator_has_the_platform_of_its_vendor(name: str) -> None:
    part = load_accelerator(name)
    assert part.platform == VENDORS.get(part.vendor, "neuron")


def test_each_platform_has_software_that_runs_there() -> None:
    usual = load_releases().usual
    assert set(usual) == set(PLATFORMS)
    for platform, name in usual.items():
        if name in catalogue.names("software"):  # a CPU's own is made by measuring it
            assert platform in load_software(name).platforms
            assert name in running_on(platform)


@pytest.mark.parametrize(
    ("cluster", "software"),
    [
        ("tpu-v5p", "maxtext"), ("mi300x-8", "primus"), ("hls-gaudi3", "optimum-habana"),
        ("atlas-800t-a2", "mindspeed"), ("dgx-h100", "megatron-core"),
    ],
)  # fmt: skip
def test_software_follows_the_device(cluster: str, software: str) -> None:
    assert make_scenario(document(cluster)).software.name == software


@pytest.mark.parametrize(
    ("cluster", "software", "said"),
    [
        (
            "tpu-v5p",
            "megatron-core",
            r"megatron-core runs on cuda; on tpu-v5p \(xla\) run: maxtext",
        ),
        ("dgx-h100", "maxtext", r"maxtext runs on xla; on h100-sxm \(cuda\) run: .*megatron-core"),
        ("mi300x-8", "megatron-bridge", r"megatron-bridge runs on cuda; on mi300x .*primus"),
        ("hls-gaudi2", "torchtitan", r"torchtitan runs on cuda and rocm; on gaudi2"),
    ],
)
def test_software_of_another_platform_is_refused(cluster: str, software: str, said: str) -> None:
    with pytest.raises(InputError, match=r"cluster\.software: " + said):
        make_scenario(document(cluster, software=software))


@pytest.mark.parametrize("command", ["plan", "predict", "simulate"])
def test_every_command_refuses_with_what_runs_there(command: str) -> None:
    options = ["--model", "llama-3.1-8b", "--cluster", "tpu-v5p", "--gpus", "64"]
    result = CliRunner().invoke(app, [command, *options, "--software", "megatron-core"])
    assert result.exit_code == 2
    assert "on tpu-v5p (xla) run: maxtext" in result.stderr


def test_groups_of_two_platforms_are_refused() -> None:
    mixed = document("dgx-h100")
    mixed["cluster"] = {
        "groups": [{"name": "dgx-h100", "gpus": 8}, {"name": "mi300x-8", "gpus": 8}]
    }
    with pytest.raises(InputError, match=r"megatron-core runs on cuda; on mi300x \(rocm\)"):
        make_scenario(mixed)


def test_a_platform_that_nobody_knows_is_refused_with_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "software"
    folder.mkdir()
    (folder / "ours.toml").write_text('base = "plain-ddp"\nplatforms = ["coda"]\n')
    monkeypatch.setenv("FORESHARD_PROFILES", str(tmp_path))
    with pytest.raises(InputError, match=r"platforms.*'cuda', 'rocm', 'xla'.*got 'coda'"):
        load_software("ours")
    # what cannot be read is no suggestion either
    with pytest.raises(InputError, match=r"on tpu-v5p \(xla\) run: maxtext, xla-tpu-2020$"):
        make_scenario(document("tpu-v5p", software="megatron-core"))


def test_without_a_name_and_without_a_cluster_the_cluster_is_the_problem() -> None:
    with pytest.raises(InputError, match="unknown cluster 'dgx-h1000'") as error:
        predict(model="llama-3.1-8b", cluster="dgx-h1000", gpus=8)
    assert "software" not in str(error.value)
