"""GPT-NeoX: DeepSpeed's keys and its own, several files as one, counts that its models have."""

from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.interop.launch_files.imported import Imported
from simulator.interop.launch_files.merging import import_launch
from tests.interop.launch_samples import NEOX, NEOX_PATHS

LLAMA = """
{ "pipe_parallel_size": 1, "model_parallel_size": 1, "make_vocab_size_divisible_by": 1,
  "num_layers": 32, "hidden_size": 4096, "intermediate_size": 32768, "num_attention_heads": 32,
  "seq_length": 2048, "max_position_embeddings": 2048, "pos_emb": "rotary", "rotary_pct": 1,
  "no_weight_tying": true, "gpt_j_residual": false, "norm": "rmsnorm", "use_bias_in_mlp": False,
  "use_bias_in_norms": false, "use_bias_in_attn_linear": false, "activation": "swiglu",
  "mlp_multiple_of": 256, "tokenizer_type": "SPMTokenizer", "train_micro_batch_size_per_gpu": 4, }
"""
"""configs/llama/7B.yml of EleutherAI/gpt-neox, with a micro-batch."""


def read(folder: Path, *texts: str, gpus: int = 64, options: tuple[str, ...] = ()) -> Imported:
    files = [folder / f"part{number}.yml" for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    return import_launch(files, {"cluster": "dgx-a100", "gpus": gpus}, options)


def said(found: Imported) -> dict[str, object]:
    return {item.field: item.value for item in found.origins}


def test_pythia_has_the_parameters_that_were_published(tmp_path: Path) -> None:
    """6,857,302,016 (EleutherAI/pythia-6.9b: 50,277 tokens padded to 128 x 2 ranks)."""
    found = read(tmp_path, NEOX, options=("model.vocab_size=50432",))
    assert found.scenario.workload.architecture.parameters == 6_857_302_016
    fields = said(found)
    assert (fields["layout.tp"], fields["layout.sharding"]) == (2, "zero1")
    assert (fields["layout.recompute"], fields["training.precision"]) == ("full", "fp16")
    assert fields["training.global_batch"] == 8 * 2 * 32  # dp 32 of 64
    assert fields["run.checkpoints.every_steps"] == 1000
    assert fields["layout.sequence_parallel"] is False
    block = found.scenario.workload.architecture.blocks[0]
    assert block.parallel_residual
    assert "software.flash_attention" not in fields


def test_llama_has_two_thirds_of_its_intermediate_size(tmp_path: Path) -> None:
    """6,738,415,616 parameters (meta-llama/Llama-2-7b): 32,768 x 2 / 3 / 2 up to 256 is 11,008."""
    found = read(tmp_path, LLAMA, options=("model.vocab_size=32000",))
    arch = found.scenario.workload.architecture
    assert arch.parameters == 6_738_415_616
    fields = said(found)
    assert fields["layout.sharding"] == "ddp"
    assert fields["training.precision"] == "fp32"
    assert fields["software.flash_attention"] is False
    assert fields["training.global_batch"] == 4 * 64
    notes = "\n".join(found.notes)
    assert "gradient_accumulation_steps not said: 1" in notes
    assert "checkpoint_activations not said: off" in notes


def test_an_mlp_whose_halves_do_not_fit_is_refused(tmp_path: Path) -> None:
    """int(14,336 x 2 / 3) is 9,557: its first half is rounded up to 4,779, its second to 4,778."""
    text = LLAMA.replace("32768", "14336").replace("256", "1")
    with pytest.raises(InputError, match=r"9558 into 4778 .* 43008 for 14336"):
        read(tmp_path, text)


def test_files_are_one_configuration(tmp_path: Path) -> None:
    found = read(tmp_path, NEOX_PATHS, NEOX)
    assert found.scenario.workload.architecture.vocabulary == 50277
    assert {reading.kind for reading in found.readings} == {"GPT-NeoX configuration"}
    assert not found.unknown
    with pytest.raises(InputError, match="num-layers: stands twice in the files of a run"):
        read(tmp_path, NEOX, NEOX_PATHS.replace("{", '{ "num-layers": 32,', 1))
    with pytest.raises(InputError, match="paths and logging of a GPT-NeoX configuration alone"):
        read(tmp_path, NEOX_PATHS)


def test_deepy_names_its_files(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "6-9B.yml").write_text(NEOX)
    (tmp_path / "configs" / "local_setup.yml").write_text(NEOX_PATHS)
    script = tmp_path / "run.sh"
    script.write_text("#SBATCH --nodes=8\npython ./deepy.py train.py -d configs 6-9B local_setup\n")
    found = import_launch([script], {"cluster": "dgx-a100"})
    assert found.scenario.cluster.gpus == 64
    assert found.scenario.workload.architecture.layers == 32
    assert found.scenario.workload.architecture.vocabulary == 50277
    script.write_text("python ./deepy.py train.py -d configs 6-9B missing.yml --wandb_group a\n")
    with pytest.raises(InputError, match=r"stands in configs/missing\.yml: give it with --from"):
        import_launch([script], {"cluster": "dgx-a100", "gpus": 64})
    script.write_text("python ./deepy.py generate.py -d configs 6-9B local_setup\n")
    with pytest.raises(InputError, match="trains nothing"):
        import_launch([script], {"cluster": "dgx-a100", "gpus": 64})


def test_experts_are_whole_on_the_ranks_of_a_tensor_group(tmp_path: Path) -> None:
    """Every second layer from the first, two matrices an expert, no biases (moe_mlp.py)."""
    more = '"moe_num_experts": 8, "moe_expert_interval": 2, "moe_top_k": 2, '
    found = read(tmp_path, NEOX.replace("{", "{ " + more, 1), NEOX_PATHS)
    arch = found.scenario.workload.architecture
    experts = 8 * (2 * 4096 * 16384 + 4096)
    dense = 2 * 4096 * 16384 + 16384 + 4096
    plain = read(tmp_path, NEOX, NEOX_PATHS).scenario.workload.architecture
    assert [arch.blocks[kind].is_moe for kind in arch.layer_kinds[:3]] == [True, False, True]
    assert arch.parameters - plain.parameters == 16 * (experts - dense)
    assert (said(found)["layout.ep"], said(found)["layout.etp"]) == (2, 1)


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        ('[[["flash"], 32]]', '[[["mamba"], 32]]', "layers of kind 'mamba', not modelled"),
        ('[[["flash"], 32]]', '[[["flash"], 31]]', "attention of 32 layers, got 31"),
        ('[[["flash"], 32]]', '[["flash", 0]]', "must be a list of patterns"),
        ('"norm": "layernorm"', '"norm": "scalenorm"', "a norm of kind 'scalenorm'"),
        ('"pos_emb": "rotary"', '"pos_emb": "rpe"', "positions of kind 'rpe'"),
        ('"stage": 1', '"stage": 3', "do not go with pipe_parallel_size"),
        ('"stage": 1', '"round_robin_gradients": true', "has no stage"),
        ('"type": "Adam"', '"type": "sm3"', "must be one of adam"),
        ('"norm":', '"train_impl": "kto", "norm":', "liked or not"),
        ('"norm":', '"num_unique_layers": 2, "norm":', "share their weights"),
        ('"num_attention_heads": 32', '"num_attention_heads": 33', "must divide hidden_size 4096"),
        ('"norm":', '"num_kv_heads": 5, "norm":', "must divide num_attention_heads 32, got 5"),
        ('"norm":', '"activation": "gulu", "norm":', "an activation of kind 'gulu', not modelled"),
    ],
)
def test_what_is_not_modelled_or_cannot_be_is_refused(
    before: str, after: str, rule: str, tmp_path: Path
) -> None:
    assert before in NEOX
    with pytest.raises(InputError, match=rule):
        read(tmp_path, NEOX.replace(before, after), NEOX_PATHS)
