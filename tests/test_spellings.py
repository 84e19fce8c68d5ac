"""Names as others write them: each spelling means one thing, and nothing else is taken for it."""

import itertools
from collections import defaultdict
from pathlib import Path

import pytest

from simulator import catalogue
from simulator.cli.option_groups import ScenarioOptions
from simulator.errors import InputError
from simulator.hardware.cluster import load_accelerator
from simulator.interop.launch_files.merging import import_launch
from simulator.measured.mapped_tables import read_mapped
from simulator.measured.replay import load_tables, replay
from simulator.scenario import load_scenario
from simulator.spellings import (
    accelerator_named,
    numbers_written_out,
    plain_device,
    plain_model,
    spellings,
)
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
        # bases that DeepSeek's and Qwen's cards name; the distilled 1.5B unties its head
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "qwen2.5-7b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", None),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "llama-3.1-70b"),
        ("Qwen/Qwen2.5-Math-7B", "qwen2.5-7b"),
        ("Qwen/Qwen2.5-Coder-32B-Instruct", "qwen2.5-32b"),
        # other models, whose names are near
        ("LLaMA-7B", None),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b"),
        ("mistralai/Mistral-7B-v0.3", None),  # another vocabulary, and no window
        ("mixtral", None),
        ("llama-3.1-80b", None),
        ("facebook/opt-13b", None),
        ("gpt3-27b", None),
        ("Qwen/Qwen2.5-9B", None),
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
        # words in another order, 80G, a count before
        ("H100-80GB-SXM5", "h100-sxm"),
        ("8xH100", "h100-sxm"),
        ("8x NVIDIA A100-SXM4-80G", "a100-sxm-80"),
        ("PCIe A100 80GB", "a100-pcie-80"),
        ("v100-32g", "v100-sxm2-32"),
        ("Tesla V100S-PCIE-32GB", "v100-pcie-32"),
        ("NVIDIA B200 SXM6", "b200-sxm"),
        ("trn1.32xlarge", "trainium1-core"),
        ("NVIDIA H20-3e", None),  # 141 GB, no profile of it: not the H20 of 96
        ("H20 141GB", None),
        ("NVIDIA A800 80GB PCIe", None),
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


@pytest.mark.parametrize(
    ("field", "written", "number"),
    [
        ("tokens", "1T", 10**12),
        ("tokens", "15T", 15 * 10**12),
        ("tokens", "1.4B", 1_400_000_000),
        ("tokens", "300 B", 300 * 10**9),
        ("global_batch", "2k", 2000),
        ("sequence_length", "8k", 8192),  # contexts are named by powers of two
        ("sequence_length", "1M", 2**20),
        ("sequence_length", "4k..16k", "4096..16384"),
        ("global_batch", ["1k", 512], [1000, 512]),
        ("lengths", ["2k"], [2048]),
        ("tokens", "1Q", "1Q"),
        ("schedule", "1f1b", "1f1b"),
        ("tokens", 5, 5),
        ("tokens", "T", "T"),
        ("tokens", "1.2345k", "1234.5"),
    ],
)
def test_numbers_with_a_letter(field: str, written: object, number: object) -> None:
    document = {"training": {field: written}, "model": {"name": "7B"}}
    out = numbers_written_out(document)
    assert out == {"training": {field: number}, "model": {"name": "7B"}}


def test_options_and_files_take_them(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "model: {name: LLAMA3-8B}\ncluster: {name: dgx-h100, gpus: 64}\n"
        "training: {sequence_length: 8k, global_batch: 512, tokens: 15T}\n"
    )
    recipe = load_scenario(path).workload.recipe
    assert (recipe.sequence_length, recipe.tokens) == (8192, 15e12)
    changed = ScenarioOptions(tokens="2T", seq="4k", batch="1k", overrides=["layout.tp=2"])
    scenario = changed.scenario(path)
    recipe = scenario.workload.recipe
    assert (recipe.sequence_length, recipe.tokens, recipe.global_batch) == (4096, 2e12, 1000)
    assert scenario.pinned == {"tp": 2}
    read = import_launch([path], {}, ["training.tokens=3T"])
    assert read.scenario.workload.recipe.tokens == 3e12
    (tmp_path / "list.yml").write_text("- 1\n- 2\n")
    with pytest.raises(InputError, match=r"list\.yml: must be a table of sections"):
        load_scenario(tmp_path / "list.yml")
