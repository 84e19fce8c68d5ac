"""Profiles that stand on another one: what is merged, what is replaced whole, what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulator import catalogue
from simulator.errors import InputError
from simulator.files import Figure, figures, read_profile, read_toml, record, with_figure
from simulator.hardware.cluster import load_accelerator, load_cluster, load_library, load_node
from simulator.software.profile import Software, load_software


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's own folder of software profiles."""
    folder = tmp_path / "software"
    folder.mkdir()
    monkeypatch.setenv("FORESHARD_PROFILES", str(tmp_path))
    return folder


def wrong(name: str) -> str:
    with pytest.raises(InputError) as caught:
        load_software(name)
    return str(caught.value)


def test_a_profile_is_its_base_with_what_it_says_itself(mine: Path) -> None:
    text = 'base = "torchtitan"\nrelease = "mine"\n[overlap]\ngradient_reduce = false\n'
    (mine / "ours.toml").write_text(text)
    base, own = load_software("torchtitan"), load_software("ours")
    assert (own.name, own.release, own.launcher) == ("ours", "mine", "torchtitan")
    assert base.overlap.gradient_reduce and not own.overlap.gradient_reduce
    assert own.overlap.sharded_prefetch == base.overlap.sharded_prefetch is True
    assert (own.supports, own.kernels, own.states) == (base.supports, base.kernels, base.states)


def test_a_figure_is_replaced_whole(mine: Path) -> None:
    """Grade, source and spread of the base's figure do not pass to the value over it."""
    (mine / "under.toml").write_text(
        'base = "torchtitan"\n[host]\nseconds_per_kernel = { value = 8e-6, grade = "measured", '
        'source = "trace", spread = 0.1 }\n[sources.trace]\ntext = "a trace"\ndate = "2026-01-02"\n'
    )
    (mine / "over.toml").write_text(
        'base = "under"\n[host]\nseconds_per_kernel = { value = 9e-6 }\n'
    )
    old = load_software("under").host.seconds_per_kernel
    assert (float(old), old.grade, old.source) == (8e-6, "measured", "a trace")
    assert (old.spread, old.date) == (0.1, "2026-01-02")
    new = load_software("over").host.seconds_per_kernel
    assert (float(new), new.grade, new.source, new.spread) == (9e-6, "assumed", "user", None)
    (mine / "bare.toml").write_text('base = "under"\n[host]\nseconds_per_kernel = 7e-6\n')
    bare = load_software("bare").host.seconds_per_kernel
    assert (float(bare), bare.grade) == (7e-6, "assumed")


def test_a_figure_without_a_value_does_not_take_the_value_of_its_base(mine: Path) -> None:
    text = 'base = "torchtitan"\n[host]\nseconds_per_kernel = { grade = "measured" }\n'
    (mine / "graded.toml").write_text(text)
    assert wrong("graded") == (
        f"{mine / 'graded.toml'}: host.seconds_per_kernel: must be a number, got a table"
    )


def test_sources_of_both_files_are_known(mine: Path) -> None:
    """A figure of the profile may name a source of its base, and the other way round."""
    (mine / "both.toml").write_text(
        'base = "plain-ddp"\n[sources.adam]\ntext = "counted anew"\n'
        '[sources.trace]\ntext = "a trace"\n'
        '[host]\nseconds_per_kernel = { value = 9e-6, grade = "measured", source = "trace" }\n'
        'time_variation = { value = 0.04, grade = "assumed", source = "workspace" }\n'
    )
    own, base = load_software("both"), load_software("plain-ddp")
    assert own.host.seconds_per_kernel.source == "a trace"
    assert own.host.time_variation.source == base.allocator.workspace_bytes.source
    assert own.states.optimizer_traffic.source == "counted anew"
    text = 'base = "plain-ddp"\n[host]\nseconds_per_kernel = { value = 1, source = "traec" }\n'
    (mine / "typo.toml").write_text(text)
    assert "[sources] has no 'traec'" in wrong("typo")


def test_bases_may_stand_on_bases(mine: Path) -> None:
    (mine / "a.toml").write_text(
        'base = "plain-ddp"\nrelease = "a"\n[host]\nseconds_per_kernel = 1'
    )
    (mine / "b.toml").write_text('base = "a"\n[host]\ntime_variation = 0.7')
    (mine / "c.toml").write_text('base = "b"\n[host]\nseconds_per_kernel = 3')
    found = load_software("c")
    assert (found.name, found.release) == ("c", "a")
    assert (float(found.host.seconds_per_kernel), float(found.host.time_variation)) == (3, 0.7)


def test_shipped_profiles_on_a_base_differ_in_what_they_state() -> None:
    eager, compiled = load_software("torchtitan-eager"), load_software("torchtitan")
    each = [one.host.launches["mlp"].forward for one in (eager, compiled)]
    assert each[0] > each[1]
    assert (eager.kernels.fused, compiled.kernels.fused[0]) == (("linear_bias", "softmax"), "norm")
    assert (eager.supports, eager.states, eager.overlap) == (
        compiled.supports,
        compiled.states,
        compiled.overlap,
    )
    early, late = load_software("megatron-deepspeed-2022"), load_software("megatron-lm-2022")
    assert early.launcher == late.launcher == "megatron"
    assert (early.overlap.tensor, late.overlap.tensor) == ("none", "backward")  # two bases below
    bf16 = load_software("megatron-deepspeed-2022-bf16")
    assert (bf16.kernels, bf16.supports) == (early.kernels, early.supports)
    assert bf16.host.waits_for_kernels and early.host.waits_for_kernels
    assert (float(early.states.gradient), float(bf16.states.gradient)) == (2, 6)


@pytest.mark.parametrize("base", ["self", "2"])
def test_a_base_must_be_another_profile(mine: Path, base: str) -> None:
    (mine / "self.toml").write_text(f"base = {base if base == '2' else repr(base)}\n")
    shown = base if base == "2" else "'self'"
    assert wrong("self") == f"{mine / 'self.toml'}: base: must name another profile, got {shown}"


def test_a_circle_of_bases_is_refused_where_it_closes(mine: Path) -> None:
    for name, base in (("a", "b"), ("b", "c"), ("c", "a")):
        (mine / f"{name}.toml").write_text(f'base = "{base}"\n')
    assert wrong("a") == f"{mine / 'c.toml'}: base: must name another profile, got 'a'"


def test_a_circle_of_paths_is_refused_too(mine: Path) -> None:
    one, other = mine / "one.toml", mine / "other.toml"
    one.write_text(f'base = "{one}"\n')
    assert wrong("one") == f"{one}: base: must name another profile, got {str(one)!r}"
    one.write_text(f'base = "{other}"\n')
    other.write_text('base = "one"\n')
    assert wrong("one") == f"{other}: base: must name another profile, got 'one'"


def test_an_unknown_base_brings_the_nearest(mine: Path) -> None:
    (mine / "own.toml").write_text('base = "torchtita"\n')
    assert wrong("own") == (
        f"{mine / 'own.toml'}: base: unknown software 'torchtita' (did you mean 'torchtitan'?)"
    )
    (mine / "own.toml").write_text('base = "no/such/file.toml"\n')
    assert wrong("own") == f"{mine / 'own.toml'}: base: no such file, got 'no/such/file.toml'"


def test_what_is_wrong_with_a_merged_field_is_told(mine: Path) -> None:
    (mine / "own.toml").write_text('base = "torchtitan"\noverlap = 3\n[host]\nkernels = 2\n')
    found = wrong("own")
    assert f"{mine / 'own.toml'}: overlap: " in found
    assert f"{mine / 'own.toml'}: host.kernels: unknown field" in found


def test_a_users_profile_of_a_shipped_name_is_the_base_of_the_others(mine: Path) -> None:
    """The user's folder comes first, so what stands on the name stands on the user's."""
    (mine / "megatron-lm-2022.toml").write_text('base = "megatron-core"\n')
    (mine / "on-mine.toml").write_text('base = "megatron-lm-2022"\n')
    core = load_software("megatron-core")
    assert load_software("on-mine").kernels == core.kernels
    # shipped, on the same name, with its own NCCL and fusions
    older = load_software("megatron-lm-2021").kernels
    assert older == replace(core.kernels, nccl="2.8", fused=older.fused)
    fused = ("norm", "bias_activation", "bias_dropout_add", "softmax", "causal_softmax")
    assert older.fused == fused


@pytest.mark.parametrize(
    ("kind", "name", "load"),
    [
        ("accelerators", "h100-sxm", load_accelerator),
        ("nodes", "dgx-h100", load_node),
        ("collectives", "nccl", load_library),
        ("clusters", "dgx-h100", lambda name: load_cluster(name, 8)),
    ],
)
def test_every_kind_of_profile_may_have_a_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str, load: Any
) -> None:
    (tmp_path / kind).mkdir()
    (tmp_path / kind / "own.toml").write_text(f'base = "{name}"\n')
    monkeypatch.setenv("FORESHARD_PROFILES", str(tmp_path))
    own, shipped = load("own"), load(name)
    assert (own.name, shipped.name) == ("own", name)
    for field in (f for f in shipped.__slots__ if f != "name"):
        assert getattr(own, field) == getattr(shipped, field)


def test_a_base_needs_a_kind_to_be_looked_up(tmp_path: Path) -> None:
    @record
    class Small:
        name: str
        size: float

    (tmp_path / "plain.toml").write_text("size = 2\n")
    (tmp_path / "based.toml").write_text('base = "plain"\n')
    assert read_profile(Small, tmp_path / "plain.toml") == Small(name="plain", size=2.0)
    with pytest.raises(InputError, match="base: must name another profile, got 'plain'"):
        read_profile(Small, tmp_path / "based.toml")


def test_the_name_of_a_profile_is_that_of_its_file(mine: Path) -> None:
    for path in catalogue.folder("hardware_profiles").glob("software/*.toml"):
        assert "name" not in read_toml(path)
    (mine / "own.toml").write_text('base = "torchtitan"\n')
    assert isinstance(load_software("own"), Software)
    assert load_software("own").name == "own"


def test_a_figure_is_put_where_its_name_says() -> None:
    """Keys may be numbers and hold dots; what figures() names, with_figure() finds."""
    held = {"2.21": {2: Figure(1.0)}, "2": [Figure(2.0), Figure(3.0)]}
    for name, old in figures(held):
        new = dict(figures(with_figure(held, name, Figure(float(old) + 10.0))))
        assert float(new[name]) == float(old) + 10.0
        assert sum(float(value) for value in new.values()) == 16.0
    with pytest.raises(KeyError):
        with_figure(held, "3.1", Figure(0.0))
