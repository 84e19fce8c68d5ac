"""step_parts: which readings are kept, what counts as foreign load, which steps are taken."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
KERNELS = str(Path(__file__).resolve().parents[2] / "kernels")
sys.path.insert(0, KERNELS)
import _quiet  # noqa: E402
import step_parts  # noqa: E402

sys.path.remove(KERNELS)


class Alone:
    """A world of one rank."""

    @staticmethod
    def agree_all(numbers: list[float], how: str = "max") -> list[float]:
        return list(numbers)

    @staticmethod
    def agree(number: float, how: str = "min") -> float:
        return number


def readings(seconds: list[list[float]]) -> step_parts.Readings:
    """A list of readings for each round."""
    found = step_parts.Readings({"kernel": "gemm"})
    for number, several in enumerate(seconds):
        found.add(several, number, cpu=several, foreign=0.1 * number)
    return found


def test_readings_of_quiet_rounds_are_kept() -> None:
    found = readings([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]).kept({0, 2})
    assert found["times_s"] == found["cpu_times_s"] == [1.0, 2.0, 5.0, 6.0]
    assert found["foreign_cores"] == [0.0, 0.0, 0.2, 0.2]
    assert found["loaded"] == 2


def test_without_quiet_rounds_the_least_fifth_is_kept() -> None:
    found = readings([[9.0, 2.0, 7.0, 8.0], [3.0, 1.0, 6.0], [5.0, 4.0, 10.0]]).kept(set())
    assert sorted(found["times_s"]) == [1.0, 2.0]
    assert found["loaded"] == 8


def test_foreign_load_by_hand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Both cores busy for 1 s, of which this process used 1.25 s: others had 0.75 cores."""
    stat = tmp_path / "stat"
    monkeypatch.setattr(_quiet, "STAT", stat)
    monkeypatch.setattr(_quiet.os, "sysconf", lambda name: 100)
    clock = {"wall": 10.0, "own": 3.0}
    monkeypatch.setattr(_quiet.time, "monotonic", lambda: clock["wall"])
    monkeypatch.setattr(_quiet.time, "process_time", lambda: clock["own"])
    # user nice system idle iowait irq softirq steal guest: idle, iowait and guest are no work
    stat.write_text("cpu  1000 20 300 5000 70 0 10 0 9\ncpu0 1 2 3\n")
    load = _quiet.Foreign()
    stat.write_text("cpu  1100 40 360 6000 90 5 20 5 99\ncpu0 1 2 3\n")
    clock.update(wall=11.0, own=4.25)
    assert load.cores(Alone()) == pytest.approx(0.75)


def test_waiting_ends_when_others_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, loads = {"now": 0.0}, [1.5, 0.4, 0.1, 9.9]
    monkeypatch.setattr(_quiet.time, "monotonic", lambda: clock["now"])
    monkeypatch.setattr(_quiet.time, "sleep", lambda s: clock.update(now=clock["now"] + s))
    monkeypatch.setattr(_quiet.Foreign, "cores", lambda self, world: loads.pop(0))
    assert _quiet.wait_until_quiet(Alone(), 100.0) == 3.0
    assert loads == [9.9]
    assert _quiet.wait_until_quiet(Alone(), 0.5) == 1.0  # one look, then time is up


def test_steps_share_their_work() -> None:
    """Every data-parallel rank has a batch of its own; others share one."""
    cases = step_parts.step_cases("gpt-mini", 256, 2)
    batches = {name: case.dp * case.accumulate * case.micro_batch for name, case in cases.items()}
    assert batches == {"local": 4, "ddp": 8, "fsdp2": 8, "tp": 4, "pp": 4}
    grids = {name: (case.dp, case.tp, case.pp) for name, case in cases.items()}
    assert grids == {
        "local": (1, 1, 1),
        "ddp": (2, 1, 1),
        "fsdp2": (2, 1, 1),
        "tp": (1, 2, 1),
        "pp": (1, 1, 2),
    }
    assert not cases["local"].grouped and cases["fsdp2"].fsdp
