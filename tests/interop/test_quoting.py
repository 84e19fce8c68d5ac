"""What a name says stays a name in every file that is written, and nothing of it is run.

Scripts are run by bash where every program is a stand-in that notes its words; configurations are
read by their languages' own parsers.
"""

import ast
import json
import os
import shutil
import subprocess
import tomllib
from collections import Counter
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from simulator.cli.main import app
from simulator.interop.dialects.megatron import stem_of
from simulator.interop.exporting import export, launch_flags
from simulator.layout.layouts import Layouts
from simulator.profiles.own_cluster import OwnCluster, _cluster_text, _node_text
from simulator.quoting import (
    comment_line,
    markdown_cell,
    python_literal,
    shell_word,
    toml_value,
    yaml_value,
)
from simulator.scenario import Scenario
from simulator.search.defaults import complete
from tests.interop.test_round_trip import CASES, scenario_of

ENDS = ("\n", "\r", "\x85", "\u2028", "\x0b", "\x0c", "\x1c", "'", '"', "\\", "`", "#", "$(", ")")
PIECES = st.sampled_from(
    [
        *ENDS,
        *(";", "&", "|", ">", "*", "~", "!", "{", "}", "[", "]", ":", "- ", "=", "%", " ", "\t"),
        *("\0", "\x07", "\x1b[2J", "\x7f", "\u202e", "\udcff", "\ud83d", "\U0001f600", "é"),
        *("touch PWNED", "$(touch PWNED)", "`touch PWNED`", "\ntouch PWNED\n", "'; touch PWNED; '"),
        *("\nTOML\n", "\nJSON\n", "\nYAML\n", "</script><script>", "-1b", "llama-3", "torchrun x"),
    ]
)
NAMES = st.lists(PIECES | st.characters(), min_size=1, max_size=12).map("".join)
EVIL = "evil\ntouch PWNED\n$(touch PWNED)`touch PWNED`'\"; touch PWNED; #"
PLAIN = "custom"
PROGRAMS = (
    *("torchrun", "python", "python3", "primus-cli", "srun", "neuron_parallel_compile"),
    *("scontrol", "head", "touch"),
)


def named(scenario: Scenario, name: str) -> Scenario:
    """The scenario with another name of its model, software and cluster."""
    workload = scenario.workload
    return replace(
        scenario,
        workload=replace(workload, architecture=replace(workload.architecture, name=name)),
        software=replace(scenario.software, name=name),
        cluster=replace(scenario.cluster, name=name),
    )


@cache
def layout_of(case: str) -> Layouts:
    scenario = scenario_of(case)
    section = {"tp": 2, "sequence_parallel": True} if case.startswith("megatron") else {}
    return Layouts.of(**complete(replace(scenario, pinned=section), section)[0])


def text_of(case: str, name: str) -> str:
    scenario = named(scenario_of(case), name)
    form = CASES[case].form
    if form:
        return export(layout_of(case), scenario, form)
    return launch_flags(layout_of(case), scenario)


def run(script: str) -> tuple[list[list[str]], dict[str, Any]]:
    """Words of every program that a script starts, and what it writes, read by its own parser."""
    with TemporaryDirectory() as place:
        folder, programs = Path(place) / "here", Path(place) / "bin"
        folder.mkdir()
        programs.mkdir()
        for program in PROGRAMS:
            (programs / program).write_text(
                f'#!/bin/bash\nprintf "%s\\0" {program} "$@" END >> {place}/words\n'
            )
            (programs / program).chmod(0o755)
        (programs / "cat").symlink_to(shutil.which("cat") or "")
        (folder / "job.sh").write_text(script, encoding="utf-8")
        for flags in (["-n"], []):
            done = subprocess.run(
                [shutil.which("bash") or "bash", *flags, "job.sh"],
                cwd=folder,
                env={"PATH": str(programs), "LC_ALL": "C.UTF-8"},
                capture_output=True,
                timeout=60,
                check=False,
            )
            assert (done.returncode, done.stderr) == (0, b""), (script, done.stderr)
        noted = Path(place) / "words"
        raw = noted.read_bytes().decode("utf-8", "surrogateescape") if noted.exists() else ""
        started = sorted(command.split("\0") for command in raw.split("\0END\0") if command)
        written: dict[str, Any] = {}
        for path in folder.iterdir():
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".toml":
                written[path.name] = tomllib.loads(text)
            elif path.suffix == ".json":
                written[path.name] = json.loads(text)
            elif path.suffix == ".yaml":
                written[path.name] = yaml.safe_load(text)
            else:
                assert path.name == "job.sh", (script, path.name)
    assert not [words for words in started if words[0] == "touch"], script
    return started, written


@cache
def usual(case: str) -> Any:
    text = text_of(case, PLAIN)
    return ast.dump(ast.parse(text)) if CASES[case].form == "fsdp2" else run(text)


def in_a_shell(text: str) -> str:
    """A word as a program gets it: bytes of a path stay, NUL and half characters cannot be."""
    return (
        "".join(
            "\ufffd" if c == "\0" or 0xD800 <= ord(c) < 0xDC80 or 0xDCFF < ord(c) < 0xE000 else c
            for c in text
        )
        .encode("utf-8", "surrogateescape")
        .decode("utf-8", "surrogateescape")
    )


def check_case(case: str, name: str) -> None:
    text = text_of(case, name)
    assert text.isprintable() or set(text) - {"\n"} == set(filter(str.isprintable, text))
    if CASES[case].form == "fsdp2":
        assert ast.dump(ast.parse(text)) == usual(case)
        return
    started, written = run(text)
    usual_started, usual_written = usual(case)
    assert written.keys() == usual_written.keys()
    assert _without_flavor(written) == _without_flavor(usual_written)
    recipe = in_a_shell(f"{stem_of(name)}_pretrain_config")
    plain = f"{PLAIN}_pretrain_config"
    assert started == [
        [recipe if word == plain else word for word in words] for words in usual_started
    ]


def _without_flavor(written: dict[str, Any]) -> dict[str, Any]:
    """Torchtitan's flavor is read from a name that ends in a number of parameters."""
    return {
        path: {**document, "model": {**document.get("model", {}), "flavor": ""}}
        for path, document in written.items()
    }


@settings(max_examples=settings.default.max_examples // 2)
@example("megatron-bridge", EVIL)
@example("torchtitan command", EVIL)
@example("slurm torchtitan", EVIL)
@example("script", EVIL)
@example("fsdp2 lora", EVIL)
@example("primus lora", EVIL)
@given(st.sampled_from(sorted(CASES)), NAMES)
def test_no_name_is_run(case: str, name: str) -> None:
    check_case(case, name)


@pytest.mark.evidence
@pytest.mark.parametrize("case", CASES)
def test_no_name_is_run_by_any_framework(case: str) -> None:
    @settings(max_examples=40)
    @example(EVIL)
    @given(NAMES)
    def check(name: str) -> None:
        check_case(case, name)

    check()


def _read_back(text: str) -> str:
    """What no TOML, YAML or shell can hold becomes the character that stands for it."""
    return "".join("\ufffd" if 0xD800 <= ord(c) < 0xE000 else c for c in text)


@example(EVIL)
@given(NAMES)
def test_every_language_reads_the_same_text(text: str) -> None:
    held = _read_back(text)
    assert tomllib.loads(f"{comment_line(text)}\na = {toml_value([text, 1])}")["a"] == [held, 1]
    assert ast.literal_eval(f"{comment_line(text)}\n{python_literal([text])}") == [held]
    word = f"name {text}"  # a string in every reading of YAML
    assert yaml.safe_load(f"{comment_line(text)}\na: {yaml_value(word)}") == {"a": _read_back(word)}
    for line in (comment_line(text), markdown_cell(text)):
        assert line.isprintable()
        assert line.encode()


@settings(max_examples=max(settings.default.max_examples // 6, 10))
@example([EVIL])
@given(st.lists(NAMES, min_size=1, max_size=40))
def test_a_shell_reads_the_same_words(texts: list[str]) -> None:
    script = f"printf '%s\\0' {' '.join(map(shell_word, texts))}"
    assert script.isprintable()
    done = subprocess.run(["bash", "-c", script], capture_output=True, timeout=60, check=True)
    words = done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]
    assert words == [in_a_shell(text) for text in texts]


@given(NAMES)
def test_profiles_hold_names_as_they_are(name: str) -> None:
    node = scenario_of("megatron-bridge").cluster.node
    asked = OwnCluster(name="lab", gpu=name, adapters=1, network="roce")
    of_node = tomllib.loads(_node_text(asked, replace(node, name=name), "2026-11-26"))
    plain = tomllib.loads(_node_text(asked, node, "2026-11-26"))
    assert of_node == plain | {"base": _read_back(name)}
    of_cluster = tomllib.loads(_cluster_text(asked, name, "2026-11-26"))
    assert of_cluster == {"base": _read_back(name), "node": "lab"}


SCENARIO = """
[model]
name = {name}
model_type = "llama"
hidden_size = 1024
intermediate_size = 4096
num_hidden_layers = 8
num_attention_heads = 16
vocab_size = 32000
max_position_embeddings = 4096
[training]
sequence_length = 1024
global_batch = 64
[cluster]
name = "dgx-h100"
gpus = 8
software = "{software}"
"""


@pytest.mark.parametrize(
    ("software", "form"),
    [
        ("megatron-bridge", "megatron-bridge"),
        ("torchtitan", "torchtitan"),
        ("torchtitan", "slurm"),
        ("torchtitan", "fsdp2"),
    ],
)
def test_the_command_quotes_a_name_of_a_scenario(software: str, form: str, tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    path.write_text(SCENARIO.format(name=toml_value(EVIL), software=software))
    done = CliRunner().invoke(app, ["export", os.fspath(path), "--as", form])
    assert done.exit_code == 0, done.output
    if form == "fsdp2":
        ast.parse(done.stdout)
        return
    started, _ = run(done.stdout)
    assert len(started) == 1


def test_the_command_quotes_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "dir $(touch PWNED)"
    folder.mkdir()
    model = tomllib.loads(SCENARIO.format(name='"x"', software="megatron-bridge"))["model"]
    document = {key: value for key, value in model.items() if key != "name"}
    (folder / "config.json").write_text(json.dumps(document))
    words = ["--cluster", "dgx-h100", "--gpus", "8", "--software", "megatron-bridge"]
    more = ["--set", "training.sequence_length=1024", "--set", "training.global_batch=64"]
    done = CliRunner().invoke(
        app,
        ["export", "--model", os.fspath(folder), *words, *more, "--as", "megatron-bridge"],
    )
    assert done.exit_code == 0, done.output
    ((program, *rest),) = run(done.stdout)[0]
    assert program == "torchrun"
    assert "dir $(touch PWNED)_pretrain_config" in rest


class _Elements(HTMLParser):
    """Elements of a page, counted, and the text between them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] += 1

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_page_has_no_elements_of_a_name(tmp_path: Path) -> None:
    name = "</script><script>alert(1)</script><xyz onload='alert(2)'>\"'&lt;"
    path = tmp_path / "e.toml"
    path.write_text(SCENARIO.format(name=toml_value(name), software="megatron-core"))
    done = CliRunner().invoke(app, ["plan", os.fspath(path), "--out", os.fspath(tmp_path / "page")])
    assert done.exit_code == 0, done.output
    (page,) = (tmp_path / "page").glob("*.html")
    elements = _Elements(page.read_text(encoding="utf-8"))
    assert name in elements.text
    assert elements.counts["xyz"] == 0
    assert elements.counts["script"] == 1
