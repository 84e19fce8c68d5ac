"""Settings of MaxText (TPU) and of NeuronX Distributed Training (Trainium) become scenarios."""

from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.interop.launch_files.imported import Imported
from simulator.interop.launch_files.merging import import_launch
from simulator.interop.launch_files.recognising import read_launch_file
from tests.interop.launch_samples import MAXTEXT, NEURONX


def read(folder: Path, text: str, name: str = "run.sh", **names: object) -> Imported:
    path = folder / name
    path.write_text(text)
    return import_launch([path], names)


def test_a_script_of_xpk_with_two_devices_on_a_chip(tmp_path: Path) -> None:
    found = read(tmp_path, MAXTEXT)
    scenario = found.scenario
    assert (scenario.cluster.name, scenario.cluster.gpus) == ("tpu7x", 4 * 8 * 8)
    assert scenario.software.name == "maxtext"
    assert scenario.workload.architecture.name == "llama-3.1-405b"
    recipe = scenario.workload.recipe
    assert recipe.global_batch == 2 * 512  # devices: two on each of 256 chips
    assert recipe.tokens == 30 * 1024 * 8192
    assert (recipe.optimizer, recipe.moment_dtype) == ("adamw", "bf16")
    # Keys and values are an eighth of queries: what is as wide as a layer's input is computed anew,
    # and its 126 inputs wait in host memory.
    assert scenario.pinned == {
        "tp": 1, "cp": 1, "ep": 1, "pp": 1, "micro_batch": 4, "sharding": "zero3",
        "recompute": "full", "offload_layers": 126,
    }  # fmt: skip
    assert [place.key for place in found.unknown] == ["my_own_key"]


@pytest.mark.parametrize(
    ("said", "name", "chips"),
    [
        ("v5p-256", "tpu-v5p", 128),  # by TensorCores, two on a chip
        ("v5litepod-256", "tpu-v5e", 256),
        ("v6e-64", "tpu-v6e", 64),
        ("v3-32", "tpu-v3", 32),  # each TensorCore is a device
    ],
)
def test_slices_are_named_by_cores_or_chips(
    tmp_path: Path, said: str, name: str, chips: int
) -> None:
    path = tmp_path / "run.sh"
    path.write_text(MAXTEXT.replace("tpu7x-4x8x8", said).replace("slices=1", "slices=2"))
    stated = {one.field: one.value for reading in read_launch_file(path) for one in reading.stated}
    assert (stated["cluster.name"], stated["cluster.gpus"]) == (name, 2 * chips)


def test_what_a_command_leaves_to_base_yml_is_said_to_come_from_there(tmp_path: Path) -> None:
    command = "python3 -m maxtext.trainers.pre_train.train maxtext/configs/base.yml"
    text = f"{command} model_name=llama2-7b ici_fsdp_parallelism=4 ici_tensor_parallelism=2\n"
    found = read(tmp_path, text, cluster="tpu-v5p")
    assert found.scenario.cluster.gpus == 8  # all axes are said
    assert found.scenario.workload.recipe.sequence_length == 2048
    assert found.scenario.workload.recipe.global_batch == 12 * 8
    pinned = found.scenario.pinned
    assert (pinned["tp"], pinned["micro_batch"], pinned["recompute"]) == (2, 24, "full")
    sources = {item.field: item.source for item in found.origins}
    assert sources["layout.recompute"] == "MaxText's base.yml: remat_policy"


@pytest.mark.parametrize(
    ("said", "name"), [("llama3.3-70b", "llama-3.1-70b"), ("qwen3-14b-base", "qwen3-14b"),
                       ("gpt-oss-120b", "gpt-oss-120b"), ("kimi-k2-1t", "kimi-k2")]
)  # fmt: skip
def test_names_of_maxtexts_models(said: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(MAXTEXT.replace("llama3.1-405b", said))
    readings = read_launch_file(tmp_path / "run.sh")
    assert {one.value for r in readings for one in r.stated if one.field == "model.name"} == {name}


def test_a_configuration_of_maxtext_with_sizes(tmp_path: Path) -> None:
    text = """\
base_emb_dim: 1024
base_num_decoder_layers: 12
base_num_query_heads: 16
base_num_kv_heads: 16
head_dim: 64
base_mlp_dim: 4096
vocab_size: 32000
per_device_batch_size: 0.5
max_target_length: 4096
ici_data_parallelism: 2
ici_tensor_parallelism: 4
quantization: int8
dtype: bfloat16
"""
    found = read(tmp_path, text, "own.yml", cluster="tpu-v5e")
    architecture = found.scenario.workload.architecture
    assert (architecture.layers, architecture.hidden) == (12, 1024)
    assert found.scenario.pinned["sharding"] == "ddp"
    assert found.scenario.pinned["micro_batch"] == 2  # half a sequence on each of 4 devices
    assert any("int8 is not modelled" in note for note in found.notes)
    with pytest.raises(InputError, match="no whole number of sequences"):
        read(tmp_path, text.replace("0.5", "0.3"), "own.yml", cluster="tpu-v5e")


def test_a_configuration_of_neuronx(tmp_path: Path) -> None:
    names = {"cluster": "trn1-32xlarge", "model": "llama-3.1-70b"}
    found = read(tmp_path, NEURONX, "conf.yaml", **names)
    scenario = found.scenario
    assert scenario.software.name == "neuronx-distributed"
    assert scenario.cluster.gpus == 32 * 16
    assert scenario.workload.recipe.sequence_length == 8192  # of the key that is referred to
    assert scenario.workload.recipe.tokens == 30_000 * 1024 * 8192
    assert scenario.pinned == {
        "tp": 32, "pp": 8, "vpp": 1, "micro_batch": 1, "sharding": "zero1",
        "sequence_parallel": True, "recompute": "selective", "recompute_modules": "core_attn+mlp",
    }  # fmt: skip
    assert [place.key for place in found.unknown] == ["model.invented"]
