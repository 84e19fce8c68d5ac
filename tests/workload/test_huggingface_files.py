"""Reading a ``config.json`` from disk: its name, and every way in which a file can be broken."""

import pytest

from simulator.errors import InputError
from simulator.workload.huggingface import read_config


def test_read_config_takes_the_name_from_the_file_or_its_folder(tmp_path):
    text = '{"model_type": "gpt2", "n_embd": 4, "n_layer": 1, "n_head": 2, "vocab_size": 5}'
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text("\ufeff" + text, encoding="utf-8")
    (folder / "other.v2.json").write_text(text)
    assert read_config(folder / "config.json").name == "mine"
    assert read_config(str(folder)).name == "mine"
    assert read_config(folder / "other.v2.json").name == "other.v2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON: .* line 1 column 2"),
        ("", "not valid JSON"),
        ("[1]", "must be a table of fields, got list"),
        ("null", "must be a table of fields, got NoneType"),
        ('"llama"', "must be a table of fields, got str"),
        ("[" * 100_000, "nested too deeply"),
        ('{"n_embd": ' + "1" * 5000 + "}", "holds a number of more than 4300 digits"),
        ('{"model_type": "gpt2"}', r"n_embd: required field is missing"),
    ],
)
def test_read_config_of_a_broken_file(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as error:
        read_config(path)
    assert all(line.startswith(f"{path}: ") for line in error.value.problems)


def test_read_config_of_no_file(tmp_path):
    (tmp_path / "config.json").mkdir()
    for path in (tmp_path / "none.json", tmp_path / "config.json", "a\0b"):
        with pytest.raises(InputError, match=r"no such file|cannot be read"):
            read_config(path)
