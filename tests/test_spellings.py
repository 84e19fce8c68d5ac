"""Names as others write them: each spelling means one thing, and nothing else is taken for it."""

import itertools
from collections import defaultdict
from pathlib import Path

import pytest

from simulator import catalogue
from simulator.errors import InputError
from simulator.hardware.cluster import load_accelerator
from simulator.measured.mapped_tables import read_mapped
from simulator.measured.replay import load_tables, replay
from simulator.spellings import accelerator_named, plain_device, plain_model, spellings
from simulator.workload import presets


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("LLAMA3-8B", "llama-3-8b"),  # NVIDIA's tables
        ("Llama31-8B", "llama-3.1-8b"),
        ("llama3.1_70B.yaml", "llama-3.1-70b"),
        ("Llama 3.1 8B", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3-8B", "llama-3-8b"),
        ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "llama-3.1-8b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-70b"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("Qwen/Qwen3-235B-A22B", "qwen3-235b-a22b"),
        # other models, whose names are near
        ("LLaMA-7B", None),
        ("llama-3.1-80b", None),
        ("facebook/opt-13b", None),
        ("gpt3-27b", None),
        ("Qwen/Qwen2.5-7B", None),
        ("llama", None),
        ("", None),
        ("8b", None),
        ("-".join(["hf"] * 80), None),
    ],
)
def test_a_model_by_another_name(spelled: str, name: str | None) -> None:
    assert presets.named(spelled) == name


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),  # nvidia-smi --query-gpu=name
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA B200", "b200-sxm"),
        ("NVIDIA H800", "h800-sxm"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32"),
        ("V100-SXM2-16GB", "v100-sxm2-16"),
        ("Tesla T4", "t4"),
        ("AMD Instinct MI300X", "mi300x"),
        ("TPU v5p", "tpu-v5p"),
        ("tpu-v5e", "tpu-v5e"),
        ("Google TPU v6e", "tpu-v6e"),
        ("NVIDIA H900", None),
        ("H10", None),
        ("", None),
    ],
)
def test_a_device_by_another_name(spelled: str, name: str | None) -> None:
    assert accelerator_named(spelled, catalogue.names("accelerators")) == name
    if name is not None:
        assert load_accelerator(spelled).name == load_accelerator(name).name


def test_no_spelling_means_two_things() -> None:
    table = spellings()
    devices, models = defaultdict(set), defaultdict(set)
    for name, others in table.accelerators.items():
        for spelled in (name, *others):
            devices[plain_device(spelled)].add(name)
    for name in presets.names():
        for spelled in (name, *table.models.get(name, ())):
            models[plain_model(spelled)].add(name)
    twice = [x for x in itertools.chain(devices.values(), models.values()) if len(x) > 1]
    assert not twice
    assert set(table.accelerators) <= set(catalogue.names("accelerators"))
    assert set(table.models) <= set(presets.names())


def test_an_unknown_device_is_refused_as_before() -> None:
    with pytest.raises(InputError, match="unknown accelerator 'NVIDIA H900'"):
        load_accelerator("NVIDIA H900")


def test_a_table_of_others_names_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    head = "model,gpu,num_gpus,seq_len,global_batch,step_time_s,software,fabric,precision\n"
    rows = (
        "meta-llama/Meta-Llama-3-8B,NVIDIA H100 80GB HBM3,8,8192,128,9.5,NeMo 25.04,,BF16\n"
        "LLAMA3-8B,TPU v5e,16,4096,16,9.5,maxtext,ici-4x4,bf16\n"
        "LLAMA9-8B,H100,8,8192,128,9.5,NeMo 25.04,,bf16\n"
    )
    path.write_text(head + rows)
    (first, second, third), _ = read_mapped([path], {})
    tables = load_tables()
    assert (
        replay(first.fields, tables).cluster.accelerator.name == load_accelerator("h100-sxm").name
    )
    slice_ = replay(second.fields, tables).cluster
    assert slice_.node.scale_up.torus == (4, 4)
    assert third.fault is not None
    assert third.fault.startswith("model: must be of the zoo where no column has its sizes, got")
