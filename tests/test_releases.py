"""Which known release stands for a word of software."""

import pytest

from simulator.software.releases import (
    Nearest,
    Releases,
    UnknownFamily,
    load_releases,
    parsed,
)

SHIPPED = load_releases()


def nearest(word: str, releases: Releases = SHIPPED) -> Nearest:
    return releases.nearest(word, where="runs.csv: line 2: software")


@pytest.mark.parametrize(
    ("word", "family", "number", "variant"),
    [
        ("megatron-bridge-26.04.01", "megatron-bridge", (26, 4, 1), ""),
        ("torchtitan-2024.12-compile", "torchtitan", (2024, 12), "compile"),
        ("megatron-deepspeed-2022.02a-async", "megatron-deepspeed", (2022, 2, 1), "async"),
        ("mlperf-nemo-v5.1", "mlperf-nemo", (5, 1), ""),
        ("neuron-2.13.0", "neuron", (2, 13, 0), ""),
        ("megatron-lm-2022", "megatron-lm", (2022,), ""),
    ],
)
def test_words_are_taken_apart(
    word: str, family: str, number: tuple[int, ...], variant: str
) -> None:
    found = parsed(word)
    assert found is not None
    assert (found.family, found.number, found.variant) == (family, number, variant)


def test_what_names_no_release_is_not_taken_apart() -> None:
    assert [parsed(word) for word in ("megatron-core", "plain-ddp", "", "26.04")] == [None] * 4


def test_dates_are_months_and_other_numbers_are_not() -> None:
    words = ("a-26.04", "a-2024.12", "a-v5.1", "a-2.13.0", "a-2022")
    months = {word: found.months for word in words if (found := parsed(word)) is not None}
    assert months["a-26.04"] == 12 * 2026 + 4 and months["a-2024.12"] == 12 * 2024 + 12
    assert months["a-v5.1"] is months["a-2.13.0"] is months["a-2022"] is None


def test_a_known_word_and_a_profile_stand_for_themselves() -> None:
    for word in ("megatron-bridge-25.09", "megatron-core"):
        found = nearest(word)
        assert (found.known, found.text, found.months) == (word, None, 0)


@pytest.mark.parametrize(
    ("word", "profile"),
    [
        ("Megatron-LM core_r0.17", "megatron-core-defaults"),
        ("torchtitan v0.2.1", "torchtitan-2026"),  # its known releases are dates
        ("NeMo 25.04", "nemo-25.04"),
        ("DeepSpeed 0.15.4", "deepspeed"),
        ("Megatron-Bridge 25.09", "megatron-bridge"),
    ],
)
def test_words_as_tables_of_others_have_them(word: str, profile: str) -> None:
    assert nearest(word).profile == profile


def test_a_newer_release_takes_the_newest_known() -> None:
    found = nearest("megatron-bridge-26.08")
    assert found.profile == "megatron-bridge-26.06"
    assert found.text == f"{found.known} for megatron-bridge-26.08"
    assert found.months is not None and found.months > 0


def test_a_release_between_two_takes_the_one_before_and_the_first_what_there_is() -> None:
    made = Releases(words={"x-25.02": "a", "x-25.10": "b", "x-25.9": "c"}, families={})
    assert nearest("x-25.9.3", made).profile == "c"
    assert nearest("x-25.4", made).profile == "a"
    assert nearest("x-24.11", made).profile == "a"  # numbers, not letters: 25.10 is after 25.9
    assert nearest("x-25.11", made).profile == "b"
    assert nearest("x-HEAD", made).profile == "b"


def test_a_variant_takes_its_own_where_there_is_one() -> None:
    assert nearest("torchtitan-2025.02-eager").profile == "torchtitan-2024-eager"
    assert nearest("torchtitan-2025.06-compile").profile == "torchtitan"


@pytest.mark.parametrize(
    ("word", "known"),
    [
        ("mlperf-nemo-v5.0", "megatron-bridge-25.09"),  # before all of them
        ("mlperf-nemo-v6.0", "megatron-bridge-26.06"),  # of June 2026
        ("mlperf-nemo-v7.0", "megatron-bridge-26.06"),
        ("torchtitan-2026.06", "torchtitan-2026.04-compile"),
        ("torchtitan-HEAD", "torchtitan-2026.04-compile"),
        ("torchtitan-2026.06-nightly", "torchtitan-2026.04-compile"),
        ("nemo-automodel-2026", "automodel"),
        ("megatron-lm-main-2025.08", "megatron-lm-main-2024.01"),
        ("megatron-lm-main-2026.08", "megatron-lm-main-2026.01"),
        ("nemo-25.08", "nemo-25.04"),
        ("nemo-26.02", "megatron-bridge-26.02"),
        ("nemo-2.5", "nemo-25.04"),  # a number that is no date
        ("megatron-bridge-0.6", "megatron-bridge-26.06"),
        ("megatron-lm-2020", "megatron-lm-2021"),
        ("megatron-lm-2025.06", "megatron-lm-2023"),
    ],
)
def test_words_of_every_family_take_the_newest_before_them(word: str, known: str) -> None:
    assert nearest(word).known == known


def families() -> list[str]:
    words = [found.family for word in SHIPPED.words if (found := parsed(word)) is not None]
    return sorted({*words, *SHIPPED.families, *SHIPPED.stand_ins})


@pytest.mark.parametrize("variant", ["", "-compile", "-eager", "-nightly"])
@pytest.mark.parametrize("family", families())
def test_a_later_word_never_takes_an_earlier_release(
    family: str, variant: str, extent: str
) -> None:
    months = {"sample": (1, 6, 11), "whole": range(1, 13)}[extent]
    dates = [f"{year}.{month:02d}" for year in range(2019, 2030) for month in months]
    if family in SHIPPED.rounds:
        dates = [f"v{year}.{half}" for year in range(1, 10) for half in (0, 1)]
    asked = [f"{family}-{date}{variant}" for date in dates]
    taken = [nearest(word).known for word in asked if word not in SHIPPED.words]
    order = list(dict.fromkeys(taken))
    assert taken == [name for name in order for _ in range(taken.count(name))]
    since = [x.months for name in order if (x := parsed(name)) is not None and x.months]
    assert since == sorted(since)


def test_an_unknown_family_is_refused_with_the_list_and_the_way_out() -> None:
    with pytest.raises(UnknownFamily) as caught:
        nearest("colossal-0.4.1")
    (line,) = caught.value.problems
    assert line.startswith("runs.csv: line 2: software: unknown software 'colossal-0.4.1'")
    assert "megatron-bridge" in line and "torchtitan" in line and "--software NAME" in line


def test_a_fallback_stands_for_unknown_families_alone() -> None:
    made = Releases(words=SHIPPED.words, families=SHIPPED.families, fallback="deepspeed")
    assert nearest("colossal-0.4.1", made).profile == "deepspeed"
    assert nearest("megatron-bridge-26.08", made).profile == "megatron-bridge-26.06"


def test_a_framework_without_a_profile_keeps_its_name() -> None:
    for word, profile, framework in (
        ("prime-rl-2026.10", "torchtitan-2026", "prime-rl"),
        ("OLMo-core 2.1", "torchtitan-2026", "olmo-core"),
        ("colossal-ai-hybrid-0.4.1", "megatron-core-defaults", "colossal-ai-hybrid"),
    ):
        found = nearest(word)
        assert (found.profile, found.framework) == (profile, framework)
        assert found.text is not None
    assert nearest("torchtitan-2026.01-compile").framework == ""  # a release of its own
    assert nearest("mlperf-nemo-v6.0").framework == ""  # another name of the same
    made = Releases(words=SHIPPED.words, families=SHIPPED.families, fallback="torchtitan")
    assert nearest("our-trainer-1.2", made).framework == "our-trainer"


def test_no_framework_that_another_stands_in_for_has_a_profile() -> None:
    dated = {found.family for word in SHIPPED.words if (found := parsed(word)) is not None}
    for name, other in SHIPPED.stand_ins.items():
        assert name not in {*SHIPPED.words, *SHIPPED.words.values(), *SHIPPED.families}
        newest = f"{other}-HEAD" if other in dated else other
        assert nearest(name).profile == nearest(newest).profile


def test_every_word_names_a_profile_that_ships() -> None:
    from simulator import catalogue

    known = set(catalogue.names("software"))
    assert set(SHIPPED.words.values()) <= known
    assert set(SHIPPED.families.values()) <= known | {
        found.family for word in SHIPPED.words if (found := parsed(word)) is not None
    }


@pytest.mark.parametrize(
    ("word", "known", "months"),
    [
        ("x-26.12", "x-25.12", 12),
        ("x-26.01", "x-25.12", 1),
        ("x-25.11", "x-25.02", 9),
        ("x-24.12", "x-25.02", 2),  # the first that there is
        ("x-2100.01", "x-25.12", None),  # numbers of 2015 to 2099 are years
        ("x-2099.12", "x-25.12", 888),
        ("x-25.13", "x-25.12", None),  # no month
    ],
)
def test_months_from_one_release_to_another(word: str, known: str, months: int | None) -> None:
    made = Releases(words={"x-25.02": "a", "x-25.12": "b"}, families={})
    found = nearest(word, made)
    assert (found.known, found.months) == (known, months)


def test_letters_count_from_one_and_a_word_in_other_letters_is_the_same() -> None:
    words = [parsed(f"megatron-deepspeed-2022.02{letter}") for letter in "abz"]
    assert [word.number[-1] for word in words if word] == [1, 2, 26]
    made = Releases(words={"x-25.02": "a", "x-25.12": "b"}, families={})
    assert nearest("X 25.3", made).known == "x-25.02"
