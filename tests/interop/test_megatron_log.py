"""Megatron-LM logs of trainings that ran, whole and damaged; tests/data/logs says how made."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.interop.logs.megatron_log import read_megatron_log
from simulator.measured.log import MeasuredLog
from simulator.workload.recipe import Recipe

LOGS = Path(__file__).resolve().parents[1] / "data" / "logs"
TRUTH = json.loads((LOGS / "truth.json").read_text())
NEW, OLD = LOGS / "megatron_2025.log", LOGS / "megatron_2023.log"
FIRST, SECOND, *_ = (i for i, x in enumerate(NEW.read_text().splitlines(), 1) if "elapsed" in x)
ROUNDING_S = 0.05e-3 * 1.01
"""Megatron-LM prints tenths of a millisecond."""


def read(path: Path, **options: int) -> MeasuredLog:
    return read_megatron_log(path, Recipe(sequence_length=64, global_batch=8), 2, **options)


def changed(folder: Path, text: str | bytes) -> Path:
    path = folder / "train.log"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read(path)
    (line,) = caught.value.problems
    return line.replace(str(path), "train.log")


def agrees(log: MeasuredLog, truth: str) -> bool:
    same = np.array_equal(log.steps, TRUTH[truth]["steps"])
    expected = TRUTH[truth]["step_times_s"]
    return same and np.allclose(log.step_times_s, expected, rtol=0, atol=ROUNDING_S)


@pytest.mark.parametrize("name", ["megatron_2025", "megatron_2023"])
def test_times_and_memory_are_those_of_the_clock(name: str) -> None:
    path = LOGS / f"{name}.log"
    log = read(path)
    assert agrees(log, name)
    peak = TRUTH[name]["memory_bytes"]
    assert log.memory_bytes["reserved"] == pytest.approx(peak, abs=0.01 * 2**20)
    assert log.memory_bytes["allocated"] == pytest.approx(peak, abs=0.01 * 2**20)
    assert log.memory_after_step == 2
    lines = path.read_text().splitlines()
    for step, line in zip(log.steps, log.lines, strict=True):
        assert re.search(rf"iteration +{step}/ ", lines[line - 1])
    assert (log.framework, log.path, log.notes) == ("megatron", str(path), ())


def test_the_median_leaves_the_start_out() -> None:
    truth = TRUTH["megatron_2025"]["step_times_s"]
    log = read(NEW, warm_up=2)
    assert (log.dropped, log.rule) == (2, "as asked")
    assert log.median_step_s == pytest.approx(np.median(truth[2:]), abs=ROUNDING_S)
    # 8 sequences of 64 tokens on 2 ranks
    assert log.tokens_per_s_per_gpu == pytest.approx(256 / np.median(truth[2:]), rel=2e-3)
    low, high = log.spread_s
    assert low <= log.median_step_s <= high


def test_what_the_log_says_of_its_run() -> None:
    found = {name: stated.value for name, stated in read(NEW).stated.items()}
    assert found == {
        "gpus": 2,
        "dp": 2,
        "cp": 1,
        "tp": 1,
        "pp": 1,
        "vpp": 1,
        "hidden": 64,
        "layers": 4,
        "micro_batch": 4,
        "sequence_length": 64,
        "global_batch": 8,
    }
    lines = NEW.read_text().splitlines()
    for stated in read(NEW).stated.values():
        assert stated.words in lines[stated.line - 1]


def test_throughput_is_read_where_it_is_printed(tmp_path: Path) -> None:
    # a tiny model on a CPU reaches 0.0 TFLOP/s, which is no reading
    assert read(NEW).model_tflops_per_gpu is None
    speeds = iter(range(400, 500))
    text = re.sub(r"(TFLOP/s/GPU\): )0\.0", lambda m: f"{m[1]}{next(speeds)}.5", NEW.read_text())
    log = read(changed(tmp_path, text), warm_up=4)
    assert log.model_tflops_per_gpu == np.median([400.5 + i for i in range(4, len(log.steps))])


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: re.sub(r"^", "[default7]:", text, flags=re.M),
        lambda text: re.sub(r"^", "1: ", text, flags=re.M),
        lambda text: re.sub(r"^", "12%|#   | 3/24\r", text, flags=re.M),
        lambda text: re.sub(r"(\(ms\): [\d.]+) ", r"\1/99.9 ", text),  # Primus: this one / mean
        lambda text: text + text,  # printed twice, or started again from the beginning
        lambda text: "x" * 3_000_000 + "\n" + text,
        lambda text: text[text.index(" [20") :],  # without the arguments
    ],
    ids=["crlf", "torchrun", "srun", "progress", "primus", "twice", "long line", "bare"],
)
def test_other_shapes_of_the_same_log(change: object, tmp_path: Path) -> None:
    log = read(changed(tmp_path, change(NEW.read_text())))  # type: ignore[operator]
    assert agrees(log, "megatron_2025")


def test_prefixes_name_ranks(tmp_path: Path) -> None:
    text = re.sub(r"^", "[default1]:", NEW.read_text(), flags=re.M)
    assert read(changed(tmp_path, text)).ranks == (0, 1)  # 0: in its memory line
    assert read(NEW).ranks == (0,)


def test_bytes_that_are_no_text_are_passed_over(tmp_path: Path) -> None:
    raw = NEW.read_bytes().replace(b"lm loss", b"\xff\xfe loss")
    assert agrees(read(changed(tmp_path, raw)), "megatron_2025")


def test_a_cut_log_gives_no_wrong_number(tmp_path: Path) -> None:
    raw = OLD.read_bytes().rstrip()
    truth = dict(zip(*(TRUTH["megatron_2023"][k] for k in ("steps", "step_times_s")), strict=True))
    peak = TRUTH["megatron_2023"]["memory_bytes"]
    last = raw.rindex(b"\n")
    cuts = range(last, len(raw), 3)
    notes = set()
    for cut in cuts:
        log = read(changed(tmp_path, raw[:cut]))
        for step, seconds in zip(log.steps, log.step_times_s, strict=True):
            assert seconds == pytest.approx(truth[int(step)], abs=ROUNDING_S)
        notes.update(log.notes)
    line = raw.count(b"\n") + 1
    assert notes == {f"step lines that cannot be read: 1, the first is line {line}"}
    assert read(changed(tmp_path, raw[: raw.rindex(b"global batch")])).steps[-1] == 24
    begin = raw.index(b"max reserved: ") + len(b"max reserved: ")
    found = [read(changed(tmp_path, raw[:cut])).memory_bytes for cut in range(begin, begin + 9)]
    assert "reserved" not in found[0] and "reserved" in found[-1]
    for memory in found:
        assert memory.get("reserved", peak) == pytest.approx(peak, rel=1e-2)


def test_a_ramp_of_the_batch_keeps_the_last(tmp_path: Path) -> None:
    def ramp(found: re.Match[str]) -> str:
        step = int(found[2])
        batch, samples = (4, 4 * step) if step <= 4 else (8, 16 + 8 * (step - 4))
        return f"{found[1]}{samples}{found[3]}{batch} |"

    line = r"(iteration +(\d+)/.*samples: +)\d+( .*global batch size: +)\d+ \|"
    log = read(changed(tmp_path, re.sub(line, ramp, NEW.read_text())))
    assert list(log.steps) == TRUTH["megatron_2025"]["steps"][3:]
    assert log.notes == ("left out: 3 step lines with another global batch than 8",)
    assert log.stated["global_batch"].value == 8


def test_without_a_printed_batch_samples_tell_it(tmp_path: Path) -> None:
    text = re.sub(r" global batch size: +8 \|", "", NEW.read_text())
    assert read(changed(tmp_path, text)).stated["global_batch"].value == 8


def test_samples_that_contradict_the_batch(tmp_path: Path) -> None:
    text = NEW.read_text().replace("global batch size:     8", "global batch size:    16")
    assert refused(changed(tmp_path, text)) == (
        f"train.log: line {SECOND}: consumed samples: must grow by the global batch size 16 each"
        " iteration, got 8"
    )


def test_nothing_to_read(tmp_path: Path) -> None:
    text = NEW.read_text()
    assert refused(changed(tmp_path, "")) == "train.log: the file is empty"
    crashed = text[: text.index(" [20")]
    assert refused(changed(tmp_path, crashed)) == (
        "train.log: no step line of a Megatron-LM log in it"
    )
    cut = text[: text.index("(ms): ") + 8]
    assert refused(changed(tmp_path, cut)) == (
        "train.log: no step line of a Megatron-LM log in it that can be read; of 1 that cannot,"
        f" the first is line {FIRST}"
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [("torchtitan_0.3", "a torchtitan log"), ("torchtitan_tp2", "a torchtitan log"),
     ("mlperf_4.1", "an MLPerf log")],
)  # fmt: skip
def test_a_log_of_another_kind(name: str, kind: str, tmp_path: Path) -> None:
    path = changed(tmp_path, (LOGS / f"{name}.log").read_bytes())
    assert refused(path) == (
        f"train.log: no step line of a Megatron-LM log in it; it looks like {kind}"
    )


def test_what_is_no_text(tmp_path: Path) -> None:
    utf16 = changed(tmp_path, NEW.read_text().encode("utf-16"))
    assert refused(utf16) == "train.log: is UTF-16 text; save it as UTF-8"
    assert refused(changed(tmp_path, b"\x1f\x8b")) == "train.log: is compressed; unpack it first"
    assert refused(changed(tmp_path, b"\x7fELF\0\0")) == "train.log: is not a text file"
    missing = tmp_path / "trian.log"
    assert refused(missing) == "train.log: no such file (did you mean 'train.log'?)"
    assert refused(tmp_path).endswith(": is a folder, not a file")


def test_warm_up_must_leave_something() -> None:
    count = len(TRUTH["megatron_2025"]["steps"])
    with pytest.raises(InputError, match=f"at least one of the {count} step lines, got {count}"):
        read(NEW, warm_up=count)


def test_a_gigantic_log_is_streamed(tmp_path: Path) -> None:
    noise = b"nothing of interest is said in this line of the log, again and again\n" * 15_000
    with (tmp_path / "train.log").open("wb") as file:
        for _ in range(40):
            file.write(noise)  # 42 MB in all
        file.write(NEW.read_bytes())
    reports: list[tuple[int, int]] = []
    tracemalloc.start()
    log = read_megatron_log(
        tmp_path / "train.log",
        Recipe(sequence_length=64, global_batch=8),
        2,
        progress=lambda done, total: reports.append((done, total)),
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert agrees(log, "megatron_2025")
    assert peak < 2e6
    assert reports and all(0 < done <= total for done, total in reports)
    assert [done for done, _ in reports] == sorted({done for done, _ in reports})
