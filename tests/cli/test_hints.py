"""A hint is given only where the suggestion answers the same question."""

import pytest

from simulator.errors import InputError
from simulator.hardware.cluster import load_cluster, load_node
from simulator.software.profile import load_software
from simulator.spellings import spellings
from simulator.workload import presets
from simulator.workload.families import table as families


@pytest.mark.parametrize("device", ["h100", "H100", "a100", "mi300x", "gb200"])
def test_an_accelerator_where_a_cluster_is_asked_for_lists_who_has_it(device: str) -> None:
    with pytest.raises(InputError, match="is no cluster; those with such accelerators: ") as caught:
        load_cluster(device, 8)
    text = str(caught.value)
    assert "did you mean" not in text
    for holder in text.partition("accelerators: ")[2].split("; "):
        cluster, _, rest = holder.partition(" (")
        node = load_cluster(cluster, 1).node
        assert rest.startswith(f"{node.accelerator}, domain of {node.scale_up.domain}, ")
        assert node.accelerator.startswith(device.lower())
        assert "USD a GPU hour" in rest or "price not known" in rest


def test_prices_that_are_listed_are_those_of_the_profiles() -> None:
    with pytest.raises(InputError) as caught:
        load_cluster("h100", 8)
    assert "dgx-h100 (h100-sxm, domain of 8, 2.99 USD a GPU hour, assumed)" in str(caught.value)
    assert "aws-p5 (h100-sxm, domain of 8, 6.88 USD a GPU hour)" in str(caught.value)
    assert load_node("dgx-h100").accelerator == "h100-sxm"


@pytest.mark.parametrize("name", ["whisper", "qwen3-15b", "llama-3.1-9b", "mamba"])
def test_a_model_of_another_size_is_no_hint(name: str) -> None:
    with pytest.raises(InputError) as caught:
        presets.load(name)
    assert "did you mean" not in str(caught.value)
    assert "decoders of text" in str(caught.value) and "images" in str(caught.value)


def test_the_same_sizes_spelled_otherwise_are_one() -> None:
    with pytest.raises(InputError, match=r"did you mean 'llama-3\.1-8b'"):
        presets.load("llama-3.1-8c")


@pytest.mark.parametrize("name", ["litgtp", "olmo-core"])
def test_a_trainer_that_is_spelled_like_another_is_no_hint(name: str) -> None:
    with pytest.raises(InputError) as caught:
        load_software(name)
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "said", "instead"),
    [
        ("whisper-large-v3", 'model_type = "whisper"', "t5-11b"),
        ("openai/whisper-small", 'model_type = "whisper"', "t5-11b"),
        ("dit-xl", "Workload.from_torch", "vit-large-16"),
        ("wav2vec2-base", 'model_type = "wav2vec2"', "bert-large"),
        ("mamba-2.8b", 'model_type = "mamba"', "nemotron-h-8b"),
    ],
)
def test_a_model_outside_the_zoo_is_told_what_can_be_done(
    name: str, said: str, instead: str
) -> None:
    """Whisper is a family of transformers; diffusers' DiT is none."""
    with pytest.raises(InputError) as caught:
        presets.load(name)
    text = str(caught.value)
    assert said in text and f"{instead} is of its kind" in text
    assert "gpt3" not in text and "did you mean" not in text and "known:" not in text


def test_what_a_hint_names_is_there() -> None:
    assert set(spellings().nearest_kind.values()) <= set(presets.names())
    assert families.has("whisper") and not families.has("dit")


def test_sizes_of_the_same_family_are_named_alone() -> None:
    with pytest.raises(InputError) as caught:
        presets.load("qwen3-15b")
    text = str(caught.value)
    assert "known: qwen" in text and "llama-2" not in text and 'model_type = "qwen3"' in text
