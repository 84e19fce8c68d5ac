"""Launch flags of models that are no plain decoders: what is said, and what is named as missing."""

from dataclasses import replace
from pathlib import Path

import pytest

from simulator.interop.dialects.megatron_model import model_arguments, unsaid
from simulator.interop.dialects.table import as_flags
from simulator.interop.launch_files.merging import import_launch
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.architecture import MLP, Architecture
from simulator.workload.huggingface import from_hf
from simulator.workload.recipe import Recipe

CORE = load_software("megatron-core")


def flags(arch: Architecture, **training: object) -> list[str]:
    recipe = Recipe(sequence_length=512, global_batch=8, **training)
    return [flag for group in as_flags(model_arguments(arch, CORE, recipe)) for flag in group]


def test_windows_of_every_other_layer() -> None:
    """Of --window-attn-skip-freq's list 1 is a layer with a window, 0 one that sees all; gpt-oss
    begins with a window of 128 tokens, the current one among them (config.json, layer_types)."""
    said = dict(flag.split(" ", 1) for flag in flags(presets.load("gpt-oss-20b")) if " " in flag)
    assert said["--window-size"] == "127,0"
    pattern = eval(said["--window-attn-skip-freq"].strip("'"))  # as Megatron-LM does
    assert pattern == [1, 0] * 12


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("llama-3.1-8b", []),
        ("deepseek-v3", []),
        ("gemma-2-9b", ["capped scores", "norms behind attention and MLP"]),
        ("gpt-oss-20b", ["attention sinks", "biases of experts"]),
        ("opt-66b", ["rectified MLPs"]),
        ("vit-large-16", ["images for input", "attention to both sides"]),
        ("deberta-v3-large", ["attention to both sides", "disentangled attention"]),
        ("t5-v1.1-xxl", ["an encoder and a decoder", "attention to both sides"]),
    ],
)
def test_what_the_flags_leave_out_is_named(name: str, missing: list[str]) -> None:
    assert unsaid(presets.load(name)) == missing


def test_squared_rectifiers_and_capacity_have_flags() -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "vocab_size": 100}
    nemotron = from_hf({"model_type": "nemotron", **sizes}, name="small", where="config.json")
    assert "--squared-relu" in flags(nemotron)
    mlp = nemotron.blocks[0].mlp
    assert isinstance(mlp, MLP)
    smooth = replace(nemotron.blocks[0], mlp=replace(mlp, activation="gelu"))
    assert "--squared-relu" not in flags(replace(nemotron, blocks=(smooth,)))
    mixtral = presets.load("mixtral-8x7b")
    capped = flags(mixtral, moe_capacity_factor=1.25)
    assert "--moe-expert-capacity-factor 1.25" in capped
    assert "--moe-pad-expert-input-to-capacity" not in capped
    padded = flags(mixtral, moe_capacity_factor=1.25, moe_pads_to_capacity=True)
    assert "--moe-pad-expert-input-to-capacity" in padded
    assert not any("capacity" in flag for flag in flags(mixtral))


@pytest.mark.parametrize(
    ("said", "position", "rows"),
    [
        ("--max-position-embeddings 4096", "learned", 4096),
        ("", "learned", 2048),
        ("--position-embedding-type rope", "rope", 0),
        ("--use-rotary-position-embeddings", "rope", 0),
    ],
)
def test_positions_are_learned_unless_told_otherwise(
    said: str, position: str, rows: int, tmp_path: Path
) -> None:
    """Megatron-LM, arguments.py: learned_absolute, of max_position_embeddings rows each of a width.

    23 layers of 12 x 2048^2 + 13 x 2048, an embedding of 50,304, a last norm (arXiv:2104.04473,
    equation 2, with biases and norms), and the rows of the table.
    """
    path = tmp_path / "train.sh"
    path.write_text(
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 23 --hidden-size 2048"
        " --num-attention-heads 16 --seq-length 2048 --micro-batch-size 1 --global-batch-size 64"
        f" --train-iters 100 --bf16 --vocab-size 50304 {said}\n"
    )
    imported = import_launch([path], {"cluster": "dgx-h100"})
    arch = imported.scenario.workload.architecture
    assert arch.position == position
    layers = 23 * (12 * 2048**2 + 13 * 2048)
    assert arch.parameters == layers + (50_304 + rows + 2) * 2048
    noted = any("--max-position-embeddings is not said" in note for note in imported.notes)
    assert noted == (rows == 2048)
