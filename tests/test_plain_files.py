"""Files of any origin: pipes and devices are no files; size and depth are bounded beforehand."""

import os
import time
import tracemalloc
from pathlib import Path

import pytest

from simulator.errors import InputError, brief, visible
from simulator.files import read_csv, read_json, read_toml
from simulator.plain_files import check_place, open_file, read_text, write_files
from simulator.scenario import load_scenario
from simulator.software.profile import load_software


def refusal(reader, path) -> str:
    with pytest.raises(InputError) as caught:
        reader(path)
    return str(caught.value)


@pytest.mark.parametrize("reader", [read_toml, read_json, lambda path: list(read_csv(path))])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, reader) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refusal(reader, tmp_path / "pipe") == f"{tmp_path / 'pipe'}: is a pipe, not a file"
    assert refusal(reader, "/dev/zero") == "/dev/zero: is a device, not a file"
    assert refusal(reader, tmp_path) == f"{tmp_path}: is a folder, not a file"


def test_a_name_of_300_characters_is_a_name() -> None:
    long = "x" * 300
    assert refusal(open_file, long) == f"{long}: cannot be read: File name too long"
    assert "unknown software 'xxx" in refusal(load_software, long)
    assert refusal(load_software, f"{long}.toml").endswith("... (307 characters)")


def test_a_model_of_300_characters_or_none_is_no_file_beside_the_scenario(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    for name in ("x" * 300, ""):
        path.write_text(f'[model]\nname = "{name}"\n')
        assert "model.name: must be a model of the zoo or the path of" in refusal(
            load_scenario, path
        )


@pytest.mark.parametrize(
    ("reader", "size", "most"), [(read_toml, 200 * 2**20, 1), (read_json, 2**30, 32)]
)
def test_large_files_are_refused_unread(tmp_path: Path, reader, size: int, most: int) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(size)
    tracemalloc.start()
    assert refusal(reader, path) == f"{path}: larger than {most} MiB, got {size} bytes"
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 2**20


@pytest.mark.parametrize(
    "text",
    [
        "a." * 3_000 + "a = 1",
        "a." * 30_000 + "a = 1",
        "[" + '"a" . ' * 30_000 + "a]",
        "x = " + "[" * 300 + "]" * 300,
        "x = " + "{x = " * 70 + "1" + "}" * 70,
        "x = " + "[" * 100_000,
    ],
)
def test_deep_tables_are_refused_before_they_cost_anything(tmp_path: Path, text: str) -> None:
    (tmp_path / "deep.toml").write_text(text)
    begun = time.process_time()
    assert refusal(read_toml, tmp_path / "deep.toml").endswith("deep.toml: nested too deeply")
    assert time.process_time() - begun < 1.0


def test_words_with_many_dots_are_no_deep_key(tmp_path: Path) -> None:
    text = "Read this. " * 1_000
    path = tmp_path / "dots.toml"
    path.write_text(f"text = '{text}'\nnumbers = [{'1.5, ' * 1_000}]\n")
    assert read_toml(path) == {"text": text, "numbers": [1.5] * 1_000}


def test_deep_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    for depth in (70, 100_000):
        path.write_text("[" * depth + "]" * depth)
        assert refusal(read_json, path) == f"{path}: nested too deeply"


@pytest.mark.parametrize("item", ["[]", "{}", "1.5"])
def test_the_values_of_a_json_document_are_bounded(tmp_path: Path, item: str) -> None:
    path = tmp_path / "many.json"
    path.write_text(f"[{f'{item},' * 600_000}0]")
    assert "must hold at most 500000 values, got " in refusal(read_json, path)


def test_unknown_sections_are_said_as_far_as_anybody_reads(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("".join(f"[k{i}]\n" for i in range(9_000)))
    begun = time.process_time()
    message = refusal(load_scenario, path)
    assert "k20: unknown section" in message and "k21: unknown" not in message
    assert "more than 20 sections are unknown" in message
    assert time.process_time() - begun < 2.0


def test_a_row_of_a_table_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    path.write_text("a,b\n" + '"x\n",' * 400_000)
    assert "not valid CSV: a row of more than 1048576 characters" in refusal(
        lambda path: list(read_csv(path)), path
    )
    path.write_text(",".join(map(str, range(2_000))) + "\n")
    assert refusal(lambda path: list(read_csv(path)), path) == (
        f"{path}: line 1: must have 1000 columns at most, got 2000"
    )


def test_a_chain_of_bases_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESHARD_PROFILES", str(tmp_path))
    (tmp_path / "software").mkdir()
    for i in range(1_200):
        (tmp_path / f"software/p{i}.toml").write_text(f'base = "p{i + 1}"\n')
    assert "base: must not stand on more than 16 others" in refusal(load_software, "p0")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("source = []", "[sources] has no []"),
        ("source = 7", "[sources] has no 7"),
        ("spread = [1]", "spread must be a positive number, got [1]"),
        (f"spread = {10**400}", "spread must be a positive number, got 1000"),
    ],
)
def test_figures_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.setenv("FORESHARD_PROFILES", str(tmp_path))
    (tmp_path / "software").mkdir()
    figure = f"seconds_per_kernel = {{ value = 1e-6, {text} }}"
    (tmp_path / "software/own.toml").write_text(f'base = "torchtitan"\n[host]\n{figure}\n')
    assert message in refusal(load_software, "own")
    (tmp_path / "software/own.toml").write_text(
        f'base = "torchtitan"\n[host]\nseconds_per_kernel = {10**400}\n'
    )
    assert "host.seconds_per_kernel: must be a finite number" in refusal(load_software, "own")


def test_messages_quote_a_piece(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f'[model]\nname = "gpt2-small"\n[training]\nprecision = "{"x" * 100_000}"\n')
    message = refusal(load_scenario, path)
    assert max(map(len, message.splitlines())) < 500
    assert brief([10**5000]) == "list"
    assert len(brief("x" * 10**6)) < 200


def test_what_a_terminal_obeys_is_written_out() -> None:
    assert visible("a\x1b[31mb\u202ec\n\td") == "a\\x1b[31mb\\u202ec\n\td"
    assert visible("模型 é µ") == "模型 é µ"


# --- writing ------------------------------------------------------------------------------------


def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path: Path) -> None:
    real, link = tmp_path / "far/real.html", tmp_path / "link.html"
    real.parent.mkdir()
    real.write_text("old")
    real.chmod(0o600)
    link.symlink_to("far/real.html")
    write_files({link: b"new"})
    assert link.is_symlink() and real.read_text() == "new"
    assert real.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["far", "link.html", "real.html"]


def test_a_link_to_nothing_makes_the_file_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("made")
    write_files({tmp_path / "link": b"new"})
    assert (tmp_path / "link").is_symlink() and (tmp_path / "made").read_bytes() == b"new"


def test_pipes_and_devices_are_left_what_they_are(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path / "pipe", "a pipe"), (Path("/dev/full"), "a device")):
        for act in (lambda path: write_files({path: b"x"}), check_place):
            with pytest.raises(OSError, match=f"is {kind}, not a file"):
                act(path)
    assert (tmp_path / "pipe").is_fifo() and Path("/dev/full").is_char_device()


def test_places_are_checked_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check_place(tmp_path / "new/folder", folder=True)
    check_place(tmp_path / "new/file.html")
    check_place(tmp_path / "file")
    for path, folder, reason in (
        (tmp_path / "file", True, "File exists"),
        (tmp_path, False, "Is a directory"),
        (tmp_path / "file/x.html", False, "Not a directory"),
        (tmp_path / ("x" * 300), True, "File name too long"),
    ):
        with pytest.raises(OSError, match=reason):
            check_place(path, folder=folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_text_is_read_once_and_whole(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbfone\ntwo\n")
    assert read_text(tmp_path / "text") == "one\ntwo\n"
