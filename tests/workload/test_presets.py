"""The zoo: every published parameter count, and the errors of a wrong name."""

import csv
import dataclasses
import os
import shutil
from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.files import build
from simulator.workload import presets
from simulator.workload.architecture import Architecture

COUNTS = Path(__file__).parents[1] / "data" / "parameter_counts.csv"
ZOO = Path(presets.__file__).parent / "zoo"


def published() -> dict[str, int]:
    with COUNTS.open(newline="") as file:
        return {row["model"]: int(row["parameters"]) for row in csv.DictReader(file)}


def test_every_model_of_the_zoo_has_a_published_count():
    assert presets.names() == sorted(published())


@pytest.mark.parametrize(("name", "parameters"), published().items())
def test_parameter_count_equals_the_published_one(name, parameters):
    architecture = presets.load(name)
    assert architecture.parameters == parameters
    assert architecture.name == name


@pytest.mark.parametrize(
    ("name", "active"),
    [
        # all parameters, less the routed experts that a token does not pass
        ("mixtral-8x7b", 46_702_792_704 - 32 * 6 * 3 * 4096 * 14336),
        ("qwen3-235b-a22b", 235_093_634_560 - 94 * 120 * 3 * 4096 * 1536),
        ("deepseek-v3", 671_026_404_352 - 58 * 248 * 3 * 7168 * 2048),
        ("llama-3.1-8b", 8_030_261_248),
    ],
)
def test_active_parameters(name, active):
    assert presets.load(name).active_parameters == active


def test_deepseek_v3_has_two_kinds_of_layer():
    model = presets.load("deepseek-v3")
    dense, sparse = model.blocks
    assert (dense.is_moe, sparse.is_moe) == (False, True)
    assert model.layer_kinds == (0,) * 3 + (1,) * 58
    assert (sparse.attention.head_dim, sparse.attention.value_dim) == (192, 128)
    assert sparse.mlp.shared_ffn_hidden == 2048
    assert model.mtp_layers == 1


def test_zoo_facts_beside_the_counts():
    gpt3 = presets.load("gpt3-175b")
    assert (gpt3.position, gpt3.tied_embeddings, gpt3.max_positions) == ("learned", True, 2048)
    assert gpt3.blocks[0].dropout and gpt3.blocks[0].attention.dropout
    assert presets.load("llama-3.2-1b").tied_embeddings
    assert presets.load("mistral-7b").blocks[0].attention.window == 4096
    assert presets.load("mixtral-8x7b").blocks[0].attention.window == 0
    assert presets.load("pythia-12b").blocks[0].parallel_residual
    assert not presets.load("llama-3.1-70b").blocks[0].dropout


@pytest.mark.parametrize("name", sorted(published()))
def test_every_model_satisfies_the_schema(name):
    model = presets.load(name)
    assert build(Architecture, dataclasses.asdict(model), where="zoo") == model


def test_a_path_and_a_folder_are_read_too(tmp_path):
    file = tmp_path / "my-model" / "config.json"
    file.parent.mkdir()
    shutil.copy(ZOO / "gpt2-small.json", file)
    by_file, by_folder = presets.load(str(file)), presets.load(str(file.parent))
    assert by_file == by_folder == presets.load(file)
    assert by_file.name == "my-model"
    assert by_file.parameters == 124_439_808


def test_a_zoo_name_wins_over_a_folder_of_that_name(tmp_path, monkeypatch):
    (tmp_path / "gpt2-small").mkdir()
    monkeypatch.chdir(tmp_path)
    assert os.path.isdir("gpt2-small")
    assert presets.load("gpt2-small").parameters == 124_439_808


@pytest.mark.parametrize(
    ("spelled", "name"),
    [("Llama-3.1-70B", "llama-3.1-70b"), ("meta-llama/Meta-Llama-3-8B", "llama-3-8b")],
)
def test_a_name_of_the_zoo_in_another_spelling(spelled, name):
    assert presets.load(spelled) == presets.load(name)


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("llama-3.1-70", "llama-3.1-70b"),
        ("meta-llama/Llama-3.1-8C", "llama-3.1-8b"),
        ("mixtral8x7b", "mixtral-8x7b"),
        ("deepseek", "deepseek-v3"),
    ],
)
def test_unknown_name_gets_the_nearest(wrong, near):
    with pytest.raises(InputError) as error:
        presets.load(wrong, where="run.toml", field="model.name")
    beside = ", or the id of a model in the local cache of Hugging Face" * ("/" in wrong)
    assert str(error.value) == (
        "run.toml: model.name: must be a model of the zoo or the path of a config.json"
        f"{beside}, got {wrong!r} (did you mean {near!r}?)"
    )


@pytest.mark.parametrize("wrong", ["", "zzz", "x\0", "?" * 5000])
def test_a_name_like_no_other_lists_the_zoo(wrong):
    with pytest.raises(
        InputError, match=r"^model: name: must be a model of the zoo.*known: apertus-"
    ):
        presets.load(wrong)


def test_a_model_that_the_zoo_lacks_gets_those_of_its_size_and_the_way_to_its_own_shape():
    with pytest.raises(InputError) as error:
        presets.load("yi-34b")
    said = str(error.value)
    assert "known of about this size: " in said and "qwen3-32b" in said and "--model PATH" in said
    assert "gpt2-small" not in said and "llama-3.1-70b" not in said


@pytest.mark.parametrize("wrong", ["nope.json", "no/such/folder/config.json", "x\0.json"])
def test_a_path_that_is_not_there(wrong):
    with pytest.raises(InputError) as error:
        presets.load(wrong, where="run.toml", field="model.name")
    assert str(error.value) == f"run.toml: model.name: no such file, got {wrong!r}"


def test_a_folder_without_a_config(tmp_path):
    with pytest.raises(InputError, match=r"config\.json: no such file$"):
        presets.load(str(tmp_path))


@pytest.mark.parametrize("wrong", [None, 7, ["llama-2-7b"]])
def test_a_name_that_is_no_text(wrong):
    with pytest.raises(InputError, match=r"^model: name: must be the name or path of a model, got"):
        presets.load(wrong)


def test_a_hugging_face_id_is_that_of_the_zoo():
    assert presets.load("Qwen/Qwen3-8B").name == "qwen3-8b"
    assert presets.load("meta-llama/Llama-3.1-8B-Instruct").name == "llama-3.1-8b"
    assert presets.load("qwen/qwen3-8b") == presets.load("qwen3-8b")


def test_a_hugging_face_id_is_looked_up_in_the_local_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--my--small"
    for revision, model in (("abc", "gpt2-small"), ("def", "gpt2-xl")):
        (folder / "snapshots" / revision).mkdir(parents=True)
        shutil.copy(ZOO / f"{model}.json", folder / "snapshots" / revision / "config.json")
    with pytest.raises(InputError, match="must be a model of the zoo"):
        presets.load("my/small")  # two snapshots and no branch
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    model = presets.load("my/small")
    assert (model.name, model.parameters) == ("small", 124_439_808)
